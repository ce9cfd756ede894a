"""The kind and script of vocabulary entries, from their strings alone.

Tokenizers mark words in three ways: WordPiece puts ``##`` before pieces that continue a word;
byte-level BPE puts ``Ġ`` and SentencePiece ``▁`` before pieces that begin one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from enum import StrEnum

import regex

from stickytoken.vocabulary.categories import Category

_UNUSED = re.compile(
    r"[\[<]\|?(unused|extra_id|reserved|madeupword|placeholder|dummy)\w*\|?[\]>]", re.IGNORECASE
)
_BRACKETED = re.compile(r"\[[^\s\[\]]*[^\W\d_][^\s\[\]]*\]|<[^\s<>]*[^\W\d_][^\s<>]*>")
_BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")
# Scripts of most vocabularies; anything else is "Other".
_SCRIPTS = (
    "Latin", "Cyrillic", "Greek", "Han", "Hiragana", "Katakana", "Hangul", "Arabic", "Hebrew", "Devanagari",
    "Bengali", "Tamil", "Telugu", "Kannada", "Malayalam", "Gujarati", "Gurmukhi", "Sinhala", "Thai", "Lao",
    "Tibetan", "Myanmar", "Khmer", "Ethiopic", "Georgian", "Armenian", "Mongolian",
)  # fmt: skip
_SCRIPT = regex.compile(
    "|".join(rf"(?P<{name}>\p{{Script={name}}})" for name in _SCRIPTS) + r"|(?P<Other>\p{L})"
)
NO_SCRIPT = "none"


class Kind(StrEnum):
    """The kind of an entry."""

    SPECIAL = "special"
    """A control token, such as [CLS] or </s>."""
    UNUSED = "unused"
    """A placeholder that no training text contains, such as [unused7]."""
    BYTE = "byte"
    """A byte or part of a character: not valid UTF-8 on its own."""
    SYMBOL = "symbol"
    """Neither letters nor digits."""
    SUBWORD = "subword"
    """A piece that continues a word."""
    WORD = "whole word"
    """A word, or the beginning of one."""


class WordMark(StrEnum):
    """How a vocabulary marks the beginning or continuation of words."""

    CONTINUED = "##"
    BYTE_LEVEL = "Ġ"
    SENTENCEPIECE = "▁"
    NONE = ""


def word_mark(tokens: Iterable[str]) -> WordMark:
    """Return the most common word mark of a vocabulary."""
    marks = [mark for mark in WordMark if mark]
    found = Counter(mark for token in tokens for mark in marks if token.startswith(mark) and token != mark)
    return found.most_common(1)[0][0] if found else WordMark.NONE


def kind_of(token: str, decoded: str, category: str, mark: WordMark) -> Kind:
    """Return the kind of an entry.

    Args:
        token: The vocabulary string.
        decoded: Its text.
        category: Its `stickytoken.vocabulary.categories.Category`.
        mark: The word mark of the vocabulary.
    """
    if _BYTE.fullmatch(token) or category == Category.UNDECODEABLE:
        return Kind.BYTE
    if _UNUSED.fullmatch(token):
        return Kind.UNUSED
    special = (Category.OK_SPECIAL, Category.UNREACHABLE_SPECIAL)
    if category in special or _BRACKETED.fullmatch(token):
        return Kind.SPECIAL
    if not any(character.isalnum() for character in decoded):
        return Kind.SYMBOL
    if mark is WordMark.NONE:
        return Kind.WORD
    marked = token.startswith(mark)
    return Kind.SUBWORD if marked == (mark is WordMark.CONTINUED) else Kind.WORD


def script_of(text: str) -> str:
    """Return the script of most letters: ``Other`` for a rare script, ``none`` without letters."""
    found = Counter(match.lastgroup for match in _SCRIPT.finditer(text))
    return str(found.most_common(1)[0][0]) if found else NO_SCRIPT
