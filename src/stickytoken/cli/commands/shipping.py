"""The commands repair, check and demo, which repair a model, check a model, and serve a web app."""

from __future__ import annotations

import os
import re
import webbrowser
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

import stickytoken
from stickytoken.cli import _options as opt, console
from stickytoken.cli._command import command, is_typed, project_table
from stickytoken.cli.commands.runs import NAMED
from stickytoken.errors import InputError, StickyTokenError
from stickytoken.methods import Column
from stickytoken.methods.measures import Severity, severities_in_words
from stickytoken.settings.reading import Columns
from stickytoken.settings.repair import RepairSettings
from stickytoken.validation import as_json
from stickytoken.version import __version__

if TYPE_CHECKING:
    from stickytoken.findings import Finding, Rule
    from stickytoken.gate import Check

# Exit statuses of the repair and check commands.
NOT_VERIFIED = 3
CHECK_FAILED = 10
REPAIRED_NOTE = "the repaired model is finished"
"""Beginning of the note that an error carries if it comes after the repaired model has been written."""
# Columns of the repaired-token table.
_TOKENS = (
    *NAMED,
    Column("strategy", "strategy"),
    Column("erased_before", "erased before", 0, "%"),
    Column("erased_after", "after", 0, "%"),
    Column("push_before", "push before", 1, "×"),
    Column("push_after", "after", 1, "×"),
    Column("found_before", "found before", 0, "%"),
    Column("found_after", "after", 0, "%"),
    Column("verdict_after", "verdict"),
)


@command(settings=("revision", "route", "prompt", "token_prepending", "truncate_dim", "layer"))
def repair(
    run: opt.RunFolder,
    *,
    out: opt.OutputOption[Path],
    tokens: opt.RunsTokens = None,
    sentences: opt.TextsOption[str | None] = None,
    task: opt.TextsOption[str | None] = None,
    repairing: RepairSettings,
    affected: opt.TextsOption[Path | None] = None,
    columns: Columns,
    model: opt.RunsModel = None,
    loading: opt.ModelOptions,
    output_format: opt.OutputFormat = opt.Format.TABLE,
) -> None:
    """Write a copy of a model without its sticky tokens, and verify it. Exit status 3: not verified.

    Example: stickytoken repair runs/all-MiniLM-L6-v2-profile-0123456789ab --out repaired

    Args:
        out: Folder for the repaired model.
        sentences: Texts to verify on, as for detect. Default: texts of the run's corpus that the run did not
            use.
        task: Task to score before and after the repair: a task file, a BEIR folder, or the name of an MTEB
            task. Default: a packaged task.
        affected: Also list which documents in this txt, csv, tsv, jsonl or parquet file must be encoded
            again.
    """
    from stickytoken.repairs.records import repairs_in
    from stickytoken.repairs.result import find_affected_in, require_documents

    require_documents(affected, columns, out)
    opened = stickytoken.open_run(run)
    encoder = opt.load_later(str(run), loading, opened.record, model)
    with console.progress_bar() as progress:
        finished_repair = stickytoken.repair(
            opened,
            opt.parse_tokens_or_files(tokens),
            out=out,
            encoder=encoder,
            sentences=sentences,
            task=task,
            settings=repairing,
            progress=progress,
        )
    if output_format is opt.Format.TABLE:  # JSON is one document, with the affected documents
        _print_repair(finished_repair)
        console.inform_notes(finished_repair.record.notes)
    documents = None
    if affected is not None:
        try:
            documents = find_affected_in(affected, columns, finished_repair, encoder.load())
        except BaseException as error:  # Ctrl-C too
            error.add_note(f"{REPAIRED_NOTE}: {out}")
            raise
    if output_format is opt.Format.JSON:
        affected_json = None if documents is None else vars(documents)
        console.print_json(finished_repair.summary() | {"affected": affected_json})
    elif documents is not None:
        counts = f"{documents.count:,} of {documents.documents:,} documents"
        console.print_line(f"{counts} must be encoded again: {documents.file}")
    recorded_repairs, _ = repairs_in(opened.path)
    if finished_repair.record in recorded_repairs:  # else, the run folder could not be written
        console.inform(f"for a report with this: stickytoken report {quote(str(opened.path))}")
    if finished_repair.verified is False:  # None with --no-verify
        raise typer.Exit(NOT_VERIFIED)


