"""What the page's threads import late, one at a time."""

from __future__ import annotations

from threading import RLock

# Held while torch and timm are imported: two threads that begin at two ends of timm find a part of it half made, and
# fail. A request may come while the atlas has begun.
importing = RLock()
