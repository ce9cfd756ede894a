"""stickytoken explain: why named tokens stick."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stickytoken.cli import options as o
from stickytoken.cli.corpora import chosen_sentences
from stickytoken.cli.errors import reported
from stickytoken.cli.explanations import print_explanation
from stickytoken.cli.model_options import LoadingOptions, PromptingOptions, spread
from stickytoken.cli.output import print_json, tell
from stickytoken.cli.progress import progress_bar
from stickytoken.cli.run_models import load_for, run_in
from stickytoken.errors import InputError
from stickytoken.insertion import Placement

if TYPE_CHECKING:
    from stickytoken.corpora import Sentences
    from stickytoken.detection import Run
    from stickytoken.explanation import Explanation

Source = Annotated[
    str, typer.Argument(metavar="RUN|MODEL", help="Run folder, or a model.", show_default=False)
]
Tokens = Annotated[
    list[str], typer.Argument(help="Vocabulary strings or texts of tokens.", show_default=False)
]
Ids = Annotated[bool, typer.Option("--ids", help="The arguments are token ids.")]
Text = Annotated[
    list[str] | None,
    typer.Option("--text", help="Put the copies into this text; may be given again.", show_default=False),
]
Seed = Annotated[int, typer.Option(min=0, help="Of all sampling.")]
Out = Annotated[
    Path | None,
    typer.Option(help="Folder for the tables. Default: RUN/explain for a run.", show_default=False),
]


@dataclass(frozen=True, slots=True)
class LookingOptions:
    """What an explanation looks at, and how closely."""

    copies: Annotated[int, typer.Option(min=1, help="Copies in each text.")] = 8
    placement: Annotated[Placement, typer.Option(help="Where the copies go.")] = Placement.SUFFIX
    carriers: Annotated[int, typer.Option(min=1, help="Texts that the copies are put into.")] = 50
    benign: Annotated[int, typer.Option(min=3, help="Matched benign tokens to compare with.")] = 16
    confidence: Annotated[float, typer.Option(help="Coverage of the intervals.")] = 0.95
    attribution: Annotated[
        bool, typer.Option("--attribution/--no-attribution", help="Integrated Jacobians: half of the time.")
    ] = True
    pairs: Annotated[int, typer.Option(min=0, help="Pairs attributed token by token.")] = 1
    steps: Annotated[
        int, typer.Option(min=1, help="Points of the integrals; more where they turn sharply.")
    ] = 32


@reported
@spread
def explain(
    source: Source,
    tokens: Tokens,
    ids: Ids = False,
    text: Text = None,
    model: o.RunsModel = None,
    *,
    looking: LookingOptions,
    sentences: o.SentenceSource = None,
    column: o.Column = None,
    seed: Seed = 42,
    out: Out = None,
    loading: LoadingOptions,
    prompting: PromptingOptions,
    output_format: o.OutputFormat = o.Format.TABLE,
) -> None:
    """Show what a model does with copies of tokens. Matched benign tokens stand beside them.

    Example: stickytoken explain all-MiniLM-L6-v2 '[CLS]' --text "A man repairs a bicycle"
    """
    from stickytoken.explanation import ExplainSettings
    from stickytoken.explanation import explain as run_explain

    settings = ExplainSettings(**asdict(looking), seed=seed)
    numbers = [o.token_id(token) for token in tokens] if ids else []
    _require_text(text)
    corpus = _corpus(sentences, column)
    run = run_in(source, model)
    encoder = load_for(source, None if run is None else run.record, loading, prompting, model)
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
    _write(found, out, run)
    if output_format is o.Format.JSON:
        print_json(found.document())
    else:
        print_explanation(found)


def _write(found: Explanation, out: Path | None, run: Run | None) -> None:
    """Write the tables where they belong: as asked for, into the run, or nowhere."""
    from stickytoken.explanation.record import EXPLANATIONS_FOLDER

    place = out or (run.path / EXPLANATIONS_FOLDER if run is not None else None)
    if place is not None:
        found.write(place)
        tell(f"tables: {place}/<token id>/")
    if run is not None:
        shown = "" if out is None else f" --explain {out}"
        tell(f"with figures: stickytoken report {run.path}{shown}")


def _corpus(sentences: str | None, column: str | None) -> Sentences | None:
    """The corpus that was asked for; None leaves the choice to the run."""
    if sentences is not None:
        return chosen_sentences(sentences, column, None)
    if column is not None:
        raise InputError(
            f"column {column!r} is asked for without sentences: pass --sentences, or leave it out"
        )
    return None


def _require_text(texts: list[str] | None) -> None:
    """Refuse an empty text before a model is loaded."""
    for text in texts or ():
        if not text.strip():
            raise InputError(f"--text is {text!r}: pass a text with words, or leave it out")
