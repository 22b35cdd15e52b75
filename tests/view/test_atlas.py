"""What the page says, against float64 and against the commands that say the same."""

from __future__ import annotations

import shutil
from itertools import combinations
from time import sleep

import numpy as np
import pytest
import torch

import taftcache
from taftcache.cache.store import FeatureStore
from taftcache.consent import recorded_recipe
from taftcache.errors import StoreWriteError
from taftcache.model.component import StoredComponents, read_base, read_component
from taftcache.model.composition import compose
from taftcache.objective.problem import Problem
from taftcache.objective.rsl import RSL
from taftcache.stages.progress import Silent
from taftcache.stages.train.held_out import predicted_by
from taftcache.stages.train.record import settings_of
from taftcache.stages.train.without import Without
from taftcache.tangent.operator import TangentOperator
from taftcache.view import payload
from taftcache.view.asked.leaving import SideSolves, without_row
from taftcache.view.atlas import WORK, Atlas
from taftcache.view.embedding import ANCHORS, nearest, neighbour_map, principal_axes
from taftcache.view.pictures import Pictures, patch_grid
from taftcache.view.pictures import seen as cropped
from tests.stages.forging import forge_meta
from tests.stages.making import recipe


def exact(store, shard, without=None):
    """The problem of a shard in float64, with or without one of its rows."""
    spec = recorded_recipe(store)
    base = read_base(store, spec.tangent)
    rows = shard if without is None else Without(shard, without)
    component = read_component(store, f"components/{shard.name}", base)
    operator = TangentOperator(base, [rows], trained=component.layout, dtype=torch.float64)
    loss = RSL(alpha=spec.objective.alpha, kappa=spec.objective.kappa)
    return Problem(operator, loss, spec.objective.ridge), component


