"""Truncate texts so that a model reads them in full, with room for copies of a token."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace

import regex

from stickytoken.encoders.protocol import WordEncoder, content_limit
from stickytoken.errors import InputError
from stickytoken.insertion import Insertion, Probe, TokenizedText


@dataclass(frozen=True)
class FittedText:
    """A text that the model reads in full.

    Attributes:
        text: the text, truncated only if copies are inserted as text.
        content: content ids of the text, truncated in any case, whether copies are inserted as text or as
            ids.
        cut: whether the text was too long to be read in full together with the copies.
    """

    text: str
    content: TokenizedText
    cut: bool

    def as_probe(self, insertion: Insertion) -> Probe:
        """Return the encoder's input for the text without copies."""
        return self.content.ids if insertion is Insertion.IDS else self.text


def fit_texts(
    encoder: WordEncoder, texts: Sequence[str], room: int, insertion: Insertion, name: str
) -> list[FittedText]:
    """Truncate texts so that the model still reads them in full when copies of a token are inserted.

    Args:
        encoder: the model.
        texts: the texts.
        room: number of tokens to leave free for copies.
        insertion: how copies are inserted. If copies are inserted as ids, the ids of a text are truncated
            after a token, as the model itself would do. If copies are inserted as text, the text is truncated
            after a word.
        name: the source of the texts, for the error message.

    Returns:
        One `FittedText` for each text, in the same order.

    Raises:
        InputError: the copies leave no room for a text.
    """
    whole = [
        FittedText(text, content, cut=False)
        for text, content in zip(texts, encoder.tokenize(texts), strict=True)
    ]
    limit = content_limit(encoder)
    if limit is None:
        return whole
    longest = limit - room  # maximum number of ids of the prompt and a text together
    longest_prompt = max((len(fitted.content.head) + len(fitted.content.tail) for fitted in whole), default=0)
    if longest <= longest_prompt:
        raise InputError(
            f"{name}: the copies take {room} tokens, which leaves no room for a text, because {encoder.name} "
            f"reads {limit} tokens: use fewer copies"
        )

    def truncate(fitted: FittedText) -> FittedText:
        if len(fitted.content.ids) <= longest:
            return fitted
        if insertion is Insertion.IDS:
            return FittedText(fitted.text, truncate_ids(fitted.content, longest), cut=True)
        return _truncate_words(encoder, fitted, longest)

    return [truncate(fitted) for fitted in whole]


def truncate_ids(text: TokenizedText, longest: int) -> TokenizedText:
    """Return a text without its last words, so that it has at most ``longest`` ids; the last word may be cut.

    Head and tail belong to the prompt and stay: without its tail, a quotation would not be closed.
    """
    room_left = longest - len(text.head) - len(text.tail)
    words = []
    for word_ids in text.words:
        if room_left <= 0:
            break
        words.append(word_ids[:room_left])
        room_left -= len(word_ids)
    return replace(text, words=tuple(words))


def _truncate_words(encoder: WordEncoder, fitted: FittedText, longest: int) -> FittedText:
    """Return the text cut after a word, so that prompt and text together have at most ``longest`` ids.

    If the words that fit take less than half of ``longest``, the next word is cut too: Chinese, Japanese and
    Thai have no spaces, so a whole paragraph is one word.
    """
    text = fitted.text

    def count_ids_up_to(end: int) -> int:
        return len(encoder.tokenize([text[:end]])[0].ids)

    # The number of ids grows with the number of words, so the number of words that fit can be found by
    # bisection. A text without words always fits.
    word_ends = [match.end() for match in re.finditer(r"\S+", text)]
    word_count = bisect_right(word_ends, longest, key=count_ids_up_to)
    end = word_ends[word_count - 1] if word_count else 0
    # If the words that fit leave more than half of the ids free, the next word needs more ids than are free.
    is_half_free = 2 * count_ids_up_to(end) < longest
    if word_count < len(word_ends) and is_half_free:
        next_word = text[end : word_ends[word_count]]
        # Where each character of the next word ends, including the combining marks of the character.
        character_ends = [end + match.end() for match in regex.finditer(r"\X", next_word)]
        character_count = bisect_right(character_ends, longest, key=count_ids_up_to)
        if character_count:
            end = character_ends[character_count - 1]
    cut_text = text[:end]
    return FittedText(cut_text, encoder.tokenize([cut_text])[0], cut=True)
