"""Cut a text into units; find what repeats in them, and copies that ordinary text would not have."""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property, lru_cache
from itertools import chain, pairwise
from typing import TYPE_CHECKING, NamedTuple

from stickytoken.cleaning.rules import COMMON, alternation

if TYPE_CHECKING:
    import regex


MIXED_RUN = 16  # so many units of three different words in a row are a run; fewer may be natural


class Stretch(NamedTuple):
    first: int
    last: int  # the unit behind the last one
    period: int  # how many units one copy takes; 0 for a few words in no fixed order


def stretches_of(keys: Sequence[str], positions: Mapping[str, list[int]], copies: int) -> list[Stretch]:
    gaps = copies - 1
    regular: list[Stretch] = []
    mixed: list[Stretch] = []
    for places in positions.values():
        done = mixed_done = 0
        for first, last in zip(places, places[gaps:], strict=False):
            if first < done or last - first > gaps * 16:
                continue
            period, rest = divmod(last - first, gaps)
            if not rest and keys[first : last - period] == keys[first + period : last]:
                regular.append(_lengthened(keys, first, last, period))
                done = regular[-1].last
            elif first >= mixed_done and last - first <= gaps * 4:  # at most three others between two
                words = set(keys[first : last + 1])
                if len(words) <= 3:  # as far as there are no others
                    start, end = first, last + 1
                    while start > 0 and keys[start - 1] in words:
                        start -= 1
                    while end < len(keys) and keys[end] in words:
                        end += 1
                    mixed.append(Stretch(start, end, 0))
                    mixed_done = end
    # Of those that overlap, earlier ones go first, then longer ones.
    long = [each for each in mixed if each.last - each.first >= MIXED_RUN]
    taken = bytearray(len(keys))
    kept = []
    for stretch in chain.from_iterable(
        sorted(stretches, key=lambda each: (each.first, -each.last)) for stretches in (long, regular, mixed)
    ):
        if taken.find(1, stretch.first, stretch.last) < 0:
            taken[stretch.first : stretch.last] = b"\1" * (stretch.last - stretch.first)
            kept.append(stretch)
    return sorted(kept)


def _lengthened(keys: Sequence[str], first: int, last: int, period: int) -> Stretch:
    step = 1
    while step:
        if keys[last : last + step] == keys[last - period : last - period + step]:
            last, step = last + step, 2 * step
        else:
            step //= 2
    step = 1
    while step:
        if step <= first and keys[first - step : first] == keys[first - step + period : first + period]:
            first, step = first - step, 2 * step
        else:
            step //= 2
    return Stretch(first, last, period)


Repeat = tuple[int, int, int]  # copies that follow each other: start, end, and length of one

_SHORTEST = 3
_COPIES = 4
_NOT_ZERO = re.compile(rb"[^\0]")


