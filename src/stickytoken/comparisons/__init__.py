"""Runs of several models side by side: what they found, and what can be compared."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from stickytoken.detection import IDENTITY_VERSION, drawn_ids
from stickytoken.detection.run import Run, open_run
from stickytoken.detection.run_folder import LoadingRecord, is_flagged
from stickytoken.errors import InputError, RunError
from stickytoken.methods import Column, Scale, wording
from stickytoken.methods.wording import ERASED, LIFT, MEASURES
from stickytoken.repairs.result import finished_repair, repairs_in
from stickytoken.validation import list_of
from stickytoken.vocabulary import Category

__all__ = ["Comparison", "compare"]


class Examined(StrEnum):
    WHOLE = "all available tokens"
    SAMPLE = "a random sample"
    CHOSEN = "chosen tokens"


class WorstToken(NamedTuple):
    """The token with the largest value of a measure."""

    token_id: int
    token: str
    verdict: str | None  # of the run
    severity: str | None  # None if it is not flagged
    value: float
    low: float | None  # ends of its interval; None where the run has none
    high: float | None


class Quantiles(NamedTuple):
    """How a measure is distributed over the tokens of a run."""

    median: float
    high: float  # 99th percentile


class ComparedRun:
    def __init__(self, name: str, run: Run) -> None:
        self.name = name
        self.run = run
        self.scale: Scale | None = run.method.scale(run)
        # The share of sticky tokens has an interval even where lifts have none.
        self.confidence = 0.9 if self.scale is None else self.scale.confidence
        encoder = run.record.identity_parts.get("encoder")
        self.encoder: dict[str, Any] = encoder if isinstance(encoder, dict) else {}

    @cached_property
    def examined(self) -> Examined:
        if len(self.run.tokens) == self.run.available:
            return Examined.WHOLE
        available = pl.col("category").is_in([category.value for category in Category if category.available])
        ids = self.run.vocabulary.filter(available)["token_id"].sort().to_list()
        own, seed = self.run.tokens["token_id"].sort().to_list(), int(self.run.settings.number("seed"))
        # A sample is what `detect --sample` draws with this seed.
        is_sample = len(own) <= len(ids) and drawn_ids(ids, len(own), seed) == own
        return Examined.SAMPLE if is_sample else Examined.CHOSEN

    @cached_property
    def erases_most(self) -> WorstToken | None:
        """The token whose copies erase most; None where the method does not measure it."""
        return self._largest(ERASED)

    @cached_property
    def lifts_most(self) -> WorstToken | None:
        """The token with the largest lift in standard deviations; None where the method has no such scale."""
        return self._largest(LIFT)

    def _largest(self, measure: Column) -> WorstToken | None:
        """Find the largest value of a measure among the tokens that were measured closely."""
        tokens = self.run.tokens
        if measure.key not in tokens.columns:
            return None
        known = tokens.drop_nulls(measure.key)
        if "confirmed" in known.columns and known["confirmed"].any():
            # Runs of an older rule also flagged tokens that they had measured less closely.
            known = known.filter(pl.col("confirmed") | is_flagged())
        if known.is_empty():
            return None
        row = known.sort(measure.key, "token_id", descending=[True, False]).row(0, named=True)
        return WorstToken(
            row["token_id"],
            row["token"],
            row["verdict"],
            row.get("severity"),
            row[measure.key],
            row.get(f"{measure.key}_low"),
            row.get(f"{measure.key}_high"),
        )

    @cached_property
    def share(self) -> tuple[float, float, float] | None:
        """Share of sticky tokens with its exact interval (Clopper and Pearson 1934, Biometrika 26:404)."""
        from scipy.stats import binomtest

        if self.examined is Examined.CHOSEN:
            return None
        share = binomtest(len(self.run.sticky), len(self.run.tokens))
        low, high = share.proportion_ci(self.confidence)
        return float(share.statistic), float(low), float(high)

    @cached_property
    def repair(self) -> str:
        """Whether the model is itself repaired, or else the state of the latest repair in the run folder."""
        try:
            record = finished_repair(Path(self.run.model_name))
        except (RunError, OSError, ValueError):  # damaged, or a name that is no path
            record = None
        if record is not None and record.identity_parts.get("encoder") != self.encoder:
            return "is itself repaired"
        records, _ = repairs_in(self.run.path)
        return records[0].state if records else "no"

    def quantiles(self, measure: Column) -> Quantiles | None:
        """Return median and 99th percentile of a measure; None where the run does not have it."""
        if measure.key not in self.run.tokens.columns:
            return None
        known = self.run.tokens[measure.key].drop_nulls()
        if known.is_empty():
            return None
        median, high = np.quantile(known.to_numpy(), (0.5, 0.99))
        return Quantiles(float(median), float(high))


def tone_of(sticky: pl.DataFrame) -> str:
    """Return the severity of the worst of some sticky tokens, or ``clean`` without any."""
    if sticky.is_empty():
        return "clean"
    if "severity" not in sticky.columns:
        return "serious"
    severities = set(sticky["severity"])
    for severity in ("severe", "serious"):
        if severity in severities:
            return severity
    return "mild"


def short_headline(run: Run) -> str:
    """Return the headline of a run with the short name of its model."""
    return run.method.headline(run).replace(run.model_title, run.record.model.title)


def rule_lines(run: Run) -> list[str]:
    """Return the rule of a run and remarks on it, without what its headline says."""
    headline = run.method.headline(run)
    return [line for line in run.method.lines(run) if line not in headline]


@dataclass(frozen=True)
class Agreement:
    first: str  # name of one run
    second: str  # name of the other
    shared: int  # tokens that both looked at, by vocabulary string
    sticky_in_both: int  # of them, those that both call sticky
    jaccard: float | None  # those over the ones that either calls sticky; None where neither does
    # Rank correlations of erased shares and of lifts; None where too few tokens have one in both
    spearman_erased: float | None
    spearman_lift: float | None


class TokenInRun(NamedTuple):
    """What a run says of a token; None where it does not say it."""

    erased: float | None
    lift_sd: float | None
    verdict: str | None


@dataclass(frozen=True)
class ComparedToken:
    token: str  # its text
    in_runs: Sequence[TokenInRun]  # one for each run


def compared_tokens(runs: Sequence[ComparedRun]) -> tuple[ComparedToken, ...]:
    """Collect every token that a run calls sticky; those that most runs flag come first."""
    rows_by_token = [_in_run(compared) for compared in runs]
    names: set[str] = set()
    for compared in runs:
        names.update(compared.run.sticky["token"])
    unknown = TokenInRun(None, None, None)
    tokens = [
        ComparedToken(name, [rows.get(name, unknown) for rows in rows_by_token]) for name in sorted(names)
    ]
    return tuple(sorted(tokens, key=_rank))


def _in_run(compared: ComparedRun) -> dict[str, TokenInRun]:
    """Return what a run says of its tokens, by vocabulary string."""
    tokens = with_measures(compared.run.tokens)
    rows = tokens.select("token", *TokenInRun._fields).iter_rows()
    return {token: TokenInRun(*numbers) for token, *numbers in rows}


def with_measures(tokens: pl.DataFrame) -> pl.DataFrame:
    """Add the measures of the rule with their intervals, null where the method does not have them."""
    missing = []
    for measure in MEASURES:
        for end in ("", "_low", "_high"):
            name = f"{measure.key}{end}"
            if name not in tokens.columns:
                missing.append(pl.lit(None, dtype=pl.Float64).alias(name))
    return tokens.with_columns(missing)


def _rank(token: ComparedToken) -> tuple[int, float, float]:
    """Order tokens by the number of runs that flag them, then by their largest erased share and lift."""
    flagged = sum(in_run.verdict == "sticky" for in_run in token.in_runs)
    erased = [in_run.erased for in_run in token.in_runs if in_run.erased is not None]
    lifts = [in_run.lift_sd for in_run in token.in_runs if in_run.lift_sd is not None]
    return -flagged, -max(erased, default=0.0), -max(lifts, default=0.0)


# Fewer tokens in common have no rank correlation worth showing.
_FEWEST_RANKED = 20


def agreement(first: ComparedRun, second: ComparedRun) -> Agreement:
    """Compare the verdicts and measures of two runs, over the tokens that both examined."""
    columns = ("token", "verdict", "erased", "lift_sd")
    left = with_measures(first.run.tokens).select(columns).unique("token")
    right = with_measures(second.run.tokens).select(columns).unique("token")
    both = left.join(right, on="token", suffix="_other")
    sticky_in_first = both["verdict"].fill_null("") == "sticky"
    sticky_in_second = both["verdict_other"].fill_null("") == "sticky"
    in_both = int((sticky_in_first & sticky_in_second).sum())
    in_either = int((sticky_in_first | sticky_in_second).sum())
    return Agreement(
        first.name,
        second.name,
        len(both),
        in_both,
        in_both / in_either if in_either else None,
        _spearman(both.select("erased", "erased_other")),
        _spearman(both.select("lift_sd", "lift_sd_other")),
    )


def _spearman(columns: pl.DataFrame) -> float | None:
    """Compute the rank correlation of two columns; None where it is undefined or rests on few rows."""
    from scipy.stats import spearmanr

    known = columns.drop_nulls()
    is_constant = min(column.n_unique() for column in known) <= 1
    if len(known) < _FEWEST_RANKED or is_constant:
        return None
    return float(spearmanr(*known).statistic)


# Below this share of anchors in common, two runs measured on different texts.
_SAME_TEXTS = 0.9


class Measure(StrEnum):
    ERASED = "largest erased share"
    LIFT = "largest lift"
    SHARE = "sticky tokens per 10,000"


class Answer(StrEnum):
    YES = "comparable"
    CARE = "with care"
    NO = "not comparable"


class Reason(NamedTuple):
    answer: Answer  # how much
    said: str  # one sentence, without a full stop
    measures: tuple[Measure, ...] = tuple(Measure)  # those that it affects


class Comparability(NamedTuple):
    answers: dict[Measure, Answer]  # by measure, for all runs together
    reasons: tuple[Reason, ...]  # the gravest first; empty if nothing stands in the way


def _reasons(runs: Sequence[ComparedRun]) -> Iterator[Reason]:
    worst = (Measure.ERASED, Measure.LIFT)
    if groups := _differing(runs, lambda compared: compared.run.record.method):
        said = f"the methods differ ({groups}), and their verdicts follow different rules"
        yield Reason(Answer.NO, f"{said}: compare only which tokens they flag")
    if without := [compared.name for compared in runs if compared.scale is None]:
        yield Reason(Answer.NO, f"the method of {listed(without)} does not measure it", worst)
    yield from _texts(runs)
    yield from _settings(runs)
    for compared in runs:
        count = f"{len(compared.run.tokens):,} of {compared.run.available:,} available tokens"
        if compared.examined is Examined.SAMPLE:
            said = (
                f"{compared.name}: only a random sample, {count}, was examined, so there may be a worse token"
            )
            yield Reason(Answer.CARE, said, worst)
            said = f"{compared.name}: the share is estimated from a random sample, {count}"
            yield Reason(Answer.CARE, said, (Measure.SHARE,))
        elif compared.examined is Examined.CHOSEN:
            said = (
                f"{compared.name}: only chosen tokens, {count}, were examined; they say nothing of the others"
            )
            yield Reason(Answer.NO, said)
    if groups := _differing(runs, lambda compared: str(compared.run.record.identity_parts.get("version"))):
        said = f"the runs were computed by different versions of the method ({groups}), which give somewhat"
        yield Reason(Answer.CARE, f"{said} different numbers: detect again to rely on small differences")
    yield from _use(runs)
    if _differing(runs, lambda compared: str(compared.encoder.get("tokenizer"))):
        sizes = sorted(compared.run.available for compared in runs)
        said = f"the vocabularies differ ({sizes[0]:,} to {sizes[-1]:,} available tokens), and a share of a"
        yield Reason(Answer.CARE, f"{said} vocabulary is not a share of text", (Measure.SHARE,))


def _texts(runs: Sequence[ComparedRun]) -> Iterator[Reason]:
    if groups := _differing(runs, lambda compared: compared.run.record.corpus.source):
        yield Reason(
            Answer.NO, f"the runs used different texts ({groups}), and both measures depend on the texts"
        )
        return
    if (
        len({compared.run.record.method for compared in runs}) > 1
    ):  # each takes its own fingerprint of a corpus
        return
    if _differing(runs, lambda compared: str(compared.run.record.identity_parts.get("corpus"))):
        source = runs[0].run.record.corpus.source
        said = f"the sentences from {source} were not the same, and both measures depend on them"
        yield Reason(Answer.NO, said)
        return
    anchors = [set(compared.run.method.texts(compared.run.plan).anchors) for compared in runs]
    shared = len(set.intersection(*anchors)) / max(1, min(map(len, anchors)))
    if shared >= _SAME_TEXTS:
        return
    # Runs that share most anchors with the first run of their group.
    alike: list[tuple[set[str], list[str]]] = []
    for compared, own in zip(runs, anchors, strict=True):
        for first, names in alike:
            if len(first & own) >= _SAME_TEXTS * min(len(first), len(own)):
                names.append(compared.name)
                break
        else:
            alike.append((own, [compared.name]))
    groups = "; ".join(listed(names) for _, names in alike)
    said = f"the runs measured on different choices of the same texts ({groups}); {shared:.0%} of these"
    yield Reason(Answer.CARE, f"{said} are the same")


def _settings(runs: Sequence[ComparedRun]) -> Iterator[Reason]:
    if len({compared.run.record.method for compared in runs}) > 1:
        return
    # A run of an earlier version may have settings that its method no longer has.
    known = {field.name for field in fields(runs[0].run.method.settings)}
    for name in sorted({name for compared in runs for name in compared.run.settings.values} & known):
        groups = _differing(runs, lambda compared, name=name: compared.run.settings.text(name))  # type: ignore[misc]
        values = f"({name.replace('_', ' ')}: {groups})"
        if not groups:
            continue
        if name == "seed":
            said = f"the runs made different random choices {values}: small differences mean nothing"
            yield Reason(Answer.CARE, said)
        elif name in runs[0].run.method.effort:
            yield Reason(Answer.CARE, f"the runs measured with different effort {values}")
        else:
            yield Reason(Answer.NO, f"the settings differ {values}: detect with the same settings")


def _use(runs: Sequence[ComparedRun]) -> Iterator[Reason]:
    if groups := _differing(runs, _prompt):
        said = f"the prompts differ ({groups}): a prompt is part of the model that was measured"
        yield Reason(Answer.CARE, said)
    if groups := _differing(runs, lambda compared: str(compared.encoder.get("dtype"))):
        yield Reason(Answer.CARE, f"the models computed in different precisions ({groups})")
    for first, second in combinations(runs, 2):
        ours, theirs = first.encoder, second.encoder
        if not ours or ours.get("weights") != theirs.get("weights"):
            continue
        names = {"dimension": "length of the vectors", "modules": "pooling or other modules"}
        names |= {"max_length": "max length"}
        if ours.get("dimension") != theirs.get("dimension"):
            del names["modules"]  # they include where vectors are truncated
        if used := [said for name, said in names.items() if ours.get(name) != theirs.get(name)]:
            said = f"{first.name} and {second.name} have the same weights, used differently"
            yield Reason(Answer.CARE, f"{said} ({', '.join(used)})")
    for compared in runs:
        loading = compared.run.record.model.loading
        if loading is not None and loading.endpoint is not None:
            said = f"{compared.name} was measured through an endpoint"
            yield Reason(Answer.CARE, f"{said}, whose vectors may be rounded and may change")


def _prompt(compared: ComparedRun) -> str:
    loading: LoadingRecord | None = compared.run.record.model.loading
    if loading is not None and loading.prompt:
        extra = " with token prepending" if loading.token_prepending else ""
        return f"{loading.prompt}{extra}{' with contrast' if loading.contrast else ''}"
    stored: Any = compared.encoder.get("prompt")
    return "none" if not stored else stored if isinstance(stored, str) else json.dumps(stored)


def _differing(runs: Sequence[ComparedRun], value: Callable[[ComparedRun], str]) -> str:
    groups: dict[str, list[str]] = {}
    for compared in runs:
        groups.setdefault(value(compared), []).append(compared.name)
    said = [f"{found}: {listed(names)}" for found, names in groups.items()]
    return "" if len(said) == 1 else "; ".join(said)


def listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


PER = 10_000

READING = {
    "erases most": "The token whose copies erase the largest share of what an ordinary token leaves of a "
    "text. Its interval is that of this one token over texts; that it is the largest of many is not in it.",
    "lifts most": "The token whose copies move unrelated texts closest together, beyond an ordinary token, "
    "in standard deviations of the model's own similarities. Its interval is of the same kind.",
    "sticky tokens per 10,000": "Of the available tokens. The interval is exact (Clopper and Pearson 1934). "
    "It treats the examined tokens as draws: a sample from its vocabulary, a whole vocabulary from others "
    "that could have been built. Wrong verdicts are not in it.",
    "repaired copy": "Whether the run folder records a repaired copy of the model, and whether that was "
    "verified.",
}
# Columns of the table of a comparison that may be null, in the order of `WorstToken`.
_ERASES_MOST: dict[str, type[pl.DataType]] = {
    "erases_most_token_id": pl.Int64,
    "erases_most_token": pl.String,
    "erases_most_verdict": pl.String,
    "erases_most_severity": pl.String,
    "erased": pl.Float64,
    "erased_low": pl.Float64,
    "erased_high": pl.Float64,
}
_LIFTS_MOST: dict[str, type[pl.DataType]] = {
    "lifts_most_token_id": pl.Int64,
    "lifts_most_token": pl.String,
    "lifts_most_verdict": pl.String,
    "lifts_most_severity": pl.String,
    "lift_sd": pl.Float64,
    "lift_sd_low": pl.Float64,
    "lift_sd_high": pl.Float64,
}
_SHARE: dict[str, type[pl.DataType]] = dict.fromkeys(
    ("sticky_per_10000", "sticky_per_10000_low", "sticky_per_10000_high"), pl.Float64
)


def _cells(columns: Mapping[str, Any], values: Sequence[Any] | None) -> dict[str, Any]:
    """Pair column names with values; without values, every column is null."""
    if values is None:
        return dict.fromkeys(columns)
    return dict(zip(columns, values, strict=True))


@dataclass(frozen=True)
class Comparison:
    """Finished runs side by side, in the order that they were passed in.

    Attributes:
        runs: the runs with their names.
        comparability: what can be compared between them.
        agreements: one per pair of runs.
        tokens: every token that a run calls sticky; those that most runs flag, and most strongly, first.
    """

    runs: tuple[ComparedRun, ...]
    comparability: Comparability
    agreements: tuple[Agreement, ...]
    tokens: tuple[ComparedToken, ...]

    def __repr__(self) -> str:
        return f"<Comparison: {', '.join(self.names)}>"

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the runs, distinct."""
        return tuple(compared.name for compared in self.runs)

    @property
    def table(self) -> pl.DataFrame:
        """One row per run with all numbers; what is not known is null."""
        rows = []
        for compared in self.runs:
            run = compared.run
            share = None if compared.share is None else [PER * part for part in compared.share]
            row = {
                "run": compared.name,
                "folder": str(run.path),
                "model": run.model_name,
                "method": run.record.method,
                "texts": run.record.corpus.source,
                "examined": len(run.tokens),
                "available": run.available,
                "selection": compared.examined.value,
            }
            row |= _cells(_ERASES_MOST, compared.erases_most)
            row |= _cells(_LIFTS_MOST, compared.lifts_most)
            row["sticky"] = len(run.sticky)
            row |= _cells(_SHARE, share)
            row["confidence"] = compared.confidence
            row["repair"] = compared.repair
            rows.append(row)
        return pl.DataFrame(rows, schema_overrides={**_ERASES_MOST, **_LIFTS_MOST, **_SHARE})

    @property
    def notes(self) -> list[str]:
        """What a reader should know before relying on single runs."""
        notes = []
        for compared in self.runs:
            version = compared.run.record.identity_parts.get("version")
            if isinstance(version, int) and version < IDENTITY_VERSION and not compared.run.is_of_older_rule:
                said = "made by an earlier version of the method: detect again for present verdicts"
                notes.append(f"{compared.name}: {said}")
        for compared in self.runs:
            notes += [f"{compared.name}: {note}" for note in compared.run.method.notes(compared.run)]
        return notes

    @property
    def basis(self) -> str:
        """Say what the intervals are."""
        levels = sorted({compared.confidence for compared in self.runs})
        percentages = " and ".join(f"{100 * level:.4g}%" for level in levels)
        return (
            f"intervals: {percentages}; of the erased share and the lift over texts, for that one token; of "
            "the share of sticky tokens exact (Clopper and Pearson 1934)"
        )

    def summary(self) -> dict[str, Any]:
        """Return the comparison as JSON values."""
        answers, reasons = self.comparability
        return {
            "runs": self.table.to_dicts(),
            "comparable": {measure.value: answer.value for measure, answer in answers.items()},
            "reasons": [
                {
                    "answer": reason.answer.value,
                    "said": reason.said,
                    "measures": [measure.value for measure in reason.measures],
                }
                for reason in reasons
            ],
            "notes": self.notes,
            "agreements": [asdict(agreement) for agreement in self.agreements],
            "tokens": [
                {"token": token.token, "runs": [in_run._asdict() for in_run in token.in_runs]}
                for token in self.tokens
            ],
            "reading": READING,
        }


