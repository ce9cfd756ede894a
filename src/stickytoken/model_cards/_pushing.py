"""Send a model card with its block to the hub, if the user asked for it."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from stickytoken.detection.run import Run
from stickytoken.errors import InputError, ModelError
from stickytoken.model_cards._block import card_block
from stickytoken.model_cards._card_file import with_block
from stickytoken.model_cards._eval_results import eval_results, eval_results_yaml, require_id

if TYPE_CHECKING:
    from huggingface_hub import HfApi

EVAL_FILE = ".eval_results/stickytoken.yaml"
_CARD = "README.md"
_MOST_REASON = 200


def push_card(
    run: Run, repository: str, dataset: str | None = None, endpoint: str | None = None
) -> str | None:
    """Put the block into the card of a repository on the hub, in one commit.

    The card is read at one commit, and the hub refuses the change if the repository has another one by then.

    Args:
        run: the run.
        repository: a model repository, owner/name.
        dataset: id of a benchmark data set; with it, the evaluation results are sent too.
        endpoint: address of the hub; the usual one without it.

    Returns:
        Address of the commit; None if the repository has all of it already.

    Raises:
        InputError: the repository or data set is no id, the network is switched off, or the markers in the
            card are damaged.
        ModelError: the hub cannot be reached, or refuses.
    """
    from huggingface_hub import CommitOperationAdd, HfApi, constants

    # That of its own client, whichever it is.
    from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]

    require_id("the repository", repository)
    if constants.HF_HUB_OFFLINE:
        raise InputError(f"sending to {repository} needs the network, and HF_HUB_OFFLINE is set: unset it")
    files = {} if dataset is None else {EVAL_FILE: eval_results_yaml(eval_results(run, dataset)).encode()}
    api = HfApi(endpoint=endpoint)
    try:
        found = api.model_info(repository)
        commit, present = found.sha, {each.rfilename for each in found.siblings or ()}
        before = {
            name: _read(api, repository, name, commit) if name in present else None
            for name in (_CARD, *files)
        }
        files[_CARD] = with_block(before[_CARD] or b"", card_block(run), f"{repository}/{_CARD}")
        changes = [
            CommitOperationAdd(name, content) for name, content in files.items() if content != before[name]
        ]
        if not changes:
            return None
        done = api.create_commit(
            repository, changes, commit_message="Sticky tokens, measured by stickytoken", parent_commit=commit
        )
    except (HTTPError, OSError) as error:
        reason = " ".join(str(error).split())[:_MOST_REASON]
        raise ModelError(
            f"{repository} was not changed: the hub did not accept the card ({reason})"
        ) from error
    return str(done.commit_url)


def _read(api: HfApi, repository: str, name: str, commit: str | None) -> bytes:
    with TemporaryDirectory() as folder:
        return Path(api.hf_hub_download(repository, name, revision=commit, local_dir=folder)).read_bytes()
