"""Estimate every token from the measurements of the rounds. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stickytoken.encoders.protocol import Encoder
from stickytoken.encoders.views import View
from stickytoken.errors import InputError
from stickytoken.measurement.store import ResultFolder
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
        """Find the rows of token ids, all of which must be here."""
        return np.searchsorted(self.ids, ids)

    def chosen(self, rows: NDArray[np.intp], carriers: list[int]) -> Measurements:
        """Keep some tokens and some carriers; the effects stay those of all carriers."""
        both = np.ix_(rows, np.array(carriers, dtype=np.intp))
        by_carrier = {name: values[both] for name, values in self._by_carrier().items()}
        effects = Pull(self.effects.contraction[rows], self.effects.pull[rows])
        return replace(self, ids=self.ids[rows], effects=effects, **by_carrier)

    def _by_carrier(self) -> dict[str, NDArray[Any]]:
        names = ("lifts", "rising", "groups", "contractions", "seen")
        return {name: values for name in names if (values := getattr(self, name)) is not None}

    def on_group(self, group: int) -> Vector:
        """Lifts on one group, without the carriers that have no pair with it, shape (T, K')."""
        lifts = self.groups[:, :, group].astype(np.float64)
        return lifts[:, np.isfinite(lifts).all(axis=0)]

    def group_means(self) -> Vector:
        """Lifts by group, averaged over the carriers that have one, shape (T, G)."""
        return statistics.present_mean(self.groups.astype(np.float64).transpose(1, 0, 2))


def measurements(rows: pl.DataFrame, carriers: int, view: View | None = None) -> Measurements:
    """Turn the rows of one round into arrays; with a view, their columns of that further view."""
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
    """Combine two rounds with the same carriers into one; no token is in both."""
    ids = np.concatenate([first.ids, second.ids])
    order = np.argsort(ids)

    def joined(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(np.concatenate([a, b])[order])

    effects = Pull(*(joined(a, b) for a, b in zip(first.effects, second.effects, strict=True)))
    others = second._by_carrier()
    by_carrier = {name: joined(values, others[name]) for name, values in first._by_carrier().items()}
    return replace(first, ids=ids[order], effects=effects, **by_carrier)


class Screened(NamedTuple):
    """Estimates of every token from the first round."""

    plain: Estimates  # means over carriers without common effects, with the pooled error; no shrinkage
    shrunk: Estimates  # posterior means, for the tokens that go no further
    null: Null  # distribution of ordinary tokens
    reliability: float  # share of the variance of unselected tokens' means that is not noise


def screen(
    lifts: Vector, reference: NDArray[np.bool_], confidence: float, call_noise: float = 0.0
) -> Screened:
    centred = statistics.centre_probes(lifts, reference)
    noise = max(statistics.interaction_variance(centred[reference]), call_noise**2) / lifts.shape[1]
    if noise <= _ROUNDING * float((lifts**2).mean()):
        raise InputError(
            "every token moves the similarities equally: the model does not tell texts apart, "
            "or there is only one token to measure"
        )
    values = centred.mean(axis=1)
    spread = float(values[reference].var(ddof=1))
    effects = max(0.0, spread - noise)
    return Screened(
        Estimates(values, np.full(len(values), np.sqrt(noise)), values, values),
        statistics.shrunk(values, noise, effects, confidence),
        Null.fit(values[reference], noise),
        effects / spread if spread > 0 else 0.0,
    )


# With fewer unselected tokens, the null distribution cannot be estimated.
LEAST_NULL_TOKENS = 200


class TokenEstimates(NamedTuple):
    """Final estimates of every token; effects are relative to the typical token."""

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
        """Compute distances from the ordinary token of the same kind, in standard deviations with noise."""
        center, spread = np.full(len(self.ids), self.null.center), np.full(len(self.ids), self.null.spread)
        for own, null in self.nulls:
            center[own], spread[own] = null.center, null.spread
        scale = np.hypot(spread, self.tested.error)
        distance = self.tested.value - center
        return np.asarray(np.divide(distance, scale, out=np.zeros_like(distance), where=scale > 0))


class Lifts(NamedTuple):
    """Lifts of one round, or other values by carrier, by ascending id."""

    ids: Ids
    values: Vector  # shape (T, K)


def estimate(
    first: Lifts,
    last: Lifts | None,
    reference: Ids,
    late_reference: Ids,
    confidence: float,
    call_noise: float = 0.0,
    kinds: Sequence[NDArray[np.bool_]] = (),
) -> TokenEstimates:
    """Estimate every token from the last round that it reached.

    Kinds of entries, each the places of its tokens among those of the first round, get a null of their own
    if they have enough tokens.

    Estimates are on the scale of the last round: its carriers may move more than those of the first, or
    less. A token of the last round is estimated from that round alone, whose texts had no part in its
    selection. The others get the posterior of the first.
    """
    unselected = np.isin(first.ids, reference)
    screened = screen(first.values, unselected, confidence, call_noise)
    texts = np.full(len(first.ids), first.values.shape[1])
    noise = float(screened.plain.error[0] ** 2)
    nulls = [
        (own, Null.fit(screened.plain.value[own & unselected], noise))
        for own in kinds
        if (own & unselected).sum() >= LEAST_NULL_TOKENS
    ]
    if last is None:
        level = float(first.values[unselected].mean())
        return TokenEstimates(first.ids, texts, screened.shrunk, screened.plain, screened.null, level, nulls)
    rows, own = np.searchsorted(first.ids, last.ids), np.isin(last.ids, late_reference)
    scale = statistics.scale_between(
        screened.plain.value[rows[own]], screened.reliability, last.values[own].mean(axis=1)
    )
    expected = scale * screened.shrunk.value[rows]
    centred = statistics.centre_probes(last.values, own, expected)
    # The carriers' common effects are known from few tokens: an error that all estimates share.
    common = float((centred.mean(axis=1) - expected)[own].var(ddof=1)) / int(own.sum())
    confirmed = statistics.mean_with_interval(centred, confidence, common, call_noise**2)
    texts[rows] = last.values.shape[1]
    lift, tested = screened.shrunk.scaled(scale), screened.plain.scaled(scale)
    for into in (lift, tested):
        for target, source in zip(into, confirmed, strict=True):
            target[rows] = source
    level = float((last.values[own] - expected[own, None]).mean())
    nulls = [(own, null.scaled(scale)) for own, null in nulls]
    return TokenEstimates(first.ids, texts, lift, tested, screened.null.scaled(scale), level, nulls)


# Ridge penalties to choose from, relative to the mean squared length of a centred row.
_ROW_PENALTIES = np.geomspace(1.0, 1e4, 13)
# Of those that explain at least this share of what the best one explains, the largest is taken.
_EXPLAINED = 0.9
# Tokens that the penalty is chosen by, at most.
_CHOOSING = 2**15


def explained_pulls(
    pull: NDArray[np.floating[Any]], rows: NDArray[np.floating[Any]], unselected: NDArray[np.bool_]
) -> Vector:
    """Predict T pulls from the tokens' rows of the embedding matrix, shape (T, d).

    By ridge regression on the unselected tokens, each of which is predicted from the others. A row that was
    changed pulls in a way that other rows do not lead to expect. A small penalty would explain part of that
    too, from directions in which few rows differ, so the largest one is taken that explains nearly as much
    as the best.
    """
    mean = pull[unselected].mean(axis=0, dtype=np.float64)
    deviations = pull - mean
    centred = rows - rows[unselected].mean(axis=0, dtype=np.float64)
    centred /= float(np.sqrt(np.square(centred[unselected]).sum(axis=1).mean())) or 1.0
    lengths, directions = np.linalg.eigh(centred[unselected].T @ centred[unselected])
    turned = centred @ directions
    products = turned[unselected].T @ deviations[unselected]

    def errors(penalty: float, chosen: NDArray[np.intp]) -> Vector:
        fitted = turned[chosen] @ (products / (lengths + penalty)[:, None])
        leverage = (turned[chosen] ** 2) @ (1 / (lengths + penalty)) * unselected[chosen]
        return np.asarray((deviations[chosen] - fitted) / (1 - leverage)[:, None], dtype=np.float64)

    places = np.flatnonzero(unselected)
    some = places[:: -(-len(places) // _CHOOSING)]
    total = float((deviations[some] ** 2).sum())
    explained = np.array([total - float((errors(each, some) ** 2).sum()) for each in _ROW_PENALTIES])
    if (best := float(explained.max())) <= 0:
        return np.broadcast_to(mean, pull.shape)
    penalty = float(_ROW_PENALTIES[np.flatnonzero(explained >= _EXPLAINED * best)[-1]])
    return np.asarray(pull - errors(penalty, np.arange(len(pull))), dtype=np.float64)


def unexplained(
    rounds: Mapping[Round, Measurements],
    rows: NDArray[np.floating[Any]],
    unselected: Ids,
    late_reference: Ids,
) -> dict[Round, NDArray[np.floating[Any]]]:
    """Subtract from the pulls of all rounds what the tokens' rows explain.

    ``rows`` are those of the tokens of the first round, which the regression is fitted in. Its predictions
    are brought to the scale of the last round by a line through the pulls of the pilot's tokens.
    """
    first, last = rounds[Round.SCREEN], rounds.get(Round.CONFIRM)
    explained = explained_pulls(first.effects.pull.astype(np.float64), rows, np.isin(first.ids, unselected))
    found: dict[Round, NDArray[np.floating[Any]]] = {Round.SCREEN: first.effects.pull - explained}
    if last is not None:
        late = last.rows(last.ids[np.isin(last.ids, late_reference)])
        known, measured = explained[first.rows(last.ids)], last.effects.pull.astype(np.float64)
        center, origin = known[late].mean(axis=0), measured[late].mean(axis=0)
        deviations = known[late] - center
        variation = float((deviations**2).sum())
        slope = float((deviations * (measured[late] - origin)).sum()) / variation if variation > 0 else 0.0
        found[Round.CONFIRM] = measured - origin - slope * (known - center)
    return found


def reach(pull: NDArray[np.floating[Any]], texts: NDArray[np.float32]) -> Vector:
    """Compute how far T pulls draw a text toward other texts: the root mean square of p . text, shape (T,).

    A word that pulls a text toward a meaning of its own reaches few texts.
    """
    products = (texts.T @ texts / len(texts)).astype(np.float64)
    found = np.empty(len(pull))
    for start in range(0, len(pull), _ROWS):
        rows = pull[start : start + _ROWS].astype(np.float64)
        found[start : start + _ROWS] = np.sqrt(np.maximum(((rows @ products) * rows).sum(axis=1), 0.0))
    return found


# Ridge penalties to choose from, relative to the mean squared length of the features.
_PENALTIES = np.geomspace(1e-2, 1e3, 16)


def calibrate(
    predicted: Vector,
    features: Sequence[NDArray[np.floating[Any]]],
    measured: NDArray[np.intp],
    lifts: Vector,
    noise: float,
) -> tuple[Vector, float]:
    """Fit the measured lifts of some tokens by a line in the predicted ones, and the residuals by features.

    Return the lifts of all tokens, and how far they are off for tokens that had no part in it.

    Carriers of one corpus are not those of another: a question takes copies in another way than a statement
    does. What differs depends on the token, in directions that measured tokens show: a ridge regression,
    whose penalty is the best of several by leave-one-out cross-validation, the infinite one, which leaves
    the line alone, included (Golub, Heath and Wahba 1979). Every group of features counts alike.
    """
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
    """Turn the rows of a round into measurements of as many copies as were planned.

    What m copies do in a text of L other tokens grows about as their share of it, m / (m + L). A probe in
    which the tokenizer saw fewer copies than planned is scaled by the ratio of the shares, at most twofold.
    """
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


class Effects(NamedTuple):
    """What a run keeps of the effects of all rounds."""

    # One row per round and token: token_id; round; contraction; pull, float16, shape (r,).
    table: pl.DataFrame
    # Orthonormal directions that the pulls are coordinates on, shape (r, d); None where they are the pulls.
    axes: NDArray[np.float32] | None

    def of(self, step: Round) -> TokenEffects:
        """Return the effects of one round; there may be none."""
        rows = self.table.filter(pl.col("round") == step.value).sort("token_id")
        pull: NDArray[np.float32] = rows["pull"].to_numpy().astype(np.float32)
        whole = pull if self.axes is None else pull @ self.axes
        contraction = rows["contraction"].to_numpy().astype(np.float64)
        return TokenEffects(rows["token_id"].to_numpy(), contraction, whole)


def kept_effects(rounds: dict[Round, Measurements], most_bytes: int = MOST_BYTES) -> Effects:
    """Lay out the effects of all rounds; those of a large model on as many axes as fit into `most_bytes`.

    Tokens of the last round are in both: how the rounds differ tells the error of the first.
    """
    first = next(iter(rounds.values())).effects.pull
    rows = sum(len(found.ids) for found in rounds.values())
    bound = max(1, most_bytes // (np.dtype(np.float16).itemsize * rows))
    axes = None
    if bound < first.shape[1]:  # the orthonormal directions that keep most of the sum of squares
        products = np.zeros((first.shape[1], first.shape[1]))
        for start in range(0, len(first), _ROWS):
            part = first[start : start + _ROWS].astype(np.float32)
            products += part.T @ part
        _, vectors = np.linalg.eigh(products)
        axes = np.ascontiguousarray(vectors[:, ::-1][:, :bound].T, dtype=np.float32)

    def coordinates(pulls: NDArray[np.floating[Any]]) -> NDArray[np.floating[Any]]:
        if axes is None:
            return pulls
        parts = [
            (pulls[start : start + _ROWS].astype(np.float32) @ axes.T).astype(np.float16)
            for start in range(0, len(pulls), _ROWS)
        ]
        return np.concatenate(parts) if parts else np.zeros((0, len(axes)), dtype=np.float16)

    tables = [
        pl.DataFrame(
            {
                "token_id": found.ids,
                "round": [step.value] * len(found.ids),
                "contraction": found.effects.contraction.astype(np.float32),
                "pull": coordinates(found.effects.pull).astype(np.float16),
            }
        )
        for step, found in rounds.items()
    ]
    return Effects(pl.concat(tables), axes)


def effect_files(view: View | None) -> tuple[str, str]:
    """Name the files of a view's effects and axes; None is the model as it is."""
    suffix = "" if view is None else f"-{view.key}"
    return f"effects{suffix}.parquet", f"effects_axes{suffix}.parquet"


EFFECTS_FILE, AXES_FILE = effect_files(None)


def write_effects(folder: ResultFolder, effects: Effects, view: View | None = None) -> None:
    """Write the axes, then the table that says that both are there."""
    table, axes = effect_files(view)
    if effects.axes is not None:
        folder.write_table(axes, pl.DataFrame({"axis": effects.axes}))
    folder.write_table(table, effects.table)


def read_effects(path: Path, view: View | None = None) -> Effects:
    folder, (file, axes_file) = ResultFolder(path), effect_files(view)
    table = folder.read_table(file, EFFECTS_COLUMNS)
    projected = (path / axes_file).is_file()
    axes = folder.read_table(axes_file, ("axis",))["axis"].to_numpy() if projected else None
    return Effects(table, axes)
