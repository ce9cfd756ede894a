"""The headline of a run, its key numbers, and what was computed how."""

from __future__ import annotations

from typing import Any, NamedTuple

import polars as pl

from stickytoken.detection.profile_summary import profile_headline, profile_notes
from stickytoken.detection.run import Run
from stickytoken.detection.std_summary import std_headline, std_notes
from stickytoken.methods.profile.record import ProfilePlanRecord, ProfileResultRecord
from stickytoken.methods.std.record import StdPlanRecord, StdResultRecord
from stickytoken.reports.content import RunContent, category_counts, moved
from stickytoken.reports.escaping import plain
from stickytoken.reports.measured_impacts import impact_facts, impact_notes


class Fact(NamedTuple):
    """A number that a reader looks for first."""

    value: str
    meaning: str


def headline(content: RunContent) -> str:
    """One sentence: whether this model has a problem, and how bad."""
    if content.run is None:
        measured = next(iter(content.measured.values()), 0)
        return (
            f"{content.record.model.name}: not finished, {measured:,} of {content.record.tokens:,} tokens "
            "have been looked at."
        )
    if content.is_profile:
        return profile_headline(content.run)
    return f"{content.record.model.name}: {std_headline(content.run)}{_worst_rate(content, content.run)}"


def _worst_rate(content: RunContent, run: Run) -> str:
    """How bad it is, as far as a method without severity says."""
    if content.sticky.is_empty():
        return ""
    row, needed = content.sticky.row(0, named=True), run.result_of(StdResultRecord).rate_threshold
    return (
        f" The worst, {row['token']!r}, draws {row['validation_rate']:.0%} of the unrelated pairs together; "
        f"beyond {needed:.0%} a candidate is sticky."
    )


def tone(content: RunContent) -> str:
    """How bad it is: ``severe``, ``serious``, ``mild``, ``clean`` or ``unknown``."""
    if content.run is None:
        return "unknown"
    if content.sticky.is_empty():
        return "clean"
    if not content.is_profile:
        return "serious"
    found = set(content.sticky["severity"])
    return next((grade for grade in ("severe", "serious") if grade in found), "mild")


def key_facts(content: RunContent) -> list[Fact]:
    """The numbers to read first."""
    record = content.record
    if content.run is None:
        return [
            Fact(f"{count:,}", f"tokens through the stage {stage}")
            for stage, count in content.measured.items()
        ]
    looked_at = Fact(
        f"{len(content.tokens):,}", f"tokens looked at, of {record.model.available:,} that can occur in text"
    )
    sticky = Fact(f"{len(content.sticky):,}", "sticky")
    u = Fact(f"{content.run.plan.mean_similarity:.3f}", "mean similarity u of the model")
    if content.is_profile:
        return [sticky, *_profile_facts(content, content.run), looked_at, u]
    result = content.run.result_of(StdResultRecord)
    return [
        sticky,
        Fact(f"{result.candidates:,}", "candidates validated"),
        Fact(f"{result.rate_threshold:.3f}", "validation rate that a sticky token exceeds"),
        looked_at,
        u,
    ]


def _profile_facts(content: RunContent, run: Run) -> list[Fact]:
    result = run.result_of(ProfileResultRecord)
    highest = content.tokens.select(moved(content).max()).item()
    of = "the worst token" if len(content.sticky) else "the highest lift of any token"
    ordinary = Fact(
        f"{result.ordinary_lift:.4f}", f"lift of an ordinary token, ± {result.ordinary_spread:.4f}"
    )
    topical = Fact(f"{result.topical:,}", "topical: meaning at work, no defect")
    return [*([Fact(f"{highest:.1f} sd", of)] if highest is not None else []), topical, ordinary]


def notes(content: RunContent) -> list[str]:
    """What a reader should know before relying on it."""
    if content.run is None:
        return list(content.missing)
    told = profile_notes(content.run) if content.is_profile else std_notes(content.run)
    if len(content.tokens) < content.record.model.available:
        told = [
            f"only {len(content.tokens):,} of {content.record.model.available:,} available tokens were "
            "looked at: there may be others",
            *told,
        ]
    return [*told, *content.missing, *content.unread_impacts, *impact_notes(content.impacts)]


