"""Strategies for repairing a token."""

from __future__ import annotations

from enum import StrEnum


class Strategy(StrEnum):
    """What is done about a token."""

    AUTO = "auto"
    """Chosen for each token."""
    UNREACHABLE = "unreachable"
    """Text no longer produces the entry: it falls into its pieces."""
    PLAIN_SPECIALS = "plain-specials"
    """A special token that a user writes is plain text; the model's own stay."""
    PIECES = "pieces"
    """The row becomes the mean of the rows of its pieces."""
    RELATIVES = "relatives"
    """The row is made from the rows of entries with similar spelling and of its pieces."""
    DISTIL = "distil"
    """The row is trained so that contexts read as they do with the pieces in its place."""
    KEEP_MEANING = "keep-meaning"
    """The row keeps what one copy does; many copies act as those of an ordinary token."""
    COLLAPSE = "collapse"
    """The tokenizer cuts runs of a repeated word to two."""
    CENTRE = "centre"
    """The mean direction is removed from all vectors."""


ROWS = (Strategy.RELATIVES, Strategy.DISTIL, Strategy.PIECES, Strategy.KEEP_MEANING)
"""Strategies that write new rows, the best first; docs/benchmarks.md compares them."""
TOKENIZER = (Strategy.UNREACHABLE, Strategy.PLAIN_SPECIALS, Strategy.COLLAPSE)
"""Strategies that change how text is tokenized."""
