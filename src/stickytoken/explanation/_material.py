"""Choose the texts of an explanation: carriers, and the anchors that they are compared with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stickytoken.corpora import Sentences, load_sentences
from stickytoken.corpora.corpus import open_ended
from stickytoken.detection.run import Run
from stickytoken.encoders.protocol import IdEncoder
from stickytoken.errors import InputError
from stickytoken.explanation._placing import PlacedCarrier, place_copies
from stickytoken.explanation.settings import ExplainSettings
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
