"""Describe the results of an audit in sentences and tables. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from shlex import quote
from typing import Any, NamedTuple

import polars as pl

from stickytoken.audits.results import FLAGGED, MOST_RANKED, RELEVANCE_JUDGEMENTS, TIMES_FURTHER, Audit
from stickytoken.cleaning import document_counts
from stickytoken.detection.run import NextStep
from stickytoken.methods import Column, wording
from stickytoken.methods.measures import ERASED, PUSH
from stickytoken.methods.wording import Harm, describe_found, describe_push, harm_shares, with_interval
from stickytoken.search import COPIES, TOP
from stickytoken.settings.reading import columns_of
from stickytoken.validation import beginning
from stickytoken.words import counted, interval, number, percent, quoted, sentence

# Maximum number of tokens that sentences name.
_NAMED = 3
# Maximum number of documents that a sentence names.
_NAMED_DOCUMENTS = 3
# Maximum number of queries to quote for a document, and of characters to quote from a query.
_NAMED_QUERIES = 2
_QUERY_CHARACTERS = 50

# Two decimals, so that a push just below a threshold does not look as if it reached it.
_PUSH_DIGITS = 2
TOKEN_COLUMNS = (
    Column("token", "token"),
    Column("group", "group"),
    Column("push", "push", _PUSH_DIGITS, PUSH.unit),
    Column("push_interval", "interval"),
    Column("times_ordinary", "to ordinary", _PUSH_DIGITS, PUSH.unit),
    Column("found", "found", 0, "%"),
    Column("found_interval", "interval"),
    ERASED,
    Column("verdict", "verdict here"),
)
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
TOKEN_QUESTION = "What do copies of a token do to these documents?"
DOCUMENT_QUESTION = "Which documents have copies already?"


class Answer(NamedTuple):
    """Whether copies of tokens affect an index, in the fewest words."""

    word: str  # such as Yes, or a few words
    sentence: str  # the one number that the word rests on
    tone: str  # the style of the answer in reports: serious, mild or clean


def answer(audit: Audit) -> Answer:
    """Say whether documents are moved by copies that they have already, or could be by those of a token."""
    # A document whose ranks were not measured has entered and left none, so it does not count.
    moved_count = len(audit.documents.filter(~pl.col("suspected_only") & _is_moved()))
    if moved_count:
        verb = "is" if moved_count == 1 else "are"
        documents = counted(audit.result.searched, "document")
        moved = f"{moved_count:,} of {documents} {verb} in other top {TOP}s"
        return Answer("Yes", f"{moved} because of copies that were found there.", "serious")
    certain = audit.documents.filter(~pl.col("suspected_only"))
    unranked = _count_unranked(audit.documents) if certain["change"].null_count() else []
    if not audit.sticky.is_empty():
        worst_token = audit.sticky.row(0, named=True)
        word = "Not now, but it can be" if not unranked else "Perhaps now, and it can be"
        return Answer(word, _describe_harm(audit, worst_token), "serious")
    undecided = [*_name_undecided(audit), *unranked]
    if undecided:
        return Answer("Perhaps", undecided[0], "mild")
    if audit.result.ordinary_found == 0:
        return Answer("Perhaps", _NOTHING_TO_HIDE, "mild")
    return Answer("No", _name_strongest(audit)[0], "clean")


_NOTHING_TO_HIDE = (
    "It is unknown whether copies hide documents: even with copies of a random token, no query finds a "
    "document that answers it."
)


def _is_moved() -> pl.Expr:
    """Whether copies put a document into top 10s or out of them, be it as many in as out."""
    return _entered_any() | _left_any()


def _entered_any() -> pl.Expr:
    return pl.col("entered").list.len().fill_null(0) > 0  # null if the document was not ranked


def _left_any() -> pl.Expr:
    return pl.col("left").list.len().fill_null(0) > 0


def conclusions(audit: Audit) -> list[str]:
    """Return sentences on the results: first on tokens, then on copies that documents already contain."""
    return [*token_conclusions(audit), *document_conclusions(audit)]


def token_conclusions(audit: Audit) -> list[str]:
    """Return sentences on which tokens hide or push documents, the worst first, and the rule."""
    settings = audit.record.rule
    rule = wording.describe_rule(settings.smallest_erased, settings.smallest_push)
    worst_tokens = audit.sticky.head(_NAMED).iter_rows(named=True)
    sentences = [_describe_harm(audit, token) for token in worst_tokens]
    left_out = len(audit.sticky) - len(sentences)
    if left_out:
        verb = "is" if left_out == 1 else "are"
        sentences.append(f"{counted(left_out, 'further token')} {verb} sticky here.")
    sentences += _name_undecided(audit)
    if not sentences:  # no token is sticky or undecided
        sentences.append("No token that was measured is sticky among these documents.")
    if audit.sticky.is_empty() and not audit.tokens.is_empty():
        sentences += _name_strongest(audit)
    return [*sentences, rule]


def _name_undecided(audit: Audit) -> list[str]:
    """Return a sentence on the tokens whose intervals are too wide to tell; empty if there are none."""
    undecided = audit.tokens.filter("undecided")
    if undecided.is_empty():
        return []
    names = ", ".join(quoted(token) for token in undecided["token"].head(_NAMED))
    more = f" and {len(undecided) - _NAMED} more" if len(undecided) > _NAMED else ""
    result = audit.result
    measured_count = max(undecided["documents"].to_list())
    # If there were more documents, tokens would have been measured in as many as the settings allow.
    allowed_count = audit.record.settings["stuffed"]
    if measured_count > allowed_count:  # the token may push
        allowed_count *= TIMES_FURTHER
    are_all_used = measured_count < allowed_count
    index = audit.record.index
    # Documents with copies are counted in the whole collection, not in the sample of it that is searched.
    is_sample = index.documents < index.read - index.blank
    if not is_sample and measured_count >= index.documents - result.with_copies - result.suspected:
        are_all_used = True
    advice = f"measure more documents with `--set stuffed={4 * measured_count}`"
    if are_all_used:
        advice = "they need more documents or queries than there are"
    return [f"{names}{more} may hide or push documents, but the intervals are too wide to tell: {advice}."]


def _describe_harm(audit: Audit, row: Mapping[str, Any]) -> str:
    """Return a sentence on the worse of the two: whether copies of a token hide documents or push them."""
    result = audit.result
    if result.ordinary_push is None or result.ordinary_found is None or result.found_without is None:
        # No random token could be measured, or it is not known which documents answer a query.
        push = number(row["push"], _PUSH_DIGITS, PUSH.unit)
        return f"{describe_push(row['token'], with_interval(push, _push_interval(row)))}."
    if result.ordinary_found == 0:
        # The run alone says what copies hide.
        erases = wording.harm_sentence(row, None)
        hidden, pushed = harm_shares(row["erased"] or 0.0, row["push"])
        if erases is not None and hidden > pushed:
            return f"{erases}."
    ordinary_documents = ""
    if row["documents"] > len(result.stuffed_ids):  # in more than the random tokens
        ordinary_documents = f"in {len(result.stuffed_ids)} of these documents"
    harm = Harm(
        token=row["token"],
        push=row["push"],
        found=row["found"],
        ordinary_push=result.ordinary_push,
        ordinary_found=result.ordinary_found,
        found_without=result.found_without,
        push_interval=_push_interval(row),
        found_interval=_found_interval(row),
        ordinary_documents=ordinary_documents,
    )
    hidden, pushed = harm.shares  # both as shares of the way to a severe token, so that they compare
    if pushed > hidden:
        return sentence(harm.pushes)
    return sentence(harm.hides)


def _push_interval(row: Mapping[str, Any]) -> str:
    return interval(row["push_low"], row["push_high"], _PUSH_DIGITS, PUSH.unit)


def _found_interval(row: Mapping[str, Any]) -> str:
    return interval(row["found_low"], row["found_high"], 0, "%")


def _name_strongest(audit: Audit) -> list[str]:
    """Return a sentence on the token that pushes most and, if it was measured, on the one that hides most."""
    by_push = audit.tokens.sort("push", "token_id", descending=[True, False])
    pushing = by_push.row(0, named=True)
    sentences = [
        f"{quoted(pushing['token'])} pushes most: {COPIES} copies put a document into "
        f"{with_interval(number(pushing['push'], _PUSH_DIGITS, PUSH.unit), _push_interval(pushing))} as many "
        "wrong results."
    ]
    if audit.result.found_without is not None:
        hiding = audit.tokens.sort("found", "token_id").row(0, named=True)
        found = describe_found(with_interval(percent(hiding["found"]), _found_interval(hiding)))
        does_most = f"{quoted(hiding['token'])} hides most"
        if audit.tokens["found"].n_unique() == 1:  # such as all queries, whatever the token
            does_most = "No token hides more than another"
        sentences.append(f"{does_most}: {found} ({percent(audit.result.found_without)} without copies).")
    return sentences


def document_conclusions(audit: Audit, *, names_documents: bool = True) -> list[str]:
    """Return sentences on the documents that already contain copies, and on what the copies change.

    If ``names_documents`` is False, those whose places change are only counted.
    """
    result = audit.result
    # Such as "3 of 1,400 documents" and " (flagged token: 2, repetition: 1)".
    count, causes = document_counts(result.with_copies, result.searched, result.causes)
    verb = "has" if result.with_copies <= 1 else "have"  # "none of 5 documents has"
    sentences = [f"{count[0].upper()}{count[1:]} {verb} copies already{causes}."]
    is_suspected = pl.col("suspected_only")
    certain = audit.documents.filter(~is_suspected)
    if result.with_copies:
        changes = _describe_changes(certain, names_documents=names_documents)
        ranked = certain.filter(pl.col("change").is_not_null())
        these = "None of them is"
        if ranked.is_empty():
            changes = changes or ["None of them could be ranked."]
        elif len(ranked) < len(certain):
            these = f"None of the {len(ranked):,} that were ranked is"
        sentences += changes or [f"{these} in the top {TOP} of other queries because of its copies."]
        sentences += _count_by_source(certain)
        has_other_text = pl.col("mean_rank_without").is_not_null()
        gains_places = not certain.filter(_entered_any() & has_other_text).is_empty()
        if audit.sticky.is_empty() and gains_places:  # no sticky token explains it
            sentences.append(f"Copies of any word help a document that is close to a top {TOP} already.")
    unread = certain.filter(~pl.col("copies_read"))
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
        suspected = audit.documents.filter(is_suspected)
        sentences += _describe_changes(suspected, names_documents=names_documents)
    sentences += _count_unranked(audit.documents)
    return sentences


def _count_unranked(documents: pl.DataFrame) -> list[str]:
    """Return a sentence on the documents with copies of which it isn't known what these change, if any."""
    unranked_count = int(documents["change"].null_count())
    if not unranked_count:
        return []
    reason = "the model reads nothing there"
    if len(documents) > MOST_RANKED:
        reason = f"only the {MOST_RANKED} with the largest shares of copies were"
    were = counted(unranked_count, "document was", "documents were")
    return [f"{were} not ranked, so it is unknown what copies change there: {reason}."]


