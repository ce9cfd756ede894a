"""Check that a tokenizer knows the characters of a corpus, so that its sentences differ for the model too."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol, runtime_checkable

from stickytoken.data import Corpus, PairCorpus
from stickytoken.errors import InputError, warn
from stickytoken.vocabulary import RoundTripTokenizer

LARGEST_UNKNOWN = 0.2
"""Largest share of unknown characters that an accepted corpus may have.

The limit lies between shares measured with the tokenizers of all-MiniLM-L6-v2, T5 and RoBERTa. In English
corpora, less than 0.006 of the characters are unknown; in chat with emoji, up to 0.1. The share is higher in
a language that the vocabulary lacks: 0.23 for Polish with T5; 0.26 to 0.35 for Japanese, Hindi and Korean and
0.66 for Chinese with MiniLM; above 0.9 for Asian languages with T5. RoBERTa reads bytes, so it knows every
character.
"""
NOTED_UNKNOWN = 0.02
"""Share of unknown characters above which a warning is given."""
_CHUNK = 4096
"""Number of texts that are tokenized in one call."""


@runtime_checkable
class SpanTokenizer(Protocol):
    """A tokenizer that can report which characters of a text each id stands for."""

    @property
    def unknown_id(self) -> int | None: ...

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]: ...

    def encode_with_spans(self, texts: Sequence[str]) -> list[tuple[list[int], list[tuple[int, int]] | None]]:
        """Return, for each text, its ids and the character span of each id.

        The spans of a text are None if the tokenizer cannot determine them.
        """


def require_readable(corpus: Corpus, tokenizer: RoundTripTokenizer, model: str) -> Corpus:
    """Return a corpus after `drop_indistinguishable`, and check its share of unknown characters.

    A warning is given if the share of unknown characters exceeds `NOTED_UNKNOWN`.

    Raises:
        InputError: The share of unknown characters exceeds `LARGEST_UNKNOWN`.
    """
    distinct_corpus = drop_indistinguishable(corpus, tokenizer)
    share = distinct_corpus.unknown or 0.0
    if share > LARGEST_UNKNOWN:
        raise InputError(
            f"the tokenizer of {model} does not know {share:.0%} of the characters in {corpus.source}, so "
            "different sentences look the same to the model: pass sentences in a language that it reads"
        )
    if share > NOTED_UNKNOWN:
        warn(f"the tokenizer of {model} does not know {share:.1%} of the characters in {corpus.source}")
    return distinct_corpus


def drop_indistinguishable(corpus: Corpus, tokenizer: RoundTripTokenizer) -> Corpus:
    """Return a corpus without sentences that the model cannot tell from earlier sentences.

    The share of characters that the tokenizer does not read is stored as `unknown`. A sentence is left out if
    the tokenizer does not read all of its characters and gives it the same ids as an earlier sentence. Pairs
    are never left out. The corpus is returned unchanged if the tokenizer is not a `SpanTokenizer`.
    """
    if not isinstance(tokenizer, SpanTokenizer):
        return corpus
    if isinstance(corpus, PairCorpus):
        texts = tuple(dict.fromkeys(text for pair in corpus.pairs for text in pair.sentences))
    else:
        texts = corpus.texts
    unread_total = 0.0  # number of unread characters in all sentences
    repeated_indices = set()  # indices of sentences with the same ids as an earlier sentence
    earlier_ids: set[tuple[int, ...]] = set()  # ids of the earlier sentences with unread characters
    for start in range(0, len(texts), _CHUNK):
        chunk = texts[start : start + _CHUNK]
        for index, (ids, spans) in enumerate(tokenizer.encode_with_spans(chunk), start):
            unread = _count_unread_characters(texts[index], ids, spans, tokenizer.unknown_id)
            if unread == 0:
                # The tokenizer reads every character, so two sentences with the same ids can differ only in
                # what the tokenizer ignores on purpose, such as case or spaces. The two sentences mean the
                # same thing, and both are kept.
                continue
            unread_total += unread
            if tuple(ids) in earlier_ids:
                repeated_indices.add(index)
            earlier_ids.add(tuple(ids))
    share = unread_total / max(1, sum(map(_count_visible_characters, texts)))
    if isinstance(corpus, PairCorpus):
        return replace(corpus, unknown=share)
    distinct_indices = [index for index in range(len(texts)) if index not in repeated_indices]
    topics = None
    if corpus.topics is not None:
        topics = tuple(corpus.topics[index] for index in distinct_indices)
    return replace(
        corpus,
        texts=tuple(texts[index] for index in distinct_indices),
        topics=topics,
        duplicates=corpus.duplicates + len(repeated_indices),
        unknown=share,
    )


def _count_unread_characters(
    text: str, ids: Sequence[int], spans: Sequence[tuple[int, int]] | None, unknown_id: int | None
) -> float:
    """Return the number of characters, except white space, that a tokenizer drops or does not know.

    A character is dropped if no id stands for it. Dropped combining marks and control characters are not
    counted, because many tokenizers drop them on purpose and keep the letters. A character is unknown if the
    id of the unknown token stands for it.

    For example, if the tokenizer gives only the ids of ``a`` and ``b`` for the text ``a☃ b``, the snowman is
    dropped, and the number is 1.

    If ``spans`` is None, the tokenizer cannot say which characters an id stands for, and the number is an
    estimate: the share of unknown ids is taken for that of unknown characters.
    """
    if spans is None:
        # Without any ids, the tokenizer has read nothing.
        unknown_share = ids.count(unknown_id) / len(ids) if ids else 1.0
        return _count_visible_characters(text) * unknown_share
    unread = 0
    # Spans may overlap: a token that only marks the beginning of a word has the span of the word's first
    # character. These two positions ensure that no character is counted twice.
    covered_until = 0  # end of the text that the spans have covered so far
    unknown_until = 0  # end of the unknown characters that have been counted so far
    for token_id, (begin, end) in zip(ids, spans, strict=True):
        dropped = text[covered_until:begin]
        unread += _count_readable_characters(dropped)
        covered_until = max(covered_until, end)
        if token_id == unknown_id:
            unknown = text[max(begin, unknown_until) : end]
            unread += _count_visible_characters(unknown)
            unknown_until = max(unknown_until, end)
    dropped_at_end = text[covered_until:]
    return unread + _count_readable_characters(dropped_at_end)


# Unicode categories whose characters normalizers drop on purpose: marks on letters, control and format
# characters.
_DROPPED_ON_PURPOSE = ("Mn", "Me", "Cc", "Cf")


def _count_readable_characters(text: str) -> int:
    visible = (character for character in text if not character.isspace())
    return sum(unicodedata.category(character) not in _DROPPED_ON_PURPOSE for character in visible)


def _count_visible_characters(text: str) -> int:
    return sum(map(len, text.split()))
