"""Truncate texts so that a model reads them in full, with room for copies of a token."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

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
    longest = limit - room  # number of ids of the prompt and the text
    longest_prompt = max((len(fitted.content.head) for fitted in whole), default=0)
    if longest <= longest_prompt:
        raise InputError(
            f"{name}: the copies take {room} tokens, which leaves no room for a text, because {encoder.name} "
            f"reads {limit} tokens: use fewer copies"
        )

    def truncate(fitted: FittedText) -> FittedText:
        if len(fitted.content.ids) <= longest:
            return fitted
        if insertion is Insertion.IDS:
            return _truncate_ids(fitted, longest)
        return _truncate_words(encoder, fitted, longest)

    return [truncate(fitted) for fitted in whole]


def _truncate_ids(fitted: FittedText, longest: int) -> FittedText:
    room_left = longest - len(fitted.content.head)
    words = []
    for word in fitted.content.words:
        if room_left <= 0:
            break
        words.append(word[:room_left])
        room_left -= len(word)
    return FittedText(fitted.text, TokenizedText(fitted.content.head, tuple(words)), True)


def _truncate_words(encoder: WordEncoder, fitted: FittedText, longest: int) -> FittedText:
    """Return the text cut after a word, so that prompt and text together have at most ``longest`` ids.

    A word that would take more than half of them is cut itself: Chinese, Japanese and Thai have no spaces, so
    a whole paragraph is one word.
    """
    text = fitted.text

    def length_up_to(end: int) -> int:
        return len(encoder.tokenize([text[:end]])[0].ids)

    # Where each word ends; the first end stands for no words. The number of ids grows with the number of
    # words, so the largest number that fits can be found by bisection. Without words, a text always fits.
    ends = [0, *(match.end() for match in re.finditer(r"\S+", text))]
    count = bisect_right(ends, longest, lo=1, key=length_up_to) - 1
    end = ends[count]
    if count + 1 < len(ends) and 2 * length_up_to(end) < longest:
        # Where each character of the next word ends, with the marks that belong to it.
        inner_ends = [end + match.end() for match in regex.finditer(r"\X", text[end : ends[count + 1]])]
        inner_count = bisect_right(inner_ends, longest, key=length_up_to)
        end = inner_ends[inner_count - 1] if inner_count else end
    cut_text = text[:end]
    return FittedText(cut_text, encoder.tokenize([cut_text])[0], True)
