"""Measure the tokens and documents of an audit, and write its tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stickytoken.audits import _copies, _index, _stuffing, results
from stickytoken.audits._index import AuditJob
from stickytoken.audits._stuffing import Stuffed
from stickytoken.audits._tokens import Candidates, choose_tokens, predicted_by_id
from stickytoken.audits.results import AuditRecord, AuditResultRecord
from stickytoken.encoders.protocol import confirm_answers
from stickytoken.intervals import Interval, Intervals
from stickytoken.measurement import resume
from stickytoken.measurement.whole_progress import WholeProgress
from stickytoken.methods import Verdict
from stickytoken.methods.measures import ERASED, PUSH, Severity, hidden_share, thresholds
from stickytoken.methods.profile.verdict import Judged, RuleInputs, apply_rule
from stickytoken.methods.runner import Runner
from stickytoken.methods.wording import harm_shares
from stickytoken.scanning.scan import certain_kinds
from stickytoken.settings.profile import ProfileSettings
from stickytoken.words import counted, percent


def measure(job: AuditJob, candidates: Candidates, held: resume.Resumed[AuditRecord]) -> None:
    """Measure tokens and documents, write the tables, and finish the record.

    Copies of each token are inserted into random documents. The documents that already contain copies are
    ranked with and without these copies.
    """
    run = job.run
    index = job.index
    settings = job.settings
    folder = job.folder
    texts_by_stage = {  # approximate numbers
        _index.INDEX: len(index.fitted) if index.stored is None else 0,
        _index.INDEX_QUERIES: len(index.fitted_queries),
        _stuffing.STUFFED: len(results.GROUPS) * settings.tokens * settings.stuffed,
    }
    whole_progress = WholeProgress("audit", texts_by_stage, job.progress)
    scan = _copies.find_copies(run, index, job.progress)
    positions = _stuffing.choose_stuffed(index, _copies.numbers_with_findings(scan), settings)
    search = _index.encode_index(index, job.encoder, settings, job.engine, folder, whole_progress)
    panel = _stuffing.document_panel(index, search, positions, job.encoder, settings)

    predicted = predicted_by_id(candidates, panel)
    groups = choose_tokens(run, candidates, predicted, _copies.words_found(scan), settings)
    tokens = [candidates.tokens[token_id] for token_id in groups]
    runner = Runner(job.engine, folder, whole_progress, shard_probes=_stuffing.SHARD_TEXTS)
    stuffed = _stuffing.measure_stuffed(
        tokens, panel, _stuffing.WordsOfQueries(index), runner, job.rule.confidence, settings
    )
    token_rows = _token_rows(job, candidates, groups, predicted, stuffed)

    asked = replace(search, queries=search.queries[: index.asked])
    copies_now = _copies.rank_documents(job, scan, asked)
    token_of_id = {row["token_id"]: row["token"] for row in token_rows}
    topic_rows = [{"token": token_of_id[row["token_id"]]} | row for row in stuffed.by_topic]
    tables = {
        "tokens.parquet": token_rows,
        "documents.parquet": copies_now.rows,
        "topics.parquet": topic_rows,
    }
    for name, rows in tables.items():
        folder.write_table(name, pl.DataFrame(rows, results.TABLES[name]))

    notes = [*held.record.notes, *candidates.notes]
    if stuffed.unanswered:
        count = counted(len(stuffed.unanswered), "token")
        notes.append(f"{count} could not be measured, because the server gives no vector for a document")
    # The push is a ratio without an upper end, of which one token could carry the mean; found is a share.
    found = panel.is_found
    result = AuditResultRecord(
        depth=panel.depth,
        results_without=_stuffing.results_without(panel) / len(positions),
        ordinary_push=_ordinary(token_rows, "push", np.median),
        answers=len(found),
        found_without=float(found.mean()) if len(found) else None,
        ordinary_found=_ordinary(token_rows, "found", np.mean),
        stuffed_ids=[index.document_at(position).id for position in positions],
        predicted=len(predicted),
        sticky=sum(row["verdict"] == Verdict.STICKY for row in token_rows),
        with_copies=scan.result.found,
        suspected=scan.result.suspected,
        causes=certain_kinds(scan.result.kinds),
        searched=scan.result.documents,
        ranked=copies_now.ranked,
        sequences=folder.total_cost().sequences,
        seconds=round(folder.seconds, 1),
    )
    confirm_answers(job.encoder)
    held.finish(held.record.model_copy(update={"result": result, "notes": notes}))


# Columns that a token has in a run of profile, and keeps in an audit.
_OF_RUN = ("erased", "erased_low", "erased_high", "vector_deviation", "confirmed")


def _token_rows(
    job: AuditJob,
    candidates: Candidates,
    groups: Mapping[int, str],
    predicted: Mapping[int, float],
    stuffed: Stuffed,
) -> list[dict[str, Any]]:
    """Return the rows of tokens.parquet, worst first.

    The push is measured in these documents. The erased share and the vector deviation are those of the run;
    they are missing for a token that the run does not have. ``undecided`` says that a benign token may push
    or hide these documents: more of them could make it sticky.
    """
    of_run = _join_run([token.id for token in stuffed.tokens], job.run.tokens)
    is_ordinary = np.array([groups[token.id] == results.ORDINARY for token in stuffed.tokens], dtype=np.bool_)
    measures = _collect_rule_inputs(of_run, stuffed)
    is_undecided = find_undecided(measures, stuffed.found, is_ordinary, job.rule)
    judged = judge_here(measures, stuffed.found, is_ordinary, job.rule)
    ordinary_push = float(np.median(stuffed.push.value[is_ordinary])) if is_ordinary.any() else 0.0
    pushes = stuffed.push.of_each()
    found_shares = None if stuffed.found is None else stuffed.found.of_each()
    rows = []
    for index, token in enumerate(stuffed.tokens):
        push = pushes[index]
        found: Interval[float] | Interval[None] = Interval(None, None, None)
        if found_shares is not None:
            found = found_shares[index]
        verdict = judged.verdicts[index]
        row = {
            "token_id": token.id,
            "token": candidates.vocabulary.tokens[candidates.vocabulary.place(token.id)],
            "text": token.text,
            "group": groups[token.id],
            "predicted": predicted.get(token.id),
            "queries": stuffed.queries[index],
            **push.as_columns("push"),
            "times_ordinary": push.value / ordinary_push if ordinary_push else None,
            **found.as_columns("found"),
            **of_run.select(_OF_RUN).row(index, named=True),
            "verdict": verdict,
            "severity": judged.severities[index],
            "reason": judged.reasons[index],
            "undecided": bool(is_undecided[index]) and verdict is Verdict.BENIGN,
        }
        rows.append(row)
    return sorted(rows, key=_badness)


def _join_run(ids: Sequence[int], run_tokens: pl.DataFrame) -> pl.DataFrame:
    """Return the columns `_OF_RUN` of tokens; null where the run lacks the token or the column."""
    types = results.TABLES["tokens.parquet"]
    known = [name for name in _OF_RUN if name in run_tokens.columns]
    nulls = [pl.lit(None, types[name]).alias(name) for name in _OF_RUN if name not in known]
    return (
        pl.DataFrame({"token_id": np.array(ids, dtype=np.int64)})
        .join(run_tokens.select("token_id", *known), on="token_id", how="left", maintain_order="left")
        .with_columns(nulls)
    )


def _collect_rule_inputs(of_run: pl.DataFrame, stuffed: Stuffed) -> RuleInputs:
    def floats(name: str) -> NDArray[np.float64]:
        return of_run[name].cast(pl.Float64).fill_null(np.nan).to_numpy()

    return RuleInputs(
        ids=of_run["token_id"].to_numpy(),
        erased=Intervals(floats("erased"), floats("erased_low"), floats("erased_high")),
        push=stuffed.push,
        vector_deviation=floats("vector_deviation"),
        confirmed=of_run["confirmed"].fill_null(value=False).to_numpy(),
    )


def judge_here(
    measures: RuleInputs, found: Intervals | None, is_ordinary: NDArray[np.bool_], rule: ProfileSettings
) -> Judged:
    """Judge tokens by what their copies do to these documents.

    A token hides them in one of two ways. The run says that it erases enough, and it hides these documents,
    too; or whatever the run says, so many fewer queries find them than with ordinary copies.

    Args:
        measures: the measures of T tokens. ``confirmed`` says which erased shares the run measured closely.
        found: share of the queries that a document answers which find it; None if it answers none.
        is_ordinary: which tokens are the random ones, shape (T,).
        rule: provides the thresholds.
    """
    by_run = apply_rule(measures._replace(confirmed=measures.confirmed & hide_here(found, is_ordinary)), rule)
    lost = find_lost(found, is_ordinary)
    if lost is None:
        return by_run
    everywhere = np.ones(len(is_ordinary), dtype=np.bool_)
    by_documents = apply_rule(measures._replace(erased=lost, confirmed=everywhere), rule)
    verdicts, severities, reasons = list(by_run.verdicts), list(by_run.severities), list(by_run.reasons)
    for index, verdict in enumerate(by_run.verdicts):
        if verdict is Verdict.BENIGN and by_documents.verdicts[index] is Verdict.STICKY:
            verdicts[index] = Verdict.STICKY
            severities[index] = by_documents.severities[index]
            share = percent(float(lost.value[index]))
            reasons[index] = f"{share} fewer queries find documents than with copies of an ordinary token"
    return Judged(verdicts, severities, reasons)


def find_lost(found: Intervals | None, is_ordinary: NDArray[np.bool_]) -> Intervals | None:
    """Return how many fewer queries find documents than with ordinary copies, as a share of these.

    None if there is nothing to compare with.
    """
    if found is None or not is_ordinary.any():
        return None
    ordinary = found.value[is_ordinary].mean()
    if ordinary == 0:
        return None
    # The more queries find documents, the fewer are lost, so the ends of the interval change places.
    return Intervals(
        value=hidden_share(found.value, ordinary),
        low=hidden_share(found.high, ordinary),
        high=hidden_share(found.low, ordinary),
    )


def hide_here(found: Intervals | None, is_ordinary: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return whether fewer queries find a document with copies of each token than with ordinary copies.

    Args:
        found: share of the queries that a document answers which find it, for T tokens; None if it answers
            none.
        is_ordinary: which tokens are the random ones, shape (T,).

    Returns:
        Whether the whole interval lies below the mean of the random tokens, shape (T,); true where nothing
        contradicts it.
    """
    if found is None or not is_ordinary.any():
        return np.ones(len(is_ordinary), dtype=np.bool_)
    return np.asarray(found.high < found.value[is_ordinary].mean())


