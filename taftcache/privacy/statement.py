"""What a private component says about itself, and whether that follows from its own numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import exp, floor, log10
from typing import Annotated, Any

import msgspec

from taftcache.errors import FormatError, RecipeError, SolveError
from taftcache.names import LARGE_EPSILON, ONE_SETTING, PRIVATE, UNTUNED, component_of, epsilon_text
from taftcache.privacy.accountant import Release, epsilon
from taftcache.privacy.spec import Delta, Mechanism, PrivacySpec, Relation

EVENT = "private training"  # of a ledger entry
LARGE_DELTA = 0.1  # times the rows, above which a note is made
AGREES = 1e-6  # relative, between an ε that is claimed and the one that follows
# Of sampled releases that are audited: files are anyone's, and below, where ε is 1,000 and more, accounting takes
# minutes and gigabytes.
LEAST_NOISE, MOST_STEPS = 0.1, 10**6
PLAN = "private"  # of a store's plan, which goes wherever its rows go
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
    """What a promise for such neighbours does not cover, a line each."""
    return [*NOT_COVERED, OF_CHANGES, OF_THE_ID if relation == "replace-one" else OF_THE_OTHERS]


class Statement(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The promise: outputs of two neighbouring data sets S, S′ obey P(S ∈ E) ≤ e^ε P(S′ ∈ E) + δ, for all E.

    private: False when the noise came from a seed, or there was none; then ε and δ promise nothing.
    relation: what neighbours are. epsilon, delta: of everything released while training, every step included.
    releases: each with its noise over its sensitivity, from which ε follows.
    clip, sensitivity, unit: C, Δ = C or 2C, and the spacing of the grid on which sum and noise are integers.
    shards: whose rows the promise is about; of other shards' rows the component knows nothing.
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


class Promise(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What all private trainings of a store are held to, shard by shard: the first of them fixes it.

    Were δ or the notion of neighbours another at each call, no pair would bound what a shard has spent in all.
    """

    epsilon: float
    delta: Delta
    relation: Relation

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return dict(msgspec.to_builtins(self))


def audit_statement(meta: Mapping[str, Any]) -> list[str]:
    """What is wrong with a model's privacy statement, a sentence each; ε is derived again from the noise.

    A composition's is derived from its members' statements, which it carries. An empty list for a sound statement, for
    a model that makes none, and for a composition whose promise ``is_underived``.
    """
    if PRIVATE not in meta or is_underived(meta):
        return []
    said = meta[PRIVATE]
    try:
        if not is_joint(said):
            return _audited(Statement.from_dict(said))
        members: list[Statement] = _read(said[MEMBERS], _MEMBERS)
    except FormatError as error:
        return [f"{error.fault}: {error.got}"]
    found = [f"{', '.join(member.shards)}: {problem}" for member in members for problem in _audited(member)]
    parts = meta.get("coefficients")
    of = set(parts) if isinstance(parts, Mapping) else set[str]()
    if of != {component_of(shard) for member in members for shard in member.shards}:
        found.append("the statements that it carries are not of the components that it is made of")
    return [*found, *composition_problems(said, members)]


def is_underived(meta: Mapping[str, Any]) -> bool:
    """Whether a composition claims a promise without its members' statements, as it did in earlier releases."""
    return is_joint(meta.get(PRIVATE)) and MEMBERS not in meta[PRIVATE]


def composition_problems(said: Mapping[str, Any], members: Sequence[Statement]) -> list[str]:
    """How what a composition says differs from what follows from its ``members``, a sentence each."""
    try:
        follows = parallel(members)
    except RecipeError as error:
        return [error.fault]
    found, carried = [], said.get(MEMBERS, follows[MEMBERS])
    if carried != follows[MEMBERS]:
        found.append("the statements that it carries are not those of its members")
    keys = sorted({*said, *follows} - {MEMBERS, "not_covered"})
    if wrong := [key for key in keys if said.get(key) != follows.get(key)]:
        claims, gives = (", ".join(f"{key} {of.get(key)}" for key in wrong) for of in (said, follows))
        found.append(f"it claims {claims}; its members give {gives}")
    if MEMBERS in said:
        found += _left_out(said.get("not_covered"))
    return found


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
    except (ArithmeticError, MemoryError):  # of numbers that no training would have
        return [*found, "no epsilon follows from the noise that it states"]
    if not said.epsilon >= follows * (1 - AGREES):
        found.append(f"it claims epsilon {said.epsilon:.6g} at delta {said.delta:g}; its noise gives {follows:.6g}")
    return found + _left_out(said.not_covered)


def _left_out(said: Any) -> list[str]:
    """A sentence where what is not covered is not said, or not all of it."""
    missing = [text for text in NOT_COVERED if not isinstance(said, Sequence) or text not in said]
    return [f"it leaves out what is not covered: {'; '.join(missing)}"] if missing else []


