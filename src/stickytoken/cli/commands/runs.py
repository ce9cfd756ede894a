"""The commands tokens, show, published, card and report, which do not load a model."""

from __future__ import annotations

import webbrowser
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import stickytoken
from stickytoken.cli import _options as opt, console
from stickytoken.cli._command import command
from stickytoken.errors import InputError
from stickytoken.methods import Column
from stickytoken.validation import file_path

if TYPE_CHECKING:
    import polars as pl

    from stickytoken.vocabulary import Vocabulary

TableFormat = StrEnum("TableFormat", "TABLE JSON CSV")

NAMED = (Column("token_id", "id"), Column("token", "token"))


@command()
def tokens(
    model: opt.Model,
    category: opt.InCategory = None,
    limit: opt.ListLimit[int] = 50,
    *,
    revision: opt.Revision = None,
    route: Annotated[str | None, opt.model_option()] = None,
    trust_remote_code: opt.TrustRemoteCode = False,
    output_format: opt.OutputFormat = opt.Format.TABLE,
) -> None:
    """Show which vocabulary entries of a model, or of tiktoken:NAME, can occur in text.

    Example: stickytoken tokens all-MiniLM-L6-v2 --category UNDECODEABLE

    Args:
        limit: Maximum number of tokens to list.
        route: Route whose tokenizer is read, such as query, for an asymmetric model. Default: the model's
            default route.
    """
    from stickytoken.encoders.endpoint.vocabulary import load_vocabulary
    from stickytoken.loading import require_embedding_model
    from stickytoken.vocabulary import categorize

    opt.silence_transformers()
    with console.status(f"reading the tokenizer of {model}"), opt.garbage_collector_paused():
        require_embedding_model(model, revision)
        tokenizer = load_vocabulary(
            model, revision=revision, trust_remote_code=trust_remote_code, route=route
        )
        vocabulary = categorize(tokenizer)
    # Without --category, only the counts of all categories are shown.
    listed = vocabulary.frame().filter(category=category) if category else None
    if output_format is opt.Format.JSON:
        document = {
            "model": model,
            "vocab_size": len(vocabulary),
            "available": len(vocabulary.available),
            "categories": vocabulary.counts(),
        }
        if listed is not None:
            document["entries"] = listed.head(limit).to_dicts()
        console.print_json(document)
        return
    _print_vocabulary(f"Vocabulary of {model}", vocabulary)
    if listed is not None:
        title = f"First {min(limit, len(listed)):,} of {len(listed):,} {category} tokens"
        console.print_columns(title, (*NAMED, Column("decoded", "decoded")), listed.head(limit))


def _print_vocabulary(title: str, vocabulary: Vocabulary) -> None:
    size = len(vocabulary)
    rows = []
    for category, count in vocabulary.counts().items():
        share = count / max(1, size)
        rows.append((category, count, f"{share:.1%}", opt.CATEGORIES[category]))
    console.print_table(title, ("category", "tokens", "share", "meaning"), rows)
    console.print_line(f"{len(vocabulary.available):,} of {size:,} tokens can appear in text.")


@command()
def show(
    run: opt.RunFolder,
    token: opt.TextsOption[str | None] = None,
    verdict: opt.TextsOption[str | None] = None,
    category: opt.InCategory = None,
    contains: opt.TextsOption[str | None] = None,
    validated: Annotated[bool, opt.texts_option("--validated")] = False,
    sort: opt.OutputOption[str | None] = None,
    limit: opt.ListLimit[int | None] = None,
    output_format: opt.OutputFormat = opt.Format.TABLE,
) -> None:
    """Show the result of a run, or list some of its tokens, largest erased share first.

    Example: stickytoken show runs/all-MiniLM-L6-v2-profile-0123456789ab --verdict benign --limit 20

    Args:
        token: Show the token with this vocabulary string or text.
        verdict: List tokens with this verdict, such as sticky or benign.
        contains: List tokens whose text contains this string.
        validated: List only tokens with a verdict, for a method that judges only candidates.
        sort: Column to sort by, largest value first. Default: the column that the method ranks tokens by.
        limit: Maximum number of tokens to list. Default: 50.
    """
    import polars as pl

    if contains == "":
        raise InputError("--contains is '': pass a part of a token's text, or leave --contains out")
    opened = stickytoken.open_run(run)
    lists_tokens = any((token is not None, verdict, category, contains, validated, sort, limit))
    if not lists_tokens:
        show_run(opened, output_format)
        return
    rows = _sort_rows(opened, verdict, validated, sort)
    if token is not None:
        rows = rows.filter(pl.col("token_id").is_in(opened.token(token)["token_id"].to_list()))
    if category:
        rows = rows.filter(category=category)
    if contains:
        rows = rows.filter(pl.col("decoded").str.contains(contains, literal=True))
    listed = rows.head(limit or 50)
    if output_format is opt.Format.JSON:
        console.print_json(opened.summary() | {"tokens": listed.to_dicts()})
    elif rows.is_empty():
        console.print_line("no tokens match")
    else:
        print_rows(f"{len(listed)} of {len(rows)} tokens", opened, listed)


