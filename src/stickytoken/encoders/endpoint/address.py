"""The name of a model behind an endpoint: what users type, and what a run records."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import urlsplit

from stickytoken.errors import InputError

OPENAI_URL = "https://api.openai.com/v1"
OPENAI_KEY = "OPENAI_API_KEY"
OWN_KEY = "STICKYTOKEN_API_KEY"
_OPENAI = "openai:"
_URL = re.compile(r"https?://", re.IGNORECASE)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HOW = "pass openai:MODEL, or a URL and a model as in http://localhost:8080/v1#MODEL"


@dataclass(frozen=True, slots=True)
class Address:
    """Where a model is, and under which name.

    Attributes:
        base_url: URL of the API, without a slash at its end.
        model: name of the model on the server.
        key_variable: environment variable that holds the key.
    """

    base_url: str
    model: str
    key_variable: str

    @property
    def name(self) -> str:
        """The name that `parse_address` turns into this address."""
        return f"{_OPENAI}{self.model}" if self.base_url == OPENAI_URL else f"{self.base_url}#{self.model}"

    @property
    def is_local(self) -> bool:
        """Whether the server is on this machine."""
        host = urlsplit(self.base_url).hostname or ""
        try:
            return ip_address(host).is_loopback
        except ValueError:
            return host == "localhost" or host.endswith(".localhost")

    @property
    def needs_key(self) -> bool:
        """Whether the server answers nobody without a key."""
        return self.base_url == OPENAI_URL


def names_endpoint(name: str) -> bool:
    """Check whether the name of a model is that of a model behind an endpoint."""
    return name.startswith(_OPENAI) or bool(_URL.match(name))


def parse_address(name: str, key_variable: str | None = None) -> Address:
    """Read the name of a model behind an endpoint.

    Args:
        name: ``openai:MODEL``, which honours OPENAI_BASE_URL, or ``URL#MODEL``.
        key_variable: environment variable that holds the key; None is OPENAI_API_KEY for ``openai:``, and
            STICKYTOKEN_API_KEY for a URL, so that a key never goes to a server that it was not made for.

    Raises:
        InputError: the name has no model, the URL is malformed or holds a secret, or the variable is no name.
    """
    if key_variable is not None and not _VARIABLE.fullmatch(key_variable):
        # It may be the key itself, so it is not shown.
        raise InputError(
            "the key variable is not the name of an environment variable: pass a name such as "
            f"{OPENAI_KEY}, never the key itself"
        )
    if name.startswith(_OPENAI):
        url = _checked(os.environ.get("OPENAI_BASE_URL") or OPENAI_URL)
        model, default = name.removeprefix(_OPENAI), OPENAI_KEY
    else:
        url, _, model = name.partition("#")
        url, default = _checked(url), OWN_KEY
    if not model.strip():
        raise InputError(f"{name!r} names no model: {_HOW}")
    return Address(url, model, key_variable or default)


def _checked(url: str) -> str:
    """Return a URL without a slash at its end; refuse one that is malformed or carries a secret."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise InputError(f"the URL of the endpoint is malformed ({error}): {_HOW}") from error
    if parts.username is not None or parts.password is not None or parts.query:
        # Not shown either: URLs are written into run folders, and secrets must not be.
        raise InputError(
            f"the URL of the endpoint at {parts.hostname} has a user, a password or parameters: leave them "
            f"out, and put the key into the environment variable {OWN_KEY}"
        )
    if parts.scheme.lower() not in ("http", "https") or not parts.hostname:
        raise InputError(f"{url!r} is not the URL of an endpoint: {_HOW}")
    return url.rstrip("/")
