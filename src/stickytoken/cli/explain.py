"""stickytoken explain: why named tokens stick."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stickytoken.cli import options as o
from stickytoken.cli.corpora import chosen_sentences
from stickytoken.cli.errors import reported
from stickytoken.cli.explanations import print_explanation
from stickytoken.cli.models import chosen_encoder
from stickytoken.cli.output import print_json, tell
from stickytoken.cli.progress import progress_bar
from stickytoken.errors import InputError
from stickytoken.insertion import Placement

if TYPE_CHECKING:
    from stickytoken.runs import Run

_FOLDER = "explain"


@reported
def explain(
    source: Annotated[
        str, typer.Argument(metavar="RUN|MODEL", help="Run folder, or a model.", show_default=False)
    ],
    tokens: Annotated[
        list[str], typer.Argument(help="Vocabulary strings or texts of tokens.", show_default=False)
    ],
    ids: Annotated[bool, typer.Option("--ids", help="The arguments are token ids.")] = False,
    text: Annotated[
        list[str] | None,
        typer.Option("--text", help="Put the copies into this text; may be given again.", show_default=False),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="Where the run's model lies now. Default: as the run names it.", show_default=False
        ),
    ] = None,
    copies: Annotated[int, typer.Option(min=1, help="Copies in each text.")] = 8,
    placement: Annotated[Placement, typer.Option(help="Where the copies go.")] = Placement.SUFFIX,
    carriers: Annotated[int, typer.Option(min=1, help="Texts that the copies are put into.")] = 50,
    benign: Annotated[int, typer.Option(min=3, help="Matched benign tokens to compare with.")] = 16,
    confidence: Annotated[float, typer.Option(help="Coverage of the intervals.")] = 0.95,
    attribution: Annotated[
        bool, typer.Option("--attribution/--no-attribution", help="Integrated Jacobians: half of the time.")
    ] = True,
    pairs: Annotated[int, typer.Option(min=0, help="Pairs attributed token by token.")] = 1,
    steps: Annotated[int, typer.Option(min=1, help="Points of the integrals.")] = 32,
    sentences: o.SentenceSource = None,
    column: o.Column = None,
    seed: o.Seed = 42,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the tables. Default: RUN/explain for a run.", show_default=False),
    ] = None,
    device: o.Device = None,
    dtype: Annotated[
        str | None,
        typer.Option(help="Precision of the weights. Default: the run's, or float32.", show_default=False),
    ] = None,
    prompt: o.Prompt = None,
    prompt_name: o.PromptName = None,
    revision: o.Revision = None,
    trust_remote_code: o.TrustRemoteCode = False,
    token_budget: o.TokenBudget = None,
    output_format: o.OutputFormat = o.Format.TABLE,
) -> None:
    """Show what a model does with copies of tokens, beside matched benign tokens.

    Example: stickytoken explain all-MiniLM-L6-v2 '[CLS]' --text "A man repairs a bicycle"
    """
    from stickytoken.explanation import ExplainSettings
    from stickytoken.explanation import explain as run_explain

    settings = ExplainSettings(
        copies=copies,
        placement=placement,
        carriers=carriers,
        benign=benign,
        confidence=confidence,
        attribution=attribution,
        pairs=pairs,
        steps=steps,
        seed=seed,
    )
    numbers = [o.token_id(token) for token in tokens] if ids else []
    _require_text(text)
    corpus = chosen_sentences(sentences, column, None) if sentences is not None else None
    if corpus is None and column is not None:
        raise InputError(
            f"column {column!r} is asked for without sentences: pass --sentences, or leave it out"
        )
    run = _run_of(source)
    if run is None and model is not None:
        raise InputError(f"{source} is no run folder, so --model says nothing: leave it out")
    recorded = {} if run is None else run.record.identity_parts.get("encoder", {})
    if run is not None and prompt is None and prompt_name is None:
        prompt = recorded.get("prompt")
    encoder = chosen_encoder(
        source if run is None else model or run.record.model.name,
        device=device,
        dtype=dtype or recorded.get("dtype", "float32"),
        prompt=prompt,
        prompt_name=prompt_name,
        revision=revision,
        trust_remote_code=trust_remote_code,
        token_budget=token_budget,
    )
    with progress_bar() as progress:
        found = run_explain(
            encoder,
            numbers or tokens,
            run=run,
            texts=text,
            sentences=corpus,
            settings=settings,
            progress=progress,
        )
    place = out or (run.path / _FOLDER if run is not None else None)
    if place is not None:
        found.write(place)
        tell(f"tables: {place}/<token id>/")
    if output_format is o.Format.JSON:
        print_json(found.document())
    else:
        print_explanation(found)


def _run_of(source: str) -> Run | None:
    """The run in a folder; None where the source is a model."""
    from stickytoken.explanation.source import is_run
    from stickytoken.runs import open_run

    return open_run(source) if is_run(source) else None


def _require_text(texts: list[str] | None) -> None:
    """Refuse an empty text before a model is loaded."""
    for text in texts or ():
        if not text.strip():
            raise InputError(f"--text is {text!r}: pass a text with words, or leave it out")
