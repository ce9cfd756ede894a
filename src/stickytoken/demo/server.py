"""Serve the page on this machine until it is stopped."""

from __future__ import annotations

import json
import logging
import re
import socket
import time
from collections.abc import Container
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import gradio as gr
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stickytoken.demo._compare import compare_tab, repair_tab
from stickytoken.demo._components import one_line, render
from stickytoken.demo._explain import explain_tab, why_tab
from stickytoken.demo._explore import explore_tab
from stickytoken.demo._try import try_tab
from stickytoken.demo.context import Startup
from stickytoken.errors import InputError
from stickytoken.reports.figures import template
from stickytoken.reports.templating import packaged
from stickytoken.validation import visible

_LOG = logging.getLogger(__name__)
_FONTS = ["system-ui", "-apple-system", "Segoe UI", "Roboto", "Noto Sans", "sans-serif"]
_MONO = ["ui-monospace", "SF Mono", "Menlo", "Consolas", "Noto Sans Mono", "monospace"]

# By light and dark scheme; text has a contrast of at least 4.5 to 1 in both.
_COLORS = {
    "button_primary_background_fill": ("#00609a", "#00609a"),
    "button_primary_background_fill_hover": ("#004a78", "#004a78"),
    "button_primary_text_color": ("#ffffff", "#ffffff"),
    "block_info_text_color": ("#57606f", "#a3adbb"),
    "block_label_text_color": ("#3b4350", "#d0d6de"),
    "block_title_text_color": ("#3b4350", "#d0d6de"),
}


def make_app(startup: Startup, shared: bool = False) -> gr.Blocks:
    model = visible(startup.model_name)
    blocks = _CheckedBlocks(title=f"Sticky tokens of {model}", analytics_enabled=False, fill_width=False)
    with blocks:
        gr.HTML(
            render("welcome.html.j2", model=model, left_out=startup.library.left_out, shared=shared),
            elem_id="welcome",
        )
        with gr.Tabs():
            with gr.Tab("Try"):
                try_tab(startup, blocks)
            with gr.Tab("Why similar") as asking:
                why_tab(startup, blocks, asking)
            with gr.Tab("Explore") as exploring:
                explore_tab(startup, exploring)
            with gr.Tab("Why sticky") as explaining:
                explain_tab(startup, blocks, explaining)
            with gr.Tab("Repair"):
                repair_tab(startup, blocks)
            with gr.Tab("Compare") as comparing:
                compare_tab(startup.library, comparing)
    # Requests that may wait for the model; more are refused.
    blocks.queue(max_size=32)
    return blocks


class _CheckedBlocks(gr.Blocks):
    """Blocks that answer a malformed request with one line."""

    async def preprocess_data(self, block_fn: Any, inputs: list[Any], *args: Any, **kwargs: Any) -> Any:
        if len(inputs) != len(block_fn.inputs):
            raise _malformed(f"{len(inputs)} values, and the event takes {len(block_fn.inputs)}")
        try:
            return await super().preprocess_data(block_fn, inputs, *args, **kwargs)
        except Exception as error:
            raise _malformed(str(error)) from error

    async def call_function(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return await super().call_function(*args, **kwargs)
        except Exception as error:
            raise _malformed(str(error)) from error


def _malformed(reason: str) -> gr.Error:
    _LOG.warning("refused: a request that the page does not send: %s", one_line(reason))
    return gr.Error(
        "The request does not fit this page: reload it.", title="Not computed", print_exception=False
    )


LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::\d{1,5})?", re.ASCII)
_BODY_BYTES = 16_000_000
_API = "/gradio_api"
_JOIN = f"{_API}/queue/join"
# The page sends nothing else; uploads, direct calls and Gradio's own editor stay closed.
_POSTED = (_JOIN, f"{_API}/cancel", f"{_API}/reset")


def is_allowed(address: str, names: Container[str] = LOOPBACK) -> bool:
    # A page of another site can make a browser resolve that site's name to this machine and then read the app
    # (DNS rebinding); the request still carries the other name.
    found = _HOST.fullmatch(address.lower())
    return found is not None and found[1] in names


