"""The gate for CI: decide whether a model may ship, and whether documents may be indexed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl

import stickytoken.measurement as store
from stickytoken.cleaning import Cleaner, SpanKind, document_counts, names_rules_file
from stickytoken.data import LARGEST_UNKNOWN
from stickytoken.detection import detect, run as runs_of
from stickytoken.detection.run import Run, open_run
from stickytoken.detection.run_folder import FLAGGED, RunFolder, RunRecord
from stickytoken.encoders.endpoint import names_endpoint
from stickytoken.encoders.endpoint.encoder import EndpointEncoder
from stickytoken.encoders.loading import AnyModel, load_encoder
from stickytoken.encoders.protocol import Encoder, EncoderIdentity
from stickytoken.errors import InputError, RunError, reading
from stickytoken.findings import Finding, Level, Rule, place_of
from stickytoken.machine import digest
from stickytoken.measurement import resume
from stickytoken.measurement.engine import Progress, ProgressCallback, ignore_progress
from stickytoken.methods import METHODS, base
from stickytoken.methods.measures import LIFT
from stickytoken.settings.endpoint import EndpointOptions
from stickytoken.settings.profile import PRECISION_SETTINGS
from stickytoken.validation import file_path, list_of, require_callable, shown, whole_number
from stickytoken.words import percent, quoted

if TYPE_CHECKING:
    from stickytoken.data.documents import DocumentSource

__all__ = ["Check", "FailOn", "Outcome", "check"]

_DEFAULT_FOLDER = Path("runs")


class Outcome(StrEnum):
    """The outcome of a check.

    Attributes:
        PASSED: Everything was checked, and no finding makes the check fail.
        CLOSED: A finding makes the check fail, so the gate is closed.
        INCONCLUSIVE: No finding makes the check fail, but something could not be checked.
    """

    PASSED = "passed"
    CLOSED = "closed"
    INCONCLUSIVE = "inconclusive"


class FailOn(StrEnum):
    """The mildest grade of sticky token that counts against a model; with `NONE`, no token does."""

    STICKY = "sticky"
    MILD = "mild"
    SERIOUS = "serious"
    SEVERE = "severe"
    NONE = "none"


class CheckedDocuments(NamedTuple):
    """How many documents a check searched, how many have findings, and how many make the check fail."""

    collection: str  # name of the document collection
    searched: int  # number of documents searched
    counted: int  # number of documents that make the check fail
    causes: Mapping[str, int]  # number of documents that make the check fail, keyed by kind of finding
    found: int  # number of documents with findings of any kind
    kinds: Mapping[str, int]  # number of documents with findings, keyed by kind of finding


@dataclass(frozen=True, slots=True)
class Check:
    """The result of a check.

    Attributes:
        model: name of the model; None if a rules file does not name it.
        run: folder of the run that was checked; None if documents were checked against a rules file or a
            cleaner.
        fail_on: mildest grade of sticky token that counts against the model.
        max_tokens: number of sticky tokens that may count against the model before the check fails.
        counted: number of sticky tokens that count against the model: tokens of the grade `fail_on` or worse
            that are not already known from the baseline.
        sticky: total number of sticky tokens in the run; None without a run.
        baseline: folder of the run that served as the baseline; None without a baseline.
        rules: the rules that were checked.
        findings: the findings about documents, followed by the findings about tokens; in both groups, the
            errors come first. A finding of level error makes the check fail.
        incomplete: the reasons why something could not be checked, one sentence each. If something could not
            be checked, the check does not pass.
        notes: remarks that do not affect the outcome.
        documents: what a search of the documents found; None if no documents were passed.
        examined: number of tokens that the run examined.
        available: number of tokens in the vocabulary that the run could have examined.
        rules_file: rules file that documents were checked against; None if a run or a cleaner was passed.
    """

    model: str | None
    run: Path | None
    fail_on: FailOn
    max_tokens: int
    counted: int
    sticky: int | None
    baseline: Path | None
    rules: tuple[Rule, ...]
    findings: tuple[Finding, ...]
    incomplete: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    documents: CheckedDocuments | None = None
    examined: int = 0
    available: int = 0
    rules_file: Path | None = None

    @property
    def outcome(self) -> Outcome:
        """The outcome of the check.

        A finding of level error closes the check. If no finding is of level error, the check is inconclusive
        if something could not be checked, and passed otherwise.
        """
        if any(finding.level is Level.ERROR for finding in self.findings):
            return Outcome.CLOSED
        return Outcome.INCONCLUSIVE if self.incomplete else Outcome.PASSED

    @property
    def passed(self) -> bool:
        """Whether everything was checked and no finding makes the check fail."""
        return self.outcome is Outcome.PASSED

    def __repr__(self) -> str:
        if self.run is None:
            return f"<Check: documents, {self.outcome.value}, rules in {self.rules_file or 'a cleaner'}>"
        return f"<Check: {self.model}, {self.outcome.value}, {self.counted:,} counted, run in {self.run}>"

    def headline(self) -> str:
        """Return one sentence with the outcome and the counts of tokens and documents that led to it."""
        parts = []
        if self.fail_on is not FailOn.NONE:
            parts.append(self._count_of_tokens())
        if self.documents is not None:
            documents = self.documents
            counts, causes = document_counts(documents.counted, documents.searched, documents.causes)
            verb = "fails" if documents.counted <= 1 else "fail"
            parts.append(f"{counts} {verb}{causes}")
        return self._beginning() + "; ".join(parts)

    def _count_of_tokens(self) -> str:
        """Return a clause with the number of counted tokens, such as ``M has 2 severe sticky tokens``."""
        grades = _COUNTED_GRADES[self.fail_on] or ()
        adjective = ""
        if grades:
            *milder, worst = grades
            adjective = f"{', '.join(milder)} or {worst} " if milder else f"{worst} "
        number = f"{self.counted:,}" if self.counted else "no"
        noun = "token" if self.counted == 1 else "tokens"
        compared = ""
        if self.baseline is not None:
            verb = "is" if self.counted == 1 else "are"
            compared = f" that {verb} new or worse than in the baseline"
        tolerated = f" ({self.max_tokens:,} tolerated)" if self.max_tokens else ""
        return f"{self.model} has {number} {adjective}sticky {noun}{compared}{tolerated}"

    def _beginning(self) -> str:
        """Return the beginning of the headline: the outcome, and the reason if it is inconclusive."""
        if self.outcome is not Outcome.INCONCLUSIVE:
            return f"{self.outcome.value}: "
        if self.examined < self.available:
            examined = f"only {self.examined:,} of {self.available:,} tokens were examined"
            return f"inconclusive: {examined}; so far, "
        return "inconclusive: not everything could be checked; so far, "

    def summary(self) -> dict[str, Any]:
        """Return the check as JSON values."""
        return {
            "outcome": self.outcome.value,
            "model": self.model,
            "run": None if self.run is None else str(self.run),
            "rules_file": None if self.rules_file is None else str(self.rules_file),
            "baseline": None if self.baseline is None else str(self.baseline),
            "fail_on": self.fail_on.value,
            "max": self.max_tokens,
            "counted": self.counted,
            "sticky": self.sticky,
            "documents": None if self.documents is None else self.documents._asdict(),
            "incomplete": list(self.incomplete),
            "notes": list(self.notes),
            "findings": [_finding_values(finding) for finding in self.findings],
        }


def _finding_values(finding: Finding) -> dict[str, Any]:
    """Return a finding as JSON values."""
    return {
        "rule": finding.rule,
        "level": finding.level.value,
        "message": finding.message,
        "path": finding.path,
        "line": finding.line,
        "fingerprint": finding.fingerprint,
        **finding.properties,
    }


def check(  # noqa: PLR0913 - all of them keyword-only, one decision each
    source: AnyModel | Run | Cleaner,
    *,
    fail_on: FailOn | str | None = None,
    max_tokens: int | None = None,
    baseline: Run | str | Path | None = None,
    documents: DocumentSource | None = None,
    column: str | None = None,
    fail_on_documents: Sequence[SpanKind | str] = (SpanKind.FLAGGED,),
    words: Sequence[str] = (),
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
            baseline, a sticky token counts only if it is new, or if one of its intervals lies above the
            interval in the baseline.
        documents: anything that `stickytoken.scan` takes. A document with a finding of a kind in
            ``fail_on_documents`` makes the check fail. A document that cannot be read makes the check
            inconclusive.
        column: name of the column with the text of the documents.
        fail_on_documents: kinds of findings in documents that make the check fail: ``flagged``, ``special``,
            ``repetition`` and ``suspected``. Copies of a flagged token always make the check fail.
        words: further words that documents must not repeat, such as the words of an audit.
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
    """
    if column is not None and documents is None:
        raise InputError(
            f"column is {shown(column)}, but no documents were passed: pass documents, or leave column out"
        )
    failing_kinds = _failing_kinds(fail_on_documents)
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

    def search(origin: Run | Cleaner | str | Path) -> _DocumentSearch:
        """Search the documents with the rules of a run, a rules file or a cleaner."""
        return _search_documents(
            origin, documents, column=column, words=words, failing_kinds=failing_kinds, progress=progress
        )

    if isinstance(source, Cleaner) or names_rules_file(source):
        _require_documents_only(source, options_for_runs, has_documents=documents is not None)
        return _check_of_documents(source, search(source))
    if fail_on == FailOn.NONE and documents is None:
        raise InputError(
            "fail_on is 'none', so tokens cannot make the check fail, and no documents were passed: pass "
            "documents, or another value of fail_on"
        )
    baseline_run = None if baseline is None else open_run(baseline)
    folder = _DEFAULT_FOLDER if folder is None else file_path("folder", folder)
    notes: list[str] = []
    if isinstance(source, Run):
        run = source
    elif isinstance(source, (str, Path)) and runs_of.is_run(source):
        run = open_run(source)
    else:
        run, notes = _run_of_model(source, folder, revision, progress)
    incomplete = _reasons_incomplete(run, "the run")
    if baseline_run is not None:
        _require_comparable(run, baseline_run)
        incomplete += _reasons_incomplete(baseline_run, "the baseline")
    mildest_counted = FailOn.STICKY if fail_on is None else FailOn(fail_on)
    findings, counted = _judge_tokens(run, mildest_counted, max_tokens, baseline_run, place)
    rules = [_STICKY_TOKEN]
    checked_documents = None
    if documents is not None:
        searched = search(run)
        findings = [*searched.findings, *findings]
        rules += searched.rules
        incomplete += searched.incomplete
        checked_documents = searched.documents
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


