"""Find copies of sticky tokens, special tokens written as text, and repetitions in a text.

A single natural occurrence of a flagged word is not a finding, because flagged words also occur in ordinary
text. `scan`, `clean` and `check` all find with this module.
"""

from __future__ import annotations

import html
import re
import unicodedata
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

from stickytoken.cleaning import _copies, _markup
from stickytoken.cleaning._units import UnitReader
from stickytoken.cleaning.rules import CleaningRules, match_any, text_digest


class SpanKind(StrEnum):
    """The kinds of findings, in order of precedence: where findings overlap, the kind listed first wins.

    Examples:
        >>> from stickytoken.cleaning import SpanKind
        >>> list(map(str, SpanKind))
        ['flagged', 'special', 'repetition', 'suspected']
    """

    FLAGGED = "flagged"
    """Copies of a flagged word or special token."""
    SPECIAL = "special"
    """Text of a special token that isn't flagged or has fewer than three copies."""
    REPETITION = "repetition"
    """An unflagged word or phrase, repeated more often than in ordinary text."""
    SUSPECTED = "suspected"
    """A copy of an unflagged word that seems to have been inserted among other words."""

    @property
    def phrase(self) -> str:
        """The kind as a phrase for use in a sentence."""
        return _PHRASES[self]

    @property
    def cause(self) -> str:
        """The name of the kind in counts of documents, such as "repetition: 2"."""
        return _CAUSES[self]


_PHRASES = {
    SpanKind.FLAGGED: "copies of a flagged token",
    SpanKind.SPECIAL: "the text of a special token",
    SpanKind.REPETITION: "a repetition of another word or phrase",
    SpanKind.SUSPECTED: "suspected copies of another word",
}

_CAUSES = {
    SpanKind.FLAGGED: "flagged token",
    SpanKind.SPECIAL: "special token",
    SpanKind.REPETITION: "repetition",
    SpanKind.SUSPECTED: "suspected copies",
}


