"""How much of a corpus a model's tokenizer can read.

A tokenizer without byte fallback turns what its vocabulary lacks into one unknown token. Sentences made of it
differ in nothing that the model sees, so a run on them would find no sticky token, whatever the model does.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol, TypeVar, runtime_checkable

from stickytoken.corpora import Sentences
from stickytoken.corpora.choice import PairCorpus
from stickytoken.errors import InputError, StickyTokenWarning
from stickytoken.vocabulary.categories import RoundTripTokenizer

LARGEST_UNKNOWN = 0.2
"""Largest usable share of unknown characters.

Measured with the tokenizers of all-MiniLM-L6-v2, T5 and RoBERTa. English corpora stay below 0.006, chat with
emoji reaches 0.1. Languages that a vocabulary lacks: Polish with T5 0.23; Japanese, Hindi and Korean with
MiniLM 0.26 to 0.35, Chinese 0.66; Asian languages with T5 above 0.9. RoBERTa reads bytes and knows all.
"""
NOTED_UNKNOWN = 0.02
_CHUNK = 4096

Corpus = TypeVar("Corpus", bound=Sentences | PairCorpus)


@runtime_checkable
class SpanTokenizer(Protocol):
    """A tokenizer that has an unknown token and reports which characters became it."""

    @property
    def unknown_id(self) -> int | None:
        """The id of the unknown token; None if there is none."""

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode each text without special tokens."""

    def encode_with_spans(self, texts: Sequence[str]) -> list[tuple[list[int], list[tuple[int, int]] | None]]:
        """Encode each text, and give the characters that each id stands for."""


def readable(corpus: Corpus, tokenizer: RoundTripTokenizer, model: str) -> Corpus:
    """Measure how much of a corpus is unknown to a tokenizer, and drop sentences that it makes equal.

    Only sentences with unknown tokens are compared; a corpus without them is returned with the same texts.

    Args:
        corpus: Sentences or pairs.
        tokenizer: The model's tokenizer; one that does not tell its unknown token passes.
        model: The name of the model, for messages.

    Raises:
        InputError: More than a fifth of the characters are unknown.
    """
    found = as_read(corpus, tokenizer)
    share = found.unknown or 0.0
    if share > LARGEST_UNKNOWN:
        raise InputError(
            f"the tokenizer of {model} does not know {share:.0%} of the characters in {corpus.source}, so "
            "different sentences look alike to it: pass sentences in a language that the model reads"
        )
    if share > NOTED_UNKNOWN:
        warnings.warn(
            f"the tokenizer of {model} does not know {share:.1%} of the characters in {corpus.source}",
            StickyTokenWarning,
            stacklevel=3,
        )
    return found


def as_read(corpus: Corpus, tokenizer: RoundTripTokenizer) -> Corpus:
    """Return a corpus with the share of unknown characters, without sentences that the tokenizer makes equal.

    Args:
        corpus: Sentences or pairs.
        tokenizer: The model's tokenizer; for one that does not tell its unknown token, the corpus is
            returned as it is.
    """
    if not isinstance(tokenizer, SpanTokenizer):
        return corpus
    texts = _texts(corpus)
    unknown, repeated = _read(texts, tokenizer)
    share = unknown / max(1, sum(map(_characters, texts)))
    if isinstance(corpus, PairCorpus):
        return replace(corpus, unknown=share)
    kept = [place for place in range(len(texts)) if place not in repeated]
    return replace(
        corpus,
        texts=tuple(texts[place] for place in kept),
        topics=None if corpus.topics is None else tuple(corpus.topics[place] for place in kept),
        duplicates=corpus.duplicates + len(repeated),
        unknown=share,
    )


def _texts(corpus: Sentences | PairCorpus) -> Sequence[str]:
    if isinstance(corpus, Sentences):
        return corpus.texts
    return list(dict.fromkeys(sentence for pair in corpus.pairs for sentence in pair.sentences))


def _read(texts: Sequence[str], tokenizer: SpanTokenizer) -> tuple[float, set[int]]:
    """Return the number of unknown characters, and the places of sentences equal to an earlier one."""
    unknown_id = tokenizer.unknown_id
    if unknown_id is None:
        return 0.0, set()
    unknown, repeated = 0.0, set()
    seen: set[tuple[int, ...]] = set()
    for start in range(0, len(texts), _CHUNK):
        found = tokenizer.encode_many(texts[start : start + _CHUNK])
        places = [start + place for place, ids in enumerate(found) if unknown_id in ids]
        spans = tokenizer.encode_with_spans([texts[place] for place in places])
        for place, (ids, characters) in zip(places, spans, strict=True):
            text = texts[place]
            if characters is None:  # the tokenizer does not tell: every token counts alike
                unknown += _characters(text) * ids.count(unknown_id) / len(ids)
            else:
                parts = zip(ids, characters, strict=True)
                unknown += sum(_characters(text[a:b]) for token, (a, b) in parts if token == unknown_id)
            if tuple(ids) in seen:
                repeated.add(place)
            seen.add(tuple(ids))
    return unknown, repeated


def _characters(text: str) -> int:
    return sum(map(len, text.split()))
