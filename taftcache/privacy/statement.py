"""What a private component says about itself, and whether that agrees with its own numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp
from typing import Annotated, Any

import msgspec

from taftcache.errors import FormatError, RecipeError, SolveError
from taftcache.names import ONE_SETTING, PRIVATE, component_of, counted, epsilon_text
from taftcache.privacy.accountant import LEAST_NOISE, Release, epsilon
from taftcache.privacy.spec import Delta, Mechanism, Relation

AGREES = 1e-6  # largest relative difference between an ε that is claimed and the one that follows
MOST_STEPS = 10**6  # of sampled releases that are audited: a file may come from anyone
MEMBERS = "members"  # of a composition's promise: what each member states, from which anyone can derive it

NOT_COVERED = (
    "the cache, which holds the rows as they are",
    "the list of classes, and which shard a sample is in",
    "what was chosen by looking at the rows: settings, the base point, held-out accuracies",
    "other models made from the same rows without noise",
    "how long the training took",
)
OF_THE_ID = "the id, which both rows have: where it names the class, as CLASS/name does, the label is not covered"
OF_THE_OTHERS = (
    "what a row changes of the others' ids: where these are numbers in a file, or a limit chose the images, one row "
    "less moves others to other shards"
)
OF_CHANGES = "whether a shard's rows have changed since it was published before: where not, its component has not"


def not_covered(relation: Relation) -> list[str]:
    """What a promise for such neighbours does not cover, one line each."""
    return [*NOT_COVERED, OF_CHANGES, OF_THE_ID if relation == "replace-one" else OF_THE_OTHERS]


class Statement(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The promise: for neighbouring data sets S, S′ and every set E of outputs, P_S(E) ≤ e^ε P_S′(E) + δ.

    private: False if the noise came from a seed, or there was none; then ε and δ promise nothing.
    relation: what neighbours are. epsilon, delta: of everything released while training, every step included.
    releases: each with its noise over its sensitivity, from which ε follows.
    clip, sensitivity, unit: C, Δ = C or 2C, and the spacing of the grid on which sum and noise are integers.
    shards: whose rows the promise is about; the component knows nothing of other shards' rows.
    tuning: how the settings were chosen, and whether that is in ε.
    """

    private: bool
    relation: Relation
    mechanism: Mechanism
    epsilon: float
    delta: Delta
    releases: list[Release]
    clip: float
    sensitivity: float
    unit: float
    shards: list[str]
    noise: str
    tuning: str = ONE_SETTING
    not_covered: list[str] = msgspec.field(default_factory=lambda: list(NOT_COVERED))

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return dict(msgspec.to_builtins(self))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Statement:
        """From a component's meta.

        Raises:
            FormatError: it is not what ``as_dict`` makes.
        """
        said: Statement = _read(values, cls)
        return said


_MEMBERS = Annotated[list[Statement], msgspec.Meta(min_length=1)]


def _read(values: Any, form: Any) -> Any:
    """A statement, or several; FormatError for what ``as_dict`` does not make."""
    try:
        return msgspec.convert(values, form)
    except msgspec.ValidationError as error:
        raise FormatError("not a privacy statement as taftcache writes it", got=str(error)) from error


def audit_statement(meta: Mapping[str, Any]) -> list[str]:
    """What is wrong with a model's privacy statement, one sentence each; ε is derived again from the noise.

    A composition's statement is derived from those of its members, which it carries. The list is empty for a sound
    statement, and for a model that makes none.
    """
    if PRIVATE not in meta:
        return []
    said = meta[PRIVATE]
    try:
        if not is_joint(said):
            return _audited(Statement.from_dict(said))
        members: list[Statement] = _read(said.get(MEMBERS), _MEMBERS)
    except FormatError as error:
        return [f"{error.fault}: {error.got}"]
    found = [f"{', '.join(member.shards)}: {problem}" for member in members for problem in _audited(member)]
    parts = meta.get("coefficients")
    of = set(parts) if isinstance(parts, Mapping) else set[str]()
    if of != {component_of(shard) for member in members for shard in member.shards}:
        found.append("the statements that it carries are not of the components that it is made of")
    return [*found, *composition_problems(said, members)]


def composition_problems(said: Mapping[str, Any], members: Sequence[Statement]) -> list[str]:
    """Where a composition's statement differs from what follows from its ``members``, one sentence each."""
    try:
        follows = parallel(members)
    except RecipeError as error:
        return [error.fault]
    found = []
    if said.get(MEMBERS) != follows[MEMBERS]:
        found.append("the statements that it carries are not those of its members")
    keys = sorted({*said, *follows} - {MEMBERS, "not_covered"})
    if wrong := [key for key in keys if said.get(key) != follows.get(key)]:
        claims, gives = (", ".join(f"{key} {of.get(key)}" for key in wrong) for of in (said, follows))
        found.append(f"it claims {claims}; its members give {gives}")
    return found + _left_out(said.get("not_covered"))


def is_joint(said: Any) -> bool:
    """Whether a model's claim is that of a composition."""
    return isinstance(said, Mapping) and "composition" in said


def _audited(said: Statement) -> list[str]:
    """What is wrong with a component's statement."""
    found = []
    expected = said.clip * (2 if said.relation == "replace-one" else 1)
    if said.mechanism in ("descent", "sampled-descent") and abs(said.sensitivity - expected) > 1e-12 * expected:
        found.append(f"a {said.relation} sensitivity of {said.sensitivity} does not go with a clip norm of {said.clip}")
    if said.relation == "replace-one" and any(r.rate < 1 for r in said.releases):
        found.append("sampled releases are accounted for under adding and removing rows only")
    if not said.private:
        return found
    if not said.releases:
        return [*found, "a private component lists what was released"]
    if any(r.rate < 1 and (r.multiplier < LEAST_NOISE or r.steps > MOST_STEPS) for r in said.releases):
        return [*found, "no epsilon is derived from sampled releases of so little noise, or so many"]
    try:
        follows = epsilon(said.releases, said.delta)
    except SolveError as error:
        return [*found, error.fault]
    except (ArithmeticError, MemoryError):  # from numbers that no training would have
        return [*found, "no epsilon follows from the noise that it states"]
    if not said.epsilon >= follows * (1 - AGREES):
        found.append(f"it claims epsilon {said.epsilon:.6g} at delta {said.delta:g}; its noise gives {follows:.6g}")
    return found + _left_out(said.not_covered)


