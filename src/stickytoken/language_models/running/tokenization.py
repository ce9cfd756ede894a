"""Prompts as token ids: which ids belong to the template, and which to each word of the sentence."""

from __future__ import annotations

import copy
import string
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, NamedTuple, TypeAlias

from stickytoken.encoders.inputs.tokenizer import HuggingFaceTokenizer
from stickytoken.errors import EncodingError, InputError, ModelError
from stickytoken.insertion import TokenizedText
from stickytoken.language_models.prompts import PLACEHOLDER, SENTENCE, Prompt, clean_inner_text

Ids: TypeAlias = tuple[int, ...]
Span: TypeAlias = tuple[int, int]
"""Index of the first character of a token, and the index after its last character."""

# Sentences that begin and end differently, so that their prompts share only the ids of the template. Many
# have punctuation at their ends, which a tokenizer may merge with the punctuation of the template.
_SIGNED = [f"{sign}a{sign}" for sign in f"{string.punctuation}。…"]
_QUOTABLE_SIGNED = [f"{sign}a{sign}." for sign in string.punctuation if sign != '"']
_QUOTED_SAMPLES = ("a.", "The dog'", "7 I.", "we'", "9 ß.", *_QUOTABLE_SIGNED)
_WORD_SAMPLES = ("a", "The dog", "7 I", "we ß", "No 3")
_BARE_SAMPLES = (*_WORD_SAMPLES, *_SIGNED)


@dataclass(frozen=True)
class PromptIds:
    """The ids of a template around a sentence, or around the two copies of the sentence in an echo.

    Attributes:
        before: ids of special tokens, and of the template's part before the (first) sentence.
        between: ids of the template's part between the two copies of an echo; None without an echo.
        after: ids of the template's part after the (last) sentence.
        placeholder: index of the placeholder, counted from the end if negative; None without a placeholder.
    """

    before: Ids
    between: Ids | None
    after: Ids
    placeholder: int | None

    def fill(self, content: Ids) -> Ids:
        """Return the ids of the prompt, with the given ids in the place of the sentence."""
        if self.between is None:
            return self.before + content + self.after
        return self.before + content + self.between + content + self.after

    def length(self, content_length: int) -> int:
        """Return the length of the prompt, filled with a sentence of ``content_length`` ids."""
        middle = content_length
        if self.between is not None:  # an echo has the sentence twice
            middle += len(self.between) + content_length
        return len(self.before) + middle + len(self.after)

    def content_ranges(self, content_length: int) -> list[range]:
        """Return the indices of the sentence and, in an echo, of its second copy."""
        first = range(len(self.before), len(self.before) + content_length)
        if self.between is None:
            return [first]
        end = self.length(content_length) - len(self.after)
        return [first, range(end - content_length, end)]

    def find_pooled_ends(self, content_length: int) -> tuple[int, int]:
        """Return the indices of the first and the last token whose states are averaged."""
        end = self.length(content_length)
        if self.between is None:  # only the last token of the prompt counts
            return end - 1, end - 1
        end -= len(self.after)  # in an echo, the tokens of the second copy count
        return end - content_length, end - 1

    @property
    def prefix_length(self) -> int:
        """Number of tokens before the sentence, or before the placeholder if it precedes the sentence.

        The states of the tokens in this prefix depend on neither the sentence nor token prepending, which
        changes the state of the placeholder.
        """
        if self.placeholder is None or self.placeholder < 0:  # a negative index is behind the sentence
            return len(self.before)
        return self.placeholder


@dataclass(frozen=True, slots=True)
class _MergedQuotes:
    """The ids of quotation marks that a tokenizer merges with the sentence between them.

    For example, if the template ends with ``"`` and the tokenizer has a token ``."``, this token stands at
    the end of every quoted sentence. The token belongs to the ids of the sentence, but to none of its words.

    Attributes:
        head: ids at the start of every quoted sentence.
        tail: ids at the end of every quoted sentence.
    """

    head: Ids = ()
    tail: Ids = ()

    def with_words(self, ids: Ids) -> TokenizedText:
        # Every id counts as a word.
        return TokenizedText(self.head, tuple((token_id,) for token_id in ids), self.tail)

    def split_from(self, content: Ids) -> TokenizedText:
        """Separate merged quotation marks from the ids of a quoted sentence, which become its words.

        A mark that the tokenizer merged with a word of the sentence is not among the ids, and stays away.
        """
        head = self.head if content[: len(self.head)] == self.head else ()
        content = content[len(head) :]
        has_tail = content[len(content) - len(self.tail) :] == self.tail
        tail = self.tail if has_tail else ()
        ids_between = content[: len(content) - len(tail)]
        return TokenizedText(head, tuple((token_id,) for token_id in ids_between), tail)


