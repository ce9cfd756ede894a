"""Sum up an explanation in words. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stickytoken.explanation.tables import AREAS
from stickytoken.methods.entry import Verdict

_LIFT = "lift_sentences"
# Names of the measures in a sentence.
_CALLED = {
    _LIFT: "rise of similarities with unrelated texts",
    "embedding_norm": "length of its embedding",
    "embedding_distance_to_mean": "distance of its embedding from the vocabulary's mean",
    "embedding_cosine_to_mean": "cosine of its embedding with the vocabulary's mean",
    "embedding_distance_to_unused": "distance of its embedding from the mean of unused entries",
    "embedding_cosine_to_unused": "cosine of its embedding with the mean of unused entries",
    "attention_received": "share of all attention that the copies receive",
    "attention_from_others": "share of the other positions' attention that the copies receive",
    "copies_cosine_distance": "cosine distance of the copies' hidden states from those of benign tokens",
    "copies_euclidean_distance": "distance of the copies' hidden states from those of benign tokens",
    "copies_norm": "length of the copies' hidden states",
    "carrier_cosine_drift": "cosine drift of the carrier's own tokens",
    "carrier_euclidean_drift": "Euclidean drift of the carrier's own tokens",
    "pooling_share": "share of the sentence vector that the copies contribute",
    "pooling_norm_share": "copies' share of the summed lengths of the sentence vector's parts",
    "pooling_toward_mean": "contribution of the copies along the vocabulary's mean direction",
    "vector_toward_mean": "cosine of the sentence vector with the vocabulary's mean direction",
    "attributed_to_copies": "contribution of the copies to similarities with unrelated texts",
    "attributed_to_carrier": "contribution of the carrier to similarities with unrelated texts",
}
# With fewer benign tokens, an interval is so wide that a token inside it may still differ by several standard
# deviations in any measure.
ENOUGH_BENIGN = 8
# The effect comes first, then its possible causes in the order of the model.
_ORDER = ("similarity", "embedding", "attention", "hidden states", "pooling", "attribution")


@dataclass(frozen=True, slots=True)
class Finding:
    """A measure in which a token differs from benign tokens.

    Attributes:
        area: part of the model that the measure describes.
        measure: name of the measure.
        begins: first layer outside the benign interval; None if the measure has no layers.
        layer: layer where the token is furthest from the benign tokens.
        value: value of the token in that layer.
        benign_mean: mean of the benign tokens in that layer.
        deviations: difference in standard deviations of the benign tokens; None if these do not vary.
        called: name of the measure in a sentence.
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
    """List the measures with a value outside the benign interval, by area, the furthest first."""
    found = []
    for area, measures in AREAS.items():
        of_area = [each for name in measures if (each := _finding(area, name, rows)) is not None]
        found += sorted(of_area, key=lambda each: -abs(each.deviations or 0.0))
    return found


@dataclass(frozen=True, slots=True)
class RunVerdict:
    """What a run says about a token that is explained; None if it does not say it.

    Attributes:
        verdict: sticky, topical or benign.
        severity: of a flagged token.
        lift: mean rise of the similarity of unrelated texts.
        sd: the lift beyond an ordinary token's, in standard deviations of the model's similarities.
        universality: share of the kinds of text that the token lifts.
        kind: the kind of text that it lifts most; only of topical tokens.
        texts: number of texts behind the lift.
    """

    verdict: str
    severity: str | None = None
    lift: float | None = None
    sd: float | None = None
    universality: float | None = None
    kind: str | None = None
    texts: int | None = None


