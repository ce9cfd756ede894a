"""What does `detect` say that a run behind an API will cost?

A server on this machine answers with the packaged all-MiniLM-L6-v2, so that nothing is paid; the estimate is
as it would be for a server elsewhere. The output, which the pages on costs quote, goes to
results/endpoint_estimate.json.

    python benchmarks/endpoint_estimate.py
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from typing import Any

import stickytoken
from bench import MINILM, ROOT, commands, write_json

sys.path.insert(0, str(ROOT / "tests" / "support"))
from embedding_server import EmbeddingServer  # type: ignore[import-not-found]

# Dollars per million tokens.
PRICE = 0.02
# What the output of `detect` calls the numbers, in this order.
ESTIMATE = re.compile(
    r"estimate: ([\d,]+) requests, ([\d,]+) texts, ([\d,]+) tokens, cost ([\d.]+), about \S+; "
    r"at most ([\d,]+) tokens, cost ([\d.]+)"
)


def measure() -> None:
    """Start the server, and ask for the estimate of a run over the whole vocabulary."""
    encoder = stickytoken.load_encoder(MINILM, device="cpu")
    with EmbeddingServer(encoder).running() as url, tempfile.TemporaryDirectory() as folder:
        process = subprocess.run(
            [
                *(sys.executable, "-m", "stickytoken", "detect", f"{url}#mini"),
                *("--set", f"tokenizer={MINILM}", "--set", f"price-per-million={PRICE}"),
                *("--out", f"{folder}/run"),
            ],
            input="n\n",  # not to continue
            env={**os.environ, "STICKYTOKEN_CACHE": folder, "STICKYTOKEN_API_KEY": "none", "COLUMNS": "200"},
            capture_output=True,
            text=True,
            check=False,
        )
    found = ESTIMATE.search(process.stderr)
    if found is None:
        raise SystemExit(f"no estimate in the output:\n{process.stdout}{process.stderr}")
    names = ("requests", "texts", "tokens", "cost", "most_tokens", "most_cost")
    numbers: dict[str, Any] = {}
    for name, number in zip(names, found.groups(), strict=True):
        numbers[name] = float(number.replace(",", ""))
    write_json("endpoint_estimate", price=PRICE, line=found.group(), **numbers)
    print(found.group())


if __name__ == "__main__":
    commands(__doc__, measure)