class Fix(StrEnum):
    """Whether a finding can be removed.

    Examples:
        >>> from stickytoken.cleaning import Fix
        >>> list(map(str, Fix))
        ['safe', 'unsafe', 'none']
    """

    SAFE = "safe"
    """Flagged tokens in a row, and special tokens."""
    UNSAFE = "unsafe"
    """Words that may be part of the document: scattered copies, repetitions and suspected copies."""
    NONE = "none"
    """Nothing can be removed without damage to a table, a tag, an address, code or a character."""


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a text that consists only of copies, and of what separates them.

    Attributes:
        start: Offset of the first character.
        end: Offset after the last character.
        kind: Kind of the finding.
        what: The flagged word, the repeated words or the special token.
        count: Number of copies in the span.
        first_end: Offset after the first copy. Cleaning keeps the first copy of a repetition.
        fix: Whether the span can be removed.
        is_special: Whether the span is the text of a special token. Its kind is ``flagged`` if the rules flag
            the token and the text has at least three copies of such tokens, otherwise ``special``.
        is_html_tag: Whether the span is a special token such as ``</s>`` that stays because it may be a tag.

    Examples:
        >>> from stickytoken.cleaning import CleaningRules, find_spans
        >>> (span,) = find_spans("a <pad> bird", CleaningRules(specials=("<pad>",)))
        >>> span.start, span.end, span.is_certain
        (2, 7, True)
    """

    start: int
    end: int
    kind: SpanKind
    what: str
    count: int
    first_end: int
    fix: Fix
    is_special: bool = False
    is_html_tag: bool = False

    @property
    def is_certain(self) -> bool:
        """Whether the span is a special token or a run of a flagged word that no ordinary text contains."""
        is_run = self.kind is SpanKind.FLAGGED and self.count >= _copies.FEWEST_CERTAIN
        return is_run or (self.is_special and not self.is_html_tag)


def find_spans(text: str, rules: CleaningRules) -> list[Span]:
    """Find the spans of a text that match the rules, in time linear in the length of the text.

    Args:
        text: Any text.
        rules: What to look for.

    Returns:
        The spans in order, without overlaps.

    Examples:
        >>> from stickytoken.cleaning import CleaningRules, find_spans
        >>> [span.what for span in find_spans("a <pad> bird", CleaningRules(specials=("<pad>",)))]
        ['<pad>']
    """
    return finder_of(rules).find(text)


class _Special(NamedTuple):
    """A special token in a text: the text that the rules list, and where it is written, in any spelling."""

    what: str
    start: int
    end: int


class SpanFinder:
    """Searches texts for the words, special tokens and repetitions that the rules describe."""

    def __init__(self, rules: CleaningRules) -> None:
        self._known_digests = frozenset(rules.known)  # of texts that have no finding
        allowed = frozenset(text.strip() for text in rules.allowed)
        # Special tokens are found by their texts, and all other words by their keys. Each special token in a
        # text is a finding; copies of special tokens that are also flagged may be sticky.
        specials = {text.strip() for text in rules.specials} - allowed
        self._flagged_specials = specials.intersection(word.strip() for word in rules.words)
        words = [word for word in rules.words if word.strip() not in allowed | specials]
        self._reader = UnitReader(words, rules.normalizer)
        # Words are compared by their keys, which other spellings of a word share. So an allowed word allows
        # its other spellings too.
        self._allowed_keys = frozenset(map(self._reader.key_of, allowed))
        # Keyed as the words of a text are compared, in `Document.keys`.
        self._flagged = {
            key: word for key, word in self._reader.flagged.items() if key not in self._allowed_keys
        }
        # Special tokens that the tokenizer reads from other spellings, too, are also found by their keys.
        normalized_specials = specials.intersection(text.strip() for text in rules.normalized_specials)
        self._special_of_key = {self._reader.key_of(text): text for text in sorted(normalized_specials)}
        for key in self._allowed_keys.intersection(self._special_of_key):
            specials.remove(self._special_of_key.pop(key))
        self._special_pattern = _compile_any(specials)
        self._special_key_pattern = _compile_any(self._special_of_key)
        # Minimum number of copies that form a repetition.
        self._fewest_repeated = rules.longest_run + 1

    def find(self, text: str) -> list[Span]:
        """Return the spans of a text in order, without overlaps; none if the text is a known one."""
        if self._known_digests and text_digest(text) in self._known_digests:
            return []
        view = _markup.view_of(text)  # the text with placeholders for markup, and where the markup is
        spans = list(self._find_specials(text, view.protected))
        if "&" in text:  # there may be entities, such as "&lt;"
            spans = _drop_overlaps([*spans, *self._find_specials_as_entities(text, view.text)])
        # One or two flagged special tokens, which a text about tokenizers may name, are of the kind
        # "special". If there are more, they are "flagged".
        flagged_count = sum(span.what in self._flagged_specials for span in spans)
        if flagged_count >= _copies.FEWEST_CERTAIN:
            for index, span in enumerate(spans):
                if span.what in self._flagged_specials:
                    spans[index] = replace(span, kind=SpanKind.FLAGGED)
        # Special tokens are findings of their own, so the search for words sees placeholders in their place.
        searched_pieces = []
        copied_to = 0
        for special in spans:
            placeholders = _markup.SPECIAL * (special.end - special.start)
            searched_pieces += [view.text[copied_to : special.start], placeholders]
            copied_to = special.end
        searched_pieces.append(view.text[copied_to:])
        spans += self._find_words(text, "".join(searched_pieces))
        if view.protected:
            spans += self._find_flagged_in_markup(text, view.protected)
        return _drop_overlaps(spans)

    def find_only_specials(self, text: str) -> list[Span]:
        """Return the spans of special tokens, and look for nothing else."""
        if not self._locate_specials(text):
            return []
        return list(self._find_specials(text, _markup.view_of(text).protected))

    def _locate_specials(self, text: str) -> list[_Special]:
        """Return where special tokens are written in a text, in order and without overlaps.

        As tokenizers do, this looks for them first as the rules spell them, and then in between for other
        spellings.
        """
        if self._special_pattern is None:
            return []
        specials: list[_Special] = []
        searched_to = 0
        for match in self._special_pattern.finditer(text):
            start, end = match.span()
            specials += self._locate_other_spellings(text, searched_to, start)
            specials.append(_Special(match[0], start, end))
            searched_to = end
        specials += self._locate_other_spellings(text, searched_to, len(text))
        return specials

    def _locate_other_spellings(self, text: str, first: int, last: int) -> Iterator[_Special]:
        """Yield the special tokens that part of a text contains in a spelling that the rules don't list."""
        if self._special_key_pattern is None:
            return
        part = text[first:last]
        normalised_part = self._reader.normalise(part)
        if not self._special_key_pattern.search(normalised_part):  # as in most texts
            return
        positions = self._reader.find_positions(part)
        for match in self._special_key_pattern.finditer(normalised_part):
            start = positions[match.start()]
            end = positions[match.end() - 1] + 1
            # The normaliser may treat several characters unlike one after the other.
            if self._reader.key_of(part[start:end]) == match[0]:
                yield _Special(self._special_of_key[match[0]], first + start, first + end)

    def _find_specials(self, text: str, protected: Sequence[tuple[int, int]]) -> Iterator[Span]:
        """Yield the special tokens of a text. No fix removes one that is part of markup.

        ``protected`` has the start and end (exclusive) of all tags, addresses and code, in order and without
        overlaps.
        """
        specials = self._locate_specials(text)
        if not specials:
            return
        markup_starts = [start for start, _ in protected]
        written = [text[special.start : special.end] for special in specials]
        markup_texts = {text[start:end] for start, end in protected} - set(written)
        # "<pad>" looks like a tag, but no HTML has it. "<s>" may be either: it is taken for a tag, which
        # stays, if the text has tags that are no special tokens, and this one stands as tags do.
        has_other_tags = any(markup[0] == "<" for markup in markup_texts)
        inserted = _find_inserted_specials(text, specials)
        for number, (what, start, end) in enumerate(specials):
            nearest = bisect_right(markup_starts, start) - 1  # the last markup that does not begin later
            is_whole_markup = nearest >= 0 and protected[nearest] == (start, end)
            is_in_markup = nearest >= 0 and start < protected[nearest][1] and not is_whole_markup
            may_be_html = is_whole_markup and has_other_tags and _markup.is_formatting_tag(written[number])
            is_html = may_be_html and number not in inserted
            is_link = text[start] == "[" and text.startswith("(", end)  # of Markdown
            is_link = is_link or _markup.is_link_text(text, start, end)
            fix = Fix.NONE if is_in_markup or is_html or is_link else Fix.SAFE
            span = _make_special_span(what, start, end, fix)
            yield replace(span, is_html_tag=is_html and not is_link)

    def _find_specials_as_entities(self, text: str, padded: str) -> Iterator[Span]:
        """Yield the special tokens that are written with entities, such as ``&lt;/s&gt;`` for ``</s>``.

        No fix removes such a token. ``padded`` is the text with decoded entities. It is as long as ``text``,
        because fillers follow each decoded entity, and replace markup that must stay.
        """
        fillers = (_markup.PAD, _markup.UNTOUCHABLE)
        # The offset in the text of each decoded character, and of the end.
        offsets = [offset for offset, character in enumerate(padded) if character not in fillers]
        decoded = "".join(padded[offset] for offset in offsets)
        offsets.append(len(text))
        for special in self._locate_specials(decoded):
            start, end = offsets[special.start], offsets[special.end]
            written = text[start:end]
            spelling = decoded[special.start : special.end]
            # A special token without entities is found by `_find_specials`. One around markup, which fillers
            # replace, is none.
            if written != spelling and html.unescape(written) == spelling:
                yield _make_special_span(special.what, start, end, Fix.NONE)

    def _find_flagged_in_markup(self, text: str, protected: Sequence[tuple[int, int]]) -> Iterator[Span]:
        """Yield the copies of flagged words in tags, addresses and code: in a row, or close together.

        The latter stand in at least four pieces of markup, as in "`able` `able` `able` `able`". In a single
        piece, such as the path of an address, copies that are not in a row have a meaning of their own. No
        fix removes anything from markup.

        ``protected`` has the start and end (exclusive) of the pieces, in order.
        """
        pieces_with_flagged_words = []
        for start, end in protected:
            markup = _copies.Document(text[start:end], self._reader)
            if not self._flagged.keys().isdisjoint(markup.positions):
                pieces_with_flagged_words.append((start, end))
            for run in _copies.find_flagged_runs(markup, self._flagged):
                if len(run) >= _copies.FEWEST_CERTAIN:
                    word = self._flagged[markup.keys[run.start]]
                    run_start = start + markup.units.starts[run.start]
                    run_end = start + markup.units.ends[run.stop - 1]
                    yield Span(run_start, run_end, SpanKind.FLAGGED, word, len(run), run_end, Fix.NONE)
        if len(pieces_with_flagged_words) < _copies.FEWEST_COPIES:
            return
        document = _copies.Document(text, self._reader)  # with the words of the markup
        close = _copies.find_close_copies(document, self._flagged)
        index_of_start = {document.units.starts[index]: index for index in close}
        found = []
        pieces_with_copies = 0
        for start, end in pieces_with_flagged_words:
            indices = [index_of_start[offset] for offset in range(start, end) if offset in index_of_start]
            pieces_with_copies += bool(indices)
            found += indices
        if pieces_with_copies < _copies.FEWEST_COPIES:
            return
        for index in found:
            start, end = document.units.starts[index], document.units.ends[index]
            word = self._flagged[document.keys[index]]
            yield Span(start, end, SpanKind.FLAGGED, word, 1, end, Fix.NONE)

    def _find_words(self, text: str, searched: str) -> Iterator[Span]:
        """Yield the copies of words in a text, in no particular order. The spans may overlap.

        ``searched`` is the text with placeholders for markup and special tokens; its offsets are the same.
        """
        document = _copies.Document(searched, self._reader)
        fewest = min(self._fewest_repeated, _copies.FEWEST_COPIES)
        has_repeated_word = any(len(positions) >= fewest for positions in document.positions.values())
        has_flagged_word = not self._flagged.keys().isdisjoint(document.positions)
        if not has_repeated_word and not has_flagged_word:
            return
        # Copies of flagged words: those in a row (as ranges of unit indices), and those scattered over the
        # text.
        runs = _copies.find_flagged_runs(document, self._flagged)
        scattered = _copies.find_scattered_copies(document, self._flagged)
        repetitions = []
        for stretch in _copies.find_stretches(document, self._fewest_repeated):
            indices = range(stretch.first, stretch.end)
            flagged_indices = [index for index in indices if document.keys[index] in self._flagged]
            # A repeated phrase with flagged words in it is a finding of these words alone.
            scattered.update(flagged_indices)
            if not flagged_indices and self._is_repetition(document, stretch):
                repetitions.append(stretch)
        for run in runs:
            scattered.difference_update(run)
            is_certain = len(run) >= _copies.FEWEST_CERTAIN
            yield from self._find_flagged_spans(text, document, run, is_certain=is_certain)
        for chain in document.chains(sorted(scattered)):
            yield from self._find_flagged_spans(text, document, chain, is_certain=False)
        for stretch in repetitions:
            yield _make_repetition_span(text, document, stretch)
        unsuspected_keys = self._allowed_keys.union(self._flagged)
        suspected = _copies.find_planted_copies(document, unsuspected_keys, repetitions)
        for index in sorted(suspected):
            start = document.units.starts[index]
            end = document.units.ends[index]
            would_break = document.has_entity(index) or _cuts_clusters(text, start, end)
            would_break = would_break or _markup.is_link_text(text, start, end)
            fix = Fix.NONE if would_break else Fix.UNSAFE
            yield Span(start, end, SpanKind.SUSPECTED, document.keys[index], 1, end, fix)

    def _find_flagged_spans(
        self, text: str, document: _copies.Document, chain: range, *, is_certain: bool
    ) -> Iterator[Span]:
        """Yield the spans of flagged words that follow each other.

        ``document`` is the same text in units, with placeholders for markup; ``chain`` has the indices of the
        flagged units. They are a run that no ordinary text contains or, unless ``is_certain``, two in a row
        or copies of a word that is scattered over the text.
        """
        units = document.units
        gaps = [document.gap(index) for index in chain[1:]]  # before each unit but the first
        start = units.starts[chain.start]
        end = units.ends[chain.stop - 1]
        # Copies that may be data stay: values in a list, in a table or on a line of their own, part of
        # another word, or the text of a link, which would have none.
        is_in_list = any("," in gap for gap in gaps) and _markup.is_in_brackets(document.text, start)
        is_data = is_in_list or _markup.is_in_row(document.text, start, end)
        is_data = is_data or _markup.is_link_text(document.text, start, end)
        if not is_certain:
            fills_cell = document.is_alone(chain.start)  # in a cell of a table, or on a line
            is_data = is_data or fills_cell or document.is_attached(chain)
        has_markup = any(_markup.UNTOUCHABLE in gap for gap in gaps)
        has_entity = any(document.has_entity(index) for index in chain)
        fix = Fix.SAFE if is_certain else Fix.UNSAFE
        if is_data or has_markup or has_entity:
            fix = Fix.NONE
        for piece in _divide_chain(document, chain, gaps):
            copies_of_key = Counter(document.keys[piece.first : piece.last + 1])
            most_frequent_key = copies_of_key.most_common(1)[0][0]
            yield Span(
                start=piece.start,
                end=piece.end,
                kind=SpanKind.FLAGGED,
                what=self._flagged[most_frequent_key],
                count=copies_of_key.total(),
                first_end=units.ends[piece.first],
                fix=Fix.NONE if _cuts_clusters(text, piece.start, piece.end) else fix,
            )

    def _is_repetition(self, document: _copies.Document, stretch: _copies.Stretch) -> bool:
        """Return whether a stretch is a repetition, and not ordinary text, a list of values or code."""
        words = set(document.keys[stretch.first : stretch.end])
        phrase = document.keys[stretch.first : stretch.first + stretch.period]
        # The repetition of "buy now" may begin with "now".
        beginnings = {" ".join(phrase[index:] + phrase[:index]) for index in range(len(phrase))}
        if words <= self._allowed_keys or not beginnings.isdisjoint(self._allowed_keys):
            return False
        # Different words of at most two letters are symbols or abbreviations, as in "o, o, n, n, no, no". The
        # words next to the stretch are included, because the stretch may be part of a longer list of symbols.
        words_around = {*words, *document.keys[max(0, stretch.first - 1) : stretch.end + 1]}
        if len(words_around) > 1 and all(len(word) <= 2 and word.isascii() for word in words_around):
            return False
        if all(map(_is_value, words)):  # tables and formulas naturally repeat them
            return False
        gaps = [document.gap(index) for index in range(stretch.first + 1, stretch.end)]
        is_hyphenated = stretch.period > 1 and set(gaps) == {"-"}  # as in "dict-of-dict-of-dict-of-dict"
        is_compound = is_hyphenated and len(gaps) < _MOST_IN_COMPOUND * stretch.period
        # If copies begin with punctuation, as in "(able (able", the first copy probably does too. Then look
        # from before its bracket.
        gap_before_second_copy = gaps[stretch.period - 1]
        mark_before_copies = _read_marks(gap_before_second_copy).of_second
        start = document.units.starts[stretch.first] - len(mark_before_copies)
        end = document.units.ends[stretch.end - 1]
        in_table = _markup.is_in_row(document.text, start, end)
        return not (is_compound or in_table or _markup.is_in_brackets(document.text, start))


