"""Measure tokens in texts into which the run put no copies, and judge them by the rule of the run.

A recheck has other carriers than the run. Of the packaged documents, it puts copies into other documents than
the run did; the queries are the same. Documents that are joined from a user's texts are drawn again, so that
some may be those of the run. The strategies of a repair are compared in the same texts in which the repaired
model is verified at last.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import NamedTuple

import numpy as np

from stickytoken.data import Sentences, open_ended
from stickytoken.data.collection import bundled_collection
from stickytoken.detection.run import Run, rule_of
from stickytoken.encoders.protocol import Encoder
from stickytoken.errors import InputError
from stickytoken.insertion import Insertion, Joining, Token
from stickytoken.intervals import Intervals, present
from stickytoken.measurement.engine import ProgressCallback
from stickytoken.methods.measures import ERASED, PUSH, thresholds
from stickytoken.methods.probes import Floats
from stickytoken.methods.profile import token_vector_deviations
from stickytoken.methods.profile.documents import (
    DocumentPanel,
    InDocuments,
    choose_collection,
    encode_documents,
    join_results_of_tokens,
    measure_in_documents,
)
from stickytoken.methods.profile.estimates import (
    RoundResults,
    as_erased_shares,
    compare_with_ordinary,
    deviations_of,
    join_tokens,
    push_of,
    read_measurements,
)
from stickytoken.methods.profile.plan import LEAST_PILOTS, choose_texts
from stickytoken.methods.profile.records import ProfilePlanRecord
from stickytoken.methods.profile.rounds import ProfileStage, round_stage
from stickytoken.methods.profile.verdict import RuleInputs, bound_hidden_share, judge_against_no_copies
from stickytoken.methods.runner import Runner
from stickytoken.repairs.records import TOKENIZER_STRATEGIES, MeasuredRecord
from stickytoken.settings.profile import ProfileSettings
from stickytoken.settings.repair import Strategy
from stickytoken.vocabulary import Vocabulary, choose_joining, count_copies_read

# Number of carriers: half as many as a run uses to confirm tokens. A repair only has to tell sticky tokens
# from ordinary ones, not to rank a vocabulary.
CARRIERS = 24
# Number of documents that receive copies, and of random tokens that are measured in them: half as many as in
# a run.
_DOCUMENTS = 32
_ORDINARY_IN_DOCUMENTS = 4
# Text and number of copies used to find out how a tokenizer reads copies of a token.
_SAMPLE_TEXT = "the river"
_SAMPLE_COPIES = 4


def make_recheck(
    run: Run,
    encoder: Encoder,
    vocabulary: Vocabulary,
    corpus: Sentences,
    *,
    seed: int,
    excluded: Collection[int],
    progress: ProgressCallback,
) -> Recheck:
    """Return a recheck of the run's model before a repair, in other texts than those of the run.

    Args:
        run: the run, whose texts the recheck avoids. If the run used the method `profile`, the recheck uses
            the run's thresholds; otherwise, it uses the default thresholds.
        encoder: the model of the run.
        vocabulary: vocabulary of the model.
        corpus: texts to choose from; if it is the bundled one, in addition to the bundled kinds of text.
        seed: seed for all random choices, which should differ from the seed of the run.
        excluded: ids of tokens that must not serve as ordinary tokens, such as flagged and repaired ones.
        progress: called as texts are encoded.

    Raises:
        InputError: too few texts or ordinary tokens are left.
    """
    # Copies are inserted as ids, because text may no longer produce a repaired token. A recheck measures few
    # tokens, so it needs no lower precision for speed.
    settings = rule_of(run)
    settings = replace(settings, insertion=Insertion.IDS, screen_precision=None, seed=seed)
    # Texts that differ only in their final punctuation count as the same text.
    used = {open_ended(text) for text in list_used_texts(run)}
    used_beginnings = tuple(used)

    def is_unused(text: str) -> bool:
        # A carrier of the run may be the first sentence of a longer text. If only a part of a word follows,
        # the text is another: "Ten men left" does not begin with the carrier "Ten me".
        if open_ended(text) in used:
            return False
        if not text.startswith(used_beginnings):  # quick, and true of nearly all texts
            return True
        return not any(
            text.startswith(beginning) and not text[len(beginning) : len(beginning) + 1].isalnum()
            for beginning in used_beginnings
        )

    plan = choose_texts(
        encoder,
        settings,
        corpus,
        vocabulary,
        carriers=CARRIERS,
        pilots=LEAST_PILOTS,
        few_documents=True,
        is_allowed=is_unused,
    )
    if plan.documents is not None:
        # Fewer documents receive copies than in a run; all that were chosen are searched.
        with_copies = plan.documents.chosen[:_DOCUMENTS]
        documents = plan.documents.model_copy(update={"chosen": with_copies})
        plan = plan.model_copy(update={"documents": documents})
    available = {token.id: token for token in vocabulary.available}
    # The pilots of a plan are random tokens.
    ordinary = [available[token_id] for token_id in plan.pilots if token_id not in excluded]
    if len(ordinary) < 2:  # one alone would have no variance
        raise InputError(
            f"of {len(plan.pilots)} random tokens to compare with, {len(ordinary)} would remain, because the "
            "others are sticky, to be repaired, or similar to such tokens, and at least two are needed: name "
            "fewer tokens to repair"
        )
    return Recheck(
        encoder=encoder,
        settings=settings,
        corpus=corpus,
        vocabulary=vocabulary,
        plan=plan,
        ordinary_tokens=ordinary,
        progress=progress,
        name="before",
    )


def list_used_texts(run: Run) -> list[str]:
    """Return the texts into which a run put copies: its carriers, and its bundled documents."""
    texts = list(run.plan.texts)
    documents = run.plan.documents if isinstance(run.plan, ProfilePlanRecord) else None
    bundled = bundled_collection()
    if documents is not None and documents.fingerprint == bundled.fingerprint:
        texts += [bundled.documents[index] for index in documents.chosen]
    return list(dict.fromkeys(texts))


class Copies(NamedTuple):
    """Tokens to measure, grouped by how their copies are inserted into a text."""

    as_ids: list[Token]  # inserted as token ids, so the model sees exactly the given number of copies
    as_text: list[Token]  # written into the text before tokenization, joined as `Token.joining` says

    @property
    def ids(self) -> list[int]:
        return [token.id for token in (*self.as_ids, *self.as_text)]


def group_copies(encoder: Encoder, repaired_tokens: Mapping[Token, Strategy]) -> Copies:
    """Decide how copies of repaired tokens are inserted.

    They are written as text if the tokenizer is edited so that it no longer produces the token, and otherwise
    inserted as token ids.

    Args:
        encoder: the model before the repair.
        repaired_tokens: the tokens, each with the strategy by which it is repaired.
    """
    as_ids = []
    as_text = []
    for token, strategy in repaired_tokens.items():
        if strategy in TOKENIZER_STRATEGIES:
            as_text.append(token)
        else:
            as_ids.append(token)
    return Copies(as_ids, choose_joining_of_each(encoder, as_text))


def choose_joining_of_each(encoder: Encoder, tokens: Sequence[Token]) -> list[Token]:
    """Return each token with the joining by which the tokenizer reads most copies: as words, or glued."""
    # A run tries ATTACHED instead of GLUED (`vocabulary.choose_joinings`), which leaves the last word of a
    # text whole. A recheck wants every copy to be read: with GLUED, the tokenizer reads even the first copy
    # of a token that continues a word.
    chosen = choose_joining(encoder.tokenizer, tokens, Joining.GLUED, _SAMPLE_TEXT, _SAMPLE_COPIES)
    return [token for token, _copies_read in chosen]


class RecheckedTokens(NamedTuple):
    """What copies of tokens do, and copies of the ordinary token.

    Attributes:
        tokens: effects and verdict of each token, keyed by token id.
        reaches: the reach of each token, keyed by token id. The reach is an effect divided by its threshold,
            so that 1 just reaches it. Of erased share and push, the larger reach counts. It is NaN if neither
            could be measured.
        ordinary_push: median push of the ordinary tokens; None if nothing was measured in documents.
        found_without: share of the queries that find the document that answers them without copies; None if
            nothing was measured in documents.
        ordinary_contraction: share of a text that copies of the ordinary token erase, from 0 to 1.
    """

    tokens: dict[int, MeasuredRecord]
    reaches: dict[int, float]
    ordinary_push: float | None
    found_without: float | None
    ordinary_contraction: float


@dataclass(frozen=True)
class Recheck:
    """Measures tokens of one model again, in other texts than those of its run.

    One made by `of_model` can take over what the recheck that made it has measured, or has itself taken over:
    ordinary tokens, which take most of the time, and vectors of documents and queries.

    Attributes:
        encoder: the model.
        settings: provides the insertion, the seed and the thresholds of the rule.
        corpus: the texts from which carriers and documents were chosen.
        vocabulary: vocabulary of the model.
        plan: carriers and documents, which are the same for the original model and for every repaired model.
        ordinary_tokens: random tokens that are neither flagged nor repaired. The median effect of the
            ordinary tokens is called the effect of the ordinary token.
        progress: called as texts are encoded.
        name: label of the model in the progress display, such as ``before``.
        ordinary_of: recheck whose measurements of the ordinary tokens are reused. If ``ordinary_of`` is None,
            this recheck measures the ordinary tokens.
        documents_of: recheck whose vectors of documents and queries are reused; None if they are encoded.
    """

    encoder: Encoder
    settings: ProfileSettings
    corpus: Sentences
    vocabulary: Vocabulary
    plan: ProfilePlanRecord
    ordinary_tokens: Sequence[Token]
    progress: ProgressCallback
    name: str
    ordinary_of: Recheck | None = None
    documents_of: Recheck | None = None

    def of_model(
        self,
        encoder: Encoder,
        vocabulary: Vocabulary,
        name: str,
        *,
        same_ordinary: bool = False,
        same_documents: bool = False,
    ) -> Recheck:
        """Return a recheck of another model, with the same texts and ordinary tokens.

        Args:
            encoder: the other model.
            vocabulary: vocabulary of the other model.
            name: label of the other model in the progress display.
            same_ordinary: whether to reuse this recheck's measurements of ordinary tokens instead of
                measuring them in the other model, which would take most of the time.
            same_documents: whether to reuse this recheck's vectors of documents and queries, which is right
                if the other model reads and embeds them in the same way.
        """
        return replace(
            self,
            encoder=encoder,
            vocabulary=vocabulary,
            name=name,
            ordinary_of=self if same_ordinary else None,
            documents_of=self if same_documents else None,
        )

    @property
    def searched_texts(self) -> list[str]:
        """The documents and queries of the collection in which push is measured."""
        collection = choose_collection(self.encoder, self.corpus)
        return [] if collection is None else [*collection.documents, *collection.queries]

    @property
    def compares_vectors(self) -> bool:
        """Whether the rule considers how unusual a token's vector is, for which it needs token vectors."""
        return self._vector_deviations is not None

    def judge(self, copies: Copies) -> RecheckedTokens:
        """Measure tokens and judge them against the ordinary tokens.

        A token now read as several pieces has no erased share. Instead, the share of queries that its copies
        surely hide (the low end) is compared with the threshold for the erased share.
        """
        in_documents = self._measure_documents(copies)
        split_ids = self._find_split_ids(copies)
        measures, ordinary_contraction = self._estimate(copies, in_documents, split_ids)
        reaches = _compute_reaches(measures, self.settings)
        # Both are keyed by token id; the second has only the tokens read as several pieces.
        found_shares: dict[int, float] = {}
        hidden_shares: dict[int, float] = {}
        if in_documents is not None:
            found_shares = dict(zip(in_documents.ids.tolist(), in_documents.found.tolist(), strict=True))
            hidden_shares = _bound_hidden_shares(in_documents, split_ids, self.settings.confidence)
        verdicts = judge_against_no_copies(measures, hidden_shares, self.settings)
        tokens = {}
        reach_by_id = {}
        for token_id in copies.ids:
            row = int(np.searchsorted(measures.ids, token_id))  # rows are in ascending order of their ids
            reach = float(reaches[row])
            if token_id in hidden_shares:
                # `fmax` ignores a reach that is unknown, NaN.
                reach = float(np.fmax(reach, hidden_shares[token_id] / self.settings.smallest_erased))
            reach_by_id[token_id] = reach
            tokens[token_id] = MeasuredRecord(
                push=present(float(measures.push.value[row])),
                erased=present(float(measures.erased.value[row])),
                found=present(found_shares.get(token_id, np.nan)),
                verdict=verdicts[row].value,
            )
        ordinary_push = None
        if self._ordinary_in_documents is not None:
            ordinary_push = present(float(np.median(self._ordinary_in_documents.push.value)))
        found_without = None if in_documents is None else in_documents.found_without
        return RecheckedTokens(tokens, reach_by_id, ordinary_push, found_without, ordinary_contraction)

    def _find_split_ids(self, copies: Copies) -> list[int]:
        tokenizer = self.encoder.tokenizer
        copies_read = count_copies_read(tokenizer, copies.as_text, _SAMPLE_TEXT, _SAMPLE_COPIES)
        # The tokenizer no longer produces a token if it splits the text of its copies.
        return [token.id for token, read in zip(copies.as_text, copies_read, strict=True) if read == 0]

    def _estimate(
        self, copies: Copies, in_documents: InDocuments | None, split_ids: Collection[int]
    ) -> tuple[RuleInputs, float]:
        """Measure tokens in the carriers, and compare them with the ordinary tokens.

        Returns:
            The measures that the rule uses, for these tokens and for the ordinary tokens; and the share of a
            text that copies of the ordinary token erase.
        """
        # Copies of a token that is now read as several pieces make a text longer than copies of an ordinary
        # token do, and therefore erase more, whatever the pieces are. So the erased share of such a token is
        # unknown and reaches no threshold. It isn't measured: carriers may have no room for the pieces.
        unsplit = [token for token in copies.as_text if token.id not in split_ids]
        measured = self._ordinary
        if copies.as_ids or unsplit:
            in_carriers = self._measure_in_carriers(copies._replace(as_text=unsplit))
            measured = join_tokens(measured, in_carriers)
        is_ordinary = np.isin(measured.ids, self._ordinary.ids)
        relative = compare_with_ordinary(measured.contractions, is_ordinary, self.settings.confidence)
        erased_shares = as_erased_shares(relative.estimates, relative.ordinary)
        ids = np.union1d(measured.ids, np.array(list(split_ids), dtype=np.int64))  # in ascending order
        value, low, high = np.full((3, len(ids)), np.nan)
        rows = np.searchsorted(ids, measured.ids)
        value[rows] = erased_shares.value
        low[rows] = erased_shares.low
        high[rows] = erased_shares.high
        documents_of_all = join_results_of_tokens([self._ordinary_in_documents, in_documents])
        measures = RuleInputs(
            ids=ids,
            erased=Intervals(value, low, high),
            push=push_of(ids, documents_of_all),
            vector_deviation=deviations_of(ids, self._vector_deviations),
            # All tokens are measured in all carriers, as a run does in its last round only.
            confirmed=np.ones(len(ids), dtype=np.bool_),
        )
        return measures, relative.ordinary

    def find_typical_tokens(self) -> list[int]:
        """Return the ids of ordinary tokens that erase no more than the median ordinary token."""
        contractions = self._ordinary.effects.contraction
        typical: list[int] = self._ordinary.ids[contractions <= np.median(contractions)].tolist()
        return typical

    def _measure_documents(self, copies: Copies, which: str = "tokens") -> InDocuments | None:
        """``which`` names the tokens in the display of progress."""
        panel = self._documents
        if panel is None:
            return None
        runner = self._make_runner()
        name = f"{self.name}: {which} in documents"
        results = []
        if copies.as_ids:
            results.append(measure_in_documents(panel, runner, copies.as_ids, self.settings, name))
        if copies.as_text:
            # The documents of the panel are tokenized, as ids need them. Written copies need texts.
            panel_of_texts = replace(panel, carriers=panel.texts)
            results.append(measure_in_documents(panel_of_texts, runner, copies.as_text, self.settings, name))
        return join_results_of_tokens(results)

    @cached_property
    def _documents(self) -> DocumentPanel | None:
        if self.documents_of is not None:
            return self.documents_of._documents
        return encode_documents(
            self.encoder, self.corpus, self.plan.documents, self._make_runner(), Insertion.IDS
        )

    @cached_property
    def _ordinary_in_documents(self) -> InDocuments | None:
        if self.ordinary_of is not None:
            return self.ordinary_of._ordinary_in_documents
        # Not the first tokens: low ids are often those of characters.
        step = max(1, len(self.ordinary_tokens) // _ORDINARY_IN_DOCUMENTS)
        few = list(self.ordinary_tokens[::step][:_ORDINARY_IN_DOCUMENTS])
        return self._measure_documents(Copies(as_ids=few, as_text=[]), "ordinary tokens")

    def _measure_in_carriers(self, copies: Copies) -> RoundResults:
        runner = self._make_runner()
        results = []
        if copies.as_ids:
            results.append(read_measurements(runner(self._ids_stage, copies.as_ids)))
        if copies.as_text:
            # The same carriers, but as texts.
            carriers = tuple(self.plan.carriers)
            text_stage = replace(self._ids_stage, name=f"{self.name}: text", carriers=carriers)
            results.append(read_measurements(runner(text_stage, copies.as_text)))
        return reduce(join_tokens, results)

    @cached_property
    def _ids_stage(self) -> ProfileStage:
        every_carrier = range(len(self.plan.carriers))
        return round_stage(self.encoder, self.settings, self.plan, every_carrier, f"{self.name}: ids")

    @cached_property
    def _ordinary(self) -> RoundResults:
        if self.ordinary_of is not None:
            return self.ordinary_of._ordinary
        return self._measure_in_carriers(Copies(as_ids=list(self.ordinary_tokens), as_text=[]))

    @cached_property
    def _vector_deviations(self) -> Mapping[int, float] | None:
        return token_vector_deviations(self.encoder, self.vocabulary)

    def _make_runner(self) -> Runner:
        return Runner.in_memory(self.encoder, self.progress)


def _bound_hidden_shares(
    in_documents: InDocuments, ids: Collection[int], confidence: float
) -> dict[int, float]:
    """Return the share of queries that copies of each of these tokens surely hide, keyed by token id."""
    shares = {}
    for row in np.flatnonzero(np.isin(in_documents.ids, list(ids))).tolist():
        queries = int(in_documents.queries[row])
        finding_queries = round(float(in_documents.found[row]) * queries)
        found_without = in_documents.found_without
        shares[int(in_documents.ids[row])] = bound_hidden_share(
            finding_queries, queries, found_without, confidence
        )
    return shares


def _compute_reaches(measures: RuleInputs, settings: ProfileSettings) -> Floats:
    """Return the reach of each token (see `RecheckedTokens`), shape (T,)."""
    needed = thresholds(measures.vector_deviation, settings)
    # A token that does nothing has a reach of 0. Its erased share is 0, but its push is `without_effect`.
    erased_reach = measures.erased.value / needed[ERASED.key]
    push_reach = (measures.push.value - PUSH.without_effect) / (needed[PUSH.key] - PUSH.without_effect)
    # `fmax` ignores a reach that is unknown, NaN.
    return np.fmax(erased_reach, push_reach)