def _print_repair(repair: stickytoken.Repair) -> None:
    record = repair.record
    console.print_columns(f"Repaired tokens of {record.model}", _TOKENS, repair.tokens)
    state = record.state
    if record.verification is None:
        state += " (--no-verify)"
    else:
        console.print_line("erased share: relative to an ordinary token; push: relative to no copies")
        for check_record in record.verification.checks:
            outcome = "passed" if check_record.passed else "FAILED"
            console.print_line(f"{outcome}  {check_record.name}: {check_record.finding}")
    console.print_line(f"{state}; repaired model: {repair.path}; {record.seconds:,.0f} s")


# Values of --fail-on: any sticky token, the lowest severity that counts, or no token.
_GRADES = ("sticky", *(severity.value for severity in Severity), "none")
# Values of --fail-on-documents, repeated here because --help must not load the package that defines them.
_CAUSES = ("flagged", "special", "repetition", "suspected")
_FAIL_ON_HELP = (
    "Lowest severity of a token that counts against the model. With sticky, every sticky token counts. "
    "With none, no token counts, so only findings in documents can make the check fail. "
    f"{severities_in_words()} Default: sticky; none with a rules file."
)
# Options that need a model, and those that need a run or a model. What pyproject.toml sets for them does not
# apply to a run or to a rules file.
_NEED_A_MODEL = ("revision", "folder")
_NEED_A_RUN = ("fail_on", "max_tokens", "baseline", *_NEED_A_MODEL)


CheckFormat = StrEnum("CheckFormat", "TABLE JSON JUNIT SARIF GITHUB")


@command()
def check(
    source: Annotated[str | None, typer.Argument(metavar="[MODEL|RUN|RULES]")] = None,
    *,
    context: typer.Context,
    revision: opt.Revision = None,
    folder: opt.TextsOption[Path | None] = None,
    fail_on: Annotated[
        str | None,
        opt.method_option(
            parser=opt.parser_of(_GRADES, "severity"),
            autocompletion=lambda: list(_GRADES),
            metavar="|".join(_GRADES),
            help=_FAIL_ON_HELP,
        ),
    ] = None,
    max_tokens: Annotated[int | None, opt.method_option("--max", min=0)] = None,
    baseline: opt.MethodOption[Path | None] = None,
    documents: opt.TextsOption[str | None] = None,
    columns: Columns,
    audit: opt.AuditFolder = None,
    allow: opt.AllowedWords = None,
    known: opt.KnownDocuments = None,
    fail_on_documents: Annotated[
        list[str] | None,
        opt.method_option(
            parser=opt.parser_of(_CAUSES, "cause"), autocompletion=lambda: list(_CAUSES), metavar="CAUSE"
        ),
    ] = None,
    output_format: opt.FormatChoice[CheckFormat] = CheckFormat.TABLE,
    out: opt.OutputOption[Path | None] = None,
) -> None:
    """Check whether a model can ship, and whether documents can be indexed.

    Exit status: 0 if passed, 10 if failed (do not ship), 1 if inconclusive or after an error.

    Example: stickytoken check all-MiniLM-L6-v2 --fail-on serious

    Example: stickytoken check rules.json --documents documents.jsonl

    Args:
        source: A model, named as for detect; a run folder; or, to check only documents, a file that clean
            --rules-out wrote. Default: the model in the table tool.stickytoken of pyproject.toml, which can
            also set fail-on, max, baseline, revision, documents, column and folder.
        folder: For a model: the folder of its runs, or a run folder. Default: runs.
        max_tokens: Number of sticky tokens that may count against the model before the check fails. Default:
            0.
        baseline: Run folder to compare with. A token that the baseline also measured counts against the model
            only if the interval of a measure lies entirely above the interval in the baseline.
        documents: Documents to search, as for scan. Documents with copies of a flagged token fail the check.
        fail_on_documents: Other findings that make a document fail the check: special, repetition or
            suspected. Repeatable.
        output_format: Print tables, one JSON document, JUnit XML, SARIF 2.1.0, or GitHub annotations. With
            --quiet, the tables list only the tokens and documents that fail the check.
        out: File for the JSON, JUnit or SARIF document. The tables are still printed.
    """
    from stickytoken.cleaning import names_rules_file
    from stickytoken.measurement.store import require_other_file

    if out is not None and output_format not in (CheckFormat.JSON, CheckFormat.JUNIT, CheckFormat.SARIF):
        raise typer.BadParameter("it needs --format json, junit or sarif", param_hint="--out")
    if source is None:
        missing = "pass a model, a run folder or a rules file, or name a model in the table tool.stickytoken"
        raise typer.BadParameter(f"{missing} of pyproject.toml", param_hint="[MODEL|RUN|RULES]")
    if out is not None:
        rules = source if names_rules_file(source) else None
        require_other_file(out, (documents, rules, allow, known))
    options = {
        "revision": revision,
        "folder": folder,
        "documents": documents,
        "column": columns,
        "allow": allow,
        "known": known,
        "fail_on": fail_on,
        "max_tokens": max_tokens,
        "baseline": baseline,
        "fail_on_documents": fail_on_documents or None,
    }
    # An option that was not passed has the default of the library.
    arguments: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    try:
        if is_typed(context, "source"):
            # pyproject.toml may set these options for the project's model. If the user names a rules file or
            # a run instead, they are an error only if the user typed them on the command line.
            for name in _find_inapplicable(source):
                if not is_typed(context, name):
                    arguments.pop(name, None)
        if audit is not None:
            if documents is None:
                raise typer.BadParameter("it needs --documents", param_hint="--audit")
            arguments["words"] = _sticky_words_for(audit, source)
        # A check may load transformers, which must not print its own messages.
        if console.current_verbosity() is not console.Verbosity.VERBOSE:
            os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        with console.progress_bar() as progress:
            finished_check = stickytoken.check(
                source, **arguments, place=_line_in_repository(), progress=progress
            )
    except StickyTokenError as error:
        # Write a document even if the check fails early: a build server could take its absence for a pass.
        reason = str(error)
        summary: dict[str, Any] = {"outcome": "inconclusive", "incomplete": [reason], "findings": []}
        _write_document(output_format, out, summary, incomplete=(reason,))
        raise
    _show_check(finished_check, output_format, out)
    if finished_check.outcome.value == "failed":
        raise typer.Exit(CHECK_FAILED)
    if finished_check.outcome.value != "passed":  # inconclusive
        raise typer.Exit(1)


