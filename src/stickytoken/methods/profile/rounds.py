"""The rounds of a run: random tokens in all carriers, all tokens in a few, some tokens in the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import product
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stickytoken.encoders.protocol import Encoder, capabilities_of, require_ids
from stickytoken.insertion import Insertion, Placement, Probe, Token
from stickytoken.machine import Precision
from stickytoken.measurement.engine import Measured as MeasuredValue
from stickytoken.methods import probes
from stickytoken.methods.base import FolderRunner, Job, MemoryRunner
from stickytoken.methods.probes import AnchorPanel, CarrierPanel
from stickytoken.methods.profile import texts, verdict
from stickytoken.methods.profile.estimates import (
    Ids,
    Measured,
    Measurements,
    estimate,
    joined,
    measurements,
)
from stickytoken.methods.profile.settings import ProfilePlanRecord, ProfileSettings
from stickytoken.methods.statistics import Pull, carrier_contractions, fit_pull
from stickytoken.unit_vectors import unit_vectors
from stickytoken.vocabulary import CandidateTokenizer

# Random tokens that go through all carriers. They show which few carriers stand for all, how far the screen
# is off, and what is ordinary: with 128, the median has an error of about a tenth of the tokens' spread.
PILOT_TOKENS = 128


# Tokens that may be measured closely however small the budget is.
LEAST_CONFIRMED = 100


class Round(StrEnum):
    """What a round measures."""

    PILOT = "pilot"
    """Random tokens in all carriers."""
    SCREEN = "screen"
    """All tokens in the few carriers that represent the others best."""
    CONFIRM = "confirm"
    """The tokens that may reach a threshold, in all other carriers."""


class Cell(NamedTuple):
    """Where copies go in a carrier, and how many."""

    placement: Placement
    copies: int


def cells(settings: ProfileSettings, count: int) -> list[Cell]:
    """Take all combinations in turn; neighbours differ in both, so that a few carriers cover all."""
    grid = [
        Cell(placement, settings.copies[(index + turn) % len(settings.copies)])
        for turn, (index, placement) in product(range(len(settings.copies)), enumerate(Placement))
    ]
    return [grid[k % len(grid)] for k in range(count)]


def carriers_needed(settings: ProfileSettings) -> int:
    """Return the number of carriers of a run: those of the screen, and those that confirm."""
    return settings.screening_texts + settings.confirming_texts


def tokens_to_confirm(settings: ProfileSettings, tokens: int) -> int:
    """Return how many tokens the budget allows to measure closely.

    The pilots are not counted: they are measured beside the tokens of a run, however few those are. A
    selection of few tokens may exceed the budget, because some are always allowed.
    """
    remaining_texts = (settings.budget - settings.screening_texts) * tokens
    return max(LEAST_CONFIRMED, int(remaining_texts / settings.confirming_texts))


def measure_rounds(
    job: Job[ProfileSettings],
    plan: ProfilePlanRecord,
    run: FolderRunner | MemoryRunner,
    vector_deviations: Mapping[int, float] | None,
    *,
    confirm_all: bool = False,
) -> Measured:
    """Measure the job's tokens in three rounds.

    Args:
        job: what to measure; tokens that texts do not spell are left out.
        plan: carriers, anchors and pilots.
        run: executes a stage over tokens.
        vector_deviations: how unusual the vector of each available token is.
        confirm_all: measure all tokens of the job closely, as a probe does.
    """
    settings = job.settings
    # A probe may name tokens that cannot occur in text.
    tokens = {token.id: token for token in (*job.vocabulary.available, *job.tokens)}
    least_spread = np.array(
        [token.id for token in job.tokens if token.id not in job.vocabulary.unspelled], np.int64
    )
    pilots = np.array(plan.pilots, dtype=np.int64)
    panel = texts.anchor_panel(job.encoder, plan)

    def measure(step: Round, ids: Ids, carriers: list[int]) -> Measurements:
        stage = round_stage(job.encoder, settings, plan, panel, step, carriers)
        rows = run(stage, [tokens[token_id] for token_id in ids.tolist()])
        return round_measurements(rows, stage, job.encoder)

    every_carrier = list(range(len(plan.carriers)))
    pilot = measure(Round.PILOT, pilots, every_carrier)
    screening_carriers = _screening_carriers(job, plan, pilot)
    other_carriers = [carrier for carrier in every_carrier if carrier not in screening_carriers]
    screened = measure(Round.SCREEN, np.union1d(least_spread, pilots), screening_carriers)
    of_pilots = pilot.in_carriers(other_carriers)
    so_far = Measured(job, plan, screening_carriers, screened, of_pilots, 0, vector_deviations)
    if confirm_all:
        chosen = verdict.Selection(least_spread, 0)
    else:
        largest_count = tokens_to_confirm(settings, len(job.tokens))
        if _only_counts(job.encoder):  # a price is asked for: what may be confirmed at most
            chosen = verdict.Selection(least_spread[: largest_count + 2 * verdict.DISPLAYED], 0)
        else:
            measures = estimate(so_far).measures_of(least_spread)
            chosen = verdict.select_to_confirm(measures, verdict.Thresholds.of(settings), largest_count)
    ids_to_confirm = np.setdiff1d(chosen.ids, pilots)
    if not len(ids_to_confirm):
        return replace(so_far, unconfirmed=chosen.left_out)
    selected = measure(Round.CONFIRM, ids_to_confirm, other_carriers)
    return replace(so_far, confirmed=joined(of_pilots, selected), unconfirmed=chosen.left_out)


def _only_counts(encoder: Encoder) -> bool:
    """Say whether the encoder makes up vectors to count the texts of a run, for its price."""
    return capabilities_of(encoder).makes_up_vectors


def _screening_carriers(job: Job[ProfileSettings], plan: ProfilePlanRecord, pilot: Measurements) -> list[int]:
    """Choose the carriers in which the pilots' lifts and contractions agree best with those in all."""
    count = job.settings.screening_texts
    if _only_counts(job.encoder):  # made-up lifts would favour the shortest texts
        lengths = [len(ids) for ids in job.encoder.content_ids(plan.carriers)]
        copies = [cell.copies for cell in cells(job.settings, len(plan.carriers))]
        return texts.typical_carriers(np.array(lengths) + np.array(copies), count)
    by_carrier = np.stack([pilot.lifts, pilot.contractions], axis=2)
    return texts.representative_carriers(by_carrier, count)


