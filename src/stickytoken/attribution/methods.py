"""The methods that a similarity can be attributed by."""

from __future__ import annotations

from enum import StrEnum


class AttributionMethod(StrEnum):
    """How the vector of a text is divided among its parts."""

    DELETION = "deletion"
    """Shapley values: parts are deleted in random orders, and the text encoded again; needs no gradients."""
    JACOBIANS = "jacobians"
    """Integrated Jacobians, from a text of padding to the text."""
