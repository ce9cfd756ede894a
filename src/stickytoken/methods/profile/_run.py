"""Run the profile method: rounds, each planned from the results of the earlier ones."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import NamedTuple

import numpy as np
import polars as pl

from stickytoken.encoders.protocol import require_ids
from stickytoken.encoders.views import View, Views, views_of
from stickytoken.measurement.engine import ProgressCallback
from stickytoken.measurement.store import ResultFolder
from stickytoken.methods.base import (
    DIMENSION_TOKENS_FILE,
    DIMENSIONS_FILE,
    DimensionRecord,
    DimensionsRecord,
    FolderRunner,
    Job,
    Outcome,
    StageRunner,
)
from stickytoken.methods.entry import severity_counts
from stickytoken.methods.probes import AnchorPanel
from stickytoken.methods.profile.anchors import (
    ProfilePlanRecord,
    ProfileResultRecord,
    ProfileSettings,
    anchor_panels,
    representative_carriers,
    typical_carriers,
)
from stickytoken.methods.profile.estimates import (
    Ids,
    Measurements,
    estimate,
    kept_effects,
    lifts_of,
    round_measurements,
    together,
    write_effects,
)
from stickytoken.methods.profile.plan import (
    ProfileStage,
    Round,
    cells,
    highest,
    make_profile_plan,
    round_stage,
    screening_carriers,
    tokens_to_confirm,
)
from stickytoken.methods.profile.verdict import Findings, decide, embedding_matrix, erasures

# Every further view adds at least this share of the number of tokens that whole vectors choose.
_OF_A_VIEW = 0.15


def plan_profile(job: Job[ProfileSettings], progress: ProgressCallback) -> ProfilePlanRecord:
    return make_profile_plan(
        job.encoder, job.settings, job.sentences, job.vocabulary.available, progress, views=job_views(job)
    )


def run_profile(
    job: Job[ProfileSettings], plan: ProfilePlanRecord, vocabulary: pl.DataFrame, run: FolderRunner
) -> Outcome[ProfileResultRecord]:
    """Run the rounds into a run folder, and sum up what they found."""
    views, ids = job_views(job), [token.id for token in job.tokens]
    every = measure_views(job, plan, run, views)
    measured = every[views.own]
    found = findings(job, plan, vocabulary, measured)
    write_effects(run.folder, kept_effects(measured.rounds))
    if views.asked:
        by_view = {views.own: found}
        for view in dict.fromkeys(views.asked):
            if view != views.own:
                by_view[view] = findings(job, plan.seen_in(view), vocabulary, every[view])
                write_effects(run.folder, kept_effects(every[view].rounds), view)
        _write_views(run.folder, by_view, plan, ids)
    tokens = found.tokens.filter(pl.col("token_id").is_in(ids))
    cost = run.cost
    result = ProfileResultRecord(
        looked_at=len(ids),
        candidates=len(measured.candidates),
        sticky=int((tokens["verdict"] == "sticky").sum()),
        topical=int((tokens["verdict"] == "topical").sum()),
        ordinary_lift=found.ordinary_lift,
        ordinary_spread=found.ordinary_spread,
        ordinary_contraction=found.ordinary_contraction,
        erasing=int(tokens["erases"].sum()),
        empirical_null=found.empirical_null,
        screening_carriers=measured.carriers,
        texts_per_token=round(cost.sequences / len(ids), 2),
        sequences=cost.sequences,
        seconds=round(cost.seconds, 1),
    )
    return Outcome(tokens, result)


def job_views(job: Job[ProfileSettings]) -> Views:
    return views_of(job.encoder, job.settings.dimensions, job.settings.layers)


def _write_views(
    folder: ResultFolder, found: Mapping[View, Findings], plan: ProfilePlanRecord, ids: Sequence[int]
) -> None:
    tables, records = [], []
    for view, each in found.items():
        tokens, seen = each.tokens.filter(pl.col("token_id").is_in(ids)), plan.seen_in(view)
        spread = seen.similarity_spread
        lifts = (tokens["lift"].to_numpy() - each.ordinary_lift) / spread
        tables.append(
            tokens.select(
                pl.lit(view.layer, dtype=pl.Int64).alias("layer"),
                pl.lit(view.dimension, dtype=pl.Int64).alias("dimension"),
                pl.all(),
            )
        )
        records.append(
            DimensionRecord(
                layer=view.layer,
                dimension=view.dimension,
                sticky=int((tokens["verdict"] == "sticky").sum()),
                topical=int((tokens["verdict"] == "topical").sum()),
                **severity_counts(tokens),
                similarity_spread=spread,
                ordinary_lift=each.ordinary_lift,
                ordinary_sd=each.ordinary_spread / spread,
                largest_sd=float(np.max(lifts)) if len(lifts) else None,
                mean_similarity=seen.mean_similarity,
                ordinary_contraction=each.ordinary_contraction,
            )
        )
    folder.write_table(DIMENSION_TOKENS_FILE, pl.concat(tables))
    folder.write_record(DIMENSIONS_FILE, DimensionsRecord(views=records))


class Measured(NamedTuple):
    """What the rounds measured in one view."""

    # The first round and, if there is one, the last, which has the pilot's tokens too.
    rounds: dict[Round, Measurements]
    panel: AnchorPanel
    carriers: list[int]  # places in the plan of the first round's carriers
    candidates: Ids  # tokens that were asked for and reached the last round


def findings(
    job: Job[ProfileSettings], plan: ProfilePlanRecord, vocabulary: pl.DataFrame, measured: Measured
) -> Findings:
    rounds, panel, carriers, _ = measured
    available = len(job.vocabulary.available)
    found = decide(
        vocabulary,
        available,
        rounds,
        plan,
        _unselected(job, plan),
        job.settings,
        panel,
        embedding_matrix(job.encoder),
    )
    # The precision behind each token's numbers: the last round has the model's own.
    own = job.encoder.identity.dtype
    early = str(job.settings.screen_precision or own)
    last = rounds[Round.CONFIRM].ids.tolist() if Round.CONFIRM in rounds else []
    precision = pl.when(pl.col("token_id").is_in(last)).then(pl.lit(own)).otherwise(pl.lit(early))
    tokens = found.tokens.with_columns(precision.alias("precision"))
    # How many of the planned copies the tokenizer saw, in the last round of each token.
    first = rounds[Round.SCREEN]
    if first.seen is not None:
        copies = np.array([cell.copies for cell in cells(job.settings, len(plan.carriers))], dtype=np.float64)
        few = np.array(carriers)
        rest = np.setdiff1d(np.arange(len(copies)), few)
        shares = np.full(len(first.ids), np.nan)
        for each, places in zip(rounds.values(), (few, rest), strict=False):
            if each.seen is not None:
                seen = np.minimum(each.seen, copies[places]).sum(axis=1)
                shares[first.rows(each.ids)] = seen / copies[places].sum()
        tokens = tokens.with_columns(pl.Series("copies_seen", shares))
    return found._replace(tokens=tokens)


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
    in_views = [views.own, *views.further]
    found_panels = anchor_panels(views.reading(job.encoder), in_views, plan, job.vocabulary.available)
    panels = dict(zip(in_views, found_panels, strict=True))

    def measure(step: Round, ids: Ids, places: list[int]) -> dict[View, Measurements]:
        stage = _stage(job, plan, views, panels, step, places)
        rows = run(stage, [tokens[token_id] for token_id in ids.tolist()])
        return {
            view: round_measurements(rows, stage, job.encoder, None if view == views.own else view)
            for view in panels
        }

    every = list(range(len(plan.carriers)))
    if not job.settings.adaptive:
        screened = measure(Round.SCREEN, np.union1d(wanted, unselected), every)
        return {
            view: Measured({Round.SCREEN: found}, panels[view], every, wanted)
            for view, found in screened.items()
        }
    late = np.array(plan.late_reference)
    pilot = measure(Round.PILOT, late, every)
    few = _few_carriers(job, plan, pilot[views.whole])
    rest = [place for place in every if place not in few]
    screened = measure(Round.SCREEN, np.union1d(wanted, unselected), few)
    chosen = dict.fromkeys(screened, wanted) if confirm_all else _chosen(job, plan, views, screened, panels)
    chosen = {view: np.setdiff1d(ids, late) for view, ids in chosen.items()}
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
        found[view] = Measured(rounds, panels[view], few, np.intersect1d(last.ids, wanted))
    return found


def _stage(
    job: Job[ProfileSettings],
    plan: ProfilePlanRecord,
    views: Views,
    panels: Mapping[View, AnchorPanel],
    step: Round,
    places: Sequence[int],
) -> ProfileStage:
    stage = round_stage(job.encoder, job.settings, plan, panels[views.own], step, places)
    if not views.further:
        return stage
    reading = views.reading(job.encoder)
    if stage.precision is not None:
        reading = require_ids(reading, f"screening in {stage.precision}").at(stage.precision)
    vectors = reading.encode([plan.carriers[place] for place in places])
    further = [
        (view, panels[view].against(view.units(vectors), plan.seen_in(view).unrelated_below))
        for view in views.further
    ]
    return replace(stage, layers=views.layers, further=tuple(further))


def _few_carriers(job: Job[ProfileSettings], plan: ProfilePlanRecord, pilot: Measurements) -> list[int]:
    count = screening_carriers(job.settings)
    if getattr(job.encoder, "makes_up_vectors", False):  # made-up lifts would favour the shortest texts
        carriers = zip(
            job.encoder.content_ids(plan.carriers), cells(job.settings, len(plan.carriers)), strict=True
        )
        return typical_carriers(np.array([len(ids) + cell.copies for ids, cell in carriers]), count)
    # Groups of the lift, kinds of text and contractions count alike.
    weights = np.array([group.weight for group in plan.groups])
    kinds = np.array([group.kind for group in plan.groups], dtype=np.float64)
    importance = np.append(weights + kinds / max(1.0, kinds.sum()), 1.0)
    values = np.concatenate([pilot.groups.astype(np.float64), pilot.contractions[:, :, None]], axis=2)
    return representative_carriers(values, importance, count)


def _chosen(
    job: Job[ProfileSettings],
    plan: ProfilePlanRecord,
    views: Views,
    screened: Mapping[View, Measurements],
    panels: Mapping[View, AnchorPanel],
) -> dict[View, Ids]:
    """Choose the tokens of the last round in every view: those of whole vectors, and its own highest."""
    count = tokens_to_confirm(job.settings, len(job.tokens))

    def candidates(view: View) -> Ids:
        whole = view == views.whole
        return _candidates(job, plan.seen_in(view), screened[view], panels[view], count, of_a_view=not whole)

    of_whole = candidates(views.whole)
    return {
        view: of_whole if view == views.whole else np.union1d(of_whole, candidates(view)) for view in screened
    }


def _candidates(
    job: Job[ProfileSettings],
    plan: ProfilePlanRecord,
    screened: Measurements,
    panel: AnchorPanel,
    count: int,
    of_a_view: bool = False,
) -> Ids:
    """Choose the tokens that lift most, over all anchors or on one kind of text, or erase most."""
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
    vocabulary, embedding = job.vocabulary.frame(), embedding_matrix(job.encoder)
    rounds = {Round.SCREEN: screened}
    erased = erasures(rounds, panel, vocabulary, plan, unselected, settings, embedding).standard()
    values = np.column_stack([found.tested.value, np.nan_to_num(standard).max(axis=1), erased])
    asked = np.isin(found.ids, [token.id for token in job.tokens])
    if of_a_view:
        smallest = settings.smallest_effect * plan.similarity_spread
        reaching = asked & (found.lift.high >= found.null.center + smallest)
        count = min(count, max(math.ceil(_OF_A_VIEW * count), int(reaching.sum())))
    return highest(found.ids[asked], values[asked], count)


def _unselected(job: Job[ProfileSettings], plan: ProfilePlanRecord) -> Ids:
    """Ids of tokens that were not chosen by a user: all, or a random sample."""
    wanted = np.array([token.id for token in job.tokens])
    if not job.restricted:
        return wanted
    return np.union1d(wanted, plan.reference) if job.sampled else np.array(plan.reference)
