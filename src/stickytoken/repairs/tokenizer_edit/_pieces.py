"""How vocabularies without merges cut a word."""

from __future__ import annotations

from collections.abc import Collection


def word_pieces(entry: str, entries: Collection[str], prefix: str) -> list[str] | None:
    """Cut the text of an entry as WordPiece does, longest piece first; None if something is unknown."""
    continued = bool(prefix) and entry.startswith(prefix) and len(entry) > len(prefix)
    text = entry.removeprefix(prefix) if continued else entry
    pieces: list[str] = []
    start = 0
    while start < len(text):
        mark = prefix if start or continued else ""
        ends = range(len(text), start, -1)
        end = next((end for end in ends if mark + text[start:end] in entries), None)
        if end is None:
            return None
        pieces.append(mark + text[start:end])
        start = end
    return pieces


def segmentable(text: str, entries: Collection[str]) -> bool:
    """Check that a text is a sequence of entries."""
    reached = [True, *(False for _ in text)]
    for end in range(1, len(text) + 1):
        reached[end] = any(reached[start] and text[start:end] in entries for start in range(end))
    return reached[-1]