def computed(content: RunContent) -> dict[str, dict[str, Any]]:
    """What was computed, how, with what and how long it took, in groups."""
    record = content.record
    result = {} if record.result is None else record.result.model_dump()
    groups: dict[str, dict[str, Any]] = {
        "model": record.model.model_dump() | _encoder(record.identity_parts),
        "corpus": record.corpus.model_dump(),
        "result": result,
        "settings": dict(record.settings),
        "plan": _plan(content),
        "vocabulary": category_counts(content.vocabulary) if content.vocabulary is not None else {},
        "versions": dict(record.versions),
        "hardware": dict(record.hardware),
        "run": {
            "folder": str(content.path),
            "identity": record.identity,
            "started": record.started,
            "schema version": record.schema_version,
            "method": record.method,
        },
    }
    if content.evidence is not None:
        evidence = content.evidence.record
        groups["pictures"] = evidence.model_dump(mode="json", exclude={"carriers"}) | {
            "carriers": len(evidence.carriers)
        }
    groups |= impact_facts(content.impacts)
    return {name: values for name, values in groups.items() if values}


def _encoder(parts: dict[str, Any]) -> dict[str, Any]:
    encoder = parts.get("encoder")
    return dict(encoder) if isinstance(encoder, dict) else {}


def _plan(content: RunContent) -> dict[str, Any]:
    plan = content.plan
    if plan is None:
        return {}
    if isinstance(plan, ProfilePlanRecord):
        return {
            "mean_similarity": plan.mean_similarity,
            "mean_similarity_entries": plan.mean_similarity_entries,
            "similarity_spread": plan.similarity_spread,
            "share_below": plan.share_below,
            "left_out": plan.left_out,
            "groups": len(plan.groups),
            "sentence_anchors": len(plan.sentence_anchors),
            "vocabulary_anchors": len(plan.vocabulary_anchors),
            **{f"carriers, {step}": len(texts) for step, texts in plan.carriers.items()},
        }
    if not isinstance(plan, StdPlanRecord):
        return {}
    return {
        "mean_similarity": plan.mean_similarity,
        "mean_similarity_entries": plan.mean_similarity_entries,
        "left_out": plan.left_out,
        "scoring pairs": len(plan.scoring),
        "validation pairs": len(plan.validation),
    }


def how(content: RunContent) -> str:
    """The method in a few sentences."""
    copies = plain(content.record.settings.get("copies")).replace(", ", " or ")
    if content.is_profile:
        return (
            "Copies of every token were put into short texts (carriers), at their beginning, their end and "
            f"between their words, {copies} at a time. Each text was compared with sentences and vocabulary "
            "entries (anchors) before and after. All tokens got a few texts, those with the highest lift or "
            f"pull more, and the last of them {content.setting('confirming_texts'):g} texts of their own, on "
            "which their numbers rest alone. What is ordinary was learned from the vocabulary itself, and "
            "false discoveries are controlled over all tokens."
        )
    return (
        "The method of Chen et al. (ACL 2025): every token was scored on a few sentence pairs, with 1 to "
        f"{copies} copies at the beginning, the end and between the words. The best "
        f"{content.setting('candidate_share'):.2%} were validated on {content.setting('validation_pairs'):g} "
        "pairs below the mean similarity, and outliers among these are called sticky."
    )


def worst(content: RunContent, most: int = 12) -> pl.DataFrame:
    """The worst sticky tokens; where there is none, those of the highest lifts or rates."""
    if content.run is None:
        return content.tokens
    if len(content.sticky):
        return content.sticky.head(most)
    ranked = content.run.method.ranked_by
    return (
        content.tokens.filter(pl.col(ranked).is_not_null())
        .sort(ranked, "token_id", descending=[True, False])
        .head(3)
    )
