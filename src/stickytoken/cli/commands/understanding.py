"""stickytoken explain, why and impact: what copies of a token do inside a model, and what they cost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

import stickytoken
from stickytoken.cli import _options as opt, console
from stickytoken.cli._command import command
from stickytoken.errors import InputError
from stickytoken.insertion import Insertion, Placement, Side
from stickytoken.inspection import AttributionMethod
from stickytoken.validation import visible

if TYPE_CHECKING:
    from stickytoken.explanation import Explanation
    from stickytoken.explanation.files import TokenExplanation
    from stickytoken.impacts import Impact


@dataclass(frozen=True)
class ExplainingOptions:
    """What an explanation measures, and how closely; the names are those of the settings.

    Attributes:
        placement: Where the copies go.
        carriers: Number of texts to put the copies into.
        benign: Number of matched benign tokens to compare with.
        attribution: Attribute similarities to tokens by integrated Jacobians, which takes half of the time.
        pairs: Number of pairs to attribute token by token.
        steps: Points per integral; more are used where it changes sharply.
    """

    copies: opt.CopiesInText = 8
    placement: opt.Method[Placement] = Placement.SUFFIX
    carriers: Annotated[int, opt.method_option(min=1)] = 50
    benign: Annotated[int, opt.method_option(min=3)] = 16
    confidence: opt.IntervalConfidence = 0.9
    attribution: Annotated[bool, opt.method_option("--attribution/--no-attribution")] = True
    pairs: Annotated[int, opt.method_option("--attributed-pairs", min=0)] = 1
    steps: Annotated[int, opt.method_option(min=1)] = 32
    seed: opt.AnySeed = 42


@command(
    *("prompt", "token_prepending", "contrast", "truncate_dim", "layer"),
    *("placement", "carriers", "benign", "confidence", "attribution", "pairs", "steps"),
)
def explain(
    source: opt.Source,
    tokens: opt.TokenArguments,
    ids: opt.Ids = False,
    text: Annotated[list[str] | None, opt.texts_option("--text")] = None,
    *,
    sentences: opt.Texts[str | None] = None,
    column: opt.SentencesColumn = None,
    model: opt.RunsModel = None,
    measuring: ExplainingOptions,
    loading: opt.ModelOptions,
    out: opt.Output[Path | None] = None,
    output_format: opt.OutputFormat = opt.Format.TABLE,
) -> None:
    """Show what copies of a token do inside a model, compared with matched benign tokens.

    Example: stickytoken explain all-MiniLM-L6-v2 '[CLS]' --text "A man repairs a bicycle"

    Args:
        text: Put the copies into this text. Repeatable. Default: sentences of the corpus.
        sentences: Corpus, as for detect. Default: that of the run, else the bundled one.
        out: Folder for the tables. Default: explain in the run folder; none for a model.
    """
    from stickytoken.explanation import require_unlocked
    from stickytoken.explanation.files import EXPLANATIONS_FOLDER, require_place

    if out is not None:
        require_place(out)
    settings = stickytoken.ExplainSettings(**asdict(measuring))
    named: list[Any] = [opt.token_id(token) for token in tokens] if ids else [*tokens]
    for own in text or ():
        if not own.strip():
            raise InputError(f"--text is {own!r}: pass a text with words, or leave it out")
    if sentences is None and column is not None:
        missing = f"--column {column!r} is given without --sentences"
        raise InputError(f"{missing}: pass --sentences too, or leave it out")
    corpus = None if sentences is None else stickytoken.load_sentences(sentences, column)
    run = opt.run_in(source, model)
    # An explanation of a model alone is only printed.
    place = out or (run.path / EXPLANATIONS_FOLDER if run is not None else None)
    if place is not None:
        require_unlocked(place, named, run)
    encoder = opt.load_for(source, None if run is None else run.record, loading, model)
    measured = partial(stickytoken.explain, run=run, texts=text, sentences=corpus, settings=settings)
    with console.progress_bar() as progress:
        found = measured(encoder, named, out=place, progress=progress)
    if place is not None:
        console.inform(f"tables: {place}/<token id>/")
    if run is not None:
        shown = "" if out is None else f" --explanations {out}"
        console.inform(f"for figures: stickytoken report {run.path}{shown}")
    if output_format is opt.Format.JSON:
        console.print_json(found.document())
    else:
        for each in found.tokens:
            console.print_line(each.verdict)
        for each in found.tokens:
            _print_token(found, each)
        console.print_line(
            f"{settings.copies} copies ({settings.placement}) in {found.carriers} texts of {found.source}; "
            f"pooling: {found.pooling or 'unknown'}. low, high: {settings.confidence:.0%} interval of the "
            "mean over texts; benign low, high: the range of one more benign token, over all layers together."
        )
        console.inform_notes(found.notes)


# The most telling measures; all of them are in the files and in JSON.
_SHOWN = (
    *("lift_sentences", "attention_received", "carrier_cosine_drift", "copies_cosine_distance"),
    *("pooling_share", "pooling_toward_mean", "attributed_to_copies"),
    *("embedding_norm", "embedding_cosine_to_mean", "embedding_cosine_to_unused"),
)


def _print_token(found: Explanation, token: TokenExplanation) -> None:
    from stickytoken.explanation.statistics import furthest

    def print_named(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        console.print_table(title, [column.replace("_", " ") for column in columns], rows)

    tables = found.of_token(token.token_id)
    rows = {row["measure"]: row for row in furthest(tables["measures"])}
    known = ("layer", "value", "low", "high", "benign_low", "benign_high", "deviations")
    outside = {True: "yes", False: "no", None: None}
    print_named(
        f"{token.token!r} ({token.token_id}) compared with {len(tables['benign'])} benign tokens, "
        "at the layer where it differs most",
        ("measure", *known, "outside"),
        [
            (name.replace("_", " "), *(rows[name][each] for each in known), outside[rows[name]["outside"]])
            for name in _SHOWN
            if name in rows
        ],
    )
    heads = tables["heads"].drop_nulls("head").sort("wasserstein", descending=True).head(5)
    if not heads.is_empty():
        measured = ("value", "benign_mean", "deviations", "wasserstein", "wasserstein_benign", "kl")
        columns = ("layer", "head", *measured)
        title = "Attention that the copies receive: the heads that differ most from those of benign tokens"
        print_named(title, columns, heads.select(columns).iter_rows())
    parts = ("from_copies", "from_carrier", "from_reference", "completeness_error")
    sums = ("similarity_before", "similarity", *parts)
    for pair in tables["pairs"].to_dicts():
        title = f"Similarity as a sum over tokens, of {pair['carrier']!r} and {pair['anchor']!r}"
        print_named(title, sums, [[pair[column] for column in sums]])
    if not tables["neighbours"].is_empty():
        neighbours = tables["neighbours"].select("neighbour", "cosine").rows()
        near = ", ".join(f"{name!r} {cosine:.2f}" for name, cosine in neighbours)
        console.print_line(f"nearest embeddings: {near}")


@command()
def why(
    model: opt.Model,
    first: Annotated[str, typer.Argument(metavar="TEXT")],
    second: Annotated[str, typer.Argument(metavar="TEXT")],
    *,
    run: opt.Texts[Path | None] = None,
    method: Annotated[AttributionMethod, opt.texts_option("--attribute-by")] = AttributionMethod.DELETION,
    words: Annotated[bool, opt.texts_option("--words")] = False,
    loading: opt.ModelOptions,
    top: opt.ListLimit[int] = 10,
    html: opt.Output[Path | None] = None,
    output_format: opt.OutputFormat = opt.Format.TABLE,
) -> None:
    """Show which pairs of tokens make two texts similar, and what deleting each token changes.

    Example: stickytoken why all-MiniLM-L6-v2 "A girl brushes her hair" "A woman combs her hair"

    Args:
        first: One text.
        second: The other text.
        run: Finished run of this model, whose sticky tokens are marked.
        method: How the cosine is divided among pairs of tokens.
        words: Attribute to words in place of tokens.
        top: Pairs to print.
        html: Write a self-contained page to this file.
    """
    from stickytoken.attribution import summary

    for name, text in (("first", first), ("second", second)):
        if not text.strip():
            raise InputError(f"the {name} text is {text!r}: pass a text with words")
    if html is not None:
        from stickytoken.reports.page import require_place

        require_place(html)
    opt.require_found(model, None, loading)
    opened = None if run is None else stickytoken.open_run(run)
    encoder = opt.load_for(model, None if opened is None else opened.record, loading, model)
    attributed = partial(stickytoken.why, encoder, first, second, method=method, run=opened, words=words)
    with console.late_progress(seconds=3) as progress:
        found = attributed(progress=progress)
    if html is not None:
        from stickytoken.reports.page import write_similarity_page

        write_similarity_page(found, html, top)
        console.inform(f"page: {html}")
    if output_format is opt.Format.JSON:
        console.print_json(found.document(top))
        return
    for line in summary(found, top):
        console.print_line(line)
    found = found.grouped()
    pairs = [
        (each.first_text, each.second_text, each.value, "yes" if each.sticky else "")
        for each in found.strongest(top)
    ]
    columns = ("first text", "second text", "contribution", "sticky")
    console.print_table("Pairs that raise the cosine most", columns, pairs, (None, None, 3, None))
    _print_matrix(found)
    for name, parts in (("first", found.first.parts), ("second", found.second.parts)):
        changes = [(part.text, part.deletion) for part in parts if part.deletion is not None]
        largest = sorted(changes, key=lambda change: -abs(change[1]))[:5]
        title = f"What the cosine changes by without a part of the {name} text: the largest changes"
        console.print_table(title, ("part", "change"), largest, (None, 3))
    rest = ""
    if found.method != AttributionMethod.DELETION:
        neither = float(found.first_reference.sum() + found.second_reference.sum()) + found.reference
        rest = f"; no part of either text: {neither:+.3f}"
    console.inform(f"method {found.method}; error of the sum {found.completeness_error:+.4f}{rest}")


def _print_matrix(found: stickytoken.Why) -> None:
    label, cell, most_rows = 14, 7, 30

    def strongest(axis: int, most: int) -> list[int]:
        order = np.argsort(-np.abs(found.matrix).max(axis=axis), kind="stable")[:most]
        return sorted(order.tolist())

    rows = strongest(1, most_rows)
    columns = strongest(0, max(1, (console.stdout().width - label - 2) // (cell + 1)))
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False, header_style="bold")
    table.add_column("", max_width=label, no_wrap=True, overflow="ellipsis")
    for column in columns:
        name = Text(visible(found.second.parts[column].text))
        table.add_column(name, width=cell, no_wrap=True, overflow="ellipsis", justify="right")
    highest = float(np.abs(found.matrix).max()) or 1.0
    for row in rows:
        cells = []
        for value in map(float, found.matrix[row, columns]):
            faint = round(255 - 175 * min(1.0, abs(value) / highest))
            colour = f"rgb(255,{faint},{faint})" if value >= 0 else f"rgb({faint},{faint},255)"
            cells.append(Text(f"{value:+.3f}", style=f"black on {colour}"))
        table.add_row(Text(visible(found.first.parts[row].text)), *cells)
    shown = f"{len(rows)} of {found.matrix.shape[0]} rows, {len(columns)} of {found.matrix.shape[1]} columns"
    left_out = "" if found.matrix.shape == (len(rows), len(columns)) else f" (the strongest {shown})"
    console.print_line(f"Contributions: first text in rows, second in columns{left_out}")
    console.stdout().print(table)
    console.print_line("")


Preset = StrEnum("Preset", "PAPER")


@dataclass(frozen=True)
class MeasuringOptions:
    """How it is measured; the names are those of `ImpactSettings`.

    Attributes:
        placement: Where the copies go.
        side: Which texts get copies; a second sentence counts as a document.
        insertion: ids: the model sees exactly n copies. text: copies are inserted as words.
        sticky: Maximum number of sticky tokens of the run to use.
        benign: Matched benign tokens per sticky token.
        seeds: Number of random repetitions.
        resamples: Number of bootstrap samples.
    """

    copies: opt.CopiesInText = 8
    placement: opt.Method[Placement] = Placement.RANDOM
    side: opt.Method[Side] = Side.DOCUMENT
    insertion: opt.Method[Insertion] = Insertion.IDS
    sticky: Annotated[int, opt.method_option(min=1)] = 5
    benign: Annotated[int, opt.method_option(min=1)] = 8
    seeds: Annotated[int, opt.method_option("--repetitions", min=1)] = 1
    resamples: Annotated[int, opt.method_option(min=100)] = 1000
    confidence: opt.IntervalConfidence = 0.9
    seed: opt.AnySeed = 42


@command(
    *("prompt", "token_prepending", "contrast", "truncate_dim", "layer"),
    *("placement", "side", "insertion", "sticky", "benign", "seeds", "resamples", "confidence"),
)
def impact(
    source: opt.Source,
    *,
    task: opt.Texts[list[str] | None] = None,
    preset: opt.Texts[Preset | None] = None,
    intrusion: opt.Texts[str | None] = None,
    tokens: opt.RunsTokens = None,
    model: opt.RunsModel = None,
    measuring: MeasuringOptions,
    loading: opt.AnyModelOptions,
    computing: opt.EngineOptions,
    out: opt.Output[Path | None] = None,
    output_format: opt.OutputFormat = opt.Format.TABLE,
) -> None:
    """Measure what sticky tokens cost on a task. Run the same command again to continue an interrupted one.

    Example: stickytoken impact all-MiniLM-L6-v2 --tokens '[CLS]' --task sts.jsonl --intrusion bundled

    Args:
        task: Task file, BEIR folder, or name of an MTEB task. Repeatable.
        preset: paper: the sixteen MTEB tasks of Chen et al. 2025.
        intrusion: Also measure how far copies push random documents into search results: a BEIR folder, a
            file of documents, or bundled.
        out: Output folder. Default: impact-<identity> in the run folder, where report finds it;
            runs/<model>-impact-<identity> for a model.
    """
    from stickytoken.data.tasks import PAPER_TASKS
    from stickytoken.encoders.protocol import reads_ids
    from stickytoken.impacts.results import require_place

    if out is not None:
        require_place(out)  # before the model is loaded
    settings = stickytoken.ImpactSettings(**asdict(measuring))
    engine = computing.choice
    tasks = [*(task or ()), *(PAPER_TASKS if preset else ())]
    run = opt.run_in(source, model)
    if run is None and not tokens:
        raise InputError(
            f"{source!r} is not the folder of a finished run: name tokens with --tokens, or run "
            "`stickytoken detect` first and pass its folder"
        )
    encoder = opt.load_for(source, None if run is None else run.record, loading, model)
    if settings.insertion is Insertion.IDS and not reads_ids(encoder):
        settings = replace(settings, insertion=Insertion.TEXT)  # all that such a model reads
    ids = opt.named_token_ids(encoder, tokens)
    whole = partial(
        stickytoken.impact, tokens=ids, tasks=tasks, run=run, intrusion=intrusion, settings=settings
    )
    with opt.announced(encoder, loading, lambda stand_in, place: whole(stand_in, out=place)) as progress:
        found = whole(encoder, out=out, engine=engine, progress=progress)
    show_impact(found, output_format)
    if run is not None and found.path.parent == run.path:
        console.inform(f"for a report with this: stickytoken report {run.path}")
    if failed := "; ".join(f"{name} ({reason})" for name, reason in found.failed.items()):
        raise InputError(f"not run: {failed}")


def show_impact(impact: Impact, output_format: opt.Format) -> None:
    if output_format is opt.Format.JSON:
        console.print_json(impact.summary())
        return
    from stickytoken.impacts import statistics
    from stickytoken.impacts.results import measured_kind

    effects, kind = impact.effects, measured_kind(impact.record)
    main = effects.filter("main")
    for effect in main.iter_rows(named=True):
        console.print_line(statistics.cost_sentence(effect, kind))
    if not effects.is_empty():
        shown = statistics.headed(statistics.EFFECTS, effects.to_dicts(), kind)
        console.print_table("What copies cost", *shown)
        keys = ["task", "metric"]
        conditions = impact.conditions.join(main.select(keys), on=keys, maintain_order="left")
        by_token = statistics.headed(statistics.CONDITIONS, conditions.to_dicts(), kind)
        console.print_table("By token, main metrics", *by_token)
    intrusion = impact.intrusion.to_dicts()
    if intrusion:
        title = f"Queries with a random document of {intrusion[0]['corpus']} in their top 10, by copies in it"
        console.print_table(title, *statistics.headed(statistics.INTRUSION, intrusion, kind))
    console.print_line(statistics.settings_line(impact.record.measured_with()))
    console.print_line(
        f"{impact.result.sequences:,} texts in {impact.result.seconds:,.0f} s; impact: {impact.path}"
    )
    for task in impact.result.tasks:
        if task.cut:
            cut = f"{task.cut} of {task.texts} texts were truncated so that the copies fit"
            console.inform(f"note: {task.name}: {cut}, the same in every condition")
    if intrusion and intrusion[0]["cut"]:
        cut = f"{intrusion[0]['cut']} of {intrusion[0]['documents']} documents"
        console.inform(f"note: intrusion: {cut} were truncated so that the copies fit")
    console.inform_notes(impact.record.notes)
