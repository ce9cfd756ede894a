"""stickytoken why: which pairs of tokens make two texts similar."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stickytoken.attribution.methods import AttributionMethod
from stickytoken.cli._command import command
from stickytoken.cli._run_models import load_for, require_found
from stickytoken.cli.options.model import LoadingOptions, Model, PromptingOptions
from stickytoken.cli.options.output import Format, OutputFormat, VerbosityOptions
from stickytoken.cli.options.panels import output_option, texts_option
from stickytoken.cli.output.console import inform, print_json
from stickytoken.cli.output.progress import late_progress
from stickytoken.cli.output.why import print_why
from stickytoken.errors import InputError, ModelError

_UNSEEN_SECONDS = 3.0


@command
def why(
    model: Model,
    first: Annotated[str, typer.Argument(metavar="TEXT", help="One text.")],
    second: Annotated[str, typer.Argument(metavar="TEXT", help="The other text.")],
    *,
    run: Annotated[
        Path | None, texts_option(help="Finished run of this model, whose sticky tokens are marked.")
    ] = None,
    method: Annotated[
        AttributionMethod,
        texts_option("--attribute-by", help="How the cosine is divided among pairs of tokens."),
    ] = AttributionMethod.DELETION,
    words: Annotated[bool, texts_option("--words", help="Attribute to words in place of tokens.")] = False,
    loading: LoadingOptions,
    prompting: PromptingOptions,
    top: Annotated[int, output_option(min=1, help="Pairs to print.")] = 10,
    html: Annotated[Path | None, output_option(help="Write a self-contained page to this file.")] = None,
    output_format: OutputFormat = Format.TABLE,
    verbosity: VerbosityOptions,
) -> None:
    """Show which pairs of tokens make two texts similar, and what deleting each token changes.

    Example: stickytoken why all-MiniLM-L6-v2 "A girl brushes her hair" "A woman combs her hair"
    """
    from stickytoken.attribution.why import why as run_why
    from stickytoken.detection import open_run
    from stickytoken.encoders.endpoint.address import names_endpoint

    for name, text in (("first", first), ("second", second)):
        if not text.strip():
            raise InputError(f"the {name} text is {text!r}: pass a text with words")
    if names_endpoint(model):
        raise ModelError(
            f"why needs the model itself, and {model} is behind an endpoint, which gives only vectors of "
            "texts: pass a model that is on this machine"
        )
    if html is not None:
        from stickytoken.reports.similarity import require_place

        require_place(html)
    require_found(model, None, loading)
    opened = None if run is None else open_run(run)
    encoder = load_for(model, None if opened is None else opened.record, loading, prompting, model)
    with late_progress(_UNSEEN_SECONDS) as progress:
        found = run_why(encoder, first, second, method=method, run=opened, words=words, progress=progress)
    if html is not None:
        from stickytoken.reports.similarity import write_similarity_page

        write_similarity_page(found, html, top)
        inform(f"page: {html}")
    if output_format is Format.JSON:
        print_json(found.document(top))
    else:
        print_why(found, top)