def _sort_rows(run: stickytoken.Run, verdict: str | None, validated: bool, sort: str | None) -> pl.DataFrame:
    """Return the tokens of a run in descending order of the column ``sort``, or of the usual column if None.

    Only tokens with this verdict are returned or, if ``validated`` is set, only tokens with any verdict.

    Raises:
        InputError: The method of the run has no such column or verdict, or `validated` is set although the
            method judges every token.
    """
    table = run.method.TABLE
    subject = f"the run in {run.path} used the method {run.record.method}"
    # The columns that the user sees come first, because the error lists the names in this order.
    listed_first = dict.fromkeys([*(column.key for column in table.listed), *run.tokens.columns])
    sortable = [name for name in listed_first if name != "token_id" and run.tokens[name].dtype.is_numeric()]
    if sort is not None and sort not in sortable:
        raise InputError(f"{subject}, which cannot be sorted by {sort!r}: sort by {', '.join(sortable)}")
    if validated and table.judges_every_token:
        raise InputError(f"{subject}, which judges every token: leave --validated out, or pass --verdict")
    if verdict is not None and verdict not in table.verdicts:
        verdicts = " or ".join(table.verdicts)
        raise InputError(f"{subject}, which gives no token the verdict {verdict!r}: choose {verdicts}")
    rows = run.tokens
    if verdict is not None:
        rows = rows.filter(verdict=verdict)
    elif validated:
        rows = rows.drop_nulls("verdict")
    return rows.sort(sort or table.ranked_by.key, "token_id", descending=[True, False], nulls_last=True)


# Maximum number of sticky tokens to list. If a run examined at most this many tokens, all of them are listed.
_FEW = 20
# Approximate number of unflagged tokens to list.
_STRONGEST = 8


def print_rows(title: str, run: stickytoken.Run, rows: pl.DataFrame) -> None:
    """Print a table of tokens, with a category column only if a token has a category other than OK."""
    has_other_category = not rows.is_empty() and not (rows["category"] == "OK").all()
    category = [Column("category", "category")] if has_other_category else []
    if not run.method.TABLE.judges_every_token:
        import polars as pl

        verdict = pl.col("verdict").cast(pl.String).fill_null("not validated")
        rows = rows.with_columns(verdict=verdict)
    console.print_columns(title, (*NAMED, *category, *run.listed(rows), Column("verdict", "verdict")), rows)


def show_run(run: stickytoken.Run, output_format: opt.Format) -> None:
    """Print the result of a run: its headline, harm, strongest tokens, rule and next step."""
    if output_format is opt.Format.JSON:
        console.print_json(run.summary())
        return
    from stickytoken.detection.run import next_steps, worst_first
    from stickytoken.published import mention_of_paper
    from stickytoken.repairs.records import last_verified, repairs_in

    console.print_line(f"{run.model_title}: {run.description.headline}")
    worst_harm = run.worst_harm()
    if worst_harm is not None:
        console.print_line(f"{worst_harm}.")
    console.print_line("")
    covers_whole_vocabulary = len(run.tokens) >= run.available
    if len(run.tokens) <= _FEW and not covers_whole_vocabulary:
        # Some may have been named or drawn, and special tokens are measured beside them.
        _print_tokens("Measured tokens", run, worst_first(run.tokens))
    else:
        sticky = run.sticky
        if not sticky.is_empty():
            _print_tokens("Sticky tokens", run, sticky.head(_FEW))
        if len(sticky) > _FEW:
            listing = f"stickytoken show {quote(str(run.path))} --verdict sticky --limit {len(sticky)}"
            console.print_line(f"and {len(sticky) - _FEW:,} more: {listing}")
        _print_tokens(run.description.strongest_title, run, run.strongest(_STRONGEST))
    for line in run.description.lines:
        console.print_line(line)
    mention = mention_of_paper(run)
    if mention is not None:
        console.print_line(mention)
    console.print_line(_effort_line(run))
    console.inform_notes(run.description.notes)
    step = next_steps(run, last_verified(repairs_in(run.path)[0]))[0]
    console.inform(f"Next, to {step.purpose}: {step.command}")


