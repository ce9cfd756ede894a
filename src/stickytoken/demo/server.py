"""Serve the page on this machine until it is stopped."""

from __future__ import annotations

import logging
import re
import socket
import time
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from starlette.middleware import Middleware

from stickytoken.demo.app import App
from stickytoken.errors import InputError

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]
Receive = Callable[[], Awaitable[Message]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]

# Gradio's page contains inline scripts and builds functions from templates, so both must be allowed; but
# no script can reach another host.
POLICY = "; ".join(
    (
        "default-src 'self'",
        "script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:",
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data: blob:",
        "font-src 'self' data:",
        "connect-src 'self' data: blob:",
        "worker-src 'self' blob:",
        "object-src 'none'",
        "base-uri 'self'",
        "form-action 'self'",
    )
)
_HEADERS = (
    (b"content-security-policy", POLICY.encode("ascii")),
    (b"referrer-policy", b"no-referrer"),
)


class ContentPolicy:
    """ASGI middleware that adds the policy to every response."""

    def __init__(self, app: Application) -> None:
        self._app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Pass a request on, and its response back with the policy."""

        async def with_policy(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *_HEADERS]
            await send(message)

        await self._app(scope, receive, with_policy)


LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
_LOG = logging.getLogger(__name__)
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::\d{1,5})?", re.ASCII)
_BODY_BYTES = 16_000_000
_API = "/gradio_api"
_JOIN = f"{_API}/queue/join"
# The page sends nothing else; uploads, direct calls and Gradio's own editor stay closed.
_POSTED = (_JOIN, f"{_API}/cancel", f"{_API}/reset")
_READING = ("GET", "HEAD", "OPTIONS")


class AllowedHosts:
    """Names under which the app may be addressed.

    A page of another site can make a browser resolve that site's name to this machine and then read the
    app (DNS rebinding); the request still carries the other name.
    """

    def __init__(self, names: Iterable[str] = LOOPBACK) -> None:
        self._names = {name.lower() for name in names}

    def add(self, name: str) -> None:
        """Allow another host name, such as that of a public address."""
        self._names.add(name.lower())

    def allow(self, address: str) -> bool:
        """Return whether a ``Host`` header, with or without a port, is allowed."""
        found = _HOST.fullmatch(address.lower())
        return found is not None and found[1] in self._names


class RequestGuard:
    """ASGI middleware that rejects requests that do not come from the app's own page."""

    def __init__(self, app: Application, hosts: AllowedHosts, body_bytes: int = _BODY_BYTES) -> None:
        self._app = app
        self._hosts = hosts
        self._body_bytes = body_bytes

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        refused = self._refusal(scope)
        if refused is None:
            try:
                await self._app(scope, receive, send)
            except KeyError:
                # Gradio looks events up by number when they are sent; handlers run later, in its queue.
                if scope["path"].rstrip("/") != _JOIN:
                    raise
                refused = (404, "the page has no such event: reload it")
        if refused is not None:
            _LOG.warning("refused a request: %s", refused[1])
            await _refuse(scope, send, *refused)

    def _refusal(self, scope: Message) -> tuple[int, str] | None:
        """Return the status and the reason for a rejection; None if the request is allowed."""
        headers: dict[bytes, list[str]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.lower(), []).append(value.decode("latin-1"))
        hosts = headers.get(b"host", [])
        if len(hosts) != 1 or not self._hosts.allow(hosts[0]):
            return 403, "this app answers on this machine only: open it as localhost or 127.0.0.1"
        for origin in headers.get(b"origin", []):
            address = origin.partition("://")[2]
            if address != hosts[0] and not (self._hosts.allow(address) and not _is_loopback(address)):
                return 403, "this app answers its own page only"
        if scope["type"] == "websocket":
            return 403, "this app has no websockets"
        return self._body_refusal(scope, headers)

    def _body_refusal(self, scope: Message, headers: dict[bytes, list[str]]) -> tuple[int, str] | None:
        if scope["method"] in _READING:
            return None
        if scope["path"].rstrip("/") not in _POSTED:
            return 404, "this app has no API: use the command line or the Python package instead"
        length = headers.get(b"content-length", [""])[0]
        if not length.isdecimal():
            return 411, "the length of the request is missing"
        if int(length) > self._body_bytes:
            return 413, f"the request has more than {self._body_bytes:,} bytes"
        return None


def _is_loopback(address: str) -> bool:
    return AllowedHosts().allow(address)


async def _refuse(scope: Message, send: Send, status: int, reason: str) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008, "reason": reason})
        return
    body = f"{reason}\n".encode()
    headers = [
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})


HOST = "127.0.0.1"
_LARGEST_PORT = 65_535
_WAIT = 0.2


@dataclass(frozen=True)
class Served:
    """A page that is being served.

    Attributes:
        app: the page.
        url: its address on this machine.
        public_url: its public address; None if it is not shared.
    """

    app: App
    url: str
    public_url: str | None

    def wait(self) -> None:
        """Block until the server has ended; an interrupt passes through."""
        while self.app.blocks.is_running:
            time.sleep(_WAIT)

    def close(self) -> None:
        """Stop the server and free its port."""
        self.app.blocks.close(verbose=False)


def require_free(port: int) -> int:
    """Return a port that can be served on; 0 finds a free one."""
    if not 0 <= port <= _LARGEST_PORT:
        raise InputError(
            f"port {port} is not a port number: use 1 to {_LARGEST_PORT}, or 0 for any free port"
        )
    with socket.socket() as tried:
        # As servers do: a port whose last connections are closing counts as free.
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((HOST, port))
        except OSError as error:
            raise InputError(
                f"port {port} cannot be used ({(error.strerror or str(error)).lower()}): choose another one "
                "with --port, or --port 0 for any free port"
            ) from error
        found: int = tried.getsockname()[1]
        return found


def serve(app: App, port: int, share: bool) -> Served:
    """Start serving in the background, on 127.0.0.1 alone, to requests that address this machine by name."""
    free = require_free(port)
    hosts = AllowedHosts()
    try:
        _, url, public = app.blocks.launch(
            server_name=HOST,
            server_port=free,
            share=share,
            quiet=True,
            prevent_thread_lock=True,
            inbrowser=False,
            show_error=False,
            footer_links=[],
            run_history=False,
            ssr_mode=False,
            pwa=False,
            mcp_server=False,
            enable_monitoring=False,
            allowed_paths=[],
            app_kwargs={"middleware": [Middleware(ContentPolicy), Middleware(RequestGuard, hosts=hosts)]},
            **app.style,
        )
    except OSError as error:
        raise InputError(f"port {free} was just taken: choose another one with --port") from error
    if share and not public:
        app.blocks.close(verbose=False)
        raise InputError(
            "no public address could be made: check the network, or start the app without --share"
        )
    if public:
        hosts.add(urlsplit(public).hostname or "")
    return Served(app, url, public)