def _describe_changes(documents: pl.DataFrame, *, names_documents: bool) -> list[str]:
    """Return a sentence on the top 10 lists that copies cost or bring documents; empty if there are none."""
    changed = documents.filter(_is_moved())  # in the order of the table
    if changed.is_empty():
        return []
    losing = changed.filter(_left_any())
    gaining = changed.filter(_entered_any())  # a document may lose some places and gain others
    clauses = []
    for verb, changing, queries in (("lose", losing, "left"), ("gain", gaining, "entered")):
        if not changing.is_empty():
            places = counted(int(changing[queries].list.len().sum()), "place")
            ending = "s" if len(changing) == 1 else ""
            clauses.append(f"{len(changing):,} {verb}{ending} {places}")
    said = f"In top {TOP}s, {' and '.join(clauses)} because of the copies"
    if not names_documents:
        return [f"{said}."]
    first_changed = changed.head(_NAMED_DOCUMENTS).iter_rows(named=True)
    named = [f"{document['id']} ({_compare_queries(document)})" for document in first_changed]
    if len(changed) > len(named):
        named.append(f"and {len(changed) - len(named):,} more")
    return [f"{said}: {'; '.join(named)}."]


# Maximum number of sources that a sentence names.
_NAMED_SOURCES = 5


def _count_by_source(documents: pl.DataFrame) -> list[str]:
    """Return a sentence on the places that copies cost or bring the documents of each source.

    The list is empty if all documents have the same source or none.
    """
    # Numbers of places in top 10 lists, keyed by source.
    lost: Counter[str] = Counter()
    gained: Counter[str] = Counter()
    for document in documents.filter(_is_moved()).iter_rows(named=True):
        source = document["source"]
        if source is not None:
            gained[source] += len(document["entered"])
            lost[source] += len(document["left"])
    sources = gained.keys() | lost.keys()
    if len(sources) <= 1:
        return []
    worst_first = sorted(sources, key=lambda source: (-lost[source], -gained[source], source))
    clauses = [
        f"{quoted(source)} {lost[source]} lost, {gained[source]} gained"
        for source in worst_first[:_NAMED_SOURCES]
    ]
    if len(sources) > _NAMED_SOURCES:
        clauses.append(f"and {len(sources) - _NAMED_SOURCES} more")
    return [f"By source of the document: {'; '.join(clauses)}."]


