"""What a request names: ids as they stand, all of them known, and never the letters of one."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import numpy as np
import pytest

import taftcache
from taftcache import FeatureStore
from taftcache.cli import main
from taftcache.errors import RecipeError, UnknownSample
from taftcache.stages.forget.request import read_ids
from taftcache.stages.look.row_table import Sample
from taftcache.terminal.forgetting import show_receipts
from taftcache.terminal.inspection import show_samples

# marks of direction and of bytes, signs of no width, blanks, ends of lines that are no newline, a control of a terminal
ODD = [
    "\ufeffbom",
    "\u202eevil",
    "a\u200bb",
    "👨\u200d👩",
    "نامه\u200cای",
    "a\xa0b",
    " ",
    "\xa0",
    "\u2028",
    "\x85",
    "\x9b",
    "\\u200b",
]
IDS = [*(f"u{k}" for k in range(40)), " u0", "u1 ", "1", "2", "12", "e\u0301", *ODD]


@pytest.fixture
def store(tmp_path) -> Path:
    """Vectors whose ids differ by blanks at their ends, or are letters of others."""
    x = np.random.default_rng(0).normal(size=(len(IDS), 6))
    path = tmp_path / "store"
    overrides = ["store.shards=2", "solver.tolerance=1e-3"]
    taftcache.import_vectors(x, np.arange(len(IDS)) % 3, path, ids=IDS, overrides=overrides)
    with FeatureStore(path, mode="a") as opened:
        taftcache.train(opened)
        taftcache.compose(opened)
    return path


def ended(capsys, *words: str) -> tuple[int, dict]:
    with pytest.raises(SystemExit) as end:
        main([*words, "--json"])
    return end.value.code, json.loads(capsys.readouterr().out)


def ids_of(path: Path) -> list[str]:
    with FeatureStore(path) as opened:
        return [i for i in IDS if opened.holds(i)]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_ids_of_a_file_stay_as_they_stand(store, tmp_path, capsys, end, mark):
    (tmp_path / "ids").write_bytes(mark + end.join([" u0", "", "u1 ", ""]).encode())
    code, told = ended(capsys, "forget", str(store), "--file", str(tmp_path / "ids"))
    assert (code, told["forgotten"]) == (0, [" u0", "u1 "])
    assert ids_of(store) == [i for i in IDS if i not in (" u0", "u1 ")]


def test_ids_from_standard_input(store, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"u3\nu4\n")))
    assert ended(capsys, "forget", str(store), "--file", "-", "--dry-run")[1]["forgotten"] == ["u3", "u4"]


@pytest.mark.parametrize("closed", ["before", "since"])
def test_a_closed_standard_input_is_no_empty_list(store, capsys, monkeypatch, closed):
    """A service starts its commands without one: they ended with a traceback."""
    stream = io.TextIOWrapper(io.BytesIO(b"u3\n"))
    stream.close()
    monkeypatch.setattr(sys, "stdin", None if closed == "before" else stream)
    code, told = ended(capsys, "forget", str(store), "--file", "-")
    assert (code, told["fault"]) == (2, "cannot read the ids: standard input is closed")
    assert ids_of(store) == IDS


def test_every_unknown_id_is_named_and_nothing_leaves(store, tmp_path, capsys):
    (tmp_path / "ids").write_text("u1\nnobody\nu2\nnowhere\n")
    with FeatureStore(store) as opened:
        root = opened.root_digest
    code, told = ended(capsys, "forget", str(store), "--file", str(tmp_path / "ids"))
    assert code == UnknownSample.exit_code
    assert (told["got"], told["ids"]) == ("'nobody', 'nowhere'", ["nobody", "nowhere"])
    table = ("path,owner", "train/u13")
    told = ended(capsys, "forget", str(store), *(word for name in table for word in ("--sample", name)))[1]
    assert "one id or path a line, and nothing else; for the last of these, did you mean 'u13'" in told["try"]
    told = ended(capsys, "forget", str(store), "--sample", "u1", "--sample", "a, b")[1]
    assert (told["fault"], told["ids"]) == ("no row has the id 'a, b'; nothing is changed", ["a, b"])
    assert told["try"].startswith(f"taftcache receipts {store} --file FILE says what is known about each")
    told = ended(capsys, "forget", str(store), "--match", "z*")[1]
    assert (told["error"], told["names"], told["exit_code"]) == ("UnknownName", ["z*"], 5)
    with FeatureStore(store) as opened:
        assert opened.root_digest == root


@pytest.mark.parametrize(
    ("lines", "cut"),
    [
        ("id,date,reason\nu1,2026-01-01,gdpr\nu2,2026-01-02,gdpr\n", "cut -d, -f1 FILE | tail -n +2 > ids.txt"),
        ("date,ID\n2026-01-01,u1\n", "cut -d, -f2 FILE | tail -n +2 > ids.txt"),
        ("u1,gdpr\nu2,gdpr\nu3,asked, by phone\n", "cut -d, -f1 FILE > ids.txt"),
        ("unknown,gdpr\nu1,gdpr\nu2,gdpr\n", "cut -d, -f1 FILE > ids.txt"),
        ("who,why\nnobody,gdpr\n", None),
        ("date,why,id\nu1,gdpr\nu2,gdpr\n", None),
    ],
)
def test_a_log_in_csv_is_named_as_such(store, tmp_path, capsys, lines, cut):
    """It guessed which ids were meant by whole lines."""
    (tmp_path / "log.csv").write_text(lines)
    code, told = ended(capsys, "forget", str(store), "--file", str(tmp_path / "log.csv"))
    assert (code, told["ids"], ids_of(store)) == (5, lines.split("\n")[:-1], IDS)
    assert ("this is CSV with further columns" in told["fault"]) == (cut is not None)
    assert (cut or "one id or path a line, and nothing else") in told["try"]


def test_a_line_of_blanks_is_refused_as_such_unless_it_is_an_id(store, tmp_path, capsys):
    (tmp_path / "ids").write_text("u1\n  \n\t\n")
    code, told = ended(capsys, "forget", str(store), "--file", str(tmp_path / "ids"))
    assert (code, told["fault"]) == (5, "no row has an id of blanks alone; nothing is changed")
    assert (told["got"], ids_of(store)) == (r"'  ', '\t'", IDS)
    (tmp_path / "ids").write_text("u1\n \n")
    assert ended(capsys, "forget", str(store), "--file", str(tmp_path / "ids"))[1]["forgotten"] == ["u1", " "]


@pytest.mark.parametrize("text", ["", "\n\n"])
def test_an_empty_file_of_ids_is_nothing_to_do(store, tmp_path, capsys, text):
    """A queue may be empty; a request that names nothing at all is refused."""
    (tmp_path / "ids").write_text(text)
    with FeatureStore(store) as opened:
        root = opened.root_digest
    named = (str(store), "--file", str(tmp_path / "ids"))
    for more in ((), ("--dry-run",)):
        code, told = ended(capsys, "forget", *named, *more)
        assert (code, told["forgotten"], told["already"], told["renewed"]) == (0, [], [], [])
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["forget", *named])
    assert capsys.readouterr().out.startswith("nothing to forget\n")
    code, told = ended(capsys, "receipts", *named)
    assert (code, told["samples"]) == (0, [])
    assert ended(capsys, "forget", *named, "--destroy-key")[0] == RecipeError.exit_code
    code, told = ended(capsys, "forget", str(store))
    assert (code, told["fault"]) == (
        RecipeError.exit_code,
        "nothing to forget: no sample, shard, class or component is named",
    )
    with FeatureStore(store) as opened:
        assert opened.root_digest == root


def test_a_name_that_is_no_text_is_an_unknown_id(store, capsys):
    ended(capsys, "forget", str(store), "--sample", "u5")  # there are tombstones to look it up among
    assert ended(capsys, "forget", str(store), "--sample", "caf\udce9.jpg")[0] == UnknownSample.exit_code
    assert ended(capsys, "inspect", str(store), "--sample", "caf\udce9.jpg")[0] == UnknownSample.exit_code


def test_what_is_written_anew_is_counted_before_and_after(store):
    with FeatureStore(store) as opened:
        planned = taftcache.forget(opened, ["u6"], dry_run=True)
    with FeatureStore(store, mode="a") as opened:
        assert taftcache.forget(opened, ["u6"]).bytes == planned.bytes > 0


@pytest.mark.parametrize("given", [np.array, iter, set], ids=["array", "read once", "set"])
def test_ids_may_come_from_anything_that_lists_them(store, given):
    assert sorted(taftcache.forget(store, given(["u3", "u4"])).forgotten) == ["u3", "u4"]
    states = {a.sample: a.state for a in taftcache.receipts(store, given(["u3", "u5"])).samples}
    assert states == {"u3": "forgotten", "u5": "held"}
    assert taftcache.forget(store, given([])).forgotten == []


def test_an_id_in_another_unicode_form_is_not_offered_as_itself(store, capsys):
    code, told = ended(capsys, "forget", str(store), "--sample", "\xe9")
    assert (code, told["got"]) == (UnknownSample.exit_code, "'\\xe9'")
    assert told["try"].startswith("'e\\u0301', which looks the same")


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
@pytest.mark.parametrize("first", range(2))
def test_a_list_of_ids_in_a_file_is_what_forget_takes(store, tmp_path, monkeypatch, encoding, first):
    """In any locale, and whatever signs ids have; a newline, which only a forged store has in an id, makes no line."""
    ids = ODD[first:]
    with (tmp_path / "ids").open("w", encoding=encoding, errors="backslashreplace") as out:
        monkeypatch.setattr(sys, "stdout", out)
        show_samples([Sample(sample=i, shard="000", role="train", label=None) for i in [*ids, "u0\nu2"]])
    assert read_ids(tmp_path / "ids") == [*ids, "u0\\nu2"]
    with FeatureStore(store) as opened:
        assert taftcache.forget(opened, read_ids(tmp_path / "ids")[:-1], dry_run=True).forgotten == ids


def test_on_a_terminal_ids_are_shown(monkeypatch):
    out = io.StringIO()
    out.isatty = lambda: True
    monkeypatch.setattr(sys, "stdout", out)
    show_samples([Sample(sample="\u202eevil", shard="000", role="train", label=None)])
    assert out.getvalue() == "\\u202eevil\n"


def test_an_id_as_a_terminal_shows_it_is_not_offered_as_itself(store, capsys):
    told = ended(capsys, "forget", str(store), "--sample", r"\u202eevil")[1]
    assert told["got"] == r"'\\u202eevil'"
    assert told["try"] == (
        rf"'\u202eevil', which looks the same: take it from a file: taftcache inspect {store} --ids > FILE"
    )


def test_receipts_name_an_id_of_another_unicode_form(store, capsys):
    def answer(sample):
        return taftcache.receipts(store, ["u3", "nowhere", sample]).samples[2]

    assert (answer("\xe9").state, answer("\xe9").alike) == ("unknown", "e\u0301")
    show_receipts(taftcache.receipts(store, ["\xe9"]))
    assert "not known as it is written here, '\\xe9'; 'e\\u0301', which looks the same, is" in capsys.readouterr().out
    taftcache.forget(store, ["e\u0301"])
    assert (answer("\xe9").alike, answer("e\u0301").alike, answer("u99").alike) == ("e\u0301", None, None)
    show_receipts(taftcache.receipts(store, ["\xe9"]))
    assert ", as 'e\\u0301', which looks the same" in capsys.readouterr().out
