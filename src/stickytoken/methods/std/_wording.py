"""How the std method describes its runs and probes: headlines, tables, notes and figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from stickytoken.methods import (
    Column,
    Distribution,
    Fact,
    Figure,
    ProbeTable,
    RunDescription,
    Scatter,
    base,
)
from stickytoken.unit_vectors import Similarity

if TYPE_CHECKING:
    from stickytoken.methods.std.records import StdPlanRecord, StdResultRecord
    from stickytoken.methods.std.validation import StdEvidence
    from stickytoken.settings.std import StdSettings

    Run: TypeAlias = base.FinishedRun[StdPlanRecord, StdResultRecord]

CANDIDATES_FILE = "candidates.csv"

SCORE = Column("sticky_score", "sticky score", 2)
SAMPLED_SCORE = Column("sampled_score", "sticky score", 2)
RATE = Column("validation_rate", "validation rate", 3)
LIFT = Column("lift", "lift", 4)
LISTED = (SCORE, LIFT, RATE)
REPORTED = (RATE, LIFT, SCORE)
GLOSSARY: Mapping[str, str] = {
    "u": "The model's mean similarity: the mean cosine over pairs of vocabulary entries. Sentences with a "
    "lower similarity count as unrelated.",
    "sticky score": "The paper's score: how far, and how often, copies reduce the distance of a few sentence "
    "pairs.",
    "candidates": "The tokens with the highest scores. Only these are validated.",
    "verdict": "Sticky, by the paper's definition: the validation rate is an outlier among the candidates. "
    "Benign: validated, but not an outlier. Tokens without a verdict were not validated.",
}


def describe_run(run: Run) -> RunDescription:
    """Return what is said about a run in the terminal and in reports."""
    return RunDescription(
        headline=_write_headline(run),
        lines=_list_terminal_lines(run),
        coverage=[],  # the lines say how many tokens were validated
        notes=_list_caveats(run),
        method=_describe_method(run.settings),
        strongest_title="Tokens that come next",
        key_facts=_list_key_facts(run),
        plan_facts=_list_plan_facts(run.plan),
        figures=describe_figures(run),
    )


def describe_similarity(similarity: Similarity) -> str:
    """Say what is measured by the cosine, for a model that compares vectors by ``similarity``."""
    del similarity  # std takes the cosine for all models
    return "std measures the cosine, which ignores the lengths of vectors"


def _write_headline(run: Run) -> str:
    if run.sticky.is_empty():
        return _say_how_many_are_sticky(run)
    worst = run.sticky.row(0, named=True)  # the highest rate comes first
    return (
        f"{_say_how_many_are_sticky(run)} The worst, {worst['token']!r}, draws "
        f"{worst['validation_rate']:.0%} of the unrelated pairs together; "
        f"beyond {run.result.rate_threshold:.0%} a candidate is sticky."
    )


def _say_how_many_are_sticky(run: Run) -> str:
    sticky = run.result.sticky
    sticky_tokens = f"{sticky or 'No'} sticky {'token' if sticky == 1 else 'tokens'}"
    candidates = run.result.candidates
    validated = f"{candidates} validated {'candidate' if candidates == 1 else 'candidates'}"
    return f"{sticky_tokens} by the paper's definition among {validated}."


def _list_terminal_lines(run: Run) -> list[str]:
    result = run.result
    scope = "all" if result.scored == run.available else "a selection of"
    return [
        _say_how_many_are_sticky(run),
        (
            f"method std, {scope} {result.scored:,} of {run.available:,} available tokens; "
            f"mean similarity u = {run.plan.mean_similarity:.4f}"
        ),
        (
            f"available tokens: {run.available:,}; candidates, with a score of {result.score_threshold:.2f} "
            f"or more: {result.candidates}; sticky, with a validation rate above "
            f"{result.rate_threshold:.4f}: {result.sticky}. All other tokens were not validated."
        ),
        f"the candidates with their scores and rates: {CANDIDATES_FILE} in the run folder",
    ]


def _list_caveats(run: Run) -> list[str]:
    """Return caveats on the verdicts, such as few candidates or truncated texts."""
    result = run.result
    plan = run.plan
    caveats = []
    if result.candidates < 20:  # with fewer rates, the quartiles are unreliable
        caveats.append(
            f"the verdict is an outlier rule, and {result.candidates} candidates are few for it: "
            "look at more tokens before you rely on it"
        )
    rates = run.tokens["validation_rate"].drop_nulls()  # null for tokens that were not validated
    if len(rates) and rates.quantile(0.25, "linear") == rates.quantile(0.75, "linear"):
        caveats.append(
            "at least half of the candidates have the same validation rate: the outlier rule has no "
            "width, so a candidate with a barely higher rate is called sticky"
        )
    elif result.rate_threshold >= 1:
        caveats.append(
            "no rate can exceed the threshold: the candidates' rates vary so much that none is an outlier"
        )
    if plan.left_out:
        caveats.append(
            f"{plan.left_out} sentences or pairs were left out: with the copies inserted, "
            "the model would have truncated them"
        )
    if plan.truncated:
        caveats.append(
            f"{len(plan.truncated)} texts were truncated to what the model reads, as in the published "
            "runs: copies that were cut off have no effect"
        )
    if plan.similarity_deviation > 0.05:  # more than rounding or another precision explains
        caveats.append(
            f"similarities in the pair file differ by up to {plan.similarity_deviation:.3f} "
            "from this model's: they may come from another model"
        )
    return caveats


def _list_key_facts(run: Run) -> list[Fact]:
    return [
        Fact(f"{run.result.candidates:,}", "candidates validated"),
        Fact(f"{run.result.rate_threshold:.3f}", "validation rate that a sticky token exceeds"),
    ]


def _describe_method(settings: StdSettings) -> str:
    return (
        "The method of Chen et al. (ACL 2025): every token was scored on a few sentence pairs, with 1 to "
        f"{settings.copies} copies at the beginning, at the end or between words. The "
        f"{settings.candidate_share:.2%} of the tokens with the best scores were validated on "
        f"{settings.validation_pairs} pairs below the mean similarity. Outliers among these "
        "candidates are called sticky."
    )


def _list_plan_facts(plan: StdPlanRecord) -> dict[str, Any]:
    return {
        "mean_similarity": plan.mean_similarity,
        "mean_similarity_entries": plan.mean_similarity_entries,
        "left_out": plan.left_out,
        "scoring pairs": len(plan.scoring),
        "validation pairs": len(plan.validation),
    }


def describe_figures(run: Run) -> list[Figure]:
    """Describe three figures: scores of tokens, rates of candidates, and rates against lifts."""
    # Every token has an exact score in runs with few tokens or with `scores=all`. In other runs, exact
    # scores are known mainly for the random sample and for the best tokens. The figure shows only the
    # sample, because with the best tokens it would no longer show the distribution over the vocabulary.
    has_all_scores = run.tokens["sticky_score"].null_count() == 0
    shown_tokens = "all examined tokens" if has_all_scores else "random tokens"
    return [
        Distribution(
            "score-distribution",
            "Sticky scores over the vocabulary",
            SCORE if has_all_scores else SAMPLED_SCORE,
            {"candidates": run.result.score_threshold},
            f"Scores of {shown_tokens} in the paper's first stage, on a few sentence pairs. Tokens to "
            "the right of the dotted line were validated; all other tokens have no verdict.",
        ),
        Distribution(
            "rate-distribution",
            "Validation rates of the candidates",
            RATE,
            {"sticky": run.result.rate_threshold},
            "The share of unrelated pairs that a candidate pulls together. A candidate to the right of "
            "the dotted line is an outlier among the candidates, and is called sticky.",
        ),
        Scatter(
            "rate-lift",
            "Validation rate against lift",
            RATE,
            LIFT,
            "Candidates only. The validation rate is the share of unrelated pairs that come closer; the "
            "lift says how much closer. This method does not measure contraction.",
        ),
    ]


def describe_probe(probed: Sequence[StdEvidence]) -> list[ProbeTable | str]:
    """Return a table of each token's validation rate and lift, and a sentence that explains the numbers.

    The table has one row for each element of ``probed``, of which there must be at least one.
    """
    return [
        ProbeTable(
            "Validation rate: share of unrelated pairs that the token pulls together",
            ("id", "token", "category", "rate", "prefix", "suffix", "random", "lift"),
            [_list_cells_of_probe(evidence) for evidence in probed],
        ),
        # All tokens are measured on the same number of pairs.
        f"{probed[0].pairs} pairs below the model's mean similarity; lift is the mean rise of the "
        "cosine. Compare the rates with ordinary tokens' rates: no rate is high or low by itself.",
    ]


def _list_cells_of_probe(evidence: StdEvidence) -> list[object]:
    rate = evidence.validation_rate["cosine"]
    rates_by_placement = [
        evidence.by_placement[placement]["cosine"] for placement in ("prefix", "suffix", "random")
    ]
    return [evidence.token_id, evidence.token, evidence.category, rate, *rates_by_placement, evidence.lift]
