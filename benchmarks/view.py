"""How soon the page of a large store shows its map, and what serving it takes in memory.

    python benchmarks/view.py [--rows 100000] [--cache feature|tokens] [--neighbours] [--json]

Makes a store of that many rows in a temporary folder: rows of the digits (the bundled backbone's features, 192 bytes
each, or tokens, 12 KB each) with noise, and trained components. Then starts ``taftcache view`` and is its browser:
``address`` is when the command printed it, ``page``, ``first_points`` and ``all_points`` when the page, the first and
the last of the rows' places had arrived, all in seconds since the command began; ``drawn`` is when Chromium had drawn
all of them, counted the same way, where there is one. ``peak_bytes`` is the server's largest resident memory up to all
points, and ``peak_bytes_done`` until every stage of the background work has ended (without the neighbour embedding,
unless --neighbours).
"""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
from record import json_parser, print_figures

from taftcache import FeatureStore, load_recipe, run
from taftcache.consent import recorded_recipe
from taftcache.model.component import put_component, read_base, read_component
from taftcache.names import is_model

QUICKSTART = Path(__file__).resolve().parents[1] / "pipelines/quickstart.toml"
SHARDS = 8


def enlarge(small: FeatureStore, path: Path, rows: int) -> None:
    """A store of ``rows`` rows, a fifth of them held out, drawn from those of ``small`` with noise, and its models."""
    parts = [*small.shards, small.held_out]
    tokens = np.concatenate([part.tokens(slice(0, part.rows)) for part in parts if part is not None])
    labels = np.concatenate([part.labels for part in parts if part is not None])
    plan = {**small.manifest.plan, "shards": SHARDS, "groups": SHARDS + 1}
    tail = small.objects()["base/tail"]
    base = read_base(small, recorded_recipe(small).tangent)
    rng = np.random.default_rng(0)
    made = 0
    with FeatureStore.create(
        path, identity=small.identity, classes=small.classes, plan=plan, recipe=small.manifest.recipe
    ) as store:
        groups = [(f"{k:03d}", "train", rows * 4 // 5 // SHARDS) for k in range(SHARDS)]
        groups.append(("held-out", "held-out", rows - sum(count for _, _, count in groups)))
        for name, role, count in groups:
            ids = [f"row/{made + k:07d}" for k in range(count)]
            with store.writer(name, role, tokens_shape=tokens.shape[1:], candidates=ids) as writer:
                for k in range(0, count, 1024):
                    chosen = rng.integers(0, len(tokens), min(1024, count - k))
                    noise = 0.1 * rng.standard_normal((len(chosen), 1, tokens.shape[2]), dtype=np.float32)
                    writer.append((tokens[chosen] + noise).astype(np.float16), ids[k : k + 1024], labels[chosen])
                writer.commit()
            made += count
        with store.transaction() as change:
            change.put("base/tail", small.read_object("base/tail"), tail.meta)
            for k in range(SHARDS):
                put_component(change, f"components/{k:03d}", read_component(small, f"components/{k % 4:03d}", base))
            for name in filter(is_model, small.objects()):
                put_component(change, name, read_component(small, name, base))


def ask(url: str, route: str) -> Any:
    """One of the server's answers."""
    with urlopen(f"{url}{route}") as answer:
        return json.loads(answer.read())


def places(url: str) -> int:
    """How many rows have a place by now."""
    columns = ask(url, "columns")["columns"]
    return int(np.isfinite(np.frombuffer(base64.b64decode(columns["x"]["data"]), "<f4")).sum()) if "x" in columns else 0


def peak(process: subprocess.Popen[str]) -> int:
    """The largest resident memory of a process so far, in bytes."""
    line = next(t for t in Path(f"/proc/{process.pid}/status").read_text().splitlines() if t.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def at_work(url: str, neighbours: bool) -> bool:
    """Whether a stage of the background work goes on, the neighbour embedding only where it is asked for.

    A stage that ended without a result ends the measurement, but for influence, which large kernels have none of.
    """
    stages = {name: s for name, s in ask(url, "progress")["stages"].items() if neighbours or name != "neighbours"}
    failed = {name: s["note"] for name, s in stages.items() if s["note"] and name != "influence"}
    assert not failed, failed
    return not all(s["ready"] for s in stages.values())


MOVES = """() => new Promise(done => {
    const map = document.querySelector('#map'), times = [], end = performance.now() + 3000;
    const box = map.getBoundingClientRect(), canvas = map.querySelector('canvas') || map;
    const at = k => ({clientX: box.x + box.width / 2 + 60 * Math.sin(k / 9), clientY: box.y + box.height / 2,
                      deltaY: 40 * Math.cos(k / 9), bubbles: true, cancelable: true});
    const frame = time => {
        times.push(time);
        canvas.dispatchEvent(new WheelEvent('wheel', at(times.length)));
        if (time < end) requestAnimationFrame(frame); else done(times);
    };
    requestAnimationFrame(frame);
})"""


def drawn(url: str, rows: int, begin: float) -> dict[str, float]:
    """When Chromium had drawn all points, and frames a second while it zooms in and out; empty without Chromium."""
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return {}
    if program is None:
        return {}
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": 1280, "height": 800})
        opened = time.perf_counter()
        tab.goto(f"{url}#map")
        tab.wait_for_selector(f'#map[data-points="{rows}"]', timeout=300_000)
        tab.evaluate("() => new Promise(requestAnimationFrame)")
        seconds = time.perf_counter() - opened
        before = tab.locator("#map").screenshot()
        times = np.diff(tab.evaluate(MOVES))
        assert tab.locator("#map").screenshot() != before, "the map did not move"
        browser.close()
    return {
        "drawn": begin + seconds,
        "frames_per_s": 1000 / float(times.mean()),
        "slowest_frame_ms": float(np.quantile(times, 0.95)),
    }


def measure(path: Path, rows: int, neighbours: bool) -> dict[str, Any]:
    """Serve the store and look at it."""
    command = [sys.executable, "-c", "from taftcache.cli import main; main()", "view", str(path), "--no-browser"]
    begin = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        found: dict[str, Any] = {"address": time.perf_counter() - begin}
        with urlopen(url) as answer:
            page = answer.read()
        ask(url, "overview")
        ask(url, "ids")
        found |= {"page": time.perf_counter() - begin, "page_bytes": len(page)}
        while (known := places(url)) < rows:
            if known and "first_points" not in found:
                found["first_points"] = time.perf_counter() - begin
            time.sleep(0.05)
        found["all_points"] = time.perf_counter() - begin
        found.setdefault("first_points", found["all_points"])
        found["peak_bytes"] = peak(process)
        found |= drawn(url, rows, found["address"])
        while at_work(url, neighbours):
            time.sleep(0.5)
        found |= {"done": time.perf_counter() - begin, "peak_bytes_done": peak(process)}
    finally:
        process.terminate()
        process.wait()
    return found


def main() -> None:
    parser = json_parser(__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--cache", choices=["feature", "tokens"], default="feature")
    parser.add_argument("--neighbours", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        path = Path(place)
        train = "head" if args.cache == "feature" else "full"
        run(load_recipe(QUICKSTART, [f"store.path={path}/small", f"tangent.train={train}", "device=cpu"]))
        with FeatureStore(path / "small") as small:
            enlarge(small, path / "large", args.rows)
        shutil.rmtree(path / "small")
        with FeatureStore(path / "large") as large:
            size = large.nbytes
        report = {
            "rows": args.rows,
            "cache": args.cache,
            "bytes": size,
            **measure(path / "large", args.rows, args.neighbours),
        }
    print_figures(report, args.json)


if __name__ == "__main__":
    main()
