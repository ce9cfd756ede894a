"""Remove entries from a byte pair encoding, and keep all other words unchanged.

An entry of several characters is reached through merges alone, so it is unreachable without those that make
it. But other entries are made from it: in the tokenizer of RoBERTa, "Therefore" is "There" and "fore". Such
an entry gets another merge where two other entries make it up. Where none do, words that are entries are
looked up whole before anything is merged (`ignore_merges`), and such an entry is cut from the beginning of
longer words.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
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
        order: Rank of each merge that is left or was added.
        looked_up: Entries that no merges make any longer.
    """

    order: Mapping[Pair, float]
    looked_up: tuple[str, ...]

    @property
    def merges(self) -> list[Pair]:
        """All merges in order."""
        return sorted(self.order, key=self.order.__getitem__)


class Merges:
    """The merges of a vocabulary."""

    def __init__(self, entries: Collection[str], order: Mapping[Pair, float]) -> None:
        self.entries = entries
        self.order = order
        self._containing: dict[str, list[str]] = {}
        self._removals: dict[frozenset[str], Removal] = {}
        self._with: dict[str, list[Pair]] = {}
        for pair in order:
            for part in {*pair, "".join(pair)}:
                self._with.setdefault(part, []).append(pair)

    def without(self, removed: frozenset[str]) -> Removal:
        """Remove entries, and make the entries that are built from them in another way."""
        if removed not in self._removals:
            self._removals[removed] = self._without(removed)
        return self._removals[removed]

    def _without(self, removed: frozenset[str]) -> Removal:
        order = dict(self.order)
        dead = sorted({pair for part in removed for pair in self._with.get(part, ())}, key=order.__getitem__)
        for pair in dead:
            del order[pair]
        for pair in dead:
            entry = "".join(pair)
            if entry not in removed and len(pieces := merged(entry, order)) == 2:
                order[pieces[0], pieces[1]] = self.order[pair]
        lost = [
            entry
            for entry in self._built_from(removed)
            if entry not in removed and len(merged(entry, order)) > 1 and len(merged(entry, self.order)) == 1
        ]
        return Removal(order, tuple(lost))

    def can_be_looked_up(self, lost: Collection[str], removed: frozenset[str]) -> bool:
        """Say whether entries that no merges produce are still found.

        They are if they begin words: looked up as whole words, or cut from longer ones.
        """
        if len(lost) > _LOOKED_UP:
            return False
        return all(
            entry.startswith(WORD_MARKS) or (entry.startswith(tuple(removed)) and self._is_word(entry))
            for entry in lost
        )

    def _is_word(self, entry: str) -> bool:
        """Say whether an entry without the mark of a word is one all the same, at the beginning of a text."""
        marked = {mark + entry for mark in WORD_MARKS}
        containing = [other for other in self.entries if entry in other]
        words = (other.lstrip("".join(WORD_MARKS)) for other in containing)
        return not marked.isdisjoint(containing) and all(word.startswith(entry) for word in words)

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