def test_places_are_principal_axes(atlas):
    tokens = np.concatenate([shard.tokens(slice(0, shard.rows)) for shard in atlas.table.shards])
    x = tokens[:, 0].astype(np.float64)
    x -= x.mean(0)
    _, s, vt = np.linalg.svd(x, full_matrices=False)
    want = x @ vt[:2].T
    np.testing.assert_allclose(np.abs(atlas.place), np.abs(want), rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(atlas.axes.explained, (s**2 / (s**2).sum())[:2], rtol=1e-5)


def test_predictions_are_those_of_evaluate(atlas, seen):
    store = atlas.store
    report = taftcache.evaluate(store)
    kept = atlas.held_out
    found = {"base model untouched": kept.base.argmax(1), **kept.others}
    found |= {n: (kept.base + kept.tangents[k]).argmax(1) for k, n in enumerate(kept.components)}
    assert {n: round(a * report.rows) for n, a in report.accuracy.items()} == {
        n: int((p == kept.labels).sum()) for n, p in found.items()
    }
    settings = settings_of(store)
    models = StoredComponents(store, list(report.accuracy.keys() & store.objects().keys()), settings.base)
    for shard in store.shards:
        own = predicted_by(settings.base, settings.recipe, shard, models, Silent())
        here = slice(atlas.table.start(atlas.table.shards.index(shard)), None)
        here = slice(here.start, here.start + shard.rows)
        for column, name in (
            ("base", "base model untouched"),
            ("model", "models/exact"),
            ("own", f"components/{shard.name}"),
        ):
            right = (atlas.classes_by[column][here] == atlas.table.label[here]).mean()
            assert right == pytest.approx((own[name] == shard.labels).mean()), (shard.name, column)


@pytest.mark.law("The page's predictions and margins are those of the store's default model")
def test_the_model_of_the_page_is_the_best(atlas):
    assert payload.overview(atlas)["model"] == taftcache.evaluate(atlas.store).default == "models/exact"
    table = atlas.table
    for k, shard in enumerate(table.shards):
        z, change = atlas.scorer().logits(shard.tokens(slice(0, shard.rows)), ["models/exact"])
        z, rows, here = z + change[0], np.arange(shard.rows), table.start(k) + np.arange(shard.rows)
        assert (atlas.classes_by["model"][here] == z.argmax(1)).all()
        true = z[rows, shard.labels].copy()
        z[rows, shard.labels] = -np.inf
        np.testing.assert_allclose(atlas.margin[here], true - z.max(1), rtol=1e-4, atol=1e-4)


@pytest.mark.law("Accuracies on the page are those of the command line")
def test_any_shards_can_be_subtracted(atlas):
    names = [shard.name for shard in atlas.store.shards]
    for count in range(1, len(names)):
        for out in combinations(names, count):
            report = taftcache.evaluate(atlas.store, without=out)
            said = payload.composed(atlas, out)["accuracy"]
            assert said == pytest.approx(report.accuracy[f"mean of {len(names) - count} of {len(names)} components"])


@pytest.mark.parametrize("out", [(), ("001",), ("000", "002")], ids=str)
def test_summed_logits_are_the_composed_components(atlas, out):
    """Against Δw composed first, and float64."""
    store = atlas.store
    base = read_base(store, recorded_recipe(store).tangent)
    names = [f"components/{s.name}" for s in store.shards if s.name not in out]
    whole = compose({name: read_component(store, name, base) for name in names})
    operator = TangentOperator(base, [store.held_out], trained=whole.layout, dtype=torch.float64)
    blocks = zip(operator.blocks(), operator.matvec(whole.delta), strict=True)
    exact_logits = torch.cat([state.logits + change for (state, _), change in blocks]).numpy()
    np.testing.assert_allclose(atlas.held_out.logits(out), exact_logits, rtol=1e-3, atol=1e-3)


@pytest.mark.law("What the page says of leaving a sample out is what forgetting it does; its bound is true")
def test_the_bound_is_the_gradient_without_the_row(atlas):
    """‖∇F₋ₙ(Δw)‖/λ, recomputed in float64 over the other rows."""
    for shard in atlas.store.shards[:2]:
        for row in (0, shard.rows - 1):
            problem, component = exact(atlas.store, shard, without=row)
            _, gradient = problem.evaluate(component.delta)
            bound = gradient.norm().item() / problem.ridge
            said = payload.forgetting(atlas, shard.tokens(slice(row, row + 1)), shard, row)["bound"]
            assert said == pytest.approx(bound, rel=1e-3)
            assert said >= bound * (1 - 1e-4)


@pytest.mark.law("What the page says of leaving a sample out is what forgetting it does; its bound is true")
def test_leaving_out_is_what_forgetting_does(atlas, seen, tmp_path):
    shard = atlas.store.shards[1]
    row, name = 2, shard.sample_ids[2]
    answer = without_row(atlas, shard, row, Silent())
    copy = shutil.copytree(seen, tmp_path / "copy")
    with FeatureStore(copy, mode="a") as store:
        certificate = taftcache.forget(store, [name]).certificates[f"components/{shard.name}"]
        after = Atlas(store)
        after.work(skip=("head path", "neighbours"))
    assert answer.moved == pytest.approx(certificate.moved, rel=1e-4)
    assert answer.distance_bound == pytest.approx(certificate.distance_bound, rel=0.5, abs=1e-6)
    assert answer.moved == pytest.approx(atlas.moved[atlas.table.find(name)], rel=1e-4)
    assert answer.accuracy[1] == after.held_out.accuracy(after.held_out.predictions())
    assert answer.accuracy[0] == atlas.held_out.accuracy(atlas.held_out.predictions())


def test_influence_is_exact_or_absent(atlas, monkeypatch):
    assert (np.isfinite(atlas.moved) == ~atlas.table.held_out).all()
    assert "moved" in payload.columns(atlas)["columns"]
    monkeypatch.setattr("taftcache.stages.look.leaving.WORK", 1.0)
    made = Atlas(atlas.store)
    made.work(skip=("rows", "held-out predictions", "predictions", "head path", "neighbours"))
    assert "moved" not in payload.columns(made)["columns"]
    assert "too long for a page" in made.progress["influence"].note
    said = payload.forgetting(made, atlas.store.shards[0].tokens(slice(0, 1)), atlas.store.shards[0], 0)
    assert said["moved"] is None
    assert said["bound"] > 0


def test_what_does_not_fit_in_memory_says_so_and_the_rest_goes_on(atlas, monkeypatch):
    def exhaust(progress):
        raise MemoryError

    made = Atlas(atlas.store)
    monkeypatch.setattr(made, "_influence", exhaust)
    made.work(skip=("rows", "held-out predictions", "predictions", "head path", "neighbours"))
    assert made.progress["influence"].note == "MemoryError"
    assert made.ready["neighbours"].is_set()


def test_rows_without_one_are_the_others(atlas):
    shard = atlas.store.shards[0]
    source = Without(shard, 3)
    blocks = list(source.blocks(4, 4))
    kept = np.delete(np.arange(shard.rows), 3)
    assert source.rows == shard.rows - 1
    assert (np.concatenate([b.labels for b in blocks]) == shard.labels[kept][4:]).all()
    assert (source.labels == shard.labels[kept]).all()
    assert source.sample_ids == [shard.sample_ids[k] for k in kept]
    assert (np.concatenate([b.tokens for b in blocks]) == shard.tokens(kept)[4:]).all()
    assert [len(b.labels) for b in blocks[:-1]] == [4] * (len(blocks) - 1)


def test_a_row_is_left_out_on_request_only_once(atlas):
    leaving, name = SideSolves(atlas), atlas.store.shards[0].sample_ids[0]
    said = leaving.ask(name)
    while said["state"] == "working":
        sleep(0.02)  # it is the other thread's turn
        said = leaving.ask(name)
    assert said["state"] == "done"
    assert leaving.ask(name) is said


def test_the_heads_path_passes_through_the_head(atlas):
    """Closed form of one solve against one decomposition for all λ."""
    ridge = recorded_recipe(atlas.store).objective.ridge
    (point,) = [p for p in atlas.path if p.ridge == pytest.approx(ridge)]
    meta = atlas.store.objects()["models/head"].meta
    assert point.norm == pytest.approx(meta["norm"], rel=1e-6)
    assert point.held_out == pytest.approx(taftcache.evaluate(atlas.store).accuracy["models/head"])
    assert [p.norm for p in atlas.path] == sorted((p.norm for p in atlas.path), reverse=True)


def cosines(x: np.ndarray) -> np.ndarray:
    """Of rows around their mean, in float64; of a row with itself -2."""
    x = x.astype(np.float64) - x.mean(0, dtype=np.float64)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    return x @ x.T - 3 * np.eye(len(x))


def test_neighbours_are_the_nearest_by_cosine(atlas):
    tokens = np.concatenate([shard.tokens(slice(0, shard.rows)) for shard in atlas.table.shards])
    cosine = cosines(tokens[:, 0])
    for row in (0, len(cosine) - 1):
        found = nearest(atlas.vectors, row, 5)
        assert [k for k, _ in found] == np.argsort(-cosine[row])[:5].tolist()
        np.testing.assert_allclose([c for _, c in found], np.sort(cosine[row])[::-1][:5], rtol=1e-3)
    assert len(nearest(atlas.vectors, 0, 10**6)) == len(cosine) - 1


@pytest.mark.parametrize(
    "changed",
    [lambda x: 1e7 * x, lambda x: 1e-8 * x, lambda x: 100 + 0.01 * x, lambda x: np.vstack([1e6 * x[:1], x[1:]])],
    ids=["large", "small", "far from zero", "one far out"],
)
def test_neighbours_of_vectors_that_float16_would_not_hold(tmp_path, changed):
    x = changed(np.random.default_rng(0).standard_normal((80, 6))).astype(np.float32)
    path = tmp_path / "store"
    taftcache.import_vectors(x, np.arange(80) % 2, path, scaling="none", overrides=["store.dtype=float32"])
    with FeatureStore(path) as store:
        atlas = Atlas(store)
        atlas.work(skip=("held-out predictions", "predictions", "head path", "influence", "neighbours"))
        cosine = cosines(np.concatenate([shard.tokens(slice(0, shard.rows))[:, 0] for shard in atlas.table.shards]))
        for row in range(80):
            found = payload.neighbours(atlas, row)
            rows = [atlas.table.find(near["id"]) for near in found]
            np.testing.assert_allclose([near["cosine"] for near in found], cosine[row, rows], atol=2e-3)
            np.testing.assert_allclose(cosine[row, rows], np.sort(cosine[row])[::-1][:8], atol=2e-3)


def test_a_neighbour_map_keeps_groups_apart(monkeypatch):
    monkeypatch.setattr("taftcache.view.embedding.ANCHORS", 60)
    rng = np.random.default_rng(0)
    group = np.repeat([0, 1], 60)
    vectors = (rng.standard_normal((120, 8)) + 30 * group[:, None]).astype(np.float16)
    placed = neighbour_map(vectors)
    assert placed.shape == (120, 2)
    near = ((placed[:, None] - placed) ** 2).sum(-1) + 1e9 * np.eye(120)
    assert (group[near.argmin(1)] == group).mean() > 0.98
    assert (neighbour_map(vectors) == placed).all()
    assert ANCHORS > 60


@pytest.mark.parametrize("rows", [1, 2, 3, 40])
def test_a_neighbour_map_of_equal_or_of_few_numbers(rows):
    """Of equal vectors t-SNE ended the process, of one number a vector and of two rows it raised."""
    assert not neighbour_map(np.full((rows, 8), 3, np.float16)).any()
    line = np.arange(rows, dtype=np.float16)[:, None]
    placed = neighbour_map(line)
    assert placed.shape == (rows, 2)
    assert np.isfinite(placed).all()
    assert len(np.unique(placed, axis=0)) == rows
    assert np.isfinite(neighbour_map(np.repeat(line, 5, 1))).all()


def test_vectors_of_one_number_lie_on_one_axis(tmp_path):
    x, y = np.random.default_rng(0).standard_normal((40, 1)), np.arange(40) % 2
    taftcache.import_vectors(x, y, tmp_path / "line", scaling="none")
    with FeatureStore(tmp_path / "line") as store:
        atlas = Atlas(store)
        atlas.work(skip=("head path", "influence"))
        assert [state.note for state in atlas.progress.values()] == [""] * len(atlas.progress)
        assert atlas.place[:, 0].std() > 0.5
        assert not atlas.place[:, 1].any()


def test_axes_of_equal_rows_are_no_error():
    axes = principal_axes(np.ones((5, 3), np.float32))
    assert axes.explained.tolist() == [0, 0]
    assert not axes.project(np.ones((2, 3), np.float32)).any()
    alone = principal_axes(np.array([[1, 2, 3]], np.float32))
    assert alone.centre.tolist() == [1, 2, 3]
    assert not alone.explained.any()


def test_axes_point_where_their_largest_entry_is_positive():
    """So that a map has one orientation on every machine."""
    vectors = np.random.default_rng(0).standard_normal((50, 6)).astype(np.float32)
    axes = principal_axes(vectors, 6).axes
    assert (axes[np.arange(6), np.abs(axes).argmax(1)] > 0).all()


def test_attention_is_that_of_the_tail(atlas):
    name = atlas.table.ids[0]
    found = payload.sample(atlas, name, Pictures(atlas.store))
    heads = np.array(found["attention"]["heads"])
    assert found["attention"]["grid"] == [8, 8]
    assert heads.shape == (3, 64)
    np.testing.assert_allclose(heads.sum(1) + found["attention"]["prefix"], 1, rtol=2e-3)
    assert found["picture"]


@pytest.mark.parametrize(
    ("tangent", "why"),
    [({"reset_block": True}, "its last block was drawn from a seed"),
     ({"class_token": "reset"}, "its class token was drawn from a seed")],
    ids=str,
)  # fmt: skip
def test_attention_of_what_starts_anew_is_not_shown(tmp_path, tangent, why):
    path = tmp_path / "anew"
    taftcache.extract(recipe(path, tangent=tangent, data={"source": "digits", "limit": 20}))
    with FeatureStore(path) as store:
        found = payload.sample(Atlas(store), store.sample_ids()[0], Pictures(store))
    assert found["attention"] is None
    assert found["why_no_attention"].startswith(why)


def test_a_store_of_features_says_why_there_is_no_attention(tmp_path):
    path = tmp_path / "head"
    taftcache.run(recipe(path, tangent={"train": "head"}))
    with FeatureStore(path) as store:
        made = Atlas(store)
        made.work(skip=("neighbours",))
        found = payload.sample(made, made.table.ids[0], Pictures(store))
        left = without_row(made, store.shards[1], 3, Silent())
    assert found["attention"] is None
    assert "feature" in found["why_no_attention"]
    assert set(found["models"]) == {"base", "components/000", "components/001", "models/head", "models/mean"}
    assert left.moved == pytest.approx(made.moved[made.table.find(store.shards[1].sample_ids[3])], rel=1e-5)
    assert np.isfinite(made.moved[~made.table.held_out]).all()


def test_a_store_without_models_is_shown_too(tmp_path):
    path = tmp_path / "extracted"
    taftcache.extract(recipe(path))
    with FeatureStore(path) as store:
        made = Atlas(store)
        made.work(skip=("neighbours",))
        known = payload.columns(made)["columns"]
        shown = payload.overview(made)["report"]
    assert set(known) == {"x", "y", "norm", "base"}
    assert shown["models"] == []
    assert "recipe" not in shown  # nor the places of this machine that it names: a page goes to others


def test_pictures_that_are_gone_are_said_to_be(images_gone):
    with FeatureStore(images_gone) as store:
        pictures = Pictures(store)
        name = store.sample_ids()[0]
        assert pictures.encoded(name) is None
        assert "cannot be reached" in pictures.why_not


def test_a_report_names_no_folder_of_this_machine(images_gone, tmp_path, monkeypatch):
    """Why there are no pictures, and where the store lies, is for who writes it, and not for who gets it."""
    report = taftcache.write_report(images_gone, tmp_path / "page.html", neighbours=False)
    assert any("cannot be reached" in note for note in report.notes)
    assert str(tmp_path).encode() not in report.file.read_bytes()
    monkeypatch.chdir(images_gone)
    here = taftcache.write_report(".", tmp_path / "here.html", neighbours=False)
    for page in (report.file, here.file):
        assert f"<title>taftcache report · {images_gone.name}</title>" in page.read_text(encoding="utf-8")


@pytest.fixture
def images_gone(tmp_path):
    from tests.stages.making import write_images

    folder = write_images(tmp_path / "images", per_class=4)
    taftcache.extract(recipe(tmp_path / "store", data={"source": "folder", "train": str(folder)}))
    with FeatureStore(tmp_path / "store") as store:
        assert Pictures(store).encoded(store.sample_ids()[0]).body[:4] == b"\x89PNG"
    shutil.rmtree(folder)
    return tmp_path / "store"


@pytest.mark.parametrize(
    ("tokens", "size", "grid"),
    [(197, (3, 224, 224), (14, 14)), (201, (3, 224, 224), (14, 14)), (65, (3, 32, 32), (8, 8)),
     (1 + 8 * 16, (3, 128, 256), (8, 16)), (300, (3, 224, 224), None)],
)  # fmt: skip
def test_patches_fill_a_grid(tokens, size, grid):
    assert patch_grid(tokens, {"input_size": size}) == grid


def test_the_picture_is_what_the_model_sees():
    from PIL import Image

    image = Image.new("RGB", (200, 100))
    assert cropped(image, {"crop_mode": "center", "crop_pct": 0.5, "input_size": [3, 32, 32]}).size == (50, 50)
    assert cropped(image, {"crop_mode": "squash", "crop_pct": 0.5, "input_size": [3, 32, 32]}).size == (200, 100)


def test_a_report_that_cannot_be_written_says_why(tmp_path, atlas, monkeypatch):
    monkeypatch.setattr("taftcache.view.report.Atlas", lambda store: atlas)
    monkeypatch.setattr(atlas, "work", lambda skip=(): None)
    with pytest.raises(StoreWriteError, match=r"cannot write .*: no such folder") as caught:
        taftcache.write_report(atlas.store, tmp_path / "missing" / "report.html")
    assert caught.value.do == "correct the path, or make what is missing"
    (tmp_path / "folder").mkdir()
    with pytest.raises(StoreWriteError, match="exists already"):
        taftcache.write_report(atlas.store, tmp_path / "folder")
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]