def _is_value(word: str) -> bool:
    is_single_letter = word.isascii() and len(set(word)) == 1  # such as "x" or "xx"
    return word[0].isdigit() or is_single_letter or word.casefold() in _PLACEHOLDERS


# Words that represent values in tables and code.
_PLACEHOLDERS = frozenset(("nan", "inf", "nil", "null", "none", "true", "false"))
# Maximum number of copies of a phrase in a hyphenated compound.
_MOST_IN_COMPOUND = 4


def _compile_any(texts: Iterable[str]) -> re.Pattern[str] | None:
    pattern = match_any(texts)
    return re.compile(pattern) if pattern else None


finder_of = lru_cache(maxsize=32)(SpanFinder)


@dataclass(frozen=True, slots=True)
class _Marks:
    """Punctuation between two copies."""

    of_first: str  # attached to the first copy
    of_second: str  # attached to the second copy
    apart: str  # attached to neither, but set apart by spaces


@lru_cache(maxsize=4096)
def _read_marks(gap: str) -> _Marks:
    """Divide the punctuation between two copies: attached to the first, to the second, or to neither.

    In ``able, (able``, the comma is attached to the first copy, and the bracket to the second.
    """
    spaced_gap = "".join(" " if _is_blank(character) else character for character in gap)
    marks = spaced_gap.split()
    if not marks:
        return _Marks("", "", "")
    is_attached_to_first = not spaced_gap[0].isspace()
    of_first = marks.pop(0) if is_attached_to_first else ""
    is_attached_to_second = not spaced_gap[-1].isspace()
    of_second = marks.pop() if marks and is_attached_to_second else ""
    return _Marks(of_first, of_second, apart=" ".join(marks))


