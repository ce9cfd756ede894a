"""A small OpenAI-compatible server over a real model, which misbehaves when told to.

As a program: ``python tests/support/embedding_server.py FOLDER --port 8080 --name mini``.
"""

import argparse
import base64
import email.utils
import gzip
import json
import math
import socket
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

STATUSES = {str(status): status for status in (408, 409, 429, 500, 502, 503)}
# What becomes of the data of an answer.
BROKEN_DATA = {
    "short": lambda items: items[:-1],
    "long": lambda items: [*items, items[0]],
    "empty": lambda items: [],
    "empty vector": lambda items: [{**items[0], "embedding": []}, *items[1:]],
    "nan": lambda items: [{**items[0], "embedding": [float("nan")] * 4}, *items[1:]],
    "null": lambda items: [{**items[0], "embedding": [None] * 4}, *items[1:]],
    "other dimension": lambda items: [{**item, "embedding": [1.0] * 3} for item in items],
    "garbage": lambda items: [{**items[0], "embedding": "%%%"}, *items[1:]],
}
# Faults that spoil the vector of the first text alone.
OF_ONE_TEXT = ("empty vector", "nan", "null", "garbage")
ODD_BODIES = {
    "error body": b'{"error": {"message": "the model is overloaded", "code": 529}}',
    "web page": b"<!doctype html><p>Back soon",
    "no json": b"upstream connect error",
}
_PAGE = b"<!doctype html><p>Hello"
_PASSING = (*STATUSES, *BROKEN_DATA, "drop", "cut", "bad gzip", "error body", "gzip", "no usage")
FAULTS = tuple(fault for fault in _PASSING if fault != "other dimension")
"""What a server that goes on may do to a request, however often."""


