"""Get the vocabulary of a model behind an endpoint from a tokenizer, tiktoken or a list of candidates."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from stickytoken.data import load_sentences
from stickytoken.encoders.endpoint import names_endpoint
from stickytoken.encoders.files.tokenizer_loading import load_tokenizer
from stickytoken.encoders.inputs.tokenizer import adapt
from stickytoken.errors import InputError, ModelError, require_package
from stickytoken.validation import file_path, list_of
from stickytoken.vocabulary import RoundTripTokenizer

_TIKTOKEN = "tiktoken:"
_TIKTOKEN_SUFFIX = ".tiktoken"
_OFFLINE = (
    "To use tiktoken offline, set the environment variable TIKTOKEN_CACHE_DIR to a folder, load the encoding "
    "once on a machine with a network, and copy that folder to the machine without one"
)
# Approximate number of bytes per token in English text.
_BYTES_PER_TOKEN = 4
_WORD = re.compile(r"[A-Za-z]+")
# Number of ordinary words added to the candidates, whose measurements show what is normal for the model.
_ORDINARY_WORD_COUNT = 2000


def vocabulary_of(tokenizer: Any, candidates: str | Path | Sequence[str] | None) -> RoundTripTokenizer | None:
    """Return the vocabulary of a model whose tokenizer must be passed separately.

    Args:
        tokenizer: a tokenizer object, or the name or folder of a tokenizer; None if it is unpublished.
        candidates: if the tokenizer is unpublished, the strings to examine, or a file with one string per
            line.

    Returns:
        The vocabulary; None if neither argument is passed.

    Raises:
        InputError: both arguments are passed, or the list of candidates is empty.
        ModelError: the tokenizer cannot be loaded.
    """
    if tokenizer is not None and candidates is not None:
        raise InputError(
            "a tokenizer and candidates were passed: pass candidates only if there is no tokenizer"
        )
    if candidates is not None:
        if isinstance(candidates, (str, Path)):  # the name of a file
            candidates = _read_candidates(file_path("candidates", candidates))
        vocabulary = CandidateVocabulary(list_of("strings", "candidates", candidates))
        if not vocabulary.candidate_ids:
            raise InputError("the list of candidates is empty: name at least one string to examine")
        return vocabulary
    if tokenizer is None:
        return None
    if isinstance(tokenizer, (str, Path)):
        return load_vocabulary(tokenizer)
    return adapt(tokenizer)


def _read_candidates(path: Path) -> list[str]:
    from stickytoken.data import tables

    candidates = [line.rstrip("\r") for line in tables.read_lines(path) if line.strip()]
    if not candidates:
        raise InputError(f"{path} has no candidates: write one string to examine per line")
    return candidates


def names_tiktoken(source: str | Path) -> bool:
    """Whether the source names a tokenizer of tiktoken, rather than a model."""
    return str(source).startswith(_TIKTOKEN) or Path(source).suffix == _TIKTOKEN_SUFFIX


def load_vocabulary(source: str | Path, **options: Any) -> RoundTripTokenizer:
    """Load a tokenizer.

    Args:
        source: ``tiktoken:NAME``, or the folder or hub name of a transformers tokenizer.
        **options: options of `load_tokenizer`; tiktoken ignores them.

    Raises:
        ModelError: the tokenizer does not exist or cannot be reached.
        InputError: the source is not a tokenizer.
    """
    name = str(source)
    if name.startswith(_TIKTOKEN):
        return _Tiktoken(name.removeprefix(_TIKTOKEN))
    if Path(name).suffix == _TIKTOKEN_SUFFIX:
        encoding = Path(name).stem
        raise InputError(
            f"{name!r} is a tiktoken file, which contains only part of an encoding: pass "
            f"{_TIKTOKEN}{encoding}. {_OFFLINE}"
        )
    if names_endpoint(name):
        raise InputError(f"{name} is behind an endpoint, which hides its vocabulary: name its tokenizer")
    return load_tokenizer(source, **options)


class CandidateVocabulary:
    """A substitute for an unpublished tokenizer: strings to examine, and ordinary words for comparison.

    For any other text, the number of tokens is only estimated, so copies of a token cannot be counted.

    Attributes:
        entries: the candidates, followed by the ordinary words, keyed by id.
        candidate_ids: ids of the candidates.
    """

    def __init__(self, candidates: Sequence[str]) -> None:
        distinct_candidates = list(dict.fromkeys(text for text in candidates if text.strip()))
        # Without candidates, there is nothing to compare, so no ordinary words are loaded.
        words = _find_ordinary_words(set(distinct_candidates)) if distinct_candidates else []
        self.entries: Mapping[int, str] = dict(enumerate(distinct_candidates + words))
        self.special_ids: frozenset[int] = frozenset()
        self.candidate_ids = tuple(range(len(distinct_candidates)))
        self._ids = {text: token_id for token_id, text in self.entries.items()}

    @cached_property
    def fingerprint(self) -> str:
        # The number of candidates, too, because random tokens are drawn from the other entries.
        parts = [str(len(self.candidate_ids)), *self._ids]
        return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()

    def decode_many(self, ids: Sequence[Sequence[int]]) -> list[str]:
        texts: list[str] = []
        for ids_of_text in ids:
            strings = [self.entries.get(token_id, "\ufffd") for token_id in ids_of_text]
            texts.append("".join(strings))
        return texts

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text.

        An entry is encoded as its id. Any other text is encoded as copies of an unknown id, one for every
        four bytes, rounded up.
        """
        unknown_id = len(self.entries)
        ids_by_text: list[list[int]] = []
        for text in texts:
            if text in self._ids:
                ids_by_text.append([self._ids[text]])
            else:
                byte_count = len(text.encode("utf-8", "surrogatepass"))
                ids_by_text.append([unknown_id] * math.ceil(byte_count / _BYTES_PER_TOKEN))
        return ids_by_text


