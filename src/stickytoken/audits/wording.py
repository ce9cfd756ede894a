"""Describe the results of an audit in sentences and tables. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from shlex import quote
from typing import Any

import polars as pl

from stickytoken.audits.results import FLAGGED, HELPS_FROM, ORDINARY, Audit
from stickytoken.cleaning import document_counts
from stickytoken.detection.run import NextStep
from stickytoken.impacts.statistics import TOP
from stickytoken.methods import Column
from stickytoken.settings.reading import columns_of
from stickytoken.validation import beginning
from stickytoken.words import counted, interval as interval_of, number, quoted

# Maximum number of tokens that a sentence names.
_NAMED = 3
# Maximum number of documents that a sentence names.
_NAMED_DOCUMENTS = 3

# Maximum number of queries to quote for a document, and of characters to quote from a query.
_NAMED_QUERIES = 2
_QUERY_CHARACTERS = 50

DOCUMENT_COLUMNS = (
    Column("id", "document"),
    Column("causes", "cause"),
    Column("found", "found"),
    Column("hits", f"queries with it in their top {TOP}", 0),
    Column("hits_without", "without copies", 0),
    Column("mean_rank", "mean rank", 0),
    Column("mean_rank_without", "without copies", 0),
    Column("better", "copies help for", 0),
    Column("worse", "hurt for", 0),
)


def share(value: float) -> str:
    """Return a share of queries as a percentage, such as "12.5%"."""
    return f"{value:.1%}"


def _points_interval(low: float, high: float) -> str:
    """Format an interval of differences in percentage points, such as "0.7 to 2.2"."""
    return interval_of(low, high, 1, "%").replace("%", "")


def conclusions(audit: Audit) -> list[str]:
    """Return sentences on the results: first on tokens, then on copies that documents already contain."""
    return [*token_conclusions(audit), *document_conclusions(audit)]


def token_conclusions(audit: Audit) -> list[str]:
    """Return sentences on whether copies of any token get documents into results where they don't belong."""
    helping = audit.helping
    undecided = audit.undecided
    if helping.is_empty() and undecided.is_empty():
        return [
            "No word that was measured gets documents into results where they don't belong.",
            f"A word would have to raise the share of queries with a random document in their top {TOP} to "
            f"at least {HELPS_FROM:g} times, with the whole interval of the rise above zero.",
            *_closest_sentences(audit),
        ]
    sentences = [_named_sentence(audit, row, "gets") for row in helping.head(_NAMED).iter_rows(named=True)]
    left_out = len(helping) - _NAMED
    if left_out > 0:
        sentences.append(f"So do {counted(left_out, 'further token')}.")
    if not undecided.is_empty():
        named = undecided.head(_NAMED).iter_rows(named=True)
        sentences += [_named_sentence(audit, row, "may get") for row in named]
        sentences.append(_undecided_advice(audit))
    sentences.append(criterion())
    return sentences


def criterion() -> str:
    """Return a sentence that says when a word counts as getting documents into wrong results."""
    return (
        f"A word counts if its copies raise this share to at least {HELPS_FROM:g} times, and the whole "
        "interval of the rise lies above zero."
    )


def _closest_sentences(audit: Audit) -> list[str]:
    """Return sentences on the token that comes closest to the factor `HELPS_FROM`, and on the largest share.

    The closest token is the one whose copies raise the share of queries by the largest factor. If `_closest`
    finds no token, only the sentence about the largest share is returned.
    """
    sentences = []
    largest = largest_share(audit)
    closest = _closest(audit)
    if closest is not None:
        interval = _points_interval(closest["rise_low"], closest["rise_high"])
        sentences.append(
            f"{quoted(closest['token'])} comes closest: {closest['copies']} copies raise this share from "
            f"{share(closest['share_without'])} to {share(closest['share'])}, "
            f"{_rounded_down(closest['ratio']):.2f} times as many (by {number(100 * closest['rise'], 1)} "
            f"points, interval {interval})."
        )
    without = _share_of(audit, largest["token_id"], 0)["share"]
    sentences.append(
        f"The largest share is {share(largest['share'])} ({largest['copies']} copies of "
        f"{quoted(largest['token'])}; {share(without)} without copies). {_chance(audit)}"
    )
    return sentences


