"""What a run draws its pairs from: a corpus of sentences, or pairs that the user gives.

Sampling and choosing pairs is step 1 of the Sticky Token Detector (Chen et al. 2025).
"""

from __future__ import annotations

import warnings
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, TypeAlias, TypeVar, runtime_checkable

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stickytoken.data.sentences import LONGEST_SENTENCE, Sentences, load_sentences, text_kinds
from stickytoken.data.tables import TABLE_SUFFIXES, numbers_or_none, read_table, text_column
from stickytoken.errors import InputError, StickyTokenWarning
from stickytoken.machine import digest
from stickytoken.unit_vectors import unit_vectors
from stickytoken.validation import file_path, list_of, shown
from stickytoken.vocabulary import RoundTripTokenizer


@dataclass(frozen=True, slots=True)
class SentencePair:
    sentence1: str  # the anchor, which is left unchanged
    sentence2: str  # the carrier, into which tokens are inserted
    similarity: float  # under the model

    @property
    def sentences(self) -> tuple[str, str]:
        return self.sentence1, self.sentence2


@dataclass(frozen=True)
class PairCorpus:
    pairs: tuple[SentencePair, ...]  # with their similarity under the model
    source: str  # for display
    unknown: float | None = None  # share of characters that the tokenizer does not know; None before a model

    @property
    def fingerprint(self) -> str:
        return pairs_fingerprint(self.pairs)


SentenceSource: TypeAlias = Sentences | str | Path | Iterable[str]
PairSource: TypeAlias = str | Path | Iterable[SentencePair | tuple[str, str, float]]
Corpus = TypeVar("Corpus", bound=Sentences | PairCorpus)


def pairs_fingerprint(pairs: Sequence[SentencePair]) -> str:
    return digest([[pair.sentence1, pair.sentence2, pair.similarity] for pair in pairs])


def corpus_fingerprint(corpus: Sentences | PairCorpus, topics_count: bool) -> str:
    """Fingerprint everything in a corpus, and in the package's own texts, that can change a number."""
    if topics_count and isinstance(corpus, Sentences):
        # The same sentences stand among the kinds if they are bundled, and beside them if they are given.
        return digest([corpus.fingerprint_with_topics, corpus.bundled, text_kinds().fingerprint_with_topics])
    return corpus.fingerprint


def choose_corpus(sentences: SentenceSource | None, pairs: PairSource | None) -> Sentences | PairCorpus:
    if pairs is None:
        return load_sentences(sentences)
    if sentences is not None:
        raise InputError("sentences and pairs are both given: pairs replace the sentences, pass one of them")
    if isinstance(pairs, (str, Path)):
        return PairCorpus(tuple(pairs_from_file(file_path("pairs", pairs))), str(pairs))
    given = list_of("pairs", "pairs", pairs)
    if not given:
        raise InputError("the list of pairs is empty: pass at least one pair")
    found = []
    for place, each in enumerate(given, start=1):
        if isinstance(each, SentencePair):
            found.append(each)
        elif isinstance(each, Sequence) and not isinstance(each, (str, bytes)) and len(each) == 3:
            found.append(_checked(each[0], each[1], each[2], f"pair {place}"))
        else:
            raise InputError(
                f"pair {place} is {shown(each)}: pass (sentence1, sentence2, similarity), or a file of pairs"
            )
    return PairCorpus(tuple(found), "given pairs")


def pairs_from_file(path: Path) -> list[SentencePair]:
    """Read pairs from a table with the columns sentence1, sentence2 and similarity.

    Raises:
        InputError: The file cannot be read, a column is missing, a sentence is blank, or a similarity is
            not a cosine.
    """
    if path.suffix.lower() not in TABLE_SUFFIXES:
        raise InputError(f"{path}: pairs are read from {', '.join(TABLE_SUFFIXES)}")
    frame = read_table(path)
    columns = ("sentence1", "sentence2", "similarity")
    if missing := [column for column in columns if column not in frame.columns]:
        raise InputError(
            f"{path} lacks the column {missing[0]!r}: pairs need {', '.join(columns)}, "
            f"it has {', '.join(frame.columns)}"
        )
    first, second = text_column(frame, "sentence1", path), text_column(frame, "sentence2", path)
    similarities = numbers_or_none(frame["similarity"], path, pl.Null())
    rows = enumerate(zip(first, second, similarities, strict=True), start=1)
    pairs = [_checked(*parts, f"{path}: pair {row}") for row, parts in rows]
    if not pairs:
        raise InputError(f"{path} has no pairs")
    return pairs