def test_any_error_of_a_stage_is_its_note_and_nobody_waits(atlas, monkeypatch):
    def fail(progress):
        raise ValueError("not enough rows")

    made = Atlas(atlas.store)
    for stage in ("_rows", "_influence"):
        monkeypatch.setattr(made, stage, fail)
    made.work(skip=("held-out predictions", "predictions", "head path"))
    assert made.progress["rows"].note == made.progress["influence"].note == "not enough rows"
    assert "rows' vectors" in made.progress["neighbours"].note
    assert all(ready.is_set() for ready in made.ready.values())


def test_a_notebooks_view_works_out_what_it_is_asked_for(finished):
    """Two thirds of its time went into influence, whichever panel was shown; the rest of the page is the same."""
    heard = []

    class Heard(Silent):
        def task(self, name, total):
            heard.append((name, total))
            return super().task(name, total)

    plain, whole = (taftcache.StoreView(finished, influence=asked, progress=Heard()) for asked in (False, True))
    assert heard == [("page", len(WORK))] * 2
    few, all_ = plain._data, whole._data
    some, every = few["columns"]["columns"], all_["columns"]["columns"]
    assert [view["progress"]["stages"]["influence"]["done"] for view in (few, all_)] == [0, 2]
    assert {name for name in every if some.get(name) != every[name]} == {"moved"}


