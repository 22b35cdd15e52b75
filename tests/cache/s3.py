"""An S3 server (moto's, in memory, in this process) that can be made to answer badly."""

from __future__ import annotations

import re
import socket
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock, Thread
from unittest import mock

Fault = Callable[[str, str, int], str | None]
"""(method, path, how many came before) -> "503", "drop" (half an answer), "lost" (done and not answered),
"hang" (neither, until the client hangs up), "slow" (done after a second), "blind" (done whatever its conditions), a key
of `SAYS`, or None."""
SAYS = {  # what S3 answers: the status, the code and the message
    "expired": (400, "ExpiredToken", "The provided token has expired."),
    "denied": (403, "AccessDenied", "Access Denied"),
    "region": (400, "AuthorizationHeaderMalformed", "The region 'us-east-1' is wrong; expecting 'eu-west-1'"),
    "signature": (
        403,
        "SignatureDoesNotMatch",
        "It does not match.</Message><AWSAccessKeyId>AKIASECRET</AWSAccessKeyId>",
    ),
}


def make_bucket(name: str, port: int) -> None:
    made = urllib.request.Request(f"http://127.0.0.1:{port}/{name}", method="PUT")
    urllib.request.urlopen(made, timeout=30).close()


def reached_at(port: int, staging: Path) -> dict[str, str]:
    """The environment in which buckets of the server at a port are reached."""
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_REGION": "us-east-1",
        "TAFTCACHE_STAGING": str(staging),
    }


@contextmanager
def server() -> Iterator[Server]:
    """A fresh one."""
    from moto.core.utils import utcnow
    from moto.s3.models import s3_backends

    made = Server()

    def dated() -> datetime:
        return utcnow() + made.ahead

    try:
        with mock.patch("moto.s3.models.utcnow", dated):
            yield made
    finally:
        made.shutdown()
        made.server_close()
        s3_backends.reset()


class Server(ThreadingHTTPServer):
    """Hands requests to moto; ``fault`` decides what befalls one. ``seen`` are (method, path)."""

    daemon_threads = True

    def __init__(self) -> None:
        from moto.moto_server.werkzeug_app import create_backend_app
        from werkzeug.test import Client

        super().__init__(("127.0.0.1", 0), _Handler)
        self.moto = Client(create_backend_app("s3"))
        self.lock = Lock()
        self.fresh()
        Thread(target=self.serve_forever, daemon=True).start()

    def fresh(self) -> None:
        """No fault, and nothing seen."""
        self.fault: Fault = no_fault
        self.seen: list[tuple[str, str]] = []
        self.hurt: list[str] = []
        self.ahead = timedelta()

    def later(self) -> None:
        """What is put from here on has a later date, and no test waits for it: dates in a bucket are whole seconds."""
        self.ahead += timedelta(seconds=1.1)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up is part of the test."""


def no_fault(method: str, path: str, before: int) -> str | None:
    return None


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else every answer waits 40 ms for an acknowledgement
    wbufsize = -1

    def _do(self) -> None:
        server = self.server
        assert isinstance(server, Server)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        with server.lock:
            what = server.fault(self.command, self.path, len(server.seen))
            server.seen.append((self.command, self.path))
            if what:
                server.hurt.append(what)
        if what == "503":
            self.send_response(503)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if what in SAYS:
            status, code, message = SAYS[what]
            says = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>"
            if self.path.endswith("?delete"):  # for each object, in an answer that the whole went well
                each = [says.replace("<Error>", f"<Error>{key}") for key in re.findall("<Key>.*?</Key>", body.decode())]
                status, says = 200, f"<DeleteResult>{''.join(each)}</DeleteResult>"
            data = b"" if self.command == "HEAD" else f'<?xml version="1.0"?>\n{says}'.encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
            return
        if what == "hang":
            self.connection.recv(1)
            self.close_connection = True
            return
        if what == "slow":
            time.sleep(1)
        blind = ("if-match", "if-none-match") if what == "blind" else ()
        headers = [(k, v) for k, v in self.headers.items() if k.lower() not in blind]
        here = f"http://127.0.0.1:{server.server_port}"
        answer = server.moto.open(self.path, base_url=here, method=self.command, data=body, headers=headers)
        data = answer.get_data()
        if what == "lost":
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        self.send_response(answer.status_code)
        for name, value in answer.headers:
            if name.lower() not in ("transfer-encoding", "connection", "date", "server", "content-length"):
                self.send_header(name, value)
        length = answer.headers.get("Content-Length") if self.command == "HEAD" else str(len(data))
        self.send_header("Content-Length", length or "0")
        self.end_headers()
        if what == "drop":
            self.wfile.write(data[: len(data) // 2])
            self.wfile.flush()
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        self.wfile.write(data)
        self.wfile.flush()

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _do

    def log_message(self, *args: object) -> None:
        """Silence."""
