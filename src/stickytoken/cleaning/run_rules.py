"""Derive cleaning rules from a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stickytoken.cleaning.rules import WELL_KNOWN_SPECIALS, CleaningRules

if TYPE_CHECKING:
    from stickytoken.detection import Run

# A shorter one is a sign that texts are full of.
_SHORTEST_SPECIAL = 3


def rules_of_run(run: Run) -> CleaningRules:
    """Return rules for the tokens that a run flags, and special tokens of its and other common models."""
    import polars as pl

    from stickytoken.detection.flagged import is_flagged
    from stickytoken.vocabulary.kinds import Kind, WordMark, kind_of

    vocabulary = run.vocabulary.filter(pl.col("category").is_in(("OK", "OK_SPECIAL")))
    specials = [
        decoded.strip()
        for token, decoded, category in vocabulary.select("token", "decoded", "category").iter_rows()
        if len(decoded.strip()) >= _SHORTEST_SPECIAL
        and kind_of(token, decoded, category, WordMark.NONE) is Kind.SPECIAL
    ]
    flagged = [str(text).strip() for text in run.tokens.filter(is_flagged())["decoded"]]
    words = [text for text in flagged if text and text not in specials]
    return CleaningRules(
        words=tuple(dict.fromkeys(words)), specials=tuple(dict.fromkeys([*specials, *WELL_KNOWN_SPECIALS]))
    )


def source_of_run(run: Run) -> dict[str, Any]:
    """Return the origin of the rules."""
    return {"model": run.record.model.name, "method": run.record.method, "identity": run.record.identity}
