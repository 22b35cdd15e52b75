"""Recipes: what is written is what runs, and anything else is refused with the right name beside it."""

from __future__ import annotations

import contextlib
import json
import time
import tomllib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taftcache.errors import RecipeError
from taftcache.recipe import Recipe, apply_overrides, load_recipe, parse_bytes, parse_recipe, recipe_values
from taftcache.recipe_files import bundled_recipes, recipe_file
from taftcache.stages.memory import memory_of
from taftcache.teaching.recipe import load_teaching, parse_teaching

DATA = {"data": {"source": "digits"}}


TOLERANCE = 'a number above 0 and below 1, "auto" or "decisive"'


def test_an_empty_recipe_is_whole():
    recipe = parse_recipe({})
    assert recipe == Recipe()
    assert parse_recipe(recipe_values(recipe)) == recipe
    assert recipe.store_path == Path("stores/run")


def test_variables_in_the_places_of_stores_are_expanded(monkeypatch, tmp_path):
    monkeypatch.setenv("STORES", str(tmp_path))
    monkeypatch.delenv("NOWHERE", raising=False)
    asked = parse_recipe({"store": {"path": "${STORES}/mine"}})
    assert (asked.store_path, asked.store.path) == (tmp_path / "mine", "${STORES}/mine")
    assert parse_teaching({"path": "${STORES}/taught", "teachers": [{"store": "x"}]}).folder == tmp_path / "taught"
    with pytest.raises(RecipeError, match="NOWHERE, which is not set"):
        parse_recipe({"store": {"path": "${NOWHERE}/mine"}}).store_path  # noqa: B018


@pytest.mark.parametrize("section", ["data", "backbone", "preprocess", "store"])
def test_what_decides_the_rows_is_what_json_gives_back(section):
    """A store keeps it as JSON, and a run again compares: a tuple would be another setting."""
    said = {"input_size": [3, 48, 40], "mean": [0.5, 0.5, 0.5], "std": [0.2, 0.2, 0.2]}
    shape = {"layers": (1, 1, 1, 2), "stem": {"widths": [(8, 8)]}}  # as programs write them
    values = recipe_values(parse_recipe({"preprocess": said, "backbone": {"model_args": shape}}))[section]
    assert json.loads(json.dumps(values)) == values


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ({"objectiv": {}}, "objective?"),
        ({"solver": {"tolerence": 1e-3}}, "solver.tolerance?"),
        ({"store": {"shard": 3}}, "store.shards?"),
        ({"data": {"source": "digits", "heldout": 0.1}}, "data.held_out?"),
        ({"solver": {"ridge": 1e-3}}, "objective.ridge?"),
        ({"ridge": 1e-3}, "objective.ridge?"),
        ({"kappa": 3}, "objective.kappa?"),
        ({"shards": 3}, "store.shards?"),
        ({"tangent": {"kapa": 3}}, "objective.kappa?"),
        ({"backbone": {"reset_blok": True}}, "tangent.reset_block?"),
    ],
)
def test_unknown_key_names_the_nearest_right_one(wrong, right):
    with pytest.raises(RecipeError) as caught:
        parse_recipe(wrong)
    assert caught.value.do == f"did you mean {right}"
    assert next(iter(wrong)) in str(caught.value.got)


def test_key_like_no_other():
    with pytest.raises(RecipeError, match=r"^unknown key solver.xyzzy in recipe\n") as caught:
        parse_recipe({"solver": {"xyzzy": 1}})
    assert "max_passes" in caught.value.do


