"""Run the profile method: rounds, each planned from the results of the earlier ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import NamedTuple

import numpy as np
import polars as pl

from stickytoken.encoders.protocol import Encoder, require_ids
from stickytoken.encoders.views import View, Views, views_of
from stickytoken.insertion import Token
from stickytoken.measurement.stage import ProgressCallback
from stickytoken.measurement.store import ResultFolder, ShardCost
from stickytoken.methods.entry import severity_counts
from stickytoken.methods.job import FolderRunner, Job, StageRunner
from stickytoken.methods.probes import AnchorPanel
from stickytoken.methods.profile._words import ProfileRun
from stickytoken.methods.profile.anchors import (
    ProfilePlanRecord,
    ProfileResultRecord,
    anchor_panels,
    representative_carriers,
    typical_carriers,
)
from stickytoken.methods.profile.estimates import (
    Ids,
    Measurements,
    allowing_for_merges_of,
    estimate,
    kept_effects,
    lifts_of,
    round_measurements,
    shares_seen,
    together,
    view_measurements,
    write_effects,
)
from stickytoken.methods.profile.plan import (
    ProfileStage,
    Round,
    ViewPanel,
    cells,
    highest,
    make_profile_plan,
    round_stage,
    screening_carriers,
    tokens_of_a_view,
    tokens_to_confirm,
)
from stickytoken.methods.profile.settings import ProfileSettings
from stickytoken.methods.profile.verdict import Findings, decide
from stickytoken.methods.protocol import Outcome
from stickytoken.methods.records import (
    DIMENSION_TOKENS_FILE,
    DIMENSIONS_FILE,
    DimensionRecord,
    DimensionsRecord,
    tokens_in,
)


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
    """Turn the rows of a round into measurements in every view."""
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


def plan_profile(job: Job[ProfileSettings], progress: ProgressCallback) -> ProfilePlanRecord:
    """Draw anchors, carriers and reference tokens."""
    return make_profile_plan(
        job.encoder, job.settings, job.sentences, job.vocabulary.available, progress, views=_views(job)
    )


def run_profile(
    job: Job[ProfileSettings], plan: ProfilePlanRecord, vocabulary: pl.DataFrame, run: FolderRunner
) -> Outcome[ProfileResultRecord]:
    """Run the rounds into a run folder, and sum up what they found."""
    views = _views(job)
    every = measure_views(job, plan, run, views)
    measured = every[views.own]
    found = measured.findings(job, plan, vocabulary)
    write_effects(run.folder, kept_effects(measured.rounds))
    ids = [token.id for token in job.tokens]
    if views.asked:
        plans = {view: _plan_of(plan, views, view) for view in dict.fromkeys((views.own, *views.asked))}
        by_view = {views.own: found} | {
            view: every[view].findings(job, plans[view], vocabulary) for view in plans if view != views.own
        }
        for view in by_view:
            if view != views.own:
                write_effects(run.folder, kept_effects(every[view].rounds), view)
        write_views(run.folder, by_view, plans, ids)
    tokens = found.tokens.filter(pl.col("token_id").is_in(ids))
    return Outcome(tokens, _result(job, found, measured, run.cost))


def _views(job: Job[ProfileSettings]) -> Views:
    return views_of(job.encoder, job.settings.dimensions, job.settings.layers)


def _plan_of(plan: ProfilePlanRecord, views: Views, view: View) -> ProfilePlanRecord:
    return plan if view == views.own else plan.seen_in(view)


class Measured(NamedTuple):
    """What the rounds measured.

    Attributes:
        rounds: the first round and, if there is one, the last, which has the pilot's tokens too.
        panel: the anchors.
        carriers: places in the plan of the first round's carriers.
        candidates: ids of the tokens that were asked for and reached the last round.
    """

    rounds: dict[Round, Measurements]
    panel: AnchorPanel
    carriers: list[int]
    candidates: Ids

    def findings(
        self, job: Job[ProfileSettings], plan: ProfilePlanRecord, vocabulary: pl.DataFrame
    ) -> Findings:
        """Judge the tokens that were measured."""
        center = self.panel.weights @ self.panel.vectors
        available = len(job.vocabulary.available)
        unselected = _unselected(job, plan)
        found = decide(vocabulary, available, self.rounds, plan, unselected, job.settings, center)
        return found._replace(tokens=found.tokens.with_columns(self._precision(job), *self._seen(job, plan)))

    def _seen(self, job: Job[ProfileSettings], plan: ProfilePlanRecord) -> list[pl.Series]:
        """Say how many of the planned copies the tokenizer saw, where they were counted."""
        first = self.rounds[Round.SCREEN]
        if first.seen is None:
            return []
        copies = np.array([cell.copies for cell in cells(job.settings, len(plan.carriers))], dtype=np.float64)
        rest = np.setdiff1d(np.arange(len(copies)), self.carriers)
        planned = [copies[self.carriers], copies[rest]][: len(self.rounds)]
        return [pl.Series("copies_seen", shares_seen(list(self.rounds.values()), first.ids, planned))]

    def _precision(self, job: Job[ProfileSettings]) -> pl.Expr:
        """Name the precision behind each token's numbers: the last round has the model's own."""
        own = job.encoder.identity.dtype
        early = job.settings.screen_precision or own
        last = self.rounds[Round.CONFIRM].ids.tolist() if Round.CONFIRM in self.rounds else []
        return (
            pl.when(pl.col("token_id").is_in(last)).then(pl.lit(own)).otherwise(pl.lit(str(early)))
        ).alias("precision")


def measure_rounds(job: Job[ProfileSettings], plan: ProfilePlanRecord, run: StageRunner) -> Measured:
    """Return what the rounds measure of the model as it is, with every token in the last of them."""
    views = _views(job)
    return measure_views(job, plan, run, views, confirm_all=True)[views.own]


def measure_views(
    job: Job[ProfileSettings],
    plan: ProfilePlanRecord,
    run: StageRunner,
    views: Views,
    confirm_all: bool = False,
) -> dict[View, Measured]:
    """Run the rounds: a pilot of random tokens, all tokens, and those that lift most.

    What is encoded for all views is chosen by whole vectors, so that a run on the truncated model chooses the
    same. Every other view adds the tokens of the last round that lift most in it, and rests on its own alone.
    """
    # A probe may name tokens that cannot occur in text.
    tokens = {token.id: token for token in (*job.vocabulary.available, *job.tokens)}
    wanted, unselected = np.array([token.id for token in job.tokens]), _unselected(job, plan)
    panels = encoded_panels(job.encoder, views, plan, job.vocabulary.available)

    def measure(step: Round, ids: Ids, places: list[int]) -> dict[View, Measurements]:
        stage = views_stage(job.encoder, job.settings, plan, panels, step, places)
        rows = run(stage, [tokens[token_id] for token_id in ids.tolist()])
        return views_measurements(rows, stage, views.own, job.encoder)

    every = list(range(len(plan.carriers)))
    if not job.settings.adaptive:
        screened = measure(Round.SCREEN, np.union1d(wanted, unselected), every)
        return {
            view: Measured({Round.SCREEN: found}, panels.panels[view], every, wanted)
            for view, found in screened.items()
        }
    late = np.array(plan.late_reference)
    pilot = measure(Round.PILOT, late, every)
    few = _few_carriers(job, plan, pilot[views.whole])
    rest = [place for place in every if place not in few]
    screened = measure(Round.SCREEN, np.union1d(wanted, unselected), few)
    chosen = {
        view: np.setdiff1d(ids, late)
        for view, ids in _chosen(job, plan, views, screened, wanted if confirm_all else None).items()
    }
    known = {view: found.chosen(np.arange(len(late)), rest) for view, found in pilot.items()}
    further = reduce(np.union1d, chosen.values())
    confirmed = measure(Round.CONFIRM, further, rest) if len(further) else {}
    found = {}
    for view, ids in chosen.items():
        last = known[view]
        if len(ids):
            rows = confirmed[view].rows(ids)
            last = together(last, confirmed[view].chosen(rows, list(range(len(rest)))))
        rounds = {Round.SCREEN: screened[view], Round.CONFIRM: last}
        found[view] = Measured(rounds, panels.panels[view], few, np.intersect1d(last.ids, wanted))
    return found


def _chosen(
    job: Job[ProfileSettings],
    plan: ProfilePlanRecord,
    views: Views,
    screened: Mapping[View, Measurements],
    everything: Ids | None,
) -> dict[View, Ids]:
    """Choose the tokens of the last round in every view: those of whole vectors, and its own highest."""
    if everything is not None:
        return dict.fromkeys(screened, everything)
    count = tokens_to_confirm(job.settings, len(job.tokens))
    of_whole = _candidates(job, _plan_of(plan, views, views.whole), screened[views.whole], count)
    found = {}
    for view, measured in screened.items():
        own = (
            np.empty(0, dtype=np.int64)
            if view == views.whole
            else _candidates(job, _plan_of(plan, views, view), measured, count, of_a_view=True)
        )
        found[view] = np.union1d(of_whole, own)
    return found


def _few_carriers(job: Job[ProfileSettings], plan: ProfilePlanRecord, pilot: Measurements) -> list[int]:
    """Choose the carriers of the round of all tokens."""
    count = screening_carriers(job.settings)
    if getattr(job.encoder, "makes_up_vectors", False):  # made-up lifts would favour the shortest texts
        carriers = zip(
            job.encoder.content_ids(plan.carriers), cells(job.settings, len(plan.carriers)), strict=True
        )
        return typical_carriers(np.array([len(ids) + cell.copies for ids, cell in carriers]), count)
    return representative_carriers(pilot.groups.astype(np.float64), _importance(plan), count)


def _importance(plan: ProfilePlanRecord) -> np.ndarray:
    """How much each group counts in the choice of carriers: those of the lift, and the kinds, half each."""
    weights = np.array([group.weight for group in plan.groups])
    kinds = np.array([group.kind for group in plan.groups], dtype=np.float64)
    return np.asarray(weights + kinds / max(1.0, kinds.sum()))


def _candidates(
    job: Job[ProfileSettings],
    plan: ProfilePlanRecord,
    screened: Measurements,
    count: int,
    of_a_view: bool = False,
) -> Ids:
    """Choose the tokens that lift most: all anchors, and the kind of text that each lifts most."""
    settings, late, unselected = job.settings, np.array(plan.late_reference), _unselected(job, plan)
    found = estimate(
        *lifts_of({Round.SCREEN: screened}), unselected, late, settings.confidence, plan.call_noise
    )
    of_lift = np.array([group.weight > 0 for group in plan.groups])
    means = screened.group_means()[:, of_lift]
    ordinary = means[np.isin(screened.ids, unselected)]
    deviations = means - np.median(ordinary, axis=0)
    spreads = np.median(np.abs(ordinary - np.median(ordinary, axis=0)), axis=0)
    standard = np.divide(deviations, spreads, out=np.zeros_like(deviations), where=spreads > 0)
    # Not by posterior means: with one error for all tokens they rank alike.
    values = np.column_stack([found.tested.value, np.nan_to_num(standard).max(axis=1)])
    asked = np.isin(found.ids, [token.id for token in job.tokens])
    if of_a_view:
        smallest = settings.smallest_effect * plan.similarity_spread
        reaching = asked & (found.lift.high >= found.null.center + smallest)
        count = tokens_of_a_view(count, int(reaching.sum()))
    return highest(found.ids[asked], values[asked], count)


def _unselected(job: Job[ProfileSettings], plan: ProfilePlanRecord) -> Ids:
    """Ids of tokens that were not chosen by a user: all, or a random sample."""
    wanted = np.array([token.id for token in job.tokens])
    if not job.restricted:
        return wanted
    return np.union1d(wanted, plan.reference) if job.sampled else np.array(plan.reference)


def _result(
    job: Job[ProfileSettings], findings: Findings, measured: Measured, cost: ShardCost
) -> ProfileResultRecord:
    verdicts = findings.tokens.filter(pl.col("token_id").is_in([token.id for token in job.tokens]))["verdict"]
    return ProfileResultRecord(
        looked_at=len(job.tokens),
        candidates=len(measured.candidates),
        sticky=int((verdicts == "sticky").sum()),
        topical=int((verdicts == "topical").sum()),
        ordinary_lift=findings.ordinary_lift,
        ordinary_spread=findings.ordinary_spread,
        empirical_null=findings.empirical_null,
        screening_carriers=measured.carriers,
        texts_per_token=round(cost.sequences / len(job.tokens), 2),
        sequences=cost.sequences,
        seconds=round(cost.seconds, 1),
    )
