"""Serve the web app on this machine, and reject requests that do not come from the app's own page."""

from __future__ import annotations

import json
import logging
import socket
import time
from collections.abc import Container
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import gradio as gr
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stickytoken.demo._components import one_line, render
from stickytoken.demo._explore import explore_tab
from stickytoken.demo._try import try_tab
from stickytoken.demo._why import why_tab
from stickytoken.demo.context import RunLibrary, Startup
from stickytoken.errors import InputError, StickyTokenError
from stickytoken.reports import report
from stickytoken.reports.figures import template
from stickytoken.reports.templating import packaged
from stickytoken.validation import visible

_LOG = logging.getLogger(__name__)
_FONTS = ["system-ui", "-apple-system", "Segoe UI", "Roboto", "Noto Sans", "sans-serif"]
_MONO = ["ui-monospace", "SF Mono", "Menlo", "Consolas", "Noto Sans Mono", "monospace"]

# Gradio's colour variables in the light and in the dark scheme; text has a contrast of at least 4.5 to 1.
_COLORS = {
    "button_primary_background_fill": "#00609a",
    "button_primary_background_fill_dark": "#00609a",
    "button_primary_background_fill_hover": "#004a78",
    "button_primary_background_fill_hover_dark": "#004a78",
    "button_primary_text_color": "#ffffff",
    "button_primary_text_color_dark": "#ffffff",
    "block_info_text_color": "#57606f",
    "block_info_text_color_dark": "#a3adbb",
    "block_label_text_color": "#3b4350",
    "block_label_text_color_dark": "#d0d6de",
    "block_title_text_color": "#3b4350",
    "block_title_text_color_dark": "#d0d6de",
}
# Maximum number of requests that may wait for the model. Further requests are rejected.
_LONGEST_QUEUE = 32


def make_app(startup: Startup, shared: bool = False) -> gr.Blocks:
    """Build the app's web page.

    Args:
        startup: The runs, and the model once it is loaded.
        shared: Whether the page is also served on a public address.
    """
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
            with gr.Tab("Why similar") as tab:
                why_tab(startup, blocks, tab)
            with gr.Tab("Explore"):
                explore_tab(startup)
    blocks.queue(max_size=_LONGEST_QUEUE)
    return blocks


def report_route(library: RunLibrary) -> Route:
    """Return the route of the runs' reports, which `RunLibrary.report_path` links to."""

    def respond(request: Request) -> Response:
        try:
            path = library.path_of_report(request.path_params["number"])
            return HTMLResponse(report(path))
        except StickyTokenError as error:
            return PlainTextResponse(f"{one_line(str(error))}\n", status_code=404)

    return Route("/report/{number:int}", respond)


class _CheckedBlocks(gr.Blocks):
    """Gradio blocks that answer a malformed request with a one-line error."""

    async def preprocess_data(self, block_fn: Any, inputs: list[Any], *args: Any, **kwargs: Any) -> Any:
        # Gradio calls this with the values that a browser sends for an event, and the event's definition.
        if len(inputs) != len(block_fn.inputs):
            raise _malformed_error(
                f"the request has {len(inputs)} values, but the event takes {len(block_fn.inputs)}"
            )
        try:
            return await super().preprocess_data(block_fn, inputs, *args, **kwargs)
        except Exception as error:
            raise _malformed_error(str(error)) from error

    async def call_function(self, *args: Any, **kwargs: Any) -> Any:
        # The handlers answer errors themselves, so that one here comes from a value that no handler takes.
        try:
            return await super().call_function(*args, **kwargs)
        except Exception as error:
            raise _malformed_error(str(error)) from error


def _malformed_error(reason: str) -> gr.Error:
    _LOG.warning("refused: a request that the page does not send: %s", one_line(reason))
    return gr.Error(
        "The request does not fit this page: reload it.", title="Not computed", print_exception=False
    )


