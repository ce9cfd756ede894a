"""Text from a model's vocabulary, made harmless to show."""

from __future__ import annotations


def visible(text: str) -> str:
    """Escape every character that a terminal would act on or not show, lone surrogates included."""
    return "".join(
        character
        if character.isprintable()
        else character.encode("unicode_escape", "surrogatepass").decode("ascii")
        for character in text
    )
