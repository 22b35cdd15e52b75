"""The page's server: loopback only, one random token in every address, no files behind the routes."""

from __future__ import annotations

import errno
import hmac
import json
import secrets
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

from taftcache.consent import Consent
from taftcache.errors import RecipeError, TaftcacheError, UnknownSample
from taftcache.view import payload
from taftcache.view.atlas import Atlas
from taftcache.view.leaving import SideSolves
from taftcache.view.page import live_page
from taftcache.view.pictures import Pictures

HOST = "127.0.0.1"
LONGEST_QUERY = 1 << 16
NO_SCRIPTS = "'none'"
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src 'self' data:; connect-src 'self'; base-uri 'none';"
    " form-action 'none'; frame-ancestors 'none'"
)

Answer = tuple[str, bytes]
"""(content type, body)."""
Route = Callable[[dict[str, str]], Answer | None]
"""What answers a query; None where there is nothing of that name."""


class ViewServer:
    """Serves one store's page at ``url`` until ``close``. A context manager.

    A request is answered only when it comes to a loopback name (a page elsewhere cannot rebind its own name to this
    server), from no other origin, by GET or HEAD, and with the token; anything else is refused before it is looked at.
    Routes are a fixed table: no part of an address ever becomes a path.

    Raises:
        RecipeError: ``port`` is in use, or not this user's to take.
    """

    def __init__(self, atlas: Atlas, port: int = 0, consent: Consent | None = None) -> None:
        self.atlas = atlas
        self.token = secrets.token_urlsafe(24)
        self.pictures, leaving = Pictures(atlas.store, consent), SideSolves(atlas)
        routes = _routes(atlas, self.pictures, leaving)

        class Handler(_Handler):
            owner, table = self, routes

        try:
            self._server = ThreadingHTTPServer((HOST, port), Handler)
        except (OSError, OverflowError) as error:
            raise RecipeError(
                f"cannot serve the page at port {port}: {_reason(error)}",
                got=f"{HOST}:{port}",
                do="--port 0 takes a free one",
            ) from None
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        self.url = f"http://{HOST}:{self.port}/{self.token}/"
        self._thread = Thread(target=self._server.serve_forever, name="taftcache-view", daemon=True)

    def start(self) -> None:
        """Serve from a thread, and begin the atlas's work."""
        self.atlas.start()
        self._thread.start()

    def wait(self) -> None:
        """Until the server ends."""
        self._thread.join()

    def close(self) -> None:
        """Stop serving and working."""
        if self._thread.is_alive():
            self._server.shutdown()
        self._server.server_close()
        self.atlas.close()

    def __enter__(self) -> ViewServer:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _reason(error: OSError | OverflowError) -> str:
    """Why a port cannot be had, in plain words."""
    if isinstance(error, PermissionError):
        return "ports below 1024 are only for an administrator"
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        return "another program is using it"
    return "ports must be from 0 to 65535" if isinstance(error, OverflowError) else (error.strerror or str(error))


def _routes(
    atlas: Atlas, pictures: Pictures, leaving: SideSolves
) -> dict[str, Callable[[dict[str, str]], Answer | None]]:
    def one(value: Any) -> Answer:
        return "application/json", json.dumps(value).encode()

    def picture(query: dict[str, str]) -> Answer | None:
        name = query.get("id", "")
        longest = int(query["size"]) if query.get("size", "").isdigit() else 384
        body = pictures.png(name, max(8, min(longest, 1024))) if name in atlas.table.places else None
        return None if body is None else ("image/png", body)

    return {
        "": lambda query: None,  # the page itself, which needs a nonce
        "progress": lambda query: one(payload.progress(atlas)),
        "overview": lambda query: one(payload.overview(atlas)),
        "ids": lambda query: one(payload.ids(atlas)),
        "columns": lambda query: one(payload.columns(atlas)),
        "held-out": lambda query: one(payload.held_out(atlas)),
        "compose": lambda query: one(payload.composed(atlas, [s for s in query.get("without", "").split(",") if s])),
        "sample": lambda query: one(payload.sample(atlas, query.get("id", ""), pictures)),
        "leave-out": lambda query: one(leaving.ask(query.get("id", ""))),
        "picture": picture,
    }


class _Handler(BaseHTTPRequestHandler):
    owner: ViewServer
    table: dict[str, Route]
    server_version = "taftcache"
    sys_version = ""
    protocol_version = "HTTP/1.1"
    timeout = 60

    def do_GET(self) -> None:
        """Answer, or refuse."""
        refusal = self._refusal()
        if refusal is not None:
            self._send(*refusal, "text/plain", b"")
            return
        address = urlsplit(self.path)
        name = address.path.removeprefix(f"/{self.owner.token}/")
        query = {key: values[0] for key, values in parse_qs(address.query[:LONGEST_QUERY]).items()}
        if name == "":
            nonce = secrets.token_urlsafe(16)
            self._send(
                HTTPStatus.OK, f"'nonce-{nonce}'", "text/html; charset=utf-8", live_page(self.owner.atlas, nonce)
            )
            return
        try:
            answer = self.table[name](query)
        except UnknownSample as error:
            self._send(HTTPStatus.NOT_FOUND, "", "application/json", json.dumps({"error": str(error)}).encode())
            return
        except TaftcacheError as error:
            self._send(HTTPStatus.CONFLICT, "", "application/json", json.dumps({"error": str(error)}).encode())
            return
        if answer is None:
            self._send(HTTPStatus.NOT_FOUND, "", "text/plain", b"")
            return
        self._send(HTTPStatus.OK, "", *answer)

    do_HEAD = do_GET

    def _refusal(self) -> tuple[HTTPStatus, str] | None:
        """Why not even to look at the request: (status, no scripts)."""
        homes = {f"{name}:{self.owner.port}" for name in (HOST, "localhost")}
        if self.headers.get("Host") not in homes:
            return HTTPStatus.MISDIRECTED_REQUEST, ""
        origin = self.headers.get("Origin")
        if origin is not None and origin not in {f"http://{home}" for home in homes}:
            return HTTPStatus.FORBIDDEN, ""
        if self.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
            return HTTPStatus.FORBIDDEN, ""
        parts = urlsplit(self.path).path.split("/")
        if len(parts) != 3 or not hmac.compare_digest(parts[1].encode(), self.owner.token.encode()):
            return HTTPStatus.NOT_FOUND, ""
        return None if parts[2] in self.table else (HTTPStatus.NOT_FOUND, "")

    def _send(self, status: HTTPStatus, scripts: str, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
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
