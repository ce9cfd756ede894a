"""Published hyper-parameters of Token Prepending and Contrastive Prompting, by model family. Pure.

Token Prepending: from the configuration of the published code (fuyuchenIfyw/token_prepending, config.yaml),
and section 5.1 of Fu et al., ACL 2025, for knowledge enhancement on Llama 2 7B. Contrastive Prompting: from
the published code of Cheng et al., ACL 2025, for the two Llamas. Chosen by their authors on the development
set of STS-B.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stickytoken.encoders.prompted.contrast import DEFAULT_STRENGTH
from stickytoken.encoders.prompted.prompts import Prompt
from stickytoken.encoders.prompting import LayerChoice

_LLAMA_3_VOCABULARY = 128_000
_SCALED = "scaled from Llama 2 7B"
# Templates that the settings were published for.
_TEMPLATES = ("prompteol", "cot", "ke", "ck", "metaeol")
# Prompts that are read after the last layer but one, also where the others are not.
_READ_LATER = ("ke", "ck")


@dataclass(frozen=True, slots=True)
class Preset:
    """Layers to overwrite and to read.

    Attributes:
        start: first layer at which the placeholder is overwritten, from 0.
        exit: first later layer at which it is not.
        layer: layer to read, an index into the embedding and the outputs of all layers.
        source: model of the published setting, or how it was derived.
        contrast_layer: layer whose attention contrast changes, from 0; None is 4/32 of the depth.
        contrast_strength: factor of contrast.
    """

    start: int
    exit: int
    layer: int
    source: str
    contrast_layer: int | None = None
    contrast_strength: float = DEFAULT_STRENGTH


def preset_for(config: Any, layers: int, prompt: Prompt) -> Preset:
    """Return the published setting of a model family, or that of Llama 2 7B at the same relative depth.

    Args:
        config: the configuration of the decoder.
        layers: its number of layers.
        prompt: the prompt; knowledge enhancement is read from another layer than the others.
    """
    family = (config.model_type, layers)
    if family == ("llama", 32) and config.vocab_size >= _LLAMA_3_VOCABULARY:
        return Preset(1, 3, -2, "Llama 3 8B", 6, 0.25)
    if family == ("llama", 32):
        return Preset(1, 7, -2 if prompt.name in _READ_LATER else 27, "Llama 2 7B", 4)
    if family == ("llama", 40):
        return Preset(1, 7, -2, "Llama 2 13B")
    if family == ("qwen2", 28):
        return Preset(1, 6, -2, "Qwen2 7B")
    if family == ("gemma2", 42):
        return Preset(1, 6, -2, "Gemma 2 9B")
    # 7/32 and 27/32 of the depth, not measured on this model.
    return Preset(
        min(1, layers - 1),
        max(2, round(7 * layers / 32)),
        max(1, round(27 * layers / 32)),
        _SCALED,
    )


def layer_for(preset: Preset, prompt: Prompt, given: int | None, *, steered: bool) -> tuple[int, LayerChoice]:
    """Choose the layer to read, and say where the choice comes from.

    Where a setting is published for the model and the template, the plain prompt reads its layer too, so that
    the two can be compared. Elsewhere a plain prompt reads the last layer.

    Args:
        preset: the preset of the model.
        prompt: the prompt.
        given: the layer that the user chose, if any.
        steered: whether token prepending or contrast is on.
    """
    if given is not None:
        return given, LayerChoice.GIVEN
    if preset.source != _SCALED and prompt.name in _TEMPLATES:
        return preset.layer, LayerChoice.PUBLISHED
    return (preset.layer, LayerChoice.SCALED) if steered else (-1, LayerChoice.LAST)


def contrast_layer_for(preset: Preset, layers: int, number: int, possible: Sequence[int]) -> int:
    """Choose the layer of contrast: that of the preset, or the nearest one that can be changed.

    Args:
        preset: the preset of the model.
        layers: its number of layers.
        number: number of layers before the state that is read.
        possible: layers whose attention has an output projection.
    """
    wanted = round(4 * layers / 32) if preset.contrast_layer is None else preset.contrast_layer
    earlier = [layer for layer in possible if layer < number]
    return min(earlier, key=lambda layer: abs(layer - wanted), default=min(wanted, number - 1))
