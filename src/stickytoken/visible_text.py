"""Make text from a vocabulary safe to show in a terminal and in Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

# Characters that begin emphasis, code, links, tables, mathematics or mentions, or make an address a link.
_MARKDOWN = re.compile(r"([\\`*_{}\[\]#|~$@!^]|(?<=:)/|(?<=www)\.|^[-+=]|(?<=^\d)[.)])", re.IGNORECASE)


def visible(text: str) -> str:
    """Escape every character that a terminal would interpret or hide, including lone surrogates."""
    return "".join(
        character
        if character.isprintable()
        else character.encode("unicode_escape", "surrogatepass").decode("ascii")
        for character in text
    )


def markdown(text: str) -> str:
    """Escape text so that Markdown shows it literally, even in a table."""
    shown = _MARKDOWN.sub(r"\\\1", visible(text))
    return shown.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def markdown_table(columns: Sequence[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a Markdown table of cells that are escaped already."""
    lines = (columns, ["---"] * len(columns), *rows)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
