"""What copies of a repaired token do to two sentences, before and after the repair."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stickytoken.encoders.protocol import IdReader
from stickytoken.errors import InputError
from stickytoken.insertion import Insertion, Joining, Placement, Token, place_as_text
from stickytoken.methods.probes import KeyedPaths
from stickytoken.unit_vectors import exact_unit_vectors

_COUNTS = (0, 1, 2, 4, 8, 16, 32)
_SEED = 42
_KEY = 1


@dataclass(frozen=True, slots=True)
class RepairQuestion:
    """Inputs of the tab.

    Attributes:
        anchor: the sentence that stays unchanged.
        carrier: the sentence that gets the copies.
        text: text of the token.
        placement: where the copies go.
        copies: number of copies, at least 1.
        ordinary: tokens to compare with.
    """

    anchor: str
    carrier: str
    text: str
    placement: Placement
    copies: int
    ordinary: tuple[Token, ...]


@dataclass(frozen=True)
class RepairAnswer:
    """Cosine similarities of the two sentences by number of copies.

    Attributes:
        question: what was asked.
        counts: numbers of copies, 0 first.
        lines: similarities before and after the repair, and of ordinary tokens before it, by name.
        same: whether both models give sentence B without copies the same vector.
        read: sentence B with the copies, as the repaired model's tokenizer reads it.
    """

    question: RepairQuestion
    counts: tuple[int, ...]
    lines: dict[str, list[float]]
    same: bool
    read: tuple[str, ...]

    def at(self, name: str) -> float:
        """Return the similarity with the copies that were asked for."""
        return self.lines[name][self.counts.index(self.question.copies)]

    def change(self, name: str) -> float:
        """Return by how much these copies change the similarity."""
        return self.at(name) - self.lines[name][0]


def measure_repair(original: IdReader, repaired: IdReader, question: RepairQuestion) -> RepairAnswer:
    """Write the copies into sentence B as words, and compare it with sentence A in both models."""
    counts = sorted({question.copies, *_COUNTS})
    written = [_written(question, question.text, n) for n in counts]
    fitting = [
        n
        for n, *ids in zip(counts, original.content_ids(written), repaired.content_ids(written), strict=True)
        if all(encoder.fits(own) for encoder, own in zip((original, repaired), ids, strict=True))
    ]
    if question.copies not in fitting:
        raise InputError(
            f"sentence B with {question.copies} copies is longer than {original.name} reads "
            f"({original.max_length} tokens): shorten it or use fewer copies"
        )
    counts = [n for n in counts if n in fitting]
    texts = [_written(question, question.text, n) for n in counts]
    before, after = (_similarities(encoder, question.anchor, texts) for encoder in (original, repaired))
    usual = [
        _similarities(original, question.anchor, [_written(question, token.text, n) for n in counts])
        for token in question.ordinary
    ]
    ordinary = [float(np.mean(values)) for values in zip(*usual, strict=True)]
    first, second = (encoder.encode([question.carrier]) for encoder in (original, repaired))
    (ids,) = repaired.content_ids([_written(question, question.text, question.copies)])
    entries = repaired.tokenizer.entries
    lines = {"before the repair": before, "after the repair": after, "ordinary tokens": ordinary}
    return RepairAnswer(
        question,
        tuple(counts),
        {name: values for name, values in lines.items() if values},
        bool(np.array_equal(first, second)),
        tuple(entries[k] for k in ids),
    )


def _similarities(encoder: IdReader, anchor: str, texts: Sequence[str]) -> list[float]:
    units = exact_unit_vectors(encoder.encode([anchor, *texts]))
    return [float(value) for value in units[1:] @ units[0]]


def _written(question: RepairQuestion, text: str, copies: int) -> str:
    path: tuple[int, ...] = ()
    if question.placement is Placement.RANDOM:
        words = len(question.carrier.split())
        path = KeyedPaths(_SEED, _KEY, (words,), max(*_COUNTS, copies), Insertion.IDS).of(Token(0, ""))[0]
    return place_as_text([text.strip()] * copies, question.carrier, question.placement, path, Joining.WORDS)
