"""Write docs/gpu.md's tables from what ``benchmarks/gpu.py`` measured.

python tools/make_gpu.py [REPORT.json …]

The reports are those that the benchmark printed with ``--json``; docs/results/gpu.json keeps what they say, beside what
it has of other parts. Of a part that is in two the later one counts, unless it failed there.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import marked

NOTHING = "Not measured yet."
PARTS = ("extract", "product", "deep", "whole", "agreement")


def merged(kept: dict[str, Any], reports: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Each part's figures with the machine that they belong to; what failed gives way to what did not."""
    parts = dict(kept)
    for report in reports:
        if report["quick"]:
            raise SystemExit("a report of --quick says nothing of speed")
        for name, found in report["parts"].items():
            if "error" not in found or name not in parts:
                parts[name] = {**found, "machine": report["machine"]}
    return parts


def page(parts: dict[str, Any]) -> str:
    """A section a part."""
    if not parts:
        return NOTHING
    told = {machine(of["machine"]) for name in PARTS if "error" not in (of := parts.get(name, {"error": ""}))}
    text = [*told, ""] if len(told) == 1 else []  # of all, or beside each
    for name in PARTS:
        found = parts.get(name)
        text += [f"### {TITLES[name]}", ""]
        if found is None:
            text += [NOTHING, ""]
        elif "error" in found:
            text += [f"Not measured: {found['error']}.", ""]
        else:
            try:
                text += [*WRITERS[name](found), ""]
            except KeyError:
                if "stopped" not in found:
                    raise
            if "stopped" in found:
                text += [f"Stopped after {found['stopped']} seconds, before its end.", ""]
            text += [machine(found["machine"]), ""] if len(told) > 1 else []
    return "\n".join(text).strip()


def machine(found: dict[str, Any]) -> str:
    """What the figures belong to."""
    memory = "" if found["memory_bytes"] is None else f" with {found['memory_bytes'] / 2**30:.0f} GiB"
    when = f"; {found['date']}, commit {found['commit']}" if found.get("date") else ""
    return (
        f"On one {found['device']}{memory}, {found['cores']} cores; torch {found['torch']}, timm {found['timm']}{when}."
    )


