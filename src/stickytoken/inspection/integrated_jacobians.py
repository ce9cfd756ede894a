"""Integrated Jacobians: the contribution of each part of a text to its vector.

Moeller, Nikolaev, Pado, "An Attribution Method for Siamese Encoders" (EMNLP 2023), section 2. For an encoder
e, texts a, b and references r_a, r_b, with x(t) = r + t (a - r) between the input embeddings,

    e(a) - e(r_a) = sum_i v_i(a),    v_i(a) = J_a[:, i] (a - r_a)_i,    J_a = int_0^1 de/dx (x(t)) dt
    e(a).e(b) - e(r_a).e(b) - e(a).e(r_b) + e(r_a).e(r_b) = sum_ij v_i(a).v_j(b)

so the vector of a text is a sum over positions, and the dot product of two texts is a sum over pairs of
positions. The paper trains models whose reference has the vector 0, so that the reference terms vanish. Other
models have no such reference, so their reference terms are kept here as one more row and column of the
matrix.

Here e is the *unit* vector, so that the dot product is the cosine: the integrand includes the normalisation.
Normalising after the integration instead would not scale the reference to length 1. In some models the
reference is several times as long as a text's vector, and the other cells would mainly cancel its terms.
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
"""Integration points in (0, 1) in ascending order, and their weights; both have the shape (points,).

