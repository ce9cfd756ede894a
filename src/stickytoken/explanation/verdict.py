"""What an explanation says in words. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stickytoken.explanation.tables import AREAS

# What a measure is called in a sentence.
_CALLED = {
    "lift_sentences": "rise of similarities with unrelated texts",
    "embedding_norm": "length of its embedding",
    "embedding_distance_to_mean": "distance of its embedding to the vocabulary's mean",
    "embedding_cosine_to_mean": "cosine of its embedding to the vocabulary's mean",
    "embedding_distance_to_unused": "distance of its embedding to the mean of unused entries",
    "embedding_cosine_to_unused": "cosine of its embedding to the mean of unused entries",
    "attention_received": "share of all attention that the copies receive",
    "attention_from_others": "share of the other positions' attention that the copies receive",
    "copies_cosine_distance": "cosine distance of the copies' hidden states to those of benign tokens",
    "copies_euclidean_distance": "distance of the copies' hidden states to those of benign tokens",
    "copies_norm": "length of the copies' hidden states",
    "carrier_cosine_drift": "cosine drift of the carrier's own tokens",
    "carrier_euclidean_drift": "Euclidean drift of the carrier's own tokens",
    "pooling_share": "share of the sentence vector that the copies supply",
    "pooling_norm_share": "share of the copies in the lengths of the sentence vector's parts",
    "pooling_toward_mean": "what the copies supply along the vocabulary's mean direction",
    "vector_toward_mean": "cosine of the sentence vector to the vocabulary's mean direction",
    "attributed_to_copies": "what the copies add to similarities with unrelated texts",
    "attributed_to_carrier": "what the carrier adds to similarities with unrelated texts",
}
# The effect first, then what may cause it in the order of the model.
_ORDER = ("similarity", "embedding", "attention", "hidden states", "pooling", "attribution")


@dataclass(frozen=True, slots=True)
class Finding:
    """A measure in which a token differs from benign ones.

    Attributes:
        area: what it is about.
        measure: its name.
        begins: first layer outside the benign interval; None where there is one value only.
        layer: layer where the token is furthest from the benign ones.
        value: there.
        benign_mean: there.
        deviations: there, in standard deviations of the benign tokens; None where they do not vary.
        called: the measure in words.
    """

    area: str
    measure: str
    begins: int | None
    layer: int | None
    value: float
    benign_mean: float
    deviations: float | None
    called: str


def findings(rows: Sequence[dict[str, Any]]) -> list[Finding]:
    """Measures with a value outside the benign interval, area by area, the furthest first.

    Args:
        rows: of one token, as `measure_rows` gives them.
    """
    found = []
    for area, measures in AREAS.items():
        of_area = [each for name in measures if (each := _finding(area, name, rows)) is not None]
        found += sorted(of_area, key=lambda each: -abs(each.deviations or 0.0))
    return found


def verdict(
    token: str, token_id: int, rows: Sequence[dict[str, Any]], found: Sequence[Finding], benign: int
) -> str:
    """One sentence: what differs, where it begins, how strongly, against how many benign tokens.

    Args:
        token: the vocabulary string.
        token_id: its id.
        rows: of the token, as `measure_rows` gives them.
        found: its findings.
        benign: number of benign tokens.
    """
    last_layer = max((row["layer"] for row in rows if row["layer"] is not None), default=None)
    measures = len({row["measure"] for row in rows})
    who = f"{token!r} ({token_id})"
    against = f"{benign} matched benign tokens"
    if not found:
        return f"{who} does not differ from {against} in any of {measures} measures."
    strongest: dict[str, Finding] = {}
    for each in found:
        strongest.setdefault(each.area, each)
    said = [_said(strongest[area], last_layer) for area in _ORDER if area in strongest]
    if "similarity" not in strongest:
        said.insert(0, "similarities with unrelated texts rise no more than theirs")
    return f"{who} differs from {against} in {len(found)} of {measures} measures: {'; '.join(said)}."


def _said(finding: Finding, last_layer: int | None) -> str:
    notes = [f"benign {finding.benign_mean:.3f}"]
    if finding.deviations is not None:
        notes.append(f"{finding.deviations:+.1f} sd")
    if finding.begins is not None:
        begins = "at the embeddings" if finding.begins == 0 else f"in layer {finding.begins} of {last_layer}"
        notes.append(f"begins {begins}")
        if finding.layer != finding.begins:
            notes.append(f"furthest in layer {finding.layer}")
    return f"{finding.called} {finding.value:.3f} ({', '.join(notes)})"


def _finding(area: str, name: str, rows: Sequence[dict[str, Any]]) -> Finding | None:
    outside = [row for row in rows if row["measure"] == name and row["outside"]]
    if not outside:
        return None
    furthest = max(outside, key=lambda row: (abs(row["deviations"] or 0.0), -(row["layer"] or 0)))
    layers = [row["layer"] for row in outside if row["layer"] is not None]
    return Finding(
        area=area,
        measure=name,
        begins=min(layers) if layers else None,
        layer=furthest["layer"],
        value=furthest["value"],
        benign_mean=furthest["benign_mean"],
        deviations=furthest["deviations"],
        called=_CALLED[name],
    )