def _require_documents_only(
    source: object, options_for_runs: Mapping[str, object], *, has_documents: bool
) -> None:
    """Raise InputError if a rules file or a cleaner was passed without documents, or with an option for runs.

    Args:
        source: the rules file or the cleaner.
        options_for_runs: the values of the options that need a run, keyed by name; None if not passed.
        has_documents: whether documents were passed.
    """
    name = "the cleaner" if isinstance(source, Cleaner) else str(source)
    passed = [option for option, value in options_for_runs.items() if value is not None]
    if passed:
        raise InputError(
            f"{name} has only rules for documents: leave out {' and '.join(passed)}, or pass a run or a "
            "model in its place"
        )
    if not has_documents:
        raise InputError(
            f"{name} has only rules for documents, and no documents were passed: pass documents, or pass a "
            "run or a model in its place"
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
    documents: Any,
    *,
    column: str | None,
    words: Sequence[str],
    failing_kinds: set[str],
    progress: ProgressCallback,
) -> _DocumentSearch:
    """Search documents with the rules of a run, a rules file or a cleaner.

    Args:
        origin: the run, the rules file or the cleaner.
        documents: anything that `stickytoken.scan` takes.
        column: name of the column with the text; if None, a column with a common name is looked for.
        words: further words that documents must not repeat.
        failing_kinds: kinds of findings that make the check fail.
        progress: called after every step.
    """
    from stickytoken.scanning import scan as scans

    # Effects are not measured, because they do not decide whether a document makes the check fail.
    scan = scans.scan_documents(origin, documents, column=column, words=words, progress=progress)
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
        ),
        has_words=bool(scan.record.rules["words"]),
    )


