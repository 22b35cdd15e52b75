"""What the server answers, and to whom: loopback, the token, this origin, a fixed table of routes."""

from __future__ import annotations

import ast
import http.client
import json
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlencode

import numpy as np
import pytest

import taftcache
from taftcache.cache.store import FeatureStore
from taftcache.view.atlas import Atlas
from taftcache.view.page import REPORT_POLICY, report_page
from taftcache.view.server import CHANGED, MOST_CONNECTIONS, ViewServer, _Handler
from tests.cache.making import tree

ROUTES = ["progress", "overview", "ids", "columns", "held-out"]


def ask(server, path, method="GET", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, body, answer.headers


def at(server, route):
    return f"/{server.token}/{route}"


@pytest.mark.parametrize("route", ROUTES)
def test_every_route_answers(server, route):
    status, body, headers = ask(server, at(server, route))
    assert status == 200
    assert headers["Content-Type"] == "application/json"
    json.loads(body)


def test_head_has_no_body(server):
    assert ask(server, at(server, "overview"), "HEAD")[:2] == (200, b"")


@pytest.mark.law("The page answers to this machine, this origin and the token alone, and loads nothing from elsewhere")
def test_without_the_token_there_is_nothing(server):
    shorter, other = server.token[:-1], "A" * len(server.token)
    for path in ("/", "/overview", f"/{shorter}/overview", f"/{other}/overview", "*"):
        assert ask(server, path)[:2] == (404, b""), path


@pytest.mark.law("The page answers to this machine, this origin and the token alone, and loads nothing from elsewhere")
@pytest.mark.parametrize(
    "route",
    [
        "../../etc/passwd",
        "..%2f..%2fetc%2fpasswd",
        "%2e%2e/manifest.json",
        "assets/page.js",
        "./overview",
        "overview/",
        "\\..\\x",
        "manifest.json",
    ],
)
def test_routes_are_no_paths(server, route):
    assert ask(server, at(server, route))[:2] == (404, b"")


def test_ids_are_no_paths(server):
    for name in ("../../../etc/passwd", "/etc/passwd", "digits%2F..%2Fx", ""):
        assert ask(server, at(server, f"picture?id={name}"))[0] == 404
        assert ask(server, at(server, f"sample?id={name}"))[0] == 404


@pytest.mark.law("The page answers to this machine, this origin and the token alone, and loads nothing from elsewhere")
def test_foreign_hosts_and_origins_are_refused(server):
    path, port = at(server, "overview"), server.port
    for host in ("example.com", f"example.com:{port}", "127.0.0.1", f"127.0.0.1:{port + 1}", f"[::1]:{port}"):
        assert ask(server, path, Host=host)[:2] == (421, b""), host
    for origin in ("http://example.com", "null", f"https://127.0.0.1:{port}", "http://127.0.0.1"):
        assert ask(server, path, Origin=origin)[:2] == (403, b""), origin
    for site in ("cross-site", "same-site"):
        assert ask(server, path, **{"Sec-Fetch-Site": site})[:2] == (403, b"")
        assert ask(server, path, **{"Sec-Fetch-Site": site, "Sec-Fetch-Dest": "document"})[:2] == (403, b"")
        assert ask(server, at(server, ""), **{"Sec-Fetch-Site": site, "Sec-Fetch-Dest": "iframe"})[:2] == (403, b"")
    assert ask(server, path, Host=f"localhost:{port}", Origin=f"http://localhost:{port}")[0] == 200


def test_at_the_port_that_addresses_leave_out(server, monkeypatch):
    path, there = at(server, "overview"), SimpleNamespace(port=server.port)
    monkeypatch.setattr(server, "port", 80)
    assert ask(there, path, Host="127.0.0.1", Origin="http://127.0.0.1")[0] == 200
    assert ask(there, path, Host="example.com")[:2] == (421, b"")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "CONNECT"])
def test_other_methods_are_refused(server, method):
    assert ask(server, at(server, "overview"), method)[0] == 501


@pytest.mark.law("The page answers to this machine, this origin and the token alone, and loads nothing from elsewhere")
def test_it_listens_on_loopback_alone(server):
    assert server._server.socket.getsockname()[0] == "127.0.0.1"
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.2", server.port), timeout=5)


@pytest.mark.law("The page answers to this machine, this origin and the token alone, and loads nothing from elsewhere")
def test_the_page_may_load_nothing_from_elsewhere(server):
    status, body, headers = ask(server, at(server, ""))
    policy = headers["Content-Security-Policy"]
    assert status == 200
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    nonce = policy.split("'nonce-")[1].split("'")[0]
    assert body.count(b"<script") == body.count(f'<script nonce="{nonce}">'.encode()) > 0
    assert ask(server, at(server, ""))[2]["Content-Security-Policy"] != policy
    assert headers["Referrer-Policy"] == "no-referrer"
    assert server.token.encode() not in body


