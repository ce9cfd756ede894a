"""Compare the sticky tokens of a run with a baseline, and decide which of them count against the model."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from stickytoken.detection.run import Run
from stickytoken.errors import InputError
from stickytoken.findings import Finding, Level, Rule, place_of
from stickytoken.gate._results import COUNTED_GRADES, FailOn
from stickytoken.intervals import Interval
from stickytoken.measurement import store
from stickytoken.measurement.resume import differences
from stickytoken.methods.measures import ERASED, MEASURES, PUSH
from stickytoken.settings.profile import PRECISION_SETTINGS
from stickytoken.words import percent, quoted

STICKY_TOKEN = Rule(
    "sticky-token",
    "No token of the model is sticky",
    "Copies of a sticky token hide a document from the queries that it answers, or push it into results "
    "where it does not belong. Explain the token with "
    "`stickytoken explain`, repair the model, or use a baseline to accept the known tokens of a model.",
    Level.ERROR,
)


def require_comparable(run: Run, baseline: Run) -> None:
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
    settings = differences(run.record.settings, baseline.record.settings)
    different = [name for name in settings if name not in ("seed", *PRECISION_SETTINGS)]
    if different:
        raise InputError(
            f"the baseline {baseline.path} and the run {run.path} have different settings "
            f"({', '.join(different)}): make both runs with the same settings"
        )


def _read_measures(row: Mapping[str, Any]) -> dict[str, Interval[float]]:
    intervals = {}
    for measure in MEASURES:
        value = row.get(measure.key)
        low = row.get(measure.low.key)
        high = row.get(measure.high.key)
        if value is not None and low is not None and high is not None:
            intervals[measure.key] = Interval(value, low, high)
    return intervals


class _Baseline(NamedTuple):
    """The tokens of the run to compare with."""

    rows: Mapping[str, Mapping[str, Any]]  # of tokens.parquet, keyed by token
    most_documents: int | None  # in which a token is measured that no step drops; None if none is

    @classmethod
    def of_run(cls, run: Run) -> _Baseline:
        rows = {row["token"]: row for row in run.tokens.iter_rows(named=True)}
        return cls(rows, run.most_documents)

    def read_measures(self, token: str) -> dict[str, Interval[float]]:
        """Return what was measured of a token to the end.

        A token that drops out after a few documents, or is only screened, has intervals so wide that nearly
        any value lies within.
        """
        if token not in self.rows:
            return {}
        row = self.rows[token]
        measures = _read_measures(row)
        if not row["confirmed"]:
            measures.pop(ERASED.key, None)
        if row["documents"] != self.most_documents:
            measures.pop(PUSH.key, None)
        return measures


class _JudgedToken(NamedTuple):
    """A sticky token, compared with the baseline."""

    row: Mapping[str, Any]  # the token's row in tokens.parquet
    measures: dict[str, Interval[float]]  # keyed by column
    baseline_measures: dict[str, Interval[float]]  # keyed by column; only those measured to the end
    change: str | None  # ``new``, ``worse`` or ``known``; None without a baseline
    is_counted: bool  # whether the token counts against the model


def judge_tokens(
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
        The findings, with the tokens that count against the model first; and their number.

    Raises:
        InputError: the method of the run does not grade tokens.
    """
    grades = COUNTED_GRADES[fail_on]  # None if every sticky token counts, whatever its grade
    if grades and not run.is_profile:
        raise InputError(
            f"{run.path} is a run of the method {run.record.method}, which does not grade tokens: use "
            "--fail-on sticky, or detect with --method profile"
        )
    known = None if baseline is None else _Baseline.of_run(baseline)
    judged = [_judge(run, row, known, grades) for row in run.sticky.iter_rows(named=True)]
    judged.sort(key=lambda token: not token.is_counted)  # keeps the order among equals: worst first
    counted = sum(token.is_counted for token in judged)
    # A file in the repository is named by `path`, a file outside the repository by `outside`; see `Finding`.
    path, outside = place_of(run.path / store.TOKENS_FILE)
    line = 1
    if place is not None:
        path, line = place
        outside = None
    findings = []
    for token in judged:
        level = Level.WARNING
        if token.change == "known":
            level = Level.NOTE
        elif token.is_counted and counted > max_tokens:
            level = Level.ERROR  # which makes the check fail
        finding = Finding(
            rule=STICKY_TOKEN.id,
            level=level,
            message=_describe(token),
            path=path,
            line=line,
            identity=(Path(run.model_name).name, token.row["token"]),
            properties=_list_properties(token),
            outside=outside,
        )
        findings.append(finding)
    return findings, counted


