"""Measure tokens on carriers, in chunks of carriers."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

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
    """What texts are compared with."""

    direction: (
        Vector | None
    )  # of the mean pooled vector of vocabulary entries, shape (P,), where there are any
    anchors: Vector  # unit vectors of the anchors, shape (anchors, d)
    mean_similarity: float  # less similar pairs are unrelated

    def unrelated(self, vector: Vector) -> NDArray[np.bool_]:
        """Select the anchors less similar to a vector than the mean, or else the least similar one."""
        similarities = self.anchors @ unit_vectors(vector)
        below: NDArray[np.bool_] = similarities < self.mean_similarity
        return below if below.any() else np.asarray(similarities == similarities.min())


def _observe(before: Inside, after: Inside, surroundings: Surroundings) -> dict[str, Vector]:
    """Measure one text."""
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


def distances_to_benign(states: Vector, benign: Vector) -> tuple[Vector, Vector]:
    """Return the cosine and Euclidean distances of states to the mean of benign states."""
    centre = benign.mean(axis=0)
    return 1 - _cosine(states, centre), np.asarray(np.linalg.norm(states - centre, axis=-1))


# Memory for the hidden states of the carriers without copies.
HELD_BYTES = 2**27
# Vocabulary entries that are pooled at a time.
_ENTRIES = 64


@dataclass
class Measured:
    """Measurements of a token and its benign tokens on all carriers."""

    # By token id and measure, shape (carriers, layers) or (carriers,).
    values: dict[int, dict[str, Vector]] = field(default_factory=dict)
    # Attention received, shape (carriers, layers, heads); empty if the model does not expose its attention.
    heads: dict[int, Vector] = field(default_factory=dict)
    # By measure, shape (1 + benign, carriers, layers): from the token to its benign tokens, then from each
    # benign token to the others.
    distances: dict[str, Vector] = field(default_factory=dict)


def measure(
    inspector: Inspector,
    carriers: Sequence[PlacedCarrier],
    token_id: int,
    benign: Sequence[int],
    surroundings: Surroundings,
    progress: ProgressCallback,
    held_bytes: int = HELD_BYTES,
) -> Measured:
    """Measure a token and its benign tokens on every carrier."""
    tokens = [token_id, *benign]
    longest = max(carriers, key=lambda carrier: len(carrier.before))
    hidden = inspector.look([longest.before], [longest.before_labels], PARTS)[0].hidden
    size = len(carriers) if hidden is None else max(1, held_bytes // hidden.nbytes)
    parts: list[Measured] = []
    total, done = len(tokens) * len(carriers), 0
    progress(Progress("inside", 0, total))
    for start in range(0, len(carriers), size):
        some = carriers[start : start + size]
        before = inspector.look([c.before for c in some], [c.before_labels for c in some], PARTS)
        part, states = Measured(), []
        for each in tokens:
            contents = [carrier.with_copies(each) for carrier in some]
            after = inspector.look(contents, [carrier.labels for carrier in some], PARTS)
            states.append(_take(part, each, before, after, surroundings))
            done += len(some)
            progress(Progress("inside", done, total, done, done))
        known = [state for state in states if state is not None]
        if len(known) == len(tokens):
            own, others = known[0], np.stack(known[1:])
            rows = [
                distances_to_benign(own, others),
                *(distances_to_benign(each, np.delete(others, k, axis=0)) for k, each in enumerate(others)),
            ]
            cosine, euclidean = (np.stack(column) for column in zip(*rows, strict=True))
            part.distances = {"copies_cosine_distance": cosine, "copies_euclidean_distance": euclidean}
        parts.append(part)
    first = parts[0]
    # Measures that some texts do not support are left out.
    common = set.intersection(*(set(found) for part in parts for found in part.values.values()))
    return Measured(
        values={
            k: {
                name: np.concatenate([part.values[k][name] for part in parts])
                for name in found
                if name in common
            }
            for k, found in first.values.items()
        },
        heads={k: np.concatenate([part.heads[k] for part in parts]) for k in first.heads},
        distances={
            name: np.concatenate([part.distances[name] for part in parts], axis=1) for name in first.distances
        },
    )


def _take(
    part: Measured, token_id: int, before: Sequence[Inside], after: Sequence[Inside], compared: Surroundings
) -> Vector | None:
    """Store the measures of a token; return the mean states of its copies, (carriers, layers + 1, D)."""
    rows = [_observe(old, new, compared) for old, new in zip(before, after, strict=True)]
    names = set.intersection(*(set(row) for row in rows))
    part.values[token_id] = {name: np.stack([row[name] for row in rows]) for name in rows[0] if name in names}
    received = [heads for each in after if (heads := _received(each)) is not None]
    if len(received) == len(after):
        part.heads[token_id] = np.stack(received)
    states = [
        each.hidden[:, each.labels == Part.COPIES].astype(np.float64).mean(axis=1)
        for each in after
        if each.hidden is not None
    ]
    return np.stack(states) if len(states) == len(after) else None


def mean_direction(
    inspector: Inspector, token_ids: Sequence[int], progress: ProgressCallback
) -> Vector | None:
    """Return the direction of the mean pooled unit vector of vocabulary entries."""
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


_INSIDE = "inside"


class Checkpoints:
    """Parts of the explanation of one token, each a shard of its folder that holds JSON."""

    def __init__(self, folder: ResultFolder | None = None) -> None:
        self.folder = folder
        self._started = time.perf_counter()

    def read(self, stage: str, index: int, token_id: int) -> Any:
        """Return a committed part; None if it is missing or damaged."""
        found = None if self.folder is None else self.folder.read_shard(stage, index, [token_id])
        return None if found is None else json.loads(found["content"][0])

    def commit(self, stage: str, index: int, token_id: int, content: Any) -> None:
        """Commit a part as JSON; arrays become lists."""
        if self.folder is not None:
            now = time.perf_counter()
            cost, self._started = ShardCost(now - self._started, 1), now
            row = {"token_id": token_id, "content": json.dumps(content, default=np.ndarray.tolist)}
            self.folder.write_shard(stage, index, [row], cost)

    def measured(self, token_id: int) -> Measured | None:
        """Return the committed measurements on all carriers; None if there are none."""
        found = self.read(_INSIDE, 0, token_id)
        if found is None:
            return None
        return Measured(
            values={int(k): _as_arrays(values) for k, values in found["values"].items()},
            heads={int(k): heads for k, heads in _as_arrays(found["heads"]).items()},
            distances=_as_arrays(found["distances"].get(str(token_id), {})),
        )

    def commit_measured(self, token_id: int, measured: Measured) -> None:
        """Commit the measurements on all carriers."""
        distances = {token_id: measured.distances}
        content = {"values": measured.values, "heads": measured.heads, "distances": distances}
        self.commit(_INSIDE, 0, token_id, content)


def _as_arrays(lists: Mapping[str, Any]) -> dict[str, Vector]:
    return {name: np.array(values, dtype=np.float64) for name, values in lists.items()}
