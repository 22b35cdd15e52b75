"""Errors say what went wrong."""

from __future__ import annotations

import pytest

from taftcache.names import counted
from tests.test_house.imports import PACKAGE
from tests.test_house.messages import advice, faults, form, messages, uncounted, without_advice

FILES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("folder", sorted({file.parent for file in FILES}), ids=lambda folder: folder.name)
def test_first_lines_state_the_fault(folder):
    found = [
        f"{file.name}, line {m.line}: {m.kind} {m.text!r} {', '.join(wrong)}"
        for file in sorted(folder.glob("*.py"))
        for m in messages(file.read_text(encoding="utf-8"))
        if (wrong := faults(m.text))
    ]
    found += [
        f"{file.name}, line {m.line}: {m.kind} {m.text!r} {', '.join(wrong)}"
        for file in sorted(folder.glob("*.py"))
        for m in advice(file.read_text(encoding="utf-8"))
        if (wrong := form(m.text))
    ]
    assert found == []


def test_who_made_a_mistake_is_told_what_to_try():
    """Of a recipe, an option or an argument: whoever wrote it can put it right."""
    found = [f"{f}, line {line}" for f in FILES for line in without_advice(f.read_text(encoding="utf-8"))]
    assert found == []


def test_one_thing_is_no_plural():
    stored = {"statement.py"}  # whose words are bytes of a component
    files = [file for file in FILES if file.parent.name != "paper" and file.name not in stored]
    assert [(file.name, text) for file in files for text in uncounted(file.read_text(encoding="utf-8"))] == []


def test_things_are_counted():
    counts = [counted(n, thing) for thing in ("row", "other class", "pass", "entry") for n in (0, 1, 2)]
    assert counts == [
        "0 rows", "1 row", "2 rows", "0 other classes", "1 other class", "2 other classes",
        "0 passes", "1 pass", "2 passes", "0 entries", "1 entry", "2 entries",
    ]  # fmt: skip


def test_raise_sites_are_found():
    assert sum(len(list(messages(file.read_text(encoding="utf-8")))) for file in FILES) > 300


@pytest.mark.parametrize(
    "text",
    [
        "There is a shard to train",
        "there is a shard to train",
        "there are workers",
        "there is one weight for each class",
        "a component is finite",
        "A store can be made there.",
        "the scheduler answers",
        "no store there.",
        "",
        "no\nstore",
        "every class has a name of its own",
    ],
)
def test_a_wrong_form_is_seen(text):
    assert faults(text)


@pytest.mark.parametrize(
    "text",
    [
        "no shard to train",
        "class_weights has 2 values, the store has 10 classes",
        "cannot write to stores/x: no space left on the disk",
        "data.source must be one of digits, folder",
        "an id is in two shards: the ids must differ",
    ],
)
def test_a_good_form_passes(text):
    assert faults(text) == []