def _checked(sentence1: object, sentence2: object, similarity: object, where: str) -> SentencePair:
    for sentence in (sentence1, sentence2):
        if not isinstance(sentence, str | None):
            raise InputError(f"{where} has {shown(sentence)} for a sentence: pass text")
        if not (sentence or "").strip():
            raise InputError(f"{where} has a blank sentence")
        if len(str(sentence)) > LONGEST_SENTENCE:
            raise InputError(f"{where} has a sentence longer than {LONGEST_SENTENCE:,} characters")
    # Rounded similarities of equal sentences may lie a little above 1.
    if not isinstance(similarity, (int, float, np.number)) or not abs(float(similarity)) <= 1.001:
        raise InputError(f"{where} has the similarity {shown(similarity)}: it must be between -1 and 1")
    return SentencePair(str(sentence1), str(sentence2), float(similarity))


def sample_pairs(sentences: Sequence[str], vectors: NDArray[np.floating], count: int) -> list[SentencePair]:
    """Give each of ``count`` evenly spaced similarities the nearest pair that no earlier one took."""
    if len(sentences) < 2:
        raise InputError(f"pairs need at least 2 sentences, got {len(sentences)}")
    units = unit_vectors(vectors)
    rows, columns = np.triu_indices(len(sentences), k=1)
    similarities = (units @ units.T).astype(np.float64)[rows, columns]
    order = np.argsort(similarities, kind="stable")
    values, free = similarities[order].tolist(), list(range(len(order)))  # that no target took, ascending
    chosen: list[int] = []
    for target in np.linspace(values[0], values[-1], min(count, len(order))).tolist():
        right = bisect_left(values, target)
        is_left = right == len(values) or (right > 0 and target - values[right - 1] <= values[right] - target)
        nearest = right - 1 if is_left else right
        chosen.append(free.pop(nearest))
        del values[nearest]
    return [
        SentencePair(sentences[rows[k]], sentences[columns[k]], float(similarities[k]))
        for k in order[sorted(chosen)]
    ]


def select_pairs(pairs: Sequence[SentencePair], mean_similarity: float, count: int) -> list[SentencePair]:
    """Choose pairs evenly over the lower 80% of the range below the mean similarity.

    Each of ``count`` evenly spaced targets in [min, min + 0.8 (u - min)] takes the nearest pair with a
    similarity below u. Where pairs are sparse, one is taken more than once, as in the published runs:
    the choice is even over similarity, not over pairs.
    """
    below = sorted(
        (pair for pair in pairs if pair.similarity < mean_similarity),
        key=lambda pair: (pair.similarity, *pair.sentences),
    )
    if not below:
        raise InputError(
            f"none of the {len(pairs)} sentence pairs has a similarity below the model's mean "
            f"{mean_similarity:.4f}: use sentences on more varied subjects"
        )
    ascending = np.array([pair.similarity for pair in below])
    low = ascending[0]
    targets = np.linspace(low, low + 0.8 * (mean_similarity - low), min(count, len(below)))
    return [below[int(np.abs(ascending - target).argmin())] for target in targets]


LARGEST_UNKNOWN = 0.2
"""Largest usable share of unknown characters.

Measured with the tokenizers of all-MiniLM-L6-v2, T5 and RoBERTa. English corpora stay below 0.006, chat with
emoji reaches 0.1. Languages that a vocabulary lacks: Polish with T5 0.23; Japanese, Hindi and Korean with
MiniLM 0.26 to 0.35, Chinese 0.66; Asian languages with T5 above 0.9. RoBERTa reads bytes and knows all.
"""
NOTED_UNKNOWN = 0.02
_CHUNK = 4096


@runtime_checkable
class SpanTokenizer(Protocol):
    @property
    def unknown_id(self) -> int | None: ...

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]: ...

    def encode_with_spans(self, texts: Sequence[str]) -> list[tuple[list[int], list[tuple[int, int]] | None]]:
        """Encode each text, and give the characters that each id stands for."""


def readable(corpus: Corpus, tokenizer: RoundTripTokenizer, model: str) -> Corpus:
    """Drop sentences that a tokenizer makes equal; refuse texts of which it knows too little."""
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
    if not isinstance(tokenizer, SpanTokenizer):
        return corpus
    if isinstance(corpus, PairCorpus):
        texts = tuple(dict.fromkeys(text for pair in corpus.pairs for text in pair.sentences))
    else:
        texts = corpus.texts
    unknown, repeated = 0.0, set()  # characters; places of sentences that equal an earlier one
    seen: set[tuple[int, ...]] = set()
    unknown_id = -1 if tokenizer.unknown_id is None else tokenizer.unknown_id
    for start in range(0, len(texts) if unknown_id >= 0 else 0, _CHUNK):
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


def _characters(text: str) -> int:
    return sum(map(len, text.split()))
