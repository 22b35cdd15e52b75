"""The page's server: loopback only, one random token in every address, no files behind the routes."""

from __future__ import annotations

import contextlib
import errno
import hmac
import io
import json
import secrets
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import BoundedSemaphore, Lock, Thread
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

from taftcache.cache.format.digest import digest
from taftcache.cache.read.contents import manifest_bytes, read_manifest
from taftcache.cache.store import FeatureStore
from taftcache.consent import Consent
from taftcache.errors import RecipeError, TaftcacheError, UnknownSample
from taftcache.view import payload
from taftcache.view.asked import basket
from taftcache.view.asked.checks import Checks
from taftcache.view.asked.comparing import Comparisons
from taftcache.view.asked.composing import Compositions
from taftcache.view.asked.leaving import SideSolves
from taftcache.view.atlas import Atlas
from taftcache.view.page import live_page
from taftcache.view.pictures import Pictures

HOST = "127.0.0.1"
HTTP = 80  # the port that a browser leaves out of an address
LONGEST_QUERY = 1 << 16
MOST_CONNECTIONS = 64  # a thread each; a browser opens six
IDLE = 10  # seconds for a whole request to come, from the connection or the last answer on
CHANGED = "The store has changed since this page was loaded; reload it."
_BUSY = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
NO_SCRIPTS = "'none'"
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src 'self' data:; connect-src 'self'; base-uri 'none';"
    " form-action 'none'; frame-ancestors 'none'"
)

Answer = tuple[str, bytes]
"""(content type, body)."""
Route = Callable[[dict[str, str]], Answer | None]
"""Answers a query; None if there is nothing of that name, ValueError if the query makes no sense."""


@dataclass(frozen=True)
class _Shown:
    """The page of some stores as they are at ``roots``: one record, so that no request sees parts of two pages."""

    atlas: Atlas
    stores: list[FeatureStore]
    roots: list[str]
    pictures: Pictures
    routes: dict[str, Route]

    @classmethod
    def of(cls, stores: list[FeatureStore], atlas: Atlas, consent: Consent | None) -> _Shown:
        """The page for the ``atlas`` of the first store, and for a second store if there is one."""
        # "" if a store was changed since it was opened: then the page is made anew when it is loaded
        roots = [_root_of(s) if read_manifest(s.root).digest == s.root_digest else "" for s in stores]
        pictures, other = Pictures(atlas.store, consent), stores[1] if len(stores) > 1 else None
        routes = _routes(atlas, pictures, _joined(roots)) | _asides(atlas, Comparisons(atlas, other))
        return cls(atlas, stores, roots, pictures, routes)

    @property
    def root(self) -> str:
        """The roots of all stores, as one text: a request that has another one was meant for other rows."""
        return _joined(self.roots)

    def is_current(self) -> bool:
        """Whether the stores are as they were when the page was made."""
        return all(self.roots) and [_root_of(store) for store in self.stores] == self.roots


class ViewServer:
    """Serves one store's page at ``url`` until ``close``, with another store if ``against`` is one. A context
    manager.

    A request is answered only when it comes to a loopback name (a page elsewhere cannot rebind its own name to this
    server), from no other origin, by GET or HEAD, and with the token; anything else is refused before it is looked at.
    Routes are a fixed table: no part of an address ever becomes a path. Once the store has another root than the page
    shows, after a request to forget, say, nothing of the old state is served; the page is made anew when it is loaded.

    Raises:
        RecipeError: ``port`` is in use, or not this user's to take; ``consent`` names other images than the store has.
    """

    def __init__(
        self, atlas: Atlas, port: int = 0, consent: Consent | None = None, against: FeatureStore | None = None
    ) -> None:
        self.token = secrets.token_urlsafe(24)
        self._consent, self._renewing = consent, Lock()
        self.shown = _Shown.of([atlas.store, *([against] if against is not None else [])], atlas, consent)

        class Handler(_Handler):
            owner = self

        try:
            self._server = _Server((HOST, port), Handler)
        except (OSError, OverflowError) as error:
            raise RecipeError(
                f"cannot serve the page at port {port}: {_reason(error)}",
                got=f"{HOST}:{port}",
                do="--port 0 takes a free one",
            ) from None
        self.port: int = self._server.server_address[1]
        self.url = f"http://{HOST}:{self.port}/{self.token}/"
        self._thread = Thread(target=self._server.serve_forever, name="taftcache-view", daemon=True)

    def renew(self) -> _Shown:
        """What is shown; if a store has changed, all are opened again first. The errors are ``FeatureStore``'s."""
        with self._renewing:
            before = self.shown
            if before.is_current():
                return before
            anew = [FeatureStore(store.path) for store in before.stores]  # to read, which needs no closing
            self.shown = shown = _Shown.of(anew, Atlas(anew[0]), self._consent)
            shown.atlas.start()
        before.atlas.stop()
        return shown

    def start(self) -> None:
        """Serve from a thread, and begin the atlas's work."""
        self.shown.atlas.start()
        self._thread.start()

    def wait(self) -> None:
        """Wait until the server ends."""
        self._thread.join()

    def close(self) -> None:
        """Stop serving and working."""
        if self._thread.is_alive():
            self._server.shutdown()
        self._server.server_close()
        self.shown.atlas.close()

    def __enter__(self) -> ViewServer:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