def _judge(
    run: Run,
    row: Mapping[str, Any],
    baseline: _Baseline | None,
    grades: Collection[str] | None,
) -> _JudgedToken:
    """Compare a sticky token with the baseline, and decide whether it counts against the model.

    ``row`` is the token's row in tokens.parquet. ``grades`` are the grades that count; None if every sticky
    token counts.
    """
    measures = _read_measures(row)
    baseline_measures: dict[str, Interval[float]] = {}
    change = None
    if baseline is not None:
        baseline_measures = baseline.read_measures(row["token"])
        thresholds = run.thresholds(row)
        # The columns of the measures that make the token sticky.
        flagging_keys = {measure.key for measure in MEASURES if measure.is_reached(row, thresholds)}
        change = _find_change(baseline.rows.get(row["token"]), measures, baseline_measures, flagging_keys)
    is_counted = change != "known" and (grades is None or row.get("severity") in grades)
    return _JudgedToken(row, measures, baseline_measures, change, is_counted)


def _find_change(
    baseline_row: Mapping[str, Any] | None,
    measures: dict[str, Interval[float]],
    baseline_measures: dict[str, Interval[float]],
    flagging_keys: set[str],
) -> str:
    """Return how a sticky token has changed since the baseline: ``new``, ``known`` or ``worse``.

    - ``new`` if the baseline lacks the token, or didn't measure to the end what flags it, or shares no
      measure with the run.
    - Otherwise ``known`` if no interval lies above the interval of the same measure in the baseline.
    - Otherwise ``worse`` if the token is sticky in the baseline, and ``new`` if not.

    Measures are keyed by their column; ``flagging_keys`` are the columns of the measures that flag the token.
    """
    shared_keys = measures.keys() & baseline_measures.keys()
    lacks_flagging_measure = bool(flagging_keys - baseline_measures.keys())
    if baseline_row is None or not shared_keys or lacks_flagging_measure:
        return "new"
    if all(measures[key].low <= baseline_measures[key].high for key in shared_keys):
        return "known"
    return "worse" if baseline_row["verdict"] == "sticky" else "new"


def _list_properties(token: _JudgedToken) -> dict[str, Any]:
    """Return what JSON and SARIF documents say about a token, with None for what was not measured."""
    row = token.row
    properties = {name: row.get(name) for name in ("token_id", "token", "severity")}
    for measure in MEASURES:
        interval = token.measures.get(measure.key)
        properties[measure.key] = row.get(measure.key)
        properties[measure.low.key] = None if interval is None else interval.low
        properties[measure.high.key] = None if interval is None else interval.high
    properties |= {"reason": row.get("reason"), "change": token.change}
    for measure in MEASURES:
        interval = token.baseline_measures.get(measure.key)
        properties[f"baseline_{measure.key}"] = None if interval is None else interval.value
    return properties


def _describe(token: _JudgedToken) -> str:
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
    baseline_values = []
    if ERASED.key in token.baseline_measures:
        baseline_values.append(f"{percent(token.baseline_measures[ERASED.key].value)} erased")
    if PUSH.key in token.baseline_measures:
        baseline_values.append(f"push {PUSH.text(token.baseline_measures[PUSH.key].value)}")
    return f"{message}; {token.change}, in the baseline: {', '.join(baseline_values)}"