def extraction(found: dict[str, Any]) -> list[str]:
    """Images a second, a row for each model and precision."""
    rows = [
        "| model, precision | bare forward, images/s | decoding alone | writing alone | from files, to a store"
        " | over the slowest of the three | seconds to begin | from memory, to a store | over the bare forward |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    models = {name: of for name, of in found.items() if isinstance(of, dict) and "bare" in of}
    for name, of in models.items():
        rates = " | ".join(f"{of[key]:,.0f}" for key in ("bare", "decoding", "disk", "files"))
        begin = f"{of['begin_seconds']:.1f}" if "begin_seconds" in of else ""
        memory = f"{of['memory']:,.0f} | {of['memory_fraction_of_bare']:.2f}" if "memory" in of else " | "
        rows.append(f"| {name} | {rates} | {of['fraction']:.2f} | {begin} | {memory} |")
    disk, writer = (found[f"{key}_bytes_per_s"] / 1e9 for key in ("disk", "writer"))
    apart = all("begin_seconds" in of for of in models.values())
    return [
        *rows,
        "",
        f"Up to {found['images']:,} JPEG files on {found['files_on']}, which takes {disk:.2f} GB/s of plain files; the"
        f" store's writer alone, with its digests and statistics, writes {writer:.2f} GB/s. What it takes to begin,"
        f" once for all shards, is {'beside the rates' if apart else 'in the rates'}.",
    ]


def products(found: dict[str, Any]) -> list[str]:
    """Milliseconds, and the share of them that the device needs at least."""
    rows = ["| | ms | least, ms | fraction |", "|---|---|---|---|"]
    names = {"resident": "JᵀDJ·v, rows on the device", "streamed": "JᵀDJ·v, rows streamed from the host"}
    names |= {"kernel": "kernel of the rows, decomposed", "kronecker": "Kronecker factors, decomposed"}
    for key, title in names.items():
        of = found[key]
        rows.append(f"| {title} | {1e3 * of['seconds']:,.1f} | {1e3 * of['least']:,.1f} | {of['fraction']:.2f} |")
    peer, upload = found["torch_func"], ""
    if "upload_bytes_per_s" in found:  # it is in the least time of streamed rows
        upload = f", {found['upload_bytes_per_s'] / 1e9:,.0f} GB/s from the host"
    return [
        *rows,
        "",
        f"ViT-L/16, {found['rows']:,} rows, {found['classes']} classes, float32; a copy moves"
        f" {found['copy_bytes_per_s'] / 1e9:,.0f} GB/s{upload} and a matrix product does"
        f" {found['gemm_flop_per_s'] / 1e12:,.1f} TFLOP/s here. `torch.func` takes {peer['ratio_vs_torch_func']:,.0f}"
        f" times as long in a block of {peer['samples']} rows. Extrapolated from there to all rows, in proportion, it"
        f" would take {peer['ratio_at_all_rows']:,.1f} times as long.",
    ]


def deep(found: dict[str, Any]) -> list[str]:
    """Products of deep tails in forward passes."""
    rows = [
        "| blocks | forward, ms a row | product, in forward passes | state computed anew | `torch.func` |",
        "|---|---|---|---|---|",
    ]
    for blocks, of in found.items():
        if isinstance(of, dict) and "forward_s" in of:
            each = " | ".join(f"{of[f'{key}_in_forwards']:.1f}" for key in ("product", "streamed", "torch_func"))
            rows.append(f"| {blocks} | {1e3 * of['forward_s'] / of['samples']:.2f} | {each} |")
    return rows


def whole(found: dict[str, Any]) -> list[str]:
    """Seconds of each command, and memory."""
    rows = ["| | seconds |", "|---|---|"]
    titles = {"extract": "extract", "train": f"train {found['shards']} shards", "compose": "compose, the exact model"}
    titles |= {"forget": "forget one sample"}
    rows += [
        f"| {title} | {found[f'{key}_seconds']:,.1f} |" for key, title in titles.items() if f"{key}_seconds" in found
    ]
    memory = f"{found['peak_host_bytes'] / 1e9:.1f} GB of the host"
    if "peak_device_bytes" in found:
        memory += f" and {found['peak_device_bytes'] / 1e9:.1f} GB of the device"
    size = found["store_bytes"] / 1e9
    return [*rows, "", f"{found['images']:,} images, {found['model']}; {memory} at most, a store of {size:.1f} GB."]


def agreement(found: dict[str, Any]) -> list[str]:
    """How far apart, and what is allowed."""
    rows = ["| | off | allowed | |", "|---|---|---|---|"]
    for name, of in found.items():
        if isinstance(of, dict) and "holds" in of:
            held = "holds" if of["holds"] else "**does not hold**"
            rows.append(f"| {name} | {of['off']:.1e} | {of['allowed']:.1e} | {held} |")
    return rows


TITLES = {
    "extract": "Extraction",
    "product": "Products",
    "deep": "Products of several blocks",
    "whole": "From images to a forgotten sample",
    "agreement": "Agreement with the CPU",
}
WRITERS = {"extract": extraction, "product": products, "deep": deep, "whole": whole, "agreement": agreement}


def main(files: Sequence[str]) -> None:
    """Keep the reports, and replace what stands between the page's marks."""
    path = marked.ROOT / "docs" / "results" / "gpu.json"
    kept = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    parts = merged(kept, [json.loads(Path(f).read_text(encoding="utf-8")) for f in files])
    if files:
        path.write_text(json.dumps(parts, indent=2) + "\n", encoding="utf-8")
    marked.put("docs/gpu.md", "gpu", page(parts))


if __name__ == "__main__":
    main(sys.argv[1:])
