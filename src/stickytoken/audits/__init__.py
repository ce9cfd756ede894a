"""Audit a search index: do copies of a word bring documents into results where they don't belong?"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

import stickytoken.measurement as store
from stickytoken import wall_time
from stickytoken.audits import _copies, _index, _stuffing, results
from stickytoken.audits._copies import CopiesNow
from stickytoken.audits._index import Index
from stickytoken.audits._stuffing import Pairs
from stickytoken.audits._tokens import JUDGED_ANCHORS, Candidate, choose_candidates
from stickytoken.audits.results import Audit, AuditRecord, AuditResultRecord, audits_in, open_audit
from stickytoken.data.documents import DocumentSource
from stickytoken.detection.finding import find_run
from stickytoken.detection.run import Run, encoder_for
from stickytoken.encoders import protocol
from stickytoken.encoders.loading import AnyModel
from stickytoken.impacts.search import ExactSearch
from stickytoken.impacts.statistics import TOP, interval_columns
from stickytoken.insertion import Insertion
from stickytoken.machine import digest
from stickytoken.measurement import ResultFolder, engine as engines, resume
from stickytoken.measurement.ray_engine import EngineChoice, chosen_engine
from stickytoken.measurement.whole_progress import WholeProgress
from stickytoken.methods.base import MEASURING, MEASURING_CLOSELY, PLAIN_TEXTS
from stickytoken.scanning.scan import certain_kinds
from stickytoken.settings.audit import AuditSettings
from stickytoken.settings.reading import ColumnChoice, columns_of
from stickytoken.validation import file_path, or_default, require_callable

__all__ = ["Audit", "AuditSettings", "audit", "audits_in", "open_audit"]

# Increase this version when the same inputs no longer give the same numbers.
_IDENTITY_VERSION = 4
# Approximate number of short texts that each stage of a judgement encodes.
_JUDGED_TEXTS = {MEASURING: 9_000, MEASURING_CLOSELY: 30_000}
# Number of short texts that take as long to encode as one document.
_TEXTS_PER_DOCUMENT = 8
# Number of groups of tokens to measure. `AuditSettings.tokens` describes the groups and limits their size.
_TOKEN_GROUPS = 5


def audit(
    source: AnyModel | Run,
    documents: DocumentSource,
    *,
    queries: DocumentSource | None = None,
    column: ColumnChoice = None,
    encoder: AnyModel | None = None,
    runs: str | Path = "runs",
    settings: AuditSettings | None = None,
    out: str | Path | None = None,
    engine: EngineChoice = "local",
    progress: engines.ProgressCallback = engines.ignore_progress,
) -> Audit:
    """Measure whether copies of any word get documents into results where they don't belong.

    Repeating the call continues an interrupted audit, and opens a finished one.

    Args:
        source: a run or its folder, or a model (anything that `load_encoder` takes). For a model, the newest
            run over its whole vocabulary is used; if there is none, a detection is run.
        documents: the documents to index: anything that `stickytoken.scan` takes.
        queries: the queries, in any format that ``documents`` may have. If None, the queries of a BEIR folder
            are used; for any other documents, the first sentences of some documents serve as queries.
        column: the column that contains the text of the documents, several columns, or `Columns`.
        encoder: the model of the run. If None, the model that the run names is loaded.
        runs: the folder that holds the model's runs, if `source` is a model.
        settings: settings of the audit. If None, the default settings are used.
        out: folder of the audit. If None, the audit is stored as ``audit-<identity>`` in the run folder, and
            the report of the run includes the audit.
        engine: where to compute, as in `detect`.
        progress: called after every step.

    Returns:
        The finished audit.

    Raises:
        InputError: documents, queries or settings cannot be used.
        ModelError: the model cannot be found or used.
        EncodingError: the model returns no usable vector for a text.
        RunError: a run is damaged or belongs to another model, or the folder contains something other than
            this audit.
    """
    own_settings = settings is not None
    settings = or_default("settings", settings, AuditSettings())
    began = wall_time.beginning()
    require_callable("progress", progress)
    run, _ = find_run(source, file_path("runs", runs), progress=progress)
    named_model = None if isinstance(source, (str, Path, Run)) else source
    model = encoder_for(encoder if encoder is not None else named_model, run, "audit")
    if not own_settings and not protocol.reads_ids(model):
        settings = replace(settings, insertion=Insertion.TEXT)
    reading: protocol.WordEncoder
    if settings.insertion is Insertion.IDS:
        reading = protocol.require_ids(model, "insertion 'ids'", "set insertion to 'text'")
    else:
        reading = protocol.require_words(model, "audit")
    index = _index.read_index(documents, queries, column, reading, settings)
    record = _record(run, reading, index, documents, column, settings)
    folder_path = run.path / store.folder_name(results.AUDIT, record.identity)
    if out is not None:
        folder_path = file_path("out", out)
    folder = ResultFolder(folder_path, began)
    with resume.resumed(folder, results.AUDITS, record) as held:
        if not held.finished:
            held.begin(held.record.model_copy(update={"result": None}))
            with chosen_engine(engine, reading) as opened:
                _measure(run, index, reading, settings, held, opened, progress)
    return open_audit(folder_path)


def _record(
    run: Run,
    encoder: protocol.WordEncoder,
    index: Index,
    documents: DocumentSource,
    column: ColumnChoice,
    settings: AuditSettings,
) -> AuditRecord:
    """Return the record of an audit that has not begun yet; the audit's identity is a hash of all inputs."""
    identity_parts = resume.identity_of(
        _IDENTITY_VERSION,
        encoder.identity,
        settings,
        run=run.record.identity,
        index=index.record.fingerprint,
    )
    return AuditRecord(
        identity=digest(identity_parts),
        identity_parts=identity_parts,
        run=str(run.path),
        run_identity=run.record.identity,
        model=run.model_name,
        device=encoder.device,
        settings=asdict(settings),
        index=index.record,
        documents=str(documents) if isinstance(documents, (str, Path)) else "YOUR_DOCUMENTS",
        column=columns_of(column),
        notes=[],
        versions=resume.package_versions(),
        hardware=resume.hardware(encoder.device),
        started=resume.now(),
    )


