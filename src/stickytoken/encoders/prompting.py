"""Prompt options of a model."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class LayerChoice(StrEnum):
    """Where the layer that a prompted language model is read from comes from."""

    GIVEN = "chosen by the user"
    PUBLISHED = "published preset"
    SAVED = "saved with the model"
    LAST = "default: the last layer"
    SCALED = "default guess, scaled from Llama 2 7B"


@dataclass(frozen=True, slots=True)
class Prompting:
    """A prompt, and how vectors are read from a prompted language model.

    Attributes:
        prompt: text put before every input; None is the model's default prompt. For a language model
            that is not a SentenceTransformer: ``prompteol``, ``cot``, ``ke``, ``ck``, ``metaeol``, ``echo``,
            or a text with ``{sentence}`` in it.
        prompt_name: name of one of the model's own prompts, instead of ``prompt``.
        token_prepending: let every token of the sentence attend to the whole sentence (Fu et al., ACL 2025).
            This option and the following ones need a prompted language model.
        start: first layer of token prepending, from 0; None is the preset's.
        exit: first later layer without it; None is the preset's.
        layer: layer to read, an index into the embedding and the outputs of all layers; -1 is after the
            final norm. None is the published preset's; without one, a plain prompt reads the last layer, and
            token prepending and contrast the layer at the same relative depth as for Llama 2 7B.
        contrast: subtract what an auxiliary prompt attends to (Cheng et al., ACL 2025).
        contrast_layer: layer whose attention it changes, from 0; None is the preset's.
        contrast_strength: factor of the difference, from 0; None is the preset's.
        contrast_rule: ``scaled``, ``norm``, ``scaled_norm`` or ``sub_head_norm``; None is ``scaled``.
    """

    prompt: str | None = None
    prompt_name: str | None = None
    token_prepending: bool = False
    start: int | None = None
    exit: int | None = None
    layer: int | None = None
    contrast: bool = False
    contrast_layer: int | None = None
    contrast_strength: float | None = None
    contrast_rule: str | None = None

    @property
    def given(self) -> dict[str, Any]:
        """The given options that only a prompted language model supports."""
        switches = ("token_prepending", "contrast")
        values = {key: value for key, value in asdict(self).items() if not key.startswith("prompt")}
        return {
            key: value for key, value in values.items() if (value if key in switches else value is not None)
        }