def test_requests_that_make_no_sense_are_refused_in_words(server):
    for route in ("compose?without=nobody", "compose?without=000,001,002", "leave-out?id=" + held_out(server)):
        status, body, _ = ask(server, at(server, route))
        assert status == 409
        assert json.loads(body)["error"]
    assert ask(server, at(server, "picture?id=" + held_out(server) + "&size=64"))[0] == 200
    assert ask(server, at(server, "compose?" + "x" * 70000))[0] in (200, 414)


@pytest.mark.parametrize("size", ["x", "²", "9" * 5000, "-1", "1e3", "٣"])
def test_sizes_that_are_no_numbers_are_refused(server, capfd, size):
    query = urlencode({"id": held_out(server), "size": size})
    assert ask(server, at(server, f"picture?{query}"))[:2] == (400, b"")
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("target", ["http://[/{}/", "//[x/{}/overview", "/{}/overview?%", "/{}/\x00", "/{}/ x"])
def test_malformed_requests_get_an_answer_and_no_traceback(server, capfd, target):
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as line:
        line.sendall(f"GET {target.format(server.token)} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n\r\n".encode())
        assert line.recv(20).split()[1] in (b"400", b"404", b"200")
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as line:  # gone before its request ends
        line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        line.sendall(b"GET / HT")
    ask(server, "/")
    assert capfd.readouterr().err == ""


def test_connections_are_counted_and_idle_ones_end(seen, monkeypatch):
    """Of a server of its own: a page that another test left open holds connections."""
    monkeypatch.setattr(Atlas, "work", lambda self: None)
    monkeypatch.setattr(_Handler, "timeout", 120)
    with FeatureStore(seen) as store, ViewServer(Atlas(store)) as server, ExitStack() as opened:

        def connect():
            return opened.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=30))

        lines = [connect() for _ in range(MOST_CONNECTIONS)]
        assert connect().recv(12) == b"HTTP/1.1 503"
        for line in lines:  # which came before
            line.setblocking(False)
            with pytest.raises(BlockingIOError):
                line.recv(1)
            line.close()
        end = time.monotonic() + 60
        while (status := _status(server)) != 200:
            assert time.monotonic() < end, status
        monkeypatch.setattr(_Handler, "timeout", 0.2)
        assert connect().recv(1) == b""  # closed by the server, for it asked for nothing


