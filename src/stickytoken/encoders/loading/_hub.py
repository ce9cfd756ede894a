"""Whether the hub can be reached at all."""

from __future__ import annotations

import socket
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies

_SECONDS = 10


def require_hub(*names: str) -> None:
    """Connect to the hub once; its own library tries for minutes and prints a line about every attempt.

    Nothing is tried where the hub is switched off or behind a proxy, or where files of the model are cached.

    Args:
        names: repositories where the model may be.

    Raises:
        ConnectionError: There is no such host, or it does not answer.
    """
    from huggingface_hub import constants

    address = urlsplit(constants.ENDPOINT)
    proxied = {address.scheme, "all"} & getproxies().keys()
    if constants.HF_HUB_OFFLINE or address.hostname is None or proxied:
        return
    cached = (Path(constants.HF_HUB_CACHE, f"models--{name.replace('/', '--')}") for name in names)
    if any(folder.is_dir() for folder in cached):
        return
    port = address.port or (80 if address.scheme == "http" else 443)
    try:
        socket.create_connection((address.hostname, port), timeout=_SECONDS).close()
    except OSError as error:
        reason = error.strerror or error
        raise ConnectionError(f"{address.hostname} cannot be reached: {reason}") from error
