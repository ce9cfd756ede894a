"""The rounds of a run: what is measured before and in them, and the stage of a round of short texts.

Special tokens are measured in documents before anything else: they are few, and the first that anyone tries.
In the next round, random tokens (the pilots) are inserted into all carriers. Then all tokens are inserted
into a few of the carriers, and the tokens most likely to reach the threshold into all other carriers, in
batches. The batches end when no token is expected to reach its threshold any more (see `confirm_in_batches`),
or when the budget is used up. At last, the tokens that may push are measured in documents.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stickytoken.encoders.protocol import Encoder, require_ids
from stickytoken.errors import InputError
from stickytoken.insertion import Insertion, Placement, Probe, Token, draw_path
from stickytoken.machine import Precision
from stickytoken.measurement.engine import Progress
from stickytoken.measurement.stages import RowValue
from stickytoken.methods import probes
from stickytoken.methods.base import Job, Scope
from stickytoken.methods.measures import PUSH, thresholds
from stickytoken.methods.probes import Carrier, GapPath
from stickytoken.methods.profile import documents, texts, verdict
from stickytoken.methods.profile.documents import (
    DocumentPanel,
    InDocuments,
    SoFar,
    describe_so_far,
    join_results_of_tokens,
    measure_in_documents,
    predict_push,
)
from stickytoken.methods.profile.estimates import (
    Ids,
    MeasuredJob,
    RoundResults,
    deviations_of,
    estimate,
    join_tokens,
    read_measurements,
)
from stickytoken.methods.profile.plan import (
    Cell,
    carriers_needed,
    cells,
    choose_texts,
    ordinary_tokens,
    pilots_needed,
    require_spelled_tokens,
    suspects_needed,
    tokens_per_batch,
    tokens_to_confirm,
)
from stickytoken.methods.profile.records import ProfilePlanRecord
from stickytoken.methods.runner import Runner
from stickytoken.methods.statistics import Effects, carrier_contractions, fit_effects
from stickytoken.settings.profile import Measuring, ProfileSettings
from stickytoken.unit_vectors import unit_vectors
from stickytoken.vocabulary import CandidateTokenizer, special_tokens
from stickytoken.words import counted

# Share of the carriers from which the screening carriers are chosen: the carriers that copies of random
# tokens erase least. Copies of any token erase so much of the other carriers that sticky tokens do not stand
# out.
_SCREENING_CANDIDATE_SHARE = 0.75
# Maximum factor by which effects are scaled up if the tokenizer recognized fewer copies than were planned. If
# copies make up less than half of their planned share of a text, they hardly affect the text, so a larger
# factor would mostly amplify noise.
_LARGEST_FACTOR = 2.0
# Largest number of tokens that are all measured in documents if a user names them.
_NAMED_IN_DOCUMENTS = 128
# What the names of the stages begin with that measure tokens other than special ones in documents.
_SUSPECTS = "in documents"
# If the standard deviation of similarities is smaller than this, the similarities are treated as equal.
_NO_VARIATION = 1e-5


class Round(StrEnum):
    """The rounds of a run, in chronological order."""

    PILOT = "pilot"
    """Random tokens, in all carriers."""
    SCREEN = "screen"
    """All tokens, in a few short, representative carriers."""
    CONFIRM = "confirm"
    """The tokens that are most likely to reach a threshold, in all other carriers, in batches."""


def make_plan(job: Job[ProfileSettings], runner: Runner) -> ProfilePlanRecord:
    """Choose the texts and the pilots of a run, and make sure that copies can change the texts.

    Raises:
        InputError: see `plan.choose_texts` and `plan.require_spelled_tokens`; or the model gives all texts
            the same vector.
        ModelError: see `plan.choose_texts`.
    """
    del runner  # no token is measured yet
    require_spelled_tokens(job)
    plan = choose_texts(
        job.encoder,
        job.settings,
        job.sentences,
        job.vocabulary,
        carriers=carriers_needed(job.settings),
        pilots=pilots_needed(job),
        few_documents=documents.measures_few_tokens(job),
    )
    vectors = unit_vectors(job.encoder.encode(plan.carriers))
    are_different = ~np.eye(len(vectors), dtype=np.bool_)  # all pairs of carriers but those on the diagonal
    similarities = (vectors @ vectors.T)[are_different]
    if similarities.std() < _NO_VARIATION:
        raise InputError(
            f"{job.encoder.name} gives all sentences of {job.sentences.source} the same similarity "
            f"({similarities.mean():.4f}), so no token can change it: check that the model is loaded "
            "correctly"
        )
    return plan


def _measure_special_tokens(
    job: Job[ProfileSettings],
    panel: DocumentPanel,
    runner: Runner,
    vector_deviations: Mapping[int, float] | None,
) -> InDocuments | None:
    """Measure the job's special tokens in documents. The result is None if the job has none.

    A token is measured in four documents, and in further ones as long as it may push (see
    `measure_in_documents`). The progress of the runner shows which tokens push or hide documents, as soon as
    this is known.
    """
    special = special_tokens(job.vocabulary, job.encoder.tokenizer)
    # A special token whose copies the tokenizer reads as other entries is not measured.
    special_ids = {token.id for token in special} - set(job.vocabulary.unspelled)
    tokens = [token for token in job.tokens if token.id in special_ids]
    if not tokens:
        return None
    # An unusual vector lowers the threshold of a push, and any of these tokens may have one. So the lowered
    # threshold, that of an infinite deviation, decides which tokens are measured in further documents.
    lowered_threshold = float(thresholds(np.inf, job.settings)[PUSH.key])
    token_by_id = {token.id: token for token in tokens}
    deviations = vector_deviations or {}
    announced_ids: set[int] = set()

    def announce(stage: str, measured: Mapping[int, SoFar]) -> None:
        for token_id, so_far in measured.items():
            # For a text without a vector, a mean takes its place, which says nothing of the token.
            if token_id in announced_ids or token_id in runner.unanswered:
                continue
            token = token_by_id[token_id]
            sentence = describe_so_far(token, so_far, panel, deviations.get(token_id), job.settings)
            if sentence is not None:
                announced_ids.add(token_id)
                # The stage has ended, so this step only carries the sentence.
                count = len(measured)
                runner.progress(Progress(stage, count, count, note=sentence, unit="tokens"))

    in_documents = measure_in_documents(
        panel,
        runner,
        tokens,
        job.settings,
        documents.SPECIAL,
        push_thresholds=dict.fromkeys(special_ids, lowered_threshold),
        report=announce,
    )
    answered_count = sum(token.id not in runner.unanswered for token in tokens)
    if answered_count and not announced_ids:
        count = counted(answered_count, "special token")
        sentence = f"{count} measured in documents: none pushes or hides them enough to be sticky so far"
        # A step of its own, which is complete: it only carries the sentence.
        runner.progress(Progress(documents.SPECIAL, done=1, total=1, note=sentence))
    return in_documents


def measure_rounds(
    job: Job[ProfileSettings],
    plan: ProfilePlanRecord,
    runner: Runner,
    vector_deviations: Mapping[int, float] | None,
    *,
    confirm_all: bool = False,
) -> MeasuredJob:
    """Measure the job's tokens in all rounds, and return the measurements.

    Args:
        job: provides the model, vocabulary, tokens and settings. Tokens whose copies the tokenizer reads as
            other entries are not measured.
        plan: provides the carriers, the documents and the pilots.
        runner: executes a stage for the given tokens.
        vector_deviations: how unusual each token vector is, keyed by token id; None if token vectors cannot
            be compared.
        confirm_all: whether to measure all tokens of the job in the confirming carriers, as a probe does,
            instead of only a selection.

    Returns:
        The measurements of all tokens in the screening carriers, of the pilots and the confirmed tokens in
        the other carriers, and of special and suspicious tokens in documents.
    """
    insertion = job.settings.inserted_as
    panel = documents.encode_documents(job.encoder, job.sentences, plan.documents, runner, insertion)
    special = None if panel is None else _measure_special_tokens(job, panel, runner, vector_deviations)
    special_ids = set() if special is None else set(special.ids.tolist())
    measured = _measure_in_carriers(
        job, plan, runner, vector_deviations, special_ids, confirm_all=confirm_all
    )
    if panel is None:
        return measured
    suspects = _measure_suspects(measured, panel, runner, special, measure_all=confirm_all)
    if special is not None:  # special tokens that erase have been measured again, in all documents
        special = special.without(suspects.ids)
    return replace(measured, in_documents=join_results_of_tokens([special, suspects]))


def _list_judged_ids(job: Job[ProfileSettings]) -> Ids:
    ids = [token.id for token in job.tokens if token.id not in job.vocabulary.unspelled]
    return np.array(ids, dtype=np.int64)


def _index_tokens(job: Job[ProfileSettings]) -> dict[int, Token]:
    # Tokens that a user probes may be missing from ``available``, because they cannot occur in text.
    return {token.id: token for token in (*job.vocabulary.available, *job.tokens)}


def _measure_in_carriers(
    job: Job[ProfileSettings],
    plan: ProfilePlanRecord,
    runner: Runner,
    vector_deviations: Mapping[int, float] | None,
    special_ids: Collection[int],
    *,
    confirm_all: bool,
) -> MeasuredJob:
    """Measure the pilots, then all tokens in the screening carriers, then a selection in all other carriers.

    The tokens in ``special_ids`` are always selected. The other arguments are those of `measure_rounds`.
    """
    tokens = _index_tokens(job)
    job_ids = _list_judged_ids(job)
    pilot_ids = np.array(plan.pilots, dtype=np.int64)

    def measure(
        carriers: list[int], ids: Ids, stage_name: str, precision: Precision | None = None
    ) -> RoundResults:
        stage = round_stage(job.encoder, job.settings, plan, carriers, stage_name, precision)
        tokens_of_stage = [tokens[token_id] for token_id in ids.tolist()]
        rows = runner(stage, tokens_of_stage, precision=precision, carrier_texts=stage.carrier_texts)
        return read_corrected_measurements(rows, stage, job.encoder)

    all_carriers = list(range(len(plan.carriers)))  # carriers are named by their indices in the plan
    pilots = measure(all_carriers, pilot_ids, Round.PILOT)
    screening_carriers = _choose_screening_carriers(job, plan, pilots)
    confirming_carriers = [carrier for carrier in all_carriers if carrier not in screening_carriers]
    screened_ids = np.union1d(job_ids, pilot_ids)  # all tokens
    screened = measure(screening_carriers, screened_ids, Round.SCREEN, job.settings.screen_precision)
    measured = MeasuredJob(
        job=job,
        plan=plan,
        screening_carriers=screening_carriers,
        screened=screened,
        # The pilots' contractions have been fitted to all carriers together, those of other tokens are fitted
        # to the confirming carriers alone. The difference does not matter: for all-MiniLM-L6-v2, it is 0.001,
        # and an interval reaches 0.04 to each side.
        confirmed=pilots.in_carriers(confirming_carriers),
        unconfirmed=0,
        vector_deviations=vector_deviations,
    )

    measure_batch = partial(measure, confirming_carriers)
    # The pilots have already been measured in the confirming carriers.
    unconfirmed_ids = np.setdiff1d(job_ids, pilot_ids)
    if not confirm_all:
        return confirm_in_batches(
            measured,
            unconfirmed_ids,
            tokens_to_confirm(job.settings, len(job_ids)),
            measure_batch,
            first_ids=sorted(special_ids),
        )
    if not len(unconfirmed_ids):  # all tokens of the job are pilots
        return measured
    confirmed = measure_batch(unconfirmed_ids, confirming_stage(batch=1))
    return replace(measured, confirmed=join_tokens(measured.confirmed, confirmed))


def _choose_screening_carriers(
    job: Job[ProfileSettings], plan: ProfilePlanRecord, pilots: RoundResults
) -> list[int]:
    count = job.settings.screening_texts
    carriers = plan.carriers
    # The length includes the copies, whose number differs between carriers.
    lengths_without_copies = [len(ids) for ids in job.encoder.content_ids(carriers)]
    copies = [cell.copies for cell in cells(job.settings, len(carriers))]
    lengths = np.array(lengths_without_copies) + np.array(copies)
    ordinary_contractions = np.median(pilots.contractions, axis=0)
    candidate_count = max(count, int(_SCREENING_CANDIDATE_SHARE * len(carriers)))
    # The carriers that ordinary copies erase least: the effects of other tokens stand out in them.
    candidates = np.argsort(ordinary_contractions, kind="stable")[:candidate_count]
    # They are indices in the plan.
    return texts.representative_carriers(pilots.contractions, lengths, candidates, count)


def confirm_in_batches(
    measured: MeasuredJob,
    ids: Ids,
    budgeted_tokens: int,
    measure_batch: Callable[[Ids, str], RoundResults],
    first_ids: Sequence[int] = (),
) -> MeasuredJob:
    """Measure tokens in the confirming carriers, until no other token is expected to reach its threshold.

    The round ends after a batch in which no token can still reach its threshold, if no remaining token may
    reach it by its screening estimate either. If the budget is used up earlier, the remaining tokens that may
    reach their thresholds by their screening estimates are counted as unconfirmed.

    Args:
        measured: the measurements of the pilot round and the screening round.
        ids: ids of the tokens to choose from, without the pilots.
        budgeted_tokens: number of tokens that the budget allows to confirm.
        measure_batch: measures a batch of tokens in the confirming carriers, in a stage with the given name.
        first_ids: ids of tokens that are measured in any case.
    """
    settings = measured.job.settings
    screened = estimate(measured)
    ordered_ids = verdict.order_to_confirm(screened.measures_of(ids), settings, first_ids)
    may_reach_by_screen = verdict.may_erase_enough(screened.measures_of(ordered_ids), settings)
    budgeted_ids = ordered_ids[:budgeted_tokens]
    size = tokens_per_batch(measured.job)
    for number, start in enumerate(range(0, len(budgeted_ids), size), start=1):
        batch_ids = budgeted_ids[start : start + size]
        confirmed = measure_batch(np.sort(batch_ids), confirming_stage(number))
        measured = replace(measured, confirmed=join_tokens(measured.confirmed, confirmed))
        batch_measures = estimate(measured).measures_of(batch_ids)
        batch_may_reach = verdict.may_erase_enough(batch_measures, settings).any()
        rest_may_reach = may_reach_by_screen[start + size :].any()
        if not batch_may_reach and not rest_may_reach:
            break
    return replace(measured, unconfirmed=int(may_reach_by_screen[budgeted_tokens:].sum()))


def confirming_stage(batch: int) -> str:
    """Return the name of the stage that measures a batch of the confirming round.

    The first batch has the number 1. A run that confirms all of its tokens has only this batch.
    """
    return f"{Round.CONFIRM}-{batch}"


def _measure_suspects(
    measured: MeasuredJob,
    panel: DocumentPanel,
    runner: Runner,
    special: InDocuments | None,
    *,
    measure_all: bool,
) -> InDocuments:
    """Measure in documents the tokens that may push, and those that erase so much that they are sticky.

    Special tokens have already been measured in documents, in few if they don't push. Those that erase are
    measured again, in all documents.
    """
    job = measured.job
    tokens = _index_tokens(job)
    job_ids = _list_judged_ids(job)
    measures = estimate(measured).measures_of(job_ids)
    verdicts = verdict.apply_rule(measures, job.settings).verdicts
    # The measures have no push yet, so a token that is sticky by them is sticky because it erases.
    is_erasing = [token_verdict == "sticky" for token_verdict in verdicts]
    erasing_ids = job_ids[is_erasing].tolist()
    suspect_ids = _choose_suspects(measured, panel, measure_all=measure_all).union(erasing_ids)
    # A query finds its document or not. So how many queries fail because of an erasing token shows only in
    # many documents.
    ids_in_all = set(erasing_ids)
    displayed_count = 0
    # A run over few tokens spends its texts on the tokens that may be sticky.
    if not documents.measures_few_tokens(job):
        # All other tokens are compared with the ordinary tokens, which are therefore measured closely.
        ids_in_all |= set(ordinary_tokens(job, measured.plan.pilots))
        displayed_count = verdict.DISPLAYED
    if special is not None:
        was_in_all = special.documents == len(panel.places)
        is_measured_enough = was_in_all | ~np.isin(special.ids, erasing_ids)
        suspect_ids -= set(special.ids[is_measured_enough].tolist())
    ordered_ids = np.array(sorted(suspect_ids), dtype=np.int64)
    deviations = deviations_of(ordered_ids, measured.vector_deviations)
    push_thresholds = thresholds(deviations, job.settings)[PUSH.key]
    return measure_in_documents(
        panel,
        runner,
        [tokens[token_id] for token_id in ordered_ids.tolist()],
        job.settings,
        _SUSPECTS,
        push_thresholds=dict(zip(ordered_ids.tolist(), push_thresholds.tolist(), strict=True)),
        ids_in_all=ids_in_all,
        displayed_count=displayed_count,
    )


def _choose_suspects(measured: MeasuredJob, panel: DocumentPanel, *, measure_all: bool) -> set[int]:
    """Return the ids of the tokens to measure in documents.

    These are random tokens, which define what is ordinary; and of the job's tokens, those with an unusual
    vector, those that erase most, and those that are expected to push most, if this can be predicted. All of
    the job's tokens are chosen if a user named so few, if they are no more than the random ones, or if
    ``measure_all`` or the settings say so.
    """
    job = measured.job
    settings = job.settings
    ids = np.unique(_list_judged_ids(job))
    random_ids = set(measured.plan.pilots)
    chosen_count = len(ids)
    most_to_measure_all = len(random_ids)
    if job.scope is Scope.NAMED:
        # A run adds the special tokens to those that a user names.
        special_ids = [token.id for token in special_tokens(job.vocabulary, job.encoder.tokenizer)]
        chosen_count = len(np.setdiff1d(ids, special_ids))
        most_to_measure_all = _NAMED_IN_DOCUMENTS
    if measure_all or settings.documents is Measuring.ALL or chosen_count <= most_to_measure_all:
        return random_ids.union(ids.tolist())
    measures = estimate(measured).measures_of(ids)
    count = suspects_needed(job)
    is_unusual = measures.vector_deviation >= settings.unusual  # false if the deviation is NaN
    suspects = set(ids[is_unusual].tolist())
    suspects |= set(verdict.ids_of_largest(ids, measures.erased.value, count))
    if panel.search.similarity in documents.PREDICTABLE:
        screened = measured.screened
        rows = screened.rows_of(ids)
        effects = Effects(ids, screened.effects.contraction[rows], screened.effects.pull[rows])
        suspects |= set(verdict.ids_of_largest(ids, predict_push(effects, panel), count))
    return random_ids | suspects


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
        carrier_texts: the texts of the carriers if the copies that the tokenizer recognizes in each are to be
            counted; else empty.
    """

    name: str
    carriers: tuple[Carrier, ...]
    carrier_indices: tuple[int, ...]
    cells: tuple[Cell, ...]
    without_copies: NDArray[np.float32]
    seed: int
    carrier_texts: tuple[str, ...] = ()

    @property
    def probes_per_token(self) -> int:
        """Number of texts that are encoded for each token."""
        return len(self.carriers)

    def probes(self, token: Token) -> Sequence[Probe]:
        """Return the carriers with copies of a token, in the order of the carriers."""
        texts_with_copies = []
        for carrier, index, cell in zip(self.carriers, self.carrier_indices, self.cells, strict=True):
            path = self._draw_gaps(token, carrier, index, cell)
            probe = probes.with_copies(token, carrier, cell.placement, cell.copies, path)
            texts_with_copies.append(probe)
        return texts_with_copies

    def _draw_gaps(self, token: Token, carrier: Carrier, carrier_index: int, cell: Cell) -> GapPath:
        """Draw random places for copies, the same for a token and a carrier; none for other placements."""
        if cell.placement is not Placement.RANDOM:
            return ()
        generator = np.random.default_rng([self.seed, token.id, carrier_index])
        draw_up_to = partial(generator.integers, endpoint=True)  # from 0 to its argument, both included
        # Copies are inserted as words into a text, and as ids into token ids.
        insertion = Insertion.WORDS if isinstance(carrier, str) else Insertion.IDS
        words_per_copy = probes.words_added(token, insertion)
        return draw_path(draw_up_to, probes.word_count(carrier), cell.copies, words_per_copy)

    def measure(
        self, tokens: Sequence[Token], vectors: NDArray[np.float32]
    ) -> Sequence[Mapping[str, RowValue]]:
        """Measure T tokens in the K carriers, and return the values that a run stores for each token.

        Args:
            tokens: the tokens.
            vectors: vectors of the probes of all tokens, token by token, shape (T x K, d).

        Returns:
            The values of each token, keyed by column (see `stickytoken.methods.statistics.Effects`):
            ``contractions``: the share of each carrier that copies of the token erase, shape (K,);
            ``contraction``: the same share, fitted to all carriers together;
            ``pull``: the vector that copies draw texts towards, shape (d,), fitted to all carriers together.
        """
        with_copies = unit_vectors(vectors).reshape(len(tokens), len(self.carriers), -1)  # shape (T, K, d)
        contraction, pull = fit_effects(self.without_copies, with_copies)
        pulls = pull.astype(np.float16)  # vectors of all tokens take most of the space in a run folder
        contractions = carrier_contractions(self.without_copies, with_copies).astype(np.float32)
        return [
            {
                "contraction": float(contraction[index]),
                "contractions": contractions[index],
                "pull": pulls[index],
            }
            for index in range(len(tokens))
        ]


