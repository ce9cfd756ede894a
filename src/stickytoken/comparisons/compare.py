"""Compare finished runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from stickytoken.comparisons._comparability import comparability
from stickytoken.comparisons.agreement import agreements, compared_tokens
from stickytoken.comparisons.compared_run import ComparedRun, short_name
from stickytoken.comparisons.result import Comparison
from stickytoken.detection.run import Run, open_run
from stickytoken.errors import InputError
from stickytoken.validation import list_of


def compare(runs: Iterable[Run | str | Path]) -> Comparison:
    """Put finished runs side by side, in the order given. No model is needed.

    Args:
        runs: at least two runs or run folders, each once.

    Raises:
        InputError: fewer than two runs, or one twice.
        RunError: a folder that is no run, is damaged or is not finished.
    """
    opened = [open_run(each) for each in list_of("runs or run folders", "runs", runs)]
    if len(opened) < 2:
        raise InputError(
            f"a comparison needs two runs, and {len(opened)} was passed: pass another, or describe one with "
            "`stickytoken report`"
        )
    places = [run.path.resolve() for run in opened]
    if twice := [run.path for run, place in zip(opened, places, strict=True) if places.count(place) > 1]:
        raise InputError(f"the run {twice[0]} was passed twice: pass each run once")
    found = [ComparedRun(name, run) for name, run in zip(_names(opened), opened, strict=True)]
    return Comparison(tuple(found), comparability(found), agreements(found), compared_tokens(found))


def _names(runs: Sequence[Run]) -> list[str]:
    """Name the runs by model; add the method, or the folder, if that is needed to tell them apart."""
    ways: tuple[Callable[[Run], str], ...] = (
        short_name,
        lambda run: run.model_name,
        lambda run: f"{short_name(run)} ({run.record.method})",
        lambda run: f"{short_name(run)} ({run.path.name})",
    )
    for way in ways:
        names = [way(run) for run in runs]
        if len(set(names)) == len(names):
            return names
    return [f"{place}: {short_name(run)} ({run.path.name})" for place, run in enumerate(runs, start=1)]
