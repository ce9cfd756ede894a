"""Which layers of a language model are read and steered, as the user chose or as was published for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stickytoken.errors import InputError
from stickytoken.language_models.prompts import PROMPTS, Prompt
from stickytoken.settings import NaturalNumber, check_settings
from stickytoken.settings.prompting import LayerChoice, Prompting

if TYPE_CHECKING:
    from stickytoken.language_models.running.decoder import Decoder


@dataclass(frozen=True, slots=True)
class TokenPrepending:
    """The layers before which the last token's state overwrites the placeholder's state.

    Attributes:
        start: first layer with an overwritten placeholder, counted from 0.
        exit: first later layer whose placeholder is not overwritten; may be beyond the last layer.
    """

    start: NaturalNumber
    exit: NaturalNumber

    def __post_init__(self) -> None:
        check_settings(self)
        if self.start >= self.exit:
            raise InputError(
                f"start is {self.start} and exit is {self.exit}, so nothing would be overwritten: pass a "
                "larger exit"
            )


@dataclass(frozen=True)
class Reading:
    """The settings that a language model uses to compute vectors of sentences."""

    prompt: Prompt
    prepending: TokenPrepending | None
    layer: int  # index into the states after the embedding and each layer; -1 is after the final norm

    def __post_init__(self) -> None:
        if self.prompt.echoes and self.prepending is not None:
            raise InputError(
                "an echo prompt already shows the whole sentence to every token: leave out token prepending"
            )

    @property
    def prompting(self) -> Prompting:
        """The `Prompting` settings that produce this `Reading`."""
        is_known = self.prompt.name in PROMPTS  # otherwise, the user wrote its only template
        prepending = self.prepending
        return Prompting(
            prompt=self.prompt.name if is_known else self.prompt.templates[0],
            token_prepending=prepending is not None,
            start=None if prepending is None else prepending.start,
            exit=None if prepending is None else prepending.exit,
            layer=self.layer,
        )


@dataclass(frozen=True, slots=True)
class _Preset:
    """Default settings for a model and a prompt.

    Default settings are either those published for the model, or those published for Llama 2 7B, scaled to
    the number of the model's layers.

    Attributes:
        start: first layer of token prepending.
        exit: first layer after those with token prepending.
        layer: layer after which the vector is read; a negative number counts from the end.
        published: whether ``start``, ``exit`` and ``layer`` were published for this model and prompt.
    """

    start: int
    exit: int
    layer: int
    published: bool


# Published settings, keyed by model family and number of layers. Each value holds the start and the exit of
# token prepending, and the layer after which the vector is read. The models are, in this order, Llama 3 8B,
# Llama 2 7B, Llama 2 13B, Qwen2 7B and Gemma 2 9B.
_PUBLISHED = {
    ("llama 3", 32): (1, 3, -2),
    ("llama", 32): (1, 7, 27),
    ("llama", 40): (1, 7, -2),
    ("qwen2", 28): (1, 6, -2),
    ("gemma2", 42): (1, 6, -2),
}
# Settings of Llama 2 7B: number of layers, exit of token prepending, and layer after which the vector is
# read. A model without published settings uses layers at the same relative depth.
_LLAMA_2_LAYERS = 32
_LLAMA_2_EXIT = 7
_LLAMA_2_READ = 27
# Smallest vocabulary size at which a Llama with 32 layers is treated as a Llama 3.
_LLAMA_3_VOCABULARY = 128_000
# Prompts that the settings were published for. With a prompt in _READ_LATER, the vector of every published
# model is read after the second-to-last layer.
_PUBLISHED_PROMPTS = ("prompteol", "cot", "ke", "ck", "metaeol")
_READ_LATER = ("ke", "ck")
_SECOND_TO_LAST = -2


def _find_preset(decoder: Decoder, prompt: Prompt) -> _Preset:
    """Return the settings published for a model and prompt, or else the scaled settings of Llama 2 7B.

    The model is recognized by its family and its number of layers. The settings are the layers of token
    prepending and the layer after which the vector is read.
    """
    config = decoder.model.config
    layer_count = len(decoder.layers)
    family = config.model_type
    # Llama 3 8B and Llama 2 7B have the same family name and number of layers, but different vocabularies.
    if (family, layer_count) == ("llama", 32) and config.vocab_size >= _LLAMA_3_VOCABULARY:
        family = "llama 3"
    if (family, layer_count) in _PUBLISHED:
        start, end, layer = _PUBLISHED[family, layer_count]
        if prompt.name in _READ_LATER:  # published for these prompts, whatever the model
            layer = _SECOND_TO_LAST
        published = prompt.name in _PUBLISHED_PROMPTS
    else:  # no settings were published for this model
        start = min(1, layer_count - 1)  # 1, if the model has such a layer
        end = max(2, _scale_layer(_LLAMA_2_EXIT, layer_count))
        layer = max(1, _scale_layer(_LLAMA_2_READ, layer_count))
        published = False
    return _Preset(start=start, exit=end, layer=layer, published=published)


def _scale_layer(llama_2_layer: int, layer_count: int) -> int:
    return round(llama_2_layer * layer_count / _LLAMA_2_LAYERS)  # the layer at the same relative depth


def make_reading(decoder: Decoder, prompt: Prompt, options: Prompting) -> tuple[Reading, LayerChoice]:
    """Complete the user's options with defaults.

    Returns:
        The `Reading`, and how its layer was chosen. The layer is the user's choice or, without one, the
        published layer. For a model without a published layer, the default with token prepending is the
        layer at the same relative depth as in Llama 2 7B, and the default without it is the last layer.

    Raises:
        InputError: an option is wrong or has no effect.
    """
    if not options.token_prepending and (options.start is not None or options.exit is not None):
        raise InputError(
            "start and exit are the layers of token prepending, which is off: turn on token prepending, or "
            "leave them out"
        )
    preset = _find_preset(decoder, prompt)
    if options.layer is not None:
        layer = options.layer
        choice = LayerChoice.GIVEN
    elif preset.published:
        # The same layer is read with and without token prepending, so that results can be compared.
        layer = preset.layer
        choice = LayerChoice.PUBLISHED
    elif options.token_prepending:
        layer = preset.layer
        choice = LayerChoice.SCALED
    else:
        layer = -1
        choice = LayerChoice.LAST
    prepending = None
    if options.token_prepending:
        start = preset.start if options.start is None else options.start
        # The user may choose a start layer that does not come before the preset's exit layer, so the exit is
        # at least the layer after the start.
        end = max(preset.exit, start + 1) if options.exit is None else options.exit
        prepending = TokenPrepending(start, end)
    return Reading(prompt, prepending, layer), choice
