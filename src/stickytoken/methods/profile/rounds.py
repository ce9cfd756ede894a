"""The rounds of a run, and the stage that a round of short texts executes.

Special tokens are measured in documents before anything else: they are few, and the first that anyone tries.
In the next round, random tokens (the pilots) are inserted into all carriers. Then all tokens are inserted
into a few of the carriers, and those most likely to reach the threshold into all others, in batches. This
ends after a batch in which no token can still reach its threshold, if no remaining token may reach it by the
estimate from the few carriers, or when the budget is used up. At last, the tokens that may push are measured
in documents.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import NamedTuple, TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stickytoken.encoders.protocol import Encoder, require_ids
from stickytoken.insertion import Insertion, Placement, Probe, Token
from stickytoken.machine import Precision
from stickytoken.measurement.engine import Measured as MeasuredValue
from stickytoken.methods import probes
from stickytoken.methods.base import FolderRunner, Job, MemoryRunner
from stickytoken.methods.probes import Carrier, Path
from stickytoken.methods.profile import documents, texts, verdict
from stickytoken.methods.profile.documents import (
    DocumentPanel,
    InDocuments,
    join_documents,
    measure_in_documents,
    predict_push,
)
from stickytoken.methods.profile.estimates import (
    Ids,
    Measured,
    Measurements,
    deviations_of,
    estimate,
    joined,
    measurements,
)
from stickytoken.methods.profile.records import ProfilePlanRecord
from stickytoken.methods.statistics import Effects, TokenEffects, carrier_contractions, fit_effects
from stickytoken.settings.profile import Measuring, ProfileSettings
from stickytoken.unit_vectors import unit_vectors
from stickytoken.vocabulary import CandidateTokenizer, special_tokens

# Number of random tokens that are inserted into all carriers. They are used to choose the few carriers that
# represent all carriers best, to measure the error of estimates from these few carriers, and to define the
# ordinary token. With 128 pilots, the standard error of their median is about a tenth of the standard
# deviation over tokens.
PILOT_TOKENS = 128
# Number of tokens that may be measured closely even if the budget allows fewer.
LEAST_CONFIRMED = 100
# Number of tokens in a batch of the confirming round. With smaller batches, a GPU would often be idle. With
# larger batches, the last batch would cost more texts, although it only shows that the round can end.
CONFIRMING_BATCH = 64
# Share of the carriers from which the screening carriers are chosen: the carriers that copies of random
# tokens erase least. Copies of any token erase so much of the other carriers that sticky tokens do not stand
# out.
_SCREENING_CANDIDATE_SHARE = 0.75
# Maximum factor by which effects are scaled up if the tokenizer recognized fewer copies than were planned. If
# copies make up less than half of their planned share of a text, they hardly affect the text, so a larger
# factor would mostly amplify noise.
_LARGEST_FACTOR = 2.0
# Number of tokens that erase most, and of tokens that are expected to push most, to measure in documents. The
# expectation from sentences has a rank correlation of about 0.5 with the push of random tokens.
_MOST_SUSPECTS = 40
# A run over fewer tokens than this multiple of the random ones measures only one in so many of these in
# documents, so that a small run is not mostly spent on them.
_PILOT_SHARE = 4
# One in so many random tokens is measured in all documents. Together, they are the ordinary token there.
ORDINARY_STEP = 16


class Round(StrEnum):
    """The rounds of a run, in chronological order."""

    PILOT = "pilot"
    """Random tokens, in all carriers."""
    SCREEN = "screen"
    """All tokens, in a few short, representative carriers."""
    CONFIRM = "confirm"
    """The tokens that are most likely to reach a threshold, in all other carriers, in batches."""


class Cell(NamedTuple):
    """The number of copies in a carrier, and their placement."""

    placement: Placement
    copies: int


def cells(settings: ProfileSettings, carrier_count: int) -> list[Cell]:
    """Return the placement and the number of copies for each carrier.

    The carriers cycle through all combinations of a placement and a number of copies. Consecutive carriers
    differ in both the placement and the number of copies, so that even a few carriers cover every placement
    and every number. For example, with 8 and 4 copies, the cycle is: 8 copies at the start, 4 at the end, 8
    at random places, 4 at the start, 8 at the end, 4 at random places.
    """
    copy_counts = settings.copies
    combinations = []
    for turn in range(len(copy_counts)):
        for index, placement in enumerate(Placement):
            combinations.append(Cell(placement, copy_counts[(index + turn) % len(copy_counts)]))
    return [combinations[carrier % len(combinations)] for carrier in range(carrier_count)]


def carriers_needed(settings: ProfileSettings) -> int:
    """Return the number of carriers that a run needs: its screening carriers plus its confirming carriers."""
    return settings.screening_texts + settings.confirming_texts


def tokens_to_confirm(settings: ProfileSettings, token_count: int) -> int:
    """Return how many tokens can be confirmed within the budget, but at least `LEAST_CONFIRMED`.

    The texts of the pilots do not count against the budget, because their number does not depend on the
    tokens of the run.
    """
    texts_left = (settings.budget - settings.screening_texts) * token_count
    return max(LEAST_CONFIRMED, int(texts_left / settings.confirming_texts))


def most_texts_to_confirm(settings: ProfileSettings, token_count: int) -> int:
    """Return how many texts a run over these tokens encodes at most after its screen.

    Tokens with unusual vectors are measured in documents too. They aren't counted, because whoever pays for
    texts has no vectors.
    """
    confirming = min(token_count, tokens_to_confirm(settings, token_count)) * settings.confirming_texts
    suspects = token_count
    if settings.documents is not Measuring.ALL and token_count > PILOT_TOKENS:
        suspects = min(token_count, 2 * _MOST_SUSPECTS)
    return confirming + (PILOT_TOKENS + suspects) * documents.DOCUMENT_COUNTS[-1]


def measure_rounds(
    job: Job[ProfileSettings],
    plan: ProfilePlanRecord,
    run: FolderRunner | MemoryRunner,
    vector_deviations: Mapping[int, float] | None,
    *,
    confirm_all: bool = False,
) -> Measured:
    """Measure the job's tokens in all rounds, and return the measurements.

    Args:
        job: provides the model, vocabulary, tokens and settings. Tokens whose copies the tokenizer reads as
            other entries are not measured.
        plan: provides the carriers, the documents and the pilots.
        run: executes a stage for the given tokens.
        vector_deviations: how unusual each token vector is, keyed by token id; None if token vectors cannot
            be compared.
        confirm_all: whether to measure all tokens of the job in the confirming carriers, as a probe does,
            instead of only a selection.

    Returns:
        The measurements of all tokens in the screening carriers, of the pilots and the confirmed tokens in
        the other carriers, and of special and suspicious tokens in documents.
    """
    # Tokens that a user probes may be missing from ``available``, because they cannot occur in text.
    tokens = {token.id: token for token in (*job.vocabulary.available, *job.tokens)}
    spelled_ids = [token.id for token in job.tokens if token.id not in job.vocabulary.unspelled]
    job_ids = np.array(spelled_ids, dtype=np.int64)
    pilot_ids = np.array(plan.pilots, dtype=np.int64)
    panel = documents.encode_documents(job, plan)

    def measure_documents(
        label: str, ids: Collection[int], hiding_ids: Collection[int] = ()
    ) -> InDocuments | None:
        if panel is None or not ids:
            return None
        ordered_ids = sorted(ids)
        deviations = deviations_of(np.array(ordered_ids), vector_deviations)
        _, push_thresholds = verdict.thresholds(deviations, job.settings)
        threshold_of = dict(zip(ordered_ids, push_thresholds.tolist(), strict=True))
        chosen = [tokens[token_id] for token_id in ordered_ids]
        in_all = {*ordinary_ids, *hiding_ids}
        return measure_in_documents(panel, run, chosen, threshold_of, job.settings, label, in_all)

    ordinary_ids = plan.pilots[::ORDINARY_STEP]
    special_ids = {token.id for token in special_tokens(job.vocabulary, job.encoder.tokenizer)}
    special_ids &= set(spelled_ids)
    special = measure_documents(SPECIAL, special_ids)

    def measure(step: Round, carriers: list[int], ids: Ids, stage_name: str = "") -> Measurements:
        stage = round_stage(job.encoder, job.settings, plan, step, carriers, stage_name)
        rows = run(stage, [tokens[token_id] for token_id in ids.tolist()])
        return round_measurements(rows, stage, job.encoder)

    all_carriers = list(range(len(plan.carriers)))
    pilots_in_all = measure(Round.PILOT, all_carriers, pilot_ids)
    screening_carriers = _screening_carriers(job, plan, pilots_in_all)
    confirming_carriers = [carrier for carrier in all_carriers if carrier not in screening_carriers]
    screened = measure(Round.SCREEN, screening_carriers, np.union1d(job_ids, pilot_ids))
    measured = Measured(
        job=job,
        plan=plan,
        screening_carriers=screening_carriers,
        screened=screened,
        confirmed=pilots_in_all.in_carriers(confirming_carriers),
        unconfirmed=0,
        vector_deviations=vector_deviations,
    )

    measure_batch = partial(measure, Round.CONFIRM, confirming_carriers)
    # The pilots have already been measured in the confirming carriers.
    unconfirmed_ids = np.setdiff1d(job_ids, pilot_ids)
    if confirm_all:
        measured = _with_batch(measured, unconfirmed_ids, 1, measure_batch)
    else:
        budgeted_tokens = tokens_to_confirm(job.settings, len(job_ids))
        measured = confirm_in_batches(
            measured, unconfirmed_ids, budgeted_tokens, measure_batch, first_ids=sorted(special_ids)
        )
    if panel is None:
        return measured
    suspect_ids = choose_suspects(measured, panel, measure_all=confirm_all)
    # How many queries still find a hidden document takes all documents to say: a few of them prove nothing.
    measures = estimate(measured).measures_of(job_ids)
    verdicts = verdict.apply_rule(measures, job.settings).verdicts
    hiding_ids = job_ids[[token_verdict == "sticky" for token_verdict in verdicts]].tolist()
    suspects = measure_documents(SUSPECTS, suspect_ids - special_ids, hiding_ids)
    return replace(measured, in_documents=join_documents([special, suspects]))


SPECIAL = "special tokens in documents"
"""What the names of the stages begin with that measure special tokens in documents."""

SUSPECTS = "documents"
"""What the names of the stages begin with that measure other tokens in documents."""


def draw_random(pilots: Sequence[int], token_count: int) -> Sequence[int]:
    """Return the random tokens that a run over so many tokens measures in documents.

    Pilots are in random places of the vocabulary, so every fourth is a random choice as well.
    """
    return pilots if token_count > PILOT_TOKENS * _PILOT_SHARE else pilots[::_PILOT_SHARE]


def choose_suspects(measured: Measured, panel: DocumentPanel, *, measure_all: bool) -> set[int]:
    """Return the ids of the tokens to measure in documents.

    These are random tokens, which define what is ordinary; and of the job's tokens, those with an unusual
    vector, those that erase most, and those that are expected to push most. All of the job's tokens are
    chosen if they are no more than the random ones, or if ``measure_all`` or the settings say so.
    """
    job = measured.job
    settings = job.settings
    job_ids = {token.id for token in job.tokens if token.id not in job.vocabulary.unspelled}
    random_ids = set(draw_random(measured.plan.pilots, len(job_ids)))
    if measure_all or settings.documents is Measuring.ALL or len(job_ids) <= PILOT_TOKENS:
        return random_ids | job_ids
    numbers = estimate(measured)
    ids = np.array(sorted(job_ids), dtype=np.int64)
    measures = numbers.measures_of(ids)
    screened = measured.screened
    rows = screened.rows_of(ids)
    effects = TokenEffects(ids, screened.effects.contraction[rows], screened.effects.pull[rows])
    expected_push = predict_push(effects, panel)
    suspects = set(ids[measures.vector_deviation >= settings.unusual].tolist())
    suspects |= set(verdict.ids_of_largest(ids, measures.erased.value, _MOST_SUSPECTS))
    suspects |= set(verdict.ids_of_largest(ids, expected_push, _MOST_SUSPECTS))
    return random_ids | suspects


# Measures tokens with the given ids in the confirming carriers, in a stage with the given name.
MeasureBatch: TypeAlias = Callable[[Ids, str], Measurements]


def _with_batch(measured: Measured, ids: Ids, batch: int, measure_batch: MeasureBatch) -> Measured:
    if not len(ids):
        return measured
    confirmed = measure_batch(np.sort(ids), confirming_stage(batch))
    return replace(measured, confirmed=joined(measured.confirmed, confirmed))


def confirm_in_batches(
    measured: Measured,
    ids: Ids,
    budgeted_tokens: int,
    measure_batch: MeasureBatch,
    first_ids: Sequence[int] = (),
) -> Measured:
    """Measure tokens in the confirming carriers, until no other token is expected to reach its threshold.

    The round ends after a batch in which no token can still reach its threshold, if no remaining token may
    reach it by its screening estimate either. If the budget is used up earlier, the remaining tokens that may
    reach their thresholds by their screening estimates are counted as unconfirmed.

    Args:
        measured: the measurements of the pilot round and the screening round.
        ids: ids of the tokens to choose from, without the pilots.
        budgeted_tokens: number of tokens that the budget allows to confirm.
        measure_batch: measures a batch.
        first_ids: ids of tokens that are measured in any case.
    """
    settings = measured.job.settings
    screened = estimate(measured)
    ordered_ids = verdict.order_to_confirm(screened.measures_of(ids), settings, first_ids)
    may_reach_by_screen = verdict.may_erase_enough(screened.measures_of(ordered_ids), settings)
    budgeted_ids = ordered_ids[:budgeted_tokens]
    for batch, start in enumerate(range(0, len(budgeted_ids), CONFIRMING_BATCH), start=1):
        batch_ids = budgeted_ids[start : start + CONFIRMING_BATCH]
        measured = _with_batch(measured, batch_ids, batch, measure_batch)
        batch_measures = estimate(measured).measures_of(batch_ids)
        batch_may_reach = verdict.may_erase_enough(batch_measures, settings).any()
        rest_may_reach = may_reach_by_screen[start + CONFIRMING_BATCH :].any()
        if not batch_may_reach and not rest_may_reach:
            break
    return replace(measured, unconfirmed=int(may_reach_by_screen[budgeted_tokens:].sum()))


def confirming_stage(batch: int) -> str:
    """Return the name of the stage that measures a batch of the confirming round.

    The first batch has the number 1. A run that confirms all of its tokens has only this batch.
    """
    return f"{Round.CONFIRM}-{batch}"


def _screening_carriers(
    job: Job[ProfileSettings], plan: ProfilePlanRecord, pilots: Measurements
) -> list[int]:
    count = job.settings.screening_texts
    # The length includes the copies, whose number differs between carriers.
    carrier_lengths = [len(ids) for ids in job.encoder.content_ids(plan.carriers)]
    copies = [cell.copies for cell in cells(job.settings, len(plan.carriers))]
    lengths = np.array(carrier_lengths) + np.array(copies)
    ordinary_contractions = np.median(pilots.contractions, axis=0)
    candidate_count = max(count, int(_SCREENING_CANDIDATE_SHARE * len(plan.carriers)))
    candidates = np.argsort(ordinary_contractions, kind="stable")[:candidate_count]
    return texts.representative_carriers(pilots.contractions, lengths, candidates, count)


@dataclass(frozen=True)
class ProfileStage:
    """Inserts copies of each token into K carriers, and compares the vectors with those without copies.

    Attributes:
        name: name of the stage, under which a run folder stores its rows.
        carriers: the carriers, tokenized or as text.
        carrier_indices: index of each carrier in the plan. Random placements are seeded with this index, so
            that copies go into the same gaps of a carrier in every stage.
        cells: placement and number of copies in each carrier.
        without_copies: unit vectors of the carriers without copies, shape (K, d).
        seed: seed of random placements.
        precision: precision to run the model in; if None, the model's own.
        counts_copies: whether the engine counts the copies that the tokenizer recognizes in each text.
    """

    name: str
    carriers: tuple[Carrier, ...]
    carrier_indices: tuple[int, ...]
    cells: tuple[Cell, ...]
    without_copies: NDArray[np.float32]
    seed: int
    precision: Precision | None = None
    counts_copies: bool = False

    @property
    def carrier_texts(self) -> Sequence[str]:
        """The texts of the carriers, which the engine needs to count copies; empty if none are counted."""
        if not self.counts_copies:
            return ()
        return [carrier for carrier in self.carriers if isinstance(carrier, str)]

    @property
    def probes_per_token(self) -> int:
        """Number of texts that are encoded for each token."""
        return len(self.carriers)

    def probes(self, token: Token) -> Sequence[Probe]:
        """Return the carriers with copies of a token, in the order of the carriers."""
        texts_with_copies = []
        for carrier, index, cell in zip(self.carriers, self.carrier_indices, self.cells, strict=True):
            path = self._path(token, carrier, index, cell)
            probe = probes.with_copies(token, carrier, cell.placement, cell.copies, path)
            texts_with_copies.append(probe)
        return texts_with_copies

    def _path(self, token: Token, carrier: Carrier, carrier_index: int, cell: Cell) -> Path:
        """Draw the gap between words for each copy. Return an empty path unless placement is random."""
        if cell.placement is not Placement.RANDOM:
            return ()
        generator = np.random.default_rng([self.seed, token.id, carrier_index])
        insertion = Insertion.WORDS if isinstance(carrier, str) else Insertion.IDS
        # Copy k goes into any gap in the text formed by the carrier and the k copies before it.
        words_per_copy = probes.words_added(token, insertion)
        word_counts = probes.word_count(carrier) + words_per_copy * np.arange(cell.copies)
        return tuple(generator.integers(0, word_counts + 1).tolist())

    def measure(self, token: Token, vectors: NDArray[np.float32]) -> Mapping[str, MeasuredValue]:
        """Compute the row of a token from the vectors of its probes, shape (K, d)."""
        return self.measure_all([token], vectors)[0]

    def measure_all(
        self, tokens: Sequence[Token], vectors: NDArray[np.float32]
    ) -> Sequence[Mapping[str, MeasuredValue]]:
        """Measure T tokens, and return the values that a run stores for each of them.

        Args:
            tokens: the tokens.
            vectors: vectors of the probes of all tokens, token by token, shape (T x K, d).

        Returns:
            The values of each token, keyed by column: ``contractions`` has the share of each carrier that
            copies erase; ``contraction`` (a number) and ``pull`` (a vector) are fitted to all carriers
            together; see `stickytoken.methods.statistics.Effects`.
        """
        with_copies = unit_vectors(vectors).reshape(len(tokens), len(self.carriers), -1)
        effects = fit_effects(self.without_copies, with_copies)
        pulls = effects.pull.astype(np.float16)
        contractions = carrier_contractions(self.without_copies, with_copies).astype(np.float32)
        return [
            {
                "contraction": float(effects.contraction[index]),
                "contractions": contractions[index],
                "pull": pulls[index],
            }
            for index in range(len(tokens))
        ]


def round_stage(
    encoder: Encoder,
    settings: ProfileSettings,
    plan: ProfilePlanRecord,
    step: Round,
    carrier_indices: Sequence[int],
    name: str = "",
) -> ProfileStage:
    """Return the stage of a round for the given carriers of the plan.

    Args:
        encoder: the model.
        settings: provides the insertion, the numbers of copies, the seed, and the precision of the screening
            round.
        plan: provides the carriers.
        step: the round. Only the screening round may run in a lower precision.
        carrier_indices: indices of the carriers in the plan.
        name: name of the stage; if empty, the name of the round.
    """
    carriers = [plan.carriers[index] for index in carrier_indices]
    precision = settings.screen_precision if step is Round.SCREEN else None
    encoder_of_round = encoder
    if precision is not None:
        encoder_of_round = require_ids(encoder, f"screening in {precision}").at(precision)
    cell_of_carrier = cells(settings, len(plan.carriers))
    counts_exactly = not isinstance(encoder.tokenizer, CandidateTokenizer)
    return ProfileStage(
        name=name or step.value,
        carriers=probes.as_carriers(encoder, settings.insertion, carriers),
        carrier_indices=tuple(carrier_indices),
        cells=tuple(cell_of_carrier[index] for index in carrier_indices),
        without_copies=unit_vectors(encoder_of_round.encode(carriers)),
        seed=settings.seed,
        precision=precision,
        counts_copies=settings.insertion is Insertion.WORDS and counts_exactly,
    )


def round_measurements(rows: pl.DataFrame, stage: ProfileStage, encoder: Encoder) -> Measurements:
    """Convert the rows of a round to arrays, corrected for copies that the tokenizer did not recognize.

    A round measures T tokens in K carriers.

    The effect of m copies in a text with L other tokens is roughly proportional to the copies' share of the
    text, m / (m + L). If the tokenizer recognized fewer copies than were planned, effects are multiplied by
    the ratio of the planned share to the actual share, up to a factor of `_LARGEST_FACTOR`. Nothing is
    corrected if the copies that the tokenizer recognizes were not counted.
    """
    measured = measurements(rows)
    if measured.copies_seen is None:
        return measured
    planned_copies = np.array([cell.copies for cell in stage.cells], dtype=np.float64)
    lengths = np.array([len(ids) for ids in encoder.content_ids(stage.carrier_texts)], dtype=np.float64)

    def share_of_text(copies: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the share m / (m + L) of a text for the number of copies m in each carrier."""
        return np.asarray(copies / np.maximum(copies + lengths, 1.0))

    planned_share = share_of_text(planned_copies)
    actual_share = share_of_text(np.minimum(measured.copies_seen, planned_copies))
    ratios = planned_share / np.maximum(actual_share, np.finfo(float).tiny)
    factors = np.clip(ratios, 1.0, _LARGEST_FACTOR)  # shape (T, K)
    # ``measured.effects`` are fitted to all carriers together, so they are multiplied by the mean factor.
    mean_factors = factors.mean(axis=1)
    effects = measured.effects
    pull = effects.pull * mean_factors[:, None]
    return replace(
        measured,
        effects=Effects(effects.contraction * mean_factors, pull.astype(effects.pull.dtype)),
        contractions=measured.contractions * factors,
    )
