"""Choose a repair for each token, and build the repaired model."""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stickytoken.data import Sentences
from stickytoken.detection.run import Run
from stickytoken.encoders.files.tokenizer_loading import load_tokenizer
from stickytoken.errors import RepairError
from stickytoken.insertion import Token
from stickytoken.loading import load_from_spec
from stickytoken.measurement.engine import ProgressCallback
from stickytoken.repairs import model_folder
from stickytoken.repairs._plans import ORDER, RepairPlan
from stickytoken.repairs.model_folder import RepairableModel
from stickytoken.repairs.recheck import Recheck, group_copies, make_recheck
from stickytoken.repairs.records import (
    TOKENIZER_STRATEGIES,
    MeasuredRecord,
    RepairedTokenRecord,
    TriedRecord,
)
from stickytoken.repairs.rows import Row, make_related_rows
from stickytoken.repairs.tokenizer_edit import ModelEdit
from stickytoken.settings.repair import RepairSettings, Strategy
from stickytoken.unit_vectors import unit_vectors
from stickytoken.vocabulary import Category, Vocabulary, categorize
from stickytoken.words import quoted

# A repair counts as ordinary if its reach (the larger effect of copies, as a multiple of its threshold) is at
# most this. The margin allows for larger effects in other texts.
_ORDINARY_REACH = 0.5
# Minimum number of benign tokens that a run must have for its own median erased share to be used. If
# it has fewer, the medians come from the random tokens that the recheck measures.
_ENOUGH_BENIGN = 128


@dataclass(frozen=True, slots=True)
class Candidate:
    """One possible repair of a token."""

    strategy: Strategy
    row: Row | None = None  # new row, shape (D,); None if the tokenizer changes instead
    copied_id: int | None = None  # id of the token whose row it is; None for any other row
    effect: MeasuredRecord | None = None  # effect of copies after the repair; None if not measured
    # The larger effect of copies, as a multiple of its threshold; see `RecheckedTokens.reaches`. None if not
    # measured; NaN if it could not be measured.
    reach: float | None = None

    @property
    def is_ordinary(self) -> bool:
        """Whether copies act like copies of an ordinary token; true if their effect was not measured."""
        return self.reach is None or self.reach <= _ORDINARY_REACH

    @property
    def remaining_effect(self) -> float:
        """The effect of copies after the repair. The repair with the smallest value is chosen."""
        if self.reach is None:  # a repair that was not measured counts as ordinary
            return -math.inf
        if math.isnan(self.reach):  # the effect could not be measured: any known effect is preferred
            return math.inf
        return self.reach


@dataclass(frozen=True, slots=True)
class Choice:
    """The repair that was chosen for a token."""

    candidate: Candidate  # The chosen repair.
    # For each repair that was tried and measured, the effect that copies of the token still had.
    tried: Mapping[Strategy, MeasuredRecord] = field(default_factory=dict)


