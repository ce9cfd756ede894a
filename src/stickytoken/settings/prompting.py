"""The settings of a model's prompt, and of how vectors are read from a prompted language model."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from stickytoken.settings import NaturalNumber, check_settings


class LayerChoice(StrEnum):
    """How the layer that gives the vector of a prompted text was chosen."""

    GIVEN = "chosen by the user"
    PUBLISHED = "published preset"
    SAVED = "saved with the model"
    LAST = "default: the last layer"
    SCALED = "default guess, scaled from Llama 2 7B"


@dataclass(frozen=True, slots=True)
class Prompting:
    """A prompt, and how vectors are read from a prompted language model.

    A setting that is None has its default value. All settings except ``prompt``, ``query_prompt``,
    ``prompt_name`` and ``layer`` require a language model that is read through a prompt.

    ``prompt`` is the name of a saved prompt if it is a single word of ASCII letters, digits, ``-`` and ``_``.
    Anything else is taken as the prompt text itself, such as ``"query: "``.

    For a SentenceTransformer, ``layer`` is the number of layers to run (at least 1). For a language model
    with a prompt, ``layer`` is an index into the list that begins with the embeddings and continues with the
    output of each layer; -1 is the last output, after the final norm. If there is no published preset,
    vectors for a plain prompt come from the last layer, and vectors for token prepending come
    from the layer at the same relative depth as in Llama 2 7B.

    Attributes:
        prompt: Text before every input, or the name of one of the model's saved prompts. A single word is
            taken as a name. Default: the model's prompt. For a plain language model: prompteol, cot, ke, ck,
            metaeol, echo, or a text with {sentence}.
        prompt_name: Name of one of the model's saved prompts. This setting is needed only if the name is not
            a single word.
        token_prepending: With a prompt: let every token of the sentence attend to the whole sentence (Fu et
            al., ACL 2025).
        start: First layer that token prepending overwrites, counted from 0. Default: the prompt's preset.
        exit: First layer after start that token prepending no longer overwrites. Default: the prompt's
            preset.
        layer: Take the vectors after this number of layers; -1 is the last layer. Default: the last layer or,
            for a language model with a prompt, the layer of the published preset.
        query_prompt: Text before every query, or the name of a saved prompt, where queries and documents are
            told apart. Default: the model's, unless the prompt is another than its own for documents.

    Raises:
        InputError: A value has the wrong type or is out of range.

    Examples:
        >>> from stickytoken.encoders import Prompting
        >>> Prompting("prompteol", token_prepending=True).decoder_options
        {'token_prepending': True}
    """

    prompt: str | None = None
    prompt_name: str | None = None
    token_prepending: bool = False
    start: NaturalNumber | None = None
    exit: NaturalNumber | None = None
    layer: int | None = None
    query_prompt: str | None = None

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def decoder_options(self) -> dict[str, Any]:
        """The settings in use that require a prompted language model, keyed by name."""
        options: dict[str, Any] = {}
        for name, value in asdict(self).items():
            suits_other_models = name in ("layer", "prompt", "prompt_name", "query_prompt")
            is_set = value is not None and value is not False  # ``start`` and ``exit`` may be 0
            if is_set and not suits_other_models:
                options[name] = value
        return options

    def as_options(self) -> dict[str, Any]:
        """Return the settings for saved models and records, keyed by name.

        ``prompt_name`` is left out, because in these settings ``prompt`` is always the text itself.
        """
        values = asdict(self)
        del values["prompt_name"]
        return values