@dataclass(frozen=True, slots=True)
class _FilledPrompt:
    """The text of a filled prompt, and its ids without special tokens."""

    text: str
    first_character: int  # index of the first character of the sentence; in an echo, of the second copy
    end_character: int  # index after the last character of this copy of the sentence
    ids: Sequence[int]
    spans: Sequence[Span] | None  # character span of each id; None if the tokenizer reports none

    @property
    def sentence(self) -> str:
        return self.text[self.first_character : self.end_character]


class PromptTokenizer:
    """Turns sentences into the token ids that they have inside a prompt.

    If a prompt has several templates, the ids of a sentence in the first template are used in all templates.

    Attributes:
        prompts: the ids of each template.
    """

    def __init__(
        self, tokenizer: HuggingFaceTokenizer, special: Ids, prompt: Prompt, *, prepending: bool
    ) -> None:
        """Find the ids of the templates, by encoding sample sentences inside them.

        Args:
            tokenizer: the tokenizer, which knows the placeholder if token prepending is on.
            special: ids of the special tokens before every text.
            prompt: the prompt, whose templates contain the sentence once or, in an echo prompt, twice.
            prepending: whether token prepending is on.

        Raises:
            InputError: the tokenizer merges tokens of an echo template with the sentence.
            ModelError: the tokenizer reports no character offsets, which an echo needs, or it merges the
                placeholder with the text next to it.
        """
        self._tokenizer = tokenizer
        self._special = special
        self._samples = _QUOTED_SAMPLES if prompt.quoted else _BARE_SAMPLES
        # Each template, split at the sentence into two parts or, for an echo, three parts.
        templates = [prompt.split_template(template, prepending=prepending) for template in prompt.templates]
        self._first_template = templates[0]
        if prompt.echoes:
            self.prompts = tuple(self._find_echo_template_ids(pieces) for pieces in templates)
            # The ids of an echo's sentence are found by the characters that they cover, so merged quotation
            # marks need not be known.
            self._merged_quotes = _MergedQuotes()
        else:
            placeholder_id = None
            if prepending:  # a tokenizer may put the id of a space before the id of the placeholder
                placeholder_id = tokenizer.encode_many([PLACEHOLDER])[0][-1]
            self.prompts = tuple(self._find_template_ids(pieces, placeholder_id) for pieces in templates)
            self._merged_quotes = self._find_merged_quotes()

    def tokenize(self, sentences: Sequence[str]) -> list[TokenizedText]:
        """Return the token ids of each sentence inside the prompt, grouped by word.

        A token that covers the start or the end of the sentence and also punctuation of the template goes
        into the head or the tail of the `TokenizedText`, not into a word.
        """
        # Only one copy of the sentence is read from the filled prompt: the second one in an echo. `start` is
        # the text before this copy. A template that contains the sentence once, such as "Say {sentence} now",
        # has one part before it, "Say ", and `join` returns this part. The echo template "Say {sentence} and
        # {sentence} now" has two parts before the second copy, "Say " and " and ". For the sentence "hi",
        # `join` returns "Say hi and ".
        *parts_before, part_after = self._first_template
        starts = [sentence.join(parts_before) for sentence in sentences]
        texts = [start + sentence + part_after for start, sentence in zip(starts, sentences, strict=True)]
        try:
            encoded = self._tokenizer.encode_with_spans(texts)
        except EncodingError:
            # The error quotes the filled prompt, but the user knows only the sentence. If the sentences are
            # encoded alone, the error quotes the sentence.
            self._tokenizer.encode_many(sentences)
            raise
        tokenized = []
        for text, start, sentence, (ids, spans) in zip(texts, starts, sentences, encoded, strict=True):
            filled = _FilledPrompt(text, len(start), len(start) + len(sentence), ids, spans)
            tokenized.append(self._group_sentence_into_words(filled))
        return tokenized

    def _group_sentence_into_words(self, filled: _FilledPrompt) -> TokenizedText:
        # A tokenizer may merge a quotation mark of the template with the end of every sentence, as in ``."``.
        # Such ids are no words, so they become the head or the tail of the result.
        is_echo = self.prompts[0].between is not None  # it has the sentence twice; all prompts do, or none
        if is_echo:
            indices = self._find_content_of_echo(filled)
        else:
            indices = self._find_content_between_template_ids(filled)
        if indices is None:
            # The tokenizer merged the template with the sentence in a way that none of the samples showed.
            # So the sentence is encoded alone.
            ids = self._tokenizer.encode_many([filled.sentence])[0]
            return self._merged_quotes.with_words(tuple(ids))
        content_ids = tuple(filled.ids[indices.start : indices.stop])
        if filled.spans is None:  # without spans, every id counts as a word, except merged quotation marks
            return self._merged_quotes.split_from(content_ids)
        content_spans = filled.spans[indices.start : indices.stop]
        return _divide_into_words(content_ids, content_spans, filled)

    def _find_content_between_template_ids(self, filled: _FilledPrompt) -> range | None:
        # Returns the indices of the sentence's ids; None if the tokenizer merged the sentence with the
        # template.
        ids = tuple(filled.ids)
        before = self.prompts[0].before[len(self._special) :]  # without special tokens, as in ``filled.ids``
        after = self.prompts[0].after
        start = len(before)
        stop = len(ids) - len(after)
        has_before = ids[:start] == before
        has_after = ids[stop:] == after
        if start > stop or not has_before or not has_after:
            return None
        return range(start, stop)

    def _find_content_of_echo(self, filled: _FilledPrompt) -> range | None:
        # Of a filled prompt such as 'Rewrite the sentence: A river. Rewritten: A river."', returns the
        # indices of the ids of the second copy; None if the tokenizer merged it with the template.
        spans = filled.spans or ()  # never None, because `_find_echo_ids_around` requires spans
        first_character = _find_end_before_blanks(filled.text, filled.first_character)
        # The ids of the second copy come directly before the template's last ids.
        stop = len(filled.ids) - len(self.prompts[0].after)
        ids_of_copy = _select_ids_between_characters(filled.ids, spans, first_character, filled.end_character)
        start = stop - len(ids_of_copy)  # the ids of the copy are consecutive
        is_empty = start == stop
        if not is_empty and spans[start][0] < first_character:  # the first id begins before the copy
            return None
        return range(start, stop)

    def _find_template_ids(self, pieces: tuple[str, ...], placeholder_id: int | None) -> PromptIds:
        # The empty sample is left out if the template has no text, because the filled prompt would be empty.
        samples = (*self._samples, "") if any(pieces) else self._samples
        filled_templates = [sample.join(pieces) for sample in samples]  # with the sample between the pieces
        encoded = self._tokenizer.encode_many(filled_templates)
        rows = [tuple(row) for row in encoded]
        # The template's ids are the ids that all filled templates have in common at the start and at the end.
        template_before = _find_common_prefix(rows)
        rows_after_prefix = [row[len(template_before) :] for row in rows]  # no id belongs to both ends
        after = _find_common_suffix(rows_after_prefix)
        before = self._special + template_before
        placeholder = None
        if placeholder_id is not None:
            placeholder = _find_placeholder(placeholder_id, before, after)
        # Only an echo, which contains the sentence twice, has ids between its copies.
        return PromptIds(before, between=None, after=after, placeholder=placeholder)

    def _find_merged_quotes(self) -> _MergedQuotes:
        """Return the ids of quotation marks that the tokenizer merges with a sentence.

        A quoted sentence usually ends with a full stop, which may be merged with the quotation mark.
        """
        prompt = self.prompts[0]
        texts = [sample.join(self._first_template) for sample in ("a.", "The b.")]
        # `PromptIds.before` includes the special tokens.
        rows = [self._special + tuple(row) for row in self._tokenizer.encode_many(texts)]
        contents = [row[len(prompt.before) : len(row) - len(prompt.after)] for row in rows]
        # Both contents begin or end with the same ids only if these are the ids of merged quotation marks.
        return _MergedQuotes(head=_find_common_prefix(contents), tail=_find_common_suffix(contents))

    def _find_echo_template_ids(self, pieces: tuple[str, ...]) -> PromptIds:
        # The samples have no punctuation that the tokenizer could merge with punctuation of the template.
        distinct_ids = {self._find_echo_ids_around(sample, pieces) for sample in _WORD_SAMPLES}
        if len(distinct_ids) > 1:
            raise InputError(
                "the tokenizer merges punctuation of the echo prompt with the sentence: "
                f"put spaces around both occurrences of {SENTENCE}"
            )
        return distinct_ids.pop()

    def _find_echo_ids_around(self, sentence: str, pieces: tuple[str, ...]) -> PromptIds:
        """Return the ids of an echo template, by encoding it with a sentence in both places for the sentence.

        The character spans of the ids show which ids belong to the template.

        Raises:
            ModelError: the tokenizer reports no character spans.
            InputError: the two copies of the sentence have different ids.
        """
        text = sentence.join(pieces)
        ids, spans = self._tokenizer.encode_with_spans([text])[0]
        if spans is None:
            raise ModelError(
                "an echo prompt needs character offsets, which this tokenizer does not report: "
                "use a prompt with one place for the sentence"
            )
        first_start = len(pieces[0])
        second_start = len(sentence.join(pieces[:2]))
        first_end = first_start + len(sentence)
        second_end = second_start + len(sentence)
        # A token of the sentence may include the blanks before it, so these blanks don't belong to the
        # template.
        first_start = _find_end_before_blanks(text, first_start)
        second_start = _find_end_before_blanks(text, second_start)
        prompt = PromptIds(
            before=self._special + _select_ids_between_characters(ids, spans, 0, first_start),
            between=_select_ids_between_characters(ids, spans, first_end, second_start),
            after=_select_ids_between_characters(ids, spans, second_end, len(text)),
            placeholder=None,
        )
        content = _select_ids_between_characters(ids, spans, second_start, second_end)
        # `fill` puts the ids of the second copy in both places. The result is right only if the first copy
        # has the same ids.
        if prompt.fill(content) != self._special + tuple(ids):
            raise InputError(
                "the sentence has different tokens in the two places of the echo prompt: "
                "put the same spaces around both"
            )
        return prompt


