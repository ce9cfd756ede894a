"""A proxy in front of a real embedding server: it forwards requests, harms some of them, and keeps count."""

import base64
import http.client
import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain, repeat
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from quiet_handler import QuietHandler

UNANSWERED = ("408", "429", "500", "503", "drop")
"""Faults of requests that never reach the server."""
DAMAGED = ("short", "empty", "nan", "twice", "error body", "cut", "lost")
"""Faults of answers that the server gave."""
HARMLESS = ("reordered", "no usage")


class FaultProxy:
    """Forwards requests to a server.

    Args:
        url: of the API behind it, such as ``http://127.0.0.1:8000/v1``.
        faults: what happens to each request in turn: a name of the tuples above, or None for nothing. Once
            they are used up, nothing happens any more.
        latency: seconds that every request takes on its way, as over a network.

    Attributes:
        delivered: how often each text was answered, and the answer arrived whole.
        spoiled: how often the server answered a text in vain.
        harmed: how often each fault occurred.
        tokens: tokens of all delivered answers, as the server counts them.
        requests: number of delivered answers.
    """

    def __init__(self, url: str, faults: Iterable[str | None] = (), latency: float = 0.0) -> None:
        self._url = urlsplit(url)
        self._lock = threading.Lock()
        self.latency = latency
        self.delivered: Counter[str] = Counter()
        self.spoiled: Counter[str] = Counter()
        self.harmed: Counter[str] = Counter()
        self.tokens = 0
        self.requests = 0
        self.behave(faults)

    def behave(self, faults: Iterable[str | None]) -> None:
        """Replace what happens to the next requests."""
        self._faults = chain(faults, repeat(None))

    @contextmanager
    def running(self, port: int = 0):
        """Listen; yield the URL of the API."""
        server = ThreadingHTTPServer(("127.0.0.1", port), _handler(self))
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}{self._url.path}"
        finally:
            server.shutdown()
            server.server_close()

    def next_fault(self) -> str | None:
        """What happens to the next request."""
        with self._lock:
            fault = next(self._faults)
            if fault is not None:
                self.harmed[fault] += 1
            return fault

    def forwarded(self, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
        """Ask the server; return its status and answer."""
        time.sleep(self.latency)
        connection = http.client.HTTPConnection(self._url.hostname or "", self._url.port, timeout=300)
        try:
            connection.request("POST", path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def note(self, body: bytes, content: bytes, fault: str | None) -> None:
        """Count an answer of the server."""
        asked = json.loads(body)["input"]
        texts = [asked] if isinstance(asked, str) else asked
        counted = json.loads(content).get("usage", {}).get("prompt_tokens", 0)
        with self._lock:
            (self.spoiled if fault in DAMAGED else self.delivered).update(texts)
            if fault not in DAMAGED:
                self.tokens += counted
                self.requests += 1


def damaged(content: bytes, fault: str | None) -> bytes:
    """Return an answer as the fault leaves it."""
    if fault not in (*DAMAGED, *HARMLESS):
        return content
    answer = json.loads(content)
    data: list[dict[str, Any]] = answer["data"]
    changes: dict[str, Callable[[], dict[str, Any]]] = {
        "short": lambda: {**answer, "data": data[:-1]},
        "empty": lambda: {**answer, "data": []},
        "nan": lambda: {**answer, "data": [{**data[0], "embedding": _of_nan(data[0])}, *data[1:]]},
        "twice": lambda: {**answer, "data": [{**item, "index": 7} for item in data]},
        "error body": lambda: {"error": {"message": "the model is overloaded", "code": 529}},
        "reordered": lambda: {**answer, "data": data[::-1]},
        "no usage": lambda: {key: value for key, value in answer.items() if key != "usage"},
    }
    return json.dumps(changes[fault]()).encode() if fault in changes else content


def _of_nan(item: dict[str, Any]) -> str | list[None]:
    if isinstance(item["embedding"], str):
        size = len(base64.b64decode(item["embedding"])) // 4
        return base64.b64encode(np.full(size, np.nan, "<f4").tobytes()).decode()
    return [None] * len(item["embedding"])


def _handler(proxy: FaultProxy) -> type[BaseHTTPRequestHandler]:
    class Handler(QuietHandler, BaseHTTPRequestHandler):
        wbufsize = 1 << 16
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            fault = proxy.next_fault()
            if fault == "drop":
                self._hang_up()
                return
            if fault in UNANSWERED:
                self._write(int(fault), b'{"error": {"message": "told to"}}')
                return
            kept = {
                name: value
                for name, value in self.headers.items()
                if name.lower() not in ("host", "content-length", "connection", "accept-encoding")
            }
            try:
                status, content = proxy.forwarded(self.path, body, kept)
            except (OSError, http.client.HTTPException):  # the server is not there
                self._hang_up()
                return
            if status == 200:
                proxy.note(body, content, fault)
                if fault == "lost":
                    self._hang_up()
                    return
                content = damaged(content, fault)
            self._write(status, content, cut=fault == "cut" and status == 200)

        def _hang_up(self) -> None:
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True

        def _write(self, status: int, content: bytes, cut: bool = False) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[: len(content) // 2] if cut else content)
            self.close_connection = self.close_connection or cut

    return Handler
