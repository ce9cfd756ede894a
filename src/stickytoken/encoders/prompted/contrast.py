"""Settings of Contrastive Prompting (Cheng et al., ACL 2025, arXiv 2505.12831). Pure.

The same sentence is read through an auxiliary prompt that asks for what is irrelevant in it. In one early
layer, what the auxiliary prompt's last token has attended to is subtracted from what the prompt's last token
has.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from stickytoken.encoders.prompted.prompts import SENTENCE, Prompt
from stickytoken.encoders.prompting import Prompting
from stickytoken.errors import InputError

AUXILIARY = Prompt(
    "auxiliary", (f'The irrelevant information of this sentence : "{SENTENCE}" means in one word:"',)
)
DEFAULT_STRENGTH = 0.5


class ContrastRule(StrEnum):
    """What replaces the values A of the prompt's last token, given the values B of the auxiliary prompt's."""

    SCALED = "scaled"
    """c (A - B), the published default."""
    NORM = "norm"
    """(A - B) |A| / |A - B|: the difference with the norm of A."""
    SCALED_NORM = "scaled_norm"
    """c (A - B) |A| / |A - B|."""
    SUB_HEAD_NORM = "sub_head_norm"
    """As NORM, for every attention head by itself."""

    @property
    def scales(self) -> bool:
        """Whether the rule has a strength c."""
        return self in (ContrastRule.SCALED, ContrastRule.SCALED_NORM)


@dataclass(frozen=True, slots=True)
class Contrast:
    """Where and how the auxiliary prompt is subtracted.

    Attributes:
        layer: layer whose attention is changed, from 0.
        strength: the factor c; None for a rule without one.
        rule: what replaces the values.

    Raises:
        InputError: The layer is below 0, or the rule and the strength do not go together.
    """

    layer: int
    strength: float | None = DEFAULT_STRENGTH
    rule: ContrastRule = ContrastRule.SCALED

    def __post_init__(self) -> None:
        _require_values(self.layer, self.strength, self.rule)
        if self.rule.scales and self.strength is None:
            raise InputError(f"the contrast rule {self.rule} needs a strength: pass a number from 0")

    def require_layers(self, layers: int, number: int, name: str) -> None:
        """Refuse a layer that does not exist or that the vector does not depend on.

        Args:
            layers: number of layers of the model.
            number: number of layers before the state that is read.
            name: name of the model.

        Raises:
            InputError: The layer is one of them.
        """
        if self.layer >= layers:
            raise InputError(
                f"the contrast layer is {self.layer}, but {name} has {layers} layers: pass 0 to {layers - 1}"
            )
        if self.layer >= number:
            raise InputError(
                f"the contrast layer is {self.layer}, counted from 0, but vectors of {name} are read after "
                f"{number} layers, so nothing would change: pass 0 to {number - 1}, or read a later layer"
            )


def require_contrast_options(options: Prompting) -> ContrastRule:
    """Check the options of contrast before a model is loaded, and return the rule.

    Raises:
        InputError: One of them is impossible, or is given without contrast.
    """
    given = [name for name in options.given if name.startswith("contrast_")]
    if given and not options.contrast:
        raise InputError(f"{', '.join(given)} would have no effect, since contrast is off: turn it on")
    try:
        rule = ContrastRule(options.contrast_rule or ContrastRule.SCALED)
    except ValueError as error:
        raise InputError(
            f"the contrast rule {options.contrast_rule!r} is unknown: use one of {', '.join(ContrastRule)}"
        ) from error
    _require_values(options.contrast_layer, options.contrast_strength, rule)
    return rule


def _require_values(layer: int | None, strength: float | None, rule: ContrastRule) -> None:
    if layer is not None and layer < 0:
        raise InputError(f"the contrast layer is {layer}: layers are counted from 0")
    if strength is None:
        return
    if not rule.scales:
        raise InputError(
            f"the contrast rule {rule} has no strength, got {strength}: leave the strength out, or use "
            f"{ContrastRule.SCALED} or {ContrastRule.SCALED_NORM}"
        )
    if not (math.isfinite(strength) and strength >= 0):
        raise InputError(f"the contrast strength is {strength}: pass a finite number from 0")