@contextmanager
def leading_to(url: str) -> Iterator[Path]:
    """A file that leads a browser to ``url`` and that this user alone can read; it goes when the context ends.

    A browser is started with the file's path: all accounts of a machine see command lines, and the url has the token.
    """
    with TemporaryDirectory(prefix="taftcache-") as folder:
        file = Path(folder) / "page.html"
        file.touch(0o600)
        file.write_text(f'<!doctype html><meta http-equiv="refresh" content="0; url={url}"><a href="{url}">Page</a>\n')
        yield file


class _Server(ThreadingHTTPServer):
    """A server of at most ``MOST_CONNECTIONS`` threads; further clients are told to come again."""

    daemon_threads = True
    request_queue_size = MOST_CONNECTIONS

    def __init__(self, *arguments: Any) -> None:
        self._free = BoundedSemaphore(MOST_CONNECTIONS)
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            with contextlib.suppress(OSError):
                request.send(_BUSY, socket.MSG_DONTWAIT)
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError):  # a page that went away is no error
            super().handle_error(request, client_address)


def _root_of(store: FeatureStore) -> str:
    """What tells one state of the store from another: a digest of its manifest as it is now; "" if it is gone.

    Read at the store's place, because the folder that was opened may lie elsewhere by now, and another in its stead.
    """
    try:
        return digest(manifest_bytes(store.path))
    except OSError:
        return ""


def _joined(roots: list[str]) -> str:
    return digest("\n".join(roots).encode())


def _reason(error: OSError | OverflowError) -> str:
    """Why a port cannot be had, in plain words."""
    if isinstance(error, PermissionError):
        return "ports below 1024 are only for an administrator"
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        return "another program is using it"
    return "ports must be from 0 to 65535" if isinstance(error, OverflowError) else (error.strerror or str(error))


def one(value: Any) -> Answer:
    """An answer in JSON."""
    return "application/json", json.dumps(value).encode()


def _asides(atlas: Atlas, comparisons: Comparisons) -> dict[str, Route]:
    """What is computed because the page asks for it, and changes nothing."""
    leaving, checks, compositions = SideSolves(atlas), Checks(atlas), Compositions(atlas)

    def rows(query: dict[str, str]) -> list[int]:
        return basket.rows_of(atlas, query.get("rows", ""))

    return {
        "leave-out": lambda query: one(leaving.ask(query.get("id", ""))),
        "leave-many": lambda query: one(leaving.ask_many(rows(query))),
        "cost": lambda query: one(basket.cost(atlas, rows(query))),
        "comparable": lambda query: one(comparisons.offer()),
        "compare": lambda query: one(comparisons.ask(query.get("before", ""), query.get("after", ""))),
        "compositions": lambda query: one(compositions.ask()),
        "check": lambda query: one(checks.ask(query.get("name", ""))),
    }


def _routes(atlas: Atlas, pictures: Pictures, root: str) -> dict[str, Route]:
    def picture(query: dict[str, str]) -> Answer | None:
        name, size = query.get("id", ""), query.get("size", "384")
        if len(size) > 4 or not (size.isascii() and size.isdecimal()):
            raise ValueError(size)
        longest = int(size)
        return pictures.encoded(name, max(8, min(longest, 1024))) if name in atlas.table.places else None

    def reachable(query: dict[str, str]) -> Answer:
        atlas.ready["rows"].wait()  # points first: what opens images takes seconds to import
        return one({"why_not": pictures.why_not, "note": pictures.note})

    return {
        "": lambda query: None,  # the page itself, which needs a nonce
        "progress": lambda query: one(payload.progress(atlas)),
        "overview": lambda query: one(payload.overview(atlas) | {"root": root}),
        "ids": lambda query: one(payload.ids(atlas)),
        "columns": lambda query: one(payload.columns(atlas)),
        "held-out": lambda query: one(payload.held_out(atlas)),
        "compose": lambda query: one(payload.composed(atlas, [s for s in query.get("without", "").split(",") if s])),
        "sample": lambda query: one(payload.sample(atlas, query.get("id", ""), pictures)),
        "known": lambda query: one(payload.known(atlas, query.get("id", ""))),
        "picture": picture,
        "pictures": reachable,
    }


