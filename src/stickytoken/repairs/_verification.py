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

from stickytoken.data import Sentences, tasks, text_kinds
from stickytoken.data.metrics import Outcomes
from stickytoken.data.readability import drop_indistinguishable
from stickytoken.encoders.files.resolution import text_module
from stickytoken.encoders.fitting import fit_texts
from stickytoken.encoders.protocol import similarity_of
from stickytoken.encoders.roles import Role, encoders_of, in_role
from stickytoken.insertion import Insertion, Token
from stickytoken.intervals import bootstrap_samples, contrast_intervals, resampled
from stickytoken.measurement.engine import Progress
from stickytoken.methods import Verdict
from stickytoken.methods.measures import PUSH
from stickytoken.repairs import result
from stickytoken.repairs.model_folder import RepairableModel
from stickytoken.repairs.recheck import Copies, Recheck, RecheckedToken, describe_effect, find_written_tokens
from stickytoken.repairs.result import CheckRecord, MeasuredRecord, NeighbourRecord, RepairedTokenRecord
from stickytoken.validation import visible
from stickytoken.vocabulary import Vocabulary, categorize
from stickytoken.words import MINUS, counted, percent, quoted

if TYPE_CHECKING:
    from stickytoken.encoders.sentence_transformer import SentenceTransformerEncoder

# A neighbour counts as changed if its push or its erased share rises by more than a limit, which is a fifth
# of the way to the default threshold of the rule. The neighbour's own row is unchanged, so its effects can
# only change because of texts that contain a repaired token.
_SAME_PUSH = 0.1
_SAME_ERASED = 0.08  # share of a text

# The check allows the main score, which ranges from 0 to 1, to fall by at most `_TOLERATED_LOSS` or, if the
# confidence interval of the change contains zero, by at most `_EXCUSED_LOSS`.
_TOLERATED_LOSS = 0.005
_EXCUSED_LOSS = 0.02
# Number of bootstrap samples from which the confidence interval of a change is computed. With 400 samples,
# chance moves the ends of the interval by about a tenth of its width.
_SAMPLES = 400
_COVERAGE = 0.95

# Number of texts whose vectors are compared, in this process and in the fresh one. A few suffice, because a
# wrong weight changes every vector.
_ENCODED_TEXTS = 24
# Number of texts that the fresh process tokenizes, besides spellings of the repaired tokens.
_TOKENIZED_TEXTS = 256
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


def verify(
    original: RepairableModel,
    repaired: RepairableModel,
    before: Recheck,
    tokens: Sequence[RepairedTokenRecord],
    neighbours: Sequence[Neighbour],
    corpus: Sentences,
    task: tasks.AnyTask,
) -> tuple[result.VerificationRecord, list[RepairedTokenRecord]]:
    """Compare a model before and after its repair, in other texts than those of the run and on a task.

    Args:
        original: the model before the repair.
        repaired: the model after the repair.
        before: recheck of the original model, which has the texts, the seed and the progress callback.
        tokens: records of the repaired tokens, without measurements.
        neighbours: tokens whose rows are similar to the repaired tokens' rows.
        corpus: the corpus of the recheck.
        task: task to score before and after the repair.

    Returns:
        The record of the verification, and the tokens with their measurements added.
    """
    progress = before.progress
    kinds = drop_indistinguishable(text_kinds(), original.encoder.tokenizer)
    texts = list(dict.fromkeys((*kinds.texts, *corpus.texts)))
    changes = _Changes(
        original.encoder,
        repaired.encoder,
        repaired_ids={token.token_id for token in tokens},
        replaced_ids={token.token_id for token in tokens if token.strategy in result.ROWS},
    )

    # Measure the tokens and their neighbours in both models. Ordinary tokens take most of the time. They act
    # in the repaired model as in the original one if the repair affects none of the texts of the recheck.
    after = before.of_model(
        repaired.encoder,
        categorize(repaired.encoder.tokenizer),
        "after",
        same_ordinary=changes.affect_none_of(before.texts),
        same_documents=changes.affect_none_of(before.searched_texts),
    )
    as_ids = [Token(token.token_id, token.text) for token in tokens if token.strategy in result.ROWS]
    as_text = [Token(token.token_id, token.text) for token in tokens if token.strategy in result.TOKENIZER]
    copies = Copies(as_ids, find_written_tokens(original.encoder, as_text))
    with_neighbours = copies._replace(as_ids=[*as_ids, *(neighbour.token for neighbour in neighbours)])
    judged_after = after.judge(with_neighbours)
    judged_before = before.judge(with_neighbours)
    curves_before = before.measure_curves(copies)
    curves_after = after.measure_curves(copies)
    ordinary_curve = after.measure_ordinary_curve()

    measured_tokens = []
    for token in tokens:
        curve = result.CurveRecord(
            copies=[0, *after.curve_copies],
            before=curves_before[token.token_id],
            after=curves_after[token.token_id],
            ordinary=ordinary_curve,
        )
        measurements = {
            "before": _make_record(judged_before.tokens[token.token_id]),
            "after": _make_record(judged_after.tokens[token.token_id]),
            "curve": curve,
        }
        measured_tokens.append(token.model_copy(update=measurements))
    vocabulary = after.job.vocabulary
    measured_neighbours = [
        NeighbourRecord(
            token_id=neighbour.token.id,
            token=vocabulary.tokens[vocabulary.place(neighbour.token.id)],
            near=neighbour.repaired_token,
            in_run=neighbour.run_verdict,
            before=_make_record(judged_before.tokens[neighbour.token.id]),
            after=_make_record(judged_after.tokens[neighbour.token.id]),
        )
        for neighbour in neighbours
    ]

    scores, score_check = _check_scores(original, repaired, task, changes, before)
    progress(Progress("compare", 0, 1))
    checks = [
        check_repaired(
            {token.token: judged_after.tokens[token.token_id] for token in tokens},
            judged_after.ordinary_push,
            judged_after.found_without,
        ),
        check_neighbours(measured_neighbours),
        changes.check_other_texts(texts),
        *_check_unreachable(repaired.encoder, tokens, texts),
        *_check_fresh_process(original, repaired, tokens, texts),
        score_check,
    ]
    progress(Progress("compare", 1, 1, 1))
    settings = after.job.settings
    record = result.VerificationRecord(
        ordinary_push=judged_after.ordinary_push,
        found_without=judged_after.found_without,
        ordinary_contraction=judged_after.ordinary_contraction,
        smallest_erased=settings.smallest_erased,
        smallest_push=settings.smallest_push,
        vectors_compared=after.compares_vectors,
        carriers=len(after.plan.carriers),
        anchors=len(after.plan.anchors),
        source=corpus.source,
        neighbours=measured_neighbours,
        scores=scores,
        checks=checks,
    )
    return record, measured_tokens


