"""Result fields that say which layers of a prompted language model are changed, and which one is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stickytoken.encoders.prompted import Contrast, TokenPrepending


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedReading:
    """The layers of token prepending and contrast, and the layer from which the vector is read.

    Attributes:
        start: First layer that token prepending overwrites; None if token prepending is not used.
        exit: First layer after ``start`` that token prepending does not overwrite; None if token prepending
            is not used.
        layer: 1-based layer from which the vector is read; None for a model without a prompt.
        contrast_layer: 0-based layer whose attention is changed by contrast; None if contrast is not used.
        contrast_strength: Factor that sets the strength of contrast; None if contrast is not used, or if its
            rule has no factor.
        contrast_rule: Name of the contrast rule; None if contrast is not used.
    """

    start: int | None = None
    exit: int | None = None
    layer: int | None = None
    contrast_layer: int | None = None
    contrast_strength: float | None = None
    contrast_rule: str | None = None


def steering(prepending: TokenPrepending | None, contrast: Contrast | None) -> dict[str, Any]:
    """Return the `ReportedReading` fields for token prepending and contrast, keyed by name."""
    values: dict[str, Any] = {}
    if prepending is not None:
        values |= {"start": prepending.start, "exit": prepending.exit}
    if contrast is not None:
        values["contrast_layer"] = contrast.layer
        values["contrast_strength"] = contrast.strength
        values["contrast_rule"] = str(contrast.rule)
    return values
