"""How the profile method describes its runs and probes: headlines, tables, notes and figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import polars as pl

from stickytoken.methods import Column, Distribution, Fact, Figure, ProbeTable, Scatter, base, wording

if TYPE_CHECKING:
    from stickytoken.methods.profile import ProfileEvidence
    from stickytoken.methods.profile.records import ProfilePlanRecord, ProfileResultRecord

    Run: TypeAlias = base.FinishedRun[ProfilePlanRecord, ProfileResultRecord]

_VECTOR = Column("vector_deviation", "vector", 1)
_SEVERITY = Column("severity", "severity")
_REASON = Column("reason", "reason")
LISTED: tuple[Column, ...] = (wording.ERASED, wording.LIFT, _VECTOR, _SEVERITY, _REASON)
REPORTED: tuple[Column, ...] = (
    _SEVERITY,
    _REASON,
    wording.ERASED,
    Column("erased_low", "erased, low", 0, "%"),
    Column("erased_high", "erased, high", 0, "%"),
    wording.LIFT,
    Column("lift_sd_low", "lift, low", 2, "SD"),
    Column("lift_sd_high", "lift, high", 2, "SD"),
    _VECTOR,
    Column("kinds_lifted", "kinds lifted", 0),
    Column("strongest_kind", "strongest kind"),
)
RANKED_BY = wording.ERASED
GLOSSARY: Mapping[str, str] = wording.GLOSSARY


def headline(run: Run) -> str:
    """Return how many tokens are sticky, and among how many."""
    result = run.result
    scope = f"among {result.looked_at:,}"
    if result.looked_at < run.available:
        scope += " examined"
    if not result.sticky:
        return f"{run.model_title}: no sticky tokens {scope}"
    return f"{run.model_title}: {wording.counted(result.sticky, 'sticky token')} {scope}"


def lines(run: Run) -> list[str]:
    """Return the sentences that follow the headline in the terminal.

    The sentences state the rule for sticky tokens with the run's thresholds, say if token vectors were
    not compared, and give the number of topical tokens, if there are any.
    """
    settings, result = run.settings, run.result
    sentences = [wording.rule(settings.number("smallest_lift"), settings.number("smallest_erased"))]
    if not result.vectors_compared:
        sentences.append(wording.WITHOUT_VECTORS)
    if result.topical:
        listing = "list them with `stickytoken show RUN --verdict topical`"
        words = wording.counted(result.topical, "more token")
        lift = "lifts" if result.topical == 1 else "lift"
        sentences.append(f"{words} {lift} only some kinds of text, because of their meaning: {listing}")
    return sentences


def notes(run: Run) -> list[str]:
    """Return caveats on the verdicts, such as a small budget or a narrow corpus."""
    caveats = []
    if run.result.unconfirmed:
        words = wording.counted(run.result.unconfirmed, "token")
        caveats.append(
            f"{words} may be sticky, but the budget did not allow measuring them closely: raise "
            "the budget with --set budget=N (texts per token)"
        )
    if run.plan.narrow_limit is not None:
        caveats.append(
            "to the model, the sentences are more similar to each other than random words are: lifts are "
            "measured on the less similar half of the pairs, with a similarity below "
            f"{run.plan.narrow_limit:.4f}"
        )
    caveats += _notes_on_missing_verdicts(run.tokens)
    if run.plan.left_out:
        words = wording.counted(run.plan.left_out, "sentence")
        caveats.append(f"{words} left out because the model does not read them in full")
    return caveats


def key_facts(run: Run) -> list[Fact]:
    """Return the largest erased share and lift, and the number of topical tokens."""
    facts = []
    measured = run.tokens.filter(pl.col("confirmed") | pl.col("severity").is_not_null())
    measured = measured.drop_nulls(["erased", "lift_sd"])
    if not measured.is_empty():
        most_erased = measured.sort("erased", "token_id", descending=[True, False]).row(0, named=True)
        most_lifted = measured.sort("lift_sd", "token_id", descending=[True, False]).row(0, named=True)
        smallest_erased = wording.percent(run.settings.number("smallest_erased"))
        smallest_lift = f"{run.settings.number('smallest_lift'):g} SD"
        of_erased = (
            f"the largest erased share, by copies of {wording.quoted(most_erased['token'])}; sticky from "
            f"{smallest_erased}"
        )
        of_lift = (
            f"the largest lift of unrelated texts, by copies of {wording.quoted(most_lifted['token'])}; "
            f"sticky from {smallest_lift}"
        )
        facts.append(Fact(wording.percent(most_erased["erased"]), of_erased))
        facts.append(Fact(wording.in_sd(most_lifted["lift_sd"]), of_lift))
    topical = run.result.topical
    if topical:
        noun = "topical token" if topical == 1 else "topical tokens"
        facts.append(Fact(f"{topical:,}", f"{noun}, which lift only some kinds of text"))
    return facts


def describe(settings: base.StoredSettings) -> str:
    """Return an explanation of the method in a few sentences."""
    return (
        "Copies of every token were put into short texts (carriers), at the beginning, at the end or "
        f"between words, {settings.text('copies')} at a time. Each carrier was compared with texts of "
        "several kinds (anchors), without and with the copies. Random tokens were put into all carriers "
        "first, to find the few carriers that best represent all, and to measure the ordinary token. All "
        "tokens were then put into these few carriers. The tokens that were most likely to reach a "
        f"threshold were also put into {settings.number('confirming_texts'):g} further carriers. "
        "Verdicts rest on these further carriers alone."
    )


def plan_facts(plan: ProfilePlanRecord) -> dict[str, Any]:
    """Return the numeric fields of a plan, and how many groups, anchors, carriers and pilots it has."""
    numeric_fields = (
        "mean_similarity",
        "mean_similarity_entries",
        "mean_similarity_error",
        "isoscore",
        "similarity_spread",
        "share_below",
        "left_out",
    )
    facts = {name: getattr(plan, name) for name in numeric_fields}
    for name in ("groups", "anchors", "carriers", "pilots"):
        facts[name] = len(getattr(plan, name))
    return facts


def figures(run: Run) -> list[Figure]:
    """Describe three figures: the distributions of both measures, and lift against erased share."""
    return [
        Distribution(
            "erased-distribution",
            "Erased shares over the vocabulary",
            wording.ERASED,
            {"threshold": run.settings.number("smallest_erased")},
            "How much less of a text's meaning copies of each token leave than copies of an ordinary "
            "token do. The grey bars count all tokens; the count axis is logarithmic, so that a single "
            "token is visible. A token whose interval lies beyond the threshold is sticky.",
        ),
        Distribution(
            "lift-distribution",
            "Lifts over the vocabulary",
            wording.LIFT,
            {"threshold": run.settings.number("smallest_lift")},
            "How much closer copies of each token move texts to unrelated texts than copies of an "
            "ordinary token do, in standard deviations of the model's similarities. A token whose "
            "interval lies beyond the threshold is sticky, or topical if it lifts fewer than half of the "
            "kinds of text.",
        ),
        Scatter(
            "lift-erased",
            "Lift against erased share",
            wording.LIFT,
            wording.ERASED,
            "Copies of a token in the upper part erase texts: documents with these copies are no longer "
            "found. Copies of a token far to the right lift texts: documents with these copies come "
            "closer to unrelated documents.",
        ),
    ]


def probe_lines(probed: Sequence[ProfileEvidence]) -> list[ProbeTable | str]:
    """Return a table of both measures, the reasons for flags, two tables of curves, and the rule."""
    first = probed[0]  # the thresholds are the same for all tokens
    blocks: list[ProbeTable | str] = [
        ProbeTable(
            "Compared with copies of an ordinary token, how much less of a text's meaning copies leave "
            "(erased), and how much closer they move texts to unrelated texts (lift)",
            _PROBE_COLUMNS,
            [_probe_row(evidence) for evidence in probed],
        ),
    ]
    flagged = [evidence for evidence in probed if evidence.reason is not None]
    blocks += [f"{wording.quoted(evidence.token)}: {evidence.reason}" for evidence in flagged]
    blocks.append(_curve_table(probed, "below"))
    blocks.append(_curve_table(probed, "above"))
    blocks.append(wording.rule(first.smallest_lift, first.smallest_erased))
    if not first.vectors_compared:
        blocks.append(wording.WITHOUT_VECTORS)
    return blocks


def _notes_on_missing_verdicts(tokens: pl.DataFrame) -> list[str]:
    """Return notes on the tokens without a verdict.

    A token has no verdict if a server gives no vector for texts with its copies, or if the tokenizer reads
    its copies as other entries.
    """
    without_verdict = tokens.filter(pl.col("verdict").is_null())
    reasons = without_verdict["reason"].fill_null("")
    unanswered = int(reasons.str.contains("the server gives no vector", literal=True).sum())
    unspelled = len(without_verdict) - unanswered
    notes = []
    if unanswered:
        notes.append(
            f"{_tokens_have(unanswered)} no verdict: the server gives no vector for texts with copies "
            "(column reason)"
        )
    if unspelled:
        notes.append(
            f"{_tokens_have(unspelled)} no verdict: the tokenizer reads copies in texts as other entries "
            "(column reason)"
        )
    return notes


def _tokens_have(count: int) -> str:
    return f"{wording.counted(count, 'token')} {'has' if count == 1 else 'have'}"


_PROBE_COLUMNS = ("id", "token", "category", "erased", "interval", "lift", "interval", "vector", "verdict")


def _probe_row(evidence: ProfileEvidence) -> list[object]:
    """Return a token's values in the columns `_PROBE_COLUMNS`."""
    vector = ""
    if evidence.vector_deviation is not None:
        vector = "unusual" if evidence.vector_deviation >= evidence.unusual else "usual"
    verdict = evidence.verdict
    if evidence.severity is not None:
        verdict += f", {evidence.severity}"
    return [
        evidence.token_id,
        evidence.token,
        evidence.category,
        wording.percent(evidence.erased),
        wording.percent_interval(evidence.erased_low, evidence.erased_high),
        wording.in_sd(evidence.lift_sd),
        wording.sd_interval(evidence.lift_sd_low, evidence.lift_sd_high),
        vector,
        verdict,
    ]


