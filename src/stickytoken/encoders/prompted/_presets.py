"""Published hyper-parameters of Token Prepending, by model family. Pure.

From the configuration of the published code (fuyuchenIfyw/token_prepending, config.yaml), and section 5.1 of
Fu et al., ACL 2025, for knowledge enhancement on Llama 2 7B. Chosen by their authors on the development set
of STS-B.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stickytoken.encoders.prompted.prompts import Prompt
from stickytoken.encoders.prompting import LayerChoice

_LLAMA_3_VOCABULARY = 128_000
_SCALED = "scaled from Llama 2 7B"
# Templates that the settings were published for.
_TEMPLATES = ("prompteol", "cot", "ke", "metaeol")


@dataclass(frozen=True, slots=True)
class Preset:
    """Layers to overwrite and to read.

    Attributes:
        start: first layer at which the placeholder is overwritten, from 0.
        exit: first later layer at which it is not.
        layer: layer to read, an index into the embedding and the outputs of all layers.
        source: model of the published setting, or how it was derived.
    """

    start: int
    exit: int
    layer: int
    source: str


def preset_for(config: Any, layers: int, prompt: Prompt) -> Preset:
    """Return the published setting of a model family, or that of Llama 2 7B at the same relative depth.

    Args:
        config: the configuration of the decoder.
        layers: its number of layers.
        prompt: the prompt; knowledge enhancement reads another layer than the others.
    """
    family = (config.model_type, layers)
    if family == ("llama", 32) and config.vocab_size >= _LLAMA_3_VOCABULARY:
        return Preset(1, 3, -2, "Llama 3 8B")
    if family == ("llama", 32):
        return Preset(1, 7, -2 if prompt.name == "ke" else 27, "Llama 2 7B")
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


def layer_for(
    preset: Preset, prompt: Prompt, given: int | None, *, prepending: bool
) -> tuple[int, LayerChoice]:
    """Choose the layer to read, and say where the choice comes from.

    Where a setting is published for the model and the template, the plain prompt reads its layer too, so that
    the two can be compared. Elsewhere a plain prompt reads the last layer.

    Args:
        preset: the preset of the model.
        prompt: the prompt.
        given: the layer that the user chose, if any.
        prepending: whether token prepending is on.
    """
    if given is not None:
        return given, LayerChoice.GIVEN
    if preset.source != _SCALED and prompt.name in _TEMPLATES:
        return preset.layer, LayerChoice.PUBLISHED
    return (preset.layer, LayerChoice.SCALED) if prepending else (-1, LayerChoice.LAST)