def _compare_queries(document: Mapping[str, Any]) -> str:
    """Say of how many queries a document is in the top 10 with and without its copies, and name some changes.

    An example is "3 queries instead of 1: rank 2 instead of 40 for 'first query', and 1 more".
    """
    # Queries whose top 10 the document left or entered by its copies, largest change of rank first.
    # What happens more often comes first.
    enters_more = document["change"] > 0  # the change of the number of top 10s
    first, second = ("entered", "left") if enters_more else ("left", "entered")
    changes = [*document[first], *document[second]]
    examples = []
    for change in changes[:_NAMED_QUERIES]:
        query = quoted(beginning(change["query"], _QUERY_CHARACTERS))
        rank_without = change["rank_without"]  # None of a document of nothing but copies
        instead = "" if rank_without is None else f" instead of {rank_without:,}"
        examples.append(f"rank {change['rank']:,}{instead} for {query}")
    if len(changes) > len(examples):
        examples.append(f"and {len(changes) - len(examples):,} more")
    counts = f"{counted(document['hits'], 'query', 'queries')} instead of {document['hits_without']}"
    return f"{counts}: {', '.join(examples)}"


def effect(document: Mapping[str, Any]) -> str:
    """Say what its copies do to a document: into which top 10s they put it, and out of which."""
    if document["change"] is None:
        return "not ranked"
    if not document["copies_read"]:
        return "the model does not read that far"
    if not document["entered"] and not document["left"]:
        return f"the same top {TOP}s as without copies"
    return f"in the top {TOP} of {_compare_queries(document)}"


