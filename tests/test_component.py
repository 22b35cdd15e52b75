"""Components as bytes, and their composition."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace

import msgspec
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from taftcache.cache.store import FeatureStore
from taftcache.errors import CompositionError, FormatError
from taftcache.model.component import Component
from taftcache.model.composition import compose, identity_error
from taftcache.model.meta import CertificateRecord, meta_of
from taftcache.names import is_model
from taftcache.objective.objective import Objective
from taftcache.objective.rsl import RSL
from taftcache.objective.weights import RowWeights
from taftcache.stages.certificates import JudgedCertificate
from taftcache.tangent.operator import TangentOperator
from taftcache.tangent.parameters import Layout
from taftcache.tangent.rows import ArrayRows
from tests import forked
from tests.stages.making import certificate
from tests.tangent.vits import make_case

SHAPES = {"blocks.1.mlp.fc1.bias": (3,), "head.weight": (2, 3), "blocks.1.cls_token": (1, 1, 2)}
META = {"kind": "component", "rows": 7, "certificate": {"gradient": 1e-300}, "shards": ["000"], "ü": None}


def made(seed: int = 0, base: str = "ab" * 32, shapes: dict = SHAPES) -> Component:
    layout = Layout(shapes)
    generator = torch.Generator().manual_seed(seed)
    return Component(base, layout, torch.randn(layout.size, dtype=torch.float64, generator=generator), dict(META))


@pytest.mark.parametrize("scale", [1.0, 1e-310, 1e300])
def test_decode_gives_back_what_was_encoded(scale):
    component = made()
    component.delta.mul_(scale)
    back = Component.decode(component.encode(), component.layout)
    assert torch.equal(back.delta, component.delta)
    assert (back.base_digest, back.layout, back.meta) == (component.base_digest, component.layout, component.meta)
    assert back.encode() == component.encode()


def test_a_component_may_hold_some_of_the_parameters():
    back = Component.decode(made().encode(), Layout({"head.bias": (2,), **SHAPES}))
    assert list(back.layout) == list(SHAPES)


def test_decode_without_a_layout_takes_the_names_in_order():
    back = Component.decode(made().encode())
    assert list(back.layout) == sorted(SHAPES)
    assert all(torch.equal(back.layout.views(back.delta)[n], x) for n, x in made().layout.views(made().delta).items())


@pytest.mark.law("A component has the same bytes in every process, and composes only around its own base")
def test_bytes_are_the_same_in_every_process():
    """Hash seeds differ between processes; the bytes must not."""
    code = """
import torch
from taftcache.model.component import Component
from taftcache.tangent.parameters import Layout
layout = Layout({f"p{k}": (2,) for k in range(20)})
component = Component("ab", layout, torch.arange(40.0, dtype=torch.float64), {f"m{k}": {k: None} for k in range(9)})
"""
    here: dict = {}
    exec(code, here)
    there = forked.run(f"{code}\nprint(hash('a'), component.encode().hex())").stdout.split()
    assert int(there[0]) != hash("a")
    assert here["component"].encode().hex() == there[1]
    assert len(there[1]) > 2 * 40 * 8


@pytest.mark.parametrize(
    "shapes",
    [
        {name: shape for name, shape in SHAPES.items() if name != "head.weight"},
        {**SHAPES, "head.weight": (3, 2)},
        {**SHAPES, "head.weight": (6,)},
    ],
)
def test_other_parameters_are_refused(shapes):
    with pytest.raises(FormatError, match="its base"):
        Component.decode(made().encode(), Layout(shapes))


def test_what_has_other_numbers_than_its_parameters_is_no_component():
    """A head's Δw under the layout of all parameters was one until it was saved or made a model."""
    whole = made()
    for wrong in (whole.delta[:4], whole.delta[:, None]):
        with pytest.raises(
            CompositionError, match=r"as many numbers .*\n  got: shape .* 11 numbers\)\n  try: .*trained"
        ):
            replace(whole, delta=wrong)


