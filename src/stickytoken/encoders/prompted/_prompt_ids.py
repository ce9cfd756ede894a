"""Prompts as token ids: the part that all sentences share, and the content of a sentence."""

from __future__ import annotations

import copy
import string
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from typing import Any, NamedTuple

from stickytoken.encoders._tokenizer import HuggingFaceTokenizer
from stickytoken.encoders.prompted.prompts import PLACEHOLDER, Prompt, reachable_text
from stickytoken.errors import EncodingError, InputError, ModelError
from stickytoken.insertion import TokenizedText

Ids = tuple[int, ...]
Span = tuple[int, int]

# Sentences that begin and end differently, so that their prompts share only what belongs to the template.
# They begin and end with punctuation that a vocabulary may merge with that of the template.
_SAMPLES = (
    *("a.", "The dog'", "7 I.", "we'", "9 ß."),
    *(f"{sign}a{sign}." for sign in string.punctuation if sign != '"'),
)
_WORDS = ("a", "The dog", "7 I", "we ß", "No 3")
_UNQUOTED_SAMPLES = (*_WORDS, *(f"{sign}a{sign}" for sign in (*string.punctuation, "。", "…")))


@dataclass(frozen=True)
class PromptIds:
    before: Ids  # special tokens and the template before the (first) sentence
    between: Ids | None  # template between the two copies of an echo; None without an echo
    after: Ids  # template after the (last) sentence
    place: int | None  # index of the placeholder, counted from the end if negative; None without one

    def fill(self, content: Ids) -> Ids:
        middle = content if self.between is None else content + self.between + content
        return self.before + middle + self.after

    def length(self, content: int) -> int:
        middle = content if self.between is None else content + len(self.between) + content
        return len(self.before) + middle + len(self.after)

    def places(self, content: int) -> tuple[range, ...]:
        first = len(self.before)
        starts = [first] if self.between is None else [first, first + content + len(self.between)]
        return tuple(range(start, start + content) for start in starts)

    def pooled(self, content: int) -> Span:
        end = self.length(content)
        if self.between is None:
            return end - 1, end - 1
        end -= len(self.after)
        return end - content, end - 1

    @property
    def fixed(self) -> int:
        """Number of tokens at the beginning whose states do not depend on the sentence or on overwriting."""
        return len(self.before) if self.place is None or self.place < 0 else self.place


class PromptTokenizer:
    """Turn sentences into content ids, and a prompt into the ids around them."""

    def __init__(
        self, tokenizer: HuggingFaceTokenizer, special: Ids, prompt: Prompt, *, prepending: bool
    ) -> None:
        self._tokenizer = tokenizer
        self._special = special
        self._samples = _SAMPLES if prompt.quoted else _UNQUOTED_SAMPLES
        pieces = [prompt.pieces(template, prepending=prepending) for template in prompt.templates]
        self._pieces = pieces[0]
        placeholder = tokenizer.encode_many([PLACEHOLDER])[0][-1] if prepending else None
        self.prompts = tuple(
            self._read_echo(each) if prompt.echoes else self._read(each, placeholder) for each in pieces
        )
        # Ids at both ends of the content that belong to the quotation marks, if there are no offsets.
        self._head: Ids = ()
        self._tail: Ids = ()
        if not prompt.echoes:
            texts = [sample.join(self._pieces) for sample in ("a.", "The b.")]
            rows = [special + tuple(row) for row in tokenizer.encode_many(texts)]
            before, after = len(self.prompts[0].before), len(self.prompts[0].after)
            contents = [row[before : len(row) - after] for row in rows]
            self._head, self._tail = _common_beginning(contents), _common_end(contents)

    def tokenize(self, sentences: Sequence[str]) -> list[TokenizedText]:
        """Return the ids of the sentences as they are in the prompt, split at words.

        A token that merges an end of the sentence with punctuation of the template goes into head or tail.
        """
        *front, back = self._pieces
        starts = [sentence.join(front) for sentence in sentences]  # an echo reads the second copy
        texts = [start + sentence + back for start, sentence in zip(starts, sentences, strict=True)]
        try:
            encoded = self._tokenizer.encode_with_spans(texts)
        except EncodingError:
            self._tokenizer.encode_many(sentences)  # raises the error for the sentence without the prompt
            raise
        return [
            self._cut(ids, spans, text, len(start), len(sentence))
            for (ids, spans), text, start, sentence in zip(encoded, texts, starts, sentences, strict=True)
        ]

    def _cut(
        self, ids: Sequence[int], spans: Sequence[Span] | None, text: str, start: int, size: int
    ) -> TokenizedText:
        reference = self.prompts[0]
        before, after, stop = reference.before, reference.after, len(ids) - len(reference.after)
        if reference.between is not None:
            # An echo has offsets.
            first = stop - len(_between(ids, spans or (), _without_blanks(text, start), start + size))
            merged = spans is not None and first < stop and spans[first][0] < _without_blanks(text, start)
        else:
            first = len(before) - len(self._special)
            kept = self._special + tuple(ids)
            alike = kept[: len(before)] == before and kept[len(kept) - len(after) :] == after
            merged = first > stop or not alike
        if merged:
            # The template merged with the sentence in a way that no sample did.
            own = self._tokenizer.encode_many([text[start : start + size]])[0]
            return TokenizedText(self._head, tuple((each,) for each in own), self._tail)
        content = tuple(ids[first:stop])
        if spans is not None:
            return _cut_at_words(content, spans[first:stop], text, start, start + size)
        head = self._head if content[: len(self._head)] == self._head else ()
        content = content[len(head) :]
        tail = self._tail if self._tail and content[-len(self._tail) :] == self._tail else ()
        words = content[: len(content) - len(tail)]
        return TokenizedText(head, tuple((each,) for each in words), tail)

    def _read(self, pieces: tuple[str, ...], placeholder: int | None) -> PromptIds:
        samples = [*self._samples, ""] if any(pieces) else self._samples
        rows = [tuple(row) for row in self._tokenizer.encode_many([each.join(pieces) for each in samples])]
        before = _common_beginning(rows)
        after = _common_end([row[len(before) :] for row in rows])
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
            text = sample.join(pieces)
            ids, spans = self._tokenizer.encode_with_spans([text])[0]
            if spans is None:
                raise ModelError(
                    "an echo prompt needs character offsets, which this tokenizer does not report: "
                    "use a prompt with one place for the sentence"
                )
            first, second = len(pieces[0]), len(sample.join(pieces[:2]))
            first_end, second_end = first + len(sample), second + len(sample)
            first, second = _without_blanks(text, first), _without_blanks(text, second)
            parts = ((0, first), (first_end, second), (second_end, len(text)), (second, second_end))
            before, between, after, content = (_between(ids, spans, *part) for part in parts)
            read = PromptIds(self._special + before, between, after, None)
            if read.fill(content) != self._special + tuple(ids):
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


