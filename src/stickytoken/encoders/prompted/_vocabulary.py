"""The vocabulary of a prompted language model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stickytoken.encoders.prompted._cleaning import reachable_text
from stickytoken.encoders.tokenizing.tokenizer import HuggingFaceTokenizer


class PromptVocabulary:
    """A tokenizer for the vocabulary that encodes text as part of a sentence in the prompt.

    A token that would close the quotation around the sentence, or with whitespace that cleaning removes,
    encodes to other ids: no text can produce it.

    Args:
        tokenizer: the user's tokenizer, without the placeholder.
        quoted: whether the prompt quotes the sentence.
    """

    def __init__(self, tokenizer: HuggingFaceTokenizer, *, quoted: bool) -> None:
        self._tokenizer = tokenizer
        self._quoted = quoted

    @property
    def entries(self) -> Mapping[int, str]:
        """Vocabulary strings by id, ids ascending."""
        return self._tokenizer.entries

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids with a special role; cls alone does not count."""
        return self._tokenizer.special_ids

    @property
    def unknown_id(self) -> int | None:
        """Id of the unknown token; None without one."""
        return self._tokenizer.unknown_id

    @property
    def fingerprint(self) -> str:
        """sha256 of the pipeline and the vocabulary."""
        return self._tokenizer.fingerprint

    def decode_many(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """Decode each list of ids, keeping special tokens, without clean-up."""
        return self._tokenizer.decode_many(ids)

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode each text as part of a sentence, without the prompt."""
        return self._tokenizer.encode_many([reachable_text(text, quoted=self._quoted) for text in texts])

    def encode_with_spans(self, texts: Sequence[str]) -> list[tuple[list[int], list[tuple[int, int]] | None]]:
        """Encode each text as `encode_many` does; character spans are not known."""
        return [(ids, None) for ids in self.encode_many(texts)]
