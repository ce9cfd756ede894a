"""Prompts as token ids: the part that all sentences share, and the content of a sentence."""

from __future__ import annotations

import copy
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from typing import Any, NamedTuple

from stickytoken.encoders.prompted.prompts import PLACEHOLDER, Prompt, reachable_text
from stickytoken.encoders.tokenizer import HuggingFaceTokenizer
from stickytoken.errors import EncodingError, InputError, ModelError
from stickytoken.insertion import TokenizedText

Ids = tuple[int, ...]
Span = tuple[int, int]

# Sentences that begin and end differently, so that their prompts share only what belongs to the template.
# They begin and end with punctuation that a vocabulary may merge with that of the template.
_SAMPLES = (
    "a.",
    "The dog'",
    "7 I.",
    "we'",
    "9 ß.",
    *(f"{sign}a{sign}." for sign in string.punctuation if sign != '"'),
)
_WORDS = ("a", "The dog", "7 I", "we ß", "No 3")
_UNQUOTED_SAMPLES = (*_WORDS, *(f"{sign}a{sign}" for sign in (*string.punctuation, "。", "…")))


@dataclass(frozen=True)
class PromptIds:
    """A template as token ids.

    Attributes:
        before: special tokens and the template before the (first) sentence.
        between: template between the two copies of an echo; None without an echo.
        after: template after the (last) sentence.
        place: index of the placeholder, counted from the end if negative; None without one.
    """

    before: Ids
    between: Ids | None
    after: Ids
    place: int | None

    def fill(self, content: Ids) -> Ids:
        """Return the whole prompt around the ids of a sentence."""
        if self.between is None:
            return self.before + content + self.after
        return self.before + content + self.between + content + self.after

    def length(self, content: int) -> int:
        """Return the length of the prompt around ``content`` tokens."""
        fixed = len(self.before) + len(self.after)
        return fixed + content if self.between is None else fixed + len(self.between) + 2 * content

    def places(self, content: int) -> tuple[range, ...]:
        """Return the indices of each copy of the sentence."""
        first = len(self.before)
        if self.between is None:
            return (range(first, first + content),)
        second = first + content + len(self.between)
        return range(first, first + content), range(second, second + content)

    def pooled(self, content: int) -> Span:
        """Return the first and last index of the pooled tokens."""
        last = self.length(content) - 1
        return (
            (last, last)
            if self.between is None
            else (last + 1 - content - len(self.after), last - len(self.after))
        )

    @property
    def fixed(self) -> int:
        """Number of tokens at the beginning whose states do not depend on the sentence or on overwriting."""
        return len(self.before) if self.place is None or self.place < 0 else self.place


@dataclass(frozen=True)
class _Marks:
    """Ids at both ends of the content that belong to the quotation marks, if there are no offsets."""

    head: Ids
    tail: Ids


