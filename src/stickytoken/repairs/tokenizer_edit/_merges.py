"""Take entries out of a byte pair encoding, and keep all other words as they are.

An entry of several characters is reached through merges alone, so it is unreachable without those that make
it. But other entries are made from it: in the tokenizer of RoBERTa, "Therefore" is "There" and "fore". Such
an entry gets another merge where two other entries make it up. Where none do, words that are entries are
looked up whole before anything is merged (`ignore_merges`), and such an entry is cut from the beginning of
longer words.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

Pair = tuple[str, str]
# How entries that begin a word are marked: by byte-level tokenizers, and by SentencePiece.
WORD_MARKS = ("Ġ", "▁")
# Entries that may depend on looking up whole words; with more, longer words would change too often.
_LOOKED_UP = 40


@dataclass(frozen=True, slots=True)
class Removal:
    """Merges without some entries.

    Attributes:
        merges: What is left and what was added, in order.
        looked_up: Entries that no merges make any longer.
    """

    merges: tuple[Pair, ...]
    looked_up: tuple[str, ...] = ()


@dataclass(slots=True)
class Merges:
    """The merges of a vocabulary.

    Attributes:
        entries: All entries that text is cut into.
        order: Rank of each merge.
    """

    entries: Collection[str]
    order: Mapping[Pair, float]
    _containing: dict[str, list[str]] = field(default_factory=dict)

    def without(self, removed: frozenset[str]) -> Removal:
        """Remove entries, and make the entries that are built from them in another way."""
        order = dict(self.order)
        dead = [pair for pair in order if not removed.isdisjoint((*pair, "".join(pair)))]
        dead.sort(key=order.__getitem__)
        for pair in dead:
            del order[pair]
        for pair in dead:
            entry = "".join(pair)
            if entry not in removed and len(pieces := merged(entry, order)) == 2:
                order[pieces[0], pieces[1]] = self.order[pair]
        lost = [
            entry
            for entry in self._built_from(removed)
            if entry not in removed and len(merged(entry, self.order)) == 1 and len(merged(entry, order)) > 1
        ]
        return Removal(tuple(sorted(order, key=order.__getitem__)), tuple(lost))

    def can_be_looked_up(self, lost: Collection[str], removed: frozenset[str]) -> bool:
        """Say whether entries that no merges make are found all the same.

        They are if they begin words: looked up as whole words, or cut from longer ones.
        """
        if len(lost) > _LOOKED_UP:
            return False
        return all(
            entry.startswith(WORD_MARKS)
            or (entry.startswith(tuple(removed)) and not self._continues_words(entry))
            for entry in lost
        )

    def _continues_words(self, part: str) -> bool:
        words = (entry.lstrip("".join(WORD_MARKS)) for entry in self.entries if part in entry)
        return any(not word.startswith(part) for word in words)

    def _built_from(self, removed: Iterable[str]) -> list[str]:
        """List the entries that contain one of the strings."""
        for part in removed:
            if part not in self._containing:
                self._containing[part] = [entry for entry in self.entries if part in entry]
        return list(dict.fromkeys(entry for part in removed for entry in self._containing[part]))


def merged(text: str, order: Mapping[Pair, float]) -> list[str]:
    """Merge the characters of a word: the pair of the lowest rank first, the leftmost of equal ones."""
    pieces = list(text)
    while len(pieces) > 1:
        ranks = [order.get(pair, math.inf) for pair in pairwise(pieces)]
        lowest = min(ranks)
        if math.isinf(lowest):
            break
        place = ranks.index(lowest)
        pieces[place : place + 2] = [pieces[place] + pieces[place + 1]]
    return pieces
