"""Describe a run of the paper's method in words."""

from __future__ import annotations

from stickytoken.methods.descriptions import Fact
from stickytoken.methods.protocol import FinishedRun
from stickytoken.methods.std.record import StdPlanRecord, StdResultRecord
from stickytoken.methods.stored_settings import StoredSettings

StdRun = FinishedRun[StdPlanRecord, StdResultRecord]

# Below this many candidates the quartiles of their rates say little.
_FEW_CANDIDATES = 20
_MUCH_DEVIATION = 0.05
GLOSSARY = {
    "sticky score": "The paper's score: how far, and how often, copies reduce the distance of a few sentence "
    "pairs.",
    "candidates": "The tokens with the highest scores. Only these are validated.",
    "verdict": "Sticky: a validation rate beyond an outlier rule over the candidates. Tokens without a "
    "verdict were not validated, which is not the same as benign.",
}


def headline(run: StdRun) -> str:
    """Say how many candidates are sticky, and what the worst one does."""
    if run.sticky.is_empty():
        return f"{run.model_name}: {_finding(run)}"
    row = run.sticky.row(0, named=True)
    return (
        f"{run.model_name}: {_finding(run)} The worst, {row['token']!r}, draws "
        f"{row['validation_rate']:.0%} of the unrelated pairs together; "
        f"beyond {run.result.rate_threshold:.0%} a candidate is sticky."
    )


def lines(run: StdRun) -> list[str]:
    """Summarise a run: the finding first, then its basis."""
    result = run.result
    scope = "all" if result.scored == run.available else "a selection of"
    return [
        _finding(run),
        f"method std, {scope} {result.scored:,} of {run.available:,} available tokens; "
        f"mean similarity u = {run.plan.mean_similarity_text}",
        f"{result.candidates} candidates reach a score of {result.score_threshold:.2f}; "
        f"a rate above {result.rate_threshold:.4f} is sticky: {result.sticky}",
    ]


def notes(run: StdRun) -> list[str]:
    """Say what a reader should know before relying on the run."""
    result, plan = run.result, run.plan
    found = []
    if result.candidates < _FEW_CANDIDATES:
        found.append(
            f"the verdict is an outlier rule, and {result.candidates} candidates are few for it: "
            "look at more tokens before you rely on it"
        )
    rates = run.tokens["validation_rate"].drop_nulls()
    if len(rates) and rates.quantile(0.25, "linear") == rates.quantile(0.75, "linear"):
        found.append(
            "at least half of the candidates have the same validation rate: the outlier rule has no width, "
            "so a rate that is barely higher is enough"
        )
    elif result.rate_threshold >= 1:
        found.append(
            "no rate can exceed the threshold: the candidates' rates are too spread for the outlier rule to "
            "single one out"
        )
    if plan.left_out:
        found.append(
            f"{plan.left_out} sentences or pairs were left out: with the copies inserted, "
            "the model would have truncated them"
        )
    if plan.similarity_deviation > _MUCH_DEVIATION:
        found.append(
            f"similarities in the pair file differ by up to {plan.similarity_deviation:.3f} "
            "from this model's: they may come from another model"
        )
    return found


def key_facts(run: StdRun) -> list[Fact]:
    """Give the number of candidates and the rate that a sticky token exceeds."""
    return [
        Fact(f"{run.result.candidates:,}", "candidates validated"),
        Fact(f"{run.result.rate_threshold:.3f}", "validation rate that a sticky token exceeds"),
    ]


def how(settings: StoredSettings) -> str:
    """Explain the method in a few sentences."""
    return (
        "The method of Chen et al. (ACL 2025): every token was scored on a few sentence pairs, with 1 to "
        f"{settings.text('copies')} copies at the beginning, the end and between the words. The best "
        f"{settings.number('candidate_share'):.2%} were validated on "
        f"{settings.number('validation_pairs'):g} pairs below the mean similarity, and outliers among these "
        "are called sticky."
    )


def plan_facts(plan: StdPlanRecord) -> dict[str, float]:
    """List the numbers of a plan."""
    return {
        "mean_similarity": plan.mean_similarity,
        "mean_similarity_entries": plan.mean_similarity_entries,
        "mean_similarity_error": plan.mean_similarity_error,
        "left_out": plan.left_out,
        "scoring pairs": len(plan.scoring),
        "validation pairs": len(plan.validation),
    }


def _finding(run: StdRun) -> str:
    found = f"{run.result.sticky} sticky tokens" if run.result.sticky else "No sticky tokens"
    return f"{found} among {run.result.candidates} validated candidates."
