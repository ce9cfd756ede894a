"""Why a run may not be enough to say that a model is fine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stickytoken.corpora.readability import LARGEST_UNKNOWN
from stickytoken.methods.job import suited

if TYPE_CHECKING:
    from stickytoken.detection import Run


def gaps(run: Run, whose: str = "the run") -> list[str]:
    """List the reasons why a run does not cover the whole vocabulary."""
    found = []
    tokens, record = run.tokens, run.record
    if record.identity_parts.get("tokens") is not None or record.tokens < run.available:
        found.append(
            f"{whose} in {run.path} covered {record.tokens:,} of {run.available:,} available tokens: "
            "detect without --sample and --tokens"
        )
    if len(tokens) != record.tokens or tokens["token_id"].n_unique() != len(tokens):
        found.append(
            f"{run.path} has {len(tokens):,} rows in tokens.parquet for {record.tokens:,} tokens: delete the "
            "folder and detect again"
        )
    if len(run.sticky) != run.result.sticky:
        found.append(
            f"{run.path} has {len(run.sticky):,} sticky tokens in tokens.parquet and "
            f"{run.result.sticky:,} in run.json: delete the folder and detect again"
        )
    unmeasured = tokens["lift"].is_null().sum() if run.method.judges_every_token else 0
    undecided = tokens["verdict"].is_null().sum() if run.method.judges_every_token else 0
    if lacking := max(unmeasured, undecided):
        found.append(
            f"{whose} in {run.path} has no verdict on {lacking:,} of {len(tokens):,} tokens: too few texts "
            f"of {record.corpus.source} are unrelated; use more sentences, on more varied subjects"
        )
    verdicts = {verdict.value for verdict in run.method.verdicts}
    unknown = tokens.filter(pl.col("verdict").is_not_null() & ~pl.col("verdict").is_in(verdicts))
    if len(unknown):
        found.append(
            f"{run.path} has verdicts that the method {record.method} does not give: delete the folder and "
            "detect again"
        )
    if (record.corpus.unknown or 0) > LARGEST_UNKNOWN:
        found.append(
            f"the model cannot read {record.corpus.unknown:.0%} of {record.corpus.source}: detect with "
            "sentences in a language that it reads"
        )
    return found


def remarks(run: Run) -> list[str]:
    """List what a reader should know about a sufficient run."""
    found = list(run.method.notes(run))
    loading = run.record.model.loading
    defaults = suited(run.method.settings(), loading is not None and loading.endpoint is not None)
    changed = {
        name: value
        for name, value in run.record.settings.items()
        if name != "seed" and _plain(getattr(defaults, name, value)) != _plain(value)
    }
    if changed:
        listed = ", ".join(f"{name} {value}" for name, value in changed.items())
        found.append(f"the run used non-default settings: {listed}")
    return found


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value
