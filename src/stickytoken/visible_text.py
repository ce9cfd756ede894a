"""Text from a model's vocabulary, made harmless to show, in a terminal and in Markdown."""

from __future__ import annotations

import re

# What begins emphasis, code, links, tables, mathematics or mentions; and what makes a link of an address.
_MARKDOWN = re.compile(r"([\\`*_{}\[\]#|~$@!^]|(?<=:)/|(?<=www)\.|^[-+=]|(?<=^\d)[.)])", re.IGNORECASE)


def visible(text: str) -> str:
    """Escape every character that a terminal would act on or not show, lone surrogates included."""
    return "".join(
        character
        if character.isprintable()
        else character.encode("unicode_escape", "surrogatepass").decode("ascii")
        for character in text
    )


def markdown(text: str) -> str:
    """Text that Markdown shows as it is, in a table too."""
    shown = _MARKDOWN.sub(r"\\\1", visible(text))
    return shown.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
