"""Arguments of the functions of Python that cannot be meant: refused in words before anything is read or changed."""

from __future__ import annotations

import shutil
from contextlib import nullcontext
from functools import partial

import numpy as np
import pytest
import torch
from msgspec.structs import replace

import taftcache
from taftcache.cache.store import FeatureStore
from taftcache.errors import (
    ArgumentError,
    DataError,
    RecipeError,
    SolveError,
    StoreError,
    StoreLocked,
    TaftcacheError,
    UnknownName,
    UnknownSample,
    UnreadableImage,
)
from taftcache.model.predictor import TangentModel
from taftcache.objective.weights import RowWeights
from taftcache.recipe import Recipe
from taftcache.recipe_sections import ObjectiveSpec, SolverSpec, StoreSpec
from taftcache.solve.settings import Arithmetic, Goal
from taftcache.stages.look.row_table import RowTable
from taftcache.stages.train.record import wanted_shards
from taftcache.tangent.spec import TangentSpec
from taftcache.terminal.forgetting import DESTROYED, forgotten_lines
from tests.cache.making import tree
from tests.keys import make_key
from tests.stages.making import recipe


@pytest.mark.parametrize("wrong", [-1, 2.5, "3", None], ids=str)
def test_counts_are_whole_numbers_that_leave_nothing_out(finished, wrong):
    """A slice takes any of them, and -1 dropped the last of what there is."""
    picture = [np.zeros((8, 8, 3), np.uint8)]
    model = TangentModel.load(finished, device="cpu")
    calls = [
        lambda n: taftcache.predict(finished, picture, top=n),
        lambda n: model.predict(picture, top=n),
        lambda n: model.predict(picture, batch=n),
        lambda n: taftcache.outliers(finished, top=n),
        lambda n: taftcache.query_influence(finished, "digits/0001", top=n),
    ]
    for call in calls:
        for n in (wrong, 0):
            with pytest.raises(ArgumentError, match="must be a whole number of at least 1"):
                call(n)
    for call in (
        lambda n: taftcache.suspects(finished, top=n),
        lambda n: taftcache.duplicates(finished, top=n),
    ):
        with pytest.raises(ArgumentError, match="must be a whole number of at least 0"):
            call(wrong)
    assert taftcache.suspects(finished, top=0).disagreeing  # what is counted needs no list
    assert len(model.predict(picture, top=np.int64(2))[0].labels) == 2


NOT_TEXT = {
    "samples to forget": lambda path: taftcache.forget(path, ["digits/0001", 3]),
    "one sample to forget": lambda path: taftcache.forget(path, 3),
    "a text of samples to forget": lambda path: taftcache.forget(path, "12"),
    "a text of shards to forget": lambda path: taftcache.forget(path, shards="000"),
    "a text of classes to forget": lambda path: taftcache.forget(path, classes="12"),
    "numpy's samples": lambda path: taftcache.forget(path, np.arange(3)),
    "shards to forget": lambda path: taftcache.forget(path, shards=[0]),
    "one shard": lambda path: taftcache.forget(path, shards=0),
    "no shards": lambda path: taftcache.forget(path, shards=None),
    "classes to forget": lambda path: taftcache.forget(path, classes=[3]),
    "shards to train": lambda path: taftcache.train(path, shards=[0]),
    "private shards": lambda path: taftcache.train_private(path, shards=[0]),
    "shards left out": lambda path: taftcache.evaluate(path, without=[0]),
    "a text of shards to train": lambda path: taftcache.train(path, shards="000"),
    "a text of private shards": lambda path: taftcache.train_private(path, shards="000"),
    "a text of shards left out": lambda path: taftcache.evaluate(path, without="000"),
    "receipts": lambda path: taftcache.receipts(path, [b"digits/0001"]),
    "a text of receipts": lambda path: taftcache.receipts(path, "12"),
    "a page's samples": lambda path: taftcache.write_report(path, path.parent / "p.html", samples=[3]),
    "a text of a page's samples": lambda path: taftcache.write_report(path, path.parent / "p.html", samples="000"),
    "a text of a view's samples": lambda path: taftcache.StoreView(path, "000"),
    "a folder to search": lambda path: taftcache.audit(path, also=path.parent),
}


