"""The wording of verdicts in the terminal, reports, cards, checks and the web app."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from stickytoken.methods import Column, measures
from stickytoken.methods.measures import (
    ERASED,
    MEASURES,
    PUSH,
    hidden_share,
    severities_in_words,
)
from stickytoken.search import COPIES, TOP
from stickytoken.settings.profile import RuleSettings
from stickytoken.words import percent, quoted, sentence


def describe_rule(smallest_erased: float, smallest_push: float) -> str:
    """Describe the rule in words, with the given thresholds."""
    # `lowered` are the thresholds of a token with an unusual vector: an infinite deviation is always unusual.
    lowered = measures.thresholds(np.inf, RuleSettings(smallest_erased, smallest_push))
    erased = ERASED.threshold_format.format(smallest_erased)
    push = PUSH.threshold_format.format(smallest_push)
    lowered_erased = ERASED.threshold_format.format(float(lowered[ERASED.key]))
    lowered_push = PUSH.threshold_format.format(float(lowered[PUSH.key]))
    return (
        f"A token is sticky if its copies hide documents (leave at least {erased} less of a text than an "
        f"ordinary token's copies) or push them (into at least {push} as many wrong results). For an unusual "
        f"vector, {lowered_erased} or {lowered_push} is enough. At least means the whole interval."
    )


def vector_in_words(deviation: float, unusual_from: float) -> str:
    """Describe how unusual a token's vector is, and from which deviation on a vector is unusual.

    Args:
        deviation: how many median absolute deviations the statistic of the token's vector lies above the
            median of this statistic over all tokens; see `stickytoken.token_vectors.vector_deviations`.
        unusual_from: the smallest deviation of an unusual vector.
    """
    side = "above" if deviation >= 0 else "below"
    return (
        f"how unusual its direction is: {abs(deviation):.1f} median absolute deviations {side} the median of "
        f"all token vectors; counts as unusual from {unusual_from:g} above"
    )


WITHOUT_VECTORS = (
    "Token vectors were not compared, because this model has none or too few: the full thresholds apply to "
    "every token."
)


def reason(values: Mapping[str, float], *, unusual_vector: bool) -> str:
    """Describe in words why a token is flagged.

    Args:
        values: values of the measures that reach their thresholds, keyed by column.
        unusual_vector: whether the token is flagged only because its vector is unusual.
    """
    reasons = [
        measure.reason_format.format(measure.text(values[measure.key]))
        for measure in MEASURES
        if measure.key in values
    ]
    if unusual_vector:
        reasons.append("unusual vector")
    return "; ".join(reasons)


def describe_push(token: str, push: str) -> str:
    """Say by how much copies of a token multiply a document's wrong results; ``push`` is like "2.1×"."""
    return f"{COPIES} copies of {quoted(token)} put a document into {push} as many wrong results"


def describe_found(found: str) -> str:
    """Say how often a document is found by the queries that it answers; ``found`` is like "73%"."""
    return f"{found} of the queries that a document answers find it among the first {TOP} results"


def with_interval(value: str, interval: str) -> str:
    """Return a number with its interval behind it, such as "73% (61% to 82%)", if there is an interval."""
    return f"{value} ({interval})" if interval else value


def harm_shares(hidden: float, push: float) -> tuple[float, float]:
    """Return how much copies hide and push documents: 0 for no effect, 1 for the effect of a severe token.

    Args:
        hidden: share of the queries that lose their document, as `hidden_share` returns it.
        push: in how many times as many wrong results a document is.
    """
    pushed = (push - PUSH.without_effect) / (PUSH.severe - PUSH.without_effect)
    return hidden / ERASED.severe, pushed


