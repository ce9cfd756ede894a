"""The layers at which a language model with a prompt is changed and read, as result rows report them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stickytoken.encoders.prompted import Contrast, TokenPrepending


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedReading:
    """The layers of token prepending and contrast, and the layer from which the vector is read.

    Attributes:
        start: First layer that token prepending overwrites; None without token prepending.
        exit: First layer after ``start`` that token prepending does not overwrite; None without token
            prepending.
        layer: Layer from which the vector is read, counted from 1; None for a model without a prompt.
        contrast_layer: Layer whose attention contrast changes, counted from 0; None without contrast.
        contrast_strength: Factor of contrast; None without contrast, or if the rule has no factor.
        contrast_rule: Name of the contrast rule; None without contrast.
    """

    start: int | None = None
    exit: int | None = None
    layer: int | None = None
    contrast_layer: int | None = None
    contrast_strength: float | None = None
    contrast_rule: str | None = None


def steering(prepending: TokenPrepending | None, contrast: Contrast | None) -> dict[str, Any]:
    """Return, by name, the fields of a `ReportedReading` that describe token prepending and contrast."""
    values: dict[str, Any] = {}
    if prepending is not None:
        values |= {"start": prepending.start, "exit": prepending.exit}
    if contrast is not None:
        values["contrast_layer"] = contrast.layer
        values["contrast_strength"] = contrast.strength
        values["contrast_rule"] = str(contrast.rule)
    return values
