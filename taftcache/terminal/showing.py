"""Reports of functions in words, as the commands print them."""

from __future__ import annotations

from inspect import getmembers, isfunction
from typing import Any

from taftcache.errors import ArgumentError
from taftcache.terminal import experiments, forgetting, inspection, models, pipeline, stores


def _bare(annotation: str) -> str:
    return annotation.removeprefix("list[").removesuffix("]")


# Class of a report, or of the members of a list → what prints it: the first function of a module that takes one.
PRINTERS = {
    of: function
    for module in (pipeline, forgetting, inspection, models, stores, experiments)
    for name, function in sorted(getmembers(module, isfunction), key=lambda found: -found[1].__code__.co_firstlineno)
    if name.startswith("show_") and (of := _bare(function.__annotations__.get("report", ""))).isidentifier()
}


def show(report: Any) -> None:
    """Print what a function found, in the words of its command: ``show(evaluate("stores/quickstart"))``.

    Raises:
        ArgumentError: it is not the report of a function that is also a command.
    """
    if isinstance(report, list) and not report:  # its command prints nothing either
        return
    of = type(report[0] if isinstance(report, list) else report).__name__
    if of not in PRINTERS:
        raise ArgumentError(
            "what is to be shown is no report", got=of, do="give what a function like evaluate returned"
        )
    PRINTERS[of](report)