def _is_blank(character: str) -> bool:
    return character.isspace() or unicodedata.category(character) == "Cf"


@dataclass(frozen=True, slots=True)
class _Piece:
    """Copies that can be removed together."""

    first: int  # index of the first unit
    last: int  # index of the last unit
    start: int  # where they start in the text, with punctuation that belongs to them
    end: int  # where they end (exclusive)


def _divide_chain(document: _copies.Document, chain: range, gaps: Sequence[str]) -> list[_Piece]:
    """Divide successive copies at punctuation that belongs to the document, and return the pieces.

    Punctuation does not belong to the document, but came with the copies, if it stands between all of them
    and there are at least four copies.

    ``chain`` has the indices of the copies, and ``gaps`` the text between each two neighbouring copies.
    """
    units = document.units
    marks = [_read_marks(gap) for gap in gaps]
    has_marks = [bool(mark.of_first or mark.of_second or mark.apart) for mark in marks]
    if len(chain) >= _copies.FEWEST_COPIES and all(has_marks):
        are_equal = len(set(marks)) == 1
        all_follow_a_copy = all(mark.of_first and not mark.of_second and not mark.apart for mark in marks)
        if (are_equal or all_follow_a_copy) and _markup.SPECIAL not in "".join(gaps):
            start, end = _extend_to_outer_marks(document, chain, marks)
            return [_Piece(chain.start, chain.stop - 1, start, end)]
    pieces = []
    first = chain.start  # unit with which the piece begins
    for index, has_marks_before in zip(chain[1:], has_marks, strict=True):
        if has_marks_before:
            pieces.append(_Piece(first, index - 1, units.starts[first], units.ends[index - 1]))
            first = index
    last = chain.stop - 1
    pieces.append(_Piece(first, last, units.starts[first], units.ends[last]))
    return pieces


