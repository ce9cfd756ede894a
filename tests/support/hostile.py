"""Token texts that would harm a terminal, and what is shown in their place."""

import unicodedata

HOSTILE = {
    "[bold red]evil[/bold red]": "[bold red]evil[/bold red]",
    "[/]": "[/]",
    "[link=http://x]": "[link=http://x]",
    ":skull:": ":skull:",
    "\x1b[31mred\x1b[0m": r"\x1b[31mred\x1b[0m",
    "\x1b]0;title\x07": r"\x1b]0;title\x07",
    "\x9b2J": r"\x9b2J",
    "\u202egnp.exe": r"\u202egnp.exe",
    "\u2066in\u2069": r"\u2066in\u2069",
    "\u200bzero": r"\u200bzero",
    "\ufeffmark": r"\ufeffmark",
    "\u3164filler": r"\u3164filler",
    "\ufe0f": r"\ufe0f",
    "\u2764\ufe0f": "\u2764\ufe0f",
    "a\rb": r"a\rb",
    "a\nb": r"a\nb",
    "a\tb": r"a\tb",
    "\x00nul": r"\x00nul",
    "\x08\x7fdel": r"\x08\x7fdel",
    "\u2028line": r"\u2028line",
    "\U000e0041tag": r"\U000e0041tag",
    "\u00a0space": r"\xa0space",
    "</script><b>": "</script><b>",
    '"quote"': '"quote"',
    "é中🙂": "é中🙂",
}


def assert_harmless(output: str) -> None:
    """No character of the output acts on a terminal."""
    dangerous = {
        character
        for character in output
        if character != "\n" and unicodedata.category(character) in {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
    }
    assert not dangerous
