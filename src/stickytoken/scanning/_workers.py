"""Examine texts in several processes, in order, with few batches in memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import deque
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from itertools import chain, islice
from queue import SimpleQueue
from typing import Any, TypeAlias, TypeVar

from stickytoken.cleaning.rules import CleaningRules
from stickytoken.errors import RunError
from stickytoken.scanning._worker import examine

Finding: TypeAlias = dict[str, Any] | None
Batch = TypeVar("Batch")

_ALONE = 2
"""Batches up to this number are examined in this process: starting others would take longer."""


def examined(
    batches: Iterable[tuple[Batch, Sequence[str]]], rules: CleaningRules, workers: int
) -> Generator[tuple[Batch, list[Finding]]]:
    """Yield each batch with what was found in its texts, in order."""
    stream = iter(batches)
    for batch, texts in stream if workers <= 1 else islice(stream, _ALONE):
        yield batch, [examine(text, rules) for text in texts]
    if (first := next(stream, None)) is None:
        return
    idle: SimpleQueue[_Worker] = SimpleQueue()

    def ask(texts: Sequence[str]) -> list[Finding]:
        worker = idle.get()
        try:
            return worker.ask(texts)
        finally:
            idle.put(worker)

    threads = ThreadPoolExecutor(workers, thread_name_prefix="scan")
    waiting: deque[tuple[Batch, Future[list[Finding]]]] = deque()
    with (
        ExitStack() as ending
    ):  # an interrupt in the middle of one callback does not keep the others from running
        ending.callback(threads.shutdown, wait=True, cancel_futures=True)
        for _ in range(workers):
            worker = _Worker(rules)
            ending.callback(worker.end)
            idle.put(worker)
        for batch, texts in chain([first], stream):
            waiting.append((batch, threads.submit(ask, texts)))
            if len(waiting) > 2 * workers:
                done, future = waiting.popleft()
                yield done, future.result()
        for done, future in waiting:
            yield done, future.result()


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
                "of memory: finished batches are kept; run the same command again, with --set workers=1"
            )
        found: list[Finding] = json.loads(answer)
        return found

    def end(self) -> None:
        """End the process, also in the middle of its work, and close its pipes."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError, ValueError):
                    pipe.close()
