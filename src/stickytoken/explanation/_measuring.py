"""Measure tokens on carriers, in chunks of carriers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from stickytoken.explanation._observing import (
    Surroundings,
    attention_received,
    distances_to_benign,
    observe,
    states_of_copies,
)
from stickytoken.explanation._placing import PARTS, PlacedCarrier
from stickytoken.measurement.progress import Progress, ProgressCallback
from stickytoken.unit_vectors import unit_vectors

if TYPE_CHECKING:
    from stickytoken.inspection.protocol import Inside, Inspector

Vector = NDArray[np.float64]

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
    """Measure explained tokens and their benign tokens on every carrier.

    Args:
        inspector: shows what happens inside the model.
        carriers: carriers with places for the copies.
        benign: ids of the benign tokens by explained token.
        surroundings: what the texts are compared with.
        progress: called after every token.
        held_bytes: memory for the hidden states of the carriers without copies. It decides how many carriers
            are measured at a time, at least one, and changes no number beyond rounding.
    """
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
    """Return the direction of the mean pooled unit vector of vocabulary entries.

    Args:
        inspector: shows what happens inside the model.
        token_ids: ids of the entries; each is pooled as a text of its own.
        progress: called after some entries.

    Returns:
        A unit vector, shape (P,); None if the model exposes no pooled vectors.
    """
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
