"""Columns, figures and probe tables of the paper's method."""

from __future__ import annotations

from collections.abc import Sequence

from stickytoken.methods.descriptions import Column, Distribution, Figure, ProbeTable, Scatter
from stickytoken.methods.std._words import StdRun
from stickytoken.methods.std.probe import StdEvidence

_SCORE = Column("sticky_score", "sticky score", 2)
_RATE = Column("validation_rate", "validation rate", 3)
_LIFT = Column("lift", "lift", 4)
LISTED = (_SCORE, _LIFT, _RATE)
REPORTED = (_RATE, _LIFT, _SCORE)
RANKED_BY = _RATE


def figures(run: StdRun) -> list[Figure]:
    """Describe the distributions of scores and rates, and rate against lift."""
    return [
        Distribution(
            "score-distribution",
            "Sticky scores over the vocabulary",
            _SCORE,
            {"candidates": run.result.score_threshold},
            "The score of the paper's first stage, on a few sentence pairs. Tokens to the right of the "
            "dotted line were validated; the others have no verdict.",
        ),
        Distribution(
            "rate-distribution",
            "Validation rates of the candidates",
            _RATE,
            {"sticky": run.result.rate_threshold},
            "The share of unrelated pairs that a candidate pulls together. Beyond the dotted line, an "
            "outlier rule over the candidates, a token is called sticky.",
        ),
        Scatter(
            "rate-lift",
            "Validation rate against lift",
            _RATE,
            _LIFT,
            "Candidates only. The validation rate counts how many unrelated pairs come together, the lift "
            "how far. This method does not measure contraction.",
        ),
    ]


def probe_lines(probed: Sequence[StdEvidence]) -> list[ProbeTable | str]:
    """Lay out the validation rates."""
    return [
        ProbeTable(
            "Validation rate: share of unrelated pairs that the token pulls together",
            ("id", "token", "category", "rate", "prefix", "suffix", "random", "lift"),
            [
                (
                    each.token_id,
                    each.token,
                    each.category,
                    each.validation_rate["cosine"],
                    *(each.by_placement[place]["cosine"] for place in ("prefix", "suffix", "random")),
                    each.lift,
                )
                for each in probed
            ],
        ),
        f"{probed[0].pairs} pairs below the model's mean similarity; lift is the mean rise of the cosine. "
        "Compare with the rates of ordinary tokens: no rate is high or low by itself.",
    ]
