"""The settings of a repair."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from stickytoken.settings import NaturalNumber, check_settings


class Strategy(StrEnum):
    """How a token is repaired."""

    AUTO = "auto"
    """One of the other strategies is chosen for each token."""
    UNREACHABLE = "unreachable"
    """The tokenizer splits the token's text into pieces, and no longer produces the token."""
    PLAIN_SPECIALS = "plain-specials"
    """The tokenizer reads the special token's text as plain text; the model itself still adds the token."""
    RELATIVES = "relatives"
    """The token gets a new row, computed from its pieces and from entries with similar spelling."""
    NEAREST = "nearest"
    """The token gets the row of the nearest entry that erases no more than the median token."""


@dataclass(frozen=True)
class RepairSettings:
    """How a model is repaired.

    All settings are part of the repair's identity. The default seed differs from a run's default seed.

    Attributes:
        strategy: auto: special tokens become plain text, and other tokens get a new row or, if no row works,
            are split into pieces. Any strategy other than auto applies to all tokens.
        verify: Measure the tokens again on other texts, and compare the original and the repaired model.
        seed: Seed for new rows, and for the texts and placements of the verification.

    Raises:
        InputError: A value is out of range.

    Examples:
        >>> stickytoken.RepairSettings(strategy="nearest").seed
        4242
    """

    strategy: Strategy = Strategy.AUTO
    verify: bool = True
    seed: NaturalNumber = 4242

    def __post_init__(self) -> None:
        check_settings(self)
