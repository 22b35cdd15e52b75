"""What the page's threads import late, one at a time."""

from __future__ import annotations

from threading import RLock

# Held while torch and timm are imported: two threads that import different parts of timm at once find some of it half
# made, and fail. A request may come while the atlas's own thread imports.
importing = RLock()
