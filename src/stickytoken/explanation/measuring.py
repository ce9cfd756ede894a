"""Choose the texts of an explanation, and measure on them what copies of tokens do inside the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, TypeAlias

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

Vector: TypeAlias = NDArray[np.float64]


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
        minimums = {
            "copies": 1,
            "carriers": 1,
            "attribution_carriers": 1,
            "steps": 1,
            "directions": 1,
            "benign": LEAST_BENIGN,
            "attribution_benign": LEAST_BENIGN,
            "pairs": 0,
            "neighbours": 0,
            "seed": 0,
        }
        set_whole_numbers(self, minimums)
        set_choices(self, {"placement": Placement})
        require_switch("attribution", self.attribution)
        object.__setattr__(self, "confidence", proportion("confidence", self.confidence))


# Stands for a copy until the token is known; the token itself may also occur in the carrier.
_COPY = Token(-1, "")
# Largest number of anchors.
_MAX_ANCHORS = 64
# Characters of a text that an error quotes.
_SHOWN_CHARACTERS = 60


class Part(IntEnum):
    """The part of an input to which a position belongs."""

    CARRIER = 0
    COPIES = 1
    PROMPT = 2
    SPECIAL = 3


PARTS = int(Part.SPECIAL)


@dataclass(frozen=True, slots=True)
class PlacedCarrier:
    """A text, and where copies of any token go in it."""

    text: str
    before: tuple[int, ...]  # content ids without copies, including the prompt
    before_labels: tuple[int, ...]  # the part of each of them
    template: tuple[int, ...]  # content ids with -1 for each copy
    labels: tuple[int, ...]  # the part of each of them

    def with_copies(self, token_id: int) -> tuple[int, ...]:
        """Return the content ids with copies of a token."""
        return tuple(token_id if entry == _COPY.id else entry for entry in self.template)


def place_copies(encoder: IdEncoder, settings: ExplainSettings, texts: Sequence[str]) -> list[PlacedCarrier]:
    """Choose the places of the copies in every text."""
    carriers = []
    for number, (text, tokenized) in enumerate(zip(texts, encoder.tokenize(texts), strict=True)):
        path: tuple[int, ...] = ()
        if settings.placement is Placement.RANDOM:
            paths = KeyedPaths(settings.seed, 0, (len(tokenized.words),), settings.copies, Insertion.IDS)
            path = paths.of(Token(number, ""))[0]
        template = copies_as_ids(_COPY, tokenized, settings.placement, settings.copies, path)
        before_labels = _labels_of(tokenized.ids, len(tokenized.head))
        labels = _labels_of(template, len(tokenized.head))
        carriers.append(PlacedCarrier(text, tokenized.ids, before_labels, template, labels))
    return carriers


def _labels_of(ids: Sequence[int], prompt_length: int) -> tuple[int, ...]:
    """Return the part of each id of a carrier: the prompt comes first."""
    rest = [int(Part.COPIES if entry == _COPY.id else Part.CARRIER) for entry in ids[prompt_length:]]
    return (int(Part.PROMPT),) * prompt_length + tuple(rest)


@dataclass(frozen=True, slots=True)
class Material:
    """The texts of an explanation.

    Attributes:
        carriers: texts that copies are added to.
        anchors: texts that the carriers are compared with.
        source: where the carriers come from, for a person.
    """

    carriers: list[PlacedCarrier]
    anchors: list[str]
    source: str


def gather(
    encoder: IdEncoder,
    settings: ExplainSettings,
    run: Run | None,
    texts: Sequence[Any] | None,
    sentences: Sentences | None,
) -> Material:
    """Choose the texts of an explanation.

    Args:
        encoder: the model, which must be able to read the texts.
        settings: the settings.
        run: a run whose carriers and anchors are used, unless there are sentences.
        texts: carriers of the user, used instead of others.
        sentences: the corpus; None is the run's texts or the bundled corpus.

    Raises:
        InputError: a text of the user cannot be used, or no other text fits into the model.
    """
    if run is not None and sentences is None:
        carrier_texts, anchors, source = _texts_of_run(run)
    else:
        carrier_texts, anchors, source = _texts_of_corpus(load_sentences(sentences), settings)
    anchors = _readable_anchors(encoder, anchors)
    if not anchors:
        raise InputError(f"{source} has no sentence that fits into {encoder.name}: pass shorter sentences")
    if texts is not None:
        return Material(_carriers_of_user(encoder, settings, texts), anchors, "given texts")
    placed = place_copies(encoder, settings, carrier_texts)
    fitting = [carrier for carrier in placed if carrier.before and encoder.fits(carrier.with_copies(0))]
    if not fitting:
        raise InputError(
            f"no sentence of {source} fits into {encoder.name} with {settings.copies} copies added: use "
            "fewer copies or shorter sentences"
        )
    return Material(fitting[: settings.carriers], anchors, source)


def _texts_of_run(run: Run) -> tuple[list[str], list[str], str]:
    """Return the carriers and anchors of a run, and its name."""
    material = run.method.texts(run.plan)
    anchors = list(material.anchors)
    if material.by_topic and len(anchors) > _MAX_ANCHORS:
        # Anchors are in order of their topics, so an even choice has some of each.
        anchors = [anchors[place * len(anchors) // _MAX_ANCHORS] for place in range(_MAX_ANCHORS)]
    return list(material.carriers), anchors, f"run {run.path.name}"


def _texts_of_corpus(corpus: Sentences, settings: ExplainSettings) -> tuple[list[str], list[str], str]:
    """Draw carriers and anchors from a corpus.

    Carriers come from the shortest sentences, twice as many as are needed, without their final punctuation.
    The other sentences are the anchors.
    """
    order = np.random.default_rng([settings.seed]).permutation(len(corpus)).tolist()
    by_length = sorted(order, key=lambda place: len(corpus.texts[place]))
    shortest = by_length[: 2 * settings.carriers]
    carrier_places = set(shortest[: max(1, len(order) // 2)])
    carriers = [open_ended(corpus.texts[place]) for place in order if place in carrier_places]
    anchors = [corpus.texts[place] for place in order if place not in carrier_places]
    return list(dict.fromkeys(carriers)), anchors, corpus.source


def _readable_anchors(encoder: IdEncoder, anchors: Sequence[str]) -> list[str]:
    """Return the first distinct anchors that have words and fit into the model."""
    distinct = list(dict.fromkeys(anchors))
    tokenized = zip(distinct, encoder.tokenize(distinct), strict=True)
    readable = [text for text, ids in tokenized if ids.words and encoder.fits(ids.ids)]
    return readable[:_MAX_ANCHORS]


def _carriers_of_user(
    encoder: IdEncoder, settings: ExplainSettings, texts: Sequence[Any]
) -> list[PlacedCarrier]:
    """Place the copies in the user's texts; a text that cannot be used is an error."""
    if not texts:
        raise InputError("texts is empty: pass at least one text, or leave texts out")
    for text in texts:
        if not isinstance(text, str):
            raise InputError(f"texts contains {shown(text)}: pass strings only")
    for text in texts:
        if not text.strip():
            raise InputError(f"the text {text!r} is blank: leave it out")
    carriers = place_copies(encoder, settings, texts)
    for carrier in carriers:
        text = carrier.text[:_SHOWN_CHARACTERS]
        if not carrier.before:
            raise InputError(f"the text {text!r} has no tokens: leave it out")
        if not encoder.fits(carrier.with_copies(0)):
            raise InputError(
                f"the text {text!r} has {len(carrier.template)} tokens with {settings.copies} copies, more "
                f"than {encoder.name} reads ({encoder.max_length} including special tokens): shorten it or "
                "use fewer copies"
            )
    return carriers


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the vectors of carriers are compared with."""

    direction: Vector | None  # of the mean pooled vector of vocabulary entries, shape (P,); None without any
    anchors: Vector  # unit vectors of the anchors, shape (anchors, d)
    mean_similarity: float  # less similar pairs are unrelated

    def unrelated(self, vector: Vector) -> NDArray[np.bool_]:
        """Return which anchors are unrelated to a vector; at least the least similar ones are."""
        similarities = self.anchors @ unit_vectors(vector)
        below: NDArray[np.bool_] = similarities < self.mean_similarity
        return below if below.any() else np.asarray(similarities == similarities.min())


def _observe(before: Inside, after: Inside, surroundings: Surroundings) -> dict[str, Vector]:
    """Return the measures of one carrier with copies; those that the model does not expose are left out."""
    values: dict[str, Any] = {}
    if after.attention is not None:
        values["attention_received"] = _received(after.attention, after.labels).mean(axis=1)
        from_others = _received(after.attention, after.labels, by_copies=False)
        values["attention_from_others"] = from_others.mean(axis=1)
    if before.hidden is not None and after.hidden is not None:
        own_before = before.hidden[:, before.labels == Part.CARRIER].astype(np.float64)
        own_after = after.hidden[:, after.labels == Part.CARRIER].astype(np.float64)
        copies = after.hidden[:, after.labels == Part.COPIES].astype(np.float64)
        values["copies_norm"] = np.linalg.norm(copies, axis=-1).mean(axis=1)
        if own_before.shape[1]:
            values["carrier_cosine_drift"] = (1 - _cosine(own_before, own_after)).mean(axis=1)
            distances = np.linalg.norm(own_after - own_before, axis=-1)
            values["carrier_euclidean_drift"] = distances.mean(axis=1)
    if after.pooled is not None and after.supplied is not None:
        from_copies = after.supplied[Part.COPIES]
        square = float(after.pooled @ after.pooled)
        lengths = np.linalg.norm(after.supplied, axis=1)
        values["pooling_share"] = from_copies @ after.pooled / square
        values["pooling_norm_share"] = lengths[Part.COPIES] / lengths.sum()
        if surroundings.direction is not None:
            values["pooling_toward_mean"] = from_copies @ surroundings.direction / np.sqrt(square)
            values["vector_toward_mean"] = after.pooled @ surroundings.direction / np.sqrt(square)
    unrelated = surroundings.unrelated(before.vector.astype(np.float64))
    movement = exact_unit_vectors(after.vector) - exact_unit_vectors(before.vector)
    values["lift_sentences"] = (surroundings.anchors[unrelated] @ movement).mean()
    return {name: np.asarray(value, dtype=np.float64) for name, value in values.items()}


def _received(attention: Vector, labels: NDArray[np.intp], *, by_copies: bool = True) -> Any:
    """Return the share of attention that the copies receive, shape (layers, heads).

    Args:
        attention: mean weights, shape (layers, heads, attending parts, attended parts).
        labels: part of each position.
        by_copies: whether the attention of the copies themselves counts.
    """
    sizes = np.bincount(labels, minlength=PARTS + 1).astype(np.float64)
    if not by_copies:
        sizes[Part.COPIES] = 0
    present = sizes > 0  # weights of a part without positions are NaN
    return attention[:, :, present, Part.COPIES] @ (sizes[present] / sizes.sum())


def _cosine(left: Vector, right: Vector) -> Any:
    """Return cosines along the last axis; a zero state has no direction and counts as unchanged."""
    lengths = np.linalg.norm(left, axis=-1) * np.linalg.norm(right, axis=-1)
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
    group_size = _carriers_at_a_time(inspector, carriers)
    observed: dict[int, list[dict[str, Vector]]] = {token_id: [] for token_id in tokens}
    heads: dict[int, list[Vector]] = {token_id: [] for token_id in tokens}
    distances: list[Vector] = []
    total = len(tokens) * len(carriers)
    done = 0
    progress(Progress("inside", 0, total))
    for start in range(0, len(carriers), group_size):
        group = carriers[start : start + group_size]
        before = inspector.look(
            [carrier.before for carrier in group], [carrier.before_labels for carrier in group], PARTS
        )
        states = []
        for token_id in tokens:
            contents = [carrier.with_copies(token_id) for carrier in group]
            after = inspector.look(contents, [carrier.labels for carrier in group], PARTS)
            for carrier_before, carrier_after in zip(before, after, strict=True):
                observed[token_id].append(_observe(carrier_before, carrier_after, surroundings))
                if carrier_after.attention is not None:
                    heads[token_id].append(_received(carrier_after.attention, carrier_after.labels))
            copy_states = _states_of_copies(after)
            if copy_states is not None:
                states.append(copy_states)
            done += len(group)
            progress(Progress("inside", done, total, done, done))
        if len(states) == len(tokens):
            distances.append(_distances_between_tokens(states))
    return {
        "values": _common_measures(observed),
        "heads": {token_id: np.stack(rows) for token_id, rows in heads.items() if len(rows) == len(carriers)},
        "distances": {tokens[0]: _distances_by_measure(distances)},
    }


def _carriers_at_a_time(inspector: Inspector, carriers: Sequence[PlacedCarrier]) -> int:
    """Return for how many carriers there is memory, given the hidden states of the longest one."""
    longest = max(carriers, key=lambda carrier: len(carrier.before))
    hidden = inspector.look([longest.before], [longest.before_labels], PARTS)[0].hidden
    return len(carriers) if hidden is None else max(1, HELD_BYTES // hidden.nbytes)


def _states_of_copies(insides: Sequence[Inside]) -> Vector | None:
    """Return the mean state of the copies, shape (carriers, layers + 1, D); None if states are hidden."""
    means = []
    for inside in insides:
        if inside.hidden is None:
            return None
        copies = inside.hidden[:, inside.labels == Part.COPIES]
        means.append(copies.astype(np.float64).mean(axis=1))
    return np.stack(means)


def _distances_between_tokens(states: Sequence[Vector]) -> Vector:
    """Return the distances of each token's states from those of its benign tokens.

    The first token is compared with the mean of the others, and each of these with the mean of the rest.

    Returns:
        Cosine and Euclidean distances, shape (2, tokens, carriers, layers + 1).
    """
    benign = np.stack(states[1:])
    centres = [benign.mean(axis=0)]
    centres += [np.delete(benign, place, axis=0).mean(axis=0) for place in range(len(benign))]
    cosine_distances = []
    lengths = []
    for token_states, centre in zip(states, centres, strict=True):
        cosine_distances.append(1 - _cosine(token_states, centre))
        lengths.append(np.linalg.norm(token_states - centre, axis=-1))
    return np.stack([cosine_distances, lengths])


def _distances_by_measure(groups: Sequence[Vector]) -> dict[str, Vector]:
    """Join the distances of groups of carriers, shape (tokens, carriers, layers + 1) for each measure."""
    if not groups:
        return {}
    cosine_distances, lengths = np.concatenate(groups, axis=2)
    return {"copies_cosine_distance": cosine_distances, "copies_euclidean_distance": lengths}


def _common_measures(
    observed: Mapping[int, Sequence[Mapping[str, Vector]]],
) -> dict[int, dict[str, Vector]]:
    """Stack the measures of all carriers by token; those that some texts do not support are left out."""
    common = set.intersection(*(set(row) for rows in observed.values() for row in rows))
    stacked = {}
    for token_id, rows in observed.items():
        names = [name for name in rows[0] if name in common]
        stacked[token_id] = {name: np.stack([row[name] for row in rows]) for name in names}
    return stacked
