"""stickytoken probe: evidence for named tokens."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from stickytoken.cli import options as o
from stickytoken.cli.corpora import chosen_sentences
from stickytoken.cli.detection_options import CorpusOptions
from stickytoken.cli.errors import reported
from stickytoken.cli.method_options import MethodOptions, method_options
from stickytoken.cli.model_options import LoadingOptions, PromptingOptions, load, spread
from stickytoken.cli.output import print_json, print_table, say
from stickytoken.cli.progress import progress_bar


@reported
@spread
def probe(
    model: o.Model,
    tokens: Annotated[
        list[str], typer.Argument(help="Vocabulary strings or texts of tokens.", show_default=False)
    ],
    ids: Annotated[bool, typer.Option("--ids", help="The arguments are token ids.")] = False,
    *,
    corpus: CorpusOptions,
    method: Annotated[MethodOptions, method_options(probe=True)],
    loading: LoadingOptions,
    prompting: PromptingOptions,
    output_format: o.OutputFormat = o.Format.TABLE,
) -> None:
    """Show how far named tokens pull unrelated sentences together.

    Example: stickytoken probe all-MiniLM-L6-v2 trajectory river the
    """
    from stickytoken.detection import probe as run_probe
    from stickytoken.methods.registry import choose_method

    settings = method.settings(corpus.pairs)
    numbers = [o.token_id(token) for token in tokens] if ids else []
    sentences = chosen_sentences(**asdict(corpus))
    encoder = load(model, loading, prompting)
    with progress_bar() as progress:
        evidence = run_probe(
            encoder,
            numbers or tokens,
            sentences=sentences,
            pairs=corpus.pairs,
            settings=settings,
            progress=progress,
        )
    if output_format is o.Format.JSON:
        print_json([asdict(each) for each in evidence])
        return
    for shown in choose_method(None, settings, pairs_given=False).probe_lines(evidence):
        if isinstance(shown, str):
            say(shown)
        else:
            print_table(*shown)
