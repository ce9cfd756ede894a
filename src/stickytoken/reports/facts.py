"""The headline of a run, its key numbers, and how it was computed."""

from __future__ import annotations

from typing import Any

import polars as pl

from stickytoken.comparisons.compared_run import ComparedRun, short_headline, tone_of
from stickytoken.comparisons.result import shown_copies
from stickytoken.detection.next_steps import NextStep, next_steps
from stickytoken.detection.run import Run
from stickytoken.detection.schema import RunRecord
from stickytoken.methods.descriptions import Fact
from stickytoken.reports._made_repairs import repair_facts, repair_notes
from stickytoken.reports._measured_impacts import impact_facts, impact_notes
from stickytoken.reports.content import RunContent, category_counts
from stickytoken.visible_text import visible

MOST_CARDS = 12
"""Sticky tokens with a card of their own."""
# The least similarity that two digits show.
_LEAST_SHOWN = 0.005


def headline(content: RunContent) -> str:
    """Say in one sentence whether this model has a problem, and how bad it is."""
    if content.run is None:
        # Stages overlap, and beside a selection of tokens random ones are measured.
        measured = min(max(content.measured.values(), default=0), content.record.tokens)
        return (
            f"{content.record.model.name}: not finished, {measured:,} of {content.record.tokens:,} tokens "
            "have been measured so far."
        )
    return short_headline(content.run)


def tone(content: RunContent) -> str:
    """Return how bad it is: ``severe``, ``serious``, ``mild``, ``clean`` or ``unknown``."""
    if content.run is None:
        return "unknown"
    return tone_of(content.sticky)


def key_facts(content: RunContent) -> list[Fact]:
    """Return the numbers to read first."""
    record = content.record
    if content.run is None:
        return [
            Fact(f"{count:,}", f"tokens measured in the stage {stage}")
            for stage, count in content.measured.items()
        ]
    examined, available = len(content.tokens), record.model.available
    of = (
        f"all {available:,} tokens that can appear in text"
        if examined == available
        else f"{examined:,} tokens examined ({available:,} can appear in text)"
    )
    sticky = Fact(f"{len(content.sticky):,}", f"sticky, of {of}")
    return [sticky, *content.method.key_facts(content.run), *_copies(content.run)]


def _copies(run: Run) -> list[Fact]:
    compared = ComparedRun(run.model_name, run)
    if compared.copies is None or compared.worst is None or compared.scale is None:
        return []
    # The few texts of a curve can miss what many texts show: then it has no number to give.
    if compared.copies.enough is None and (compared.worst.deviations or 0.0) >= compared.scale.serious:
        return []
    number, token = shown_copies(compared.copies), visible(repr(compared.worst.token))
    unit, are = ("copy", "is") if number == "1" else ("copies", "are")
    return [
        Fact(number, f"{unit} of {token} {are} needed for a serious effect, {compared.scale.serious:g} SD")
    ]


def meaning(content: RunContent) -> str | None:
    """Say for a reader who has never heard of sticky tokens what the headline means; None if unfinished."""
    if content.run is None:
        return None
    told = (
        "A sticky token draws texts together: a text that repeats it becomes more similar to unrelated "
        "texts, whatever it says, and turns up in searches that it has nothing to do with. "
    )
    raised = _raised(content)
    if len(content.sticky):
        return f"{told}This model has such tokens{f': {raised}' if raised else ''}."
    if len(content.tokens) < content.record.model.available:
        return f"{told}None of the tokens examined does so enough to matter; the others may."
    most = f": even {raised}. It" if raised else ": it"
    return f"{told}No token of this model does so enough to matter{most} needs no repair."


def _raised(content: RunContent) -> str | None:
    """Say how far the token that lifts most raises similarities; None without a scale or a rise."""
    worst = worst_tokens(content, 1)
    if content.scale is None or worst.is_empty() or worst["lift"][0] <= 0:
        return None
    lift = worst["lift"][0]
    by = f"{lift:.2f}" if lift >= _LEAST_SHOWN else "less than 0.01"
    token = visible(repr(worst["token"][0]))
    return f"copies of {token} raise the cosine similarity of unrelated texts by {by} on average"


def steps(content: RunContent) -> tuple[NextStep, ...]:
    """Return what to do about the verdicts; nothing for an unfinished run."""
    return () if content.run is None else next_steps(content.run)


def notes(content: RunContent) -> list[str]:
    """Return what a reader should know before relying on the run."""
    if content.run is None:
        return list(content.missing)
    found = content.method.notes(content.run)
    if len(content.tokens) < content.record.model.available:
        found = [
            f"only {len(content.tokens):,} of {content.record.model.available:,} available tokens were "
            "examined: the others may be sticky too",
            *found,
        ]
    made = (*impact_notes(content.impacts), *repair_notes(content.repairs))
    return [*found, *content.missing, *content.unread, *made]


def run_details(content: RunContent) -> dict[str, dict[str, Any]]:
    """Return model, corpus, settings, versions and timing of the run, in groups."""
    record = content.record
    result = {} if record.result is None else record.result.model_dump()
    groups: dict[str, dict[str, Any]] = {
        "model": _model(record) | _encoder(record.identity_parts),
        "corpus": record.corpus.model_dump(),
        "result": result,
        "settings": dict(record.settings),
        "plan": {} if content.plan is None else content.method.plan_facts(content.plan),
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
    groups |= impact_facts(content.impacts) | repair_facts(content.repairs)
    return {name: values for name, values in groups.items() if values}


def _model(record: RunRecord) -> dict[str, Any]:
    """Describe the model; of how it is loaded, only what was set."""
    described = record.model.model_dump()
    if loading := described.get("loading"):
        described["loading"] = {
            name: value for name, value in loading.items() if value not in (None, "", False)
        }
    return described


def _encoder(parts: dict[str, Any]) -> dict[str, Any]:
    encoder = parts.get("encoder")
    return dict(encoder) if isinstance(encoder, dict) else {}


def method_description(content: RunContent) -> str:
    """Describe the method in a few sentences."""
    return content.method.how(content.settings)


def worst_tokens(content: RunContent, most: int = MOST_CARDS) -> pl.DataFrame:
    """Return the worst sticky tokens; if none is sticky, the three that rank highest."""
    if content.run is None:
        return content.tokens
    if len(content.sticky):
        return content.sticky.head(most)
    ranked = content.method.ranked_by.key
    return (
        content.tokens.filter(pl.col(ranked).is_not_null())
        .sort(ranked, "token_id", descending=[True, False])
        .head(3)
    )
