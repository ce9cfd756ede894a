"""The special tokens and other inputs that a SentenceTransformer adds to the tokens of a text."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stickytoken.encoders.inputs.tokenizer import HuggingFaceTokenizer, restoring_settings
from stickytoken.encoders.protocol import quote_text
from stickytoken.errors import ModelError

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

# Two sample texts. The model preprocesses them, and the results show its template. Models that read only a
# few tokens get the short samples.
_SAMPLES = ("The cat sat on a warm stone.", "Trains leave at noon")
_SHORT_SAMPLES = ("a", "to")
# `_SAMPLES` are used only if they leave this many tokens for special tokens.
_ROOM = 8
# Texts with something that a model's own code may remove or rewrite before it tokenizes them.
_HOSTILE_SAMPLES = (
    "two  spaces, a\ttab\nand a line",
    "LOUD Words",
    "the river river river river river river sings",
    "see https://example.org/a?b=c or me@example.org now",
    "a <b>bold</b> word &amp; {a} #sign",
    "caf\u00e9 cafe\u0301 \u201cquoted\u201d 🙂 now",
)
# At most about this many special tokens are tried as text.
_TRIED_SPECIALS = 64
# Maximum number of characters that a message quotes from another library's error.
_SHOWN_REASON = 300
# Names of the module inputs that are the same for all texts.
_CONSTANT_FEATURES = ("modality", "prompt_length")


@dataclass(frozen=True, slots=True)
class TokenTypes:
    """Token type ids of an input, for models that read token types.

    Attributes:
        before: type ids of the special tokens before the content.
        content: type id of every content token.
        after: type ids of the special tokens after the content.
    """

    before: tuple[int, ...]
    content: int
    after: tuple[int, ...]

    def of_input(self, content_length: int) -> list[int]:
        """Return the type id of every token in an input with ``content_length`` content tokens."""
        return [*self.before, *[self.content] * content_length, *self.after]


@dataclass(frozen=True, slots=True)
class InputTemplate:
    """The special tokens and other inputs that a model puts around the content ids of a text.

    Attributes:
        before: ids of the special tokens before the content.
        after: ids of the special tokens after the content.
        features: other inputs of the modules, which are the same for all texts, such as ``prompt_length``.
        token_types: token type ids of the input; None if the model reads none.
        flat: whether a batch is one list with the ids of all texts, and an offset for the start of each text,
            as in static embeddings; otherwise, it is a padded matrix with one row for each text.
    """

    before: tuple[int, ...]
    after: tuple[int, ...]
    features: dict[str, Any]
    token_types: TokenTypes | None
    flat: bool

    @property
    def overhead(self) -> int:
        """Number of special tokens in an input."""
        return len(self.before) + len(self.after)


def read_template(
    model: SentenceTransformer,
    tokenizer: HuggingFaceTokenizer,
    prompt: str,
    max_length: int | None,
    name: str,
) -> InputTemplate:
    """Return the template of a model, derived from its preprocessing of sample texts.

    Args:
        model: the model.
        tokenizer: the model's tokenizer, which must encode texts to the content ids that the model reads.
        prompt: text put before every input.
        max_length: number of tokens that the model reads; None if there is no limit.
        name: name of the model, for messages.

    Raises:
        ModelError: the model cannot read text, changes the tokens of a text, adds special tokens that depend
            on the text, or reads too few tokens for the prompt.
    """
    longest = math.inf if max_length is None else max_length
    prompted_samples = [prompt + sample for sample in _SAMPLES]
    longest_sample = max(len(ids) for ids in tokenizer.encode_many(prompted_samples))
    # Models that read only a few tokens get shorter samples, so that none is truncated.
    samples = _SAMPLES if longest_sample + _ROOM <= longest else _SHORT_SAMPLES
    if len(tokenizer.encode_many([prompt])[0]) >= longest:
        raise ModelError(f"{name}: the prompt is too long: the model reads {max_length} tokens in total")
    with restoring_settings(model.tokenizer):  # preprocessing changes the user's padding and truncation
        template = _read_template_around(samples[0], model, tokenizer, prompt, name)
        room = longest - template.overhead
        for sample in (samples[1], *_choose_hostile_samples(tokenizer, prompt, room)):
            if _read_template_around(sample, model, tokenizer, prompt, name) != template:
                raise ModelError(
                    f"{name}: the special tokens depend on the text, so token ids cannot be inserted: use "
                    "another model"
                )
    return template


def _choose_hostile_samples(tokenizer: HuggingFaceTokenizer, prompt: str, room: float) -> Iterator[str]:
    """Yield the hostile texts, and texts with special tokens, that have at most ``room`` content ids."""
    special_ids = sorted(tokenizer.marked_ids)
    step = math.ceil(len(special_ids) / _TRIED_SPECIALS) or 1
    # The tokens with a role often come first.
    tried_ids = dict.fromkeys(special_ids[:8] + special_ids[::step])
    specials = tokenizer.decode_many([[token_id] for token_id in tried_ids])
    # They stand in front, because some tokenizers, such as ByT5's, add no </s> to a text that ends with one.
    for sample in (*_HOSTILE_SAMPLES, *(f"{special} {special} the river" for special in specials)):
        try:
            (content,) = tokenizer.encode_many([prompt + sample])
        except ModelError:  # a tokenizer without a token for unknown text
            continue
        if 0 < len(content) <= room:
            yield sample


def _read_template_around(
    sample: str, model: SentenceTransformer, tokenizer: HuggingFaceTokenizer, prompt: str, name: str
) -> InputTemplate:
    """Return the template that the model's preprocessing puts around the content ids of one text.

    The content ids are those of the prompt and the text, without special tokens. The template consists of
    all ids before and after the content ids in the model's input.

    Raises:
        ModelError: the model's input does not contain the content ids of the text.
    """
    features = _preprocess(sample, model, prompt, name)
    flat = "offsets" in features  # the ids of all texts in one list, as in static embeddings
    ids = features["input_ids"] if flat else features["input_ids"][0]
    unpadded: Any = slice(None)  # selects the positions that are no padding
    if not flat and "attention_mask" in features:
        unpadded = features["attention_mask"][0].bool()
    input_ids = tuple(ids[unpadded].tolist())
    content = tuple(tokenizer.encode_many([prompt + sample])[0])
    start = _find_start(content, input_ids)
    if start is None:
        raise ModelError(f"{name}: {_explain_change(model, prompt)}")
    end = start + len(content)
    token_types = None
    if "token_type_ids" in features and not flat:
        types = tuple(features["token_type_ids"][0][unpadded].tolist())
        token_types = TokenTypes(before=types[:start], content=types[start], after=types[end:])
    return InputTemplate(
        before=input_ids[:start],
        after=input_ids[end:],
        features={key: features[key] for key in _CONSTANT_FEATURES if key in features},
        token_types=token_types,
        flat=flat,
    )


def _preprocess(sample: str, model: SentenceTransformer, prompt: str, name: str) -> dict[str, Any]:
    # Returns the inputs of the model's first module for a text.
    try:
        features = model.preprocess([sample], prompt=prompt or None)
    except Exception as error:  # image and audio processors raise many kinds of errors
        reason = " ".join(str(error).split())[:_SHOWN_REASON]
        raise ModelError(
            f"{name} does not accept text as its only input ({type(error).__name__}: {reason}): pass a text "
            "model"
        ) from error
    ids = features.get("input_ids")
    mask = features.get("attention_mask", ids)  # not all models read a mask
    if not hasattr(ids, "shape") or not hasattr(mask, "shape"):  # audio processors return lists
        raise ModelError(f"{name}: its first module does not read token ids: pass a text model")
    return features


def _find_start(content: tuple[int, ...], sequence: tuple[int, ...]) -> int | None:
    # Returns the index at which ``content`` begins in ``sequence``; None if ``sequence`` does not contain it.
    for start in range(len(sequence) - len(content) + 1):
        if sequence[start : start + len(content)] == content:
            return start
    return None


def _explain_change(model: SentenceTransformer, prompt: str) -> str:
    """Return, for an error message, why a model's input lacks the tokens of the prompt and the text."""
    first: Any = model[0]
    processor = getattr(first, "processor", None)
    templates = [getattr(reader, "chat_template", None) for reader in (processor, first.tokenizer)]
    # Whether the model puts a text into a chat message, which it reads in place of the text.
    reads_messages = any(templates) and "message" in getattr(first, "modalities", ())
    if reads_messages and prompt:
        return (
            f"its chat template puts the prompt {quote_text(prompt)} into a separate message, so copies "
            "cannot be inserted by token id: leave the prompt out (prompt='')"
        )
    if reads_messages:
        return (
            "its chat template changes the text, so copies cannot be inserted by token id: use a model that "
            "reads plain text"
        )
    return (
        "it changes the tokens of the text before it reads them, so copies cannot be inserted by token id: "
        "use another model"
    )
