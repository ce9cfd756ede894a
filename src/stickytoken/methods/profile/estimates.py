"""Estimate every token from the measurements of the rounds. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stickytoken.encoders.protocol import Encoder
from stickytoken.encoders.views import View
from stickytoken.errors import InputError
from stickytoken.measurement import ResultFolder
from stickytoken.methods import statistics
from stickytoken.methods.probes import Vector
from stickytoken.methods.profile.plan import ProfileStage, Round, view_columns
from stickytoken.methods.statistics import Estimates, Null, Pull, TokenEffects

# Noise below this share of the mean square is rounding.
_ROUNDING = 1e-20
# Rows of a large vocabulary that are computed with at a time.
_ROWS = 8192

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Measurements:
    """Measurements of one round; T tokens, K carriers, G groups of anchors."""

    ids: Ids  # ascending, shape (T,)
    lifts: Vector  # on the anchors that the run is about, shape (T, K)
    rising: NDArray[np.float32]  # share of those pairs that rise, shape (T, K)
    groups: NDArray[np.float32]  # lifts by group, NaN where a carrier has no pair with it, shape (T, K, G)
    effects: Pull
    contractions: Vector  # by carrier, shape (T, K)
    seen: NDArray[np.int64] | None = None  # copies that the tokenizer saw, if counted, shape (T, K)

    def rows(self, ids: Ids) -> NDArray[np.intp]:
        return np.searchsorted(self.ids, ids)

    def chosen(self, rows: NDArray[np.intp], carriers: list[int]) -> Measurements:
        # The effects stay those of all carriers.
        both = np.ix_(rows, np.array(carriers, dtype=np.intp))
        by_carrier = {name: values[both] for name, values in self._by_carrier().items()}
        effects = Pull(self.effects.contraction[rows], self.effects.pull[rows])
        return replace(self, ids=self.ids[rows], effects=effects, **by_carrier)

    def _by_carrier(self) -> dict[str, NDArray[Any]]:
        names = ("lifts", "rising", "groups", "contractions", "seen")
        return {name: values for name in names if (values := getattr(self, name)) is not None}

    def on_group(self, group: int) -> Vector:
        lifts = self.groups[:, :, group].astype(np.float64)
        return lifts[:, np.isfinite(lifts).all(axis=0)]

    def group_means(self) -> Vector:
        return statistics.present_mean(self.groups.astype(np.float64).transpose(1, 0, 2))


def measurements(rows: pl.DataFrame, carriers: int, view: View | None = None) -> Measurements:
    ordered = rows.sort("token_id")
    ids = ordered["token_id"].to_numpy().astype(np.int64)
    seen = _matrix(ordered, "seen") if "seen" in ordered.columns else None
    if view is None:
        named = ("lifts", "rising", "groups", "contractions")
        lifts, rising, groups, contractions = (_matrix(ordered, column) for column in named)
        effects = Pull(ordered["contraction"].to_numpy(writable=True), _matrix(ordered, "pull"))
    else:
        numbers, pull = (_matrix(ordered, column) for column in view_columns(view))
        numbers, contractions = numbers[:, :-carriers], numbers[:, -carriers:]
        lifts = numbers[:, :carriers]
        rising = numbers[:, carriers : 2 * carriers].astype(np.float32)
        groups = numbers[:, 2 * carriers : -1].astype(np.float32)
        effects = Pull(numbers[:, -1].copy(), pull)
    groups = groups.reshape(len(ids), carriers, -1)
    return Measurements(ids, lifts, rising, groups, effects, contractions.astype(np.float64), seen)


def _matrix(ordered: pl.DataFrame, column: str) -> NDArray[Any]:
    # Python numbers would take a gigabyte for a large vocabulary.
    flat = ordered[column].explode().to_numpy(writable=True)
    return flat.reshape(len(ordered), len(flat) // max(1, len(ordered)))


def together(first: Measurements, second: Measurements) -> Measurements:
    ids = np.concatenate([first.ids, second.ids])
    order = np.argsort(ids)

    def joined(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(np.concatenate([a, b])[order])

    effects = Pull(*(joined(a, b) for a, b in zip(first.effects, second.effects, strict=True)))
    others = second._by_carrier()
    by_carrier = {name: joined(values, others[name]) for name, values in first._by_carrier().items()}
    return replace(first, ids=ids[order], effects=effects, **by_carrier)


# With fewer unselected tokens, the null distribution cannot be estimated.
LEAST_NULL_TOKENS = 200


class TokenEstimates(NamedTuple):
    """Estimates of every token; effects are relative to the typical token."""

    ids: Ids  # ascending
    texts: NDArray[np.int64]  # number of texts behind each estimate
    lift: Estimates
    tested: Estimates  # without shrinkage; p-values are computed from them
    null: Null  # distribution of ordinary tokens
    level: float  # lift of the mean token; added to an effect it gives the lift itself
    # Tokens that have a null of their own, shape (T,), and that null.
    nulls: Sequence[tuple[NDArray[np.bool_], Null]] = ()

    def exceedance(self) -> Vector:
        """Compute p-values: how often an ordinary token of the same kind of entry comes out as high."""
        found = self.null.exceedance(self.tested)
        for own, null in self.nulls:
            found[own] = null.exceedance(Estimates(*(column[own] for column in self.tested)))
        return found

    def standard(self) -> Vector:
        center, spread = np.full(len(self.ids), self.null.center), np.full(len(self.ids), self.null.spread)
        for own, null in self.nulls:
            center[own], spread[own] = null.center, null.spread
        scale = np.hypot(spread, self.tested.error)
        distance = self.tested.value - center
        return np.asarray(np.divide(distance, scale, out=np.zeros_like(distance), where=scale > 0))


class Lifts(NamedTuple):
    ids: Ids  # ascending
    values: Vector  # lifts, or other values by carrier, shape (T, K)


def estimate(
    first: Lifts,
    last: Lifts | None,
    reference: Ids,
    late_reference: Ids,
    confidence: float,
    call_noise: float = 0.0,
    kinds: Sequence[NDArray[np.bool_]] = (),
) -> TokenEstimates:
    """Estimate every token from the last round that it reached, on the scale of the last of all."""
    # The texts of a later round had no part in choosing its tokens. The others get the posterior of the
    # first. Kinds, masks over the tokens of the first round, get a null of their own if they are enough.
    unselected, probes = np.isin(first.ids, reference), first.values.shape[1]
    centred = statistics.centre_probes(first.values, unselected)
    values, tokens = centred.mean(axis=1), int(unselected.sum())
    if tokens < 2 or probes < 2:
        raise InputError(f"{tokens} tokens with {probes} probes each: two of both are needed")
    # The variance of one probe around its token's effect: the residual mean square.
    residuals = centred[unselected] - values[unselected, None]
    variance = float((residuals**2).sum() / ((tokens - 1) * (probes - 1)))
    noise = max(variance, call_noise**2) / probes
    if noise <= _ROUNDING * float((first.values**2).mean()):
        raise InputError(
            "every token moves the similarities equally: the model does not tell texts apart, "
            "or there is only one token to measure"
        )
    tested = Estimates(values, np.full(len(values), np.sqrt(noise)), values, values)
    spread = float(values[unselected].var(ddof=1))
    effects = max(0.0, spread - noise)
    lift = statistics.shrunk(values, noise, effects, confidence)
    null, texts = Null.fit(values[unselected], noise), np.full(len(values), probes)
    nulls = [
        (own, Null.fit(values[own & unselected], float(tested.error[0] ** 2)))
        for own in kinds
        if (own & unselected).sum() >= LEAST_NULL_TOKENS
    ]
    if last is None:
        return TokenEstimates(
            first.ids, texts, lift, tested, null, float(first.values[unselected].mean()), nulls
        )
    # The carriers of the last round may move more than those of the first, or less.
    rows, own = np.searchsorted(first.ids, last.ids), np.isin(last.ids, late_reference)
    reliability = effects / spread if spread > 0 else 0.0
    scale = statistics.scale_between(values[rows[own]], reliability, last.values[own].mean(axis=1))
    expected = scale * lift.value[rows]
    centred = statistics.centre_probes(last.values, own, expected)
    # The carriers' common effects are known from few tokens: an error that all estimates share.
    common = float((centred.mean(axis=1) - expected)[own].var(ddof=1)) / int(own.sum())
    confirmed = statistics.mean_with_interval(centred, confidence, common, call_noise**2)
    texts[rows] = last.values.shape[1]
    lift, tested = lift.scaled(scale), tested.scaled(scale)
    for into in (lift, tested):
        for target, source in zip(into, confirmed, strict=True):
            target[rows] = source
    level = float((last.values[own] - expected[own, None]).mean())
    nulls = [(own, null.scaled(scale)) for own, null in nulls]
    return TokenEstimates(first.ids, texts, lift, tested, null.scaled(scale), level, nulls)


def _blocks(values: NDArray[Any]) -> Iterator[NDArray[Any]]:
    return (values[start : start + _ROWS] for start in range(0, max(1, len(values)), _ROWS))


# Ridge penalties to choose from, relative to the mean squared length of the features.
_PENALTIES = np.geomspace(1e-2, 1e3, 16)


def calibrate(
    predicted: Vector,
    features: Sequence[NDArray[np.floating[Any]]],
    measured: NDArray[np.intp],
    lifts: Vector,
    noise: float,
) -> tuple[Vector, float]:
    """Fit the measured lifts of some tokens by a line in the predicted ones, and residuals by features."""
    # Return the lifts of all tokens, and how far they are off for tokens that had no part in it. A question
    # takes copies in another way than a statement does; what differs depends on the token, in directions that
    # measured tokens show. The ridge penalty is the best of several by leave-one-out cross-validation, the
    # infinite one included (Golub, Heath and Wahba 1979). Every group of features counts alike.
    # A line by least squares; its slope is 0 where the predictions do not vary.
    deviations = predicted[measured] - predicted[measured].mean()
    variation = float(deviations @ deviations)
    slope = float(deviations @ lifts) / variation if variation > 0 else 0.0
    line = float(lifts.mean() - slope * predicted[measured].mean()) + slope * predicted
    left = lifts - line[measured]
    centers = [group[measured].mean(axis=0, dtype=np.float64) for group in features]
    parts = [group[measured] - center for group, center in zip(features, centers, strict=True)]
    scales = [float(np.sqrt(np.square(part).sum(axis=1).mean())) or 1.0 for part in parts]
    own = np.column_stack([part / scale for part, scale in zip(parts, scales, strict=True)])
    places, lengths, directions = np.linalg.svd(own, full_matrices=False)
    inside, values = places.T @ left, lengths**2
    best, weights = float((left**2).mean()), np.zeros(own.shape[1])
    for penalty in _PENALTIES * max(float(values.sum()) / len(left), np.finfo(float).tiny):
        kept = values / (values + penalty)
        errors = (left - places @ (kept * inside)) / (1 - (places**2) @ kept)
        if (found := float((errors**2).mean())) < best:
            best, weights = found, directions.T @ (lengths * inside / (values + penalty))
    fitted, begin = line.copy(), 0
    # Group by group: the features of a large vocabulary are never copied as a whole.
    for group, center, scale in zip(features, centers, scales, strict=True):
        of_group = weights[begin : begin + group.shape[1]] / scale
        fitted += group @ of_group.astype(group.dtype) - center @ of_group
        begin += group.shape[1]
    return fitted, float(np.sqrt(max(best - noise, 0.0)))


# With fewer than half of its share left, a token is hardly in the text: its lift is not made up further.
_MOST = 2.0


def round_measurements(
    rows: pl.DataFrame, stage: ProfileStage, encoder: Encoder, view: View | None = None
) -> Measurements:
    # What m copies do among L other tokens grows about as their share, m / (m + L). Where the tokenizer saw
    # fewer than planned, it is scaled by the ratio of the shares, at most twofold.
    measured = measurements(rows, len(stage.carriers), view)
    if measured.seen is None:
        return measured
    planned = np.array([cell.copies for cell in stage.cells], dtype=np.float64)
    tokens = np.array(list(map(len, encoder.content_ids(stage.carrier_texts))), dtype=np.float64)

    def shares(copies: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(copies / np.maximum(copies + tokens, 1.0))

    seen = np.minimum(measured.seen, planned)
    factors = np.clip(shares(planned) / np.maximum(shares(seen), np.finfo(float).tiny), 1.0, _MOST)
    mean, (contraction, pull), contractions = factors.mean(axis=1), measured.effects, measured.contractions
    return replace(
        measured,
        lifts=measured.lifts * factors,
        groups=(measured.groups * factors[:, :, None]).astype(measured.groups.dtype),
        effects=Pull(contraction * mean, (pull * mean[:, None]).astype(pull.dtype)),
        contractions=contractions * factors,
    )


EFFECTS_COLUMNS = ("token_id", "round", "contraction", "pull")
# 150,000 tokens keep 1,789 of 4,096 axes, 44%. With that share, lifts on four other corpora agree with
# those of whole pulls at a Spearman correlation of at least 0.998 (all-mpnet-base-v2, 768 dimensions) and
# 0.962 (all-MiniLM-L6-v2, 384).
MOST_BYTES = 512 * 2**20


def effect_files(view: View | None) -> tuple[str, str]:
    suffix = "" if view is None else f"-{view.key}"
    return f"effects{suffix}.parquet", f"effects_axes{suffix}.parquet"


EFFECTS_FILE, AXES_FILE = effect_files(None)


def write_effects(
    folder: ResultFolder,
    rounds: Mapping[Round, Measurements],
    view: View | None = None,
    most_bytes: int = MOST_BYTES,
) -> None:
    # Pulls of a large model are coordinates on as many orthonormal axes as fit into ``most_bytes``.
    file, axes_file = effect_files(view)
    first = next(iter(rounds.values())).effects.pull
    count = sum(len(found.ids) for found in rounds.values())
    bound = max(1, most_bytes // (np.dtype(np.float16).itemsize * count))
    axes = None
    if bound < first.shape[1]:  # the axes that keep most of the sum of squares
        products = np.zeros((first.shape[1], first.shape[1]))
        for rows in _blocks(first):
            part = rows.astype(np.float32)
            products += part.T @ part
        _, vectors = np.linalg.eigh(products)
        axes = np.ascontiguousarray(vectors[:, ::-1][:, :bound].T, dtype=np.float32)
        folder.write_table(axes_file, pl.DataFrame({"axis": axes}))
    tables = []
    for step, found in rounds.items():
        pull = found.effects.pull
        if axes is not None:
            parts = [(part.astype(np.float32) @ axes.T).astype(np.float16) for part in _blocks(pull)]
            pull = np.concatenate(parts)
        columns: dict[str, Any] = {
            "token_id": found.ids,
            "round": [step.value] * len(found.ids),
            "contraction": found.effects.contraction.astype(np.float32),
            "pull": pull.astype(np.float16),
        }
        tables.append(pl.DataFrame(columns))
    folder.write_table(file, pl.concat(tables))


def read_effects(path: Path, view: View | None = None, step: Round = Round.SCREEN) -> TokenEffects:
    folder, (file, axes_file) = ResultFolder(path), effect_files(view)
    table = folder.read_table(file, EFFECTS_COLUMNS)
    rows = table.filter(pl.col("round") == step.value).sort("token_id")
    pull: NDArray[np.float32] = rows["pull"].to_numpy().astype(np.float32)
    if (path / axes_file).is_file():
        pull = pull @ folder.read_table(axes_file, ("axis",))["axis"].to_numpy()
    contraction = rows["contraction"].to_numpy().astype(np.float64)
    return TokenEffects(rows["token_id"].to_numpy(), contraction, pull)
