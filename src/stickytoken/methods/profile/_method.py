"""The profile method, put together."""

from __future__ import annotations

from collections.abc import Sequence

from stickytoken.methods.entry import Column, Distribution, Figure, PlanTexts, ProbeTable, Scatter, Verdict
from stickytoken.methods.job import Job
from stickytoken.methods.probes import SYMPTOM_CARRIERS
from stickytoken.methods.profile import ENTRY
from stickytoken.methods.profile import _words as words
from stickytoken.methods.profile._judging import ProfileEvidence, judge_corpus, probe_profile, require_judging
from stickytoken.methods.profile._run import plan_profile, run_profile
from stickytoken.methods.profile._words import ProfileRun
from stickytoken.methods.profile.anchors import ProfilePlanRecord, ProfileResultRecord, anchor_panel
from stickytoken.methods.profile.estimates import token_effects
from stickytoken.methods.profile.settings import ProfileSettings
from stickytoken.methods.profile.verdict import MEASURED_COLUMNS, recheck
from stickytoken.methods.protocol import EvidencePanel, Method, evidence_panel

_LIFT = Column("lift", "lift", 4)
_CONTRACTION = Column("contraction", "contraction", 2)
_INTERVAL = (_LIFT, Column("lift_low", "low", 4), Column("lift_high", "high", 4))
_SEVERITY = Column("severity", "severity")
_UNIVERSALITY = Column("universality", "universality", 2)
_RATE = Column("validation_rate", "validation rate", 2)
_KIND = Column("kind", "kind")
LISTED = (*_INTERVAL, _UNIVERSALITY, _KIND, _SEVERITY)
REPORTED = (
    _SEVERITY,
    _KIND,
    Column("sd", "SD", 2),
    *_INTERVAL,
    _UNIVERSALITY,
    _CONTRACTION,
    _RATE,
    Column("q_value", "q value", 4),
    Column("lift_words", "lift on single words", 4),
)
RANKED_BY = _LIFT
_SHOWN_COPIES = (0, 1, 2, 4, 8, 16, 32)


def figures(run: ProfileRun) -> list[Figure]:
    """Describe the distribution of the lifts, and lift against contraction."""
    ordinary = run.result.ordinary_lift
    matters = ordinary + run.settings.number("smallest_effect") * run.plan.similarity_spread
    return [
        Distribution(
            "lift-distribution",
            "Lifts over the vocabulary",
            _LIFT,
            {"ordinary": ordinary, "matters": matters},
            "How far copies of a token raise the similarity of unrelated texts. The grey bars count all "
            "tokens; their axis is logarithmic, so that a single token is visible. “Ordinary” is the typical "
            "token. A token beyond “matters” is flagged: as sticky if on most kinds of text, as topical if "
            "on only some. One that lifts at least half as much is flagged if ordinary tokens never do, over "
            "all texts or on one kind of text.",
        ),
        Scatter(
            "lift-contraction",
            "Lift against contraction",
            _LIFT,
            _CONTRACTION,
            "Lift says how far unrelated texts come together, contraction how much of the difference between "
            "similarities is lost (0: none, 1: all). Among ordinary tokens, one rises as the other falls: a "
            "word close to many texts lifts and contracts little, and noise contracts but does not lift. "
            "A sticky token lifts far more than others of its contraction.",
        ),
    ]


def probe_lines(probed: Sequence[ProfileEvidence]) -> list[ProbeTable | str]:
    """Lay out lifts and symptom curves."""
    first = probed[0]
    return [
        ProbeTable(
            "Lift: mean rise of the similarity of unrelated texts",
            ("id", "token", "category", "lift", "low", "high", "universality", "severity", "verdict"),
            [
                (
                    each.token_id,
                    each.token,
                    each.category,
                    each.lift,
                    each.lift_low,
                    each.lift_high,
                    each.universality,
                    each.severity,
                    each.verdict,
                )
                for each in probed
            ],
        ),
        _curves(probed, "below"),
        _curves(probed, "above"),
        f"An ordinary token lifts by {first.ordinary_lift:.4f}. "
        "Sticky tokens pull both kinds of pairs toward one value; "
        f"the model's mean similarity is {first.mean_similarity:.4f}.",
    ]


def _curves(evidence: Sequence[ProfileEvidence], side: str) -> ProbeTable | str:
    curve = evidence[0].curve
    if not getattr(curve, side):
        return f"No pair of these texts lies {side} the model's mean similarity."
    places = [place for place, copies in enumerate(curve.copies) if copies in _SHOWN_COPIES]
    rows = [(each.token, getattr(each.curve, side)) for each in evidence]
    rows.append(("(ordinary tokens)", getattr(curve, f"ordinary_{side}")))
    return ProbeTable(
        f"Similarity of pairs {side} the mean similarity, by number of copies",
        ("token", *(str(curve.copies[place]) for place in places)),
        [(token, *(values[place] for place in places)) for token, values in rows if values],
    )


def profile_panel(job: Job[ProfileSettings], plan: ProfilePlanRecord) -> EvidencePanel:
    """Take the first carriers, and the texts that the lift is measured on."""
    anchors = anchor_panel(job.encoder, plan, job.vocabulary.available, beside=False)
    texts = profile_texts(plan).anchors
    return evidence_panel(job, plan.carriers[:SYMPTOM_CARRIERS], texts, anchors, plan.mean_similarity)


def profile_texts(plan: ProfilePlanRecord) -> PlanTexts:
    """Name the carriers, and the anchors that the lift is measured on."""
    anchors = [anchor.text for anchor in plan.anchors if plan.groups[anchor.group].weight > 0]
    return PlanTexts(plan.carriers, anchors, by_topic=True)


class ProfileMethod(Method[ProfileSettings, ProfilePlanRecord, ProfileResultRecord]):
    """Every token's lift with an interval, in rounds that narrow the upper tail."""

    entry = ENTRY
    settings = ProfileSettings
    plan_record = ProfilePlanRecord
    result_record = ProfileResultRecord
    columns = MEASURED_COLUMNS
    listed = LISTED
    reported = REPORTED
    ranked_by = RANKED_BY
    verdicts = tuple(Verdict)
    judges_every_token = True
    uses_topics = True
    uses_whole_vectors = True
    effort = frozenset(
        {"adaptive", "anchors", "budget", "confirming_texts", "dimensions", "layers", "reference"}
    )
    glossary = words.GLOSSARY

    make_plan = staticmethod(plan_profile)
    compute = staticmethod(run_profile)
    probe = staticmethod(probe_profile)
    evidence_panel = staticmethod(profile_panel)
    texts = staticmethod(profile_texts)
    headline = staticmethod(words.headline)
    lines = staticmethod(words.lines)
    notes = staticmethod(words.notes)
    key_facts = staticmethod(words.key_facts)
    how = staticmethod(words.how)
    plan_facts = staticmethod(words.plan_facts)
    figures = staticmethod(figures)
    probe_lines = staticmethod(probe_lines)
    scale = staticmethod(words.scale)
    require_judging = staticmethod(require_judging)
    judge = staticmethod(judge_corpus)
    recheck = staticmethod(recheck)
    token_effects = staticmethod(token_effects)
