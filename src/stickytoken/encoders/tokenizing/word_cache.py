"""Assemble the token ids of texts from those of their words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias

from stickytoken.encoders.tokenizing._word_boundaries import (
    PRINTABLE,
    STOPS,
    Boundaries,
    added_contents,
    boundaries,
)

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_Ids: TypeAlias = tuple[int, ...] | None

_CAPACITY = 64 * 2**20
# Approximate size of an entry with key and value, of an id in a tuple, and of a hash in a set.
_ENTRY_BYTES, _ID_BYTES, _HASH_BYTES = 200, 36, 64
_BOUNDARY = re.compile(r" (?=[!-~](?:[ -~]|\Z))(?:(?<=[ -~][!-~] )|(?<=\A[!-~] ))")
# The first two characters after a boundary, and the last two before it.
_STARTS = frozenset({*PRINTABLE, *(one + other for one in PRINTABLE for other in " " + PRINTABLE)})
_ENDS = frozenset({*PRINTABLE, *(other + one for one in PRINTABLE for other in " " + PRINTABLE)})
_STOP = re.compile(rf"[{re.escape(STOPS)}](?=[A-Za-z0-9](?:[ -~]|\Z))")
# Texts with several boundaries, and with lookalikes.
_SAMPLES = (
    "It's 9 o'clock: the old (quiet) river 's  sings, 10,000 times.",
    " The quick brown fox; jumps over 'em all\n at once ",
    "co-operate \u0301 caf\u00e9 \u4e2d\u6587 \u2581 x \u00a0y z\u200d na\u00efve words.Words 3.14 end?no",
)


class WordCache:
    """Encode texts without special tokens, and never tokenize the same piece twice.

    A text is split at boundaries (see `boundaries`): before its last word or after its first word, if the
    longer part has been seen before; otherwise into its words. A text with an added token goes through the
    whole tokenizer.

    Args:
        backend: the pipeline, without padding and truncation; it must not change afterwards.
        found: the boundaries, from `boundaries`.
        capacity: approximate limit in bytes; once exceeded, the cache is emptied before the next call.
    """

    def __init__(self, backend: Tokenizer, found: Boundaries, capacity: int = _CAPACITY) -> None:
        self._backend = backend
        self._prefix = found.prefix
        self._stops = found.stops
        self._capacity = capacity
        self._added = frozenset(backend.get_added_tokens_decoder())
        self._contents = added_contents(backend)
        self._forget()

    @classmethod
    def of(cls, backend: Tokenizer) -> WordCache | None:
        """Return a cache for a tokenizer; None if words cannot be encoded separately."""
        found = boundaries(backend)
        if found is None:
            return None
        cache = cls(backend, found)
        # From the second time on, longer parts are known.
        agrees = all(cache.encode(_SAMPLES) == _tokenized(backend, _SAMPLES) for _ in range(3))
        return cache if agrees else None

    def _forget(self) -> None:
        # New containers, because a call in another thread keeps using the old ones.
        self._beginnings: dict[str, _Ids] = {}
        self._continuations: dict[str, _Ids] = {}
        self._seen: set[int] = set()
        self._held = 0

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the content ids of each text.

        Raises:
            TypeError: A text contains half a surrogate pair.
        """
        if self._held + _HASH_BYTES * len(self._seen) > self._capacity:
            self._forget()
        beginnings, continuations = self._beginnings, self._continuations
        cuts = [self._cut(text) for text in texts]
        self._learn(beginnings, chain.from_iterable((first, after) for first, _, after in cuts), "")
        self._learn(continuations, chain.from_iterable(words for _, words, _ in cuts), self._prefix)
        known = continuations.__getitem__
        ids: list[list[int]] = []
        whole = []
        for place, (first, words, after) in enumerate(cuts):
            parts = [beginnings[first], *map(known, words), beginnings[after]]
            if None in parts:
                whole.append(place)
            ids.append([token_id for part in parts if part for token_id in part])
        for place, own in zip(whole, _tokenized(self._backend, [texts[row] for row in whole]), strict=True):
            ids[place] = own
        return ids

    def _cut(self, text: str) -> tuple[str, list[str], str]:
        """Split a text into its beginning, the following pieces, and the rest after the last of them."""
        seen = self._seen
        head, blank, last = text.rpartition(" ")
        if not blank:
            return text, [], ""
        if head[-2:] in _ENDS and last[:2] in _STARTS:
            if head in self._beginnings or (key := hash(head)) in seen:
                if self._stops and (stop := _STOP.search(last)):
                    return head, [last[: stop.end()]], last[stop.end() :]
                return head, [last], ""
            seen.add(key)
        first, _, tail = text.partition(" ")
        if first[-2:] in _ENDS and tail[:2] in _STARTS:
            if tail in self._continuations or (key := hash(tail)) in seen:
                return first, [tail], ""
            seen.add(key)
        words = _BOUNDARY.split(text)
        return words[0], words[1:], ""

    def _learn(self, known: dict[str, _Ids], pieces: Iterable[str], prefix: str) -> None:
        """Tokenize the unknown pieces; a piece with an added token maps to None."""
        new = [piece for piece in dict.fromkeys(pieces) if piece not in known]
        added = self._added
        for piece, ids in zip(new, _tokenized(self._backend, [prefix + piece for piece in new]), strict=True):
            plain = added.isdisjoint(ids) or not self._may_hold_added(prefix + piece)
            known[piece] = tuple(ids) if plain else None
            self._held += _ENTRY_BYTES + 2 * len(piece) + _ID_BYTES * len(ids)

    def _may_hold_added(self, text: str) -> bool:
        """Check whether the text can contain an added token; the unknown token is often an added one, too."""
        normalizer = self._backend.normalizer
        normalized = text if normalizer is None else normalizer.normalize_str(text)
        return any(content in text or content in normalized for content in self._contents)


def _tokenized(backend: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """Run the whole pipeline, without computing offsets."""
    if not texts:
        return []
    return [encoding.ids for encoding in backend.encode_batch_fast(list(texts), add_special_tokens=False)]
