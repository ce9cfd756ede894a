"""What a model reads around a text, as the user asks for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Prompting:
    """A prompt, and how a language model is read through it.

    Attributes:
        prompt: text put in front of every input; None is the model's default prompt. For a language model
            that is not a SentenceTransformer: ``prompteol``, ``cot``, ``ke``, ``metaeol``, ``echo``, or a
            text with ``{sentence}`` in it.
        prompt_name: name of one of the model's own prompts, in place of ``prompt``.
        token_prepending: let every token of the sentence see the whole sentence (Fu et al., ACL 2025);
            with a language model's prompt only, like the rest.
        start: first layer that token prepending overwrites, from 0; None is the preset's.
        exit: first later layer that it leaves alone; None is the preset's.
        layer: layer to read, an index into the embedding and the outputs of all layers; -1 is behind the
            final norm. None is the preset's.
    """

    prompt: str | None = None
    prompt_name: str | None = None
    token_prepending: bool = False
    start: int | None = None
    exit: int | None = None
    layer: int | None = None

    @property
    def given(self) -> dict[str, Any]:
        """Options that only a language model with a prompt can meet, where they were given."""
        values = {"start": self.start, "exit": self.exit, "layer": self.layer}
        found = {key: value for key, value in values.items() if value is not None}
        return found | ({"token_prepending": True} if self.token_prepending else {})