# The numbers of copies that have a column in the curve tables. A terminal has no room for more columns.
_TABLE_COPIES = (0, 1, 2, 4, 8, 16, 32)


def _curve_table(probed: Sequence[ProfileEvidence], side: str) -> ProbeTable | str:
    """Return a table of the mean similarity of text pairs at each number of copies, or a sentence.

    ``side`` selects the pairs: ``below`` for those whose similarity without copies is below the model's mean
    similarity, ``above`` for all others. If there are no such pairs, the sentence says so.

    All tokens of a probe are measured with the same pairs of texts and the same numbers of copies, and their
    evidence contains the same curve of ordinary tokens. What they share is therefore read from the first.
    """
    first_curve = probed[0].curve
    has_pairs = bool(getattr(first_curve, side))  # without pairs, the curve of every token is empty
    if not has_pairs:
        return f"No pair of these texts lies {side} the model's mean similarity."
    curves = [(evidence.token, getattr(evidence.curve, side)) for evidence in probed]
    ordinary_curve = getattr(first_curve, f"ordinary_{side}")
    if ordinary_curve:  # it is empty if no ordinary token was measured
        curves.append(("(ordinary tokens)", ordinary_curve))
    indices = [index for index, copies in enumerate(first_curve.copies) if copies in _TABLE_COPIES]
    rows = []
    for token, similarities in curves:
        shown_similarities = [similarities[index] for index in indices]
        rows.append((token, *shown_similarities))
    return ProbeTable(
        f"Similarity of pairs {side} the mean similarity, by number of copies",
        ("token", *(str(first_curve.copies[index]) for index in indices)),
        rows,
    )
