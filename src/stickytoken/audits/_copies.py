"""The documents that already contain copies: rank them with and without these copies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stickytoken.audits._index import Index, Queries
from stickytoken.audits._job import AuditJob
from stickytoken.audits.results import MOST_RANKED, TABLES
from stickytoken.cleaning import Cleaner
from stickytoken.cleaning.spans import SpanKind
from stickytoken.encoders.fitting import FittedText, fit_texts
from stickytoken.encoders.protocol import WordEncoder
from stickytoken.insertion import Insertion
from stickytoken.methods.runner import Runner
from stickytoken.scanning.results import Scan, is_only_suspected
from stickytoken.search import TOP, ExactSearch

# Name of the stage that encodes each document both with its copies and without them.
_CLEANED = "cleaned"
# Maximum number of copied words listed for a document in the table.
_SHOWN_WORDS = 3


def rank_documents(job: AuditJob, runner: Runner, scan: Scan, search: ExactSearch) -> list[dict[str, Any]]:
    """Rank each document with copies among the other documents, once as it is and once without its copies.

    At most `MOST_RANKED` documents are ranked. A document of nothing but copies is ranked as it is: without
    copies, nothing is left that a query could find.

    Returns:
        The rows of documents.parquet, one for each document with findings. Those whose copies change their
        number of top 10 lists most come first, losses before gains, followed by all others in the order of
        `Scan.worst`. In the row of a document that is not ranked, the columns on ranks are None.
    """
    index = job.index
    insertion = job.settings.inserted_as
    findings = scan.worst.with_columns(is_only_suspected().alias("suspected_only"))
    ranked_numbers = findings["number"].head(MOST_RANKED).to_list()  # as in `index.documents`
    texts = {number: index.documents[number].text for number in ranked_numbers}
    pairs = pair_texts(texts, job.cleaner, job.encoder, insertion, index.record.name)
    comparisons: dict[int, dict[str, Any]] = {}
    if pairs:
        cleaned_texts = {pair.number: pair.cleaned for pair in pairs if pair.cleaned is not None}
        ranked_texts = [*(pair.as_it_is for pair in pairs), *cleaned_texts.values()]
        probes = [text.as_probe(insertion) for text in ranked_texts]
        vectors = runner.encode(_CLEANED, probes)
        position_of = {number: position for position, number in enumerate(index.document_numbers)}
        position_of_text = {
            text.as_probe(insertion): position for position, text in enumerate(index.truncated)
        }
        # Both texts are ranked in place of the document itself. If the index, which may be a sample, lacks
        # it, a duplicate stands for it, and -1 if there is none.
        replaced_by = {}
        for pair in pairs:
            position_of_duplicate = position_of_text.get(pair.as_it_is.as_probe(insertion), -1)
            replaced_by[pair.number] = position_of.get(pair.number, position_of_duplicate)
        replaced = [*replaced_by.values(), *(replaced_by[number] for number in cleaned_texts)]
        ranks = search.ranks(vectors, replaced).T  # shape (texts, queries)
        ranks_without = dict(zip(cleaned_texts, ranks[len(pairs) :], strict=True))
        for pair, as_it_is in zip(pairs, ranks, strict=False):  # the ranks of cleaned texts come last
            comparison = _compare_ranks(index.queries, as_it_is, ranks_without.get(pair.number))
            comparisons[pair.number] = comparison | {"copies_read": pair.copies_are_read}
    rows = []
    for finding in findings.iter_rows(named=True):
        comparison = comparisons.get(finding["number"], {})
        rows.append(_describe_finding(finding, index) | comparison)
    return sorted(rows, key=_largest_change_first)


def _largest_change_first(row: Mapping[str, Any]) -> tuple[int, bool]:
    change = row["change"] or 0  # None if the document was not ranked
    return -abs(change), change > 0  # of equal changes, losses first


@dataclass(frozen=True)
class _Pair:
    """A document as it is and without its copies, both truncated where the model truncates them."""

    number: int  # as in `Index.documents`
    as_it_is: FittedText
    cleaned: FittedText | None  # None if nothing that the model reads is left

    @property
    def copies_are_read(self) -> bool:
        """Whether the model reads any of the copies; False if all copies lie beyond the input limit."""
        return self.cleaned is None or self.as_it_is.content != self.cleaned.content


def pair_texts(
    texts: Mapping[int, str], cleaner: Cleaner, encoder: WordEncoder, insertion: Insertion, source: str
) -> list[_Pair]:
    """Return documents with and without their copies, if they have at least one token.

    Args:
        texts: the documents, keyed by number.
        cleaner: removes the copies.
        encoder: the model, which decides where a text is truncated.
        insertion: how copies are inserted, which decides how a text is truncated.
        source: name of the collection, for error messages.
    """
    if not texts:
        return []
    cleaned_texts = [cleaner.without_findings(text) for text in texts.values()]
    # No room is needed for copies: none are inserted.
    as_they_are = fit_texts(encoder, list(texts.values()), 0, insertion, source)
    without_copies = fit_texts(encoder, cleaned_texts, 0, insertion, source)
    pairs = []
    for number, as_it_is, cleaned in zip(texts, as_they_are, without_copies, strict=True):
        # A text has no tokens if the tokenizer drops all of its characters.
        is_left = bool(cleaned.text.strip() and cleaned.content.words)
        if as_it_is.content.words:
            pairs.append(_Pair(number, as_it_is, cleaned if is_left else None))
    return pairs


def _compare_ranks(
    queries: Queries, as_it_is: NDArray[np.int64], without: NDArray[np.int64] | None
) -> dict[str, Any]:
    """Return the columns of documents.parquet that compare a document's ranks, with its copies and without.

    Both have a rank for each query that is searched. Without them, a document of nothing but copies is no
    result of any query, so it has no ranks (None).
    """
    hits = int((as_it_is <= TOP).sum())
    if without is None:
        entered = [
            {"query": query, "rank": rank, "rank_without": None}
            for query, rank in zip(queries.texts[: queries.asked], as_it_is.tolist(), strict=True)
            if rank <= TOP
        ]
        entered.sort(key=lambda change: change["rank"])
        return {
            "entered": entered,
            "left": [],
            "hits": hits,
            "hits_without": 0,
            "mean_rank": float(as_it_is.mean()),
            "change": hits,
        }
    hits_without = int((without <= TOP).sum())
    # The queries whose top 10 the document has entered or left because of its copies.
    changes = [
        {"query": query, "rank": rank, "rank_without": rank_without}
        for query, rank, rank_without in zip(
            queries.texts[: queries.asked],
            as_it_is.tolist(),
            without.tolist(),
            strict=True,
        )
        if (rank <= TOP) != (rank_without <= TOP)
    ]
    changes.sort(key=lambda change: -abs(change["rank"] - change["rank_without"]))
    return {
        "entered": [change for change in changes if change["rank"] <= TOP],
        "left": [change for change in changes if change["rank"] > TOP],
        "hits": hits,
        "hits_without": hits_without,
        "mean_rank": float(as_it_is.mean()),
        "mean_rank_without": float(without.mean()),
        "better": int((as_it_is < without).sum()),
        "worse": int((as_it_is > without).sum()),
        "change": hits - hits_without,
    }


def _describe_finding(finding: dict[str, Any], index: Index) -> dict[str, Any]:
    """Return a row of documents.parquet that says what was found in a document.

    Its columns on ranks are None; `_compare_ranks` has them.
    """
    row: dict[str, Any] = dict.fromkeys(TABLES["documents.parquet"])  # None for every column
    words = [f"{word['text']} \N{MULTIPLICATION SIGN}{word['copies']}" for word in finding["words"]]
    row["number"] = finding["number"]
    row["id"] = finding["id"]
    row["source"] = index.documents[finding["number"]].source
    row["causes"] = ", ".join(SpanKind(kind).cause for kind in finding["kinds"])
    row["found"] = ", ".join(words[:_SHOWN_WORDS])
    row["suspected_only"] = finding["suspected_only"]
    row["excerpt"] = finding["excerpt"]
    return row


def list_copied_words(scan: Scan) -> list[str]:
    """Return the words whose copies the scan found, in descending order of the number of copies.

    Words whose copies are only suspected come after all other words.
    """
    certain: Counter[str] = Counter()
    suspected: Counter[str] = Counter()
    for words, is_suspected in scan.documents.select("words", is_only_suspected()).iter_rows():
        copies_of = suspected if is_suspected else certain
        for word in words:
            copies_of[word["text"]] += word["copies"]
    ranked = [*certain.most_common(), *suspected.most_common()]
    return list(dict.fromkeys(word for word, _ in ranked))