def test_what_holds_tensors_can_be_compared_and_kept_in_a_set():
    """Comparing tensors has no one answer, and raised."""
    whole = made()
    weights = RowWeights(by_class=torch.ones(2))
    for one, other in ((whole, replace(whole)), (weights, replace(weights))):
        assert one == one
        assert one != other
        assert len({one, other, one}) == 2
    assert Objective(loss=RSL(), ridge=1.0, weights=weights) == Objective(loss=RSL(), ridge=1.0, weights=weights)


def framed(header: str, data: bytes = b"") -> bytes:
    return len(header.encode()).to_bytes(8, "little") + header.encode() + data


def with_header(text: str) -> bytes:
    """A good safetensors file of one number, with ``text`` where a component's header is."""
    tensor = {"dtype": "F64", "shape": [1], "data_offsets": [0, 8]}
    return framed(json.dumps({"__metadata__": {"taftcache": text}, "head.bias": tensor}), bytes(8))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0",
        b"\xff" * 64,
        framed("[]"),
        framed("{}"),
        framed('{"__metadata__": 5}'),
        framed('{"__metadata__": {"taftcache": 5}}'),
        with_header("[]"),
        with_header("{}"),
        with_header('{"base_digest":3,"meta":{}}'),
        with_header('{"base_digest":"a","meta":[]}'),
        framed("[" * 100_000),
    ],
    ids=range(12),
)
def test_garbage_is_refused(data):
    with pytest.raises(FormatError):
        Component.decode(data)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_what_is_no_number_in_json_is_named(number):
    with pytest.raises(FormatError, match=f"its metadata holds {number}, which is no number in JSON"):
        Component.decode(with_header(f'{{"base_digest":"a","meta":{{"norm":{number}}}}}'))


@settings(max_examples=150)
@example(bytes(7) + b"\x010")  # a header that is a number
@given(st.binary(max_size=80) | st.tuples(st.integers(0, 10**6), st.integers(1, 255)))
def test_damaged_bytes_are_refused_or_still_a_component(damage):
    data = bytearray(made().encode())
    if isinstance(damage, bytes):
        data = bytearray(damage)
    else:
        data[damage[0] % len(data)] ^= damage[1]
    with contextlib.suppress(FormatError):
        assert Component.decode(bytes(data)).delta.dtype == torch.float64


def test_cut_short():
    data = made().encode()
    for length in range(0, len(data), 7):
        with pytest.raises(FormatError):
            Component.decode(data[:length])


def test_one_component_composes_to_itself():
    assert torch.equal(compose({"components/000": made()}).delta, made().delta)


@given(st.permutations(["c", "a", "b"]))
def test_the_order_given_changes_nothing(order):
    parts = {name: made(ord(name)) for name in order}
    composed = compose(parts)
    expected = (made(97).delta + made(98).delta + made(99).delta) / 3
    assert torch.allclose(composed.delta, expected, rtol=1e-15, atol=1e-16)
    assert composed.encode() == compose(dict(sorted(parts.items()))).encode()
    assert composed.base_digest == made().base_digest


@pytest.mark.parametrize("n", [1, 2, 5])
@pytest.mark.parametrize("uniform", [True, False])
def test_weighted_sum_of_logits_is_the_logits_of_the_weighted_sum(n, uniform):
    case = make_case("all", "class-token")
    size = case.base.layout.size
    generator = torch.Generator().manual_seed(n)
    parts = {
        f"{k:03d}": Component("b", case.base.layout, torch.randn(size, dtype=torch.float64, generator=generator))
        for k in range(n)
    }
    raw = torch.rand(n, dtype=torch.float64, generator=generator) - 0.3
    mu = dict(zip(parts, (raw / raw.sum()).tolist(), strict=True))
    composed = compose(parts, None if uniform else mu)
    weights = composed.meta["coefficients"]
    assert sum(weights.values()) == pytest.approx(1)
    operator = TangentOperator(
        case.base, [ArrayRows(case.tokens.numpy(), case.tokens.new_zeros(5).numpy())], dtype=torch.float64
    )

    base = case.forward(case.base.state)
    each, coefficients = zip(*((*operator.matvec(parts[n].delta), weights[n]) for n in sorted(parts)), strict=True)
    sum_ = base + next(iter(operator.matvec(composed.delta)))
    assert identity_error(base, each, coefficients, sum_) < 1e-12
    if n > 1:
        assert identity_error(base, each, [2 * mu for mu in coefficients], sum_) > 0.1


