"""The texts that probe a token: every carrier, placement and number of copies."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from stickytoken.errors import InputError
from stickytoken.insertion import (
    Insertion,
    Placement,
    Probe,
    Token,
    TokenizedText,
    insert_as_ids,
    insert_as_text,
)

Carrier: TypeAlias = str | TokenizedText
Path: TypeAlias = tuple[int, ...]


@dataclass(frozen=True)
class ProbeGrid:
    """All combinations of carriers, placements and numbers of copies.

    Attributes:
        carriers: texts (text insertion) or tokenized texts (ids insertion).
        placements: where the copies go.
        counts: probes hold 1 to this many copies.
        paths: for random placement, one path per carrier.
    """

    carriers: tuple[Carrier, ...]
    placements: tuple[Placement, ...]
    counts: int
    paths: PathSource

    @property
    def shape(self) -> tuple[int, int, int]:
        """Number of carriers, placements and copy counts."""
        return len(self.carriers), len(self.placements), self.counts

    def probes(self, token: Token) -> list[Probe]:
        """Return all probes of one token; counts vary fastest, carriers slowest."""
        paths = self.paths.of(token) if Placement.RANDOM in self.placements else ()
        return [
            probe
            for place, carrier in enumerate(self.carriers)
            for placement in self.placements
            for probe in self._insert(token, carrier, placement, paths[place] if paths else ())
        ]

    def alone(self, token: Token) -> Probe:
        """Return the token by itself, after the prompt."""
        carrier = self.carriers[0]
        return token.text if isinstance(carrier, str) else (*carrier.head, token.id, *carrier.tail)

    def _insert(self, token: Token, carrier: Carrier, placement: Placement, path: Path) -> Sequence[Probe]:
        if isinstance(carrier, str):
            return insert_as_text(token, carrier, placement, self.counts, path)
        return insert_as_ids(token, carrier, placement, self.counts, path)


def word_count(carrier: Carrier) -> int:
    """Count the words that whitespace separates."""
    return len(carrier.split()) if isinstance(carrier, str) else len(carrier.words)


@dataclass(frozen=True)
class KeyedPaths:
    """Random placement, drawn from a generator keyed by (seed, key, token, carrier).

    The paths of a token do not depend on the other tokens.

    Attributes:
        seed: seed of the run.
        key: keeps the stages of a run apart.
        words: number of words in each carrier.
        counts: number of steps.
        insertion: with ids, a copy counts as one word, whatever its text.
    """

    seed: int
    key: int
    words: tuple[int, ...]
    counts: int
    insertion: Insertion = Insertion.TEXT

    def of(self, token: Token) -> list[Path]:
        """Return one path per carrier."""
        return [
            tuple(
                int(generator.integers(0, gaps + 1))
                for gaps in _gaps(words, _words_added(token, self.insertion), self.counts)
            )
            for place, words in enumerate(self.words)
            for generator in [np.random.default_rng([self.seed, self.key, token.id, place])]
        ]


@dataclass(frozen=True)
class WalkedPaths:
    """Random placement, drawn from one stream that walks the whole vocabulary.

    Attributes:
        paths: by token id, one path per carrier.
    """

    paths: Mapping[int, tuple[Path, ...]]

    def of(self, token: Token) -> Sequence[Path]:
        """Return one path per carrier.

        Raises:
            InputError: the paths of the token were not kept.
        """
        if token.id not in self.paths:
            raise InputError(f"token {token.id} ({token.text!r}) is not in the vocabulary that was walked")
        return self.paths[token.id]


PathSource: TypeAlias = KeyedPaths | WalkedPaths


def walk_vocabulary(
    seed: int,
    vocabulary: Sequence[Token],
    wanted: Sequence[Token],
    words: Sequence[int],
    counts: int,
    insertion: Insertion = Insertion.TEXT,
) -> WalkedPaths:
    """Replay the random stream of the published runs.

    The published code drew all gaps from one ``random.Random(42)``, token by token in order
    of id, so the gaps of a token depend on the tokens before it. Walking the stream up front
    makes them a function of seed, vocabulary and carriers alone: the order of computation,
    a resume and the number of workers change nothing.

    Args:
        seed: 42 replays the published runs.
        vocabulary: all available tokens by ascending id, the order of the walk.
        wanted: tokens whose paths to keep.
        words: number of words in each carrier.
        counts: number of steps.
        insertion: with ids, a copy counts as one word, whatever its text.
    """
    stream = random.Random(seed)
    keep = {token.id for token in wanted}
    last = max(keep, default=-1)
    found: dict[int, tuple[Path, ...]] = {}
    for token in vocabulary:
        if token.id > last:
            break
        added = _words_added(token, insertion)
        paths = tuple(
            tuple(stream.randint(0, gaps) for gaps in _gaps(start, added, counts)) for start in words
        )
        if token.id in keep:
            found[token.id] = paths
    return WalkedPaths(found)


def _words_added(token: Token, insertion: Insertion) -> int:
    """Count the words that one copy adds."""
    return 1 if insertion is Insertion.IDS else len(token.text.split())


def _gaps(words: int, added: int, counts: int) -> Iterator[int]:
    """Count the words of the sentence at each step; this is the largest gap index."""
    return (words + step * added for step in range(counts))
