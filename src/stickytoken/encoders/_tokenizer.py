"""One batched interface to tokenizers of all kinds."""

from __future__ import annotations

import copy
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from stickytoken.errors import EncodingError, ModelError
from stickytoken.insertion import TokenizedText
from stickytoken.validation import shown
from stickytoken.vocabulary import RoundTripTokenizer

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

# The published category tables count these roles, not cls, as special.
_SPECIAL_ROLES = ("bos", "eos", "pad", "unk", "sep", "mask")
_WORD = re.compile(r"\S+")
_SURROGATE = re.compile("[\ud800-\udfff]")
# Characters of several planes: a vocabulary that has all of them at their own numbers is Unicode.
_CODE_POINTS = ("a", "Z", "é", "中", "😀")
_OWN_TOKENIZER = ("entries", "special_ids", "decode_many", "encode_many")


# What decides whether a pipeline alone does what its tokenizer does: this many entries, spread over the
# vocabulary, are decoded in both ways, and these texts and those entries are encoded in both ways. An
# override in Python that changes only rarer entries than one in 256 is not seen.
_COMPARED_ENTRIES = 256
_COMPARED_TEXTS = (
    "The river is COLD in winter, isn't it?",
    "  two  spaces,\ttab\nand line ",
    "42.50 for two tickets!",
    "Über café naïve \u201cquoted\u201d",
    "река зимой 東京 🙂",
    "word_with-signs@example.org/a?b=c",
)
# What tokenizers raise that need more than a text, such as the places of words on a page.
_REFUSALS = (AssertionError, AttributeError, LookupError, NotImplementedError, TypeError, ValueError)