def round_stage(
    encoder: Encoder,
    settings: ProfileSettings,
    plan: ProfilePlanRecord,
    carrier_indices: Sequence[int],
    name: str,
    precision: Precision | None = None,
) -> ProfileStage:
    """Return a stage that measures tokens in the given carriers of the plan.

    Args:
        encoder: the model.
        settings: provides the insertion, the numbers of copies, and the seed.
        plan: provides the carriers.
        carrier_indices: indices of the carriers in the plan.
        name: name of the stage.
        precision: precision in which the stage will be run; if None, the model's own.
    """
    carriers = [plan.carriers[index] for index in carrier_indices]
    encoder_of_stage = encoder
    if precision is not None:
        encoder_of_stage = require_ids(encoder, f"screening in {precision}").at(precision)
    cell_of_carrier = cells(settings, len(plan.carriers))
    carrier_texts: tuple[str, ...] = ()
    # Only the model's own tokenizer can tell how many copies it reads; one of candidates is a stand-in.
    if settings.inserted_as is Insertion.WORDS and not isinstance(encoder.tokenizer, CandidateTokenizer):
        carrier_texts = tuple(carriers)
    return ProfileStage(
        name=name,
        carriers=probes.as_carriers(encoder, settings.inserted_as, carriers),
        carrier_indices=tuple(carrier_indices),
        cells=tuple(cell_of_carrier[index] for index in carrier_indices),
        without_copies=unit_vectors(encoder_of_stage.encode(carriers)),
        seed=settings.seed,
        carrier_texts=carrier_texts,
    )