def _make_record(token: RecheckedToken) -> MeasuredRecord:
    return MeasuredRecord(
        push=token.push, erased=token.erased, found=token.found, verdict=token.verdict.value
    )


@dataclass(frozen=True)
class _Changes:
    """Says which texts a repair affects: those with other token ids than before, or with a repaired token."""

    original: SentenceTransformerEncoder
    repaired: SentenceTransformerEncoder
    repaired_ids: set[int]
    replaced_ids: set[int]  # those with a new vector

    def affect_none_of(self, texts: Sequence[str]) -> bool:
        """Return whether the repair affects none of the texts, as queries or as documents."""
        return self._keeps_prompts() and len(self._keep_unaffected(texts)) == len(texts)

    def _keeps_prompts(self) -> bool:
        # A prompt may have a repaired token, although no query or document has one.
        for role in Role:
            old, new = in_role(self.original, role).template, in_role(self.repaired, role).template
            if old != new or not self.replaced_ids.isdisjoint((*old.before, *old.after)):
                return False
        return True

    def check_other_texts(self, texts: Sequence[str]) -> CheckRecord:
        """Check that texts which the repair does not affect have exactly the same vectors in both models."""
        unaffected = self._keep_unaffected(texts)
        encoded = [text for text, ids in unaffected if self.original.fits(ids)][:_ENCODED_TEXTS]
        before = self.original.encode(encoded)
        after = self.repaired.encode(encoded)
        is_identical = bool(np.array_equal(before, after))
        finding = (
            f"{len(unaffected):,} of {len(texts):,} texts have no repaired token and the same token ids as "
            f"before; the vectors of {len(encoded)} of them are "
        )
        if is_identical:
            finding += "identical"
        else:
            largest = float(np.abs(before.astype(np.float64) - after).max(initial=0.0))
            finding += f"not identical: they differ by up to {largest:.2g}"
        return CheckRecord(name="other texts", passed=is_identical and bool(encoded), finding=finding)

    def _keep_unaffected(self, texts: Sequence[str]) -> list[tuple[str, Sequence[int]]]:
        old_ids = self.original.content_ids(texts)
        new_ids = self.repaired.content_ids(texts)
        return [
            (text, old)
            for text, old, new in zip(texts, old_ids, new_ids, strict=True)
            if old == new and self.repaired_ids.isdisjoint(old)
        ]


