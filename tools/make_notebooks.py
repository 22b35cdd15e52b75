"""Run the notebooks of docs/notebooks and keep what they show, without anything that another run would change.

python tools/make_notebooks.py    run them all, in folders of their own
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "notebooks"
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}
SHOWN = ("image/svg+xml", "text/plain")  # the first of them that there is


def run(notebook: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The notebook with the outputs of a run of its code in ``folder``; CellExecutionError where a cell fails."""
    import nbformat
    from nbclient import NotebookClient

    read = nbformat.reads(json.dumps(notebook), as_version=4)
    client = NotebookClient(read, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(folder)}})
    ran = json.loads(nbformat.writes(client.execute()))
    return {**notebook, "cells": [cleaned(cell) for cell in ran["cells"]], "metadata": metadata(notebook)}


def doubled(notebook: dict[str, Any]) -> dict[str, Any]:
    """The notebook with each cell of code twice in a row, the second with ``-again`` at the end of its id."""
    cells = []
    for cell in notebook["cells"]:
        cells += [cell] if cell["cell_type"] != "code" else [cell, {**cell, "id": f"{cell['id']}-again"}]
    return {**notebook, "cells": cells}


def metadata(notebook: dict[str, Any]) -> dict[str, Any]:
    """What a notebook says of itself: its kernel, and which code its outputs are of."""
    return {"kernelspec": KERNEL, "taftcache": {"code": digest(notebook)}}


def digest(notebook: dict[str, Any]) -> str:
    """Of all code of a notebook, as text."""
    code = [text(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return hashlib.sha256(json.dumps(code).encode()).hexdigest()[:16]


def cleaned(cell: dict[str, Any]) -> dict[str, Any]:
    """A cell without counts, times, what went to stderr, and all but one form of each output."""
    kept = {"cell_type": cell["cell_type"], "id": cell["id"], "metadata": {}, "source": lines(cell["source"])}
    if cell["cell_type"] == "code":
        outputs = [shown(output) for output in cell["outputs"] if output.get("name") != "stderr"]
        printed = "".join(text(output["text"]) for output in outputs if output["output_type"] == "stream")
        stream = {"name": "stdout", "output_type": "stream", "text": lines(printed)}  # it comes in pieces of any size
        displayed = [output for output in outputs if output["output_type"] != "stream"]
        kept |= {"execution_count": None, "outputs": [*([stream] if printed else []), *displayed]}
    return kept


def shown(output: dict[str, Any]) -> dict[str, Any]:
    """One output in the form that is looked at."""
    if output["output_type"] == "stream":
        return output
    kind = next(kind for kind in SHOWN if kind in output["data"])
    return {"output_type": "display_data", "data": {kind: lines(output["data"][kind])}, "metadata": {}}


def text(parts: str | list[str]) -> str:
    """What Jupyter writes as a text or as a list of lines."""
    return parts if isinstance(parts, str) else "".join(parts)


def lines(parts: str | list[str]) -> list[str]:
    """The same as lines, so that a change shows as the lines that changed."""
    return text(parts).splitlines(keepends=True)


def main() -> None:
    """Run the notebooks and write them."""
    for file in sorted(FOLDER.glob("*.ipynb")):
        with tempfile.TemporaryDirectory() as folder:
            made = run(json.loads(file.read_text(encoding="utf-8")), Path(folder))
        file.write_text(json.dumps(made, indent=1, ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8")
        print(f"ran {file.name}")


if __name__ == "__main__":
    main()