# Host names that this machine uses for itself. A page on another site can make a browser resolve that site's
# name to this machine and then read the app (DNS rebinding), but its requests still carry that site's name.
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
# Maximum size of a request body, in bytes.
_BODY_BYTES = 16_000_000
_API = "/gradio_api"
_JOIN = f"{_API}/queue/join"
# The only paths to which the page posts. Requests to upload files, to call handlers directly or to use
# Gradio's own editor are rejected.
_POSTED = (_JOIN, f"{_API}/cancel", f"{_API}/reset")


# Gradio's page contains inline scripts and builds functions from templates, so both must be allowed. No
# script can reach another host.
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
_HEADERS = {"content-security-policy": _POLICY, "referrer-policy": "no-referrer"}


@dataclass(frozen=True)
class _Refusal:
    """The HTTP status and the reason for rejecting a request."""

    status: int
    reason: str


class RequestGuard:
    """ASGI middleware that refuses requests that the app's own page would never send.

    The middleware also adds security headers to every response.
    """

    def __init__(self, app: ASGIApp, public_hosts: Container[str]) -> None:
        """Guard an app.

        Args:
            app: The app to guard.
            public_hosts: Public host names of the app, in lower case. When the app is shared, the caller adds
                its host names to this container.
        """
        self._app = app
        self._public_hosts = public_hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""

        async def send_with_policy(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        refusal = self._refusal(scope) if scope["type"] in ("http", "websocket") else None
        if refusal is None:
            try:
                await self._app(scope, receive, send_with_policy)
            except KeyError:
                # On this path, Gradio does nothing but look up an event by number, so the error means that
                # there is no such event. Handlers run later, in Gradio's queue.
                if scope["type"] != "http" or scope["path"].rstrip("/") != _JOIN:
                    raise
                refusal = _Refusal(404, "the page has no such event: reload it")
        if refusal is not None:
            _LOG.warning("refused a request: %s", refusal.reason)
            await _refuse(scope, receive, send_with_policy, refusal)

    def _refusal(self, scope: Scope) -> _Refusal | None:
        headers = Headers(scope=scope)
        # A browser names the site whose page sends a request, if it is another site or if the request may
        # change something.
        if any(not self._is_own_origin(origin, headers) for origin in headers.getlist("origin")):
            return _Refusal(403, "this app answers its own page only")
        if scope["type"] == "websocket":
            return _Refusal(403, "this app has no websockets")
        if scope["method"] in ("GET", "HEAD", "OPTIONS"):  # such requests change nothing, and have no body
            return None
        return _refuse_body(scope["path"], headers)

    def _is_own_origin(self, origin: str, headers: Headers) -> bool:
        address = origin.partition("://")[2]
        return address == headers.get("host") or address.lower() in self._public_hosts


def _refuse_body(path: str, headers: Headers) -> _Refusal | None:
    if path.rstrip("/") not in _POSTED:
        return _Refusal(404, "this app has no API: use the command line or the Python package instead")
    length = headers.get("content-length", "")
    if not length.isdecimal():
        return _Refusal(411, "the length of the request is missing")
    if int(length) > _BODY_BYTES:
        return _Refusal(413, f"the request has more than {_BODY_BYTES:,} bytes")
    return None


async def _refuse(scope: Scope, receive: Receive, send: Send, refusal: _Refusal) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008, "reason": refusal.reason})
        return
    # The connection must be closed, because the body of the request was not read.
    response = PlainTextResponse(f"{refusal.reason}\n", refusal.status, {"connection": "close"})
    await response(scope, receive, send)


class _TrustedHosts:
    """Wraps apps so that requests with unknown host names are rejected.

    `add` allows further host names after the server has started: Starlette calls this object to wrap the app,
    as it would call a middleware class, and later has no way to change what it has made.
    """

    def __init__(self) -> None:
        self._middleware: list[TrustedHostMiddleware] = []

    def __call__(self, app: ASGIApp) -> TrustedHostMiddleware:
        middleware = TrustedHostMiddleware(app, list(LOOPBACK), www_redirect=False)
        self._middleware.append(middleware)
        return middleware

    def add(self, host: str) -> None:
        for middleware in self._middleware:
            middleware.allowed_hosts.append(host)


