"""Verify a repaired model: detect again, on other texts and with another seed, and compare the rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import polars as pl

from stickytoken.corpora import Sentences, text_kinds
from stickytoken.corpora.readability import as_read
from stickytoken.insertion import Token
from stickytoken.measurement.progress import Progress, ProgressCallback
from stickytoken.methods.recheck import Recheck, Rechecked, Tokens
from stickytoken.methods.verdicts import Verdict
from stickytoken.repairs._comparison import loads_anywhere, other_texts, scores, unreachable
from stickytoken.repairs._subject import Subject, as_measured
from stickytoken.repairs.record import (
    CheckRecord,
    CurveRecord,
    MeasuredRecord,
    NeighbourRecord,
    VerificationRecord,
)
from stickytoken.tasks.mteb import AnyTask

_ORDINARY_CURVES = 8
# A neighbour whose lift rises by less, in standard deviations, has not changed.
_HARM = 0.1


@dataclass(frozen=True)
class Neighbour:
    """A token near a repaired one.

    Attributes:
        token: the token.
        near: vocabulary string of the repaired token.
        verdict: verdict of the run; None if it has none.
    """

    token: Token
    near: str
    verdict: str | None


@dataclass(frozen=True)
class Verified:
    """What a verification found.

    Attributes:
        record: for repair.json.
        before: measurements of the repaired tokens and their neighbours before the repair, by id.
        after: the same after it.
        curves: symptom curves, by id.
    """

    record: VerificationRecord
    before: dict[int, MeasuredRecord]
    after: dict[int, MeasuredRecord]
    curves: dict[int, CurveRecord]


@dataclass(frozen=True)
class Verification:
    """Everything that a verification needs besides the repaired model.

    Attributes:
        original: the model before the repair, on texts that the run has not used.
        corpus: the corpus of these texts.
        neighbours: tokens near the repaired ones.
        flagged: ids of all tokens that the run flags.
        task: a task to score.
        prompt: text before every input of the model.
        seed: seed of the random steps of the task.
        progress: called after every step.
    """

    original: Recheck
    corpus: Sentences
    neighbours: tuple[Neighbour, ...]
    flagged: frozenset[int]
    task: AnyTask
    prompt: str
    seed: int
    progress: ProgressCallback

    def of(self, subject: Subject, again: Recheck) -> Verified:
        """Measure, compare and judge."""
        asked = as_measured(subject.original, subject.tokens)
        near = [each.token for each in self.neighbours]
        every = asked._replace(as_ids=[*asked.as_ids, *near])
        judged = again.judged(every, self.flagged)
        spread = again.similarity_spread
        after = {row["token_id"]: _measured(row, judged, spread) for row in judged.rows.to_dicts()}
        before = self._before(every, judged)
        neighbours = [
            NeighbourRecord(
                token_id=each.token.id,
                token=again.vocabulary.tokens[again.vocabulary.place(each.token.id)],
                near=each.near,
                in_run=each.verdict,
                before=before[each.token.id],
                after=after[each.token.id],
            )
            for each in self.neighbours
        ]
        texts = self._texts(subject)
        found, scored = scores(subject, self.task, self.seed, self.progress)
        self.progress(Progress("compare", 0, 1))
        reach = unreachable(subject, texts)
        checks = [
            _mended(subject, after),
            _neighbours_unharmed(neighbours),
            other_texts(subject, texts),
            *([] if reach is None else [reach]),
            *loads_anywhere(subject, texts, self.prompt),
            scored,
        ]
        self.progress(Progress("compare", 1, 1, 1))
        record = VerificationRecord(
            ordinary_lift=judged.ordinary_lift,
            similarity_spread=spread,
            ordinary_contraction=judged.ordinary_contraction,
            carriers=again.carriers,
            anchors=again.anchors,
            source=self.corpus.source,
            neighbours=neighbours,
            scores=found,
            checks=checks,
        )
        curves = self._curves(asked, again)
        return Verified(record, before, after, curves)

    def _before(self, tokens: Tokens, judged: Rechecked) -> dict[int, MeasuredRecord]:
        """Measure tokens in the model as it was, on the same texts."""
        found = self.original.measured(tokens)
        ordinary, spread = judged.ordinary_lift, self.original.similarity_spread
        return {
            token_id: MeasuredRecord(
                lift=lift,
                deviations=(lift - ordinary) / spread,
                contraction=found.contractions[token_id],
            )
            for token_id, lift in found.lifts.items()
        }

    def _curves(self, asked: Tokens, again: Recheck) -> dict[int, CurveRecord]:
        usual = Tokens(again.ordinary((*self.flagged, *asked.ids), _ORDINARY_CURVES), [], [])
        before, after = self.original.curves(asked), again.curves(asked)
        ordinary = list(again.curves(usual).values())
        mean = [sum(values) / len(values) for values in zip(*ordinary, strict=True)]
        return {
            token_id: CurveRecord(
                copies=[0, *again.copies], before=before[token_id], after=after[token_id], ordinary=mean
            )
            for token_id in asked.ids
        }

    def _texts(self, subject: Subject) -> list[str]:
        """Return texts to compare the models on: the corpus and the bundled kinds of text."""
        kinds = as_read(text_kinds(), subject.original.tokenizer)
        return list(dict.fromkeys((*kinds.texts, *self.corpus.texts)))


def _measured(row: dict[str, Any], judged: Rechecked, spread: float) -> MeasuredRecord:
    lift = judged.lifts[row["token_id"]]
    return MeasuredRecord(
        lift=lift,
        deviations=(lift - judged.ordinary_lift) / spread,
        contraction=row["contraction"],
        verdict=row["verdict"],
    )


def _mended(subject: Subject, after: dict[int, MeasuredRecord]) -> CheckRecord:
    own = [(token, after[token.token_id]) for token in subject.tokens]
    sticky = [(token, found) for token, found in own if found.verdict == Verdict.STICKY]
    worst = max(found.deviations for _, found in own)
    counted = "repaired token is" if len(own) == 1 else f"{len(own)} repaired tokens are"
    if not sticky:
        said = f"the {counted} not sticky: at most {worst:.2f} SD beyond an ordinary token"
        return CheckRecord(name="repaired tokens", passed=True, finding=said.replace("-", "\N{MINUS SIGN}"))
    names = ", ".join(f"{token.token!r} ({found.deviations:.2f} SD)" for token, found in sticky[:5])
    said = f"{len(sticky)} of {len(own)} repaired tokens are still sticky: {names}"
    return CheckRecord(name="repaired tokens", passed=False, finding=said)


def _neighbours_unharmed(neighbours: list[NeighbourRecord]) -> CheckRecord:
    sticky = [each for each in neighbours if each.after.verdict == Verdict.STICKY]
    harmed = [each for each in sticky if each.after.deviations > each.before.deviations + _HARM]
    counted = f"{len(neighbours)} nearest neighbours of repaired tokens"
    if harmed:
        names = ", ".join(repr(each.token) for each in harmed[:5])
        return CheckRecord(
            name="neighbours", passed=False, finding=f"of the {counted}, some became sticky: {names}"
        )
    said = f"none of the {counted} became sticky"
    if sticky:
        names = ", ".join(repr(each.token) for each in sticky[:5])
        said += f"; {len(sticky)} lift as they did before, and are worth a repair of their own: {names}"
    return CheckRecord(name="neighbours", passed=True, finding=said)


def verdicts_of(tokens: pl.DataFrame) -> dict[int, str]:
    """Return the verdicts of a run by token id; tokens without one are left out."""
    judged = tokens.filter(pl.col("verdict").is_not_null()).select("token_id", "verdict")
    return dict(judged.iter_rows())
