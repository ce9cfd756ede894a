"""The paper's method, put together."""

from __future__ import annotations

from stickytoken.methods.protocol import Method
from stickytoken.methods.std import _tables as tables
from stickytoken.methods.std import _words as words
from stickytoken.methods.std._entry import ENTRY
from stickytoken.methods.std._evidence import std_panel, std_texts
from stickytoken.methods.std._results import TOKEN_COLUMNS
from stickytoken.methods.std._run import compute_std, plan_std
from stickytoken.methods.std.probe import probe_std
from stickytoken.methods.std.record import StdPlanRecord, StdResultRecord
from stickytoken.methods.std.settings import StdSettings
from stickytoken.methods.verdicts import Verdict


class StdMethod(Method[StdSettings, StdPlanRecord, StdResultRecord]):
    """The method of Chen et al. (2025): score every token, validate the best, find outliers."""

    entry = ENTRY
    settings = StdSettings
    plan_record = StdPlanRecord
    result_record = StdResultRecord
    columns = TOKEN_COLUMNS
    listed = tables.LISTED
    reported = tables.REPORTED
    ranked_by = tables.RANKED_BY
    verdicts = (Verdict.STICKY, Verdict.BENIGN)
    judges_every_token = False
    uses_topics = False
    glossary = words.GLOSSARY

    make_plan = staticmethod(plan_std)
    compute = staticmethod(compute_std)
    probe = staticmethod(probe_std)
    evidence_panel = staticmethod(std_panel)
    texts = staticmethod(std_texts)
    headline = staticmethod(words.headline)
    lines = staticmethod(words.lines)
    notes = staticmethod(words.notes)
    key_facts = staticmethod(words.key_facts)
    how = staticmethod(words.how)
    plan_facts = staticmethod(words.plan_facts)
    figures = staticmethod(tables.figures)
    probe_lines = staticmethod(tables.probe_lines)
