"""Sentences made fit to stand between quotation marks in a prompt. Pure."""

from __future__ import annotations

import re

_ENDINGS = (".", "?", '"', "'")
_OTHER_SPACE = re.compile(r"\s{2,}|[^\S ]")


def join_words(text: str) -> str:
    """The words of a text with one space between them, as SentEval hands sentences over."""
    return " ".join(text.split())


def clean_sentence(text: str) -> str:
    """Close a sentence with a full stop and free it of double quotation marks.

    As the published code does, in its order: a full stop where the text ends otherwise than with
    ``.``, ``?``, ``"`` or ``'``; every ``"`` becomes ``'``; a question mark at the end becomes a full
    stop. The empty sentence stays empty.
    """
    if text and not text.endswith(_ENDINGS):
        text += "."
    text = text.replace('"', "'")
    return text[:-1] + "." if text.endswith("?") else text


def reachable_text(text: str, *, quoted: bool) -> str:
    """What is left of a piece of text inside a sentence: no white space but single blanks, no quotation mark.

    Signs at the end of a sentence are not considered: the piece may stand anywhere in it.
    """
    text = _OTHER_SPACE.sub(" ", text)
    return text.replace('"', "'") if quoted else text
