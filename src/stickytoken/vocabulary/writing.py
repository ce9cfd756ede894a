"""How copies of an entry are written as text, so that the tokenizer sees them as copies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stickytoken.insertion import Insertion, Joining, Placement, Token, copies_as_text
from stickytoken.vocabulary.categories import RoundTripTokenizer, Vocabulary

_COPIES = 8
_CARRIER = "a"


def written(vocabulary: Vocabulary, tokenizer: RoundTripTokenizer, insertion: Insertion) -> Vocabulary:
    """Choose how copies of each entry are written, where the insertion leaves that open.

    A copy of a word is a word of its own, and a copy of a piece of a word is glued to the copy before it, if
    the tokenizer then finds the piece again.

    Args:
        vocabulary: entries of the tokenizer.
        tokenizer: sees the copies.
        insertion: how copies go into texts.
    """
    if insertion is not Insertion.WORDS:
        return vocabulary
    places = [place for place, category in enumerate(vocabulary.categories) if category.available]
    as_words = _seen(vocabulary, tokenizer, places, Joining.WORDS)
    # Where no copy is lost, nothing can be better.
    merging = [place for place in places if as_words[place] < _COPIES]
    attached = _seen(vocabulary, tokenizer, merging, Joining.ATTACHED)
    chosen = [Joining.WORDS] * len(vocabulary)
    for place in merging:
        if attached[place] > as_words[place]:
            chosen[place] = Joining.ATTACHED
    return replace(vocabulary, joinings=tuple(chosen))


def _seen(
    vocabulary: Vocabulary, tokenizer: RoundTripTokenizer, places: Sequence[int], joining: Joining
) -> dict[int, int]:
    """Count the copies of entries that the tokenizer sees behind a word."""
    texts = [
        copies_as_text(
            Token(vocabulary.ids[place], vocabulary.decoded[place], joining),
            _CARRIER,
            Placement.SUFFIX,
            _COPIES,
        )
        for place in places
    ]
    return {
        place: ids.count(vocabulary.ids[place])
        for place, ids in zip(places, tokenizer.encode_many(texts), strict=True)
    }