def _check_of_documents(source: object, searched: _DocumentSearch) -> Check:
    """Return the result of checking documents only.

    Args:
        source: the rules file or the cleaner with which the documents were searched.
        searched: the results of the search.
    """
    rules_file = None if isinstance(source, Cleaner) else file_path("the rules file", source)
    notes = []
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


def _failing_kinds(fail_on_documents: Sequence[SpanKind | str]) -> set[str]:
    """Return the kinds of findings that make a check fail: ``flagged``, and the kinds in the argument."""
    kinds = {SpanKind.FLAGGED.value}
    for kind in list_of("kinds", "fail_on_documents", fail_on_documents):
        if kind not in list(SpanKind):
            raise InputError(f"fail_on_documents contains {shown(kind)}: use {', '.join(SpanKind)}")
        kinds.add(SpanKind(kind).value)
    return kinds


def run_of(source: AnyModel | Run, folder: Path, progress: ProgressCallback = ignore_progress) -> Run:
    """Return the run to check.

    If a run was passed, it is returned. If a model was passed, the newest run of this model over its whole
    vocabulary is returned; if the model has no run over its whole vocabulary, a detection is run.

    Args:
        source: a run or its folder, or a model: anything that `load_encoder` takes.
        folder: for a model: the folder that holds the runs of the model.
        progress: called after every step of a detection.

    Raises:
        InputError: the model is behind an endpoint and has no run yet.
        ModelError: the model cannot be found or used.
        RunError: the run is damaged or not finished.
    """
    if isinstance(source, Run):
        return source
    if isinstance(source, (str, Path)) and runs_of.is_run(source):
        return open_run(source)
    run, _ = _run_of_model(source, folder, revision=None, progress=progress)
    return run