def check_repaired(
    measured: Mapping[str, RecheckedToken], ordinary_push: float | None, found_without: float | None
) -> CheckRecord:
    """Check that no repaired token is still sticky.

    Args:
        measured: effect of each repaired token in the repaired model, keyed by vocabulary string.
        ordinary_push: push of an ordinary token.
        found_without: share of the queries that find the document that answers them without copies.
    """
    name = "repaired tokens"
    sticky = {token: after for token, after in measured.items() if after.verdict is Verdict.STICKY}
    if sticky:
        described = [
            f"{quoted(token)} ({describe_effect(after)})"
            for token, after in list(sticky.items())[:_SHOWN_TOKENS]
        ]
        finding = f"{len(sticky)} of {len(measured)} repaired tokens are still sticky: {', '.join(described)}"
        return CheckRecord(name=name, passed=False, finding=finding)
    unmeasured = [token for token, after in measured.items() if after.push is None and after.erased is None]
    if unmeasured:
        finding = (
            f"{counted(len(unmeasured), 'repaired token')} could not be measured, because the texts do not "
            f"suffice for documents: {', '.join(map(quoted, unmeasured[:_SHOWN_TOKENS]))}; pass more texts"
        )
        return CheckRecord(name=name, passed=False, finding=finding)
    subject = "repaired token is" if len(measured) == 1 else f"{len(measured)} repaired tokens are"
    findings = []
    erased_shares = [after.erased for after in measured.values() if after.erased is not None]
    if erased_shares:
        findings.append(f"at most {percent(max(erased_shares))} erased")
    pushes = [after.push for after in measured.values() if after.push is not None]
    if pushes:
        ordinary = "" if ordinary_push is None else f" ({PUSH.text(ordinary_push)} with an ordinary token)"
        findings.append(f"documents in at most {PUSH.text(max(pushes))} as many wrong results{ordinary}")
    found_shares = [after.found for after in measured.values() if after.found is not None]
    if found_shares and found_without is not None:
        least = percent(min(found_shares))
        findings.append(
            f"found by at least {least} of their queries ({percent(found_without)} without copies)"
        )
    finding = f"the {subject} not sticky: {', '.join(findings)}" if findings else f"the {subject} not sticky"
    return CheckRecord(name=name, passed=True, finding=finding)


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
    before, after = neighbour.before, neighbour.after
    pushes_more = (after.push or 0.0) > (before.push or 0.0) + _SAME_PUSH
    erases_more = (after.erased or 0.0) > (before.erased or 0.0) + _SAME_ERASED
    return pushes_more or erases_more


def _names(neighbours: Sequence[NeighbourRecord]) -> str:
    return ", ".join(quoted(neighbour.token) for neighbour in neighbours[:_SHOWN_TOKENS])


def _check_unreachable(
    repaired: SentenceTransformerEncoder, tokens: Sequence[RepairedTokenRecord], texts: Sequence[str]
) -> list[CheckRecord]:
    names = {token.token_id: token.token for token in tokens if token.strategy in result.TOKENIZER}
    if not names:
        return []
    every_text = list(texts)
    for token in tokens:
        if token.token_id in names:
            every_text += _make_test_texts(token.text)
    for text, ids in zip(every_text, repaired.tokenizer.encode_many(every_text), strict=True):
        reached = [names[token_id] for token_id in ids if token_id in names]
        if reached:
            finding = f"{visible(text[:_SHOWN_TEXT])!r} still becomes {visible(reached[0])!r}"
            return [CheckRecord(name="unreachable", passed=False, finding=finding)]
    entries = "the entry" if len(names) == 1 else f"any of the {len(names)} entries"
    finding = f"none of {len(every_text):,} texts, including spellings of the tokens, produces {entries}"
    return [CheckRecord(name="unreachable", passed=True, finding=finding)]


def _make_test_texts(token_text: str) -> list[str]:
    """Return texts that a tokenizer is most likely to read as the token, or to read in different ways."""
    bare = token_text.strip()
    forms = dict.fromkeys((token_text, bare, bare.lower(), bare.upper(), bare.capitalize()))
    frames = ("{}", "river {} stone", "{} {} {}", "river{}stone", "({}).", "\n{}\t{}")
    return [frame.replace("{}", form) for form in forms for frame in frames]


