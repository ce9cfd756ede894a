"""Verify a repaired model: measure its tokens in other texts and with another seed, and compare the rest."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stickytoken.data import Sentences, as_read, tasks, text_kinds
from stickytoken.data.metrics import Outcomes
from stickytoken.encoders.loading.resolution import tokenizer_folder
from stickytoken.encoders.protocol import similarity_of
from stickytoken.impacts.statistics import bootstrap_samples, contrast_intervals, prepare, resampled
from stickytoken.insertion import Insertion, Token
from stickytoken.measurement.engine import Progress, ProgressCallback
from stickytoken.methods import Verdict, wording
from stickytoken.repairs import result
from stickytoken.repairs.recheck import Copies, Recheck, RecheckedToken, written_tokens
from stickytoken.repairs.result import CheckRecord, MeasuredRecord, NeighbourRecord, RepairedTokenRecord
from stickytoken.validation import visible
from stickytoken.vocabulary import Vocabulary

if TYPE_CHECKING:
    from stickytoken.encoders.sentence_transformer import SentenceTransformerEncoder


# A neighbour that does at most so much more than before has not changed: a fifth of the default thresholds of
# the rule. Its row is the same, and only texts that contain a repaired token move it.
_SAME_LIFT = 0.1  # SD
_SAME_ERASED = 0.08  # share of a text

# Largest loss of a score of 1, and the largest loss that is excused because chance alone may explain it.
_TOLERATED_LOSS = 0.005
_EXCUSED_LOSS = 0.02
# Bootstrap samples behind the interval of a change: enough for its ends to vary by a tenth of its width.
_SAMPLES = 400
_COVERAGE = 0.95

# Texts whose vectors are compared, and texts whose ids are compared in a fresh process.
_COMPARED_TEXTS = 256
# Texts that the fresh process encodes. One wrong weight shows in any of them.
_ENCODED_TEXTS = 24
# Smallest cosine between vectors of the same text here and in the fresh process.
_SAME_COSINE = 0.999

# Characters of an error and of a text, and number of tokens, that a finding shows.
_SHOWN_ERROR = 300
_SHOWN_TEXT = 60
_SHOWN_TOKENS = 5


class Neighbour(NamedTuple):
    """A token whose row is near that of a repaired token."""

    token: Token
    near: str  # vocabulary string of the repaired token
    in_run: str | None  # its verdict in the run


def nearest_neighbours(
    matrix: NDArray[np.float32],
    vocabulary: Vocabulary,
    ids: Sequence[int],
    count: int,
    verdicts: Mapping[int, str],
) -> list[Neighbour]:
    """Find the tokens with the largest cosines to the rows of some tokens, each once.

    Args:
        matrix: the token embeddings, shape (V, D).
        vocabulary: of the model.
        ids: the repaired tokens, which are no neighbours.
        count: number of neighbours of each.
        verdicts: of the run, by token id.
    """
    others = [token for token in vocabulary.available if token.id not in ids and token.id < len(matrix)]
    rows = np.array([token.id for token in others], dtype=np.intp)
    norms = np.maximum(np.linalg.norm(matrix, axis=1), np.finfo(np.float32).tiny)
    neighbours: dict[int, Neighbour] = {}
    for token_id in ids:
        cosines = (matrix @ matrix[token_id]) / norms
        near = vocabulary.tokens[vocabulary.place(token_id)]
        for place in np.argsort(-cosines[rows])[:count].tolist():
            token = others[place]
            neighbours.setdefault(token.id, Neighbour(token, near, verdicts.get(token.id)))
    return list(neighbours.values())


class Verified(NamedTuple):
    """The record of a verification, and the repaired tokens with what was measured of them."""

    record: result.VerificationRecord
    tokens: list[RepairedTokenRecord]


@dataclass(frozen=True)
class Verification:
    """A model before and after its repair, and what the two are compared on."""

    original: SentenceTransformerEncoder
    repaired: SentenceTransformerEncoder
    source: Path  # folder of the original model
    folder: Path  # of the repaired model
    before: Recheck  # the original in texts that the run has not used
    after: Recheck  # the repaired model in the same texts
    corpus: Sentences
    task: tasks.AnyTask
    seed: int
    progress: ProgressCallback

    def run(self, tokens: Sequence[RepairedTokenRecord], neighbours: Sequence[Neighbour]) -> Verified:
        """Measure the repaired tokens and their neighbours in both models, and make all checks."""
        copies = self._copies(tokens)
        with_neighbours = copies._replace(
            as_ids=[*copies.as_ids, *(neighbour.token for neighbour in neighbours)]
        )
        after = self.after.judged(with_neighbours)
        before = self.before.judged(with_neighbours)
        measured_tokens = self._with_measurements(tokens, copies, before.tokens, after.tokens)
        names = self.after.job.vocabulary
        measured_neighbours = [
            NeighbourRecord(
                token_id=neighbour.token.id,
                token=names.tokens[names.place(neighbour.token.id)],
                near=neighbour.near,
                in_run=neighbour.in_run,
                before=_measured_record(before.tokens[neighbour.token.id]),
                after=_measured_record(after.tokens[neighbour.token.id]),
            )
            for neighbour in neighbours
        ]
        scores, score_check = self._scores()
        self.progress(Progress("compare", 0, 1))
        # The bundled kinds of text, and the corpus.
        kinds = as_read(text_kinds(), self.original.tokenizer)
        texts = list(dict.fromkeys((*kinds.texts, *self.corpus.texts)))
        checks = [
            check_repaired({token.token: after.tokens[token.token_id] for token in tokens}),
            check_neighbours(measured_neighbours),
            self._check_other_texts(tokens, texts),
            *self._check_unreachable(tokens, texts),
            *self._check_fresh_process(tokens, texts),
            score_check,
        ]
        self.progress(Progress("compare", 1, 1, 1))
        thresholds = self.after.thresholds
        record = result.VerificationRecord(
            ordinary_lift=after.ordinary.lift,
            similarity_spread=self.after.plan.similarity_spread,
            ordinary_contraction=after.ordinary.contraction,
            smallest_lift=thresholds.lift,
            smallest_erased=thresholds.erased,
            vectors_compared=self.after.compares_vectors,
            carriers=len(self.after.plan.carriers),
            anchors=len(self.after.plan.anchors),
            source=self.corpus.source,
            neighbours=measured_neighbours,
            scores=scores,
            checks=checks,
        )
        return Verified(record, measured_tokens)

    def _copies(self, tokens: Sequence[RepairedTokenRecord]) -> Copies:
        """Insert copies as text where the tokenizer changes, else as ids."""
        as_ids = []
        to_write = []
        for repaired_token in tokens:
            token = Token(repaired_token.token_id, repaired_token.text)
            if repaired_token.strategy in result.TOKENIZER:
                to_write.append(token)
            else:
                as_ids.append(token)
        return Copies(as_ids, written_tokens(self.original, to_write))

    def _with_measurements(
        self,
        tokens: Sequence[RepairedTokenRecord],
        copies: Copies,
        before: Mapping[int, RecheckedToken],
        after: Mapping[int, RecheckedToken],
    ) -> list[RepairedTokenRecord]:
        """Add to each token its measurements before and after, and its curve beside the ordinary one."""
        curves_before = self.before.curves(copies)
        curves_after = self.after.curves(copies)
        ordinary_curve = self.after.ordinary_curve()
        measured_tokens = []
        for token in tokens:
            curve = result.CurveRecord(
                copies=[0, *self.after.curve_copies],
                before=curves_before[token.token_id],
                after=curves_after[token.token_id],
                ordinary=ordinary_curve,
            )
            measured = {
                "before": _measured_record(before[token.token_id]),
                "after": _measured_record(after[token.token_id]),
                "curve": curve,
            }
            measured_tokens.append(token.model_copy(update=measured))
        return measured_tokens

    def _check_other_texts(self, tokens: Sequence[RepairedTokenRecord], texts: Sequence[str]) -> CheckRecord:
        """Check that texts without a repaired token have the same vectors, bit for bit."""
        repaired_ids = {token.token_id for token in tokens}
        old_ids = self.original.content_ids(texts)
        new_ids = self.repaired.content_ids(texts)
        unaffected = [
            text
            for text, old, new in zip(texts, old_ids, new_ids, strict=True)
            if old == new and repaired_ids.isdisjoint(old) and self.original.fits(old)
        ]
        compared = unaffected[:_COMPARED_TEXTS]
        before = self.original.encode(compared)
        after = self.repaired.encode(compared)
        same = bool(np.array_equal(before, after))
        finding = f"the vectors of {len(compared)} texts without a repaired token are "
        if same:
            finding += "identical"
        else:
            largest = float(np.abs(before.astype(np.float64) - after).max(initial=0.0))
            finding += f"not identical: they differ by up to {largest:.2g}"
        return CheckRecord(name="other texts", passed=same and bool(compared), finding=finding)

    def _check_unreachable(
        self, tokens: Sequence[RepairedTokenRecord], texts: Sequence[str]
    ) -> list[CheckRecord]:
        """Check that no text produces an entry that was made unreachable; no check without such an entry."""
        names = {token.token_id: token.token for token in tokens if token.strategy in result.TOKENIZER}
        if not names:
            return []
        spellings = [
            spelling for token in tokens if token.token_id in names for spelling in _spellings(token.text)
        ]
        every_text = [*texts, *spellings]
        for text, ids in zip(every_text, self.repaired.tokenizer.encode_many(every_text), strict=True):
            reached = [names[token_id] for token_id in ids if token_id in names]
            if reached:
                finding = f"{visible(text[:_SHOWN_TEXT])!r} still becomes {visible(reached[0])!r}"
                return [CheckRecord(name="unreachable", passed=False, finding=finding)]
        entries = "the entry" if len(names) == 1 else f"any of the {len(names)} entries"
        finding = f"none of {len(every_text):,} texts, spellings of the tokens among them, produces {entries}"
        return [CheckRecord(name="unreachable", passed=True, finding=finding)]

    def _check_fresh_process(
        self, tokens: Sequence[RepairedTokenRecord], texts: Sequence[str]
    ) -> list[CheckRecord]:
        """Load the folder in a process without stickytoken; compare its vectors, and ids of all loaders."""
        spellings = [spelling for token in tokens for spelling in _spellings(token.text)]
        tokenized = [*spellings, *texts[:_COMPARED_TEXTS]]
        all_ids = self.repaired.content_ids(texts)
        fitting = [text for text, ids in zip(texts, all_ids, strict=True) if self.repaired.fits(ids)]
        encoded = fitting[:_ENCODED_TEXTS]
        given = {
            "folder": str(self.folder.absolute()),
            "tokenizer": str(tokenizer_folder(self.folder, self.folder.name).absolute()),
            "prompt": self.original.prompt,
            "texts": tokenized,
            "encoded": encoded,
            "original": str(self.source.absolute()),
            "original_tokenizer": str(tokenizer_folder(self.source, self.source.name).absolute()),
        }
        with tempfile.TemporaryDirectory(prefix="stickytoken-") as elsewhere:
            process = subprocess.run(
                [sys.executable, "-c", _SCRIPT],
                cwd=elsewhere,
                env=os.environ | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"},
                input=json.dumps(given).encode(),
                capture_output=True,
                check=False,
            )
        if process.returncode:
            lines = process.stderr.decode("utf-8", "replace").strip().splitlines()
            reason = lines[-1][:_SHOWN_ERROR] if lines else f"the process ended with {process.returncode}"
            finding = f"a process without stickytoken cannot load the folder: {visible(reason)}"
            return [CheckRecord(name="fresh process", passed=False, finding=finding)]
        answer: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
        least_cosine = _least_cosine(self.repaired.encode(encoded), np.array(answer["vectors"]))
        loaded = (
            "a process without stickytoken loads the folder with sentence-transformers "
            f"{answer['version']} and computes the same vectors (least cosine {least_cosine:.6f} of "
            f"{len(encoded)} texts)"
        )
        loaders = ", ".join(answer["loaders"])
        same_ids = f"{loaders} give equal ids for {len(tokenized):,} texts"
        if answer["as_before"]:
            differing = max(answer["as_before"].values())
            same_ids = (
                f"{loaders} read {len(tokenized):,} texts as they did before the repair: {differing:,} of "
                "them differently than sentence-transformers, which the model's settings change"
            )
        for loader, text in list(answer["unequal"].items())[:1]:
            shown = visible(text[:_SHOWN_TEXT])
            same_ids = f"{loader} tokenizes {shown!r} differently than sentence-transformers"
        return [
            CheckRecord(name="fresh process", passed=least_cosine >= _SAME_COSINE, finding=loaded),
            CheckRecord(name="tokenizers", passed=not answer["unequal"], finding=same_ids),
        ]

    def _scores(self) -> tuple[list[result.ScoreRecord], CheckRecord]:
        """Score both models on the task; return all scores, and the check of the main one."""
        self.progress(Progress("score", 0, 2))
        before, old_outcomes = _scored(self.original, self.task, self.seed)
        self.progress(Progress("score", 1, 2))
        after, new_outcomes = _scored(self.repaired, self.task, self.seed)
        self.progress(Progress("score", 2, 2, 2))
        texts = 0
        if not isinstance(self.task, tasks.MtebTask):
            texts = sum(len(texts_of_role) for texts_of_role in self.task.texts.values())
        records = [
            result.ScoreRecord(
                task=self.task.name, metric=metric, texts=texts, before=score, after=after[metric]
            )
            for metric, score in before.items()
        ]
        return records, check_score(records[0], self.task, old_outcomes, new_outcomes, self.seed)


def _measured_record(token: RecheckedToken) -> MeasuredRecord:
    return MeasuredRecord(lift_sd=token.lift_sd, erased=token.erased, verdict=token.verdict.value)


def check_repaired(measured: Mapping[str, RecheckedToken]) -> CheckRecord:
    """Check that none of the repaired tokens, by name, is sticky."""
    name = "repaired tokens"
    sticky = {token: after for token, after in measured.items() if after.verdict is Verdict.STICKY}
    if sticky:
        described = [_described(token, after) for token, after in list(sticky.items())[:_SHOWN_TOKENS]]
        finding = f"{len(sticky)} of {len(measured)} repaired tokens are still sticky: {', '.join(described)}"
        return CheckRecord(name=name, passed=False, finding=finding)
    lift = max(after.lift_sd for after in measured.values())
    subject = "repaired token is" if len(measured) == 1 else f"{len(measured)} repaired tokens are"
    finding = f"the {subject} not sticky: at most {wording.in_sd(lift)} beyond an ordinary token"
    erased_shares = [after.erased for after in measured.values() if after.erased is not None]
    if erased_shares:
        finding += f", and at most {wording.percent(max(erased_shares))} erased"
    return CheckRecord(name=name, passed=True, finding=finding)


def _described(token: str, after: RecheckedToken) -> str:
    lift = wording.in_sd(after.lift_sd)
    if after.erased is None:
        return f"{wording.quoted(token)} ({lift})"
    return f"{wording.quoted(token)} ({wording.percent(after.erased)} erased, {lift})"


def check_neighbours(neighbours: Sequence[NeighbourRecord]) -> CheckRecord:
    """Check that no neighbour became sticky by the repair."""
    sticky = [neighbour for neighbour in neighbours if neighbour.after.verdict == Verdict.STICKY]
    harmed = [neighbour for neighbour in sticky if _has_changed(neighbour)]
    counted = wording.counted(len(neighbours), "nearest neighbour")
    if harmed:
        finding = f"of the {counted} of repaired tokens, some became sticky: {_names(harmed)}"
        return CheckRecord(name="neighbours", passed=False, finding=finding)
    finding = f"none of the {counted} of repaired tokens became sticky"
    if sticky:
        finding += (
            f"; {len(sticky)} were sticky before, and are worth a repair of their own: {_names(sticky)}"
        )
    return CheckRecord(name="neighbours", passed=True, finding=finding)


def _has_changed(neighbour: NeighbourRecord) -> bool:
    """Say whether copies of a neighbour lift or erase more than before the repair."""
    before, after = neighbour.before, neighbour.after
    lifts_more = after.lift_sd > before.lift_sd + _SAME_LIFT
    erases_more = (after.erased or 0.0) > (before.erased or 0.0) + _SAME_ERASED
    return lifts_more or erases_more


def _names(neighbours: Sequence[NeighbourRecord]) -> str:
    return ", ".join(wording.quoted(neighbour.token) for neighbour in neighbours[:_SHOWN_TOKENS])


def _spellings(text: str) -> list[str]:
    """Write a token in several cases and places."""
    bare = text.strip()
    forms = dict.fromkeys((text, bare, bare.lower(), bare.upper(), bare.capitalize()))
    frames = ("{}", "river {} stone", "{} {} {}", "river{}stone", "({}).", "\n{}\t{}")
    return [frame.replace("{}", form) for form in forms for frame in frames]


def _least_cosine(ours: NDArray[np.float32], theirs: NDArray[np.float64]) -> float:
    """Compare vectors of the same texts, row by row."""
    our_rows = ours.astype(np.float64)
    norms = np.linalg.norm(our_rows, axis=1) * np.linalg.norm(theirs, axis=1)
    return float(((our_rows * theirs).sum(axis=1) / norms).min())


# Reads {folder, tokenizer, prompt, texts, encoded, original, original_tokenizer}, and prints {version,
# vectors, unequal, as_before, loaders} last. Everything not asked for, such as remote code, stays off.
_SCRIPT = """
import json, sys
sys.modules["stickytoken"] = None
given = json.loads(sys.stdin.buffer.read())
import sentence_transformers
from pathlib import Path
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerFast
texts = given["texts"]
def of_raw(raw):
    raw.no_truncation()
    raw.no_padding()
    return [each.ids for each in raw.encode_batch(texts, add_special_tokens=True)]
