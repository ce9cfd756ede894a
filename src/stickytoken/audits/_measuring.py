"""Measure the tokens and documents of an audit, and write its tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stickytoken.audits import _copies, _index, _stuffing, results
from stickytoken.audits._job import AuditJob
from stickytoken.audits._stuffing import Stuffed
from stickytoken.audits._tokens import choose_tokens, predict_push_by_id
from stickytoken.audits.results import AuditRecord, AuditResultRecord
from stickytoken.encoders.protocol import confirm_answers, is_behind_endpoint
from stickytoken.insertion import Token
from stickytoken.intervals import Interval, Intervals
from stickytoken.measurement import resume
from stickytoken.methods import Verdict
from stickytoken.methods.measures import ERASED, PUSH, thresholds
from stickytoken.methods.profile.verdict import (
    RuleInputs,
    compute_lost_shares,
    judge_against_ordinary_copies,
    severity_rank,
)
from stickytoken.methods.runner import Runner
from stickytoken.methods.wording import harm_shares
from stickytoken.scanning.scan import scan
from stickytoken.scanning.wording import certain_kinds
from stickytoken.settings.profile import RuleSettings
from stickytoken.words import counted, percent, quoted


def measure(job: AuditJob, runner: Runner, held: resume.Resumed[AuditRecord]) -> None:
    """Measure tokens and documents, write the tables, and finish the record.

    Copies of each token are inserted into random documents. The documents that already contain copies are
    ranked with and without these copies.

    Args:
        job: what is measured.
        runner: encodes texts, keeps their vectors in the folder of the audit, and reports progress.
        held: the folder of the audit, and its record.
    """
    index = job.index
    settings = job.settings
    candidates = job.candidates
    # Which documents have copies now?
    texts = [{"id": document.id, "text": document.text} for document in index.documents]
    collection = pl.DataFrame(texts, schema={"id": pl.String, "text": pl.String})
    scanned = scan(job.cleaner, collection, column="text", id_column="id", progress=runner.progress)
    numbers_with_copies = set(scanned.documents["number"].to_list())

    # What do copies of a token do to documents that have none?
    positions = _stuffing.choose_stuffed(index, numbers_with_copies, settings)
    search = _index.encode_index(index, job.encoder, settings, runner)
    panel = _stuffing.prepare_panel(job, search, positions.for_every_token, runner, "without copies")
    predicted = predict_push_by_id(candidates, panel)
    copied_words = _copies.list_copied_words(scanned)
    group_by_id = choose_tokens(job.run, candidates, predicted, copied_words, settings)
    tokens = [candidates.tokens[token_id] for token_id in group_by_id]
    stuffed = _stuffing.measure_stuffed(job, runner, tokens, panel, "in documents")
    # Both compare pushes in the same documents, so they are computed before some tokens are measured in more.
    ordinary_push = _find_ordinary_push(stuffed, group_by_id)
    times_ordinary = {
        token_id: measured.push.value / ordinary_push if ordinary_push else None
        for token_id, measured in stuffed.items()
    }
    measures_of_run = _join_run(list(stuffed), job.run.tokens)
    # A token that may push is judged by more documents, whether or not these few would flag it: otherwise, it
    # would have two chances to be flagged by accident.
    may_push = []
    has_more_documents = len(positions.for_tokens_that_may_push) > len(positions.for_every_token)
    # Behind an endpoint every text costs, and the estimate that the user has confirmed has no such texts.
    if has_more_documents and not is_behind_endpoint(job.encoder):
        may_push = _find_tokens_that_may_push(job, stuffed, measures_of_run)
    if may_push:
        larger_panel = _stuffing.prepare_panel(
            job, search, positions.for_tokens_that_may_push, runner, "more without copies", panel.depth
        )
        stuffed_in_more = _stuffing.measure_stuffed(job, runner, may_push, larger_panel, "in more documents")
        for token_id, in_more in stuffed_in_more.items():
            # Which queries find their documents is not replaced: it is compared with all random tokens, and
            # few of these, if any, were measured in more documents.
            stuffed[token_id] = in_more._replace(found=stuffed[token_id].found)
    token_rows = _make_token_rows(job, group_by_id, predicted, stuffed, measures_of_run, times_ordinary)

    # What do the copies do to the documents that have them? First sentences beside a user's queries, which
    # come last, do not count: they only show whether their own documents are found.
    search_by_asked = replace(search, queries=search.queries[: index.queries.asked])
    document_rows = _copies.rank_documents(job, runner, scanned, search_by_asked)
    tables = {
        "tokens.parquet": token_rows,
        "documents.parquet": document_rows,
    }
    for name, rows in tables.items():
        held.folder.write_table(name, pl.DataFrame(rows, results.TABLES[name]))

    notes = [*held.record.notes, *candidates.notes]
    unmeasured_ids = runner.unanswered.keys() - stuffed.keys()
    if unmeasured_ids:
        count = counted(len(unmeasured_ids), "token")
        notes.append(f"{count} could not be measured, because the server gives no vector for a document")
    left_out = [token for token in tokens if token.id not in stuffed and token.id not in unmeasured_ids]
    notes += _note_what_was_left_out(job, stuffed, left_out, len(positions.for_every_token))
    is_found_without = panel.is_found  # one entry for each pair of a query and a document that answers it
    ordinary_found = _average_ordinary_found(token_rows)
    if ordinary_found == 0:
        notes.append(
            "no query finds a document that answers it with copies of a random token "
            f"({percent(float(is_found_without.mean()))} do without copies), so no token can be seen to hide "
            "documents: whether it does is judged by the run alone"
        )
    further_ids = []
    if may_push:
        further_ids = [index.document_at(position).id for position in positions.for_tokens_that_may_push]
    result = AuditResultRecord(
        depth=panel.depth,
        results_without=_stuffing.count_results_without(panel) / len(positions.for_every_token),
        ordinary_push=ordinary_push,
        answers=len(is_found_without),
        found_without=float(is_found_without.mean()) if len(is_found_without) else None,
        ordinary_found=ordinary_found,
        stuffed_ids=[index.document_at(position).id for position in positions.for_every_token],
        further_tokens=len(may_push),
        further_ids=further_ids,
        predicted=len(predicted),
        sticky=sum(row["verdict"] == Verdict.STICKY for row in token_rows),
        with_copies=scanned.result.found,
        suspected=scanned.result.suspected,
        causes=certain_kinds(scanned.result.kinds),
        searched=scanned.result.documents,
        ranked=sum(row["change"] is not None for row in document_rows),
        sequences=held.folder.total_cost().sequences,
        seconds=round(held.folder.seconds, 1),
    )
    confirm_answers(job.encoder)
    # If a table of a finished audit was deleted, its record has the notes already.
    notes = list(dict.fromkeys(notes))
    held.finish(held.record.model_copy(update={"result": result, "notes": notes}))


# Maximum number of tokens that a note names as left out.
_NAMED_LEFT_OUT = 5


def _note_what_was_left_out(
    job: AuditJob, stuffed: Mapping[int, Stuffed], left_out: Sequence[Token], documents: int
) -> list[str]:
    """Return notes on flagged tokens for which there was no room, and on chosen ones that all queries have.

    ``documents`` is the number of documents that received copies of every token.
    """
    notes = []
    flagged_ids = job.run.sticky["token_id"].to_list()
    # Some of those for which the group of flagged tokens has no room are measured in another group.
    measured_count = len(stuffed.keys() & set(flagged_ids))
    has_no_room = len(flagged_ids) > job.settings.tokens and measured_count < len(flagged_ids)
    if job.candidates.named_ids is None and has_no_room:
        notes.append(
            f"{len(flagged_ids)} tokens are flagged, of which {counted(measured_count, 'was', 'were')} "
            "measured (--set tokens=NUMBER measures more)"
        )
    if left_out:
        names = ", ".join(quoted(token.text.strip()) for token in left_out[:_NAMED_LEFT_OUT])
        more = f" and {len(left_out) - _NAMED_LEFT_OUT} more" if len(left_out) > _NAMED_LEFT_OUT else ""
        notes.append(
            f"not measured, because no query without the token has one of the {documents} documents among "
            f"its wrong results: {names}{more}"
        )
    return notes


# Columns that a token has in a run of profile, and keeps in an audit.
_COLUMNS_OF_RUN = ("erased", "erased_low", "erased_high", "vector_deviation", "confirmed")


def _make_token_rows(
    job: AuditJob,
    group_by_id: Mapping[int, str],
    predicted: Mapping[int, float],
    stuffed: Mapping[int, Stuffed],
    measures_of_run: pl.DataFrame,
    times_ordinary: Mapping[int, float | None],
) -> list[dict[str, Any]]:
    """Return the rows of tokens.parquet, worst first.

    The push is measured in these documents. The columns in `_COLUMNS_OF_RUN`, such as the erased share, come
    from the run; they are null for a token that the run does not have. ``undecided`` says that a benign token
    may push or hide these documents, although the intervals of its measures don't show it.

    Args:
        job: provides the run, the vocabulary and the rule.
        group_by_id: the group of each token, keyed by token id, as the other mappings are.
        predicted: the predicted push; empty if the run allows no prediction.
        stuffed: what was measured.
        measures_of_run: the columns `_COLUMNS_OF_RUN`, with one row per token in the order of ``stuffed``.
        times_ordinary: the push divided by that of the ordinary token.
    """
    vocabulary = job.candidates.vocabulary
    # All of these have one entry per token, in the order of ``stuffed``.
    is_ordinary = np.array(
        [group_by_id[token_id] == results.ORDINARY for token_id in stuffed], dtype=np.bool_
    )
    rule_inputs = _collect_rule_inputs(measures_of_run, stuffed)
    lost_shares = compute_lost_shares(_collect_found(stuffed), is_ordinary)
    is_undecided = mark_undecided(rule_inputs, lost_shares, job.rule)
    judged = judge_against_ordinary_copies(rule_inputs, lost_shares, job.rule)
    unknown = Interval(None, None, None)

    rows = []
    harm_by_id = {}  # how far a token hides or pushes documents, as a share of the way to a severe token
    for index, (token_id, measured) in enumerate(stuffed.items()):
        hidden = 0.0 if lost_shares is None else float(lost_shares.value[index])
        harm_by_id[token_id] = max(0.0, *harm_shares(hidden, measured.push.value))
        verdict = judged.verdicts[index]
        row = {
            "token_id": token_id,
            "token": vocabulary.tokens[vocabulary.index_of(token_id)],
            "text": measured.token.text,
            "group": group_by_id[token_id],
            "predicted": predicted.get(token_id),
            "queries": measured.queries,
            "documents": measured.documents,
            **measured.push.as_columns("push"),
            "times_ordinary": times_ordinary[token_id],
            **(measured.found or unknown).as_columns("found"),
            **measures_of_run.select(_COLUMNS_OF_RUN).row(index, named=True),
            "verdict": verdict,
            "severity": judged.severities[index],
            "reason": judged.reasons[index],
            "undecided": bool(is_undecided[index]) and verdict is Verdict.BENIGN,
        }
        rows.append(row)

    def worst_first(row: Mapping[str, Any]) -> tuple[Any, ...]:
        is_decided = not row["undecided"]  # of equal severity, undecided tokens come first
        harm = harm_by_id[row["token_id"]]
        return -severity_rank(row["severity"]), is_decided, -harm, -row["push"], row["token_id"]

    return sorted(rows, key=worst_first)


def _find_ordinary_push(stuffed: Mapping[int, Stuffed], group_by_id: Mapping[int, str]) -> float | None:
    """Return the median push of the random tokens; None if none was measured."""
    ordinary_pushes = [
        measured.push.value
        for token_id, measured in stuffed.items()
        if group_by_id[token_id] == results.ORDINARY
    ]
    # A push is a ratio without an upper end, of which one token could carry the mean.
    return float(np.median(ordinary_pushes)) if ordinary_pushes else None


def _find_tokens_that_may_push(
    job: AuditJob, stuffed: Mapping[int, Stuffed], measures_of_run: pl.DataFrame
) -> list[Token]:
    """Return the tokens whose push reaches its threshold, even if the low end of its interval doesn't.

    They are measured in more documents, which narrows the interval.
    """
    deviations = measures_of_run["vector_deviation"]
    needed = thresholds(deviations.fill_null(np.nan).to_numpy(), job.rule)[PUSH.key]
    return [
        measured.token
        for measured, threshold in zip(stuffed.values(), needed.tolist(), strict=True)
        if measured.push.value >= threshold
    ]


def _join_run(ids: Sequence[int], run_tokens: pl.DataFrame) -> pl.DataFrame:
    """Return the columns `_COLUMNS_OF_RUN` of tokens; null where the run lacks the token or the column."""
    types = results.TABLES["tokens.parquet"]
    present = [name for name in _COLUMNS_OF_RUN if name in run_tokens.columns]
    # A run of another method lacks some of the columns.
    absent = [pl.lit(None, types[name]).alias(name) for name in _COLUMNS_OF_RUN if name not in present]
    tokens = pl.DataFrame({"token_id": np.array(ids, dtype=np.int64)})
    measured = run_tokens.select("token_id", *present)
    return tokens.join(measured, on="token_id", how="left", maintain_order="left").with_columns(absent)


def _collect_found(stuffed: Mapping[int, Stuffed]) -> Intervals | None:
    # It is known either of all tokens or of none.
    found = [measured.found for measured in stuffed.values() if measured.found is not None]
    return Intervals.of_tokens(found) if found else None


def _collect_rule_inputs(measures_of_run: pl.DataFrame, stuffed: Mapping[int, Stuffed]) -> RuleInputs:
    """Return what the rule needs of each token: the push in these documents, and the rest from the run."""

    def as_floats(name: str) -> NDArray[np.float64]:
        return measures_of_run[name].cast(pl.Float64).fill_null(np.nan).to_numpy()

    return RuleInputs(
        ids=measures_of_run["token_id"].to_numpy(),
        erased=Intervals(as_floats("erased"), as_floats("erased_low"), as_floats("erased_high")),
        push=Intervals.of_tokens([measured.push for measured in stuffed.values()]),
        vector_deviation=as_floats("vector_deviation"),
        confirmed=measures_of_run["confirmed"].fill_null(value=False).to_numpy(),
    )


def mark_undecided(measures: RuleInputs, lost: Intervals | None, rule: RuleSettings) -> NDArray[np.bool_]:
    """Return which tokens may push or hide these documents, although their intervals don't show it.

    One of three things is true of such a token. Its push reaches the threshold, but not the whole interval
    does; or the same is true of its lost share; or its erased share reaches the threshold, and its lost share
    is above 0, but not the whole interval is.

    Args:
        measures: the measures of T tokens. ``confirmed`` says which erased shares the run measured closely.
        lost: the lost shares (see `compute_lost_shares`), if there are any.
        rule: provides the thresholds.
    """
    needed = thresholds(measures.vector_deviation, rule)
    may_push: NDArray[np.bool_] = measures.push.value >= needed[PUSH.key]
    may_push &= measures.push.low < needed[PUSH.key]
    if lost is None:
        return may_push
    erases = measures.confirmed & (measures.erased.low >= needed[ERASED.key])
    may_hide: NDArray[np.bool_] = erases & (lost.value > 0) & (lost.low <= 0)
    may_lose: NDArray[np.bool_] = (lost.value >= needed[ERASED.key]) & (lost.low < needed[ERASED.key])
    return may_push | may_hide | may_lose


def _average_ordinary_found(token_rows: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the mean share of found queries over the random tokens; None if it is known of none."""
    ordinary_rows = [row for row in token_rows if row["group"] == results.ORDINARY]
    shares = [row["found"] for row in ordinary_rows if row["found"] is not None]
    return float(np.mean(shares)) if shares else None
