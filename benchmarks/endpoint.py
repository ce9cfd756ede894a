"""Is a model behind an endpoint audited as it is in process, at the cost that was announced?

tests/support/embedding_server.py serves the model in a process of its own. Between the server and the run is
tests/support/fault_proxy.py, which answers some requests with 429 and 500, drops some, and damages or loses
some answers. The run is killed once, and continued.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from bench import MINILM, ROOT, Results, commands
from stickytoken import EndpointOptions, detect, load_encoder, open_run
from stickytoken.detection import Run
from stickytoken.encoders.endpoint.encoder import CostEstimate, estimate_cost
from stickytoken.measurement.engine import Progress
from stickytoken.methods.profile.anchors import ProfileSettings

SUPPORT = ROOT / "tests" / "support"
sys.path.append(str(SUPPORT))
from fault_proxy import DAMAGED, HARMLESS, UNANSWERED, FaultProxy  # type: ignore[import-not-found]  # noqa: E402

KEY = "sk-planted-benchmark-0123456789"
PORT, KILLED_AT = 8433, 0.3
LIFT, ESTIMATE = 1e-3, 0.05
FAULTY, FAULTS = 0.1, 100_000


@contextmanager
def serving(model: str) -> Iterator[str]:
    """Start a server of a model in a process of its own; yield the name of the model behind it."""
    command = [sys.executable, str(SUPPORT / "embedding_server.py"), model]
    process = subprocess.Popen(
        [*command, "--port", str(PORT), "--name", "mini"], stdout=subprocess.PIPE, text=True
    )
    try:
        _ = process.stdout and process.stdout.readline()
        yield f"http://127.0.0.1:{PORT}/v1#mini"
    finally:
        process.terminate()
        process.wait()


def faults(seed: int = 0) -> Iterator[str | None]:
    """Draw what happens to each request; refusals come in bursts."""
    generator = random.Random(seed)
    names = (*UNANSWERED, *DAMAGED, *HARMLESS)
    for _ in range(FAULTS):
        name = generator.choice(names) if generator.random() < FAULTY else None
        yield from [name] * (5 if name == "429" else 1)


def killed_once(name: str, model: str, sample: int, texts: int, out: Path) -> int:
    """Start a detection in a process of its own, kill it in the middle, and return the answers it left."""
    encoder: Any = load_encoder(name, tokenizer=model)
    command = [sys.executable, "-m", "stickytoken", "detect", name, "--yes", "--quiet"]
    command += ["--set", f"tokenizer={model}", "--sample", str(sample), "--out", str(out)]
    process = subprocess.Popen(command)
    while process.poll() is None and len(encoder.endpoint.answers) < KILLED_AT * texts:
        time.sleep(0.5)
    process.send_signal(signal.SIGKILL)
    process.wait()
    return len(encoder.endpoint.answers)


def measure(results: Results, server: str, model: str, sample: int, work: Path) -> Run:
    """Estimate, kill, continue and repeat; compare what was sent with the estimates."""
    url, _, served = server.partition("#")
    # What is found out about a server is part of what is counted, and the estimate leaves it out.
    proxy = FaultProxy(url)
    with proxy.running() as place:
        name = f"{place}#{served}"
        options = EndpointOptions(price_per_million=0.02)
        encoder: Any = load_encoder(name, tokenizer=model, endpoint=options)
        proxy.tokens, proxy.requests = 0, 0
        proxy.delivered.clear()
        estimates: dict[str, int] = {}

        def answered() -> int:
            """Tokens that were answered: the server counts them, or characters or nothing."""
            if encoder.capabilities.counts_tokens:
                return int(proxy.tokens)
            return int(encoder.endpoint.counted_by_server(list(proxy.delivered.elements())))

        def estimated(when: str) -> CostEstimate:
            with tempfile.TemporaryDirectory() as folder:
                found = estimate_cost(
                    encoder, lambda stand_in: detect(stand_in, sample=sample, out=f"{folder}/out")
                )
            estimates[when] = found.tokens + answered()
            return found

        def step_taken(step: Progress) -> None:
            if step.stage == "screen" and step.done == 0:
                estimated("after the pilot")

        texts = estimated("at the start").texts
        proxy.behave(faults())
        kept = killed_once(name, model, sample, texts, work / "run")
        run = detect(encoder, sample=sample, out=work / "run", progress=step_taken)
        before = proxy.requests
        detect(encoder, sample=sample, out=work / "run")
        counted, idle = answered(), proxy.requests - before
    for when, tokens in estimates.items():
        off = counted / tokens - 1
        results.check(
            f"tokens that were answered against the estimate {when}",
            f"within {ESTIMATE:.0%}",
            f"{off:+.1%} ({counted:,} and {tokens:,})",
            abs(off) <= ESTIMATE,
        )
    twice = sum(count - 1 for count in proxy.delivered.values() if count > 1)
    results.check(
        f"{sum(proxy.harmed.values()):,} harmed requests and a kill",
        "no text answered twice but in flight and for checks",
        f"{twice} of {len(proxy.delivered):,} ({kept:,} kept at the kill)",
        twice <= 4 * 256 + 32 * 6,
        harmed=dict(proxy.harmed),
        requests=proxy.requests,
        in_vain=sum(proxy.spoiled.values()),
    )
    results.check("a finished run repeated", "sends nothing", f"{idle} requests", idle == 0)
    return run


def main(
    model: Annotated[str, typer.Argument()] = MINILM,
    server: str | None = None,
    sample: int = 2000,
    name: str = "endpoint",
) -> None:
    """--server URL#NAME is one that runs, with the same model, as `models.py infinity` does."""
    results = Results(name, model=model, server=server, sample=sample)
    os.environ["STICKYTOKEN_API_KEY"] = KEY
    with tempfile.TemporaryDirectory() as folder:
        os.environ["STICKYTOKEN_CACHE"] = f"{folder}/cache"
        work = Path(folder)
        with nullcontext(server) if server else serving(model) as place:
            run = measure(results, place, model, sample, work)
        settings: Any = ProfileSettings(insertion="words")  # type: ignore[arg-type]
        local = load_encoder(model, device="cpu")
        own = detect(local, sample=sample, settings=settings, out=work / "own")
        both = open_run(run.path).tokens.join(own.tokens, on="token_id", suffix="_own")
        differing = int((both["verdict"] != both["verdict_own"]).sum())
        furthest = float((both["lift"] - both["lift_own"]).abs().max() or 0.0)  # type: ignore[arg-type]
        results.check(
            f"{both.height:,} tokens behind the server and in process",
            f"verdicts equal, lifts within {LIFT:g}",
            f"{differing} differ, {furthest:.1e}",
            differing == 0 and furthest <= LIFT,
        )
        holding = sum(KEY.encode() in path.read_bytes() for path in work.rglob("*") if path.is_file())
        results.check("files that hold the key", "none", str(holding), holding == 0)
    results.finish(strict=False)


if __name__ == "__main__":
    commands(__doc__, main)
