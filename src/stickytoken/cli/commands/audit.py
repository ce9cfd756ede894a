"""stickytoken audit: which tokens hide or push documents, and which documents have copies."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from stickytoken.cli import _options as opt, console
from stickytoken.cli._command import command
from stickytoken.errors import MissingExtraError
from stickytoken.settings.audit import AuditSettings
from stickytoken.settings.reading import Columns
from stickytoken.words import counted

if TYPE_CHECKING:
    import polars as pl

    from stickytoken.audits import Audit


@command(
    settings=(
        "route",
        "revision",
        "prompt",
        "token_prepending",
        "truncate_dim",
        "layer",
        "dtype",
        "insertion",
    )
)
def audit(
    source: opt.Source,
    *,
    documents: opt.TextsOption[str],
    queries: opt.TextsOption[str | None] = None,
    vectors: opt.TextsOption[Path | None] = None,
    allow: opt.AllowedWords = None,
    known: opt.KnownDocuments = None,
    columns: Columns,
    source_column: Annotated[str | None, opt.setting()] = None,
    runs: Annotated[Path | None, opt.setting()] = None,
    model: opt.RunsModel = None,
    auditing: AuditSettings,
    loading: opt.AnyModelOptions,
    computing: opt.EngineOptions,
    out: opt.OutputOption[Path | None] = None,
    limit: opt.ListLimit[int] = 10,
    output_format: opt.OutputFormat = opt.Format.TABLE,
) -> None:
    """Find the tokens whose copies hide or push your documents, and the documents that have copies already.

    Run the same command again to continue an interrupted audit.

    Example: stickytoken audit all-MiniLM-L6-v2 --documents corpus.jsonl --queries queries.jsonl

    Args:
        documents: The documents of your index, as for scan.
        queries: Your queries, in the same formats as --documents. Default: the queries of a BEIR folder, or
            else the first sentences of some documents.
        vectors: Vectors of the documents that an index has already (npy, parquet, jsonl, csv, or FAISS), so
            that the documents need not be encoded.
        source_column: Column with the source of documents, by which losses and gains are also listed.
            Default: the column named source, or else topic.
        runs: For a model: the folder that contains its runs. Default: runs.
        out: Output folder. Default: audit-<identity> in the run folder, where report finds it.
        limit: Maximum number of rows to print per table.
    """
    from stickytoken import audits
    from stickytoken.audits.vectors import open_vectors

    run, encoder = opt.open_source(source, loading, model)
    stored_vectors = None if vectors is None else open_vectors(vectors)

    def measure(model_or_stand_in: Any, **options: Any) -> Audit:
        """Audit with the run that was named, or let the library look for the run of the model."""
        audited = model_or_stand_in if run is None else run
        model_of_run = None if run is None else model_or_stand_in
        return audits.audit(
            audited,
            documents,
            queries=queries,
            column=columns,
            source_column=source_column,
            allow=allow,
            known=known,
            encoder=model_of_run,
            runs=runs,
            settings=auditing,
            **options,
        )

    def rehearse(stand_in: Any, folder: Path) -> Audit:
        """Measure with a stand-in for the encoder, which only counts texts, to estimate the cost."""
        # The vectors of the stand-in are artificial, so they must not be compared with the vectors of the
        # index.
        not_compared = None if stored_vectors is None else replace(stored_vectors, is_compared=False)
        return measure(stand_in, vectors=not_compared, out=folder)

    with opt.cost_announced(encoder, loading, rehearse) as progress:
        finished = measure(
            encoder, vectors=stored_vectors, out=out, engine=computing.choice, progress=progress
        )
    page = None
    try:
        page = _write_page(finished)
    finally:  # show what was measured even if the disk is full
        _show_audit(finished, page, limit, output_format)


def _write_page(audit: Audit) -> Path | None:
    try:
        from stickytoken.reports.page import write_audit_page  # raises an error without its extra
    except MissingExtraError as error:
        console.inform(f"{error}; then, the same command writes a page for whoever decides")
        return None
    return write_audit_page(audit)


def _show_audit(audit: Audit, page: Path | None, limit: int, output_format: opt.Format) -> None:
    """Print a finished audit. ``page`` is the page that shows it; None if it could not be written."""
    if output_format is opt.Format.JSON:
        console.print_json(audit.summary() | {"page": None if page is None else str(page)})
        return
    from stickytoken.audits import wording

    index = audit.record.index
    console.print_line(wording.title(audit))
    console.print_line("")
    console.print_line(wording.TOKEN_QUESTION)
    for sentence in wording.token_conclusions(audit):
        console.print_line(sentence)
    token_rows = wording.token_rows(audit)
    shown = _describe_limit(limit, token_rows)
    title = f"Documents with copies, in results of queries that they don't answer ({shown})"
    console.print_columns(title, wording.TOKEN_COLUMNS, token_rows.head(limit))
    console.print_line(wording.DOCUMENT_QUESTION)
    for sentence in wording.document_conclusions(audit):
        console.print_line(sentence)
    if audit.documents.is_empty():
        console.print_line("")  # a table would end with it
    else:
        title = f"Documents with copies ({_describe_limit(limit, audit.documents)})"
        console.print_columns(title, wording.DOCUMENT_COLUMNS, audit.documents.head(limit))
    console.print_line("What to do")
    for step in wording.next_steps(audit):
        console.print_line(f"- {step.purpose}:")
        console.print_line(f"  {step.command}")
    console.print_line("")
    console.print_line(wording.setup(audit))
    if index.skipped:
        records = counted(index.skipped, "record was skipped", "records were skipped")
        console.inform(f"note: {records}, the first of them {index.skipped_first}")
    console.inform(f"audit: {audit.path}")
    if page is not None:
        console.inform(f"page for whoever decides: {page}")


def _describe_limit(limit: int, rows: pl.DataFrame) -> str:
    if len(rows) <= limit:
        return f"all {len(rows):,}"
    return f"{limit} of {len(rows):,}, --limit shows more"