def read_corrected_measurements(rows: pl.DataFrame, stage: ProfileStage, encoder: Encoder) -> RoundResults:
    """Convert the rows of a round to arrays, corrected for copies that the tokenizer did not recognize.

    A round measures T tokens in K carriers.

    The effect of m copies in a text with L other tokens is roughly proportional to the copies' share of the
    text, m / (m + L). If the tokenizer recognized fewer copies than were planned, effects are multiplied by
    the ratio of the planned share to the actual share, up to a factor of `_LARGEST_FACTOR`. Nothing is
    corrected if the copies that the tokenizer recognizes were not counted.
    """
    measured = read_measurements(rows)
    if measured.copies_seen is None:
        return measured
    planned_copies = np.array([cell.copies for cell in stage.cells], dtype=np.float64)
    lengths = np.array([len(ids) for ids in encoder.content_ids(stage.carrier_texts)], dtype=np.float64)

    def share_of_text(copies: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the share of each carrier with copies that these numbers of copies are: m / (m + L)."""
        lengths_with_copies = copies + lengths
        # A carrier without tokens, of whose copies none was recognized, has the length 0: no copy is a share
        # of 0 of it.
        return np.asarray(copies / np.maximum(lengths_with_copies, 1.0))

    planned_share = share_of_text(planned_copies)
    recognized_copies = np.minimum(measured.copies_seen, planned_copies)  # shape (T, K)
    actual_share = share_of_text(recognized_copies)
    smallest_share = np.finfo(float).tiny  # no copy may have been recognized
    ratios = planned_share / np.maximum(actual_share, smallest_share)
    factors = np.clip(ratios, 1.0, _LARGEST_FACTOR)  # shape (T, K)
    # ``measured.effects`` are fitted to all carriers together, so they are multiplied by the mean factor.
    mean_factors = factors.mean(axis=1)
    effects = measured.effects
    pull = effects.pull * mean_factors[:, None]
    return replace(
        measured,
        effects=Effects(effects.ids, effects.contraction * mean_factors, pull.astype(effects.pull.dtype)),
        contractions=measured.contractions * factors,
    )
