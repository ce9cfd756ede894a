"""The prompts that turn a language model into a sentence encoder, as text and as token ids. Pure.

PromptEOL: Jiang et al. 2023 (arXiv 2307.16645). Pretended chain of thought and knowledge enhancement: Zhang
et al. 2024 (2404.03921); the mean of both: Cheng et al., ACL 2025 (2505.12831). MetaEOL: Lei et al. 2024
(2402.18458). Echo: Springer et al. 2024 (2402.15449). The position of the placeholder: Fu et al., ACL 2025
(2412.11556).
"""

from __future__ import annotations

import copy
import math
import re
import string
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import takewhile
from typing import Any, NamedTuple

from stickytoken.encoders._tokenizer import HuggingFaceTokenizer
from stickytoken.encoders.protocol import Prompting, shown
from stickytoken.errors import EncodingError, InputError, ModelError
from stickytoken.insertion import TokenizedText

PLACEHOLDER = "<PST>"
SENTENCE = "{sentence}"
# The published code's mark for the sentence.
_PUBLISHED_SENTENCE = "*sent 0*"
_QUOTED = f'"{SENTENCE}"'
_SHOWN_CHARACTERS = 60


@dataclass(frozen=True, slots=True)
class Prompt:  # the vector of a sentence is the mean over its templates
    name: str  # of a known prompt, or ``own``
    templates: tuple[str, ...]  # with one `SENTENCE`, or two for an echo, and at most one `PLACEHOLDER`

    @property
    def echoes(self) -> bool:  # then the vector is the mean over the second copy of the sentence
        return self.templates[0].count(SENTENCE) > 1

    @property
    def quoted(self) -> bool:  # then the sentence must be cleaned
        return all(_QUOTED in _without_placeholder(template) for template in self.templates)

    def pieces(self, template: str, *, prepending: bool) -> tuple[str, ...]:
        if not prepending:
            template = _without_placeholder(template)
        elif PLACEHOLDER not in template:
            place = _QUOTED if _QUOTED in template else SENTENCE
            template = template.replace(place, f"{PLACEHOLDER} {place}", 1)
        return tuple(template.strip().split(SENTENCE))


def _without_placeholder(template: str) -> str:
    return template.replace(f"{PLACEHOLDER} ", "").replace(PLACEHOLDER, "")


def find_prompt(prompt: str | Prompt) -> Prompt:
    if isinstance(prompt, Prompt):
        return prompt
    if prompt.lower() in PROMPTS:
        return PROMPTS[prompt.lower()]
    template = prompt.replace(_PUBLISHED_SENTENCE, SENTENCE)
    named, places = f"the prompt {shown(prompt, _SHOWN_CHARACTERS)}", template.count(SENTENCE)
    if places == 0:
        raise InputError(
            f"{named} is not one of {', '.join(PROMPTS)} and has no place for the sentence: "
            f"write {SENTENCE} where the sentence goes"
        )
    if places > 2:
        raise InputError(f"{named} has {places} places for the sentence: use one, or two to echo it")
    if template.count(PLACEHOLDER) > 1:
        raise InputError(f"{named} has more than one {PLACEHOLDER}: use only one")
    return Prompt("own", (template,))


def is_template(prompt: str) -> bool:
    return prompt.lower() in PROMPTS or SENTENCE in prompt or _PUBLISHED_SENTENCE in prompt


_END = f'{PLACEHOLDER} "{SENTENCE}" means in one word:"'
# The tasks of MetaEOL, and what the sentence does in each.
_TASKS = {
    "In this task, you're presented with a text excerpt. Your task is to categorize the excerpt into a broad "
    "category such as 'Education', 'Technology', 'Health', 'Business', 'Environment', 'Politics', or "
    "'Culture'. These categories help in organizing content for better accessibility and targeting. For this "
    "task,": "should be classified under one general category",
    "In this task, you're given a statement and you need to determine whether it's presenting an 'Opinion' "
    "or a 'Fact'. This distinction is vital for information verification, educational purposes, and content "
    "analysis. For this task,": "discriminates between opinion and fact",
    "In this task, you're given a review from an online platform. Your task is to generate a rating for the "
    "product based on the review on a scale of 1-5, where 1 means 'extremely negative' and 5 means "
    "'extremely positive'. For this task,": "reflects the sentiment",
    "In this task, you're reading a personal diary entry. Your task is to identify the predominant emotion "
    "expressed, such as joy, sadness, anger, fear, or love. For this task,": "conveys the emotion",
    "In this task, you're presented with two sentences. Your task is to assess whether the sentences convey "
    "the same meaning. Use 'identical', 'similar', 'different', or 'unrelated' to describe the relationship. "
    "To enhance the performance of this task,": "means",
    "In this task, you're given a sentence and a phrase. Your task is to determine if the phrase can be a "
    "contextual synonym within the given sentence. Options include 'yes', 'no', or 'partially'. To enhance "
    "the performance of this task,": "means",
    "In this task, you're examining a news article. Your task is to extract the most critical fact from the "
    "article. For this task,": "encapsulates the key fact",
    "In this task, you're reviewing a scientific abstract. Your task is to identify the main entities (e.g., "
    "proteins, diseases) and their relations (e.g., causes, treats). "
    "For this task,": "highlights the primary entity or relation",
}

