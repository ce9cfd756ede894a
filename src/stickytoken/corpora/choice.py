"""What a run draws its pairs from: a corpus of sentences, or pairs that the user gives."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from stickytoken.corpora import Sentences, load_sentences, pairs_from_file
from stickytoken.corpora.corpus import text_kinds
from stickytoken.corpora.pairs import SentencePair, checked_pair, pairs_fingerprint
from stickytoken.errors import InputError
from stickytoken.hashing import digest
from stickytoken.validation import file_path, list_of, shown

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
    """Fingerprint everything in a corpus, and in the package's own texts, that can change a number.

    Args:
        corpus: Sentences or pairs.
        topics_count: Whether the method uses the topics of sentences, and the bundled kinds of text.
    """
    if topics_count and isinstance(corpus, Sentences):
        # The same sentences stand among the kinds if they are bundled, and beside them if they are given.
        return digest([corpus.fingerprint_with_topics, corpus.bundled, text_kinds().fingerprint_with_topics])
    return corpus.fingerprint


def choose_corpus(sentences: SentenceSource | None, pairs: PairSource | None) -> Sentences | PairCorpus:
    """Load what was passed; without sentences or pairs, the bundled corpus.

    Raises:
        InputError: Both are given, or one cannot be read.
    """
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
