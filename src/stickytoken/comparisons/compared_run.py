"""One run of a comparison: the numbers that stand beside those of other runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from stickytoken.detection.detect import drawn_ids
from stickytoken.detection.run import Run
from stickytoken.detection.run_folder import RunEvidence
from stickytoken.errors import RunError
from stickytoken.methods.entry import Scale
from stickytoken.repairs.result import finished_repair, repairs_in
from stickytoken.vocabulary import Category


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
    """Read from symptom curves how many copies lift seriously more than those of ordinary tokens."""
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


def exact_share(count: int, total: int, confidence: float) -> tuple[float, float, float]:
    """Compute a share and its exact interval (Clopper and Pearson 1934, Biometrika 26:404)."""
    from scipy.stats import beta

    outside = (1 - confidence) / 2
    low = 0.0 if count == 0 else float(beta.ppf(outside, count, total - count + 1))
    high = 1.0 if count == total else float(beta.ppf(1 - outside, count + 1, total - count))
    return count / total, low, high


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
        """The sticky token that lifts most; without sticky tokens, the token that ranks highest."""
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
        """The share of sticky tokens with its interval; None if chosen tokens stand for no others."""
        if self.examined is Examined.CHOSEN:
            return None
        return exact_share(len(self.run.sticky), len(self.run.tokens), self.confidence)

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
    """Return a lift beyond an ordinary token's, in standard deviations of the model's similarities."""
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
    """Those that most runs flag, and most strongly, come first."""
    known: list[dict[str, tuple[float | None, str | None]]] = []
    for each in runs:
        rows = each.run.tokens.select("token", deviations(each.scale).alias("sd"), "verdict")
        known.append({token: (sd, verdict) for token, sd, verdict in rows.iter_rows()})
    found = []
    for token in sorted({token for each in runs for token in each.run.sticky["token"]}):
        lifts, verdicts = zip(*(tokens.get(token, (None, None)) for tokens in known), strict=True)
        found.append(ComparedToken(token, lifts, verdicts))

    def rank(each: ComparedToken) -> tuple[int, float]:
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
