"""Turn the rows of the rounds into tokens.parquet of the profile method."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stickytoken.methods.profile.estimates import (
    Ids,
    Measurements,
    TokenEstimates,
    Vector,
    estimate,
    lifts_of,
)
from stickytoken.methods.profile.record import ProfilePlanRecord
from stickytoken.methods.profile.rounds import Round
from stickytoken.methods.profile.settings import ProfileSettings
from stickytoken.methods.profile.verdict import (
    LEAST_NULL_TOKENS,
    find_lifts,
    severities,
    universality,
    verdicts,
)
from stickytoken.methods.pull import Pull, fixed_points
from stickytoken.methods.verdicts import Verdict

MEASURED_COLUMNS = (
    "token_id",
    "token",
    "decoded",
    "category",
    "texts",
    "lift",
    "lift_low",
    "lift_high",
    "lift_words",
    "universality",
    "kind",
    "validation_rate",
    "contraction",
    "fixed_point",
    "q_value",
    "severity",
    "verdict",
)
TOKEN_COLUMNS = (*MEASURED_COLUMNS, "precision")
# Fewer carriers say nothing about their noise.
_LEAST_CARRIERS = 2


class Findings(NamedTuple):
    """The finished table and what the verdicts rest on.

    Attributes:
        tokens: one row per measured token.
        ordinary_lift: lift of the typical token.
        ordinary_spread: standard deviation of the lifts of ordinary tokens.
        empirical_null: whether false discoveries are controlled.
    """

    tokens: pl.DataFrame
    ordinary_lift: float
    ordinary_spread: float
    empirical_null: bool


def decide(
    vocabulary: pl.DataFrame,
    available: int,
    rounds: Mapping[Round, Measurements],
    plan: ProfilePlanRecord,
    unselected: Ids,
    settings: ProfileSettings,
    center: Vector,
) -> Findings:
    """Estimate, test and judge every token.

    Args:
        vocabulary: token_id, token, decoded, category.
        available: number of its available tokens, measured or not.
        rounds: measurements; the last round has the random tokens of the pilot too.
        plan: plan of the run.
        unselected: ids of the unselected tokens of the first round.
        settings: settings of the method.
        center: mean vector of the anchors that the lift is measured on, shape (d,).
    """
    late = np.array(plan.late_reference)
    tokens = estimate(*lifts_of(rounds), unselected, late, settings.confidence, plan.call_noise)
    smallest = settings.smallest_effect * plan.similarity_spread
    lifting = find_lifts(tokens, len(unselected), available, smallest, settings.fdr)
    # Tokens that were selected by their lift must not define what is ordinary in the last round.
    known = _latest(rounds, tokens.ids, {Round.SCREEN: unselected, Round.CONFIRM: late})
    on_kinds = _on_kinds(rounds, plan, unselected, available, settings)
    unknown = np.full(len(tokens.ids), np.nan)
    words = known.groups[:, -1] + known.levels[-1] if plan.vocabulary_anchors else unknown
    columns = {
        "token_id": tokens.ids,
        "texts": tokens.texts,
        "lift": tokens.lift.value + tokens.level,
        "lift_low": tokens.lift.low + tokens.level,
        "lift_high": tokens.lift.high + tokens.level,
        "lift_words": words,
        "validation_rate": known.rising,
        "contraction": known.effects.contraction,
        "fixed_point": fixed_points(known.effects, center),
        "q_value": unknown if lifting.q_values is None else lifting.q_values,
        **_verdict_columns(tokens, lifting.found, known, on_kinds, plan, settings),
    }
    strings = dict.fromkeys(("kind", "severity", "verdict"), pl.String)
    table = pl.DataFrame(columns, schema_overrides=strings).with_columns(pl.col(pl.Float64).fill_nan(None))
    return Findings(
        table.join(vocabulary, on="token_id", how="left", validate="1:1")
        .select(*MEASURED_COLUMNS)
        .sort("token_id"),
        tokens.null.center + tokens.level,
        tokens.null.spread,
        lifting.q_values is not None,
    )


def _verdict_columns(
    tokens: TokenEstimates,
    lifting: NDArray[np.bool_],
    known: _Latest,
    on_kinds: NDArray[np.bool_],
    plan: ProfilePlanRecord,
    settings: ProfileSettings,
) -> dict[str, Any]:
    """Judge the tokens; a topical one is graded, and named, by the kind of text that it lifts most."""
    kinds = np.array([group.kind for group in plan.groups])
    spreads = np.array([group.spread for group in plan.groups])
    universal = universality(known.groups[:, kinds], spreads[kinds], settings.smallest_effect)
    on_a_kind = np.asarray(on_kinds.any(axis=1))
    found = verdicts(lifting, on_a_kind, universal)
    effects = (tokens.lift.value - tokens.null.center) / plan.similarity_spread
    topical = on_a_kind & np.array([verdict is Verdict.TOPICAL for verdict in found])
    by_kind = np.where(on_kinds, known.groups / spreads, -np.inf)
    names = [group.name for group in plan.groups]
    most = [names[place] if own else None for place, own in zip(by_kind.argmax(axis=1), topical, strict=True)]
    effects = np.where(topical, np.maximum(effects, by_kind.max(axis=1)), effects)
    return {
        "universality": universal,
        "kind": most,
        "severity": severities(effects, found),
        "verdict": found,
    }


class _Latest(NamedTuple):
    """What the last round that each token reached says of it.

    Attributes:
        groups: lifts above the ordinary token's by group of anchors, shape (T, G).
        levels: lift of the ordinary token by group in the last round, shape (G,).
        rising: share of the pairs that rise, shape (T,).
        effects: contraction and pull.
    """

    groups: Vector
    levels: Vector
    rising: Vector
    effects: Pull


def _latest(rounds: Mapping[Round, Measurements], ids: Ids, reference: Mapping[Round, Ids]) -> _Latest:
    first = rounds[Round.SCREEN]
    groups, rising = np.full((len(ids), first.groups.shape[2]), np.nan), np.full(len(ids), np.nan)
    contraction, pull = first.effects.contraction.copy(), first.effects.pull.copy()
    levels = np.empty(0)
    for step in (step for step in (Round.SCREEN, Round.CONFIRM) if step in rounds):
        measured = rounds[step]
        rows, means = first.rows(measured.ids), measured.group_means()
        levels = np.median(means[np.isin(measured.ids, reference[step])], axis=0)
        groups[rows], rising[rows] = means - levels, measured.rising.mean(axis=1)
        contraction[rows], pull[rows] = measured.effects
    return _Latest(groups, levels, rising, Pull(contraction, pull))


def _on_kinds(
    rounds: Mapping[Round, Measurements],
    plan: ProfilePlanRecord,
    unselected: Ids,
    available: int,
    settings: ProfileSettings,
) -> NDArray[np.bool_]:
    """Find outliers on one of several groups of the lift, with false discoveries controlled over all groups.

    Many words lift the texts that they are about; what is rare among them is worth a name.

    Returns:
        Shape (T, G).
    """
    found = np.zeros((len(rounds[Round.SCREEN].ids), len(plan.groups)), dtype=np.bool_)
    of_lift = [place for place, group in enumerate(plan.groups) if group.weight > 0]
    if len(of_lift) < 2 or len(unselected) < LEAST_NULL_TOKENS:
        return found
    late = np.array(plan.late_reference)
    for group in of_lift:
        first, last = lifts_of(rounds, group)
        if min(each.values.shape[1] for each in (first, last) if each is not None) < _LEAST_CARRIERS:
            continue
        tokens = estimate(first, last, unselected, late, settings.confidence, plan.call_noise)
        smallest = settings.smallest_effect * plan.groups[group].spread
        fdr = settings.fdr / len(of_lift)
        on_group = find_lifts(tokens, len(unselected), available, smallest, fdr, outliers_only=True)
        found[:, group] = on_group.found
        if last is not None:  # the few texts of the first round are not enough to name a kind
            found[:, group] &= np.isin(first.ids, last.ids)
    return found
