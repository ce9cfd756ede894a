"""Verify a repaired model: measure its tokens in new texts, and check that nothing else has changed."""

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

from stickytoken.bootstrap import bootstrap_samples, contrast_intervals, resampled
from stickytoken.data import Sentences, as_read, tasks, text_kinds
from stickytoken.data.metrics import Outcomes
from stickytoken.encoders.fitting import fit_texts
from stickytoken.encoders.loading.resolution import tokenizer_folder
from stickytoken.encoders.protocol import similarity_of
from stickytoken.insertion import Insertion, Token
from stickytoken.measurement.engine import Progress, ProgressCallback
from stickytoken.methods import Verdict
from stickytoken.methods.measures import LIFT
from stickytoken.repairs import result
from stickytoken.repairs.recheck import Copies, Recheck, RecheckedToken, written_tokens
from stickytoken.repairs.result import CheckRecord, MeasuredRecord, NeighbourRecord, RepairedTokenRecord
from stickytoken.validation import visible
from stickytoken.vocabulary import Vocabulary
from stickytoken.words import MINUS, counted, percent, quoted

if TYPE_CHECKING:
    from stickytoken.encoders.sentence_transformer import SentenceTransformerEncoder


# A neighbour counts as changed if its lift or its erased share rises by more than a limit, which is a fifth
# of the default threshold of the rule. The neighbour's own row is unchanged, so its lift and erased share can
# only change because of texts that contain a repaired token.
_SAME_LIFT = 0.1  # SD
_SAME_ERASED = 0.08  # share of a text

# The check allows the main score, which ranges from 0 to 1, to fall by at most `_TOLERATED_LOSS` or, if the
# confidence interval of the change contains zero, by at most `_EXCUSED_LOSS`.
_TOLERATED_LOSS = 0.005
_EXCUSED_LOSS = 0.02
# Number of bootstrap samples from which the confidence interval of a change is computed. With 400 samples,
# chance moves the ends of the interval by about a tenth of its width.
_SAMPLES = 400
_COVERAGE = 0.95

# Maximum number of unaffected texts whose vectors are compared. The fresh process also compares token ids,
# for this number of texts and for spellings of the repaired tokens.
_COMPARED_TEXTS = 256
# Number of texts that the fresh process encodes. A few suffice, because a wrong weight changes every vector.
_ENCODED_TEXTS = 24
# Minimum cosine between the vectors that this process and the fresh process compute for a text, for the two
# to count as equal.
_SAME_COSINE = 0.999

# Limits on what a finding quotes: characters of an error, characters of a text, and number of tokens.
_SHOWN_ERROR = 300
_SHOWN_TEXT = 60
_SHOWN_TOKENS = 5


class Neighbour(NamedTuple):
    """A token whose row is near the row of a repaired token."""

    token: Token
    repaired_token: str  # vocabulary string of the repaired token
    run_verdict: str | None  # verdict of the run on the neighbour; None if it has no verdict


def nearest_neighbours(
    matrix: NDArray[np.float32],
    vocabulary: Vocabulary,
    ids: Sequence[int],
    count: int,
    verdicts: Mapping[int, str],
) -> list[Neighbour]:
    """Find the tokens whose rows have the largest cosines with the repaired tokens' rows.

    Args:
        matrix: the token embeddings, shape (V, D).
        vocabulary: vocabulary of the model.
        ids: ids of the repaired tokens. A repaired token is never returned as a neighbour.
        count: number of neighbours per repaired token.
        verdicts: verdicts of the run, keyed by token id.

    Returns:
        The neighbours. A token that is near several repaired tokens is listed once, as a neighbour of the
        first of them.
    """
    others = [token for token in vocabulary.available if token.id not in ids and token.id < len(matrix)]
    rows = np.array([token.id for token in others], dtype=np.intp)
    norms = np.maximum(np.linalg.norm(matrix, axis=1), np.finfo(np.float32).tiny)
    neighbours: dict[int, Neighbour] = {}
    for token_id in ids:
        cosines = (matrix @ matrix[token_id]) / norms
        repaired_token = vocabulary.tokens[vocabulary.place(token_id)]
        nearest = np.argsort(-cosines[rows])[:count].tolist()
        for index in nearest:
            token = others[index]
            neighbours.setdefault(token.id, Neighbour(token, repaired_token, verdicts.get(token.id)))
    return list(neighbours.values())


