"""Templates of pages and Markdown, the number formats that they use, and the words that they explain."""

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
# What could end a script, or begin a comment in it.
_ESCAPED_IN_SCRIPTS = {"<": r"\u003c", ">": r"\u003e", "&": r"\u0026"}
# Fields that are names of measures.
_PROPER_NAMES = {"isoscore": "IsoScore"}
# Whole numbers from this on have separators of thousands; smaller ones are easily read without.
_FIRST_WITH_SEPARATORS = 10_000


def json_for_html(value: Any) -> Markup:
    """Return JSON in which no HTML parser finds the end of a script; ASCII, lone surrogates escaped."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for character, code in _ESCAPED_IN_SCRIPTS.items():
        text = text.replace(character, code)
    return Markup(text)


def spaced(name: str) -> str:
    """Return the name of a field as words; a category in capital letters stays as it is."""
    if name in _PROPER_NAMES:
        return _PROPER_NAMES[name]
    return name if name.isupper() else name.replace("_", " ")


def minus(text: str) -> str:
    """Replace hyphens of negative numbers by minus signs."""
    return text.replace("-", wording.MINUS)


def number(value: Any, digits: int | None = None) -> str:
    """Write a value for people: missing ones as a dash, booleans as words, numbers rounded.

    Args:
        value: of any kind.
        digits: behind the point of a float; None is 4 below 10, and 1 above.
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
    """Write a cosine similarity or a change of one; a change near zero has no sign."""
    if value is None:
        return _MISSING
    return minus(f"{round(value, digits) + 0.0:.{digits}f}")


def plain(value: Any) -> str:
    """Write a value of a setting or a record, with lists and groups in one line."""
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
    """Return a text as one paragraph: line breaks, which would be shown as escapes, become spaces."""
    return _LINE_BREAKS.sub(" ", text)


def commands(text: str) -> Markup:
    """Return a text as HTML, with what stands between backticks as code."""
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
    """Return the HTML templates of a package, which can use those of the reports as well."""
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
    """Return what a page shows of an expression: missing values as a dash, text with visible characters."""
    if value is None:
        return _MISSING
    if isinstance(value, str) and not isinstance(value, Markup):
        return visible(value)
    return value


@cache
def _markdown_environment() -> Environment:
    """Return the Markdown templates; every expression is escaped unless it is marked as Markdown."""
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
    """Render a Markdown template, with single blank lines between its blocks."""
    text = _markdown_environment().get_template(name).render(**values)
    return _BLANK_LINES.sub("\n\n", text).strip() + "\n"


@cache
def packaged(name: str, package: str = _OWN_PACKAGE) -> str:
    """Return a file of a package's folder ``templates``, such as a script."""
    return (files(package) / "templates" / name).read_text("utf-8")


# Words of every report; those of its method come before them.
_SHARED_WORDS = {
    "sticky token": "A vocabulary entry whose copies take a text's meaning away, or draw unrelated texts "
    "together, whatever the texts are about.",
    "lift": "How far the cosine similarity of unrelated texts rises on average when copies of the token go "
    "into one of them. A lift of 0.1 takes a pair from 0.05 to 0.15.",
    "entry": "Special: a control token. Unused: a placeholder. Byte: a piece of a character. Symbol: neither "
    "letters nor digits. Subword: continues a word. Whole word: a word or its beginning.",
    "category": "Whether decoding and encoding gives the entry back. OK and OK_SPECIAL can appear in text.",
    "u": "The model's mean similarity: the mean cosine over pairs of vocabulary entries. Texts with a lower "
    "similarity count as unrelated.",
    "IsoScore": "How evenly the vectors of the vocabulary use their space: 0 if they vary along one "
    "direction only, 1 if they vary alike along all. A low value alone is no defect.",
}
# Words of columns that only some methods have.
_COLUMN_WORDS = {
    "validation rate": "The share of unrelated pairs whose similarity rises. A rate means little by itself: "
    "compare it with those of other tokens."
}


def glossary(method: AnyMethod) -> dict[str, str]:
    """Return the words of a method's reports with their meanings."""
    words = {"sticky token": _SHARED_WORDS["sticky token"], **method.glossary}
    titles = {column.title for column in method.reported}
    words |= {title: meaning for title, meaning in _COLUMN_WORDS.items() if title in titles}
    return words | {word: meaning for word, meaning in _SHARED_WORDS.items() if word not in words}
