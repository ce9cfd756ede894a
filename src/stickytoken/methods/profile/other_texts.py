"""Judge tokens on other texts: those of a corpus by a finished run, and those that a run has not used."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import scipy
from numpy.typing import NDArray

from stickytoken.data import open_ended
from stickytoken.encoders.protocol import IdEncoder
from stickytoken.encoders.views import MeanSimilarity, View, only_own
from stickytoken.errors import InputError, RunError
from stickytoken.insertion import Insertion, Joining, Token
from stickytoken.measurement import ResultFolder
from stickytoken.measurement.engine import Progress, ProgressCallback, ignore_progress
from stickytoken.methods import base, probes, statistics
from stickytoken.methods.base import Job, MemoryRunner
from stickytoken.methods.probes import AnchorPanel, SymptomStage, Vector
from stickytoken.methods.profile import anchors, estimates, plan as planning, verdict
from stickytoken.methods.profile.anchors import ProfilePlanRecord, ProfileSettings
from stickytoken.methods.profile.estimates import Ids, Measurements, TokenEstimates
from stickytoken.methods.profile.plan import Round, round_stage
from stickytoken.methods.statistics import Estimates, Pull, TokenEffects, share_erased
from stickytoken.unit_vectors import unit_vectors
from stickytoken.vocabulary import Vocabulary

_CARRIERS = 24
# Carriers that each calibrating token is put into; all tokens together cover all carriers. Many tokens in few
# carriers teach more than few in many.
_CALIBRATING = 2
_TOKENS = 2400
_LEAST_TOKENS = 24
# A text as a query, and another as a document.
_LEAST_ANCHORS = 2
# Tokens that may be flagged and are measured on the corpus, at most.
_MEASURED = 256
_SPLIT, _CALIBRATING_TOKENS = 4, 5  # keys of the generators


def require_judging(run: base.FinishedRun[Any, Any]) -> None:
    if not (run.path / estimates.EFFECTS_FILE).is_file():
        raise RunError(
            f"{run.path} has no {estimates.EFFECTS_FILE}, which judging a corpus needs: run the detection "
            "again, into another folder"
        )


def judge_corpus(
    job: Job[ProfileSettings],
    run: base.FinishedRun[ProfilePlanRecord, Any],
    anchors: int,
    progress: ProgressCallback,
    view: View | None = None,
) -> base.Judgement:
    plan = run.plan.seen_in(view)
    tokens = run.tokens if view is None else base.tokens_in(run.path, view)
    corpus = _encoded_corpus(job, plan, anchors)
    effects = estimates.read_effects(run.path, view)
    every = len(tokens) == len(job.vocabulary.available)
    # Entries that texts do not spell were not measured.
    left, tokens = tokens.filter(pl.col("verdict").is_null()), tokens.drop_nulls("verdict")
    unselected = np.isin(effects.ids, effects.ids if every else plan.reference)
    if (count := int(unselected.sum())) < _LEAST_TOKENS:
        raise InputError(
            f"the run measured {count} random tokens, and {_LEAST_TOKENS} are needed to judge another "
            "corpus: detect without --tokens"
        )
    generator = np.random.default_rng([job.settings.seed, _CALIBRATING_TOKENS])
    reference = np.sort(generator.permutation(effects.ids[unselected])[:_TOKENS])
    values, error, common, calibrating = _calibrated(corpus, effects, reference, progress)
    # Ordinary lifts: those that were computed, and their error.
    fitted = statistics.Null.fit(values[unselected], 0.0)
    null = statistics.Null(fitted.center, float(np.hypot(fitted.spread, error)), fitted.shape)
    gate = (
        null.center + verdict.NEGLIGIBLE_SHARE * job.settings.smallest_effect * corpus.plan.similarity_spread
    )
    asked = np.isin(effects.ids, tokens["token_id"].to_numpy())
    # Where vectors are made up to count the texts, as many tokens are measured as ever may be.
    counting = getattr(job.encoder, "makes_up_vectors", False)
    may = asked & (counting | (values + 2 * error >= gate))
    order = np.lexsort((effects.ids, -values))
    chosen = np.sort(effects.ids[order[may[order]][:_MEASURED]])

    # Computed lifts, and those of the chosen tokens, which are put into all carriers of the corpus.
    half = scipy.stats.norm.ppf((1 + job.settings.confidence) / 2) * error
    errors = np.full(len(effects.ids), error)
    lift = Estimates(values.copy(), errors, values - half, values + half)
    texts = np.zeros(len(effects.ids), dtype=np.int64)
    effects = effects._replace(contraction=effects.contraction.copy(), pull=effects.pull.copy())
    rows = np.searchsorted(effects.ids, chosen)
    if len(chosen):
        measured = _measure(corpus, chosen, range(_CARRIERS), MemoryRunner(job.encoder, progress))
        variance = error**2 / len(reference)
        lifts = measured.lifts - common
        noise = corpus.plan.call_noise**2
        close = statistics.mean_with_interval(lifts, job.settings.confidence, variance, noise)
        for target, source in zip(lift, close, strict=True):
            target[rows] = source
        texts[rows] = _CARRIERS
        effects.contraction[rows], effects.pull[rows] = measured.effects
    estimated = TokenEstimates(effects.ids, texts, lift, lift, null, 0.0)
    universal = _universality(job, plan, tokens, effects, chosen, calibrating)
    record = ResultFolder(run.path).read_record(base.DIMENSIONS_FILE, base.DimensionsRecord)
    seen = next((each for each in (record.views if record else ()) if each.view == view), run.result)
    if (ordinary := seen.ordinary_contraction) is None:  # a run of an earlier version
        ordinary = float(np.median(tokens["contraction"].to_numpy()))
    judged = _table(corpus, tokens, effects, estimated, universal, count, ordinary)
    left = left.select("token_id", "token", "decoded", "category", "reason")
    return base.Judgement(
        tokens=pl.concat([judged, left], how="diagonal_relaxed").sort("token_id"),
        source=job.sentences.source,
        texts=len(job.sentences),
        anchors=len(corpus.panel.vectors),
        left_out=corpus.plan.left_out,
        ordinary_lift=null.center,
        similarity_spread=corpus.plan.similarity_spread,
        error=error,
        measured=len(chosen),
        undecided=int(may.sum()) - len(chosen),
        narrow_limit=corpus.plan.narrow_limit,
    )


class _Corpus(NamedTuple):
    job: Job[ProfileSettings]
    plan: ProfilePlanRecord  # of the run, with carriers, spread and limit of the corpus
    panel: AnchorPanel


def _encoded_corpus(job: Job[ProfileSettings], plan: ProfilePlanRecord, most: int) -> _Corpus:
    encoder, settings, source = job.encoder, replace(job.settings, anchors=most), job.sentences.source
    group = anchors.TextGroup("corpus", list(job.sentences.texts), 1.0, False)
    carriers = anchors.short_texts(encoder, settings, [group], _CARRIERS, source)
    chosen, left_out = anchors.choose_anchors(encoder, settings, [[group]], set(carriers.values()))
    texts = [text for each in chosen for text in each.texts]
    if len(texts) < _LEAST_ANCHORS:
        counted = "1 text" if len(texts) == 1 else f"{len(texts)} texts"
        raise InputError(
            f"{source} has {counted} left to compare with, and {_LEAST_ANCHORS} are needed: use more texts"
        )
    vectors = unit_vectors(encoder.encode(texts))
    panel = AnchorPanel(vectors, np.zeros(len(vectors), dtype=np.intp), np.ones(1))
    seen = View(encoder.dimension), panel, plan.mean_similarity
    usable, (before,), (limit,) = planning.usable_carriers(encoder, list(carriers), [seen], _CARRIERS, source)
    spread = planning.spread_of(before, panel.weights)
    own = {"carriers": usable, "narrow_limit": limit, "similarity_spread": spread, "left_out": left_out}
    return _Corpus(job, plan.model_copy(update=own), panel)


def _calibrated(
    corpus: _Corpus, screened: TokenEffects, reference: Ids, progress: ProgressCallback
) -> tuple[Vector, float, Vector, Pull]:
    # Return also their error, each carrier's common effect beside the mean, and what the random tokens do.
    job, carriers = corpus.job, range(_CARRIERS)
    every = round_stage(job.encoder, job.settings, corpus.plan, corpus.panel, Round.CONFIRM, carriers)
    predicted = statistics.predicted_lifts(screened, every.panel)
    common, residuals = np.empty(_CARRIERS), np.empty((len(reference), _CALIBRATING))
    pulls = np.empty((len(reference), corpus.panel.vectors.shape[1]))
    contractions = np.empty(len(reference))
    parts = _CARRIERS // _CALIBRATING
    silent = MemoryRunner(job.encoder, ignore_progress)
    for part in range(parts):
        ids, places = reference[part::parts], list(range(part, _CARRIERS, parts))
        measured = _measure(corpus, ids, places, silent)
        left = measured.lifts - predicted[np.searchsorted(screened.ids, ids), None]
        common[places] = left.mean(axis=0)
        residuals[part::parts] = left - common[places]
        contractions[part::parts], pulls[part::parts] = measured.effects
        done = (part + 1) * len(reference) // parts
        progress(Progress("calibrate", done, len(reference), done, done * _CALIBRATING))
    level = float(common.mean())
    rows = np.searchsorted(screened.ids, reference)
    lifts = predicted[rows] + residuals.mean(axis=1) + level
    least = corpus.plan.call_noise**2
    noise = max(float(residuals.var(axis=1, ddof=1).mean()), least) / _CALIBRATING
    features = [np.column_stack([screened.pull, screened.contraction.astype(screened.pull.dtype)])]
    if (matrix := verdict.embedding_matrix(job.encoder)) is not None:
        features.append(matrix[screened.ids])  # free of the noise of measuring
    values, error = estimates.calibrate(predicted, features, rows, lifts, noise)
    # Pull and contraction carry the noise of the calls that they were measured by.
    error = max(error, float(np.sqrt(least / planning.screening_carriers(job.settings))))
    return values, error, common - level, Pull(contractions, pulls)


def _measure(corpus: _Corpus, ids: Ids, places: Sequence[int], run: MemoryRunner) -> Measurements:
    job, panel = corpus.job, corpus.panel
    tokens = {token.id: token for token in job.vocabulary.available}
    stage = round_stage(job.encoder, job.settings, corpus.plan, panel, Round.CONFIRM, places, base.MEASURING)
    rows = run(stage, [tokens[token_id] for token_id in ids.tolist()])
    return estimates.round_measurements(rows, stage, job.encoder)


def _universality(
    job: Job[ProfileSettings],
    plan: ProfilePlanRecord,
    tokens: pl.DataFrame,
    effects: TokenEffects,
    probed: Ids,
    calibrating: Pull,
) -> Vector:
    found = np.full(len(effects.ids), np.nan)
    known = tokens.select("token_id", "texts", pl.col("universality").cast(pl.Float64))
    found[np.searchsorted(effects.ids, known["token_id"].to_numpy())] = known["universality"].to_numpy()
    closely = known.filter(pl.col("texts") == known["texts"].max())["token_id"].to_numpy()
    rough = np.searchsorted(effects.ids, probed[~np.isin(probed, closely)])
    kinds = [place for place, group in enumerate(plan.groups) if group.kind]
    if not len(rough) or not kinds:
        return found
    panel = anchors.anchor_panel(job.encoder, plan, job.vocabulary.available)
    carriers = unit_vectors(job.encoder.encode(plan.carriers))
    lifts = []
    for kind in kinds:
        alone = np.eye(len(panel.group_weights))[kind]
        of_kind = replace(panel, group_weights=alone).against(carriers, plan.unrelated_below)
        ordinary = float(np.median(statistics.predicted_lifts(calibrating, of_kind)))
        own = Pull(effects.contraction[rough], effects.pull[rough])
        lifts.append(statistics.predicted_lifts(own, of_kind) - ordinary)
    spreads = np.array([plan.groups[kind].spread for kind in kinds])
    found[rough] = verdict.universality(np.column_stack(lifts), spreads, job.settings.smallest_effect)
    return found


def _table(
    corpus: _Corpus,
    tokens: pl.DataFrame,
    effects: TokenEffects,
    estimated: TokenEstimates,
    universal: Vector,
    null_tokens: int,
    ordinary: float,
) -> pl.DataFrame:
    job, spread, settings = corpus.job, corpus.plan.similarity_spread, corpus.job.settings
    available, smallest = len(job.vocabulary.available), settings.smallest_effect * spread
    reach = estimated.lift.high  # few texts tell: what may be the smallest effect is not missed
    mattering = verdict.find_lifts(estimated, null_tokens, available, smallest, settings.fdr, reach)
    found, unknown = mattering.found & (estimated.texts > 0), np.full(len(effects.ids), np.nan)
    up, flagged = unknown.copy(), np.flatnonzero(found)
    lifting = Pull(effects.contraction[flagged], effects.pull[flagged])
    up[flagged] = moves_up(lifting, corpus.panel.vectors, settings.seed)
    points = statistics.fixed_points(effects, corpus.panel.weights @ corpus.panel.vectors)
    q_values = unknown if mattering.q_values is None else mattering.q_values
    rows = np.searchsorted(effects.ids, tokens["token_id"].to_numpy())
    # What copies leave of a text is the run's answer: it does not depend on what it is compared with.
    erases, lost = tokens["erases"].fill_null(False).to_numpy(), tokens["contraction"].to_numpy()
    said = [
        [f"erases {share:.0%} of a text (an ordinary token: {ordinary:.0%})"] * bool(erased)
        + [f"{'large lift' if large else 'outlier'} on these texts"] * bool(lifts)
        for lifts, large, erased, share in zip(found[rows], mattering.large[rows], erases, lost, strict=True)
    ]
    given = verdict.verdicts(found[rows], np.zeros(len(rows), dtype=np.bool_), universal[rows], erases)
    deviations = ((estimated.lift.value - estimated.null.center) / spread)[rows]
    columns: dict[str, Any] = {
        "texts": estimated.texts[rows],
        "lift": estimated.lift.value[rows],
        "lift_low": estimated.lift.low[rows],
        "lift_high": estimated.lift.high[rows],
        "universality": universal[rows],
        "moves_up": up[rows],
        "contraction": tokens["contraction"],
        "fixed_point": points[rows],
        "q_value": q_values[rows],
        **{name: tokens[name] for name in ("contraction_low", "contraction_high", "erases")},
        "reason": ["; ".join(each) or None for each in said],
        "severity": verdict.severities(deviations, share_erased(lost, ordinary), erases, given),
        "verdict": given,
    }
    texts = dict.fromkeys(("reason", "severity", "verdict"), pl.String)
    table = pl.DataFrame(columns, schema_overrides=texts).with_columns(pl.col(pl.Float64).fill_nan(None))
    return tokens.select("token_id", "token", "decoded", "category").hstack(table)


def moves_up(effects: Pull, texts: NDArray[np.float32], seed: int) -> Vector:
    """Compute the share of random pairs, query and document, whose document passes a tenth of all texts."""
    # cos(after) is computed from pull and contraction.
    order = np.random.default_rng([seed, _SPLIT]).permutation(len(texts))
    count = min(100, len(texts) // 2)  # of queries, and of documents: together they are many pairs
    queries, documents = order[:count], order[count : 2 * count]
    similarities = (texts @ texts[queries].T).astype(np.float64)
    before, ranked = similarities[documents], np.sort(similarities, axis=0)

    def ahead(of: Vector) -> NDArray[np.intp]:
        places = [np.searchsorted(ranked[:, query], of[:, query], side="right") for query in range(count)]
        return len(ranked) - np.stack(places, axis=1)

    at_first, shares = ahead(before), []
    for contraction, pull in zip(effects.contraction, effects.pull, strict=True):
        after = (1 - contraction) * before + texts[queries] @ pull
        shares.append(float((at_first - ahead(after) >= 0.1 * len(texts)).mean()))
    return np.array(shares)


# A few more than an empirical null needs, because some of them may be tokens that are asked about.
_ORDINARY = 256


def recheck(job: base.RecheckJob, name: str) -> ProfileRecheck:
    plan, used = job.plan, list(job.used)
    if isinstance(plan, ProfilePlanRecord):
        used += [*plan.carriers, *(anchor.text for anchor in plan.anchors)]
    known = {open_ended(text) for text in used}
    begun = tuple(known)  # the first sentence of a long text may have been a carrier
    # Every token on the same texts, with the run's smallest lift that matters.
    settings = replace(
        job.settings if isinstance(job.settings, ProfileSettings) else ProfileSettings(),
        adaptive=False,
        budget=float(_CARRIERS),
        anchors=330,
        vocabulary_anchors=0,
        reference=_ORDINARY,
        screen_precision=None,
        seed=job.seed,
    )
    u = MeanSimilarity(plan.mean_similarity, plan.mean_similarity_entries, 0, plan.mean_similarity_error)
    own = Job(job.encoder, settings, job.corpus, job.vocabulary, [], True, True)
    texts = planning.make_profile_plan(
        own,
        job.progress,
        views=only_own(job.encoder),
        unused=lambda text: open_ended(text) not in known and not text.startswith(begun),
        similarity=u if job.same_model else None,
    )
    return ProfileRecheck(own, texts, job.progress, name)


@dataclass(frozen=True)
class ProfileRecheck:
    job: Job[ProfileSettings]
    plan: ProfilePlanRecord
    progress: ProgressCallback
    name: str  # of the model in progress reports, such as ``before``

    @property
    def vocabulary(self) -> Vocabulary:
        return self.job.vocabulary

    @cached_property
    def _panel(self) -> AnchorPanel:
        return anchors.anchor_panel(self.job.encoder, self.plan, self.vocabulary.available)

    @cached_property
    def _stage(self) -> planning.ProfileStage:
        places, name = range(len(self.plan.carriers)), f"{self.name}: ids"
        return round_stage(
            self.job.encoder, self.job.settings, self.plan, self._panel, Round.SCREEN, places, name
        )

    @property
    def similarity_spread(self) -> float:
        return self.plan.similarity_spread

    @property
    def carriers(self) -> int:
        return len(self.plan.carriers)

    @property
    def anchors(self) -> int:
        return len(self.plan.anchors)

    @cached_property
    def copies(self) -> tuple[int, ...]:
        return probes.fitting_copies(self.job.encoder, Insertion.TEXT, self.plan.carriers, (1, 2, 4, 8, 16))

    def of_model(self, encoder: IdEncoder, vocabulary: Vocabulary, name: str) -> ProfileRecheck:
        job = replace(self.job, encoder=encoder, vocabulary=vocabulary)
        return replace(self, job=job, name=name)

    def ordinary(self, excluded: Iterable[int], count: int | None = None) -> list[Token]:
        named, left_out = {token.id: token for token in self.vocabulary.available}, set(excluded)
        return [named[k] for k in self.plan.reference if k in named and k not in left_out][:count]

    def measured(self, tokens: base.Tokens) -> dict[int, tuple[float, float]]:
        found = self._measurements(tokens)
        numbers = zip(found.lifts.mean(axis=1).tolist(), found.effects.contraction.tolist(), strict=True)
        return dict(zip(found.ids.tolist(), numbers, strict=True))

    def _measurements(self, tokens: base.Tokens) -> Measurements:
        run = MemoryRunner(self.job.encoder, self.progress)
        texts = replace(self._stage, name=f"{self.name}: text", carriers=tuple(self.plan.carriers))
        ways = (
            (self._stage, tokens.as_ids),
            (texts, [replace(token, joining=Joining.WORDS) for token in tokens.written]),
            (texts, [replace(token, joining=Joining.GLUED) for token in tokens.glued]),
        )
        found = [
            estimates.measurements(run(stage, own), len(self.plan.carriers)) for stage, own in ways if own
        ]
        return reduce(estimates.together, found)

    def judged(self, tokens: base.Tokens, excluded: Iterable[int]) -> base.Rechecked:
        ordinary = self.ordinary((*excluded, *tokens.ids))
        found = self._measurements(tokens._replace(as_ids=[*tokens.as_ids, *ordinary]))
        ids = np.array([token.id for token in ordinary])
        judged = verdict.decide(
            verdict.Measured(self.job, self.plan, self._panel, ids, [], {Round.SCREEN: found}),
            [token.id for token in (*tokens.written, *tokens.glued)],
        )
        usual = found.rows(ids)
        means: Vector = found.lifts.mean(axis=1)
        return base.Rechecked(
            judged.tokens.filter(pl.col("token_id").is_in(tokens.ids)),
            dict(zip(found.ids.tolist(), means.tolist(), strict=True)),
            float(np.median(means[usual])),
            float(np.median(found.effects.contraction[usual])),
        )

    def curves(self, tokens: base.Tokens) -> dict[int, list[float]]:
        places = list(range(min(probes.SYMPTOM_CARRIERS, len(self.plan.carriers))))
        panel = self._stage.panel.chosen(places)
        texts = tuple(self.plan.carriers[place] for place in places)
        stage = SymptomStage(self._stage.carriers[: len(places)], self.copies, panel, f"{self.name}: curves")
        written = replace(stage, carriers=texts, name=f"{self.name}: curves of text")
        run = MemoryRunner(self.job.encoder, self.progress)
        apart = [Token(token.id, f" {token.text}") for token in tokens.written]
        rows = [
            row
            for each, own in ((stage, tokens.as_ids), (written, [*apart, *tokens.glued]))
            if own
            for row in run(each, own).to_dicts()
        ]
        return {row["token_id"]: row["below"] for row in rows}
