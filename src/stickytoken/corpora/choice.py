"""What a run draws its pairs from: a corpus of sentences, or pairs that the user gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stickytoken.corpora import Sentences, load_sentences, pairs_from_file
from stickytoken.corpora.pairs import SentencePair, pairs_fingerprint
from stickytoken.errors import InputError


@dataclass(frozen=True)
class PairCorpus:
    """Pairs given by the user, in place of sampled ones.

    Attributes:
        pairs: the pairs, with the similarity under the model.
        source: where they came from.
    """

    pairs: tuple[SentencePair, ...]
    source: str

    @property
    def fingerprint(self) -> str:
        """sha256 over the pairs in order."""
        return pairs_fingerprint(self.pairs)


def corpus_fingerprint(corpus: Sentences | PairCorpus, topics_count: bool) -> str:
    """Fingerprint of all of a corpus that can change a number.

    Args:
        corpus: sentences or pairs.
        topics_count: whether the method looks at the sentences' topics.
    """
    if topics_count and isinstance(corpus, Sentences):
        return corpus.fingerprint_with_topics
    return corpus.fingerprint


def choose_corpus(
    sentences: Sentences | str | Path | None, pairs: Sequence[SentencePair] | str | Path | None
) -> Sentences | PairCorpus:
    """Load what was passed; pairs replace sentences, neither is the bundled corpus.

    Raises:
        InputError: both are given, or one cannot be read.
    """
    if pairs is None:
        return sentences if isinstance(sentences, Sentences) else load_sentences(sentences)
    if sentences is not None:
        raise InputError("sentences and pairs are both given: pairs replace the sentences, pass one of them")
    if isinstance(pairs, (str, Path)):
        return PairCorpus(tuple(pairs_from_file(Path(pairs).expanduser())), str(pairs))
    if not pairs:
        raise InputError("no pair was given")
    return PairCorpus(tuple(pairs), "given pairs")
