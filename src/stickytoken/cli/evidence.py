"""How a probe's evidence is printed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stickytoken.cli.output import print_table, say

if TYPE_CHECKING:
    from stickytoken.detection import Evidence, ProfileEvidence

_SHOWN_COPIES = (0, 1, 2, 4, 8, 16, 32)


def print_rates(evidence: Sequence[Evidence]) -> None:
    """Print what the method std says."""
    print_table(
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
            for each in evidence
        ],
    )
    say(
        f"{evidence[0].pairs} pairs below the model's mean similarity; lift is the mean rise of the cosine. "
        "Compare with the rates of ordinary tokens: no rate is high or low by itself."
    )


def print_profiles(evidence: Sequence[ProfileEvidence]) -> None:
    """Print what the method profile says, and the symptom curves."""
    print_table(
        "Lift: mean rise of the similarity of unrelated texts",
        ("id", "token", "category", "lift", "low", "high", "universality", "severity", "verdict"),
        [
            (
                each.token_id,
                each.token,
                each.category,
                each.lift,
                each.lift_low,
                each.lift_high,
                each.universality,
                each.severity,
                each.verdict,
            )
            for each in evidence
        ],
    )
    for side in ("below", "above"):
        _print_curves(evidence, side)
    first = evidence[0]
    say(
        f"An ordinary token lifts by {first.ordinary_lift:.4f}. "
        "Sticky tokens pull both kinds of pairs toward one value; "
        f"the model's mean similarity is {first.mean_similarity:.4f}."
    )


def _print_curves(evidence: Sequence[ProfileEvidence], side: str) -> None:
    curve = evidence[0].curve
    places = [place for place, copies in enumerate(curve.copies) if copies in _SHOWN_COPIES]
    rows = [(each.token, getattr(each.curve, side)) for each in evidence]
    rows.append(("(ordinary tokens)", getattr(curve, f"ordinary_{side}")))
    if not getattr(curve, side):
        say(f"No pair of these texts lies {side} the model's mean similarity.")
        return
    print_table(
        f"Similarity of pairs {side} the mean similarity, by number of copies",
        ("token", *(str(curve.copies[place]) for place in places)),
        [(token, *(values[place] for place in places)) for token, values in rows if values],
    )
