"""What a component says of itself, typed: where it came from, how its solve ended, and what that proves.

On disk it is JSON, in the component's file and beside its name in the manifest; what is None there is left out.
No torch here, because commands that only list models must start fast.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any
from warnings import warn

import msgspec

from taftcache.errors import FormatError
from taftcache.names import ONE_SETTING, PRIVATE
from taftcache.solve_stats import SolveStats

TRAINED_ON = "trained_on"  # the key of what a component was trained on

Coefficient = float | list[float]
"""Of a component in a sum: of all of its Δw, or [K] of each class's row of the head."""


def magnitude(coefficient: Coefficient) -> float:
    """max_k |c_k|: how far a sum moves at most where the component moves by one."""
    return max(map(abs, coefficient)) if isinstance(coefficient, list) else abs(coefficient)


def of_each_class(coefficients: Mapping[str, Any] | None) -> bool:
    """Whether a sum weighs each class on its own: its members have lists of coefficients."""
    return any(isinstance(mu, list) for mu in (coefficients or {}).values())


def key_parts(key: object) -> dict[str, Any]:
    """What a component's ``key`` names, by part; nothing if it is random, of an interrupted solve, or missing."""
    try:
        parts = json.loads(key)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return {}
    return parts if isinstance(parts, dict) else {}


def _unknown() -> None:
    """A default that JSON says, as null: records that add fields leave out (``omit_defaults``) only what is a value."""


class CertificateRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A ``solve.solution.Certificate`` as it was written, with the bounds that followed from it.

    constrained: on a ball, where ∇F does not vanish, a bound on F(Δw) − F*. distance_bound: a bound on ‖Δw − Δw*‖:
    ‖∇F(Δw)‖/λ, or a closer one. energy_bound: a bound on ‖Δw − Δw*‖_H, in the norm of the Hessian H: ‖∇F(Δw)‖/√λ, or a
    closer one. gap_bound: a bound on F(Δw) − F*: half the square of energy_bound. gradient, gradient_at_zero: ‖∇F(Δw)‖
    and ‖∇F(0)‖ in float64. objective: F(Δw). objective_at_most: F(Δw) with an allowance for rounding, if no term of F
    can be negative: a bound on F(Δw) − F*, too. quadratic: whether F is. relative_gradient: ‖∇F(Δw)‖ / ‖∇F(0)‖.
    residual: a bound on ‖Δw − Δw*‖_H from a dual residual, if there is one. ridge: λ. rounding: an allowance for the
    norm of the error in ∇F(Δw), which the bounds include. rows: N. tightened: a bound on ‖Δw − Δw*‖_H found in further
    passes, if they ran.
    """

    # in the order that JSON has
    constrained: float | None = msgspec.field(default_factory=_unknown)
    distance_bound: float
    energy_bound: float | None = msgspec.field(default_factory=_unknown)
    gap_bound: float
    gradient: float
    gradient_at_zero: float
    objective: float
    objective_at_most: float | None = msgspec.field(default_factory=_unknown)
    quadratic: bool = msgspec.field(default_factory=lambda: True)
    relative_gradient: float
    residual: float | None = msgspec.field(default_factory=_unknown)
    ridge: float
    rounding: float = msgspec.field(default_factory=float)
    rows: int
    tightened: float | None = msgspec.field(default_factory=_unknown)

    def __getitem__(self, name: str) -> Any:
        """A field by its name: reports of 0.1.0 had dicts. Deprecated; KeyError if there is no such field."""
        warn(f"write .{name}: certificates are records, no longer dicts", DeprecationWarning, stacklevel=2)
        if name not in self.__struct_fields__:
            raise KeyError(name)
        return getattr(self, name)

    __iter__ = None  # or Python would go through it by the numbers 0, 1, …


class ComponentMeta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a component or a composition of components says of itself; None where it says nothing.

    kind: "component" or "composition". train: which parameters moved. shards, rows: whose rows, and how many.
    key: what decided its bytes, as text; with equal keys there is nothing to solve again.
    converged, status, stats, convergence: how the solve ended, its figures, and (passes, residual) on the way.
    certificate: what is proven of it. norm: ‖Δw‖. ridge_choice: how λ was chosen, where it was.
    coefficients, members: of a composition, μ (of each class, if they differ) and the digest by the component's name.
    identity_error: how far Σ μ f(Δw_i) = f(Σ μ Δw_i) was off. start, from_mean: of the exact model, where its solve
    began, and ‖Δw − Δw_mean‖.
    privacy: the statement of a private one. imported: whether it came from another store. again: of one that came
    though its numbers were forgotten here, the last receipt that said so; 0 if none did. numbers: in a file that left
    its store, the digest of its tensors.
    base_digest: of its base point; in the manifest alone, for the file has it beside the meta.
    """

    kind: str | None = None
    train: str | list[str] | None = None
    shards: list[str] | None = None
    rows: int | None = None
    key: str | None = None
    converged: bool | None = None
    status: str | None = None
    stats: SolveStats = SolveStats()
    convergence: list[list[float]] | None = None
    certificate: CertificateRecord | None = None
    norm: float | None = None
    ridge_choice: dict[str, Any] | None = None
    coefficients: dict[str, Coefficient] | None = None
    members: dict[str, str] | None = None
    identity_error: float | None = None
    start: str | None = None
    from_mean: float | None = None
    privacy: dict[str, Any] | None = None
    imported: bool | None = None
    again: int | None = None
    numbers: str | None = None
    base_digest: str | None = None

    @property
    def certified(self) -> CertificateRecord:
        """The certificate; FormatError for a model that has none, such as a sum of components."""
        if self.certificate is None:
            raise FormatError("the component has no certificate", got=f"kind {self.kind}")
        return self.certificate

    @property
    def row_count(self) -> int:
        """How many rows it was made from; FormatError for a model that does not say."""
        if self.rows is None:
            raise FormatError("the component does not say how many rows it was made from", got=f"kind {self.kind}")
        return self.rows

    @property
    def ending(self) -> str:
        """How the solve ended, in words."""
        return self.status or "it does not say how it ended"

    @property
    def passes(self) -> int:
        """Passes over the rows that the solve took; 0 where it says nothing."""
        return self.stats.passes

    @property
    def row_digests(self) -> list[str]:
        """Digests of the shards that its key names; none for a sum, or if it was solved with noise or interrupted."""
        rows = key_parts(self.key).get("rows")
        return rows if isinstance(rows, list) else []

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return dict(msgspec.to_builtins(self))


