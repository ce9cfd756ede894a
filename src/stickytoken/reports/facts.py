"""The parts of a run's report: headline, key facts, notes, tables and figures.

The HTML, Markdown and JSON reports all show the values that this module returns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from stickytoken.audits import Audit, wording as auditing
from stickytoken.detection.run import NextStep
from stickytoken.explanation.files import Finding, StoredExplanation
from stickytoken.methods import Column, Distribution, Fact, Scatter, wording
from stickytoken.repairs.records import RepairRecord, token_rows
from stickytoken.reports.cards import MOST_CARDS
from stickytoken.reports.content import RunContent
from stickytoken.reports.figures import DataTable, ReportFigure, repair as repair_figures, run as run_figures
from stickytoken.reports.figures.explanation import explanation_figures
from stickytoken.reports.templating import number, plain
from stickytoken.scanning import wording as scan_wording
from stickytoken.words import sentence

# Approximate number of unflagged tokens to list, as on the command line.
STRONGEST = 8
# Maximum numbers of repairs and scans in a report. If there are more, the latest are shown. The limit for
# scans also applies to audits.
MOST_REPAIRS = 2
MOST_SCANS = 3
# Maximum number of explained tokens whose figures are shown. More figures would make the page too large for
# a phone.
_DRAWN_EXPLANATIONS = 4
# Maximum numbers of documents shown for each scan and audit, of sources for each scan, and of words named for
# each document.
_MOST_DOCUMENTS = 20
_MOST_SOURCES = 20
_MOST_WORDS = 3
# What a report says about the verification of a repair, keyed by `RepairRecord.verified`.
_STATES = {True: "verified", False: "NOT VERIFIED", None: "not verified: the verification was switched off"}


def key_facts(content: RunContent) -> list[Fact]:
    """Return the numbers at the top of a report, each with its meaning."""
    examined = len(content.tokens)
    available = content.run.available
    scope = f"{examined:,} tokens examined ({available:,} can appear in text)"
    if examined == available:
        scope = f"all {available:,} tokens that can appear in text"
    count = Fact(f"{len(content.sticky):,}", f"sticky, of {scope}")
    return [count, *content.run.description.key_facts]


@dataclass(frozen=True)
class ShownTable:
    """A titled table of tokens."""

    title: str
    table: DataTable


def strongest(content: RunContent) -> ShownTable | None:
    """Return the strongest unflagged tokens as the command line shows them; None if there are none.

    Empty columns are left out.
    """
    run = content.run
    rows = run.strongest(STRONGEST)
    if rows.is_empty():
        return None
    if run.is_profile:
        columns = list(wording.RESULT_COLUMNS)
        rows = wording.result_table(run.settings, rows, run.most_documents)
    else:
        columns = [Column("token", "token"), *run.listed(rows), Column("verdict", "verdict")]
    shown_columns = []
    for column in columns:
        texts = rows[column.key].drop_nulls().cast(pl.String)
        has_text = (texts != "").any()
        if has_text:
            shown_columns.append(column)
    return ShownTable(run.description.strongest_title, make_data_table(rows, shown_columns))


def notes(content: RunContent) -> list[str]:
    """Return the notes of a report: one sentence for each caveat."""
    lines = []
    examined = len(content.tokens)
    available = content.run.available
    if examined < available:
        lines.append(
            f"only {examined:,} of {available:,} available tokens were examined: the others may be sticky too"
        )
    lines += content.run.description.notes
    lines += content.missing
    for count, most_shown, noun in (
        (len(content.scans), MOST_SCANS, "scans"),
        (len(content.audits), MOST_SCANS, "audits"),
    ):
        if count > most_shown:
            lines.append(f"only the latest {most_shown} of {count} {noun} in the run folder are shown")
    for record in content.repairs[:MOST_REPAIRS]:
        if record.verification is None:
            continue
        for check in record.verification.checks:
            if not check.passed:
                lines.append(f"repair {record.identity[:12]}: {check.name} FAILED: {check.finding}")
    if len(content.repairs) > MOST_REPAIRS:
        lines.append(f"only the latest {MOST_REPAIRS} of {len(content.repairs)} repairs are shown")
    return lines


def run_details(content: RunContent) -> dict[str, dict[str, Any]]:
    """Return what was computed and how.

    Returns:
        Groups such as ``model`` and ``settings``, keyed by title. Each group maps names to values.
    """
    run = content.run
    record = run.record
    model = record.model.model_dump()
    loading = model.get("loading")
    if loading:  # show only the options that were set
        model["loading"] = {name: value for name, value in loading.items() if value not in (None, "", False)}
    encoder = record.identity_parts.get("encoder")
    model |= encoder if isinstance(encoder, dict) else {}
    queries = record.identity_parts.get("queries")
    if queries is not None:
        model["prompt of queries"] = queries["prompt"]
    groups: dict[str, dict[str, Any]] = {
        "model": model,
        "corpus": record.corpus.model_dump(),
        "result": run.result.model_dump(),
        "settings": dict(record.settings),
        "plan": run.description.plan_facts,
        "vocabulary": dict(Counter(run.vocabulary["category"]).most_common()),
        "versions": dict(record.versions),
        "hardware": dict(record.hardware),
        "run": {
            "folder": str(run.path),
            "identity": record.identity,
            "started": record.started,
            "schema version": record.schema_version,
            "method": record.method,
        },
    }
    for repair in content.repairs[:MOST_REPAIRS]:
        groups[f"repair {repair.identity[:12]}"] = {
            "state": _STATES[repair.verified],
            "strategy": repair.strategy,
            "tokens": len(repair.tokens),
            **_list_repair_checks(repair),
            "seconds": repair.seconds,
            "started": repair.started,
        }
    return {title: values for title, values in groups.items() if values}  # without empty groups


def _list_repair_checks(record: RepairRecord) -> dict[str, str]:
    checks = [] if record.verification is None else record.verification.checks
    return {check.name: check.finding if check.passed else f"FAILED: {check.finding}" for check in checks}


def columns(content: RunContent) -> tuple[Column, ...]:
    """Return the columns of the flagged-token table."""
    return (
        Column("token", "token"),
        Column("verdict", "verdict"),
        *content.run.method.TABLE.reported,
        Column("entry", "entry"),
        Column("script", "script"),
        Column("token_id", "id"),
    )


def report_figures(content: RunContent) -> list[ReportFigure]:
    """Return the figures of a report, without explanations."""
    descriptions = content.run.description.figures
    distributions = [described for described in descriptions if isinstance(described, Distribution)]
    scatter_plots = [described for described in descriptions if isinstance(described, Scatter)]
    figures = [run_figures.distribution(content.tokens, described) for described in distributions]
    figures += [run_figures.scatter(content.tokens, described) for described in scatter_plots]
    # If all sticky tokens have cards, the cards say more about them than the figure of their composition.
    if len(content.sticky) > MOST_CARDS:
        figures.append(run_figures.composition(content.tokens))
    for number_in_report, record in enumerate(content.repairs[:MOST_REPAIRS], start=1):
        figures.append(_make_distinct(_draw_repair(record), number_in_report))
    return figures


def _make_distinct(figure: ReportFigure, number_in_report: int) -> ReportFigure:
    """Number the figures of repairs from the second on, because all have the same name."""
    if number_in_report == 1:
        return figure  # most runs have a single repair, which needs no number
    return replace(
        figure, name=f"{figure.name}-{number_in_report}", title=f"{figure.title} ({number_in_report})"
    )


def _draw_repair(record: RepairRecord) -> ReportFigure:
    state = sentence(_STATES[record.verified])
    findings = " ".join(sentence(finding) for finding in _list_repair_checks(record).values())
    return repair_figures.repaired_tokens(token_rows(record), state, findings)


@dataclass(frozen=True)
class ExplainedToken:
    """The explanation of a token, formatted for a report.

    Attributes:
        token_id: Id of the token.
        token: The token, as the report shows it.
        run_verdict: The run's verdict on the token; None if the run did not judge the token.
        verdict: Sentences with the conclusion of the explanation.
        findings: One line for each measure outside the benign interval.
        basis: A sentence that says what was compared with what.
        notes: Remarks on the explanation, one sentence each.
        figures: Figures of the explanation; empty for all but the first few explained tokens.
    """

    token_id: int
    token: str
    run_verdict: str | None
    verdict: str
    findings: list[str]
    basis: str
    notes: list[str]
    figures: list[ReportFigure]


def explained_tokens(content: RunContent) -> list[ExplainedToken]:
    """Return the explained tokens: flagged tokens first, worst first, then unflagged tokens by token id."""
    rank_by_id = {token_id: rank for rank, token_id in enumerate(content.sticky["token_id"])}

    def rank_and_id(explanation: StoredExplanation) -> tuple[int, int]:
        token_id = explanation.token.token_id
        rank_after_flagged = len(rank_by_id)
        return rank_by_id.get(token_id, rank_after_flagged), token_id

    tokens = []
    for index, explanation in enumerate(sorted(content.explanations, key=rank_and_id)):
        token = explanation.token
        is_drawn = index < _DRAWN_EXPLANATIONS
        tokens.append(
            ExplainedToken(
                token_id=token.token_id,
                token=token.token,
                run_verdict=token.run_verdict,
                verdict=token.verdict,
                findings=[_describe_finding(finding) for finding in token.findings],
                basis=_describe_basis(explanation),
                notes=list(explanation.record.notes),
                figures=explanation_figures(explanation) if is_drawn else [],
            )
        )
    return tokens


def _describe_finding(finding: Finding) -> str:
    line = f"{finding.called}: {number(finding.value, 3)}, benign {number(finding.benign_mean, 3)}"
    if finding.deviations is not None:
        line += f", {number(finding.deviations, 1)} SD"
    if finding.begins is not None:
        line += f", begins in layer {finding.begins}"
    return line


def _describe_basis(explanation: StoredExplanation) -> str:
    record = explanation.record
    copies = plain(record.settings.get("copies"))
    placement = plain(record.settings.get("placement"))
    which_category = "" if explanation.token.same_category else " of other categories"
    return (
        f"{copies} copies ({placement}) in {record.carriers} texts of {record.source}, compared with "
        f"{len(explanation.tables['benign'])} matched benign tokens{which_category}."
    )


@dataclass(frozen=True)
class ShownDocument:
    """A document with findings, formatted for a report."""

    id: str
    place: str | None  # file and line of the document; None if it did not come from a file
    found: str  # a phrase that states `words` and `share`
    words: list[tuple[str, int]]  # the first few words that were found, each with its number of copies
    has_more_words: bool  # whether more words were found than `words` contains
    share: str  # percentage of the text that all words found take up
    # Consecutive parts of the excerpt, each with a flag that says whether the part is a finding.
    pieces: list[tuple[str, bool]]


@dataclass(frozen=True)
class ShownScan:
    """A scan of documents, formatted for a report."""

    name: str  # the documents as the user named them
    headline: str
    sources: DataTable  # for each source, how many documents it has, and how many have findings
    documents: list[ShownDocument]  # the worst documents, worst first
    more: int  # number of documents with findings that are not shown
    skipped: int  # number of records without readable text


@dataclass(frozen=True)
class ShownCopies:
    """A document with copies, formatted for the report or the page of an audit."""

    id: str
    found: str  # the copies, and what they are
    effect: str  # what the copies change in search results
    pieces: list[tuple[str, bool]]  # as in `ShownDocument`


@dataclass(frozen=True)
class ShownAudit:
    """An audit of search results, formatted for the report of its run and for its own page."""

    name: str  # the documents as the user named them
    answer: auditing.Answer
    conclusions: list[str]  # sentences on tokens and documents
    token_sentences: list[str]  # the conclusions on tokens that are not in the answer, without the rule
    rule: str
    worst: DataTable  # the sticky tokens; if there are none, the tokens with the largest push
    tokens: DataTable  # all measured tokens
    document_sentences: list[str]
    documents: list[ShownCopies]  # the documents whose copies change search results most
    more: int  # number of documents with copies that are not shown
    done: str  # two sentences that say how the numbers were measured
    basis: str  # a paragraph that says in full how the numbers were measured
    steps: list[NextStep]
    limits: list[str]


# Maximum number of sticky tokens in the first table of an audit, and of benign tokens if no token is sticky.
_MOST_STICKY = 10
_MOST_BENIGN = 3


def show_audits(content: RunContent) -> list[ShownAudit]:
    """Return the latest audits of a run, at most `MOST_SCANS`."""
    return [show_audit(audit) for audit in content.audits[:MOST_SCANS]]  # latest first


def show_audit(audit: Audit) -> ShownAudit:
    """Return an audit, formatted for the report of its run and for its own page."""
    answer = auditing.answer(audit)
    *token_sentences, rule = auditing.token_conclusions(audit)  # the last sentence states the rule
    token_rows = auditing.token_rows(audit)
    worst = token_rows.filter(verdict="sticky").head(_MOST_STICKY)
    if worst.is_empty():  # show the tokens with the largest push instead
        worst = token_rows.sort("push", "token_id", descending=[True, False]).head(_MOST_BENIGN)
    shown_documents = audit.documents.head(_MOST_DOCUMENTS)
    return ShownAudit(
        name=audit.record.index.name,
        answer=answer,
        conclusions=auditing.conclusions(audit),
        token_sentences=[said for said in token_sentences if said != answer.sentence],
        rule=rule,
        worst=_make_table_of_worst(worst),
        tokens=make_data_table(token_rows, auditing.TOKEN_COLUMNS),
        document_sentences=auditing.document_conclusions(audit, names_documents=False),
        documents=[_show_copies(row) for row in shown_documents.iter_rows(named=True)],
        more=len(audit.documents) - len(shown_documents),
        done=auditing.done(audit),
        basis=auditing.basis(audit),
        steps=auditing.next_steps(audit),
        limits=auditing.limits(audit),
    )


def _make_table_of_worst(token_rows: pl.DataFrame) -> DataTable:
    """Return a table that fits on a phone: push and found share, each with its interval in brackets."""
    column_by_key = {column.key: column for column in auditing.TOKEN_COLUMNS}
    shown_columns = [column_by_key["push"], column_by_key["found"]]
    rows = []
    for row in token_rows.iter_rows(named=True):
        cells = [row["token"]]
        for column in shown_columns:
            value = row[column.key]
            interval = row[f"{column.key}_interval"]
            cells.append(None if value is None else f"{column.text(value)} ({interval})")
        rows.append(cells)
    titles = [f"{column.title} (interval)" for column in shown_columns]
    return DataTable(["token", *titles], rows)


def make_data_table(rows: pl.DataFrame, columns: Sequence[Column], missing: str | None = "") -> DataTable:
    """Return columns of a table as texts, with ``missing`` in place of null."""
    cells = []
    for row in rows.iter_rows(named=True):
        texts = [missing if row[column.key] is None else column.text(row[column.key]) for column in columns]
        cells.append(texts)
    return DataTable([column.title for column in columns], cells)


def _show_copies(document: dict[str, Any]) -> ShownCopies:
    # `found` has the copies as text, and `causes` why they count, such as repetition.
    suspected = ", only suspected" if document["suspected_only"] else ""
    return ShownCopies(
        id=document["id"],
        found=f"{document['found']} ({document['causes']}{suspected})",
        effect=auditing.effect(document),
        pieces=[(piece["text"], piece["found"]) for piece in document["excerpt"]],
    )


def show_scans(content: RunContent) -> list[ShownScan]:
    """Return the latest scans of a run, at most `MOST_SCANS`."""
    shown = []
    for scan in content.scans[:MOST_SCANS]:  # latest first
        worst = scan.worst.head(_MOST_DOCUMENTS)
        shown.append(
            ShownScan(
                name=scan.record.documents,
                headline=scan_wording.headline(scan),
                sources=DataTable(*scan_wording.source_table(scan, _MOST_SOURCES)),
                documents=[_show_document(row) for row in worst.iter_rows(named=True)],
                more=len(scan.documents) - len(worst),
                skipped=scan.result.skipped,
            )
        )
    return shown


def _show_document(row: dict[str, Any]) -> ShownDocument:
    """Return the document in a row of documents.parquet, formatted for a report."""
    words = [(word["text"], word["copies"]) for word in row["words"][:_MOST_WORDS]]
    has_more_words = len(row["words"]) > _MOST_WORDS
    share = f"{row['share']:.0%}"
    parts = [f"{text} \N{MULTIPLICATION SIGN} {copies}" for text, copies in words]
    if has_more_words:
        parts.append("\N{HORIZONTAL ELLIPSIS}")
    place = row["path"]
    if place is not None and row["line"] is not None:
        place = f"{place}, line {row['line']}"
    return ShownDocument(
        id=row["id"],
        place=place,
        found=f"{', '.join(parts)}; {share} of the text",
        words=words,
        has_more_words=has_more_words,
        share=share,
        pieces=[(piece["text"], piece["found"]) for piece in row["excerpt"]],
    )
