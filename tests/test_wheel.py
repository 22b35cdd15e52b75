"""The first hour from a wheel: no clone, no source folder, nothing on the path but what pip installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from tests.stages.hub import TOKEN, serve
from tests.stages.making import write_images

ROOT = Path(__file__).resolve().parents[1]


class Installed:
    """An environment with the built wheel, the dependencies of this one, and a folder to work in."""

    def __init__(self, place: Path, wheel: Path) -> None:
        self.here = place / "work"
        self.here.mkdir()
        venv.create(place / "env", with_pip=False)
        self.bin = place / "env" / "bin"
        python = str(self.bin / "python")
        pip = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check"]
        subprocess.run([*pip, "install", "-q", "--no-index", "--no-deps", str(wheel)], check=True, capture_output=True)
        # Afterwards, so that pip sees no other installation. A .pth in that folder is not followed, an editable one
        # in particular.
        (own,) = (place / "env" / "lib").glob("python*/site-packages")
        paths = sysconfig.get_paths()
        (own / "dependencies.pth").write_text("\n".join(dict.fromkeys([paths["purelib"], paths["platlib"]])) + "\n")

    def __call__(self, program: str, *arguments: object, code: int = 0) -> str:
        """What the program prints to stdout; it must end with ``code``."""
        env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "XDG_"))}
        done = subprocess.run(
            [self.bin / program, *map(str, arguments)],
            cwd=self.here,
            env=env | {"HOME": str(self.here), "OMP_NUM_THREADS": "1", "COLUMNS": "200"},
            capture_output=True,
            text=True,
        )
        assert done.returncode == code, (program, arguments, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr
        return done.stdout if code == 0 else done.stderr


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    pytest.importorskip("hatchling")
    place = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(place)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = place.glob("*.whl")
    return Installed(place, wheel)


def test_a_wheel_brings_the_recipes(installed):
    asked = "import taftcache as t, taftcache.recipe_files as r; print(t.__file__, *r.bundled_recipes())"
    place, *names = installed("python", "-c", asked).split()
    assert Path(place).is_relative_to(installed.bin.parent)
    folder = ROOT / "pipelines"
    assert sorted(names) == sorted(p.relative_to(folder).with_suffix("").as_posix() for p in folder.rglob("*.toml"))
    assert installed("taftcache", "--version").startswith("taftcache ")
    asked = "from importlib.metadata import metadata; print(*metadata('taftcache').get_all('License-File'))"
    assert {Path(name).name for name in installed("python", "-c", asked).split()} == {
        *("LICENSE", "LICENSE-d3", "LICENSE-zrender", "NOTICE")
    }
    assert "did you mean quickstart?" in installed("taftcache", "run", "quikstart", code=2)


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.law("Whoever installs the wheel gets from nothing to a model of their own images, without a clone")
def test_the_first_hour(installed):
    few = ("--set", "data.limit=300", "--set", "forget.samples=[]")
    assert "model of all rows" in installed("taftcache", "demo", *few)
    write_images(installed.here / "pictures")
    assert "next     taftcache run pictures.toml" in installed("taftcache", "init", "pictures")
    report = json.loads(installed("taftcache", "run", "pictures.toml", "--json"))
    assert report["evaluate"]["rows"] > 0
    image = next((installed.here / "pictures" / "1").iterdir())
    said = json.loads(installed("taftcache", "predict", "stores/pictures", image, "--json"))
    assert said["predictions"][0]["labels"][0] == "1"
    sample = installed("taftcache", "inspect", "stores/pictures", "--shard", "000", "--ids").split("\n")[0]
    assert "forgotten now" in installed("taftcache", "forget", "stores/pictures", "--sample", sample)
    assert "PASSED: nothing" in installed("taftcache", "audit", "stores/pictures")
    installed("taftcache", "export", "stores/pictures", "rows.npz", "--format", "npz")
    ids = installed("python", "-c", "import numpy; print(*numpy.load('rows.npz')['ids'])").split()
    assert ids
    assert sample not in ids
    installed("taftcache", "export-model", "stores/pictures", "model")
    asked = f"import taftcache; print(taftcache.open_model('model').predict([{str(image)!r}], top=1)[0].labels)"
    assert installed("python", "-c", asked).strip() == "['1']"
    installed("taftcache", "verify", "stores/pictures")


@pytest.mark.full
@pytest.mark.slow
def test_vectors_and_a_hub_from_a_wheel(installed, monkeypatch):
    few = ("data.limit=60", "store.shards=2", "store.path=stores/few", "solver.tolerance=1e-3", "forget.samples=[]")
    installed("taftcache", "run", "quickstart", *(part for setting in few for part in ("--set", setting)))
    installed("taftcache", "export", "stores/few", "vectors.npz", "--format", "npz")
    installed("taftcache", "import", "vectors.npz", "stores/vectors", "--set", "store.shards=2")
    installed("taftcache", "train", "stores/vectors")
    installed("taftcache", "compose", "stores/vectors")
    installed("python", "-c", "import numpy; numpy.save('new.npy', numpy.load('vectors.npz')['features'])")
    found = json.loads(installed("taftcache", "predict", "stores/vectors", "new.npy", "--json"))["predictions"]
    sample = installed("taftcache", "inspect", "stores/vectors", "--shard", "000", "--ids").split("\n")[0]
    installed("taftcache", "forget", "stores/vectors", "--sample", sample)
    assert "PASSED: nothing" in installed("taftcache", "audit", "stores/vectors")
    with serve() as hub:
        for key, value in {"ENDPOINT": hub.url, "TOKEN": TOKEN, "HUB_DISABLE_XET": "1"}.items():
            monkeypatch.setenv(f"HF_{key}", value)
        installed("taftcache", "export-model", "stores/few", "pushed")
        installed("taftcache", "push", "pushed", "me/digits", "--private")
        asked = "import taftcache; print(len(taftcache.from_pretrained('me/digits').classes))"
        assert installed("python", "-c", asked).strip() == "10"
    assert len(found) == 60