def _common_end(rows: Sequence[Ids]) -> Ids:
    return _common_beginning([row[::-1] for row in rows])[::-1]


def _cut_at_words(content: Ids, spans: Sequence[Span], text: str, start: int, stop: int) -> TokenizedText:
    """Split the content into head, words and tail of the sentence, given its start and stop in the text."""
    head: list[int] = []
    words: list[list[int]] = []
    tail: list[int] = []
    seen = start
    for token_id, (first, end) in zip(content, spans, strict=True):
        if end <= start or (first < start and text[first:start].strip()):
            head.append(token_id)
        elif first >= stop or (end > stop and text[stop:end].strip()):
            tail.append(token_id)
        else:
            # A word begins after a space, which is before this token or at its beginning.
            if not words or text[seen:first].isspace() or text[first : first + 1].isspace():
                words.append([])
            words[-1].append(token_id)
        seen = max(seen, end)
    return TokenizedText(tuple(head), tuple(map(tuple, words)), tuple(tail))


class OwnTokenizer(NamedTuple):
    """A copy of the user's tokenizer, and the special tokens before every text."""

    tokenizer: HuggingFaceTokenizer
    special: Ids
    padding_id: int | None
    placeholder_id: int | None


class PromptTokenizers:
    """The tokenizers of a prompted model. All readings share them: copying a vocabulary takes seconds."""

    def __init__(self, tokenizer: Any, name: str) -> None:
        if not hasattr(tokenizer, "add_tokens") or not hasattr(tokenizer, "convert_ids_to_tokens"):
            raise ModelError(
                f"the tokenizer of {name} is a {type(tokenizer).__name__}: pass a transformers tokenizer"
            )
        self._user = tokenizer

    @cached_property
    def plain(self) -> OwnTokenizer:
        return self._copied(placeholder=False)

    @cached_property
    def prepending(self) -> OwnTokenizer:
        return self._copied(placeholder=True)

    def _copied(self, *, placeholder: bool) -> OwnTokenizer:
        own = copy.deepcopy(self._user)
        if placeholder:
            own.add_tokens([PLACEHOLDER])
        adapted = HuggingFaceTokenizer(own)
        bare, whole = adapted.encode_many(["a b"])[0], list(own("a b")["input_ids"])
        starts = (at for at in range(len(whole) + 1) if whole[at : at + len(bare)] == bare)
        if (start := next(starts, None)) is None:
            raise ModelError(f"the special tokens of a {type(own).__name__} change the text between them")
        special = tuple(whole[:start])  # those after the text are left out
        placeholder_id = own.convert_tokens_to_ids(PLACEHOLDER) if placeholder else None
        return OwnTokenizer(adapted, special, getattr(own, "pad_token_id", None), placeholder_id)


class PromptVocabulary(HuggingFaceTokenizer):
    """A tokenizer for the vocabulary that encodes text as part of a sentence in the prompt.

    A token that would close the quotation around the sentence, or with whitespace that cleaning removes,
    encodes to other ids: no text can produce it.
    """

    def __init__(self, tokenizer: HuggingFaceTokenizer, *, quoted: bool) -> None:
        vars(self).update(vars(tokenizer))  # a copy of a large vocabulary takes seconds
        self._quoted = quoted

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        return super().encode_many([reachable_text(text, quoted=self._quoted) for text in texts])

    def encode_with_spans(self, texts: Sequence[str]) -> list[tuple[list[int], list[Span] | None]]:
        return [(ids, None) for ids in self.encode_many(texts)]