def title(audit: Audit) -> str:
    """Return what was audited, such as "all-MiniLM-L6-v2 on corpus.jsonl (80 documents) with 40 queries"."""
    index = audit.record.index
    text_from = ""
    if index.text_columns:
        column = "column" if len(index.text_columns) == 1 else "columns"
        text_from = f", text from the {column} {' and '.join(index.text_columns)}"
    if index.unread_columns:
        text_from += f"; not read, although they contain text: {', '.join(index.unread_columns)}"
    return (
        f"{audit.record.model} on {index.name} ({counted(index.documents, 'document')}{text_from}) with "
        f"{counted(index.queries, 'query', 'queries')}"
    )


def token_rows(audit: Audit) -> pl.DataFrame:
    """Return the rows of the token table, in the order of tokens.parquet; see `TOKEN_COLUMNS`."""
    rows = []
    for token in audit.tokens.iter_rows(named=True):
        push_interval = interval(token["push_low"], token["push_high"], _PUSH_DIGITS)
        found_interval = None
        if token["found"] is not None:
            in_percent = interval(token["found_low"], token["found_high"], 0, "%")
            found_interval = in_percent.replace("%", "")  # the sign stands in the title of the column
        rows.append(token | {"push_interval": push_interval, "found_interval": found_interval})
    # All rows decide the types of the columns, because the first ones may be null.
    return pl.DataFrame(rows, infer_schema_length=None)


def setup(audit: Audit) -> str:
    """Return sentences that say what was searched, and what was left out."""
    index = audit.record.index
    result = audit.result
    about_documents = ""
    if index.cut:
        about_documents += f", {index.cut:,} of them cut at the length that the model reads"
    if index.vectors is not None:
        about_documents += f", with the vectors of {index.vectors}"
    remarks = "".join(f" {note[0].upper()}{note[1:]}." for note in audit.record.notes)
    found = ""
    if result.found_without is not None:
        with_ordinary = ""
        if result.ordinary_found is not None:
            with_ordinary = f", {percent(result.ordinary_found)} with copies of a random token"
        found = (
            f" Found: in {counted(result.answers, 'pair')} of a query and a document that answers it, by "
            f"{index.answers_from}; {percent(result.found_without)} without copies{with_ordinary}."
        )
    further = ""
    if result.further_ids:
        tokens = counted(result.further_tokens, "token")
        further = (
            f" Copies of {tokens} that may push were also written into {len(result.further_ids)} documents."
        )
    return (
        f"Measured by exact search: {counted(index.queries, 'query', 'queries')} ({index.queries_from}) "
        f"among {index.documents:,} documents{about_documents}. {len(result.stuffed_ids)} documents got "
        f"{COPIES} copies, one at a time, in front and behind in turn.{further} "
        f"Results: the first {result.depth}; without copies, a document is in those of "
        f"{number(result.results_without, 2)} queries that it does not answer.{found}{remarks}"
    )


def basis(audit: Audit) -> str:
    """Return a paragraph that says how the numbers were measured."""
    sentences = [
        setup(audit),
        f"Intervals: {percent(audit.record.rule.confidence)}, over queries and documents. Queries that "
        "contain the token are left out. The erased share is that of the run.",
    ]
    if audit.result.predicted:
        sentences.append(
            f"The strongest tokens are those of {audit.result.predicted:,} that the run expects to push most."
        )
    return " ".join(sentences)


