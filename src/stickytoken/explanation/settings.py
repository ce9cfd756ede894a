"""Settings of an explanation."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stickytoken.data import Sentences, load_sentences
from stickytoken.data.sentences import open_ended
from stickytoken.detection.run import Run
from stickytoken.encoders.protocol import IdEncoder
from stickytoken.errors import InputError
from stickytoken.insertion import Insertion, Placement, Token, copies_as_ids
from stickytoken.methods.probes import KeyedPaths
from stickytoken.validation import proportion, require_switch, set_choices, set_whole_numbers, shown
from stickytoken.vocabulary import LEAST_BENIGN


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
_KEY = 0


class Part(IntEnum):
    """What a position of an input belongs to; special tokens come last."""

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
    """Choose the places of the copies, which are the same for every token."""
    carriers = []
    for number, (text, tokenized) in enumerate(zip(texts, encoder.tokenize(texts), strict=True)):
        path: tuple[int, ...] = ()
        if settings.placement is Placement.RANDOM:
            words = (len(tokenized.words),)
            paths = KeyedPaths(settings.seed, _KEY, words, settings.copies, Insertion.IDS)
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
# Carriers are drawn from this many times as many sentences, the shortest ones.
_POOL = 2
_SHOWN = 60


def gather(
    encoder: IdEncoder,
    settings: ExplainSettings,
    run: Run | None,
    texts: Sequence[str] | None,
    sentences: Sentences | None,
) -> tuple[list[PlacedCarrier], list[str], str]:
    """Choose carriers, the anchors to compare them with, and the name of their source."""
    if run is not None and sentences is None:
        found = run.method.texts(run.plan)
        carriers, anchors, source = found.carriers, found.anchors, f"run {run.path.name}"
        if found.by_topic and len(anchors) > _ANCHORS:
            anchors = [anchors[k * len(anchors) // _ANCHORS] for k in range(_ANCHORS)]
    else:
        corpus = load_sentences(sentences)
        # Draw short carriers, without their final punctuation, and take the other sentences as anchors.
        order = np.random.default_rng([settings.seed]).permutation(len(corpus)).tolist()
        shortest = sorted(order, key=lambda k: len(corpus.texts[k]))[: _POOL * settings.carriers]
        drawn = set(shortest[: max(1, len(order) // 2)])
        carriers = list(dict.fromkeys(open_ended(corpus.texts[k]) for k in order if k in drawn))
        anchors, source = [corpus.texts[k] for k in order if k not in drawn], corpus.source
    anchors = list(dict.fromkeys(anchors))
    tokenized = zip(anchors, encoder.tokenize(anchors), strict=True)
    anchors = [text for text, ids in tokenized if ids.words and encoder.fits(ids.ids)][:_ANCHORS]
    if not anchors:
        raise InputError(f"{source} has no sentence that fits into {encoder.name}: pass shorter sentences")
    if texts is not None:
        return _given(encoder, settings, texts), anchors, "given texts"
    placed = place_copies(encoder, settings, carriers)
    fitting = [each for each in placed if each.before and encoder.fits(each.with_copies(0))]
    if not fitting:
        raise InputError(
            f"no sentence of {source} fits into {encoder.name} with {settings.copies} copies added: use "
            "fewer copies or shorter sentences"
        )
    return fitting[: settings.carriers], anchors, source


def _given(encoder: IdEncoder, settings: ExplainSettings, texts: Sequence[str]) -> list[PlacedCarrier]:
    if not texts:
        raise InputError("texts is empty: pass at least one text, or leave texts out")
    for text in texts:
        if not isinstance(text, str):
            raise InputError(f"texts contains {shown(text)}: pass strings only")
        if not text.strip():
            raise InputError(f"the text {text!r} is blank: leave it out")
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
    return placed


Vector = NDArray[np.float64]

# Usual names of reserved vocabulary entries.
_RESERVED = re.compile(r"unused|reserved|extra_id|extra_token|madeupword|placeholder", re.IGNORECASE)
# Rows that are copied at a time.
_ROWS = 4096
_BRACKETED = re.compile(r"[<\[].+[>\]]")


@dataclass(frozen=True)
class EmbeddingMatrix:
    """The rows of the token embeddings, shape (entries, D), read in parts: they are most of a small model."""

    rows: NDArray[np.float32]
    names: Mapping[int, str]

    @cached_property
    def unused(self) -> list[int]:
        """Rows that no text uses: beyond the vocabulary, or with the name of a reserved entry."""
        return [
            row
            for row in range(len(self.rows))
            if row not in self.names
            or (_BRACKETED.fullmatch(self.names[row]) and _RESERVED.search(self.names[row]))
        ]

    @cached_property
    def measures(self) -> dict[str, Vector]:
        """Length of every row, and how close it is to the means of all and of unused rows, shape (entries,).

        The cosine of a row of zeros is NaN. Measures that need unused rows are absent if there are none.
        """
        whole = np.arange(len(self.rows))
        means = {"mean": self._mean(whole)}
        if self.unused:
            means["unused"] = self._mean(np.array(self.unused))
        found: dict[str, list[Vector]] = {}
        for rows in self._parts(whole):
            norms = np.linalg.norm(rows, axis=1)
            found.setdefault("embedding_norm", []).append(norms)
            for name, mean in means.items():
                distances = np.linalg.norm(rows - mean, axis=1)
                lengths = norms * np.linalg.norm(mean)
                cosines = np.divide(rows @ mean, lengths, out=np.full_like(norms, np.nan), where=lengths > 0)
                found.setdefault(f"embedding_distance_to_{name}", []).append(distances)
                found.setdefault(f"embedding_cosine_to_{name}", []).append(cosines)
        return {name: np.concatenate(parts) for name, parts in found.items()}

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
            lengths = np.linalg.norm(rows, axis=1)
            units += (rows[lengths > 0] / lengths[lengths > 0, None]).sum(axis=0)
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

    def _mean(self, places: NDArray[np.intp]) -> Vector:
        found: Vector = np.sum([part.sum(axis=0) for part in self._parts(places)], axis=0) / len(places)
        return found

    def _parts(self, places: NDArray[np.intp], dtype: type[np.floating[Any]] = np.float64) -> Iterator[Any]:
        for start in range(0, len(places), _ROWS):
            yield self.rows[places[start : start + _ROWS]].astype(dtype)
