"""Plan the profile method: anchors, carriers, reference tokens; the stage of a round."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stickytoken.encoders.protocol import Encoder, require_ids
from stickytoken.encoders.views import MeanSimilarity, View, Views, views_of
from stickytoken.errors import InputError
from stickytoken.insertion import Insertion, Placement, Probe, Token
from stickytoken.machine import Precision
from stickytoken.measurement.engine import Measured, ProgressCallback
from stickytoken.methods import probes
from stickytoken.methods.base import Job, model_means
from stickytoken.methods.probes import AnchorPanel, CarrierPanel
from stickytoken.methods.profile import anchors as sources
from stickytoken.methods.profile.anchors import ProfilePlanRecord, ProfileSettings
from stickytoken.methods.statistics import carrier_contractions, fit_pull
from stickytoken.unit_vectors import unit_vectors

# Number of random tokens that are measured on all carriers.
LATE_REFERENCE = 128


class Round(StrEnum):
    PILOT = "pilot"
    """Random tokens on all carriers: which few carriers stand for all of them, and what is ordinary."""
    SCREEN = "screen"
    """All tokens on those few."""
    CONFIRM = "confirm"
    """The tokens with the highest lifts on all the others."""


class Cell(NamedTuple):
    placement: Placement
    copies: int


def cells(settings: ProfileSettings, count: int) -> list[Cell]:
    """Take all combinations in turn; neighbours differ in both, so that a few carriers cover all."""
    grid = [
        Cell(placement, settings.copies[(place + turn) % len(settings.copies)])
        for turn, (place, placement) in product(range(len(settings.copies)), enumerate(Placement))
    ]
    return [grid[k % len(grid)] for k in range(count)]


def screening_carriers(settings: ProfileSettings) -> int:
    whole = int(settings.budget)
    return max(2, whole - 1 if settings.adaptive else whole)


def carriers_needed(settings: ProfileSettings) -> int:
    few = screening_carriers(settings)
    return few + settings.confirming_texts if settings.adaptive else few


def tokens_to_confirm(settings: ProfileSettings, tokens: int) -> int:
    """Meet the budget on average; a small selection of tokens may exceed it, because some always go on."""
    rest = (settings.budget - screening_carriers(settings)) * tokens
    rest -= min(LATE_REFERENCE, tokens) * carriers_needed(settings)
    return min(tokens, max(30, int(rest / settings.confirming_texts)))


def highest(ids: NDArray[np.int64], values: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    orders = [np.lexsort((ids, -values[:, place])) for place in range(values.shape[1])]
    chosen: dict[int, None] = {}
    for row in np.stack(orders, axis=1).ravel():
        if len(chosen) == count:
            break
        chosen.setdefault(int(ids[row]))
    return np.array(sorted(chosen), dtype=np.int64)


_LEAST_ANCHORS = 40
# A vocabulary above the first size has u estimated from as many entries as the second: with an error of
# some 0.002 it shifts the limit below which pairs count, where similarities spread by 0.05 and more.
_ALL_ENTRIES, _SAMPLED_ENTRIES = 2**16, 2**13
# Smallest share of the anchors that must lie below the mean similarity for each carrier.
_LEAST_BELOW = 0.02


def views_in(job: Job[ProfileSettings]) -> Views:
    return views_of(job.encoder, job.settings.dimensions, job.settings.layers)


def make_profile_plan(
    job: Job[ProfileSettings],
    progress: ProgressCallback,
    *,
    views: Views | None = None,
    unused: Callable[[str], bool] | None = None,
    similarity: MeanSimilarity | None = None,
) -> ProfilePlanRecord:
    encoder, settings, corpus, vocabulary = job.encoder, job.settings, job.sentences, job.vocabulary.available
    unspelled = job.vocabulary.unspelled
    if job.tokens and all(token.id in unspelled for token in job.tokens):
        raise InputError(
            "in texts, copies of the tokens are read as other entries: name tokens that texts spell"
        )
    views = views or views_in(job)
    # What may fail comes before the long work. A lower precision takes seconds to build, and may be refused.
    probes.require_insertion(encoder, settings.insertion)
    if (precision := settings.screen_precision) is not None:
        require_ids(encoder, f"screening in {precision}").at(precision)
    (own, beside), needed = sources.sources(encoder, corpus), carriers_needed(settings)
    if unused is not None:
        own, beside = sources.filtered(own, unused), sources.filtered(beside, unused)
    carriers = sources.short_texts(encoder, settings, own, needed, corpus.source)
    groups, left_out = sources.choose_anchors(encoder, settings, (own, beside), set(carriers.values()))
    count = sum(len(group.texts) for group in groups if group.weight > 0)
    if count < _LEAST_ANCHORS:
        raise InputError(
            f"{corpus.source} leaves {count} sentences to compare with: {needed} carriers and at least "
            f"{_LEAST_ANCHORS} other sentences that the model reads fully are needed; use more sentences, or "
            "a smaller budget"
        )
    reading = views.reading(encoder)
    if len(groups) == 1:  # no kinds that the model reads, and no topics
        vectors = views.whole.units(reading.encode(groups[0].texts))
        groups = sources.clustered(groups[0].texts, vectors, settings)
    anchors = [(text, place) for place, group in enumerate(groups) for text in group.texts]
    words = sources.vocabulary_anchors(encoder, settings, vocabulary)
    groups += [sources.WORDS] if words else []
    vectors = reading.encode([*(text for text, _ in anchors), *(word.text for word in words)])
    places = np.array([place for _, place in anchors] + [len(groups) - 1] * len(words), dtype=np.intp)
    if similarity is None:
        # The same for a run over all tokens and over a few.
        most = _SAMPLED_ENTRIES if len(encoder.tokenizer.entries) > _ALL_ENTRIES else None
        means = model_means(encoder, views, [views.own, *views.further], progress, most)
    else:
        means = {views.own: similarity}
    weights = np.array([group.weight for group in groups])
    panels = {view: AnchorPanel(view.units(vectors), places, weights) for view in means}
    seen = [(view, panel, means[view].value) for view, panel in panels.items()]
    chosen, similarities, limits = usable_carriers(reading, list(carriers), seen, needed, corpus.source)
    records = []
    for (view, u), before, limit in zip(means.items(), similarities, limits, strict=True):
        of_pairs, of_groups = panels[view].weights, [before[:, places == k] for k in range(len(groups))]
        record = sources.ViewRecord(
            dimension=view.dimension,
            layer=view.layer,
            mean_similarity=u.value,
            mean_similarity_entries=u.entries,
            mean_similarity_error=u.error,
            similarity_spread=spread_of(before, of_pairs),
            share_below=float(((before < (u.value if limit is None else limit)) @ of_pairs).mean()),
            narrow_limit=limit,
            spreads=[spread_of(own, np.full(own.shape[1], 1 / own.shape[1])) for own in of_groups],
        )
        records.append(record)
    order = np.random.default_rng([settings.seed, 2]).permutation(
        [token.id for token in vocabulary if token.id not in unspelled]
    )
    return ProfilePlanRecord(
        **records[0].model_dump(exclude={"dimension", "layer", "spreads"}),
        isoscore=means[views.own].isoscore,
        left_out=left_out,
        groups=[
            sources.AnchorGroupRecord(name=group.name, weight=group.weight, kind=group.kind, spread=spread)
            for group, spread in zip(groups, records[0].spreads, strict=True)
        ],
        anchors=[sources.AnchorRecord(text=text, group=place) for text, place in anchors],
        vocabulary_anchors=[word.id for word in words],
        carriers=chosen,
        # Fewer reference tokens are the beginning of more.
        reference=sorted(order[: settings.reference].tolist()),
        call_noise=float(getattr(encoder, "noise", 0.0)),
        late_reference=sorted(order[: min(settings.reference, LATE_REFERENCE)].tolist()),
        views=records[1:],
    )


def usable_carriers(
    encoder: Encoder,
    texts: Sequence[str],
    seen: Sequence[tuple[View, AnchorPanel, float]],
    needed: int,
    source: str,
) -> tuple[list[str], list[NDArray[np.float32]], list[float | None]]:
    # Return them with their similarities by view, and the median that replaces u as limit in a narrow corpus.
    vectors = encoder.encode(texts)
    usable, every, limits = np.ones(len(texts), dtype=np.bool_), [], list[float | None]()
    for view, panel, u in seen:
        before, at = view.units(vectors) @ panel.vectors.T, f" at {view}" if len(seen) > 1 else ""
        every.append(before)
        if before[:, panel.weights > 0].std() < 1e-5:
            raise InputError(
                f"{encoder.name} gives all sentences of {source} the same similarity "
                f"({before.mean():.4f}{at}): there is nothing that a token could move"
            )
        enough, limit = (before < u) @ panel.weights >= _LEAST_BELOW, None
        if (usable & enough).sum() < needed:
            limit = float(np.median(before[:, panel.weights > 0]))
            enough = (before < limit) @ panel.weights >= _LEAST_BELOW
        usable &= enough
        limits.append(limit)
        if usable.sum() < needed:
            raise InputError(
                f"only {usable.sum()} of {len(texts)} carriers from {source} have a similarity below its "
                f"median {limit:.4f} to some anchors{at}, {needed} are needed: use more sentences, or "
                "sentences on more varied subjects"
            )
    first = np.flatnonzero(usable)[:needed]
    return [texts[k] for k in first], [before[first] for before in every], limits


def spread_of(before: NDArray[np.float32], weights: NDArray[np.float64]) -> float:
    mean = float((before @ weights).mean())
    return float(np.sqrt((((before - mean) ** 2) @ weights).mean()))


def view_columns(view: View) -> tuple[str, str]:
    return f"{view.key}:numbers", f"{view.key}:pull"


@dataclass(frozen=True)
class ProfileStage:
    name: str
    carriers: tuple[probes.Carrier, ...]
    places: tuple[int, ...]  # of each carrier among all of the plan; they key the random placement
    cells: tuple[Cell, ...]  # placement and number of copies in each carrier
    panel: CarrierPanel  # the carriers without copies against the anchors
    seed: int  # of random placement
    precision: Precision | None = None
    counting: bool = False  # whether the copies that the tokenizer sees are counted
    layers: tuple[int, ...] | None = None  # whose vectors are read; None reads the encoder's own
    further: tuple[tuple[View, CarrierPanel], ...] = ()  # further views to measure in, their panels

    @property
    def carrier_texts(self) -> Sequence[str]:
        return [carrier for carrier in self.carriers if isinstance(carrier, str)] if self.counting else ()

    @property
    def probes_per_token(self) -> int:
        return len(self.carriers)

    def probes(self, token: Token) -> Sequence[Probe]:
        found = []
        for carrier, place, cell in zip(self.carriers, self.places, self.cells, strict=True):
            path: tuple[int, ...] = ()
            if cell.placement is Placement.RANDOM:
                generator = np.random.default_rng([self.seed, token.id, place])
                # The gap of copy k lies among the words of the carrier and of the k copies before it.
                insertion = Insertion.WORDS if isinstance(carrier, str) else Insertion.IDS
                added = probes.words_added(token, insertion)
                words = probes.word_count(carrier) + added * np.arange(cell.copies)
                path = tuple(generator.integers(0, words + 1).tolist())
            found.append(probes.with_copies(token, carrier, cell.placement, cell.copies, path))
        return found

    def measure(self, token: Token, vectors: NDArray[np.float32]) -> Mapping[str, Measured]:
        return self.measure_all([token], vectors)[0]

    def measure_all(
        self, tokens: Sequence[Token], vectors: NDArray[np.float32]
    ) -> Sequence[Mapping[str, Measured]]:
        own, rows = View(self.panel.vectors.shape[1]), [dict[str, Measured]() for _ in tokens]
        for view, panel in ((own, self.panel), *self.further):
            units = view.units(vectors).reshape(-1, len(panel.vectors), view.dimension)
            contraction, exact = fit_pull(panel.vectors, units)
            pulls, by_carrier = exact.astype(np.float16), carrier_contractions(panel.vectors, units)
            lifts, groups, rising = panel.response(units)
            if view is own:
                for row, into in enumerate(rows):
                    into["lifts"] = lifts[row].tolist()
                    into["rising"] = rising[row].astype(np.float32)
                    into["groups"] = groups[row].astype(np.float32).ravel()
                    into["contraction"] = float(contraction[row])
                    into["contractions"] = by_carrier[row].astype(np.float32)
                    into["pull"] = pulls[row]
                continue
            flat = groups.reshape(len(groups), -1)
            together = np.concatenate([lifts, rising, flat, contraction[:, None], by_carrier], axis=1)
            numbers, pull = view_columns(view)
            for row, into in enumerate(rows):
                into[numbers], into[pull] = together[row], pulls[row]
        return rows


def round_stage(
    encoder: Encoder,
    settings: ProfileSettings,
    plan: ProfilePlanRecord,
    panel: AnchorPanel,
    step: Round,
    places: Sequence[int],
    name: str = "",
) -> ProfileStage:
    texts = [plan.carriers[place] for place in places]
    precision = settings.screen_precision if step is Round.SCREEN else None
    lower = encoder if precision is None else require_ids(encoder, f"screening in {precision}").at(precision)
    every = cells(settings, len(plan.carriers))
    return ProfileStage(
        name=name or step.value,
        carriers=probes.as_carriers(encoder, settings.insertion, texts),
        places=tuple(places),
        cells=tuple(every[place] for place in places),
        panel=panel.against(unit_vectors(lower.encode(texts)), plan.unrelated_below),
        seed=settings.seed,
        precision=precision,
        counting=settings.insertion is Insertion.WORDS and not getattr(encoder.tokenizer, "estimates", False),
    )
