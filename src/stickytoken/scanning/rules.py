"""What a run says to look for in documents."""

from __future__ import annotations

import polars as pl

from stickytoken.cleaning.rules import WELL_KNOWN_SPECIALS, CleaningRules
from stickytoken.detection.flagged import is_flagged
from stickytoken.detection.run import Run
from stickytoken.vocabulary.categories import Category

_SHORTEST_SPECIAL = 3


def rules_of(run: Run) -> CleaningRules:
    """Return the rules for the model of a run: its flagged tokens, and its special tokens."""
    words = run.tokens.filter(is_flagged())["decoded"].str.strip_chars().to_list()
    special = run.vocabulary.filter(pl.col("category") == Category.OK_SPECIAL.value)["token"].to_list()
    names = [name for name in special if name and len(name.strip()) >= _SHORTEST_SPECIAL]
    return CleaningRules(
        words=tuple(dict.fromkeys(word for word in words if word)),
        specials=tuple(dict.fromkeys([*WELL_KNOWN_SPECIALS, *names])),
    )