def test_a_request_has_an_end_however_it_comes(seen, monkeypatch):
    """Sign by sign, it held a connection for ever; and so did requests without the token, one after another."""
    monkeypatch.setattr(Atlas, "work", lambda self: None)
    monkeypatch.setattr(_Handler, "timeout", 1)
    with FeatureStore(seen) as store, ViewServer(Atlas(store)) as server:
        with socket.create_connection(("127.0.0.1", server.port), timeout=0.2) as line:
            line.sendall(b"GET / HTTP/1.1\r\nX: ")
            end, is_open = time.monotonic() + 20, True
            while is_open:
                assert time.monotonic() < end
                try:
                    line.sendall(b"a")
                    is_open = line.recv(1) != b""
                except TimeoutError:
                    continue
                except ConnectionError:
                    is_open = False
        monkeypatch.setattr(_Handler, "timeout", 120)
        with socket.create_connection(("127.0.0.1", server.port), timeout=20) as line:
            line.sendall(f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n\r\n".encode())
            while line.recv(1000):
                pass


def test_a_panel_of_a_notebook_names_no_place_of_this_machine(seen):
    view = taftcache.StoreView(seen)
    for shown in (view, view.panel("overview")):
        assert str(seen.parent) not in shown._repr_html_()
        assert seen.name in shown._repr_html_()


def _status(server) -> int:
    try:
        return ask(server, at(server, "progress"))[0]
    except OSError:
        return 0


@pytest.mark.law("A page that is open serves nothing of a store's earlier state")
def test_a_page_serves_nothing_of_what_was_forgotten_since(seen, tmp_path):
    path = shutil.copytree(seen, tmp_path / "store")
    with FeatureStore(path) as store, ViewServer(Atlas(store)) as server:
        name = store.shards[0].sample_ids[0]
        assert ask(server, at(server, f"sample?id={name}"))[0] == 200
        with FeatureStore(path, mode="a") as writing:
            taftcache.forget(writing, [name])
        named = [f"{route}?id={name}" for route in ("sample", "known", "picture", "leave-out")]
        for route in (*ROUTES, *named, "compose?without="):
            status, body, _ = ask(server, at(server, route))
            assert (status, json.loads(body)) == (410, {"error": CHANGED}), route
        assert ask(server, at(server, ""))[0] == 200
        assert ask(server, at(server, f"sample?id={name}"))[0] == 404
        assert name not in json.loads(ask(server, at(server, "ids"))[1])["ids"]
        assert ask(server, at(server, f"ids?root={store.root_digest}"))[0] == 410  # of a page that another made old
        assert json.loads(ask(server, at(server, f"known?id={name}"))[1])["state"] == "forgotten"
        path.rename(tmp_path / "elsewhere")
        assert ask(server, at(server, "ids"))[0] == 410
        (tmp_path / "elsewhere").rename(path)
        assert ask(server, at(server, "ids"))[0] == 200
        shutil.rmtree(path)
        assert ask(server, at(server, "overview"))[0] == 410
        status, body, headers = ask(server, at(server, ""))  # which a browser shows as it is
        assert (status, headers["Content-Type"]) == (409, "text/plain; charset=utf-8")
        assert body.decode().startswith("no store at")


def test_a_page_made_anew_waits_for_no_map_of_the_earlier_one(seen, tmp_path, monkeypatch):
    """An embedding of 2,000 samples takes a minute, and cannot be stopped on its way."""
    done = threading.Event()

    def slow(vectors):
        done.wait(120)
        return np.zeros((len(vectors), 2), np.float32)

    monkeypatch.setattr("taftcache.view.atlas.neighbour_map", slow)
    path = shutil.copytree(seen, tmp_path / "store")
    with FeatureStore(path) as store, ViewServer(Atlas(store)) as server:
        earlier = server.shown.atlas
        assert earlier.ready["influence"].wait(120)
        with FeatureStore(path, mode="a") as writing:
            taftcache.forget(writing, [store.shards[0].sample_ids[0]])
        assert ask(server, at(server, ""))[0] == 200
        assert server.shown.atlas is not earlier
        assert earlier.closing
        assert not earlier.ready["neighbours"].is_set()
        done.set()


def held_out(server):
    server.shown.atlas.ready["held-out predictions"].wait(60)
    table = server.shown.atlas.table
    return table.ids[int(table.held_out.argmax())]


@pytest.mark.law("A look at a store reads a few chunks at any size, loads no torch and writes nothing")
def test_looking_writes_nothing(server, seen):
    before = tree(Path(seen))
    for stage in server.shown.atlas.ready.values():
        assert stage.wait(120)
    ask(server, at(server, "sample?id=" + held_out(server)))
    assert tree(Path(seen)) == before


def test_a_report_carries_the_licences_of_the_chart_library():
    page, asset = report_page("t", {}).decode(), Path(taftcache.view.__file__).parent / "assets" / "echarts"
    texts = [p.read_text() for p in sorted(asset.iterdir()) if p.suffix != ".js"]
    assert len(texts) == 4
    assert all(text in page for text in texts)


def test_names_cannot_break_out_of_a_report():
    nasty = "</script><script>alert(1)</script><!--"
    page = report_page(nasty, {"overview": nasty}, nasty).decode()
    assert "alert(1)</script>" not in page.split('<script id="data"')[1].split("</script>")[0]
    assert page.count("<script") == 3
    assert nasty not in page
    assert "connect-src" not in REPORT_POLICY
    assert REPORT_POLICY.startswith("default-src 'none'")


def test_pictures_are_sent_once(server):
    """Their digest stands in for the bytes that a browser has already."""
    path = at(server, "picture?" + urlencode({"id": held_out(server), "size": "96"}))
    status, body, headers = ask(server, path)
    assert (status, headers["Cache-Control"], headers["Content-Type"]) == (200, "private, no-cache", "image/png")
    assert ask(server, path, **{"If-None-Match": headers["ETag"]})[:2] == (304, b"")
    assert ask(server, path, **{"If-None-Match": '"other"'})[:2] == (200, body)
    assert ask(server, at(server, "overview"))[2]["Cache-Control"] == "no-store"
    assert json.loads(ask(server, at(server, "pictures"))[1]) == {"why_not": "", "note": ""}


def test_what_is_imported_late_waits_for_its_turn():
    """Two threads that import timm from two ends at once find it half made; scikit-learn has no such circle."""
    files = set(Path(taftcache.__file__).parent.joinpath("view").rglob("*.py"))
    for file in (file for file in files if file.name != "embedding.py"):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        turns = [n for n in ast.walk(tree) if isinstance(n, ast.With) and ast.unparse(n.items[0]) == "importing"]
        waiting = {id(n) for turn in turns for n in ast.walk(turn)}
        late = [n for f in ast.walk(tree) if isinstance(f, ast.FunctionDef) for n in ast.walk(f)]
        early = [n.lineno for n in late if isinstance(n, ast.Import | ast.ImportFrom) and id(n) not in waiting]
        assert early == [], file.name


# The page's command, where a library works on a stage that cannot be stopped.
VIEW = """
import sys, time
from taftcache.cli import main
from taftcache.view.atlas import Atlas
Atlas.work = lambda self: time.sleep(600)
main(["view", sys.argv[1], "--no-browser"])
"""


@pytest.mark.slow
def test_ctrl_c_ends_the_page_whatever_is_under_way(seen):
    command = [sys.executable, "-c", VIEW, str(seen)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            while "http://" not in process.stdout.readline():
                assert process.poll() is None
            process.send_signal(signal.SIGINT)
            said, _ = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 0
    assert said.splitlines()[-1] == "taftcache: the page is closed"
