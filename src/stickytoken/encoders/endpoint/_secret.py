"""API keys: read from the environment, and removed from whatever is shown."""

from __future__ import annotations

import base64
import html
import json
import os
import re
from collections.abc import Iterator
from urllib.parse import quote, quote_plus

from stickytoken.encoders.endpoint._advice import key_missing
from stickytoken.encoders.endpoint.address import Address
from stickytoken.errors import ModelError

# Shorter values are removed as whole words only: they occur within others.
_SHORTEST_REMOVED = 6


class Secret:
    """A key that no message, repr or traceback shows.

    Args:
        value: the key; empty for a server that asks for none.
    """

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def __repr__(self) -> str:
        return "<Secret>"

    def __bool__(self) -> bool:
        return bool(self._value)

    def reveal(self) -> str:
        """Return the key, for the client only."""
        return self._value

    def removed_from(self, text: str) -> str:
        """Replace the key in a text, however it is written: servers repeat it in their messages."""
        for spelling in filter(None, dict.fromkeys(self._spellings())):
            pattern = re.escape(spelling)
            if len(spelling) < _SHORTEST_REMOVED:
                pattern = rf"(?<!\w){pattern}(?!\w)"
            text = re.sub(pattern, "[key]", text, flags=re.IGNORECASE)
        return text

    def _spellings(self) -> Iterator[str]:
        yield self._value
        yield quote(self._value, safe="")
        yield quote_plus(self._value)
        yield json.dumps(self._value)[1:-1]
        yield html.escape(self._value)
        yield base64.b64encode(self._value.encode()).decode("ascii")


def key_of(address: Address) -> Secret:
    """Read the key of a server from the environment."""
    value = os.environ.get(address.key_variable, "").strip()
    if not value and address.needs_key:
        raise key_missing(address)
    if not value.isascii() or not value.isprintable():
        raise ModelError(
            f"the key in the environment variable {address.key_variable} has characters that no key has: "
            "copy it again"
        )
    return Secret(value)
