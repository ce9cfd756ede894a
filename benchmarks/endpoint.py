"""Is a model behind an endpoint audited as it is in process, at the cost that was announced?

    python benchmarks/endpoint.py                          # the packaged model, 2,000 tokens
    python benchmarks/endpoint.py FOLDER --planted FILE    # a folder, and a JSON file of planted token ids
    PYTHONPATH=FOLDER python benchmarks/models.py infinity all-MiniLM-L6-v2 --port 8451 --name mini &
    python benchmarks/endpoint.py --server http://127.0.0.1:8451/v1#mini    # behind a server that runs

Without ``--server``, tests/support/embedding_server.py serves the model in a process of its own. Between the
server and the run is tests/support/fault_proxy.py, which answers some requests with 429 and 500, drops some,
and damages or loses some answers. The run is killed once, and continued.
"""

from __future__ import annotations

import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from bench import MINILM, ROOT, Check, commands, finish, planted_ids
from stickytoken import EndpointOptions, detect, load_encoder, open_run
from stickytoken.detection import Run
from stickytoken.encoders.endpoint.encoder import CostEstimate, estimate_cost
from stickytoken.measurement.engine import Progress
from stickytoken.methods.profile.anchors import ProfileSettings
from stickytoken.vocabulary import categorize

SUPPORT = ROOT / "tests" / "support"
sys.path.append(str(SUPPORT))
from fault_proxy import (  # type: ignore[import-not-found]  # noqa: E402
    DAMAGED,
    HARMLESS,
    UNANSWERED,
    FaultProxy,
)

KEY = "sk-planted-benchmark-0123456789"
PORT, KILLED_AT = 8433, 0.3
LIFT, ESTIMATE, SINGLE, OWN_LIMIT = 1e-3, 0.05, 10.0, 0.9
FAULTY, FAULTS = 0.1, 100_000
TURNS, PACE_TEXTS, ALONE_TEXTS, LATENCY = 3, 512, 48, 0.05
WORDS = ("river", "stone", "letter", "garden", "copper", "window", "engine", "market")


@dataclass
class Given:
    """What is measured, and the number of texts that were estimated."""

    model: str
    planted: Path | None
    alone: bool
    tokenizer: str
    sample: int
    texts: int = 0