def _find_inapplicable(source: str) -> tuple[str, ...]:
    from stickytoken.cleaning import names_rules_file
    from stickytoken.detection.run import is_run

    if names_rules_file(source):
        return _NEED_A_RUN
    return _NEED_A_MODEL if is_run(source) else ()


def _show_check(finished_check: Check, output_format: CheckFormat, out: Path | None) -> None:
    """Write the document for a build server, and print the tables unless the document is on stdout."""
    _write_document(
        output_format,
        out,
        finished_check.summary(),
        incomplete=finished_check.incomplete,
        found=finished_check.findings,
        rules=finished_check.rules,
        notes=finished_check.notes,
    )
    if output_format is CheckFormat.GITHUB:
        console.print_line(finished_check.headline())
    if output_format is CheckFormat.TABLE or out is not None:
        _print_check(finished_check)
    for reason in finished_check.incomplete:
        console.print_error(f"inconclusive: {reason}")
    console.inform_notes(finished_check.notes)


def _sticky_words_for(audit: Path, source: str) -> tuple[str, ...]:
    from stickytoken.cleaning import names_rules_file
    from stickytoken.detection.run import is_run
    from stickytoken.scanning.scan import read_rules

    run_identity = None  # stays None for a model, whose run is not known yet
    if names_rules_file(source) or is_run(source):
        run_identity = read_rules(source).run_identity  # of the run, or of the run that the rules are from
    # This call raises an InputError if the audit belongs to another run.
    return opt.words_of_audit(audit, run_identity)


def _line_in_repository() -> tuple[str, int] | None:
    """Return the project's pyproject.toml and the line that names the model; None outside a repository."""
    from stickytoken.findings import repository_path

    project = project_table(Path.cwd())
    if project is None:
        return None
    file, _ = project
    path = repository_path(file)
    return None if path is None else (path, line_of_model(file.read_text("utf-8")))


