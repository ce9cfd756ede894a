"""Say in words what joins two texts. Pure."""

from __future__ import annotations

from collections import Counter
from shlex import quote

from stickytoken.attribution.result import TokenPair, Why

# A part in this share of the strongest pairs joins the texts by itself.
_MOST_PAIRS = 0.6
# It does so with at least this many different parts of the other text.
_ENOUGH_PARTNERS = 4


def sentences(found: Why, top: int = 10) -> list[str]:
    """Return what was found, and what to do about it."""
    pairs = found.strongest(top)
    lines = [
        f"The cosine of the two texts is {found.similarity:.3f}; that of two vocabulary entries of this "
        f"model is {found.u:.3f} on average."
    ]
    if found.first.text == found.second.text:
        lines.append("The two texts are equal: what follows says which tokens carry the vector.")
    lines += _cuts(found)
    lines.append(_sticky(found, pairs) or _recurring(found, pairs) or _strongest(pairs))
    return lines


def _cuts(found: Why) -> list[str]:
    """Say what was not read, and what was joined."""
    lines = []
    for name, text in (("first", found.first), ("second", found.second)):
        if text.left_out:
            lines.append(
                f"The {name} text is longer than the model reads: its last {text.left_out:,} tokens are left "
                "out."
            )
        if any(len(part.text.split()) > 1 for part in text.parts):
            lines.append(f"The {name} text is long: its parts are spans of several words.")
    return lines


def _sticky(found: Why, pairs: list[TokenPair]) -> str | None:
    """Name sticky tokens in the strongest pairs or in the texts, and what their deletion changes."""
    if found.run is None:
        return None
    inside = Counter(part.text for text in (found.first, found.second) for part in text.parts if part.sticky)
    if not inside:
        return "Neither text has a token that the run calls sticky. " + _strongest(pairs)
    joined = sum(pair.sticky for pair in pairs)
    names = ", ".join(repr(name) for name, _ in inside.most_common(3)) + (" ..." if len(inside) > 3 else "")
    line = (
        f"{joined} of the {len(pairs)} strongest pairs join a token that the run calls sticky ({names}) to "
        "a part of the other text."
    )
    if found.without_sticky is not None:
        tokens = "that token" if inside.total() == 1 else f"these {inside.total()} tokens"
        line += f" Without {tokens}, the cosine is {found.without_sticky:.3f}."
    return f"{line} See: stickytoken repair {quote(found.run)} --out FOLDER"


def _recurring(found: Why, pairs: list[TokenPair]) -> str | None:
    """Name a part that most of the strongest pairs join to different parts of the other text."""
    joined = [(pair.first_text, pair.second_text) for pair in pairs]
    for one, other in ((0, 1), (1, 0)):
        name, count = Counter(each[one] for each in joined).most_common(1)[0]
        partners = {each[other] for each in joined if each[one] == name}
        if count >= _MOST_PAIRS * len(pairs) and len(partners) >= _ENOUGH_PARTNERS:
            return (
                f"{count} of the {len(pairs)} strongest pairs join {name!r} to {len(partners)} different "
                "parts of the other text. If the texts are not about it, it may be sticky. See: stickytoken "
                f"probe {quote(found.model)} {quote(name)}"
            )
    return None


def _strongest(pairs: list[TokenPair]) -> str:
    best = pairs[0]
    return f"The strongest pair is {best.first_text!r} with {best.second_text!r} ({best.value:+.3f})."