@dataclass(frozen=True)
class ProfileStage:
    """Put copies of each token into the carriers, and compare the resulting vectors with every anchor."""

    name: str
    carriers: tuple[probes.Carrier, ...]
    places: tuple[int, ...]  # of each carrier among all of the plan; they key the random placement
    cells: tuple[Cell, ...]  # placement and number of copies in each carrier
    panel: CarrierPanel  # the carriers without copies against the anchors
    seed: int  # of random placement
    precision: Precision | None = None
    counting: bool = False  # whether the copies that the tokenizer sees are counted

    @property
    def carrier_texts(self) -> Sequence[str]:
        return [carrier for carrier in self.carriers if isinstance(carrier, str)] if self.counting else ()

    @property
    def probes_per_token(self) -> int:
        return len(self.carriers)

    def probes(self, token: Token) -> Sequence[Probe]:
        token_probes = []
        for carrier, carrier_index, cell in zip(self.carriers, self.places, self.cells, strict=True):
            path: tuple[int, ...] = ()
            if cell.placement is Placement.RANDOM:
                generator = np.random.default_rng([self.seed, token.id, carrier_index])
                # The gap of copy k lies among the words of the carrier and of the k copies before it.
                insertion = Insertion.WORDS if isinstance(carrier, str) else Insertion.IDS
                added = probes.words_added(token, insertion)
                words = probes.word_count(carrier) + added * np.arange(cell.copies)
                path = tuple(generator.integers(0, words + 1).tolist())
            token_probes.append(probes.with_copies(token, carrier, cell.placement, cell.copies, path))
        return token_probes

    def measure(self, token: Token, vectors: NDArray[np.float32]) -> Mapping[str, MeasuredValue]:
        return self.measure_all([token], vectors)[0]

    def measure_all(
        self, tokens: Sequence[Token], vectors: NDArray[np.float32]
    ) -> Sequence[Mapping[str, MeasuredValue]]:
        """Return one row per token: lifts, shares that rise and contractions by carrier; k and p."""
        units = unit_vectors(vectors).reshape(len(tokens), len(self.carriers), -1)
        effect = fit_pull(self.panel.vectors, units)
        pulls = effect.pull.astype(np.float16)
        contractions = carrier_contractions(self.panel.vectors, units).astype(np.float32)
        response = self.panel.response(units)
        group_lifts = response.group_lifts.astype(np.float32)
        rising = response.rising.astype(np.float32)
        return [
            {
                "lifts": response.lifts[row].tolist(),
                "rising": rising[row],
                "groups": group_lifts[row].ravel(),
                "contraction": float(effect.contraction[row]),
                "contractions": contractions[row],
                "pull": pulls[row],
            }
            for row in range(len(tokens))
        ]


