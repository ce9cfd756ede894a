"""The vocabulary of a model behind an endpoint: of a tokenizer, of tiktoken, or a list of candidates."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import FunctionType
from typing import Any

from stickytoken.data import load_sentences
from stickytoken.encoders._tokenizer import adapted
from stickytoken.encoders.endpoint import names_endpoint
from stickytoken.encoders.loading.resolution import load_tokenizer
from stickytoken.errors import InputError, ModelError, require_package
from stickytoken.validation import list_of
from stickytoken.vocabulary import RoundTripTokenizer

_TIKTOKEN = "tiktoken:"
_TIKTOKEN_SUFFIX = ".tiktoken"
_LOADER = "load_tiktoken_bpe"
# English text has about so many bytes per token.
_BYTES_PER_TOKEN = 4
_WORD = re.compile(r"[A-Za-z]+")
# Ordinary words beside the candidates: what is normal for the model is learned from them.
_ORDINARY_WORDS = 2000


def vocabulary_of(tokenizer: Any, candidates: str | Path | Sequence[str] | None) -> RoundTripTokenizer | None:
    from stickytoken.data import tables

    if tokenizer is not None and candidates is not None:
        raise InputError(
            "a tokenizer and candidates were passed: pass candidates only if there is no tokenizer"
        )
    if candidates is not None:
        if isinstance(candidates, (str, Path)):
            path = Path(candidates).expanduser()
            lines = [line.rstrip("\r") for line in tables.decode(tables.read_bytes(path), path).split("\n")]
            candidates = [line for line in lines if line.strip()]
            if not candidates:
                raise InputError(f"{path} has no candidates: write one string to examine per line")
        vocabulary = CandidateVocabulary(list_of("strings", "candidates", candidates))
        if not vocabulary.candidate_ids:
            raise InputError("the list of candidates is empty: name at least one string to examine")
        return vocabulary
    if tokenizer is None:
        return None
    return load_vocabulary(tokenizer) if isinstance(tokenizer, (str, Path)) else adapted(tokenizer)


def names_tiktoken(source: str | Path) -> bool:
    """Whether the source is a tokenizer of tiktoken, by name or in a file, and so no model."""
    return str(source).startswith(_TIKTOKEN) or Path(source).suffix == _TIKTOKEN_SUFFIX


def load_vocabulary(source: str | Path, **options: Any) -> RoundTripTokenizer:
    text = str(source)
    if text.startswith(_TIKTOKEN):
        return _Tiktoken(text.removeprefix(_TIKTOKEN), None)
    path = Path(text).expanduser()
    if path.suffix == _TIKTOKEN_SUFFIX:
        if not path.is_file():
            raise ModelError(f"no file {text!r}: pass the folder or name of a tokenizer, or tiktoken:NAME")
        return _Tiktoken(path.stem, path)
    if names_endpoint(text):
        raise InputError(f"{text} is behind an endpoint, which hides its vocabulary: name its tokenizer")
    return load_tokenizer(source, **options)


class CandidateVocabulary:
    """Strings to examine if the tokenizer is unpublished, and ordinary words to compare them with."""

    estimates = True  # the tokens of other texts, in which no copies can be counted

    def __init__(self, candidates: Sequence[str]) -> None:
        chosen = dict.fromkeys(text for text in candidates if text.strip())
        # Without candidates, there is nothing to compare: no command needs the vocabulary.
        texts = load_sentences().texts if chosen else ()
        words = dict.fromkeys(word for text in texts for word in _WORD.findall(text))
        ordinary = [word for word in words if word not in chosen][:_ORDINARY_WORDS]
        self.entries: Mapping[int, str] = dict(enumerate([*chosen, *ordinary]))
        self.special_ids: frozenset[int] = frozenset()
        self.candidate_ids = tuple(range(len(chosen)))
        self._ids = {text: token_id for token_id, text in self.entries.items()}

    @cached_property
    def fingerprint(self) -> str:
        return hashlib.sha256("\0".join(self._ids).encode("utf-8", "surrogatepass")).hexdigest()

    def decode_many(self, ids: Sequence[Sequence[int]]) -> list[str]:
        return ["".join(self.entries.get(token_id, "\ufffd") for token_id in row) for row in ids]

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        unknown = len(self.entries)
        return [
            [self._ids[text]]
            if text in self._ids
            else [unknown] * -(-len(text.encode("utf-8", "surrogatepass")) // _BYTES_PER_TOKEN)
            for text in texts
        ]


class _Tiktoken:
    def __init__(self, name: str, path: Path | None) -> None:
        require_package("tiktoken", f"the encoding {name!r}", "endpoint")
        import tiktoken
        from tiktoken.registry import list_encoding_names

        if name not in (known := list_encoding_names()):
            raise ModelError(f"tiktoken has no encoding {name!r}: use one of {', '.join(sorted(known))}")
        try:
            self._encoding: Any = _of_file(name, path) if path else tiktoken.get_encoding(name)
        except (OSError, ValueError) as error:  # requests raises children of OSError
            if _is_one_file(name):
                advice = f"without a network, pass its file, {name}{_TIKTOKEN_SUFFIX}"
            else:
                advice = "it needs a network once, and is then kept in the folder TIKTOKEN_CACHE_DIR"
            raise ModelError(f"tiktoken cannot load {name!r} ({type(error).__name__}): {advice}") from error

    @cached_property
    def entries(self) -> Mapping[int, str]:
        found = {}
        for token_id in range(self._encoding.n_vocab):
            try:
                raw: bytes = self._encoding.decode_single_token_bytes(token_id)
            except KeyError:  # ids between the last token and the special ones
                continue
            found[token_id] = raw.decode("utf-8", "backslashreplace")
        return found

    @cached_property
    def special_ids(self) -> frozenset[int]:
        return frozenset(map(self._encoding.encode_single_token, self._encoding.special_tokens_set))

    @cached_property
    def fingerprint(self) -> str:
        whole = hashlib.sha256(self._encoding.name.encode())
        for token_id, text in self.entries.items():
            whole.update(f"{token_id}\0{text}\0".encode("utf-8", "surrogatepass"))
        return whole.hexdigest()

    def decode_many(self, ids: Sequence[Sequence[int]]) -> list[str]:
        return [self._encoding.decode(list(row)) for row in ids]

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        return [list(row) for row in self._encoding.encode_ordinary_batch(list(texts), num_threads=1)]


def _is_one_file(name: str) -> bool:
    from tiktoken_ext import openai_public

    constructor = openai_public.ENCODING_CONSTRUCTORS.get(name)
    return constructor is not None and _LOADER in constructor.__code__.co_names


def _of_file(name: str, path: Path) -> Any:
    import tiktoken
    from tiktoken_ext import openai_public

    if not _is_one_file(name):
        raise ModelError(
            f"{name!r} is not an encoding that is one file: use {_TIKTOKEN}{name} with a network, which "
            "keeps what it needs in the folder TIKTOKEN_CACHE_DIR"
        )
    constructor = openai_public.ENCODING_CONSTRUCTORS[name]
    try:
        lines = [line.split() for line in path.read_bytes().splitlines() if line]
        ranks = {base64.b64decode(token, validate=True): int(rank) for token, rank in lines}
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} is not a file of tiktoken ({error}): download it again") from error
    if any(bytes([byte]) not in ranks for byte in range(256)):
        raise ModelError(f"{path} is not the file of {name} (it lacks single bytes): download it again")
    # The constructor calls a function of its module for the file; it gets the file at hand from another one.
    around = {**constructor.__globals__, _LOADER: lambda *_, **__: ranks}
    definition = FunctionType(constructor.__code__, around, name)()
    try:
        return tiktoken.Encoding(**{key: definition[key] for key in definition if key != "explicit_n_vocab"})
    except (ValueError, KeyError) as error:
        raise ModelError(f"{path} is not the file of {name} ({error}): download it again") from error