def line_of_model(project: str) -> int:
    """Return the line of a pyproject.toml that names the model, or that begins the table tool.stickytoken."""
    header = re.search(r"^\s*\[\s*tool\s*\.\s*stickytoken\s*\]", project, re.MULTILINE)
    if header is None:  # TOML can write the table in other ways, too
        return 1
    next_table = re.compile(r"^\s*\[", re.MULTILINE).search(project, header.end())
    end = len(project) if next_table is None else next_table.start()
    entry = re.compile(r"^\s*model\s*=", re.MULTILINE).search(project, header.end(), end)
    line_start = header if entry is None else entry
    return project.count("\n", 0, line_start.end()) + 1


def _write_document(
    output_format: CheckFormat,
    out: Path | None,
    summary: dict[str, Any],
    *,
    incomplete: Sequence[str],
    found: Sequence[Finding] = (),
    rules: Sequence[Rule] = (),
    notes: Sequence[str] = (),
) -> None:
    """Write the outcome of a check for a build server, unless the format is a table.

    ``summary`` is the JSON document. The documents of the other formats are made of the keyword arguments.
    """
    if output_format is CheckFormat.TABLE:
        return
    from stickytoken import findings
    from stickytoken.measurement.store import make_folder, write_atomically

    if output_format is CheckFormat.JUNIT:
        text = findings.junit(found, rules, "stickytoken check", incomplete, notes)
    elif output_format is CheckFormat.GITHUB:
        text = "".join(f"{line}\n" for line in findings.github_annotations(found, incomplete))
    elif output_format is CheckFormat.SARIF:
        text = as_json(findings.sarif(found, rules, __version__, incomplete, notes))
    else:
        text = as_json(summary)
    if out is None:
        console.print_document(text)
    else:
        make_folder(out.absolute().parent)
        write_atomically(out.absolute(), text.encode("utf-8"))
        console.inform(f"written: {out}")


# Maximum number of findings in a table.
_MAX_FINDINGS = 50


def _print_check(check: Check) -> None:
    """Print the outcome of a check, the documents with findings, and then the sticky tokens.

    With --quiet, print only the documents and tokens that fail the check.
    """
    is_quiet = console.current_verbosity() is console.Verbosity.QUIET
    findings = check.findings
    if is_quiet:
        findings = tuple(finding for finding in findings if finding.level.value == "error")
    tokens = [finding for finding in findings if finding.rule == "sticky-token"]
    documents = [finding for finding in findings if finding.rule != "sticky-token"]
    console.print_line(check.headline())
    if documents:
        _print_documents(check, documents, is_quiet=is_quiet)
    if tokens and check.fail_on.value != "none":
        _print_tokens(check, tokens, is_quiet=is_quiet)
    if is_quiet:
        return
    if check.fail_on.value == "none" and check.sticky is not None:
        noun = "sticky token" if check.sticky == 1 else "sticky tokens"
        console.print_line(f"{check.sticky or 'no'} {noun} in {check.model}, not counted (--fail-on none)")
    if check.run is not None:
        baseline = "" if check.baseline is None else f"; baseline: {check.baseline}"
        console.print_line(f"run: {check.run}{baseline}")
    elif check.rules_file is not None:
        model = "" if check.model is None else f", made for {check.model}"
        console.print_line(f"rules: {check.rules_file}{model}")


def _print_documents(check: Check, findings: Sequence[Finding], *, is_quiet: bool) -> None:
    """Print a table of the findings in documents, with a title that counts the documents."""
    from stickytoken.cleaning import document_counts
    from stickytoken.scanning.wording import cause_of

    rows = [(finding.level.value, cause_of(finding), finding.message) for finding in findings[:_MAX_FINDINGS]]
    listed = "" if len(rows) == len(findings) else f"; the first {len(rows):,}:"
    if is_quiet or check.documents is None:
        failing = "document fails" if len(findings) == 1 else "documents fail"
        title = f"{len(findings):,} {failing} the check{listed}"
    else:
        documents = check.documents
        # For example, ``count_in_words`` is "3 of 1,400 documents", and ``causes`` is " (flagged token: 2,
        # special token: 1)".
        count_in_words, causes = document_counts(documents.found, documents.searched, documents.kinds)
        verb = "has" if documents.found == 1 else "have"
        title = f"{count_in_words} {verb} findings{causes}{listed}"
    console.print_table(title, ("level", "cause", "finding"), rows)