class _Timely(io.RawIOBase):
    """What a connection sends until ``end``, a time of the monotonic clock; then TimeoutError, however little each
    further read would wait."""

    def __init__(self, line: socket.socket) -> None:
        self._line, self.end = line, 0.0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        before, left = self._line.gettimeout(), self.end - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._line.settimeout(left)
        try:
            return self._line.recv_into(buffer)
        finally:
            self._line.settimeout(before)


class _Handler(BaseHTTPRequestHandler):
    owner: ViewServer
    server_version = "taftcache"
    sys_version = ""
    protocol_version = "HTTP/1.1"
    timeout: ClassVar[float] = IDLE

    def setup(self) -> None:
        """Read from the connection only as long as a request may take."""
        super().setup()
        self.rfile.close()
        self._sent = _Timely(self.connection)
        self.rfile = io.BufferedReader(self._sent)

    def handle_one_request(self) -> None:
        """Wait for a request, and answer it."""
        self._sent.end = time.monotonic() + self.timeout
        super().handle_one_request()

    def do_GET(self) -> None:
        """Answer, or refuse."""
        try:
            address = urlsplit(self.path)
            if (refused := self._refusal(address.path)) is not None:
                self.close_connection = True  # whoever has no token holds no connection
                self._send(refused)
                return
            query = {key: values[0] for key, values in parse_qs(address.query[:LONGEST_QUERY]).items()}
            self._answer(address.path.removeprefix(f"/{self.owner.token}/"), query)
        except ValueError:
            self._send(HTTPStatus.BAD_REQUEST)
        except UnknownSample as error:
            self._explain(HTTPStatus.NOT_FOUND, str(error))
        except TaftcacheError as error:
            self._explain(HTTPStatus.CONFLICT, str(error))

    do_HEAD = do_GET

    def _answer(self, name: str, query: dict[str, str]) -> None:
        shown = self.owner.shown
        if name == "":
            nonce = secrets.token_urlsafe(16)
            try:
                page = live_page(self.owner.renew().atlas, nonce)
            except TaftcacheError as error:  # there is no page to show it, and a browser shows text as it is
                self._send(HTTPStatus.CONFLICT, "", "text/plain; charset=utf-8", f"{error}\n".encode())
                return
            self._send(HTTPStatus.OK, f"'nonce-{nonce}'", "text/html; charset=utf-8", page)
        elif not shown.is_current() or query.get("root", shown.root) != shown.root:
            self._explain(HTTPStatus.GONE, CHANGED)
        elif (answer := shown.routes[name](query)) is None:
            self._send(HTTPStatus.NOT_FOUND)
        else:
            self._send(HTTPStatus.OK, "", *answer)

    def _explain(self, status: HTTPStatus, error: str) -> None:
        self._send(status, "", "application/json", json.dumps({"error": error}).encode())

    def _refusal(self, path: str) -> HTTPStatus | None:
        """Why the request is refused without a look at it; None if it is not."""
        port = "" if self.owner.port == HTTP else f":{self.owner.port}"
        homes = {name + port for name in (HOST, "localhost")}
        if self.headers.get("Host") not in homes:
            return HTTPStatus.MISDIRECTED_REQUEST
        origin = self.headers.get("Origin")
        if origin is not None and origin not in {f"http://{home}" for home in homes}:
            return HTTPStatus.FORBIDDEN
        parts = path.split("/")
        # the file that a browser is started with (`leading_to`) is of another site, too: it may open the page itself
        to_page = parts[2:] == [""] and self.headers.get("Sec-Fetch-Dest") == "document"
        if self.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin") and not to_page:
            return HTTPStatus.FORBIDDEN
        if len(parts) != 3 or not hmac.compare_digest(parts[1].encode(), self.owner.token.encode()):
            return HTTPStatus.NOT_FOUND
        return None if parts[2] in self.owner.shown.routes else HTTPStatus.NOT_FOUND

    def _send(self, status: HTTPStatus, scripts: str = "", kind: str = "text/plain", body: bytes = b"") -> None:
        # a browser may keep pictures, but asks before each use: it is answered while the store is as it was
        tag = f'"{digest(body)}"' if kind.startswith("image/") else ""
        if tag and self.headers.get("If-None-Match") == tag:
            status, body = HTTPStatus.NOT_MODIFIED, b""
        self.send_response(status)
        self.send_header("Content-Type", kind)
        if status != HTTPStatus.NOT_MODIFIED:
            self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "private, no-cache" if tag else "no-store")
        if tag:
            self.send_header("ETag", tag)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("X-Frame-Options", "DENY")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header("Cross-Origin-Opener-Policy", "same-origin")
        self.send_header("Content-Security-Policy", f"script-src {scripts or NO_SCRIPTS}; {POLICY}")
        try:
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)
        except ConnectionError:  # the page went away meanwhile
            self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: addresses carry the token."""
