"""How the profile method describes its runs and probes: headlines, tables, notes and figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import polars as pl

from stickytoken.intervals import estimate_share
from stickytoken.methods import (
    Column,
    Distribution,
    Fact,
    Figure,
    ProbeTable,
    RunDescription,
    Scatter,
    Verdict,
    base,
    wording,
)
from stickytoken.methods.measures import ERASED, MEASURES, PUSH, thresholds
from stickytoken.methods.profile.documents import PREDICTABLE
from stickytoken.methods.runner import UNANSWERED_REASON
from stickytoken.unit_vectors import Similarity
from stickytoken.words import counted, quoted

if TYPE_CHECKING:
    from stickytoken.methods.profile import ProfileEvidence
    from stickytoken.methods.profile.records import ProfilePlanRecord, ProfileResultRecord
    from stickytoken.settings.profile import ProfileSettings, RuleSettings

    Run: TypeAlias = base.FinishedRun[ProfilePlanRecord, ProfileResultRecord]

_VECTOR = Column("vector_deviation", "vector", 1)
_SEVERITY = Column("severity", "severity")
_REASON = Column("reason", "reason")
LISTED: tuple[Column, ...] = (*MEASURES, _VECTOR, _SEVERITY, _REASON)
REPORTED: tuple[Column, ...] = (
    _SEVERITY,
    _REASON,
    ERASED,
    ERASED.low,
    ERASED.high,
    PUSH,
    PUSH.low,
    PUSH.high,
    Column("found", "found", 0, "%"),
    Column("documents", "documents", 0),
    _VECTOR,
)


# Number of tokens that a note names.
_NAMED = 3


def describe_run(run: Run) -> RunDescription:
    """Return what is said about a run in the terminal and in reports."""
    rule = run.settings
    coverage = _describe_coverage(run)
    lines = [wording.describe_rule(rule.smallest_erased, rule.smallest_push)]
    if not run.result.vectors_compared:
        lines.append(wording.WITHOUT_VECTORS)
    return RunDescription(
        headline=_headline(run),
        lines=[*lines, *coverage],
        coverage=coverage,
        notes=_notes(run),
        method=_describe_method(run.settings),
        strongest_title=wording.strongest_title(rule),
        key_facts=_list_largest_values(run, rule),
        plan_facts=_plan_facts(run.plan),
        figures=describe_figures(rule),
    )


def describe_similarity(similarity: Similarity) -> str:
    """Say which of the measures `ERASED` and `PUSH` takes the cosine, and which a model's ``similarity``."""
    return (
        "erased shares are measured by the cosine, which ignores the lengths of vectors (push is measured by "
        f"{similarity})"
    )


def _headline(run: Run) -> str:
    result = run.result
    scope = f"among {result.looked_at:,}"
    if result.looked_at < run.available:
        scope += " examined"  # rather than all
    if not result.sticky:
        return f"no sticky tokens {scope}"
    return f"{counted(result.sticky, 'sticky token')} {scope}"


def _describe_coverage(run: Run) -> list[str]:
    """Say how many tokens were measured in documents, and what the random ones imply for the others."""
    result = run.result
    documents = run.plan.documents
    if documents is None or result.ordinary_push is None:  # `_notes` say why
        return ["No token's push was measured."]
    measured = counted(result.in_documents, "token was", "tokens were")
    ordinary = f"an ordinary token pushes {PUSH.text(result.ordinary_push)}"
    sentences = f"{measured} measured in {documents.source}; {ordinary}."
    others = result.looked_at - result.in_documents
    if others > 0:
        pushing = f"{result.random_pushing or 'none'} {'pushes' if result.random_pushing <= 1 else 'push'}"
        sentences += f" Of {result.random_in_documents} random ones, {pushing} enough"
        if run.has_named_tokens:
            # The random ones come from the whole vocabulary, and tell nothing of tokens that somebody chose.
            sentences += f"; {others:,} others were not measured in documents."
        else:
            # The upper end of an interval of 90% is exceeded with a probability of 5%. The bound is about all
            # tokens, from which the random ones were drawn, and about what a run finds: tokens that push too
            # little in a few documents are not measured in more.
            share = estimate_share(result.random_pushing, result.random_in_documents, 0.9)
            sentences += (
                f". So at most {share.high:.1%} of all tokens would (95% confidence), measured in the same "
                f"way; {others:,} were not measured in documents."
            )
    return [sentences]