def _print_tokens(check: Check, findings: Sequence[Finding], *, is_quiet: bool) -> None:
    """Print a table of sticky tokens; with --quiet, ``findings`` has only tokens that fail the check."""
    columns = [
        Column("level", "level"),
        Column("token_id", "id"),
        Column("token", "token"),
        Column("erased", "erased", 0, "%"),
        Column("push", "push", 1, "×"),
        Column("severity", "severity"),
        Column("reason", "reason"),
    ]
    if check.baseline is not None:
        columns.append(Column("change", "against the baseline"))
    records = [{"level": finding.level.value, **finding.properties} for finding in findings[:_MAX_FINDINGS]]
    noun = "sticky token" if len(findings) == 1 else "sticky tokens"
    predicate = ""
    if is_quiet:
        predicate = " fails the check" if len(findings) == 1 else " fail the check"
    listed = "" if len(records) == len(findings) else f"; the first {len(records):,}:"
    console.print_records(f"{len(findings):,} {noun}{predicate}{listed}", columns, records)


@command(settings=("route", "truncate_dim", "layer"))
def demo(
    run: Annotated[list[Path] | None, opt.texts_option("--run")] = None,
    folder: opt.TextsOption[Path] = Path("runs"),
    *,
    model: Annotated[str | None, opt.model_option()] = None,
    loading: opt.AnyModelOptions,
    port: opt.OutputOption[int] = 7860,
    share: Annotated[bool, opt.output_option("--share")] = False,
    open_it: Annotated[bool, opt.output_option("--open")] = False,
    output_format: opt.OutputFormat = opt.Format.TABLE,
) -> None:
    """Serve a local web app to try and browse tokens, and to see why texts are similar.

    Example: stickytoken demo --run runs/all-MiniLM-L6-v2-profile-0123456789ab --open

    Args:
        run: Run folder to open. Repeatable.
        folder: Also list the runs in this folder.
        model: Model to try tokens on. Default: the model of the first --run. Without --run, the default is
            all-MiniLM-L6-v2, or a tampered copy of it as an example if there are no runs.
        port: Port to serve on; 0 chooses a free port.
        share: Also serve on a public address, through Gradio.
        open_it: Open the page in a browser.
    """
    with opt.garbage_collector_paused():
        from stickytoken.demo import context as app
        from stickytoken.demo.server import make_app, require_free, serve

        # If the port is taken, raise the error before the slow work.
        require_free(port)
        library = app.find_runs(run or [], folder)
        # `TAMPERED` is the folder of a packaged run, whose model was tampered with so that a token became
        # sticky. The library lists packaged runs after the user's runs, so `TAMPERED` comes first only if the
        # user has no runs.
        shows_example = not (run or model) and library.paths[library.labels[0]] == app.TAMPERED
        # What to load: the model of a run, or the model that `source` names if `record` is None.
        record = None
        source = model or "all-MiniLM-L6-v2"
        if run:
            first_named = library.labels[0]
            record = library.records[first_named]
            source = str(library.paths[first_named])
        moved_to = model if run else None  # with --run, --model says where the model of the run is now
        name = opt.require_found(source, loading, record, moved_to)
        if shows_example:
            name = library.records[library.labels[0]].model.name
        startup = app.Startup(name, library)
        # Serve the page before the model is loaded, because runs can be explored without it.
        with console.status("preparing the page"):
            served = serve(make_app(startup, share), library, port, share)

    def load_context() -> app.AppContext:
        from stickytoken.encoders.text_encoder import as_id_reader

        encoder = opt.load(source, loading, record, moved_to)
        if shows_example:
            # The example shows a sticky token, so one is planted in the model.
            tried_model = app.make_tampered_model(encoder)
        else:
            tried_model = app.SharedModel(as_id_reader(encoder, "demo"))
        return app.make_context(tried_model, library, stickytoken.load_sentences(None))

    try:
        _print_address(served.url, served.public_url, output_format)
        if open_it and not webbrowser.open(served.url):
            raise InputError(f"no browser could be started: open {served.url} in one yourself")
        with opt.garbage_collector_paused():
            startup.finish(load_context)
        served.wait()
    finally:
        served.close()


def _print_address(url: str, public_url: str | None, output_format: opt.Format) -> None:
    if output_format is opt.Format.JSON:
        console.print_json({"url": url, "public_url": public_url})
    else:
        console.print_line(f"serving on {url}")
        if public_url:
            console.print_line(f"anyone can reach it on {public_url}")
    console.inform("press Ctrl-C to stop")