def _closest(audit: Audit) -> dict[str, Any] | None:
    """Return the row of shares.parquet whose share rises by the largest factor because of copies.

    The row also has ``share_without``, the share without copies, and ``ratio``, the share with copies divided
    by the share without copies. Ordinary tokens are left out, and so is a token whose share without copies is
    zero, because its share has no factor. Return None if copies raise the share of no other token.
    """
    without_copies = audit.shares.filter(pl.col("copies") == 0).select("token_id", share_without="share")
    is_measured = (pl.col("copies") > 0) & (pl.col("group") != ORDINARY)
    with_copies = audit.shares.filter(is_measured).join(without_copies, on="token_id")
    rising = with_copies.filter(pl.col("share_without") > 0, pl.col("share") > pl.col("share_without"))
    if rising.is_empty():
        return None
    ratios = rising.with_columns(ratio=pl.col("share") / pl.col("share_without"))
    ordered = ratios.sort("ratio", "token_id", "copies", descending=[True, False, False])
    return ordered.row(0, named=True)


def _rounded_down(ratio: float) -> float:
    """Round a ratio down to two decimals, so that one just below the threshold does not seem to reach it."""
    # The inner rounding removes floating-point errors, which would otherwise turn 1.15 into 1.14.
    return math.floor(round(100 * ratio, 6)) / 100


def _named_sentence(audit: Audit, token: Mapping[str, Any], verb: str) -> str:
    """Return a sentence that says how many queries find documents with copies of a token."""
    best = _share_of(audit, token["token_id"], token["copies"])
    return (
        f"{quoted(token['token'])} {verb} documents into results where they don't belong: with "
        f"{best['copies']} copies, {share(best['share'])} of the queries have a random document in their "
        f"top {TOP}. {_comparison(audit, best)}"
    )


def _comparison(audit: Audit, best: Mapping[str, Any]) -> str:
    """Return sentences that compare a share of queries with the share without copies, and with chance.

    Each share says how many of the queries have a random document in their top 10.

    Args:
        audit: the audit.
        best: the row of shares.parquet for a token and its best number of copies.
    """
    baseline = _share_of(audit, best["token_id"], 0)
    interval = _points_interval(best["rise_low"], best["rise_high"])
    return (
        f"Without copies, the share is {share(baseline['share'])}: the copies change it by "
        f"{number(100 * best['rise'], 1)} points (interval {interval}). {_chance(audit)}"
    )


def _chance(audit: Audit) -> str:
    """Return a sentence with the share of queries whose top 10 would contain a given document by chance."""
    documents = audit.record.index.documents
    return f"By chance, it would be {share(TOP / documents)} ({TOP} of {documents:,} documents)."


def _undecided_advice(audit: Audit) -> str:
    """Return a sentence that says how to decide whether a token helps, or why that is impossible."""
    documents = len(audit.result.second_round_ids)
    if not documents:
        return (
            "The intervals are too wide to tell, and the index has too few documents to measure more of them."
        )
    return (
        f"The intervals are too wide to tell, even with {documents:,} documents: measure more with "
        f"`--set stuffed={2 * documents}`."
    )


def largest_share(audit: Audit) -> dict[str, Any]:
    """Return the row of shares.parquet with the largest share that copies of a token reach.

    Ordinary tokens are left out, because they are the control group.
    """
    is_measured = (pl.col("copies") > 0) & (pl.col("group") != ORDINARY)
    ordered = audit.shares.filter(is_measured).sort(
        "share", "token_id", "copies", descending=[True, False, False]
    )
    return ordered.row(0, named=True)


def _share_of(audit: Audit, token_id: int, copies: int) -> dict[str, Any]:
    """Return the row of shares.parquet for a token and a number of copies."""
    return audit.shares.filter(token_id=token_id, copies=copies).row(0, named=True)


def document_conclusions(audit: Audit) -> list[str]:
    """Return sentences on the documents that already contain copies, and on what the copies change."""
    result = audit.result
    number, causes = document_counts(result.with_copies, result.searched, result.causes)
    verb = "has" if result.with_copies <= 1 else "have"
    sentences = [f"{number[0].upper()}{number[1:]} {verb} copies now{causes}."]
    if result.with_copies:
        sentences.append(_rising_sentence(audit))
    unread = audit.documents.filter(~pl.col("suspected_only"), ~pl.col("copies_read"))
    if not unread.is_empty():
        documents = counted(len(unread), "document")
        ids = ", ".join(unread["id"].head(_NAMED_DOCUMENTS).to_list())
        if len(unread) > _NAMED_DOCUMENTS:
            ids += ", ..."
        sentences.append(
            f"In {documents} ({ids}), the copies change nothing: the model does not read that far."
        )
    if result.suspected:
        noun = "more document" if result.with_copies else "document"
        sentences.append(
            f"In {counted(result.suspected, noun)}, copies are only suspected: look at the text."
        )
    return sentences


