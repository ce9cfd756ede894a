"""What the user says about a model behind an endpoint: its address, its key, and how to use it."""

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
from stickytoken.validation import real_number, whole_number

_OPENAI_URL = "https://api.openai.com/v1"
_OPENAI_KEY = "OPENAI_API_KEY"
_OWN_KEY = "STICKYTOKEN_API_KEY"
_OPENAI = "openai:"
_HOW = "pass openai:MODEL, or a URL and a model as in http://localhost:8080/v1#MODEL"
# Shorter values are removed as whole words only: they occur within others.
_SHORTEST_REMOVED = 6


@dataclass(frozen=True, slots=True)
class Address:
    base_url: str  # without a slash at its end
    model: str
    key_variable: str  # environment variable that holds the key

    @property
    def name(self) -> str:
        return f"{_OPENAI}{self.model}" if self.base_url == _OPENAI_URL else f"{self.base_url}#{self.model}"

    @property
    def is_local(self) -> bool:
        host = urlsplit(self.base_url).hostname or ""
        try:
            return ip_address(host).is_loopback
        except ValueError:
            return host == "localhost" or host.endswith(".localhost")


def names_endpoint(name: str) -> bool:
    return name.startswith(_OPENAI) or name.lower().startswith(("http://", "https://"))


def parse_address(name: str, key_variable: str | None = None) -> Address:
    if key_variable is not None and not (key_variable.isascii() and key_variable.isidentifier()):
        # It may be the key itself, so it is not shown.
        raise InputError(
            "the key variable is not the name of an environment variable: pass a name such as "
            f"{_OPENAI_KEY}, never the key itself"
        )
    if name.startswith(_OPENAI):
        url = os.environ.get("OPENAI_BASE_URL") or _OPENAI_URL
        model, default = name.removeprefix(_OPENAI), _OPENAI_KEY
    else:
        url, _, model = name.partition("#")
        default = _OWN_KEY
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise InputError(f"the URL of the endpoint is malformed ({error}): {_HOW}") from error
    if parts.username is not None or parts.password is not None or parts.query:
        # Not shown either: URLs are written into run folders, and secrets must not be.
        raise InputError(
            f"the URL of the endpoint at {parts.hostname} has a user, a password or parameters: leave them "
            f"out, and put the key into the environment variable {_OWN_KEY}"
        )
    if parts.scheme.lower() not in ("http", "https") or not parts.hostname:
        raise InputError(f"{url!r} is not the URL of an endpoint: {_HOW}")
    if not model.strip():
        raise InputError(f"{name!r} names no model: {_HOW}")
    return Address(url.rstrip("/"), model, key_variable or default)


class Secret:  # no message, repr or traceback shows it
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
        """Replace the key in a text, however it is written: servers repeat it in their messages."""
        spellings = (
            self._value,
            quote(self._value, safe=""),
            quote_plus(self._value),
            json.dumps(self._value)[1:-1],
            html.escape(self._value),
            base64.b64encode(self._value.encode()).decode("ascii"),
        )
        for spelling in filter(None, dict.fromkeys(spellings)):
            pattern = re.escape(spelling)
            if len(spelling) < _SHORTEST_REMOVED:
                pattern = rf"(?<!\w){pattern}(?!\w)"
            text = re.sub(pattern, "[key]", text, flags=re.IGNORECASE)
        return text


def key_missing(address: Address) -> ModelError:
    return ModelError(
        f"{address.name} needs a key, and the environment variable {address.key_variable} is empty: "
        f"set it (export {address.key_variable}=...), or name another variable (--set key-variable=NAME)"
    )


def key_of(address: Address) -> Secret:
    value = os.environ.get(address.key_variable, "").strip()
    if not value and address.base_url == _OPENAI_URL:
        raise key_missing(address)
    if not value.isascii() or not value.isprintable():
        raise ModelError(
            f"the key in the environment variable {address.key_variable} has characters that no key has: "
            "copy it again"
        )
    return Secret(value)


@dataclass(frozen=True, slots=True)
class EndpointOptions:
    """Options of a model behind an endpoint.

    Attributes:
        key_variable: environment variable that holds the key; None chooses by address.
        dimensions: number of components to ask for; None leaves it to the model.
        price_per_million: price of a million tokens, for estimates and `max_cost`.
        max_cost: largest sum to spend in this process; nothing that would exceed it is sent.
        patience: seconds for which a request may fail, with retries, before everything ends.
        request_seconds: longest wait for one answer.

    Raises:
        InputError: a value is out of range, or there is a largest sum without a price.
    """

    key_variable: str | None = None
    dimensions: int | None = None
    price_per_million: float | None = None
    max_cost: float | None = None
    patience: float = 600.0
    request_seconds: float = 60.0

    def __post_init__(self) -> None:
        if self.dimensions is not None:
            object.__setattr__(self, "dimensions", whole_number("dimensions", self.dimensions, 1))
        for name in ("price_per_million", "max_cost", "patience", "request_seconds"):
            value = getattr(self, name)
            if value is None:
                continue
            number = real_number(name, value)
            if not 0 <= number < float("inf"):
                raise InputError(f"{name} is {value}: it must be a number from 0")
            object.__setattr__(self, name, number)
        if self.max_cost is not None and not self.price_per_million:
            raise InputError(f"max_cost is {self.max_cost:g}, without a price: pass price_per_million, too")
