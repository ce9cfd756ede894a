"""A process that examines documents: one JSON line in with texts, one JSON line out with what was found.

It is started as a program of its own, so that a script that scans needs no ``if __name__ == "__main__"``,
and so that it loads neither NumPy nor Polars. It ends when its standard input does.
"""

from __future__ import annotations

import json
import sys
from typing import BinaryIO

from stickytoken.cleaning.rules import CleaningRules
from stickytoken.scanning._examining import examine


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
