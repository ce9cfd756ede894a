"""Templates of pages: everything is escaped, token text is visible, numbers are readable."""

from __future__ import annotations

import json
import re
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from stickytoken.methods.base import AnyMethod
from stickytoken.validation import markdown, visible

_BREAKS = re.compile(r"[ \t]*[\r\n]+[ \t]*")
_IN_SCRIPT = {"<": r"\u003c", ">": r"\u003e", "&": r"\u0026"}


def json_for_html(value: Any) -> Markup:
    """Return JSON in which no HTML parser finds the end of a script; ASCII, lone surrogates escaped."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for character, code in _IN_SCRIPT.items():
        text = text.replace(character, code)
    return Markup(text)


def finalized(value: Any) -> Any:
    if value is None:
        return "–"
    if isinstance(value, str) and not isinstance(value, Markup):
        return visible(value)
    return value


def spaced(name: str) -> str:
    return name if name.isupper() else name.replace("_", " ")


def minus(text: str) -> str:
    return text.replace("-", "\N{MINUS SIGN}")


def plain(value: Any) -> str:
    if value == "":
        return "(empty)"
    if isinstance(value, float):
        return minus(f"{value:.6g}")
    if isinstance(value, (list, tuple)):
        return ", ".join(plain(item) for item in value) or number(None)
    if isinstance(value, dict):
        return ", ".join(f"{spaced(key)}: {plain(item)}" for key, item in value.items()) or number(None)
    return number(value)


def flowing(text: str) -> str:
    """Return a text as one paragraph: line breaks, which would be shown as escapes, become spaces."""
    return _BREAKS.sub(" ", text)


def commands(text: str) -> Markup:
    parts = visible(text).split("`")
    if len(parts) % 2 == 0:
        return escape(visible(text))
    pieces = [
        Markup("<code>{}</code>").format(part) if k % 2 else escape(part) for k, part in enumerate(parts)
    ]
    return Markup("").join(pieces)


def cosine(value: float | None, digits: int = 2) -> str:
    if value is None:
        return number(None)
    return minus(f"{round(value, digits) + 0.0:.{digits}f}")


def number(value: Any, digits: int | None = None) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= 10_000 else str(value)
    if isinstance(value, float):
        if digits is None:
            digits = 4 if abs(value) < 10 else 1
        if value and abs(value) < 10**-digits / 2:
            return f"< {10**-digits:.{digits}f}" if value > 0 else f"{0:.{digits}f}"
        return minus(f"{value:,.{digits}f}")
    return str(value)


_OWN = "stickytoken.reports"
_OPTIONS: dict[str, Any] = {"undefined": StrictUndefined, "trim_blocks": True, "lstrip_blocks": True}


@cache
def environment(package: str = _OWN) -> Environment:
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(name) for name in dict.fromkeys((package, _OWN))]),
        autoescape=True,
        finalize=finalized,
        **_OPTIONS,
    )
    for function in (commands, cosine, flowing, number, ord, plain, spaced):
        environment.filters[function.__name__] = function
    return environment


@cache
def _markdown_environment() -> Environment:
    environment = Environment(
        loader=PackageLoader(_OWN),
        finalize=lambda value: value if isinstance(value, Markup) else markdown(str(value)),
        **_OPTIONS,
    )
    filters = {"number": number, "plain": plain, "spaced": spaced}
    environment.filters |= filters | {"table": lambda table, *missing: Markup(table.markdown(*missing))}
    return environment


def render_markdown(name: str, **values: Any) -> str:
    text = _markdown_environment().get_template(name).render(**values)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


@cache
def packaged(name: str, package: str = _OWN) -> str:
    return (files(package) / "templates" / name).read_text("utf-8")


# Words of every report; those of its method come before them.
_SHARED = {
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
_COLUMNS = {
    "validation rate": "The share of unrelated pairs whose similarity rises. A rate means little by itself: "
    "compare it with those of other tokens."
}


def glossary(method: AnyMethod) -> dict[str, str]:
    """Return the words of a method's reports with their meanings."""
    words = {"sticky token": _SHARED["sticky token"], **method.glossary}
    titles = {column.title for column in method.reported}
    words |= {title: meaning for title, meaning in _COLUMNS.items() if title in titles}
    return words | {word: meaning for word, meaning in _SHARED.items() if word not in words}
