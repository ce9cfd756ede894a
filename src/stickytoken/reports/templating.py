"""Render HTML and Markdown templates, format values, and explain the terms in a report."""

from __future__ import annotations

import json
import re
from functools import cache
from importlib.resources import files
from typing import Any

import regex
from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from stickytoken.methods import TokenTable
from stickytoken.validation import markdown, visible
from stickytoken.words import MINUS

_MISSING = "\N{EN DASH}"
_BLANK_LINES = re.compile(r"\n{3,}")
# JSON escapes of characters that could end a <script> element or begin an HTML comment inside it.
_ESCAPED_IN_SCRIPTS = {"<": r"\u003c", ">": r"\u003e", "&": r"\u0026"}


def json_for_html(value: Any) -> Markup:
    """Return a value as ASCII JSON that is safe inside a <script> element."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for character, code in _ESCAPED_IN_SCRIPTS.items():
        text = text.replace(character, code)
    return Markup(text)


def spaced(name: str) -> str:
    """Replace the underscores in a field name with spaces, unless the name is in capitals."""
    return name if name.isupper() else name.replace("_", " ")


def minus(text: str) -> str:
    """Replace every hyphen with a minus sign. All hyphens in the text must belong to negative numbers."""
    return text.replace("-", MINUS)


def number(value: Any, digits: int | None = None) -> str:
    """Format a value for readers. None becomes a dash, a boolean becomes yes or no, and a float is rounded.

    All numbers get thousands separators, and a minus sign if they are negative. A positive float that would
    be rounded to 0 becomes, for example, ``< 0.0001``; a negative float that would becomes 0 without a sign.

    Args:
        value: A value of any type.
        digits: Number of digits after the decimal point of a float. If ``digits`` is None, a float below 10
            in absolute value gets 4 digits after the decimal point, and any other float gets 1 digit.
    """
    if value is None:
        return _MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return minus(f"{value:,}")
    if isinstance(value, float):
        if digits is None:
            digits = 4 if abs(value) < 10 else 1
        smallest_shown = 10**-digits
        rounds_to_zero = value != 0 and abs(value) < smallest_shown / 2
        if rounds_to_zero:
            return f"< {smallest_shown:.{digits}f}" if value > 0 else f"{0:.{digits}f}"
        return minus(f"{value:,.{digits}f}")
    return str(value)


def cosine(value: float | None, digits: int = 2) -> str:
    """Format a cosine similarity or a change in one. None becomes a dash; a rounded zero has no sign."""
    if value is None:
        return _MISSING
    rounded = round(value, digits) + 0.0  # adding 0 removes the sign of -0.0
    return minus(f"{rounded:.{digits}f}")


def plain(value: Any) -> str:
    """Format the value of a setting or record on one line, with commas between items of lists and dicts."""
    if value == "":
        return "(empty)"
    if isinstance(value, float):
        return minus(f"{value:.6g}")
    if isinstance(value, (list, tuple)):
        return ", ".join(plain(item) for item in value) or _MISSING
    if isinstance(value, dict):
        return ", ".join(f"{spaced(key)}: {plain(item)}" for key, item in value.items()) or _MISSING
    return number(value)


_RIGHT_TO_LEFT = regex.compile(r"[\p{Bidi_Class=R}\p{Bidi_Class=AL}]+")


def isolated(text: str) -> Markup:
    """Convert text to HTML in which right-to-left letters don't reverse the order of what follows them."""
    return Markup(_RIGHT_TO_LEFT.sub(r"<bdi>\g<0></bdi>", str(escape(visible(text)))))


def commands(text: str) -> Markup:
    """Convert text to HTML as `isolated` does, with a <code> element for each part between backticks."""
    pieces = text.split("`")  # pieces with an odd index are between backticks
    has_unpaired_backtick = len(pieces) % 2 == 0
    if has_unpaired_backtick:
        return isolated(text)
    html = Markup("")
    for index, piece in enumerate(pieces):
        is_code = index % 2 == 1
        html += Markup("<code>{}</code>").format(visible(piece)) if is_code else isolated(piece)
    return html


