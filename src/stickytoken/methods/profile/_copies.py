"""Allow for copies that merged into other tokens before the model saw them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stickytoken.encoders.protocol import Encoder
from stickytoken.methods.profile.estimates import Ids, Measurements, Vector, measurements
from stickytoken.methods.profile.stage import ProfileStage
from stickytoken.methods.pull import Pull

# With fewer than half of its share left, a token is hardly in the text: its lift is not made up further.
_MOST = 2.0


def round_measurements(rows: pl.DataFrame, stage: ProfileStage, encoder: Encoder) -> Measurements:
    """Turn the rows of a round into measurements of as many copies as were planned."""
    return allowing_for_merges_of(measurements(rows, len(stage.carriers)), stage, encoder)


def allowing_for_merges_of(measured: Measurements, stage: ProfileStage, encoder: Encoder) -> Measurements:
    """Scale the measurements of a round to the number of copies that was planned."""
    lengths = list(map(len, encoder.content_ids(stage.carrier_texts)))
    return allowing_for_merges(measured, [cell.copies for cell in stage.cells], lengths)


def allowing_for_merges(
    measured: Measurements, copies: Sequence[int], lengths: Sequence[int]
) -> Measurements:
    """Scale measurements to the number of copies that was planned.

    What m copies do in a text of L other tokens grows about as their share of it, m / (m + L). A probe in
    which the tokenizer saw fewer copies than planned is scaled by the ratio of the shares, at most twofold.

    Args:
        measured: of one round.
        copies: planned in each of K carriers.
        lengths: tokens of each carrier.
    """
    if measured.seen is None:
        return measured
    planned, tokens = np.array(copies, dtype=np.float64), np.array(lengths, dtype=np.float64)
    seen = np.minimum(measured.seen, planned)
    factors = _shares(planned, tokens) / np.maximum(_shares(seen, tokens), np.finfo(float).tiny)
    factors = np.clip(factors, 1.0, _MOST)
    mean = factors.mean(axis=1)
    return replace(
        measured,
        lifts=measured.lifts * factors,
        groups=(measured.groups * factors[:, :, None]).astype(measured.groups.dtype),
        effects=Pull(
            measured.effects.contraction * mean,
            (measured.effects.pull * mean[:, None]).astype(measured.effects.pull.dtype),
        ),
    )


def shares_seen(rounds: Sequence[Measurements], ids: Ids, copies: Sequence[Vector]) -> Vector:
    """Say which share of its planned copies the tokenizer saw of each token, in the last round that has it.

    Args:
        rounds: measurements, the last one last.
        ids: tokens of the first round.
        copies: planned in each carrier of each round.

    Returns:
        Shape (T,); NaN where copies were not counted.
    """
    shares = np.full(len(ids), np.nan)
    for measured, planned in zip(rounds, copies, strict=True):
        if measured.seen is not None:
            rows = np.searchsorted(ids, measured.ids)
            shares[rows] = np.minimum(measured.seen, planned).sum(axis=1) / planned.sum()
    return shares


def _shares(copies: NDArray[np.float64], lengths: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(copies / np.maximum(copies + lengths, 1.0))