def of_transformers(kind):
    return kind(texts, add_special_tokens=True, truncation=False, verbose=False)["input_ids"]
def of_library(own):
    return of_raw(own) if isinstance(own, Tokenizer) else of_transformers(own)
def of_loaders(folder):
    found = {}
    described = (folder / "tokenizer_config.json").is_file()
    if (folder / "tokenizer.json").is_file():
        found["tokenizers"] = of_raw(Tokenizer.from_file(str(folder / "tokenizer.json")))
        if described:
            generic = PreTrainedTokenizerFast.from_pretrained(folder)
            found["PreTrainedTokenizerFast"] = of_transformers(generic)
    if described:
        found["AutoTokenizer"] = of_transformers(AutoTokenizer.from_pretrained(folder))
    return found
def differing(own, found):
    return {
        name: {place for place in range(len(texts)) if list(ids[place]) != list(own[place])}
        for name, ids in found.items()
    }
model = SentenceTransformer(given["folder"], device="cpu")
vectors = model.encode(given["encoded"], prompt=given["prompt"] or None, show_progress_bar=False)
found = of_loaders(Path(given["tokenizer"]))
unequal = differing(of_library(model.tokenizer), found)
del model
as_before = {}
if any(unequal.values()):
    # sentence-transformers may be set up to read otherwise than the files say, in lower case for example.
    original = SentenceTransformer(given["original"], device="cpu")
    before = differing(of_library(original.tokenizer), of_loaders(Path(given["original_tokenizer"])))
    as_before = {name: len(places & before.get(name, set())) for name, places in unequal.items()}
    unequal = {name: places - before.get(name, set()) for name, places in unequal.items()}
