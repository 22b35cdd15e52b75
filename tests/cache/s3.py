"""A real S3 server (moto's, in memory) in a process of its own, and a proxy before it that injects faults."""

from __future__ import annotations

import http.client
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock, Thread

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


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


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
def server() -> Iterator[int]:
    """The port of a fresh server."""
    port = free_port()
    command = [sys.executable, "-W", "ignore", "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 120
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=1).close()
                break
            except urllib.error.HTTPError as error:
                error.close()
                break
            except OSError:
                assert process.poll() is None, "moto's server has ended"
                assert time.monotonic() < end, "moto's server does not answer"
                time.sleep(0.1)
        yield port
    finally:
        process.kill()
        process.wait()


class Proxy(ThreadingHTTPServer):
    """Forwards to ``port``; ``fault`` decides what befalls a request. ``seen`` are (method, path)."""

    daemon_threads = True

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.to, self.fault, self.seen, self.lock = port, no_fault, [], Lock()
        self.hurt: list[str] = []
        Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up is part of the test."""


def no_fault(method: str, path: str, before: int) -> str | None:
    return None


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else every answer waits 40 ms for an acknowledgement
    wbufsize = -1

    def _do(self) -> None:
        proxy = self.server
        assert isinstance(proxy, Proxy)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        with proxy.lock:
            what = proxy.fault(self.command, self.path, len(proxy.seen))
            proxy.seen.append((self.command, self.path))
            if what:
                proxy.hurt.append(what)
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
        onward = http.client.HTTPConnection("127.0.0.1", proxy.to, timeout=60)
        blind = ("if-match", "if-none-match") if what == "blind" else ()
        onward.request(self.command, self.path, body, {k: v for k, v in self.headers.items() if k.lower() not in blind})
        answer = onward.getresponse()
        data = answer.read()
        onward.close()
        if what == "lost":
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("transfer-encoding", "connection", "date", "server", "content-length"):
                self.send_header(name, value)
        length = answer.getheader("Content-Length") if self.command == "HEAD" else str(len(data))
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