_OWN_PACKAGE = "stickytoken.reports"
_OPTIONS: dict[str, Any] = {"undefined": StrictUndefined, "trim_blocks": True, "lstrip_blocks": True}


@cache
def environment(package: str = _OWN_PACKAGE) -> Environment:
    """Return the Jinja environment of a package's HTML templates, which can also use the report templates."""
    loaders = [PackageLoader(_OWN_PACKAGE)]
    if package != _OWN_PACKAGE:
        loaders.insert(0, PackageLoader(package))  # searched first
    html_environment = Environment(
        loader=ChoiceLoader(loaders),
        autoescape=True,
        finalize=_make_visible,
        **_OPTIONS,
    )
    for function in (commands, cosine, isolated, number, ord, plain, spaced):
        html_environment.filters[function.__name__] = function
    return html_environment


def _make_visible(value: Any) -> Any:
    # Jinja calls this function with the value of every {{ expression }}. Afterwards, it escapes the result
    # unless it is `Markup`.
    if value is None:
        return _MISSING
    if isinstance(value, str) and not isinstance(value, Markup):
        return visible(value)
    return value


@cache
def _markdown_environment() -> Environment:
    environment = Environment(loader=PackageLoader(_OWN_PACKAGE), finalize=_escape_for_markdown, **_OPTIONS)
    environment.filters |= {
        "number": number,
        "plain": plain,
        "spaced": spaced,
        "table": _render_markdown_table,
    }
    return environment


def _escape_for_markdown(value: Any) -> str:
    # Jinja calls this function with the value of every {{ expression }}. A value that is Markdown already has
    # the type `Markup`.
    return value if isinstance(value, Markup) else markdown(str(value))


def _render_markdown_table(table: Any, missing: str | None = None) -> Markup:
    return Markup(table.markdown(missing))


def render_markdown(name: str, **values: Any) -> str:
    """Render a Markdown template, and reduce consecutive blank lines to one."""
    text = _markdown_environment().get_template(name).render(**values)
    return _BLANK_LINES.sub("\n\n", text).strip() + "\n"


@cache
def packaged(name: str, package: str = _OWN_PACKAGE) -> str:
    """Return the text of a file in the ``templates`` folder of a package, such as a script."""
    return (files(package) / "templates" / name).read_text("utf-8")


# Glossary entries of every report. If a method defines one of these words too, the method's entry is used.
_SHARED_WORDS = {
    "sticky token": "A vocabulary entry whose copies hide documents from the queries that they answer, or "
    "push them into results where they don't belong.",
    "entry": "Special: a control token. Unused: a placeholder. Byte: a piece of a character. Symbol: neither "
    "letters nor digits. Subword: continues a word. Whole word: a word or its beginning.",
    "category": "Whether tokenizing the text of the entry gives the entry again. OK and OK_SPECIAL: it does, "
    "so the entry can appear in text.",
}
# Glossary entries of columns that only some methods have, keyed by column title.
_COLUMN_WORDS = {
    "validation rate": "The share of unrelated pairs whose similarity rises. A rate means little by itself: "
    "compare it with the rates of other tokens."
}


def glossary(table: TokenTable) -> dict[str, str]:
    """Return the meanings of the terms in a method's reports, in the order of the report, keyed by term."""
    # The first entry says what the report is about. The entries of the method follow, and replace shared
    # entries of the same word.
    meanings = {"sticky token": _SHARED_WORDS["sticky token"], **table.glossary}
    titles = {column.title for column in table.reported}
    meanings |= {title: meaning for title, meaning in _COLUMN_WORDS.items() if title in titles}
    return meanings | {word: meaning for word, meaning in _SHARED_WORDS.items() if word not in meanings}
