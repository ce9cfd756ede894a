"""The settings of a repair."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from stickytoken.settings import NaturalNumber, check_settings


class Strategy(StrEnum):
    """How tokens are repaired."""

    AUTO = "auto"
    UNREACHABLE = "unreachable"
    PLAIN_SPECIALS = "plain-specials"
    RELATIVES = "relatives"
    NEAREST = "nearest"

    @property
    def meaning(self) -> str:
        """What the strategy does to tokens, as a phrase."""
        return _MEANINGS[self]


_MEANINGS = {
    Strategy.AUTO: "by one of the other strategies, chosen for each token",
    Strategy.UNREACHABLE: "text is now split into pieces and no longer produces them; ids are unchanged",
    Strategy.PLAIN_SPECIALS: "read as plain text when a user writes them; the model still adds its own",
    Strategy.RELATIVES: "a new row made from entries with similar spelling",
    Strategy.NEAREST: "the row of the nearest entry that erases no more than the median token",
}


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
