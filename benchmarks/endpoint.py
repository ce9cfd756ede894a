"""Is a model behind an endpoint audited as it is in process, at the cost that was announced?

tests/support/embedding_server.py serves the model. It answers some requests with 429 and 500, drops some, and
damages or loses some answers. The run is killed once, and continued.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import polars as pl
import typer

from bench import MINILM, ROOT, Results, commands
from stickytoken import EndpointOptions, detect, load_encoder, open_run
from stickytoken.detection import Run
from stickytoken.encoders.endpoint.dry_run import CostEstimate, estimate_cost
from stickytoken.measurement.engine import Progress
from stickytoken.methods.registry import method_named
from stickytoken.settings.profile import ProfileSettings

sys.path.append(str(ROOT / "tests" / "support"))
from embedding_server import FAULTS, Behaviour, EmbeddingServer  # type: ignore[import-not-found]

PROFILE = method_named("profile")
KEY = "sk-planted-benchmark-0123456789"
KILLED_AT = 0.3
LIFT, ESTIMATE = 1e-3, 0.05
FAULTY, REQUESTS = 0.1, 100_000


def faults(seed: int = 0) -> Iterator[str | None]:
    """Draw what happens to each request; refusals come in bursts."""
    generator = random.Random(seed)
    for _ in range(REQUESTS):
        name = generator.choice(FAULTS) if generator.random() < FAULTY else None
        yield from [name] * (5 if name == "429" else 1)


def killed_once(name: str, model: str, sample: int, texts: int, out: Path) -> int:
    """Start a detection in a process of its own, kill it in the middle, and return the answers it left."""
    encoder: Any = load_encoder(name, tokenizer=model)
    command = [sys.executable, "-m", "stickytoken", "detect", name, "--yes", "--quiet"]
    command += ["--set", f"tokenizer={model}", "--sample", str(sample), "--out", str(out)]
    process = subprocess.Popen(command)
    while process.poll() is None and len(encoder.answers) < KILLED_AT * texts:
        time.sleep(0.5)
    process.send_signal(signal.SIGKILL)
    process.wait()
    return len(encoder.answers)


def measure(results: Results, model: str, sample: int, work: Path) -> Run:
    """Estimate, kill, continue and repeat; compare what was sent with the estimates."""
    served = load_encoder(model, device="cpu")
    room = None if served.max_length is None else served.max_length - 2
    server = EmbeddingServer(served, Behaviour(name="mini", max_tokens=room))
    with server.running() as url:
        name = f"{url}#mini"
        options = EndpointOptions(price_per_million=0.02)
        # What is found out about a server is part of what is counted, and the estimate leaves it out.
        encoder: Any = load_encoder(name, tokenizer=model, endpoint=options)
        server.answered.clear()
        server.delivered_tokens = 0
        estimates: dict[str, tuple[int, int]] = {}

        def estimated(when: str) -> CostEstimate:
            with tempfile.TemporaryDirectory() as folder:
                estimate = estimate_cost(
                    encoder,
                    lambda dry_run: detect(dry_run, sample=sample, out=f"{folder}/out"),
                    uncertain=PROFILE.uncertain_stage,
                )
            most = estimate.most or estimate
            delivered = server.delivered_tokens
            estimates[when] = (estimate.tokens + delivered, most.tokens + delivered)
            return estimate

        def step_taken(step: Progress) -> None:
            if step.stage == "screen" and step.done == 0:
                estimated("after the pilot")

        texts = estimated("at the start").texts  # the certain ones
        server.behaviour.faults.extend(faults())
        kept = killed_once(name, model, sample, texts, work / "run")
        run = detect(encoder, sample=sample, out=work / "run", progress=step_taken)
        before = server.seen
        detect(encoder, sample=sample, out=work / "run")
        counted, idle = server.delivered_tokens, server.seen - before
    for when, (least, most) in estimates.items():
        is_within = (1 - ESTIMATE) * least <= counted <= (1 + ESTIMATE) * most
        results.check(
            f"tokens that were answered against the estimate {when}",
            f"between least and most, each {ESTIMATE:.0%} off at most",
            f"{counted:,}; estimated {least:,} to {most:,}",
            is_within,
        )
    delivered = Counter(server.texts)
    twice = delivered.total() - len(delivered)
    title, bar = "harmed requests and a kill", "no text answered twice but in flight and for checks"
    ours = f"{twice} of {len(delivered):,} ({kept:,} kept at the kill)"
    title = f"{server.harmed.total():,} {title}"
    results.check(
        title, bar, ours, twice <= 4 * 256 + 32 * 6, harmed=server.harmed, requests=len(server.answered)
    )
    results.check("a finished run repeated", "sends nothing", f"{idle} requests", idle == 0)
    return run


def main(model: Annotated[str, typer.Argument()] = MINILM, sample: int = 2000) -> None:
    results = Results("endpoint", model=model, sample=sample)
    os.environ["STICKYTOKEN_API_KEY"] = KEY
    with tempfile.TemporaryDirectory() as folder:
        os.environ["STICKYTOKEN_CACHE"] = f"{folder}/cache"
        work = Path(folder)
        run = measure(results, model, sample, work)
        settings: Any = ProfileSettings(insertion="words")  # type: ignore[arg-type]
        local = load_encoder(model, device="cpu")
        own = detect(local, sample=sample, settings=settings, out=work / "own")
        both = open_run(run.path).tokens.join(own.tokens, on="token_id", suffix="_own")
        # A server gives no embedding matrix, so that no vector behind it is unusual.
        is_unusual = pl.col("vector_deviation_own") >= settings.unusual
        verdicts_differ = pl.col("verdict") != pl.col("verdict_own")
        differing = both.filter(verdicts_differ, ~is_unusual.fill_null(value=False)).height
        furthest = float((both["lift"] - both["lift_own"]).abs().max() or 0.0)  # type: ignore[arg-type]
        title, bar = (
            f"{both.height:,} tokens behind the server and in process",
            "verdicts equal but for unusual vectors, lifts within",
        )
        passed = differing == 0 and furthest <= LIFT
        results.check(title, f"{bar} {LIFT:g}", f"{differing} differ, {furthest:.1e}", passed)
        holding = sum(KEY.encode() in path.read_bytes() for path in work.rglob("*") if path.is_file())
        results.check("files that hold the key", "none", str(holding), holding == 0)
    results.finish(strict=False)


if __name__ == "__main__":
    commands(__doc__, main)