HOST = "127.0.0.1"
_LARGEST_PORT = 65_535


@dataclass(frozen=True)
class Served:
    """An app that is being served."""

    blocks: gr.Blocks  # the page
    url: str  # its address on this machine
    public_url: str | None  # its public address; None if it is not shared

    def wait(self) -> None:
        """Wait until the app is closed."""
        while self.blocks.is_running:
            time.sleep(0.2)

    def close(self) -> None:
        """Stop serving."""
        self.blocks.close(verbose=False)


def require_free(port: int) -> int:
    """Check that a port is free, and return its number; for 0, return the number of any free port.

    Raises:
        InputError: The number is not a port number, or the port is in use.
    """
    if not 0 <= port <= _LARGEST_PORT:
        raise InputError(
            f"port {port} is not a port number: use 1 to {_LARGEST_PORT}, or 0 for any free port"
        )
    with socket.socket() as listener:
        # Servers set this option too. With it, a port is free even if its last connections are still closing.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOST, port))
        except OSError as error:
            raise InputError(
                f"port {port} cannot be used ({(error.strerror or str(error)).lower()}): choose another "
                "with --port, or --port 0 for any free port"
            ) from error
        free_port: int = listener.getsockname()[1]
        return free_port


def serve(blocks: gr.Blocks, library: RunLibrary, port: int, share: bool) -> Served:
    """Start serving in the background, on 127.0.0.1 only.

    Args:
        blocks: The page.
        library: The runs whose reports are served beside the page.
        port: Port to serve on; 0 chooses any free port.
        share: Whether Gradio also serves the page on a public address.

    Raises:
        InputError: The port is in use, or no public address could be created.
    """
    free_port = require_free(port)
    trusted_hosts = _TrustedHosts()
    public_hosts: set[str] = set()
    guards = [Middleware(trusted_hosts), Middleware(RequestGuard, public_hosts=public_hosts)]
    # The theme uses system fonts, so that none are downloaded.
    theme = gr.themes.Default(primary_hue="blue", font=_FONTS, font_mono=_MONO).set(**_COLORS)
    # Whatever else Gradio offers on a page is switched off.
    launch_options: dict[str, Any] = {
        "server_name": HOST,
        "server_port": free_port,
        "share": share,
        "quiet": True,
        "prevent_thread_lock": True,  # returns, and serves in the background
        "inbrowser": False,
        "show_error": False,
        "footer_links": [],
        "run_history": False,
        "ssr_mode": False,
        "pwa": False,
        "mcp_server": False,
        "enable_monitoring": False,
        "allowed_paths": [],
        "app_kwargs": {"middleware": guards, "routes": [report_route(library)]},
        "theme": theme,
        "css": packaged("pieces.css") + packaged("app.css", "stickytoken.demo"),
        "head": f"<script>{_script()}</script>",
    }
    try:
        _, url, public_url = blocks.launch(**launch_options)
    except OSError as error:
        raise InputError(f"port {free_port} was just taken: choose another with --port") from error
    if share and not public_url:
        blocks.close(verbose=False)
        raise InputError(
            "no public address could be made: check the network, or start the app without --share"
        )
    if public_url:  # known only now, when the app is served already
        public_host = (urlsplit(public_url).hostname or "").lower()
        trusted_hosts.add(public_host)
        public_hosts.add(public_host)
    return Served(blocks, url, public_url)


def _script() -> str:
    themes = json.dumps({"light": template("light"), "dark": template("dark")})
    return packaged("app.js", "stickytoken.demo").replace("__THEMES__", themes) + packaged("pieces.js")
