"""The vocabulary of a model that reads sentences inside a prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stickytoken.encoders.prompted.cleaning import reachable_text
from stickytoken.encoders.tokenizing.tokenizer import HuggingFaceTokenizer


class PromptVocabulary:
    """A tokenizer for the vocabulary that encodes as a sentence in the prompt is encoded.

    A token that would end the quotation around the sentence, or that holds white space which the words of a
    sentence do not keep, comes back as another: no text can produce it.

    Args:
        tokenizer: the user's tokenizer, without the placeholder.
        quoted: whether the sentence stands between quotation marks.
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
        """Ids with a special role; the cls role alone does not make an id special."""
        return self._tokenizer.special_ids

    @property
    def unknown_id(self) -> int | None:
        """The id that stands for what the vocabulary lacks; None where there is none."""
        return self._tokenizer.unknown_id

    @property
    def fingerprint(self) -> str:
        """sha256 over the pipeline and the vocabulary."""
        return self._tokenizer.fingerprint

    def decode_many(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """Decode each list of ids, special tokens kept, nothing cleaned up."""
        return self._tokenizer.decode_many(ids)

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode each text as a part of a sentence, without the prompt."""
        return self._tokenizer.encode_many([reachable_text(text, quoted=self._quoted) for text in texts])

    def encode_with_spans(self, texts: Sequence[str]) -> list[tuple[list[int], list[tuple[int, int]] | None]]:
        """Encode each text as `encode_many` does, without the characters that each id stands for."""
        return [(ids, None) for ids in self.encode_many(texts)]