def _run_of_model(
    model: AnyModel, runs: Path, revision: str | None, progress: ProgressCallback
) -> tuple[Run, list[str]]:
    """Return the run of this model in ``runs``; if there is none, detect and return the new run.

    Args:
        model: anything that `load_encoder` takes.
        runs: the folder that holds the model's runs, or a run folder.
        revision: branch, tag or commit of a model on the hub.
        progress: called after every step of a detection.

    Returns:
        The run, and one note for each run that cannot be read.

    Raises:
        InputError: the model is behind an endpoint and has no run.
        RunError: ``runs`` is a run folder of another model.
    """
    candidates, notes = _candidates(runs)
    if isinstance(model, str) and names_endpoint(model):
        return _run_of_endpoint(model, runs, candidates), notes
    files = runs_of.look_at_model(str(model), revision) if isinstance(model, (str, Path)) else None
    run = None
    if candidates and files is not None:
        run = _run_with_fingerprint(candidates, files.fingerprint())
    if run is not None:
        return run, notes
    progress(Progress("load", 0, 1))
    # The revision is passed only if there is one, because load_encoder rejects it for a loaded model.
    options: dict[str, Any] = {} if revision is None else {"revision": revision}
    encoder = load_encoder(model, **options)
    progress(Progress("load", 1, 1))
    run = _run_with_identity(candidates, encoder.identity)
    if run is None:
        run = _new_run(encoder, runs, progress)
    runs_of.record_model(run.path, run.record, files)
    return run, notes


