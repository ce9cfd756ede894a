"""Serve the page on this machine until it is stopped."""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.middleware import Middleware

from stickytoken.demo._request_guard import AllowedHosts, ContentPolicy, RequestGuard
from stickytoken.demo.app import App
from stickytoken.errors import InputError

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
    """Return a port that can be served on; 0 finds a free one.

    Raises:
        InputError: the port is in use, not allowed or not a port number.
    """
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
    """Start serving in the background, on 127.0.0.1 alone, to requests that address this machine by name.

    Args:
        app: the page.
        port: port to serve on; 0 finds a free one.
        share: also make a public address through Gradio's tunnel.

    Raises:
        InputError: the port is in use, or no public address could be made.
    """
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
