"""Is a model behind an endpoint audited as it is in process, at the cost that was announced?

    python benchmarks/endpoint.py                            # the packaged model, 2,000 tokens, about an hour
    python benchmarks/endpoint.py FOLDER --planted FILE      # a folder whose planted token ids a JSON file
    lists python benchmarks/endpoint.py --server http://localhost:8000/v1#NAME --tokenizer FOLDER   # one
    that runs

Without ``--server``, tests/support/embedding_server.py serves the model in a process of its own: a real
server over HTTP, which truncates, counts tokens and answers 429 as it is told. The run is killed once, and
continued.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from checks import Check, show, write
from stickytoken import EndpointOptions, detect, load_encoder, open_run
from stickytoken.detection import Run
from stickytoken.encoders.endpoint.rehearsal import estimate_cost
from stickytoken.methods.profile.settings import ProfileSettings

SERVER = Path(__file__).resolve().parents[1] / "tests" / "support" / "embedding_server.py"
KEY = "sk-planted-benchmark-0123456789"
PORT, SAMPLE, KILLED_AT = 8433, 2000, 0.3
LIFT, ESTIMATE, SINGLE, OWN_LIMIT = 1e-3, 0.05, 10.0, 0.9
PACE_TEXTS = 512


@contextmanager
def serving(model: str) -> Iterator[str]:
    """Start a server of a model in a process of its own; yield the name of the model behind it."""
    process = subprocess.Popen(
        [sys.executable, str(SERVER), model, "--port", str(PORT), "--name", "mini"], stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield f"http://127.0.0.1:{PORT}/v1#mini"
    finally:
        process.terminate()
        process.wait()


def killed_once(name: str, tokenizer: str, out: Path, sample: int, texts: int) -> int:
    """Start a detection in a process of its own, kill it in the middle, and return the answers that it "
    "left."""
    command = [sys.executable, "-m", "stickytoken", "detect", name, "--tokenizer", tokenizer, "--yes"]
    command += ["--sample", str(sample), "--out", str(out), "--quiet"]
    process = subprocess.Popen(command)
    encoder: Any = load_encoder(name, tokenizer=tokenizer)
    while process.poll() is None and len(encoder.endpoint.answers) < KILLED_AT * texts:
        time.sleep(0.5)
    process.send_signal(signal.SIGKILL)
    process.wait()
    return len(encoder.endpoint.answers)


def compared(run: Run, own: Run, planted: list[int]) -> list[Check]:
    """Compare verdicts and lifts with those of the model in process."""
    both = run.tokens.join(own.tokens, on="token_id", suffix="_own")
    differing = int((both["verdict"] != both["verdict_own"]).sum())
    furthest = float((both["lift"] - both["lift_own"]).abs().max() or 0.0)  # type: ignore[arg-type]
    found = [
        Check(
            f"{both.height:,} tokens behind the server and in process",
            f"verdicts equal, lifts within {LIFT:g}",
            f"{differing} differ, {furthest:.1e}",
            differing == 0 and furthest <= LIFT,
            {"tokens": both.height, "differing": differing, "furthest": furthest},
        )
    ]
    if planted:
        sticky = {
            name: set(each.sticky["token_id"]) & set(planted) for name, each in (("a", run), ("b", own))
        }
        found.append(
            Check(
                "planted rows",
                "as found in process",
                f"{len(sticky['a'])} and {len(sticky['b'])} of {len(planted)}",
                sticky["a"] == sticky["b"],
                {"planted": len(planted)},
            )
        )
    return found


