"""The detection methods: how each is planned, computed and read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import polars as pl

from stickytoken.errors import InputError
from stickytoken.measurement.progress import ProgressCallback
from stickytoken.methods.evidence_panel import Exhibit, profile_exhibit, std_exhibit
from stickytoken.methods.job import FolderRunner, Job
from stickytoken.methods.profile import results as profile_results
from stickytoken.methods.profile import run as profile_run
from stickytoken.methods.profile.record import ProfilePlanRecord, ProfileResultRecord
from stickytoken.methods.profile.settings import ProfileSettings
from stickytoken.methods.std import results as std_results
from stickytoken.methods.std import run as std_run
from stickytoken.methods.std.record import StdPlanRecord, StdResultRecord
from stickytoken.methods.std.settings import StdSettings


class Outcome(NamedTuple):
    """What a method ends with.

    Attributes:
        tokens: tokens.parquet.
        result: the result in run.json.
    """

    tokens: pl.DataFrame
    result: StdResultRecord | ProfileResultRecord


@dataclass(frozen=True)
class Method:
    """A detection method.

    Attributes:
        name: as the user types it.
        settings: the class of its settings.
        plan_record: the class of its plan.json.
        columns: that its tokens.parquet must have.
        ranked_by: column that its tokens are sorted by, largest first.
        topics_count: whether the topics of sentences change its numbers.
        make_plan: what it derives from the model and the corpus before any token.
        compute: all its stages.
        exhibit: the texts of its plan that tokens are shown on.
    """

    name: Literal["profile", "std"]
    settings: type[Any]
    plan_record: type[StdPlanRecord] | type[ProfilePlanRecord]
    columns: tuple[str, ...]
    ranked_by: str
    topics_count: bool
    make_plan: Callable[[Job, ProgressCallback], StdPlanRecord | ProfilePlanRecord]
    compute: Callable[[Job, Any, pl.DataFrame, FolderRunner], Outcome]
    exhibit: Callable[[Job, Any], Exhibit]


def _std(job: Job, plan: StdPlanRecord, vocabulary: pl.DataFrame, run: FolderRunner) -> Outcome:
    return Outcome(*std_run.compute_std(job, plan, vocabulary, run))


def _profile(job: Job, plan: ProfilePlanRecord, vocabulary: pl.DataFrame, run: FolderRunner) -> Outcome:
    findings = profile_run.compute_profile(job, plan, vocabulary, run)
    return Outcome(findings.tokens, profile_run.result_record(job, findings, run.cost))


_METHODS = (
    Method(
        "profile",
        ProfileSettings,
        ProfilePlanRecord,
        profile_results.MEASURED_COLUMNS,
        "lift",
        True,
        profile_run.plan_profile,
        _profile,
        profile_exhibit,
    ),
    Method(
        "std",
        StdSettings,
        StdPlanRecord,
        std_results.TOKEN_COLUMNS,
        "validation_rate",
        False,
        std_run.plan_std,
        _std,
        std_exhibit,
    ),
)
METHODS: dict[str, Method] = {method.name: method for method in _METHODS}


def choose_method(name: str | None, settings: Any, pairs_given: bool) -> Method:
    """The method that a caller means.

    Named methods go first, then the settings' own; pairs belong to std; profile is the default.

    Raises:
        InputError: the name is unknown, or the settings are of another method.
    """
    if name is not None and name not in METHODS:
        raise InputError(f"method {name!r} is unknown: use {', '.join(METHODS)}")
    if settings is not None:
        expected = METHODS[name or "profile"]
        own = next((method for method in _METHODS if isinstance(settings, method.settings)), None)
        if own is None or name not in (None, own.name):
            raise InputError(
                f"the settings are a {type(settings).__name__}, which the method {expected.name!r} does not "
                f"take: pass a {expected.settings.__name__}"
            )
        return own
    return METHODS[name or ("std" if pairs_given else "profile")]
