"""What the structure of a text says about its words: which are data, and which edits would break something.

Tags, addresses and code are never edited. Separators such as line breaks and the borders of table cells
divide a text into fields, and copies in different fields are no run.
"""

from __future__ import annotations

import html
import re
from functools import lru_cache
from typing import NamedTuple

# Placeholders, all of them code points that no text uses ("noncharacters"). They keep the offsets of a text.
PAD = "\ufdd0"  # continues the letter that an entity such as "&#1584;" stands for
UNTOUCHABLE = "\ufdd1"  # a formatting tag or an entity: copies around it are a run, but no edit covers it
BARRIER = "\ufdd2"  # a tag of structure, an address or code
SPECIAL = "\ufdd3"  # a special token, which is a finding of its own


class View(NamedTuple):
    """A text as the search for copies looks at it: of the same length, with markup replaced.

    Attributes:
        text: The text, in which placeholders stand for tags, addresses and code, and letters for entities.
        protected: Start and end (exclusive) of the tags, addresses and code.
    """

    text: str
    protected: tuple[tuple[int, int], ...]


# Elements of HTML that format words and do not divide a text into fields.
_FORMATTING = (
    "a", "abbr", "b", "bdi", "bdo", "big", "cite", "code", "del", "dfn", "em", "font", "i", "ins", "kbd",
    "mark", "q", "s", "samp", "small", "span", "strike", "strong", "sub", "sup", "tt", "u", "var",
)  # fmt: skip
_FORMATTING_TAG = re.compile(rf"</?(?:{'|'.join(_FORMATTING)})(?=[\s/>])", re.IGNORECASE)


def is_formatting_tag(tag: str) -> bool:
    """Return whether a text that looks like a tag is a tag of HTML that formats words, such as ``<s>``."""
    return bool(_FORMATTING_TAG.match(tag))


_PROTECTED = re.compile(
    r"```.*?(?:```|\Z)"  # fenced code
    r"|~~~.*?(?:~~~|\Z)"
    r"|`[^`\n]+`"  # code in a line
    r"|<!--.*?(?:-->|\Z)"
    r"|</?[a-z!?][^<>]*>"  # a tag with its attributes
    r"|\b[a-z][a-z0-9+.-]{1,20}://[^\s<>]+"  # an address
    r"|\b(?:www\.|mailto:)[^\s<>]+"
    r"|(?<![\w.+-])[\w.+-]{1,64}@[\w-]+(?:\.[\w-]+)+",  # an e-mail address
    re.IGNORECASE | re.DOTALL,
)
_ENTITY = re.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,30});")


def view_of(text: str) -> View:
    """Return a text as the search for copies looks at it: of the same length, with markup replaced."""
    has_markup = "<" in text or "`" in text or "~~~" in text or "@" in text
    has_address = "://" in text or "www." in text or "mailto:" in text
    # A quick check, because most texts have neither markup nor addresses.
    if not has_markup and not has_address:
        return View(_decode_entities(text), ())
    pieces = []
    protected = []
    viewed_to = 0
    for match in _PROTECTED.finditer(text):
        start, end = match.span()
        # Words around a formatting tag are in one field. Words around any other markup are in two fields.
        placeholder = UNTOUCHABLE if is_formatting_tag(match[0]) else BARRIER
        pieces += [_decode_entities(text[viewed_to:start]), placeholder * (end - start)]
        protected.append((start, end))
        viewed_to = end
    pieces.append(_decode_entities(text[viewed_to:]))
    return View("".join(pieces), tuple(protected))


def _decode_entities(text: str) -> str:
    return _ENTITY.sub(_decode_entity, text) if "&" in text else text


def _decode_entity(entity: re.Match[str]) -> str:
    character = html.unescape(entity[0])
    if len(character) != 1:  # not an entity of HTML, or an entity that stands for several characters
        return entity[0]
    # The fillers keep the offsets of the text the same. The filler of a letter belongs to the same word. The
    # filler of any other character keeps edits from covering the entity.
    filler = PAD if character.isalnum() else UNTOUCHABLE
    return character + filler * (len(entity[0]) - 1)


# Characters that divide a text into fields: ends of lines, borders of cells, bullets, parts of paths and
# code.
_SEPARATOR = re.compile(
    f"[\n\r\t\v\f\x1c-\x1f\x85\u2028\u2029|\u00a6/\\\\_=<>`\u2022\u2023\u25e6\u25aa\u25cb\u25cf\u00b7\u2500-\u259f"
    f"{BARRIER}]"
)
_WHITESPACE = re.compile(r"\s")