def _find_placeholder(placeholder_id: int, before: Ids, after: Ids) -> int:
    """Return the index of the placeholder in a prompt.

    If the placeholder comes after the sentence, the index is negative, because counted from the prompt's end
    it is the same for sentences of any length.
    """
    if placeholder_id in before:
        return before.index(placeholder_id)
    if placeholder_id in after:
        return after.index(placeholder_id) - len(after)
    raise ModelError(f"the tokenizer merges {PLACEHOLDER} with the text next to it: put spaces around it")


def _find_end_before_blanks(text: str, stop: int) -> int:
    # Returns the index at which the blanks directly before `stop` begin; `stop` itself if there are no
    # blanks.
    return len(text[:stop].rstrip())


def _select_ids_between_characters(ids: Sequence[int], spans: Sequence[Span], start: int, stop: int) -> Ids:
    # Returns the ids that begin or end between two characters; ``spans`` has the character span of each id.
    selected_ids = []
    for token_id, (first, end) in zip(ids, spans, strict=True):
        begins_inside = start <= first < stop
        ends_inside = start < end <= stop
        if begins_inside or ends_inside:
            selected_ids.append(token_id)
    return tuple(selected_ids)


def _find_common_prefix(rows: Sequence[Ids]) -> Ids:
    ids_by_position = zip(*rows, strict=False)  # ends with the shortest row
    ids_that_agree = takewhile(lambda ids: len(set(ids)) == 1, ids_by_position)
    return tuple(ids[0] for ids in ids_that_agree)


