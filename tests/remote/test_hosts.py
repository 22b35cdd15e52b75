"""Two hosts that share the store's folder alone: in network namespaces of their own where this machine allows it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.remote.making import ENVIRONMENT, UNLIMITED, dask, free_port
from tests.stages.making import toml, tree

# Minutes where other work shares the processor: not in the quick form.
pytestmark = pytest.mark.full

EXEC = ("ip", "netns", "exec")
DRIVER = """
import json, sys
import taftcache
from taftcache import load_recipe
from taftcache.remote import resident
from taftcache.remote.cluster import Cluster
if __name__ == "__main__":
    with Cluster.at(sys.argv[1], timeout=60) as cluster:
        cluster._client.wait_for_workers(2)
        taftcache.run(load_recipe("recipe.toml"), cluster=cluster)
        print(json.dumps(cluster._client.run(lambda: sorted(resident._kept))))
"""


@dataclass
class Host:
    """Where its processes run: a folder of its own, perhaps a network of its own."""

    folder: Path
    address: str
    prefix: tuple[str, ...]

    @property
    def environment(self) -> dict[str, str]:
        own = {"HOME": str(self.folder / "home"), "TMPDIR": str(self.folder / "tmp")}
        return {**ENVIRONMENT, **own, "DASK_TEMPORARY_DIRECTORY": str(self.folder / "local")}


@pytest.fixture
def hosts(tmp_path) -> Iterator[list[Host]]:
    """Two of them."""
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        for name in ("home", "tmp", "local"):
            (folder / name).mkdir(parents=True)
    names = [f"taftcache-{os.getpid()}-{k}" for k in (1, 2)]
    links = [f"taft{os.getpid() % 10**6}-{k}" for k in (1, 2)]
    with ExitStack() as stack:
        spaces = all(_allowed(stack, name) for name in names)
        if spaces:
            _ip("link", "add", links[0], "netns", names[0], "type", "veth", "peer", "name", links[1], "netns", names[1])
            for k, (name, link) in enumerate(zip(names, links, strict=True), 1):
                _ip("-n", name, "address", "add", f"10.77.0.{k}/24", "dev", link)
                _ip("-n", name, "link", "set", link, "up")
                _ip("-n", name, "link", "set", "lo", "up")
        yield [
            Host(folder, *((f"10.77.0.{k}", (*EXEC, name)) if spaces else ("127.0.0.1", ())))
            for k, (folder, name) in enumerate(zip(folders, names, strict=True), 1)
        ]


def _allowed(stack: ExitStack, name: str) -> bool:
    try:
        _ip("netns", "add", name)
    except (OSError, subprocess.CalledProcessError):
        return False
    stack.callback(_ip, "netns", "delete", name)
    return True


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def run(hosts: list[Host]) -> dict[str, list[str]]:
    """The main job of the first's recipe on a worker of each host: worker → what it kept to compute with."""
    one = hosts[0]
    scheduler = f"tcp://{one.address}:{free_port()}"
    with ExitStack() as stack:
        where = ("--host", one.address, "--port", scheduler.rpartition(":")[2], "--no-dashboard")
        stack.enter_context(dask("scheduler", *where, prefix=one.prefix, cwd=one.folder, env=one.environment))
        for host in hosts:
            asked = ("worker", scheduler, "--host", host.address, *UNLIMITED)
            stack.enter_context(dask(*asked, prefix=host.prefix, cwd=host.folder, env=host.environment))
        command = [*one.prefix, sys.executable, "-c", DRIVER, scheduler]
        settings = {"cwd": one.folder, "env": one.environment, "capture_output": True, "text": True, "timeout": 500}
        driver = subprocess.run(command, check=False, **settings)
    assert driver.returncode == 0, driver.stderr
    return json.loads(driver.stdout)


@pytest.mark.law("Workers write no row to their disks")
@pytest.mark.law("A store made by workers has the bytes of one made by one process")
def test_two_hosts(hosts, finished, tmp_path):
    toml(hosts[0].folder / "recipe.toml", "../shared/store")
    (tmp_path / "shared").mkdir()
    worked = run(hosts)
    assert len(worked) == 2
    assert any("frozen layers" in kept for kept in worked.values())
    assert tree(tmp_path / "shared" / "store") == tree(finished)
    written = [file for host in hosts for file in host.folder.rglob("*") if file.is_file()]
    assert not [file for file in written if file.stat().st_size > 10_000], "rows on a worker's own disk"