@dataclass
class RepairJob:
    """Chooses a repair for each token, and builds the repaired model.

    A model is written and loaded for every set of repairs that is measured, and once for all that are chosen,
    unless these were measured last.

    Attributes:
        run: the run that flagged the tokens.
        model: the model before the repair, with its folder.
        vocabulary: vocabulary of the model before the repair.
        ids: ids of the tokens to repair.
        neighbour_ids: ids of tokens whose rows are like those of the tokens to repair. The verification
            measures them, so they cannot serve as ordinary tokens.
        corpus: the texts to measure in, of which those of the run are left out.
        settings: settings of the repair.
        progress: called as texts are encoded.
        build_folder: folder to build the repaired model in.
        built_strategies: strategy of each repair in the build folder's model, keyed by token id; None if no
            model has been built.
        built_model: the model in the build folder; None if it is not loaded.
    """

    run: Run
    model: RepairableModel
    vocabulary: Vocabulary
    ids: list[int]
    neighbour_ids: Sequence[int]
    corpus: Sentences
    settings: RepairSettings
    progress: ProgressCallback
    build_folder: Path
    built_strategies: dict[int, Strategy] | None = None
    built_model: RepairableModel | None = None

    @cached_property
    def recheck(self) -> Recheck:
        """The recheck of the model before the repair, which measures tokens in other texts than the run's.

        It is made when it is first needed, because hardly any repair without verification needs it.

        Raises:
            InputError: the run has left too few texts or ordinary tokens.
        """
        return make_recheck(
            self.run,
            self.model.encoder,
            self.vocabulary,
            self.corpus,
            seed=self.settings.seed,
            excluded=self.run.sticky_ids.union(self.ids, self.neighbour_ids),
            progress=self.progress,
        )

    def choose(self, plans: Mapping[int, RepairPlan]) -> dict[int, Choice]:
        """Return the repair chosen for each token, keyed by token id.

        A token whose plan begins with an edit of the tokenizer gets this edit, which is not measured. For any
        other token, the strategies of its plan are tried in turn, and the first repair is chosen after which
        copies of the token act like copies of an ordinary token. If there is none, the repair that leaves the
        smallest effect is chosen.

        If there is no verification, or the user has named the strategy, nothing is measured, and the first
        repair that can be made is chosen.

        Raises:
            RepairError: no strategy can repair a token.
        """
        is_measured = self.settings.verify and self.settings.strategy is Strategy.AUTO
        # The candidates of each token so far, in the order in which they were tried. The order of the tokens
        # is that of the choices, and of the record: those that get an edit of the tokenizer come first.
        candidates: dict[int, list[Candidate]] = {}
        for token_id, plan in plans.items():
            if plan.strategies[0] in TOKENIZER_STRATEGIES:
                candidates[token_id] = [Candidate(plan.strategies[0])]
        candidates |= {token_id: [] for token_id in plans if token_id not in candidates}
        # Each strategy is tried on all tokens that still need a repair, so that one model is built for it.
        for strategy in ORDER:
            settled = {}
            unsettled_ids = []
            for token_id, earlier_candidates in candidates.items():
                if earlier_candidates and earlier_candidates[-1].is_ordinary:
                    settled[token_id] = earlier_candidates[-1]
                elif strategy in plans[token_id].strategies:
                    unsettled_ids.append(token_id)
            new_candidates = self._make_candidates(strategy, unsettled_ids)
            if new_candidates and is_measured:
                new_candidates = self._measure(new_candidates, settled)
            # A candidate that was not measured counts as ordinary, so it settles its token.
            for token_id, candidate in new_candidates.items():
                candidates[token_id].append(candidate)
        choices = {}
        for token_id, tried_candidates in candidates.items():
            if not tried_candidates:
                # No strategy can make a row for this token, and this call raises the error that says why.
                self._make_rows(plans[token_id].strategies[-1], [token_id])
            # Effects that could not be measured, whose remaining effect is infinite, are left out.
            tried = {
                candidate.strategy: candidate.effect
                for candidate in tried_candidates
                if candidate.effect is not None and candidate.remaining_effect < math.inf
            }
            # No candidate is tried after an ordinary one, so an ordinary candidate has the smallest remaining
            # effect.
            best = min(tried_candidates, key=lambda candidate: candidate.remaining_effect)
            choices[token_id] = Choice(best, tried)
        return choices

    def _make_candidates(self, strategy: Strategy, ids: list[int]) -> dict[int, Candidate]:
        if not ids:
            return {}
        if strategy is Strategy.UNREACHABLE:  # an edit of the tokenizer, which needs no row
            return {token_id: Candidate(strategy) for token_id in ids}
        try:
            return self._make_rows(strategy, ids)
        except RepairError:  # no row for any token; another strategy may still work
            return {}

    def _make_rows(self, strategy: Strategy, ids: list[int]) -> dict[int, Candidate]:
        """Return repairs with new rows, keyed by token id. A token that cannot get a row is left out.

        Raises:
            RepairError: no token can get a row.
        """
        if strategy is Strategy.RELATIVES:
            avoided = self.run.sticky_ids.union(self.ids)  # also the tokens to repair that are not in ``ids``
            rows = make_related_rows(self.model.encoder.model, ids, avoided, self.settings.seed)
            return {token_id: Candidate(strategy, row) for token_id, row in rows.items()}
        # The only other strategy that makes rows is `Strategy.NEAREST`.
        embeddings = self.model.embedding_matrix()  # shape (V, D)
        if embeddings is None:
            raise RepairError(
                "the model has no embedding matrix to copy a row from: use the strategy unreachable"
            )
        nearest = self._find_nearest(embeddings, ids)
        return {
            token_id: Candidate(strategy, embeddings[nearest_id].copy(), copied_id=nearest_id)
            for token_id, nearest_id in nearest.items()
        }

    def _find_nearest(self, embeddings: NDArray[np.float32], ids: Sequence[int]) -> dict[int, int]:
        """Return the id of the nearest ordinary token, by the cosine of centred rows, keyed by token id.

        A token without a row is left out.
        """
        ids_with_row = [token_id for token_id in ids if token_id < len(embeddings)]
        if ids and not ids_with_row:
            raise RepairError(
                f"the model has no row for token {self._name(ids[0])!r} (id {ids[0]}) that could be "
                "replaced: leave the token out"
            )
        typical_ids = [token_id for token_id in self._find_typical_tokens() if token_id < len(embeddings)]
        if not typical_ids:
            raise RepairError(
                "there is no ordinary token whose row can be copied: use the strategy unreachable"
            )
        centred = unit_vectors(embeddings - embeddings.mean(axis=0))  # shape (V, D)
        nearest = {}
        for token_id in ids_with_row:
            similarities = centred[typical_ids] @ centred[token_id]  # one per typical token
            nearest[token_id] = typical_ids[int(np.argmax(similarities))]
        return nearest

    def _find_typical_tokens(self) -> list[int]:
        """Return the ids of tokens whose rows may be copied, which erase no more than the median token.

        The median is that of the run's benign tokens or, if they are few, of the recheck's random tokens.
        """
        tokens = self.run.tokens
        if "erased" not in tokens.columns:  # only the method profile measures the erased share
            return self.recheck.find_typical_tokens()
        benign = tokens.filter(
            pl.col("verdict") == "benign",
            pl.col("category") == Category.OK,
            ~pl.col("token_id").is_in(self.run.sticky_ids.union(self.ids)),
        )
        if len(benign) < _ENOUGH_BENIGN:
            return self.recheck.find_typical_tokens()
        at_most_median = pl.col("erased") <= pl.col("erased").median()
        typical_ids: list[int] = benign.filter(at_most_median)["token_id"].to_list()
        return typical_ids

    def _measure(
        self, candidates: Mapping[int, Candidate], settled: Mapping[int, Candidate]
    ) -> dict[int, Candidate]:
        """Return candidates with the effects that copies of their tokens have after these repairs.

        Repairs are keyed by token id. ``candidates`` are repairs by a single strategy. ``settled`` are the
        repairs already settled for other tokens, with which the model is built, too.
        """
        self.write({**settled, **candidates})
        repaired = self.load().encoder
        # Ordinary tokens are not measured again, because a repair hardly changes their effects.
        recheck = self.recheck.of_model(repaired, categorize(repaired.tokenizer), "try", same_ordinary=True)
        strategies = {
            Token(token_id, self._text(token_id)): candidate.strategy
            for token_id, candidate in candidates.items()
        }
        # Choose, with the original tokenizer, whether copies of a token are inserted as text or as ids.
        measured = recheck.judge(group_copies(self.model.encoder, strategies))
        return {
            token_id: replace(candidate, effect=measured.tokens[token_id], reach=measured.reaches[token_id])
            for token_id, candidate in candidates.items()
        }

    def write(self, candidates: Mapping[int, Candidate]) -> None:
        """Write the model with these repairs, keyed by token id, unless it is what the build folder has."""
        # A strategy makes the same row for a token each time, so the strategies say which model it is.
        strategies = {token_id: candidate.strategy for token_id, candidate in candidates.items()}
        if strategies == self.built_strategies:
            return

        def ids_of(strategy: Strategy) -> tuple[int, ...]:
            ids = [token_id for token_id, candidate in candidates.items() if candidate.strategy is strategy]
            return tuple(sorted(ids))

        new_rows = {
            token_id: candidate.row for token_id, candidate in candidates.items() if candidate.row is not None
        }
        edit = ModelEdit(
            rows=new_rows,
            unreachable=ids_of(Strategy.UNREACHABLE),
            plain_specials=ids_of(Strategy.PLAIN_SPECIALS),
            route=self.model.named_route,
        )
        self.built_model = None
        shutil.rmtree(self.build_folder, ignore_errors=True)
        model_folder.write_model(self.model.folder, self.build_folder, edit)
        self.built_strategies = strategies

    def load(self) -> RepairableModel:
        """Return the model in the build folder, loaded with the settings of the original model."""
        if self.built_model is None:
            spec = replace(
                self.model.spec, model=str(self.build_folder), revision=None, device=self.model.encoder.device
            )
            self.built_model = model_folder.require_repairable(load_from_spec(spec))
        return self.built_model

    def make_records(
        self, plans: Mapping[int, RepairPlan], choices: Mapping[int, Choice]
    ) -> list[RepairedTokenRecord]:
        """Return one record per token, with its repair, the reason for the repair, and the tried repairs.

        The build folder must have the model with the chosen repairs.
        """
        repaired_tokenizer = load_tokenizer(self.build_folder, route=self.model.named_route)
        records = []
        for token_id, choice in choices.items():
            strategy = choice.candidate.strategy
            text = self._text(token_id)
            # Ids of the tokens into which an edited tokenizer splits the token's text; empty if the tokenizer
            # is not edited.
            piece_ids: Sequence[int] = ()
            if strategy in TOKENIZER_STRATEGIES:
                (piece_ids,) = repaired_tokenizer.encode_many([text.strip()])
            tried = [
                TriedRecord(strategy=tried_strategy.value, push=effect.push, erased=effect.erased)
                for tried_strategy, effect in choice.tried.items()
            ]
            record = RepairedTokenRecord(
                token_id=token_id,
                token=self._name(token_id),
                text=text,
                strategy=strategy.value,
                reason=self._explain_choice(plans[token_id], choice),
                pieces=[repaired_tokenizer.entries[piece_id] for piece_id in piece_ids],
                tried=tried,
            )
            records.append(record)
        return records

    def _explain_choice(self, plan: RepairPlan, choice: Choice) -> str:
        strategy = choice.candidate.strategy
        reason = plan.reason_for(strategy)
        if choice.candidate.copied_id is not None:
            reason += f" ({quoted(self._name(choice.candidate.copied_id))})"
        rejected = [
            f"{tried_strategy} ({effect.in_words()})"
            for tried_strategy, effect in choice.tried.items()
            if tried_strategy is not strategy
        ]
        if rejected:
            reason += f"; rejected: {', '.join(rejected)}"
        return reason

    def _name(self, token_id: int) -> str:
        return self.vocabulary.tokens[self.vocabulary.index_of(token_id)]

    def _text(self, token_id: int) -> str:
        return self.vocabulary.decoded[self.vocabulary.index_of(token_id)]
