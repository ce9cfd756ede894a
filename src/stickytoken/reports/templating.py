"""Templates for HTML pages and Markdown, number formats, and the glossary of a report."""

from __future__ import annotations

import json
import re
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from stickytoken.methods import wording
from stickytoken.methods.base import AnyMethod
from stickytoken.validation import markdown, visible

_MISSING = "\N{EN DASH}"
_LINE_BREAKS = re.compile(r"[ \t]*[\r\n]+[ \t]*")
_BLANK_LINES = re.compile(r"\n{3,}")
# JSON escapes for the characters that could end a <script> element or begin an HTML comment inside it.
_ESCAPED_IN_SCRIPTS = {"<": r"\u003c", ">": r"\u003e", "&": r"\u0026"}
# Spelling of field names for which `spaced` cannot derive it.
_PROPER_NAMES = {"isoscore": "IsoScore"}
# Smallest integer that gets thousands separators. Smaller numbers are easy to read without them.
_FIRST_WITH_SEPARATORS = 10_000


def json_for_html(value: Any) -> Markup:
    """Return a value as ASCII JSON that is safe inside a <script> element."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for character, code in _ESCAPED_IN_SCRIPTS.items():
        text = text.replace(character, code)
    return Markup(text)


def spaced(name: str) -> str:
    """Replace the underscores in a field name by spaces, unless the name is all capitals."""
    if name in _PROPER_NAMES:
        return _PROPER_NAMES[name]
    return name if name.isupper() else name.replace("_", " ")


def minus(text: str) -> str:
    """Replace every hyphen by a minus sign. The text must not contain hyphens outside numbers."""
    return text.replace("-", wording.MINUS)


def number(value: Any, digits: int | None = None) -> str:
    """Format a value for readers: None as a dash, a boolean as yes or no, a float rounded.

    Args:
        value: A value of any type.
        digits: Digits after the decimal point of a float. None means 4 digits if the absolute value is below
            10, and 1 digit otherwise.
    """
    if value is None:
        return _MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= _FIRST_WITH_SEPARATORS else str(value)
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
    """Format a cosine similarity or a change of one: None as a dash, and a rounded zero without a sign."""
    if value is None:
        return _MISSING
    return minus(f"{round(value, digits) + 0.0:.{digits}f}")


def plain(value: Any) -> str:
    """Format the value of a setting or record on one line. Items of lists and dicts are joined by commas."""
    if value == "":
        return "(empty)"
    if isinstance(value, float):
        return minus(f"{value:.6g}")
    if isinstance(value, (list, tuple)):
        return ", ".join(plain(item) for item in value) or _MISSING
    if isinstance(value, dict):
        return ", ".join(f"{spaced(key)}: {plain(item)}" for key, item in value.items()) or _MISSING
    return number(value)


def flowing(text: str) -> str:
    """Replace line breaks by spaces, because `visible` would show them as escapes."""
    return _LINE_BREAKS.sub(" ", text)


def commands(text: str) -> Markup:
    """Convert a text to HTML, with <code> elements for the parts between backticks."""
    pieces = visible(text).split("`")
    has_unpaired_backtick = len(pieces) % 2 == 0
    if has_unpaired_backtick:
        return escape(visible(text))
    html = Markup("")
    for position, piece in enumerate(pieces):
        is_code = position % 2 == 1
        html += Markup("<code>{}</code>").format(piece) if is_code else escape(piece)
    return html


_OWN_PACKAGE = "stickytoken.reports"
_OPTIONS: dict[str, Any] = {"undefined": StrictUndefined, "trim_blocks": True, "lstrip_blocks": True}


@cache
def environment(package: str = _OWN_PACKAGE) -> Environment:
    """Return the Jinja environment of a package's HTML templates, which can import those of reports."""
    packages = list(dict.fromkeys((package, _OWN_PACKAGE)))
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(name) for name in packages]),
        autoescape=True,
        finalize=_finalized,
        **_OPTIONS,
    )
    for function in (commands, cosine, flowing, number, ord, plain, spaced):
        environment.filters[function.__name__] = function
    return environment


def _finalized(value: Any) -> Any:
    """Prepare the value of a template expression for a page: None as a dash, and strings escaped."""
    if value is None:
        return _MISSING
    if isinstance(value, str) and not isinstance(value, Markup):
        return visible(value)
    return value


@cache
def _markdown_environment() -> Environment:
    """Return the Jinja environment of the Markdown templates, which escapes all values except Markup."""
    environment = Environment(
        loader=PackageLoader(_OWN_PACKAGE),
        finalize=lambda value: value if isinstance(value, Markup) else markdown(str(value)),
        **_OPTIONS,
    )
    environment.filters |= {
        "number": number,
        "plain": plain,
        "spaced": spaced,
        "table": lambda table, *missing: Markup(table.markdown(*missing)),
    }
    return environment


def render_markdown(name: str, **values: Any) -> str:
    """Render a Markdown template with at most one blank line between its blocks."""
    text = _markdown_environment().get_template(name).render(**values)
    return _BLANK_LINES.sub("\n\n", text).strip() + "\n"


@cache
def packaged(name: str, package: str = _OWN_PACKAGE) -> str:
    """Return the text of a file, such as a script, in the ``templates`` folder of a package."""
    return (files(package) / "templates" / name).read_text("utf-8")


# Glossary entries of every report. A method's own entry for the same word replaces the one here.
_SHARED_WORDS = {
    "sticky token": "A vocabulary entry whose copies take a text's meaning away, or draw unrelated texts "
    "together, whatever the texts are about.",
    "lift": "How far the cosine similarity of unrelated texts rises on average when copies of the token go "
    "into one of them. A lift of 0.1 takes a pair from 0.05 to 0.15.",
    "entry": "Special: a control token. Unused: a placeholder. Byte: a piece of a character. Symbol: neither "
    "letters nor digits. Subword: continues a word. Whole word: a word or its beginning.",
    "category": "Whether the text of the entry encodes to the entry again. OK and OK_SPECIAL: it does, so "
    "the entry can appear in text.",
    "u": "The model's mean similarity: the mean cosine over pairs of vocabulary entries. Texts with a lower "
    "similarity count as unrelated.",
    "IsoScore": "How evenly the vectors of the vocabulary use their space: 0 if they vary along one "
    "direction only, 1 if they vary equally in all directions. A low value alone is no defect.",
}
# Glossary entries of columns that only some methods have.
_COLUMN_WORDS = {
    "validation rate": "The share of unrelated pairs whose similarity rises. A rate means little by itself: "
    "compare it with the rates of other tokens."
}


def glossary(method: AnyMethod) -> dict[str, str]:
    """Return the meanings of the terms in reports of a method, keyed by term in the order of the report."""
    words = {"sticky token": _SHARED_WORDS["sticky token"], **method.glossary}
    titles = {column.title for column in method.reported}
    words |= {title: meaning for title, meaning in _COLUMN_WORDS.items() if title in titles}
    return words | {word: meaning for word, meaning in _SHARED_WORDS.items() if word not in words}
