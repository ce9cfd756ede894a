"""The special tokens that a model puts around its input, read off the model itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stickytoken.errors import ModelError

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from stickytoken.encoders.tokenizer import HuggingFaceTokenizer

_SAMPLES = ("The cat sat on a warm stone.", "Trains leave at noon")


@dataclass(frozen=True, slots=True)
class InputTemplate:
    """How content ids become model input.

    Attributes:
        before: special ids in front of the content.
        after: special ids behind it.
        features: further entries that the modules expect, such as ``prompt_length``.
        token_types: whether ``token_type_ids`` are among the features.
        flat: one flat id list with offsets (static embeddings) instead of a matrix.
    """

    before: tuple[int, ...]
    after: tuple[int, ...]
    features: tuple[tuple[str, Any], ...]
    token_types: bool
    flat: bool

    @property
    def overhead(self) -> int:
        """Number of special tokens around the content."""
        return len(self.before) + len(self.after)


def read_template(
    model: SentenceTransformer, tokenizer: HuggingFaceTokenizer, prompt: str, name: str
) -> InputTemplate:
    """Find the special tokens by comparing the model's own input with the bare content.

    Raises:
        ModelError: the model's input is not its content between constant special tokens.
    """
    templates = [_template_of(model, tokenizer, prompt, sample, name) for sample in _SAMPLES]
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
    if not flat and "attention_mask" in features:
        ids = ids[features["attention_mask"][0].bool()]
    whole = tuple(ids.tolist())
    content = tuple(tokenizer.encode_many([prompt + sample])[0])
    start = _find(whole, content)
    if start is None:
        raise ModelError(f"{name}: its input does not contain the tokens of the text as they are")
    return InputTemplate(
        before=whole[:start],
        after=whole[start + len(content) :],
        features=tuple((key, features[key]) for key in ("modality", "prompt_length") if key in features),
        token_types="token_type_ids" in features,
        flat=flat,
    )


def _find(whole: Sequence[int], part: Sequence[int]) -> int | None:
    size = len(part)
    return next(
        (start for start in range(len(whole) - size + 1) if whole[start : start + size] == part), None
    )
