"""The gate for CI: decide whether a model and a set of documents can ship."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl

import stickytoken.measurement as store
from stickytoken.cleaning import SpanKind, document_counts
from stickytoken.data import LARGEST_UNKNOWN
from stickytoken.detection import detect, run as runs_of
from stickytoken.detection.run import Run, open_run
from stickytoken.detection.run_folder import FLAGGED, RunFolder, RunRecord
from stickytoken.encoders.endpoint import EndpointOptions, names_endpoint
from stickytoken.encoders.endpoint.encoder import EndpointEncoder
from stickytoken.encoders.loading import AnyModel, load_encoder
from stickytoken.errors import InputError, RunError, reading
from stickytoken.findings import Finding, Level, Rule, place_of
from stickytoken.machine import digest
from stickytoken.measurement import resume
from stickytoken.measurement.engine import Progress, ProgressCallback, ignore_progress
from stickytoken.methods import base, registry, wording
from stickytoken.validation import file_path, list_of, require_callable, shown, whole_number

if TYPE_CHECKING:
    from stickytoken.data.documents import DocumentSource

__all__ = ["Check", "FailOn", "Outcome", "check"]

_DEFAULT_FOLDER = Path("runs")


class Outcome(StrEnum):
    """What a gate decides."""

    PASSED = "passed"
    CLOSED = "closed"
    INCONCLUSIVE = "inconclusive"


class FailOn(StrEnum):
    """The lowest grade of sticky token that counts."""

    STICKY = "sticky"
    MILD = "mild"
    SERIOUS = "serious"
    SEVERE = "severe"


class CheckedDocuments(NamedTuple):
    collection: str
    searched: int
    counted: int  # documents that close the gate
    causes: Mapping[str, int]  # these by kind of finding
    found: int  # documents with findings of any kind
    kinds: Mapping[str, int]  # these by kind of finding


@dataclass(frozen=True, slots=True)
class Check:
    """The result of a check.

    Attributes:
        model: the model as the run names it.
        run: the run folder that the check rests on.
        fail_on: the least sticky token that counts.
        max_tokens: number of counted tokens to tolerate.
        counted: number of tokens that count.
        sticky: number of all sticky tokens of the run.
        baseline: the run folder that it was compared with; None without one.
        rules: what was looked for.
        findings: what was found, the worst first; one of level error closes the gate.
        incomplete: why the check cannot say that all is well, one reason each.
        notes: what a reader should know.
        documents: what documents were searched; None without any.
    """

    model: str
    run: Path
    fail_on: FailOn
    max_tokens: int
    counted: int
    sticky: int
    baseline: Path | None
    rules: tuple[Rule, ...]
    findings: tuple[Finding, ...]
    incomplete: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    documents: CheckedDocuments | None = None

    @property
    def outcome(self) -> Outcome:
        """Closed if too much counts, inconclusive if something could not be checked, else passed."""
        if any(finding.level is Level.ERROR for finding in self.findings):
            return Outcome.CLOSED
        return Outcome.INCONCLUSIVE if self.incomplete else Outcome.PASSED

    @property
    def passed(self) -> bool:
        """Whether everything was checked and nothing counts too much."""
        return self.outcome is Outcome.PASSED

    def __repr__(self) -> str:
        return f"<Check: {self.model}, {self.outcome.value}, {self.counted:,} counted, run in {self.run}>"

    def headline(self) -> str:
        """Say in one sentence how the check ended."""
        conditions = []
        if self.fail_on is not FailOn.STICKY:
            conditions.append(" or ".join(list(FailOn)[list(FailOn).index(self.fail_on) :]))
        if self.baseline is not None:
            conditions.append("new or worse than in the baseline")
        which = f" ({', '.join(conditions)})" if conditions else ""
        number = f"{self.counted:,}" if self.counted else "no"
        tokens = "token" if self.counted == 1 else "tokens"
        tolerated = f"; {self.max_tokens:,} tolerated" if self.max_tokens else ""
        said = f"{self.outcome.value}: {self.model} has {number} sticky {tokens}{which}{tolerated}"
        if self.documents is None:
            return said
        documents = self.documents
        counted, causes = document_counts(documents.counted, documents.searched, documents.causes)
        return f"{said}; {counted} {'fails' if documents.counted <= 1 else 'fail'}{causes}"

    def summary(self) -> dict[str, Any]:
        """The check in JSON values."""
        return {
            "outcome": self.outcome.value,
            "model": self.model,
            "run": str(self.run),
            "baseline": None if self.baseline is None else str(self.baseline),
            "fail_on": self.fail_on.value,
            "max": self.max_tokens,
            "counted": self.counted,
            "sticky": self.sticky,
            "documents": None if self.documents is None else self.documents._asdict(),
            "incomplete": list(self.incomplete),
            "notes": list(self.notes),
            "findings": [
                {
                    "rule": finding.rule,
                    "level": finding.level.value,
                    "message": finding.message,
                    "path": finding.path,
                    "line": finding.line,
                    "fingerprint": finding.fingerprint,
                    **finding.properties,
                }
                for finding in self.findings
            ],
        }


def check(  # noqa: PLR0913 - all of them keyword-only, one decision each
    source: AnyModel | Run,
    *,
    fail_on: FailOn | str = FailOn.STICKY,
    max_tokens: int = 0,
    baseline: Run | str | Path | None = None,
    documents: DocumentSource | None = None,
    column: str | None = None,
    fail_on_documents: Sequence[SpanKind | str] = (SpanKind.FLAGGED,),
    folder: str | Path = _DEFAULT_FOLDER,
    revision: str | None = None,
    place: tuple[str, int] | None = None,
    progress: ProgressCallback = ignore_progress,
) -> Check:
    """Check whether a model can ship.

    Args:
        source: a run, or a model: anything that `load_encoder` takes. Of a model, the newest run over the
            whole vocabulary is used that is proven to be of this very model; without one, a detection is run.
        fail_on: the least sticky token that counts: ``sticky`` (any), ``mild``, ``serious`` or ``severe``.
        max_tokens: number of counted tokens to tolerate.
        baseline: a run of the model as it was, or of another one; only tokens that are new or worse count,
            and only where the intervals of the two runs do not overlap.
        documents: anything that `stickytoken.scan` takes; a document with a cause of ``fail_on_documents``
            closes the gate, and one that cannot be read makes the check inconclusive.
        column: the column with the text of the documents.
        fail_on_documents: causes that close the gate: ``flagged``, ``special``, ``repetition`` and
            ``suspected``. Copies of a flagged token always do.
        folder: for a model: the folder that holds its runs, or a run folder.
        revision: for a name of a model on the hub: branch, tag or commit.
        place: file in the repository and line where findings are shown; None is the run's table of tokens.
        progress: told of every step of a detection.

    Returns:
        The result; only `Check.passed` means that all is well.

    Raises:
        InputError: an option that cannot be used, or a baseline that cannot be compared.
        ModelError: the model cannot be found or used.
        RunError: a run is damaged or not finished.
    """
    if column is not None and documents is None:
        raise InputError(f"column is {shown(column)} without documents: pass documents, or leave column out")
    closing = {SpanKind.FLAGGED.value}
    for cause in list_of("causes", "fail_on_documents", fail_on_documents):
        if cause not in list(SpanKind):
            raise InputError(f"fail_on_documents contains {shown(cause)}: use {', '.join(SpanKind)}")
        closing.add(SpanKind(cause).value)
    if fail_on not in list(FailOn):
        raise InputError(f"fail_on is {shown(fail_on)}: use {', '.join(FailOn)}")
    require_callable("progress", progress)
    max_tokens = whole_number("max_tokens", max_tokens, 0)
    if isinstance(documents, (str, Path)):
        from stickytoken.data.documents import NamedColumns, open_documents

        open_documents(documents, NamedColumns(column))  # refused before a run is made
    compared = None if baseline is None else open_run(baseline)
    folder = file_path("folder", folder)
    notes: list[str] = []
    if isinstance(source, Run):
        run = source
    elif isinstance(source, (str, Path)) and runs_of.is_run(source):
        run = open_run(source)
    else:
        run, notes = _run_of_model(source, folder, revision, progress)
    incomplete = _gaps(run)
    if compared is not None:
        _require_comparable(run, compared)
        incomplete += _gaps(compared, "the baseline")
    findings, counted = _judge_tokens(run, FailOn(fail_on), max_tokens, compared, place)
    rules, checked = [_STICKY_TOKEN], None
    if documents is not None:
        from stickytoken.scanning import scan as scans

        # Without a model, because effects change nothing about what closes the gate.
        scan = scans.scan_documents(run, documents, column=column, progress=progress)
        found = list(scans.scan_findings(scan, closing))
        failing = scans.with_kinds(scan, closing)
        checked = CheckedDocuments(
            collection=scan.record.documents,
            searched=scan.result.documents,
            counted=len(failing),
            causes=scans.counts_by_kind(failing, closing),
            found=len(scan.documents),
            kinds=scan.result.kinds,
        )
        incomplete += scans.incomplete(scan)
        rules += scans.RULES
        findings += found
    return Check(
        model=run.model_name,
        run=run.path,
        fail_on=FailOn(fail_on),
        max_tokens=max_tokens,
        counted=counted,
        sticky=len(run.sticky),
        baseline=None if compared is None else compared.path,
        rules=tuple(rules),
        findings=tuple(findings),
        incomplete=tuple(incomplete),
        notes=(*notes, *_remarks(run)),
        documents=checked,
    )


def _run_of_model(
    model: AnyModel, runs: Path, revision: str | None, progress: ProgressCallback
) -> tuple[Run, list[str]]:
    candidates, notes = _candidates(runs)
    if isinstance(model, str) and names_endpoint(model):
        # The same model must still answer there.
        for path, record in candidates:
            if record.model.name != model:
                continue
            loading = runs_of.recorded_loading(record)
            found = runs_of.load_recorded_endpoint(model, loading, EndpointOptions())
            same = runs_of.model_difference(record, found.identity) == []
            if same and isinstance(found, EndpointEncoder):
                found.require_same_model()
                return open_run(path), notes
        raise InputError(
            f"{runs} has no run of {model} over its whole vocabulary: detect it first, which shows what it "
            "costs"
        )
    files = runs_of.look_at_model(str(model), revision) if isinstance(model, (str, Path)) else None
    if candidates and files is not None and (fingerprint := files.fingerprint()) is not None:
        for path, record in candidates:
            if runs_of.is_model_of(path, record, fingerprint):
                return open_run(path), notes
    progress(Progress("load", 0, 1))
    # The options of names fit no object, which load_encoder says best itself.
    encoder = load_encoder(model) if revision is None else load_encoder(model, revision=revision)  # type: ignore[arg-type]
    progress(Progress("load", 1, 1))
    for path, record in candidates:
        if runs_of.model_difference(record, encoder.identity) == []:
            runs_of.record_model(path, record, files)
            return open_run(path), notes
    if RunFolder(runs).holds_run():
        raise RunError(
            f"the run in {runs} is of a different model than {encoder.name!r}, or not a whole run of the "
            "default method: pass the folder of your runs, or check the run itself"
        )
    out = None
    if runs != _DEFAULT_FOLDER:
        identity = digest([asdict(encoder.identity), resume.package_versions()["stickytoken"]])
        out = runs / store.default_folder(encoder.name, "check", identity).name
    run = detect(encoder, out=out, progress=progress)
    runs_of.record_model(run.path, run.record, files)
    return run, notes


def _candidates(runs: Path) -> tuple[list[tuple[Path, RunRecord]], list[str]]:
    # The finished runs of the default method over a whole vocabulary, newest first.
    method = registry.choose_method(None, None, pairs_given=False).entry.name
    with reading(f"the folder of runs {runs}", RunError):
        whole_folder = RunFolder(runs).holds_run()
        paths = [runs] if whole_folder else sorted(path.parent for path in runs.glob("*/run.json"))
    found, notes = [], []
    for path in paths:
        try:
            record = RunFolder(path).read_run()
        except RunError as error:
            notes.append(f"skipped: {error}")
            continue
        whole = record.identity_parts.get("tokens") is None and record.tokens == record.model.available
        if record.method == method and record.result is not None and whole:
            found.append((path, record))
    return sorted(found, key=lambda candidate: candidate[1].started, reverse=True), notes


def _gaps(run: Run, whose: str = "the run") -> list[str]:
    found = []
    tokens, record = run.tokens, run.record
    if record.identity_parts.get("tokens") is not None or record.tokens < run.available:
        found.append(
            f"{whose} in {run.path} covered {record.tokens:,} of {run.available:,} available tokens: "
            "detect without --sample and --tokens"
        )
    if len(tokens) != record.tokens or tokens["token_id"].n_unique() != len(tokens):
        found.append(
            f"{run.path} has {len(tokens):,} rows in tokens.parquet for {record.tokens:,} tokens: delete the "
            "folder and detect again"
        )
    if len(run.sticky) != run.result.sticky:
        found.append(
            f"{run.path} has {len(run.sticky):,} sticky tokens in tokens.parquet and "
            f"{run.result.sticky:,} in run.json: delete the folder and detect again"
        )
    needed = [*(["lift"] if run.method.measures_lift else []), "verdict"]
    meant = tokens
    if "copies_seen" in tokens.columns:  # entries that texts do not spell have no verdict
        meant = tokens.filter(pl.col("verdict").is_not_null() | (pl.col("copies_seen") >= 0.5))
    if run.method.judges_every_token and (lacking := max(meant[name].is_null().sum() for name in needed)):
        found.append(
            f"{whose} in {run.path} has no verdict on {lacking:,} of {len(tokens):,} tokens: too few texts "
            f"of {record.corpus.source} are unrelated; use more sentences, on more varied subjects"
        )
    verdicts = {verdict.value for verdict in run.method.verdicts}
    unknown = tokens.filter(pl.col("verdict").is_not_null() & ~pl.col("verdict").is_in(verdicts))
    if len(unknown):
        found.append(
            f"{run.path} has verdicts that the method {record.method} does not give: delete the folder and "
            "detect again"
        )
    if (record.corpus.unknown or 0) > LARGEST_UNKNOWN:
        found.append(
            f"the model cannot read {record.corpus.unknown:.0%} of {record.corpus.source}: detect with "
            "sentences in a language that it reads"
        )
    return found


def _remarks(run: Run) -> list[str]:
    found = list(run.method.notes(run))
    loading = run.record.model.loading
    defaults = base.adjusted_defaults(
        run.method.settings(), loading is not None and loading.endpoint is not None
    )
    changed = []
    for name, value in run.record.settings.items():
        default = getattr(defaults, name, value)
        if name != "seed" and (list(default) if isinstance(default, tuple) else default) != value:
            changed.append(f"{name} {value}")
    if changed:
        found.append(f"the run used non-default settings: {', '.join(changed)}")
    return found


class _Effect(NamedTuple):
    """A measured effect with its interval."""

    value: float
    low: float
    high: float


# The measures of a token, by their column in tokens.parquet.
_MEASURES = ("erased", "lift_sd")


def _effects_of(row: Mapping[str, Any]) -> dict[str, _Effect]:
    """Read the measures of a token that have an interval."""
    effects = {}
    for name in _MEASURES:
        value, low, high = row.get(name), row.get(f"{name}_low"), row.get(f"{name}_high")
        if value is not None and low is not None and high is not None:
            effects[name] = _Effect(value, low, high)
    return effects


def _require_comparable(run: Run, baseline: Run) -> None:
    if run.record.method != baseline.record.method:
        raise InputError(
            f"the baseline {baseline.path} used the method {baseline.record.method}, the run in {run.path} "
            f"used {run.record.method}: detect both with the same method"
        )
    if "lift_sd_low" not in run.method.columns:
        raise InputError(
            f"the baseline {baseline.path} used the method {baseline.record.method}, which measures no "
            "intervals to compare: detect with --method profile"
        )
    if run.record.identity_parts.get("corpus") != baseline.record.identity_parts.get("corpus"):
        raise InputError(
            f"the baseline {baseline.path} was measured on {baseline.record.corpus.source}, the run in "
            f"{run.path} on other texts, {run.record.corpus.source}: detect both on the same sentences"
        )
    # Settings of how closely tokens are measured change only the noise.
    names = {*run.record.settings, *baseline.record.settings} - {"seed", *run.method.effort}
    # A run from before a setting was added has its default.
    if different := sorted(name for name in names if run.settings.text(name) != baseline.settings.text(name)):
        raise InputError(
            f"the baseline {baseline.path} was measured with other settings than {run.path} "
            f"({', '.join(different)}): detect both with the same ones"
        )


_STICKY_TOKEN = Rule(
    "sticky-token",
    "No token of the model is sticky",
    "Copies of a sticky token erase what a text says, or move it closer to unrelated texts, so that a "
    "document is no longer found or turns up in searches for other things. Explain the token with "
    "`stickytoken explain`, repair the model, or use a baseline to accept the known tokens of a model.",
    Level.ERROR,
)
_COUNTED_GRADES = {
    FailOn.STICKY: None,
    FailOn.MILD: {"mild", "serious", "severe"},
    FailOn.SERIOUS: {"serious", "severe"},
    FailOn.SEVERE: {"severe"},
}


class _JudgedToken(NamedTuple):
    """A sticky token, and what the baseline says of it."""

    row: Mapping[str, Any]  # of tokens.parquet
    effects: dict[str, _Effect]
    baseline_effects: dict[str, _Effect]
    change: str | None  # new, worse or known; None without a baseline
    counts: bool


def _judge_tokens(
    run: Run, fail_on: FailOn, max_tokens: int, baseline: Run | None, place: tuple[str, int] | None
) -> tuple[list[Finding], int]:
    """Turn the sticky tokens of a run into findings; return them, and how many count.

    A token that counts is an error if more than the tolerated number do, and otherwise a warning. A milder
    one is a warning too, and one that the baseline has as well a note.
    """
    grades = _COUNTED_GRADES[fail_on]
    if grades is not None and "severity" not in run.method.columns:
        raise InputError(
            f"{run.path} is a run of the method {run.record.method}, which does not grade tokens: use "
            "--fail-on sticky, or detect with --method profile"
        )
    known = {} if baseline is None else {row["token"]: row for row in baseline.tokens.iter_rows(named=True)}
    judged = []
    for row in run.sticky.iter_rows(named=True):
        effects = _effects_of(row)
        earlier = known.get(row["token"])
        baseline_effects = {} if earlier is None else _effects_of(earlier)
        change = None if baseline is None else _change(earlier, effects, baseline_effects)
        counts = change != "known" and (grades is None or row["severity"] in grades)
        judged.append(_JudgedToken(row, effects, baseline_effects, change, counts))
    judged.sort(key=lambda token: not token.counts)  # those that count come first
    counted = sum(token.counts for token in judged)
    path: str | None
    outside: str | None = None
    if place is not None:
        path, line = place
    else:
        path, outside = place_of(run.path / store.TOKENS_FILE)
        line = 1
    findings = []
    for token in judged:
        if token.change == "known":
            level = Level.NOTE
        elif token.counts and counted > max_tokens:
            level = Level.ERROR
        else:
            level = Level.WARNING
        identity = (Path(run.model_name).name, token.row["token"])
        message, properties = _message(token), _properties(token)
        findings.append(Finding(_STICKY_TOKEN.id, level, message, path, line, identity, properties, outside))
    return findings, counted


def _change(
    earlier: Mapping[str, Any] | None, effects: dict[str, _Effect], baseline_effects: dict[str, _Effect]
) -> str:
    """Compare a sticky token with the baseline: only an interval above the baseline's is a change.

    A token whose effects are not known in both runs cannot be compared: it is new.
    """
    shared = effects.keys() & baseline_effects.keys()
    if earlier is None or not shared:
        return "new"
    if all(effects[name].low <= baseline_effects[name].high for name in shared):
        return "known"
    return "worse" if earlier["verdict"] in FLAGGED else "new"


def _properties(token: _JudgedToken) -> dict[str, Any]:
    """Return what JSON and SARIF say of a sticky token."""
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
    """Say in a sentence what was found."""
    row = token.row
    grade = f" ({row['severity']})" if row.get("severity") else ""
    message = f"the token {wording.quoted(row['token'])} is sticky{grade}"
    if row.get("reason"):
        message += f": {row['reason']}"
    if token.change == "new":
        return f"{message}; new"
    if token.change is None:
        return message
    return f"{message}; {token.change}, in the baseline: {_in_words(token.baseline_effects)}"


def _in_words(effects: dict[str, _Effect]) -> str:
    parts = []
    if "erased" in effects:
        parts.append(f"{wording.percent(effects['erased'].value)} erased")
    if "lift_sd" in effects:
        parts.append(f"lift {wording.in_sd(effects['lift_sd'].value)}")
    return ", ".join(parts)