@pytest.mark.parametrize("what", NOT_TEXT)
def test_names_and_ids_are_texts(store, what):
    before = tree(store)
    advice = r".*\n.*\n  try: \w+=\['(12|000)'\]" if what.startswith("a text") else ""
    with pytest.raises(ArgumentError, match="must be a list" + advice):
        NOT_TEXT[what](store)
    assert tree(store) == before


@pytest.fixture(scope="module")
def signed(finished, tmp_path_factory):
    """``finished`` without one sample, so that its tombstones are asked, too. Not to be written to."""
    pytest.importorskip("cryptography")
    path = shutil.copytree(finished, tmp_path_factory.mktemp("signed") / "store")
    make_key(path.parent / "key.pem")
    with FeatureStore(path, mode="a") as store:
        taftcache.forget(store, store.sample_ids()[:1], signing_key=str(path.parent / "key.pem"))
    return path


NONE_SUCH = {
    "a shard": (UnknownName, "no shard 0", lambda store, _: store.shard(0)),
    "an object's meta": (UnknownName, "no object 'zz'", lambda store, _: store.meta("zz")),
    "a sample": (ArgumentError, "one id, a text.*\n.*3, of type int", lambda store, _: store.locate(3)),
    "a sample's influence": (ArgumentError, "one id, a text", lambda store, _: taftcache.sample_influence(store, 3)),
    "ids": (
        ArgumentError,
        "'digits/0001'\\], of type list",
        lambda store, _: taftcache.sample_influence(store, ["digits/0001"]),
    ),
    "a query's id": (
        UnknownSample,
        "no row has the id 'digits/00001'.*\\n.*did you mean",
        lambda store, _: taftcache.query_influence(store, "digits/00001"),
    ),
    "a query": (UnreadableImage, "cannot be read", lambda store, _: taftcache.query_influence(store, 3)),
    "a component": (UnknownName, "components/0", lambda store, to: taftcache.export_component(store, 0, to)),
    "a dtype": (ArgumentError, "dtype", lambda store, to: taftcache.convert(store, to, dtype="float64")),
    "a public key": (ArgumentError, "64 hex digits", lambda store, _: taftcache.audit(store.path, public_key=3)),
    "no pixels": (
        UnreadableImage,
        "no pixels",
        lambda store, _: taftcache.predict(store, [np.zeros((0, 4), np.uint8)]),
    ),
    "no rows to a chunk": (ArgumentError, "chunk_rows", lambda store, to: taftcache.convert(store, to, chunk_rows=0)),
    "half a row to a chunk": (ArgumentError, "chunk", lambda store, to: taftcache.convert(store, to, chunk_rows=1.5)),
    "one rate": (ArgumentError, "rates must be a list", lambda store, _: taftcache.train_private(store, rates=1.0)),
    "a rate by name": (ArgumentError, "list of numbers", lambda store, _: taftcache.train_private(store, rates="a")),
    "a tensor without numbers": (
        DataError,
        "cannot take",
        lambda _, to: taftcache.import_vectors(torch.empty(4, 3, device="meta"), [0, 1, 0, 1], to),
    ),
    "a sparse tensor": (
        DataError,
        "cannot take",
        lambda _, to: taftcache.import_vectors(torch.ones(4, 3).to_sparse(), [0, 1, 0, 1], to),
    ),
    "class weights in a list": (
        ArgumentError,
        "no mapping of classes",
        lambda *_: taftcache.TangentClassifier(class_weight=np.ones(2)).fit(np.eye(4), [0, 1, 0, 1]),
    ),
    "passes without end": (
        ArgumentError,
        "max_passes",
        lambda *_: taftcache.TangentClassifier(ridge=1.0, max_passes=1e308).fit(np.eye(4), [0, 1, 0, 1]),
    ),
    "hours": (ArgumentError, "hours must be", lambda store, _: taftcache.gc(store.path, hours="x")),
    "hours to come": (ArgumentError, "hours must be", lambda store, _: taftcache.gc(store.path, hours=-1.0)),
    "a format": (ArgumentError, "no such format", lambda store, to: taftcache.export(store, to, format="csv")),
    "a view": (
        ArgumentError,
        "no view 'maps'",
        lambda store, _: taftcache.StoreView.panel(object.__new__(taftcache.StoreView), "maps"),
    ),
    "a device": (
        ArgumentError,
        "unknown device 'gpu'",
        lambda *_: taftcache.TangentClassifier(device="gpu").fit(np.eye(4), [0, 1, 0, 1]),
    ),
    "a root digest": (ArgumentError, "is no root digest", lambda store, _: FeatureStore(store.path, expect=16 * "A")),
    "columns": (
        ArgumentError,
        "columns are not named by Columns",
        lambda store, to: taftcache.import_(store.path, to, columns={"labels": "y"}),
    ),
    "a setting of no training": (
        RecipeError,
        "train does not use forget.samples",
        lambda store, _: taftcache.train(store.path, overrides={"forget": {"samples": ["digits/0001"]}}),
    ),
    "a setting of no composing": (
        RecipeError,
        "compose does not use store.path",
        lambda store, _: taftcache.compose(store.path, overrides={"store.path": "x"}),
    ),
    "images in a composition": (
        RecipeError,
        "compose does not use data.limit",
        lambda store, _: taftcache.compose(store.path, overrides=["data.limit=3"]),
    ),
    "no way to compose": (
        RecipeError,
        r"(?s)compose.mode = 'best' in the overrides.*: correct it there, or leave it out$",
        lambda store, _: taftcache.compose(store.path, overrides={"compose.mode": "best"}),
    ),
    "a text of overrides": (ArgumentError, "list", lambda *_: taftcache.load_recipe("quickstart", "store.shards=2")),
}