def _rising_sentence(audit: Audit) -> str:
    """Return a sentence on the documents that are in more top 10 lists because of their copies."""
    gained = pl.col("hits") - pl.col("hits_without")
    rising = audit.documents.filter("rises", ~pl.col("suspected_only"))
    if rising.is_empty():
        return f"None of them is in the top {TOP} of more queries because of its copies."
    rising = rising.sort(gained, "number", descending=[True, False])
    named = [_gain(row) for row in rising.head(_NAMED_DOCUMENTS).iter_rows(named=True)]
    listed = "; ".join(named)
    if len(rising) > len(named):
        listed += f"; and {len(rising) - len(named):,} more"
    verb = "is" if len(rising) == 1 else "are"
    sentence = (
        f"{len(rising):,} of them {verb} in the top {TOP} of more queries because of the copies: {listed}."
    )
    if audit.helping.is_empty():
        sentence += f" Copies of any word can do that if a document is already close to a top {TOP}."
    return sentence


def _gain(document: Mapping[str, Any]) -> str:
    """Say how many top 10 lists a document enters and leaves because of its copies, and name some of them.

    The text begins with the counts, as in "d7 (3 queries instead of 1". The ranks of the named queries come
    next, as in "rank 2 instead of 40 for "first query"". The end is "and 1 more" for a query that is not
    named, and "but no longer for 1 query" for a list that the document leaves.

    Args:
        document: a row of documents.parquet.
    """
    entered = document["entered"]
    changes = []
    for change in entered[:_NAMED_QUERIES]:
        query = quoted(beginning(change["query"], _QUERY_CHARACTERS))
        changes.append(f"rank {change['rank']:,} instead of {change['rank_without']:,} for {query}")
    not_named = len(entered) - len(changes)
    if not_named:
        changes.append(f"and {not_named:,} more")
    # hits = hits without copies + lists that the document enters - lists that it leaves
    lists_left = document["hits_without"] + len(entered) - document["hits"]
    if lists_left:
        changes.append(f"but no longer for {counted_queries(lists_left)}")
    queries = counted_queries(document["hits"])
    return f"{document['id']} ({queries} instead of {document['hits_without']:,}: {', '.join(changes)})"


def title(audit: Audit) -> str:
    """Return a line that names the model, the documents and the queries."""
    index = audit.record.index
    text_from = ""
    if index.text_columns:
        column = "column" if len(index.text_columns) == 1 else "columns"
        text_from = f", text from the {column} {' and '.join(index.text_columns)}"
    if index.unread_columns:
        text_from += f"; not read, although they contain text: {', '.join(index.unread_columns)}"
    return (
        f"{audit.record.model} on {index.name} ({counted(index.documents, 'document')}{text_from}) with "
        f"{counted_queries(index.queries)}"
    )


def counted_queries(count: int) -> str:
    """Return a number of queries in words, such as "3 queries"."""
    return counted(count, "query", "queries")


def share_columns(audit: Audit) -> tuple[Column, ...]:
    """Return the columns of the token table."""
    copies = audit.record.measured_with().copies
    shares = tuple(
        Column(f"share_{count}", f"{count} copies" if count else "none", 1, "%") for count in (0, *copies)
    )
    return (
        Column("token", "token"),
        Column("group", "group"),
        *shares,
        Column("copies", "best copies", 0),
        Column("ratio", "times", 2),
        Column("rise", "rise, interval"),
        Column("rank_without", "mean rank", 0),
        Column("rank_with", "with copies", 0),
    )


def share_rows(audit: Audit) -> pl.DataFrame:
    """Return the rows of the token table, in the order of tokens.parquet.

    Each row has a token's shares of queries for every number of copies, and compares the token's best number
    of copies, as given in tokens.parquet, with no copies. `share_columns` gives the heading of each column.
    """
    rows = []
    for token in audit.tokens.iter_rows(named=True):
        token_shares = audit.shares.filter(token_id=token["token_id"])
        row: dict[str, Any] = {"token": token["token"], "group": token["group"]}
        for share_row in token_shares.iter_rows(named=True):
            row[f"share_{share_row['copies']}"] = share_row["share"]
        # In tokens.parquet, "copies" is the best number of copies.
        best = _share_of(audit, token["token_id"], token["copies"])
        interval = _points_interval(best["rise_low"], best["rise_high"])
        share_without = _share_of(audit, token["token_id"], 0)["share"]
        row["copies"] = token["copies"]
        row["ratio"] = _rounded_down(best["share"] / share_without) if share_without else None
        row["rise"] = f"{number(100 * best['rise'], 1)} ({interval})"
        row["rank_without"] = token_shares.filter(copies=0)["mean_rank"].item()
        row["rank_with"] = best["mean_rank"]
        rows.append(row)
    return pl.DataFrame(rows, infer_schema_length=None)