class Harm(NamedTuple):
    """What eight copies of a token do to documents, beside an ordinary token and no copies.

    Attributes:
        token: the token.
        push: in how many times as many wrong results a document is.
        found: share of the queries that find the document that answers them among the first ten results.
        ordinary_push: the push of an ordinary token.
        ordinary_found: the share with copies of an ordinary token; None if it was not measured in the same
            documents.
        found_without: the share without copies.
        push_interval: the interval of the push as text, if it is to be given.
        found_interval: the interval of the share as text, if it is to be given.
        ordinary_documents: where the ordinary push was measured, if in other documents than the push.
    """

    token: str
    push: float
    found: float
    ordinary_push: float
    ordinary_found: float | None
    found_without: float
    push_interval: str = ""
    found_interval: str = ""
    ordinary_documents: str = ""

    @property
    def shares(self) -> tuple[float, float]:
        """How much copies hide and push documents: 0 for no effect, 1 for the effect of a severe token."""
        found_otherwise = self.found_without if self.ordinary_found is None else self.ordinary_found
        hidden = 0.0  # also if ordinary copies hide all documents, so that none is left to hide
        if found_otherwise:
            hidden = hidden_share(self.found, found_otherwise)
        return harm_shares(hidden, self.push)

    @property
    def hides(self) -> str:
        """How often a document with copies is found by the queries that it answers."""
        found = with_interval(percent(self.found), self.found_interval)
        compared = f"{percent(self.found_without)} without copies"
        if self.ordinary_found is not None:
            compared += f", {percent(self.ordinary_found)} with copies of an ordinary token"
        return f"With {COPIES} copies of {quoted(self.token)}, {describe_found(found)} ({compared})"

    @property
    def pushes(self) -> str:
        """In how many wrong results a document with copies is."""
        said = describe_push(self.token, with_interval(PUSH.text(self.push), self.push_interval))
        where = f", {self.ordinary_documents}" if self.ordinary_documents else ""
        return f"{said} ({PUSH.text(self.ordinary_push)} with copies of an ordinary token{where})"


_UNUSUAL = "few tokens have a vector like it; it may have been altered, or never trained"


def harm_sentence(row: Mapping[str, Any], harm: Harm | None) -> str | None:
    """Return a sentence on what copies of a token do to documents: hide or push them, whichever is worse.

    Args:
        row: the token's row of tokens.parquet.
        harm: what copies do to documents. If None, because the token was not measured in documents, the
            sentence says what copies erase of short texts.

    Returns:
        The sentence, without a full stop; None if nothing is known.
    """
    if harm is not None:
        hidden, pushed = harm.shares
        return harm.pushes if pushed > hidden else harm.hides
    erased = row.get("erased")
    if erased is None:
        return None
    return (
        f"Copies of {quoted(row['token'])} leave {ERASED.text(erased)} less of a text's meaning than copies "
        "of an ordinary token"
    )


def consequences(row: Mapping[str, Any], thresholds: Mapping[str, float], harm: Harm | None) -> list[str]:
    """Return sentences on what copies of a flagged token do in a search, with full stops.

    There is a sentence about the erased share and about the push if they reach their thresholds, and about
    the vector if the token is flagged only because its vector is unusual. The list is empty for a token that
    is not flagged.

    Args:
        row: the token's row of tokens.parquet.
        thresholds: thresholds for the token, keyed by column.
        harm: what copies do to documents; None if the token was not measured in documents.
    """
    if row.get("severity") is None:
        return []
    clauses = []
    if ERASED.is_reached(row, thresholds):
        clauses.append(ERASED.meaning)
        if harm is not None:
            clauses.append(harm.hides)
    if PUSH.is_reached(row, thresholds):
        clauses.append(PUSH.meaning)
        if harm is not None:
            clauses.append(harm.pushes)
    if row["severity"] == "mild":  # flagged only because its vector is unusual
        clauses.append(f"its vector is unusual: {_UNUSUAL}")
    return [sentence(clause) for clause in clauses]


# Columns of the table that shows the result of a run of profile, with their types.
RESULT_COLUMNS = (
    Column("token", "token"),
    *MEASURES,
    Column("found", "found", 0, "%"),
    Column("vector", "vector"),
    Column("verdict", "verdict"),
)