UNKNOWN = {
    "a shard": (["zz"], lambda store: store.shard("zz")),
    "shards": (["zz"], lambda store: taftcache.forget(store.path, shards=["000", "zz"])),
    "a shard to train": (["zz"], lambda store: wanted_shards(store, ["zz"])),
    "a class": (["zz"], lambda store: taftcache.inspect_class(store, "zz")),
    "a class to forget": (["zz"], lambda store: taftcache.forget(store.path, classes=["zz"])),
    "a component": (["zz"], lambda store: taftcache.forget(store.path, components=["zz"])),
    "a model": (["models/zz"], lambda store: taftcache.predict(store, [], model="models/zz")),
    "a query": (["zz"], lambda store: taftcache.query_influence(store, "zz")),
    "a sample's neighbours": (["zz"], lambda store: RowTable.of(store).find("zz")),
}


@pytest.mark.parametrize("what", UNKNOWN)
def test_a_name_that_is_not_known_is_an_attribute(signed, what):
    """A service answers which of many names it was: it parses no message."""
    names, call = UNKNOWN[what]
    with FeatureStore(signed) as opened, pytest.raises((UnknownName, UnknownSample)) as caught:
        call(opened)
    assert getattr(caught.value, "names" if isinstance(caught.value, UnknownName) else "ids") == names
    assert caught.value.exit_code == 5


