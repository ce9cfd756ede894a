"""A batched interface to tokenizers from transformers and from the tokenizers library."""

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

# Roles whose tokens the published category tables count as special. The role cls is not among them.
_SPECIAL_ROLES = ("bos", "eos", "pad", "unk", "sep", "mask")
_WORD = re.compile(r"\S+")
_SURROGATE = re.compile("[\ud800-\udfff]")
# Characters from several Unicode planes. If all of them have their code points as ids, the ids are taken to
# be Unicode code points.
_CODE_POINTS = ("a", "Z", "é", "中", "😀")
_ROUND_TRIP_MEMBERS = ("entries", "special_ids", "decode_many", "encode_many")

# A tokenizer is compared with its backend on a sample: both decode about _COMPARED_ENTRIES entries from all
# parts of the vocabulary, and encode _COMPARED_TEXTS and the decoded entries. The comparison may miss a
# Python override that affects fewer than one in 256 entries.
_COMPARED_ENTRIES = 256
_COMPARED_TEXTS = (
    "The river is COLD in winter, isn't it?",
    "  two  spaces,\ttab\nand line ",
    "42.50 for two tickets!",
    "Über café naïve \u201cquoted\u201d",
    "река зимой 東京 🙂",
    "word_with-signs@example.org/a?b=c",
)
# Errors raised by tokenizers that need more than a text, such as the positions of words on a page.
_INPUT_ERRORS = (AssertionError, AttributeError, LookupError, NotImplementedError, TypeError, ValueError)