def _run_with_fingerprint(candidates: Sequence[_Candidate], fingerprint: str | None) -> Run | None:
    """Return the first run of a model whose files have this fingerprint, without loading the model.

    Args:
        candidates: the runs to choose from.
        fingerprint: hash of the model's files; None if they could not be hashed.

    Returns:
        The run; None if there is no fingerprint, or if no run has it.
    """
    if fingerprint is None:
        return None
    for candidate in candidates:
        if runs_of.is_model_of(candidate.path, candidate.record, fingerprint):
            return open_run(candidate.path)
    return None


def _run_with_identity(candidates: Sequence[_Candidate], identity: EncoderIdentity) -> Run | None:
    """Return the first run of the loaded model that has this identity; None if there is no such run."""
    for candidate in candidates:
        if runs_of.model_difference(candidate.record, identity) == []:
            return open_run(candidate.path)
    return None


def _new_run(encoder: Encoder, runs: Path, progress: ProgressCallback) -> Run:
    """Detect the sticky tokens of a model, in a new folder inside ``runs``, and return the run.

    Raises:
        RunError: ``runs`` is itself a run folder, so it cannot hold another run.
    """
    if RunFolder(runs).holds_run():
        raise RunError(
            f"the run in {runs} measured a model other than {encoder.name!r}, or does not cover the whole "
            "vocabulary with the default method: pass the folder that holds your runs, or pass this run "
            "instead of the model"
        )
    out = None  # `detect` makes a folder in `_DEFAULT_FOLDER`
    if runs != _DEFAULT_FOLDER:
        # The name depends only on the model and the version of stickytoken, so that the next check continues
        # an interrupted detection.
        identity = digest([asdict(encoder.identity), resume.package_versions()["stickytoken"]])
        out = runs / store.default_folder(encoder.name, "check", identity).name
    return detect(encoder, out=out, progress=progress)


def _run_of_endpoint(model: str, runs: Path, candidates: Sequence[_Candidate]) -> Run:
    """Return the newest run of the model that an endpoint serves under a name.

    Runs whose recorded model differs from the model of the endpoint are skipped.

    Args:
        model: name of the model, with its endpoint.
        runs: the folder that was searched, for the message.
        candidates: the runs to choose from, the newest first.

    Raises:
        InputError: there is no run of this model.
        ModelError: the endpoint serves a different model than when its first answers were cached.
    """
    for candidate in candidates:
        if candidate.record.model.name != model:
            continue
        loading = runs_of.recorded_loading(candidate.record)
        encoder = runs_of.load_recorded_endpoint(model, loading, EndpointOptions())
        is_same = runs_of.model_difference(candidate.record, encoder.identity) == []
        if is_same and isinstance(encoder, EndpointEncoder):
            # The identity comes from cached answers, so check that the server still gives these answers.
            encoder.require_same_model()
            return open_run(candidate.path)
    raise InputError(
        f"{runs} has no run of {model} over its whole vocabulary: run `stickytoken detect` first, which "
        "shows the cost of the requests"
    )


class _Candidate(NamedTuple):
    """A finished run of the default method over a whole vocabulary."""

    path: Path
    record: RunRecord


def _candidates(runs: Path) -> tuple[list[_Candidate], list[str]]:
    """List all finished runs of profile that cover a whole vocabulary, whatever their model.

    Args:
        runs: a folder of runs, or a run folder.

    Returns:
        The runs, the newest first, and one note for each run that cannot be read.
    """
    with reading(f"the folder of runs {runs}", RunError):
        is_run_folder = RunFolder(runs).holds_run()
        paths = [runs] if is_run_folder else sorted(path.parent for path in runs.glob("*/run.json"))
    candidates = []
    notes = []
    for path in paths:
        try:
            record = RunFolder(path).read_run()
        except RunError as error:
            notes.append(f"skipped: {error}")
            continue
        covers_vocabulary = (
            record.identity_parts.get("tokens") is None and record.tokens == record.model.available
        )
        if record.method == "profile" and record.result is not None and covers_vocabulary:
            candidates.append(_Candidate(path, record))
    return sorted(candidates, key=lambda candidate: candidate.record.started, reverse=True), notes


