"""Integrated Jacobians: how much each part of a text contributes to its vector.

The method comes from Moeller, Nikolaev, Pado, "An Attribution Method for Siamese Encoders" (EMNLP 2023),
section 2. Let e be an encoder, let a and b be the input embeddings of two texts, and let r_a and r_b be the
input embeddings of their references. The straight line from r_a to a is x(t) = r_a + t (a - r_a). By the
fundamental theorem of calculus along this line, and along the corresponding line from r_b to b,

    e(a) - e(r_a) = sum_i v_i(a)  and
    e(a).e(b) - e(r_a).e(b) - e(a).e(r_b) + e(r_a).e(r_b) = sum_ij v_i(a).v_j(b),

where v_i(a) = J_a[:, i] (a - r_a)_i is the contribution of position i, and J_a = int_0^1 de/dx (x(t)) dt is
the integrated Jacobian.

Apart from the terms with references, the vector of a text is thus a sum over positions, and the dot product
of two texts is a sum over pairs of positions. In the paper, models are trained so that the vector of a
reference is 0, so all terms that contain r_a or r_b vanish. In models that were trained in any other way,
e(r_a) and e(r_b) are not 0. `similarity_matrix` therefore has an additional row and column for the
references.

Here, e returns the *unit* vector, so that the dot product is the cosine. The integrand therefore includes the
normalisation. It would be simpler to integrate without normalisation, and to divide the result by the length
of the text's vector afterwards. In some models, however, the vector of the reference is several times as long
as the vector of the text, so that division after the integration would make the terms that contain r_a or r_b
large, and the contributions of the positions would mostly cancel these terms.
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
from stickytoken.inspection.module_embedding import EmbeddedText, to_numpy

if TYPE_CHECKING:
    from stickytoken.inspection.module_embedding import Inspector

Floats: TypeAlias = NDArray[np.float64]
Rule: TypeAlias = tuple[Floats, Floats]
"""Integration points in (0, 1), in ascending order, and their weights, which sum to 1.