@pytest.mark.parametrize(
    ("override", "fault"),
    [
        ("data.source=foldr", "data.source is 'foldr'; did you mean 'folder'?"),
        ("store.plan=random", 'store.plan is \'random\', but must be "hash" or "balanced"'),
        ("objective.ridge=abc", "objective.ridge is 'abc', but must be a number above 0 or \"auto\""),
        ("objective.ridge=atuo", "objective.ridge is 'atuo'; did you mean 'auto'?"),
        ("objective.ridge=nan", 'objective.ridge is nan, but must be a number above 0 or "auto"'),
        ("store.shards=0", "store.shards is 0, but must be a whole number of at least 1"),
        ("solver.tolerance=true", f"solver.tolerance is True, but must be {TOLERANCE}"),
        ("solver.tolerance=1", f"solver.tolerance is 1, but must be {TOLERANCE}"),
        ('compare.reports=["table1", "tabel2"]', "compare.reports[1] is 'tabel2'; did you mean 'table2'?"),
        ("compare.ridges=[1e308]", "compare.ridges[0] is 1e+308, but must be a number above 0 and of at most 1e+30"),
        ("compare.forgotten=[2]", "compare.forgotten[0] is 2, but must be a number above 0 and below 1"),
        ("preprocess.mean=[1, 2]", "preprocess.mean is [1, 2], but must be a list of 3, each a number"),
        ("forget.samples=5", "forget.samples is 5, but must be a list, each text"),
        ("compare.presets=[]", 'compare.presets is [], but must be a list that is not empty, each "paper" or "exact"'),
        (
            "compose.weights={a='x'}",
            "compose.weights is {'a': 'x'}, but must be a table of names, each a number, \"rows\" or \"class-rows\"",
        ),
        ("data={}", "data.source is missing"),
        ("data.group=[", "data.group is no regular expression: unterminated character set at position 0"),
        (f"data.group=a{{{10**12}}}", "data.group is no regular expression: the repetition number is too large"),
        (f"store.seed={-(2**63) - 1}", "store.seed needs 65 bits, more than the 64 of an integer"),
        (f"store.seed={2**127}", "store.seed needs 129 bits, more than the 64 of an integer"),
        (f"store.shards={'[' * 40}{']' * 40}", "store.shards is nested more than 32 levels deep"),
        (f"store.shards={'[' * 50_000}", "the override of store.shards is nested too deeply"),
        (f"store.seed={'9' * 10_000}", "the override of store.seed has an integer of too many digits"),
        (f"{'a.' * 50_000}b=1", "a.a is nested more than 32 levels deep"),
    ],
    ids=lambda text: text[:40],
)
def test_the_first_line_says_what_is_wrong(override, fault):
    with pytest.raises(RecipeError) as caught:
        parse_recipe(apply_overrides(DATA, [override]))
    assert caught.value.fault == fault
    assert caught.value.do
    assert all(len(line) < 300 for line in str(caught.value).splitlines())


@pytest.mark.parametrize(
    ("override", "fault", "do"),
    [
        ("store.shards=ten", "store.shards is 'ten', but", "--set store.shards=…; without it, it is 4"),
        ("solver.memory=0", 'solver.memory is 0, but must be a size such as "2GiB", or "auto"', 'it is "auto"'),
        ("data.limit=many", "data.limit is 'many', but", "--set data.limit=…, or leave it out"),
        ("tangent.reset_block=1", "tangent.reset_block is 1, but", "it is false"),
        ('compare.reports=["x"]', "compare.reports[0] is 'x', but", "--set compare.reports=…"),
        ('compare.presets=["Exact"]', "compare.presets[0] is 'Exact'; did", "or with --set compare.presets=…"),
        ("compose.weights={a='x'}", "compose.weights is {'a': 'x'}, but", 'it is "rows"'),
        ("data.source=5", "data.source is 5, but", "--set data.source=…"),
        ("store=5", "store is 5, but", "write [store] and its keys below it, or --set store.KEY=…"),
    ],
)
def test_a_wrong_value_is_answered_with_what_to_do(override, fault, do):
    """Where to set it, and what it is where nobody says it."""
    with pytest.raises(RecipeError) as caught:
        parse_recipe(apply_overrides(DATA, [override]))
    assert caught.value.fault.startswith(fault)
    assert caught.value.do.endswith(do)


def test_the_loss_of_a_regression_is_none_of_classes():
    with pytest.raises(RecipeError, match=r"must be .rsl., .mse. or .cross_entropy."):
        parse_recipe(apply_overrides({"data": {"source": "digits"}}, ["objective.loss=squared_error"]))


def test_every_choice_is_listed():
    with pytest.raises(RecipeError) as caught:
        parse_recipe({"data": {"source": "foldr"}})
    assert all(f'"{kind}"' in caught.value.do for kind in ("digits", "folder", "npz", "hdf5", "timm", "published"))


def test_every_setting_can_be_described():
    """Wrong values of every kind in every place: one line, never a traceback."""
    for section in Recipe.__struct_fields__:
        for value in (None, 3.5, "?", [], [[]], {}, {"?": {}}):
            with contextlib.suppress(RecipeError):
                parse_recipe({section: value})
            for key in getattr(getattr(Recipe(), section), "__struct_fields__", ()):
                try:
                    parse_recipe({**DATA, section: {**DATA.get(section, {}), key: value}})
                except RecipeError as error:
                    assert "\n" not in error.fault  # noqa: PT017


