"""What benchmarks share: ``--json``, where and of what a report was measured, a clock, and what a stopped run left."""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from taftcache.report.write import write_json
from taftcache.rounding import described, processor

UNITS = {"avx512f": "AVX-512", "avx512_bf16": "bfloat16", "amx_bf16": "AMX"}


def record() -> dict[str, Any]:
    """commit (None outside a clone), date, machine, torch, threads, argv."""
    return {
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d"),
        "machine": machine(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "argv": [Path(sys.argv[0]).name, *(Path(a).name if Path(a).is_absolute() else a for a in sys.argv[1:])],
    }


def commit() -> str | None:
    """Of the clone that this file is in, with a "+" where something was changed since."""
    git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--exclude=*", "--abbrev=12", "--dirty=+"]
    if shutil.which(git[0]) is None:
        return None
    return subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip() or None


def machine() -> str:
    """The processor's name, and which of its units for matrices it has."""
    has = described().split()
    return ", ".join([processor(), *(name for flag, name in UNITS.items() if flag in has)])


def json_parser(doc: str | None) -> argparse.ArgumentParser:
    """Arguments of a script with this docstring."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print nothing but the figures as JSON")
    return parser


def timed(work: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    """What ``work`` gives, and its seconds of the clock and of the processor, all threads together."""
    clock, processor = time.perf_counter(), time.process_time()
    found = work()
    return found, {"clock": time.perf_counter() - clock, "processor": time.process_time() - processor}


def seconds(work: Callable[[], Any], device: str) -> float:
    """Of the clock, until the device is done."""
    if device == "cuda":
        torch.cuda.synchronize()
    begin = time.perf_counter()
    work()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - begin


class Kept:
    """What was measured, one JSON file each below a folder; what was measured with other settings is none."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder, self._settings = folder, settings

    def having(self, **settings: Any) -> Kept:
        """The same folder with settings that matter to a part alone."""
        return Kept(self.folder, **self._settings, **settings)

    def get(self, name: str) -> Any:
        """What is kept by that name, else None."""
        file = self._file(name)
        found = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        return found["measured"] if found.get("settings") == json.loads(json.dumps(self._settings)) else None

    def once(self, name: str, measure: Callable[[], Any]) -> Any:
        """What is kept by that name, or else is measured now."""
        found = self.get(name)
        if found is None:
            found = measure()
            write_json(self._file(name), {"settings": self._settings, "measured": found})
        return found

    def _file(self, name: str) -> Path:
        return self.folder / f"{name.replace(' ', '_')}.json"


def print_report(report: Mapping[str, Any]) -> None:
    """The record and the figures as JSON."""
    print(json.dumps({**record(), **report}, indent=1, ensure_ascii=False))


def print_figures(report: Mapping[str, Any], as_json: bool) -> None:
    """The figures as JSON, or a line for each."""
    if as_json:
        print_report(report)
        return
    width = max(map(len, report))
    for key, value in report.items():
        print(f"{key:{width}} {value:.3f}" if isinstance(value, float) else f"{key:{width}} {value}")