def _print_tokens(title: str, run: stickytoken.Run, rows: pl.DataFrame) -> None:
    from stickytoken.methods import wording

    if not run.is_profile:
        print_rows(title, run, rows)
    elif not rows.is_empty():
        shown_rows = wording.result_table(run.settings, rows, run.most_documents)
        console.print_columns(title, wording.RESULT_COLUMNS, shown_rows)


def _effort_line(run: stickytoken.Run) -> str:
    text_count = run.result.sequences
    texts_per_token = text_count / max(1, len(run.tokens))
    time_taken = console.minutes(run.result.seconds)
    return f"{text_count:,} texts, {texts_per_token:.1f} per token, {time_taken}. Run folder: {run.path}"


# Columns of two tables: the first lists all models in the paper, the second lists the tokens of one model.
_MODELS = (
    Column("model", "model"),
    Column("parameters", "parameters"),
    Column("vocabulary", "vocabulary"),
    Column("available", "available"),
    Column("candidates", "candidates"),
    Column("sticky", "sticky"),
    Column("mean_similarity", "u", 3),
    Column("score_threshold", "score of the last candidate", 1),
    Column("examples", "examples"),
    Column("validation_pairs", "pairs"),
    Column("seed", "seed"),
    Column("corpus", "corpus"),
    Column("differs", "differs from the published settings"),
)
_TOKENS = (
    *NAMED,
    Column("sticky_score", "score", 1),
    Column("validation_rate", "cosine rate", 3),
    Column("erased", "run: erased", 2),
    Column("erased_low", "low", 2),
    Column("erased_high", "high", 2),
    Column("push", "run: push", 1, "×"),
    Column("published", "published"),
    Column("run_score", "run: score", 1),
    Column("run_score_at_most", "at most", 1),
    Column("run_rate", "run: rate", 3),
    Column("run_candidate", "candidate"),
    Column("verdict", "verdict"),
)


@command()
def published(
    model: opt.Argument[str | None] = None,
    run: opt.TextsOption[Path | None] = None,
    add: opt.TextsOption[list[Path] | None] = None,
    output_format: opt.FormatChoice[TableFormat] = TableFormat.TABLE,
) -> None:
    """Look up the published results of forty models. Needs no model and no network.

    Example: stickytoken published --run runs/all-MiniLM-L6-v2-std-0123456789ab

    Args:
        model: A model in the paper. Default: the model of --run, or all forty models.
        run: Run folder of the same model, to compare with the published results.
        add: Run folder of the method std, to add to the table of models. Repeatable.
        output_format: Print tables, one JSON document, or CSV.
    """
    from stickytoken import published as paper

    opened = None if run is None else stickytoken.open_run(run)
    if model is None and opened is not None:
        model = paper.model_of_run(opened)
    facts: Mapping[str, Any] | None = None  # the published facts about a single model
    comparison: list[str] = []  # sentences on a run and the published results
    if add and (model is not None or run is not None):
        raise InputError("--add adds runs to the table of all models: leave out the model and --run")
    if model is not None:
        facts = paper.published_model(model)
    if model is None:
        listed = paper.published_models()
        if add:
            listed = paper.with_runs([stickytoken.open_run(folder) for folder in add])
    elif opened is None:
        listed = paper.published_tokens(model)
    else:
        beside = paper.beside_run(opened, model)
        listed = beside.tokens
        comparison = beside.in_words()
    if output_format is TableFormat.CSV:
        console.print_csv(listed)
        return
    if output_format is TableFormat.JSON:
        _print_published_json(facts, listed, comparison)
        return
    if facts is None:
        columns = [column for column in _MODELS if column.key in listed.columns]
        console.print_columns("Published results, in the order of the paper", columns, listed)
    else:
        _print_published_tokens(facts, listed)
    for line in (*comparison, paper.COMPARABLE, f"source: {paper.SOURCE}"):
        console.print_line(line)


