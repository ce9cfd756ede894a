"""Turn the ranks of documents with copies into rows of the intrusion tables."""

from __future__ import annotations

import math
import zlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stickytoken.impacts._conditions import Condition, Kind
from stickytoken.impacts._intrusion import COPIES
from stickytoken.impacts.settings import ImpactSettings
from stickytoken.impacts.statistics import bootstrap_samples


def intrusion_rows(
    outcomes: NDArray[np.float64],
    conditions: Sequence[Condition],
    names: Mapping[int, str],
    named: Collection[int] = (),
) -> list[dict[str, Any]]:
    """Return one row per token and number of copies: top-10 hits and median rank of a random document."""
    return [
        {
            "kind": condition.label(named),
            "token_id": condition.tokens[0].id,
            "token": names[condition.tokens[0].id],
            "copies": copies,
            "hits": float(found[:, place].mean()),
            "median_rank": float(np.median(found[:, len(COPIES) + place])),
        }
        for condition, found in zip(conditions, outcomes, strict=True)
        for place, copies in enumerate(COPIES)
    ]


def intrusion_summary(
    outcomes: NDArray[np.float64], conditions: Sequence[Condition], settings: ImpactSettings, name: str
) -> list[dict[str, Any]]:
    """Return one row per number of copies: sticky and benign hits, with intervals over documents.

    ``ratio`` divides the mean hits of sticky copies by those of benign copies; it is null if not finite.
    Ranks are medians over queries and documents, averaged over tokens.
    """
    kinds = np.array([condition.kind for condition in conditions])
    hits, ranks = outcomes[:, :, : len(COPIES)], np.median(outcomes[:, :, len(COPIES) :], axis=1)
    hits_of = {kind: hits[kinds == kind].mean(axis=0) for kind in (Kind.STICKY, Kind.BENIGN)}
    ranks_of = {kind: ranks[kinds == kind].mean(axis=0) for kind in (Kind.STICKY, Kind.BENIGN)}
    samples = bootstrap_samples(
        outcomes.shape[1], settings.resamples, [settings.seed, zlib.crc32(name.encode())]
    )
    rows = []
    for place, copies in enumerate(COPIES):
        sticky, benign = (hits_of[kind][:, place] for kind in (Kind.STICKY, Kind.BENIGN))
        drawn = np.array([_ratio(sticky[sample], benign[sample]) for sample in samples])
        ratio = _ratio(sticky, benign)
        tail = (1 - settings.confidence) / 2
        # An order statistic: some samples have no benign hit, so their ratio is infinite.
        low, high = np.quantile(drawn, [tail, 1 - tail], method="inverted_cdf").tolist()
        rows.append(
            {
                "corpus": name,
                "copies": copies,
                "hits_sticky": float(sticky.mean()),
                "hits_benign": float(benign.mean()),
                "ratio": _finite(ratio),
                "ratio_low": _finite(low),
                "ratio_high": _finite(high),
                "rank_sticky": float(ranks_of[Kind.STICKY][place]),
                "rank_benign": float(ranks_of[Kind.BENIGN][place]),
                "documents": len(sticky),
            }
        )
    return rows


def copies_needed(outcomes: NDArray[np.float64]) -> list[int | None]:
    """Return how many copies bring half of the documents into at least one more top 10; None if 32 do not.

    Args:
        outcomes: shape (tokens, documents, columns).
    """
    hits = outcomes[:, :, : len(COPIES)]
    share = (hits > hits[:, :, :1]).mean(axis=1)
    return [
        next((copies for copies, part in zip(COPIES, row, strict=True) if part >= 0.5), None) for row in share
    ]


def _ratio(sticky: NDArray[np.float64], benign: NDArray[np.float64]) -> float:
    """Divide mean sticky by mean benign hits; infinite if only the latter are 0, NaN if both are."""
    above, below = float(sticky.mean()), float(benign.mean())
    if below > 0:
        return above / below
    return math.inf if above > 0 else math.nan


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