def paces(name: str, tokenizer: str) -> list[Check]:
    """Compare texts per second with single calls, and with requests of the server's own size."""
    texts = [f"the river number {k} is cold in winter" for k in range(3 * PACE_TEXTS)]
    encoder: Any = load_encoder(name, tokenizer=tokenizer)
    requester = encoder.endpoint._new_requester()
    encoding, size = encoder.capabilities.encoding, encoder.capabilities.batch

    def seconds(batches: list[list[str]]) -> float:
        started = time.perf_counter()
        for batch in batches:
            requester.send(batch, encoding)
        return (time.perf_counter() - started) / sum(map(len, batches))

    alone = seconds([[text] for text in texts[: PACE_TEXTS // 8]])
    whole = texts[PACE_TEXTS : 2 * PACE_TEXTS]
    own = seconds([whole[start : start + size] for start in range(0, len(whole), size)])
    started = time.perf_counter()
    encoder.encode(texts[2 * PACE_TEXTS :])
    ours = (time.perf_counter() - started) / PACE_TEXTS
    detail = {"alone": 1 / alone, "own_limit": 1 / own, "ours": 1 / ours}
    return [
        Check(f"pace against {what}", f">= {bar:g} times", f"{other / ours:.2f}", other / ours >= bar, detail)
        for what, other, bar in (("single calls", alone, SINGLE), ("full requests", own, OWN_LIMIT))
    ]


def holding_the_key(folder: Path) -> int:
    """Count the files below a folder that hold the key."""
    return sum(KEY.encode() in path.read_bytes() for path in folder.rglob("*") if path.is_file())


def measured(name: str, given: argparse.Namespace, work: Path) -> list[Check]:
    """Estimate, kill, continue, repeat and compare."""
    encoder: Any = load_encoder(
        name, tokenizer=given.tokenizer, endpoint=EndpointOptions(price_per_million=0.02)
    )
    estimate = estimate_cost(
        encoder, lambda stand_in: detect(stand_in, sample=given.sample, out=work / "rehearsal")
    )
    kept = killed_once(name, given.tokenizer, work / "run", given.sample, estimate.texts)
    spent = encoder.endpoint.spending.tokens
    run = detect(encoder, sample=given.sample, out=work / "run")
    lengths = encoder.endpoint.counted_by_server
    paid_before = estimate.tokens * kept / max(1, estimate.texts)
    sent = encoder.endpoint.spending.tokens - spent
    texts = len(encoder.endpoint.answers)
    off = abs(texts - estimate.texts) / texts
    requests = encoder.endpoint.spending.requests
    again = detect(encoder, sample=given.sample, out=work / "run")
    idle = encoder.endpoint.spending.requests - requests
    found = [
        Check(
            "estimate of texts against what was answered",
            f"within {ESTIMATE:.0%}",
            f"{off:.1%}",
            off <= ESTIMATE,
            {
                "estimated": estimate.texts,
                "answered": texts,
                "tokens_after_the_kill": sent,
                "tokens_before_it_about": round(paid_before),
                "per_text": lengths(["a"]),
            },
        ),
        Check("killed and continued", "nothing asked twice", f"{kept:,} kept", kept > 0, {"kept": kept}),
        Check("a finished run repeated", "sends nothing", f"{idle} requests", idle == 0, {"run": str(again)}),
    ]
    if given.model is not None:
        own = detect(
            load_encoder(given.model, device="cpu"),
            sample=given.sample,
            settings=ProfileSettings(insertion="words"),  # type: ignore[arg-type]
            out=work / "own",
        )
        planted = json.loads(given.planted.read_text("utf-8")) if given.planted else []
        ids = planted["token_ids"] if isinstance(planted, dict) else planted
        found += compared(open_run(run), own, [int(token_id) for token_id in ids])
    holding = holding_the_key(work)
    return [
        *found,
        *paces(name, given.tokenizer),
        Check("files that hold the key", "none", str(holding), holding == 0, {}),
    ]


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default="all-MiniLM-L6-v2")
    parser.add_argument("--planted", type=Path, help="JSON with the ids of planted tokens")
    parser.add_argument("--server", help="URL#NAME of a server that runs")
    parser.add_argument("--tokenizer")
    parser.add_argument("--sample", type=int, default=SAMPLE)
    parser.add_argument("--no-write", action="store_true")
    given = parser.parse_args()
    os.environ["STICKYTOKEN_API_KEY"] = KEY
    with tempfile.TemporaryDirectory() as folder:
        os.environ["STICKYTOKEN_CACHE"] = f"{folder}/cache"
        if given.server:
            given.model = None
            checks = measured(given.server, given, Path(folder))
        else:
            given.tokenizer = given.tokenizer or given.model
            with serving(given.model) as name:
                checks = measured(name, given, Path(folder))
    show(checks, "A model behind an endpoint")
    if not given.no_write:
        write(checks, "endpoint", "cpu", model=given.server or given.model, sample=given.sample)


if __name__ == "__main__":
    main()
