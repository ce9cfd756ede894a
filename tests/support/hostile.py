"""Token texts that would harm a terminal, and what is shown in their place."""

import unicodedata

_HARMLESS = (
    "[bold red]evil[/bold red]",
    "[/]",
    "[link=http://x]",
    ":skull:",
    "</script><b>",
    '"quote"',
    "é中🙂",
    "\u2764\ufe0f",
)
_ESCAPED = (
    "\x1b[31mred\x1b[0m", "\x1b]0;title\x07", "\x9b2J", "\u202egnp.exe", "\u2066in\u2069", "\u200bzero",
    "\ufeffmark", "a\rb", "a\nb", "a\tb", "\x00nul", "\x08\x7fdel", "\u2028line", "\U000e0041tag",
    "\u00a0space", "\u3164filler", "\ufe0f",
)  # fmt: skip
HOSTILE = dict(zip(_HARMLESS, _HARMLESS, strict=True))
HOSTILE |= {text: text.encode("unicode_escape").decode("ascii") for text in _ESCAPED}


def assert_harmless(output: str) -> None:
    dangerous = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
    assert [
        character
        for character in output
        if character != "\n" and unicodedata.category(character) in dangerous
    ] == []