def _notes(run: Run) -> list[str]:
    """Return caveats on the verdicts, such as a small budget or too few texts."""
    caveats = []
    if run.result.unconfirmed:
        count = counted(run.result.unconfirmed, "token")
        caveats.append(
            f"{count} may be sticky, but the budget did not allow measuring them closely: raise the budget "
            "with --set budget=N (texts per token)"
        )
    if run.plan.documents is None:
        caveats.append(
            "push was not measured: the sentences do not suffice for documents, and the tokenizer cannot "
            "read the bundled ones; use more sentences"
        )
    elif run.result.in_documents and run.result.ordinary_push is None:
        # The push is the ratio of a document's wrong results with copies to those without, of which none is.
        caveats.append(
            "push is unknown: without copies, no document is a wrong result of any query; use more sentences"
        )
    # A run searches with all tokens, or with those whose push is predicted to be large.
    elif run.plan.documents.similarity not in PREDICTABLE and run.result.in_documents < run.result.looked_at:
        caveats.append(
            "which tokens may push could not be predicted, because the model compares vectors by "
            f"{run.plan.documents.similarity}: measure all in documents with --set documents=all"
        )
    caveats += _notes_on_undecided(run)
    caveats += _notes_on_missing_verdicts(run.tokens)
    return caveats


def _notes_on_undecided(run: Run) -> list[str]:
    """Name the benign tokens of which a measure reaches its threshold, though not with its whole interval.

    Only values that were measured in full count: of those from few texts, many are large by chance.
    """
    measured_in_full = {ERASED: pl.col("confirmed")}
    if run.plan.documents is not None:
        measured_in_full[PUSH] = pl.col("documents") == len(run.plan.documents.chosen)
    benign = run.tokens.filter(verdict=Verdict.BENIGN.value)
    notes = []
    for measure, is_measured_in_full in measured_in_full.items():
        with_value = benign.filter(is_measured_in_full).drop_nulls(measure.key)
        needed = thresholds(with_value["vector_deviation"].to_numpy(), run.settings)[measure.key]
        may_reach = pl.Series(with_value[measure.key].to_numpy() >= needed)
        undecided = with_value.filter(may_reach).sort(measure.key, "token_id", descending=[True, False])
        if undecided.is_empty():
            continue
        named = [
            f"{quoted(row['token'])} ({measure.text(row[measure.key])}, "
            f"{measure.interval(row[measure.low.key], row[measure.high.key])})"
            for row in undecided.head(_NAMED).to_dicts()
        ]
        more = f" and {len(undecided) - _NAMED} more" if len(undecided) > _NAMED else ""
        notes.append(
            f"{measure.noun} of {', '.join(named)}{more}: the interval is too wide to tell whether it is "
            "enough; measure such tokens in your documents with stickytoken.audit(tokens=...) in Python"
        )
    return notes


def _list_largest_values(run: Run, rule: RuleSettings) -> list[Fact]:
    facts = []
    # The largest of the rough values of all other tokens would be one by chance.
    measured_closely = {
        ERASED: pl.col("confirmed") | pl.col("severity").is_not_null(),
        PUSH: pl.col("documents") == pl.col("documents").max(),
    }
    for measure in MEASURES:
        with_value = run.tokens.filter(measured_closely[measure]).drop_nulls(measure.key)
        if with_value.is_empty():
            continue
        largest = with_value.sort(measure.key, "token_id", descending=[True, False]).row(0, named=True)
        threshold = measure.threshold_format.format(getattr(rule, measure.setting))
        meaning = f"{measure.largest}, by copies of {quoted(largest['token'])}; sticky from {threshold}"
        facts.append(Fact(measure.text(largest[measure.key]), meaning))
    return facts


def _describe_method(settings: ProfileSettings) -> str:
    copies = " or ".join(map(str, settings.copies))
    return (
        "Copies of every token were put into short texts (carriers), at the beginning, at the end or "
        f"between words, {copies} at a time. Random tokens were put into all carriers "
        "first, to find the few that best represent all, and to measure the ordinary token. All tokens were "
        "then put into these few. Those most likely to erase enough were also put into "
        f"up to {settings.confirming_texts} further carriers, and verdicts on erased shares rest "
        "on these alone. To measure the push, eight copies were put in front of or behind documents, one at "
        "a time, in a search among documents without copies: special tokens, tokens with an unusual vector, "
        "those that erase most or are expected to push most, and random ones. Tokens that may reach their "
        "threshold were measured in more documents."
    )