@contextmanager
def serving(model: str) -> Iterator[str]:
    """Start a server of a model in a process of its own; yield the name of the model behind it."""
    process = subprocess.Popen(
        [sys.executable, str(SUPPORT / "embedding_server.py"), model, "--port", str(PORT), "--name", "mini"],
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
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


def with_others(planted: list[int], model: str, count: int) -> list[int]:
    """Put as many tokens beside planted ones, drawn at random."""
    encoder = load_encoder(model, device="cpu")
    rest = [token.id for token in categorize(encoder.tokenizer).available if token.id not in set(planted)]
    return sorted([*planted, *random.Random(0).sample(rest, count)])


def killed_once(name: str, given: Given, tokens: list[int] | None, out: Path) -> int:
    """Start a detection in a process of its own, kill it in the middle, and return the answers it left."""
    encoder: Any = load_encoder(name, tokenizer=given.tokenizer)
    command = [sys.executable, "-m", "stickytoken", "detect", name, "--yes", "--quiet"]
    command += ["--set", f"tokenizer={given.tokenizer}"]
    chosen = ["--sample", str(given.sample)]
    if tokens is not None:
        entries = encoder.tokenizer.entries
        listed = out.with_name("tokens.txt")
        listed.write_text("\n".join(entries[token_id] for token_id in tokens) + "\n", encoding="utf-8")
        chosen = ["--tokens", str(listed)]
    process = subprocess.Popen([*command, *chosen, "--out", str(out)])
    while process.poll() is None and len(encoder.endpoint.answers) < KILLED_AT * given.texts:
        time.sleep(0.5)
    process.send_signal(signal.SIGKILL)
    process.wait()
    return len(encoder.endpoint.answers)


def compared(run: Run, own: Run, planted: list[int]) -> list[Check]:
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
        behind, inside = (set(each.sticky["token_id"]) & set(planted) for each in (run, own))
        found.append(
            Check(
                f"{len(planted)} planted rows: sticky",
                "as found in process",
                f"{len(behind)} and {len(inside)}",
                behind == inside,
                {"planted": len(planted), "behind": len(behind), "in_process": len(inside)},
            )
        )
    return found


def paces(url: str, model: str, tokenizer: str, latency: float) -> list[Check]:
    """Compare texts per second with single calls and with requests of the server's own size, by turns."""
    proxy = FaultProxy(url, latency=latency)
    generator = random.Random(latency)

    def texts(count: int) -> list[str]:
        return [f"{' '.join(generator.choices(WORDS, k=6))} {generator.random()}" for _ in range(count)]

    with proxy.running() as place:
        encoder: Any = load_encoder(f"{place}#{model}", tokenizer=tokenizer)
        requester = encoder.endpoint.client
        encoding, size = encoder.capabilities.encoding, encoder.capabilities.batch

        def requested(batches: list[list[str]]) -> None:
            for batch in batches:
                requester.send(batch, encoding)

        def alone(chosen: list[str]) -> None:
            requested([[text] for text in chosen])

        def own(chosen: list[str]) -> None:
            requested([chosen[start : start + size] for start in range(0, len(chosen), size)])

        speeds: dict[str, list[float]] = {"alone": [], "own_limit": [], "ours": []}
        ways = {
            "alone": (alone, ALONE_TEXTS),
            "own_limit": (own, PACE_TEXTS),
            "ours": (encoder.encode, PACE_TEXTS),
        }
        for _ in range(TURNS):
            for name, (way, count) in ways.items():
                chosen = texts(count)
                started = time.perf_counter()
                way(chosen)
                speeds[name].append(count / (time.perf_counter() - started))
    middle = {name: statistics.median(values) for name, values in speeds.items()}
    where = f"{1000 * latency:.0f} ms away" if latency else "on this machine"
    return [
        Check(
            f"texts per second {where} against {what}",
            f">= {bar:g} times",
            f"{middle['ours'] / middle[other]:.2f} ({middle['ours']:.0f} and {middle[other]:.0f})",
            middle["ours"] >= bar * middle[other],
            {"latency": latency, **speeds},
        )
        for what, other, bar in (("single calls", "alone", SINGLE), ("full requests", "own_limit", OWN_LIMIT))
    ]


def tokens_of(proxy: FaultProxy, encoder: Any) -> int:
    """Count the tokens that were answered: the server does, or counts characters or nothing."""
    if encoder.capabilities.counts_tokens:
        return int(proxy.tokens)
    counted: float = encoder.endpoint.counted_by_server(list(proxy.delivered.elements()))
    return round(counted)


def paid(proxy: FaultProxy, estimates: dict[str, int], counted: int, kept: int, idle: int) -> list[Check]:
    """Compare what was sent with the estimates, and look for texts that were paid for twice."""
    checks = []
    for when, estimated in estimates.items():
        off = counted / estimated - 1
        checks.append(
            Check(
                f"tokens that were answered against the estimate {when}",
                f"within {ESTIMATE:.0%}",
                f"{off:+.1%} ({counted:,} and {estimated:,})",
                abs(off) <= ESTIMATE,
                {"estimated": estimated, "counted": counted},
            )
        )
    twice = sum(count - 1 for count in proxy.delivered.values() if count > 1)
    detail = {"harmed": dict(proxy.harmed), "requests": proxy.requests, "twice": twice, "kept": kept}
    return [
        *checks,
        Check(
            f"{sum(proxy.harmed.values()):,} harmed requests and a kill",
            "no text answered twice but in flight and for checks",
            f"{twice} of {len(proxy.delivered):,} ({kept:,} kept at the kill)",
            twice <= 4 * 256 + 32 * 6,
            detail | {"in_vain": sum(proxy.spoiled.values())},
        ),
        Check("a finished run repeated", "sends nothing", f"{idle} requests", idle == 0),
    ]


def measured(server: str, given: Given, work: Path) -> list[Check]:
    """Estimate, kill, continue, repeat and compare."""
    url, _, model = server.partition("#")
    planted = planted_ids(given.planted) if given.planted else []
    tokens = with_others(planted, given.model, given.sample) if planted else None
    sample = given.sample if tokens is None else None
    # What is found out about a server is part of what is counted, and the estimate leaves it out.
    proxy = FaultProxy(url)
    with proxy.running() as place:
        name = f"{place}#{model}"
        options = EndpointOptions(price_per_million=0.02)
        encoder: Any = load_encoder(name, tokenizer=given.tokenizer, endpoint=options)
        proxy.tokens, proxy.requests = 0, 0
        proxy.delivered.clear()
        estimates: dict[str, int] = {}

        def estimated(when: str) -> CostEstimate:
            with tempfile.TemporaryDirectory() as folder:
                found = estimate_cost(
                    encoder,
                    lambda stand_in: detect(stand_in, tokens=tokens, sample=sample, out=f"{folder}/out"),
                )
            estimates[when] = found.tokens + tokens_of(proxy, encoder)
            return found

        def step_taken(step: Progress) -> None:
            if step.stage == "screen" and step.done == 0:
                estimated("after the pilot")

        given.texts = estimated("at the start").texts
        proxy.behave(faults())
        kept = killed_once(name, given, tokens, work / "run")
        run = detect(encoder, tokens=tokens, sample=sample, out=work / "run", progress=step_taken)
        before = proxy.requests
        detect(encoder, tokens=tokens, sample=sample, out=work / "run")
        found = paid(proxy, estimates, tokens_of(proxy, encoder), kept, proxy.requests - before)
    if not given.alone:
        settings: Any = ProfileSettings(insertion="words")  # type: ignore[arg-type]
        local = load_encoder(given.model, device="cpu")
        own = detect(local, tokens=tokens, sample=sample, settings=settings, out=work / "own")
        found = [*compared(open_run(run), own, planted), *found]
    for latency in (0.0, LATENCY):
        found += paces(url, model, given.tokenizer, latency)
    holding = sum(KEY.encode() in path.read_bytes() for path in work.rglob("*") if path.is_file())
    return [*found, Check("files that hold the key", "none", str(holding), holding == 0)]


def main(
    model: Annotated[str, typer.Argument()] = MINILM,
    planted: Path | None = None,
    server: str | None = None,
    alone: bool = False,
    tokenizer: str | None = None,
    sample: int = 2000,
    name: str = "endpoint",
) -> None:
    """--planted is JSON with the ids of planted tokens; --server URL#NAME one that runs, with the same model.

    With --alone, the model is not compared with itself in process. --tokenizer is that of the model,
    otherwise the model itself.
    """
    given = Given(model, planted, alone, tokenizer or model, sample)
    os.environ["STICKYTOKEN_API_KEY"] = KEY
    with tempfile.TemporaryDirectory() as folder:
        os.environ["STICKYTOKEN_CACHE"] = f"{folder}/cache"
        with nullcontext(server) if server else serving(model) as place:
            checks = measured(place, given, Path(folder))
    finish(checks, name, strict=False, model=model, server=server, sample=sample)


if __name__ == "__main__":
    commands(__doc__, main)
