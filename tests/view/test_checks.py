"""The lists of what may be wrong with the data, against the commands that make them."""

from __future__ import annotations

import base64
import json
import threading
import time

import numpy as np
import pytest

import taftcache
from taftcache.view.asked import checks as module
from taftcache.view.asked.aside import BEGUN
from taftcache.view.asked.checks import Checks
from taftcache.view.atlas import Atlas
from tests.view.test_server import ask, at

KINDS = {"Int32Array": "<i4", "Float32Array": "<f4"}


def made(checks, name):
    """The list of that name, waited for, its arrays unpacked."""
    end = time.monotonic() + 60
    while (answer := checks.ask(name))["state"] in ("busy", "working"):
        assert time.monotonic() < end
        time.sleep(0.01)
    assert answer["state"] == "done", answer
    json.dumps(answer)
    return {key: unpacked(value) for key, value in answer["found"].items()}


def unpacked(value):
    if not isinstance(value, dict):
        return value
    return np.frombuffer(base64.b64decode(value["data"]), KINDS[value["type"]])


@pytest.mark.law("The page's lists of what may be wrong are those of the command line")
def test_lists_are_those_of_inspect(atlas):
    checks, ids, store = Checks(atlas), atlas.table.ids, atlas.store
    found, report = made(checks, "suspects"), taftcache.suspects(store, top=10_000)
    assert [ids[k] for k in found["row"]] == [s.sample for s in report.suspects]
    assert [store.classes[k] for k in found["says"]] == [s.says for s in report.suspects]
    assert found["margin"] == pytest.approx([s.margin for s in report.suspects])
    assert (found["method"], found["disagreeing"]) == (report.method, report.disagreeing)
    found, copies = made(checks, "duplicates"), taftcache.duplicates(store, top=10_000)
    pairs = [*copies.leaks, *copies.pairs]
    assert [(ids[a], ids[b]) for a, b in zip(found["first"], found["second"], strict=True)] == [
        p.samples for p in pairs
    ]
    assert found["similarity"] == pytest.approx([p.similarity for p in pairs])
    assert (found["leaks"], found["leaks_found"]) == (len(copies.leaks), copies.leaks_found)
    found, far = made(checks, "outliers"), taftcache.outliers(store, top=10_000)
    assert [ids[k] for k in found["row"]] == [o.sample for o in far.outliers]
    assert found["times"] == pytest.approx([o.times for o in far.outliers])


def test_a_list_that_cannot_be_made_says_why(atlas, monkeypatch):
    def refuse(atlas, progress):
        raise taftcache.StoreError("cannot judge labels without training rows of two classes", got="one class")

    def exhaust(atlas, progress):
        raise MemoryError

    monkeypatch.setattr(module, "_suspects", refuse)
    monkeypatch.setattr(module, "_outliers", exhaust)
    checks = Checks(atlas)
    with pytest.raises(AssertionError, match="cannot judge labels"):
        made(checks, "suspects")
    with pytest.raises(AssertionError, match="MemoryError"):
        made(checks, "outliers")
    with pytest.raises(ValueError, match="nothing"):
        checks.ask("nothing")


def test_one_list_is_made_at_a_time_and_ends_with_the_page(atlas, monkeypatch):
    begun, go = threading.Event(), threading.Event()

    def slow(atlas, progress):
        with progress.task("slow", 7) as task:
            begun.set()
            go.wait(60)
            task.advance()
        return {}

    monkeypatch.setattr(module, "_suspects", slow)
    own = Atlas(atlas.store)
    checks = Checks(own)
    checks.ask("suspects")
    assert begun.wait(60)
    assert checks.ask("suspects") == {**BEGUN, "doing": "slow", "total": 7}
    assert checks.ask("outliers") == {"state": "busy", "with": "suspects"}
    own.close()
    go.set()
    for name in ("suspects", "outliers"):
        with pytest.raises(AssertionError, match="the page is closing"):
            made(checks, name)


def test_the_server_answers_with_lists(server):
    assert ask(server, at(server, "check?name=nothing"))[0] == 400
    end = time.monotonic() + 60
    while (answer := json.loads(ask(server, at(server, "check?name=outliers"))[1]))["state"] != "done":
        assert time.monotonic() < end, answer
    assert answer["found"]["neighbour"] == 10


@pytest.mark.slow
def test_a_list_without_an_entry_is_shown(opened, atlas):
    """Its arrays are empty."""
    assert not taftcache.duplicates(atlas.store).pairs
    opened.go("check")
    opened.tab.click('button[data-name="duplicates"]')
    opened.until("document.getElementById('check').textContent.includes('0 leaks and 0 pairs of rows')")
