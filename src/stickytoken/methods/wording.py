"""The wording of verdicts in the terminal, reports, cards, checks and the web app."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl

from stickytoken.methods import Column, Moved
from stickytoken.methods.measures import ERASED, LIFT, MEASURES, UNUSUAL_SHARE, severities_in_words
from stickytoken.methods.small_search import COPIES, TOP, SearchShares
from stickytoken.words import counted, percent, quoted, sentence

if TYPE_CHECKING:
    from stickytoken.methods.base import StoredSettings


def rule(smallest_lift: float, smallest_erased: float) -> str:
    """Describe the rule in words, with the given thresholds."""
    erased = ERASED.threshold.format
    lift = LIFT.threshold.format
    return (
        "Compared with copies of an ordinary token, a sticky token's copies leave at least "
        f"{erased(smallest_erased)} less of a text's meaning (erased), or move texts at least "
        f"{lift(smallest_lift)} closer to unrelated texts (lift). For a token with an unusual vector, "
        f"{erased(UNUSUAL_SHARE * smallest_erased)} or {lift(UNUSUAL_SHARE * smallest_lift)} is enough."
    )


def vector_in_words(deviation: float, unusual: float) -> str:
    """Describe a token's vector deviation, and the smallest deviation that is unusual.

    Both numbers are in median absolute deviations from the median of all token vectors.
    """
    side = "above" if deviation >= 0 else "below"
    return (
        f"{abs(deviation):.1f} median absolute deviations {side} the median of all token vectors; unusual "
        f"from {unusual:g} above"
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
        measure.reason.format(measure.text(values[measure.key]))
        for measure in MEASURES
        if measure.key in values
    ]
    if unusual_vector:
        reasons.append("unusual vector")
    return "; ".join(reasons)


class SearchHarm(NamedTuple):
    """Results of a small search with copies of a token, without copies, and with copies of ordinary tokens.

    ``ordinary`` is None if ordinary tokens were not measured.
    """

    token: SearchShares
    without: SearchShares
    ordinary: SearchShares | None

    def not_found(self, token: str) -> str:
        """Return a sentence that says how often a document with copies is found by the queries it answers."""
        return self._sentence(token, "answering", "queries that it answers")

    def turns_up(self, token: str) -> str:
        """Return a sentence that says how often documents with copies are found by unrelated queries."""
        return self._sentence(token, "unrelated", "queries about other things")

    def _sentence(self, token: str, share: str, queries: str) -> str:
        compared = f"{percent(getattr(self.without, share))} without copies"
        if self.ordinary is not None:
            compared += f", {percent(getattr(self.ordinary, share))} with copies of an ordinary token"
        return (
            f"With {COPIES} copies of {quoted(token)}, a document is in the top {TOP} for "
            f"{percent(getattr(self.token, share))} of the {queries} ({compared})"
        )


_ELSEWHERE = "where they turn up instead depends on texts that were not measured: judge your own"
_UNUSUAL = "no trained token has a vector like it: it was altered, or never trained"


def harm_sentence(row: Mapping[str, Any], harm: SearchHarm | None) -> str | None:
    """Return a sentence on what copies of a token do in a search.

    The sentence is about the measure in which the token is more extreme: the erased share or the lift.

    Args:
        row: the token's row of tokens.parquet.
        harm: results of the small search; None if it was not run.

    Returns:
        The sentence, without a full stop. The result is None if the small search was not run and the erased
        share or the lift is unknown.
    """
    token = quoted(row["token"])
    erased = row.get("erased")
    lift = row.get("lift_sd")
    is_known = erased is not None and lift is not None
    erases_more = not is_known or (erased or 0) / ERASED.severe >= (lift or 0) / LIFT.severe
    if harm is not None:
        return harm.not_found(row["token"]) if erases_more else harm.turns_up(row["token"])
    if not is_known:
        return None
    if erases_more:
        return (
            f"Copies of {token} leave {ERASED.text(erased)} less of a text's meaning than copies of an "
            "ordinary token"
        )
    return f"Copies of {token} move texts {LIFT.text(lift)} closer to unrelated texts"


def consequences(
    row: Mapping[str, Any], thresholds: Mapping[str, float], harm: SearchHarm | None
) -> list[str]:
    """Return sentences on what copies of a flagged token do in a search.

    Args:
        row: the token's row of tokens.parquet.
        thresholds: thresholds for the token, keyed by column.
        harm: results of the small search; None if it was not run.

    Returns:
        Sentences with full stops, on three subjects in this order: the erased share, if the erased share
        reaches its threshold; the lift, if the lift reaches its threshold; and the vector, if the token is
        flagged only because its vector is unusual. The list is empty for a token that is not flagged.
    """
    if row.get("severity") is None:
        return []
    erases = ERASED.is_reached(row, thresholds)
    lifts = LIFT.is_reached(row, thresholds)
    clauses = []
    if erases:
        clauses.append(ERASED.meaning)
        if harm is not None:
            clauses.append(harm.not_found(row["token"]))
    if lifts:
        clauses.append(LIFT.meaning)
        if harm is not None:
            clauses.append(harm.turns_up(row["token"]))
    elif erases:
        clauses.append(_ELSEWHERE)
    if row["severity"] == "mild":  # it reaches only the lower thresholds for tokens with unusual vectors
        clauses.append(f"its vector is unusual: {_UNUSUAL}")
    return [sentence(clause) for clause in clauses]


def rank_in_a_search(token: str, lift_sd: float, moved: Moved) -> str:
    """Return a sentence on how copies change the rank of an average unrelated document in a search."""
    ordinary = ""
    if moved.ordinary is not None:
        ordinary = f", and {percent(moved.ordinary)} with copies of an ordinary token"
    return (
        f"With {counted(moved.copies, 'copy', 'copies')} of {quoted(token)} (lift "
        f"{LIFT.text(lift_sd)}), an average unrelated document outranks {percent(moved.ahead)} of the "
        f"others in a search. Without copies it outranks 50%{ordinary}."
    )


# Columns of the table that shows the result of a run of profile, with their types.
ANSWER_COLUMNS = (
    Column("token", "token"),
    *MEASURES,
    Column("vector", "vector"),
    Column("verdict", "verdict"),
)


def answer_table(settings: StoredSettings, tokens: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of `ANSWER_COLUMNS` for tokens of a run with these settings.

    The vector is "unusual" or empty. The verdict includes the severity of a flagged token. For an unflagged
    token that was measured in the confirming carriers, it includes the first interval that reaches the
    threshold, such as "benign, 39% to 42%".
    """
    rows = []
    for row in tokens.iter_rows(named=True):
        deviation = row["vector_deviation"]
        is_unusual = deviation is not None and deviation >= settings.number("unusual")
        verdict = row["verdict"] or ""
        if row["severity"] is not None:
            verdict = f"{verdict}, {row['severity']}"
        elif row["confirmed"]:
            for measure in MEASURES:
                low = row[measure.low.key]
                high = row[measure.high.key]
                if high >= settings.number(measure.setting):
                    verdict = f"benign, {measure.interval(low, high)}"
                    break
        values = [row[measure.key] for measure in MEASURES]
        rows.append((row["token"], *values, "unusual" if is_unusual else "", verdict))
    types = {column.key: pl.String if column.digits is None else pl.Float64 for column in ANSWER_COLUMNS}
    return pl.DataFrame(rows, schema=types, orient="row")