def _named_tokens(audit: Audit, token_ids: Sequence[int]) -> str:
    """Return the quoted names of the first few tokens, and the number of the remaining tokens."""
    token_of = dict(audit.tokens.select("token_id", "token").iter_rows())
    names = [quoted(token_of[token_id]) for token_id in token_ids[:_NAMED]]
    left_out = len(token_ids) - len(names)
    if left_out:
        names.append(f"{left_out:,} more")
    return ", ".join(names)


def setup(audit: Audit) -> str:
    """Return sentences that say what was searched, with how many copies, and what was left out."""
    index = audit.record.index
    cut = f", {index.cut:,} of them cut at the length that the model reads" if index.cut else ""
    remarks = "".join(f" {note[0].upper()}{note[1:]}." for note in audit.record.notes)
    return (
        f"Measured by exact search: {counted_queries(index.queries)} ({index.queries_from}) among "
        f"{index.documents:,} documents{cut}. {len(audit.result.stuffed_ids)} random documents got copies, "
        f"one at a time.{remarks}"
    )


def basis(audit: Audit) -> str:
    """Return a paragraph that says how the shares were measured."""
    result = audit.result
    sentences = [setup(audit)]
    if result.second_round_tokens:
        names = _named_tokens(audit, result.second_round_tokens)
        verb = "was" if len(result.second_round_tokens) == 1 else "were"
        sentences.append(
            f"{names} seemed to help these documents, and {verb} measured again with "
            f"{len(result.second_round_ids):,} other documents: only the second results are shown."
        )
    sentences.append(
        "Times, rise (in percentage points) and the last mean rank are for the number of copies that helps "
        "most, compared with no copies. A better mean rank alone brings no document into a top "
        f"{TOP}. Intervals: {audit.record.measured_with().confidence:.0%}, over queries and documents. "
        "Queries that contain the word are left out."
    )
    if result.predicted:
        sentences.append(
            f"The strongest tokens were chosen among all {result.predicted:,} tokens of the run: by "
            "predicted share, and by what copies of them do to these documents."
        )
    return " ".join(sentences)


# The file that the suggested commands write the rules to, for checks without the run folder.
_RULES_FILE = "rules.json"


def next_steps(audit: Audit) -> list[NextStep]:
    """Return the recommended next steps, each with a command."""
    run = quote(audit.record.run)
    documents = quote(audit.record.documents)
    column = "".join(f" {quote(word)}" for word in columns_of(audit.record.column).as_options())
    words = "" if audit.helping.is_empty() else f" --audit {quote(str(audit.path))}"
    if audit.result.with_copies:
        purpose = "take the copies out of the documents that have them, then index these documents again"
        files = f"{documents}{column}{words} --out YOUR_FILE --rules-out {_RULES_FILE}"
        clean = NextStep(purpose, f"stickytoken clean {run} {files}")
    else:
        purpose = "save what to look for in new documents"
        clean = NextStep(purpose, f"stickytoken clean {run}{words} --rules-out {_RULES_FILE}")
    check = NextStep(
        "in CI, fail if documents have copies of flagged tokens, repeated words or special tokens (needs "
        f"only {_RULES_FILE})",
        f"stickytoken check {_RULES_FILE} --documents {documents}{column} --fail-on-documents repetition "
        "--fail-on-documents special",
    )
    return [*_urgent_repair(audit, run), clean, check, *_optional_repair(audit, run)]


def _urgent_repair(audit: Audit, run: str) -> list[NextStep]:
    """Return the step that repairs the model if words help documents; empty if no word does."""
    helping = audit.helping
    if helping.is_empty():
        return []
    all_flagged = len(helping.filter(group=FLAGGED)) == len(helping)
    names = "" if all_flagged else _token_options(helping)
    purpose = "repair the model, then encode the documents again with the repaired copy"
    return [NextStep(purpose, f"stickytoken repair {run}{names} --out YOUR_FOLDER")]


def _optional_repair(audit: Audit, run: str) -> list[NextStep]:
    """Return a repair step for flagged tokens; empty if there are none, or if `_urgent_repair` has a step."""
    has_flagged = not audit.tokens.filter(group=FLAGGED).is_empty()
    if not audit.helping.is_empty() or not has_flagged:
        return []
    purpose = (
        "if others can write your documents, repair the model as well: copies of its flagged tokens can "
        "hide a document from the queries that it answers (a repair does not change other words)"
    )
    return [NextStep(purpose, f"stickytoken repair {run} --out YOUR_FOLDER")]


def _token_options(helping: pl.DataFrame) -> str:
    """Return the options that name the tokens in a `repair` command."""
    return "".join(f" --tokens {quote(f'#{token_id}')}" for token_id in helping["token_id"].to_list())
