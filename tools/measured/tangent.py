"""What one product takes beside torch.func, from what ``benchmarks/tangent.py --full`` measured."""

from __future__ import annotations

from typing import Any

import marked

from taftcache.report.tables import markdown_table

NAMES = {"vit-large": "ViT-L/16", "vit-tiny": "ViT-tiny", "bundled": "bundled"}
HEADS = ["shape", "rows", "classes", "made ready, once", "product", "`torch.func`", "in batches of", "ratio"]


def table(report: dict[str, Any]) -> str:
    """A line a shape, and what the machine does at most."""
    rows = []
    for of in report["products"]:
        name = NAMES[of["shape"]] + (", from tokens" if of["from_tokens"] else "")
        ready = milliseconds(of["ready_s"]) if of["ready_s"] else ""
        peer = [milliseconds(of["torch_func_s"]), str(of["torch_func_batch"]), f"{of['ratio_vs_torch_func']:.0f}"]
        cells = [name, str(of["samples"]), str(of["classes"]), ready, milliseconds(of["product_s"]), *peer]
        rows.append([*cells, milliseconds(of["roofline_s"]), f"{of['roofline_fraction']:.2f}"])
    copy, gemm = report["copy_bytes_per_s"] / 1e9, report["gemm_flop_per_s"] / 1e9
    said = f"A copy moves {copy:.0f} GB a second here, and a 4096³ product does {gemm:.0f} GFLOP a second."
    lines = markdown_table([*HEADS, "least time", "fraction of it"], rows)
    return "\n".join([*lines, "", f"{said} {marked.measured(report)}"])


def milliseconds(seconds: float) -> str:
    """Three digits."""
    return f"{1e3 * seconds:,.0f} ms" if seconds >= 0.1 else f"{1e3 * seconds:.3g} ms"