def result_table(rule: RuleSettings, tokens: pl.DataFrame, documents: int | None) -> pl.DataFrame:
    """Return the rows of `RESULT_COLUMNS` for tokens of a run with this rule.

    ``documents`` is the number of documents that receive copies; None if nothing was measured in documents.
    For a token that was measured in fewer documents, the column ``found`` (the share of queries that find
    their document) is empty: the table shows no interval for it, and four documents have only eight queries.

    The column ``vector`` is "unusual" or empty. The column ``verdict`` includes the severity of a flagged
    token. For an unflagged token that was measured in the confirming carriers, the verdict includes the first
    interval whose upper end reaches the token's threshold, such as "benign, 39% to 42%": the verdict was
    close. If a token was dropped before the last documents, the verdict says how many its push is from: those
    that were measured longest are those that had pushed most so far, and more documents deny most of it.
    """
    shown_rows = []
    for row in tokens.iter_rows(named=True):
        deviation = row["vector_deviation"]
        is_unusual = deviation is not None and deviation >= rule.unusual
        verdict = row["verdict"] or ""
        if row["severity"] is not None:
            verdict = f"{verdict}, {row['severity']}"
        elif row["confirmed"]:
            interval = _find_interval_that_reaches(row, measures.thresholds(deviation, rule))
            if interval is not None:
                verdict = f"benign, {interval}"
        measured_in = row["documents"]
        is_dropped = measured_in is not None and documents is not None and measured_in < documents
        # A sticky token was measured in all documents.
        if is_dropped and row["push"] is not None and row["severity"] is None:
            verdict = f"{verdict}, push in {measured_in} documents"
        values = [row[measure.key] for measure in MEASURES]
        found = row["found"] if row["documents"] == documents else None
        shown_rows.append((row["token"], *values, found, "unusual" if is_unusual else "", verdict))
    types = {column.key: pl.String if column.digits is None else pl.Float64 for column in RESULT_COLUMNS}
    return pl.DataFrame(shown_rows, schema=types, orient="row")


def _find_interval_that_reaches(row: Mapping[str, Any], thresholds: Mapping[str, Any]) -> str | None:
    # Returns, as text, the first interval of a token whose upper end reaches the threshold of its measure.
    for measure in MEASURES:
        high = row[measure.high.key]
        if high is not None and high >= thresholds[measure.key]:
            return measure.interval(row[measure.low.key], high)
    return None


def strongest_title(rule: RuleSettings) -> str:
    """Return the title of the table that lists the strongest unflagged tokens of a run of profile."""
    full_thresholds = [measure.text(getattr(rule, measure.setting)) for measure in MEASURES]
    return f"Strongest unflagged tokens (thresholds: {', '.join(full_thresholds)})"


GLOSSARY = {
    "erased": f"{ERASED.definition} A high share means: {ERASED.meaning}.",
    "push": f"{PUSH.definition} A high push means: {PUSH.meaning}. Only suspicious and random tokens are "
    "measured in documents.",
    "found": "How many of the queries that a document answers still find it among the first "
    "ten results, with eight copies in it. Beside a verdict, it is left out for tokens that were measured in "
    "only some of the documents: a few queries say little.",
    "documents": "In how many documents the token was measured.",
    "vector": "How many median absolute deviations the token's own vector lies above the median in the "
    f"directions in which vectors hardly vary. From {RuleSettings().unusual:g} on (setting `unusual`) it "
    f"is unusual: {_UNUSUAL}.",
    "ordinary token": "The median over random tokens. Copies of any token change a text; only what goes "
    "beyond the ordinary token counts.",
    "verdict": "Sticky: the token reaches a threshold. Benign: everything else.",
    "severity": severities_in_words(),
    "confirmed": "Measured closely. Every token is put into a few texts. Those most likely to erase enough "
    "are put into many more, and only they can be flagged for it.",
    "reason": "Which thresholds the token reaches. An unusual vector is mentioned if the token reaches only "
    "the lower thresholds for tokens with unusual vectors.",
    "interval": "The plausible range of a number, given that only some texts were tried. A token reaches a "
    "threshold if the low end of its interval does.",
}
