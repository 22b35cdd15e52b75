"""The page: look into a store in a browser, in one file, or in a notebook."""

from taftcache.view.atlas import Atlas
from taftcache.view.notebook import StoreView
from taftcache.view.report import write_report
from taftcache.view.server import ViewServer

__all__ = ["Atlas", "StoreView", "ViewServer", "write_report"]
