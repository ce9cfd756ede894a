"""stickytoken detect: find the sticky tokens of a model."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Annotated

from stickytoken.cli._loading import announced, command, load, named_token_ids, tell_layer
from stickytoken.cli.options.method import MethodOptions, method_options
from stickytoken.cli.options.model import AddressOptions, EngineOptions, ModelOrEndpoint, PromptingOptions
from stickytoken.cli.options.output import Format, OutputFormat, RunFolderPath, VerbosityOptions, WriteReport
from stickytoken.cli.options.texts import CorpusOptions, Sample, Tokens
from stickytoken.cli.output.run import finish_run


@command
def detect(
    model: ModelOrEndpoint = "",
    *,
    corpus: CorpusOptions,
    tokens: Tokens = None,
    sample: Sample = None,
    out: RunFolderPath = None,
    method: Annotated[MethodOptions, method_options(probe=False)],
    loading: AddressOptions,
    prompting: PromptingOptions,
    computing: EngineOptions,
    write_report: WriteReport = True,
    output_format: OutputFormat = Format.TABLE,
    verbosity: VerbosityOptions,
) -> None:
    """Find the sticky tokens of a model. Run the same command again to continue an interrupted run.

    Example: stickytoken detect all-MiniLM-L6-v2 --sample 300
    """
    from stickytoken.detection import detect as run_detection
    from stickytoken.detection.model_files import look_at_model, record_model
    from stickytoken.detection.run_folder import require_usable
    from stickytoken.encoders.endpoint.options import names_endpoint
    from stickytoken.methods.registry import choose_method

    engine = computing.choice
    settings = method.settings(corpus.pairs, names_endpoint(loading.name_of(model)))
    sentences = corpus.read()
    if out is not None:
        require_usable(out, choose_method(None, settings, corpus.pairs is not None).entry.name, settings)
    plain = _loads_plainly(loading, prompting)
    files = look_at_model(model, loading.revision) if plain else None
    encoder = load(model, loading, prompting)
    tell_layer(encoder)
    measured = partial(
        run_detection,
        sentences=sentences,
        pairs=corpus.pairs,
        tokens=named_token_ids(encoder, tokens),
        sample=sample,
        settings=settings,
        evidence=write_report,
    )
    with announced(encoder, loading, lambda stand_in, place: measured(stand_in, out=place)) as progress:
        run = measured(encoder, out=out, engine=engine, progress=progress)
    record_model(run.path, run.record, files)
    finish_run(run, output_format, write_report)


def _loads_plainly(loading: AddressOptions, prompting: PromptingOptions) -> bool:
    """Whether no option changes what the model computes, so that its name alone gives the same model."""
    as_named = AddressOptions(
        revision=loading.revision, device=loading.device, token_budget=loading.token_budget
    )
    return prompting == PromptingOptions() and replace(loading, packed_layers=None) == as_named
