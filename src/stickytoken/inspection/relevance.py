"""BiLRP: the relevance of each part of a text for its vector, by layer-wise relevance propagation.

Eberle et al., "Building and Interpreting Deep Similarity Models" (IEEE TPAMI 2020): the
relevance of a pair of inputs is the product of two relevance passes, summed over the components of the
vectors,

    R_ij = sum_m [LRP_m(a)]_i [LRP_m(b)]_j

With the rules for transformers of Vasileiou and Eberle, "Explaining Text Similarity in Transformer Models"
(NAACL 2024), a model is linear around a text, and [LRP_m(a)]_i is what the embedding of token i adds to
component m. One plain pass with all other embeddings and all biases taken away gives that for every m at
once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from stickytoken.errors import EncodingError, ModelError
from stickytoken.inspection._embedded_text import EmbeddedText
from stickytoken.inspection._replayed_rules import ReplayedRules
from stickytoken.inspection.protocol import Inspector, as_numbers
from stickytoken.inspection.similarity_matrix import Contributions

_TOKENS = 2048
# Largest norm of what is lost, as a share of the vector's; rounding loses about 1e-6 in float32.
_LOST = 0.01


def relevance(inspector: Inspector, content: Sequence[int], labels: Sequence[int]) -> Contributions:
    """Split the unit vector of a text into the relevance of parts of its content.

    Positions, biases and the tokens that the model puts around the text are the reference.

    Args:
        inspector: inspector of the model.
        content: content ids.
        labels: part of each id, from 0.

    Raises:
        EncodingError: The text has no usable vector.
        ModelError: The model has steps that no rule covers, or its embeddings cannot be reached.
    """
    with inspector.differentiating():
        text = inspector.embedded(content)
        plain = text.vectors(text.rows[None])[0].double()
        length = float(plain.norm())
        if not np.isfinite(length) or length == 0:
            raise EncodingError(f"{inspector.encoder.name}: a text has no usable vector (zero or not finite)")
        shares = _replayed(text, _lanes(text, labels)) / length
    biases, reference = shares[0], shares[1]
    found = Contributions(as_numbers(plain / length), as_numbers(reference), as_numbers(shares[2:] - biases))
    if not found.error <= _LOST:
        raise ModelError(
            f"{inspector.encoder.name}: the rules of bilrp do not cover all steps of this model, and lose "
            f"{found.error:.0%} of a vector: choose the method deletion or jacobians"
        )
    return found


def _lanes(text: EmbeddedText, labels: Sequence[int]) -> torch.Tensor:
    """Return inputs with some embeddings and zeros elsewhere, shape (parts + 2, T, D).

    The first has no embeddings, the second those around the text, the others one part each.
    """
    members = torch.nn.functional.one_hot(torch.tensor(labels, device=text.rows.device)).to(text.rows)
    inside = (text.content >= 0)[:, None]
    parts = torch.where(inside, members[text.content], 0.0).T[:, :, None] * text.rows
    around = torch.where(inside, 0.0, text.rows)
    return torch.cat([torch.zeros_like(around)[None], around[None], parts])


def _replayed(text: EmbeddedText, lanes: torch.Tensor) -> torch.Tensor:
    """Return the vectors of inputs with the factors of the text, shape (inputs, d)."""
    found = []
    with ReplayedRules() as rules:
        text.vectors(text.rows[None])
        for batch in torch.split(lanes, max(1, _TOKENS // len(text.rows))):
            rules.replay()
            found.append(text.vectors(batch).double())
    return torch.cat(found)
