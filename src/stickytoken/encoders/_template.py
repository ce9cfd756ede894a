"""Find the special tokens that a model puts around its input."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stickytoken.errors import ModelError

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from stickytoken.encoders.tokenizing.tokenizer import HuggingFaceTokenizer

_SAMPLES = ("The cat sat on a warm stone.", "Trains leave at noon")
_SHORT_SAMPLES = ("a", "to")  # for models that read only a few tokens
_ROOM = 8


@dataclass(frozen=True, slots=True)
class InputTemplate:
    """How content ids become model input.

    Attributes:
        before: special ids before the content.
        after: special ids after the content.
        features: further inputs of the modules, such as ``prompt_length``.
        token_types: types of the ids before, of every content id, and of the ids after; None if the model has
            no token types.
        flat: one flat id list with offsets (static embeddings) instead of a matrix.
    """

    before: tuple[int, ...]
    after: tuple[int, ...]
    features: tuple[tuple[str, Any], ...]
    token_types: tuple[tuple[int, ...], int, tuple[int, ...]] | None
    flat: bool

    @property
    def overhead(self) -> int:
        """Number of special tokens around the content."""
        return len(self.before) + len(self.after)


def read_template(
    model: SentenceTransformer, tokenizer: HuggingFaceTokenizer, prompt: str, name: str
) -> InputTemplate:
    """Find the special tokens by comparing the model's own input with the content alone."""
    longest = model.max_seq_length if model.max_seq_length is not None else math.inf
    sizes = [len(ids) for ids in tokenizer.encode_many([prompt + sample for sample in _SAMPLES])]
    samples = _SAMPLES if max(sizes) + _ROOM <= longest else _SHORT_SAMPLES
    if len(tokenizer.encode_many([prompt])[0]) >= longest:
        raise ModelError(f"{name}: the prompt is too long: the model reads {longest} tokens in total")
    with tokenizer.settings_kept():
        templates = [_template_of(model, tokenizer, prompt, sample, name) for sample in samples]
    if templates[0] != templates[1]:
        raise ModelError(
            f"{name}: the special tokens depend on the text; stickytoken cannot insert ids into its input"
        )
    return templates[0]


def _template_of(
    model: SentenceTransformer, tokenizer: HuggingFaceTokenizer, prompt: str, sample: str, name: str
) -> InputTemplate:
    features = model.preprocess([sample], prompt=prompt or None)
    if "input_ids" not in features:
        raise ModelError(f"{name}: its first module does not read token ids (is it a text model?)")
    flat = "offsets" in features
    ids = features["input_ids"] if flat else features["input_ids"][0]
    padded = not flat and "attention_mask" in features
    kept = features["attention_mask"][0].bool() if padded else slice(None)
    whole = tuple(ids[kept].tolist())
    content = tuple(tokenizer.encode_many([prompt + sample])[0])
    start = _find(whole, content)
    if start is None:
        raise ModelError(f"{name}: its input does not contain the tokens of the text as they are")
    return InputTemplate(
        before=whole[:start],
        after=whole[start + len(content) :],
        features=tuple((key, features[key]) for key in ("modality", "prompt_length") if key in features),
        token_types=_token_types(features, kept, start, len(content)) if not flat else None,
        flat=flat,
    )


def _token_types(
    features: dict[str, Any], kept: Any, start: int, size: int
) -> tuple[tuple[int, ...], int, tuple[int, ...]] | None:
    if "token_type_ids" not in features:
        return None
    types = tuple(features["token_type_ids"][0][kept].tolist())
    return types[:start], types[start], types[start + size :]


def _find(whole: Sequence[int], part: Sequence[int]) -> int | None:
    size = len(part)
    return next(
        (start for start in range(len(whole) - size + 1) if whole[start : start + size] == part), None
    )
