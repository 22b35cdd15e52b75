"""What left a store, or came in."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from taftcache.names import counted, readable_size, typed
from taftcache.terminal.console import OUT, print_notes, say

if TYPE_CHECKING:
    from taftcache.stages.files.components import ComponentReport
    from taftcache.stages.files.models import ExportModelReport, PushReport


def show_export_model(report: ExportModelReport) -> None:
    """Where the model lies now, and how to use it."""
    say(f"{report.model} of {report.store}: {report.folder}, {readable_size(report.bytes)}")
    OUT.print(f"files  {', '.join(report.files)}")
    print_notes(report.notes)
    if "taftcache.json" in report.files:
        say(f"next   taftcache predict {typed(report.folder)} IMAGE")


def show_push(report: PushReport) -> None:
    """Where the model is on the hub, and how to load it from there."""
    at = f", revision={json.dumps(report.revision)}" if report.revision else ""
    say(f"{report.name}: {report.url}, {counted(len(report.files), 'file')}, {readable_size(report.bytes)}")
    OUT.print(f"commit {report.commit}")
    OUT.print(f'next   taftcache.from_pretrained("{report.name}"{at})')


def show_component(report: ComponentReport) -> None:
    """One component that left a store or came in."""
    state = ", in place of the one of that name" if report.replaced else "" if report.changed else " (there already)"
    say(
        f"{report.component}, {'rows unknown' if report.rows is None else counted(report.rows, 'row')},"
        f" base {report.base_digest[:16]}:"
        f" {readable_size(report.bytes)}, {report.file}{state}"
    )
    print_notes(report.notes)


def show_imported(report: ComponentReport) -> None:
    """A component that came in, and how to make it part of a composition."""
    show_component(report)
    if report.next:
        say(f"next   {report.next}   (compositions are without it, or of the one before it)")
