"""Measure rounds in every view of the vectors, and keep what was found in those that the user named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import polars as pl

from stickytoken.encoders.protocol import Encoder, require_ids
from stickytoken.encoders.views import View, Views
from stickytoken.insertion import Token
from stickytoken.measurement.store import ResultFolder
from stickytoken.methods.dimensions import (
    DIMENSION_TOKENS_FILE,
    DIMENSIONS_FILE,
    DimensionRecord,
    DimensionsRecord,
    tokens_in,
)
from stickytoken.methods.panel import AnchorPanel
from stickytoken.methods.profile._copies import allowing_for_merges_of, round_measurements
from stickytoken.methods.profile._results import Findings
from stickytoken.methods.profile._words import ProfileRun
from stickytoken.methods.profile.anchors import anchor_panels
from stickytoken.methods.profile.estimates import Measurements, view_measurements
from stickytoken.methods.profile.plan import round_stage
from stickytoken.methods.profile.record import ProfilePlanRecord
from stickytoken.methods.profile.rounds import Round
from stickytoken.methods.profile.settings import ProfileSettings
from stickytoken.methods.profile.stage import ProfileStage, ViewPanel
from stickytoken.methods.verdicts import severity_counts


class Panels(NamedTuple):
    """The anchors of a plan in every view."""

    views: Views
    panels: Mapping[View, AnchorPanel]


def encoded_panels(
    encoder: Encoder, views: Views, plan: ProfilePlanRecord, vocabulary: Sequence[Token]
) -> Panels:
    """Encode the anchors of a plan once, for all views."""
    every = [views.own, *views.further]
    found = anchor_panels(views.reading(encoder), every, plan, vocabulary)
    return Panels(views, dict(zip(every, found, strict=True)))


def views_stage(
    encoder: Encoder,
    settings: ProfileSettings,
    plan: ProfilePlanRecord,
    panels: Panels,
    step: Round,
    places: Sequence[int],
) -> ProfileStage:
    """Build the stage of one round, in all views; see `round_stage`."""
    views = panels.views
    stage = round_stage(encoder, settings, plan, panels.panels[views.own], step, places)
    if not views.further:
        return stage
    reading = views.reading(encoder)
    if stage.precision is not None:
        reading = require_ids(reading, f"screening in {stage.precision}").at(stage.precision)
    vectors = reading.encode([plan.carriers[place] for place in places])
    further = tuple(
        ViewPanel(view, panels.panels[view].against(view.units(vectors), plan.seen_in(view).mean_similarity))
        for view in views.further
    )
    return replace(stage, layers=views.layers, further=further)


def views_measurements(
    rows: pl.DataFrame, stage: ProfileStage, own: View, encoder: Encoder
) -> dict[View, Measurements]:
    """Turn the rows of a round into measurements in every view.

    Args:
        rows: of the round's shards.
        stage: the round.
        own: the view of the model as it is.
        encoder: the model.
    """
    found = {own: round_measurements(rows, stage, encoder)}
    for view, _ in stage.further:
        found[view] = allowing_for_merges_of(
            view_measurements(rows, len(stage.carriers), view), stage, encoder
        )
    return found


def write_views(
    folder: ResultFolder,
    found: Mapping[View, Findings],
    plans: Mapping[View, ProfilePlanRecord],
    tokens: Sequence[int],
) -> None:
    """Write what was found of some tokens in every view: a table of the tokens, then one of the views."""
    tables = [
        each.tokens.filter(pl.col("token_id").is_in(list(tokens))).select(
            pl.lit(view.layer, dtype=pl.Int64).alias("layer"),
            pl.lit(view.dimension, dtype=pl.Int64).alias("dimension"),
            pl.all(),
        )
        for view, each in found.items()
    ]
    folder.write_table(DIMENSION_TOKENS_FILE, pl.concat(tables))
    records = [
        _record(view, table, found[view], plans[view]) for view, table in zip(found, tables, strict=True)
    ]
    folder.write_record(DIMENSIONS_FILE, DimensionsRecord(views=records))


def known_in(run: ProfileRun, view: View | None) -> tuple[ProfilePlanRecord, pl.DataFrame]:
    """Return the plan and the tokens of a run in one view; None is the model as it is."""
    if view is None:
        return run.plan, run.tokens
    return run.plan.seen_in(view), tokens_in(run.path, view)


def _record(view: View, tokens: pl.DataFrame, found: Findings, plan: ProfilePlanRecord) -> DimensionRecord:
    spread = plan.similarity_spread
    lifts = (tokens["lift"].to_numpy() - found.ordinary_lift) / spread
    return DimensionRecord(
        layer=view.layer,
        dimension=view.dimension,
        sticky=int((tokens["verdict"] == "sticky").sum()),
        topical=int((tokens["verdict"] == "topical").sum()),
        **severity_counts(tokens),
        similarity_spread=spread,
        ordinary_lift=found.ordinary_lift,
        ordinary_sd=found.ordinary_spread / spread,
        largest_sd=float(np.max(lifts)) if len(lifts) else None,
        mean_similarity=plan.mean_similarity,
    )