def _extend_to_outer_marks(
    document: _copies.Document, chain: range, marks: Sequence[_Marks]
) -> tuple[int, int]:
    """Return where copies start and end, with punctuation around them like the marks between them.

    Of "(able) (able) (able) (able)", the first "(" and the last ")" belong to the copies too.
    """
    text = document.text
    start = document.units.starts[chain.start]
    end = document.units.ends[chain.stop - 1]
    first_mark = marks[0]
    if first_mark.of_second and text.endswith(first_mark.of_second, 0, start):
        start -= len(first_mark.of_second)
    for mark_after_copy in sorted({mark.of_first for mark in marks}, key=len, reverse=True):
        if mark_after_copy and text.startswith(mark_after_copy, end):
            return start, end + len(mark_after_copy)
    # A mark between spaces after the last copy belongs to the copies too, but not if a word follows the mark
    # at once, as in "able - able -5".
    if not first_mark.of_first and not first_mark.of_second:
        mark_apart = f" {first_mark.apart}"
        end_with_mark = end + len(mark_apart)
        next_character = text[end_with_mark : end_with_mark + 1]  # empty at the end of the text
        if text.startswith(mark_apart, end) and not next_character.strip():
            end = end_with_mark
    return start, end


_TAG = re.compile(r"<[^<>]*>")


