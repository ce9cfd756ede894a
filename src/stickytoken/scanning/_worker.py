"""A process that examines documents: one JSON line in with texts, one JSON line out with what was found.

It is started as a program of its own, so that a script that scans needs no ``if __name__ == "__main__"``,
and so that it loads neither NumPy nor Polars. It ends when its standard input does.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from functools import lru_cache
from typing import Any, BinaryIO

from stickytoken.cleaning.cleaner import Cleaner
from stickytoken.cleaning.rules import CleaningRules
from stickytoken.cleaning.spans import Action, Span, SpanKind, find_spans

# Characters that are kept of a found document, more than models read.
KEPT_TEXT = 40_000
# Characters that are cleaned to see what is left: all are read only if nearly all of them are copies.
_CLEANED = 1_000_000
_WORDS = 5
_SHOWN = 320
_SHOWN_BEFORE = 60


def examine(text: str, rules: CleaningRules) -> dict[str, Any] | None:
    """Find what does not belong in a document; None if nothing is found."""
    spans = find_spans(text, rules)
    if not spans:
        return None
    words: Counter[str] = Counter()
    for span in spans:
        words[span.what] += span.count
    covered = sum(span.end - span.start for span in spans)
    return {
        "kinds": sorted({span.kind.value for span in spans}),
        "words": [list(each) for each in words.most_common(_WORDS)],
        "spans": len(spans),
        "copies": sum(span.count for span in spans),
        "longest_run": max(span.count for span in spans),
        "share": covered / len(text),
        "line": text.count("\n", 0, spans[0].start),
        "excerpt": excerpt(text, spans),
        "text": text[:KEPT_TEXT],
        "rest": _cleaner_of(rules)(text[:_CLEANED])[:KEPT_TEXT].strip(),
    }


def excerpt(text: str, spans: list[Span]) -> list[list[Any]]:
    """Return the text around the first spans, in pieces of which each is marked or not."""
    start = max(0, spans[0].start - _SHOWN_BEFORE)
    end = min(len(text), start + _SHOWN)
    pieces: list[list[Any]] = [["\N{HORIZONTAL ELLIPSIS}", False]] if start else []
    place = start
    for span in spans:
        if span.start >= end:
            break
        if span.start > place:
            pieces.append([text[place : span.start], False])
        pieces.append([text[span.start : min(span.end, end)], True])
        place = min(span.end, end)
    if place < end:
        pieces.append([text[place:end], False])
    if end < len(text):
        pieces.append(["\N{HORIZONTAL ELLIPSIS}", False])
    return pieces


@lru_cache(maxsize=1)
def _cleaner_of(rules: CleaningRules) -> Cleaner:
    """Return a cleaner that takes out all that is found, also what would only be reported."""
    return Cleaner(rules, dict.fromkeys(SpanKind, Action.REMOVE))


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Read the rules, then answer each list of texts with a list of findings."""
    rules = CleaningRules.from_json(json.loads(requests.readline()))
    for request in requests:
        found = [examine(text, rules) for text in json.loads(request)]
        answers.write(json.dumps(found).encode() + b"\n")
        answers.flush()


if __name__ == "__main__":
    try:
        serve(sys.stdin.buffer, sys.stdout.buffer)
    except BrokenPipeError:
        sys.exit(1)
