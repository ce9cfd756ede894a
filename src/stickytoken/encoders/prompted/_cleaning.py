"""Clean sentences so that they can be quoted in a prompt. Pure."""

from __future__ import annotations

import re

_ENDINGS = (".", "?", '"', "'")
_OTHER_SPACE = re.compile(r"\s{2,}|[^\S ]")


def join_words(text: str) -> str:
    """Join the words of a text with single spaces, as SentEval does."""
    return " ".join(text.split())


def clean_sentence(text: str) -> str:
    """End a sentence with a full stop and replace its double quotation marks.

    Follows the published code, in its order: append a full stop unless the text ends with ``.``, ``?``,
    ``"`` or ``'``; replace every ``"`` with ``'``; replace a final question mark with a full stop. An empty
    sentence stays empty.
    """
    if text and not text.endswith(_ENDINGS):
        text += "."
    text = text.replace('"', "'")
    return text[:-1] + "." if text.endswith("?") else text


def reachable_text(text: str, *, quoted: bool) -> str:
    """Return what remains of a piece of text inside a cleaned sentence.

    Whitespace becomes single spaces, and quotation marks are replaced. Punctuation at the end is kept, since
    the piece may be anywhere in the sentence.
    """
    text = _OTHER_SPACE.sub(" ", text)
    return text.replace('"', "'") if quoted else text