# Gradio's page contains inline scripts and builds functions from templates, so both must be allowed; but
# no script can reach another host.
_POLICY = "; ".join(
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
_HEADERS = ((b"content-security-policy", _POLICY.encode("ascii")), (b"referrer-policy", b"no-referrer"))


class RequestGuard:
    """ASGI middleware that answers the app's own page alone, and adds a policy to every response."""

    def __init__(self, app: ASGIApp, hosts: Container[str]) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_policy(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *_HEADERS]
            await send(message)

        refused = self._refusal(scope) if scope["type"] in ("http", "websocket") else None
        if refused is None:
            try:
                await self._app(scope, receive, with_policy)
            except KeyError:
                # Gradio looks events up by number when they are sent; handlers run later, in its queue.
                if scope["type"] != "http" or scope["path"].rstrip("/") != _JOIN:
                    raise
                refused = (404, "the page has no such event: reload it")
        if refused is not None:
            status, reason = refused
            _LOG.warning("refused a request: %s", reason)
            await _refuse(scope, with_policy, status, reason)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        headers: dict[bytes, list[str]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.lower(), []).append(value.decode("latin-1"))
        hosts = headers.get(b"host", [])
        if len(hosts) != 1 or not is_allowed(hosts[0], self._hosts):
            return 403, "this app answers on this machine only: open it as localhost or 127.0.0.1"
        for origin in headers.get(b"origin", []):
            address = origin.partition("://")[2]
            public = is_allowed(address, self._hosts) and not is_allowed(address)
            if address != hosts[0] and not public:
                return 403, "this app answers its own page only"
        if scope["type"] == "websocket":
            return 403, "this app has no websockets"
        return None if scope["method"] in ("GET", "HEAD", "OPTIONS") else _refused_body(scope, headers)


def _refused_body(scope: Scope, headers: dict[bytes, list[str]]) -> tuple[int, str] | None:
    if scope["path"].rstrip("/") not in _POSTED:
        return 404, "this app has no API: use the command line or the Python package instead"
    length = headers.get(b"content-length", [""])[0]
    if not length.isdecimal():
        return 411, "the length of the request is missing"
    if int(length) > _BODY_BYTES:
        return 413, f"the request has more than {_BODY_BYTES:,} bytes"
    return None


async def _refuse(scope: Scope, send: Send, status: int, reason: str) -> None:
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


@dataclass(frozen=True)
class Served:
    blocks: gr.Blocks  # the page
    url: str  # its address on this machine
    public_url: str | None  # its public address; None if it is not shared

    def wait(self) -> None:
        while self.blocks.is_running:
            time.sleep(0.2)

    def close(self) -> None:
        self.blocks.close(verbose=False)


def require_free(port: int) -> int:
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


def serve(blocks: gr.Blocks, port: int, share: bool) -> Served:
    """Start serving in the background, on 127.0.0.1 alone, to requests that address this machine by name."""
    free = require_free(port)
    hosts = set(LOOPBACK)
    light = {name: color for name, (color, _) in _COLORS.items()}
    dark = {f"{name}_dark": color for name, (_, color) in _COLORS.items()}
    themes = json.dumps({name: template(name) for name in ("light", "dark")})
    script = packaged("app.js", "stickytoken.demo").replace("__THEMES__", themes) + packaged("pieces.js")
    try:
        _, url, public = blocks.launch(
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
            app_kwargs={"middleware": [Middleware(RequestGuard, hosts=hosts)]},
            # System fonts, so that nothing is fetched.
            theme=gr.themes.Default(primary_hue="blue", font=_FONTS, font_mono=_MONO).set(**light, **dark),
            css=packaged("pieces.css") + packaged("app.css", "stickytoken.demo"),
            head=f"<script>{script}</script>",
        )
    except OSError as error:
        raise InputError(f"port {free} was just taken: choose another one with --port") from error
    if share and not public:
        blocks.close(verbose=False)
        raise InputError(
            "no public address could be made: check the network, or start the app without --share"
        )
    if public:
        hosts.add((urlsplit(public).hostname or "").lower())
    return Served(blocks, url, public)
