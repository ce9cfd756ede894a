"""One face for the tokenizers of transformers and of the tokenizers library."""

from __future__ import annotations

import copy
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from stickytoken.errors import ModelError
from stickytoken.insertion import TokenizedText

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

# The published category tables count these roles, not cls, as special.
_SPECIAL_ROLES = ("bos", "eos", "pad", "unk", "sep", "mask")
_WORD = re.compile(r"\S+")


class HuggingFaceTokenizer:
    """Batched access to a tokenizer, without padding, truncation or clean-up.

    Works on a copy of the Rust pipeline where there is one; a tokenizer written in
    Python is called text by text.

    Args:
        tokenizer: a transformers tokenizer or a `tokenizers.Tokenizer`.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._backend = _own_backend(tokenizer)

    @cached_property
    def entries(self) -> Mapping[int, str]:
        """Vocabulary strings by id, ids ascending."""
        vocabulary = self._backend.get_vocab() if self._backend else self._tokenizer.get_vocab()
        if not vocabulary:
            raise ModelError("the tokenizer has an empty vocabulary")
        by_id = {int(token_id): _readable(token) for token, token_id in vocabulary.items()}
        return dict(sorted(by_id.items()))

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Ids with a special role; the cls role alone does not make an id special."""
        named = {
            token_id
            for role in _SPECIAL_ROLES
            if (token_id := getattr(self._tokenizer, f"{role}_token_id", None)) is not None
        }
        others = set(getattr(self._tokenizer, "all_special_ids", ()))
        return frozenset(named | (others - {getattr(self._tokenizer, "cls_token_id", None)}))

    @cached_property
    def fingerprint(self) -> str:
        """sha256 over the pipeline and the vocabulary."""
        if self._backend is not None:
            content = self._backend.to_str()
        else:
            content = json.dumps([type(self._tokenizer).__name__, sorted(self.entries.items())])
        return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()

    def decode_many(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """Decode each list of ids, special tokens kept, nothing cleaned up."""
        if self._backend is not None:
            return self._backend.decode_batch([list(row) for row in ids], skip_special_tokens=False)
        return [
            self._tokenizer.decode(list(row), skip_special_tokens=False, clean_up_tokenization_spaces=False)
            for row in ids
        ]

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode each text without special tokens, padding or truncation."""
        if self._backend is not None:
            return [encoding.ids for encoding in self._encodings(texts)]
        return [self._tokenizer.encode(text, add_special_tokens=False, truncation=False) for text in texts]

    def tokenize(self, texts: Sequence[str], prompt: str = "") -> list[TokenizedText]:
        """Content ids of prompt + text, cut at the words of the text.

        A token that holds both the end of the prompt and the start of the text counts
        as text. A tokenizer without offsets is cut at every token.
        """
        if self._backend is None:
            heads = len(self.encode_many([prompt])[0]) if prompt else 0
            return [
                TokenizedText(tuple(ids[:heads]), tuple((token_id,) for token_id in ids[heads:]))
                for ids in self.encode_many([prompt + text for text in texts])
            ]
        encodings = self._encodings([prompt + text for text in texts])
        return [
            _cut(encoding, prompt + text, len(prompt))
            for encoding, text in zip(encodings, texts, strict=True)
        ]

    def _encodings(self, texts: Sequence[str]) -> list[Encoding]:
        if self._backend is None:
            raise ModelError("this tokenizer has no offsets")
        return self._backend.encode_batch(list(texts), add_special_tokens=False)


def _cut(encoding: Encoding, text: str, prompt_length: int) -> TokenizedText:
    """Split the ids where a token begins a whitespace-separated word."""
    starts = {match.start() for match in _WORD.finditer(text, prompt_length)}
    head: list[int] = []
    words: list[list[int]] = []
    for token_id, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
        if end <= prompt_length and not words and prompt_length:
            head.append(token_id)
            continue
        # A token may carry the white space before its word.
        spaces = len(text[start:end]) - len(text[start:end].lstrip())
        if not words or (start + spaces in starts and end > start):
            starts.discard(start + spaces)
            words.append([])
        words[-1].append(token_id)
    return TokenizedText(tuple(head), tuple(tuple(word) for word in words))


def _own_backend(tokenizer: Any) -> Tokenizer | None:
    from tokenizers import Tokenizer

    backend = tokenizer if isinstance(tokenizer, Tokenizer) else getattr(tokenizer, "backend_tokenizer", None)
    if not isinstance(backend, Tokenizer):
        return None
    own: Tokenizer = copy.deepcopy(backend)
    own.no_padding()
    own.no_truncation()
    return own


def _readable(token: str | bytes) -> str:
    return token.decode("utf-8", "backslashreplace") if isinstance(token, bytes) else token
