"""What `why` finds."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from itertools import groupby
from shlex import quote
from typing import Any

import numpy as np
from numpy.typing import NDArray


class AttributionMethod(StrEnum):
    DELETION = "deletion"  # Shapley values: parts are deleted in random orders; needs no gradients
    JACOBIANS = "jacobians"  # integrated Jacobians, from a text of padding to the text


@dataclass(frozen=True, slots=True)
class Part:
    text: str
    token_ids: tuple[int, ...]
    sticky: bool  # whether the run calls one of its tokens sticky; False without a run
    deletion: float | None  # change of the similarity without this part; None if nothing is left of the text


@dataclass(frozen=True, slots=True)
class ReadText:
    text: str
    parts: tuple[Part, ...]  # what the model reads of it, in order
    left_out: int  # tokens beyond what the model reads

    @property
    def tokens(self) -> tuple[str, ...]:
        return tuple(part.text for part in self.parts)


@dataclass(frozen=True, slots=True)
class TokenPair:
    first: int  # index of the part of the first text
    second: int
    first_text: str
    second_text: str
    value: float  # what the two contribute to the similarity
    sticky: bool  # whether the run calls a token of either part sticky


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
        pairs = []
        for place in np.argsort(-self.matrix, axis=None, kind="stable")[:top].tolist():
            row, column = divmod(place, self.matrix.shape[1])
            one, other = self.first.parts[row], self.second.parts[column]
            value, sticky = float(self.matrix[row, column]), one.sticky or other.sticky
            pairs.append(TokenPair(row, column, one.text, other.text, value, sticky))
        return pairs

    def grouped(self) -> Why:
        """Return it with neighbouring copies of a sticky token as one part, as people read it.

        The deletion of such a part is that of all copies, where no other part of the texts is sticky.
        """
        sticky = sum(part.sticky for text in (self.first, self.second) for part in text.parts)
        effect = None if self.without_sticky is None else self.without_sticky - self.similarity
        (first, rows), (second, columns) = (
            _grouped(text, sticky, effect) for text in (self.first, self.second)
        )
        return replace(
            self,
            first=first,
            second=second,
            matrix=np.add.reduceat(np.add.reduceat(self.matrix, rows, axis=0), columns, axis=1),
            first_reference=np.add.reduceat(self.first_reference, rows),
            second_reference=np.add.reduceat(self.second_reference, columns),
        )

    def document(self, top: int = 10) -> dict[str, Any]:
        """Return JSON values."""
        numbers = ("similarity", "u", "without_sticky", "completeness_error", "reference")
        return {
            **{name: getattr(self, name) for name in ("model", "run", "method", *numbers)},
            "strongest": [asdict(pair) for pair in self.strongest(top)],
            "first": asdict(self.first),
            "second": asdict(self.second),
            **{
                name: getattr(self, name).tolist()
                for name in ("matrix", "first_reference", "second_reference")
            },
        }


def _grouped(text: ReadText, sticky: int, effect: float | None) -> tuple[ReadText, list[int]]:
    """Return a text with its groups of copies as parts, and where each begins."""
    parts, starts = [], []
    for _, group in groupby(
        enumerate(text.parts), lambda each: each[1].token_ids if each[1].sticky else each[0]
    ):
        (start, part), *rest = group
        starts.append(start)
        if rest:
            count = 1 + len(rest)
            name = f"{part.text} \N{MULTIPLICATION SIGN}{count}"
            part = Part(name, part.token_ids * count, True, effect if count == sticky else None)
        parts.append(part)
    return replace(text, parts=tuple(parts)), starts


# A part in this share of the strongest pairs, with so many different partners, joins the texts by itself.
_MOST_PAIRS, _ENOUGH_PARTNERS = 0.6, 4


def sentences(found: Why, top: int = 10) -> list[str]:
    pairs = found.grouped().strongest(top)
    best = pairs[0]
    strongest = f"The strongest pair is {best.first_text!r} with {best.second_text!r} ({best.value:+.3f})."
    lines = [
        f"The cosine of the two texts is {found.similarity:.3f}; that of two vocabulary entries of this "
        f"model is {found.u:.3f} on average."
    ]
    if found.first.text == found.second.text:
        lines.append("The two texts are equal: what follows says which tokens carry the vector.")
    for name, text in (("first", found.first), ("second", found.second)):
        if text.left_out:
            longer = f"The {name} text is longer than the model reads"
            lines.append(f"{longer}: its last {text.left_out:,} tokens are left out.")
        if any(len(part.text.split()) > 1 for part in text.parts):
            lines.append(f"The {name} text is long: its parts are spans of several words.")
    inside = Counter(part.text for text in (found.first, found.second) for part in text.parts if part.sticky)
    if found.run is None:
        return [*lines, _recurring(found, pairs) or strongest]
    if not inside:
        return [*lines, f"Neither text has a token that the run calls sticky. {strongest}"]
    names = ", ".join(repr(name) for name, _ in inside.most_common(3))
    line = (
        f"{sum(pair.sticky for pair in pairs)} of the {len(pairs)} strongest pairs join a token that the "
        f"run calls sticky ({names}{' ...' if len(inside) > 3 else ''}) to a part of the other text."
    )
    if found.without_sticky is not None:
        tokens = "that token" if inside.total() == 1 else f"these {inside.total()} tokens"
        line += f" Without {tokens}, the cosine is {found.without_sticky:.3f}."
    return [*lines, f"{line} See: stickytoken repair {quote(found.run)} --out YOUR_FOLDER"]


def _recurring(found: Why, pairs: list[TokenPair]) -> str | None:
    """Name a part that most of the strongest pairs join to different parts of the other text."""
    joined = [(pair.first_text, pair.second_text) for pair in pairs]
    for each in (joined, [(second, first) for first, second in joined]):
        name, count = Counter(own for own, _ in each).most_common(1)[0]
        partners = len({other for own, other in each if own == name})
        if count >= _MOST_PAIRS * len(pairs) and partners >= _ENOUGH_PARTNERS:
            return (
                f"{count} of the {len(pairs)} strongest pairs join {name!r} to {partners} different "
                "parts of the other text. If the texts are not about it, it may be sticky. See: stickytoken "
                f"probe {quote(found.model)} {quote(name)}"
            )
    return None