answer = {
    "version": sentence_transformers.__version__,
    "vectors": [[float(value) for value in row] for row in vectors],
    "unequal": {name: texts[min(places)] for name, places in unequal.items() if places},
    "as_before": {name: count for name, count in as_before.items() if count},
    "loaders": sorted(["sentence-transformers", *found]),
}
print()
print(json.dumps(answer))
"""


def _scored(
    encoder: SentenceTransformerEncoder, task: tasks.AnyTask, seed: int
) -> tuple[dict[str, float], Outcomes | None]:
    """Score a model on a task, by metric; outcomes per text are None for an MTEB task, which has none."""
    if isinstance(task, tasks.MtebTask):
        tasks.load_data(task)
        return {"main_score": tasks.evaluate(encoder.model, task)}, None
    vectors = {}
    for role, texts in task.texts.items():
        carriers = prepare(encoder, texts, 0, Insertion.TEXT, task.name)
        vectors[role] = encoder.encode([carrier.text for carrier in carriers])
    outcomes = task.outcomes(vectors, seed, similarity_of(encoder))
    scores = {metric: float(task.scores(metric, outcomes[None])[0]) for metric in task.metrics}
    return {metric: score for metric, score in scores.items() if math.isfinite(score)}, outcomes


def check_score(
    main: result.ScoreRecord, task: tasks.AnyTask, before: Outcomes | None, after: Outcomes | None, seed: int
) -> CheckRecord:
    """Check that a score did not fall by more than is tolerated.

    Args:
        main: the score of both models.
        task: the task.
        before: outcomes per text of the original model; None if there are none.
        after: those of the repaired model.
        seed: of the bootstrap.
    """
    change = main.after - main.before
    finding = f"{task.name}, {main.metric}: {100 * main.before:.2f} before, {100 * main.after:.2f} after"
    if not change:
        return CheckRecord(name="scores", passed=True, finding=f"{finding} (no change)")
    finding += f": it {'rose' if change > 0 else 'fell'} by {100 * abs(change):.2f} points"
    chance_explains = False
    if not isinstance(task, tasks.MtebTask) and before is not None and after is not None:
        # Where the change lies with other texts.
        both = np.stack([before, after])
        samples = bootstrap_samples(task.units, _SAMPLES, (seed,))
        scores = resampled(lambda sample: task.scores(main.metric, both, sample), samples)
        (interval,) = contrast_intervals(scores, np.array([[-1.0, 1.0]]), _COVERAGE)
        if interval.low is not None and interval.high is not None:
            chance_explains = interval.low <= 0 <= interval.high
            low = f"{100 * interval.low:+.2f}".replace("-", wording.MINUS)
            high = f"{100 * interval.high:+.2f}".replace("-", wording.MINUS)
            finding += f" (with other {task.unit}, {low} to {high}"
            finding += "; chance alone may explain it)" if chance_explains else ")"
    largest_loss = _EXCUSED_LOSS if chance_explains else _TOLERATED_LOSS
    return CheckRecord(name="scores", passed=change >= -largest_loss, finding=finding)