def _plan_facts(plan: ProfilePlanRecord) -> dict[str, Any]:
    facts: dict[str, Any] = {"carriers": len(plan.carriers), "pilots": len(plan.pilots)}
    if plan.documents is not None:
        facts["documents"] = plan.documents.documents
        facts["queries"] = plan.documents.queries
        facts["depth"] = plan.documents.depth
    return facts


def describe_figures(rule: RuleSettings) -> list[Figure]:
    """Describe three figures: the distributions of both measures, and push against erased share."""
    return [
        Distribution(
            "erased-distribution",
            "Erased shares over the vocabulary",
            ERASED,
            {"threshold": rule.smallest_erased},
            "How much less of a text's meaning copies of each token leave than copies of an ordinary "
            "token do. The grey bars count all tokens; the count axis is logarithmic, so that a single "
            "token is visible. A token whose interval lies beyond the threshold is sticky.",
        ),
        Distribution(
            "push-distribution",
            "Push of the tokens measured in documents",
            PUSH,
            {"threshold": rule.smallest_push},
            "In how many times as many wrong results a document with eight copies of the token is. Copies of "
            "most tokens take documents out of results: their push is below 1. A token whose interval lies "
            "beyond the threshold is sticky.",
        ),
        Scatter(
            "push-erased",
            "Push against erased share",
            PUSH,
            ERASED,
            "Copies of a token in the upper part erase texts: documents with these copies are no longer "
            "found. Copies of a token far to the right push documents into results where they don't belong.",
        ),
    ]


def describe_probe(probed: Sequence[ProfileEvidence]) -> list[ProbeTable | str]:
    """Return a table of both measures, the reasons for flags, and the rule."""
    first = probed[0]  # the rule is the same for all tokens
    blocks: list[ProbeTable | str] = [
        ProbeTable(
            "How much less of a text's meaning copies leave than copies of an ordinary token (erased), and "
            "in how many times as many wrong results a document is with eight copies (push)",
            _PROBE_COLUMNS,
            [_probe_row(evidence) for evidence in probed],
        ),
    ]
    flagged = [evidence for evidence in probed if evidence.reason is not None]
    blocks += [f"{quoted(evidence.token)}: {evidence.reason}" for evidence in flagged]
    blocks.append(wording.describe_rule(first.smallest_erased, first.smallest_push))
    if not first.vectors_compared:
        blocks.append(wording.WITHOUT_VECTORS)
    return blocks


def _notes_on_missing_verdicts(tokens: pl.DataFrame) -> list[str]:
    without_verdict = tokens.filter(pl.col("verdict").is_null())
    reasons = without_verdict["reason"].fill_null("")
    unanswered = int(reasons.str.starts_with(UNANSWERED_REASON).sum())
    counts = {
        "the server gives no vector for texts with copies": unanswered,
        "the tokenizer reads copies in texts as other entries": len(without_verdict) - unanswered,
    }
    return [
        f"{counted(count, 'token has', 'tokens have')} no verdict: {cause} (column reason)"
        for cause, count in counts.items()
        if count
    ]


_PROBE_COLUMNS = ("id", "token", "category", "erased", "interval", "push", "interval", "vector", "verdict")


def _probe_row(evidence: ProfileEvidence) -> list[object]:
    """Return a token's values in the columns `_PROBE_COLUMNS`."""
    vector = ""
    if evidence.vector_deviation is not None:
        vector = "unusual" if evidence.vector_deviation >= evidence.unusual else "usual"
    push_interval = ""
    if evidence.push_low is not None and evidence.push_high is not None:
        push_interval = PUSH.interval(evidence.push_low, evidence.push_high)
    verdict = evidence.verdict
    if evidence.severity is not None:
        verdict += f", {evidence.severity}"
    return [
        evidence.token_id,
        evidence.token,
        evidence.category,
        ERASED.text(evidence.erased),
        ERASED.interval(evidence.erased_low, evidence.erased_high),
        PUSH.text(evidence.push),
        push_interval,
        vector,
        verdict,
    ]
