"""What `why` finds."""

from __future__ import annotations

from dataclasses import asdict, dataclass
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
