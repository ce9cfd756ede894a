"""The gate for CI: decide whether a model may ship, and whether documents may be indexed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl

from stickytoken.cleaning import Cleaner, SpanKind, names_rules_file
from stickytoken.data.readability import LARGEST_UNKNOWN
from stickytoken.detection.finding import DEFAULT_FOLDER, find_run
from stickytoken.detection.run import Run, open_run
from stickytoken.errors import InputError
from stickytoken.findings import Finding, Level, Rule
from stickytoken.gate._results import Check, CheckedDocuments, FailOn, Outcome
from stickytoken.gate._tokens import STICKY_TOKEN, judge_tokens, require_comparable
from stickytoken.loading import AnyModel
from stickytoken.measurement.engine import ProgressCallback, ignore_progress
from stickytoken.methods import METHODS
from stickytoken.settings import choose_insertion
from stickytoken.settings.reading import ColumnChoice, Columns, columns_of
from stickytoken.validation import file_path, list_of, require_callable, shown, whole_number

if TYPE_CHECKING:
    from stickytoken.data.documents import DocumentSource

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
            ``fail_on``, ``max_tokens``, ``baseline``, ``folder`` and ``revision`` cannot be passed.
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
        ('passed', 0)
    """
    columns = columns_of(column)
    if columns != Columns() and documents is None:
        raise InputError(
            f"column is {', '.join(map(repr, columns.names))}, but no documents were passed: pass documents, "
            "or leave column out"
        )
    if words is not None and documents is None:
        raise InputError(
            "words (of --audit) are looked for in documents, but none were passed: pass documents "
            "(--documents), or leave the words out"
        )
    failing_kinds = {SpanKind.FLAGGED.value}
    for kind in list_of("kinds", "fail_on_documents", fail_on_documents):
        if kind not in list(SpanKind):
            raise InputError(f"fail_on_documents contains {shown(kind)}: use {', '.join(SpanKind)}")
        failing_kinds.add(SpanKind(kind).value)
    if fail_on is not None and fail_on not in list(FailOn):
        raise InputError(f"fail_on is {shown(fail_on)}: use {', '.join(FailOn)}")
    require_callable("progress", progress)
    # Options that only the check of a run or a model can have; None if not passed. The exception is
    # ``fail_on="none"``, which a check of documents alone accepts.
    options_for_runs = {
        "fail_on": None if fail_on == FailOn.NONE else fail_on,
        "max": max_tokens,
        "baseline": baseline,
        "revision": revision,
        "folder": folder,
    }
    max_tokens = 0 if max_tokens is None else whole_number("max_tokens", max_tokens, 0)
    if isinstance(documents, (str, Path)):
        from stickytoken.data.documents import NamedColumns, open_documents

        open_documents(documents, NamedColumns(column))  # fail before a detection, not after it

    search = partial(
        _search_documents,
        documents=documents,
        column=column,
        lists={"words": words or (), "allow": allow, "known": known},
        failing_kinds=failing_kinds,
        progress=progress,
    )
    if isinstance(source, Cleaner) or names_rules_file(source):
        return _check_documents_only(source, None if documents is None else search, options_for_runs)
    if fail_on == FailOn.NONE and documents is None:
        raise InputError(
            "fail_on is 'none', so tokens cannot make the check fail, and no documents were passed: pass "
            "documents, or another value of fail_on"
        )
    baseline_run = None if baseline is None else open_run(baseline)
    folder = DEFAULT_FOLDER if folder is None else file_path("folder", folder)
    run, _, notes = find_run(source, folder, revision, progress)
    incomplete = _reasons_incomplete(run, "the run")
    if baseline_run is not None:
        require_comparable(run, baseline_run)
        incomplete += _reasons_incomplete(baseline_run, "the baseline")
    mildest_counted = FailOn.STICKY if fail_on is None else FailOn(fail_on)
    findings, counted = judge_tokens(run, mildest_counted, max_tokens, baseline_run, place)
    rules = [STICKY_TOKEN]
    checked_documents = None
    if documents is not None:
        searched = search(run)
        findings = [*searched.findings, *findings]
        rules += searched.rules
        incomplete += searched.incomplete
        checked_documents = searched.documents
        notes = [*notes, f"read: {checked_documents.reading}"]
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
        notes=(*notes, *_notes_on_run(run)),
        documents=checked_documents,
        examined=run.record.tokens,
        available=run.available,
    )


def _check_documents_only(
    source: Cleaner | str | Path,
    search: Callable[[Cleaner | str | Path], _DocumentSearch] | None,
    options_for_runs: Mapping[str, object],
) -> Check:
    """Return the result of checking documents with the rules of a rules file or a cleaner.

    Raises:
        InputError: no documents were passed, or an option needs a run.
    """
    rules_file = None if isinstance(source, Cleaner) else file_path("the rules file", source)
    name = "the cleaner" if rules_file is None else str(source)
    passed = [option for option, value in options_for_runs.items() if value is not None]
    if passed:
        raise InputError(
            f"{name} has only rules for documents: leave out {' and '.join(passed)}, or pass a run or a "
            "model in its place"
        )
    if search is None:
        raise InputError(
            f"{name} has only rules for documents, and no documents were passed: pass documents, or pass a "
            "run or a model in its place"
        )
    searched = search(source)
    notes = [f"read: {searched.documents.reading}"]
    if not searched.has_words:
        notes.append(
            f"{rules_file or 'the cleaner'} names no flagged token, so no copies of flagged tokens were "
            "looked for"
        )
    return Check(
        model=searched.model,
        run=None,
        fail_on=FailOn.NONE,
        max_tokens=0,
        counted=0,
        sticky=None,
        baseline=None,
        rules=searched.rules,
        findings=tuple(searched.findings),
        incomplete=tuple(searched.incomplete),
        notes=tuple(notes),
        documents=searched.documents,
        rules_file=rules_file,
    )