@lru_cache(maxsize=4096)
def divides(gap: str) -> bool:
    """Return whether the text between two words puts them into different fields.

    A comma, semicolon or colon without white space is a separator too, as in a row of CSV.
    """
    if _SEPARATOR.search(gap):
        return True
    return not _WHITESPACE.search(gap) and not {",", ";", ":"}.isdisjoint(gap)


# What may separate the cells of a row of a table: commas, semicolons, two or more spaces, or "&" in LaTeX.
_DELIMITERS = {
    ",": re.compile(","),
    ";": re.compile(";"),
    "  ": re.compile(r"\S {2,}(?=\S)"),
    "&": re.compile(r"(?<=\s)&(?=\s)"),
}
_END_OF_LATEX_ROW = re.compile(r"\\\\\s*(?:\\hline\s*)?$")
# Fewest delimiters of a row, not to take two sentences with a comma each for a table.
_FEWEST_DELIMITERS = 2


def is_in_row(text: str, start: int, end: int) -> bool:
    """Return whether part of a line is part of a row of a table.

    A row has a delimiter in this part, and as many delimiters as the line before it or after it.
    """
    part = text[start:end]
    delimiters = [delimiter for delimiter in _DELIMITERS if delimiter in part]
    line = _find_line_around(text, start, end)
    if not delimiters or line is None:
        return False
    line_start, line_end = line
    # The line before ends just before the start of this line, and the line after starts just behind its end.
    line_before = _find_line_around(text, line_start - 1, line_start - 1) if line_start > 0 else None
    line_after = _find_line_around(text, line_end + 1, line_end + 1) if line_end < len(text) else None
    neighbours = [text[first:last] for first, last in filter(None, (line_before, line_after))]
    line_text = text[line_start:line_end]
    for delimiter in delimiters:
        pattern = _DELIMITERS[delimiter]
        count = len(pattern.findall(line_text))
        is_table = any(len(pattern.findall(neighbour)) == count for neighbour in neighbours)
        # A row of LaTeX is known by its end, even if no neighbouring line has as many delimiters.
        if delimiter == "&" and _END_OF_LATEX_ROW.search(line_text):
            is_table = True
        if count >= _FEWEST_DELIMITERS and is_table:
            return True
    return False


# Longest line of a table, in characters.
_LONGEST_ROW = 2_000


def _find_line_around(text: str, start: int, end: int) -> tuple[int, int] | None:
    break_before = text.rfind("\n", max(0, start - _LONGEST_ROW), start)
    break_after = text.find("\n", end, end + _LONGEST_ROW)
    begins_too_early = break_before < 0 and start > _LONGEST_ROW
    ends_too_late = break_after < 0 and len(text) - end > _LONGEST_ROW
    if begins_too_early or ends_too_late:
        return None
    return break_before + 1, break_after if break_after >= 0 else len(text)


_OPENING = frozenset("([{")
_CLOSING = frozenset(")]}")
# How far back a bracket is looked for, in characters.
_BRACKET_WITHIN = 1_000


def is_in_brackets(text: str, start: int) -> bool:
    """Return whether a bracket of the same line is open at an offset, as in a call or in a list of values."""
    open_brackets = 0
    line_start = max(text.rfind("\n", 0, start) + 1, start - _BRACKET_WITHIN)
    for character in text[line_start:start]:
        if character in _OPENING:
            open_brackets += 1
        elif character in _CLOSING:
            open_brackets = max(0, open_brackets - 1)
    return open_brackets > 0


def is_link_text(text: str, start: int, end: int) -> bool:
    """Return whether a part of a text is the whole text of a link in Markdown, as in "[part](x.html)"."""
    return text.endswith("[", 0, start) and text.startswith("](", end)


# How many characters around an offset are examined to find the grapheme cluster there.
_CLUSTER_WITHIN = 16


def cuts_cluster(text: str, offset: int) -> bool:
    """Return whether an offset lies within a grapheme cluster, such as a letter with its accent."""
    # Every ASCII character is a cluster of its own.
    if offset in (0, len(text)) or text[offset - 1 : offset + 1].isascii():
        return False
    import regex  # imported only when needed, because the import takes longer than loading a cleaner

    window_start = max(0, offset - _CLUSTER_WITHIN)
    window = text[window_start : offset + _CLUSTER_WITHIN]
    cluster_starts = [match.start() for match in regex.finditer(r"\X", window)]  # \X matches a cluster
    return offset - window_start not in cluster_starts
