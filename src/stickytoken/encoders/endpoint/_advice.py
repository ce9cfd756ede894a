"""Tell users what to do about requests that a server never answers."""

from __future__ import annotations

from stickytoken.encoders.endpoint.address import Address
from stickytoken.errors import ModelError

KEPT = "its answers are kept, and the same command continues from there"
_WRONG_KEY = frozenset({401, 403})
_NOT_FOUND = frozenset({404, 405})
PAYMENT_REQUIRED = 402


def of_status(address: Address, status: int, said: str, *, has_key: bool) -> ModelError | None:
    """Explain a status after which no request will be answered; None for any other status.

    Args:
        address: the model.
        status: HTTP status.
        said: what the server said, in one line and without the key.
        has_key: whether a key was sent.
    """
    if status in _WRONG_KEY:
        return _key_refused(address, said) if has_key else key_missing(address)
    if status == PAYMENT_REQUIRED:
        return ModelError(f"{address.name}: the account has no credit left ({said}): add some; {KEPT}")
    if status in _NOT_FOUND:
        what = _other_url(address) or "check the name of the model and the URL"
        return ModelError(f"{address.name}: the server knows no such model or path ({said}): {what}")
    return None


def key_missing(address: Address) -> ModelError:
    """Explain that there is no key."""
    return ModelError(
        f"{address.name} needs a key, and the environment variable {address.key_variable} is empty: "
        f"set it (export {address.key_variable}=...), or name another variable (--key-variable)"
    )


def not_an_api(address: Address) -> ModelError:
    """Explain that a web page answered."""
    what = _other_url(address) or "check the URL, or try later if the server is in maintenance"
    return ModelError(f"{address.name}: a web page answers there, not an API: {what}")


def refused(name: str, said: object) -> ModelError:
    """Explain that the server refuses a request for what is in it."""
    return ModelError(f"{name}: the server refuses the request ({said}): check the model and the options")


def unreachable(name: str, last: object) -> ModelError:
    """Explain that nobody answers."""
    return ModelError(f"{name} cannot be reached ({last}): check the URL, and that the server is running")


def given_up(name: str, why: str, *, kept: str = "") -> ModelError:
    """Explain that a request got no usable answer in time."""
    return ModelError(f"{name} {why}: check the server, or try later{kept and f'; {kept}'}")


def _key_refused(address: Address, said: str) -> ModelError:
    return ModelError(
        f"{address.name}: the server refuses the key in the environment variable {address.key_variable} "
        f"({said}): set the right one, or name another variable (--key-variable)"
    )


def _other_url(address: Address) -> str | None:
    """Name the URL that was probably meant; None if it has the usual form."""
    usual = address.base_url.removesuffix("/embeddings").removesuffix("/v1") + "/v1"
    if usual == address.base_url:
        return None
    return f"check the URL, which usually ends in /v1, as in {usual}#{address.model}"
