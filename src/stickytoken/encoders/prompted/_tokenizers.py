"""Copies of a user's tokenizer, with and without the placeholder, and what is derived from them alone."""

from __future__ import annotations

import copy
from functools import cached_property
from typing import Any, NamedTuple

from stickytoken.encoders.prompted._prompt_ids import Ids
from stickytoken.encoders.prompted.prompts import PLACEHOLDER
from stickytoken.encoders.tokenizing.tokenizer import HuggingFaceTokenizer
from stickytoken.errors import ModelError


class OwnTokenizer(NamedTuple):
    """A copy of the user's tokenizer.

    Attributes:
        tokenizer: the copy.
        special: special tokens before every text.
        padding_id: id of the padding token; None without one.
        placeholder_id: id of the placeholder; None if the copy has none.
    """

    tokenizer: HuggingFaceTokenizer
    special: Ids
    padding_id: int | None
    placeholder_id: int | None


class PromptTokenizers:
    """The tokenizers of a prompted model.

    Copying a large vocabulary and proving where words can be encoded separately takes seconds, so every
    reading of a model shares one of these.

    Args:
        tokenizer: the user's transformers tokenizer, which is not changed.
        name: name of the model in messages.
    """

    def __init__(self, tokenizer: Any, name: str) -> None:
        if not hasattr(tokenizer, "add_tokens") or not hasattr(tokenizer, "convert_ids_to_tokens"):
            raise ModelError(
                f"the tokenizer of {name} is a {type(tokenizer).__name__}: pass a transformers tokenizer"
            )
        self._user = tokenizer

    @cached_property
    def plain(self) -> OwnTokenizer:
        """Without the placeholder."""
        return _own(copy.deepcopy(self._user), None)

    @cached_property
    def prepending(self) -> OwnTokenizer:
        """With the placeholder as one more token."""
        own = copy.deepcopy(self._user)
        own.add_tokens([PLACEHOLDER])
        return _own(own, own.convert_tokens_to_ids(PLACEHOLDER))


def _own(tokenizer: Any, placeholder_id: int | None) -> OwnTokenizer:
    adapted = HuggingFaceTokenizer(tokenizer)
    padding_id: int | None = getattr(tokenizer, "pad_token_id", None)
    return OwnTokenizer(adapted, _special_ids(tokenizer, adapted), padding_id, placeholder_id)


def _special_ids(tokenizer: Any, adapted: HuggingFaceTokenizer) -> Ids:
    """Find the special tokens before every text; those after it are left out."""
    bare = adapted.encode_many(["a b"])[0]
    whole = list(tokenizer("a b")["input_ids"])
    for start in range(len(whole) - len(bare) + 1):
        if whole[start : start + len(bare)] == bare:
            return tuple(whole[:start])
    raise ModelError(f"the special tokens of a {type(tokenizer).__name__} change the text between them")
