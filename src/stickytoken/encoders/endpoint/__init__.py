"""The address and the key of a model behind an endpoint."""

from __future__ import annotations

import base64
import html
import json
import os
import re
from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import quote, quote_plus, urlsplit

from stickytoken.errors import InputError, ModelError

_OPENAI_PREFIX = "openai:"
_OPENAI_URL = "https://api.openai.com/v1"
# Environment variables that hold the API key: one for OpenAI, and one for all other servers.
_OPENAI_KEY = "OPENAI_API_KEY"
_OTHER_KEY = "STICKYTOKEN_API_KEY"
_HOW_TO_NAME = "pass openai:MODEL, or a URL and a model as in http://localhost:8080/v1#MODEL"
# A key with fewer characters may be part of an ordinary word, so it is removed from messages only where it
# stands as a whole word.
_SHORTEST_KEY_IN_WORDS = 6


@dataclass(frozen=True, slots=True)
class Address:
    """The location of a model behind an endpoint.

    Attributes:
        base_url: URL of the API, without a trailing slash.
        model: name of the model on the server.
        key_variable: name of the environment variable that holds the key.
    """

    base_url: str
    model: str
    key_variable: str

    @property
    def name(self) -> str:
        """The name under which the user can load the model."""
        if self.base_url == _OPENAI_URL:
            return f"{_OPENAI_PREFIX}{self.model}"
        return f"{self.base_url}#{self.model}"

    @property
    def is_local(self) -> bool:
        """Whether the server is on this machine."""
        host = urlsplit(self.base_url).hostname or ""
        try:
            return ip_address(host).is_loopback
        except ValueError:
            return host == "localhost" or host.endswith(".localhost")


def names_endpoint(name: str) -> bool:
    """Whether a name has the form ``openai:MODEL`` or begins with ``http://`` or ``https://``."""
    return name.startswith(_OPENAI_PREFIX) or name.lower().startswith(("http://", "https://"))


def parse_address(name: str, key_variable: str | None = None) -> Address:
    """Parse the address in a name such as ``openai:MODEL`` or ``URL#MODEL``.

    Args:
        name: the name.
        key_variable: name of the environment variable that holds the key; if None, OPENAI_API_KEY for
            ``openai:MODEL`` and STICKYTOKEN_API_KEY for a URL.

    Raises:
        InputError: the name is malformed, its URL contains a user, a password or parameters, or
            `key_variable` is not a valid name of a variable.
    """
    if key_variable is not None and not (key_variable.isascii() and key_variable.isidentifier()):
        # The message does not repeat the value, because the user may have passed the key itself.
        raise InputError(
            "key_variable is not the name of an environment variable: pass a name such as "
            f"{_OPENAI_KEY}, never the key itself"
        )
    if name.startswith(_OPENAI_PREFIX):
        url = os.environ.get("OPENAI_BASE_URL") or _OPENAI_URL
        model = name.removeprefix(_OPENAI_PREFIX)
        default_variable = _OPENAI_KEY
    else:
        url, _, model = name.partition("#")
        default_variable = _OTHER_KEY
    try:
        split_url = urlsplit(url)
        _ = split_url.port  # raises ValueError if the port is malformed
    except ValueError as error:
        raise InputError(f"the URL of the endpoint is malformed ({error}): {_HOW_TO_NAME}") from error
    if split_url.username is not None or split_url.password is not None or split_url.query:
        # URLs are written into run folders, so they must not contain secrets. For the same reason, the
        # message does not repeat the URL.
        raise InputError(
            f"the URL of the endpoint at {split_url.hostname} has a user, a password or parameters: remove "
            f"them, and put the key in the environment variable {_OTHER_KEY}"
        )
    if split_url.scheme.lower() not in ("http", "https") or not split_url.hostname:
        raise InputError(f"{url!r} is not the URL of an endpoint: {_HOW_TO_NAME}")
    if not model.strip():
        raise InputError(f"{name!r} names no model: {_HOW_TO_NAME}")
    return Address(url.rstrip("/"), model, key_variable or default_variable)


class Secret:
    """An API key, wrapped so that it does not appear in messages, reprs or tracebacks."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def __repr__(self) -> str:
        return "<Secret>"

    def __bool__(self) -> bool:
        return bool(self._value)

    def reveal(self) -> str:
        return self._value

    def removed_from(self, text: str) -> str:
        """Return a text with the key replaced by ``[key]``, in every encoding that a server may use."""
        if not self._value:
            return text
        spellings = (
            self._value,
            quote(self._value, safe=""),
            quote_plus(self._value),
            json.dumps(self._value)[1:-1],  # without the quotation marks
            html.escape(self._value),
            base64.b64encode(self._value.encode()).decode("ascii"),
        )
        for spelling in dict.fromkeys(spellings):  # each once, because most spellings are usually the same
            pattern = re.escape(spelling)
            if len(spelling) < _SHORTEST_KEY_IN_WORDS:  # it may be part of an ordinary word
                pattern = rf"(?<!\w){pattern}(?!\w)"
            text = re.sub(pattern, "[key]", text, flags=re.IGNORECASE)
        return text


def make_missing_key_error(address: Address) -> ModelError:
    """Return the error to raise if a server requires a key but its environment variable is empty."""
    return ModelError(
        f"{address.name} needs a key, and the environment variable {address.key_variable} is empty: "
        f"set it (export {address.key_variable}=...), or name another variable (--set key-variable=NAME)"
    )


def read_key(address: Address) -> Secret:
    """Return the key for a server; an empty `Secret` if the environment variable is empty.

    Raises:
        ModelError: the server is OpenAI and there is no key, or the key contains characters other than
            printable ASCII.
    """
    value = os.environ.get(address.key_variable, "").strip()
    if not value and address.base_url == _OPENAI_URL:
        raise make_missing_key_error(address)
    if not value.isascii() or not value.isprintable():
        raise ModelError(
            f"the key in the environment variable {address.key_variable} has characters other than printable "
            "ASCII, so it cannot be a key: copy it again"
        )
    return Secret(value)