def _find_inserted_specials(text: str, specials: Sequence[_Special]) -> set[int]:
    """Return which of the special tokens in a text, in order, can't be tags of HTML.

    Returns their indices in ``specials``: of three or more in succession that are equal, or have nothing but
    marks and other tags between them, such as "<s> <s> <s>". A tag encloses words, and is closed before it is
    opened again: "<s>word</s> <s>word</s>".
    """
    inserted: set[int] = set()
    row: list[int] = []
    for number, special in enumerate(specials):
        if number > 0:
            previous = specials[number - 1]
            if not _continues_row(previous.what, special.what, text[previous.end : special.start]):
                row = []
                # A tag that closes another behind words stays, even if copies follow.
                if special.what == previous.what.replace("<", "</"):
                    continue
        row.append(number)
        if len(row) >= _copies.FEWEST_CERTAIN:
            inserted.update(row[-_copies.FEWEST_CERTAIN :])
    return inserted


def _continues_row(previous: str, tag: str, between: str) -> bool:
    """Return whether no words are between two tags, or they are equal and none between is their counterpart.

    The counterpart of a tag closes it, or is closed by it.
    """
    if re.search(r"\w", _TAG.sub("", between)) is None:
        return True
    element = re.escape(tag.strip("</>"))
    # A tag that opens one, with attributes, is no special token.
    counterpart = rf"<{element}[\s>]" if tag.startswith("</") else f"</{element}>"
    return tag == previous and re.search(counterpart, between, re.IGNORECASE) is None