def _print_published_json(
    facts: Mapping[str, Any] | None, listed: pl.DataFrame, comparison: list[str]
) -> None:
    """Print the table ``listed`` as JSON: tokens of the model that ``facts`` describe, or else all models."""
    from stickytoken import published as paper

    document: dict[str, Any] = {"models": listed.to_dicts()}
    if facts is not None:
        document = {**facts, "tokens": listed.to_dicts(), "beside_run": comparison}
    console.print_json(document | {"source": paper.SOURCE, "comparable": paper.COMPARABLE})


def _print_published_tokens(facts: Mapping[str, Any], tokens: pl.DataFrame) -> None:
    noun = "token" if facts["sticky"] == 1 else "tokens"
    columns = [column for column in _TOKENS if column.key in tokens.columns]
    title = f"{facts['sticky']} published sticky {noun} of {facts['model']}"
    console.print_columns(title, columns, tokens)
    console.print_line(
        f"{facts['available']:,} of {facts['vocabulary']:,} entries available, "
        f"{facts['candidates']:,} candidates with a score of {facts['score_threshold']:.1f} or more; "
        f"mean similarity u = {facts['mean_similarity']:.4f}"
    )


CardFormat = StrEnum("CardFormat", "MD JSON")


@command()
def card(
    run: opt.RunFolder,
    model_card: opt.OutputOption[Path | None] = None,
    table: Annotated[bool, opt.output_option("--table")] = False,
    output_format: opt.FormatChoice[CardFormat] = CardFormat.MD,
) -> None:
    """Print the result of a run as a block for a model card, or insert the block into a model card.

    Example: stickytoken card runs/all-MiniLM-L6-v2-profile-0123456789ab --model-card README.md

    Args:
        model_card: Existing model card in Markdown to insert the block into.
        table: Print the row of the run in the table of measured models instead of the block.
        output_format: Print the block or row, or one JSON document.
    """
    from stickytoken.model_cards import card_block, table_row, write_block

    if table and model_card is not None:
        raise InputError("--table only prints: leave out --model-card")
    opened = stickytoken.open_run(run)
    block = table_row(opened) if table else card_block(opened)
    document: dict[str, Any] = {"run": str(opened.path), "block": block}
    if model_card is not None:
        changed = write_block(block, model_card)
        document |= {"model_card": str(model_card), "changed": changed}
        console.inform(f"{model_card}: {'written' if changed else 'unchanged'}")
    if output_format is CardFormat.JSON:
        console.print_json(document)
    elif model_card is None:  # else the block is in the model card
        console.print_document(f"{block}\n")


ReportFormat = StrEnum("ReportFormat", "HTML MD JSON")


@command()
def report(
    run: opt.RunFolder,
    output_format: opt.FormatChoice[ReportFormat | None] = None,
    out: opt.OutputOption[Path | None] = None,
    figures: opt.OutputOption[Path | None] = None,
    explanations: opt.TextsOption[Path | None] = None,
    open_it: Annotated[bool, opt.output_option("--open")] = False,
) -> None:
    """Write a report of a run as HTML, Markdown or JSON. Needs no model.

    Example: stickytoken report runs/all-MiniLM-L6-v2-profile-0123456789ab --open

    Args:
        output_format: html writes a file; md and json are printed unless --out names a file. Default: the
            format that the extension of --out names, or html.
        out: File to write. Default for html: report.html in the run folder.
        figures: Folder for the figures as PNG, SVG and PDF. Needs Chrome or Chromium.
        explanations: Output folder of `explain`. Default: the folder `explain` in the run folder.
        open_it: Open the HTML file in a browser.
    """
    from stickytoken.reports import REPORT_FILE, format_of

    format_name = format_of(out).value if output_format is None else output_format.value
    is_html = format_name == ReportFormat.HTML
    if open_it and not is_html:
        raise InputError(
            f"--open needs an HTML file, but the format is {format_name}: leave out --open or the format"
        )
    if is_html and out is None:
        out = file_path("the run", run) / REPORT_FILE
    with console.status("writing the report"):
        text = stickytoken.report(
            run, format=format_name, out=out, figures=figures, explanations=explanations
        )
    if out is None:
        console.print_document(text)
    else:
        console.print_line(f"report: {out}")
    if figures is not None:
        console.inform(f"figures: {figures}")
    if open_it and out is not None and not webbrowser.open(out.resolve().as_uri()):
        raise InputError(f"no browser could be started: open {out} yourself")
