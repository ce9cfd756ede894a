"""How a text ends."""

from __future__ import annotations

import unicodedata


def open_ended(text: str) -> str:
    """A text without the punctuation that ends it.

    Copies after a full stop act otherwise than copies after a word, and corpora differ in their
    punctuation: carriers that kept theirs would make lifts depend on it.
    """
    words = text.rstrip()
    while words and unicodedata.category(words[-1]).startswith("P"):
        words = words[:-1].rstrip()
    return words or text