Both arrays have shape (points,).
"""

# Minimum number of integration points in a panel, unless there are fewer points in total.
_LEAST_POINTS_OF_PANEL = 4
# Weight of the travelled distance in the size of a panel. The size is the weighted sum of two fractions: the
# width of the panel, and the fraction of the distance that the vector travels in the panel. All panels have
# equal sizes.
_WEIGHT_OF_DISTANCE = 0.8


def make_gauss_rule(points: int) -> Rule:
    """Return the Gauss-Legendre rule on (0, 1) with the given number of points."""
    nodes, weights = np.polynomial.legendre.leggauss(points)
    return (nodes + 1) / 2, weights / 2  # moved there from (-1, 1)


def make_panel_rule(travelled: Floats, points: int) -> Rule:
    """Divide (0, 1) into panels, and combine the Gauss-Legendre rules of all panels into one rule.

    Panels are narrower where the vector travels farther, so that more points are placed there. For example,
    11 points are placed in two panels, six in the first and five in the second.

    Args:
        travelled: Cumulative distance that the vector has travelled at evenly spaced points from 0 to 1.
        points: Total number of points in all panels.

    Returns:
        The points of all panels, and their weights.
    """
    panel_count = max(1, points // _LEAST_POINTS_OF_PANEL)
    even_fractions = np.linspace(0, 1, len(travelled))
    distance = float(travelled[-1])
    # With a smaller distance, the division below would lose all significant digits.
    stands_still = distance < np.finfo(float).tiny
    if stands_still:
        progress = even_fractions
    else:
        progress = (1 - _WEIGHT_OF_DISTANCE) * even_fractions + _WEIGHT_OF_DISTANCE * travelled / distance
    # `progress` rises from 0 to 1. The edges of the panels are the points where `progress` reaches evenly
    # spaced values, so panels are narrow where `progress` rises steeply. For example, if the vector travels
    # only in the first half, `progress` is 0.9 at 0.5, and the edges of two panels are 0, 0.28 and 1.
    edges = np.interp(np.linspace(0, 1, panel_count + 1), progress, even_fractions)
    # Each panel gets an equal number of points, and the first panels get one more if there is a remainder.
    has_one_more = np.arange(panel_count) < points % panel_count
    sizes = np.full(panel_count, points // panel_count) + has_one_more
    nodes = []
    weights = []
    for low, high, size in zip(edges[:-1], edges[1:], sizes, strict=True):
        panel_nodes, panel_weights = make_gauss_rule(int(size))
        nodes.append(low + (high - low) * panel_nodes)
        weights.append((high - low) * panel_weights)
    return np.concatenate(nodes), np.concatenate(weights)


# Typed as Any, because torch does not annotate the functions of this module.
_forward_mode: Any = torch.autograd.forward_ad
# Maximum number of tokens in a batch.
_TOKENS = 2048
# Maximum error of the integrals: the Euclidean distance between their sum and the expected vector. If the
# error is larger, the number of points is doubled.
_MAX_ERROR = 0.01
# If a text has more parts than this, the error is measured with a single integral in the direction of all
# parts together, which costs less than the separate integrals.
_FEW_PARTS = 3
# If the reference's vector is shorter than this fraction of the text vector's length, it counts as having no
# direction.
_MIN_REFERENCE_SHARE = 1e-3


@dataclass(frozen=True)
class _Path:
    """The straight line from the embeddings of the reference to the embeddings of the text."""

    text: EmbeddedText
    reference: torch.Tensor  # embeddings of the reference, shape (T, D)
    # Number by which every vector on the path is divided. If None, each vector is divided by its own length,
    # which gives unit vectors.
    divisor: float | None

    @property
    def batch(self) -> int:
        """Maximum number of inputs per batch. For derivatives, an input is a point with a direction."""
        return max(1, _TOKENS // len(self.reference))

    def compute_embeddings_at(self, fractions: Floats) -> torch.Tensor:
        """Return the embeddings at the given fractions of the line, shape (fractions, T, D)."""
        text = self.text.rows
        along = torch.as_tensor(fractions, dtype=text.dtype, device=text.device)
        return self.reference + along[:, None, None] * (text - self.reference)

    def measure_distances_travelled(self, points: int) -> Floats:
        """Return the distance that the vector travels on the path up to each of several evenly spaced points.

        Vectors are divided by `divisor` or, if `divisor` is None, by their own lengths. The result has shape
        (points + 1,), and begins with 0 for the reference.
        """
        fractions = np.linspace(0, 1, points + 1)
        chunks = []
        for start in range(0, len(fractions), self.batch):
            embeddings = self.compute_embeddings_at(fractions[start : start + self.batch])
            chunks.append(self.text.vectors(embeddings).double())
        vectors = torch.cat(chunks)  # shape (points + 1, d)
        divisors = vectors.norm(dim=1, keepdim=True) if self.divisor is None else self.divisor
        steps = (vectors / divisors).diff(dim=0).norm(dim=1).cpu().numpy()  # shape (points,)
        return np.concatenate([[0.0], np.cumsum(steps)])

    def integrate(
        self, directions: torch.Tensor, rule: Rule, width: int, watch: Watch | None = None
    ) -> torch.Tensor:
        """Integrate the derivative of the vector along the path from the reference to the text.

        The vector is divided by `divisor` or, without one, by its own length. The integral is a weighted sum
        of derivatives at the integration points, one for each direction; shape (directions, width).

        Args:
            directions: Directions in embedding space, shape (directions, T, D).
            rule: Integration points and weights.
            width: Dimension of the text's vector.
            watch: Called after every batch.
        """
        fractions, weights = rule
        device = self.reference.device
        # For every pair of a point and a direction, their two indices, shape (2, points * directions). For 2
        # points and 3 directions, the rows are 0 0 0 1 1 1 and 0 1 2 0 1 2.
        pairs = np.indices((len(fractions), len(directions))).reshape(2, -1)
        total = torch.zeros((len(directions), width), dtype=torch.float64, device=device)
        pair_count = pairs.shape[1]
        for start in range(0, pair_count, self.batch):
            point, direction = pairs[:, start : start + self.batch]
            embeddings = self.compute_embeddings_at(fractions[point])
            derivatives = self._differentiate(embeddings, directions[torch.as_tensor(direction)])
            weighted = derivatives * torch.as_tensor(weights[point], device=device)[:, None]
            total.index_add_(0, torch.as_tensor(direction, device=device), weighted)
            if watch is not None:
                watch(start + len(point), pair_count)
        return total

    def _differentiate(self, embeddings: torch.Tensor, directions: torch.Tensor) -> torch.Tensor:
        """Return the derivatives of n vectors, shape (n, d), each at its embeddings and in its direction.

        Both arguments have the shape (n, T, D).
        """
        with _forward_mode.dual_level():
            dual = _forward_mode.make_dual(embeddings, directions)
            vector, tangent = _forward_mode.unpack_dual(self.text.vectors(dual))
        vector = vector.double()
        # The tangent is None if the vector does not depend on the embeddings.
        derivative: torch.Tensor = torch.zeros_like(vector) if tangent is None else tangent.double()
        if self.divisor is not None:
            return derivative / self.divisor
        # The derivative of v / |v| is the component of dv that is orthogonal to v, divided by |v|.
        norms = vector.norm(dim=1, keepdim=True)
        units = vector / norms
        orthogonal = derivative - units * (units * derivative).sum(dim=1, keepdim=True)
        derivative_of_unit: torch.Tensor = orthogonal / norms
        return derivative_of_unit


class JacobianIntegrator:
    """Computes the contributions of a text's parts to its unit vector, using integrated Jacobians.

    The reference is the text with its content replaced by padding tokens, or by zeros if the model has no
    padding token. In some models, such as static models, the vector of the reference is zero and has no
    direction. If the reference's vector is zero, all vectors are divided by the norm of the text's vector,
    and the contribution of the reference is zero.

    Derivatives are computed exactly, by forward-mode differentiation, and integrals by Gauss-Legendre
    quadrature. A large error indicates that the vector turns sharply on a short section of the path, where
    attention moves to other tokens. If the error is large, more points are used, and most of the points are
    placed where the vector turns sharply.
    """

    def __init__(self, inspector: Inspector, *, max_factor: int = 4) -> None:
        """Store the inspector. The number of points may increase by at most ``max_factor``."""
        self._inspector = inspector
        self._max_factor = max_factor

    def contributions(
        self, content: Sequence[int], labels: Sequence[int], steps: int, watch: Watch | None = None
    ) -> Contributions:
        """Return the contribution of every part of a text to its unit vector.

        Args:
            content: Token ids of the text, without the special tokens that the model puts around the text.
            labels: For each id, the number of the part to which it belongs. Parts are numbered from 0 without
                gaps.
            steps: Number of points per integral. If the error is large, more points are used.
            watch: Called after every batch.

        Returns:
            The unit vector of the text, shape (d,), the unit vector of the reference (zeros if the
            reference's vector has no direction), and the contribution of each part, shape (parts, d).

        Raises:
            EncodingError: The text has no tokens or no usable vector.
            ModelError: The model cannot be differentiated.
        """
        name = self._inspector.encoder.name
        if not len(labels):
            raise EncodingError(f"{name}: the text to explain has no tokens")
        with self._inspector.differentiating():
            text = self._inspector.embed_text(content)
            is_content = text.content_index >= 0
            reference = torch.where(is_content[:, None], text.padding, text.rows)
            vector, reference_vector = text.vectors(torch.stack([text.rows, reference])).double()
            length = float(vector.norm())
            if not np.isfinite(length) or length == 0:
                raise EncodingError(f"{name}: the text to explain has no usable vector (zero or not finite)")
            text_unit = vector / length
            reference_length = reference_vector.norm()
            if float(reference_length) > _MIN_REFERENCE_SHARE * length:
                # Without a divisor, every vector on the path is divided by its own length.
                path = _Path(text, reference, divisor=None)
                reference_unit = reference_vector / reference_length
            else:
                # The reference's vector is close to zero, so it has no direction and cannot be normalised.
                # All vectors are divided by the length of the text's vector instead.
                path = _Path(text, reference, divisor=length)
                reference_unit = torch.zeros_like(reference_vector)
            # The direction of a part is text minus reference at the positions of the part, and zero
            # elsewhere. The positions around the text belong to no part. `clamp` assigns them to the part of
            # the first id, which has no effect, because text minus reference is zero there. ``parts_of_ids``
            # has shape (ids, parts), and ``parts_of_positions`` has shape (T, parts).
            label_tensor = torch.tensor(labels, device=reference.device)
            parts_of_ids = torch.nn.functional.one_hot(label_tensor).to(reference)
            parts_of_positions = parts_of_ids[text.content_index.clamp(min=0)]
            directions = parts_of_positions.T[:, :, None] * (text.rows - reference)
            try:
                parts = self._integrate_accurately(path, directions, text_unit - reference_unit, steps, watch)
            except NotImplementedError as error:
                reason = " ".join(str(error).split())[:200]
                raise ModelError(
                    f"{name}: an operation of the model has no forward-mode derivative ({reason})"
                ) from error
        if not bool(parts.isfinite().all()):
            raise ModelError(
                f"{name}: vectors between the reference and the text are not finite: use float32"
            )
        return Contributions(to_numpy(text_unit), to_numpy(reference_unit), to_numpy(parts))

    def _integrate_accurately(
        self,
        path: _Path,
        directions: torch.Tensor,
        expected: torch.Tensor,
        steps: int,
        watch: Watch | None,
    ) -> torch.Tensor:
        """Return the integral for each direction, shape (directions, d).

        The number of points is doubled until the sum of the integrals is close to ``expected``, or until the
        maximum number of points is reached. If there are many directions, the number of points is chosen from
        a single integral in the direction of the sum of all directions, because this integral equals the sum
        of the integrals. After the number of points is chosen, the integral for each direction is computed
        once.
        """
        width = len(expected)
        has_few_parts = len(directions) <= _FEW_PARTS
        tried_directions = directions if has_few_parts else directions.sum(dim=0, keepdim=True)
        points = steps
        # The plain rule is tried first, because `make_panel_rule` needs the distances travelled, for which
        # the model runs at additional points.
        rule = make_gauss_rule(points)
        integrals = path.integrate(tried_directions, rule, width)
        while _measure_error_of_sum(integrals, expected) > _MAX_ERROR and points < self._max_factor * steps:
            points *= 2
            rule = make_panel_rule(path.measure_distances_travelled(points), points)
            integrals = path.integrate(tried_directions, rule, width)
        return integrals if has_few_parts else path.integrate(directions, rule, width, watch)


def _measure_error_of_sum(integrals: torch.Tensor, expected: torch.Tensor) -> float:
    return float((integrals.sum(dim=0) - expected).norm())
