"""Verify a repaired model: detect again, on other texts and with another seed, and compare the rest."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stickytoken.corpora import Sentences, text_kinds
from stickytoken.corpora.choice import as_read
from stickytoken.impacts.conditions import prepare
from stickytoken.impacts.statistics import bootstrap_samples, contrast_intervals, resampled
from stickytoken.insertion import Insertion, Token
from stickytoken.measurement.stage import Progress, ProgressCallback
from stickytoken.methods.entry import Verdict
from stickytoken.methods.job import Recheck, Rechecked, Tokens
from stickytoken.repairs.plan import Subject, as_measured
from stickytoken.repairs.result import (
    CheckRecord,
    CurveRecord,
    MeasuredRecord,
    NeighbourRecord,
    ScoreRecord,
    Strategy,
    VerificationRecord,
)
from stickytoken.tasks.metrics import Outcomes
from stickytoken.tasks.mteb import AnyTask, MtebTask, evaluate, load_data
from stickytoken.validation import visible

if TYPE_CHECKING:
    from stickytoken.encoders.sentence_transformer import SentenceTransformerEncoder


# Reads {folder, tokenizer, prompt, texts, encoded} and writes {version, vectors, unequal}. Everything that is
# not asked for, such as remote code, stays off.
_SCRIPT = """
import json, sys
sys.modules["stickytoken"] = None
given = json.load(open(sys.argv[1], encoding="utf-8"))
import sentence_transformers
from pathlib import Path
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerFast
model = SentenceTransformer(given["folder"], device="cpu")
texts, tokenizer = given["texts"], Path(given["tokenizer"])
def of_raw(raw):
    raw.no_truncation()
    raw.no_padding()
    return [each.ids for each in raw.encode_batch(texts, add_special_tokens=True)]
def of_transformers(kind):
    return kind(texts, add_special_tokens=True, truncation=False, verbose=False)["input_ids"]
own = model.tokenizer
found = {"sentence-transformers": of_raw(own) if isinstance(own, Tokenizer) else of_transformers(own)}
if (tokenizer / "tokenizer.json").is_file():
    found["tokenizers"] = of_raw(Tokenizer.from_file(str(tokenizer / "tokenizer.json")))
    if (tokenizer / "tokenizer_config.json").is_file():
        found["PreTrainedTokenizerFast"] = of_transformers(PreTrainedTokenizerFast.from_pretrained(tokenizer))
if (tokenizer / "tokenizer_config.json").is_file():
    found["AutoTokenizer"] = of_transformers(AutoTokenizer.from_pretrained(tokenizer))
first = found["sentence-transformers"]
unequal = {
    name: texts[place]
    for name, ids in found.items()
    for place in reversed(range(len(texts)))
    if list(ids[place]) != list(first[place])
}
vectors = model.encode(given["encoded"], prompt=given["prompt"] or None, show_progress_bar=False)
answer = {
    "version": sentence_transformers.__version__,
    "vectors": [[float(value) for value in row] for row in vectors],
    "unequal": unequal,
    "loaders": sorted(found),
}
json.dump(answer, open(sys.argv[2], "w", encoding="utf-8"))
"""
_SHOWN = 300


@dataclass(frozen=True)
class FreshModel:
    """What a fresh process found.

    Attributes:
        failure: why the folder could not be loaded; None if it could.
        version: version of sentence-transformers.
        vectors: of the texts that it encoded, shape (n, d).
        loaders: kinds of tokenizers that were compared.
        unequal: a text that a kind of tokenizer reads differently than sentence-transformers, by kind.
    """

    failure: str | None
    version: str = ""
    vectors: NDArray[np.float64] | None = None
    loaders: tuple[str, ...] = ()
    unequal: dict[str, str] | None = None


def load_fresh(
    folder: Path, tokenizer: Path, prompt: str, texts: Sequence[str], encoded: Sequence[str]
) -> FreshModel:
    """Load a model folder in a process that cannot import this package."""
    with tempfile.TemporaryDirectory(prefix="stickytoken-") as place:
        given, answer = Path(place) / "given.json", Path(place) / "answer.json"
        given.write_text(
            json.dumps(
                {
                    "folder": str(folder.absolute()),
                    "tokenizer": str(tokenizer.absolute()),
                    "prompt": prompt,
                    "texts": list(texts),
                    "encoded": list(encoded),
                }
            ),
            encoding="utf-8",
        )
        done = subprocess.run(
            [sys.executable, "-c", _SCRIPT, str(given), str(answer)],
            cwd=place,
            env=os.environ | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
        if done.returncode or not answer.is_file():
            lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
            return FreshModel(lines[-1][:_SHOWN] if lines else f"the process ended with {done.returncode}")
        found: dict[str, Any] = json.loads(answer.read_text("utf-8"))
    return FreshModel(
        None,
        found["version"],
        np.array(found["vectors"], dtype=np.float64),
        tuple(found["loaders"]),
        found["unequal"],
    )


# Texts whose vectors and ids are compared.
_TEXTS = 256
_ENCODED = 24
# Largest loss of a score, of 1, and the largest that is excused because chance alone may explain it.
_TOLERANCE, _EXCUSED = 0.005, 0.02
_SAMPLES, _CONFIDENCE = 400, 0.95
_LEAST_COSINE = 0.999
_COMPARISON_SHOWN = 60


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
            said = f"{visible(text[:_COMPARISON_SHOWN])!r} still becomes {visible(ids[hit])!r}"
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
        said = (
            f"{kind} tokenizes {visible(text[:_COMPARISON_SHOWN])!r} differently than sentence-transformers"
        )
        return CheckRecord(name="tokenizers", passed=False, finding=said)
    said = f"{', '.join(loaders)} give equal ids for {texts:,} texts"
    return CheckRecord(name="tokenizers", passed=True, finding=said)


def scores(
    subject: Subject, task: AnyTask, seed: int, progress: ProgressCallback
) -> tuple[list[ScoreRecord], CheckRecord]:
    """Score the unedited task before and after."""
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
    """Scores of a model."""

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