def find_undecided(
    measures: RuleInputs, found: Intervals | None, is_ordinary: NDArray[np.bool_], rule: ProfileSettings
) -> NDArray[np.bool_]:
    """Return which tokens may push or hide these documents, although their intervals don't show it.

    The push of such a token reaches its threshold, but not the whole interval of the push does; or so do the
    queries that no longer find these documents. Or its erased share reaches the threshold, and fewer queries
    find documents with its copies than with ordinary ones, but the interval includes the mean of the random
    tokens.

    Args:
        measures: the measures of T tokens. ``confirmed`` says which erased shares the run measured closely.
        found: share of the queries that a document answers which find it; None if it answers none.
        is_ordinary: which tokens are the random ones, shape (T,).
        rule: provides the thresholds.
    """
    needed = thresholds(measures.vector_deviation, rule)
    may_push: NDArray[np.bool_] = measures.push.value >= needed[PUSH.key]
    may_push &= measures.push.low < needed[PUSH.key]
    lost = find_lost(found, is_ordinary)
    if found is None or lost is None:
        return may_push
    erases = measures.confirmed & (measures.erased.low >= needed[ERASED.key])
    is_found_less = found.value < found.value[is_ordinary].mean()
    may_hide: NDArray[np.bool_] = erases & is_found_less & ~hide_here(found, is_ordinary)
    may_lose: NDArray[np.bool_] = (lost.value >= needed[ERASED.key]) & (lost.low < needed[ERASED.key])
    return may_push | may_hide | may_lose


def _badness(row: Mapping[str, Any]) -> tuple[Any, ...]:
    severity = row["severity"]
    severity_rank = -1 if severity is None else list(Severity).index(severity)
    return (
        -severity_rank,
        not row["undecided"],
        -max(0.0, *harm_shares(row)),
        -row["push"],
        row["token_id"],
    )


def _ordinary(
    rows: Sequence[Mapping[str, Any]], column: str, average: Callable[[list[float]], Any]
) -> float | None:
    values = [row[column] for row in rows if row["group"] == results.ORDINARY and row[column] is not None]
    return float(average(values)) if values else None
