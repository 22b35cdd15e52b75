"""A person's images found and forgotten, wherever the store has them."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import taftcache
from taftcache.cache.store import FeatureStore
from taftcache.cli import main
from taftcache.consent import remember
from taftcache.errors import UnknownName, UnknownSample
from tests.stages.making import open_store, recipe, write_images
from tests.stages.test_forget_staged import stage


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """The store of ``people`` beside it, where 00* are one person's images, one of them not to be decoded."""
    place = tmp_path_factory.mktemp("people")
    images = write_images(place / "images")
    (images / "2" / "0009.png").write_bytes(b"no image")
    taftcache.run(recipe(place / "store", data={"source": "folder", "train": str(images), "unreadable": "skip"}))
    return place


@pytest.fixture
def people(made, tmp_path) -> Path:
    """A copy of the store."""
    return shutil.copytree(made / "store", tmp_path / "store")


def ended(capsys, *words: object) -> str:
    with pytest.raises(SystemExit) as end:
        main([str(word) for word in words])
    assert end.value.code == 0
    return capsys.readouterr().out


def of_one(store: Path) -> dict[str, str]:
    """The person's samples as ``inspect --ids`` has them, each with its role."""
    with FeatureStore(store) as opened:
        roles = {i: shard.role for shard in (*opened.shards, opened.held_out) for i in shard.sample_ids}
        roles |= {skipped.id: "skipped" for skipped in opened.manifest.skipped}
    return {i: role for i, role in roles.items() if "/00" in i}


def test_ids_are_of_all_that_can_be_forgotten(people, tmp_path, capsys):
    """A list of training rows alone, searched for a person's ids, left the held-out ones in the store."""
    mine = of_one(people)
    assert set(mine.values()) == {"train", "held-out", "skipped"}
    stage(people)
    listed = json.loads(ended(capsys, "inspect", people, "--ids", "--json"))
    with FeatureStore(people) as opened:
        assert len(listed) == sum(ref.rows for ref in opened.manifest.shards) + 1 + 8
        (skipped,) = opened.manifest.skipped
    roles = {one["sample"]: one["role"] for one in listed}
    assert mine.items() <= roles.items()
    assert [one for one in listed if one["sample"] in ("new/3", "2/0009.png")] == [
        {"sample": "2/0009.png", "shard": skipped.shard, "role": "skipped", "label": "2"},
        {"sample": "new/3", "shard": "002", "role": "staged", "label": "0"},
    ]
    assert ended(capsys, "inspect", people, "--ids").splitlines() == list(roles)
    (tmp_path / "ids").write_text("\n".join(i for i in roles if "/00" in i))
    told = json.loads(ended(capsys, "forget", people, "--file", tmp_path / "ids", "--json"))
    assert sorted(told["forgotten"]) == sorted(mine)
    assert of_one(people) == {}
    said = ended(capsys, "receipts", people)
    rows = Counter(mine.values())
    with FeatureStore(people) as opened:
        by_shard = opened.ledger()[-1]["shards"]
    assert sum(by_shard.values()) == rows["train"] + rows["held-out"] == len(mine) - 1
    taken = ", ".join(f"{n} row{'s'[: n != 1]} of {name}" for name, n in by_shard.items())
    assert f": {len(mine)} ids forgotten by retrain; {taken} removed, 1 had no row in a shard\n" in said
    assert "not covered: the images or vectors themselves, copies and backups" in said
    assert json.loads(ended(capsys, "inspect", people, "--shard", "002", "--ids", "--json"))[0]["role"] == "staged"


@pytest.mark.parametrize("option", [("--shard", "000"), ("--class", "2")])
def test_ids_of_a_part_are_what_forget_takes_by_it(people, capsys, option):
    stage(people)
    listed = ended(capsys, "inspect", people, "--ids", *option).splitlines()
    told = json.loads(ended(capsys, "forget", people, *option, "--dry-run", "--json"))
    assert sorted(told["forgotten"]) == sorted(listed)


