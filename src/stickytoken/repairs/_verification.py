"""Verify a repaired model: measure its tokens in new texts, and check that nothing else has changed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from stickytoken.data import tasks, text_kinds
from stickytoken.data.metrics import Outcomes
from stickytoken.data.readability import drop_indistinguishable
from stickytoken.detection.run import Run
from stickytoken.encoders.roles import Role, in_role
from stickytoken.encoders.scoring import encoders_of, score_task, truncate_texts
from stickytoken.errors import RepairError
from stickytoken.insertion import Token
from stickytoken.intervals import bootstrap_samples, contrast_intervals, resampled
from stickytoken.measurement.engine import Progress, ProgressCallback
from stickytoken.methods import Verdict
from stickytoken.methods.measures import PUSH
from stickytoken.repairs._fresh_process import ENCODED_TEXTS, SHOWN_TEXT, check_fresh_process
from stickytoken.repairs.model_folder import RepairableModel
from stickytoken.repairs.recheck import Recheck, group_copies
from stickytoken.repairs.records import (
    ROW_STRATEGIES,
    TOKENIZER_STRATEGIES,
    CheckRecord,
    MeasuredRecord,
    NeighbourRecord,
    RepairedTokenRecord,
    ScoreRecord,
    VerificationRecord,
)
from stickytoken.settings.repair import Strategy
from stickytoken.validation import visible
from stickytoken.vocabulary import Vocabulary, categorize
from stickytoken.words import MINUS, counted, percent, quoted

if TYPE_CHECKING:
    from stickytoken.encoders.sentence_transformer import SentenceTransformerEncoder

# Number of neighbours (tokens with the nearest rows) to verify for each repaired token.
NEIGHBOURS = 2
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

# Maximum number of tokens that a finding quotes.
_SHOWN_TOKENS = 5


class Neighbour(NamedTuple):
    """A token whose row is near the row of a repaired token."""

    token: Token
    repaired_token: str  # vocabulary string of the repaired token
    run_verdict: str | None  # verdict of the run on the neighbour; None if it has no verdict


def find_neighbours(
    model: RepairableModel, vocabulary: Vocabulary, ids: Sequence[int], run: Run
) -> list[Neighbour]:
    """Find the tokens whose rows have the largest cosines with the repaired tokens' rows.

    Args:
        model: the model before the repair.
        vocabulary: vocabulary of the model.
        ids: ids of the tokens to repair. None of them is a neighbour of another.
        run: the run of the model.

    Returns:
        At most `NEIGHBOURS` neighbours per token, each listed once, as a neighbour of the first token that it
        is near to; none if the model does not expose its embedding matrix.

    Raises:
        RepairError: the model has no row for a token to repair, so that it cannot encode copies of it.
    """
    matrix = model.embedding_matrix()
    if matrix is None:
        return []
    judged = run.tokens.filter(pl.col("verdict").is_not_null())
    verdicts = dict(judged.select("token_id", "verdict").iter_rows())
    others = [token for token in vocabulary.available if token.id not in ids and token.id < len(matrix)]
    other_ids = np.array([token.id for token in others], dtype=np.intp)
    norms = np.maximum(np.linalg.norm(matrix, axis=1), np.finfo(np.float32).tiny)
    neighbours: dict[int, Neighbour] = {}
    for token_id in ids:
        repaired_token = vocabulary.tokens[vocabulary.index_of(token_id)]
        if token_id >= len(matrix):
            raise RepairError(
                f"the model has no row for token {repaired_token!r} (id {token_id}), so it cannot encode "
                "copies of it to verify the repair: leave the token out, or do not verify the repair"
            )
        # These are cosines times the norm of the repaired token's row, a constant that does not change the
        # order.
        cosines = (matrix @ matrix[token_id]) / norms
        nearest = np.argsort(-cosines[other_ids])[:NEIGHBOURS].tolist()  # indices into `others`
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
    task: tasks.AnyTask,
) -> tuple[VerificationRecord, list[RepairedTokenRecord]]:
    """Compare a model before and after its repair, in other texts than those of the run and on a task.

    Args:
        original: the model before the repair.
        repaired: the model after the repair.
        before: recheck of the original model, which has the corpus, the seed and the progress callback.
        tokens: records of the repaired tokens, without measurements.
        neighbours: tokens whose rows are similar to the repaired tokens' rows.
        task: task to score before and after the repair.

    Returns:
        The record of the verification, and the tokens with their measurements added.
    """
    progress = before.progress
    kinds = drop_indistinguishable(text_kinds(), original.encoder.tokenizer)
    texts = list(dict.fromkeys((*kinds.texts, *before.corpus.texts)))
    changes = _Changes(
        original.encoder,
        repaired.encoder,
        repaired_ids={token.token_id for token in tokens},
        replaced_ids={token.token_id for token in tokens if token.strategy in ROW_STRATEGIES},
    )

    # Measure the tokens and their neighbours in both models. Ordinary tokens take most of the time, so they
    # are measured again only if the repair affects a text of the recheck: otherwise, they act as before.
    after = before.of_model(
        repaired.encoder,
        categorize(repaired.encoder.tokenizer),
        "after",
        same_ordinary=changes.affect_none_of(before.plan.carriers),
        same_documents=changes.affect_none_of(before.searched_texts),
    )
    strategy_of = {Token(token.token_id, token.text): Strategy(token.strategy) for token in tokens}
    copies = group_copies(original.encoder, strategy_of)
    neighbouring_tokens = [neighbour.token for neighbour in neighbours]
    with_neighbours = copies._replace(as_ids=[*copies.as_ids, *neighbouring_tokens])
    judged_after = after.judge(with_neighbours)
    judged_before = before.judge(with_neighbours)
    measured_tokens = []
    for token in tokens:
        measurements = {
            "before": judged_before.tokens[token.token_id],
            "after": judged_after.tokens[token.token_id],
        }
        measured_tokens.append(token.model_copy(update=measurements))
    vocabulary = after.vocabulary
    measured_neighbours = [
        NeighbourRecord(
            token_id=neighbour.token.id,
            token=vocabulary.tokens[vocabulary.index_of(neighbour.token.id)],
            near=neighbour.repaired_token,
            in_run=neighbour.run_verdict,
            before=judged_before.tokens[neighbour.token.id],
            after=judged_after.tokens[neighbour.token.id],
        )
        for neighbour in neighbours
    ]

    other_texts = texts
    if any(token.strategy in TOKENIZER_STRATEGIES for token in tokens):
        other_texts = texts + spell_other_added(original.encoder, changes.repaired_ids)
    settings = after.settings
    scores, score_check = _check_scores(original, repaired, task, changes, settings.seed, progress)
    progress(Progress("compare", 0, 1))
    checks = [
        check_repaired(
            {token.token: judged_after.tokens[token.token_id] for token in tokens},
            judged_after.ordinary_push,
            judged_after.found_without,
        ),
        check_neighbours(measured_neighbours),
        changes.check_other_texts(other_texts),
    ]
    # What the tokenizer doesn't know still becomes its unknown token, even if this is plain text as typed.
    unknown_id = repaired.encoder.tokenizer.unknown_id
    unreached_tokens = [
        token for token in tokens if token.strategy in TOKENIZER_STRATEGIES and token.token_id != unknown_id
    ]
    if unreached_tokens:
        checks.append(_check_unreachable(repaired.encoder, unreached_tokens, texts))
    texts_with_tokens = [text for token in tokens for text in texts_with(token.text)]
    checks += check_fresh_process(original, repaired, texts_with_tokens, texts)
    checks.append(score_check)
    progress(Progress("compare", 1, 1, 1))
    record = VerificationRecord(
        ordinary_push=judged_after.ordinary_push,
        found_without=judged_after.found_without,
        ordinary_contraction=judged_after.ordinary_contraction,
        smallest_erased=settings.smallest_erased,
        smallest_push=settings.smallest_push,
        vectors_compared=after.compares_vectors,
        carriers=len(after.plan.carriers),
        source=before.corpus.source,
        neighbours=measured_neighbours,
        scores=scores,
        checks=checks,
    )
    return record, measured_tokens


@dataclass(frozen=True)
class _Changes:
    """Says which texts a repair affects: those with other token ids than before, or with a repaired token."""

    original: SentenceTransformerEncoder
    repaired: SentenceTransformerEncoder
    repaired_ids: set[int]  # ids of the repaired tokens
    replaced_ids: set[int]  # ids of the repaired tokens that have a new row

    def affect_none_of(self, texts: Sequence[str]) -> bool:
        """Return whether the repair affects neither the prompts nor any of these texts."""
        return self._keeps_prompts() and all(
            old_ids == new_ids and self.repaired_ids.isdisjoint(old_ids)
            for _text, old_ids, new_ids in _read_with_both(texts, self.original, self.repaired)
        )

    def _keeps_prompts(self) -> bool:
        # A prompt may contain a repaired token, although no query or document does.
        for original, repaired in self._pair_encoders():
            old_template = original.template
            ids_around_texts = (*old_template.before, *old_template.after)
            if old_template != repaired.template or not self.replaced_ids.isdisjoint(ids_around_texts):
                return False
            ((_text, old_ids, new_ids),) = _read_with_both([""], original, repaired)  # the prompt alone
            if old_ids != new_ids or not self.repaired_ids.isdisjoint(old_ids):
                return False
        return True

    def _pair_encoders(self) -> list[tuple[SentenceTransformerEncoder, SentenceTransformerEncoder]]:
        pairs = [(self.original, self.repaired)]
        # Queries have other encoders only if they are encoded otherwise than documents.
        for role in Role:
            of_role = in_role(self.original, role)
            if all(of_role is not original for original, _ in pairs):
                pairs.append((of_role, in_role(self.repaired, role)))
        return pairs

    def check_other_texts(self, texts: Sequence[str]) -> CheckRecord:
        """Check that texts without a repaired token have the same token ids and vectors in both models.

        They are compared as documents and as queries, each with its prompt.
        """
        checks = [
            self._check_other_texts_of(original, repaired, texts)
            for original, repaired in self._pair_encoders()
        ]
        return next((check for check in checks if not check.passed), checks[0])

    def _check_other_texts_of(
        self,
        original: SentenceTransformerEncoder,
        repaired: SentenceTransformerEncoder,
        texts: Sequence[str],
    ) -> CheckRecord:
        others = [
            (text, old_ids, new_ids)
            for text, old_ids, new_ids in _read_with_both(texts, original, repaired)
            if self.repaired_ids.isdisjoint(old_ids)
        ]
        behind = f" behind the prompt {visible(original.prompt)!r}" if original.prompt else ""
        changed = [text for text, old_ids, new_ids in others if old_ids != new_ids]
        if changed:
            finding = (
                f"{len(changed):,} of {len(others):,} texts without a repaired token{behind} have other "
                f"token ids than before, such as {visible(changed[0][:SHOWN_TEXT])!r}"
            )
            return CheckRecord(name="other texts", passed=False, finding=finding)
        encoded = [text for text, ids, _same_ids in others if original.fits(ids)][:ENCODED_TEXTS]
        finding = (
            f"{len(others):,} of {len(texts):,} texts{behind} have no repaired token and the same token ids "
            "as before"
        )
        if not encoded:  # the repair may affect all texts, for example by the prompt
            finding += ", so no vectors could be compared"
            return CheckRecord(name="other texts", passed=False, finding=finding)
        before = original.encode(encoded)
        after = repaired.encode(encoded)
        is_identical = bool(np.array_equal(before, after))
        finding += f"; the vectors of {len(encoded)} of them are "
        if is_identical:
            finding += "identical"
        else:
            largest = float(np.abs(before.astype(np.float64) - after).max(initial=0.0))
            finding += f"not identical: they differ by up to {largest:.2g}"
        return CheckRecord(name="other texts", passed=is_identical, finding=finding)


def _read_with_both(
    texts: Sequence[str], original: SentenceTransformerEncoder, repaired: SentenceTransformerEncoder
) -> Iterator[tuple[str, Sequence[int], Sequence[int]]]:
    # The ids of a text include those of the prompt before it.
    return zip(texts, original.content_ids(texts), repaired.content_ids(texts), strict=True)


def check_repaired(
    measured: Mapping[str, MeasuredRecord], ordinary_push: float | None, found_without: float | None
) -> CheckRecord:
    """Check that no repaired token is still sticky.

    Args:
        measured: effect of each repaired token in the repaired model, keyed by vocabulary string.
        ordinary_push: push of an ordinary token.
        found_without: share of the queries that find the document that answers them without copies.
    """
    name = "repaired tokens"
    sticky = {token: after for token, after in measured.items() if after.verdict == Verdict.STICKY}
    if sticky:
        shown = list(sticky.items())[:_SHOWN_TOKENS]
        described = [f"{quoted(token)} ({after.in_words()})" for token, after in shown]
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
    finding = f"the {subject} not sticky: {', '.join(findings)}"
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
            f"{_list_names(harmed)}"
        )
        return CheckRecord(name="neighbours", passed=False, finding=finding)
    finding = f"none of the {count} of repaired tokens became sticky"
    if sticky:
        finding = (
            f"of the {count} of repaired tokens, some are sticky, but their copies act no more than "
            f"before; they need a repair too: {_list_names(sticky)}"
        )
    return CheckRecord(name="neighbours", passed=True, finding=finding)


def _acts_more(neighbour: NeighbourRecord) -> bool:
    before = neighbour.before
    after = neighbour.after
    # A measure that is unknown in both models counts as 0.
    pushes_more = (after.push or 0.0) > (before.push or 0.0) + _SAME_PUSH
    erases_more = (after.erased or 0.0) > (before.erased or 0.0) + _SAME_ERASED
    return pushes_more or erases_more


def _list_names(neighbours: Sequence[NeighbourRecord]) -> str:
    return ", ".join(quoted(neighbour.token) for neighbour in neighbours[:_SHOWN_TOKENS])


def _check_unreachable(
    repaired: SentenceTransformerEncoder,
    unreached_tokens: Sequence[RepairedTokenRecord],
    texts: Sequence[str],
) -> CheckRecord:
    """Check that neither the given texts nor spellings of the tokens become one of the tokens.

    No other check asks that. An edit of the tokenizer follows rules, and the loaded model shows whether they
    were enough.
    """
    name_of = {token.token_id: token.token for token in unreached_tokens}
    every_text = list(texts)
    for token in unreached_tokens:
        every_text += texts_with(token.text)
    for text, ids in zip(every_text, repaired.tokenizer.encode_many(every_text), strict=True):
        produced = [name_of[token_id] for token_id in ids if token_id in name_of]
        if produced:
            finding = f"{visible(text[:SHOWN_TEXT])!r} still becomes {visible(produced[0])!r}"
            return CheckRecord(name="unreachable", passed=False, finding=finding)
    entries = "the entry" if len(name_of) == 1 else f"any of the {len(name_of)} entries"
    finding = f"none of {len(every_text):,} texts, including spellings of the tokens, produces {entries}"
    return CheckRecord(name="unreachable", passed=True, finding=finding)


def _check_scores(
    original: RepairableModel,
    repaired: RepairableModel,
    task: tasks.AnyTask,
    changes: _Changes,
    seed: int,
    progress: ProgressCallback,
) -> tuple[list[ScoreRecord], CheckRecord]:
    """Score both models on the task, unless the repair affects none of its texts.

    Returns:
        The scores that are finite for both models, and the check of the main score. If no text of the task is
        affected, the models have the same scores, which are not computed.
    """
    task_texts: list[str] = []  # unknown for an MTEB task, which is always scored
    if not isinstance(task, tasks.MtebTask):
        task_texts = [text for texts_of_role in task.texts.values() for text in texts_of_role]
        if changes.affect_none_of(task_texts):
            finding = (
                f"{task.name}: none of its {len(task_texts):,} texts has a repaired token or other token ids "
                "than before, so no score changes"
            )
            return [], CheckRecord(name="scores", passed=True, finding=finding)
    progress(Progress("score", 0, 2))
    before, outcomes_before = _score(original.encoder, task, seed)
    progress(Progress("score", 1, 2))
    after, outcomes_after = _score(repaired.encoder, task, seed)
    progress(Progress("score", 2, 2, 2))
    records = [
        ScoreRecord(task=task.name, metric=metric, texts=len(task_texts), before=score, after=after[metric])
        for metric, score in before.items()
        if metric in after
    ]
    return records, check_main_score(records, task, outcomes_before, outcomes_after, seed)


def _score(
    encoder: SentenceTransformerEncoder, task: tasks.AnyTask, seed: int
) -> tuple[dict[str, float], Outcomes | None]:
    """Return a model's finite scores on a task, keyed by metric, and the outcomes, shape (units, columns).

    The outcomes are None for an MTEB task.
    """
    if isinstance(task, tasks.MtebTask):
        tasks.load_data(task)
        score = tasks.evaluate(tasks.require_module(encoder), task)
        return ({task.metrics[0]: score} if math.isfinite(score) else {}), None
    texts, _ = truncate_texts(encoder, task)
    scores, outcomes = score_task(task, encoders_of(encoder, task), texts, seed)
    return {metric: score for metric, score in scores.items() if math.isfinite(score)}, outcomes


def check_main_score(
    records: Sequence[ScoreRecord],
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
    main_metric = task.metrics[0]
    main = next((record for record in records if record.metric == main_metric), None)
    if main is None:
        finding = (
            f"{task.name}, {main_metric}: not a finite number for at least one of the two models, for "
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
        scores = resampled(lambda sample: task.scores(main_metric, outcomes, sample), samples)
        after_minus_before = np.array([[-1.0, 1.0]])  # one contrast, with a weight for each model
        (interval,) = contrast_intervals(scores, after_minus_before, _COVERAGE)
        if interval.low is not None and interval.high is not None:
            chance_explains = interval.low <= 0 <= interval.high
            low = f"{100 * interval.low:+.2f}".replace("-", MINUS)
            high = f"{100 * interval.high:+.2f}".replace("-", MINUS)
            finding += f" (with other {task.unit}, {low} to {high}"
            finding += "; chance alone may explain it)" if chance_explains else ")"
    largest_loss = _EXCUSED_LOSS if chance_explains else _TOLERATED_LOSS
    return CheckRecord(name="scores", passed=change >= -largest_loss, finding=finding)


def texts_with(token: str) -> list[str]:
    """Return texts that a tokenizer is most likely to read as a token, or to read in different ways.

    Args:
        token: the text of the token.
    """
    bare = token.strip()
    forms = dict.fromkeys((token, bare, bare.lower(), bare.upper(), bare.capitalize()))
    frames = ("{}", "river {} stone", "{} {} {}", "river{}stone", "({}).", "\n{}\t{}")
    return [frame.replace("{}", form) for form in forms for frame in frames]


def spell_other_added(original: SentenceTransformerEncoder, repaired_ids: Set[int]) -> list[str]:
    """Return texts with each special or added token that is not repaired, in several spellings.

    An edited tokenizer must find the token in the same ones of them as the original.
    """
    tokenizer = original.own_tokenizer
    other_ids = (tokenizer.marked_ids | tokenizer.added_ids) - repaired_ids
    return [text for token_id in sorted(other_ids) for text in texts_with(tokenizer.entries[token_id])]