def _find_common_suffix(rows: Sequence[Ids]) -> Ids:
    return _find_common_prefix([row[::-1] for row in rows])[::-1]


def _divide_into_words(content: Ids, spans: Sequence[Span], filled: _FilledPrompt) -> TokenizedText:
    """Divide the ids of a sentence into words by their character spans.

    Ids that also cover characters of the template outside the sentence go into head or tail.
    """
    text = filled.text
    head: list[int] = []
    words: list[list[int]] = []
    tail: list[int] = []
    previous_end = filled.first_character
    for token_id, (first, end) in zip(content, spans, strict=True):
        # A token may include blanks around the sentence, but nothing else of the template.
        begins_before = first < filled.first_character and bool(text[first : filled.first_character].strip())
        ends_behind = end > filled.end_character and bool(text[filled.end_character : end].strip())
        if end <= filled.first_character or begins_before:
            head.append(token_id)
        elif first >= filled.end_character or ends_behind:
            tail.append(token_id)
        else:
            # A word begins after a space, which either precedes this token or is its first character.
            follows_space = text[previous_end:first].isspace() or text[first : first + 1].isspace()
            if not words or follows_space:
                words.append([])
            words[-1].append(token_id)
        previous_end = max(previous_end, end)
    return TokenizedText(tuple(head), tuple(map(tuple, words)), tuple(tail))


