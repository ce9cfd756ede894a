"""Integrated Jacobians: the contribution of each part of a text to its vector.

Moeller, Nikolaev, Pado, "An Attribution Method for Siamese Encoders" (EMNLP 2023), section 2. For an encoder
e, texts a, b and references r_a, r_b, with x(t) = r + t (a - r) between the input embeddings,

    e(a) - e(r_a) = sum_i v_i(a),    v_i(a) = J_a[:, i] (a - r_a)_i,    J_a = int_0^1 de/dx (x(t)) dt
    e(a).e(b) - e(r_a).e(b) - e(a).e(r_b) + e(r_a).e(r_b) = sum_ij v_i(a).v_j(b)

so the vector of a text is a sum over positions, and the product of two such sums is a matrix over pairs of
positions. The paper trains models whose reference has the vector 0, so that the reference terms vanish. Other
models have no such reference; their reference terms are kept here as one more row and column of the matrix.

Here e is the *unit* vector, whose dot product is the cosine: the integrand includes the normalisation.
Dividing by a constant norm at the end would keep the norm of the reference, in some models several times that
of a text, and the other cells would mainly cancel it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from stickytoken.errors import EncodingError, ModelError
from stickytoken.inspection import Contributions, Watch
from stickytoken.inspection.module_embedding import EmbeddedText, as_numbers

if TYPE_CHECKING:
    from stickytoken.inspection.module_embedding import Inspector

Vector: TypeAlias = NDArray[np.float64]
Rule: TypeAlias = tuple[Vector, Vector]
"""Places in (0, 1) in order, and weights that sum to 1, both of shape (points,)."""

# Weight of travelled distance in the size of a panel; the rest is its width.
_TRAVELLED = 0.8


def whole_rule(points: int) -> Rule:
    nodes, shares = np.polynomial.legendre.leggauss(points)
    return (nodes + 1) / 2, shares / 2


def rule_along(travelled: Vector, points: int) -> Rule:
    """Return a rule of panels, equal in a weighted sum of width and distance, so short where a path turns."""
    panels = max(1, points // 4)
    places = np.linspace(0, 1, len(travelled))
    whole = float(travelled[-1])
    # Products with a length so short would lose all their digits.
    still = whole < np.finfo(float).tiny
    held = places if still else (1 - _TRAVELLED) * places + _TRAVELLED * travelled / whole
    edges = np.interp(np.linspace(0, 1, panels + 1), held, places)
    sizes = np.full(panels, points // panels) + (np.arange(panels) < points % panels)
    found, weights = [], []
    for low, high, size in zip(edges[:-1], edges[1:], sizes, strict=True):
        nodes, shares = whole_rule(int(size))
        found.append(low + (high - low) * nodes)
        weights.append((high - low) * shares)
    return np.concatenate(found), np.concatenate(weights)


# torch does not annotate its functions.
_forward_mode: Any = torch.autograd.forward_ad
_TOKENS = 2048
# An integral whose error exceeds this gets twice the points, repeatedly if needed.
_MISSED = 0.01
# Up to this many parts are integrated one by one to measure the error; more are integrated as their sum.
_FEW = 3


@dataclass(frozen=True)
class _Path:
    text: EmbeddedText
    reference: torch.Tensor
    length: float | None  # divisor of vectors where the reference has no direction

    @property
    def batch(self) -> int:
        return max(1, _TOKENS // len(self.reference))

    def at(self, places: Vector) -> torch.Tensor:
        text, reference = self.text.rows, self.reference
        along = torch.as_tensor(places, dtype=text.dtype, device=text.device)
        return reference + along[:, None, None] * (text - reference)

    def travelled(self, points: int) -> Vector:
        places = np.linspace(0, 1, points + 1)
        parts = [places[begin : begin + self.batch] for begin in range(0, len(places), self.batch)]
        vectors = torch.cat([self.text.vectors(self.at(part)).double() for part in parts])
        lengths = vectors.norm(dim=1, keepdim=True) if self.length is None else self.length
        legs = (vectors / lengths).diff(dim=0).norm(dim=1).cpu().numpy()
        return np.concatenate([[0.0], np.cumsum(legs)])

    def integrals(
        self, directions: torch.Tensor, rule: Rule, width: int, watch: Watch | None = None
    ) -> torch.Tensor:
        places, weights = rule
        points = [(node, part) for node in range(len(places)) for part in range(len(directions))]
        device = self.reference.device
        total = torch.zeros((len(directions), width), dtype=torch.float64, device=device)
        for begin in range(0, len(points), self.batch):
            node, part = np.array(points[begin : begin + self.batch]).T
            with _forward_mode.dual_level():
                dual = _forward_mode.make_dual(self.at(places[node]), directions[torch.as_tensor(part)])
                vector, tangent = _forward_mode.unpack_dual(self.text.vectors(dual))
            vector = vector.double()
            slope = torch.zeros_like(vector) if tangent is None else tangent.double()
            if self.length is not None:
                slope = slope / self.length
            else:
                # The derivative of v / |v| is the part of dv that is orthogonal to v, divided by |v|.
                norms = vector.norm(dim=1, keepdim=True)
                units = vector / norms
                slope = (slope - units * (units * slope).sum(dim=1, keepdim=True)) / norms
            weighted = slope * torch.as_tensor(weights[node], device=device)[:, None]
            total.index_add_(0, torch.as_tensor(part, device=device), weighted)
            if watch is not None:
                watch(begin + len(node), len(points))
        return total


class JacobianIntegrator:
    """Compute the contributions of parts of texts.

    The reference replaces the content with padding tokens, or with zeros. If its vector has no direction (the
    zeros of a static model), vectors are divided by the norm of the text's vector, and the reference
    contributes nothing. Derivatives are exact (forward-mode differentiation), and integrals are
    Gauss-Legendre sums. A large error means that the vector turns on a short stretch of the path, where
    attention moves to other tokens: there the points are set closer, up to `most` times as many in all.
    """

    def __init__(self, inspector: Inspector, *, most: int = 4) -> None:
        self._inspector = inspector
        self._most = most

    def contributions(
        self, content: Sequence[int], labels: Sequence[int], steps: int, watch: Watch | None = None
    ) -> Contributions:
        name = self._inspector.encoder.name
        if not len(labels):
            raise EncodingError(f"{name}: the text to explain has no tokens")
        with self._inspector.differentiating():
            text = self._inspector.embedded(content)
            reference = torch.where(text.content[:, None] >= 0, text.filler, text.rows)
            vector, without = text.vectors(torch.stack([text.rows, reference])).double()
            length = float(vector.norm())
            if not np.isfinite(length) or length == 0:
                raise EncodingError(f"{name}: the text to explain has no usable vector (zero or not finite)")
            directed = float(without.norm()) > 1e-3 * length  # else the reference has no direction
            path = _Path(text, reference, None if directed else length)
            ends = (vector / length, without / without.norm() if directed else torch.zeros_like(without))
            # The direction of each part, nonzero only at its positions. Tokens around the text get the last
            # id's part, but their difference is zero.
            members = torch.nn.functional.one_hot(torch.tensor(labels, device=reference.device)).to(reference)
            directions = members[text.content].T[:, :, None] * (text.rows - reference)
            expected = ends[0] - ends[1]
            few = len(directions) <= _FEW
            tried = directions if few else directions.sum(dim=0, keepdim=True)
            points, rule = steps, whole_rule(steps)
            try:
                parts = path.integrals(tried, rule, len(expected))
                # More points until the sum is exact.
                while float((parts.sum(dim=0) - expected).norm()) > _MISSED and points < self._most * steps:
                    points *= 2
                    rule = rule_along(path.travelled(points), points)
                    parts = path.integrals(tried, rule, len(expected))
                if not few:
                    parts = path.integrals(directions, rule, len(expected), watch)
            except NotImplementedError as error:
                reason = " ".join(str(error).split())[:200]
                raise ModelError(
                    f"{name}: one of its operations has no forward-mode derivative ({reason})"
                ) from error
        if not bool(parts.isfinite().all()):
            raise ModelError(
                f"{name}: vectors between the reference and the text are not finite: use float32"
            )
        return Contributions(*(as_numbers(each) for each in (*ends, parts)))