class HuggingFaceTokenizer:
    """One batched interface to a tokenizer.

    The Rust pipeline does the work, in a copy if others use it too. Some classes change in Python what their
    pipeline does. So results of the pipeline are first compared with those of the tokenizer on a sample, and
    where they differ, the tokenizer is called text by text, as one is that is written in Python.
    """

    def __init__(self, tokenizer: Any, *, shared: bool = True, rows: int | None = None) -> None:
        self.rows = rows  # of the model's embedding matrix; None if they are unknown or unlimited
        self._tokenizer = tokenizer
        self._backend: Tokenizer | None = None
        if (backend := _backend_of(tokenizer)) is not None:
            self._backend = copy.deepcopy(backend) if shared else backend
            # A copy loses the first; a caller may have changed the others.
            self._backend.encode_special_tokens = getattr(
                tokenizer, "split_special_tokens", backend.encode_special_tokens
            )
            self._backend.no_padding()
            self._backend.no_truncation()
        if self._backend is None and not hasattr(tokenizer, "convert_ids_to_tokens"):
            raise ModelError(
                f"the vocabulary of a {type(tokenizer).__name__} contains words, not tokens: pass a model "
                "with a subword tokenizer"
            )
        self._require_entries()
        self._decoder: Tokenizer | None = self._backend
        if self._backend is not None:
            self._compare_with_own()

    def _compare_with_own(self) -> None:
        """Do without the pipeline for what the tokenizer does otherwise, on a sample of entries and texts."""
        ids = list(self.entries)
        every = -(-len(ids) // _COMPARED_ENTRIES)
        added = sorted(self.special_ids.intersection(ids))
        rows = [[token_id] for token_id in dict.fromkeys((*ids[::every], *added))]
        rows += [[*first, *second] for first, second in pairwise(rows)]
        decoded = self.decode_many(rows)
        if decoded != self._decoded_by_own(rows):
            self._decoder = None
            decoded = self._decoded_by_own(rows)
        if self._is_bare:  # its encodings are those of the copy
            return
        texts = [*_COMPARED_TEXTS, *(text for text in decoded if not _SURROGATE.search(text))]
        try:
            with self.settings_kept():
                own = self._encoded_by_own(texts)
        except _REFUSALS:  # nothing to compare with
            return
        if self.encode_many(texts) != own:
            self._backend = None

    @property
    def is_fast(self) -> bool:
        """Whether the tokenizer has a pipeline of the tokenizers library, which can be edited."""
        return _backend_of(self._tokenizer) is not None

    @property
    def _is_bare(self) -> bool:
        """Whether the tokenizer is a pipeline without a class of transformers around it."""
        from tokenizers import Tokenizer

        return isinstance(self._tokenizer, Tokenizer)

    def _decoded_by_own(self, ids: Sequence[Sequence[int]]) -> list[str]:
        options = {"skip_special_tokens": False}
        if not self._is_bare:
            options["clean_up_tokenization_spaces"] = False
        return [self._tokenizer.decode(list(row), **options) for row in ids]

    def _encoded_by_own(self, texts: Sequence[str]) -> list[list[int]]:
        rows = []
        for text in texts:
            # A Python tokenizer without an entry for unknown pieces gives None as their id, or fails.
            try:
                ids = list(self._tokenizer.encode(text, add_special_tokens=False, truncation=False))
            except (TypeError, ValueError):
                ids = [None]
            if None in ids:
                name = type(self._tokenizer).__name__
                raise ModelError(
                    f"the model's {name} cannot encode {shown(text)}: it has no id for a part of it, and no "
                    "entry for unknown text: add that entry to its vocabulary"
                )
            rows.append(ids)
        return rows

    @contextmanager
    def settings_kept(self) -> Iterator[None]:
        backend = _backend_of(self._tokenizer)
        if backend is None:
            yield
            return
        padding, truncation = backend.padding, backend.truncation
        try:
            yield
        finally:
            backend.no_padding() if padding is None else backend.enable_padding(**padding)
            backend.no_truncation() if truncation is None else backend.enable_truncation(**truncation)

    @cached_property
    def entries(self) -> Mapping[int, str]:
        vocabulary = self._vocabulary()
        return {
            int(token_id): token.decode("utf-8", "backslashreplace") if isinstance(token, bytes) else token
            for token, token_id in sorted(vocabulary.items(), key=lambda entry: int(entry[1]))
        }

    def _vocabulary(self) -> Mapping[Any, Any]:
        if self._backend is not None:
            return self._backend.get_vocab()
        try:
            vocabulary: Mapping[Any, Any] = self._tokenizer.get_vocab()
        except NotImplementedError:  # the method is optional in transformers
            return {}
        return vocabulary

    def _require_entries(self) -> None:
        """Refuse a vocabulary without entries to search, before anything walks through it."""
        kind = type(self._tokenizer).__name__
        if not self.entries:
            raise ModelError(f"the vocabulary of a {kind} has no entries: pass a model with a vocabulary")
        # CANINE: the vocabulary of its tokenizer is Unicode itself.
        if all(self.entries.get(ord(character)) == character for character in _CODE_POINTS):
            raise ModelError(
                f"the ids of a {kind} are Unicode code points, which are no vocabulary to search for sticky "
                "tokens: pass a model with a vocabulary of pieces"
            )
        if not set(self.entries) - self.special_ids - {getattr(self._tokenizer, "cls_token_id", None)}:
            raise ModelError("the tokenizer has only special tokens: pass a model with a vocabulary")

    @cached_property
    def special_ids(self) -> frozenset[int]:
        named = {getattr(self._tokenizer, f"{role}_token_id", None) for role in _SPECIAL_ROLES}
        if hasattr(self._tokenizer, "all_special_ids"):
            others = set(self._tokenizer.all_special_ids)
        else:  # a bare pipeline marks its special tokens, without roles
            added = self._tokenizer.get_added_tokens_decoder()
            others = {token_id for token_id, token in added.items() if token.special}
        others.discard(getattr(self._tokenizer, "cls_token_id", None))
        return frozenset(token_id for token_id in named | others if token_id is not None)

    @cached_property
    def unknown_id(self) -> int | None:
        found = getattr(self._tokenizer, "unk_token_id", None)
        if found is not None or self._backend is None:
            return found
        model = json.loads(self._backend.to_str())["model"]  # a bare pipeline has no roles
        token = model.get("unk_token")
        return model.get("unk_id") if token is None else self._backend.token_to_id(token)

    @cached_property
    def fingerprint(self) -> str:
        if self._backend is not None:
            content = f"{self._backend.to_str()}|{self._backend.encode_special_tokens}"
        else:
            content = json.dumps([type(self._tokenizer).__name__, sorted(self.entries.items())])
        return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()

    def decode_many(self, ids: Sequence[Sequence[int]]) -> list[str]:
        if self._decoder is not None:
            return self._decoder.decode_batch(ids, skip_special_tokens=False)
        return self._decoded_by_own(ids)

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        if self._backend is not None:
            return [encoding.ids for encoding in self._encodings(self._backend, texts, offsets=False)]
        return self._encoded_by_own(texts)

    def encode_with_spans(self, texts: Sequence[str]) -> list[tuple[list[int], list[tuple[int, int]] | None]]:
        if self._backend is None:
            return [(ids, None) for ids in self.encode_many(texts)]
        return [(encoding.ids, encoding.offsets) for encoding in self._encodings(self._backend, texts)]

    def tokenize(self, texts: Sequence[str], prompt: str = "") -> list[TokenizedText]:
        # A token with both the end of the prompt and the start of the text counts as text. Without offsets,
        # every token counts as a word.
        if self._backend is None:
            heads = len(self.encode_many([prompt])[0]) if prompt else 0
            return [
                TokenizedText(tuple(ids[:heads]), tuple((token_id,) for token_id in ids[heads:]))
                for ids in self.encode_many([prompt + text for text in texts])
            ]
        whole = [prompt + text for text in texts]
        pairs = zip(self._encodings(self._backend, whole), whole, strict=True)
        return [_cut(encoding, text, len(prompt)) for encoding, text in pairs]

    @staticmethod
    def _encodings(backend: Tokenizer, texts: Sequence[str], *, offsets: bool = True) -> list[Encoding]:
        try:
            encode = backend.encode_batch if offsets else backend.encode_batch_fast
            return encode(list(texts), add_special_tokens=False)
        except TypeError as error:
            broken = next((text for text in texts if _SURROGATE.search(text)), None)
            if broken is None:
                raise
            raise EncodingError(
                f"the text {broken[:80]!r} contains half a surrogate pair: pass valid Unicode text"
            ) from error


def adapted(tokenizer: Any) -> RoundTripTokenizer:
    own: RoundTripTokenizer = tokenizer
    complete = all(hasattr(tokenizer, part) for part in _OWN_TOKENIZER)
    return own if complete else HuggingFaceTokenizer(tokenizer)


def vocabulary_size(tokenizer: Any) -> int | None:
    backend = _backend_of(tokenizer)
    if backend is not None:
        return backend.get_vocab_size()
    return len(tokenizer) if hasattr(tokenizer, "__len__") else None


def _cut(encoding: Encoding, text: str, prompt_length: int) -> TokenizedText:
    starts = {match.start() for match in _WORD.finditer(text, prompt_length)}
    head: list[int] = []
    words: list[list[int]] = []
    begun = False
    for token_id, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
        if end <= prompt_length and not words and prompt_length:
            head.append(token_id)
            continue
        # A token may include the whitespace before its word; blank tokens belong to a word.
        spaces = len(text[start:end]) - len(text[start:end].lstrip())
        begins = start + spaces in starts and end > start
        if not words or (begins and begun):
            words.append([])
        if begins:
            starts.discard(start + spaces)
        begun = begun or bool(text[start:end].strip())  # blanks may have spans of no characters
        words[-1].append(token_id)
    return TokenizedText(tuple(head), tuple(tuple(word) for word in words))


def _backend_of(tokenizer: Any) -> Tokenizer | None:
    from tokenizers import Tokenizer

    backend = tokenizer if isinstance(tokenizer, Tokenizer) else getattr(tokenizer, "backend_tokenizer", None)
    return backend if isinstance(backend, Tokenizer) else None
