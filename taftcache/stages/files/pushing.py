"""Put an exported model on a model hub."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from taftcache.errors import local_path
from taftcache.model.hub import push_model
from taftcache.stages.train.private.claims import check_exported


@dataclass(frozen=True, kw_only=True)
class PushReport:
    """Where the model is now on the hub.

    folder: what was sent. name: the repository's name. revision: its branch; None for the main one. url: its page.
    commit: the hub's digest of the commit. files: names of the files sent.
    """

    folder: Path
    name: str
    revision: str | None
    url: str
    commit: str
    files: list[str]
    bytes: int


def push(folder: Path | str, name: str, *, private: bool = False, revision: str | None = None) -> PushReport:
    """Put a folder that ``export_model`` wrote on the model hub, for ``from_pretrained``.

    The files of an exported model are verified and sent, and no other file in the folder. The snippets in the card name
    the model on the hub. Earlier pushes under the same name stay in the hub's history: a sample that was forgotten
    since is still in the earlier model, until the repository is deleted.

    Args:
        folder: an exported model's folder.
        name: "user/name" on the hub that HF_ENDPOINT names (huggingface.co by default).
        private: make it private; only for a name that is new, or private already.
        revision: a branch, created if it is missing; the main one by default.

    Raises:
        FormatError, IntegrityError: not a saved model, or not as it was saved, or its claim of privacy does not follow
            from its noise. RecipeError: not a name for the hub, or a public repository although ``private`` is asked
            for.
        StoreUnreachable: the hub does not answer, or refuses.
    """
    folder = local_path(folder)
    check_exported(folder)
    done = push_model(folder, name, private=private, revision=revision)
    size = sum((folder / file).stat().st_size for file in done.files)
    return PushReport(
        folder=folder, name=name, revision=revision, url=done.url, commit=done.commit, files=done.files, bytes=size
    )