def _make_special_span(special: str, start: int, end: int, fix: Fix) -> Span:
    return Span(start, end, SpanKind.SPECIAL, special, count=1, first_end=end, fix=fix, is_special=True)


def _make_repetition_span(text: str, document: _copies.Document, stretch: _copies.Stretch) -> Span:
    """Return the span of a repeated word or phrase.

    The repetition can be removed if each gap between its words has the same punctuation in all copies.
    """
    units = document.units
    period = stretch.period  # number of units in a copy
    whole_copies = (stretch.end - stretch.first) // period  # the last copy may be incomplete
    gaps = [document.gap(index) for index in range(stretch.first + 1, stretch.end)]
    # Compare each gap with the gap one period later, which stands between the same words of the next copy.
    is_regular = all(
        _read_marks(gap) == _read_marks(next_gap) for gap, next_gap in zip(gaps, gaps[period:], strict=False)
    )
    marks = _read_marks(gaps[period - 1])  # between the first two copies
    start = units.starts[stretch.first]
    first_end = units.ends[stretch.first + period - 1]
    end = units.ends[stretch.first + whole_copies * period - 1]
    # The punctuation that is attached to every copy belongs to the span.
    if marks.of_first and document.text.startswith(marks.of_first, end):
        first_end += len(marks.of_first)
        end += len(marks.of_first)
    if marks.of_second and document.text.endswith(marks.of_second, 0, start):
        start -= len(marks.of_second)
    elif marks.of_second:  # the first copy lacks the punctuation that stands before all other copies
        is_regular = False
    is_untouchable = any(_markup.UNTOUCHABLE in gap or _markup.SPECIAL in gap for gap in gaps)
    has_entity = any(document.has_entity(index) for index in range(stretch.first, stretch.end))
    would_break = is_untouchable or has_entity or _cuts_clusters(text, first_end, end)
    what = " ".join(document.keys[stretch.first : stretch.first + period])
    fix = Fix.UNSAFE if is_regular and not would_break else Fix.NONE
    return Span(start, end, SpanKind.REPETITION, what, whole_copies, first_end, fix)


def _cuts_clusters(text: str, start: int, end: int) -> bool:
    return _markup.cuts_cluster(text, start) or _markup.cuts_cluster(text, end)


def _drop_overlaps(spans: Sequence[Span]) -> list[Span]:
    disjoint: list[Span] = []
    # `SpanKind` lists the kinds by precedence, the highest first.
    precedence = {kind: rank for rank, kind in enumerate(SpanKind)}
    # Within a kind, the span that begins first has precedence, and then the longest.
    for span in sorted(spans, key=lambda span: (span.start, -span.end)):
        # Only the last span can overlap this one, because the spans before it end where it begins or earlier.
        if not disjoint or span.start >= disjoint[-1].end:
            disjoint.append(span)
        elif precedence[span.kind] < precedence[disjoint[-1].kind]:
            disjoint[-1] = span
    return disjoint