# A token should have a verdict if the tokenizer reads at least this share of its written copies as the token.
_SEEN_COPIES = 0.5


def _reasons_incomplete(run: Run, which: str) -> list[str]:
    """List the reasons why a model may have more sticky tokens than the run found.

    Args:
        run: the run to check, or the baseline.
        which: ``the run`` or ``the baseline``, for the messages.

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
            f"{which} in {run.path} has no verdict on {without_verdict:,} of {len(tokens):,} tokens: too few "
            f"texts of {record.corpus.source} are unrelated; use more sentences, on more varied subjects"
        )
    verdicts = {verdict.value for verdict in run.method.VERDICTS}
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
    """Count the tokens that should have a verdict, but lack the verdict or the lift that decides the verdict.

    A token needs no verdict if the tokenizer reads fewer than half of its written copies as the token.

    Returns:
        The number of tokens; 0 for a run of std, which judges only its candidates.
    """
    if not run.is_profile:
        return 0
    tokens = run.tokens
    if "copies_seen" in tokens.columns:
        is_read = pl.col("copies_seen") >= _SEEN_COPIES
        tokens = tokens.filter(pl.col("verdict").is_not_null() | is_read)
    return len(tokens.filter(pl.col("verdict").is_null() | pl.col("lift").is_null()))


def _notes_on_run(run: Run) -> list[str]:
    """Return the method's notes on the run, and a note that lists the non-default settings of the run."""
    remarks = list(run.method.notes(run))
    loading = run.record.model.loading
    is_behind_endpoint = loading is not None and loading.endpoint is not None
    defaults = base.adjusted_defaults(METHODS[run.record.method](), is_behind_endpoint)
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


class _Effect(NamedTuple):
    """A measured effect with its interval."""

    value: float
    low: float
    high: float


# Columns of tokens.parquet whose measures have intervals: the erased share of a text, and the lift in
# standard deviations.
_MEASURES = ("erased", "lift_sd")


def _effects_of(row: Mapping[str, Any]) -> dict[str, _Effect]:
    """Return the measures in a row of tokens.parquet that have an interval, keyed by column."""
    effects = {}
    for name in _MEASURES:
        value = row.get(name)
        low = row.get(f"{name}_low")
        high = row.get(f"{name}_high")
        if value is not None and low is not None and high is not None:
            effects[name] = _Effect(value, low, high)
    return effects


def _require_comparable(run: Run, baseline: Run) -> None:
    """Raise InputError unless both runs used the same method, texts and settings, and have intervals."""
    if run.record.method != baseline.record.method:
        raise InputError(
            f"the baseline {baseline.path} used the method {baseline.record.method}, but the run in "
            f"{run.path} used {run.record.method}: make both runs with the same method"
        )
    if not run.is_profile:
        raise InputError(
            f"the baseline {baseline.path} used the method {baseline.record.method}, which measures no "
            "intervals to compare: detect with --method profile"
        )
    if run.record.identity_parts.get("corpus") != baseline.record.identity_parts.get("corpus"):
        raise InputError(
            f"the baseline {baseline.path} was measured on {baseline.record.corpus.source}, but the run in "
            f"{run.path} on other texts, {run.record.corpus.source}: make both runs with the same sentences"
        )
    # The seed and the settings of the precision affect only the random error, so they may differ.
    names = {*run.record.settings, *baseline.record.settings} - {"seed", *PRECISION_SETTINGS}
    # A run from before a setting existed is treated as if it had used the default of that setting.
    different = sorted(name for name in names if run.settings.text(name) != baseline.settings.text(name))
    if different:
        raise InputError(
            f"the baseline {baseline.path} and the run {run.path} have different settings "
            f"({', '.join(different)}): make both runs with the same settings"
        )


