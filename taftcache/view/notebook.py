"""The page's views as objects that a notebook displays."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from taftcache.cache.opening import Place, at_its_place
from taftcache.cache.store import FeatureStore
from taftcache.consent import Consent
from taftcache.errors import ArgumentError
from taftcache.stages.progress import Progress, or_silent
from taftcache.view.page import report_page
from taftcache.view.report import everything

PANELS = ("overview", "map", "classes", "shards", "training", "ledger")


class Panel:
    """One view of a store in a frame of its own; a notebook displays it when a cell ends with it."""

    def __init__(self, page: bytes, height: int, title: str) -> None:
        self._page, self._height, self._title = page, height, title

    def _repr_html_(self) -> str:
        # in single quotes, of which scripts and JSON have few: escaped double quotes were a third of a panel
        text = self._page.decode().replace("&", "&amp;").replace("'", "&#39;")
        return (
            f'<iframe srcdoc=\'{text}\' sandbox="allow-scripts allow-downloads" title="{escape(self._title)}"'
            f' style="width:100%;height:{self._height}px;border:0"></iframe>'
        )


class StoreView:
    """Views of a store, open or at its place, for a notebook: ``StoreView("stores/quickstart").panel("map")``.

    Everything is computed when the object is made and included in each panel, which loads nothing from elsewhere and
    shows the name of the store, not the rest of its path.
    ``samples`` are the ids of samples to include with all details; ``consent`` names images instead of those that the
    store names. What takes longest is computed only on request: ``neighbours``, a map that keeps neighbours together,
    and ``influence``, how far each training sample moved its shard's component. ``notes`` say why there are no
    pictures, or what to bear in mind about them; they may name places, which panels do not.
    """

    def __init__(
        self,
        store: Place,
        samples: Sequence[str] = (),
        *,
        neighbours: bool = False,
        influence: bool = False,
        consent: Consent | None = None,
        progress: Progress | bool | None = None,
    ) -> None:
        skip = (*(() if neighbours else ("neighbours",)), *(() if influence else ("influence",)))
        self._title, self._data, self.notes = _store_view(store, samples, skip, consent, or_silent(progress))

    def panel(self, name: str = "map", height: int = 760) -> Panel:
        """One of the views overview, map, classes, shards, training and ledger; ArgumentError for another name."""
        if name not in PANELS:
            raise ArgumentError(f"the page has no view {name!r}", got=name, do=f"one of {', '.join(PANELS)}")
        return Panel(report_page(self._title, self._data, name), height, f"taftcache {name} of {self._title}")

    def _repr_html_(self) -> str:
        return Panel(report_page(self._title, self._data), 820, f"taftcache view of {self._title}")._repr_html_()


@at_its_place()
def _store_view(
    store: Place, samples: Sequence[str], skip: tuple[str, ...], consent: Consent | None, progress: Progress
) -> tuple[str, dict[str, Any], list[str]]:
    """The name of the store's folder, what all of its views show, and notes on its pictures."""
    assert isinstance(store, FeatureStore)
    _, pictures, data = everything(store, samples, skip, consent, progress)
    return data["overview"]["report"]["store"], data, pictures.notes
