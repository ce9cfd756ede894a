"""A Markdown extension that writes formulas as MathML, which browsers draw without JavaScript."""

from __future__ import annotations

import html
import re
from typing import Any

from latex2mathml.converter import convert
from markdown import Markdown
from markdown.extensions import Extension
from markdown.postprocessors import Postprocessor

# The output of arithmatex: LaTeX between \( \) or \[ \].
_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)


class Formulas(Extension):
    """The extension."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802 - the name is Markdown's
        """Register the conversion behind all other steps."""
        md.postprocessors.register(_Formulas(md), "formulas", priority=-10)


class _Formulas(Postprocessor):
    """The conversion of a finished page."""

    def run(self, text: str) -> str:
        return _FORMULA.sub(_mathml, text)


def _mathml(formula: re.Match[str]) -> str:
    display = "block" if formula[2] == "[" else "inline"
    return str(convert(html.unescape(formula[3]), display=display))


def makeExtension(**settings: Any) -> Formulas:  # noqa: N802 - the name is Markdown's
    """Return the extension; Markdown looks for this name."""
    return Formulas(**settings)