_STICKY_TOKEN = Rule(
    "sticky-token",
    "No token of the model is sticky",
    "Copies of a sticky token erase the meaning of a text, or move it closer to unrelated texts, so that a "
    "document is no longer found, or turns up in unrelated searches. Explain the token with "
    "`stickytoken explain`, repair the model, or use a baseline to accept the known tokens of a model.",
    Level.ERROR,
)
# The grades that count against a model, mildest first; None if every sticky token counts, whatever its grade.
_COUNTED_GRADES = {
    FailOn.STICKY: None,
    FailOn.MILD: ("mild", "serious", "severe"),
    FailOn.SERIOUS: ("serious", "severe"),
    FailOn.SEVERE: ("severe",),
    FailOn.NONE: (),
}


class _JudgedToken(NamedTuple):
    """A sticky token, compared with the baseline."""

    row: Mapping[str, Any]  # the token's row in tokens.parquet
    effects: dict[str, _Effect]  # keyed by column
    baseline_effects: dict[str, _Effect]  # keyed by column; empty if not in the baseline
    change: str | None  # ``new``, ``worse`` or ``known``; None without a baseline
    is_counted: bool  # whether the token counts against the model


def _judge_tokens(
    run: Run, fail_on: FailOn, max_tokens: int, baseline: Run | None, place: tuple[str, int] | None
) -> tuple[list[Finding], int]:
    """Return a finding for each sticky token of a run, and count the tokens that count against the model.

    Args:
        run: the run.
        fail_on: mildest grade that counts against the model.
        max_tokens: number of tokens that may count against the model before the check fails.
        baseline: the run to compare with; None without a baseline.
        place: path of a file in the repository and a line number, which the findings refer to; if None, the
            findings refer to the run's table of tokens.

    Returns:
        One finding per sticky token, with the tokens that count against the model first; and the number of
        tokens that count against the model.

    Raises:
        InputError: the method of the run does not grade tokens.
    """
    judged = _compared_tokens(run, fail_on, baseline)
    counted = sum(token.is_counted for token in judged)
    # A file in the repository is named by `path`, a file outside the repository by `outside`; see `Finding`.
    path: str | None
    outside: str | None
    if place is None:
        path, outside = place_of(run.path / store.TOKENS_FILE)
        line = 1
    else:
        path, line = place
        outside = None
    findings = []
    for token in judged:
        finding = Finding(
            rule=_STICKY_TOKEN.id,
            level=_level(token, is_over_limit=counted > max_tokens),
            message=_message(token),
            path=path,
            line=line,
            identity=(Path(run.model_name).name, token.row["token"]),
            properties=_properties(token),
            outside=outside,
        )
        findings.append(finding)
    return findings, counted


def _level(token: _JudgedToken, *, is_over_limit: bool) -> Level:
    """Return the level of a finding.

    Args:
        token: the sticky token.
        is_over_limit: whether more tokens count against the model than are tolerated.

    Returns:
        `Level.NOTE` for a token that is known from the baseline, `Level.ERROR` for a token that counts
        against the model if more tokens count than are tolerated, and `Level.WARNING` otherwise.
    """
    if token.change == "known":
        return Level.NOTE
    return Level.ERROR if token.is_counted and is_over_limit else Level.WARNING