def shown_reason(reason: Reason) -> str:
    if len(reason.measures) == len(Measure):
        return reason.said
    return f"{', '.join(measure.value for measure in reason.measures)}: {reason.said}"


def shown_token(worst: WorstToken | None) -> str:
    """Write a token with its severity, or its verdict if it has none."""
    if worst is None:
        return "-"
    return f"{wording.quoted(worst.token)} ({worst.severity or worst.verdict or 'not judged'})"


def shown_value(measure: Column, worst: WorstToken | None) -> str:
    """Write the value of a measure with its interval."""
    if worst is None:
        return "-"
    value = measure.text(worst.value)
    if worst.low is None or worst.high is None:
        return value
    return f"{value} ({shown_interval(measure, worst.low, worst.high)})"


def shown_interval(measure: Column, low: float, high: float) -> str:
    """Write the interval of a measure, with the unit at its end."""
    start = measure.text(low)
    if measure.unit != "%":
        start = start.removesuffix(measure.unit).rstrip()
    return f"{start} to {measure.text(high)}"


def shown_share(compared: ComparedRun) -> str:
    if compared.share is None:
        return "-"
    value, low, high = (PER * part for part in compared.share)
    return f"{value:.1f} ({low:.1f} to {high:.1f})"


_SHOWN: dict[str, Callable[[ComparedRun], str]] = {
    "run": lambda compared: compared.name,
    "method": lambda compared: compared.run.record.method,
    "examined": lambda compared: f"{len(compared.run.tokens):,} of {compared.run.available:,}",
    "erases most": lambda compared: shown_token(compared.erases_most),
    "erased": lambda compared: shown_value(ERASED, compared.erases_most),
    "lifts most": lambda compared: shown_token(compared.lifts_most),
    "lift": lambda compared: shown_value(LIFT, compared.lifts_most),
    "sticky per 10,000": shown_share,
    "repaired copy": lambda compared: compared.repair,
}
HEADINGS = tuple(_SHOWN)


