"""Small problems run on one thread."""

from tests.threads import one_thread  # noqa: F401