def _left_out(said: Any) -> list[str]:
    """A sentence if the list of what is not covered is missing or incomplete."""
    missing = [text for text in NOT_COVERED if not isinstance(said, Sequence) or text not in said]
    return [f"it leaves out what is not covered: {'; '.join(missing)}"] if missing else []


def parallel(statements: Sequence[Statement]) -> dict[str, Any]:
    """The promise of a model composed of private components of disjoint shards: the weakest of theirs.

    A row is in one shard, so only that shard's component depends on it, and whatever is made of all components
    together keeps that component's promise. The composition carries their statements, except for what is not covered,
    which it states itself.

    Raises:
        RecipeError: two components share a shard, or have different notions of neighbours.
    """
    shards = [shard for s in statements for shard in s.shards]
    if len(set(shards)) < len(shards) or len({s.relation for s in statements}) > 1:
        raise RecipeError(
            "cannot compose in parallel: the shards are not disjoint, or the notions of neighbours differ",
            got=f"shards {', '.join(shards)}; {', '.join(sorted({s.relation for s in statements}))}",
            do="compose components of different shards that were trained with one privacy.relation",
        )
    tuned = sorted({s.tuning for s in statements if s.tuning != ONE_SETTING})
    return {
        "private": all(s.private for s in statements),
        "relation": statements[0].relation,
        "epsilon": max(s.epsilon for s in statements),
        "delta": max(s.delta for s in statements),
        "composition": f"parallel, over {len(statements)} disjoint shards",
        "not_covered": not_covered(statements[0].relation),
        MEMBERS: [
            {key: of for key, of in s.as_dict().items() if key != "not_covered"}
            for s in sorted(statements, key=lambda statement: statement.shards)
        ],
        **({"tuning": "; ".join(tuned)} if tuned else {}),
    }


def after(statement: Statement, spent: float, budget: float) -> Statement:
    """The ``statement`` of a training after which all that was charged for its rows comes to ε = ``spent``.

    A sum is only proven for noise that was fixed beforehand. Whoever sets noise by results, or trains again because of
    them, is held to the ``budget``: a filter of Gaussian releases (Smith and Thakurta 2022; Koskela et al. 2022), but
    no odometer, which would bound the sum itself (Whitehouse et al. 2023).
    """
    if not statement.private or spent <= statement.epsilon * (1 + AGREES):
        return statement
    more = (
        f"these rows were trained on privately before, epsilon {epsilon_text(spent)} in all; if results decided on "
        f"noise or on training again, only the budget holds, epsilon {epsilon_text(budget)} (of sampled-descent not "
        "even that is proven)"
    )
    return msgspec.structs.replace(statement, tuning=f"{statement.tuning}; {more}")


def forgetting_note(meta: Mapping[str, Any], samples: int, before: int | None, kept: bool) -> str:
    """What a receipt says about a private component when so many samples of its shard are forgotten.

    ``before``: how many had left by earlier requests since it was trained; None if that is not known.
    """
    if not kept:
        return "destroyed; what its training spent of the budget stays spent"
    said = Statement.from_dict(meta[PRIVATE])
    if not said.private:
        return f"kept, but {_difference(said, samples)}"
    if before is None:
        others = "not counted here: samples of earlier requests"
    elif before:
        others = f"with those of earlier requests since it was trained, by {_bound(said, samples + before)}"
    else:
        others = "no other sample of its shard has left since it was trained"
    return (
        f"kept: {_difference(said, samples)}; {others}. Erasure takes them out of the cache, which that promise does "
        "not cover. What the training spent of the budget stays spent"
    )


def kept_note(meta: Mapping[str, Any], samples: int) -> str:
    """What an audit says about a private component if so many samples of its shard have left since it was trained.

    Raises:
        FormatError: its statement is not what ``as_dict`` makes.
    """
    left = f"{counted(samples, 'sample')} of its shard left since it was trained"
    return f"kept, and {left}: {_difference(Statement.from_dict(meta[PRIVATE]), samples)}"


def _difference(said: Statement, samples: int) -> str:
    """How far a component can be from one without so many samples of its shard."""
    if not said.private:
        return "trained without private noise: nothing bounds what it holds of them"
    other = "had others in their place" if said.relation == "replace-one" else "never saw them"
    one = f", epsilon of one: {epsilon_text(said.epsilon)}" + ("" if said.tuning == ONE_SETTING else f"; {said.tuning}")
    return f"by its privacy its distribution differs from that of a model that {other} by {_bound(said, samples, one)}"


def _bound(said: Statement, samples: int, more: str = "") -> str:
    """ε and δ of so many samples as a group.

    k samples are k steps from neighbour to neighbour: kε, and δ Σ_{i<k} e^{iε} (Vadhan 2017, lemma 2.2).
    """
    delta = min(1.0, said.delta * sum(exp(min(i * said.epsilon, 700.0)) for i in range(samples)))
    void = "" if delta < 1 else ", which bounds nothing"
    epsilon = epsilon_text(samples * said.epsilon)
    return f"at most epsilon {epsilon} at delta {epsilon_text(delta)}{void} (samples: {samples}{more})"