def _repeats_in(text: str) -> Iterator[Repeat]:
    # Where a text is equal to itself moved by a period, the bytes of their exclusive or are zero. Python
    # computes it for a whole text at once, and finds zeros several times as fast as a regular expression.
    if len(text) - len(set(text)) < (_COPIES - 1) * _SHORTEST:
        return
    coding, width = ("latin-1", 1) if max(text) <= "\xff" else ("utf-32-le", 4)
    data = text.encode(coding, "surrogatepass")
    number = int.from_bytes(data, "little")
    taken = bytearray(len(text))
    for period in range(_SHORTEST, min(32, len(text) // _COPIES) + 1):
        equal = (number ^ number >> 8 * width * period).to_bytes(len(data), "little")
        zeros = bytes((_COPIES - 1) * period * width)
        first = equal.find(zeros)
        while first >= 0:
            other = _NOT_ZERO.search(equal, first + len(zeros))
            last = other.start() if other else len(equal)
            start = -(-first // width)
            copies = (last // width - start) // period + 1
            end = start + copies * period
            if copies >= _COPIES and not any(taken[start:end]):
                taken[start:end] = b"\1" * (end - start)
                yield start, end, period
            first = equal.find(zeros, last)


Part = tuple[str, int, int]  # its key, and where it begins and ends in its word

_SHORTEST_DOUBLED = 4
_GENETIC = frozenset("acgtu")
_DIACRITICS = "\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe00-\ufe0f\ufe20-\ufe2f"
_INVISIBLE = "\u00ad\u061c\u115f\u1160\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufeff\uffa0"
_BREAKS = re.compile(f"[{_DIACRITICS}{_INVISIBLE}\U000e0000-\U000e0fff]+")
_IDEOGRAPHS = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af"
_SINGLE_IDEOGRAPHS = re.compile(f"[{_IDEOGRAPHS}]|[^{_IDEOGRAPHS}]+")
_PLAIN_IDEOGRAPHS = re.compile("[\u3400-\u4dbf\u4e00-\u9fff]+")
_REMEMBERED = 50_000
_LONGEST_REMEMBERED = 64
_LONGEST_DECOMPOSED = 4  # some signs stand for whole phrases; no one writes a word with them


def _key_of(word: str) -> str:
    return "".join(map(_plain, _BREAKS.sub("", word)))


def _repeats_between(key: str, start: int, end: int) -> list[Repeat]:
    found = []
    for first, last, period in _repeats_in(key[start:end]):
        root = key[start + first : start + first + period]
        if root.isalpha() and len(set(root)) > 1 and not _GENETIC.issuperset(key):
            found.append((start + first, start + last, period))
    return sorted(found)


def _pieces(word: str) -> list[tuple[str, list[int]]]:
    pieces = []
    start = 0
    for end, stop in [*(match.span() for match in _BREAKS.finditer(word)), (len(word), len(word))]:
        plain = [_plain(each) for each in word[start:end]]
        if places := [start + number for number, each in enumerate(plain) for _ in each]:
            pieces.append(("".join(plain), [*places, stop]))
        start = stop
    long = [key for key, _ in pieces if len(key) > 1]
    if len(pieces) > 1 and len(set(long)) == len(long):
        joined = [place for _, places in pieces for place in places[:-1]]
        return [("".join(key for key, _ in pieces), [*joined, pieces[-1][1][-1]])]
    return pieces


@cache
def _plain(character: str) -> str:
    decomposed = unicodedata.normalize("NFKD", character)
    if len(decomposed) > _LONGEST_DECOMPOSED:
        return character
    return unicodedata.normalize("NFC", _BREAKS.sub("", decomposed)).casefold()


_WORD = r"[\p{L}\p{N}][\p{L}\p{N}\p{M}\p{Cf}]*"


class Units(NamedTuple):
    keys: list[str]  # what each unit is compared by
    starts: list[int]
    ends: list[int]  # offsets behind the last characters


class UnitReader:
    def __init__(self, flagged: Iterable[str]) -> None:
        texts = {text.strip() for text in flagged} - {""}
        words = {_key_of(text) for text in texts if _key_of(text).isalnum()}
        self._literals = {text.casefold() for text in texts if not _key_of(text).isalnum()}
        self.flagged = frozenset(words | self._literals)
        self._copies = re.compile(f"({alternation(words)})\\1+") if words else None
        self._remembered = lru_cache(_REMEMBERED)(self._divided)
        self._whole: set[str] = set()  # words in lower-case ASCII that are one part, themselves
        ascii_literals = sorted(text for text in self._literals if text.isascii())
        self._ascii_word = re.compile(_either(ascii_literals, "[A-Za-z0-9]+"), re.IGNORECASE)
        self.lower_word = re.compile(_either(ascii_literals, "[a-z0-9]+"))

    @cached_property
    def _unicode_word(self) -> regex.Pattern[str]:
        import regex  # takes longer to import than a cleaner to load

        return regex.compile(_either(sorted(self._literals), _WORD), regex.IGNORECASE)

    def plain_keys(self, text: str) -> list[str] | None:
        """Return the keys of a plain text, several times as fast as `read`; None for any other text."""
        if not text.isascii():
            return None
        words: list[str] = self.lower_word.findall(text.lower())
        new = set(words) - self._whole
        if any(len(self._parts(word)) > 1 for word in new):
            return None
        if len(self._whole) > _REMEMBERED:
            self._whole.clear()
        self._whole.update(word for word in new if len(word) <= _LONGEST_REMEMBERED)
        return words

    def read(self, text: str) -> Units:
        keys: list[str] = []
        starts: list[int] = []
        ends: list[int] = []
        pattern = self._ascii_word if text.isascii() else self._unicode_word
        for match in pattern.finditer(text):
            start, word = match.start(), match[0]
            # Each ideograph is a unit, and these are their own keys.
            if word > "\u3400" and _PLAIN_IDEOGRAPHS.fullmatch(word):
                keys.extend(word)
                starts.extend(range(start, start + len(word)))
                ends.extend(range(start + 1, start + len(word) + 1))
                continue
            folded = word.casefold() if self._literals else ""
            parts = ((folded, 0, len(word)),) if folded in self._literals else self._parts(word)
            for key, first, last in parts:
                keys.append(key)
                starts.append(start + first)
                ends.append(start + last)
        return Units(keys, starts, ends)

    def _parts(self, word: str) -> tuple[Part, ...]:
        return self._remembered(word) if len(word) <= _LONGEST_REMEMBERED else self._divided(word)

    def _divided(self, word: str) -> tuple[Part, ...]:
        if word.isascii():
            return tuple(self._split_copies(word.lower(), range(len(word) + 1)))
        parts: list[Part] = []
        for piece, places in _pieces(word):
            if piece.isascii() and len(piece) <= _LONGEST_REMEMBERED:
                parts += [(key, places[first], places[last]) for key, first, last in self._parts(piece)]
                continue
            for first, last in (match.span() for match in _SINGLE_IDEOGRAPHS.finditer(piece)):
                parts += self._split_copies(piece[first:last], places[first : last + 1])
        return tuple(parts)

    def _split_copies(self, key: str, places: Sequence[int]) -> Iterator[Part]:
        done = 0
        for start, end, period in self._copies_in(key) if len(key) >= _COPIES else ():
            if start > done:
                yield key[done:start], places[done], places[start]
            for place in range(start, end, period):
                yield key[place : place + period], places[place], places[place + period]
            done = end
        if done < len(key):
            yield key[done:] if done else key, places[done], places[len(key)]

    def _copies_in(self, key: str) -> Iterator[Repeat]:
        done = 0
        for match in self._copies.finditer(key) if self._copies else ():
            period = len(match[1])
            copies = (match.end() - match.start()) // period
            if copies >= _COPIES or period >= _SHORTEST_DOUBLED:
                yield from _repeats_between(key, done, match.start())
                yield match.start(), match.end(), period
                done = match.end()
        yield from _repeats_between(key, done, len(key))


def _either(literals: list[str], word: str) -> str:
    guarded = [text for text in literals if text[0].isalnum() or text[-1].isalnum()]
    source = "|".join(
        (r"(?<!\w)" if text[0].isalnum() else "")
        + re.escape(text)
        + (r"(?!\w)" if text[-1].isalnum() else "")
        for text in sorted(guarded, key=len, reverse=True)
    )
    signs = alternation(set(literals) - set(guarded))
    return "|".join(part for part in (source, signs, word) if part)


class Company(NamedTuple):
    alike: float  # pairs of copies with the same word before or behind them
    chance: float  # such pairs if the copies stood at random places
    varied: float  # share of different words among the neighbours


class Document:
    def __init__(self, text: str, reader: UnitReader) -> None:
        self.text = text
        self._reader = reader
        self._plain = reader.plain_keys(text)
        self.keys = self.units.keys if self._plain is None else self._plain
        self.positions: dict[str, list[int]] = defaultdict(list)
        for place, key in enumerate(self.keys):
            self.positions[key].append(place)

    def __len__(self) -> int:
        return len(self.keys)

    @cached_property
    def units(self) -> Units:
        if self._plain is None:
            return self._reader.read(self.text)
        spans = [match.span() for match in self._reader.lower_word.finditer(self.text.lower())]
        return Units(self.keys, [start for start, _ in spans], [end for _, end in spans])

    @cached_property
    def joints(self) -> list[str]:
        bounds = zip([0, *self.units.ends], [*self.units.starts, len(self.text)], strict=True)
        return [self.text[end:start] for end, start in bounds]

    @cached_property
    def evenness(self) -> float:
        return sum(len(places) ** 2 for places in self.positions.values()) / max(1, len(self)) ** 2

    def company(self, places: Sequence[int]) -> Company:
        """Compare the words beside the copies of a word, but not other copies nor across punctuation."""
        # A word in ordinary use recurs in the same company (*the* contract, boundary *layer*), which copies
        # that were put in do not.
        keys, spaced = self.keys, self._spaced
        word = keys[places[0]]
        before = Counter(keys[each - 1] for each in places if spaced[each] and keys[each - 1] != word)
        behind = Counter(keys[each + 1] for each in places if spaced[each + 1] and keys[each + 1] != word)
        alike = chance = 0.0
        neighbours = different = 0
        for side in (before, behind):
            size = side.total()
            alike += sum(count * (count - 1) / 2 for count in side.values())
            chance += size * (size - 1) / 2 * self.evenness
            neighbours += size
            different += len(side)
        return Company(alike, chance, different / max(1, neighbours))

    def is_listed(self, places: Sequence[int]) -> bool:
        lines = [bisect(self._line_ends, self.units.starts[place]) for place in places]
        return sum(after - before == 1 for before, after in pairwise(lines)) >= 0.75 * (len(lines) - 1)

    def bare(self, places: Sequence[int]) -> float:
        return sum(map(self._bare.__getitem__, places)) / len(places)

    @cached_property
    def _line_ends(self) -> list[int]:
        return [match.start() for match in re.finditer("\n", self.text)]

    @cached_property
    def _spaced(self) -> list[bool]:
        return [False, *map(str.isspace, self.joints[1:-1]), False]

    @cached_property
    def _bare(self) -> list[bool]:
        first, *inner, last = self.joints
        distinct = set(self.joints)
        closing = {joint for joint in distinct if joint[-1:] == " " and not joint[-2:-1].isspace()}
        opening = {joint for joint in distinct if joint[:1] == " " and not joint[1:2].isspace()}
        before = [not first or first in closing, *(joint in closing for joint in inner)]
        behind = [*(joint in opening for joint in inner), not last or last in opening]
        return [one and other for one, other in zip(before, behind, strict=True)]


FEWEST_COPIES = 4
_BETWEEN_COPIES = 2
# Words between copies belong to the pattern if each of them is there so often, and for every fourth copy.
_REPEATED = 2
_REPEATED_SHARE = 0.25
_UNITS_PER_COPY = 250
_ENOUGH_COPIES = 16
# A word in ordinary use is told by its company; both figures are from `benchmarks/cleaning.py`.
_ALIKE = 0.5
_TIMES_CHANCE = 3.0
# A word that is common in every text must make up a large part of one to be conspicuous.
_COMMON_COPIES = 6
_COMMON_SHARE = 0.2


def flagged_copies(document: Document, words: frozenset[str]) -> set[int]:
    """At least four with at most two words between each, or more in a text than its length explains."""
    found: set[int] = set()
    for key in words.intersection(document.positions):
        places = document.positions[key]
        if len(places) < FEWEST_COPIES:
            continue
        if _is_common(key):
            if len(places) >= max(_COMMON_COPIES, _COMMON_SHARE * len(document)):
                found.update(places)
            continue
        if len(places) >= min(len(document) / _UNITS_PER_COPY, _ENOUGH_COPIES):
            company = document.company(places)
            if company.alike <= _ALIKE + _TIMES_CHANCE * company.chance:
                found.update(places)
        for first, last in _close_groups(places, 1 + _BETWEEN_COPIES, FEWEST_COPIES):
            found.update(places[first:last])
            found.update(_repeated_between(document, places[first:last]))
    # Stretches of flagged words, equal or not, without another word in between.
    present = words.intersection(document.positions)
    every = sorted(place for key in present for place in document.positions[key])
    for first, last in _close_groups(every, 1, FEWEST_COPIES):
        group = range(every[first], every[last - 1] + 1)
        if not all(_is_common(document.keys[place]) for place in group):
            found.update(group)
    return found


def _is_common(key: str) -> bool:
    return (len(key) == 1 and key.isascii()) or key in COMMON


def _close_groups(places: Sequence[int], farthest: int, least: int) -> Iterator[tuple[int, int]]:
    start = 0
    for number in range(1, len(places) + 1):
        if number == len(places) or places[number] - places[number - 1] > farthest:
            if number - start >= least:
                yield start, number
            start = number


def _repeated_between(document: Document, places: Sequence[int]) -> list[int]:
    # The other words between copies, if each of them is repeated as the copies are.
    keys, copies = document.keys, set(places)
    first, last = places[0], places[-1] + 1
    words = set(keys[first:last])
    # One more on either side belongs to the pattern, as the last in "able to able by able to able by".
    while first > max(0, places[0] - _BETWEEN_COPIES) and keys[first - 1] in words:
        first -= 1
    while last < min(len(keys), places[-1] + 1 + _BETWEEN_COPIES) and keys[last] in words:
        last += 1
    others = [place for place in range(first, last) if place not in copies]
    repeated = Counter(keys[place] for place in others)
    fewest = max(_REPEATED, len(places) * _REPEATED_SHARE)
    return others if len(others) >= FEWEST_COPIES and min(repeated.values()) >= fewest else []


# All figures are from `benchmarks/cleaning.py`.
_MANY = 8
_UNITS_PER_PLANTED = 60
_TIMES_CHANCE_PLANTED = 1.6
_MOSTLY_BARE = 0.9
_REGULAR = 6
_REGULAR_AND_CLOSE = 5
_UNEVEN = 1.2
_VARIED = 0.8
_OFTEN_BARE = 0.8
_DENSE_SHARE = 5


def planted_copies(document: Document, words: frozenset[str], runs: Iterable[Stretch]) -> set[int]:
    found: set[int] = set()
    taken = {place for run in runs for place in range(run.first, run.last)}
    for key, everywhere in document.positions.items():
        counts = len(everywhere) >= FEWEST_COPIES and len(key) > 1 and not key[0].isdigit()
        if not counts or _is_common(key) or key in words:
            continue
        places = [place for place in everywhere if place not in taken] if taken else everywhere
        if len(places) < FEWEST_COPIES or document.is_listed(places):
            continue
        copies = len(places)
        many = copies >= _MANY and copies * _UNITS_PER_PLANTED >= len(document)
        dense = copies * _DENSE_SHARE >= len(document)
        if (many or dense) and document.bare(places) >= _MOSTLY_BARE:
            company = document.company(places)
            unlike = company.alike <= _TIMES_CHANCE_PLANTED * company.chance
            if (many and unlike) or (dense and company.varied >= _VARIED):
                found.update(places)
                continue
        if copies >= _REGULAR and _is_regular(document, places):
            found.update(places)
            continue
        for first, last in _close_groups(places, 1 + _BETWEEN_COPIES, _REGULAR_AND_CLOSE):
            if _is_regular(document, places[first:last]):
                found.update(places[first:last])
    return found


def _is_regular(document: Document, places: Sequence[int]) -> bool:
    gaps = [after - before for before, after in pairwise(places)]
    if max(gaps) > _UNEVEN * min(gaps) + 1:
        return False
    return document.company(places).varied >= _VARIED and document.bare(places) >= _OFTEN_BARE