def _measure(
    run: Run,
    index: Index,
    encoder: protocol.WordEncoder,
    settings: AuditSettings,
    held: resume.Resumed[AuditRecord],
    engine: engines.Engine,
    progress: engines.ProgressCallback,
) -> None:
    """Measure tokens and documents, write the tables, and finish the record.

    The effect of copies of a token is measured by inserting the copies into random documents. All tokens are
    measured in a first round. The tokens that seem to help documents are measured again with other documents.
    The documents that already contain copies are ranked with and without these copies.
    """
    folder = held.folder
    stuffed_documents = settings.stuffed * len(settings.copies)
    texts_by_stage = {  # approximate numbers
        _index.INDEX: len(index.fitted) + len(index.fitted_queries),
        PLAIN_TEXTS: JUDGED_ANCHORS,
        **{stage: texts // _TEXTS_PER_DOCUMENT for stage, texts in _JUDGED_TEXTS.items()},
        _stuffing.STUFFED: _TOKEN_GROUPS * settings.tokens * stuffed_documents,
    }
    whole_progress = WholeProgress("audit", texts_by_stage, progress)
    scan = _copies.find_copies(run, index, progress)
    search = _index.encode_index(index, encoder, settings, engine, folder, whole_progress)
    with_findings = _copies.numbers_with_findings(scan)
    stuffed = _stuffing.choose_stuffed(index, with_findings, settings)
    # `Index.places` has the positions in `Index.documents` of the documents in the index.
    texts_without_findings = [
        index.documents[number].text for number in index.places if number not in with_findings
    ]
    # A query is not evaluated with the document that it was taken from.
    pairs_by_word = _PairsByWord(index, stuffed.first, settings)
    candidates = choose_candidates(
        run,
        encoder,
        search,
        stuffed.first,
        pairs_by_word.evaluated,
        _copies.words_found(scan),
        texts_without_findings,
        settings,
        folder,
        whole_progress,
    )

    def measure_round(stage: str, tokens: Sequence[Candidate], documents: list[int]) -> _Round:
        """Insert copies of each token into each document, and compare the ranks with and without copies."""
        ranks = _stuffing.measure_ranks(
            stage, tokens, index, documents, search, encoder, settings, engine, folder, whole_progress
        )
        return _Round.of(tokens, documents, ranks, index, search, settings)

    # For each word, the queries that contain it are not evaluated, so a word that all queries contain cannot
    # be measured.
    tokens = [token for token in candidates.tokens if not pairs_by_word.is_in_all_queries(token.text)]
    first = measure_round(_stuffing.STUFFED, tokens, stuffed.first)
    # If many tokens are measured, some seem to help documents only by chance, so the tokens that seem to help
    # are measured again with other documents.
    ids_to_repeat = {row["token_id"] for row in first.tokens if row["helps"] or row["may_help"]}
    second = None
    if ids_to_repeat and stuffed.second:
        tokens_to_repeat = [token for token in tokens if token.token_id in ids_to_repeat]
        second = measure_round(_stuffing.SECOND_ROUND, tokens_to_repeat, stuffed.second)
    token_rows = _in_order(_rows_of_latest_round(first, second, lambda measured: measured.tokens))
    share_rows = _rows_of_latest_round(first, second, lambda measured: measured.shares)
    copies_now = _copies.rank_documents(run, scan, index, search, encoder, settings, engine, folder, progress)
    tables = {
        "tokens.parquet": token_rows,
        "shares.parquet": share_rows,
        "documents.parquet": copies_now.rows,
    }
    for name, rows in tables.items():
        folder.write_table(name, pl.DataFrame(rows, results.TABLES[name]))
    result = _result(index, candidates.predicted, token_rows, first, second, copies_now, folder)
    update = {"result": result, "notes": candidates.notes}
    held.finish(held.record.model_copy(update=update))


@dataclass(frozen=True)
class _Round:
    """The measurement of several tokens whose copies were inserted into the same documents.

    Attributes:
        documents: index positions of the documents that received copies.
        ranks_without: ranks of the documents without copies, shape (queries, documents).
        evaluated: whether each pair of a query and a document is evaluated, shape (queries, documents). For a
            single token, queries that contain the token are excluded as well.
        tokens: rows of tokens.parquet, in the order of the table.
        shares: rows of shares.parquet.
    """

    documents: list[int]
    ranks_without: NDArray[np.int64]
    evaluated: NDArray[np.bool_]
    tokens: list[dict[str, Any]]
    shares: list[dict[str, Any]]

    @classmethod
    def of(
        cls,
        candidates: Sequence[Candidate],
        documents: list[int],
        ranks: NDArray[np.int64],
        index: Index,
        search: ExactSearch,
        settings: AuditSettings,
    ) -> _Round:
        """Compare the ranks of documents with and without copies, and return all results as a `_Round`.

        Args:
            candidates: the tokens whose copies were inserted.
            documents: index positions of the documents that received copies.
            ranks: the ranks with copies from `measure_ranks`, shape (tokens, numbers of copies, queries,
                documents).
            index: the index.
            search: exact search in the index.
            settings: settings of the audit.
        """
        pairs_by_word = _PairsByWord(index, documents, settings)
        ranks_without = search.ranks_of_documents(documents)
        shares = _share_rows(candidates, ranks, ranks_without, pairs_by_word, settings)
        tokens = _token_rows(candidates, shares, pairs_by_word)
        return cls(
            documents=documents,
            ranks_without=ranks_without,
            evaluated=pairs_by_word.evaluated,
            tokens=_in_order(tokens),
            shares=shares,
        )


def _rows_of_latest_round(
    first: _Round, second: _Round | None, rows_of: Callable[[_Round], list[dict[str, Any]]]
) -> list[dict[str, Any]]:
    """Return rows of both rounds; for a token that was measured in both, only the rows of the second round.

    ``rows_of`` returns the rows of a round.
    """
    if second is None:
        return rows_of(first)
    measured_again = {row["token_id"] for row in second.tokens}
    return [row for row in rows_of(first) if row["token_id"] not in measured_again] + rows_of(second)


class _PairsByWord:
    """Which pairs of a query and a document with copies are evaluated for a token.

    A pair is left out if the query was taken from the document or contains the copied word, because the
    document may then belong in the results of the query.

    Args:
        index: the index.
        stuffed: index positions of the documents that receive copies.
        settings: settings of the audit.

    Attributes:
        evaluated: whether each pair is evaluated for a token that the query does not contain: false if the
            query was taken from the document; shape (queries, documents).
    """

    def __init__(self, index: Index, stuffed: Sequence[int], settings: AuditSettings) -> None:
        owners = np.array(index.owners)
        self.evaluated: NDArray[np.bool_] = owners[:, None] != np.array(stuffed)[None, :]
        self._settings = settings
        self._words_of_queries = [set(re.findall(r"\w+", query.casefold())) for query in index.queries]
        self._cache: dict[bytes, Pairs] = {}  # keyed by the bytes of the mask of evaluated pairs

    def evaluated_for(self, text: str) -> NDArray[np.bool_]:
        """Return whether each pair is evaluated for the token with this text, shape (queries, documents)."""
        word = text.strip().casefold()
        lacks_word = np.array([word not in words for words in self._words_of_queries])
        return np.asarray(self.evaluated & lacks_word[:, None])

    def is_in_all_queries(self, text: str) -> bool:
        """Return whether every query contains the word with this text, so that no pair can be evaluated."""
        return not self.evaluated_for(text).any()

    def of(self, text: str) -> Pairs:
        """Return the pairs that are evaluated for the token with this text, and their bootstrap samples."""
        evaluated = self.evaluated_for(text)
        key = evaluated.tobytes()
        if key not in self._cache:
            self._cache[key] = _stuffing.resampled_pairs(evaluated, self._settings)
        return self._cache[key]


def _share_rows(
    candidates: Sequence[Candidate],
    ranks: NDArray[np.int64],
    ranks_without: NDArray[np.int64],
    pairs_by_word: _PairsByWord,
    settings: AuditSettings,
) -> list[dict[str, Any]]:
    """Return the rows of shares.parquet: one for each token and number of copies, starting with no copies.

    Args:
        candidates: the tokens whose copies were inserted.
        ranks: ranks of the documents with copies, shape (tokens, numbers of copies, queries, documents).
        ranks_without: ranks of the documents without copies, shape (queries, documents).
        pairs_by_word: which pairs of a query and a document are evaluated for a token.
        settings: settings of the audit.
    """
    rows = []
    for candidate, ranks_of_token in zip(candidates, ranks, strict=True):
        pairs = pairs_by_word.of(candidate.text)
        ranks_by_copies = zip((0, *settings.copies), (ranks_without, *ranks_of_token), strict=True)
        for copies, ranks_with in ranks_by_copies:
            hits = pairs.hits(ranks_with, ranks_without)
            row = {
                "token_id": candidate.token_id,
                "token": candidate.token,
                "group": candidate.group,
                "copies": copies,
                **interval_columns("share", hits.share),
                **interval_columns("rise", hits.rise),
                "mean_rank": hits.mean_rank,
            }
            rows.append(row)
    return rows


def _token_rows(
    candidates: Sequence[Candidate], shares: Sequence[dict[str, Any]], pairs_by_word: _PairsByWord
) -> list[dict[str, Any]]:
    """Return the rows of tokens.parquet, in the order of the candidates.

    Each row has the effect of the number of copies with the largest and most certain rise; see
    `_Outcome.sort_key`. The column ``helps`` says whether this rise is large and certain, and ``may_help``
    whether it is large but not certain; see `_Outcome`. Both are false for ordinary tokens, which are the
    control group. The column ``queries`` has the number of queries with an evaluated pair.

    Args:
        candidates: the tokens.
        shares: the rows of shares.parquet.
        pairs_by_word: which pairs of a query and a document are evaluated for a token.
    """
    rows = []
    for candidate in candidates:
        token_shares = [row for row in shares if row["token_id"] == candidate.token_id]
        share_without = next(row["share"] for row in token_shares if not row["copies"])
        rows_with_copies = [row for row in token_shares if row["copies"]]
        outcomes = [_Outcome.of(row, share_without) for row in rows_with_copies]
        best = max(outcomes, key=lambda outcome: outcome.sort_key)
        is_query_evaluated = pairs_by_word.evaluated_for(candidate.text).any(axis=1)
        counts = best.is_large and candidate.group != results.ORDINARY
        row = {
            **asdict(candidate),
            "queries": int(is_query_evaluated.sum()),
            "helps": counts and best.is_certain,
            "may_help": counts and not best.is_certain,
        }
        for column in ("copies", "share", "rise", "rise_low", "rise_high"):
            row[column] = best.row[column]
        rows.append(row)
    return rows


@dataclass(frozen=True)
class _Outcome:
    """The effect of a certain number of copies of a token on the ranks of documents.

    Attributes:
        row: the row of shares.parquet for the token and this number of copies.
        is_large: whether the share of evaluated pairs in which the document is in the query's top 10 has
            risen to at least `HELPS_FROM` times the share without copies.
        is_certain: whether the whole interval of the rise lies above zero.
    """

    row: dict[str, Any]
    is_large: bool
    is_certain: bool

    @classmethod
    def of(cls, row: dict[str, Any], share_without: float) -> _Outcome:
        """Compare a row of shares.parquet with the share without copies."""
        # If no query has any of the documents in its top 10, both shares are 0, and 0 is at least
        # `HELPS_FROM` times 0. So a rise is required too.
        is_large = row["rise"] > 0 and row["share"] >= results.HELPS_FROM * share_without
        return cls(row=row, is_large=is_large, is_certain=row["rise_low"] > 0)

    @property
    def sort_key(self) -> tuple[bool, bool, float, float]:
        """Sort key of a number of copies; a larger or more certain rise gives a larger key."""
        return (
            self.is_large and self.is_certain,
            self.is_large,
            max(0.0, self.row["rise_low"]),
            self.row["rise"],
        )


def _in_order(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Sort rows of tokens.parquet: first the tokens that help documents, then the tokens that may help.

    Next come the flagged tokens, then the tokens with copies already in some documents, and then all others.
    """
    return sorted(
        rows,
        key=lambda row: (
            not row["helps"],
            not row["may_help"],
            row["group"] != results.FLAGGED,
            row["group"] != results.FOUND,
            -row["rise"],
            row["token_id"],
        ),
    )


def _result(
    index: Index,
    predicted: int,
    tokens: Sequence[dict[str, Any]],
    first: _Round,
    second: _Round | None,
    copies_now: CopiesNow,
    folder: ResultFolder,
) -> AuditResultRecord:
    """Return the record of the audit: its totals, and the ids of the documents that received copies.

    Args:
        index: the index.
        predicted: number of tokens for which a share of queries was predicted.
        tokens: the rows of tokens.parquet.
        first: the first round, in which all tokens were measured.
        second: the second round, in which tokens that seemed to help documents were measured again; None if
            there was no second round.
        copies_now: the documents that already contain copies.
        folder: folder of the audit.
    """
    scan = copies_now.scan
    # Each shard stores what it cost. A round has one shard per token, and its `tokens` has one row per token.
    shards_by_stage = {_index.INDEX: _index.shard_count(index), _stuffing.STUFFED: len(first.tokens)}
    second_round_tokens: tuple[int, ...] = ()
    second_round_ids: tuple[str, ...] = ()
    if second is not None:
        shards_by_stage[_stuffing.SECOND_ROUND] = len(second.tokens)
        second_round_tokens = tuple(row["token_id"] for row in second.tokens)
        second_round_ids = tuple(_ids_of_stuffed(index, second))
    cost = folder.total_cost(shards_by_stage)
    ranks_without = first.ranks_without[first.evaluated]  # one rank for each evaluated pair
    return AuditResultRecord(
        share_without=float((ranks_without <= TOP).mean()),
        mean_rank_without=float(ranks_without.mean()),
        stuffed_ids=_ids_of_stuffed(index, first),
        second_round_tokens=second_round_tokens,
        second_round_ids=second_round_ids,
        predicted=predicted,
        helping=sum(row["helps"] for row in tokens),
        with_copies=scan.result.found,
        suspected=scan.result.suspected,
        causes=certain_kinds(scan.result.kinds),
        rising=copies_now.rising,
        searched=scan.result.documents,
        ranked=copies_now.ranked,
        sequences=cost.sequences,
        seconds=round(folder.seconds, 1),
    )


def _ids_of_stuffed(index: Index, measured: _Round) -> list[str]:
    """Return the ids of the documents that received copies in a round."""
    return [index.document_at(position).id for position in measured.documents]
