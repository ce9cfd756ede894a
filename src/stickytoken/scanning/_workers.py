"""Examine texts for copies, special tokens and repetitions, in this process or in worker processes.

A worker is this module, started as a program. A worker first reads one line, the rules as JSON. Until its
standard input ends, the worker then reads lines, each a list of texts as JSON, and answers each line with a
line that contains the findings of the texts as JSON. Unlike with multiprocessing, a script that scans needs
no ``if __name__ == "__main__"``, and a worker loads neither NumPy nor Polars.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter, deque
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from itertools import chain, islice
from queue import SimpleQueue
from typing import Any, TypeAlias, TypeVar

from stickytoken.cleaning.excerpts import excerpt
from stickytoken.cleaning.rules import CleaningRules, text_digest
from stickytoken.cleaning.spans import Span, SpanKind, find_spans
from stickytoken.errors import RunError

# The findings of a text as JSON values; None if there are none.
TextFindings: TypeAlias = dict[str, Any] | None
Batch = TypeVar("Batch")

# Maximum number of words and special tokens to list per document.
_NAMED_WORDS = 5
# Maximum length of an excerpt, and of its part before the first finding, in characters.
_EXCERPT = 320
_EXCERPT_BEFORE = 60


def examine(text: str, rules: CleaningRules) -> TextFindings:
    """Return the findings in a text: kinds, words, counts and an excerpt.

    Args:
        text: the text.
        rules: what to look for.

    Returns:
        The findings as JSON values, keyed by column of the document table; None if there are none. ``line``
        is the number, counted from 0, of the line with the first finding.
    """
    spans = find_spans(text, rules)
    if not spans:
        return None
    words: list[dict[str, Any]] = []
    for kind in SpanKind:  # the most serious kind comes first
        copies_of: Counter[str] = Counter()
        for span in spans:
            if span.kind is kind:
                copies_of[span.what] += span.count
        for word, copies in copies_of.most_common():
            words.append({"text": word, "kind": kind.value, "copies": copies})
    covered = sum(span.end - span.start for span in spans)
    return {
        "kinds": sorted({span.kind.value for span in spans}),
        "words": words[:_NAMED_WORDS],
        "spans": len(spans),
        "copies": sum(span.count for span in spans),
        "longest_run": max(span.count for span in spans),
        "share": covered / len(text),
        "line": text.count("\n", 0, spans[0].start),
        "digest": text_digest(text),
        "excerpt": _make_excerpt(text, spans),
    }


def _make_excerpt(text: str, spans: Sequence[Span]) -> list[dict[str, Any]]:
    start = max(0, spans[0].start - _EXCERPT_BEFORE)
    ranges = [(span.start, span.end) for span in spans]
    pieces = excerpt(text, ranges, start, start + _EXCERPT)
    return [{"text": part, "found": is_marked} for part, is_marked in pieces]


def examine_batches(
    batches: Iterable[tuple[Batch, Sequence[str]]], rules: CleaningRules, workers: int
) -> Generator[tuple[Batch, list[TextFindings]]]:
    """Yield each batch with the findings of its texts, in the order of the batches.

    Args:
        batches: the batches, each with its texts.
        rules: what to look for.
        workers: number of processes; with 1, all texts are examined in this process.
    """
    stream = iter(batches)
    # Examine the first batches in this process, because starting the workers would take longer.
    examined_here = stream if workers <= 1 else islice(stream, 2)
    for batch, texts in examined_here:
        yield batch, [examine(text, rules) for text in texts]
    first_for_workers = next(stream, None)
    if first_for_workers is None:
        return
    idle: SimpleQueue[_Worker] = SimpleQueue()

    def ask(texts: Sequence[str]) -> list[TextFindings]:
        worker = idle.get()
        try:
            return worker.ask(texts)
        finally:
            idle.put(worker)

    threads = ThreadPoolExecutor(workers, thread_name_prefix="scan")
    waiting: deque[tuple[Batch, Future[list[TextFindings]]]] = deque()
    # An ExitStack runs all of its callbacks, even if an interrupt ends one of them early.
    with ExitStack() as ending:
        ending.callback(threads.shutdown, wait=True, cancel_futures=True)
        for _ in range(workers):
            worker = _Worker(rules)
            ending.callback(worker.end)
            idle.put(worker)
        for batch, texts in chain([first_for_workers], stream):
            waiting.append((batch, threads.submit(ask, texts)))
            if len(waiting) > 2 * workers:  # enough for all workers; more would only fill the memory
                oldest_batch, future = waiting.popleft()
                yield oldest_batch, future.result()
        for waiting_batch, future in waiting:
            yield waiting_batch, future.result()


class _Worker:
    """A process that examines texts."""

    def __init__(self, rules: CleaningRules) -> None:
        """Start the process. `ask` sends ``rules`` to it before the first texts."""
        import_path = os.pathsep.join(entry for entry in sys.path if entry)
        # Without -P, a module in the current folder could replace one that the worker imports.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "stickytoken.scanning._workers"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": import_path},
            # Keep Ctrl-C away from the worker; the scanning process receives it and ends the worker. The
            # first option does this on POSIX, the second on Windows.
            start_new_session=True,
            creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
        )
        self._rules = json.dumps(rules.to_json()).encode() + b"\n"

    def ask(self, texts: Sequence[str]) -> list[TextFindings]:
        """Send texts to the process and return their findings, in the order of the texts.

        Raises:
            RunError: the process ended before it answered.
        """
        requests = self._process.stdin
        answers = self._process.stdout
        answer = b""  # stays empty if the process has ended
        if requests is not None and answers is not None:
            with suppress(BrokenPipeError, ValueError):  # writing to a pipe that is closed on either side
                requests.write(self._rules + json.dumps(texts, ensure_ascii=False).encode() + b"\n")
                requests.flush()
                self._rules = b""  # the rules are sent only once
                answer = answers.readline()
        if not answer:
            raise RunError(
                f"a process that scanned documents ended (exit status {self._process.wait()}), perhaps "
                "because memory ran out: finished batches are kept; run the same command again with --set "
                "workers=1"
            )
        findings: list[TextFindings] = json.loads(answer)
        return findings

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError, ValueError):
                    pipe.close()


if __name__ == "__main__":
    try:
        rules = CleaningRules.from_json(json.loads(sys.stdin.buffer.readline()))
        for request in sys.stdin.buffer:
            findings = [examine(text, rules) for text in json.loads(request)]
            sys.stdout.buffer.write(json.dumps(findings).encode() + b"\n")
            sys.stdout.buffer.flush()
    except BrokenPipeError:
        sys.exit(1)
