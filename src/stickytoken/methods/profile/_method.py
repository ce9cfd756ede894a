"""The profile method, put together."""

from __future__ import annotations

from stickytoken.methods.profile import _tables as tables
from stickytoken.methods.profile import _words as words
from stickytoken.methods.profile._effects import token_effects
from stickytoken.methods.profile._entry import ENTRY
from stickytoken.methods.profile._evidence import profile_panel, profile_texts
from stickytoken.methods.profile._judging import judge_corpus, require_judging
from stickytoken.methods.profile._results import MEASURED_COLUMNS
from stickytoken.methods.profile._run import plan_profile, run_profile
from stickytoken.methods.profile.probe import probe_profile
from stickytoken.methods.profile.recheck import recheck
from stickytoken.methods.profile.record import ProfilePlanRecord, ProfileResultRecord
from stickytoken.methods.profile.settings import ProfileSettings
from stickytoken.methods.protocol import Method
from stickytoken.methods.verdicts import Verdict


class ProfileMethod(Method[ProfileSettings, ProfilePlanRecord, ProfileResultRecord]):
    """Every token's lift with an interval, in rounds that narrow the upper tail."""

    entry = ENTRY
    settings = ProfileSettings
    plan_record = ProfilePlanRecord
    result_record = ProfileResultRecord
    columns = MEASURED_COLUMNS
    listed = tables.LISTED
    reported = tables.REPORTED
    ranked_by = tables.RANKED_BY
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
    figures = staticmethod(tables.figures)
    probe_lines = staticmethod(tables.probe_lines)
    scale = staticmethod(words.scale)
    require_judging = staticmethod(require_judging)
    judge = staticmethod(judge_corpus)
    recheck = staticmethod(recheck)
    token_effects = staticmethod(token_effects)
