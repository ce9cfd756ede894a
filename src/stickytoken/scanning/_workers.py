"""Examine batches of texts in several processes, in order, with few batches in memory."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, TypeAlias, TypeVar

from stickytoken.cleaning.rules import CleaningRules
from stickytoken.errors import RunError
from stickytoken.scanning._worker import examine
from stickytoken.scanning.documents import Document, Record, Skipped

Finding: TypeAlias = dict[str, Any] | None
Batch = TypeVar("Batch")

_ALONE = 2
"""Batches up to this number are examined in this process: starting others would take longer."""


def examined(
    batches: Iterable[tuple[Batch, Sequence[str]]], rules: CleaningRules, workers: int
) -> Iterator[tuple[Batch, list[Finding]]]:
    """Yield each batch with what was found in its texts, in order."""
    stream = iter(batches)
    first = [batch for _, batch in zip(range(_ALONE), stream, strict=False)]
    alone = workers <= 1 or len(first) < _ALONE
    for batch, texts in first:
        yield batch, [examine(text, rules) for text in texts]
    if alone:
        for batch, texts in stream:
            yield batch, [examine(text, rules) for text in texts]
        return
    waiting: deque[tuple[Batch, Future[list[Finding]]]] = deque()
    pool: _Pool | None = None
    try:
        for batch, texts in stream:
            pool = pool or _Pool(rules, workers)
            waiting.append((batch, pool.submit(texts)))
            if len(waiting) > 2 * workers:
                done, future = waiting.popleft()
                yield done, future.result()
        while waiting:
            done, future = waiting.popleft()
            yield done, future.result()
    finally:
        if pool is not None:
            pool.close()


class _Pool:
    """Worker processes, and one thread for each that talks to it."""

    def __init__(self, rules: CleaningRules, workers: int) -> None:
        self._idle: SimpleQueue[_Worker] = SimpleQueue()
        self._workers = [_Worker(rules) for _ in range(workers)]
        for worker in self._workers:
            self._idle.put(worker)
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="scan")

    def submit(self, texts: Sequence[str]) -> Future[list[Finding]]:
        """Examine texts in the next process that is free."""
        return self._threads.submit(self._ask, texts)

    def _ask(self, texts: Sequence[str]) -> list[Finding]:
        worker = self._idle.get()
        try:
            return worker.ask(texts)
        finally:
            self._idle.put(worker)

    def close(self) -> None:
        """End the processes, also in the middle of their work."""
        for worker in self._workers:
            worker.end()
        self._threads.shutdown(wait=True, cancel_futures=True)


class _Worker:
    """One process."""

    def __init__(self, rules: CleaningRules) -> None:
        path = os.pathsep.join(entry for entry in sys.path if entry)
        # Without -P, a module in the current folder could take the place of one that the worker imports.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "stickytoken.scanning._worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,  # Ctrl-C is for the process that scans, which ends this one
        )
        self._rules = json.dumps(rules.to_json()).encode() + b"\n"

    def ask(self, texts: Sequence[str]) -> list[Finding]:
        """Send texts and wait for the findings."""
        requests, answers = self._process.stdin, self._process.stdout
        answer = b""
        if requests is not None and answers is not None:
            with suppress(BrokenPipeError, ValueError):
                requests.write(self._rules + json.dumps(texts, ensure_ascii=False).encode() + b"\n")
                requests.flush()
                self._rules = b""
                answer = answers.readline()
        if not answer:
            raise RunError(
                f"a process that scanned documents ended (exit status {self._process.wait()}), perhaps out "
                "of memory: finished batches are kept; run the same command again, with --workers 1"
            )
        found: list[Finding] = json.loads(answer)
        return found

    def end(self) -> None:
        """End the process and close its pipes."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError, ValueError):
                    pipe.close()


_DOCUMENTS = 1024
_CHARACTERS = 4_000_000


@dataclass(frozen=True, slots=True)
class TextBatch:
    """Neighbouring records.

    Attributes:
        index: Place of the batch, from 0.
        documents: Its documents.
        skipped: Records that are no documents.
        keys: A hash of each document's text, to sample by.
        digest: SHA-256 of all of it.
    """

    index: int
    documents: tuple[Document, ...]
    skipped: tuple[Skipped, ...]
    keys: tuple[bytes, ...]
    digest: str

    @property
    def texts(self) -> list[str]:
        """The texts."""
        return [document.text for document in self.documents]


def batched(records: Iterable[Record]) -> Iterator[TextBatch]:
    """Yield batches of up to 1,024 records and, but for a single record, about 4 MB."""
    index, size = 0, 0
    pending: list[Record] = []
    for record in records:
        pending.append(record)
        size += len(record.text) if isinstance(record, Document) else 0
        if len(pending) >= _DOCUMENTS or size >= _CHARACTERS:
            yield _batch(index, pending)
            index, size, pending = index + 1, 0, []
    if pending:
        yield _batch(index, pending)


def _batch(index: int, records: list[Record]) -> TextBatch:
    documents = tuple(record for record in records if isinstance(record, Document))
    skipped = tuple(record for record in records if isinstance(record, Skipped))
    keys = tuple(hashlib.sha256(document.text.encode()).digest() for document in documents)
    digest = hashlib.sha256()
    for document, key in zip(documents, keys, strict=True):
        fields = (document.number, document.id, document.source, document.path, document.line)
        digest.update(repr(fields).encode() + key)
    for each in skipped:
        digest.update(repr((each.place, each.reason)).encode())
    return TextBatch(index, documents, skipped, keys, digest.hexdigest())
