"""stickytoken probe: what named tokens do to unrelated texts."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Annotated

from stickytoken.cli._loading import announced, command, load, token_id
from stickytoken.cli.options.method import MethodOptions, method_options
from stickytoken.cli.options.model import EndpointLoadingOptions, ModelOrEndpoint, PromptingOptions
from stickytoken.cli.options.output import Format, OutputFormat, VerbosityOptions
from stickytoken.cli.options.texts import CorpusOptions, Ids, TokenArguments
from stickytoken.cli.output.console import print_json, print_line, print_table


@command
def probe(
    model: ModelOrEndpoint,
    tokens: TokenArguments,
    ids: Ids = False,
    *,
    corpus: CorpusOptions,
    method: Annotated[MethodOptions, method_options(probe=True)],
    loading: EndpointLoadingOptions,
    prompting: PromptingOptions,
    output_format: OutputFormat = Format.TABLE,
    verbosity: VerbosityOptions,
) -> None:
    """Show how far named tokens pull unrelated sentences together.

    Example: stickytoken probe all-MiniLM-L6-v2 trajectory river the
    """
    from stickytoken.detection import probe as run_probe
    from stickytoken.encoders.endpoint.options import names_endpoint
    from stickytoken.methods.registry import choose_method

    settings = method.settings(corpus.pairs, names_endpoint(model))
    numbers = [token_id(token) for token in tokens] if ids else []
    sentences = corpus.read()
    encoder = load(model, loading, prompting)
    measured = partial(
        run_probe,
        tokens=numbers or tokens,
        sentences=sentences,
        pairs=corpus.pairs,
        settings=settings,
    )
    with announced(encoder, loading, lambda stand_in, _: measured(stand_in)) as progress:
        evidence = measured(encoder, progress=progress)
    if output_format is Format.JSON:
        print_json([asdict(each) for each in evidence])
        return
    for shown in choose_method(None, settings, pairs_given=False).probe_lines(evidence):
        if isinstance(shown, str):
            print_line(shown)
        else:
            print_table(*shown)