def round_stage(
    encoder: Encoder,
    settings: ProfileSettings,
    plan: ProfilePlanRecord,
    panel: AnchorPanel,
    step: Round,
    carrier_indices: Sequence[int],
    name: str = "",
) -> ProfileStage:
    """Make the stage of a round, with the plan's carriers at these places."""
    carriers = [plan.carriers[index] for index in carrier_indices]
    precision = settings.screen_precision if step is Round.SCREEN else None
    reader = encoder
    if precision is not None:
        reader = require_ids(encoder, f"screening in {precision}").at(precision)
    every_cell = cells(settings, len(plan.carriers))
    counts_exactly = not isinstance(encoder.tokenizer, CandidateTokenizer)
    return ProfileStage(
        name=name or step.value,
        carriers=probes.as_carriers(encoder, settings.insertion, carriers),
        places=tuple(carrier_indices),
        cells=tuple(every_cell[index] for index in carrier_indices),
        panel=panel.against(unit_vectors(reader.encode(carriers)), plan.unrelated_below),
        seed=settings.seed,
        precision=precision,
        counting=settings.insertion is Insertion.WORDS and counts_exactly,
    )


# With less than half of its planned share left, a token is hardly in the text: effects are doubled at most.
_LARGEST_FACTOR = 2.0


def round_measurements(rows: pl.DataFrame, stage: ProfileStage, encoder: Encoder) -> Measurements:
    """Read the rows of a round.

    What m copies do among L other tokens grows about as their share, m / (m + L). Where the tokenizer saw
    fewer copies than were planned, the effects are scaled by the ratio of the shares.
    """
    measured = measurements(rows, len(stage.carriers))
    if measured.seen is None:
        return measured
    planned = np.array([cell.copies for cell in stage.cells], dtype=np.float64)
    lengths = np.array([len(ids) for ids in encoder.content_ids(stage.carrier_texts)], dtype=np.float64)

    def shares(copies: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(copies / np.maximum(copies + lengths, 1.0))

    copies_seen = np.minimum(measured.seen, planned)
    ratios = shares(planned) / np.maximum(shares(copies_seen), np.finfo(float).tiny)
    factors = np.clip(ratios, 1.0, _LARGEST_FACTOR)
    mean_factor = factors.mean(axis=1)
    effect = measured.effects
    return replace(
        measured,
        lifts=measured.lifts * factors,
        groups=(measured.groups * factors[:, :, None]).astype(measured.groups.dtype),
        effects=Pull(
            effect.contraction * mean_factor,
            (effect.pull * mean_factor[:, None]).astype(effect.pull.dtype),
        ),
        contractions=measured.contractions * factors,
    )