@pytest.mark.parametrize("what", NONE_SUCH)
def test_what_cannot_be_meant_is_named(signed, tmp_path, what):
    error, says, call = NONE_SUCH[what]
    with FeatureStore(signed) as opened, pytest.raises(error, match=says):
        call(opened, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_component_may_be_named_by_its_shard(solved, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    picture, sample = [np.zeros((8, 8, 3), np.uint8)], FeatureStore(solved).shard("000").sample_ids[0]
    own = [name.replace("/", "-") for name in ("000", "components/000")]
    for call in (
        lambda name: taftcache.predict(solved, picture, model=name).predictions[0].logits,
        lambda name: taftcache.logits(solved, picture, model=name).tolist(),
        lambda name: taftcache.logits(solved, FeatureStore(solved).held_out, model=name).tolist(),
        lambda name: taftcache.sample_influence(solved, sample, model=name),
        lambda name: taftcache.query_influence(solved, sample, model=name, top=1),
        lambda name: taftcache.export_component(solved, name, own[len(name) > 3]).component,
        lambda name: taftcache.export_model(solved, f"model-{len(name)}", name).model,
    ):
        assert call("000") == call("components/000")
        with pytest.raises(StoreError, match="no model named components/none"):
            call("none")


def test_a_signing_key_is_named_by_text(signed):
    with FeatureStore(signed) as opened:
        assert opened.ledger()[-1]["signature"]


@pytest.mark.parametrize("given", [[np.ones((5, 3))], [np.ones(4)], [3], np.ones(4)], ids=str)
def test_vectors_are_classified_from_an_array_or_from_files(tmp_path, given):
    x = np.random.default_rng(0).normal(size=(30, 4))
    taftcache.import_vectors(x, [0, 1, 2] * 10, tmp_path / "store")
    taftcache.train(tmp_path / "store")
    for verb in (taftcache.predict, taftcache.find):
        with pytest.raises(DataError, match=r"(?s)neither an array \[n, d\] nor files.*x\[None\]"):
            verb(tmp_path / "store", given)
    viewed, plain = (taftcache.predict(tmp_path / "store", rows, model="000") for rows in (memoryview(x), x))
    assert viewed == plain
    sample = taftcache.FeatureStore(tmp_path / "store").shard("000").sample_ids[0]
    with pytest.raises(StoreError, match="taftcache train, which makes it, or one of components/000"):
        taftcache.sample_influence(tmp_path / "store", sample)


TAKE_RECIPES = {
    "run": lambda recipe, _: taftcache.run(recipe),
    "extract": lambda recipe, _: taftcache.extract(recipe),
    "append": lambda recipe, _: taftcache.append(recipe),
    "estimate": lambda recipe, _: taftcache.estimate(recipe),
    "compare": lambda recipe, _: taftcache.compare(recipe),
    "import_": lambda recipe, path: taftcache.import_(path / "x.npz", recipe),
    "train": lambda recipe, path: taftcache.train(path, recipe),
    "train_private": lambda recipe, path: taftcache.train_private(path, recipe),
    "compose": lambda recipe, path: taftcache.compose(path, recipe),
}


@pytest.mark.parametrize("verb", TAKE_RECIPES)
def test_recipes_of_programs_are_held_to_what_those_of_files_are(store, tmp_path, monkeypatch, verb):
    monkeypatch.chdir(tmp_path)
    before, call = tree(tmp_path), TAKE_RECIPES[verb]
    if verb != "import_":  # which takes a store's place
        with pytest.raises(ArgumentError, match=r"(?s)not a Recipe.*load_recipe\('quickstart'\)"):
            call("quickstart", store)
    with pytest.raises(ArgumentError, match="not a Recipe"):
        call(3, store)
    for wrong, says in (
        (Recipe(store=StoreSpec(dtype="float64")), "store.dtype is 'float64'"),
        (Recipe(solver=SolverSpec(max_passes=-5)), "solver.max_passes is -5"),
        (Recipe(solver=SolverSpec(memory="lots")), "'lots' is not a size"),
        (Recipe(objective=ObjectiveSpec(ridge=1e-3, radius=[2.0, 1.0])), r"objective.radius is \[2.0, 1.0\]"),
        (Recipe(device=3), "device is 3"),
    ):
        with pytest.raises(RecipeError, match=says):
            call(wrong, store)
    assert tree(tmp_path) == before


def test_a_program_may_write_paths_and_numbers_of_numpy(tmp_path):
    plain = recipe(tmp_path / "one", objective={"ridge": 1.0})
    own = replace(
        plain,
        store=StoreSpec(path=tmp_path / "two", shards=np.int64(2), chunk_rows=8),
        objective=ObjectiveSpec(ridge=np.float32(1), alpha=1),
    )
    assert taftcache.extract(plain).root_digest == taftcache.extract(own).root_digest


def test_a_spec_is_looked_at_where_it_is_made():
    for wrong in ({"init": "bar"}, {"blocks": -1}, {"train": 3}, {"seed": 1.5}, {"class_token": None}):
        with pytest.raises(RecipeError, match=f"tangent.{next(iter(wrong))} must be"):
            TangentSpec(**wrong)
    for wrong in ({"max_passes": 0}, {"max_passes": -5}, {"max_passes": 1.5}, {"proof_passes": -1}):
        with pytest.raises(SolveError, match="must be a whole number of at least"):
            Goal(**wrong)
    for wrong in (np.nan, -1e-6, "auto"):
        with pytest.raises(SolveError, match="tolerance must be a number of at least 0"):
            Goal(tolerance=wrong)
    with pytest.raises(SolveError, match="no such device"):
        Arithmetic(device="gpu")
    for wrong in ("2GiB", -1):
        with pytest.raises(SolveError, match="number of bytes"):
            Arithmetic(memory=wrong)
    with pytest.raises(SolveError, match="weights must be a tensor"):
        RowWeights(by_class=[1.0, 2.0])
    with pytest.raises(ValueError, match="max_passes cannot be -5"):
        taftcache.TangentClassifier(max_passes=-5).fit(np.eye(4), [0, 1, 0, 1])


def import_rows(path, **more):
    x = np.random.default_rng(0).normal(size=(30, 4)).astype("f")
    return taftcache.import_vectors(more.pop("x", x), more.pop("y", [0, 1, 2] * 10), path, **more)


MISTAKES = {
    "unlike lengths": ({"x": [[1, 2], [3]], "y": [0, 1]}, r"numbers \[n, d\]"),
    "labels": ({"y": [0, 1]}, "one label and one id for each"),
    "shape": ({"x": np.ones(30)}, r"numbers \[n, d\]"),
    "an array to test": ({"test": np.ones((3, 4))}, r"test=\(x, y\)"),
    "ids that both have": (
        {"ids": [*"abc", *range(27)], "test": (np.ones((1, 4)), [0], ["a"])},
        "ids=… and test=",
    ),
    "tiny numbers": ({"x": np.full((30, 4), 1e-20), "scaling": "none"}, 'scaling = "row".*overrides'),
}


@pytest.mark.parametrize("what", MISTAKES)
def test_messages_name_arguments_as_well_as_options(tmp_path, what):
    given, says = MISTAKES[what]
    with pytest.raises(TaftcacheError, match=says):
        import_rows(tmp_path / "store", **given)


def test_a_base_point_is_read_at_a_stores_place(finished):
    with FeatureStore(finished) as opened:
        assert taftcache.read_base(finished, TangentSpec()).digest == taftcache.read_base(opened, TangentSpec()).digest


def test_a_key_that_is_not_there_is_not_said_to_be_destroyed(store):
    """It said so of a store that had forgotten nothing."""
    told = taftcache.destroy_key(store)
    assert told.root_digest == told.root_before
    assert "no key to destroy" in told.notes[0]
    assert forgotten_lines(told) == [f"note: {told.notes[0]}"]
    taftcache.forget(store, FeatureStore(store).sample_ids()[:1])
    told = taftcache.destroy_key(store)
    assert (told.notes, forgotten_lines(told)) == ([], [DESTROYED])


def test_held_out_rows_may_bring_ids(tmp_path):
    test = np.ones((2, 4)), [0, 1], ["a", "b"]
    import_rows(tmp_path / "store", test=test)
    with FeatureStore(tmp_path / "store") as store:
        assert sorted(store.held_out.sample_ids) == ["a", "b"]
    import_rows(tmp_path / "none", overrides=["data.held_out=0", "store.plan=balanced"])
    with pytest.raises(StoreError, match="test=…"):
        taftcache.evaluate(tmp_path / "none")
    with pytest.raises(RecipeError, match="new_shard=True"):
        taftcache.append_vectors(np.ones((1, 4)), [0], tmp_path / "none", ids=["new"])


def test_vectors_with_a_history_or_as_bytes_of_memory(tmp_path):
    x, y = np.random.default_rng(0).normal(size=(30, 4)), [0, 1, 2] * 10
    taftcache.import_vectors(x, y, tmp_path / "store")
    taftcache.train(tmp_path / "store")
    taftcache.compose(tmp_path / "store")
    want = taftcache.logits(tmp_path / "store", x)
    np.testing.assert_array_equal(taftcache.logits(tmp_path / "store", memoryview(x)), want)
    learned = torch.tensor(x, requires_grad=True)
    fitted = [taftcache.TangentClassifier(ridge=1e-2).fit(given, y) for given in (x, learned)]
    np.testing.assert_array_equal(fitted[0].decision_function(x), fitted[1].decision_function(learned))


@pytest.mark.law("What is no place is refused in words by public functions that take one")
@pytest.mark.parametrize("wrong", [None, 3, b"x", ""], ids=str)
def test_what_is_no_place_is_refused_in_words(finished, wrong):
    picture = [np.zeros((8, 8, 3), np.uint8)]
    calls = [
        *(partial(verb, wrong, picture) for verb in (taftcache.predict, taftcache.logits, taftcache.find)),
        *(partial(verb, wrong) for verb in (taftcache.distrust, taftcache.open_model, taftcache.init_recipe)),
        *(partial(verb, wrong) for verb in (taftcache.load_recipe, taftcache.load_teaching, taftcache.evaluate)),
        *(partial(verb, wrong) for verb in (FeatureStore, taftcache.verify, taftcache.StoreView, TangentModel.load)),
        *(partial(verb, finished, wrong) for verb in (taftcache.copy, taftcache.export, taftcache.export_model)),
        *(partial(verb, finished, wrong) for verb in (taftcache.import_component, taftcache.write_report)),
        partial(taftcache.export_component, finished, "000", wrong),
        *(partial(verb, finished, [wrong]) for verb in (taftcache.predict, taftcache.find) if wrong == ""),
        partial(taftcache.convert, finished, wrong, dtype="float32"),
        partial(taftcache.TangentClassifier.load, wrong),
        partial(taftcache.import_vectors, np.zeros((2, 3)), [0, 1], wrong),
    ]
    for call in calls:
        with pytest.raises(ArgumentError, match=r"is not a path|is empty|was not given a store") as refused:
            call()
        assert " seen " not in f" {refused.value}"


NO_SHARE = (2, "0.9", None, b"1", [0.9])


def test_what_no_argument_can_be_is_refused_in_words(finished):
    picture = [np.zeros((8, 8, 3), np.uint8)]
    for call, says in (
        (lambda: taftcache.evaluate(finished, progress="yes"), r"progress has no task(.*\n)*.*progress=True"),
        (lambda: taftcache.verify(finished, progress=print), "progress has no task"),
        (lambda: taftcache.evaluate(3), r"evaluate was not given a store\n  got: int\n"),
        (lambda: taftcache.copy(finished, 3), r"is not a path\n  got: int\n"),
        (lambda: taftcache.load_recipe("quickstart", None), "overrides must be a list"),
        (lambda: TangentModel.load(finished, consent=True), "consent is not a Consent"),
        (lambda: taftcache.weighted_sum(finished, {"000": "x"}), "the weights are not numbers"),
        (lambda: taftcache.predict(finished, picture, unreadable="ignore"), "unreadable cannot be 'ignore'"),
        (lambda: taftcache.inspect_class(finished, 7), r"a class must be named.*\n.*7, of type int\n.*'7'"),
        (lambda: taftcache.forget(finished, ["digits/0001"], mode="x"), "unknown mode 'x'"),
        *((partial(taftcache.duplicates, finished, threshold=of), "threshold is not a similarity") for of in NO_SHARE),
        (lambda: taftcache.export_component(finished, "", "new"), "no component is named"),
        (lambda: taftcache.init_recipe(picture[0]), r"images is not a path(.*\n)*.*np\.savez\("),
        (lambda: FeatureStore(finished, mode="w"), "cannot be opened with mode 'w'"),
    ):
        with pytest.raises(ArgumentError, match=says):
            call()
    with pytest.raises(RecipeError, match="no such names\n  got: None"):
        taftcache.from_pretrained(None)
    for key in ("features", "precision"):
        with pytest.raises(RecipeError, match=f"backbone.{key} cannot be 'foo'"):
            taftcache.BackboneSpec(**{key: "foo"})
    with pytest.raises(SolveError, match="no object with a value"):
        taftcache.Objective(loss="rsl")


@pytest.mark.parametrize("writing", [True, False])
def test_of_fits_that_make_one_store_the_later_take_it_as_it_is(tmp_path, monkeypatch, writing):
    """Each looks for the store before it loads the backbone, and finds none."""
    monkeypatch.setattr(FeatureStore, "exists", staticmethod(lambda path: bool(made)))
    made: list[object] = []
    create = FeatureStore.create

    def create_behind_another(path, **given):
        made.append(create(path, **given))
        if not writing:
            made[0].close()
        return create(path, **given)

    monkeypatch.setattr(FeatureStore, "create", create_behind_another)
    images = [np.full((8, 8, 3), k, np.uint8) for k in range(2)]
    told = pytest.raises(StoreLocked, match=f"{tmp_path}") if writing else nullcontext()
    with told:
        taftcache.TangentClassifier("bundled", store=tmp_path / "s", ridge=1.0).fit(images, ["a", "b"])
    assert len(made) == 1
    made[0].close()


def test_a_mistake_has_one_traceback(finished, images, tmp_path):
    """In a notebook: what a library raised inside said nothing that the message does not, in twenty lines or more."""
    (tmp_path / "broken.png").write_text("none")
    (tmp_path / "broken.toml").write_text("[data")
    chained = []
    with FeatureStore(finished) as opened:
        calls = [
            partial(taftcache.evaluate, tmp_path / "none"),
            partial(taftcache.load_recipe, tmp_path / "none.toml"),
            partial(taftcache.load_recipe, tmp_path / "broken.toml"),
            partial(taftcache.open_model, tmp_path),
            partial(taftcache.TangentClassifier.load, tmp_path),
            partial(taftcache.inspect_component, tmp_path / "broken.png"),
            partial(taftcache.import_component, finished, tmp_path / "none"),
            partial(taftcache.import_vectors, [[1.0], [1.0, 2.0]], [0, 1], tmp_path / "new"),
            partial(taftcache.export, finished, tmp_path / "none" / "x.npz"),
            partial(taftcache.to_json, object()),
            partial(taftcache.predict, finished, [np.zeros(3)]),
            partial(taftcache.predict, finished, [tmp_path / "broken.png"]),
            partial(taftcache.inspect_sample, opened, "none"),
            partial(taftcache.inspect_shard, opened, "none"),
            partial(taftcache.inspect_class, opened, "none"),
            partial(taftcache.forget, opened, ["none"], dry_run=True),
        ]
        for call in calls:
            with pytest.raises(taftcache.TaftcacheError) as caught:
                call()
            error = caught.value
            chained += (
                [call] if error.__cause__ or not (error.__suppress_context__ or error.__context__ is None) else []
            )
    assert chained == []
