"""The report engine: what is written is whole, and a table holds what it was given."""

from __future__ import annotations

import csv
import os
import sys

import pytest

from taftcache.errors import RecipeError, StoreWriteError
from taftcache.report.plots import bars, check_plots
from taftcache.report.tables import columns_of, comma_separated, markdown_table
from taftcache.report.write import write_bytes

ROWS = [{"a": 1, "b": 'x,"y"'}, {"a": 2.5, "c": None}, {"b": ""}]


def test_a_table_in_csv_is_read_back():
    found = list(csv.DictReader(comma_separated(ROWS).splitlines()))
    assert found == [
        {name: "" if row.get(name) is None else str(row[name]) for name in columns_of(ROWS)} for row in ROWS
    ]


def test_a_table_in_markdown_has_as_many_bars_in_every_line():
    lines = markdown_table(["a", "b"], [["1", "2"], ["", "3"]])
    assert lines == ["| a | b |", "|---|---|", "| 1 | 2 |", "|  | 3 |"]


def test_a_file_is_the_old_one_where_a_write_fails(tmp_path, monkeypatch):
    file = tmp_path / "new" / "report.md"
    write_bytes(file, b"old")

    def full(source, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(StoreWriteError, match="No space left") as error:
        write_bytes(file, b"new")
    assert str(file) in error.value.fault
    assert file.read_bytes() == b"old"


def test_a_missing_plot_library_is_named_before_the_work(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "leather", None)
    for call in (check_plots, lambda: bars(tmp_path / "a.svg", "title", "x", {"one": 1.0})):
        with pytest.raises(RecipeError, match="leather is not installed") as error:
            call()
        assert "taftcache[plots]" in error.value.do
    assert not list(tmp_path.iterdir())
