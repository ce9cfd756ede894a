"""The run that an explanation belongs to, and the model that it was computed with."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import polars as pl

from stickytoken.encoders.protocol import Encoder
from stickytoken.errors import RunError
from stickytoken.runs.identity import differences
from stickytoken.runs.run import Run
from stickytoken.runs.store import RunFolder

_FLAGGED = ("sticky", "topical")


def is_run(path: str | Path) -> bool:
    """Whether a path holds a run, finished or not, and no model."""
    return RunFolder(Path(path).expanduser()).holds_run()


def require_same_model(run: Run, encoder: Encoder) -> None:
    """Refuse a model that is not the one of the run.

    Raises:
        RunError: names what differs.
    """
    recorded = run.record.identity_parts.get("encoder")
    if not isinstance(recorded, dict):
        raise RunError(f"{run.path} does not say which model it looked at: run the detection again")
    if different := differences(asdict(encoder.identity), recorded):
        raise RunError(
            f"{encoder.name} is not the model that the run in {run.path} looked at (it differs in "
            f"{', '.join(different)}): pass that model, with the run's prompt and precision"
        )


def flagged_tokens(run: Run | None) -> frozenset[int]:
    """Tokens that the run calls sticky or topical."""
    if run is None:
        return frozenset()
    return frozenset(run.tokens.filter(pl.col("verdict").is_in(_FLAGGED))["token_id"].to_list())


def run_verdicts(run: Run | None) -> dict[int, str | None]:
    """Verdict of every token that the run looked at."""
    if run is None:
        return {}
    return dict(run.tokens.select("token_id", "verdict").iter_rows())
