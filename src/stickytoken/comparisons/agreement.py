"""How far runs agree on the tokens that they share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import polars as pl

from stickytoken.comparisons.compared_run import ComparedRun, deviations

_LEAST_SHARED = 20


@dataclass(frozen=True)
class Agreement:
    """How far two runs agree on the tokens that both looked at.

    Attributes:
        first: name of one run.
        second: name of the other.
        shared: tokens that both looked at, by vocabulary string.
        sticky_in_both: of them, those that both call sticky.
        jaccard: those over the ones that either calls sticky; None where neither does.
        spearman: rank correlation of the lifts; None where too few tokens have one in both.
    """

    first: str
    second: str
    shared: int
    sticky_in_both: int
    jaccard: float | None
    spearman: float | None


@dataclass(frozen=True)
class ComparedToken:
    """A token that at least one run calls sticky.

    Attributes:
        token: its text.
        standardized_lifts: by run, how far it moves unrelated texts beyond an ordinary token, in standard
            deviations of the model's similarities; None where the run does not say.
        verdicts: by run; None where the run did not judge it.
    """

    token: str
    standardized_lifts: Sequence[float | None]
    verdicts: Sequence[str | None]


def agreements(runs: Sequence[ComparedRun]) -> tuple[Agreement, ...]:
    """Compare every pair of runs; tokens are matched by vocabulary string, which models may share."""
    return tuple(_agreement(first, second) for first, second in combinations(runs, 2))


def compared_tokens(runs: Sequence[ComparedRun]) -> tuple[ComparedToken, ...]:
    """List every token that a run calls sticky; those that most runs flag, and most strongly, first."""
    lifts = [_lifts(each) for each in runs]
    sticky = {token for each in runs for token in each.run.sticky["token"]}
    unknown = (None, None)
    found = [
        ComparedToken(
            token,
            [known.get(token, unknown)[0] for known in lifts],
            [known.get(token, unknown)[1] for known in lifts],
        )
        for token in sorted(sticky)
    ]

    def rank(each: ComparedToken) -> tuple[int, float]:
        return (
            -sum(verdict == "sticky" for verdict in each.verdicts),
            -max((value for value in each.standardized_lifts if value is not None), default=0.0),
        )

    return tuple(sorted(found, key=rank))


def _lifts(each: ComparedRun) -> dict[str, tuple[float | None, str | None]]:
    rows = each.run.tokens.select("token", "verdict", sd=deviations(each.scale))
    return {token: (sd, verdict) for token, verdict, sd in rows.iter_rows()}


def _agreement(first: ComparedRun, second: ComparedRun) -> Agreement:
    from scipy.stats import spearmanr

    columns = ("token", "lift", "verdict")
    both = (
        first.run.tokens.select(columns)
        .unique("token")
        .join(second.run.tokens.select(columns).unique("token"), on="token", suffix="_other")
    )
    left = both["verdict"].fill_null("") == "sticky"
    right = both["verdict_other"].fill_null("") == "sticky"
    either = int((left | right).sum())
    lifted = both.filter(pl.col("lift").is_not_null() & pl.col("lift_other").is_not_null())
    varied = (
        len(lifted) >= _LEAST_SHARED and min(lifted["lift"].n_unique(), lifted["lift_other"].n_unique()) > 1
    )
    return Agreement(
        first.name,
        second.name,
        len(both),
        int((left & right).sum()),
        int((left & right).sum()) / either if either else None,
        float(spearmanr(lifted["lift"], lifted["lift_other"]).statistic) if varied else None,
    )
