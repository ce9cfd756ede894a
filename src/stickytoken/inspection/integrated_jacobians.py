"""Integrated Jacobians: what each part of a text adds to its vector.

Moeller, Nikolaev, Pado, "An Attribution Method for Siamese Encoders" (EMNLP 2023), section 2. For an encoder
e, texts a, b and references r_a, r_b, with x(t) = r + t (a - r) between the input embeddings,

    e(a) - e(r_a) = sum_i v_i(a),    v_i(a) = J_a[:, i] (a - r_a)_i,    J_a = int_0^1 de/dx (x(t)) dt
    e(a).e(b) - e(r_a).e(b) - e(a).e(r_b) + e(r_a).e(r_b) = sum_ij v_i(a).v_j(b)

so a text's vector is a sum over positions, and a product of two such sums is a matrix over pairs of them.
The paper trains models whose reference has the vector 0, so that the terms of the references vanish. A model
as it is has no such reference; here its terms are kept, as one row and one column of the matrix more.

Here e is the *unit* vector, whose dot product is the cosine: the normalisation is inside what is
integrated. Dividing by the length at the end, as a constant, would leave the reference as long as it happens
to be, several times a text in some models, and every cell would first of all take that back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from stickytoken.errors import EncodingError, ModelError
from stickytoken.inspection.embedded_text import EmbeddedText
from stickytoken.inspection.protocol import Inspector
from stickytoken.inspection.quadrature import Rule, rule_along, whole_rule

# torch gives its functions no types.
_forward_mode: Any = torch.autograd.forward_ad
_TOKENS = 2048
# A reference shorter than this share of the text's vector has no direction.
_NO_DIRECTION = 1e-3
# Looks along the way, which cost a plain pass each, by point of the integral.
_LOOKS = 1
# An integral that misses more of the unit vector than this gets twice the points, more than once if needed.
_MISSED = 0.01
# So few parts are integrated to see what is missed; of more, their sum is.
_FEW = 3


@dataclass(frozen=True, slots=True)
class Contributions:
    """A text's unit vector as a sum, up to the error of the integration.

    Attributes:
        vector: the unit vector, shape (d,).
        reference: the reference's unit vector, shape (d,); zeros where its vector has no direction.
        parts: what each part of the text adds, shape (parts, d).
    """

    vector: NDArray[np.float64]
    reference: NDArray[np.float64]
    parts: NDArray[np.float64]

    @property
    def error(self) -> float:
        """Length of what the sum misses of the unit vector (0 is complete)."""
        return float(np.linalg.norm(self.reference + self.parts.sum(axis=0) - self.vector))


@dataclass(frozen=True)
class _Way:
    """The straight way from a reference to a text.

    Attributes:
        text: its embeddings, and what makes vectors of them.
        reference: embeddings, shape (T, D).
        length: that vectors are divided by; None divides each by its own.
    """

    text: EmbeddedText
    reference: torch.Tensor
    length: float | None

    @property
    def batch(self) -> int:
        """Places at a time."""
        return max(1, _TOKENS // len(self.reference))

    def at(self, places: NDArray[np.float64]) -> torch.Tensor:
        """Embeddings at places from 0 to 1, shape (places, T, D)."""
        text, reference = self.text.rows, self.reference
        along = torch.as_tensor(places, dtype=text.dtype, device=text.device)
        return reference + along[:, None, None] * (text - reference)

    def vectors(self, places: NDArray[np.float64]) -> torch.Tensor:
        """Vectors at places, not divided, shape (places, d)."""
        return self.text.vectors(self.at(places)).double()


class JacobianIntegrator:
    """Computes contributions of parts of texts.

    The reference of a text is as long as it is, with the embedding of the padding token in every place of
    its content; a model without one gets zeros. What the model puts around a text stays. A reference whose
    vector has no direction (a static model's zeros) cannot be normalised: then the text's length is divided
    by at the end, and the reference adds nothing. Directional derivatives are exact, by forward-mode
    differentiation, one for each part. The integral is a Gauss-Legendre sum, which is nearly exact where the
    way is smooth. Where the sum misses something, a vector turns within a hundredth of the way, because
    attention moves to other tokens: then the way is looked along, and the sum is one over panels.

    Args:
        inspector: of the model.
        most: times the points of an integral may be multiplied where it misses too much; 1 never adds any.
    """

    def __init__(self, inspector: Inspector, *, most: int = 4) -> None:
        self.encoder = inspector.encoder
        self._most = most
        self._inspector = inspector

    def contributions(self, content: Sequence[int], labels: Sequence[int], steps: int) -> Contributions:
        """Split a text's vector over parts of its content.

        Args:
            content: content ids.
            labels: for each id the part that it belongs to, from 0 on; one part an id is allowed.
            steps: points of the integral; up to four times as many where it misses a hundredth of the
                unit vector.

        Raises:
            EncodingError: the text has no usable vector.
            ModelError: the model's token embeddings cannot be reached, it has an operation without a
                forward-mode derivative, or vectors on the way from the reference that are not finite.
        """
        with self._inspector.differentiating():
            text = self._inspector.embedded(content)
            reference = text.emptied()
            vector, without = text.vectors(torch.stack([text.rows, reference])).double()
            length = float(vector.norm())
            if not np.isfinite(length) or length == 0:
                raise EncodingError(f"{self.encoder.name}: a text to be explained has no usable vector")
            directed = float(without.norm()) > _NO_DIRECTION * length
            way = _Way(text, reference, None if directed else length)
            ends = (vector / length, without / without.norm() if directed else torch.zeros_like(without))
            parts = self._complete(way, _directions(text, reference, labels), steps, ends[0] - ends[1])
        if not bool(parts.isfinite().all()):
            raise ModelError(
                f"{self.encoder.name}: vectors on the way from the reference to a text are not finite"
            )
        found = [np.asarray(each.cpu().numpy(), dtype=np.float64) for each in (*ends, parts)]
        return Contributions(found[0], found[1], found[2])

    def _complete(
        self, way: _Way, directions: torch.Tensor, steps: int, expected: torch.Tensor
    ) -> torch.Tensor:
        """Integrals along the directions, with as many points as their sum needs, shape (parts, d).

        Args:
            way: from the reference to the text.
            directions: one a part, shape (parts, T, D).
            steps: points to begin with.
            expected: what the integrals should sum to, shape (d,).
        """
        if not len(directions):
            raise EncodingError(f"{self.encoder.name}: a text to be explained has no tokens")
        tried = directions if len(directions) <= _FEW else directions.sum(dim=0, keepdim=True)
        points, rule = steps, whole_rule(steps)
        found = self._integrate(way, tried, rule, len(expected))
        while float((found.sum(dim=0) - expected).norm()) > _MISSED and points < self._most * steps:
            points *= 2
            rule = rule_along(self._travelled(way, _LOOKS * points), points)
            found = self._integrate(way, tried, rule, len(expected))
        return found if tried is directions else self._integrate(way, directions, rule, len(expected))

    def _integrate(self, way: _Way, directions: torch.Tensor, rule: Rule, width: int) -> torch.Tensor:
        """Integrals along the directions, shape (parts, width).

        Args:
            way: from the reference to the text.
            directions: one a part, shape (parts, T, D).
            rule: places and weights.
            width: of the vectors.
        """
        places, weights = rule
        points = [(node, part) for node in range(len(places)) for part in range(len(directions))]
        device = way.reference.device
        total = torch.zeros((len(directions), width), dtype=torch.float64, device=device)
        for begin in range(0, len(points), way.batch):
            node, part = np.array(points[begin : begin + way.batch]).T
            slopes = self._slopes(way, places[node], directions[torch.as_tensor(part)])
            weighted = slopes * torch.as_tensor(weights[node], device=device)[:, None]
            total.index_add_(0, torch.as_tensor(part, device=device), weighted)
        return total

    def _travelled(self, way: _Way, looks: int) -> NDArray[np.float64]:
        """How far the divided vectors have come at equally spaced places, shape (looks + 1,)."""
        places = np.linspace(0, 1, looks + 1)
        seen = torch.cat(
            [way.vectors(places[begin : begin + way.batch]) for begin in range(0, len(places), way.batch)]
        )
        lengths = seen.norm(dim=1, keepdim=True) if way.length is None else way.length
        legs = (seen / lengths).diff(dim=0).norm(dim=1).cpu().numpy()
        return np.concatenate([[0.0], np.cumsum(legs)])

    def _slopes(self, way: _Way, places: NDArray[np.float64], direction: torch.Tensor) -> torch.Tensor:
        """Directional derivatives of the divided vectors, shape (points, d)."""
        try:
            with _forward_mode.dual_level():
                dual = _forward_mode.make_dual(way.at(places), direction)
                vectors = way.text.vectors(dual)
                found = _forward_mode.unpack_dual(vectors)
        except NotImplementedError as error:
            reason = " ".join(str(error).split())[:200]
            raise ModelError(
                f"{self.encoder.name}: no forward-mode derivative of one of its operations ({reason})"
            ) from error
        vector: torch.Tensor = found.primal.double()
        if found.tangent is None:
            return torch.zeros_like(vector)
        slope: torch.Tensor = found.tangent.double()
        if way.length is not None:
            return slope / way.length
        # The derivative of v / |v| is what is across v of that of v, over |v|.
        norms: torch.Tensor = vector.norm(dim=1, keepdim=True)
        units = vector / norms
        return (slope - units * (units * slope).sum(dim=1, keepdim=True)) / norms


def _directions(text: EmbeddedText, reference: torch.Tensor, labels: Sequence[int]) -> torch.Tensor:
    """The way of each part alone, wherever its ids stand, shape (parts, T, D)."""
    if not len(labels):
        return torch.zeros((0, *reference.shape), device=reference.device)
    members = torch.nn.functional.one_hot(torch.tensor(labels, device=reference.device)).to(reference)
    # What stands around the text takes the last id's part, and does not move.
    return members[text.content].T[:, :, None] * (text.rows - reference)
