"""A model hub on this machine: as much of the Hugging Face hub's HTTP interface as pushing and fetching take."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from huggingface_hub import constants

TOKEN = "hf_ofTheOwner"
REPO = r"/api/models/([^/]+/[^/]+)"


@dataclass
class Repo:
    """A repository: by branch, its files; and whether only its owner sees it."""

    private: bool
    branches: dict[str, dict[str, bytes]] = field(default_factory=lambda: {"main": {".gitattributes": b""}})


@dataclass
class Hub:
    """Repositories by name, the bytes of large files by digest, and the requests that came."""

    url: str = ""
    repos: dict[str, Repo] = field(default_factory=dict)
    large: dict[str, bytes] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    broken: bool = False  # answers everything with an error, which quotes the request's token

    def answer(self, method: str, path: str, body: bytes, token: str) -> tuple[int, Any, dict[str, str]]:
        """Status, body (bytes, or JSON's types) and headers."""
        self.requests.append(f"{method} {path}")
        if self.broken:
            return 500, {"error": f"no space left for {token}"}, {}
        owner = token == f"Bearer {TOKEN}"
        if method == "PUT" and (found := re.fullmatch("/lfs/([0-9a-f]{64})", path)):
            assert hashlib.sha256(body).hexdigest() == found[1]
            self.large[found[1]] = body
            return 200, {}, {}
        if method in ("GET", "HEAD") and (found := re.fullmatch("/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)):
            return self._file(found[1], found[2], found[3], owner)
        if method == "GET" and (found := re.match(REPO, path)):
            return self._look(found[1], path[found.end() :], owner)
        if path == "/api/validate-yaml":
            return 200, {"errors": [], "warnings": []}, {}
        if not owner:
            return 401, {"error": "Invalid username or password."}, {}
        return self._change(path, body)

    def _change(self, path: str, body: bytes) -> tuple[int, Any, dict[str, str]]:
        if path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked['organization']}/{asked['name']}"
            if name.startswith("others/"):
                return 403, {"error": "You don't have the rights to create a model under this namespace"}, {}
            told = {"url": f"{self.url}/{name}", "name": name}
            if name in self.repos:
                return 409, {"error": "You already created this model repo", **told}, {}
            self.repos[name] = Repo(private="private" in (asked.get("visibility"), asked.get("private") and "private"))
            return 200, told, {}
        if found := re.fullmatch(r"/([^/]+/[^/]+)\.git/info/lfs/objects/batch", path):
            upload = lambda oid: {"upload": {"href": f"{self.url}/lfs/{oid}"}}  # noqa: E731
            objects = [{**o, "authenticated": True, "actions": upload(o["oid"])} for o in json.loads(body)["objects"]]
            return 200, {"transfer": "basic", "objects": objects}, {}
        found = re.fullmatch(f"{REPO}/(branch|preupload|commit)/(.+)", path)
        assert found, path
        repo, branch = self.repos[found[1]], found[3]
        if found[2] == "branch":
            known = branch in repo.branches
            repo.branches.setdefault(branch, dict(repo.branches["main"]))
            return (409, {"error": "Reference already exists"}, {}) if known else (200, {}, {})
        if found[2] == "preupload":
            mode = {True: "lfs", False: "regular"}
            asked = [f["path"] for f in json.loads(body)["files"]]
            told = [{"path": p, "uploadMode": mode[p.endswith("safetensors")], "shouldIgnore": False} for p in asked]
            return 200, {"files": told}, {}
        return self._commit(found[1], branch, body)

    def _commit(self, name: str, branch: str, body: bytes) -> tuple[int, Any, dict[str, str]]:
        files = dict(self.repos[name].branches[branch])
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.large[value["oid"]]
            elif line["key"] == "deletedFile":
                del files[value["path"]]
        self.repos[name].branches[branch] = files
        commit = _commit_of(files)
        return 200, {"commitUrl": f"{self.url}/{name}/commit/{commit}", "commitOid": commit, "success": True}, {}

    def _seen(self, name: str, revision: str, owner: bool) -> dict[str, bytes] | str:
        """A revision's files, or the hub's word for why not."""
        repo = self.repos.get(name)
        if repo is None or (repo.private and not owner):
            return "RepoNotFound"
        commits = {_commit_of(files): files for files in repo.branches.values()}
        return repo.branches.get(revision) or commits.get(revision) or "RevisionNotFound"

    def _look(self, name: str, rest: str, owner: bool) -> tuple[int, Any, dict[str, str]]:
        found = re.fullmatch(r"/(?:revision|tree)/([^/?]+)(?:\?.*)?", rest)
        files = self._seen(name, found[1] if found else "main", owner)
        if isinstance(files, str):
            return 404, {"error": "not found"}, {"X-Error-Code": files}
        if rest.startswith("/tree/"):
            return 200, [{"type": "file", "path": p, "size": len(d), "oid": _oid(d)} for p, d in files.items()], {}
        siblings = [{"rfilename": path} for path in files]
        told = {"id": name, "private": self.repos[name].private, "sha": _commit_of(files), "siblings": siblings}
        return 200, told, {}

    def _file(self, name: str, revision: str, path: str, owner: bool) -> tuple[int, Any, dict[str, str]]:
        files = self._seen(name, revision, owner)
        if isinstance(files, str) or path not in files:
            return 404, {"error": "not found"}, {"X-Error-Code": files if isinstance(files, str) else "EntryNotFound"}
        return 200, files[path], {"ETag": f'"{_oid(files[path])}"', "X-Repo-Commit": _commit_of(files)}


def _oid(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()


def _commit_of(files: dict[str, bytes]) -> str:
    return _oid(b"".join(name.encode() + data for name, data in sorted(files.items())))


@contextmanager
def serve() -> Iterator[Hub]:
    """A hub that answers at ``url`` until the context ends."""
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        def respond(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            token = self.headers.get("Authorization") or ""
            status, said, headers = hub.answer(self.command, self.path, body, token)
            data = said if isinstance(said, bytes) else json.dumps(said).encode()
            self.send_response(status)
            for key, value in {**headers, "Content-Length": str(len(data))}.items():
                self.send_header(key, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = respond

        def log_message(self, *arguments: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        hub.url = f"http://127.0.0.1:{server.server_port}"
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def asked(place: Path) -> Iterator[Hub]:
    """A hub that huggingface_hub asks in place of its own, with a user who is known there; ``place`` keeps copies."""
    with serve() as hub, pytest.MonkeyPatch.context() as patch:
        template = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
        patch.setattr(constants, "ENDPOINT", hub.url)
        patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        patch.setattr(constants, "HF_HUB_CACHE", str(place / "fetched"))
        patch.setattr(constants, "HF_TOKEN_PATH", str(place / "no-token"))
        patch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        patch.setenv("HF_TOKEN", TOKEN)
        yield hub