def in_base64(row: np.ndarray, kind: str) -> str:
    if kind == "bits":
        content = np.packbits(row > 0).tobytes()
    elif kind == "bfloat16":
        content = (row.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()
    else:
        scale = 127 if kind == "i1" else 1
        content = (scale * row).astype(kind).tobytes()
    return base64.b64encode(content).decode()


def as_list(row: np.ndarray, kind: str) -> list[Any]:
    if kind == "nested":
        return [row.tolist()]
    if kind == "integers":
        return (127 * row).astype(int).tolist()
    if kind == "bits":
        return np.packbits(row > 0).tolist()
    return list(row.tolist())


@dataclass
class Behaviour:
    name: str = "mini"
    key: str | None = None
    batch_limit: int | None = None
    max_tokens: int | None = None
    long: str = "truncate"  # or refuse, or fail (HTTP 500)
    base64: str = "answer"  # or refuse, or ignore, which sends numbers
    base64_kind: str = "<f4"  # NumPy's name of another kind, or bfloat16, or bits
    listed: str = "numbers"  # or nested, in a list of lists; or integers, or bits
    required_fields: Mapping[str, str] = field(default_factory=dict)
    noise: float = 0.0  # standard deviation added to every component, differently in every call
    batch_noise: float = 0.0  # the same, but equal for equal requests
    scale: float = 1.0
    empty: str = "vector"  # or refuse, or zero, for an empty text
    shuffle: bool = False
    index: str = "all"  # none leaves every index out, omit-zero the first; zeros, strings, twice
    refused_fields: tuple[str, ...] = ()
    bad_text: str | None = None  # texts with it fail
    bad_status: int = 500  # how; 200 answers without their vectors
    plain_errors: bool = False  # errors are text, not JSON
    usage: str | None = "tokens"  # or characters, or words
    said_usage: Any = None  # instead of that
    seconds: float = 0.0
    seconds_per_text: float = 0.0
    retry_after: str | None = "0.05"  # date+3 is the date in three seconds
    refused_text: str | None = None
    said: str = "told to"
    elsewhere: str = ""  # URL that redirected requests are sent to
    faults: deque[str | None] = field(default_factory=deque)  # of the next requests; None answers
    faults_per_text: float = math.inf  # a request with a text that met this many faults is answered
    wrong: bool = False  # vectors of another model, from now on

    def index_of(self, position: int) -> int | str | None:
        """Return the index that an item has; None leaves it out."""
        forms = {
            "all": position,
            "none": None,
            "omit-zero": position or None,
            "zeros": 0,
            "strings": str(position),
            "twice": max(0, position - 1),
        }
        return forms[self.index]


class QuietHandler(BaseHTTPRequestHandler):
    """Prints nothing and bears clients that go away."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except ConnectionError:
            self.close_connection = True


@contextmanager
def listening(handler: type[BaseHTTPRequestHandler], port: int = 0):
    server = ThreadingHTTPServer(("127.0.0.1", port), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


class RefusalError(Exception):
    """A request that is not answered: its status and message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class EmbeddingServer:
    def __init__(self, encoder: Any, behaviour: Behaviour | None = None) -> None:
        self.encoder = encoder
        self.behaviour = behaviour or Behaviour()
        self.answered: list[list[str]] = []
        self.authorizations: list[str] = []
        self.seen = 0
        self.tokens = 0  # of all requests, those whose answers were damaged or lost too
        self.delivered_tokens = 0
        self.harmed: Counter[str] = Counter()
        self.most_at_once = 0
        self._faults_by_text: Counter[str] = Counter()
        self._vectors: dict[str, Any] = {}
        self._running = 0
        self._lock = threading.Lock()
        self._noise = np.random.default_rng(0)

    @property
    def texts(self) -> list[str]:
        return [text for texts in self.answered for text in texts]

    @contextmanager
    def running(self, port: int = 0):
        with listening(_handler(self), port) as address:
            yield f"{address}/v1"

    def answer(self, body: dict[str, Any], authorization: str) -> tuple[dict[str, Any], str | None]:
        behaviour = self.behaviour
        texts_sent = [body["input"]] if isinstance(body["input"], str) else list(body["input"])
        with self._lock:
            self.seen += 1
            fault = self._next_fault(texts_sent)
        self._require_known(body, authorization)
        if fault in STATUSES:
            raise RefusalError(STATUSES[fault], behaviour.said)
        self._require_fields(body)
        bad_texts = self._require_texts(texts_sent)
        encoding = body.get("encoding_format", "float")
        texts, counted = self._cut(texts_sent)
        with self._lock:
            vectors = self._vectors_of(texts)
        time.sleep(behaviour.seconds + behaviour.seconds_per_text * len(texts))
        items: list[dict[str, Any]] = []
        for position, row in enumerate(vectors):
            packed = encoding == "base64" and behaviour.base64 == "answer"
            numbers = in_base64(row, behaviour.base64_kind) if packed else as_list(row, behaviour.listed)
            if texts_sent[position] in bad_texts:
                numbers = None
            item = {"object": "embedding", "index": behaviour.index_of(position), "embedding": numbers}
            if item["index"] is None:
                del item["index"]
            items.append(item)
        items = items[::-1] if behaviour.shuffle else items
        items = BROKEN_DATA[fault](items) if fault in BROKEN_DATA else items
        with self._lock:
            self.tokens += counted
            if fault in (None, "gzip", "no usage", "redirect"):
                self.answered.append(texts_sent)
                self.delivered_tokens += counted
            elif fault in OF_ONE_TEXT and len(texts_sent) > 1:
                self.answered.append(texts_sent[1:])
        silent = behaviour.usage is None or fault == "no usage"
        own = behaviour.said_usage or {"prompt_tokens": counted, "total_tokens": counted}
        usage = {} if silent else {"usage": own}
        return {"object": "list", "model": behaviour.name, "data": items, **usage}, fault

    def _next_fault(self, texts: Sequence[str]) -> str | None:
        """Take the next fault from the queue, and count it for each text. The caller holds the lock.

        If a text has met as many faults as it may, the queue stays as it is, and the request is answered.
        """
        behaviour = self.behaviour
        if not behaviour.faults or any(
            self._faults_by_text[text] >= behaviour.faults_per_text for text in texts
        ):
            return None
        fault = behaviour.faults.popleft()
        if fault is not None:
            self.harmed[fault] += 1
            self._faults_by_text.update(texts)
        return fault

    def _require_known(self, body: dict[str, Any], authorization: str) -> None:
        behaviour = self.behaviour
        if behaviour.key is not None and authorization != f"Bearer {behaviour.key}":
            raise RefusalError(401, f"Incorrect API key provided: {authorization.removeprefix('Bearer ')}")
        if body.get("model") != behaviour.name:
            raise RefusalError(404, f"The model {body.get('model')!r} does not exist")

    def _require_fields(self, body: dict[str, Any]) -> None:
        behaviour = self.behaviour
        for name, value in behaviour.required_fields.items():
            if body.get(name) != value:
                raise RefusalError(400, f"{name} is required")
        for name in behaviour.refused_fields:
            if name in body:
                raise RefusalError(422, f"{name}: extra inputs are not permitted")
        if body.get("encoding_format") == "base64" and behaviour.base64 == "refuse":
            raise RefusalError(422, "encoding_format: only float")

    def _require_texts(self, texts: Sequence[str]) -> list[str]:
        """Refuse texts as told; return those that are answered without a vector."""
        behaviour = self.behaviour
        if behaviour.batch_limit is not None and len(texts) > behaviour.batch_limit:
            limit = behaviour.batch_limit
            raise RefusalError(413, f"batch size {len(texts)} > maximum allowed batch size {limit}")
        if behaviour.empty == "refuse" and not all(texts):
            raise RefusalError(400, "input cannot be an empty string")
        if behaviour.refused_text is not None and any(behaviour.refused_text in text for text in texts):
            raise RefusalError(400, "this text is not welcome")
        bad_texts = [text for text in texts if behaviour.bad_text is not None and behaviour.bad_text in text]
        if bad_texts and behaviour.bad_status != 200:
            raise RefusalError(behaviour.bad_status, behaviour.said)
        return bad_texts

    def _cut(self, texts: Sequence[str]) -> tuple[list[str], int]:
        """The texts as the model reads them, and the tokens that are counted of them."""
        behaviour, limit = self.behaviour, self.behaviour.max_tokens or sys.maxsize
        cut = []
        counted = 0
        for text, ids in zip(texts, self.encoder.content_ids(texts), strict=True):
            if len(ids) > limit and behaviour.long != "truncate":
                raise RefusalError(400 if behaviour.long == "refuse" else 500, f"{len(ids)} > {limit} tokens")
            long = len(ids) > limit
            cut.append(self.encoder.tokenizer.decode_many([list(ids[:limit])])[0] if long else text)
        for text, ids in zip(cut, self.encoder.content_ids(cut), strict=True):
            counts = {"characters": len(text), "words": len(text.split())}
            counted += counts.get(behaviour.usage or "", len(ids) + 2)
        return cut, counted

    def _vectors_of(self, texts: Sequence[str]) -> Any:
        behaviour = self.behaviour
        new = [text for text in dict.fromkeys(texts) if text not in self._vectors]
        self._vectors |= {text: np.zeros(self.encoder.dimension, np.float32) for text in new}
        if readable_texts := [
            text for text, ids in zip(new, self.encoder.content_ids(new), strict=True) if ids
        ]:
            self._vectors |= zip(
                readable_texts, self.encoder.encode(readable_texts, allow_zero=True), strict=True
            )
        vectors = np.stack([self._vectors[text] for text in texts])
        if behaviour.wrong:
            vectors = vectors[:, ::-1]
        if behaviour.noise:
            vectors = vectors + self._noise.normal(0, behaviour.noise, vectors.shape)
        if behaviour.batch_noise:
            seed = abs(hash(tuple(texts))) % 2**32
            vectors = vectors + np.random.default_rng(seed).normal(0, behaviour.batch_noise, vectors.shape)
        if behaviour.empty == "zero":
            vectors = vectors * np.array([[bool(text)] for text in texts])
        return np.asarray(vectors * behaviour.scale, dtype=np.float32)


def _handler(served: EmbeddingServer) -> type[BaseHTTPRequestHandler]:
    class Handler(QuietHandler, BaseHTTPRequestHandler):
        wbufsize = 1 << 16  # one packet for headers and body
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            with served._lock:
                served._running += 1
                served.most_at_once = max(served.most_at_once, served._running)
            try:
                self._answer(body)
            finally:
                with served._lock:
                    served._running -= 1

        def _answer(self, body: bytes) -> None:
            behaviour = served.behaviour
            authorization = self.headers.get("Authorization", "")
            if self.path != "/v1/embeddings":
                self._write(404 if self.path.startswith("/v1") else 200, _PAGE, "text/html")
                return
            if behaviour.faults and behaviour.faults[0] == "redirect":
                behaviour.faults.popleft()
                self._write(307, b"", Location=behaviour.elsewhere)
                return
            try:
                served.authorizations.append(authorization)
                answer, fault = served.answer(json.loads(body), authorization)
            except RefusalError as refusal:
                message = {"error": {"message": str(refusal), "type": "told"}}
                waiting = {}
                if refusal.status in STATUSES.values() and (retry_after := behaviour.retry_after) is not None:
                    if retry_after.startswith("date"):
                        when = time.time() + float(retry_after.removeprefix("date"))
                        retry_after = email.utils.formatdate(when, usegmt=True)
                    waiting = {"Retry-After": retry_after}
                content = str(refusal).encode() if behaviour.plain_errors else json.dumps(message).encode()
                self._write(refusal.status, content, **waiting)
                return
            if fault == "drop":
                self.connection.shutdown(socket.SHUT_RDWR)
                self.close_connection = True
                return
            content = ODD_BODIES.get(fault or "", json.dumps(answer).encode())
            packed = {"Content-Encoding": "gzip"} if fault in ("gzip", "bad gzip") else {}
            content = gzip.compress(content) if fault == "gzip" else content
            self._write(200, content, cut=fault == "cut", **packed)

        def _write(
            self, status: int, content: bytes, kind: str = "application/json", *, cut: bool = False, **headers
        ) -> None:
            self.send_response(status)
            for name, value in {"Content-Type": kind, "Content-Length": len(content), **headers}.items():
                self.send_header(name, str(value))
            self.end_headers()
            self.wfile.write(content[: len(content) // 2] if cut else content)
            self.close_connection |= cut

        def do_GET(self) -> None:
            self._write(200, _PAGE, "text/html")

    return Handler


def main() -> None:
    from stickytoken import load_encoder

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--name", default="mini")
    arguments = parser.parse_args()
    encoder = load_encoder(arguments.model, device="cpu")
    room = None if encoder.max_length is None else encoder.max_length - 2
    server = EmbeddingServer(encoder, Behaviour(name=arguments.name, max_tokens=room))
    with server.running(arguments.port) as url:
        print(f"serving {arguments.name} at {url}", flush=True)  # noqa: T201 - a program
        threading.Event().wait()


if __name__ == "__main__":
    main()