_THOUGHT = f"After thinking step by step , this sentence : {_END}"
_KNOWLEDGE = (
    "The essence of a sentence is often captured by its main subjects and actions, while descriptive terms "
    f"provide additional but less central details. With this in mind , this sentence : {_END}"
)

PROMPTS = {
    prompt.name: prompt
    for prompt in (
        Prompt("prompteol", (f"This sentence : {_END}",)),
        Prompt("cot", (_THOUGHT,)),
        Prompt("ke", (_KNOWLEDGE,)),
        Prompt("ck", (_THOUGHT, _KNOWLEDGE)),
        Prompt(
            "metaeol",
            tuple(
                f'{task} this sentence : {PLACEHOLDER} "{SENTENCE}" {asks} in one word:"'
                for task, asks in _TASKS.items()
            ),
        ),
        Prompt("echo", (f"Rewrite the sentence: {SENTENCE}, rewritten sentence: {SENTENCE}",)),
    )
}

AUXILIARY = Prompt(
    "auxiliary", (f'The irrelevant information of this sentence : "{SENTENCE}" means in one word:"',)
)
DEFAULT_STRENGTH = 0.5


class ContrastRule(StrEnum):
    """What replaces the values A of the prompt's last token, given the values B of the auxiliary prompt's."""

    SCALED = "scaled"
    """c (A - B), the published default."""
    NORM = "norm"
    """(A - B) |A| / |A - B|: the difference with the norm of A."""
    SCALED_NORM = "scaled_norm"
    """c (A - B) |A| / |A - B|."""
    SUB_HEAD_NORM = "sub_head_norm"
    """As NORM, for every attention head by itself."""

    @property
    def scales(self) -> bool:
        return self in (ContrastRule.SCALED, ContrastRule.SCALED_NORM)


@dataclass(frozen=True, slots=True)
class Contrast:
    layer: int  # whose attention is changed, from 0
    strength: float | None = DEFAULT_STRENGTH  # the factor c; None for a rule without one
    rule: ContrastRule = ContrastRule.SCALED

    def __post_init__(self) -> None:
        layer, strength, rule = self.layer, self.strength, self.rule
        if layer < 0:
            raise InputError(f"the contrast layer is {layer}: layers are counted from 0")
        if strength is None:
            if rule.scales:
                raise InputError(f"the contrast rule {rule} needs a strength: pass a number from 0")
        elif not rule.scales:
            raise InputError(
                f"the contrast rule {rule} has no strength, got {strength}: leave the strength out, or use "
                f"{ContrastRule.SCALED} or {ContrastRule.SCALED_NORM}"
            )
        elif not (math.isfinite(strength) and strength >= 0):
            raise InputError(f"the contrast strength is {strength}: pass a finite number from 0")


def require_contrast_options(options: Prompting) -> ContrastRule:
    given = [name for name in options.decoder_options if name.startswith("contrast_")]
    if given and not options.contrast:
        raise InputError(f"{', '.join(given)} would have no effect, since contrast is off: turn it on")
    try:
        rule = ContrastRule(options.contrast_rule or ContrastRule.SCALED)
    except ValueError as error:
        raise InputError(
            f"the contrast rule {options.contrast_rule!r} is unknown: use one of {', '.join(ContrastRule)}"
        ) from error
    strength = options.contrast_strength
    default = DEFAULT_STRENGTH if rule.scales else None
    Contrast(options.contrast_layer or 0, default if strength is None else strength, rule)  # refuses others
    return rule


_OTHER_SPACE = re.compile(r"\s{2,}|[^\S ]")


def clean_sentence(text: str) -> str:
    """End a sentence with a full stop and replace double quotation marks, in the published code's order."""
    if text and not text.endswith((".", "?", '"', "'")):
        text += "."
    text = text.replace('"', "'")
    return text[:-1] + "." if text.endswith("?") else text