class OwnTokenizer(NamedTuple):
    """A copy of the user's tokenizer, with the token ids that prompts need."""

    tokenizer: HuggingFaceTokenizer
    special: Ids  # ids of the special tokens before every text
    placeholder_id: int | None


def copy_tokenizer(tokenizer: Any, name: str, prepending: bool) -> OwnTokenizer:
    """Copy a transformers tokenizer; with token prepending, the placeholder is added to the copy."""
    if not hasattr(tokenizer, "add_tokens") or not hasattr(tokenizer, "convert_ids_to_tokens"):
        raise ModelError(
            f"the tokenizer of {name} is a {type(tokenizer).__name__}: pass a transformers tokenizer"
        )
    tokenizer = copy.deepcopy(tokenizer)
    placeholder_id = None
    if prepending:
        tokenizer.add_tokens([PLACEHOLDER])
        placeholder_id = tokenizer.convert_tokens_to_ids(PLACEHOLDER)
    adapted = HuggingFaceTokenizer(tokenizer)
    # Find where the ids of a text begin if special tokens are added around them.
    bare_ids = adapted.encode_many(["a b"])[0]
    all_ids = list(tokenizer("a b")["input_ids"])
    possible_starts = range(len(all_ids) + 1)
    starts = [start for start in possible_starts if all_ids[start : start + len(bare_ids)] == bare_ids]
    if not starts:
        raise ModelError(
            f"a {type(tokenizer).__name__} encodes a text differently when it adds special tokens, so "
            "prompts cannot be used: pass another model"
        )
    special = tuple(all_ids[: starts[0]])  # special tokens after the text are left out
    return OwnTokenizer(adapted, special, placeholder_id)


class PromptVocabulary(HuggingFaceTokenizer):
    """Encodes vocabulary entries as parts of a sentence in the prompt.

    Sentences are cleaned before they are put into the prompt. Cleaning changes a token that contains unusual
    whitespace or, in a prompt that quotes the sentence, a double quotation mark. A token that cleaning
    changes never occurs in a cleaned sentence, so the ids of its cleaned text are used.
    """

    def __init__(self, tokenizer: HuggingFaceTokenizer, *, quoted: bool) -> None:
        # Shares all attributes with ``tokenizer``, because copying a large vocabulary takes seconds.
        vars(self).update(vars(tokenizer))
        self._quoted = quoted

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        return super().encode_many([clean_inner_text(text, quoted=self._quoted) for text in texts])

    def encode_with_spans(self, texts: Sequence[str]) -> list[tuple[list[int], list[Span] | None]]:
        # No spans are returned, because they would be spans in the cleaned texts.
        return [(ids, None) for ids in self.encode_many(texts)]
