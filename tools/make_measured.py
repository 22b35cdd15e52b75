"""Write the tables of what benchmarks measured, from the reports that are kept in docs/results.

python tools/make_measured.py [NAME …]

NAME is what a table's marks say, such as growth; without one all are written. A report is what its benchmark printed
with ``--json``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator

import marked
from measured import classifier, defaults, every_block, growth, last_block, rows, tangent, workers

BENCHMARKS, CLUSTER, README = "docs/benchmarks.md", "docs/cluster.md", "README.md"
TABLES: dict[tuple[str, str], tuple[Callable[..., str], *tuple[str, ...]]] = {
    (BENCHMARKS, "defaults"): (defaults.table, "defaults.json"),
    (BENCHMARKS, "every-block"): (every_block.table, "every-block.json"),
    (README, "every-block"): (every_block.short, "every-block.json", "last-block.json"),
    (BENCHMARKS, "last-block"): (last_block.table, "last-block.json"),
    (BENCHMARKS, "rows"): (rows.tables, "rows.json"),
    (BENCHMARKS, "growth-every-block"): (growth.tables, "growth-every-block.json"),
    (BENCHMARKS, "growth"): (growth.tables, "growth.json"),
    (BENCHMARKS, "million"): (growth.one_size, "growth-million.json"),
    (CLUSTER, "plan"): (growth.plans, "growth-every-block.json", "growth.json"),
    (BENCHMARKS, "tangent"): (tangent.table, "tangent.json"),
    (BENCHMARKS, "classifier"): (classifier.table, "classifier.json"),
    (CLUSTER, "workers"): (workers.table, "workers.json"),
}
"""Page and mark → what makes the table, and the reports that it takes."""


def made(names: Collection[str] = ()) -> Iterator[tuple[str, str, str]]:
    """Page, mark and text of every table, or of those of some names."""
    for (page, name), (table, *reports) in TABLES.items():
        if not names or name in names:
            yield page, name, table(*map(marked.kept, reports))


def main(names: Collection[str]) -> None:
    """Write the pages."""
    if unknown := {*names} - {name for _, name in TABLES}:
        raise SystemExit(f"no table is called {', '.join(unknown)}: {', '.join(dict.fromkeys(n for _, n in TABLES))}")
    for table in made(names):
        marked.put(*table)


if __name__ == "__main__":
    main(sys.argv[1:])