class PromptTokenizer:
    """Turn sentences into content ids, and a prompt into the ids around them."""

    def __init__(
        self, tokenizer: HuggingFaceTokenizer, special: Ids, prompt: Prompt, *, prepending: bool
    ) -> None:
        self._tokenizer = tokenizer
        self._special = special
        self._pieces = [prompt.pieces(template, prepending=prepending) for template in prompt.templates]
        self._samples = _SAMPLES if prompt.quoted else _UNQUOTED_SAMPLES
        placeholder = tokenizer.encode_many([PLACEHOLDER])[0][-1] if prepending else None
        self.prompts = tuple(self._read(pieces, placeholder) for pieces in self._pieces)
        self._marks = self._read_marks()

    def tokenize(self, sentences: Sequence[str]) -> list[TokenizedText]:
        """Return the ids of the sentences as they are in the prompt, split at words.

        A token that merges an end of the sentence with punctuation of the template goes into head or tail.
        """
        reference, pieces = self.prompts[0], self._pieces[0]
        prefix = "".join(pieces[:-1]) if reference.between is None else None
        if prefix is None:
            # An echo reads the second copy.
            texts = [pieces[0] + each + pieces[1] + each + pieces[2] for each in sentences]
            starts = [len(pieces[0] + each + pieces[1]) for each in sentences]
        else:
            texts = [prefix + each + pieces[-1] for each in sentences]
            starts = [len(prefix)] * len(sentences)
        try:
            encoded = self._tokenizer.encode_with_spans(texts)
        except EncodingError:
            self._tokenizer.encode_many(sentences)  # raises the error for the sentence without the prompt
            raise
        return [
            self._cut(ids, spans, text, start, len(sentence))
            for (ids, spans), text, start, sentence in zip(encoded, texts, starts, sentences, strict=True)
        ]

    def _cut(
        self, ids: Sequence[int], spans: Sequence[Span] | None, text: str, start: int, size: int
    ) -> TokenizedText:
        reference = self.prompts[0]
        if reference.between is not None:
            stop = len(ids) - len(reference.after)
            first = stop - self._echoed(ids, spans or (), text, start, size)
            merged = spans is not None and first < stop and spans[first][0] < _without_blanks(text, start)
        else:
            first, stop = len(reference.before) - len(self._special), len(ids) - len(reference.after)
            kept = self._special + tuple(ids)
            merged = not (
                first <= stop
                and kept[: len(reference.before)] == reference.before
                and kept[len(kept) - len(reference.after) :] == reference.after
            )
        if merged:
            # The template merged with the sentence in a way that no sample did.
            own = self._tokenizer.encode_many([text[start : start + size]])[0]
            return TokenizedText(self._marks.head, tuple((each,) for each in own), self._marks.tail)
        content = tuple(ids[first:stop])
        if spans is None:
            return self._cut_at_marks(content)
        return _cut_at_words(content, spans[first:stop], text, start, start + size)

    def _cut_at_marks(self, content: Ids) -> TokenizedText:
        head, tail = self._marks.head, self._marks.tail
        head = head if content[: len(head)] == head else ()
        rest = content[len(head) :]
        tail = tail if tail and rest[-len(tail) :] == tail else ()
        words = rest[: len(rest) - len(tail)]
        return TokenizedText(head, tuple((each,) for each in words), tail)

    def _read(self, pieces: tuple[str, ...], placeholder: int | None) -> PromptIds:
        if len(pieces) > 2:
            return self._read_echo(pieces)
        empty = () if len(set(pieces)) == 1 and not pieces[0] else ("",)
        texts = [pieces[0] + sample + pieces[1] for sample in (*self._samples, *empty)]
        rows = [tuple(row) for row in self._tokenizer.encode_many(texts)]
        before = _common_beginning(rows)
        shortest = min(len(row) for row in rows) - len(before)
        after = _common_beginning([row[::-1] for row in rows])[:shortest][::-1]
        before = self._special + before
        place = None
        if placeholder is not None:
            if placeholder in before:
                place = before.index(placeholder)
            elif placeholder in after:
                place = after.index(placeholder) - len(after)
            else:
                raise ModelError(
                    f"the tokenizer merges {PLACEHOLDER} with the text next to it: put spaces around it"
                )
        return PromptIds(before, None, after, place)

    def _read_echo(self, pieces: tuple[str, ...]) -> PromptIds:
        found = set()
        for sample in _WORDS:  # no punctuation that could merge with that of the template
            text = pieces[0] + sample + pieces[1] + sample + pieces[2]
            ids, spans = self._tokenizer.encode_with_spans([text])[0]
            if spans is None:
                raise ModelError(
                    "an echo prompt needs character offsets, which this tokenizer does not report: "
                    "use a prompt with one place for the sentence"
                )
            first, second = len(pieces[0]), len(pieces[0] + sample + pieces[1])
            parts = (
                (0, _without_blanks(text, first)),
                (first + len(sample), _without_blanks(text, second)),
                (second + len(sample), len(text)),
            )
            before, between, after = (_between(ids, spans, *part) for part in parts)
            content = ids[len(ids) - len(after) - self._echoed(ids, spans, text, second, len(sample)) :]
            content = content[: len(content) - len(after)]
            read = PromptIds(self._special + before, between, after, None)
            if read.fill(tuple(content)) != self._special + tuple(ids):
                raise InputError(
                    "the sentence has different tokens in the two places of the echo prompt: "
                    "put the same spaces around both"
                )
            found.add(read)
        if len(found) > 1:
            raise InputError(
                "the tokenizer merges punctuation of the echo prompt with the sentence: "
                "put spaces around both places of the sentence"
            )
        return found.pop()

    def _echoed(self, ids: Sequence[int], spans: Sequence[Span], text: str, start: int, size: int) -> int:
        return len(_between(ids, spans, _without_blanks(text, start), start + size))

    def _read_marks(self) -> _Marks:
        reference, pieces = self.prompts[0], self._pieces[0]
        if reference.between is not None:
            return _Marks((), ())
        rows = [
            self._special + tuple(row)
            for row in self._tokenizer.encode_many(
                [pieces[0] + sample + pieces[1] for sample in ("a.", "The b.")]
            )
        ]
        contents = [row[len(reference.before) : len(row) - len(reference.after)] for row in rows]
        head = _common_beginning(contents)
        tail = _common_beginning([content[::-1] for content in contents])[::-1]
        return _Marks(head, tail)


def _without_blanks(text: str, stop: int) -> int:
    """Return the end of the text before ``stop`` without its spaces, which belong to the next word."""
    return len(text[:stop].rstrip())


def _between(ids: Sequence[int], spans: Sequence[Span], start: int, stop: int) -> Ids:
    """Return the ids of the tokens that end after ``start`` and begin before ``stop``."""
    return tuple(
        each
        for each, (first, end) in zip(ids, spans, strict=True)
        if start < end <= stop or start <= first < stop
    )


def _common_beginning(rows: Sequence[Ids]) -> Ids:
    columns = takewhile(lambda column: len(set(column)) == 1, zip(*rows, strict=False))
    return tuple(column[0] for column in columns)


def _cut_at_words(content: Ids, spans: Sequence[Span], text: str, start: int, stop: int) -> TokenizedText:
    """Split the content into head, words and tail of the sentence, given its start and stop in the text."""
    head: list[int] = []
    words: list[list[int]] = []
    tail: list[int] = []
    seen = start
    for token_id, (first, end) in zip(content, spans, strict=True):
        shared_front = first < start and bool(text[first:start].strip())
        if end <= start or shared_front:
            head.append(token_id)
        elif first >= stop or (end > stop and bool(text[stop:end].strip())):
            tail.append(token_id)
        else:
            # A word begins after a space, which is before this token or at its beginning.
            opens = bool(text[seen:first].isspace()) or text[first : first + 1].isspace()
            if not words or opens:
                words.append([])
            words[-1].append(token_id)
        seen = max(seen, end)
    return TokenizedText(tuple(head), tuple(tuple(word) for word in words), tuple(tail))


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


class PromptVocabulary:
    """A tokenizer for the vocabulary that encodes text as part of a sentence in the prompt.

    A token that would close the quotation around the sentence, or with whitespace that cleaning removes,
    encodes to other ids: no text can produce it.
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
