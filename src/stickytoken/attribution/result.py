"""What `why` finds."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from enum import StrEnum
from shlex import quote
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Part:
    """A token, word or span of a text.

    Attributes:
        text: the part as text.
        token_ids: its content ids.
        sticky: whether the run calls one of its tokens sticky; False without a run.
        deletion: similarity of the two texts without this part, minus their similarity; None if nothing is
            left of the text.
    """

    text: str
    token_ids: tuple[int, ...]
    sticky: bool
    deletion: float | None


@dataclass(frozen=True, slots=True)
class ReadText:
    """One of the two texts.

    Attributes:
        text: the whole text.
        parts: what the model reads of it, in order.
        left_out: tokens beyond what the model reads.
    """

    text: str
    parts: tuple[Part, ...]
    left_out: int

    @property
    def tokens(self) -> tuple[str, ...]:
        """The parts as text."""
        return tuple(part.text for part in self.parts)


@dataclass(frozen=True, slots=True)
class TokenPair:
    """A part of each text, and what the two contribute to the similarity.

    Attributes:
        first: index of the part of the first text.
        second: index of the part of the second text.
        first_text: the part of the first text.
        second_text: the part of the second text.
        value: the cell of the matrix.
        sticky: whether the run calls a token of either part sticky.
    """

    first: int
    second: int
    first_text: str
    second_text: str
    value: float
    sticky: bool


@dataclass(frozen=True, eq=False)
class Why:
    """The similarity of two texts as a sum over pairs of their parts.

    Up to the completeness error, `matrix`, `first_reference`, `second_reference` and `reference` sum to the
    similarity. What the reference is depends on the method. Deletion has none, and the reference terms are
    0. With Jacobians it is the text with padding in place of its content.

    Attributes:
        model: name of the model.
        method: how the similarity was divided: ``deletion`` or ``jacobians``.
        similarity: cosine of the two texts, computed by the model itself.
        u: mean cosine of two vocabulary entries, from the run or estimated.
        first: the first text, n parts.
        second: the second text, m parts.
        matrix: contributions of pairs of parts, float32 of shape (n, m).
        first_reference: contributions of the first text's parts with the second reference, shape (n,).
        second_reference: contributions of the second text's parts with the first reference, shape (m,).
        reference: cosine of the two references.
        without_sticky: similarity without the parts that the run calls sticky; None without a run, without
            such parts or if nothing is left.
        run: folder of the run; None without one.
    """

    model: str
    method: str
    similarity: float
    u: float
    first: ReadText
    second: ReadText
    matrix: NDArray[np.float32]
    first_reference: NDArray[np.float32]
    second_reference: NDArray[np.float32]
    reference: float
    without_sticky: float | None
    run: str | None

    @property
    def completeness_error(self) -> float:
        """Sum of all contributions minus the similarity."""
        terms = (self.matrix, self.first_reference, self.second_reference)
        return float(sum(each.sum(dtype=np.float64) for each in terms)) + self.reference - self.similarity

    def strongest(self, top: int = 10) -> list[TokenPair]:
        """List the pairs that raise the similarity most, strongest first; equal ones in reading order."""
        order = np.argsort(-self.matrix, axis=None, kind="stable")[:top]
        places = zip(*np.unravel_index(order, self.matrix.shape), strict=True)
        return [self._pair(int(row), int(column)) for row, column in places]

    def document(self, top: int = 10) -> dict[str, Any]:
        """Return JSON values."""
        return {
            "model": self.model,
            "run": self.run,
            "method": self.method,
            "similarity": self.similarity,
            "u": self.u,
            "without_sticky": self.without_sticky,
            "completeness_error": self.completeness_error,
            "reference": self.reference,
            "strongest": [asdict(pair) for pair in self.strongest(top)],
            "first": asdict(self.first),
            "second": asdict(self.second),
            "matrix": self.matrix.tolist(),
            "first_reference": self.first_reference.tolist(),
            "second_reference": self.second_reference.tolist(),
        }

    def _pair(self, row: int, column: int) -> TokenPair:
        one, other = self.first.parts[row], self.second.parts[column]
        value = float(self.matrix[row, column])
        return TokenPair(row, column, one.text, other.text, value, one.sticky or other.sticky)


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


class AttributionMethod(StrEnum):
    """How the vector of a text is divided among its parts."""

    DELETION = "deletion"
    """Shapley values: parts are deleted in random orders, and the text encoded again; needs no gradients."""
    JACOBIANS = "jacobians"
    """Integrated Jacobians, from a text of padding to the text."""
