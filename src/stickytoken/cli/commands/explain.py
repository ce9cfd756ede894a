"""stickytoken explain: what copies of a token do inside a model."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from stickytoken.cli._loading import command, load_for, run_in, token_id
from stickytoken.cli.options.method import AnySeed, CopiesInText, IntervalConfidence
from stickytoken.cli.options.model import LoadingOptions, PromptingOptions, RunsModel
from stickytoken.cli.options.output import (
    Format,
    OutputFormat,
    VerbosityOptions,
    method_option,
    output_option,
    texts_option,
)
from stickytoken.cli.options.texts import Column, Ids, Source, TokenArguments
from stickytoken.cli.output.console import inform, print_json, print_line, print_table
from stickytoken.cli.output.progress import progress_bar
from stickytoken.errors import InputError
from stickytoken.insertion import Placement

if TYPE_CHECKING:
    from stickytoken.corpora import Sentences
    from stickytoken.explanation import Explanation
    from stickytoken.explanation.result import TokenExplanation


# The most telling measures; all of them are in the files and in JSON.
_SHOWN = (
    "lift_sentences",
    "attention_received",
    "carrier_cosine_drift",
    "copies_cosine_distance",
    "pooling_share",
    "pooling_toward_mean",
    "attributed_to_copies",
    "embedding_norm",
    "embedding_cosine_to_mean",
    "embedding_cosine_to_unused",
)
_COLUMNS = ("measure", "layer", "value", "low", "high", "benign_low", "benign_high", "deviations", "outside")
_PAIR_COLUMNS = (
    "similarity_before",
    "similarity",
    "from_copies",
    "from_carrier",
    "from_reference",
    "completeness_error",
)
_HEADS = 5


@dataclass(frozen=True, slots=True)
class MeasuringOptions:
    """What an explanation measures, and how closely; the names are those of the settings."""

    copies: CopiesInText = 8
    placement: Annotated[Placement, method_option(help="Where the copies go.")] = Placement.SUFFIX
    carriers: Annotated[int, method_option(min=1, help="Number of texts to put the copies into.")] = 50
    benign: Annotated[int, method_option(min=3, help="Number of matched benign tokens to compare with.")] = 16
    confidence: IntervalConfidence = 0.9
    attribution: Annotated[
        bool,
        method_option(
            "--attribution/--no-attribution",
            help="Attribute similarities to tokens by integrated Jacobians, which takes half of the time.",
        ),
    ] = True
    pairs: Annotated[
        int, method_option("--attributed-pairs", min=0, help="Number of pairs to attribute token by token.")
    ] = 1
    steps: Annotated[
        int, method_option(min=1, help="Points per integral; more are used where it changes sharply.")
    ] = 32
    seed: AnySeed = 42


@command
def explain(
    source: Source,
    tokens: TokenArguments,
    ids: Ids = False,
    text: Annotated[
        list[str] | None,
        texts_option(
            "--text", help="Put the copies into this text. Repeatable. Default: sentences of the corpus."
        ),
    ] = None,
    *,
    sentences: Annotated[
        str | None,
        texts_option(help="Corpus, as for detect. Default: that of the run, else the bundled one."),
    ] = None,
    column: Column = None,
    model: RunsModel = None,
    measuring: MeasuringOptions,
    loading: LoadingOptions,
    prompting: PromptingOptions,
    out: Annotated[
        Path | None,
        output_option(help="Folder for the tables. Default: explain in the run folder; none for a model."),
    ] = None,
    output_format: OutputFormat = Format.TABLE,
    verbosity: VerbosityOptions,
) -> None:
    """Show what copies of a token do inside a model, compared with matched benign tokens.

    Example: stickytoken explain all-MiniLM-L6-v2 '[CLS]' --text "A man repairs a bicycle"
    """
    from stickytoken.explanation import ExplainSettings
    from stickytoken.explanation import explain as run_explain
    from stickytoken.explanation.explain import require_unlocked
    from stickytoken.explanation.files import EXPLANATIONS_FOLDER, require_place

    if out is not None:
        require_place(out)
    settings = ExplainSettings(**asdict(measuring))
    numbers = [token_id(token) for token in tokens] if ids else []
    _require_text(text)
    corpus = _corpus(sentences, column)
    run = run_in(source, model)
    # An explanation of a model alone is only printed.
    place = out or (run.path / EXPLANATIONS_FOLDER if run is not None else None)
    if place is not None:
        require_unlocked(place, numbers or tokens, run)
    encoder = load_for(source, None if run is None else run.record, loading, prompting, model)
    with progress_bar() as progress:
        found = run_explain(
            encoder,
            numbers or tokens,
            run=run,
            texts=text,
            sentences=corpus,
            settings=settings,
            out=place,
            progress=progress,
        )
    if place is not None:
        inform(f"tables: {place}/<token id>/")
    if run is not None:
        shown = "" if out is None else f" --explanations {out}"
        inform(f"for figures: stickytoken report {run.path}{shown}")
    if output_format is Format.JSON:
        print_json(found.document())
    else:
        _print_explanation(found)


def _corpus(sentences: str | None, column: str | None) -> Sentences | None:
    """Read the corpus that the user names; None leaves the choice to the run."""
    from stickytoken.corpora import load_sentences

    if sentences is not None:
        return load_sentences(sentences, column)
    if column is not None:
        raise InputError(
            f"--column {column!r} is given without --sentences: pass --sentences too, or leave it out"
        )
    return None


def _require_text(texts: list[str] | None) -> None:
    """Refuse an empty text before a model is loaded."""
    for text in texts or ():
        if not text.strip():
            raise InputError(f"--text is {text!r}: pass a text with words, or leave it out")


def _print_explanation(found: Explanation) -> None:
    """Print a verdict in words for every token, then tables."""
    for each in found.tokens:
        print_line(each.verdict)
    for each in found.tokens:
        _print_token(found, each)
    asked = found.settings
    print_line(
        f"{asked.copies} copies ({asked.placement}) in {found.carriers} texts of {found.source}; "
        f"pooling: {found.pooling or 'unknown'}. low, high: {asked.confidence:.0%} interval of the mean over "
        "texts; benign low, high: the range of one more benign token, over all layers together."
    )
    for note in found.notes:
        inform(f"note: {note}")


def _print_token(found: Explanation, token: TokenExplanation) -> None:
    from stickytoken.explanation.tables import furthest

    tables = found.of_token(token.token_id)
    rows = {row["measure"]: row for row in furthest(tables["measures"])}
    print_table(
        f"{token.token!r} ({token.token_id}) compared with {len(tables['benign'])} benign tokens, "
        "at the layer where it differs most",
        [column.replace("_", " ") for column in _COLUMNS],
        [_cells(rows[name]) for name in _SHOWN if name in rows],
    )
    heads = tables["heads"].drop_nulls("head").sort("wasserstein", descending=True).head(_HEADS)
    if not heads.is_empty():
        columns = (
            "layer",
            "head",
            "value",
            "benign_mean",
            "deviations",
            "wasserstein",
            "wasserstein_benign",
            "kl",
        )
        print_table(
            "Attention that the copies receive: the heads that differ most from those of benign tokens",
            [column.replace("_", " ") for column in columns],
            heads.select(columns).iter_rows(),
        )
    for pair in tables["pairs"].to_dicts():
        print_table(
            f"Similarity as a sum over tokens, of {pair['carrier']!r} and {pair['anchor']!r}",
            [column.replace("_", " ") for column in _PAIR_COLUMNS],
            [[pair[column] for column in _PAIR_COLUMNS]],
        )
    if not tables["neighbours"].is_empty():
        near = ", ".join(
            f"{name!r} {cosine:.2f}"
            for name, cosine in tables["neighbours"].select("neighbour", "cosine").rows()
        )
        print_line(f"nearest embeddings: {near}")


def _cells(row: dict[str, Any]) -> list[object]:
    shown = {True: "yes", False: "no", None: None}
    row = row | {"measure": row["measure"].replace("_", " "), "outside": shown[row["outside"]]}
    return [row[column] for column in _COLUMNS]