class _DocumentSearch(NamedTuple):
    """The results of a search of documents.

    Attributes:
        model: name of the model; None if the rules file or cleaner does not name a model.
        findings: the findings, errors first.
        rules: the rules that were checked.
        incomplete: the reasons why something could not be checked, one sentence each.
        documents: how many documents were searched, and how many have findings.
        has_words: whether there are flagged words to look for.
    """

    model: str | None
    findings: list[Finding]
    rules: tuple[Rule, ...]
    incomplete: list[str]
    documents: CheckedDocuments
    has_words: bool


def _search_documents(
    origin: Run | Cleaner | str | Path,
    *,
    documents: Any,
    column: ColumnChoice,
    lists: Mapping[str, Any],
    failing_kinds: set[str],
    progress: ProgressCallback,
) -> _DocumentSearch:
    """Search documents with the rules of a run, a rules file or a cleaner."""
    from stickytoken.scanning import scan as scans

    # Effects are not measured, because they do not decide whether a document makes the check fail.
    scan = scans.scan_documents(origin, documents, column=column, progress=progress, **lists)
    findings = list(scans.scan_findings(scan, failing_kinds))
    findings.sort(key=lambda finding: finding.level is not Level.ERROR)
    failing_documents = scans.with_kinds(scan, failing_kinds)
    return _DocumentSearch(
        model=scan.record.model or None,
        findings=findings,
        rules=scans.RULES,
        incomplete=scans.incomplete(scan),
        documents=CheckedDocuments(
            collection=scan.record.documents,
            searched=scan.result.documents,
            counted=len(failing_documents),
            causes=scans.counts_by_kind(failing_documents, failing_kinds),
            found=len(scan.documents),
            kinds=scan.result.kinds,
            columns=scan.result.columns,
            unread_columns=scan.result.unread_columns,
            is_chosen=bool(columns_of(column).names),
            reading=scan.result.reading,
        ),
        has_words=bool(scan.record.rules["words"]),
    )


# A token should have a verdict if the tokenizer reads at least this share of its written copies as the token.
_SEEN_COPIES = 0.5


def _reasons_incomplete(run: Run, which: str) -> list[str]:
    """List the reasons why a model may have more sticky tokens than the run found.

    Returns:
        One sentence per reason; empty if the run is complete and consistent.
    """
    tokens = run.tokens
    record = run.record
    reasons = []
    if record.identity_parts.get("tokens") is not None or record.tokens < run.available:
        reasons.append(
            f"{which} in {run.path} covered {record.tokens:,} of {run.available:,} available tokens: "
            "detect without --sample and --tokens"
        )
    if len(tokens) != record.tokens or tokens["token_id"].n_unique() != len(tokens):
        reasons.append(
            f"{run.path} has {len(tokens):,} rows in tokens.parquet for {record.tokens:,} tokens: delete the "
            "folder and detect again"
        )
    if len(run.sticky) != run.result.sticky:
        reasons.append(
            f"{run.path} has {len(run.sticky):,} sticky tokens in tokens.parquet and "
            f"{run.result.sticky:,} in run.json: delete the folder and detect again"
        )
    without_verdict = _tokens_without_verdict(run)
    if without_verdict:
        reasons.append(
            f"{which} in {run.path} has no verdict on {without_verdict:,} of {len(tokens):,} tokens: detect "
            "again into another folder"
        )
    verdicts = {verdict.value for verdict in run.method.TABLE.verdicts}
    is_unknown = pl.col("verdict").is_not_null() & ~pl.col("verdict").is_in(verdicts)
    if not tokens.filter(is_unknown).is_empty():
        reasons.append(
            f"{run.path} has verdicts that the method {record.method} does not give: delete the folder and "
            "detect again"
        )
    unknown_share = record.corpus.unknown or 0
    if unknown_share > LARGEST_UNKNOWN:
        reasons.append(
            f"the model cannot read {unknown_share:.0%} of {record.corpus.source}: detect with sentences in "
            "a language that the model knows"
        )
    return reasons


def _tokens_without_verdict(run: Run) -> int:
    if not run.method.TABLE.judges_every_token:
        return 0
    tokens = run.tokens
    if "copies_seen" in tokens.columns:
        is_read = pl.col("copies_seen") >= _SEEN_COPIES
        tokens = tokens.filter(pl.col("verdict").is_not_null() | is_read)
    return tokens["verdict"].null_count()


def _notes_on_run(run: Run) -> list[str]:
    # A check that passes says nothing of tokens whose push was not measured.
    remarks = [*run.description.notes, *run.description.coverage]
    loading = run.record.model.loading
    is_behind_endpoint = loading is not None and loading.endpoint is not None
    defaults = choose_insertion(METHODS[run.record.method](), is_behind_endpoint)
    changed = []
    for name, value in run.record.settings.items():
        default = getattr(defaults, name, value)
        if isinstance(default, tuple):
            default = list(default)
        if name != "seed" and default != value:
            changed.append(f"{name} {value}")
    if changed:
        remarks.append(f"the run used non-default settings: {', '.join(changed)}")
    return remarks
