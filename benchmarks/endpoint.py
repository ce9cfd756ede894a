"""Compare a run through an endpoint with a run in this process, and its cost with the estimates.

The script starts tests/support/embedding_server.py in this process, which serves a model on the CPU. The
server refuses some requests with HTTP 429 or 500, drops some connections, and damages or loses some
responses. The run is killed once and then continued. The script checks how many tokens the server answered,
whether texts were answered twice, whether the verdicts and erased shares are those of a run without a server,
and that the API key is stored nowhere. It needs no network, and takes a few minutes on 2 CPU cores:

    python benchmarks/endpoint.py --sample 500
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
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import polars as pl
import typer

from bench import MINILM, ROOT, Results, commands
from stickytoken import EndpointOptions, detect, load_encoder, open_run
from stickytoken.detection import Run
from stickytoken.encoders.endpoint.dry_run import CostEstimate, UncertainStages, estimate_cost
from stickytoken.measurement.engine import Progress
from stickytoken.methods.profile.plan import most_texts_to_confirm
from stickytoken.methods.profile.rounds import confirming_stage
from stickytoken.settings.profile import ProfileSettings

sys.path.append(str(ROOT / "tests" / "support"))
from embedding_server import FAULTS, Behaviour, EmbeddingServer  # type: ignore[import-not-found]

# The API key of the run. The string is so unusual that a file that contains it has got it from the run.
KEY = "sk-planted-benchmark-0123456789"
SERVED_NAME = "mini"
# The run is killed when this share of the texts of its first stages has been answered.
KILLED_SHARE = 0.3
# Maximum difference between the erased shares of a token in the two runs.
ERASED_TOLERANCE = 1e-3
# Least share of the tokens that both runs must have measured in the same texts.
COMPARABLE_SHARE = 0.95
# Maximum relative distance between the number of tokens and the estimate.
ESTIMATE_TOLERANCE = 0.05
# Share of the requests that get a fault, and the number of requests for which faults are drawn, which is more
# than a run sends.
FAULT_SHARE = 0.1
PLANNED_REQUESTS = 100_000
# A server that limits its rate (HTTP 429) refuses this many requests in a row.
BURST = 5
# Maximum number of texts that may be answered twice: those of the four requests of up to 256 texts that are
# in flight at the kill, and the six fixed texts of up to 32 checks that the same model still answers.
MOST_REPEATED_TEXTS = 4 * 256 + 32 * 6


class EstimatedTokens(NamedTuple):
    """A lower and an upper estimate of the number of tokens that a run will send."""

    lower: int
    upper: int


class TokenEstimates:
    """Estimates how many tokens the server will have answered at the end of a run, at several times.

    Attributes:
        by_time: The estimates, keyed by the time when they were made, in words.
    """

    def __init__(self, encoder: Any, server: EmbeddingServer, sample: int) -> None:
        self.by_time: dict[str, EstimatedTokens] = {}
        self._encoder = encoder
        self._server = server
        self._sample = sample

    def add(self, when: str) -> CostEstimate:
        """Estimate the rest of the run, and add the tokens that the server has answered so far.

        Args:
            when: The present time, in words.

        Returns:
            The estimate for the rest of the run alone.
        """
        with tempfile.TemporaryDirectory() as folder:
            estimate = estimate_cost(
                self._encoder,
                lambda dry_run: detect(
                    dry_run,
                    sample=self._sample,
                    out=f"{folder}/out",
                    # As in `stickytoken detect`, the dry run must know when the uncertain stage begins.
                    progress=lambda step: dry_run.reached(step.stage),
                ),
                UncertainStages(confirming_stage(1), most_texts_to_confirm(ProfileSettings(), self._sample)),
            )
        upper_estimate = estimate.most or estimate
        delivered = self._server.delivered_tokens
        self.by_time[when] = EstimatedTokens(
            lower=estimate.tokens + delivered,
            upper=upper_estimate.tokens + delivered,
        )
        return estimate

    def add_after_pilot(self, step: Progress) -> None:
        """Add an estimate when the screening begins. This is a progress callback of a detection."""
        if step.stage == "screen" and step.done == 0:
            self.add("after the pilot")


@dataclass(frozen=True)
class ServedRun:
    """A run through the server, and what it cost.

    Attributes:
        run: The finished run.
        estimates: Estimates of the number of tokens that the server answers, keyed by the time when they were
            made.
        tokens: Number of tokens that the server answered.
        texts_at_kill: Number of texts whose vectors were in the cache after the kill.
        repeat_requests: Number of requests that were sent when the finished run was started again.
    """

    run: Run
    estimates: dict[str, EstimatedTokens]
    tokens: int
    texts_at_kill: int
    repeat_requests: int


def faults(seed: int = 0) -> Iterator[str | None]:
    """Draw the fault of each request, or None for a request that is answered; HTTP 429 comes in bursts."""
    generator = random.Random(seed)
    for _ in range(PLANNED_REQUESTS):
        fault = None
        if generator.random() < FAULT_SHARE:
            fault = generator.choice(FAULTS)
        repetitions = BURST if fault == "429" else 1
        for _ in range(repetitions):
            yield fault


def run_until_killed(name: str, model: str, sample: int, texts: int, out: Path) -> int:
    """Start a detection in a process of its own, and kill the process in the middle.

    Args:
        name: URL and name of the served model.
        model: Name of the model that is served, whose tokenizer is used.
        sample: Number of tokens to examine.
        texts: Number of texts that the detection will certainly send.
        out: Folder of the run.

    Returns:
        The number of texts whose vectors are in the cache.
    """
    encoder: Any = load_encoder(name, tokenizer=model)
    command = [sys.executable, "-m", "stickytoken", "detect", name, "--yes", "--quiet"]
    command += ["--set", f"tokenizer={model}", "--sample", str(sample), "--out", str(out)]
    process = subprocess.Popen(command)
    while process.poll() is None and len(encoder.answers) < KILLED_SHARE * texts:
        time.sleep(0.5)
    process.send_signal(signal.SIGKILL)
    process.wait()
    return len(encoder.answers)


def server_of(model: str) -> EmbeddingServer:
    """Return a server of the model on the CPU, which cuts longer texts than the model reads."""
    encoder = load_encoder(model, device="cpu")
    # The server compares its limit with the tokens of a text without the two special tokens around them.
    most_tokens = None if encoder.max_length is None else encoder.max_length - 2
    return EmbeddingServer(encoder, Behaviour(name=SERVED_NAME, max_tokens=most_tokens))


def run_through_server(server: EmbeddingServer, model: str, sample: int, work: Path) -> ServedRun:
    """Estimate the cost of a run, start the run, kill it, continue it, and repeat it when it is finished.

    Args:
        server: The server, which is not running yet.
        model: Name of the model that is served.
        sample: Number of tokens to examine.
        work: Folder in which the folder of the run is made.
    """
    run_folder = work / "run"
    with server.running() as url:
        name = f"{url}#{SERVED_NAME}"
        options = EndpointOptions(price_per_million=0.02)
        encoder: Any = load_encoder(name, tokenizer=model, endpoint=options)
        # Loading an encoder sends requests that find out how the server behaves. The estimates leave these
        # requests out, so they must not count.
        server.answered.clear()
        server.delivered_tokens = 0
        estimates = TokenEstimates(encoder, server, sample)
        certain_texts = estimates.add("at the start").texts
        server.behaviour.faults.extend(faults())
        texts_at_kill = run_until_killed(name, model, sample, certain_texts, run_folder)
        run = detect(encoder, sample=sample, out=run_folder, progress=estimates.add_after_pilot)
        requests_of_run = server.seen
        detect(encoder, sample=sample, out=run_folder)
        return ServedRun(
            run=run,
            estimates=estimates.by_time,
            tokens=server.delivered_tokens,
            texts_at_kill=texts_at_kill,
            repeat_requests=server.seen - requests_of_run,
        )


def check_cost(results: Results, served: ServedRun, server: EmbeddingServer) -> None:
    """Check the number of answered tokens against the estimates, and that hardly any text was sent twice."""
    for when, estimate in served.estimates.items():
        lower_bound = (1 - ESTIMATE_TOLERANCE) * estimate.lower
        upper_bound = (1 + ESTIMATE_TOLERANCE) * estimate.upper
        results.check(
            f"tokens that were answered against the estimate {when}",
            f"between least and most, each {ESTIMATE_TOLERANCE:.0%} off at most",
            f"{served.tokens:,}; estimated {estimate.lower:,} to {estimate.upper:,}",
            lower_bound <= served.tokens <= upper_bound,
        )
    answers_by_text = Counter(server.texts)
    distinct_texts = len(answers_by_text)
    repeated_texts = answers_by_text.total() - distinct_texts
    results.check(
        f"{server.harmed.total():,} harmed requests and a kill",
        "no text answered twice but in flight and for checks",
        f"{repeated_texts} of {distinct_texts:,} ({served.texts_at_kill:,} kept at the kill)",
        repeated_texts <= MOST_REPEATED_TEXTS,
        harmed=server.harmed,
        requests=len(server.answered),
    )
    results.check(
        "a finished run repeated",
        "sends nothing",
        f"{served.repeat_requests} requests",
        served.repeat_requests == 0,
    )


def check_against_local_run(results: Results, run: Run, model: str, sample: int, work: Path) -> None:
    """Check that a run of the same model without a server has the same verdicts and erased shares.

    Args:
        results: Results that the check is added to.
        run: The run through the server.
        model: Name of the model that is served.
        sample: Number of tokens that the run examined.
        work: Folder in which the folder of the other run is made.
    """
    settings: Any = ProfileSettings(insertion="words")  # type: ignore[arg-type]
    encoder = load_encoder(model, device="cpu")
    local_run = detect(encoder, sample=sample, settings=settings, out=work / "local")
    tokens = open_run(run.path).tokens.join(local_run.tokens, on="token_id", suffix="_local")
    # A server gives no embedding matrix, so the run through the server cannot tell which vectors are unusual.
    is_unusual = pl.col("vector_deviation_local") >= settings.unusual
    verdicts_differ = pl.col("verdict") != pl.col("verdict_local")
    differing = tokens.filter(verdicts_differ, ~is_unusual.fill_null(value=False)).height
    # The local run knows which vectors are unusual, which changes which tokens are confirmed. Shares are
    # comparable only where both runs confirmed a token, or neither did.
    in_same_texts = tokens.filter(pl.col("confirmed") == pl.col("confirmed_local"))
    erased_differences = (in_same_texts["erased"] - in_same_texts["erased_local"]).abs()
    largest_difference = float(erased_differences.max() or 0.0)  # type: ignore[arg-type]
    has_enough = in_same_texts.height >= COMPARABLE_SHARE * tokens.height
    results.check(
        f"{tokens.height:,} tokens behind the server and in process",
        f"verdicts equal but for unusual vectors, erased shares within {ERASED_TOLERANCE:g}",
        f"{differing} differ, {largest_difference:.1e} for {in_same_texts.height:,} tokens in the same texts",
        differing == 0 and largest_difference <= ERASED_TOLERANCE and has_enough,
    )


def check_key(results: Results, work: Path) -> None:
    """Check that no file in the folder contains the API key."""
    files = [path for path in work.rglob("*") if path.is_file()]
    files_with_key = sum(KEY.encode() in path.read_bytes() for path in files)
    results.check("files that hold the key", "none", str(files_with_key), files_with_key == 0)


def main(model: Annotated[str, typer.Argument()] = MINILM, sample: int = 2000) -> None:
    """Compare a run through an endpoint with a run in this process, and its cost with the estimates.

    MODEL is served by a local server that harms some requests. The run examines --sample tokens, and is
    killed once and continued. This takes a few minutes on 2 CPU cores. The results are in
    benchmarks/results/endpoint.json.
    """
    results = Results("endpoint", model=model, sample=sample)
    os.environ["STICKYTOKEN_API_KEY"] = KEY
    with tempfile.TemporaryDirectory() as folder:
        os.environ["STICKYTOKEN_CACHE"] = f"{folder}/cache"
        work = Path(folder)
        server = server_of(model)
        served = run_through_server(server, model, sample, work)
        check_cost(results, served, server)
        check_against_local_run(results, served.run, model, sample, work)
        check_key(results, work)
    results.finish(strict=False)


if __name__ == "__main__":
    commands(__doc__, main)