def done(audit: Audit) -> str:
    """Say in two or three sentences how the numbers were measured; `basis` has the details."""
    index = audit.record.index
    confidence = percent(audit.record.rule.confidence)
    further = ""
    if audit.result.further_ids:
        tokens = counted(audit.result.further_tokens, "token")
        documents = len(audit.result.further_ids)
        further = f" Copies of {tokens} that may push were also written into {documents} documents."
    return (
        f"{COPIES} copies of each of {counted(len(audit.tokens), 'token')} were written into "
        f"{counted(len(audit.result.stuffed_ids), 'document')}, one at a time, and "
        f"{counted(index.queries, 'query', 'queries')} were searched with them and without, among "
        f"{index.documents:,} documents.{further} Intervals say where a number would lie with other "
        f"documents and queries like these, with {confidence} confidence, and a token is sticky only if all "
        "of its interval reaches the threshold."
    )


def limits(audit: Audit) -> list[str]:
    """Return sentences on what the audit does not say."""
    index = audit.record.index
    sentences = [
        f"{counted(len(audit.tokens), 'token')} were measured. Others may hide or push documents, too.",
        f"{COPIES} copies were written in front of a document or behind it. More of them, or copies of "
        "several tokens, may do more.",
        "Search was exact and by this model alone. An approximate index, a search for keywords or a reranker "
        "gives other results.",
        "Only copies were looked for in the documents, not other texts that mislead a search, nor who wrote "
        "them and why.",
    ]
    if index.documents < index.read - index.blank:  # of all documents with text
        drawn = "drawn by chance"
        if index.answers_from == RELEVANCE_JUDGEMENTS:
            drawn = "first those that answer a query, the others drawn by chance"
        sentences.append(f"{index.documents:,} of {index.read:,} documents were searched: {drawn}.")
    # Each first sentence of a document is a query and is answered by its document, so both have one source.
    are_first_sentences = index.queries_from == index.answers_from
    if are_first_sentences:
        sentences.append(
            "The queries are first sentences of documents, not what users ask. `--queries` takes yours."
        )
    return sentences


# The file that the suggested commands write the rules to, for checks without the run folder.
_RULES_FILE = "rules.json"


def next_steps(audit: Audit) -> list[NextStep]:
    """Return the recommended next steps, each with a command."""
    run = quote(audit.record.run)
    documents = quote(audit.record.documents)
    column_options = "".join(f" {quote(word)}" for word in columns_of(audit.record.column).as_options())
    rules_options = "" if audit.sticky.is_empty() else f" --audit {quote(str(audit.path))}"
    for option, file in (("--allow", audit.record.allow), ("--known", audit.record.known)):
        if file is not None:
            rules_options += f" {option} {quote(file)}"
    if audit.result.with_copies:
        purpose = "take the copies out of the documents that have them, then index these documents again"
        files = f"{documents}{column_options}{rules_options} --out YOUR_FILE --rules-out {_RULES_FILE}"
        clean = NextStep(purpose, f"stickytoken clean {run} {files}")
    else:
        purpose = "save what to look for in new documents"
        clean = NextStep(purpose, f"stickytoken clean {run}{rules_options} --rules-out {_RULES_FILE}")
    check = NextStep(
        "in CI, fail if documents have copies of flagged tokens, repeated words or special tokens (needs "
        f"only {_RULES_FILE})",
        f"stickytoken check {_RULES_FILE} --documents {documents}{column_options} --fail-on-documents "
        "repetition --fail-on-documents special",
    )
    if not audit.record.repairable:
        return [clean, check]
    sticky = audit.sticky
    if not sticky.is_empty():
        token_options = ""
        # By default, `repair` takes the tokens that the run flags. Others have to be named.
        if len(sticky.filter(group=FLAGGED)) < len(sticky):
            for token_id in sticky["token_id"].to_list():
                token_options += f" --tokens {quote(f'#{token_id}')}"
        purpose = "repair the model, then encode the documents again with the repaired copy"
        return [NextStep(purpose, f"stickytoken repair {run}{token_options} --out YOUR_FOLDER"), clean, check]
    if not audit.tokens.filter(group=FLAGGED).is_empty():
        purpose = "if others can write your documents, repair the model as well: the run flags tokens of it"
        return [clean, check, NextStep(purpose, f"stickytoken repair {run} --out YOUR_FOLDER")]
    return [clean, check]