@pytest.mark.parametrize("mode", ["exact", "mean"])
def test_the_ridges_of_a_stores_heads(tmp_path, mode):
    """With the recipe that ``init`` writes, the model of all rows is the head, and no λ was marked on its path."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((40, 5)), np.arange(40) % 2
    taftcache.import_vectors(x, y, tmp_path / "store", overrides=["store.shards=2", "objective.ridge=auto"])
    taftcache.train(tmp_path / "store")
    taftcache.compose(tmp_path / "store", overrides=[f"compose.mode={mode}"])
    with FeatureStore(tmp_path / "store") as store:
        made = Atlas(store)
        made.work(skip=("rows", "influence", "neighbours"))
        ridges = {name: ref.meta["certificate"]["ridge"] for name, ref in store.objects().items()
                  if "certificate" in ref.meta}  # fmt: skip
        whole = {name: ridge for name, ridge in ridges.items() if name == "models/exact"}
    assert payload.overview(made)["head_ridges"] == made.head_ridges == (whole or ridges)
    assert len(made.head_ridges) == (1 if mode == "exact" else 2)


def test_of_a_shard_that_grew_since_no_influence_is_said(seen, tmp_path):
    """It was that of a component that those rows were never in."""
    path = shutil.copytree(seen, tmp_path / "store")
    with FeatureStore(path, mode="a") as store:
        key = store.objects()["components/001"].meta["key"]
        digest = next(shard.digest for shard in store.shards if shard.name == "001")
    forge_meta(path, "components/001", lambda meta: {**meta, "key": key.replace(digest, "0" * 64)})
    with FeatureStore(path) as store:
        made = Atlas(store)
        made.work(skip=("head path", "neighbours"))
        rows = [int((made.table.shard == k).argmax()) for k in range(2)]
        assert np.isfinite(made.moved[rows]).tolist() == [True, False]
        said = [payload.sample(made, made.table.ids[k], Pictures(store)) for k in rows]
    assert [one["unsolved"] for one in said] == [
        "", "components/001 was not made from the rows and settings that the store has now: taftcache train."
    ]  # fmt: skip
    assert [one["forget"] is None for one in said] == [False, True]
