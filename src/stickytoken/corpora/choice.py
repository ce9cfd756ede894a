"""What a run draws its pairs from: a corpus of sentences, or pairs that the user gives."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, TypeAlias, TypeVar, runtime_checkable

from stickytoken.corpora import load_sentences
from stickytoken.corpora.corpus import Sentences, text_kinds
from stickytoken.corpora.pairs import SentencePair, checked_pair, pairs_fingerprint, pairs_from_file
from stickytoken.errors import InputError, StickyTokenWarning
from stickytoken.machine import digest
from stickytoken.validation import file_path, list_of, shown
from stickytoken.vocabulary import RoundTripTokenizer

SentenceSource: TypeAlias = Sentences | str | Path | Iterable[str]
PairSource: TypeAlias = str | Path | Iterable[SentencePair | tuple[str, str, float]]

_PAIR_PARTS = 3


@dataclass(frozen=True)
class PairCorpus:
    """Pairs given by the user, used instead of sampled ones.

    Attributes:
        pairs: The pairs, with their similarity under the model.
        source: Where they came from, for display.
        unknown: Share of the characters that the model's tokenizer does not know; None before a model
            was chosen.
    """

    pairs: tuple[SentencePair, ...]
    source: str
    unknown: float | None = None

    @property
    def fingerprint(self) -> str:
        """SHA-256 over the pairs in order."""
        return pairs_fingerprint(self.pairs)


def corpus_fingerprint(corpus: Sentences | PairCorpus, topics_count: bool) -> str:
    """Fingerprint everything in a corpus, and in the package's own texts, that can change a number."""
    if topics_count and isinstance(corpus, Sentences):
        # The same sentences stand among the kinds if they are bundled, and beside them if they are given.
        return digest([corpus.fingerprint_with_topics, corpus.bundled, text_kinds().fingerprint_with_topics])
    return corpus.fingerprint


def choose_corpus(sentences: SentenceSource | None, pairs: PairSource | None) -> Sentences | PairCorpus:
    """Load what was passed; without sentences or pairs, the bundled corpus."""
    if pairs is None:
        return load_sentences(sentences)
    if sentences is not None:
        raise InputError("sentences and pairs are both given: pairs replace the sentences, pass one of them")
    if isinstance(pairs, (str, Path)):
        return PairCorpus(tuple(pairs_from_file(file_path("pairs", pairs))), str(pairs))
    given = list_of("pairs", "pairs", pairs)
    if not given:
        raise InputError("the list of pairs is empty: pass at least one pair")
    return PairCorpus(tuple(_pair(place, each) for place, each in enumerate(given, start=1)), "given pairs")


def _pair(place: int, given: object) -> SentencePair:
    if isinstance(given, SentencePair):
        return given
    if not isinstance(given, Sequence) or isinstance(given, (str, bytes)) or len(given) != _PAIR_PARTS:
        raise InputError(
            f"pair {place} is {shown(given)}: pass (sentence1, sentence2, similarity), or a file of pairs"
        )
    return checked_pair(given[0], given[1], given[2], where=f"pair {place}")


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
    """Return a corpus without sentences that become equal, and its share of unknown characters."""
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
