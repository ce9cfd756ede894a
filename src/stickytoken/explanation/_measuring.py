"""Measure tokens on carriers, in chunks of carriers."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stickytoken.explanation.settings import PARTS, Part, PlacedCarrier
from stickytoken.measurement.engine import Progress, ProgressCallback
from stickytoken.measurement.store import ResultFolder, ShardCost
from stickytoken.unit_vectors import exact_unit_vectors, unit_vectors

if TYPE_CHECKING:
    from stickytoken.inspection.attention import Inside
    from stickytoken.inspection.module_embedding import Inspector

Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Surroundings:
    direction: Vector | None  # of the mean pooled vector of vocabulary entries, shape (P,); None without any
    anchors: Vector  # unit vectors of the anchors, shape (anchors, d)
    mean_similarity: float  # less similar pairs are unrelated

    def unrelated(self, vector: Vector) -> NDArray[np.bool_]:
        """Select the anchors less similar to a vector than the mean, or else the least similar one."""
        similarities = self.anchors @ unit_vectors(vector)
        below: NDArray[np.bool_] = similarities < self.mean_similarity
        return below if below.any() else np.asarray(similarities == similarities.min())


def _observe(before: Inside, after: Inside, surroundings: Surroundings) -> dict[str, Vector]:
    found = {}
    for name, by_copies in (("attention_received", True), ("attention_from_others", False)):
        received = _received(after, by_copies=by_copies)
        if received is not None:
            found[name] = received.mean(axis=1)
    if before.hidden is not None and after.hidden is not None:
        old = before.hidden[:, before.labels == Part.CARRIER].astype(np.float64)
        new = after.hidden[:, after.labels == Part.CARRIER].astype(np.float64)
        copies = after.hidden[:, after.labels == Part.COPIES].astype(np.float64)
        found["copies_norm"] = np.linalg.norm(copies, axis=-1).mean(axis=1)
        if old.shape[1]:
            found["carrier_cosine_drift"] = (1 - _cosine(old, new)).mean(axis=1)
            found["carrier_euclidean_drift"] = np.linalg.norm(new - old, axis=-1).mean(axis=1)
    if after.pooled is not None and after.supplied is not None:
        supplied, square = after.supplied[Part.COPIES], float(after.pooled @ after.pooled)
        lengths = np.linalg.norm(after.supplied, axis=1)
        found["pooling_share"] = supplied @ after.pooled / square
        found["pooling_norm_share"] = lengths[Part.COPIES] / lengths.sum()
        if (direction := surroundings.direction) is not None:
            found["pooling_toward_mean"] = supplied @ direction / np.sqrt(square)
            found["vector_toward_mean"] = after.pooled @ direction / np.sqrt(square)
    unrelated = surroundings.unrelated(before.vector.astype(np.float64))
    moved = exact_unit_vectors(after.vector) - exact_unit_vectors(before.vector)
    found["lift_sentences"] = (surroundings.anchors[unrelated] @ moved).mean()
    return {name: np.asarray(value, dtype=np.float64) for name, value in found.items()}


def _received(inside: Inside, *, by_copies: bool = True) -> Vector | None:
    """Return the share of attention that the copies receive, shape (layers, heads)."""
    if inside.attention is None:
        return None
    sizes = np.bincount(inside.labels, minlength=inside.attention.shape[-1]).astype(np.float64)
    if not by_copies:
        sizes[Part.COPIES] = 0
    present = sizes > 0
    if not present.any():
        return None
    received: Vector = inside.attention[:, :, present, Part.COPIES] @ (sizes[present] / sizes.sum())
    return received


def _cosine(left: Vector, right: Vector) -> Vector:
    lengths = np.linalg.norm(left, axis=-1) * np.linalg.norm(right, axis=-1)
    # A zero state has no direction; count it as unchanged.
    products = (left * right).sum(axis=-1)
    found: Vector = np.divide(products, lengths, out=np.ones_like(products), where=lengths > 0)
    return found


def _distances(states: Vector, benign: Vector) -> Vector:
    """Return the cosine and Euclidean distances of states to the mean of benign states, shape (2, ...)."""
    centre = benign.mean(axis=0)
    return np.stack([1 - _cosine(states, centre), np.linalg.norm(states - centre, axis=-1)])


# Memory for the hidden states of the carriers without copies.
HELD_BYTES = 2**27
# Vocabulary entries that are pooled at a time.
_ENTRIES = 64


class Measured(NamedTuple):
    values: dict[int, dict[str, Vector]]  # by token id and measure, shape (carriers, layers) or (carriers,)
    heads: dict[int, Vector]  # attention received, shape (carriers, layers, heads); empty if not exposed
    # By measure, shape (1 + benign, carriers, layers): from the token to its benign tokens, then from each
    # benign token to the others.
    distances: dict[str, Vector]


def measure(
    inspector: Inspector,
    carriers: Sequence[PlacedCarrier],
    token_id: int,
    benign: Sequence[int],
    surroundings: Surroundings,
    progress: ProgressCallback,
) -> Measured:
    tokens = [token_id, *benign]
    longest = max(carriers, key=lambda carrier: len(carrier.before))
    hidden = inspector.look([longest.before], [longest.before_labels], PARTS)[0].hidden
    size = len(carriers) if hidden is None else max(1, HELD_BYTES // hidden.nbytes)
    observed: dict[int, list[dict[str, Vector]]] = {each: [] for each in tokens}
    heads: dict[int, list[Vector]] = {each: [] for each in tokens}
    distances: list[Vector] = []
    total, done = len(tokens) * len(carriers), 0
    progress(Progress("inside", 0, total))
    for start in range(0, len(carriers), size):
        some = carriers[start : start + size]
        before = inspector.look([c.before for c in some], [c.before_labels for c in some], PARTS)
        states = []  # mean states of the copies of each token, shape (carriers, layers + 1, D)
        for each in tokens:
            contents = [carrier.with_copies(each) for carrier in some]
            after = inspector.look(contents, [carrier.labels for carrier in some], PARTS)
            observed[each] += [_observe(*pair, surroundings) for pair in zip(before, after, strict=True)]
            heads[each] += [received for inside in after if (received := _received(inside)) is not None]
            copies = [
                inside.hidden[:, inside.labels == Part.COPIES].astype(np.float64).mean(axis=1)
                for inside in after
                if inside.hidden is not None
            ]
            if len(copies) == len(after):
                states.append(np.stack(copies))
            done += len(some)
            progress(Progress("inside", done, total, done, done))
        if len(states) == len(tokens):
            others = np.stack(states[1:])
            rest = [np.delete(others, k, axis=0) for k in range(len(others))]
            pairs = zip(states, [others, *rest], strict=True)
            distances.append(np.stack([_distances(*pair) for pair in pairs], axis=1))
    # Measures that some texts do not support are left out.
    common = set.intersection(*(set(row) for rows in observed.values() for row in rows))
    names = ("copies_cosine_distance", "copies_euclidean_distance")
    return Measured(
        values={
            k: {name: np.stack([row[name] for row in rows]) for name in rows[0] if name in common}
            for k, rows in observed.items()
        },
        heads={k: np.stack(rows) for k, rows in heads.items() if len(rows) == len(carriers)},
        distances=dict(zip(names, np.concatenate(distances, axis=2), strict=True)) if distances else {},
    )


def mean_direction(
    inspector: Inspector, token_ids: Sequence[int], progress: ProgressCallback
) -> Vector | None:
    total, pooled = len(token_ids), []
    progress(Progress("mean direction", 0, total))
    for start in range(0, total, _ENTRIES):
        some = token_ids[start : start + _ENTRIES]
        # Hidden states of all entries at once would need more memory than many a model.
        looked = inspector.look([(k,) for k in some], [(0,)] * len(some), PARTS)
        pooled += [each.pooled for each in looked if each.pooled is not None and each.pooled.any()]
        done = start + len(some)
        progress(Progress("mean direction", done, total, done, done))
    if not pooled:
        return None
    mean = unit_vectors(np.stack(pooled)).mean(axis=0)
    return unit_vectors(mean) if mean.any() else None


class Checkpoints:
    """Parts of the explanation of one token, each a shard of its folder that holds JSON."""

    def __init__(self, folder: ResultFolder | None = None) -> None:
        self.folder = folder
        self._started = time.perf_counter()

    def kept(
        self, stage: str, index: int, token_id: int, compute: Callable[[], dict[str, Any]]
    ) -> tuple[dict[str, Any], bool]:
        """Return a committed part, or compute and commit it; and whether it was computed."""
        found = None if self.folder is None else self.folder.read_shard(stage, index, [token_id])
        if found is not None:
            return json.loads(found["content"][0]), False
        content = compute()
        if self.folder is not None:
            now = time.perf_counter()
            cost, self._started = ShardCost(now - self._started, 1), now
            row = {"token_id": token_id, "content": json.dumps(content, default=np.ndarray.tolist)}
            self.folder.write_shard(stage, index, [row], cost)
        return content, True

    def measured(self, token_id: int, compute: Callable[[], Measured]) -> Measured:
        def content() -> dict[str, Any]:
            measured = compute()._asdict()
            return measured | {"distances": {token_id: measured["distances"]}}

        def arrays(lists: Mapping[Any, Any]) -> dict[Any, Vector]:
            return {name: np.array(values, dtype=np.float64) for name, values in lists.items()}

        found, _ = self.kept("inside", 0, token_id, content)
        values = {int(k): arrays(own) for k, own in found["values"].items()}
        heads = {int(k): own for k, own in arrays(found["heads"]).items()}
        (distances,) = found["distances"].values()
        return Measured(values, heads, arrays(distances))