def _check_fresh_process(
    original: RepairableModel,
    repaired: RepairableModel,
    tokens: Sequence[RepairedTokenRecord],
    texts: Sequence[str],
) -> list[CheckRecord]:
    """Load the repaired model in a new process without stickytoken; compare vectors and token ids.

    Returns:
        A check that the model loads and gives the same vectors. If the model loads, the list also has a check
        that all ways to load its tokenizer give the same token ids.
    """
    texts_with_tokens = [text for token in tokens for text in _make_test_texts(token.text)]
    tokenized = [*texts_with_tokens, *texts[:_TOKENIZED_TEXTS]]
    all_ids = repaired.encoder.content_ids(texts)
    fitting = [text for text, ids in zip(texts, all_ids, strict=True) if repaired.encoder.fits(ids)]
    encoded = fitting[:_ENCODED_TEXTS]
    route = original.encoder.route
    request = {
        "folder": str(repaired.folder.absolute()),
        "tokenizer": str(_tokenizer_folder(repaired.folder, original.named_route)),
        "prompt": original.encoder.prompt,
        "task": None if route is None else route.task,
        "route": None if route is None else route.route,
        "texts": tokenized,
        "encoded": encoded,
        "original": str(original.folder.absolute()),
        "original_tokenizer": str(_tokenizer_folder(original.folder, original.named_route)),
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
    ours = repaired.encoder.encode(encoded).astype(np.float64)
    theirs = np.array(answer["vectors"])
    norms = np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1)
    least_cosine = float(((ours * theirs).sum(axis=1) / norms).min())
    finding = (
        "a process without stickytoken loads the folder with sentence-transformers "
        f"{answer['version']} and computes vectors with a cosine of at least {least_cosine:.6f} to those "
        f"computed here, on {len(encoded)} texts"
    )
    same_vectors = CheckRecord(name="fresh process", passed=least_cosine >= _SAME_COSINE, finding=finding)
    return [same_vectors, _check_loaders(answer, len(tokenized))]


def _tokenizer_folder(model: Path, route: str | None) -> Path:
    return text_module(model, model.name, route).folder.absolute()


def _check_loaders(answer: Mapping[str, Any], count: int) -> CheckRecord:
    """Check that all ways to load the tokenizer give the same token ids.

    Differences that the model already had before the repair do not fail the check.

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


def _check_scores(
    original: RepairableModel,
    repaired: RepairableModel,
    task: tasks.AnyTask,
    changes: _Changes,
    recheck: Recheck,
) -> tuple[list[result.ScoreRecord], CheckRecord]:
    """Score both models on the task, unless the repair affects none of its texts.

    Returns:
        The scores that are finite for both models, and the check of the main score. If no text of the task is
        affected, the models have the same scores, which are not computed.
    """
    task_texts: list[str] = []
    if not isinstance(task, tasks.MtebTask):
        task_texts = [text for texts_of_role in task.texts.values() for text in texts_of_role]
        if changes.affect_none_of(task_texts):
            finding = (
                f"{task.name}: none of its {len(task_texts):,} texts has a repaired token or other token ids "
                "than before, so no score changes"
            )
            return [], CheckRecord(name="scores", passed=True, finding=finding)
    seed = recheck.job.settings.seed
    recheck.progress(Progress("score", 0, 2))
    before, old_outcomes = _score(original.encoder, task, seed)
    recheck.progress(Progress("score", 1, 2))
    after, new_outcomes = _score(repaired.encoder, task, seed)
    recheck.progress(Progress("score", 2, 2, 2))
    records = [
        result.ScoreRecord(
            task=task.name, metric=metric, texts=len(task_texts), before=score, after=after[metric]
        )
        for metric, score in before.items()
        if metric in after
    ]
    return records, check_main_score(records, task, old_outcomes, new_outcomes, seed)


def _score(
    encoder: SentenceTransformerEncoder, task: tasks.AnyTask, seed: int
) -> tuple[dict[str, float], Outcomes | None]:
    """Score a model on a task.

    Returns:
        The scores that are finite, keyed by metric, and the outcomes, shape (units, columns). The outcomes
        are None for an MTEB task, which does not provide them.
    """
    if isinstance(task, tasks.MtebTask):
        tasks.load_data(task)
        score = tasks.evaluate(tasks.require_module(encoder), task)
        return ({task.metrics[0]: score} if math.isfinite(score) else {}), None
    vectors = {}
    encoders = encoders_of(encoder, task.texts, has_queries=task.has_queries)
    for role, texts in task.texts.items():
        # No copies are inserted, so no room is left for them.
        fitted_texts = fit_texts(encoders[role], texts, room=0, insertion=Insertion.TEXT, name=task.name)
        vectors[role] = encoders[role].encode([fitted.text for fitted in fitted_texts])
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
    """Check that the main score of a task has not fallen by more than the tolerated loss.

    Args:
        records: the scores that are finite for both models, each from 0 to 1.
        task: the task that was scored.
        before: outcomes per text of the original model; None if the task does not provide them.
        after: outcomes per text of the repaired model; None if the task does not provide them.
        seed: seed for the bootstrap samples.
    """
    main = next((record for record in records if record.metric == task.metrics[0]), None)
    if main is None:
        finding = (
            f"{task.name}, {task.metrics[0]}: not a finite number for at least one of the two models, for "
            "example because all similarities are equal: score another task"
        )
        return CheckRecord(name="scores", passed=False, finding=finding)
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
