"""The profile method: what it computes is in its neighbours, what it tells is here."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any, TypeAlias

import numpy as np
import polars as pl

from stickytoken.methods import base, entry
from stickytoken.methods.base import Job, Method
from stickytoken.methods.probes import SYMPTOM_CARRIERS, EvidenceStage
from stickytoken.methods.profile import _run, anchors, other_texts
from stickytoken.methods.profile.anchors import ProfilePlanRecord, ProfileResultRecord, ProfileSettings
from stickytoken.methods.profile.estimates import read_effects
from stickytoken.methods.profile.plan import make_profile_plan
from stickytoken.methods.profile.verdict import LATER_COLUMNS, MEASURED_COLUMNS, is_character, share_erased
from stickytoken.methods.statistics import TokenEffects
from stickytoken.validation import visible

Run: TypeAlias = base.FinishedRun[ProfilePlanRecord, ProfileResultRecord]

_LIFT = entry.Column("lift", "lift", 4)
_CONTRACTION = entry.Column("contraction", "contraction", 2)
_INTERVAL = (_LIFT, entry.Column("lift_low", "low", 4), entry.Column("lift_high", "high", 4))
_SEVERITY = entry.Column("severity", "severity")
_UNIVERSALITY = entry.Column("universality", "universality", 2)
_REASON = entry.Column("reason", "reason")
_SHOWN_COPIES = (0, 1, 2, 4, 8, 16, 32)
# A note on single characters needs so many of them, and of others, beyond this quantile of the others.
_LEAST_COMPARED, _NEARLY_ALL, _MANY = 50, 0.99, 0.1
# The least that one decimal shows.
_SHOWN = 0.05
_GLOSSARY = {
    "interval": "The plausible range of the lift, given that only some texts were tried, at the confidence "
    "in the settings. The text, not the pair, is the unit of sampling.",
    "SD": "The lift beyond an ordinary token's, in standard deviations of the similarities between the "
    "model's own vectors of texts, so that models can be compared.",
    "severity": "Grade of a flagged token by SD: below 0.2 negligible, from 0.2 mild, from 0.5 serious, from "
    "0.8 severe (Cohen's small, medium and large effects). At 0.8, a typical unrelated text overtakes about "
    "four in five of the others. A topical token is graded on the kind of text that it lifts most.",
    "verdict": "Sticky: copies erase far more of a text than those of an ordinary token, or lift most kinds "
    "of text. Topical: they lift only some kinds of text, which comes from the token's meaning and is not a "
    "defect. Benign: everything else.",
    "reason": "Why a token is flagged: its copies erase far more of a text than those of ordinary tokens do, "
    "or its lift is large enough to matter, or an outlier among the tokens over all texts or on one kind of "
    "text. Or why it is not judged: texts do not spell it.",
    "universality": "The share of the kinds of text (news, law, code, chat, ...) that the token lifts by at "
    "least half of what matters. Sticky tokens exceed 0.5.",
    "lift on single words": "The lift if the carrier is compared with single vocabulary entries instead of "
    "texts. Nobody embeds single entries, and no verdict rests on it.",
    "contraction": "The share of a text's own meaning that copies erase: 0 keeps all of it, 1 leaves none.",
    "q value": "The expected share of ordinary tokens among those that stand out at least as much over all "
    "texts. A token that stands out on one kind of text is flagged whatever its q value.",
}


class ProfileMethod(Method[ProfileSettings, ProfilePlanRecord, ProfileResultRecord]):
    """Every token's lift with an interval, in rounds that narrow the upper tail."""

    settings = ProfileSettings
    plan_record = ProfilePlanRecord
    result_record = ProfileResultRecord
    columns = MEASURED_COLUMNS
    later_columns = LATER_COLUMNS
    listed = (*_INTERVAL, _UNIVERSALITY, _SEVERITY, _REASON)
    reported = (
        _SEVERITY,
        _REASON,
        entry.Column("sd", "SD", 2),
        *_INTERVAL,
        _UNIVERSALITY,
        _CONTRACTION,
        entry.Column("validation_rate", "validation rate", 2),
        entry.Column("q_value", "q value", 4),
        entry.Column("lift_words", "lift on single words", 4),
    )
    ranked_by = _LIFT
    verdicts = tuple(entry.Verdict)
    judges_corpora = True
    uses_topics = True
    uses_whole_vectors = True
    effort = frozenset(
        {"adaptive", "anchors", "budget", "confirming_texts", "dimensions", "layers", "reference"}
    )
    glossary = _GLOSSARY

    make_plan = staticmethod(make_profile_plan)
    compute = staticmethod(_run.run_profile)
    probe = staticmethod(_run.probe_profile)
    require_judging = staticmethod(other_texts.require_judging)
    judge = staticmethod(other_texts.judge_corpus)
    recheck = staticmethod(other_texts.recheck)

    def evidence_stage(self, job: Job[ProfileSettings], plan: ProfilePlanRecord) -> EvidenceStage:
        panel = anchors.anchor_panel(job.encoder, plan, job.vocabulary.available, beside=False)
        texts = self.texts(plan).anchors
        return base.evidence_stage(job, plan.carriers[:SYMPTOM_CARRIERS], texts, panel, plan.unrelated_below)

    def texts(self, plan: ProfilePlanRecord) -> entry.PlanTexts:
        anchors = [anchor.text for anchor in plan.anchors if plan.groups[anchor.group].weight > 0]
        return entry.PlanTexts(plan.carriers, anchors, by_topic=True)

    def token_effects(self, run: Run) -> TokenEffects:
        return read_effects(run.path)

    def headline(self, run: Run) -> str:
        name, sticky = run.model_name, run.sticky
        if not sticky.is_empty():
            counts = entry.severity_counts(sticky).items()
            grades = ", ".join(f"{count} {grade}" for grade, count in counts if count)
            tokens = "sticky token" if len(sticky) == 1 else "sticky tokens"
            return (
                f"{name} has {len(sticky)} {tokens} ({grades}): {self._done(run, sticky.row(0, named=True))}."
            )
        scope = "" if run.result.looked_at == run.available else " among those measured"
        strongest = ""
        if (token := self._highest(run)) is not None:
            strongest = "; none of them moves unrelated texts together more than an ordinary token does"
            if self._moved(run, token["lift"]) >= _SHOWN:
                strongest = f"; for scale, {self._done(run, token, ', the strongest,')}"
        return f"{name} has no sticky tokens{scope}{strongest}."

    def _done(self, run: Run, row: dict[str, Any], who: str = "") -> str:
        token, moved = f"{visible(repr(row['token']))}{who}", run.moved(row["token_id"])
        lift, ordinary = self._moved(run, row["lift"]), run.result.ordinary_contraction
        if row["erases"] and share_erased(row["contraction"], ordinary or 0.0) >= lift:
            return (
                f"copies of {token} erase {row['contraction']:.0%} of what a text says, those of an ordinary "
                f"token {ordinary:.0%}"
            )
        if moved is None:
            more = f"{lift:.1f} SD more than those of an ordinary token do"
            return f"copies of {token} lift unrelated texts by {more}"
        return moved.sentence(token)

    def _highest(self, run: Run) -> dict[str, Any] | None:
        known = run.tokens.filter(pl.col("lift").is_not_null()).sort("lift", descending=True)
        return None if known.is_empty() else known.row(0, named=True)

    def _moved(self, run: Run, lift: float) -> float:
        return (lift - run.result.ordinary_lift) / run.plan.similarity_spread

    def lines(self, run: Run) -> list[str]:
        result, plan = run.result, run.plan
        whole = result.looked_at == run.available
        scope = "all" if whole else "a selection of"
        # Random tokens are measured beside a selection; the texts they take are not texts of its tokens.
        spent = f"{result.texts_per_token:g} texts per token" if whole else "random tokens measured with them"
        token, highest = self._highest(run), ""
        if token is not None and (deviations := self._moved(run, token["lift"])) >= _SHOWN:
            highest = f", {visible(repr(token['token']))} by {deviations:.1f} SD more"
        found = [
            self.headline(run),
            f"method profile, {scope} {result.looked_at:,} of {run.available:,} available tokens; "
            f"{spent}, {result.candidates} measured most closely",
            f"an ordinary token lifts by {result.ordinary_lift:.4f} ± {result.ordinary_spread:.4f}{highest}; "
            f"1 SD is the spread of the model's similarities, {plan.similarity_spread:.4f}; "
            f"mean similarity u = {plan.mean_similarity_text}",
            *plan.space,
        ]
        if result.erasing:
            erase = "token erases" if result.erasing == 1 else "tokens erase"
            found.append(
                f"{result.erasing} {erase} texts whatever they are compared with (an ordinary token: "
                f"{result.ordinary_contraction:.0%}); column reason says how much, and toward what"
            )
        if screened := run.settings.values.get("screen_precision"):
            found.append(
                f"screened in {screened}; numbers of the {result.candidates} tokens measured most closely "
                "are in the model's own precision (column precision of tokens.parquet)"
            )
        if result.topical:
            lift = "token lifts" if result.topical == 1 else "tokens lift"
            found.append(
                f"{result.topical} more {lift} only some kinds of text, because of their meaning: "
                "list them with `stickytoken show --verdict topical`"
            )
        return found

    def notes(self, run: Run) -> list[str]:
        found = []
        if not run.result.empirical_null:
            found.append(
                "the vocabulary is too small, or its tokens too similar, to tell what is ordinary: verdicts "
                "rest on the intervals alone, without control of false discoveries"
            )
        if (limit := run.plan.narrow_limit) is not None:
            found.append(
                "to the model, the sentences are more alike than random words: lifts are measured on the "
                f"less similar half of their pairs, below {limit:.4f}"
            )
        measured = run.tokens.drop_nulls("contraction")
        single, known = is_character(measured), measured["contraction"].to_numpy()
        few = min(single.sum(), (~single).sum()) < _LEAST_COMPARED
        if run.result.ordinary_contraction is not None and not few:
            bound = float(np.quantile(known[~single], _NEARLY_ALL))
            beyond = measured.filter(single & (known > bound)).sort("contraction", descending=True)
            if len(beyond) >= _MANY * single.sum():
                first = visible(repr(beyond["token"][0]))
                found.append(
                    f"{len(beyond):,} of {single.sum():,} single characters, such as {first}, erase more of "
                    f"a text than {_NEARLY_ALL:.0%} of the longer entries do (more than {bound:.0%}). The "
                    "model has seen too little of them to keep the text; they are compared with one another, "
                    "and flagged only if they stand out among themselves"
                )
        if unspelled := run.tokens["verdict"].null_count():
            some = (
                "1 token has no verdict: copies of it"
                if unspelled == 1
                else f"{unspelled:,} tokens have no verdict: copies of them"
            )
            found.append(f"{some} in texts are read as other entries (column reason)")
        if run.plan.left_out:
            found.append(f"{run.plan.left_out} sentences were left out: the model cannot read them in full")
        return found

    def key_facts(self, run: Run) -> list[entry.Fact]:
        found, result, smallest = [], run.result, run.settings.number("smallest_effect")
        token, erased = self._highest(run), run.tokens["contraction"].max()
        if token is not None:
            if (ordinary := result.ordinary_contraction) is not None and isinstance(erased, float):
                most = f"of a text erased by the token that erases most; by an ordinary token, {ordinary:.0%}"
                found.append(entry.Fact(f"{erased:.0%}", most))
            largest = f"largest lift beyond an ordinary token's; it always matters from {smallest:g} SD"
            found.append(entry.Fact(f"{self._moved(run, token['lift']):.1f} SD", largest))
        topical = "topical tokens, which lift only texts about their own subject"
        if result.topical == 1:
            topical = "topical token, which lifts only texts about its own subject"
        return [*found, entry.Fact(f"{result.topical:,}", topical)]

    def how(self, settings: base.StoredSettings) -> str:
        return (
            "Copies of every token were put into short texts (carriers), at their beginning, their end and "
            f"between their words, {settings.text('copies')} at a time. Each text was compared with texts of "
            "several kinds (anchors) before and after. A few random tokens went through all carriers first, "
            "to find the few that best represent all; all tokens then went through these. Those that lift "
            f"most got {settings.number('confirming_texts'):g} further texts, and their numbers rest on "
            "these alone. What is ordinary was learned from the vocabulary itself."
        )

    def plan_facts(self, plan: ProfilePlanRecord) -> dict[str, Any]:
        u = ("mean_similarity", "mean_similarity_entries", "mean_similarity_error")
        numbers = (*u, "isoscore", "similarity_spread", "share_below", "left_out")
        lists = ("groups", "anchors", "vocabulary_anchors", "carriers")
        found = {name: getattr(plan, name) for name in numbers}
        return found | {name: len(getattr(plan, name)) for name in lists}

    def scale(self, run: Run) -> entry.Scale:
        return entry.Scale(
            run.result.ordinary_lift,
            run.plan.similarity_spread,
            run.settings.number("confidence"),
            entry.SEVERITY_BOUNDS[entry.Severity.SERIOUS],
        )

    def figures(self, run: Run) -> list[entry.Figure]:
        ordinary = run.result.ordinary_lift
        matters = ordinary + run.settings.number("smallest_effect") * run.plan.similarity_spread
        return [
            entry.Distribution(
                "lift-distribution",
                "Lifts over the vocabulary",
                _LIFT,
                {"ordinary": ordinary, "matters": matters},
                "How far copies of a token raise the similarity of unrelated texts. The grey bars count all "
                "tokens; their axis is logarithmic, so that a single token is visible. “Ordinary” is the "
                "typical token. A token beyond “matters” is flagged: as sticky if on most kinds of text, as "
                "topical if on only some. One that lifts at least half as much is flagged if ordinary tokens "
                "never do, over all texts or on one kind of text.",
            ),
            entry.Scatter(
                "lift-contraction",
                "Lift against contraction",
                _LIFT,
                _CONTRACTION,
                "Lift says how far unrelated texts come together, contraction how much of the difference "
                "between similarities is lost (0: none, 1: all). Among ordinary tokens, one rises as the "
                "other falls: a word close to many texts lifts and contracts little, and noise contracts but "
                "does not lift. A sticky token lifts far more than others of its contraction.",
            ),
        ]

    def probe_lines(self, probed: Sequence[_run.ProfileEvidence]) -> list[entry.ProbeTable | str]:
        first = probed[0]
        measured = ("lift", "lift_low", "lift_high", "universality", "severity", "verdict")
        return [
            entry.ProbeTable(
                "Lift: mean rise of the similarity of unrelated texts",
                ("id", "token", "category", "lift", "low", "high", "universality", "severity", "verdict"),
                list(map(attrgetter("token_id", "token", "category", *measured), probed)),
            ),
            self._curves(probed, "below"),
            self._curves(probed, "above"),
            f"An ordinary token lifts by {first.ordinary_lift:.4f}. "
            "Sticky tokens pull both kinds of pairs toward one value; "
            f"the model's mean similarity is {first.mean_similarity:.4f}.",
        ]

    def _curves(self, evidence: Sequence[_run.ProfileEvidence], side: str) -> entry.ProbeTable | str:
        curve = evidence[0].curve
        if not getattr(curve, side):
            return f"No pair of these texts lies {side} the model's mean similarity."
        places = [place for place, copies in enumerate(curve.copies) if copies in _SHOWN_COPIES]
        rows = [(each.token, getattr(each.curve, side)) for each in evidence]
        rows.append(("(ordinary tokens)", getattr(curve, f"ordinary_{side}")))
        return entry.ProbeTable(
            f"Similarity of pairs {side} the mean similarity, by number of copies",
            ("token", *(str(curve.copies[place]) for place in places)),
            [(token, *(values[place] for place in places)) for token, values in rows if values],
        )
