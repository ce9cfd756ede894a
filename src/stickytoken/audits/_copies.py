"""Documents that have copies now, and how they rank with the copies and without."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import polars as pl

from stickytoken.audits._index import Index, encode_in_shards
from stickytoken.audits.results import TABLES, AuditSettings
from stickytoken.cleaning import Cleaner
from stickytoken.cleaning.spans import DEFAULT_ACTIONS, Action, SpanKind
from stickytoken.detection.run import Run
from stickytoken.encoders.fitting import fit_texts
from stickytoken.encoders.protocol import WordEncoder
from stickytoken.impacts.search import ExactSearch
from stickytoken.impacts.statistics import TOP
from stickytoken.measurement import ResultFolder, engine as engines
from stickytoken.scanning.scan import Scan, is_only_suspected, scan_documents

RANKED = "with copies"
"""Name of the stage that encodes documents with copies and without."""
_SHARD = "cleaned"
# Documents with copies whose ranks are measured, those with the largest share of copies first. Two texts are
# encoded for each.
MOST_RANKED = 500
# Words of a document that a table shows.
_SHOWN_WORDS = 3


@dataclass(frozen=True)
class CopiesNow:
    """Documents that have copies now.

    Attributes:
        scan: the findings.
        ranked: number of documents whose ranks were measured.
        rows: one row per document with findings.
    """

    scan: Scan
    ranked: int
    rows: list[dict[str, Any]]

    @property
    def rising(self) -> int:
        """Number of documents that are in more top 10 because of their copies."""
        return sum(bool(row["rises"]) and not row["suspected_only"] for row in self.rows)


def find_copies(run: Run, index: Index, progress: engines.ProgressCallback) -> Scan:
    """Search all documents of the collection for copies."""
    rows = [{"id": document.id, "text": document.text} for document in index.documents]
    table = pl.DataFrame(rows, schema={"id": pl.String, "text": pl.String})
    return scan_documents(run, table, column="text", id_column="id", progress=progress)


def rank_documents(
    run: Run,
    scan: Scan,
    index: Index,
    search: ExactSearch,
    encoder: WordEncoder,
    settings: AuditSettings,
    engine: engines.Engine,
    folder: ResultFolder,
    progress: engines.ProgressCallback,
) -> CopiesNow:
    """Rank each document with copies as it is, and without its copies, among the other documents."""
    actions = dict(DEFAULT_ACTIONS) | {SpanKind.SUSPECTED: Action.REMOVE}
    cleaner = Cleaner.from_run(run, actions=actions)
    worst = scan.worst.with_columns(is_only_suspected().alias("suspected_only"))
    ranked = worst.head(MOST_RANKED)
    numbers = ranked["number"].to_list()
    texts = [index.documents[number].text for number in numbers]
    cleaned_texts = [cleaner.clean(text).text for text in texts]
    # Nothing may be left of a document that consists of copies: it is not in the results at all.
    remaining = [row_number for row_number, text in enumerate(cleaned_texts) if text.strip()]
    ranks_by_place: dict[int, dict[str, Any]] = {}
    if remaining:
        texts_to_rank = [texts[place] for place in remaining] + [cleaned_texts[place] for place in remaining]
        fitted = fit_texts(encoder, texts_to_rank, 0, settings.insertion, index.record.name)
        readable = [text for text in fitted if text.content.words]
        if len(readable) == len(fitted):
            probes = [text.clean(settings.insertion) for text in fitted]
            vectors = encode_in_shards(_SHARD, probes, engine, folder, progress)
            places_in_index = {document: place for place, document in enumerate(index.places)}
            replaced = [places_in_index.get(numbers[place], -1) for place in remaining]
            ranks = search.ranks(vectors, replaced * 2)
            for column, place in enumerate(remaining):
                as_it_is = ranks[:, column]
                without = ranks[:, column + len(remaining)]
                hits = int((as_it_is <= TOP).sum())
                hits_without = int((without <= TOP).sum())
                ranks_by_place[place] = {
                    "hits": hits,
                    "hits_without": hits_without,
                    "mean_rank": float(as_it_is.mean()),
                    "mean_rank_without": float(without.mean()),
                    "rises": hits > hits_without,
                }
    rows = []
    for place, row in enumerate(worst.iter_rows(named=True)):
        rows.append(_row(row) | ranks_by_place.get(place, {}))
    return CopiesNow(scan, len(ranks_by_place), rows)


def _row(finding: dict[str, Any]) -> dict[str, Any]:
    """Return the columns of a document's findings."""
    row: dict[str, Any] = dict.fromkeys(TABLES["documents.parquet"])
    words = [f"{word['text']} \N{MULTIPLICATION SIGN}{word['copies']}" for word in finding["words"]]
    row["number"] = finding["number"]
    row["id"] = finding["id"]
    row["causes"] = ", ".join(SpanKind(kind).cause for kind in finding["kinds"])
    row["found"] = ", ".join(words[:_SHOWN_WORDS])
    row["suspected_only"] = finding["suspected_only"]
    return row


def numbers_with_findings(scan: Scan) -> set[int]:
    """Return the places of the documents with findings among those that have text."""
    return set(scan.documents["number"].to_list())