def parallel(statements: Sequence[Statement]) -> dict[str, Any]:
    """The promise of a model composed of private components of disjoint shards: the weakest of theirs.

    A row is in one shard, so only that shard's component depends on it, and whatever is made of all components
    together keeps that component's promise. It carries their statements, but for what is not covered, which it says
    itself.

    Raises:
        RecipeError: two components share a shard, or speak of other neighbours.
    """
    shards = [shard for s in statements for shard in s.shards]
    if len(set(shards)) < len(shards) or len({s.relation for s in statements}) > 1:
        raise RecipeError(
            "cannot compose in parallel: the shards are not disjoint, or the notions of neighbours differ",
            got=f"shards {', '.join(shards)}; {', '.join(sorted({s.relation for s in statements}))}",
            do="compose components of different shards that were trained with one privacy.relation",
        )
    tuned = sorted({s.tuning for s in statements if s.tuning not in UNTUNED})
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


def after(statement: Statement, spent: float, uncharged_before: bool) -> Statement:
    """The statement of a training after which ``spent`` is the ε of all that was charged of its rows; whether tuning of
    them before was not charged."""
    if not statement.private or spent <= statement.epsilon * (1 + AGREES):
        return statement
    more = f"these rows were trained on privately before, epsilon {epsilon_text(spent)} in all"
    more += " but for tuning that was NOT charged" if uncharged_before else ""
    return msgspec.structs.replace(statement, tuning=f"{statement.tuning}; {more}")


class _Charged(msgspec.Struct, frozen=True, kw_only=True):
    """What a ledger's entry of a private training is charged by."""

    shards: list[str]
    releases: list[Release]
    delta: Delta
    budget: float
    relation: Relation | None = None


def _charged(entries: Iterable[Mapping[str, Any]]) -> list[_Charged]:
    """Those of ``entries`` that are private trainings; FormatError for one that is not as taftcache writes it."""
    try:
        return [msgspec.convert(dict(entry), _Charged) for entry in entries if entry.get("event") == EVENT]
    except msgspec.ValidationError as error:
        raise FormatError(
            "an entry of a private training does not say what was released", got=error, do="taftcache audit STORE"
        ) from error


def spent(ledger: Iterable[Mapping[str, Any]], shard: str) -> list[Release]:
    """All that was released about a shard's rows so far and charged, as the ledger has it.

    Raises:
        FormatError: an entry is not what taftcache writes.
    """
    return [release for entry in _charged(ledger) if shard in entry.shards for release in entry.releases]


def spent_before(others: Iterable[Sequence[Mapping[str, Any]]]) -> list[Release]:
    """The most that ``others``, ledgers of stores that were at this place, say was released about any one row.

    Which of their shards a row was in is not known any more. In each of them it was in one, so that for every kind of
    release the most of any shard is charged.
    """
    every = Counter[tuple[float, float]]()
    for entries in others:
        most = Counter[tuple[float, float]]()
        for shard in {name for entry in _charged(entries) for name in entry.shards}:
            own = Counter[tuple[float, float]]()
            for release in spent(entries, shard):
                own[release.multiplier, release.rate] += release.steps
            most |= own
        every += most
    return [Release(z, steps, rate) for (z, rate), steps in sorted(every.items())]


def fixed_promise(
    plan: Mapping[str, Any],
    ledger: Sequence[Mapping[str, Any]],
    relation: Relation,
    before: Iterable[Mapping[str, Any]] = (),
) -> Promise | None:
    """What the private trainings of a store are held to; None where there was none yet.

    Stores of earlier releases did not fix it: theirs is the δ of their first private training, the largest budget that
    was set at it, and ``relation``, for their ledgers do not say it. So it is with a store that is made anew where
    there was one: ``before`` are the entries that it left.

    Raises:
        RecipeError: the ledger with what was spent is not there. FormatError: the plan is not what taftcache writes.
    """
    entries = _charged(ledger)
    if PLAN in plan:
        if not entries:
            raise RecipeError(
                "the rows were released privately before, and the ledger that says how much was spent is not here",
                got="a store that was imported from an export, which carries no ledger",
                do="train privately in the store that was exported, or in a copy of it (taftcache copy)",
            )
        try:
            return msgspec.convert(plan[PLAN], Promise)
        except msgspec.ValidationError as error:
            raise FormatError("the promise in the store's plan is not one that taftcache writes", got=error) from error
    entries = [*_charged(before), *entries]
    if not entries:
        return None
    first = entries[0]
    budget = max(entry.budget for entry in entries if entry.delta == first.delta)
    return Promise(budget, first.delta, first.relation or relation)


def held_to(fixed: Promise | None, spec: PrivacySpec) -> Promise:
    """The promise that a training with ``spec`` is charged to: ``fixed``, or where there is none, what it asks for.

    Raises:
        RecipeError: it asks for another δ, relation or budget than was fixed.
    """
    if fixed is None:
        return Promise(spec.budget or spec.epsilon, spec.delta, spec.relation)
    asked = {"delta": spec.delta, "relation": spec.relation, "budget": spec.budget or fixed.epsilon}
    there = {"delta": fixed.delta, "relation": fixed.relation, "budget": fixed.epsilon}
    for name, value in asked.items():
        if value != there[name]:
            raise RecipeError(
                f"privacy.{name} is {value}, but the store's first private training fixed {there[name]}",
                got=f"epsilon {fixed.epsilon:g} at delta {fixed.delta:g} for {fixed.relation}, for all trainings of a "
                "shard together",
                do="leave privacy.budget out" if name == "budget" else f"set privacy.{name} to {there[name]}",
            )
    return fixed