class Verified(NamedTuple):
    """The record of a verification, and the repaired tokens with their measurements added."""

    record: result.VerificationRecord
    tokens: list[RepairedTokenRecord]


@dataclass(frozen=True)
class Verification:
    """Compares a model before and after its repair, on texts and on a task."""

    original: SentenceTransformerEncoder
    repaired: SentenceTransformerEncoder
    source: Path  # Folder of the original model.
    route: str | None  # Route that was repaired; None for the default route.
    folder: Path  # Folder of the repaired model.
    before: Recheck  # Measures the original model in texts that the run has not used.
    after: Recheck  # Measures the repaired model in the same texts as the original model.
    corpus: Sentences
    task: tasks.AnyTask
    seed: int  # seed for the outcomes of the task and for the bootstrap
    progress: ProgressCallback

    def run(self, tokens: Sequence[RepairedTokenRecord], neighbours: Sequence[Neighbour]) -> Verified:
        """Measure the repaired tokens and their neighbours in both models, and run all checks.

        Args:
            tokens: records of the repaired tokens, without measurements.
            neighbours: tokens whose rows are similar to the repaired tokens' rows.

        Returns:
            The record of the verification, and the tokens with their measurements.
        """
        copies = self._copies(tokens)
        neighbour_tokens = [neighbour.token for neighbour in neighbours]
        with_neighbours = copies._replace(as_ids=[*copies.as_ids, *neighbour_tokens])
        after = self.after.judged(with_neighbours)
        before = self.before.judged(with_neighbours)
        measured_tokens = self._with_measurements(tokens, copies, before.tokens, after.tokens)
        measured_neighbours = [
            self._neighbour_record(neighbour, before.tokens, after.tokens) for neighbour in neighbours
        ]
        scores, score_check = self._scores()
        self.progress(Progress("compare", 0, 1))
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
        settings = self.after.job.settings
        record = result.VerificationRecord(
            ordinary_lift=after.ordinary.lift,
            similarity_spread=self.after.plan.similarity_spread,
            ordinary_contraction=after.ordinary.contraction,
            smallest_lift=settings.smallest_lift,
            smallest_erased=settings.smallest_erased,
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
        """Group tokens by how to insert copies: as text if the repair edits the tokenizer, else as ids."""
        as_ids = []
        as_text = []
        for repaired_token in tokens:
            token = Token(repaired_token.token_id, repaired_token.text)
            if repaired_token.strategy in result.TOKENIZER:
                as_text.append(token)
            else:
                as_ids.append(token)
        return Copies(as_ids, written_tokens(self.original, as_text))

    def _with_measurements(
        self,
        tokens: Sequence[RepairedTokenRecord],
        copies: Copies,
        before: Mapping[int, RecheckedToken],
        after: Mapping[int, RecheckedToken],
    ) -> list[RepairedTokenRecord]:
        """Return the tokens with their measurements and curves before and after the repair.

        Args:
            tokens: the repaired tokens.
            copies: the same tokens, grouped by how their copies are inserted.
            before: effect of each token in the original model, keyed by token id.
            after: effect of each token in the repaired model, keyed by token id.
        """
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
            measurements = {
                "before": _measured_record(before[token.token_id]),
                "after": _measured_record(after[token.token_id]),
                "curve": curve,
            }
            measured_tokens.append(token.model_copy(update=measurements))
        return measured_tokens

    def _neighbour_record(
        self,
        neighbour: Neighbour,
        before: Mapping[int, RecheckedToken],
        after: Mapping[int, RecheckedToken],
    ) -> NeighbourRecord:
        """Return the record of a neighbour, with its measurements before and after the repair.

        Args:
            neighbour: a token whose row is near the row of a repaired token.
            before: effect of each token in the original model, keyed by token id.
            after: effect of each token in the repaired model, keyed by token id.
        """
        token_id = neighbour.token.id
        vocabulary = self.after.job.vocabulary
        return NeighbourRecord(
            token_id=token_id,
            token=vocabulary.tokens[vocabulary.place(token_id)],
            near=neighbour.repaired_token,
            in_run=neighbour.run_verdict,
            before=_measured_record(before[token_id]),
            after=_measured_record(after[token_id]),
        )

    def _check_other_texts(self, tokens: Sequence[RepairedTokenRecord], texts: Sequence[str]) -> CheckRecord:
        """Check that texts without a repaired token have exactly the same vectors in both models."""
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
        is_identical = bool(np.array_equal(before, after))
        finding = f"the vectors of {len(compared)} texts without a repaired token are "
        if is_identical:
            finding += "identical"
        else:
            largest = float(np.abs(before.astype(np.float64) - after).max(initial=0.0))
            finding += f"not identical: they differ by up to {largest:.2g}"
        return CheckRecord(name="other texts", passed=is_identical and bool(compared), finding=finding)

    def _check_unreachable(
        self, tokens: Sequence[RepairedTokenRecord], texts: Sequence[str]
    ) -> list[CheckRecord]:
        """Check that no text produces an entry that the tokenizer should no longer produce.

        Returns:
            A list that contains the check; empty if the repair did not change the tokenizer.
        """
        names = {token.token_id: token.token for token in tokens if token.strategy in result.TOKENIZER}
        if not names:
            return []
        every_text = list(texts)
        for token in tokens:
            if token.token_id in names:
                every_text += _spellings(token.text)
        for text, ids in zip(every_text, self.repaired.tokenizer.encode_many(every_text), strict=True):
            reached = [names[token_id] for token_id in ids if token_id in names]
            if reached:
                finding = f"{visible(text[:_SHOWN_TEXT])!r} still becomes {visible(reached[0])!r}"
                return [CheckRecord(name="unreachable", passed=False, finding=finding)]
        entries = "the entry" if len(names) == 1 else f"any of the {len(names)} entries"
        finding = f"none of {len(every_text):,} texts, including spellings of the tokens, produces {entries}"
        return [CheckRecord(name="unreachable", passed=True, finding=finding)]

    def _check_fresh_process(
        self, tokens: Sequence[RepairedTokenRecord], texts: Sequence[str]
    ) -> list[CheckRecord]:
        """Load the repaired model in a new process without stickytoken; compare vectors and token ids.

        Returns:
            A check that the model loads and gives the same vectors. If the model loads, the list also has a
            check that all ways to load its tokenizer give the same token ids.
        """
        spellings = [spelling for token in tokens for spelling in _spellings(token.text)]
        tokenized = [*spellings, *texts[:_COMPARED_TEXTS]]
        all_ids = self.repaired.content_ids(texts)
        fitting = [text for text, ids in zip(texts, all_ids, strict=True) if self.repaired.fits(ids)]
        encoded = fitting[:_ENCODED_TEXTS]
        route = self.original.route
        request = {
            "folder": str(self.folder.absolute()),
            "tokenizer": str(tokenizer_folder(self.folder, self.folder.name, self.route).absolute()),
            "prompt": self.original.prompt,
            "task": None if route is None else route.task,
            "route": None if route is None else route.route,
            "texts": tokenized,
            "encoded": encoded,
            "original": str(self.source.absolute()),
            "original_tokenizer": str(tokenizer_folder(self.source, self.source.name, self.route).absolute()),
        }
        with tempfile.TemporaryDirectory(prefix="stickytoken-") as elsewhere:
            process = subprocess.run(
                [sys.executable, "-c", _SCRIPT],
                cwd=elsewhere,
                env=os.environ | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"},
                input=json.dumps(request).encode(),
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
        finding = (
            "a process without stickytoken loads the folder with sentence-transformers "
            f"{answer['version']} and computes vectors with a cosine of at least {least_cosine:.6f} to those "
            f"computed here, on {len(encoded)} texts"
        )
        same_vectors = CheckRecord(name="fresh process", passed=least_cosine >= _SAME_COSINE, finding=finding)
        return [same_vectors, _check_loaders(answer, len(tokenized))]

    def _scores(self) -> tuple[list[result.ScoreRecord], CheckRecord]:
        """Score both models on the task.

        Returns:
            The scores that are finite for both models, and the check of the main score, which fails if the
            main score is not finite for one of the models.
        """
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
            if metric in after
        ]
        return records, check_main_score(records, self.task, old_outcomes, new_outcomes, self.seed)


def _measured_record(token: RecheckedToken) -> MeasuredRecord:
    return MeasuredRecord(lift_sd=token.lift_sd, erased=token.erased, verdict=token.verdict.value)


def _check_loaders(answer: Mapping[str, Any], count: int) -> CheckRecord:
    """Check that all ways to load the tokenizer give the same token ids.

    Differences that the model already had before the repair do not fail the check.

    Args:
        answer: the output of the fresh process (see `_SCRIPT`). The entry ``loaders`` lists the names of the
            loaders, such as ``AutoTokenizer``. The entry ``unequal`` maps the name of a loader to the first
            text for which the repair made its token ids differ from those of sentence-transformers. The entry
            ``as_before`` maps the name of a loader to the number of texts for which its token ids already
            differed before the repair. Loaders without differences are left out.
        count: number of texts that were tokenized.

    Returns:
        The record of the check. If the repair made a loader differ, the finding names one loader and one text
        for which it differs. If all differences existed before the repair, the finding mentions them.
    """
    loaders = ", ".join(answer["loaders"])
    first_difference_by_loader = answer["unequal"]
    if first_difference_by_loader:
        loader, text = next(iter(first_difference_by_loader.items()))
        shown_text = visible(text[:_SHOWN_TEXT])
        finding = f"{loader} tokenizes {shown_text!r} differently from sentence-transformers"
        return CheckRecord(name="tokenizers", passed=False, finding=finding)
    finding = f"{loaders} give equal ids for {count:,} texts"
    old_differences_by_loader = answer["as_before"]
    if old_differences_by_loader:
        differing = max(old_differences_by_loader.values())
        finding = (
            f"{loaders} read {count:,} texts as they did before the repair; on {differing:,} of them they "
            "differ from sentence-transformers, because of the model's settings"
        )
    return CheckRecord(name="tokenizers", passed=True, finding=finding)


def check_repaired(measured: Mapping[str, RecheckedToken]) -> CheckRecord:
    """Check that no repaired token is still sticky.

    Args:
        measured: effect of each repaired token in the repaired model, keyed by vocabulary string.
    """
    name = "repaired tokens"
    sticky = {token: after for token, after in measured.items() if after.verdict is Verdict.STICKY}
    if sticky:
        described = [_described(token, after) for token, after in list(sticky.items())[:_SHOWN_TOKENS]]
        finding = f"{len(sticky)} of {len(measured)} repaired tokens are still sticky: {', '.join(described)}"
        return CheckRecord(name=name, passed=False, finding=finding)
    lift = max(after.lift_sd for after in measured.values())
    subject = "repaired token is" if len(measured) == 1 else f"{len(measured)} repaired tokens are"
    finding = f"the {subject} not sticky: at most {LIFT.text(lift)} beyond an ordinary token"
    erased_shares = [after.erased for after in measured.values() if after.erased is not None]
    if erased_shares:
        finding += f", and at most {percent(max(erased_shares))} erased"
    return CheckRecord(name=name, passed=True, finding=finding)


def _described(token: str, after: RecheckedToken) -> str:
    lift = LIFT.text(after.lift_sd)
    if after.erased is None:
        return f"{quoted(token)} ({lift})"
    return f"{quoted(token)} ({percent(after.erased)} erased, {lift})"


def check_neighbours(neighbours: Sequence[NeighbourRecord]) -> CheckRecord:
    """Check that the repair has made no neighbour sticky.

    A sticky neighbour fails the check only if its copies have a clearly larger effect than before the repair:
    the verdict of a neighbour near a threshold may change although the repair did not change its vector.
    """
    sticky = [neighbour for neighbour in neighbours if neighbour.after.verdict == Verdict.STICKY]
    harmed = [neighbour for neighbour in sticky if _acts_more(neighbour)]
    count = counted(len(neighbours), "nearest neighbour")
    if harmed:
        finding = (
            f"of the {count} of repaired tokens, some are sticky, and their copies act more than before: "
            f"{_names(harmed)}"
        )
        return CheckRecord(name="neighbours", passed=False, finding=finding)
    finding = f"none of the {count} of repaired tokens became sticky"
    if sticky:
        finding = (
            f"of the {count} of repaired tokens, some are sticky, but their copies act no more than "
            f"before; they need a repair too: {_names(sticky)}"
        )
    return CheckRecord(name="neighbours", passed=True, finding=finding)


def _acts_more(neighbour: NeighbourRecord) -> bool:
    """Return whether copies of a neighbour clearly lift more or erase more than before the repair."""
    before, after = neighbour.before, neighbour.after
    lifts_more = after.lift_sd > before.lift_sd + _SAME_LIFT
    erases_more = (after.erased or 0.0) > (before.erased or 0.0) + _SAME_ERASED
    return lifts_more or erases_more


def _names(neighbours: Sequence[NeighbourRecord]) -> str:
    return ", ".join(quoted(neighbour.token) for neighbour in neighbours[:_SHOWN_TOKENS])


def _spellings(text: str) -> list[str]:
    """Return texts that contain a token's text in different letter cases and contexts."""
    bare = text.strip()
    forms = dict.fromkeys((text, bare, bare.lower(), bare.upper(), bare.capitalize()))
    frames = ("{}", "river {} stone", "{} {} {}", "river{}stone", "({}).", "\n{}\t{}")
    return [frame.replace("{}", form) for form in forms for frame in frames]


def _least_cosine(ours: NDArray[np.float32], theirs: NDArray[np.float64]) -> float:
    """Return the smallest cosine between corresponding rows. Each row is the vector of a text."""
    our_rows = ours.astype(np.float64)
    norms = np.linalg.norm(our_rows, axis=1) * np.linalg.norm(theirs, axis=1)
    return float(((our_rows * theirs).sum(axis=1) / norms).min())


# The program that the fresh process runs. It reads a request as JSON: the folders of both models and their
# tokenizers, the prompt, the task and the route, the texts to tokenize, and the texts to encode. The last
# line of its output is also JSON: the version of sentence-transformers, the vectors, the names of the
# tokenizer's loaders, and the loaders whose token ids differ from those of sentence-transformers. New
# differences and differences that existed before the repair are listed separately. Remote code is never run.
_SCRIPT = """
import json, sys
sys.modules["stickytoken"] = None
request = json.loads(sys.stdin.buffer.read())
import sentence_transformers
from pathlib import Path
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerFast

texts = request["texts"]

def ids_by_tokenizers(tokenizer):
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return [encoding.ids for encoding in tokenizer.encode_batch(texts, add_special_tokens=True)]

def ids_by_transformers(tokenizer):
    return tokenizer(texts, add_special_tokens=True, truncation=False, verbose=False)["input_ids"]

def ids_of_model(model):
    module = model[0]
    routes = getattr(module, "sub_modules", {})
    if request["route"] in routes:
        module = routes[request["route"]][0]
    if isinstance(module.tokenizer, Tokenizer):
        return ids_by_tokenizers(module.tokenizer)
    return ids_by_transformers(module.tokenizer)

def ids_by_loader(folder):
    ids = {}
    has_config = (folder / "tokenizer_config.json").is_file()
    if (folder / "tokenizer.json").is_file():
        ids["tokenizers"] = ids_by_tokenizers(Tokenizer.from_file(str(folder / "tokenizer.json")))
        if has_config:
            generic = PreTrainedTokenizerFast.from_pretrained(folder)
            ids["PreTrainedTokenizerFast"] = ids_by_transformers(generic)
    if has_config:
        ids["AutoTokenizer"] = ids_by_transformers(AutoTokenizer.from_pretrained(folder))
    return ids

def differing_texts(expected, ids_by_name):
    differing = {}
    for name, ids in ids_by_name.items():
        differing[name] = {i for i in range(len(texts)) if list(ids[i]) != list(expected[i])}
    return differing

model = SentenceTransformer(request["folder"], device="cpu")
options = {"prompt": request["prompt"] or None, "show_progress_bar": False}
if request["task"]:
    options["task"] = request["task"]
vectors = model.encode(request["encoded"], **options)
repaired_ids = ids_by_loader(Path(request["tokenizer"]))
unequal = differing_texts(ids_of_model(model), repaired_ids)
del model
as_before = {}
if any(unequal.values()):
    # The settings of a model may change its tokenizer, for example to lower case. Such differences
    # existed before the repair.
    original = SentenceTransformer(request["original"], device="cpu")
    original_ids = ids_by_loader(Path(request["original_tokenizer"]))
    before = differing_texts(ids_of_model(original), original_ids)
    as_before = {name: len(indices & before.get(name, set())) for name, indices in unequal.items()}
    unequal = {name: indices - before.get(name, set()) for name, indices in unequal.items()}
answer = {
    "version": sentence_transformers.__version__,
    "vectors": [[float(value) for value in row] for row in vectors],
    "unequal": {name: texts[min(indices)] for name, indices in unequal.items() if indices},
    "as_before": {name: count for name, count in as_before.items() if count},
    "loaders": sorted(["sentence-transformers", *repaired_ids]),
}
print()
print(json.dumps(answer))
"""


def _scored(
    encoder: SentenceTransformerEncoder, task: tasks.AnyTask, seed: int
) -> tuple[dict[str, float], Outcomes | None]:
    """Score a model on a task.

    Returns:
        The scores that are finite, keyed by metric, and the outcomes, shape (units, columns). The outcomes
        are None for an MTEB task, which does not provide them.
    """
    if isinstance(task, tasks.MtebTask):
        tasks.load_data(task)
        score = tasks.evaluate(encoder.model, task)
        return ({task.metrics[0]: score} if math.isfinite(score) else {}), None
    vectors = {}
    for role, texts in task.texts.items():
        # No copies are inserted, so no room is left for them.
        fitted_texts = fit_texts(encoder, texts, room=0, insertion=Insertion.TEXT, name=task.name)
        vectors[role] = encoder.encode([fitted.text for fitted in fitted_texts])
    outcomes = task.outcomes(vectors, seed, similarity_of(encoder))
    scores = {}
    for metric in task.metrics:
        # `scores` computes one score per condition, and this model is the only condition.
        (score,) = task.scores(metric, outcomes[np.newaxis]).tolist()
        if math.isfinite(score):
            scores[metric] = score
    return scores, outcomes


def check_main_score(
    records: Sequence[result.ScoreRecord],
    task: tasks.AnyTask,
    before: Outcomes | None,
    after: Outcomes | None,
    seed: int,
) -> CheckRecord:
    """Check the main score of a task (see `check_score`). ``records`` has the scores of both models."""
    main_metric = task.metrics[0]
    for record in records:
        if record.metric == main_metric:
            return check_score(record, task, before, after, seed)
    finding = (
        f"{task.name}, {main_metric}: not a finite number for at least one of the two models, for "
        "example because all similarities are equal: score another task"
    )
    return CheckRecord(name="scores", passed=False, finding=finding)


def check_score(
    main: result.ScoreRecord, task: tasks.AnyTask, before: Outcomes | None, after: Outcomes | None, seed: int
) -> CheckRecord:
    """Check that the main score of a task has not fallen by more than the tolerated loss.

    Args:
        main: the main score of both models, from 0 to 1.
        task: the task that was scored.
        before: outcomes per text of the original model; None if the task does not provide them.
        after: outcomes per text of the repaired model; None if the task does not provide them.
        seed: seed for the bootstrap samples.
    """
    change = main.after - main.before
    finding = f"{task.name}, {main.metric}: {100 * main.before:.2f} before, {100 * main.after:.2f} after"
    if not change:
        return CheckRecord(name="scores", passed=True, finding=f"{finding} (no change)")
    finding += f": it {'rose' if change > 0 else 'fell'} by {100 * abs(change):.2f} points"
    chance_explains = False
    if not isinstance(task, tasks.MtebTask) and before is not None and after is not None:
        # Resample the texts to find out whether the choice of texts alone could explain the change.
        outcomes = np.stack([before, after])
        samples = bootstrap_samples(task.units, _SAMPLES, (seed,))
        scores = resampled(lambda sample: task.scores(main.metric, outcomes, sample), samples)
        (interval,) = contrast_intervals(scores, np.array([[-1.0, 1.0]]), _COVERAGE)
        if interval.low is not None and interval.high is not None:
            chance_explains = interval.low <= 0 <= interval.high
            low = f"{100 * interval.low:+.2f}".replace("-", MINUS)
            high = f"{100 * interval.high:+.2f}".replace("-", MINUS)
            finding += f" (with other {task.unit}, {low} to {high}"
            finding += "; chance alone may explain it)" if chance_explains else ")"
    largest_loss = _EXCUSED_LOSS if chance_explains else _TOLERATED_LOSS
    return CheckRecord(name="scores", passed=change >= -largest_loss, finding=finding)