@pytest.mark.parametrize(
    "override",
    [
        "store.shards=0",
        "store.shards=2.5",
        "store.shards=many",
        "store.plan=random",
        "store.dtype=bfloat16",
        "store.chunk_rows=0",
        "data.source=photos",
        "data.held_out=1.0",
        "data.held_out=-0.1",
        "data.limit=0",
        "data.train=somewhere",
        "data=5",
        "data={}",
        "objective.ridge=0",
        "objective.ridge=-1e-4",
        "objective.ridge=nan",
        "objective.ridge=inf",
        "objective.kappa=inf",
        "objective.alpha=0",
        "solver.max_passes=0",
        "solver.precision=float16",
        "solver.memory=lots",
        "solver.memory=-1GiB",
        "solver.memory=5",
        "extract.workers=-1",
        "tangent.train=everything",
        "forget.samples=digits/0001",
        "forget.samples=[1, 2]",
        "device=tpu",
        "name=5",
    ],
)
def test_wrong_types_and_ranges(override):
    with pytest.raises(RecipeError) as caught:
        parse_recipe(apply_overrides(DATA, [override]))
    assert caught.value.got is not None


@pytest.mark.parametrize(
    ("override", "read", "value"),
    [
        ("store.shards=7", lambda r: r.store.shards, 7),
        ("solver.tolerance=1e-8", lambda r: r.solver.tolerance, 1e-8),
        ("objective.kappa=3", lambda r: r.objective.kappa, 3.0),
        ("tangent.reset_block=true", lambda r: r.tangent.reset_block, True),
        ("store.path=a/b=c.d", lambda r: r.store.path, "a/b=c.d"),
        ('store.path="quoted"', lambda r: r.store.path, "quoted"),
        ('forget.samples=["a", "b c"]', lambda r: r.forget.samples, ["a", "b c"]),
        ("preprocess.mean=[0.1, 0.2, 0.3]", lambda r: r.preprocess.mean, (0.1, 0.2, 0.3)),
        # which no new store takes, but an older one has
        ("preprocess.mean=[123, 116, 103]", lambda r: r.preprocess.mean, (123, 116, 103)),
        ("backbone.model_args.depth=3", lambda r: r.backbone.model_args, {"depth": 3}),
        ("backbone.model_args.a.b=x", lambda r: r.backbone.model_args, {"a": {"b": "x"}}),
        (" store.seed = 5", lambda r: r.store.seed, 5),
        ("name=other", lambda r: r.name, "other"),
    ],
)
def test_overrides(override, read, value):
    assert read(parse_recipe(apply_overrides(DATA, [override]))) == value


def test_last_override_wins_and_the_given_values_stay():
    values = {"store": {"shards": 2}}
    assert apply_overrides(values, ["store.shards=3", "store.shards=4"]) == {"store": {"shards": 4}}
    assert values == {"store": {"shards": 2}}


def test_overrides_as_a_mapping_of_values_that_python_has():
    asked = {
        "objective.ridge": np.float64(0.1),
        "store.shards": np.int64(3),
        "store.path": Path("1e3"),
        "objective.radius": None,
        "compose.mode": "weighted",
        "compose.weights": {"000": np.float32(0.5), "001": 0.5},
    }
    read = parse_recipe(apply_overrides(DATA, asked))
    texts = ["objective.ridge=0.1", "store.shards=3", 'store.path="1e3"', "compose.mode=weighted"]
    assert read == parse_recipe(apply_overrides(DATA, [*texts, "compose.weights={000 = 0.5, 001 = 0.5}"]))
    assert load_recipe("quickstart", {"objective.ridge": np.float64(0.1)}).objective.ridge == 0.1
    kept = {**DATA, "objective": {"loss": "cross_entropy", "ridge": 1.0}}
    section = parse_recipe(apply_overrides(kept, {"objective": {"ridge": 0.5}})).objective
    assert (section.loss, section.ridge) == ("cross_entropy", 0.5), "the other keys of the section stay"
    for wrong, says in (
        ({"objective.ridge": "0.1"}, "objective.ridge is '0.1', but must be"),
        ({"objective.rigde": 0.1}, "did you mean objective.ridge"),
        ({"store..shards": 3}, "override"),
        ({3: 3}, "texts"),
        ({"name.x": 1}, "not a section"),
    ):
        with pytest.raises(RecipeError, match=says):
            parse_recipe(apply_overrides({**DATA, "name": "n"}, wrong))


@pytest.mark.parametrize("override", ["store.shards", "=3", ".shards=3", "store.=3", "store..shards=3", "", "name.x=1"])
def test_malformed_overrides(override):
    with pytest.raises(RecipeError, match="override"):
        parse_recipe(apply_overrides({"name": "n"}, [override]))


