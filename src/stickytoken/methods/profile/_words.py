"""Describe a run of the profile method in words."""

from __future__ import annotations

import polars as pl

from stickytoken.methods.entry import SEVERITY_BOUNDS, Fact, Scale, Severity, severity_counts
from stickytoken.methods.job import StoredSettings
from stickytoken.methods.profile.anchors import ProfilePlanRecord, ProfileResultRecord
from stickytoken.methods.protocol import FinishedRun
from stickytoken.validation import visible

ProfileRun = FinishedRun[ProfilePlanRecord, ProfileResultRecord]

# The least that one decimal shows.
_SHOWN = 0.05
GLOSSARY = {
    "interval": "The plausible range of the lift, given that only some texts were tried, at the confidence "
    "in the settings. The text, not the pair, is the unit of sampling.",
    "SD": "The lift beyond an ordinary token's, in standard deviations of the similarities between the "
    "model's own vectors of texts, so that models can be compared.",
    "severity": "Grade of a flagged token by SD: below 0.2 negligible, from 0.2 mild, from 0.5 serious, from "
    "0.8 severe (Cohen's small, medium and large effects). At 0.8, a typical unrelated text overtakes about "
    "four in five of the others. A topical token is graded on the kind of text that it lifts most.",
    "verdict": "Sticky: a lift that matters, on most kinds of text. Topical: on only some kinds of text, "
    "which comes from its meaning and is not a defect. Benign: everything else.",
    "universality": "The share of the kinds of text (news, law, code, chat, ...) that the token lifts by at "
    "least half of what matters. Sticky tokens exceed 0.5.",
    "kind": "The kind of text that a topical token lifts most.",
    "lift on single words": "The lift if the carrier is compared with single vocabulary entries instead of "
    "texts. Nobody embeds single entries, and no verdict rests on it.",
    "contraction": "How much of the difference between similarities is lost: 0 keeps the meaning, 1 erases "
    "it.",
    "q value": "The expected share of ordinary tokens among those that stand out at least as much over all "
    "texts. A token that stands out on one kind of text is flagged whatever its q value.",
}


def headline(run: ProfileRun) -> str:
    """Say whether the model has a problem, and how bad it is."""
    name, sticky = run.model_name, run.sticky
    if sticky.is_empty():
        scope = "" if run.result.looked_at == run.available else " among those measured"
        return f"{name} has no sticky tokens{scope}{_strongest(run)}."
    worst = sticky.row(0, named=True)
    grades = ", ".join(f"{count} {grade}" for grade, count in severity_counts(sticky).items() if count)
    tokens = "sticky token" if len(sticky) == 1 else "sticky tokens"
    return (
        f"{name} has {len(sticky)} {tokens} ({grades}); the worst, {visible(repr(worst['token']))}, "
        f"moves unrelated texts together by {_moved(run, worst['lift']):.1f} standard deviations of the "
        "model's similarities more than an ordinary token does."
    )


def _strongest(run: ProfileRun) -> str:
    """Name the token that lifts most, of a run without sticky tokens."""
    known = run.tokens.filter(pl.col("lift").is_not_null()).sort("lift", descending=True)
    if known.is_empty():
        return ""
    token = known.row(0, named=True)
    moved = _moved(run, token["lift"])
    if moved < _SHOWN:
        return "; none of them moves unrelated texts together more than an ordinary token does"
    return (
        f"; the one that lifts texts most, {visible(repr(token['token']))}, moves unrelated texts together "
        f"by {moved:.1f} standard deviations of the model's similarities more than an ordinary token does"
    )


def _moved(run: ProfileRun, lift: float) -> float:
    return (lift - run.result.ordinary_lift) / run.plan.similarity_spread


def lines(run: ProfileRun) -> list[str]:
    """Summarise a run: the finding first, then its basis."""
    result, plan = run.result, run.plan
    whole = result.looked_at == run.available
    scope = "all" if whole else "a selection of"
    # Random tokens are measured beside a selection; the texts they take are not texts of its tokens.
    spent = f"{result.texts_per_token:g} texts per token" if whole else "random tokens measured with them"
    found = [
        headline(run),
        f"method profile, {scope} {result.looked_at:,} of {run.available:,} available tokens; "
        f"{spent}, {result.candidates} measured most closely",
        f"an ordinary token lifts by {result.ordinary_lift:.4f} (SD {result.ordinary_spread:.4f}); "
        f"similarities spread by {plan.similarity_spread:.4f}; "
        f"mean similarity u = {plan.mean_similarity_text}",
    ]
    if screened := run.settings.values.get("screen_precision"):
        found.append(
            f"screened in {screened}; numbers of the {result.candidates} tokens measured most closely are in "
            "the model's own precision (column precision of tokens.parquet)"
        )
    if result.topical:
        lift = "token lifts" if result.topical == 1 else "tokens lift"
        found.append(
            f"{result.topical} more {lift} only some kinds of text, because of their meaning: "
            "list them with `stickytoken show --verdict topical`"
        )
    return found


def notes(run: ProfileRun) -> list[str]:
    """Say what a reader should know before relying on the run."""
    found = []
    if not run.result.empirical_null:
        found.append(
            "the vocabulary is too small, or its tokens too similar, to tell what is ordinary: verdicts rest "
            "on the intervals alone, without control of false discoveries"
        )
    if run.plan.left_out:
        found.append(f"{run.plan.left_out} sentences were left out: the model cannot read them in full")
    return found


def key_facts(run: ProfileRun) -> list[Fact]:
    """Give the highest lift and the number of topical tokens."""
    result = run.result
    highest = run.tokens.select("lift").max().item()
    smallest = run.settings.number("smallest_effect")
    whose = "the worst token" if len(run.sticky) else "the token that lifts most"
    topical = Fact(
        f"{result.topical:,}",
        "topical token, which lifts only texts about its own subject"
        if result.topical == 1
        else "topical tokens, which lift only texts about their own subject",
    )
    if highest is None:
        return [topical]
    return [
        Fact(
            f"{_moved(run, highest):.1f} SD",
            f"lift of {whose}, beyond an ordinary token's; it always matters from {smallest:g} SD",
        ),
        topical,
    ]


def how(settings: StoredSettings) -> str:
    """Explain the method in a few sentences."""
    return (
        "Copies of every token were put into short texts (carriers), at their beginning, their end and "
        f"between their words, {settings.text('copies')} at a time. Each text was compared with texts of "
        "several kinds (anchors) before and after. A few random tokens went through all carriers first, to "
        "find the few that best represent all; all tokens then went through these. Those that lift most got "
        f"{settings.number('confirming_texts'):g} further texts, and their numbers rest on these alone. "
        "What is ordinary was learned from the vocabulary itself."
    )


def plan_facts(plan: ProfilePlanRecord) -> dict[str, float]:
    """List the numbers of a plan."""
    return {
        "mean_similarity": plan.mean_similarity,
        "mean_similarity_entries": plan.mean_similarity_entries,
        "mean_similarity_error": plan.mean_similarity_error,
        "similarity_spread": plan.similarity_spread,
        "share_below": plan.share_below,
        "left_out": plan.left_out,
        "groups": len(plan.groups),
        "anchors": len(plan.anchors),
        "vocabulary_anchors": len(plan.vocabulary_anchors),
        "carriers": len(plan.carriers),
    }


def scale(run: ProfileRun) -> Scale:
    """Measure lifts from an ordinary token's, in standard deviations of the model's similarities."""
    return Scale(
        run.result.ordinary_lift,
        run.plan.similarity_spread,
        run.settings.number("confidence"),
        SEVERITY_BOUNDS[Severity.SERIOUS],
    )
