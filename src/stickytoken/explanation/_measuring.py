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
from stickytoken.measurement.stage import Progress, ProgressCallback
from stickytoken.measurement.store import ResultFolder, ShardCost
from stickytoken.unit_vectors import exact_unit_vectors, unit_vectors

if TYPE_CHECKING:
    from stickytoken.inspection.protocol import Inside, Inspector


Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What texts are compared with.

    Attributes:
        direction: direction of the mean pooled vector of vocabulary entries, shape (P,); None if the model
            exposes no pooled vectors.
        anchors: unit vectors of the anchors, shape (anchors, d).
        mean_similarity: pairs with a similarity below it are unrelated.
    """

    direction: Vector | None
    anchors: Vector
    mean_similarity: float

    def unrelated(self, vector: Vector) -> NDArray[np.bool_]:
        """Select the anchors less similar to a vector than the mean, or else the least similar one."""
        similarities = self.anchors @ unit_vectors(vector)
        below: NDArray[np.bool_] = similarities < self.mean_similarity
        return below if below.any() else np.asarray(similarities == similarities.min())


def observe(before: Inside, after: Inside, surroundings: Surroundings) -> dict[str, Vector]:
    """Measure one text."""
    found = _attention(after) | _hidden(before, after) | _pooling(after, surroundings.direction)
    unrelated = surroundings.unrelated(before.vector.astype(np.float64))
    moved = exact_unit_vectors(after.vector) - exact_unit_vectors(before.vector)
    found["lift_sentences"] = np.asarray((surroundings.anchors[unrelated] @ moved).mean())
    return found


def attention_received(inside: Inside, *, by_copies: bool = True) -> Vector | None:
    """Return the share of attention that the copies receive, shape (layers, heads)."""
    if inside.attention is None:
        return None
    sizes = np.bincount(inside.labels, minlength=inside.attention.shape[-1]).astype(np.float64)
    if not by_copies:
        sizes[Part.COPIES] = 0
    if not sizes.any():
        return None
    present = sizes > 0
    shares = inside.attention[:, :, present, Part.COPIES]
    received: Vector = shares @ (sizes[present] / sizes.sum())
    return received


def states_of_copies(inside: Inside) -> Vector | None:
    """Return the mean hidden state of the copies by layer, shape (layers + 1, D)."""
    if inside.hidden is None:
        return None
    states: Vector = inside.hidden[:, inside.labels == Part.COPIES].astype(np.float64).mean(axis=1)
    return states


def _attention(after: Inside) -> dict[str, Vector]:
    found = {}
    for name, by_copies in (("attention_received", True), ("attention_from_others", False)):
        received = attention_received(after, by_copies=by_copies)
        if received is not None:
            found[name] = received.mean(axis=1)
    return found


def _hidden(before: Inside, after: Inside) -> dict[str, Vector]:
    if before.hidden is None or after.hidden is None:
        return {}
    old = before.hidden[:, before.labels == Part.CARRIER].astype(np.float64)
    new = after.hidden[:, after.labels == Part.CARRIER].astype(np.float64)
    copies = after.hidden[:, after.labels == Part.COPIES].astype(np.float64)
    found = {"copies_norm": np.linalg.norm(copies, axis=-1).mean(axis=1)}
    if old.shape[1]:
        found["carrier_cosine_drift"] = (1 - _cosine(old, new)).mean(axis=1)
        found["carrier_euclidean_drift"] = np.linalg.norm(new - old, axis=-1).mean(axis=1)
    return found


def _pooling(after: Inside, direction: Vector | None) -> dict[str, Vector]:
    if after.pooled is None or after.supplied is None:
        return {}
    supplied = after.supplied[Part.COPIES]
    square = float(after.pooled @ after.pooled)
    lengths = np.linalg.norm(after.supplied, axis=1)
    found = {
        "pooling_share": supplied @ after.pooled / square,
        "pooling_norm_share": lengths[Part.COPIES] / lengths.sum(),
    }
    if direction is not None:
        found["pooling_toward_mean"] = supplied @ direction / np.sqrt(square)
        found["vector_toward_mean"] = after.pooled @ direction / np.sqrt(square)
    return {name: np.asarray(value, dtype=np.float64) for name, value in found.items()}


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
    """Measurements of tokens on all carriers.

    Attributes:
        values: measures by token id and name, shape (carriers, layers) or (carriers,).
        heads: share of attention received, by token id, shape (carriers, layers, heads); empty if the model
            does not expose its attention.
        distances: distances by explained token and measure, shape (1 + benign, carriers, layers): first from
            the token to its benign tokens, then from each benign token to the others.
    """

    values: dict[int, dict[str, Vector]] = field(default_factory=dict)
    heads: dict[int, Vector] = field(default_factory=dict)
    distances: dict[int, dict[str, Vector]] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """Return JSON values, from which `of` makes the same measurements."""
        return {
            "values": {k: _as_lists(found) for k, found in self.values.items()},
            "heads": _as_lists(self.heads),
            "distances": {k: _as_lists(found) for k, found in self.distances.items()},
        }

    @classmethod
    def of(cls, document: dict[str, Any]) -> Measured:
        """Read what `document` returned."""
        return cls(
            values={int(k): _as_arrays(found) for k, found in document["values"].items()},
            heads={int(k): heads for k, heads in _as_arrays(document["heads"]).items()},
            distances={int(k): _as_arrays(found) for k, found in document["distances"].items()},
        )


def _as_lists(arrays: Mapping[Any, Vector]) -> dict[Any, Any]:
    return {name: array.tolist() for name, array in arrays.items()}


def _as_arrays(lists: Mapping[str, Any]) -> dict[str, Vector]:
    return {name: np.array(values, dtype=np.float64) for name, values in lists.items()}


def measure(
    inspector: Inspector,
    carriers: Sequence[PlacedCarrier],
    benign: Mapping[int, Sequence[int]],
    surroundings: Surroundings,
    progress: ProgressCallback,
    held_bytes: int = HELD_BYTES,
) -> Measured:
    """Measure explained tokens and their benign tokens on every carrier."""
    tokens = list(dict.fromkeys([*benign, *(k for ids in benign.values() for k in ids)]))
    parts: list[Measured] = []
    total, done = len(tokens) * len(carriers), 0
    size = _carriers_at_a_time(inspector, carriers, held_bytes)
    progress(Progress("inside", 0, total))
    for start in range(0, len(carriers), size):
        some = carriers[start : start + size]
        before = inspector.look([c.before for c in some], [c.before_labels for c in some], PARTS)
        part, states = Measured(), {}
        for token_id in tokens:
            contents = [carrier.with_copies(token_id) for carrier in some]
            after = inspector.look(contents, [carrier.labels for carrier in some], PARTS)
            states[token_id] = _take(part, token_id, before, after, surroundings)
            done += len(some)
            progress(Progress("inside", done, total, done, done))
        for token_id, others in benign.items():
            part.distances[token_id] = _distances(states, token_id, others)
        parts.append(part)
    return _joined(parts)


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


def _carriers_at_a_time(inspector: Inspector, carriers: Sequence[PlacedCarrier], held_bytes: int) -> int:
    longest = max(carriers, key=lambda carrier: len(carrier.before))
    hidden = inspector.look([longest.before], [longest.before_labels], PARTS)[0].hidden
    return len(carriers) if hidden is None else max(1, held_bytes // hidden.nbytes)


def _take(
    part: Measured,
    token_id: int,
    before: Sequence[Inside],
    after: Sequence[Inside],
    surroundings: Surroundings,
) -> Vector | None:
    """Store the measures of a token; return the mean states of its copies, (carriers, layers + 1, D)."""
    rows = [observe(old, new, surroundings) for old, new in zip(before, after, strict=True)]
    names = set.intersection(*(set(row) for row in rows))
    part.values[token_id] = {name: np.stack([row[name] for row in rows]) for name in rows[0] if name in names}
    received = [attention_received(each) for each in after]
    if all(each is not None for each in received):
        part.heads[token_id] = np.stack([each for each in received if each is not None])
    states = [states_of_copies(each) for each in after]
    if any(each is None for each in states):
        return None
    return np.stack([each for each in states if each is not None])


def _distances(
    states: Mapping[int, Vector | None], token_id: int, others: Sequence[int]
) -> dict[str, Vector]:
    own, theirs = states[token_id], [each for k in others if (each := states[k]) is not None]
    if own is None or len(theirs) < len(others):
        return {}
    stacked = np.stack(theirs)
    rows = [
        distances_to_benign(own, stacked),
        *(distances_to_benign(each, np.delete(stacked, place, axis=0)) for place, each in enumerate(stacked)),
    ]
    return {
        name: np.stack([row[column] for row in rows])
        for column, name in enumerate(("copies_cosine_distance", "copies_euclidean_distance"))
    }


def _joined(parts: Sequence[Measured]) -> Measured:
    """Join the carriers of all parts; measures that some texts do not support are left out."""
    first = parts[0]
    common = set.intersection(*(set(found) for part in parts for found in part.values.values()))
    return Measured(
        values={
            token_id: {
                name: np.concatenate([part.values[token_id][name] for part in parts])
                for name in found
                if name in common
            }
            for token_id, found in first.values.items()
        },
        heads={
            token_id: np.concatenate([part.heads[token_id] for part in parts]) for token_id in first.heads
        },
        distances={
            token_id: {
                name: np.concatenate([part.distances[token_id][name] for part in parts], axis=1)
                for name in found
            }
            for token_id, found in first.distances.items()
        },
    )


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
        """Commit a part; see `read` for the arguments."""
        if self.folder is not None:
            now = time.perf_counter()
            cost, self._started = ShardCost(now - self._started, 1), now
            row = {"token_id": token_id, "content": json.dumps(content)}
            self.folder.write_shard(stage, index, [row], cost)

    def measured(self, token_id: int) -> Measured | None:
        """Return the committed measurements on all carriers; None if there are none."""
        found = self.read(_INSIDE, 0, token_id)
        return None if found is None else Measured.of(found)

    def commit_measured(self, token_id: int, measured: Measured) -> None:
        """Commit the measurements on all carriers."""
        if self.folder is not None:
            self.commit(_INSIDE, 0, token_id, measured.document())