def test_a_files_name_is_the_recipes(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('[data]\nsource = "digits"\n[backbone]\nweights = "bundled"\n')
    recipe = load_recipe(path, ["store.shards=9"])
    assert (recipe.name, recipe.store.shards, recipe.store_path) == ("mine", 9, Path("stores/mine"))
    path.write_text('name = "own"\n', encoding="utf-8-sig")  # as editors of Windows begin a file
    assert load_recipe(path, needs=()).name == "own"


@pytest.mark.law("A recipe's images and model are named, never guessed")
@pytest.mark.parametrize("without", ["data", "backbone"])
@pytest.mark.parametrize("empty", [False, True])
def test_a_section_that_must_be_said(tmp_path, without, empty):
    path, sections = tmp_path / "mine.toml", {"data": 'source = "digits"', "backbone": 'weights = "bundled"'}
    said = {name: "" if name == without else text for name, text in sections.items() if empty or name != without}
    path.write_text("".join(f"[{name}]\n{text}\n" for name, text in said.items()))
    key = "key in " if empty else ""
    with pytest.raises(RecipeError, match=rf"has no {key}\[{without}\]|data.source is missing"):
        load_recipe(path)
    assert load_recipe(path, [f"{without}.{sections[without].replace(' ', '')}"]).data.source == "digits"


def test_a_recipe_that_comes_along_is_found_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("quickstart", "quickstart.toml", "pipelines/quickstart.toml", Path("quickstart")):
        assert load_recipe(name).store.path == "stores/quickstart"
    assert recipe_file("cub200") == recipe_file("published/cub200.toml") == bundled_recipes()["published/cub200"]
    (tmp_path / "quickstart").mkdir()  # a folder is no recipe
    assert load_recipe("quickstart").name == "quickstart"
    (tmp_path / "quickstart.toml").write_text('name = "mine"')
    assert load_recipe("quickstart.toml", needs=()).name == "mine"


@pytest.mark.parametrize(
    ("name", "fault", "near"),
    [
        ("quikstart", "no recipe at quikstart", "did you mean quickstart?"),
        ("digits-bundeld.toml", "no recipe at digits-bundeld.toml", "did you mean teachers/digits-bundled?"),
        ("elsewhere/quickstart.toml", "no recipe at elsewhere/quickstart.toml", "did you mean quickstart?"),
        ("zzzzzz", "no recipe at zzzzzz", "table1"),
        ("pictues.toml", "no recipe at pictues.toml", "did you mean pictures.toml?"),
        (".", "is a folder", "taftcache init ."),
        (Path("s3://bucket/none"), "no recipe at s3://bucket/none", "table1"),
        (Path("https://host/none"), "no recipe at https://host/none", "table1"),
        ("dangling.toml", "no recipe at dangling.toml: it is a link that leads nowhere", "correct the link"),
    ],
)
def test_a_name_that_nothing_has(tmp_path, monkeypatch, name, fault, near):
    monkeypatch.chdir(tmp_path)
    Path("pictures.toml").touch()
    Path("dangling.toml").symlink_to("nowhere")
    with pytest.raises(RecipeError, match=fault) as caught:
        load_recipe(name)
    assert near in caught.value.do
    assert ("table1" in caught.value.do) == (near == "table1")


@pytest.mark.parametrize(
    "contents",
    [
        None,
        "not = = toml",
        "[data\n",
        b"\xff\xfe\x00",
        "folder",
        f"x = {'[' * 50_000}",
        f"x = {'9' * 10_000}",
        f"[store]\nseed = {2**127}",
        pytest.param(f"{'a.' * 50_000}b = 1", marks=pytest.mark.full),  # Python's parser is quadratic in it
        f"x = {'{a = ' * 50_000}",
    ],
    ids=range(10),
)
def test_files_that_are_no_recipe(tmp_path, contents):
    path = tmp_path / "mine.toml"
    if contents == "folder":
        path.mkdir()
    elif contents is not None:
        path.write_bytes(contents if isinstance(contents, bytes) else contents.encode())
    with pytest.raises(RecipeError) as caught:
        load_recipe(path)
    assert str(path) in str(caught.value) or "store.seed" in str(caught.value) or "a.a" in str(caught.value)
    assert "\n" not in caught.value.fault
    assert caught.value.do


@pytest.mark.parametrize("path", sorted(Path(__file__).parents[1].glob("pipelines/*.toml")), ids=lambda p: p.name)
def test_shipped_recipes(path):
    values = tomllib.loads(path.read_text(encoding="utf-8"))
    assert parse_recipe(values, str(path)) is not None


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("2GiB", 2 << 30),
        ("512MiB", 512 << 20),
        ("1.5 kib", 1536),
        ("4GB", 4 * 10**9),
        ("1000", 1000),
        ("10 B", 10),
        ("0", 0),
        (" 3 tb ", 3 * 10**12),
    ],
)
def test_sizes(text, size):
    assert parse_bytes(text) == size
    assert memory_of(parse_recipe({"solver": {"memory": text}})) == size


