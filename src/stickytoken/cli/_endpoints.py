"""Load a model behind an endpoint, report how its server behaves, and ask before spending money."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import typer

from stickytoken.cli.options.endpoint import EndpointLoadingOptions
from stickytoken.cli.options.model import PromptingOptions
from stickytoken.cli.output.console import inform, status
from stickytoken.cli.output.progress import bars_hidden, duration, progress_bar
from stickytoken.errors import InputError, StickyTokenError

if TYPE_CHECKING:
    from stickytoken.detection.schema import LoadingRecord
    from stickytoken.encoders import Encoder
    from stickytoken.encoders.endpoint.cost import CostEstimate
    from stickytoken.encoders.endpoint.encoder import EndpointEncoder
    from stickytoken.measurement.progress import Progress, ProgressCallback

# A later estimate is told if it differs by this share.
_NOTED = 0.02


def load_endpoint(
    model: str,
    loading: EndpointLoadingOptions,
    prompting: PromptingOptions,
    others: dict[str, Any],
    tokenizer_needed: bool,
) -> Encoder:
    """Load a model behind an endpoint that the options name.

    Args:
        model: its name.
        loading: options of loading.
        prompting: options of prompts.
        others: options of loading that endpoints do not have.
        tokenizer_needed: whether it is refused without a tokenizer; otherwise tokens are estimated.
    """
    from stickytoken.encoders import Prompting, load_encoder
    from stickytoken.encoders.endpoint.vocabulary import CandidateVocabulary

    tokenizer: Any = loading.tokenizer
    if tokenizer is None and loading.candidates is None and not tokenizer_needed:
        tokenizer = CandidateVocabulary(())
    passed = {name: value for name, value in others.items() if value not in (None, False)}
    with status(f"asking {model}"):
        encoder: Any = load_encoder(
            model,
            prompt=Prompting(**asdict(prompting)),
            tokenizer=tokenizer,
            candidates=loading.candidates,
            endpoint=loading.options,
            **passed,
        )
    return prepared(encoder)


def load_recorded(model: str, recorded: LoadingRecord, loading: EndpointLoadingOptions) -> Encoder:
    """Load the model behind an endpoint of a run; see `load_endpoint`. Its tokenizer may have moved."""
    from stickytoken.detection.run_model import load_recorded_endpoint

    if recorded.endpoint is not None and (loading.tokenizer or loading.candidates):
        moved = {"tokenizer": loading.tokenizer, "candidates": loading.candidates}
        recorded = recorded.model_copy(update={"endpoint": recorded.endpoint.model_copy(update=moved)})
    with status(f"asking {model}"):
        encoder: Any = load_recorded_endpoint(model, recorded, loading.options)
    return prepared(encoder)


def prepared(encoder: EndpointEncoder) -> Encoder:
    """Report long pauses of an encoder, and anything unusual about its server."""
    encoder.endpoint.waits = lambda reason, seconds: inform(f"waiting {seconds:.0f} s: {reason}")
    found = encoder.capabilities
    facts = [
        f"{found.dimension:,} components",
        f"{found.batch:,} texts per request",
        "reads any length that was tried"
        if found.long == "unknown"
        else f"reads {found.max_length:,} tokens",
        {"truncates": "cuts longer texts", "refuses": "refuses longer texts", "unknown": ""}[found.long],
        "normalised" if found.normalised else "not normalised",
        f"noise {found.noise:.1e}",
    ]
    inform(f"endpoint: {', '.join(fact for fact in facts if fact)}")
    return encoder


@contextmanager
def announced(
    encoder: Encoder | None,
    loading: EndpointLoadingOptions,
    measurement: Callable[[Any, Path], object],
    uncertain: str | None = None,
) -> Iterator[ProgressCallback]:
    """Yield a callback for progress; of an endpoint, show what will be sent before the first request.

    Nothing is shown where everything was answered before. Nobody is asked with ``--yes``, or about a server
    on this machine without a price.

    Args:
        encoder: the model; None where there is none to ask.
        loading: with the price.
        measurement: goes through the measurement with the encoder that it is given; writes to the folder.
        uncertain: see `estimate_cost`.
    """
    from stickytoken.encoders.endpoint.encoder import EndpointEncoder

    with progress_bar() as progress:
        if not isinstance(encoder, EndpointEncoder):
            yield progress
            return
        forecast = _Forecast(encoder, loading, progress, measurement, uncertain)
        encoder.endpoint.before_sending = forecast.agree
        yield forecast
        spent = encoder.endpoint.spending
        if spent.requests:
            cost = "" if spent.cost is None else f", cost {spent.cost:.4g}"
            inform(f"sent, with the checks: {spent.requests:,} requests, {spent.tokens:,} tokens{cost}")


class _Forecast:
    """Estimates what a measurement sends, again whenever a stage begins that was planned from results."""

    def __init__(
        self,
        encoder: EndpointEncoder,
        loading: EndpointLoadingOptions,
        progress: ProgressCallback,
        measurement: Callable[[Any, Path], object],
        uncertain: str | None,
    ) -> None:
        self._encoder = encoder
        self._loading = loading
        self._progress = progress
        self._measurement = measurement
        self._uncertain = uncertain
        self._stages: set[str] = set()
        self._total: int | None = None

    def __call__(self, step: Progress) -> None:
        begins = step.stage not in self._stages and step.done == 0
        self._stages.add(step.stage)
        if begins and self._total is not None and len(self._stages) > 1:
            self._look_again()
        self._progress(step)

    def agree(self) -> None:
        """Show the estimate, and go on only if the user wants to."""
        with bars_hidden():
            inform("counting what to send")
            estimate = self._estimate()
            if estimate is not None:
                self._total = estimate.tokens
                inform(f"estimate: {_described(estimate)}")
            local = self._encoder.endpoint.address.is_local and not self._loading.price_per_million
            if self._loading.yes or local:
                return
            if not sys.stdin.isatty():
                raise InputError("nobody can be asked whether to spend this: pass --yes")
            if not typer.confirm("go on?", err=True):
                raise typer.Exit(1)

    def _look_again(self) -> None:
        spent = self._encoder.endpoint.spending.tokens
        estimate = self._estimate()
        if estimate is None or self._total is None or not estimate.requests:
            return
        estimate = estimate.most or estimate  # what it depends on is known now
        total = spent + estimate.tokens
        if abs(total - self._total) > _NOTED * self._total:
            self._total = total
            with bars_hidden():
                inform(f"estimate for the rest: {_described(estimate)}")

    def _estimate(self) -> CostEstimate | None:
        from stickytoken.encoders.endpoint.cost import estimate_cost

        with TemporaryDirectory(prefix="stickytoken-") as folder:
            place = Path(folder) / "rehearsal"
            try:
                return estimate_cost(
                    self._encoder, lambda stand_in: self._measurement(stand_in, place), self._uncertain
                )
            except StickyTokenError as error:
                inform(f"what will be sent cannot be estimated ({error})")
                return None


def _described(estimate: CostEstimate) -> str:
    most = ""
    if estimate.most is not None:
        cost = "" if estimate.most.cost is None else f", cost {estimate.most.cost:.4g}"
        most = f"; at most {estimate.most.tokens:,} tokens{cost}, depending on what is found"
    cost = "price unknown (--price-per-million)" if estimate.cost is None else f"cost {estimate.cost:.4g}"
    before = f"; {estimate.answered:,} texts were answered before" if estimate.answered else ""
    return (
        f"{estimate.requests:,} requests, {estimate.texts:,} texts, {estimate.tokens:,} tokens, "
        f"{cost}, about {duration(estimate.seconds)}{most}{before}"
    )
