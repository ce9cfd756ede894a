"""Ways to plant copies of a word in a document, for the benchmark of cleaning."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

INVISIBLE = "\u200b\u200c\u200d\u2060\ufeff\u00ad"
PUNCTUATION = (", ", ". ", "! ", "; ", " - ", "/", "|", "_", "... ")
ACCENTS = "\u0301\u0300\u0336"

Recipe = Callable[[str, Sequence[str], Sequence[str], random.Random], str]
"""A document, the copies, other words and a generator, made into a planted document."""


def _spread(document: str, copies: Sequence[str], gaps: Sequence[int]) -> str:
    words = document.split()
    for gap, copy in sorted(zip(gaps, copies, strict=True), reverse=True):
        words.insert(gap, copy)
    return " ".join(words)


def _evenly(document: str, copies: Sequence[str]) -> str:
    length = len(document.split())
    return _spread(
        document, copies, [round((n + 1) * length / (len(copies) + 1)) for n in range(len(copies))]
    )


def _at_random(document: str, copies: Sequence[str], draw: random.Random) -> str:
    length = len(document.split())
    return _spread(document, copies, [draw.randint(0, length) for _ in copies])


def _between(copies: Sequence[str], others: Sequence[str]) -> str:
    """Put other words, over and over, behind the copies."""
    return " ".join(f"{copy} {others[number % len(others)]}" for number, copy in enumerate(copies))


def _cased(word: str, draw: random.Random) -> str:
    return "".join(draw.choice((each.upper(), each.lower())) for each in word)


def _wide(word: str) -> str:
    return "".join(chr(ord(each) + 0xFEE0) if "!" <= each <= "~" else each for each in word)


def _cut(word: str, draw: random.Random) -> str:
    place = draw.randint(0, len(word))
    return word[:place] + draw.choice(INVISIBLE) + word[place:]


def _shuffled(words: list[str], draw: random.Random) -> str:
    draw.shuffle(words)
    return " ".join(words)


RECIPES: dict[str, Recipe] = {
    "prefix": lambda text, copies, _, __: " ".join([*copies, text]),
    "suffix": lambda text, copies, _, __: " ".join([text, *copies]),
    "glued suffix": lambda text, copies, _, __: text + "".join(copies),
    "both ends": lambda text, copies, _, __: " ".join([*copies[::2], text, *copies[1::2]]),
    "spread evenly": lambda text, copies, _, __: _evenly(text, copies),
    "spread at random": lambda text, copies, _, draw: _at_random(text, copies, draw),
    "with one other word": lambda text, copies, other, _: f"{text} {_between(copies, other[:1])}",
    "with two others in turn": lambda text, copies, other, _: f"{text} {_between(copies, other[:2])}",
    "with two others": lambda text, copies, other, _: f"{_between(copies, [' '.join(other[:2])])} {text}",
    "with ever new words": lambda text, copies, other, _: f"{text} {_between(copies, other)}",
    "shuffled with another": lambda text, copies, other, draw: (
        f"{text} {_shuffled([*copies, *[other[0]] * len(copies)], draw)}"
    ),
    "in a phrase of four": lambda text, copies, other, _: f"{text} {_between(copies, [' '.join(other[:3])])}",
    "mixed case": lambda text, copies, _, draw: " ".join([text, *(_cased(each, draw) for each in copies)]),
    "mixed case, spread": lambda text, copies, _, draw: _at_random(
        text, [_cased(each, draw) for each in copies], draw
    ),
    "punctuation": lambda text, copies, _, draw: (
        f"{text} {''.join(each + draw.choice(PUNCTUATION) for each in copies)}"
    ),
    "invisible between": lambda text, copies, _, draw: (
        f"{text} {''.join(each + draw.choice(INVISIBLE) for each in copies)}"
    ),
    "invisible inside": lambda text, copies, _, draw: " ".join(
        [text, *(_cut(each, draw) for each in copies)]
    ),
    "full width": lambda text, copies, _, __: " ".join([*map(_wide, copies), text]),
    "accents between": lambda text, copies, _, draw: (
        f"{text} {''.join(each + draw.choice(ACCENTS) + draw.choice(('', ' ')) for each in copies)}"
    ),
}


def nested(special: str, draw: random.Random) -> str:
    """Nest a special token in itself, one to four times."""
    text = special
    for _ in range(draw.randint(1, 4)):
        place = draw.randint(1, len(special) - 1)
        text = special[:place] + text + special[place:]
    return text
