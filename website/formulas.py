"""A Markdown extension: formulas as MathML, which browsers draw without JavaScript."""

from __future__ import annotations

import html
import re
from typing import Any

from latex2mathml.converter import convert
from markdown import Markdown
from markdown.extensions import Extension
from markdown.postprocessors import Postprocessor

# What arithmatex leaves: LaTeX between \( \) or \[ \].
_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)


class Formulas(Extension):
    """Registers the step that comes after all others."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802 - the name is Markdown's
        """Add the step."""
        md.postprocessors.register(_Formulas(md), "formulas", priority=-10)


class _Formulas(Postprocessor):
    def run(self, text: str) -> str:
        return _FORMULA.sub(_mathml, text)


def _mathml(found: re.Match[str]) -> str:
    display = "block" if found[2] == "[" else "inline"
    return str(convert(html.unescape(found[3]), display=display))


def makeExtension(**settings: Any) -> Formulas:  # noqa: N802 - the name is Markdown's
    """Return the extension; Markdown looks for this name."""
    return Formulas(**settings)
