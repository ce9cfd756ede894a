"""Runs of several models side by side: what they found, and what can be compared."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from stickytoken.detection import IDENTITY_VERSION, drawn_ids
from stickytoken.detection.run import Run, open_run
from stickytoken.detection.run_folder import LoadingRecord, RunEvidence
from stickytoken.errors import InputError, RunError
from stickytoken.methods import Scale
from stickytoken.repairs.result import finished_repair, repairs_in
from stickytoken.validation import list_of, visible
from stickytoken.vocabulary import Category

__all__ = ["Comparison", "compare"]


class CopiesNeeded(NamedTuple):
    enough: int | None  # the fewest copies with a serious lift; None if no number that was tried is enough
    too_few: int | None  # the next smaller number that was tried; None if the smallest is enough

    def __str__(self) -> str:
        if self.enough is None:
            return f"more than {self.too_few}"
        if self.too_few is None or self.enough - self.too_few == 1:
            return str(self.enough)
        return f"{self.too_few + 1} to {self.enough}"


def copies_needed(evidence: RunEvidence, token_id: int, scale: Scale) -> CopiesNeeded | None:
    known = evidence.tokens.filter(pl.col("below").list.len() > 0)
    ordinary = known.filter("ordinary")["below"].to_list()
    own = known.filter(~pl.col("ordinary"), token_id=token_id)
    if own.is_empty() or not ordinary:
        return None
    curves = np.array([own["below"][0].to_list(), *ordinary], dtype=np.float64)
    rise, *rises = curves[:, 1:] - curves[:, :1]
    serious = (rise - np.mean(rises, axis=0)) / scale.spread >= scale.serious
    copies = own["copies"][0].to_list()[1:]
    if not serious.any():
        return CopiesNeeded(None, copies[-1])
    first = int(serious.argmax())
    return CopiesNeeded(copies[first], copies[first - 1] if first else None)


class Examined(StrEnum):
    WHOLE = "all available tokens"
    SAMPLE = "a random sample"
    CHOSEN = "chosen tokens"


class WorstToken(NamedTuple):
    token_id: int
    token: str
    verdict: str | None  # of the run
    severity: str | None  # grade; None if it is not flagged or the method has no grades
    # Lift beyond an ordinary token's, in standard deviations of the model's similarities; None where the
    # method has no such scale
    deviations: float | None
    low: float | None  # lower end of the interval of the deviations; None without an interval
    high: float | None  # upper end


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
        available = pl.col("category").is_in([each.value for each in Category if each.available])
        ids = self.run.vocabulary.filter(available)["token_id"].sort().to_list()
        own, seed = self.run.tokens["token_id"].sort().to_list(), int(self.run.settings.number("seed"))
        # A sample is what `detect --sample` draws with this seed.
        is_sample = len(own) <= len(ids) and drawn_ids(ids, len(own), seed) == own
        return Examined.SAMPLE if is_sample else Examined.CHOSEN

    @cached_property
    def worst(self) -> WorstToken | None:
        ranked, sticky = self.run.method.ranked_by.key, self.run.sticky
        rows = self.run.tokens if sticky.is_empty() else sticky
        rows = rows.drop_nulls(ranked).sort(ranked, "token_id", descending=[True, False]).head(1)
        if rows.is_empty():
            return None
        row = rows.row(0, named=True)
        grade = row.get("severity") if row["verdict"] == "sticky" else None
        columns = {end: deviations(self.scale, end) for end in ("lift", "lift_low", "lift_high")}
        return WorstToken(
            row["token_id"], row["token"], row["verdict"], grade, *rows.select(**columns).row(0)
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
    def copies(self) -> CopiesNeeded | None:
        evidence = self.run.evidence
        if self.worst is None or self.scale is None or evidence is None:
            return None
        return copies_needed(evidence, self.worst.token_id, self.scale)

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

    @cached_property
    def quantiles(self) -> tuple[float, float] | None:
        known = self.run.tokens.select(deviations(self.scale)).to_series().drop_nulls()
        if known.is_empty():
            return None
        middle, high = np.quantile(known.to_numpy(), (0.5, 0.99))
        return float(middle), float(high)


def deviations(scale: Scale | None, column: str = "lift") -> pl.Expr:
    none = pl.lit(None, dtype=pl.Float64)
    return none if scale is None else (pl.col(column) - scale.ordinary) / scale.spread


def tone_of(sticky: pl.DataFrame) -> str:
    if sticky.is_empty():
        return "clean"
    grades = set(sticky["severity"]) if "severity" in sticky.columns else {"serious"}
    return next((grade for grade in ("severe", "serious") if grade in grades), "mild")


def short_headline(run: Run) -> str:
    return run.method.headline(run).replace(run.model_name, run.record.model.short_name)


@dataclass(frozen=True)
class Agreement:
    first: str  # name of one run
    second: str  # name of the other
    shared: int  # tokens that both looked at, by vocabulary string
    sticky_in_both: int  # of them, those that both call sticky
    jaccard: float | None  # those over the ones that either calls sticky; None where neither does
    spearman: float | None  # rank correlation of the lifts; None where too few tokens have one in both


@dataclass(frozen=True)
class ComparedToken:
    token: str  # its text
    # By run, how far it moves unrelated texts beyond an ordinary token, in standard deviations of the model's
    # similarities; None where the run does not say
    standardized_lifts: Sequence[float | None]
    verdicts: Sequence[str | None]  # by run; None where the run did not judge it


def compared_tokens(runs: Sequence[ComparedRun]) -> tuple[ComparedToken, ...]:
    known: list[dict[str, tuple[float | None, str | None]]] = []
    for each in runs:
        rows = each.run.tokens.select("token", deviations(each.scale).alias("sd"), "verdict")
        known.append({token: (sd, verdict) for token, sd, verdict in rows.iter_rows()})
    found = []
    for token in sorted({token for each in runs for token in each.run.sticky["token"]}):
        lifts, verdicts = zip(*(tokens.get(token, (None, None)) for tokens in known), strict=True)
        found.append(ComparedToken(token, lifts, verdicts))

    def rank(each: ComparedToken) -> tuple[int, float]:  # first what most runs flag, and most strongly
        lifts = (value for value in each.standardized_lifts if value is not None)
        return -sum(verdict == "sticky" for verdict in each.verdicts), -max(lifts, default=0.0)

    return tuple(sorted(found, key=rank))


def agreement(first: ComparedRun, second: ComparedRun) -> Agreement:
    from scipy.stats import spearmanr

    tables = [each.run.tokens.select("token", "lift", "verdict").unique("token") for each in (first, second)]
    both = tables[0].join(tables[1], on="token", suffix="_other")
    left, right = (both[name].fill_null("") == "sticky" for name in ("verdict", "verdict_other"))
    in_both, either = int((left & right).sum()), int((left | right).sum())
    lifts = both.select("lift", "lift_other").drop_nulls()
    spearman = None
    if len(lifts) >= 20 and min(column.n_unique() for column in lifts) > 1:
        spearman = float(spearmanr(*lifts).statistic)
    jaccard = in_both / either if either else None
    return Agreement(first.name, second.name, len(both), in_both, jaccard, spearman)


# Below this share of anchors in common, two runs measured on different texts.
_SAME_TEXTS = 0.9


class Measure(StrEnum):
    WORST = "worst lift"
    SHARE = "sticky tokens per 10,000"
    COPIES = "copies until serious"


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
    worst = (Measure.WORST, Measure.COPIES)
    if groups := _differing(runs, lambda each: each.run.record.method):
        said = f"the methods differ ({groups}), and their verdicts follow different rules"
        yield Reason(Answer.NO, f"{said}: compare only which tokens they flag")
    if without := [each.name for each in runs if each.scale is None]:
        yield Reason(Answer.NO, f"the method of {listed(without)} has no scale that models share", worst)
    yield from _texts(runs)
    yield from _settings(runs)
    for each in runs:
        count = f"{len(each.run.tokens):,} of {each.run.available:,} available tokens"
        if each.examined is Examined.SAMPLE:
            said = f"{each.name}: only a random sample, {count}, was examined, so there may be a worse token"
            yield Reason(Answer.CARE, said, worst)
            said = f"{each.name}: the share is estimated from a random sample, {count}"
            yield Reason(Answer.CARE, said, (Measure.SHARE,))
        elif each.examined is Examined.CHOSEN:
            said = f"{each.name}: only chosen tokens, {count}, were examined; they say nothing of the others"
            yield Reason(Answer.NO, said)
    if groups := _differing(runs, lambda each: str(each.run.record.identity_parts.get("version"))):
        said = f"the runs were computed by different versions of the method ({groups}), which give somewhat"
        yield Reason(Answer.CARE, f"{said} different numbers: detect again to rely on small differences")
    yield from _use(runs)
    if _differing(runs, lambda each: str(each.encoder.get("tokenizer"))):
        sizes = sorted(each.run.available for each in runs)
        said = f"the vocabularies differ ({sizes[0]:,} to {sizes[-1]:,} available tokens), and a share of a"
        yield Reason(Answer.CARE, f"{said} vocabulary is not a share of text", (Measure.SHARE,))
    for each in runs:
        if each.scale is not None and each.run.evidence is None:
            said = f"{each.name} has no symptom curves: the same `stickytoken detect` command adds them"
            yield Reason(Answer.NO, said, (Measure.COPIES,))


def _texts(runs: Sequence[ComparedRun]) -> Iterator[Reason]:
    if groups := _differing(runs, lambda each: each.run.record.corpus.source):
        yield Reason(Answer.NO, f"the runs used different texts ({groups}), and a lift depends on the texts")
        return
    if len({each.run.record.method for each in runs}) > 1:  # each takes its own fingerprint of a corpus
        return
    if _differing(runs, lambda each: str(each.run.record.identity_parts.get("corpus"))):
        source = runs[0].run.record.corpus.source
        said = f"the sentences from {source} were not the same, and a lift depends on them"
        yield Reason(Answer.NO, said)
        return
    anchors = [set(each.run.method.texts(each.run.plan).anchors) for each in runs]
    shared = len(set.intersection(*anchors)) / max(1, min(map(len, anchors)))
    if shared >= _SAME_TEXTS:
        return
    # Runs that share most anchors with the first run of their group.
    alike: list[tuple[set[str], list[str]]] = []
    for each, own in zip(runs, anchors, strict=True):
        for first, names in alike:
            if len(first & own) >= _SAME_TEXTS * min(len(first), len(own)):
                names.append(each.name)
                break
        else:
            alike.append((own, [each.name]))
    groups = "; ".join(listed(names) for _, names in alike)
    said = f"lifts were measured on different choices of the same texts ({groups}); {shared:.0%} of these"
    yield Reason(Answer.CARE, f"{said} are the same")


def _settings(runs: Sequence[ComparedRun]) -> Iterator[Reason]:
    if len({each.run.record.method for each in runs}) > 1:
        return
    for name in sorted({name for each in runs for name in each.run.settings.values}):
        groups = _differing(runs, lambda each, name=name: each.run.settings.text(name))  # type: ignore[misc]
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
    if groups := _differing(runs, lambda each: str(each.encoder.get("dtype"))):
        yield Reason(Answer.CARE, f"the models computed in different precisions ({groups})")
    for first, second in combinations(runs, 2):
        ours, theirs = first.encoder, second.encoder
        if not ours or ours.get("weights") != theirs.get("weights"):
            continue
        names = {"dimension": "length of the vectors", "modules": "pooling or other modules"}
        names |= {"max_length": "max length"}
        if used := [said for name, said in names.items() if ours.get(name) != theirs.get(name)]:
            said = f"{first.name} and {second.name} have the same weights, used differently"
            yield Reason(Answer.CARE, f"{said} ({', '.join(used)})")
    for each in runs:
        loading = each.run.record.model.loading
        if loading is not None and loading.endpoint is not None:
            said = f"{each.name} was measured through an endpoint"
            yield Reason(Answer.CARE, f"{said}, whose vectors may be rounded and may change")


def _prompt(each: ComparedRun) -> str:
    loading: LoadingRecord | None = each.run.record.model.loading
    if loading is not None and loading.prompt:
        extra = " with token prepending" if loading.token_prepending else ""
        return f"{loading.prompt}{extra}{' with contrast' if loading.contrast else ''}"
    stored: Any = each.encoder.get("prompt")
    return "none" if not stored else stored if isinstance(stored, str) else json.dumps(stored)


def _differing(runs: Sequence[ComparedRun], value: Callable[[ComparedRun], str]) -> str:
    groups: dict[str, list[str]] = {}
    for each in runs:
        groups.setdefault(value(each), []).append(each.name)
    said = [f"{found}: {listed(names)}" for found, names in groups.items()]
    return "" if len(said) == 1 else "; ".join(said)


def listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


PER = 10_000
_MINUS = "\N{MINUS SIGN}"

READING = {
    "worst lift": "How far the worst token moves unrelated texts together beyond an ordinary token, in "
    "standard deviations of the model's own similarities. The interval is that of this one token over texts; "
    "that it is the worst of many is not in it.",
    "sticky tokens per 10,000": "Of the available tokens. The interval is exact (Clopper and Pearson 1934). "
    "It treats the examined tokens as draws: a sample from its vocabulary, a whole vocabulary from others "
    "that could have been built. Wrong verdicts are not in it.",
    "copies until serious": "The fewest copies of the worst token, among the numbers that were tried, that "
    "lift unrelated texts seriously beyond an ordinary token. Read from the symptom curves of the report: "
    "copies at the end of a few texts, over all pairs below the mean similarity.",
    "repaired copy": "Whether the run folder records a repaired copy of the model, and whether that was "
    "verified.",
}
# Columns of the table of a comparison that may be null.
_WORST: dict[str, type[pl.DataType]] = {
    "worst_token_id": pl.Int64,
    "worst_token": pl.String,
    "worst_verdict": pl.String,
    "worst_severity": pl.String,
    "worst_sd": pl.Float64,
    "worst_sd_low": pl.Float64,
    "worst_sd_high": pl.Float64,
}
_SHARE = dict.fromkeys(("sticky_per_10000", "sticky_per_10000_low", "sticky_per_10000_high"), pl.Float64)
_COPIES = dict.fromkeys(("copies_until_serious", "copies_too_few"), pl.Int64)


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
        return tuple(each.name for each in self.runs)

    @property
    def table(self) -> pl.DataFrame:
        """One row per run with all numbers; what is not known is null."""
        rows = []
        for each in self.runs:
            run, record = each.run, each.run.record
            share = (None,) * 3 if each.share is None else (PER * part for part in each.share)
            rows.append(
                {
                    "run": each.name,
                    "folder": str(run.path),
                    "model": run.model_name,
                    "method": record.method,
                    "texts": record.corpus.source,
                    "examined": len(run.tokens),
                    "available": run.available,
                    "selection": each.examined.value,
                    **dict(zip(_WORST, each.worst or (None,) * 7, strict=True)),
                    "sticky": len(run.sticky),
                    **dict(zip(_SHARE, share, strict=True)),
                    "confidence": each.confidence,
                    **dict(zip(_COPIES, each.copies or (None, None), strict=True)),
                    "repair": each.repair,
                }
            )
        return pl.DataFrame(rows, schema_overrides={**_WORST, **_SHARE, **_COPIES})

    @property
    def notes(self) -> list[str]:
        """What a reader should know before relying on single runs."""
        found = []
        for each in self.runs:
            version = each.run.record.identity_parts.get("version")
            if isinstance(version, int) and version < IDENTITY_VERSION:
                said = "made by an earlier version of the method: detect again for present verdicts"
                found.append(f"{each.name}: {said}")
        for each in self.runs:
            lift = None if each.worst is None else each.worst.deviations
            unclear = each.copies is not None and each.copies.enough is None
            if unclear and lift is not None and each.scale is not None and lift >= each.scale.serious:
                said = "the worst lift is serious over all placements of copies, but not in the curve"
                found.append(f"{each.name}: {said}, whose copies stand at the end of texts")
        for each in self.runs:
            lines = (*each.run.method.notes(each.run), *each.run.plan.space)
            found += [f"{each.name}: {note}" for note in lines]
        return found

    @property
    def basis(self) -> str:
        """Say what the intervals are."""
        levels = sorted({each.confidence for each in self.runs})
        said = " and ".join(f"{100 * level:.4g}%" for level in levels)
        return (
            f"intervals: {said}; of the worst lift over texts, for that one token; of the share of sticky "
            "tokens exact (Clopper and Pearson 1934)"
        )

    def summary(self) -> dict[str, Any]:
        """Return the comparison as JSON values."""
        answers, reasons = self.comparability
        return {
            "runs": self.table.to_dicts(),
            "comparable": {measure.value: answer.value for measure, answer in answers.items()},
            "reasons": [
                {"answer": each.answer.value, "said": each.said, "measures": [m.value for m in each.measures]}
                for each in reasons
            ],
            "notes": self.notes,
            "agreements": [asdict(each) for each in self.agreements],
            "tokens": [
                {"token": each.token, "sd": list(each.standardized_lifts), "verdicts": list(each.verdicts)}
                for each in self.tokens
            ],
            "reading": READING,
        }


def shown_reason(reason: Reason) -> str:
    if len(reason.measures) == len(Measure):
        return reason.said
    return f"{', '.join(measure.value for measure in reason.measures)}: {reason.said}"


def shown_worst(each: ComparedRun) -> str:
    if each.worst is None:
        return "-"
    return f"{visible(repr(each.worst.token))} ({each.worst.severity or each.worst.verdict or 'not judged'})"


def shown_deviations(each: ComparedRun) -> str:
    worst = each.worst
    if worst is None or worst.deviations is None:
        return "-"
    value = f"{worst.deviations:.2f}"
    if worst.low is not None and worst.high is not None:
        value += f" ({worst.low:.2f} to {worst.high:.2f})"
    return value.replace("-", _MINUS)


def shown_share(each: ComparedRun) -> str:
    if each.share is None:
        return "-"
    value, low, high = (PER * part for part in each.share)
    return f"{value:.1f} ({low:.1f} to {high:.1f})"


_SHOWN: dict[str, Callable[[ComparedRun], str]] = {
    "run": lambda each: each.name,
    "method": lambda each: each.run.record.method,
    "examined": lambda each: f"{len(each.run.tokens):,} of {each.run.available:,}",
    "worst token": shown_worst,
    "worst lift, SD": shown_deviations,
    "sticky per 10,000": shown_share,
    "copies until serious": lambda each: str(each.copies or "-"),
    "repaired copy": lambda each: each.repair,
}
HEADINGS = tuple(_SHOWN)


def shown_rows(comparison: Comparison) -> list[Sequence[str]]:
    return [tuple(show(each) for show in _SHOWN.values()) for each in comparison.runs]


def compare(runs: Iterable[Run | str | Path]) -> Comparison:
    """Put finished runs side by side, in the order given. No model is needed.

    Args:
        runs: at least two runs or run folders, each once.

    Raises:
        InputError: fewer than two runs, or one twice.
        RunError: a folder that is no run, is damaged or is not finished.
    """
    opened = [open_run(each) for each in list_of("runs or run folders", "runs", runs)]
    if len(opened) < 2:
        raise InputError(
            f"a comparison needs two runs, and {len(opened)} was passed: pass another, or describe one with "
            "`stickytoken report`"
        )
    places = [run.path.resolve() for run in opened]
    if twice := [run.path for run, place in zip(opened, places, strict=True) if places.count(place) > 1]:
        raise InputError(f"the run {twice[0]} was passed twice: pass each run once")
    found = [ComparedRun(name, run) for name, run in zip(_names(opened), opened, strict=True)]
    reasons = sorted(_reasons(found), key=lambda each: -list(Answer).index(each.answer))
    answers = {
        measure: next((each.answer for each in reasons if measure in each.measures), Answer.YES)
        for measure in Measure
    }
    agreements = tuple(agreement(*pair) for pair in combinations(found, 2))
    comparability = Comparability(answers, tuple(reasons))
    return Comparison(tuple(found), comparability, agreements, compared_tokens(found))


def _names(runs: Sequence[Run]) -> list[str]:
    names = [run.record.model.short_name for run in runs]
    folders = [f"{name} ({run.path.name})" for name, run in zip(names, runs, strict=True)]
    methods = [f"{name} ({run.record.method})" for name, run in zip(names, runs, strict=True)]
    for each in (names, [run.model_name for run in runs], methods, folders):
        if len(set(each)) == len(each):
            return each
    return [f"{place}: {name}" for place, name in enumerate(folders, start=1)]