def reachable_text(text: str, *, quoted: bool) -> str:
    text = _OTHER_SPACE.sub(" ", text)
    return text.replace('"', "'") if quoted else text


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

    def places(self, content: int) -> list[range]:
        first = range(len(self.before), len(self.before) + content)
        last = self.length(content) - len(self.after)
        return [first] if self.between is None else [first, range(last - content, last)]

    def pooled(self, content: int) -> Span:  # the first and the last pooled token
        end = self.length(content)
        if self.between is None:
            return end - 1, end - 1
        end -= len(self.after)
        return end - content, end - 1

    @property
    def fixed(self) -> int:  # tokens at the beginning whose states depend on neither sentence nor overwriting
        return len(self.before) if self.place is None or self.place < 0 else self.place


class PromptTokenizer:
    def __init__(
        self, tokenizer: HuggingFaceTokenizer, special: Ids, prompt: Prompt, *, prepending: bool
    ) -> None:
        self._tokenizer, self._special = tokenizer, special
        self._samples = _SAMPLES if prompt.quoted else _UNQUOTED_SAMPLES
        pieces = [prompt.pieces(template, prepending=prepending) for template in prompt.templates]
        self._pieces = pieces[0]
        placeholder = tokenizer.encode_many([PLACEHOLDER])[0][-1] if prepending else None
        self.prompts = tuple(
            self._read_echo(each) if prompt.echoes else self._read(each, placeholder) for each in pieces
        )
        # Ids at both ends of the content that belong to the quotation marks, if there are no offsets.
        self._head, self._tail = Ids(), Ids()
        if not prompt.echoes:
            texts = [sample.join(self._pieces) for sample in ("a.", "The b.")]
            rows = [special + tuple(row) for row in tokenizer.encode_many(texts)]
            before, after = len(self.prompts[0].before), len(self.prompts[0].after)
            contents = [row[before : len(row) - after] for row in rows]
            self._head, self._tail = _common_beginning(contents), _common_end(contents)

    def tokenize(self, sentences: Sequence[str]) -> list[TokenizedText]:
        # A token that merges an end of the sentence with punctuation of the template goes into head or tail.
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


def _without_blanks(text: str, stop: int) -> int:  # they belong to the next word
    return len(text[:stop].rstrip())


def _between(ids: Sequence[int], spans: Sequence[Span], start: int, stop: int) -> Ids:
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
    tokenizer: HuggingFaceTokenizer  # a copy of the user's
    special: Ids  # before every text
    padding_id: int | None
    placeholder_id: int | None


def own_tokenizer(tokenizer: Any, name: str, prepending: bool) -> OwnTokenizer:
    if not hasattr(tokenizer, "add_tokens") or not hasattr(tokenizer, "convert_ids_to_tokens"):
        raise ModelError(
            f"the tokenizer of {name} is a {type(tokenizer).__name__}: pass a transformers tokenizer"
        )
    own, placeholder = copy.deepcopy(tokenizer), None
    if prepending:
        own.add_tokens([PLACEHOLDER])
        placeholder = own.convert_tokens_to_ids(PLACEHOLDER)
    adapted = HuggingFaceTokenizer(own)
    bare, whole = adapted.encode_many(["a b"])[0], list(own("a b")["input_ids"])
    starts = (at for at in range(len(whole) + 1) if whole[at : at + len(bare)] == bare)
    if (start := next(starts, None)) is None:
        raise ModelError(f"the special tokens of a {type(own).__name__} change the text between them")
    special = tuple(whole[:start])  # those after the text are left out
    return OwnTokenizer(adapted, special, getattr(own, "pad_token_id", None), placeholder)


class PromptVocabulary(HuggingFaceTokenizer):
    """A tokenizer for the vocabulary that encodes text as part of a sentence in the prompt."""

    # A token that would close the quotation around the sentence, or with whitespace that cleaning removes,
    # encodes to other ids: no text can produce it.

    def __init__(self, tokenizer: HuggingFaceTokenizer, *, quoted: bool) -> None:
        vars(self).update(vars(tokenizer))  # a copy of a large vocabulary takes seconds
        self._quoted = quoted

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        return super().encode_many([reachable_text(text, quoted=self._quoted) for text in texts])

    def encode_with_spans(self, texts: Sequence[str]) -> list[tuple[list[int], list[Span] | None]]:
        return [(ids, None) for ids in self.encode_many(texts)]
