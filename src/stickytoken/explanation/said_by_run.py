"""What the run that an explanation belongs to says about tokens."""

from __future__ import annotations

from stickytoken.detection.flagged import flagged_ids
from stickytoken.detection.run import Run


def flagged_tokens(run: Run | None) -> frozenset[int]:
    """Ids of the tokens that the run calls sticky or topical; none without a run."""
    if run is None:
        return frozenset()
    return frozenset(flagged_ids(run.tokens))


def run_verdicts(run: Run | None) -> dict[int, str | None]:
    """Verdict of every token that the run looked at, by id; none without a run."""
    if run is None:
        return {}
    return dict(run.tokens.select("token_id", "verdict").iter_rows())
