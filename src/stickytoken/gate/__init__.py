"""The gate for CI: decide whether a model may ship, and whether documents may be indexed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from stickytoken.cleaning import Cleaner, SpanKind, names_rules_file
from stickytoken.data.documents import DocumentSource, NamedColumns, open_documents
from stickytoken.data.readability import LARGEST_UNKNOWN
from stickytoken.detection.finding import find_run, note_choices, refuse_for_run
from stickytoken.detection.run import Run, open_run
from stickytoken.errors import InputError
from stickytoken.findings import Finding, Level
from stickytoken.gate._results import Check, CheckedDocuments, FailOn, Outcome
from stickytoken.gate._tokens import STICKY_TOKEN, judge_tokens, require_comparable
from stickytoken.loading import AnyModel
from stickytoken.machine import RUNS_FOLDER
from stickytoken.measurement.engine import ProgressCallback, ignore_progress
from stickytoken.methods.base import Scope
from stickytoken.scanning.results import Scan, count_by_kind, filter_by_kind
from stickytoken.scanning.scan import scan
from stickytoken.scanning.wording import RULES, find_gaps, scan_findings
from stickytoken.settings.reading import ColumnChoice, Columns, columns_of
from stickytoken.validation import file_path, list_of, require_callable, shown, whole_number
from stickytoken.words import counted

__all__ = ["Check", "FailOn", "Outcome", "check"]


def check(  # noqa: PLR0913 - all of them keyword-only, one decision each
    source: AnyModel | Run | Cleaner,
    *,
    fail_on: FailOn | str | None = None,
    max_tokens: int | None = None,
    baseline: Run | str | Path | None = None,
    documents: DocumentSource | None = None,
    column: ColumnChoice = None,
    fail_on_documents: Sequence[SpanKind | str] = (SpanKind.FLAGGED,),
    words: Sequence[str] | None = None,
    allow: str | Path | None = None,
    known: str | Path | None = None,
    folder: str | Path | None = None,
    revision: str | None = None,
    place: tuple[str, int] | None = None,
    progress: ProgressCallback = ignore_progress,
) -> Check:
    """Check whether a model can ship, and whether documents can be indexed.

    Args:
        source: a run, a model, a rules file or a cleaner. A model is anything that `load_encoder` takes. The
            check of a model uses the newest run that covers the whole vocabulary of exactly this model. If
            there is no such run, a detection is run first. A rules file is a file that ``clean --rules-out``
            or `Cleaner.save` wrote. With a rules file or a cleaner, only documents are checked, and
            ``fail_on``, ``max_tokens``, ``baseline``, ``folder`` and ``revision`` cannot be passed; with a
            run, the last two.
        fail_on: mildest grade of sticky token that counts against the model: ``sticky`` (every sticky token),
            ``mild``, ``serious`` or ``severe``. With ``none``, only documents can make the check fail, and
            tokens cannot. If None, the grade is ``sticky`` for a run or a model, and ``none`` for a rules
            file or a cleaner.
        max_tokens: number of sticky tokens that may count against the model before the check fails; if None,
            0.
        baseline: a run to compare with, whose model is an earlier version or another model. With a
            baseline, a sticky token counts only if it is new, if one of its intervals lies above the
            interval in the baseline, or if the baseline lacks a measure that flags it.
        documents: anything that `stickytoken.scan` takes. A document with a finding of a kind in
            ``fail_on_documents`` makes the check fail. A document that cannot be read makes the check
            inconclusive.
        column: column with the text of the documents, several columns, or `Columns`.
        fail_on_documents: kinds of findings in documents that make the check fail: ``flagged``, ``special``,
            ``repetition`` and ``suspected``. Copies of a flagged token always make the check fail.
        words: further words that ``documents`` must not repeat, such as the words of an audit.
        allow: file of words and special tokens that are no finding in documents, one on each line.
        known: file of documents that are no finding, as ``scan --set write-known=FILE`` writes it.
        folder: for a model: the folder that holds the runs of the model, or a run folder; if None, ``runs``.
        revision: branch, tag or commit of a model on the hub.
        place: path of a file in the repository and a line number; build servers show the findings about
            tokens there. If None, the findings about tokens refer to the run's table of tokens.
        progress: called after every step of a detection.

    Returns:
        The result. The model may ship, and the documents may be indexed, only if `Check.passed` is true.

    Raises:
        InputError: an option cannot be used, the file is not a rules file, or the run and the baseline cannot
            be compared.
        ModelError: the model cannot be found or used.
        RunError: a run is damaged or not finished.

    Examples:
        >>> result = stickytoken.check(run, fail_on="severe")
        >>> result.outcome.value, result.counted
        ('failed', 1)
    """
    columns = columns_of(column)
    if documents is None:
        _require_no_document_options(columns, words)
    failing_kinds = _read_failing_kinds(fail_on_documents)
    if fail_on is not None and fail_on not in list(FailOn):
        raise InputError(f"fail_on is {shown(fail_on)}: use {', '.join(FailOn)}")
    require_callable("progress", progress)
    # The options that only the check of a run or a model accepts, with None for an option that was not
    # passed. A check of documents alone accepts one value of these options, ``fail_on="none"``.
    options_for_runs = {
        "fail_on": None if fail_on == FailOn.NONE else fail_on,
        "max_tokens": max_tokens,
        "baseline": baseline,
        "revision": revision,
        "folder": folder,
    }
    max_tokens = 0 if max_tokens is None else whole_number("max_tokens", max_tokens, 0)
    # Function that scans the documents by the rules that are passed to it; None without documents.
    scan_documents: Callable[[Run | Cleaner | str | Path], Scan] | None = None
    if documents is not None:
        if isinstance(documents, (str, Path)):
            open_documents(documents, NamedColumns(column))  # fail before a detection, not after it
        scan_documents = partial(
            scan,
            documents=documents,
            column=column,
            words=words or (),
            allow=allow,
            known=known,
            progress=progress,
        )
    are_columns_chosen = bool(columns.names)
    if isinstance(source, Cleaner) or names_rules_file(source):
        return _check_by_rules(
            source, scan_documents, failing_kinds, options_for_runs, are_columns_chosen=are_columns_chosen
        )
    if fail_on == FailOn.NONE and scan_documents is None:
        raise InputError(
            "fail_on is 'none', so tokens cannot make the check fail, and no documents were passed: pass "
            "documents, or another value of fail_on"
        )
    refuse_for_run(source, folder=folder, revision=revision)
    baseline_run = None if baseline is None else open_run(baseline)
    folder = RUNS_FOLDER if folder is None else file_path("folder", folder)
    found = find_run(source, folder, revision, progress)
    run = found.run
    notes = [*found.notes]
    # A baseline needs no push and no budget: without them, more tokens count as new, and none is missed.
    incomplete = [*_find_gaps_of_run(run, "the run"), *_find_unmeasured(run)]
    if baseline_run is not None:
        require_comparable(run, baseline_run)
        incomplete += _find_gaps_of_run(baseline_run, "the baseline")
    mildest_counted = FailOn.STICKY if fail_on is None else FailOn(fail_on)
    findings, counted = judge_tokens(run, mildest_counted, max_tokens, baseline_run, place)
    rules = [STICKY_TOKEN]
    checked_documents = None
    if scan_documents is not None:
        finished_scan = scan_documents(run)
        findings = [*_list_findings(finished_scan, failing_kinds), *findings]
        rules += RULES
        incomplete += find_gaps(finished_scan)
        checked_documents = _summarize_documents(
            finished_scan, failing_kinds, are_columns_chosen=are_columns_chosen
        )
        notes.append(f"read: {finished_scan.result.reading}")
    notes += [note for note in _collect_notes(run) if note not in found.notes]
    return Check(
        model=run.model_name,
        run=run.path,
        fail_on=mildest_counted,
        max_tokens=max_tokens,
        counted=counted,
        sticky=len(run.sticky),
        baseline=None if baseline_run is None else baseline_run.path,
        rules=tuple(rules),
        findings=tuple(findings),
        incomplete=tuple(incomplete),
        notes=tuple(notes),
        documents=checked_documents,
        examined=run.record.tokens,
        available=run.available,
    )


def _require_no_document_options(columns: Columns, words: Sequence[str] | None) -> None:
    for name, value in vars(columns).items():
        if value is not None:
            passed = value if isinstance(value, str) else ", ".join(value)
            raise InputError(
                f"{name} is {passed!r}, but no documents were passed: pass documents, or leave {name} out"
            )
    if words is not None:
        raise InputError(
            "words are looked for in documents, but none were passed: pass documents, or leave words out"
        )


def _read_failing_kinds(fail_on_documents: Sequence[SpanKind | str]) -> set[str]:
    failing_kinds = {SpanKind.FLAGGED.value}
    for kind in list_of("kinds", "fail_on_documents", fail_on_documents):
        if kind not in list(SpanKind):
            raise InputError(f"fail_on_documents contains {shown(kind)}: use {', '.join(SpanKind)}")
        failing_kinds.add(SpanKind(kind).value)
    return failing_kinds


def _check_by_rules(
    source: Cleaner | str | Path,
    scan_documents: Callable[[Run | Cleaner | str | Path], Scan] | None,
    failing_kinds: Collection[str],
    options_for_runs: Mapping[str, object],
    *,
    are_columns_chosen: bool,
) -> Check:
    """Check documents with the rules of a rules file or a cleaner.

    ``scan_documents`` scans the documents with the rules; it is None if no documents were passed.
    ``options_for_runs`` has the options that only the check of a run accepts, with None for an option that
    was not passed.

    Raises:
        InputError: no documents were passed, or one of the options that only a run can have.
    """
    rules_file = None if isinstance(source, Cleaner) else file_path("the rules file", source)
    name = "the cleaner" if rules_file is None else str(source)
    passed_options = [option for option, value in options_for_runs.items() if value is not None]
    if passed_options:
        raise InputError(
            f"{name} has only rules for documents: leave out {' and '.join(passed_options)}, or pass a run "
            "or a model in its place"
        )
    if scan_documents is None:
        raise InputError(
            f"{name} has only rules for documents, and no documents were passed: pass documents, or pass a "
            "run or a model in its place"
        )
    finished_scan = scan_documents(source)
    notes = [f"read: {finished_scan.result.reading}"]
    if not finished_scan.record.rules["words"]:
        notes.append(
            f"{rules_file or 'the cleaner'} names no flagged token, so no copies of flagged tokens were "
            "looked for"
        )
    return Check(
        model=finished_scan.record.model or None,  # empty if the rules don't name it
        run=None,
        fail_on=FailOn.NONE,
        max_tokens=0,
        counted=0,
        sticky=None,
        baseline=None,
        rules=RULES,
        findings=tuple(_list_findings(finished_scan, failing_kinds)),
        incomplete=tuple(find_gaps(finished_scan)),
        notes=tuple(notes),
        documents=_summarize_documents(finished_scan, failing_kinds, are_columns_chosen=are_columns_chosen),
        rules_file=rules_file,
    )


def _list_findings(scan: Scan, failing_kinds: Collection[str]) -> list[Finding]:
    worst_first = scan_findings(scan, failing_kinds)
    # Findings that make the check fail come first. Among them and among all others, the worst stay first.
    return sorted(worst_first, key=lambda finding: finding.level is not Level.ERROR)


def _summarize_documents(
    scan: Scan, failing_kinds: Collection[str], *, are_columns_chosen: bool
) -> CheckedDocuments:
    """Return what a scan found, and how much of it makes the check fail."""
    failing_documents = filter_by_kind(scan, failing_kinds)
    return CheckedDocuments(
        collection=scan.record.documents,
        searched=scan.result.documents,
        counted=len(failing_documents),
        causes=count_by_kind(failing_documents, failing_kinds),
        found=len(scan.documents),
        kinds=scan.result.kinds,
        columns=scan.result.columns,
        unread_columns=scan.result.unread_columns,
        is_chosen=are_columns_chosen,
        reading=scan.result.reading,
    )


# A token should have a verdict if the tokenizer reads at least this share of its written copies as the token.
_SEEN_COPIES = 0.5


def _find_gaps_of_run(run: Run, which: str) -> list[str]:
    """List the reasons why a model may have more sticky tokens than the run found.

    ``which`` names the run in a sentence: "the run" or "the baseline".

    Returns:
        One sentence per reason; empty if the run is complete and consistent.
    """
    tokens = run.tokens
    record = run.record
    reasons = []
    if record.scope is not Scope.WHOLE or record.tokens < run.available:
        reasons.append(
            f"{which} in {run.path} covered {record.tokens:,} of {run.available:,} available tokens: "
            "detect without --sample and --tokens"
        )
    without_verdict = _count_without_verdict(run)
    if without_verdict:
        reasons.append(
            f"{which} in {run.path} has no verdict on {without_verdict:,} of {len(tokens):,} tokens: detect "
            "again into another folder"
        )
    unknown_share = record.corpus.unknown or 0
    if unknown_share > LARGEST_UNKNOWN:
        reasons.append(
            f"the model cannot read {unknown_share:.0%} of {record.corpus.source}: detect with sentences in "
            "a language that the model knows"
        )
    return reasons


def _find_unmeasured(run: Run) -> list[str]:
    """List what a run of profile did not measure, so that sticky tokens may count as benign."""
    if not run.is_profile:
        return []
    result: Any = run.result  # a `ProfileResultRecord`
    reasons = []
    if result.ordinary_push is None:
        reasons.append(
            f"the run in {run.path} knows no token's push: detect with more sentences into another folder"
        )
    if result.unconfirmed:
        count = counted(result.unconfirmed, "token")
        reasons.append(
            f"the run in {run.path} has {count} that may be sticky, but the budget did not allow measuring "
            "them closely: detect with a larger budget (--set budget=N) into another folder"
        )
    return reasons


def _count_without_verdict(run: Run) -> int:
    if not run.method.TABLE.judges_every_token:
        return 0
    lacks_verdict = pl.col("verdict").is_null()
    if "copies_seen" in run.tokens.columns:
        # A token that the tokenizer hardly ever reads where it is written needs no verdict. If a server gave
        # no vector for a token, the share is unknown, and the token needs one.
        lacks_verdict &= pl.col("copies_seen").is_null() | (pl.col("copies_seen") >= _SEEN_COPIES)
    return len(run.tokens.filter(lacks_verdict))


def _collect_notes(run: Run) -> list[str]:
    """Return the notes of a run, what it covered, and what was chosen for it."""
    # What was covered matters because a check that passes says nothing of tokens whose push was not measured.
    notes = [*run.description.notes, *run.description.coverage]
    return [*notes, *note_choices(run)]
