"""Compare sticky tokens with a baseline, by intervals."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from stickytoken.detection.flagged import FLAGGED
from stickytoken.errors import InputError

if TYPE_CHECKING:
    from stickytoken.detection import Run

# Settings under which two runs measure the same thing: they change the noise or what is measured besides.
_FREE = frozenset(
    {
        "seed",
        "budget",
        "confirming_texts",
        "reference",
        "adaptive",
        "screen_precision",
        "dimensions",
        "layers",
    }
)


class Change(StrEnum):
    """A sticky token against the baseline."""

    NEW = "new"
    WORSE = "worse"
    KNOWN = "known"


class Effect(NamedTuple):
    """What a token does beyond an ordinary one, in standard deviations of the model's own similarities."""

    value: float
    low: float
    high: float


def effect_of(row: Mapping[str, Any], run: Run) -> Effect | None:
    """Compute the effect of a row of tokens.parquet; None where it was not measured with an interval."""
    scale = run.method.scale(run)
    ends = [row.get(name) for name in ("lift", "lift_low", "lift_high")]
    if scale is None or any(end is None for end in ends):
        return None
    return Effect(*((end - scale.ordinary) / scale.spread for end in ends if end is not None))


def require_comparable(run: Run, baseline: Run) -> None:
    """Refuse a baseline whose effects mean something else, or have no intervals."""
    if run.record.method != baseline.record.method:
        raise InputError(
            f"the baseline {baseline.path} used the method {baseline.record.method}, the run in {run.path} "
            f"used {run.record.method}: detect both with the same method"
        )
    if "lift_low" not in run.method.columns:
        raise InputError(
            f"the baseline {baseline.path} used the method {baseline.record.method}, which measures no "
            "intervals to compare: detect with --method profile"
        )
    if run.record.identity_parts.get("corpus") != baseline.record.identity_parts.get("corpus"):
        raise InputError(
            f"the baseline {baseline.path} was measured on {baseline.record.corpus.source}, the run in "
            f"{run.path} on other texts, {run.record.corpus.source}: detect both on the same sentences"
        )
    names = {*run.record.settings, *baseline.record.settings} - _FREE
    # A run from before a setting was added has its default.
    if different := sorted(name for name in names if run.settings.text(name) != baseline.settings.text(name)):
        raise InputError(
            f"the baseline {baseline.path} was measured with other settings than {run.path} "
            f"({', '.join(different)}): detect both with the same ones"
        )


class Baseline:
    """The tokens of a baseline."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._rows = {row["token"]: row for row in run.tokens.iter_rows(named=True)}

    def before(self, token: str) -> Effect | None:
        """Return the effect of a token, by vocabulary string; None where the baseline has not measured it."""
        row = self._rows.get(token)
        return None if row is None else effect_of(row, self._run)

    def change(self, token: str, effect: Effect) -> Change:
        """Compare a sticky token: only an interval above that of the baseline is a change."""
        before = self.before(token)
        if before is None:
            return Change.NEW
        if effect.low <= before.high:
            return Change.KNOWN
        return Change.WORSE if self._rows[token]["verdict"] in FLAGGED else Change.NEW
