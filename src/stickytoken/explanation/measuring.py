"""Choose the texts of an explanation, and measure tokens on them and in the embedding matrix."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from stickytoken.data import Sentences, load_sentences, open_ended
from stickytoken.detection.run import Run
from stickytoken.encoders.protocol import IdEncoder
from stickytoken.errors import InputError
from stickytoken.insertion import Insertion, Placement, Token, copies_as_ids
from stickytoken.measurement.engine import Progress, ProgressCallback
from stickytoken.methods.probes import KeyedPaths
from stickytoken.unit_vectors import exact_unit_vectors, unit_vectors
from stickytoken.validation import proportion, require_switch, set_choices, set_whole_numbers, shown
from stickytoken.vocabulary import LEAST_BENIGN

if TYPE_CHECKING:
    from stickytoken.inspection.module_embedding import Inside, Inspector

Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ExplainSettings:
    """Settings of `explain`.

    Attributes:
        copies: number of copies of the token in each carrier.
        placement: where the copies go.
        carriers: number of texts that copies are added to; fewer if the corpus or the user has fewer.
        benign: number of matched benign tokens that each token is compared with.
        confidence: coverage of the intervals.
        attribution: whether to compute integrated Jacobians.
        attribution_carriers: number of carriers whose similarities are attributed.
        attribution_benign: number of benign tokens whose similarities are also attributed.
        pairs: number of carrier-anchor pairs whose token-by-token matrix is kept.
        steps: points per integral; more are used where the integrand changes sharply.
        neighbours: number of nearest rows of the embedding matrix to list.
        directions: number of random vocabulary entries used for the mean direction.
        seed: seed of all sampling.

    Raises:
        InputError: a value is out of range.
    """

    copies: int = 8
    placement: Placement = Placement.SUFFIX
    carriers: int = 50
    benign: int = 16
    confidence: float = 0.9
    attribution: bool = True
    attribution_carriers: int = 4
    attribution_benign: int = 6
    pairs: int = 1
    steps: int = 32
    neighbours: int = 8
    directions: int = 512
    seed: int = 42

    def __post_init__(self) -> None:
        least = dict.fromkeys(("copies", "carriers", "attribution_carriers", "steps", "directions"), 1)
        least |= dict.fromkeys(("benign", "attribution_benign"), LEAST_BENIGN)
        set_whole_numbers(self, least | dict.fromkeys(("pairs", "neighbours", "seed"), 0))
        set_choices(self, {"placement": Placement})
        require_switch("attribution", self.attribution)
        object.__setattr__(self, "confidence", proportion("confidence", self.confidence))


# Placeholder for the copies; the token itself may also occur in the carrier.
_COPY = Token(-1, "")


class Part(IntEnum):  # of an input, to which a position belongs
    CARRIER = 0
    COPIES = 1
    PROMPT = 2
    SPECIAL = 3


PARTS = int(Part.SPECIAL)


@dataclass(frozen=True, slots=True)
class PlacedCarrier:
    text: str
    before: tuple[int, ...]  # content ids without copies, including the prompt
    before_labels: tuple[int, ...]
    template: tuple[int, ...]  # content ids with -1 for each copy
    labels: tuple[int, ...]

    def with_copies(self, token_id: int) -> tuple[int, ...]:
        return tuple(token_id if entry == _COPY.id else entry for entry in self.template)


def place_copies(encoder: IdEncoder, settings: ExplainSettings, texts: Sequence[str]) -> list[PlacedCarrier]:
    carriers = []
    for number, (text, tokenized) in enumerate(zip(texts, encoder.tokenize(texts), strict=True)):
        path: tuple[int, ...] = ()
        if settings.placement is Placement.RANDOM:
            paths = KeyedPaths(settings.seed, 0, (len(tokenized.words),), settings.copies, Insertion.IDS)
            path = paths.of(Token(number, ""))[0]
        template = copies_as_ids(_COPY, tokenized, settings.placement, settings.copies, path)
        prompt = (int(Part.PROMPT),) * len(tokenized.head)
        before, labels = (
            (*prompt, *(int(Part.COPIES if k == _COPY.id else Part.CARRIER) for k in ids[len(prompt) :]))
            for ids in (tokenized.ids, template)
        )
        carriers.append(PlacedCarrier(text, tokenized.ids, before, template, labels))
    return carriers


_ANCHORS = 64
_SHOWN = 60


def gather(
    encoder: IdEncoder,
    settings: ExplainSettings,
    run: Run | None,
    texts: Sequence[Any] | None,
    sentences: Sentences | None,
) -> tuple[list[PlacedCarrier], list[str], str]:
    if run is not None and sentences is None:
        material = run.method.texts(run.plan)
        carriers, anchors, source = material.carriers, material.anchors, f"run {run.path.name}"
        if material.by_topic and len(anchors) > _ANCHORS:
            anchors = [anchors[k * len(anchors) // _ANCHORS] for k in range(_ANCHORS)]
    else:
        corpus = load_sentences(sentences)
        # Draw carriers, without their final punctuation, from the shortest sentences, twice as many as are
        # needed; the other sentences are the anchors.
        order = np.random.default_rng([settings.seed]).permutation(len(corpus)).tolist()
        shortest = sorted(order, key=lambda k: len(corpus.texts[k]))[: 2 * settings.carriers]
        drawn = set(shortest[: max(1, len(order) // 2)])
        carriers = list(dict.fromkeys(open_ended(corpus.texts[k]) for k in order if k in drawn))
        anchors, source = [corpus.texts[k] for k in order if k not in drawn], corpus.source
    anchors = list(dict.fromkeys(anchors))
    tokenized = zip(anchors, encoder.tokenize(anchors), strict=True)
    anchors = [text for text, ids in tokenized if ids.words and encoder.fits(ids.ids)][:_ANCHORS]
    if not anchors:
        raise InputError(f"{source} has no sentence that fits into {encoder.name}: pass shorter sentences")
    if texts is None:
        placed = place_copies(encoder, settings, carriers)
        fitting = [each for each in placed if each.before and encoder.fits(each.with_copies(0))]
        if not fitting:
            raise InputError(
                f"no sentence of {source} fits into {encoder.name} with {settings.copies} copies added: use "
                "fewer copies or shorter sentences"
            )
        return fitting[: settings.carriers], anchors, source
    if not texts:
        raise InputError("texts is empty: pass at least one text, or leave texts out")
    if others := [text for text in texts if not isinstance(text, str)]:
        raise InputError(f"texts contains {shown(others[0])}: pass strings only")
    if blank := [text for text in texts if not text.strip()]:
        raise InputError(f"the text {blank[0]!r} is blank: leave it out")
    placed = place_copies(encoder, settings, texts)
    for carrier in placed:
        if not carrier.before:
            raise InputError(f"the text {carrier.text[:_SHOWN]!r} has no tokens: leave it out")
        if not encoder.fits(carrier.with_copies(0)):
            raise InputError(
                f"the text {carrier.text[:_SHOWN]!r} has {len(carrier.template)} tokens with "
                f"{settings.copies} copies, more than {encoder.name} reads ({encoder.max_length} including "
                "special tokens): shorten it or use fewer copies"
            )
    return placed, anchors, "given texts"


@dataclass(frozen=True, slots=True)
class Surroundings:
    direction: Vector | None  # of the mean pooled vector of vocabulary entries, shape (P,); None without any
    anchors: Vector  # unit vectors of the anchors, shape (anchors, d)
    mean_similarity: float  # less similar pairs are unrelated

    def unrelated(self, vector: Vector) -> NDArray[np.bool_]:
        similarities = self.anchors @ unit_vectors(vector)
        below: NDArray[np.bool_] = similarities < self.mean_similarity
        return below if below.any() else np.asarray(similarities == similarities.min())


def _observe(before: Inside, after: Inside, surroundings: Surroundings) -> dict[str, Vector]:
    values: dict[str, Any] = {}
    if after.attention is not None:
        for name, by_copies in (("attention_received", True), ("attention_from_others", False)):
            received = _received(after.attention, after.labels, by_copies=by_copies)
            values[name] = received.mean(axis=1)
    if before.hidden is not None and after.hidden is not None:
        old = before.hidden[:, before.labels == Part.CARRIER].astype(np.float64)
        new = after.hidden[:, after.labels == Part.CARRIER].astype(np.float64)
        copies = after.hidden[:, after.labels == Part.COPIES].astype(np.float64)
        values["copies_norm"] = np.linalg.norm(copies, axis=-1).mean(axis=1)
        if old.shape[1]:
            values["carrier_cosine_drift"] = (1 - _cosine(old, new)).mean(axis=1)
            values["carrier_euclidean_drift"] = np.linalg.norm(new - old, axis=-1).mean(axis=1)
    if after.pooled is not None and after.supplied is not None:
        supplied, square = after.supplied[Part.COPIES], float(after.pooled @ after.pooled)
        lengths = np.linalg.norm(after.supplied, axis=1)
        values["pooling_share"] = supplied @ after.pooled / square
        values["pooling_norm_share"] = lengths[Part.COPIES] / lengths.sum()
        if (direction := surroundings.direction) is not None:
            values["pooling_toward_mean"] = supplied @ direction / np.sqrt(square)
            values["vector_toward_mean"] = after.pooled @ direction / np.sqrt(square)
    unrelated = surroundings.unrelated(before.vector.astype(np.float64))
    moved = exact_unit_vectors(after.vector) - exact_unit_vectors(before.vector)
    values["lift_sentences"] = (surroundings.anchors[unrelated] @ moved).mean()
    return {name: np.asarray(value, dtype=np.float64) for name, value in values.items()}


def _received(attention: Vector, labels: NDArray[np.intp], *, by_copies: bool = True) -> Any:
    """Attention to the copies as a share, shape (layers, heads)."""
    sizes = np.bincount(labels, minlength=PARTS + 1).astype(np.float64)
    if not by_copies:
        sizes[Part.COPIES] = 0
    present = sizes > 0  # weights of a part without positions are NaN
    return attention[:, :, present, Part.COPIES] @ (sizes[present] / sizes.sum())


def _cosine(left: Vector, right: Vector) -> Any:
    lengths = np.linalg.norm(left, axis=-1) * np.linalg.norm(right, axis=-1)
    # A zero state has no direction; count it as unchanged.
    products = (left * right).sum(axis=-1)
    return np.divide(products, lengths, out=np.ones_like(products), where=lengths > 0)


# Memory for the hidden states of the carriers without copies.
HELD_BYTES = 2**27


def measure(
    inspector: Inspector,
    carriers: Sequence[PlacedCarrier],
    tokens: Sequence[int],
    surroundings: Surroundings,
    progress: ProgressCallback,
) -> dict[str, Any]:
    """Measure the first of the tokens, and the others as its benign tokens, on all carriers.

    Returns:
        ``values``: by token id and measure, shape (carriers, layers) or (carriers,).
        ``heads``: attention to the copies by token id, shape (carriers, layers, heads).
        ``distances``: by measure, shape (tokens, carriers, layers). The first row is the distance of the
        token from its benign tokens, every other row that of a benign token from the rest of them.
    """
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
            weights = [(own.attention, own.labels) for own in after if own.attention is not None]
            heads[each] += [_received(*own) for own in weights]
            copies = [(own.hidden, own.labels == Part.COPIES) for own in after if own.hidden is not None]
            if len(copies) == len(after):
                states.append(np.stack([own[:, at].astype(np.float64).mean(axis=1) for own, at in copies]))
            done += len(some)
            progress(Progress("inside", done, total, done, done))
        if len(states) == len(tokens):
            others = np.stack(states[1:])
            rest = [np.delete(others, k, axis=0).mean(axis=0) for k in range(len(others))]
            pairs = list(zip(states, [others.mean(axis=0), *rest], strict=True))
            cosines = [1 - _cosine(own, centre) for own, centre in pairs]
            lengths = [np.linalg.norm(own - centre, axis=-1) for own, centre in pairs]
            distances.append(np.stack([cosines, lengths]))
    # Measures that some texts do not support are left out.
    common = set.intersection(*(set(row) for rows in observed.values() for row in rows))
    names = ("copies_cosine_distance", "copies_euclidean_distance")
    by_name = dict(zip(names, np.concatenate(distances, axis=2), strict=True)) if distances else {}
    values = {
        k: {name: np.stack([row[name] for row in rows]) for name in rows[0] if name in common}
        for k, rows in observed.items()
    }
    received = {k: np.stack(rows) for k, rows in heads.items() if len(rows) == len(carriers)}
    return {"values": values, "heads": received, "distances": {tokens[0]: by_name}}


# Usual names of reserved vocabulary entries.
_RESERVED = re.compile(r"unused|reserved|extra_id|extra_token|madeupword|placeholder", re.IGNORECASE)
_BRACKETED = re.compile(r"[<\[].+[>\]]")
# Rows that are copied at a time.
_ROWS = 4096


@dataclass(frozen=True)
class EmbeddingMatrix:
    rows: NDArray[np.float32]  # shape (entries, D); read in parts, for they are most of a small model
    names: Mapping[int, str]

    @cached_property
    def unused(self) -> list[int]:
        return [  # beyond the vocabulary, or with the name of a reserved entry
            row
            for row in range(len(self.rows))
            if row not in self.names
            or (_BRACKETED.fullmatch(self.names[row]) and _RESERVED.search(self.names[row]))
        ]

    @cached_property
    def measures(self) -> dict[str, Vector]:
        whole = np.arange(len(self.rows))
        means = {"mean": self._mean(whole)}
        if self.unused:
            means["unused"] = self._mean(np.array(self.unused))
        parts: dict[str, list[Vector]] = {}
        for rows in self._parts(whole):
            norms = np.linalg.norm(rows, axis=1)
            parts.setdefault("embedding_norm", []).append(norms)
            for name, mean in means.items():
                distances = np.linalg.norm(rows - mean, axis=1)
                lengths = norms * np.linalg.norm(mean)
                cosines = np.divide(rows @ mean, lengths, out=np.full_like(norms, np.nan), where=lengths > 0)
                parts.setdefault(f"embedding_distance_to_{name}", []).append(distances)
                parts.setdefault(f"embedding_cosine_to_{name}", []).append(cosines)
        return {name: np.concatenate(each) for name, each in parts.items()}

    def neighbours(self, token_id: int, count: int) -> list[tuple[int, float]]:
        norms = self.measures["embedding_norm"].astype(np.float32)
        if norms[token_id] == 0:
            return []
        known = np.array([k for k in self._known if k != token_id and norms[k] > 0])
        products = np.concatenate([rows @ self.rows[token_id] for rows in self._parts(known, np.float32)])
        cosines = products / (norms[known] * norms[token_id])
        order = np.argsort(-cosines, kind="stable")[:count]
        return [(int(known[k]), float(cosines[k])) for k in order]

    @cached_property
    def geometry(self) -> dict[str, float | int]:
        """The mean cosine over all pairs is 0 if the rows point evenly in all directions (isotropy)."""
        known = np.array(self._known)
        norms = self.measures["embedding_norm"][known]
        centre, width = self._mean(known), self.rows.shape[1]
        units, products = np.zeros(width), np.zeros((width, width))
        for rows in self._parts(known):
            units += unit_vectors(rows).sum(axis=0)
            centred = rows - centre
            products += centred.T @ centred
        mean = units / (norms > 0).sum()
        spread = np.linalg.eigvalsh(products)
        return {
            "entries": len(known),
            "dimensions": width,
            "unused": len(self.unused),
            "mean_norm": float(norms.mean()),
            "norm_spread": float(norms.std()),
            "mean_cosine": float(mean @ mean),
            "first_component_share": float(spread[-1] / spread.sum()) if spread.sum() > 0 else 0.0,
        }

    @property
    def _known(self) -> list[int]:
        return [k for k in self.names if k < len(self.rows)]

    def _mean(self, places: NDArray[np.intp]) -> Any:
        return np.sum([part.sum(axis=0) for part in self._parts(places)], axis=0) / len(places)

    def _parts(self, places: NDArray[np.intp], dtype: type[np.floating[Any]] = np.float64) -> Iterator[Any]:
        for start in range(0, len(places), _ROWS):
            yield self.rows[places[start : start + _ROWS]].astype(dtype)
