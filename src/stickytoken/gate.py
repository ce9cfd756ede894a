"""The gate for CI: decide whether a model and a set of documents can ship."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl

import stickytoken.measurement as store
from stickytoken.data import LARGEST_UNKNOWN
from stickytoken.detection import detect, run as runs_of
from stickytoken.detection.run import Run, open_run
from stickytoken.detection.run_folder import FLAGGED, RunFolder, RunRecord
from stickytoken.encoders.endpoint import EndpointOptions, names_endpoint
from stickytoken.encoders.endpoint.encoder import EndpointEncoder
from stickytoken.encoders.loading import AnyModel, load_encoder
from stickytoken.errors import InputError, RunError, reading
from stickytoken.findings import Finding, Level, Rule, repository_path
from stickytoken.machine import digest
from stickytoken.measurement import resume
from stickytoken.measurement.engine import Progress, ProgressCallback, ignore_progress
from stickytoken.methods import base, registry
from stickytoken.validation import file_path, require_callable, shown, visible, whole_number

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
    SERIOUS = "serious"
    SEVERE = "severe"


class CheckedDocuments(NamedTuple):
    collection: str
    searched: int
    counted: int


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
        found, searched = self.documents.counted or "none", self.documents.searched
        return f"{said}; {found} of {searched:,} documents with copies of one"

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


def check(
    source: AnyModel | Run,
    *,
    fail_on: FailOn | str = FailOn.STICKY,
    max_tokens: int = 0,
    baseline: Run | str | Path | None = None,
    documents: DocumentSource | None = None,
    column: str | None = None,
    folder: str | Path = _DEFAULT_FOLDER,
    revision: str | None = None,
    place: tuple[str, int] | None = None,
    progress: ProgressCallback = ignore_progress,
) -> Check:
    """Check whether a model can ship.

    Args:
        source: a run, or a model: anything that `load_encoder` takes. Of a model, the newest run over the
            whole vocabulary is used that is proven to be of this very model; without one, a detection is run.
        fail_on: the least sticky token that counts: ``sticky``, ``serious`` or ``severe``.
        max_tokens: number of counted tokens to tolerate.
        baseline: a run of the model as it was, or of another one; only tokens that are new or worse count,
            and only where the intervals of the two runs do not overlap.
        documents: anything that `stickytoken.scan` takes; a document with copies of a flagged token closes
            the gate, and one that cannot be read makes the check inconclusive.
        column: the column with the text of the documents.
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
    if fail_on not in list(FailOn):
        raise InputError(f"fail_on is {shown(fail_on)}: use {', '.join(FailOn)}")
    require_callable("progress", progress)
    max_tokens = whole_number("max_tokens", max_tokens, 0)
    if isinstance(documents, (str, Path)):
        from stickytoken.data.documents import Wanted, open_documents

        open_documents(documents, Wanted(column))  # refused before a run is made
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
    table = repository_path(run.path / store.TOKENS_FILE)
    where = place or ((None, None) if table is None else (table, 1))
    findings, counted = _judge_tokens(run, FailOn(fail_on), max_tokens, compared, where)
    rules, checked = [_STICKY_TOKEN], None
    if documents is not None:
        from stickytoken.scanning import scan as scans

        # Without a model, because effects change nothing about what closes the gate.
        scan = scans.scan_documents(run, documents, column=column, progress=progress)
        found = list(scans.scan_findings(scan))
        closing = sum(finding.level is Level.ERROR for finding in found)
        checked = CheckedDocuments(scan.record.documents, scan.result.documents, closing)
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


# Settings under which two runs measure the same thing: they change the noise or what is measured besides.
_FREE = {"seed", "budget", "confirming_texts", "reference"}
_FREE |= {"adaptive", "screen_precision", "dimensions", "layers"}