def _compared_tokens(run: Run, fail_on: FailOn, baseline: Run | None) -> list[_JudgedToken]:
    """Compare each sticky token of a run with the baseline, and decide whether it counts against the model.

    Args:
        run: the run.
        fail_on: mildest grade that counts against the model.
        baseline: the run to compare with; None without a baseline.

    Returns:
        The sticky tokens of the run, each with its change since the baseline (``new``, ``worse`` or
        ``known``; None without a baseline), and with whether it counts against the model. Tokens that count
        come first.

    Raises:
        InputError: the method of the run does not grade tokens.
    """
    grades = _COUNTED_GRADES[fail_on]  # None if every sticky token counts, whatever its grade
    if grades and not run.is_profile:
        raise InputError(
            f"{run.path} is a run of the method {run.record.method}, which does not grade tokens: use "
            "--fail-on sticky, or detect with --method profile"
        )
    baseline_rows: dict[str, Mapping[str, Any]] = {}
    if baseline is not None:
        baseline_rows = {row["token"]: row for row in baseline.tokens.iter_rows(named=True)}
    judged = []
    for row in run.sticky.iter_rows(named=True):
        effects = _effects_of(row)
        baseline_row = baseline_rows.get(row["token"])
        baseline_effects = {} if baseline_row is None else _effects_of(baseline_row)
        change = None if baseline is None else _change(baseline_row, effects, baseline_effects)
        is_counted = change != "known" and (grades is None or row.get("severity") in grades)
        judged.append(_JudgedToken(row, effects, baseline_effects, change, is_counted))
    judged.sort(key=lambda token: not token.is_counted)
    return judged


def _change(
    baseline_row: Mapping[str, Any] | None,
    effects: dict[str, _Effect],
    baseline_effects: dict[str, _Effect],
) -> str:
    """Return how a sticky token has changed since the baseline.

    Args:
        baseline_row: the token's row in the baseline; None if the baseline lacks the token.
        effects: the token's measures in the run, keyed by column.
        baseline_effects: the token's measures in the baseline, keyed by column.

    Returns:
        ``known`` if no interval lies above the interval of the same measure in the baseline. Otherwise
        ``worse`` if the baseline flags the token, and ``new`` if not. A token is also ``new`` if the two
        runs have no measure of it in common.
    """
    shared = effects.keys() & baseline_effects.keys()
    if baseline_row is None or not shared:
        return "new"
    if all(effects[name].low <= baseline_effects[name].high for name in shared):
        return "known"
    return "worse" if baseline_row["verdict"] in FLAGGED else "new"


def _properties(token: _JudgedToken) -> dict[str, Any]:
    """Return the values of a sticky token for JSON and SARIF; missing values are None."""
    row = token.row
    properties = {name: row.get(name) for name in ("token_id", "token", "severity")}
    for name in _MEASURES:
        effect = token.effects.get(name)
        properties[name] = row.get(name)
        properties[f"{name}_low"] = None if effect is None else effect.low
        properties[f"{name}_high"] = None if effect is None else effect.high
    properties |= {"reason": row.get("reason"), "change": token.change}
    for name in _MEASURES:
        effect = token.baseline_effects.get(name)
        properties[f"baseline_{name}"] = None if effect is None else effect.value
    return properties


def _message(token: _JudgedToken) -> str:
    """Return a sentence with a sticky token's grade, the reason for it, and the change since the baseline."""
    row = token.row
    grade = f" ({row['severity']})" if row.get("severity") else ""
    message = f"the token {quoted(row['token'])} is sticky{grade}"
    if row.get("reason"):
        message += f": {row['reason']}"
    if token.change == "new":
        return f"{message}; new"
    if token.change is None:
        return message
    return f"{message}; {token.change}, in the baseline: {_in_words(token.baseline_effects)}"


def _in_words(effects: dict[str, _Effect]) -> str:
    """Write the measures of a token, such as ``60% erased, lift 0.7 SD``."""
    phrases = []
    if "erased" in effects:
        phrases.append(f"{percent(effects['erased'].value)} erased")
    if "lift_sd" in effects:
        phrases.append(f"lift {LIFT.text(effects['lift_sd'].value)}")
    return ", ".join(phrases)