def spending(
    ledger: Sequence[Mapping[str, Any]],
    shards: Iterable[str],
    delta: float,
    earlier: Sequence[Release] = (),
    further: Sequence[Release] = (),
) -> dict[str, float]:
    """ε of each shard at ``delta``: of ``earlier`` releases, those that the ledger says, and ``further`` ones."""
    known: dict[tuple[Release, ...], float] = {}  # most shards have one history
    totals: dict[str, float] = {}
    for shard in shards:
        every = (*earlier, *spent(ledger, shard), *further)
        if every not in known:
            known[every] = epsilon(every, delta)
        totals[shard] = known[every]
    return totals


def charge(
    ledger: Sequence[Mapping[str, Any]],
    shards: Sequence[str],
    releases: Sequence[Release],
    promise: Promise,
    earlier: Sequence[Release] = (),
) -> dict[str, float]:
    """ε of each shard once ``releases`` are added to what the ledger says was spent on it, and to ``earlier`` ones
    that it does not have.

    Raises:
        RecipeError: one would be above the budget of the ``promise``.
    """
    delta, budget = promise.delta, promise.epsilon
    begun = bool(earlier or _charged(ledger))
    totals = spending(ledger, shards, delta, earlier, releases)
    for shard, total in totals.items():
        if total > budget * (1 + AGREES):
            before = spending(ledger, [shard], delta, earlier)[shard]
            raise RecipeError(
                f"shard {shard} would spend epsilon {total:.4g}, more than is left of its budget of {budget:g}",
                got=f"epsilon {before:.4g} at delta {delta:g} is spent already"
                + (", some of it by a store that was here before" if earlier else ""),
                do="keep what is there, or ask for a smaller epsilon; the first private training fixed the budget"
                + (". Other data belongs into another folder" if earlier else "")
                if begun
                else "ask for a smaller epsilon or a larger multiplier, or set privacy.budget now: the first "
                "private training fixes it",
            )
    return totals


def check_delta(delta: float, rows: int) -> None:
    """RecipeError where δ promises nothing of so many rows in all, before a first private training fixes it.

    To publish each row whole with probability δ keeps (0, δ): of N rows that is δN rows. It says no number of rows, of
    which it names the magnitude at most, to whoever has the store.
    """
    if delta * rows >= 1:
        raise RecipeError(
            "privacy.delta promises nothing here: it is not below one in the rows of the store, so that to publish one "
            "of them whole would keep the promise",
            got=f"privacy.delta = {delta:g}",
            do=f"set privacy.delta to {10.0 ** floor(log10(LARGE_DELTA / rows)):g} or less: the first private training "
            "fixes it",
        )


def weak_promise(epsilon: float, delta: float, rows: int) -> list[str]:
    """Notes where a promise says little of so many rows in all; none says how many, which may not be known."""
    notes = []
    if delta * rows >= 1:  # of a store of an earlier release, or one that has grown since
        notes.append(
            f"delta {delta:g} is not below one in the rows: to publish one of them whole would keep such a promise. It "
            "is fixed for this store; another folder can have a smaller privacy.delta"
        )
    elif delta * rows > LARGE_DELTA:
        notes.append(
            f"delta {delta:g} is more than a tenth of one in the rows: to publish one of them whole, one time in ten, "
            "would keep such a promise. The first private training fixes it; another folder can have a smaller "
            "privacy.delta"
        )
    if epsilon > LARGE_EPSILON:
        notes.append(
            f"epsilon {epsilon_text(epsilon)} is above {LARGE_EPSILON}, which bounds next to nothing: an outcome may "
            f"be e^{epsilon_text(epsilon)} times as likely with a row as without it"
        )
    return notes


def forgetting_note(meta: Mapping[str, Any], samples: int, kept: bool) -> str:
    """What a receipt says of a private component when so many samples of its shard are forgotten.

    Of a group of k neighbours in turn, each bounds the next: k·ε, and δ Σ_{i<k} e^{iε} (Vadhan 2017, lemma 2.2).
    """
    said = Statement.from_dict(meta[PRIVATE])
    if not kept:
        return "destroyed; what its training spent of the budget stays spent"
    if not said.private:
        return "kept, but trained without private noise: nothing bounds what it holds of them"
    other = "had others in their place" if said.relation == "replace-one" else "never saw them"
    group = said.delta * sum(exp(min(i * said.epsilon, 700.0)) for i in range(samples))
    bound = f"at most epsilon {epsilon_text(samples * said.epsilon)} at delta {min(1.0, group):.3g}"
    chosen = "" if said.tuning in UNTUNED else f"; {said.tuning}"
    return (
        f"kept: by its privacy its distribution differs from that of a model that {other} by {bound} "
        f"(samples: {samples}, epsilon of one: {epsilon_text(said.epsilon)}{chosen}); those that left before count "
        "with them. Erasure takes them out of the cache, which that promise does not cover. What the training spent of "
        "the budget stays spent"
    )
