"""How Intel's library rounds a product's rows, which an environment variable decides before torch's first product.

On other makers' processors, and on Intel's without AVX-512, its kernels round a row by its place among the rows. With
AVX-512 they do so only in products of three columns or fewer, which no frozen layer has; there the setting would make a
solve take a quarter longer, elsewhere it costs nothing (docs/decisions.md).

Programs that this one starts inherit the variable, as they must: workers that round otherwise are refused
(``remote/task.py``). Nor could it be taken back, because the library reads it at the first product, whoever asks for
that.
"""

from __future__ import annotations

import os
import platform
from itertools import takewhile

VARIABLE = "MKL_CBWR"
HELD = "MKL_ENABLE_INSTRUCTIONS"  # set by users who hold the library to shorter vectors


def strictest(processor: str | None = None) -> str:
    """The value of ``VARIABLE`` under which a row's numbers depend on the row alone, in products of every shape.

    ``processor`` is a description as in /proc/cpuinfo, this machine's by default.
    """
    return "AUTO,STRICT" if _wide_intel(described() if processor is None else processor) else "AVX2,STRICT"


def round_rows_alike(every_shape: bool = False, processor: str | None = None) -> None:
    """Set ``VARIABLE`` if nobody did and a backbone's products need it or, with ``every_shape``, in any case."""
    processor = described() if processor is None else processor
    if every_shape or HELD in os.environ or not _wide_intel(processor):
        os.environ.setdefault(VARIABLE, strictest(processor))


def _wide_intel(processor: str) -> bool:
    return "GenuineIntel" in processor and "avx512f" in processor


def processor() -> str:
    """The processor's name, or its architecture if the system does not tell the name."""
    lines = (line.partition(":") for line in described().splitlines())
    return next((value.strip() for key, _, value in lines if key.strip() == "model name"), platform.machine())


def described() -> str:
    """/proc/cpuinfo of the first core; empty if the system has no such file."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            return "".join(takewhile(str.strip, file))
    except OSError:
        return ""
