"""Audit what forgetting promised: the receipts' chain, the certificates from the rows, and that nothing is left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from taftcache.cache.kept_keys import TombstoneKeys
from taftcache.cache.opening import Place
from taftcache.cache.read.around import check_local
from taftcache.cache.store import FeatureStore
from taftcache.errors import RecipeError, check_several
from taftcache.names import COMPONENT
from taftcache.stages.audit.byproducts import check_folders, existing_folder
from taftcache.stages.audit.models import check_models, looser_than_recorded
from taftcache.stages.audit.pin import Pin, check_pin, move_pin, note_unpinned
from taftcache.stages.audit.traces import (
    check_damage,
    check_groups,
    check_leftovers,
    check_names,
    check_withdrawn,
    of_forgotten_groups,
)
from taftcache.stages.completeness import still_missing, subtracted_notes, untrained_notes
from taftcache.stages.forget.certificates import CheckedCertificate
from taftcache.stages.forget.chain import check_beside, check_kept_keys, check_ledger
from taftcache.stages.forget.finding import Finding, Findings
from taftcache.stages.forget.forgetting import forget
from taftcache.stages.forget.receipts import check_receipts
from taftcache.stages.look.seen import kept_notes
from taftcache.stages.progress import Progress, or_silent
from taftcache.stages.report import Report
from taftcache.stages.signature import checked_public_key, signed, signer_of
from taftcache.stages.train.promises import promised
from taftcache.stages.train.solving import is_decisive


@dataclass(frozen=True, kw_only=True)
class AuditReport(Report):
    """Whether every promise holds, and what was checked.

    passed: whether nothing was found. findings: the promises that do not hold. receipts: requests in the ledger.
    signed: entries of the ledger with a valid signature, of ``newest.entries`` in all: receipts, private trainings and
    tombstones that were taken over. signers: how many of these each public key has. tombstones: one for each sample,
    class, shard and group that was forgotten. also: further folders that were searched. harmless: files there that were
    left out of the verdict, as asked, and of which something would have been said. unsure: files and stores there of
    which nothing here tells whether they were made from what was forgotten: a note names them. certificates: by
    component, as recorded and as proven here. newest: the ledger's last entry. unsaved: why ``head`` could not be
    brought up to date and what to try, a line each; otherwise empty. replayed: rows and components that an old copy of
    the store had brought back, forgotten again; also samples of groups that were forgotten. imported_again: components
    that were forgotten here, and imported again since. notes: what is no failure.
    """

    store: Path
    root_digest: str
    passed: bool
    findings: list[Finding]
    receipts: int
    signed: int
    signers: dict[str, int]
    tombstones: int
    also: list[Path]
    certificates: dict[str, CheckedCertificate]
    newest: Pin
    unsaved: list[str] = field(default_factory=list)
    replayed: int = 0
    harmless: int = 0
    unsure: int = 0
    imported_again: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def looser(self) -> list[str]:
        """Components whose recorded bound is closer than the one that was proven."""
        return looser_than_recorded(self.certificates)

    @property
    def undecided(self) -> list[str]:
        """Components whose proven bound is more than a tenth of what removing a row moves, where that was estimated."""
        checked = self.certificates.items()
        return [name for name, c in checked if is_decisive(c.distance_bound, c.row_moves) is False]


def audit(
    store: Place,
    *,
    progress: Progress | bool | None = None,
    public_key: str | None = None,
    head: Path | str | None = None,
    also: Sequence[Path | str] = (),
    strict: bool = False,
    harmless: Sequence[str] = (),
    replay: bool = False,
    signing_key: Path | str | None = None,
) -> AuditReport:
    """Check a store against what its receipts say, and every bound against the rows.

    Each model costs the four passes of its proof. One whose bound rests on dual vectors that it does not keep is solved
    again.

    Args:
        public_key: hex; the ledger must not be empty, and every entry must be signed with this key. Without ``head`` a
            note says which entry is the newest, because signatures do not show that later ones were cut off.
        head: a file outside the store that pins the ledger's newest entry. The ledger must continue from the entry it
            names; after an audit without findings the file is created or brought up to date. If it cannot be written,
            the report's ``unsaved`` says why, for the next audit will not know of any later entry.
        also: folders to search for what was made from forgotten rows, and for false promises of privacy.
        strict: what cannot be searched or judged in ``also`` is a finding instead of a note.
        harmless: patterns of paths below a folder of ``also``, such as ``ci/*.log``, for files that are known to be
            harmless: nothing said of them is a finding, and a note counts those of which something would be said.
            ``*`` stands for any characters, also ``/``.
        replay: first forget again what an old copy of the store brought back, with all that it has of groups that were
            forgotten as a whole, and take over the tombstones beside it.
        signing_key: for ``replay``: a file with an Ed25519 key that its entries in the ledger are signed with.

    Raises:
        StoreChanged: another process committed meanwhile, and something was found. RecipeError: not a public key, no
            such folder or signing key, a signing key without ``replay``, or ``strict`` or ``harmless`` without
            ``also``. FormatError: ``head`` is some other file. StoreWriteError: ``head`` lies in a store.
    """
    check_several(also=also, harmless=harmless)
    progress = or_silent(progress)
    key = None if public_key is None else checked_public_key(public_key)
    folders = [existing_folder(folder) for folder in also]
    if head is not None:
        check_local(head)
    if (strict or harmless) and not folders:
        raise RecipeError(
            f"{'strict is' if strict else 'exceptions are'} for what other folders hold, and none is named",
            do="name one: --also FOLDER",
        )
    if signing_key is not None and not replay:
        raise RecipeError(
            "a signing key is for what a replay writes, and an audit alone writes nothing",
            do="ask for a replay (--replay), or name no key (--sign)",
        )
    replayed = _replay(store, progress, signing_key) if replay else 0
    with FeatureStore(store, stale=True) as store:
        to = Findings(store=store.path, private=bool(promised(store)))
        check_beside(store, to)
        receipts, signers = check_ledger(store, key, to)
        check_receipts(store, to)
        if head is not None:
            check_pin(store, Path(head), to)
        elif key is not None:
            note_unpinned(store, to)
        check_damage(store, progress, to)
        check_leftovers(store, to)
        keys = TombstoneKeys(store)
        check_kept_keys(store, keys, folders, to)
        check_names(store, to)
        check_groups(store, to)
        again = check_withdrawn(store, to)
        certificates = check_models(store, progress, to)
        left_out, unsure = check_folders(store, keys, folders, to, strict, harmless)
        unsaved: list[str] = []
        if to.findings:
            store.check_current()  # raises if another commit came between: findings of a mixed state mean nothing
        elif head is not None:
            unsaved = move_pin(store, Path(head))
        return AuditReport(
            store=store.path,
            root_digest=store.root_digest,
            passed=not to.findings,
            findings=to.findings,
            receipts=receipts,
            signed=sum(signers.values()),
            signers=signers,
            tombstones=len(store.manifest.tombstones),
            also=folders,
            certificates=certificates,
            newest=Pin.of(store),
            unsaved=unsaved,
            replayed=replayed,
            harmless=left_out,
            unsure=unsure,
            imported_again=again,
            notes=[
                *still_missing(store),
                *subtracted_notes(store),
                *untrained_notes(store),
                *kept_notes(store),
                *to.notes,
            ],
        )


def _replay(store: Place, progress: Progress, signing_key: Path | str | None) -> int:
    """Forget again what an old copy of the store brought back; returns how many rows and components that were."""
    signer = signer_of(signing_key)
    with FeatureStore(store, mode="a", stale=True) as store:
        back = [*store.returned(), *(sample.sample for sample in of_forgotten_groups(store))]
        if back:
            components = [name.removeprefix(COMPONENT) for name in back if name.startswith(COMPONENT)]
            rows = [name for name in back if not name.startswith(COMPONENT)]
            forget(store, rows, components=components, progress=progress, signing_key=signing_key)
        if store.lost_tombstones():
            with store.transaction() as change:
                change.record(signed(store, change.adopt_tombstones(), signer))
        return len(back)
