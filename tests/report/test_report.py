"""The report engine: what is written is whole, and a table holds what it was given."""

from __future__ import annotations

import csv
import io
import os
import sys
from xml.etree import ElementTree

import matplotlib
import pytest

from taftcache.errors import RecipeError, StoreWriteError
from taftcache.report.plots import COLOURS, check_plots, curves, dots
from taftcache.report.tables import columns_of, comma_separated, markdown_table
from taftcache.report.write import write_bytes
from taftcache.stages.texts import meant

ROWS = [{"a": 1, "b": 'x,"y"'}, {"a": 2.5, "c": None}, {"b": ""}]


def test_a_table_in_csv_is_read_back():
    found = list(csv.DictReader(comma_separated(ROWS).splitlines()))
    assert found == [
        {name: "" if row.get(name) is None else str(row[name]) for name in columns_of(ROWS)} for row in ROWS
    ]


@pytest.mark.law("No CSV file of ours holds a text that a spreadsheet would compute")
@pytest.mark.parametrize("begins", ["=", "+", "-", "@", "\t", "\r", *"＝＋－＠"])
@pytest.mark.parametrize("before", ["", "x;", "x;y\t", "1;-2;"])
def test_no_text_of_a_csv_is_a_formula(begins, before):
    text = f"{begins}cmd|' /C calc'!A0"
    written = comma_separated([{"a": 1, "b": f"{before}{text}", "c": f"{before}{text}"}])
    (found,) = csv.DictReader(io.StringIO(written, newline=""))
    assert found == {"a": "1", "b": f"{before}'{text}", "c": f"{before}'{text}"}
    assert f"{before}{text}" in meant([found["b"]]), "an audit knows the text that it was"
    for delimiter in ";\t":
        cells = [cell for row in csv.reader(io.StringIO(written, newline=""), delimiter=delimiter) for cell in row]
        assert not [cell for cell in cells if cell.startswith(text[:4])]


@pytest.mark.parametrize("number", [-1.5, -1e-9, "-1", "+0.5", "-1e-05", "a=b", "x-1", "a;b", "1;-2"])
def test_numbers_and_names_of_a_csv_stay(number):
    assert comma_separated([{"a": number}]) == f"a\n{number}\n"


def test_a_table_in_markdown_has_as_many_bars_in_every_line():
    lines = markdown_table(["a", "b"], [["1", "2"], ["", "3"]])
    assert lines == ["| a | b |", "|---|---|", "| 1 | 2 |", "|  | 3 |"]


def test_a_file_is_the_old_one_where_a_write_fails(tmp_path, monkeypatch):
    file = tmp_path / "new" / "report.md"
    write_bytes(file, b"old")

    def full(source, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(StoreWriteError, match="no space left") as error:
        write_bytes(file, b"new")
    assert str(file) in error.value.fault
    assert "free some space" in error.value.do
    assert file.read_bytes() == b"old"
    assert list(file.parent.iterdir()) == [file]


def test_a_missing_plot_library_is_named_before_the_work(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for call in (check_plots, lambda: dots(tmp_path / "a.svg", "x", {"one": (1.0, 0.0)})):
        with pytest.raises(RecipeError, match="matplotlib is not installed") as error:
            call()
        assert "taftcache[plots]" in error.value.do
    assert not list(tmp_path.iterdir())


LINES = {"one": [(x, 80.0 + x, 0.5) for x in range(4)], "two": [(0, 85.0, 0.0), (3, 84.0, 0.0)]}


def texts(file):
    return [part.text for part in ElementTree.parse(file).iter("{http://www.w3.org/2000/svg}text")]


def test_a_plot_of_the_same_numbers_has_the_same_bytes_whatever_ones_own_settings(tmp_path):
    first = curves(tmp_path / "a.svg", "shards", "accuracy", LINES).read_bytes()
    with matplotlib.rc_context({"svg.fonttype": "path", "font.size": 20, "svg.hashsalt": None, "axes.grid": False}):
        assert curves(tmp_path / "b.svg", "shards", "accuracy", LINES).read_bytes() == first


def test_a_plot_says_in_text_what_it_shows(tmp_path):
    said = texts(curves(tmp_path / "a.svg", "shards", "accuracy", LINES, title="10 shards"))
    assert {"10 shards", "shards", "one", "two", "accuracy, ± deviation over seeds"} <= {*said}
    ticks = said[: said.index("shards")]
    assert ticks == ["0", "1", "2", "3"]
    said = texts(dots(tmp_path / "b.svg", "accuracy", {"one": (90.12, 0.0), "two": (91.0, 0.0)}))
    assert {"accuracy", "one", "two", "90.1", "91.0"} <= {*said}
    assert min(float(tick) for tick in said[: said.index("accuracy")]) > 80


def test_what_deviates_has_a_band_and_a_family_one_colour(tmp_path):
    drawn = curves(tmp_path / "a.svg", "x", "y", LINES, {"one": "both", "two": "both"}).read_text(encoding="utf-8")
    assert drawn.count("fill-opacity: 0.15") == 1
    assert COLOURS[0] in drawn
    assert COLOURS[1] not in drawn
    assert "stroke-dasharray" in drawn
    assert COLOURS[1] in curves(tmp_path / "b.svg", "x", "y", LINES).read_text(encoding="utf-8")
