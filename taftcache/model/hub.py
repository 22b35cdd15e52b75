"""A saved model on a model hub, there and back, through huggingface_hub.

Only these files go there: those that the model's description names, with the digests that it names, the description
and the card. The hub's client signs the user in (``hf auth login``, or HF_TOKEN); errors quote nothing of the hub's
answers, because an answer may quote the request.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, constants, snapshot_download
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    LocalTokenNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

from taftcache.errors import FormatError, RecipeError, StoreUnreachable, TaftcacheError
from taftcache.model.card import on_hub
from taftcache.model.description import DESCRIPTION, read_description
from taftcache.model.folder import check_files, open_model
from taftcache.model.predictor import TangentModel
from taftcache.model.programs import ONNX, PROGRAM
from taftcache.model.saved import CARD, NETWORKS, WEIGHTS

NEEDED = (CARD, DESCRIPTION, WEIGHTS, *sorted(NETWORKS))


@dataclass(frozen=True, kw_only=True)
class Pushed:
    """Where a model lies now: its page, the commit that it is, and the names of its files."""

    url: str
    commit: str
    files: list[str]


def from_pretrained(name: str, *, revision: str | None = None, device: str = "auto") -> TangentModel:
    """The model that ``push`` put on the model hub as ``name`` ("user/name"), verified as ``open_model`` does.

    Args:
        name: its name on the hub that HF_ENDPOINT names.
        revision: a branch, a tag or a commit; by default the newest commit of the main branch.
        device: where it runs.

    Raises:
        RecipeError: not a name for the hub. StoreUnreachable: the hub does not answer, or has no such model for this
            user.
        FormatError, IntegrityError, BackboneError: as for ``open_model``.
    """
    with _asking(name):
        folder = snapshot_download(name, revision=revision, allow_patterns=list(NEEDED))
    return open_model(folder, device=device)


def push_model(folder: Path, name: str, *, private: bool = False, revision: str | None = None) -> Pushed:
    """Put the saved model in ``folder`` on the model hub as ``name``, in one commit; the stage ``push`` says more.

    Raises:
        FormatError, IntegrityError: not a saved model, or not as it was saved. RecipeError: not a name for the hub, or
        that of a public model where a private one is asked for. StoreUnreachable: the hub does not answer, or refuses.
    """
    described = read_description(folder)
    files = [*check_files(folder, described), DESCRIPTION]
    text = _card(folder)
    with _asking(name):
        api = HfApi()
        api.create_repo(name, private=private or None, exist_ok=True)
        if private and not api.model_info(name).private:
            raise RecipeError(
                f"{name} is public on the model hub already",
                got="a private one is asked for",
                do="choose another name, or make it private on its page",
            )
        if revision is not None:
            api.create_branch(name, branch=revision, exist_ok=True)
        operations = [CommitOperationAdd(file, str(folder / file)) for file in files]
        operations += [CommitOperationAdd(CARD, on_hub(text, name).encode())] if text else []
        # Files that an earlier model left there would be taken for this one's.
        left = {*NEEDED, PROGRAM, ONNX} - {operation.path_in_repo for operation in operations}
        gone = sorted(left.intersection(api.list_repo_files(name, revision=revision)))
        done = api.create_commit(
            name,
            [*operations, *map(CommitOperationDelete, gone)],
            commit_message=f"{described.model} by taftcache {described.versions.get('taftcache', '')}",
            revision=revision,
        )
    names = sorted(operation.path_in_repo for operation in operations)
    return Pushed(url=str(done.repo_url), commit=done.oid, files=names)


def _card(folder: Path) -> str:
    """The card's text, "" if there is none. It alone has no digest, because people may edit it.

    Raises:
        FormatError: it is no card, but perhaps a link to another file of this machine.
    """
    file = folder / CARD
    if not file.is_file():
        return ""
    text = file.read_text("utf-8", errors="replace")
    if not text.startswith("---\n") or "\nlibrary_name:" not in text.partition("\n---\n")[0] or "\ufffd" in text:
        raise FormatError(
            f"{file} is not a model card",
            got="no front matter with library_name, or no UTF-8",
            do="export the model again, or remove the file",
        )
    return text


@contextmanager
def _asking(name: str) -> Iterator[None]:
    """Turn errors of the hub and its client into ours. A name needs its owner: without, it depends on who asks."""
    # The client's bars are for a terminal, unless the user has set the client's own variable.
    quiet = not sys.stderr.isatty() and constants.HF_HUB_DISABLE_PROGRESS_BARS is None
    quiet = quiet and not are_progress_bars_disabled()
    try:
        if quiet:
            disable_progress_bars()
        if not isinstance(name, str) or name.count("/") != 1:
            raise HFValidationError(name)
        yield
    except TaftcacheError:
        raise
    except Exception as error:  # the client's own, its HTTP library's, and those of sockets
        raise _refused(error, name) from error
    finally:
        if quiet:
            enable_progress_bars()


def _refused(error: Exception, name: str) -> TaftcacheError:
    """What the client's ``error`` says of ``name``, by its kind and its HTTP status alone."""
    if isinstance(error, HFValidationError):
        return RecipeError("the model hub has no such names", got=str(name), do="write it as user/name")
    status = error.response.status_code if isinstance(error, HfHubHTTPError) else None
    got = f"{name}: {type(error).__name__}" + (f", HTTP {status}" if status else "")
    if isinstance(error, RevisionNotFoundError):
        return StoreUnreachable(
            "the model on the hub has no such revision", got=got, do="look at its branches and tags"
        )
    if isinstance(error, LocalTokenNotFoundError) or status in (401, 403, 404):
        if isinstance(error, RepositoryNotFoundError):
            fault = "the model hub has no such model, or does not show it to this user"
        else:
            fault = "the model hub does not let this user in"
        return StoreUnreachable(fault, got=got, do="look the name up; hf auth login, or HF_TOKEN, says who is asking")
    if status is not None:
        return StoreUnreachable("the model hub failed", got=got, do="try again later")
    return StoreUnreachable(
        "the model hub does not answer, or not as a hub does", got=got, do="look at the network, and at HF_ENDPOINT"
    )