def meta_of(said: Mapping[str, Any]) -> ComponentMeta:
    """What a component's JSON says, such as ``component.meta`` or ``store.objects()[name].meta``.

    Keys that this release does not know are passed over.

    Raises:
        FormatError: a known key has a value of another type.
    """
    try:
        return msgspec.convert(dict(said), ComponentMeta)
    except msgspec.ValidationError as error:
        raise FormatError("a component's description has a value of the wrong type", got=str(error)) from error


class Stated(msgspec.Struct, frozen=True, kw_only=True):
    """What a private component's or composition's statement promises, without what it follows from."""

    private: bool
    epsilon: float
    delta: float
    relation: Annotated[str, msgspec.Meta(max_length=40)]
    tuning: Annotated[str, msgspec.Meta(max_length=4000)] = ONE_SETTING

    @classmethod
    def of(cls, meta: Mapping[str, Any]) -> Stated | None:
        """What ``meta`` states, checked against nothing; None if it states none. FormatError for other types."""
        try:
            return msgspec.convert(meta[PRIVATE], cls) if PRIVATE in meta else None
        except msgspec.ValidationError as error:
            raise FormatError("not a privacy statement as taftcache writes it", got=str(error)) from error


# A file may come from anybody, and what is kept of it may leave again.
_Short = Annotated[str, msgspec.Meta(max_length=32)]


class TrainedOn(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a component's file says, beside its solve, so that another store can compare; None where it says nothing.

    classes: names, in the order of the head's columns. features: those of the store's identity, flat, and the arguments
    of its architecture (``stages/train/trained_on.py``). objective: loss, α and κ. class_rows: how many rows each class
    has, in that order; never of a private component. tangent: what beside the features and classes decides the base
    point. unchecked: in a store that imported it, what its file did not say.
    """

    classes: list[str] | None = None
    features: dict[str, Any] | None = None
    objective: Annotated[dict[_Short, float | _Short], msgspec.Meta(max_length=3)] | None = None
    class_rows: list[int] | None = None
    tangent: Annotated[dict[_Short, bool | int | _Short], msgspec.Meta(max_length=8)] | None = None
    unchecked: list[str] = []

    @classmethod
    def of(cls, meta: Mapping[str, Any]) -> TrainedOn:
        """What a component's ``meta`` says of it; FormatError for what taftcache does not write."""
        try:
            return msgspec.convert(meta.get(TRAINED_ON, {}), cls)
        except msgspec.ValidationError as error:
            raise FormatError(
                "what a component says that it was trained on has a value of the wrong type", got=str(error)
            ) from error

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return dict(msgspec.to_builtins(self))


def stated_rows(meta: Mapping[str, Any]) -> int | None:
    """How many rows a component says that it was made from; None if it gives no possible number."""
    rows = meta.get("rows")
    return rows if type(rows) is int and 0 < rows < 2**53 else None


def loss_of(meta: Mapping[str, Any]) -> str | None:
    """The loss that a component or model was solved under; None for a sum, or if it does not say."""
    said = TrainedOn.of(meta).objective or key_parts(meta.get("key")).get("objective")
    loss = said.get("loss") if isinstance(said, dict) else None
    return loss if isinstance(loss, str) else None


def ridge_of(meta: Mapping[str, Any]) -> float | None:
    """λ of a component or model; None for a sum, or if it does not say."""
    certificate = meta_of(meta).certificate
    return None if certificate is None else certificate.ridge


def checked(meta: Mapping[str, Any]) -> TrainedOn:
    """What the ``meta`` in a component's file says that it was trained on, once all that it says can be read.

    Raises:
        FormatError: a value of another type, a promise of privacy included; or rows per class that contradict the rest.
    """
    meta_of(meta)
    Stated.of(meta)
    said, rows = TrainedOn.of(meta), stated_rows(meta)
    counts, classes = said.class_rows, said.classes
    if counts is None or rows is None:
        return said
    if any(n < 0 for n in counts) or sum(counts) != rows or len(counts) != len(classes or counts):
        raise FormatError(
            "its rows per class are not a count for each class that add up to its rows",
            got=f"{counts[:5]}, rows: {rows}",
        )
    return said