@pytest.mark.parametrize("text", ["", "GiB", "lots", "2 XB", "2GiB2", "-1", "-2GiB", "nan", "inf", "1e999", "1,5GB"])
def test_what_is_no_size(text):
    with pytest.raises(RecipeError, match="size"):
        parse_bytes(text)


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
KEYS = st.sampled_from(["data", "store", "solver", "shards", "source", "path", "name", "kappa", "x", "memory"])


@settings(max_examples=150)
@given(
    st.dictionaries(
        KEYS, st.recursive(SCALARS, lambda s: st.lists(s, max_size=2) | st.dictionaries(KEYS, s, max_size=3))
    )
)
def test_any_values_are_a_recipe_or_a_recipe_error(values):
    with contextlib.suppress(RecipeError):
        assert isinstance(parse_recipe(values), Recipe)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x = " + "[" * 50_000, "nested"),
        ("x = " + "[" * 100 + "]" * 100, "nested"),
        ("[" + ".".join("a" * 50_000) + "]", "nested"),
        ("name = " + "9" * 10_000, "too many digits"),
        ('"x" .' * 100_000 + "x = 1", "nested"),
        ("#" * 2**20 + "\n", "more than"),
        (f"[store]\nseed = {2**127}", "store.seed"),
        (f"[tangent]\nseed = {2**127}", "tangent.seed"),
        (f"[tangent]\nseed = -{10**1000}", "tangent.seed"),
    ],
    ids=["unclosed", "lists", "tables", "digits", "keys", "length", "store.seed", "tangent.seed", "thousand digits"],
)
def test_values_beyond_all_bounds(tmp_path, text, says):
    path = tmp_path / "a.toml"
    path.write_text(text)
    begin = time.thread_time()
    with pytest.raises(RecipeError, match=says):
        load_recipe(path)
    assert time.thread_time() - begin < 3


@pytest.mark.parametrize(
    "value", ["[" * 50_000, "[" * 100 + "]" * 100, "9" * 10_000], ids=["unclosed", "lists", "digits"]
)
def test_overrides_beyond_all_bounds(tmp_path, value):
    path = tmp_path / "a.toml"
    path.write_text("")
    with pytest.raises(RecipeError):
        load_recipe(path, [f"store.shards={value}"])


@pytest.mark.parametrize(
    ("load", "name", "do"),
    [
        (load_recipe, "teach/quick", "taftcache teach teach/quick"),
        (load_teaching, "quickstart", "taftcache run quickstart"),
    ],
)
def test_a_recipe_of_the_other_kind_is_told_its_command(load, name, do):
    """``taftcache run teach/quick`` advised prior.teachers."""
    with pytest.raises(RecipeError) as caught:
        load(name)
    assert caught.value.do == do


@pytest.mark.parametrize("name", ["", " ", ".", "..", "../up", "a/../../b", "a//b"])
def test_a_name_leads_to_a_store_below_stores(name):
    named = parse_recipe({**DATA, "name": name})
    with pytest.raises(RecipeError, match="names no folder below stores/"):
        _ = named.store_path
    with pytest.raises(RecipeError, match="names no folder below stores/teach/"):
        _ = parse_teaching({"name": name, "teachers": [{"store": "x"}]}).folder
    assert parse_recipe({**DATA, "name": name, "store": {"path": "x"}}).store_path == Path("x")
    assert parse_recipe({**DATA, "name": "a/b"}).store_path == Path("stores/a/b")


@pytest.mark.parametrize(
    ("pattern", "sample", "group"),
    [
        (None, "Jose\u0301/1.png", "Jose\u0301/1.png"),
        ("^[^/]+", "Jose\u0301/1.png", "Jos\u00e9"),  # as another system writes the same name
        ("patient([0-9]+)", "a/patient07-1.png", "07"),
        ("patient([0-9]+)", "a/control07-1.png", "a/control07-1.png"),
        ("user(-[0-9]+)?", "user.png", "user.png"),  # without the part that names a group
    ],
)
def test_the_group_is_what_the_expression_finds_in_the_id(pattern, sample, group):
    assert parse_recipe({"data": {"source": "digits", "group": pattern}}).data.group_of(sample) == group


def test_recipes_without_groups_are_recorded_as_before_there_were_any():
    assert "group" not in recipe_values(Recipe())["data"]
    with_one = parse_recipe({"data": {"source": "digits", "group": "a"}})
    assert parse_recipe(recipe_values(with_one)) == with_one
