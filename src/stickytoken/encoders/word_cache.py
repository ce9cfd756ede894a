"""Token ids of texts put together from those of their words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias

from stickytoken.encoders.word_boundaries import PRINTABLE, word_prefix

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_Ids: TypeAlias = tuple[int, ...] | None

# Characters and ids held; some ten bytes each.
_CAPACITY = 4_000_000
_BLANK = re.compile(r"(?:(?<=[ -~][!-~])|(?<=\A[!-~])) (?=[!-~](?:[ -~]|\Z))")
_STARTS = frozenset({*PRINTABLE, *(one + other for one in PRINTABLE for other in PRINTABLE + " ")})
_ENDS = frozenset({*PRINTABLE, *(other + one for one in PRINTABLE for other in PRINTABLE + " ")})
_SAMPLES = (
    "It's 9 o'clock: the old (quiet) river 's  sings, 10,000 times.",
    " the quick brown fox; jumps over 'em all\n at once ",
    "co-operate \u0301 caf\u00e9 \u4e2d\u6587 \u2581 x \u00a0y z\u200d naive",
)


class WordCache:
    """Encodes texts without special tokens; what was seen before is not tokenized again.

    A text is cut at boundaries (see `word_boundaries.word_prefix`): into all but its last word and that,
    or into its first word and the others, where the longer part has been seen before; into its words
    otherwise. A text with an added token goes through the whole tokenizer.

    Args:
        backend: the pipeline, without padding and truncation; it must not change any more.
        prefix: what `word_prefix` found.
        capacity: characters and ids to hold.
    """

    def __init__(self, backend: Tokenizer, prefix: str, capacity: int = _CAPACITY) -> None:
        self._backend = backend
        self._prefix = prefix
        self._capacity = capacity
        self._added = frozenset(backend.get_added_tokens_decoder())
        self._forget()

    def _forget(self) -> None:
        # New containers: a call in another thread goes on with its own.
        self._beginnings: dict[str, _Ids] = {}
        self._continuations: dict[str, _Ids] = {}
        self._seen: set[int] = set()
        self._held = 0

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Content ids of each text.

        Raises:
            TypeError: a text holds half a surrogate pair.
        """
        if self._held > self._capacity:
            self._forget()
        beginnings, continuations = self._beginnings, self._continuations
        parts = [self._cut(text) for text in texts]
        self._learn(beginnings, dict.fromkeys(first for first, _ in parts), "")
        self._learn(continuations, dict.fromkeys(chain.from_iterable(rest for _, rest in parts)), self._prefix)
        known = continuations.__getitem__
        found = [[beginnings[first], *map(known, rest)] for first, rest in parts]
        whole = [place for place, ids in enumerate(found) if None in ids]
        ids = [[] if None in pieces else list(chain.from_iterable(pieces)) for pieces in found]
        for place, own in zip(whole, self._tokenized([texts[place] for place in whole]), strict=True):
            ids[place] = own
        return ids

    def _cut(self, text: str) -> tuple[str, list[str]]:
        """Cut a text at boundaries, the first part by itself."""
        seen = self._seen
        head, blank, last = text.rpartition(" ")
        if not blank:
            return text, []
        if head[-2:] in _ENDS and last[:2] in _STARTS:
            if head in self._beginnings or (key := hash(head)) in seen:
                return head, [last]
            seen.add(key)
        first, _, tail = text.partition(" ")
        if first[-2:] in _ENDS and tail[:2] in _STARTS:
            if tail in self._continuations or (key := hash(tail)) in seen:
                return first, [tail]
            seen.add(key)
        words = text.split(" ") if text.isascii() and text.isprintable() else _BLANK.split(text)
        if "" in words:
            words = _BLANK.split(text)
        return words[0], words[1:]

    def _learn(self, known: dict[str, _Ids], pieces: Iterable[str], prefix: str) -> None:
        """Tokenize the pieces that are not known; None stands for one with an added token."""
        new = [piece for piece in pieces if piece not in known]
        added = self._added
        for piece, ids in zip(new, self._tokenized([prefix + piece for piece in new]), strict=True):
            known[piece] = tuple(ids) if added.isdisjoint(ids) else None
            self._held += len(piece) + len(ids)

    def _tokenized(self, texts: list[str]) -> list[list[int]]:
        encodings = self._backend.encode_batch_fast(texts, add_special_tokens=False) if texts else []
        return [encoding.ids for encoding in encodings]
