"""Describe a scan in words."""

from __future__ import annotations

from stickytoken.scanning.results import Scan


def basis(scan: Scan) -> str | None:
    """Explain the effects and their basis; None without effects."""
    effect = scan.result.effect
    if effect is None:
        return None
    return (
        f"effect: mean change of the similarity to {effect.queries} queries ({effect.queries_from}) that "
        f"copies cause, {effect.kind}; 1 is a standard deviation of the similarities ({effect.spread:.4f}). "
        "moves up: share of the queries for which the document passes a tenth of the clean ones"
    )


def headline(scan: Scan) -> str:
    """Say how many documents have findings, and how many of them matter."""
    result = scan.result
    if not result.found:
        return f"none of {result.documents:,} documents has copies of flagged tokens, special tokens or runs"
    have = "has" if result.found == 1 else "have"
    share = result.found / result.documents
    found = (
        f"{result.found:,} of {result.documents:,} documents {have} copies of flagged tokens, special tokens "
        f"or runs ({share:.2%})"
    )
    if result.matter is None or result.effect is None:
        return found
    how = "" if result.effect.kind == "measured" else ", as predicted"
    return f"{found}; {result.matter:,} of them {'matters' if result.matter == 1 else 'matter'}{how}"


def skipped_records(count: int) -> str:
    """Say how many records a scan left out."""
    return "1 record was skipped" if count == 1 else f"{count:,} records were skipped"
