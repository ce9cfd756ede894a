"""Choose the texts of an explanation: carriers, and the anchors that they are compared with."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stickytoken.corpora import Sentences, load_sentences
from stickytoken.corpora.corpus import open_ended
from stickytoken.detection.run import Run
from stickytoken.encoders.protocol import IdEncoder
from stickytoken.errors import InputError
from stickytoken.explanation.settings import ExplainSettings, PlacedCarrier, place_copies
from stickytoken.validation import shown

_ANCHORS = 64
# Carriers are drawn from this many times as many sentences, the shortest ones.
_POOL = 2
_SHOWN = 60


@dataclass(frozen=True, slots=True)
class Material:
    """Texts of an explanation.

    Attributes:
        carriers: texts with places for the copies.
        anchors: texts to compare with.
        mean_similarity: mean similarity (u) of the run; None without a run.
        source: where the carriers come from.
    """

    carriers: tuple[PlacedCarrier, ...]
    anchors: tuple[str, ...]
    mean_similarity: float | None
    source: str


def gather(
    encoder: IdEncoder,
    settings: ExplainSettings,
    run: Run | None,
    texts: Sequence[str] | None,
    sentences: Sentences | None,
) -> Material:
    """Choose carriers and anchors from the user's texts, a corpus, the run, or the bundled sentences."""
    if texts is not None and not texts:
        raise InputError("texts is empty: pass at least one text, or leave texts out")
    own = None if texts is None else _users(encoder, settings, texts)
    if run is not None and sentences is None:
        carriers, anchors = _texts_of_run(run)
        source = f"run {run.path.name}"
    else:
        corpus = load_sentences(sentences)
        carriers, anchors = _texts_of_corpus(corpus, settings)
        source = corpus.source
    anchors = _readable(encoder, anchors)[:_ANCHORS]
    if not anchors:
        raise InputError(f"{source} has no sentence that fits into {encoder.name}: pass shorter sentences")
    if own is None:
        own = _that_fit(encoder, settings, carriers)[: settings.carriers]
        if not own:
            raise InputError(
                f"no sentence of {source} fits into {encoder.name} with {settings.copies} copies added: use "
                "fewer copies or shorter sentences"
            )
    else:
        source = "given texts"
    mean = None if run is None else run.plan.mean_similarity
    return Material(tuple(own), tuple(anchors), mean, source)


def _users(encoder: IdEncoder, settings: ExplainSettings, texts: Sequence[str]) -> list[PlacedCarrier]:
    for text in texts:
        if not isinstance(text, str):
            raise InputError(f"texts contains {shown(text)}: pass strings only")
        if not text.strip():
            raise InputError(f"the text {text!r} is blank: leave it out")
    placed = _placed(encoder, settings, texts)
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


def _texts_of_run(run: Run) -> tuple[list[str], list[str]]:
    found = run.method.texts(run.plan)
    if not found.by_topic or len(found.anchors) <= _ANCHORS:
        return found.carriers, found.anchors
    return found.carriers, [found.anchors[k * len(found.anchors) // _ANCHORS] for k in range(_ANCHORS)]


def _texts_of_corpus(corpus: Sentences, settings: ExplainSettings) -> tuple[list[str], list[str]]:
    """Draw short carriers, without their final punctuation, and take the other sentences as anchors."""
    order = np.random.default_rng([settings.seed]).permutation(len(corpus)).tolist()
    shortest = sorted(order, key=lambda k: len(corpus.texts[k]))[: _POOL * settings.carriers]
    drawn = sorted(shortest[: max(1, len(order) // 2)], key=order.index)
    carriers = list(dict.fromkeys(open_ended(corpus.texts[k]) for k in drawn))
    chosen = set(drawn)
    return carriers, [corpus.texts[k] for k in order if k not in chosen]


def _placed(encoder: IdEncoder, settings: ExplainSettings, texts: Sequence[str]) -> list[PlacedCarrier]:
    return [
        place_copies(text, tokenized, number, settings)
        for number, (text, tokenized) in enumerate(zip(texts, encoder.tokenize(texts), strict=True))
    ]


def _that_fit(encoder: IdEncoder, settings: ExplainSettings, texts: Sequence[str]) -> list[PlacedCarrier]:
    return [
        carrier
        for carrier in _placed(encoder, settings, texts)
        if carrier.before and encoder.fits(carrier.with_copies(0))
    ]


def _readable(encoder: IdEncoder, texts: Sequence[str]) -> list[str]:
    distinct = list(dict.fromkeys(texts))
    tokenized = encoder.tokenize(distinct)
    return [
        text for text, ids in zip(distinct, tokenized, strict=True) if ids.words and encoder.fits(ids.ids)
    ]


Vector = NDArray[np.float64]

# Usual names of reserved vocabulary entries.
_RESERVED = re.compile(r"unused|reserved|extra_id|extra_token|madeupword|placeholder", re.IGNORECASE)
# Rows that are copied at a time.
_ROWS = 4096
_BRACKETED = re.compile(r"[<\[].+[>\]]")


@dataclass(frozen=True)
class EmbeddingMatrix:
    """The rows of the token embeddings.

    A large vocabulary's matrix is most of a small model, so it is never copied as a whole: everything is
    computed from a few thousand rows at a time.

    Attributes:
        rows: shape (entries, D).
        names: vocabulary strings by id.
    """

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
        """Measures of every row by name, shape (entries,).

        They are its length, and how close it is to the mean of all rows and of unused rows. The cosine of a
        row of zeros is NaN. Measures that need unused rows are absent if there are none.
        """
        means = {"mean": self._mean(np.arange(len(self.rows)))}
        if unused := self.unused:
            means["unused"] = self._mean(np.array(unused))
        found: dict[str, list[Vector]] = {}
        for rows in self._parts(np.arange(len(self.rows))):
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
        """Return the nearest vocabulary entries by cosine, nearest first."""
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
        """The geometry of the vocabulary.

        ``mean_cosine`` is the mean cosine over all pairs of rows, 0 if they point evenly in all directions
        (isotropy). ``first_component_share`` is the share of the variance along the widest direction.
        """
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

    @cached_property
    def _known(self) -> list[int]:
        """Rows of vocabulary entries."""
        return [k for k in self.names if k < len(self.rows)]

    def _mean(self, places: NDArray[np.intp]) -> Vector:
        """Return the mean of some rows, shape (D,)."""
        found: Vector = np.sum([part.sum(axis=0) for part in self._parts(places)], axis=0) / len(places)
        return found

    def _parts(self, places: NDArray[np.intp], dtype: type[np.floating[Any]] = np.float64) -> Iterator[Any]:
        """Yield some rows, a few thousand at a time, as copies of another precision."""
        for start in range(0, len(places), _ROWS):
            yield self.rows[places[start : start + _ROWS]].astype(dtype)


def share_below(values: Vector, token_id: int, available: Sequence[int]) -> float | None:
    """Return the share of available entries whose value is below that of a token; None if it has none."""
    if np.isnan(values[token_id]):
        return None
    others = values[[k for k in available if k < len(values)]]
    return float((others < values[token_id]).mean())
