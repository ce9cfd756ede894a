"""Measure named tokens again, on texts that a run has not used, as written by a user or as token ids."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce

import numpy as np
import polars as pl

from stickytoken.corpora import Sentences
from stickytoken.corpora.corpus import open_ended
from stickytoken.encoders.mean_similarity import MeanSimilarity
from stickytoken.encoders.protocol import IdEncoder
from stickytoken.insertion import Joining, Token
from stickytoken.measurement.progress import ProgressCallback
from stickytoken.methods.evidence_panel import fitting_copies
from stickytoken.methods.job import MethodSettings
from stickytoken.methods.memory_runner import MemoryRunner
from stickytoken.methods.panel import AnchorPanel
from stickytoken.methods.profile._results import decide
from stickytoken.methods.profile.anchors import anchor_panel
from stickytoken.methods.profile.estimates import Measurements, Vector, measurements, together
from stickytoken.methods.profile.plan import make_profile_plan, round_stage
from stickytoken.methods.profile.record import ProfilePlanRecord
from stickytoken.methods.profile.rounds import Round
from stickytoken.methods.profile.settings import ProfileSettings
from stickytoken.methods.profile.stage import ProfileStage
from stickytoken.methods.recheck import MeasuredTokens, Rechecked, RecheckJob, Tokens
from stickytoken.methods.records import PlanRecord
from stickytoken.methods.symptoms import SYMPTOM_CARRIERS, SymptomStage
from stickytoken.vocabulary.categories import Vocabulary

CURVE_COPIES = (1, 2, 4, 8, 16)
_CARRIERS = 24
_ANCHORS = 330
# A few more than an empirical null needs, because some of them may be tokens that are asked about.
_ORDINARY = 256
_TOKENS_PER_TEXT_COPY = 8


def recheck(job: RecheckJob, name: str) -> ProfileRecheck:
    """Choose texts that a run has not used, and put a model on them.

    Args:
        job: what to begin with.
        name: of the model in progress reports, such as ``before``.

    Raises:
        InputError: too few texts are left.
    """
    settings, plan = recheck_settings(job.settings, job.seed), job.plan
    known = MeanSimilarity(plan.mean_similarity, plan.mean_similarity_entries, 0, plan.mean_similarity_error)
    texts = plan_unused(
        job.encoder,
        settings,
        job.corpus,
        job.vocabulary.available,
        [*job.used, *plan_texts(plan)],
        known if job.same_model else None,
        job.progress,
    )
    return ProfileRecheck(job.encoder, job.vocabulary, settings, texts, job.progress, name)


def plan_texts(plan: PlanRecord) -> list[str]:
    """Return all texts that a plan of this method names; none of another method's."""
    if not isinstance(plan, ProfilePlanRecord):
        return []
    return [*plan.carriers, *(anchor.text for anchor in plan.anchors)]


def recheck_settings(settings: MethodSettings, seed: int) -> ProfileSettings:
    """Return settings that measure every token on the same texts, with what a run calls a lift that matters.

    Args:
        settings: settings of the run; those of another method give the defaults.
        seed: seed of the recheck.
    """
    return replace(
        settings if isinstance(settings, ProfileSettings) else ProfileSettings(),
        adaptive=False,
        budget=float(_CARRIERS),
        anchors=_ANCHORS,
        vocabulary_anchors=0,
        reference=_ORDINARY,
        screen_precision=None,
        seed=seed,
    )


def plan_unused(
    encoder: IdEncoder,
    settings: ProfileSettings,
    corpus: Sentences,
    vocabulary: Sequence[Token],
    used: Collection[str],
    similarity: MeanSimilarity | None,
    progress: ProgressCallback,
) -> ProfilePlanRecord:
    """Plan on texts that a run has not used.

    Args:
        encoder: the model.
        settings: from `recheck_settings`.
        corpus: the corpus of the run, or another one.
        vocabulary: available tokens.
        used: carriers and anchors of the run.
        similarity: u, if it is known.
        progress: called after every step.

    Raises:
        InputError: too few texts are left.
    """
    known = {open_ended(text) for text in used}
    # The first sentence of a long text may have been a carrier.
    begun = tuple(known)
    return make_profile_plan(
        encoder,
        settings,
        corpus,
        vocabulary,
        progress,
        unused=lambda text: open_ended(text) not in known and not text.startswith(begun),
        similarity=similarity,
    )