def strongest_title(settings: StoredSettings) -> str:
    """Return the title of the table that lists the strongest unflagged tokens of a run of profile."""
    thresholds = [measure.text(settings.number(measure.setting)) for measure in MEASURES]
    return f"Strongest unflagged tokens (thresholds: {', '.join(thresholds)})"


GLOSSARY = {
    "erased": f"{ERASED.definition} A high share means: {ERASED.meaning}; {_ELSEWHERE}.",
    "lift": f"{LIFT.definition} A high lift means: {LIFT.meaning}.",
    "vector": "How many median absolute deviations the token's own vector lies above the median in the "
    f"directions in which vectors hardly vary. From 6 on it is unusual: {_UNUSUAL}.",
    "ordinary token": "The median over random tokens. Copies of any token change a text; only what goes "
    "beyond the ordinary token counts.",
    "verdict": "Sticky: the token reaches a threshold. Topical: it lifts fewer than half of the kinds of "
    "text, because of its meaning, and erases no more than other tokens. Benign: everything else.",
    "severity": severities_in_words(),
    "confirmed": "Measured closely. Every token is put into a few texts. The tokens that are most likely to "
    "reach a threshold are put into many more texts, and only these tokens can be flagged.",
    "kinds lifted": "How many of the kinds of text the token lifts by at least half of the threshold.",
    "strongest kind": "The kind of text that the token lifts most.",
    "reason": "Which thresholds the token reaches. An unusual vector is mentioned if the token reaches only "
    "the lower thresholds for tokens with unusual vectors.",
    "interval": "The plausible range of a number, given that only some texts were tried. A token reaches a "
    "threshold if the low end of its interval does.",
}
