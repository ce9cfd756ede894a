"""Summarise what cleaning did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from stickytoken.cleaning.cleaner import Cleaned
from stickytoken.cleaning.spans import SpanKind


def summary(cleaned: Cleaned) -> str:
    """Count what was removed from a text and what was left; empty if nothing was found.

    No text of what was found is in it, so that it may be stored and shown anywhere.
    """
    removed = Counter(removal.kind for removal in cleaned.removals)
    return counts_in_words(removed, Counter(span.kind for span in cleaned.reported))


def counts_in_words(removed: Mapping[SpanKind, int], left: Mapping[SpanKind, int]) -> str:
    """Return counts of findings by kind as text, such as ``2 flagged, 1 run left``."""
    parts = [f"{count:,} {kind.value}" for kind, count in sorted(removed.items())]
    parts += [f"{count:,} {kind.value} left" for kind, count in sorted(left.items())]
    return ", ".join(parts)
