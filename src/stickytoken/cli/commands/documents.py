"""stickytoken scan and clean: find copies of sticky tokens in documents, and take them out of text."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import asdict
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import stickytoken
from stickytoken.cli import _options as opt, console
from stickytoken.cli._command import command
from stickytoken.errors import InputError
from stickytoken.version import __version__

if TYPE_CHECKING:
    from stickytoken.scanning.scan import Scan


ScanFormat = StrEnum("ScanFormat", "TABLE JSON CSV SARIF")


@command("revision", "prompt", "token_prepending", "contrast")
def scan(
    run: opt.Argument[Path],
    documents: opt.Argument[str],
    *,
    column: opt.TextColumn = None,
    id_column: Annotated[str | None, opt.texts_option("--id")] = None,
    source_column: Annotated[str | None, opt.texts_option("--source")] = None,
    effect: Annotated[bool, opt.method_option("--effect")] = False,
    predict: Annotated[bool, opt.method_option("--predict")] = False,
    queries: opt.Method[str | None] = None,
    model: opt.RunsModel = None,
    loading: opt.AnyModelOptions,
    workers: Annotated[int | None, opt.setting(min=1)] = None,
    folder: Annotated[Path | None, opt.output_option("--scan-folder")] = None,
    out: opt.Output[Path | None] = None,
    output_format: opt.FormatChoice[ScanFormat | None] = None,
    limit: opt.ListLimit[int] = 20,
) -> None:
    """Find the documents with copies of sticky tokens, text of special tokens or runs of any word.

    Run the same command again to continue an interrupted scan.

    Example: stickytoken scan runs/all-MiniLM-L6-v2-profile-0123456789ab documents.jsonl --effect

    Args:
        run: Run folder of the model.
        documents: Your documents: a txt file with one per line, a csv, tsv, jsonl or parquet file, a folder,
            hub:REPOSITORY or hub:REPOSITORY@SPLIT, or - for stdin: lines, or JSON lines with --column.
        id_column: Column with the id. Default: found by name.
        source_column: Column with the source of a document. Default: source.
        effect: Measure what copies do: encode the documents with findings, with copies and without.
        predict: Predict what copies do from the run: encode the documents only as they are. Less exact.
        queries: Your own queries, in a file as for judge. Default: first words of clean documents.
        workers: Number of processes that search documents. Default: one per core.
        folder: Folder of the scan, where an interrupted one continues. Default: scan-<identity> in the run
            folder, where report finds it.
        out: File for the results instead of stdout (.json, .csv or .sarif), or a folder for the scan.
        output_format: Print a summary with the worst documents, one JSON document, or all documents with
            findings as CSV or SARIF. Default: by the ending of --out, else table.
        limit: Maximum number of documents to list in a table.
    """
    from stickytoken.measurement import require_writable, write_atomically
    from stickytoken.scanning import scan as scanning

    if effect and predict:
        raise typer.BadParameter("use one of --effect and --predict", param_hint="--predict")
    if queries is not None and not (effect or predict):
        raise typer.BadParameter("it needs --effect or --predict", param_hint="--queries")
    texts = None if queries is None else stickytoken.load_sentences(queries)
    if output_format is None:
        endings = {f".{each}": each for each in ScanFormat if each is not ScanFormat.TABLE}
        output_format = ScanFormat.TABLE if out is None else endings.get(out.suffix, ScanFormat.TABLE)
    if output_format is ScanFormat.TABLE and out is not None:
        if out.suffix or folder is not None:
            raise InputError(
                f"--out {str(out)!r} names no format: end it in .json, .csv or .sarif, or pass a folder"
            )
        folder, out = out, None
    opened = stickytoken.open_run(run)
    measured = partial(
        scanning.scan_documents,
        opened,
        documents,
        column=column,
        id_column=id_column,
        source_column=source_column,
        effect="measured" if effect else "predicted" if predict else None,
        queries=texts,
        workers=workers,
    )
    folder = folder or scanning.default_out(opened, documents, scanning.ScanOptions(**measured.keywords))
    require_writable(folder)
    if out is not None:
        require_writable(out.parent)
    encoder = opt.load_for(str(run), opened.record, loading, model) if effect or predict else None
    with opt.announced(encoder, loading, lambda stand_in, _: measured(encoder=stand_in)) as progress:
        found = measured(encoder=encoder, out=folder, progress=progress)
    if output_format is ScanFormat.TABLE:
        _print_scan(found, limit)
    elif out is None:
        console.print_document(_scan_document(found, output_format))
    else:
        write_atomically(out, _scan_document(found, output_format).encode())
        console.print_line(scanning.headline(found))
        console.inform(f"written: {out}")
    if folder.parent == opened.path:
        console.inform(f"for a report with this: stickytoken report {opened.path}")


def _scan_document(scan: Scan, output_format: ScanFormat) -> str:
    if output_format is ScanFormat.JSON:
        return console.as_json(scan.summary() | {"found_documents": scan.worst.to_dicts()})
    if output_format is ScanFormat.SARIF:
        from stickytoken.findings import sarif
        from stickytoken.scanning.scan import RULES, incomplete, scan_findings

        return console.as_json(sarif(scan_findings(scan), RULES, __version__, incomplete(scan)))
    import polars as pl

    lists = pl.col("words", "excerpt").list.eval(pl.element().struct.field("text")).list.join(" | ")
    table = scan.worst.with_columns(lists, pl.col("kinds").list.join(" "))
    texts = pl.col("id", "source", "path", "words", "excerpt")
    return table.with_columns(texts.map_elements(console.harmless, return_dtype=pl.String)).write_csv()


def _print_scan(scan: Scan, limit: int) -> None:
    from stickytoken.scanning import scan as scanning

    result, effect = scan.result, scan.result.effect
    console.print_line(scanning.headline(scan))
    if sources := [each for each in result.sources if each.found][:20]:
        width = 3 + (result.matter is not None)
        counts = [(each.source or "(none)", each.documents, each.found, each.matter) for each in sources]
        columns = ("source", "documents", "found", "matter")
        console.print_table("by source", columns[:width], [row[:width] for row in counts])
    if result.found:
        worst = scan.worst.head(limit)
        effects = ("effect", "moves_up", "severity") if worst["effect"].null_count() < len(worst) else ()
        rows = []
        for row in worst.iter_rows(named=True):
            found = [f"{each['text']} \N{MULTIPLICATION SIGN}{each['copies']}" for each in row["words"][:3]]
            marked = [f"[[{each['text']}]]" if each["found"] else each["text"] for each in row["excerpt"]]
            text = " ".join("".join(marked).split())
            measured = [row[name] for name in effects]
            rows.append([row["id"], ", ".join(found), row["copies"], row["share"], *measured, text])
        titles = ["document", "found", "copies", "share", *effects, "text"]
        digits = [None, None, None, 2, *((2, 2, None) if effects else ()), None]
        title = f"the worst {len(worst)} of {result.found:,}, findings in [[ ]]"
        console.print_table(title, titles, rows, digits)
    if effect is not None:
        console.print_line(scanning.basis(scan) or "")
        if effect.agreement is not None:
            compared = f"predicted and measured effects of {effect.compared} documents"
            console.inform(f"note: {compared} have a rank correlation of {effect.agreement:.2f}")
        if effect.nothing_left:
            unmeasured = f"{effect.nothing_left} documents have no effect"
            console.inform(f"note: {unmeasured}: nothing is left without the copies")
    where = "" if scan.path is None else f"; scan: {scan.path}"
    read = f"{result.documents:,} documents of {scan.record.documents}"
    console.print_line(f"{read} in {result.seconds:,.0f} s{where}")
    if result.skipped:
        console.inform(f"note: {scanning.skipped_records(result.skipped)}, without readable text:")
        for each in result.skipped_first[:5]:
            console.inform(f"  {each.place}: {each.reason}")


LineFormat = StrEnum("LineFormat", "TEXT JSON")


@command()
def clean(
    rules: Annotated[Path, typer.Argument(metavar="RUN|RULES")],
    file: Annotated[Path, typer.Argument(show_default=True)] = Path("-"),
    action: Annotated[list[str] | None, opt.texts_option(metavar="KIND=ACTION")] = None,
    diff: Annotated[bool, opt.output_option("--diff")] = False,
    rules_out: opt.Output[Path | None] = None,
    *,
    output_format: opt.FormatChoice[LineFormat] = LineFormat.TEXT,
) -> None:
    """Remove copies of the tokens that a run flags, special tokens and runs from lines of text.

    Every line is written back, and nothing else in it is touched. What was done is said on stderr.

    Example: stickytoken clean runs/minilm documents.txt --diff

    Args:
        rules: Run folder, or a file that --rules-out wrote.
        file: File of UTF-8 lines; - is standard input.
        action: What to do with flagged, special, run or interleaved findings: remove, replace, escape
            (special only), report or refuse. Repeatable. Default: remove, report for interleaved.
        diff: Print the changed lines only, before and after.
        rules_out: Write the cleaner as a small JSON file that needs no run, and read no lines unless FILE is
            given.
        output_format: Print the lines, or one JSON document of the removals.
    """
    from stickytoken.cleaning import LineTotals, clean_lines, counts_in_words, open_cleaner
    from stickytoken.cleaning.spans import actions_of

    if diff and output_format is LineFormat.JSON:
        raise typer.BadParameter("use one of --diff and --format json", param_hint="--diff")
    given = dict(_kind_and_action(value) for value in action or ())
    try:
        chosen = actions_of(given)
    except InputError as error:
        raise typer.BadParameter(str(error), param_hint="--action") from error
    read = open_cleaner(rules)
    actions = read.actions | {kind: each for kind, each in chosen.items() if kind in given}
    cleaner = stickytoken.Cleaner(read.rules, actions, replacement=read.replacement, source=read.source)
    if rules_out is not None:
        cleaner.save(rules_out)
        words, specials = len(cleaner.rules.words), len(cleaner.rules.specials)
        console.inform(f"{rules_out}: {words:,} words, {specials:,} special tokens")
        if file == Path("-"):
            return
    totals = LineTotals()
    with ExitStack() as stack:
        stream = sys.stdin.buffer
        if file != Path("-"):
            try:
                stream = stack.enter_context(file.open("rb"))
                stream.read(0)
            except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
                raise InputError(f"{file} cannot be read: {error.strerror}") from error
        lines = clean_lines(stream, cleaner, totals)
        if output_format is LineFormat.JSON:
            removals = [
                {"line": line.number, **asdict(part), "text": line.before[part.start : part.end]}
                for line in lines
                for part in line.cleaned.removals
            ]
            told: dict[str, Any] = {"lines": totals.lines, "changed": totals.changed}
            told |= {"removed": totals.removed, "reported": totals.reported}
            console.print_json(told | {"not_utf8": totals.undecoded, "removals": removals})
        else:
            for line in lines:
                if not diff:
                    sys.stdout.buffer.write(line.content)
                elif line.cleaned.text != line.before:
                    console.print_line(f"line {line.number}")
                    console.print_line(f"- {line.before}")
                    console.print_line(f"+ {line.cleaned.text}")
    said = counts_in_words(totals.removed, totals.reported)
    console.inform(f"{totals.changed:,} of {totals.lines:,} lines changed{f' ({said})' if said else ''}")
    if totals.first_undecoded is not None:
        number, byte = totals.first_undecoded
        named = "standard input" if file == Path("-") else str(file)
        undecoded = f"{totals.undecoded:,} of {totals.lines:,} lines of {named} are not UTF-8"
        console.inform(f"{undecoded}, first line {number:,} at byte {byte:,}; passed through unchanged")


def _kind_and_action(value: str) -> tuple[str, str]:
    kind, sign, action = value.partition("=")
    if not sign:
        raise typer.BadParameter(f"{value!r} is not of the form KIND=ACTION", param_hint="--action")
    return kind.strip(), action.strip()