@pytest.mark.law("A component has the same bytes in every process, and composes only around its own base")
def test_other_bases_do_not_compose():
    with pytest.raises(CompositionError, match="another base point") as caught:
        compose({"a": made(), "b": made(base="cd" * 32)})
    assert "abab" in caught.value.got
    assert "cdcd" in caught.value.got


def test_other_parameters_do_not_compose():
    with pytest.raises(CompositionError, match="other parameters"):
        compose({"a": made(), "b": made(shapes={"head.weight": (13,)})})


@pytest.mark.parametrize(
    "mu", [{}, {"a": 1.0}, {"a": 0.5, "c": 0.5}, {"a": 0.3, "b": 0.3, "c": 0.4}, {"a": 0.5, "b": 0.6}]
)
def test_coefficients_name_the_components_and_sum_to_one(mu):
    with pytest.raises(CompositionError):
        compose({"a": made(), "b": made(1)}, mu)


def test_nothing_to_compose():
    with pytest.raises(CompositionError, match="at least one"):
        compose({})


def test_what_a_component_says_can_be_read_typed_and_written_back(finished):
    with FeatureStore(finished) as store:
        said = {name: ref.meta for name, ref in store.objects().items() if is_model(name)}
    assert {meta_of(meta).kind for meta in said.values()} == {"component", "composition"}
    for name, meta in said.items():
        assert meta_of(meta).as_dict().keys() == meta.keys(), name  # no key of today is passed over
        assert meta_of(meta).as_dict().get("stats") == meta.get("stats"), name
        if "certificate" in meta:
            assert meta_of(meta).certified.distance_bound == meta["certificate"]["distance_bound"]
            assert set(meta["certificate"]) == set(CertificateRecord.__struct_fields__)
    assert meta_of(said["models/mean"]).members.keys() == {n for n in said if n.startswith("components/")}
    with pytest.raises(FormatError, match="no certificate"):
        _ = meta_of(said["models/mean"]).certified


@pytest.mark.parametrize(
    "said",
    [{"rows": "7"}, {"stats": {"passes": "7"}}, {"certificate": {"gradient": 1.0}}, {"members": [1]}, {"kind": 5}],
)
def test_a_description_with_other_types_is_refused(said):
    with pytest.raises(FormatError, match="wrong type"):
        meta_of(said)


def test_a_certificate_s_json_lacks_only_what_was_not_estimated():
    """What is null is said, as ever, and so is what a store of an earlier version does not have."""
    said = msgspec.to_builtins(certificate(JudgedCertificate, ridge=0.5))
    assert list(said) == sorted(CertificateRecord.__struct_fields__)
    assert (said["residual"], said["rounding"], said["quadratic"]) == (None, 0.0, True)
    assert msgspec.to_builtins(certificate(JudgedCertificate, decisive=False))["decisive"] is False


def test_a_field_of_a_certificate_is_read_as_of_the_dict_that_it_was():
    made = certificate(JudgedCertificate, ridge=0.5)
    with pytest.warns(DeprecationWarning, match=r"write \.ridge: "):
        assert made["ridge"] == 0.5
    for name in ("nothing", "__class__"):
        with pytest.raises(KeyError, match=name), pytest.warns(DeprecationWarning, match=name):
            made[name]
    for use in (list, dict, lambda one: "ridge" in one):
        with pytest.raises(TypeError, match="JudgedCertificate"):
            use(made)


def test_what_is_new_to_this_release_is_passed_over():
    assert meta_of({"kind": "component", "later": 1}).as_dict() == {"kind": "component"}