@dataclass(frozen=True)
class ProfileRecheck:
    """One model on the texts of a plan.

    Attributes:
        encoder: the model.
        vocabulary: its vocabulary.
        settings: from `recheck_settings`.
        plan: from `plan_unused`.
        progress: called after every step.
        name: of the model in progress reports, such as ``before``.
    """

    encoder: IdEncoder
    vocabulary: Vocabulary
    settings: ProfileSettings
    plan: ProfilePlanRecord
    progress: ProgressCallback
    name: str = "again"

    @cached_property
    def _panel(self) -> AnchorPanel:
        return anchor_panel(self.encoder, self.plan, self.vocabulary.available)

    @cached_property
    def _stage(self) -> ProfileStage:
        places = range(len(self.plan.carriers))
        return round_stage(
            self.encoder, self.settings, self.plan, self._panel, Round.SCREEN, places, f"{self.name}: ids"
        )

    def ordinary(self, excluded: Iterable[int], count: int | None = None) -> list[Token]:
        """Return the random tokens of the plan, without some.

        Args:
            excluded: ids of tokens that are not ordinary.
            count: at most this many.
        """
        named, left_out = {token.id: token for token in self.vocabulary.available}, set(excluded)
        return [named[k] for k in self.plan.reference if k in named and k not in left_out][:count]

    @property
    def similarity_spread(self) -> float:
        """Standard deviation of the similarities of the texts."""
        return self.plan.similarity_spread

    @property
    def carriers(self) -> int:
        """Number of texts that copies go into."""
        return len(self.plan.carriers)

    @property
    def anchors(self) -> int:
        """Number of texts that they are compared with."""
        return len(self.plan.anchors)

    def of_model(self, encoder: IdEncoder, vocabulary: Vocabulary, name: str) -> ProfileRecheck:
        """Put another model on the same texts."""
        return replace(self, encoder=encoder, vocabulary=vocabulary, name=name)

    def measured(self, tokens: Tokens) -> MeasuredTokens:
        """Put tokens into all carriers."""
        found = self._measurements(tokens)
        ids = found.ids.tolist()
        return MeasuredTokens(
            dict(zip(ids, found.lifts.mean(axis=1).tolist(), strict=True)),
            dict(zip(ids, found.effects.contraction.tolist(), strict=True)),
        )

    def _measurements(self, tokens: Tokens) -> Measurements:
        run = MemoryRunner(self.encoder, self.progress)
        texts = replace(self._stage, name=f"{self.name}: text", carriers=tuple(self.plan.carriers))
        ways = (
            (self._stage, tokens.as_ids),
            (texts, [replace(token, joining=Joining.WORDS) for token in tokens.written]),
            (texts, [replace(token, joining=Joining.GLUED) for token in tokens.glued]),
        )
        found = [measurements(run(stage, own), len(self.plan.carriers)) for stage, own in ways if own]
        return reduce(together, found)

    def judged(self, tokens: Tokens, excluded: Iterable[int]) -> Rechecked:
        """Measure tokens together with ordinary ones, and judge them as a run does.

        Args:
            tokens: the tokens.
            excluded: ids of further tokens that are not ordinary.
        """
        ordinary = self.ordinary((*excluded, *tokens.ids))
        found = self._measurements(tokens._replace(as_ids=[*tokens.as_ids, *ordinary]))
        ids = np.array([token.id for token in ordinary])
        center = self._panel.weights @ self._panel.vectors
        vocabulary, available = self.vocabulary.frame(), len(self.vocabulary.available)
        rounds = {Round.SCREEN: found}
        judged = decide(vocabulary, available, rounds, self.plan, ids, self.settings, center)
        usual = found.rows(ids)
        means: Vector = found.lifts.mean(axis=1)
        return Rechecked(
            judged.tokens.filter(pl.col("token_id").is_in(tokens.ids)),
            dict(zip(found.ids.tolist(), means.tolist(), strict=True)),
            float(np.median(means[usual])),
            float(np.median(found.effects.contraction[usual])),
        )

    def curves(self, tokens: Tokens) -> dict[int, list[float]]:
        """Average the similarity of unrelated pairs by number of copies, 0 first, then `copies`."""
        places = list(range(min(SYMPTOM_CARRIERS, len(self.plan.carriers))))
        panel = self._stage.panel.chosen(places)
        texts = tuple(self.plan.carriers[place] for place in places)
        stage = SymptomStage(self._stage.carriers[: len(places)], self.copies, panel, f"{self.name}: curves")
        written = replace(stage, carriers=texts, name=f"{self.name}: curves of text")
        run = MemoryRunner(self.encoder, self.progress)
        apart = [Token(token.id, f" {token.text}") for token in tokens.written]
        rows = [
            row
            for each, own in ((stage, tokens.as_ids), (written, [*apart, *tokens.glued]))
            if own
            for row in run(each, own).to_dicts()
        ]
        return {row["token_id"]: row["below"] for row in rows}

    @cached_property
    def copies(self) -> tuple[int, ...]:
        """The numbers of copies of `curves`, without 0."""
        longest = max(self.encoder.content_ids(self.plan.carriers), key=len)
        return fitting_copies(self.encoder, longest, _TOKENS_PER_TEXT_COPY, CURVE_COPIES)