def test_what_is_left_of_the_source_is_said(people, made, tmp_path, capsys):
    images = shutil.copytree(made / "images", tmp_path / "images")
    first, second, *others = of_one(people)
    asked = recipe(people, data={"source": "folder", "train": str(images), "unreadable": "skip"})
    with open_store(people) as store:
        moved = {**store.manifest.recipe, "data": {**store.manifest.recipe["data"], "train": str(images)}}
        with store.transaction() as change:
            change.update(recipe=moved)
        unasked = taftcache.forget(store, [first])
        where = f"the source (data.train = {images}) was not searched for 1 forgotten image"
        said = f"{where}: the store may not open it (taftcache trust)"
        assert (unasked.in_source, unasked.notes) == ([], [said]), "nobody allowed this store that place"
        remember(people, asked)
        assert taftcache.forget(store, [second], dry_run=True).in_source == [second]
        assert taftcache.forget(store, [first]).in_source == [first], "asked again: its first answer may be lost"
        (images / second).unlink()
        assert taftcache.forget(store, [second]).in_source == []
    told = json.loads(ended(capsys, "forget", people, *(w for i in others[1:] for w in ("--sample", i)), "--json"))
    assert told["in_source"] == told["forgotten"]
    assert set(told["in_source"]) == set(others[1:]), "one that was skipped, too"
    shutil.rmtree(images / "1")
    assert taftcache.forget(people, [others[0]]).notes == [
        f"1 of 1 image still in the source (data.train = {images}): deleting it is yours to do"
    ]
    shutil.rmtree(images)
    gone = taftcache.forget(people, classes=["2"])
    assert gone.in_source == []
    assert "was not searched for" in gone.notes[-1]
    assert gone.notes[-1].endswith("it cannot be read")
    assert "still in the source" not in str(FeatureStore(people).ledger())


def test_samples_are_named_by_their_files_too(people, made, monkeypatch):
    """Requests name files, and the folder is part of that."""
    first, second, *_ = of_one(people)
    with FeatureStore(people) as store:
        train = Path(store.manifest.recipe["data"]["train"])
    monkeypatch.chdir(train.parent)
    asked = [str(train / first), f"./{train.name}/{second}"]
    assert taftcache.forget(people, asked).forgotten == [first, second]
    assert taftcache.forget(people, asked).already == [first, second]
    assert [answer.sample for answer in taftcache.receipts(people, asked).samples] == [first, second]
    with pytest.raises(UnknownSample):
        taftcache.forget(people, [str(train / "0" / "none.png")])
    monkeypatch.chdir(train / "1")  # where 2/0009.png would be a file of another id, 1/2/0009.png
    assert taftcache.forget(people, ["2/0009.png"], dry_run=True).forgotten == ["2/0009.png"]


def test_ids_are_chosen_by_a_pattern(people, capsys):
    stage(people)
    mine = of_one(people)
    said = ended(capsys, "forget", people, "--match", "*/00*", "--match", "new/[3-4]", "--dry-run")
    matches = " ".join(said.split())
    assert f"*/00* matches: {', '.join(mine)} new/[3-4] matches: new/3, new/4" in matches, "none of them is left out"
    assert (matches.count(min(mine)), "would be forgotten: " in matches) == (1, True), "nor said twice"
    with open_store(people) as store:
        report = taftcache.forget(store, ["new/0"], classes=["1"], matching=["*/00*", "new/[3-4]"])
    assert report.matched == {"*/00*": list(mine), "new/[3-4]": ["new/3", "new/4"]}
    assert {*mine, "new/0", "new/3", "new/4"} < set(report.forgotten)
    assert {i.split("/")[0] for i in set(report.forgotten) - {*mine, "new/0", "new/3", "new/4"}} == {"1"}
    assert of_one(people) == {}


def test_a_pattern_matches_letters_in_either_form(tmp_path):
    """Files of one person came from two systems, and a pattern found one half of them."""
    composed, apart = "jos\u00e9", "jose\u0301"
    ids = [f"{composed if k % 2 else apart}/{k}" for k in range(6)] + [f"v/{k}" for k in range(54)]
    x = np.random.default_rng(0).standard_normal((60, 4))
    taftcache.import_vectors(x, np.arange(60) % 2, tmp_path / "store", ids=ids)
    for pattern in (f"{composed}/*", f"{apart}/*", "jos?/*"):
        report = taftcache.forget(tmp_path / "store", matching=[pattern], dry_run=True)
        assert set(report.forgotten) == set(ids[:6])


def test_a_pattern_that_nothing_matches_ends_the_request(people):
    with open_store(people) as store:
        taftcache.forget(store, matching=["0/0000.png"])
        root = store.root_digest
        for idle in ("0/0000.p*", "2/0009.PNG"):  # forgotten before; capitals matter
            with pytest.raises(UnknownName, match="matches 1 pattern") as caught:
                taftcache.forget(store, matching=["2/*", idle])
            assert (caught.value.got, caught.value.names) == (repr(idle), [idle])
        assert store.root_digest == root