def verdict(
    token: str,
    token_id: int,
    rows: Sequence[dict[str, Any]],
    found: Sequence[Finding],
    benign: int,
    run: RunVerdict | None = None,
) -> str:
    """Sum up in words what differs, where it begins, how strongly, and from how many benign tokens.

    With a run, its finding comes first: it rests on more texts, so the texts of an explanation can agree with
    it or be too few to say, but not contradict it.
    """
    last_layer = max((row["layer"] for row in rows if row["layer"] is not None), default=None)
    measures = len({row["measure"] for row in rows})
    who = f"{token!r} ({token_id})"
    against = f"{benign} matched benign tokens"
    strongest: dict[str, Finding] = {}
    for each in found:
        strongest.setdefault(each.area, each)
    if run is not None:
        causes = [_said(strongest[area], last_layer) for area in _ORDER[1:] if area in strongest]
        listed = f": {'; '.join(causes)}" if causes else ""
        return (
            f"{who}: {_beside_run(run, rows)} Beyond the interval of {against}: {len(found)} of {measures} "
            f"measures{listed}."
        )
    if not found and benign < ENOUGH_BENIGN:
        return _too_few(who, rows, benign)
    parts = [_said(strongest[area], last_layer) for area in _ORDER if area in strongest]
    if "similarity" not in strongest and (lift := _compared_lift(rows)) is not None:
        parts.insert(0, _inconclusive(lift))
    if not found:
        parts.insert(0, f"{who}: none of {measures} measures is outside the interval of {against}")
        return "; ".join(parts) + "."
    return f"{who} differs from {against} in {len(found)} of {measures} measures: {'; '.join(parts)}."


def _too_few(who: str, rows: Sequence[dict[str, Any]], benign: int) -> str:
    """Say that so few benign tokens allow no conclusion, and what was measured."""
    lift = next((row for row in rows if row["measure"] == _LIFT and row["value"] is not None), None)
    measured = ""
    if lift is not None:
        value, theirs = lift["value"], lift["benign_mean"]
        measured = f"; the {_CALLED[_LIFT]} is {value:.3f} (mean of the benign tokens {theirs:.3f})"
    return (
        f"{who}: {benign} matched benign tokens are too few to say whether it differs "
        f"({ENOUGH_BENIGN} are needed){measured}."
    )


def _compared_lift(rows: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the row of the lift; None if it could not be compared with benign tokens."""
    return next((row for row in rows if row["measure"] == _LIFT and row["outside"] is not None), None)


def _inconclusive(lift: Mapping[str, Any]) -> str:
    """Describe a lift inside the benign interval, which is no evidence that the token has none."""
    return (
        f"over {_texts(lift['carriers'])}, the {_CALLED[_LIFT]} is {lift['value']:.3f} (mean of "
        f"{lift['benign_tokens']} benign tokens {lift['benign_mean']:.3f}), and {_includes_zero(lift)}"
    )


def _includes_zero(lift: Mapping[str, Any]) -> str:
    low, high = lift["value"] - lift["benign_high"], lift["value"] - lift["benign_low"]
    return f"the interval of the difference, {low:+.3f} to {high:+.3f}, includes zero"


def _beside_run(run: RunVerdict, rows: Sequence[dict[str, Any]]) -> str:
    """Say what the run found, then whether the lift over the texts of the explanation agrees with it."""
    said = f"the run calls it {run.verdict}" + (f" ({run.severity})" if run.severity else "")
    numbers = []
    if run.lift is not None:
        numbers.append(f"lift {run.lift:.4f}" + (f" over {_texts(run.texts)}" if run.texts else ""))
    if run.sd is not None:
        numbers.append(f"{run.sd:.2f} SD beyond an ordinary token's")
    if run.universality is not None:
        numbers.append(f"on {run.universality:.0%} of the kinds of text")
    if run.kind is not None:
        numbers.append(f"most on {run.kind}")
    said += f": {', '.join(numbers)}." if numbers else "."
    lift = _compared_lift(rows)
    return said if lift is None else f"{said} {_own_texts(lift, run)}"


def _own_texts(lift: Mapping[str, Any], run: RunVerdict) -> str:
    value, texts = lift["value"], _texts(lift["carriers"])
    said = f"Over {texts}, the {_CALLED[_LIFT]} is {value:.3f} (benign tokens {lift['benign_mean']:.3f}"
    said += ")" if lift["deviations"] is None else f", {lift['deviations']:+.1f} SD)"
    rises = bool(lift["outside"]) and value > lift["benign_mean"]
    if rises == (run.verdict != Verdict.BENIGN):
        return f"{said}, consistent with the run."
    if lift["outside"]:
        return f"{said}: too few texts and benign tokens to question the run."
    return f"{said}; {_includes_zero(lift)}: too few texts and benign tokens to say."


def _texts(count: int) -> str:
    return "1 text" if count == 1 else f"{count} texts"


def _said(finding: Finding, last_layer: int | None) -> str:
    notes = [f"benign {finding.benign_mean:.3f}"]
    if finding.deviations is not None:
        notes.append(f"{finding.deviations:+.1f} SD")
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
