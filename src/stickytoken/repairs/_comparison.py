"""Compare a repaired model with the original: other texts, tokenizers, scores, a fresh process."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from stickytoken.impacts.carriers import prepare
from stickytoken.impacts.statistics import bootstrap_samples, contrast_intervals, resampled
from stickytoken.insertion import Insertion
from stickytoken.measurement.progress import Progress, ProgressCallback
from stickytoken.repairs._fresh_process import load_fresh
from stickytoken.repairs._subject import Subject
from stickytoken.repairs.record import CheckRecord, ScoreRecord
from stickytoken.repairs.strategies import Strategy
from stickytoken.tasks.mteb import AnyTask, MtebTask, evaluate, load_data
from stickytoken.tasks.protocol import Outcomes
from stickytoken.visible_text import visible

if TYPE_CHECKING:
    from stickytoken.encoders.sentence_transformer import SentenceTransformerEncoder

# Texts whose vectors and ids are compared.
_TEXTS = 256
_ENCODED = 24
# Largest loss of a score, of 1, and the largest that is excused because chance alone may explain it.
_TOLERANCE, _EXCUSED = 0.005, 0.02
_SAMPLES, _CONFIDENCE = 400, 0.95
_LEAST_COSINE = 0.999
_SHOWN = 60


def other_texts(subject: Subject, texts: Sequence[str]) -> CheckRecord:
    """Check that texts without a repaired token keep bit-identical vectors."""
    repaired = set(subject.ids)
    kept = [
        text
        for text, before, after in zip(
            texts, subject.original.content_ids(texts), subject.repaired.content_ids(texts), strict=True
        )
        if before == after and repaired.isdisjoint(before) and subject.original.fits(before)
    ][:_TEXTS]
    if Strategy.CENTRE in subject.strategies:
        return CheckRecord(
            name="other texts",
            passed=True,
            finding="every vector changes: encode all texts again, or apply centre.json to stored vectors",
        )
    before, after = (each.encode(kept) for each in (subject.original, subject.repaired))
    same = bool(np.array_equal(before, after))
    largest = float(np.abs(before.astype(np.float64) - after).max(initial=0.0))
    finding = f"the vectors of {len(kept)} texts without a repaired token are "
    return CheckRecord(
        name="other texts",
        passed=same and bool(kept),
        finding=finding + ("identical" if same else f"not identical: they differ by up to {largest:.2g}"),
    )


def unreachable(subject: Subject, texts: Sequence[str]) -> CheckRecord | None:
    """Check that text does not produce unreachable entries; None without such entries."""
    gone = (Strategy.UNREACHABLE, Strategy.PLAIN_SPECIALS)
    tokens = [each for each in subject.tokens if each.strategy in gone]
    if not tokens:
        return None
    written = [text for each in tokens for text in _spellings(each.text)]
    every = [*texts, *written]
    ids = {each.token_id: each.token for each in tokens}
    for text, found in zip(every, subject.repaired.tokenizer.encode_many(every), strict=True):
        hit = next((token for token in found if token in ids), None)
        if hit is not None:
            said = f"{visible(text[:_SHOWN])!r} still becomes {visible(ids[hit])!r}"
            return CheckRecord(name="unreachable", passed=False, finding=said)
    counted = "the entry" if len(ids) == 1 else f"any of the {len(ids)} entries"
    return CheckRecord(
        name="unreachable",
        passed=True,
        finding=f"none of {len(every):,} texts, spellings of the tokens among them, produces {counted}",
    )


def _spellings(text: str) -> list[str]:
    """Write a token in the ways in which text may hold it."""
    bare = text.strip()
    forms = dict.fromkeys((text, bare, bare.lower(), bare.upper(), bare.capitalize()))
    frames = ("{}", "river {} stone", "{} {} {}", "river{}stone", "({}).", "\n{}\t{}")
    return [frame.replace("{}", form) for form in forms for frame in frames]


def loads_anywhere(subject: Subject, texts: Sequence[str], prompt: str) -> list[CheckRecord]:
    """Check that another process, which has no stickytoken, loads the folder and computes the same."""
    sample = [*(text for each in subject.tokens for text in _spellings(each.text)), *texts[:_TEXTS]]
    fitting = [
        text
        for text, ids in zip(texts, subject.repaired.content_ids(texts), strict=True)
        if subject.repaired.fits(ids)
    ][:_ENCODED]
    found = load_fresh(subject.folder, subject.tokenizer, prompt, sample, fitting)
    if found.failure is not None or found.vectors is None:
        said = f"a process without stickytoken cannot load the folder: {visible(found.failure or '')}"
        return [CheckRecord(name="fresh process", passed=False, finding=said)]
    ours = subject.repaired.encode(fitting).astype(np.float64)
    norms = np.linalg.norm(ours, axis=1) * np.linalg.norm(found.vectors, axis=1)
    least = float(((ours * found.vectors).sum(axis=1) / norms).min())
    loaded = CheckRecord(
        name="fresh process",
        passed=least >= _LEAST_COSINE,
        finding=f"a process without stickytoken loads the folder with sentence-transformers {found.version} "
        f"and computes the same vectors (least cosine {least:.6f} of {len(fitting)} texts)",
    )
    return [loaded, _equal_ids(found.unequal or {}, found.loaders, len(sample))]


def _equal_ids(unequal: dict[str, str], loaders: Sequence[str], texts: int) -> CheckRecord:
    if unequal:
        kind, text = next(iter(unequal.items()))
        said = f"{kind} tokenizes {visible(text[:_SHOWN])!r} differently than sentence-transformers"
        return CheckRecord(name="tokenizers", passed=False, finding=said)
    said = f"{', '.join(loaders)} give equal ids for {texts:,} texts"
    return CheckRecord(name="tokenizers", passed=True, finding=said)


def scores(
    subject: Subject, task: AnyTask, seed: int, progress: ProgressCallback
) -> tuple[list[ScoreRecord], CheckRecord]:
    """Score the unedited task before and after.

    Args:
        subject: the model.
        task: the task.
        seed: seed of the random steps of a task.
        progress: called after every step.
    """
    found = []
    for place, encoder in enumerate((subject.original, subject.repaired)):
        progress(Progress("score", place, 2))
        found.append(_scored(encoder, task, seed))
    progress(Progress("score", 2, 2, 2))
    before, after = found
    texts = 0 if isinstance(task, MtebTask) else sum(map(len, task.texts.values()))
    records = [
        ScoreRecord(task=task.name, metric=metric, texts=texts, before=value, after=after.values[metric])
        for metric, value in before.values.items()
    ]
    return records, _kept_score(records[0], task, before, after, seed)


def _kept_score(main: ScoreRecord, task: AnyTask, before: _Scored, after: _Scored, seed: int) -> CheckRecord:
    """Check that the main score did not fall by half a point, or two if chance alone may explain it."""
    change = main.after - main.before
    said = f"{task.name}, {main.metric}: {100 * main.before:.2f} before, {100 * main.after:.2f} after"
    said += f": it {'rose' if change > 0 else 'fell'} by {100 * abs(change):.2f} points" if change else ""
    interval = _interval(main.metric, task, before, after, seed) if change else None
    chance = interval is not None and interval[0] <= 0 <= interval[1]
    if interval is not None:
        low, high = (f"{100 * value:+.2f}".replace("-", "\N{MINUS SIGN}") for value in interval)
        said += f" (with other {task.unit}, {low} to {high}"
        said += "; chance alone may explain it)" if chance else ")"
    return CheckRecord(
        name="scores",
        passed=change >= -(_EXCUSED if chance else _TOLERANCE),
        finding=said if change else f"{said} (no change)",
    )


def _interval(
    metric: str, task: AnyTask, before: _Scored, after: _Scored, seed: int
) -> tuple[float, float] | None:
    """Return where the change of a score lies with other texts; None where that is unknown."""
    if isinstance(task, MtebTask) or before.outcomes is None or after.outcomes is None:
        return None
    both = np.stack([before.outcomes, after.outcomes])
    samples = bootstrap_samples(task.units, _SAMPLES, (seed,))
    drawn = resampled(lambda sample: task.scores(metric, both, sample), samples)
    (found,) = contrast_intervals(drawn, np.array([[-1.0, 1.0]]), _CONFIDENCE)
    return None if found.low is None or found.high is None else (found.low, found.high)


@dataclass(frozen=True)
class _Scored:
    """Scores of a model.

    Attributes:
        values: by metric, the main one first.
        outcomes: what they were computed from; None if only the score is known.
    """

    values: dict[str, float]
    outcomes: Outcomes | None = None


def _scored(encoder: SentenceTransformerEncoder, task: AnyTask, seed: int) -> _Scored:
    if isinstance(task, MtebTask):
        load_data(task)
        return _Scored({"main_score": evaluate(encoder.model, task)})
    vectors = {
        role: encoder.encode([each.text for each in prepare(encoder, texts, 0, Insertion.TEXT, task.name)])
        for role, texts in task.texts.items()
    }
    outcomes = task.outcomes(vectors, seed)
    values = {metric: float(task.scores(metric, outcomes[None])[0]) for metric in task.metrics}
    return _Scored({metric: value for metric, value in values.items() if math.isfinite(value)}, outcomes)
