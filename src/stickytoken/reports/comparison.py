"""Compare several runs: what they share and where they differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import polars as pl

from stickytoken.reports.content import RunContent, standardized_lift
from stickytoken.reports.facts import headline, notes, tone
from stickytoken.reports.figures.comparison import (
    ComparedToken,
    compared_distributions,
    compared_table,
    compared_tokens,
    narrow_axis,
    narrow_tokens,
)
from stickytoken.reports.figures.figure import DataTable, ReportFigure

_LEAST_SHARED = 20


@dataclass(frozen=True)
class Agreement:
    """How far two runs agree on the tokens that both looked at.

    Attributes:
        first: name of one run.
        second: name of the other.
        shared: tokens that both looked at, by vocabulary string.
        sticky_in_both: of them, those that both call sticky.
        jaccard: those over the ones that either calls sticky; None where neither does.
        spearman: rank correlation of the lifts; None where too few tokens have one in both.
    """

    first: str
    second: str
    shared: int
    sticky_in_both: int
    jaccard: float | None
    spearman: float | None


@dataclass(frozen=True)
class Comparison:
    """Runs side by side.

    Attributes:
        names: of the runs, distinct.
        contents: the runs.
        tokens: every token that a run calls sticky; those that most runs flag, and most strongly, first.
        agreements: one per pair of finished runs.
        notes: what makes the comparison harder.
    """

    names: tuple[str, ...]
    contents: tuple[RunContent, ...]
    tokens: tuple[ComparedToken, ...]
    agreements: tuple[Agreement, ...]
    notes: tuple[str, ...]


def compare(contents: Sequence[RunContent]) -> Comparison:
    """Compare runs; tokens are matched by vocabulary string, which models may share."""
    names = _names(contents)
    lifts = [_lifts(content) for content in contents]
    return Comparison(
        tuple(names),
        tuple(contents),
        tuple(_compared(contents, lifts)),
        tuple(
            _agreement(names[a], names[b], contents[a], contents[b])
            for a, b in combinations(range(len(contents)), 2)
            if contents[a].run is not None and contents[b].run is not None
        ),
        tuple(_notes(names, contents)),
    )


def summary_table(comparison: Comparison) -> DataTable:
    """Return a table with one row per run."""
    rows = []
    for name, content in zip(comparison.names, comparison.contents, strict=True):
        record, result = content.record, content.record.result
        grades = Counter(content.sticky["severity"]) if "severity" in content.tokens.columns else {}
        highest = content.tokens.select(standardized_lift(content).max()).item() if content.run else None
        rows.append(
            (
                name,
                record.model.name,
                record.method,
                len(content.tokens) if content.run else None,
                len(content.sticky) if content.run else None,
                ", ".join(
                    f"{grades[grade]} {grade}" for grade in ("severe", "serious", "mild") if grade in grades
                )
                or None,
                highest,
                content.run.plan.mean_similarity if content.run else None,
                result.sequences if result else None,
                result.seconds if result else None,
            )
        )
    columns = (
        "run",
        "model",
        "method",
        "tokens",
        "sticky",
        "severity",
        "highest SD",
        "u",
        "texts",
        "seconds",
    )
    return DataTable(columns, rows)


def agreement_table(comparison: Comparison) -> DataTable:
    """Return a table with one row per pair of runs."""
    return DataTable(
        ("run", "and", "tokens in both", "sticky in both", "Jaccard index of sticky", "Spearman of lifts"),
        [
            (each.first, each.second, each.shared, each.sticky_in_both, each.jaccard, each.spearman)
            for each in comparison.agreements
        ],
    )


def comparison_figures(comparison: Comparison) -> list[ReportFigure]:
    """Return the figures: the sticky tokens of all runs, and the tails of their lifts."""
    names, tokens = comparison.names, comparison.tokens
    samples = [
        content.tokens.select(standardized_lift(content)).to_series().drop_nulls().to_list()
        if content.run
        else []
        for content in comparison.contents
    ]
    tail_rows = [
        (name, len(values), *(float((np.array(values) > bound).mean()) for bound in (0.2, 0.5, 0.8)))
        for name, values in zip(names, samples, strict=True)
        if values
    ]
    return [
        ReportFigure(
            "sticky-tokens-by-run",
            "Sticky tokens, run by run",
            compared_tokens(tokens, names),
            _in_words(comparison),
            "One row per token that any run calls sticky; one mark per run, filled if that run calls the "
            "token sticky. The scale is in standard deviations of each model's own similarities, so "
            "models can be compared. Runs of a method without such a scale appear in the table only.",
            compared_table(tokens, names),
            narrow_tokens(tokens),
        ),
        ReportFigure(
            "lift-tails",
            "How strong the strongest tokens are",
            compared_distributions(samples, names),
            " ".join(
                f"{name}: {share:.2%} of {size:,} tokens beyond 0.5 SD."
                for name, size, _, share, _ in tail_rows
            )
            or "No run has a lift for all of its tokens.",
            "The share of tokens whose lift exceeds the value on the axis. A line that reaches further "
            "right has worse tokens; a higher line has more of them.",
            DataTable(("run", "tokens", "beyond 0.2 SD", "beyond 0.5 SD", "beyond 0.8 SD"), tail_rows),
            narrow_axis(),
        ),
    ]


def tone_of(comparison: Comparison) -> str:
    """Return the worst tone of the runs."""
    found = {tone(content) for content in comparison.contents}
    return next(each for each in ("severe", "serious", "mild", "unknown", "clean") if each in found)


def headlines(comparison: Comparison) -> list[tuple[str, str, str]]:
    """Return name, headline and tone of every run."""
    return [
        (name, headline(content), tone(content))
        for name, content in zip(comparison.names, comparison.contents, strict=True)
    ]


def _names(contents: Sequence[RunContent]) -> list[str]:
    """Name the runs by model; add the method, or the folder, if that is needed to tell them apart."""

    def model(content: RunContent) -> str:
        return content.record.model.name

    def method(content: RunContent) -> str:
        return f"{model(content)} ({content.record.method})"

    def folder(content: RunContent) -> str:
        return f"{model(content)} ({content.path.name})"

    for way in (model, method, folder):
        names = [way(content) for content in contents]
        if len(set(names)) == len(names):
            return names
    return [f"{place}: {folder(content)}" for place, content in enumerate(contents, start=1)]


def _lifts(content: RunContent) -> dict[str, tuple[float | None, str | None]]:
    if content.run is None:
        return {}
    rows = content.tokens.select("token", "verdict", sd=standardized_lift(content))
    return {token: (sd, verdict) for token, verdict, sd in rows.iter_rows()}


def _compared(
    contents: Sequence[RunContent], lifts: Sequence[dict[str, tuple[float | None, str | None]]]
) -> list[ComparedToken]:
    sticky = {token for content in contents if content.run is not None for token in content.sticky["token"]}
    unknown = (None, None)
    found = [
        ComparedToken(
            token,
            [run.get(token, unknown)[0] for run in lifts],
            [run.get(token, unknown)[1] for run in lifts],
        )
        for token in sorted(sticky)
    ]

    def rank(each: ComparedToken) -> tuple[int, float]:
        return (
            -sum(verdict == "sticky" for verdict in each.verdicts),
            -max((value for value in each.standardized_lifts if value is not None), default=0.0),
        )

    return sorted(found, key=rank)


def _agreement(first: str, second: str, one: RunContent, other: RunContent) -> Agreement:
    from scipy.stats import spearmanr

    columns = ("token", "lift", "verdict")
    both = (
        one.tokens.select(columns)
        .unique("token")
        .join(other.tokens.select(columns).unique("token"), on="token", suffix="_other")
    )
    left = both["verdict"].fill_null("") == "sticky"
    right = both["verdict_other"].fill_null("") == "sticky"
    either = int((left | right).sum())
    lifted = both.filter(pl.col("lift").is_not_null() & pl.col("lift_other").is_not_null())
    varied = (
        len(lifted) >= _LEAST_SHARED and min(lifted["lift"].n_unique(), lifted["lift_other"].n_unique()) > 1
    )
    return Agreement(
        first,
        second,
        len(both),
        int((left & right).sum()),
        int((left & right).sum()) / either if either else None,
        float(spearmanr(lifted["lift"], lifted["lift_other"]).statistic) if varied else None,
    )


def _notes(names: Sequence[str], contents: Sequence[RunContent]) -> list[str]:
    found = []
    if len({content.record.method for content in contents}) > 1:
        found.append(
            "the runs used different methods, whose verdicts follow different rules: compare which tokens "
            "they flag, not their numbers"
        )
    parts = [content.record.identity_parts for content in contents]
    encoders = [part.get("encoder") for part in parts]
    tokenizers = {str(each.get("tokenizer")) for each in encoders if isinstance(each, dict)}
    if len(tokenizers) > 1:
        found.append(
            "the vocabularies differ: tokens are matched by their string, and a blank means that a "
            "vocabulary does not have the token"
        )
    # Fingerprints of different methods differ: one of them counts the sentences' topics.
    corpora = {
        (content.record.method, str(part.get("corpus")))
        for content, part in zip(contents, parts, strict=True)
    }
    sources = {content.record.corpus.source for content in contents}
    if len(sources) > 1 or len(corpora) > len({content.record.method for content in contents}):
        found.append("the runs used different sentences")
    if len({str(part.get("tokens")) for part in parts}) > 1:
        found.append("the runs did not examine the same tokens: a blank does not mean benign")
    for name, content in zip(names, contents, strict=True):
        found += [f"{name}: {note}" for note in notes(content)]
    return found


def _in_words(comparison: Comparison) -> str:
    if not comparison.tokens:
        return "No run calls a token sticky."
    counts = [
        f"{name} {len(content.sticky)}"
        for name, content in zip(comparison.names, comparison.contents, strict=True)
        if content.run is not None
    ]
    shared = sum(all(verdict == "sticky" for verdict in each.verdicts) for each in comparison.tokens)
    return (
        f"{len(comparison.tokens)} tokens are sticky in at least one run: {', '.join(counts)}; {shared} in "
        "all of them."
    )
