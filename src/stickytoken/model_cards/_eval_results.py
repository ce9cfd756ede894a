"""A run as evaluation results of the hub: a file in the folder `.eval_results` of a model repository.

The format is that of `huggingface_hub.EvalResultEntry`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from stickytoken.comparisons.compared_run import ComparedRun
from stickytoken.comparisons.result import PER, shown_deviations, shown_share
from stickytoken.detection.run import Run
from stickytoken.errors import InputError, RunError
from stickytoken.measurement.atomic import make_folder, write_atomically
from stickytoken.validation import file_path, shown

if TYPE_CHECKING:
    from huggingface_hub import EvalResultEntry

WORST_TASK = "sticky_tokens_worst_lift"
SHARE_TASK = "sticky_tokens_per_10000"
_DIGITS = 4


def eval_results(run: Run, dataset: str) -> list[EvalResultEntry]:
    """Return one entry per measure that the run has: the worst lift, and the share of sticky tokens.

    Args:
        run: the run.
        dataset: id of the benchmark data set on the hub that the entries belong to.
    """
    from huggingface_hub import EvalResultEntry

    require_id("the data set", dataset)
    each = ComparedRun(run.model_name, run)
    level = f"{100 * each.confidence:.4g}% interval"
    basis = f"{len(run.tokens)} of {run.available} available tokens, method {run.record.method}"
    found: list[tuple[str, float, str]] = []
    if each.worst is not None and each.worst.deviations is not None:
        unit = "standard deviations of the model's similarities beyond an ordinary token"
        found.append((WORST_TASK, each.worst.deviations, f"{unit}: {shown_deviations(each)}, {level}"))
    if each.share is not None:
        found.append((SHARE_TASK, PER * each.share.value, f"{shown_share(each)}, exact {level}"))
    if not found:
        raise InputError(f"the run in {run.path} has no number that stands for its model: nothing to publish")
    return [
        EvalResultEntry(
            dataset_id=dataset,
            task_id=task,
            value=round(value, _DIGITS),
            date=run.record.started,
            notes=f"{said}; {basis}",
        )
        for task, value, said in found
    ]


def require_id(what: str, name: str) -> None:
    """Refuse what cannot be the id of a repository on the hub."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise InputError(f"{what} {shown(name)} is not an id of the hub: pass owner/name") from error


def eval_results_yaml(entries: list[EvalResultEntry]) -> str:
    """Return entries as YAML."""
    import yaml
    from huggingface_hub import eval_result_entries_to_yaml

    text: str = yaml.safe_dump(eval_result_entries_to_yaml(entries), sort_keys=False, width=1000)
    return text


def write_eval_results(run: Run, dataset: str, path: str | Path) -> bool:
    """Write the entries of a run to a file of their own, whole or not at all.

    Args:
        run: the run.
        dataset: id of the benchmark data set on the hub.
        path: a YAML file, by custom in the folder `.eval_results`, which is created.

    Returns:
        Whether the file changed.

    Raises:
        InputError: the id is no data set, or the file holds other entries.
        RunError: the file cannot be read or written.
    """
    target = file_path("the file of evaluation results", path)
    entries = eval_results(run, dataset)
    content = eval_results_yaml(entries).encode()
    try:
        before = target.read_bytes() if target.exists() else None
    except OSError as error:
        raise RunError(f"{target} cannot be read: {error.strerror or error}") from error
    if before == content:
        return False
    if before is not None:
        _require_own(before, str(target))
    make_folder(target.parent)
    write_atomically(target, content)
    return True


def _require_own(content: bytes, name: str) -> None:
    """Refuse to replace entries that are not of stickytoken."""
    import yaml
    from huggingface_hub import parse_eval_result_entries

    try:
        stored: Any = yaml.safe_load(content)
        tasks = {entry.task_id for entry in parse_eval_result_entries(stored or [])}
    except (yaml.YAMLError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{name} is no file of evaluation results: choose another file for those of stickytoken"
        ) from error
    if others := sorted(tasks - {WORST_TASK, SHARE_TASK}):
        raise InputError(
            f"{name} holds other results ({', '.join(map(shown, others))}): choose another file for those of "
            "stickytoken"
        )
