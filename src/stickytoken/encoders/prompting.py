"""Prompt options of a model."""

from __future__ import annotations

from dataclasses import dataclass
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
            that is not a SentenceTransformer: ``prompteol``, ``cot``, ``ke``, ``metaeol``, ``echo``, or a
            text with ``{sentence}`` in it.
        prompt_name: name of one of the model's own prompts, instead of ``prompt``.
        token_prepending: let every token of the sentence attend to the whole sentence (Fu et al., ACL 2025).
            This option and the following ones need a prompted language model.
        start: first layer of token prepending, from 0; None is the preset's.
        exit: first later layer without it; None is the preset's.
        layer: layer to read, an index into the embedding and the outputs of all layers; -1 is after the
            final norm. None is the published preset's; without one, a plain prompt reads the last layer and
            token prepending the layer at the same relative depth as for Llama 2 7B.
    """

    prompt: str | None = None
    prompt_name: str | None = None
    token_prepending: bool = False
    start: int | None = None
    exit: int | None = None
    layer: int | None = None

    @property
    def given(self) -> dict[str, Any]:
        """The given options that only a prompted language model supports."""
        values = {"start": self.start, "exit": self.exit, "layer": self.layer}
        found = {key: value for key, value in values.items() if value is not None}
        return found | ({"token_prepending": True} if self.token_prepending else {})
