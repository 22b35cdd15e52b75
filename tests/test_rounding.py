"""A row's numbers depend on the row alone: what Intel's library is told, and what it then does."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from taftcache.rounding import HELD, VARIABLE, round_rows_alike, strictest

WIDE = "vendor_id\t: GenuineIntel\nflags\t\t: fpu sse2 avx2 avx512f"
NARROW = "vendor_id\t: GenuineIntel\nflags\t\t: fpu sse2 avx2"
OTHER = "vendor_id\t: AuthenticAMD\nflags\t\t: fpu sse2 avx2 avx512f"

# Rows of products as frozen layers have them: images times tokens, in a pass and in a shorter one. A product of one
# column goes another way, which no setting holds on AMD's processors but for some numbers of rows: no layer has one,
# and a private sum, which may, has blocks of 256 rows.
PRODUCTS = """
import sys
import taftcache
from taftcache.rounding import round_rows_alike
round_rows_alike(every_shape=sys.argv[1] == "every")
import torch
torch.set_num_threads(1)
wrong = []
for rows in (8, 32, 51, 197, 256, 591, 800, 3152):
    for width in (12, 64, 192):
        for columns in ((1,) * (rows == 256) + (2, 3)) * (sys.argv[1] == "every") + (10, 64, 576):
            x, w = torch.randn(rows, width), torch.randn(columns, width)
            back = torch.arange(rows - 1, -1, -1)
            if not torch.equal((x @ w.T)[back], x[back] @ w.T):
                wrong.append((rows, width, columns))
print(wrong)
"""


def products(shapes: str, **environment: str) -> str:
    """The shapes whose rows come out otherwise in another order, in a process that nobody told how to round."""
    named = {name: value for name, value in os.environ.items() if name != VARIABLE} | environment
    made = subprocess.run([sys.executable, "-c", PRODUCTS, shapes], env=named, capture_output=True, text=True)
    return made.stdout.strip() or made.stderr


intel = pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="products are not Intel's library's here")


@intel
@pytest.mark.law("A sample's tokens depend on nothing but the sample")
@pytest.mark.parametrize("shapes", ["layers", "every"])
def test_rows_of_a_product_do_not_depend_on_their_place(shapes):
    assert products(shapes) == "[]"


@intel
@pytest.mark.law("A sample's tokens depend on nothing but the sample")
def test_nor_do_they_on_a_processor_without_wide_vectors():
    assert products("every", **{HELD: "AVX2", VARIABLE: strictest(NARROW)}) == "[]"
    assert products("layers", **{HELD: "AVX2"}) == "[]"


@pytest.mark.parametrize(
    ("processor", "told", "private"),
    [
        (WIDE, None, "AUTO,STRICT"),
        (NARROW, "AVX2,STRICT", "AVX2,STRICT"),
        (OTHER, "AVX2,STRICT", "AVX2,STRICT"),
        ("", "AVX2,STRICT", "AVX2,STRICT"),
    ],
    ids=["wide", "narrow", "other", "unknown"],
)
def test_who_is_told_what(processor, told, private, monkeypatch):
    for name in (VARIABLE, HELD):
        monkeypatch.delenv(name, raising=False)
    round_rows_alike(processor=processor)
    assert os.environ.get(VARIABLE) == told
    round_rows_alike(every_shape=True, processor=processor)
    assert os.environ[VARIABLE] == private == strictest(processor)
    monkeypatch.setenv(VARIABLE, "COMPATIBLE")
    round_rows_alike(every_shape=True, processor=processor)
    assert os.environ[VARIABLE] == "COMPATIBLE", "what a user says stays"