NO_VOCABULARY = CandidateVocabulary(candidates=())
"""For whoever only wants vectors of texts: a model behind an endpoint is refused without any vocabulary."""


def _find_ordinary_words(excluded: Collection[str]) -> list[str]:
    words: dict[str, None] = {}  # a set that keeps the order
    for text in load_sentences().texts:
        words.update(dict.fromkeys(_WORD.findall(text)))
    return [word for word in words if word not in excluded][:_ORDINARY_WORD_COUNT]


class _Tiktoken:
    """An encoding of tiktoken."""

    def __init__(self, name: str) -> None:
        require_package("tiktoken", f"the encoding {name!r}", "endpoint")
        import tiktoken
        from tiktoken.registry import list_encoding_names

        names = list_encoding_names()
        if name not in names:
            raise ModelError(f"tiktoken has no encoding {name!r}: use one of {', '.join(sorted(names))}")
        try:
            self._encoding = tiktoken.get_encoding(name)
        except (OSError, ValueError) as error:  # network errors of requests are subclasses of OSError
            raise ModelError(
                f"tiktoken cannot load {name!r} ({type(error).__name__}): check the network. {_OFFLINE}"
            ) from error

    @cached_property
    def entries(self) -> Mapping[int, str]:
        entries: dict[int, str] = {}
        for token_id in range(self._encoding.n_vocab):
            try:
                token = self._encoding.decode_single_token_bytes(token_id)
            except KeyError:  # some ids between the ordinary and the special tokens are unused
                continue
            # A token may be a part of a character.
            entries[token_id] = token.decode("utf-8", "backslashreplace")
        return entries

    @cached_property
    def special_ids(self) -> frozenset[int]:
        return frozenset(map(self._encoding.encode_single_token, self._encoding.special_tokens_set))

    @cached_property
    def fingerprint(self) -> str:
        digest = hashlib.sha256(self._encoding.name.encode())
        for token_id, text in self.entries.items():
            digest.update(f"{token_id}\0{text}\0".encode("utf-8", "surrogatepass"))
        return digest.hexdigest()

    @property
    def normalizer(self) -> str:
        # A normaliser that does nothing, as the tokenizers library writes it.
        return '{"type": "Sequence", "normalizers": []}'

    def decode_many(self, ids: Sequence[Sequence[int]]) -> list[str]:
        return [self._encoding.decode(list(row)) for row in ids]

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        return [list(row) for row in self._encoding.encode_ordinary_batch(list(texts), num_threads=1)]