class _Effect(NamedTuple):
    """What a token does beyond an ordinary one, in standard deviations of the model's own similarities."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return "{:.2f} ({:.2f} to {:.2f})".format(*self)


def _effect_of(row: Mapping[str, Any], run: Run) -> _Effect | None:
    scale = run.method.scale(run)
    ends: list[Any] = [row.get(name) for name in ("lift", "lift_low", "lift_high")]
    if scale is None or None in ends:
        return None
    return _Effect(*((end - scale.ordinary) / scale.spread for end in ends))


def _require_comparable(run: Run, baseline: Run) -> None:
    if run.record.method != baseline.record.method:
        raise InputError(
            f"the baseline {baseline.path} used the method {baseline.record.method}, the run in {run.path} "
            f"used {run.record.method}: detect both with the same method"
        )
    if "lift_low" not in run.method.columns:
        raise InputError(
            f"the baseline {baseline.path} used the method {baseline.record.method}, which measures no "
            "intervals to compare: detect with --method profile"
        )
    if run.record.identity_parts.get("corpus") != baseline.record.identity_parts.get("corpus"):
        raise InputError(
            f"the baseline {baseline.path} was measured on {baseline.record.corpus.source}, the run in "
            f"{run.path} on other texts, {run.record.corpus.source}: detect both on the same sentences"
        )
    names = {*run.record.settings, *baseline.record.settings} - _FREE
    # A run from before a setting was added has its default.
    if different := sorted(name for name in names if run.settings.text(name) != baseline.settings.text(name)):
        raise InputError(
            f"the baseline {baseline.path} was measured with other settings than {run.path} "
            f"({', '.join(different)}): detect both with the same ones"
        )


_STICKY_TOKEN = Rule(
    "sticky-token",
    "No token of the model is sticky",
    "Copies of a sticky token in a text raise its similarity to unrelated texts, so that a document can be "
    "pushed into search results, or erase what the text says. Explain the token with "
    "`stickytoken explain`, repair the model, or use a baseline to accept the known tokens of a model.",
    Level.ERROR,
)
_COUNTED = {FailOn.STICKY: None, FailOn.SERIOUS: {"serious", "severe"}, FailOn.SEVERE: {"severe"}}


def _judge_tokens(
    run: Run, fail_on: FailOn, max_tokens: int, baseline: Run | None, place: tuple[str | None, int | None]
) -> tuple[list[Finding], int]:
    # A token that counts is an error if more than the tolerated number do, and otherwise a warning. One that
    # is milder is a warning too, and one that the baseline has as well a note.
    grades = _COUNTED[fail_on]
    if grades is not None and "severity" not in run.method.columns:
        raise InputError(
            f"{run.path} is a run of the method {run.record.method}, which does not grade tokens: use "
            "--fail-on sticky, or detect with --method profile"
        )
    known = {} if baseline is None else {row["token"]: row for row in baseline.tokens.iter_rows(named=True)}
    judged = []
    for row in run.sticky.iter_rows(named=True):
        effect, change, before = _effect_of(row, run), None, None
        if baseline is not None:
            earlier = known.get(row["token"])
            before = None if earlier is None else _effect_of(earlier, baseline)
            # Only an interval above that of the baseline is a change, of the lift or of what is erased. A
            # token without an effect cannot be compared: it counts.
            if earlier is None or before is None or effect is None:
                change = "new"
            elif effect.low <= before.high and not _erases_more(row, earlier):
                change = "known"
            else:
                change = "worse" if earlier["verdict"] in FLAGGED else "new"
        counts = change != "known" and (grades is None or row["severity"] in grades)
        judged.append((row, effect, change, before, counts))
    judged.sort(key=lambda each: not each[-1])
    counted = sum(counts for *_, counts in judged)

    def ends(name: str, effect: _Effect | None) -> dict[str, float | None]:
        return dict(zip((name, f"{name}_low", f"{name}_high"), effect or (None, None, None), strict=True))

    findings = []
    for row, effect, change, before, counts in judged:
        level = Level.ERROR if counts and counted > max_tokens else Level.WARNING
        if change == "known":
            level = Level.NOTE
        properties = {
            "token_id": row["token_id"],
            "token": row["token"],
            "severity": row.get("severity"),
            "lift": row["lift"],
            "reason": row.get("reason"),
            **ends("effect", effect),
            "change": change,
            **ends("baseline_effect", before),
        }
        message, identity = _message(row, effect, change, before), (Path(run.model_name).name, row["token"])
        findings.append(Finding(_STICKY_TOKEN.id, level, message, *place, identity, properties))
    return findings, counted


def _erases_more(row: Mapping[str, Any], earlier: Mapping[str, Any]) -> bool:
    if not row.get("erases") or earlier.get("erases"):
        return False
    before = earlier["contraction_high"]  # null in runs of earlier versions
    return bool(row["contraction_low"] > (earlier["contraction"] if before is None else before))


def _message(
    row: Mapping[str, Any], effect: _Effect | None, change: str | None, before: _Effect | None
) -> str:
    grade = f" ({row['severity']})" if row.get("severity") else ""
    said = f"the token {visible(repr(row['token']))} is sticky{grade}"
    if row.get("erases"):
        said += f": {row['reason']}"
    elif effect is not None:
        said += f": copies move unrelated texts together by {effect} standard deviations"
    elif row["lift"] is not None:
        said += f": copies raise the similarity of unrelated texts by {row['lift']:.4f}"
    if before is not None:
        return f"{said}; {change}, {before} in the baseline"
    return f"{said}; new" if change == "new" else said
