"""Whether the model hub answers: asked once and briefly, because its client tries for a minute and prints every try."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.error import HTTPError, URLError
from urllib.request import Request, getproxies, urlopen

from huggingface_hub import constants

TIMEOUT = 5.0  # seconds


@contextmanager
def asked_once() -> Iterator[None]:
    """While the context lasts, the hub's client uses its local files if the hub does not answer."""
    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = before or not _answers()
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def _answers() -> bool:
    """Whether anything answers. A refusal counts, and so does a SOCKS proxy, because urllib cannot ask through one."""
    if "all" in getproxies():
        return True
    try:
        urlopen(Request(constants.ENDPOINT, method="HEAD"), timeout=TIMEOUT).close()
    except HTTPError:
        return True
    except URLError as error:
        return isinstance(error.reason, ssl.SSLError)
    except (OSError, ValueError):
        return False
    return True