class HuggingFaceTokenizer:
    """A batched interface to a tokenizer.

    Texts go through the tokenizer's Rust backend, which is fast. Some tokenizer classes override in Python
    what their backend does, so the results of tokenizer and backend are first compared on a sample. If the
    results differ, or if there is no backend, the tokenizer itself is called for one text at a time.

    Attributes:
        rows: number of rows in the model's embedding matrix; None if it is unknown or unlimited.
    """

    def __init__(self, tokenizer: Any, *, shared: bool = True, rows: int | None = None) -> None:
        """Wrap a tokenizer from transformers or from the tokenizers library.

        Args:
            tokenizer: the tokenizer.
            shared: whether other code uses the tokenizer too, so that its backend must be copied before any
                change is made.
            rows: number of rows in the model's embedding matrix; None if it is unknown or unlimited.

        Raises:
            ModelError: the tokenizer has no subword vocabulary to search for sticky tokens.
        """
        self.rows = rows
        self._tokenizer = tokenizer
        self._backend: Tokenizer | None = None
        backend = _find_backend(tokenizer)
        if backend is not None:
            self._backend = copy.deepcopy(backend) if shared else backend
            # A deep copy loses the setting `encode_special_tokens`, which transformers calls
            # `split_special_tokens`, so it is set again. Padding and truncation are turned off, because the
            # user may have turned them on.
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
        self._decoding_backend: Tokenizer | None = self._backend
        if self._backend is not None:
            self._compare_with_tokenizer()

    def _compare_with_tokenizer(self) -> None:
        """Compare the Rust backend with the tokenizer on a sample.

        `_decoding_backend` is set to None if backend and tokenizer decode differently, and `_backend` is
        set to None if they encode differently. The tokenizer itself is called in place of a backend that is
        None.
        """
        ids = list(self.entries)
        step = -(-len(ids) // _COMPARED_ENTRIES)  # rounded up
        special = sorted(self.special_ids.intersection(ids))
        sampled_ids = list(dict.fromkeys([*ids[::step], *special]))
        # Pairs are decoded too, because how an entry is decoded may depend on the entry before it.
        sequences = [[token_id] for token_id in sampled_ids]
        sequences += [[first, second] for first, second in pairwise(sampled_ids)]
        decoded_by_tokenizer = self._decode_by_tokenizer(sequences)
        if self.decode_many(sequences) != decoded_by_tokenizer:
            self._decoding_backend = None
        if self._is_bare_backend:  # `_backend` is the tokenizer or a copy of it, so both encode alike
            return
        # Nothing can encode half a surrogate pair.
        encodable_texts = [text for text in decoded_by_tokenizer if not _SURROGATE.search(text)]
        texts = [*_COMPARED_TEXTS, *encodable_texts]
        try:
            with restoring_settings(self._tokenizer):
                encoded_by_tokenizer = [self._call_tokenizer(text) for text in texts]
        except _INPUT_ERRORS:
            # The tokenizer needs more than a text, such as the positions of words on a page, so the backend
            # cannot be compared with it. The backend is used, because it needs nothing but the text.
            return
        if self.encode_many(texts) != encoded_by_tokenizer:
            self._backend = None

    @property
    def normalizer(self) -> str | None:
        """The normaliser in JSON, as the tokenizers library writes it; None if it isn't known."""
        if self._backend is None:
            return None
        from tokenizers import Tokenizer, models, normalizers

        # Only a whole tokenizer can be written as JSON, so the normaliser is put into a tokenizer without a
        # vocabulary: the vocabulary of the model may be large.
        empty = Tokenizer(models.WordLevel({}, ""))
        empty.normalizer = self._backend.normalizer or normalizers.Sequence([])
        return json.dumps(json.loads(empty.to_str())["normalizer"])

    @property
    def is_fast(self) -> bool:
        """Whether the tokenizer has a Rust backend (of the tokenizers library), which can be edited."""
        return _find_backend(self._tokenizer) is not None

    @property
    def _is_bare_backend(self) -> bool:
        from tokenizers import Tokenizer

        return isinstance(self._tokenizer, Tokenizer)

    def _decode_by_tokenizer(self, ids: Sequence[Sequence[int]]) -> list[str]:
        options = {"skip_special_tokens": False}
        if not self._is_bare_backend:  # only transformers has this option
            options["clean_up_tokenization_spaces"] = False
        return [self._tokenizer.decode(list(ids_of_text), **options) for ids_of_text in ids]

    def _encode_by_tokenizer(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text, as computed by the tokenizer itself rather than by its backend.

        Raises:
            ModelError: the tokenizer has no id for part of a text, and no token for unknown text.
        """
        ids_by_text: list[list[int]] = []
        for text in texts:
            # A Python tokenizer without an entry for unknown text returns None as an id, or fails.
            try:
                ids = self._call_tokenizer(text)
            except (TypeError, ValueError):
                ids = [None]  # the error below says more
            known_ids = [token_id for token_id in ids if token_id is not None]
            if len(known_ids) < len(ids):
                raise ModelError(
                    f"the model's {type(self._tokenizer).__name__} cannot encode {shown(text)}: it has no id "
                    "for part of the text, and no token for unknown text: add such a token to its vocabulary"
                )
            ids_by_text.append(known_ids)
        return ids_by_text

    def _call_tokenizer(self, text: str) -> list[int | None]:
        return list(self._tokenizer.encode(text, add_special_tokens=False, truncation=False))

    @property
    def model_max_length(self) -> int | None:
        """The maximum input length that the tokenizer declares; None or a huge number if there is none."""
        length: int | None = getattr(self._tokenizer, "model_max_length", None)
        return length

    @cached_property
    def entries(self) -> Mapping[int, str]:
        """The tokens, keyed by id, in ascending order of id."""
        entries: dict[int, str] = {}
        for token, token_id in self._read_vocabulary().items():
            # The tokens of some Python tokenizers are bytes, which may be only a part of a character.
            text = token.decode("utf-8", "backslashreplace") if isinstance(token, bytes) else token
            entries[int(token_id)] = text
        return dict(sorted(entries.items()))

    def _read_vocabulary(self) -> Mapping[Any, Any]:
        if self._backend is not None:  # all ids come from the backend
            return self._backend.get_vocab()
        try:
            vocabulary: Mapping[Any, Any] = self._tokenizer.get_vocab()
        except NotImplementedError:  # the method is optional in transformers
            return {}
        return vocabulary

    def _require_entries(self) -> None:
        """Check that the vocabulary has entries to search for sticky tokens.

        Raises:
            ModelError: the vocabulary is empty or has only special tokens, or its ids are Unicode code
                points.
        """
        class_name = type(self._tokenizer).__name__
        if not self.entries:
            raise ModelError(
                f"the vocabulary of a {class_name} has no entries: pass a model with a vocabulary"
            )
        # Some models, such as CANINE, read Unicode code points instead of tokens. It is enough to check the
        # ids of a few characters.
        if all(self.entries.get(ord(character)) == character for character in _CODE_POINTS):
            raise ModelError(
                f"the ids of a {class_name} are Unicode code points, not a vocabulary to search for sticky "
                "tokens: pass a model with a subword vocabulary"
            )
        ordinary_ids = set(self.entries) - self.special_ids
        # `special_ids` does not contain the token with the role cls, but this token is not ordinary either.
        ordinary_ids.discard(getattr(self._tokenizer, "cls_token_id", None))
        if not ordinary_ids:
            raise ModelError("the tokenizer has only special tokens: pass a model with a vocabulary")

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Ids of the special tokens, except for the token with the role cls.

        The published category tables do not count the token with the role cls as special, nor tokens that
        transformers finds in the text as special tokens but gives no role.
        """
        by_role = {getattr(self._tokenizer, f"{role}_token_id", None) for role in _SPECIAL_ROLES}
        # The tokenizers library stores which tokens are special, but not the role of each.
        listed = getattr(self._tokenizer, "all_special_ids", None)
        others = self._added_ids(special=True) if listed is None else set(listed)
        others.discard(getattr(self._tokenizer, "cls_token_id", None))
        return frozenset(token_id for token_id in by_role | others if token_id is not None)

    @cached_property
    def marked_ids(self) -> frozenset[int]:
        """Ids of all tokens that the tokenizer marks as special, with a role or without."""
        cls_id = getattr(self._tokenizer, "cls_token_id", None)
        with_role = self.special_ids if cls_id is None else self.special_ids | {cls_id}
        return with_role | self._added_ids(special=True)

    @cached_property
    def added_ids(self) -> frozenset[int]:
        """Ids of the tokens that were added to the vocabulary as ordinary words.

        Like special tokens, they are found in a text before other entries.
        """
        return frozenset(self._added_ids(special=False) - self.marked_ids)

    def _added_ids(self, *, special: bool) -> set[int]:
        added = getattr(self._tokenizer, "added_tokens_decoder", None)
        if added is None and self._backend is not None:
            added = self._backend.get_added_tokens_decoder()
        return {token_id for token_id, token in (added or {}).items() if token.special == special}

    @cached_property
    def unknown_id(self) -> int | None:
        """Id of the token for unknown text; None if the tokenizer has no such token."""
        unknown_id = getattr(self._tokenizer, "unk_token_id", None)
        if unknown_id is not None or self._backend is None:
            return unknown_id
        # The tokenizers library has no attribute for it, but writes it into the JSON of a tokenizer.
        return find_unknown_id(json.loads(self._backend.to_str())["model"])

    @cached_property
    def fingerprint(self) -> str:
        """The sha256 of what decides how texts are encoded: the backend, or the entries without a backend."""
        if self._backend is not None:
            content = f"{self._backend.to_str()}|{self._backend.encode_special_tokens}"
        else:
            content = json.dumps([type(self._tokenizer).__name__, sorted(self.entries.items())])
        return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()

    def decode_many(self, ids: Sequence[Sequence[int]]) -> list[str]:
        if self._decoding_backend is not None:
            return self._decoding_backend.decode_batch(ids, skip_special_tokens=False)
        return self._decode_by_tokenizer(ids)

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        if self._backend is not None:
            return [encoding.ids for encoding in self._encode(self._backend, texts, offsets=False)]
        return self._encode_by_tokenizer(texts)

    def encode_with_spans(self, texts: Sequence[str]) -> list[tuple[list[int], list[tuple[int, int]] | None]]:
        """Return the ids of each text, and the character span of each id.

        A span is a pair: the index of the first character, and the index after the last character. Without a
        backend, the spans of a text are None.
        """
        if self._backend is None:
            return [(ids, None) for ids in self.encode_many(texts)]
        return [(encoding.ids, encoding.offsets) for encoding in self._encode(self._backend, texts)]

    def tokenize(self, texts: Sequence[str], prompt: str = "") -> list[TokenizedText]:
        """Return the ids of each text, grouped by word; the ids of the prompt are in the head.

        A token that covers both the end of the prompt and the start of the text counts as part of the text.
        If the tokenizer itself is called, because there is no usable backend, the character spans of tokens
        are unknown, so every token counts as a word.
        """
        prompted_texts = [prompt + text for text in texts]
        if self._backend is not None:
            encodings = self._encode(self._backend, prompted_texts)
            return [
                _split_into_words(encoding, text, len(prompt))
                for encoding, text in zip(encodings, prompted_texts, strict=True)
            ]
        # Without spans, it is unknown whether the last token of the prompt also covers the start of the text.
        # The head gets as many ids as the prompt alone has.
        head_length = len(self.encode_many([prompt])[0]) if prompt else 0
        tokenized: list[TokenizedText] = []
        for ids in self.encode_many(prompted_texts):
            words = tuple((token_id,) for token_id in ids[head_length:])
            tokenized.append(TokenizedText(tuple(ids[:head_length]), words))
        return tokenized

    @staticmethod
    def _encode(backend: Tokenizer, texts: Sequence[str], *, offsets: bool = True) -> list[Encoding]:
        try:
            encode = backend.encode_batch if offsets else backend.encode_batch_fast
            return encode(list(texts), add_special_tokens=False)
        except TypeError as error:  # the library does not say which text it cannot encode
            for text in texts:
                if _SURROGATE.search(text):
                    raise EncodingError(
                        f"the text {text[:80]!r} contains half a surrogate pair: pass valid Unicode text"
                    ) from error
            raise


@contextmanager
def restoring_settings(tokenizer: Any) -> Iterator[None]:
    """Restore the user's padding and truncation at the end of a ``with`` block.

    Calling a tokenizer changes the padding and truncation settings of its backend.
    """
    backend = _find_backend(tokenizer)
    if backend is None:
        yield
        return
    padding = backend.padding
    truncation = backend.truncation
    try:
        yield
    finally:
        if padding is None:
            backend.no_padding()
        else:
            backend.enable_padding(**padding)
        if truncation is None:
            backend.no_truncation()
        else:
            backend.enable_truncation(**truncation)


def adapt(tokenizer: Any) -> RoundTripTokenizer:
    """Return the tokenizer if it has the members of `RoundTripTokenizer`; otherwise wrap it."""
    if all(hasattr(tokenizer, member) for member in _ROUND_TRIP_MEMBERS):
        round_trip_tokenizer: RoundTripTokenizer = tokenizer
        return round_trip_tokenizer
    return HuggingFaceTokenizer(tokenizer)


def find_unknown_id(model: Mapping[str, Any]) -> int | None:
    """Return the id of the token for unknown text; None if there is no such token.

    Args:
        model: the ``model`` part of a tokenizer.json.
    """
    vocabulary: Any = model["vocab"]
    # A Unigram model, whose vocabulary is a list, names the token by its id, the other kinds by its string.
    is_unigram = isinstance(vocabulary, list)
    unknown_id: int | None = model.get("unk_id") if is_unigram else vocabulary.get(model.get("unk_token"))
    return unknown_id


def vocabulary_size(tokenizer: Any) -> int | None:
    """Return how many entries a tokenizer has; None if the number cannot be determined cheaply."""
    backend = _find_backend(tokenizer)
    if backend is not None:
        return backend.get_vocab_size()
    return len(tokenizer) if hasattr(tokenizer, "__len__") else None


def _split_into_words(encoding: Encoding, text: str, prompt_length: int) -> TokenizedText:
    """Split the ids of a prompt and a text into the ids of the prompt (the head) and the ids of each word.

    For example, with the prompt ``A note ``, the tokens ``A``, `` note``, `` river``, ``bed`` and `` dry``
    give the head (``A``, `` note``) and the words (`` river``, ``bed``) and (`` dry``). A token that consists
    only of whitespace belongs to the word before the token or, at the start of the text, to the first word.
    """
    # Index of the first character of each word that no token has begun yet.
    remaining_starts = {match.start() for match in _WORD.finditer(text, prompt_length)}
    head: list[int] = []
    words: list[list[int]] = []
    has_content = False  # whether any earlier token of the text contains more than whitespace
    for token_id, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
        is_in_prompt = prompt_length > 0 and end <= prompt_length
        if is_in_prompt and not words:
            head.append(token_id)
            continue
        # A token may include the whitespace before its word.
        token_text = text[start:end]
        content_start = start + len(token_text) - len(token_text.lstrip())
        begins_word = content_start in remaining_starts and end > start
        # If all earlier tokens of the text are whitespace, this token belongs to the first word too.
        if not words or (begins_word and has_content):
            words.append([])
        if begins_word:
            # Several tokens may cover one character, such as an emoji. Only the first of them begins a word.
            remaining_starts.discard(content_start)
        if token_text.strip():  # false for whitespace, and for tokens with an empty span
            has_content = True
        words[-1].append(token_id)
    return TokenizedText(tuple(head), tuple(tuple(word) for word in words))


def _find_backend(tokenizer: Any) -> Tokenizer | None:
    from tokenizers import Tokenizer

    if isinstance(tokenizer, Tokenizer):
        return tokenizer
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return backend if isinstance(backend, Tokenizer) else None