The weights sum to 1.
"""

# Weight of the distance in the size of a panel. The size is a weighted sum of the panel's width and of the
# distance that the vector travels in the panel; all panels have the same size.
_TRAVELLED = 0.8


def whole_rule(points: int) -> Rule:
    """Return the Gauss-Legendre rule with this number of points on (0, 1)."""
    nodes, weights = np.polynomial.legendre.leggauss(points)
    return (nodes + 1) / 2, weights / 2


def rule_along(travelled: Vector, points: int) -> Rule:
    """Divide (0, 1) into panels, and return the Gauss-Legendre rules of all panels as one rule.

    Where the vector travels far, the panels are narrow, so that there are more points.

    Args:
        travelled: Distance that the vector has travelled up to evenly spaced points from 0 to 1.
        points: Number of points in all panels together.
    """
    panel_count = max(1, points // 4)
    even_fractions = np.linspace(0, 1, len(travelled))
    distance = float(travelled[-1])
    # A distance this small would lose all significant digits in the arithmetic below.
    stands_still = distance < np.finfo(float).tiny
    if stands_still:
        progress = even_fractions
    else:
        progress = (1 - _TRAVELLED) * even_fractions + _TRAVELLED * travelled / distance
    edges = np.interp(np.linspace(0, 1, panel_count + 1), progress, even_fractions)
    has_one_more = np.arange(panel_count) < points % panel_count
    sizes = np.full(panel_count, points // panel_count) + has_one_more
    nodes = []
    weights = []
    for low, high, size in zip(edges[:-1], edges[1:], sizes, strict=True):
        panel_nodes, panel_weights = whole_rule(int(size))
        nodes.append(low + (high - low) * panel_nodes)
        weights.append((high - low) * panel_weights)
    return np.concatenate(nodes), np.concatenate(weights)


# Any, because torch does not annotate the functions of this module.
_forward_mode: Any = torch.autograd.forward_ad
# Largest number of tokens in one batch.
_TOKENS = 2048
# Largest accepted error of an integral, as a distance from a unit vector. If the error is larger, the number
# of points is doubled.
_MAX_ERROR = 0.01
# If a text has more parts than this, the error is measured on the integral over all parts together, which
# costs less than the sum of the separate integrals.
_FEW_PARTS = 3
# If the reference's vector is shorter than this fraction of the text's vector, it counts as having no
# direction.
_MIN_REFERENCE_SHARE = 1e-3


@dataclass(frozen=True)
class _Path:
    """The straight line from the embeddings of the reference to the embeddings of the text."""

    text: EmbeddedText
    reference: torch.Tensor  # embeddings of the reference, shape (T, D)
    length: float | None  # constant by which vectors are divided; None divides each vector by its own length

    @property
    def batch(self) -> int:
        """Number of copies of the text in one batch."""
        return max(1, _TOKENS // len(self.reference))

    def at(self, fractions: Vector) -> torch.Tensor:
        """Return the embeddings at these fractions of the line, shape (fractions, T, D)."""
        text = self.text.rows
        along = torch.as_tensor(fractions, dtype=text.dtype, device=text.device)
        return self.reference + along[:, None, None] * (text - self.reference)

    def travelled(self, points: int) -> Vector:
        """Return how far the unit vector has travelled at ``points + 1`` evenly spaced points."""
        fractions = np.linspace(0, 1, points + 1)
        vectors = torch.cat(
            [
                self.text.vectors(self.at(fractions[start : start + self.batch])).double()
                for start in range(0, len(fractions), self.batch)
            ]
        )
        lengths = vectors.norm(dim=1, keepdim=True) if self.length is None else self.length
        steps = (vectors / lengths).diff(dim=0).norm(dim=1).cpu().numpy()
        return np.concatenate([[0.0], np.cumsum(steps)])

    def integrals(
        self, directions: torch.Tensor, rule: Rule, width: int, watch: Watch | None = None
    ) -> torch.Tensor:
        """Integrate the derivative of the unit vector in each direction, shape (directions, width).

        Args:
            directions: Changes of the embeddings, shape (directions, T, D).
            rule: Integration points and weights.
            width: Number of components of a vector.
            watch: Called after every batch.
        """
        fractions, weights = rule
        device = self.reference.device
        pairs = np.indices((len(fractions), len(directions))).reshape(2, -1)  # each point with each direction
        total = torch.zeros((len(directions), width), dtype=torch.float64, device=device)
        pair_count = pairs.shape[1]
        for start in range(0, pair_count, self.batch):
            point, direction = pairs[:, start : start + self.batch]
            slope = self._slope(self.at(fractions[point]), directions[torch.as_tensor(direction)])
            weighted = slope * torch.as_tensor(weights[point], device=device)[:, None]
            total.index_add_(0, torch.as_tensor(direction, device=device), weighted)
            if watch is not None:
                watch(start + len(point), pair_count)
        return total

    def _slope(self, embeddings: torch.Tensor, directions: torch.Tensor) -> torch.Tensor:
        """Return the derivative of the unit vector at each embedding, in the direction with the same index.

        Both arguments have shape (n, T, D), and the result has shape (n, d).
        """
        with _forward_mode.dual_level():
            dual = _forward_mode.make_dual(embeddings, directions)
            vector, tangent = _forward_mode.unpack_dual(self.text.vectors(dual))
        vector = vector.double()
        slope: torch.Tensor = torch.zeros_like(vector) if tangent is None else tangent.double()
        if self.length is not None:
            return slope / self.length
        # The derivative of v / |v| is the part of dv that is orthogonal to v, divided by |v|.
        norms = vector.norm(dim=1, keepdim=True)
        units = vector / norms
        orthogonal = slope - units * (units * slope).sum(dim=1, keepdim=True)
        unit_slope: torch.Tensor = orthogonal / norms
        return unit_slope


class JacobianIntegrator:
    """Compute the contributions of a text's parts to its unit vector by integrated Jacobians.

    The reference is the text with its content replaced by padding tokens, or by zeros if the model has no
    padding token. If the reference's vector has no direction (it is zero in a static model), all vectors are
    divided by the norm of the text's vector, and the reference contributes nothing.

    Derivatives are exact (forward-mode differentiation), and integrals are Gauss-Legendre sums. A large error
    means that the vector turns sharply on a short section of the path, where attention moves to other tokens.
    More points are then used, most of them on that section.
    """

    def __init__(self, inspector: Inspector, *, most: int = 4) -> None:
        """Store the inspector, and ``most``, the largest factor by which the number of points may grow."""
        self._inspector = inspector
        self._max_factor = most

    def contributions(
        self, content: Sequence[int], labels: Sequence[int], steps: int, watch: Watch | None = None
    ) -> Contributions:
        """Return the contribution of every part of a text to its unit vector.

        Args:
            content: Token ids of the text, without the special tokens that the model puts around the text.
            labels: Number of the part to which each id belongs; parts are numbered from 0 without gaps.
            steps: Number of points per integral. More are used if the error is large.
            watch: Called after every batch.

        Raises:
            EncodingError: The text has no tokens or no usable vector.
            ModelError: The model cannot be differentiated.
        """
        name = self._inspector.encoder.name
        if not len(labels):
            raise EncodingError(f"{name}: the text to explain has no tokens")
        with self._inspector.differentiating():
            text = self._inspector.embedded(content)
            reference = torch.where(text.content[:, None] >= 0, text.filler, text.rows)
            vector, reference_vector = text.vectors(torch.stack([text.rows, reference])).double()
            length = float(vector.norm())
            if not np.isfinite(length) or length == 0:
                raise EncodingError(f"{name}: the text to explain has no usable vector (zero or not finite)")
            text_unit = vector / length
            reference_length = reference_vector.norm()
            if float(reference_length) > _MIN_REFERENCE_SHARE * length:
                path = _Path(text, reference, None)
                reference_unit = reference_vector / reference_length
            else:
                path = _Path(text, reference, length)
                reference_unit = torch.zeros_like(reference_vector)
            # The direction of a part is nonzero only at the positions of the part. Positions around the text
            # have the index -1, which selects the part of the last id. That is harmless, because the text and
            # the reference have the same embedding at these positions, so the direction is zero.
            label_tensor = torch.tensor(labels, device=reference.device)
            members = torch.nn.functional.one_hot(label_tensor).to(reference)
            directions = members[text.content].T[:, :, None] * (text.rows - reference)
            try:
                parts = self._integrals(path, directions, text_unit - reference_unit, steps, watch)
            except NotImplementedError as error:
                reason = " ".join(str(error).split())[:200]
                raise ModelError(
                    f"{name}: one of its operations has no forward-mode derivative ({reason})"
                ) from error
        if not bool(parts.isfinite().all()):
            raise ModelError(
                f"{name}: vectors between the reference and the text are not finite: use float32"
            )
        return Contributions(as_numbers(text_unit), as_numbers(reference_unit), as_numbers(parts))

    def _integrals(
        self,
        path: _Path,
        directions: torch.Tensor,
        expected: torch.Tensor,
        steps: int,
        watch: Watch | None,
    ) -> torch.Tensor:
        """Return the integral in each direction, shape (directions, d).

        The number of points is doubled until the sum of the integrals is close to ``expected``, or until the
        largest number of points is reached.
        """
        width = len(expected)
        is_few = len(directions) <= _FEW_PARTS
        tried_directions = directions if is_few else directions.sum(dim=0, keepdim=True)
        points = steps
        rule = whole_rule(points)
        integrals = path.integrals(tried_directions, rule, width)
        while _error(integrals, expected) > _MAX_ERROR and points < self._max_factor * steps:
            points *= 2
            rule = rule_along(path.travelled(points), points)
            integrals = path.integrals(tried_directions, rule, width)
        return integrals if is_few else path.integrals(directions, rule, width, watch)


def _error(integrals: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the Euclidean distance between the sum of the integrals and the expected vector."""
    return float((integrals.sum(dim=0) - expected).norm())