def shown_rows(comparison: Comparison) -> list[Sequence[str]]:
    return [tuple(show(compared) for show in _SHOWN.values()) for compared in comparison.runs]


def compare(runs: Iterable[Run | str | Path]) -> Comparison:
    """Put finished runs side by side, in the order given. No model is needed.

    Args:
        runs: at least two runs or run folders, each once.

    Raises:
        InputError: fewer than two runs, or one twice.
        RunError: a folder that is no run, is damaged or is not finished.
    """
    opened = [open_run(run) for run in list_of("runs or run folders", "runs", runs)]
    if len(opened) < 2:
        raise InputError(
            f"a comparison needs two runs, and {len(opened)} was passed: pass another, or describe one with "
            "`stickytoken report`"
        )
    places = [run.path.resolve() for run in opened]
    if twice := [run.path for run, place in zip(opened, places, strict=True) if places.count(place) > 1]:
        raise InputError(f"the run {twice[0]} was passed twice: pass each run once")
    found = [ComparedRun(name, run) for name, run in zip(_names(opened), opened, strict=True)]
    reasons = sorted(_reasons(found), key=lambda compared: -list(Answer).index(compared.answer))
    answers = {
        measure: next((reason.answer for reason in reasons if measure in reason.measures), Answer.YES)
        for measure in Measure
    }
    agreements = tuple(agreement(*pair) for pair in combinations(found, 2))
    comparability = Comparability(answers, tuple(reasons))
    return Comparison(tuple(found), comparability, agreements, compared_tokens(found))


def _names(runs: Sequence[Run]) -> list[str]:
    names = [run.record.model.title for run in runs]
    folders = [f"{name} ({run.path.name})" for name, run in zip(names, runs, strict=True)]
    methods = [f"{name} ({run.record.method})" for name, run in zip(names, runs, strict=True)]
    for distinct in (names, [run.model_title for run in runs], methods, folders):
        if len(set(distinct)) == len(distinct):
            return distinct
    return [f"{place}: {name}" for place, name in enumerate(folders, start=1)]
