"""The wording of verdicts in the terminal, reports, cards, checks and the web app."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl

from stickytoken.methods import (
    SEVERE_ERASED,
    SEVERE_LIFT,
    UNUSUAL_SHARE,
    Column,
    Moved,
    severities_in_words,
)
from stickytoken.methods.small_search import COPIES, TOP, SearchShares
from stickytoken.validation import visible

if TYPE_CHECKING:
    from stickytoken.methods.base import StoredSettings

MINUS = "\N{MINUS SIGN}"
# How all outputs display the two measures that decide whether a token is sticky.
ERASED = Column("erased", "erased", 0, "%")
LIFT = Column("lift_sd", "lift", 2, "SD")
MEASURES = (ERASED, LIFT)


def percent(share: float) -> str:
    """Format a share as a whole percentage, with a true minus sign instead of a hyphen."""
    return f"{share:.0%}".replace("-0%", "0%").replace("-", MINUS)


def in_sd(value: float) -> str:
    """Format a number of standard deviations, such as "0.53 SD"."""
    return f"{value:.2f} SD".replace("-0.00", "0.00").replace("-", MINUS)


def percent_interval(low: float, high: float, digits: int = 0) -> str:
    """Format an interval of shares in percent, such as "39% to 42%"."""
    return _rounded_outward(low, high, Decimal(1).scaleb(-2 - digits), f".{digits}%")


def points(difference: float) -> str:
    """Format a difference of two shares in percentage points, such as "1.4"."""
    return f"{100 * difference:.1f}".replace("-0.0", "0.0").replace("-", MINUS)


def points_interval(low: float, high: float) -> str:
    """Format an interval of differences in percentage points, such as "0.7 to 2.2"."""
    return percent_interval(low, high, digits=1).replace("%", "")


def sd_interval(low: float, high: float) -> str:
    """Format an interval in standard deviations, such as "0.49 to 0.63 SD"."""
    return f"{_rounded_outward(low, high, Decimal('0.01'), '.2f')} SD"


def _rounded_outward(low: float, high: float, step: Decimal, written_as: str) -> str:
    """Round both ends of an interval to multiples of ``step``, and format them with ``written_as``.

    The lower end is rounded down and the upper end up. Otherwise, an interval that begins just below a
    threshold could look as if it began at the threshold.
    """
    rounded_low = Decimal(repr(float(low))).quantize(step, ROUND_FLOOR) + 0  # + 0 turns -0 into 0
    rounded_high = Decimal(repr(float(high))).quantize(step, ROUND_CEILING) + 0
    return f"{rounded_low:{written_as}} to {rounded_high:{written_as}}".replace("-", MINUS)


def quoted(token: str) -> str:
    """Return a token in quotes, with invisible characters escaped."""
    return visible(repr(token))


def counted(number: int, noun: str) -> str:
    """Return the number followed by the noun, in the plural unless the number is 1."""
    return f"1 {noun}" if number == 1 else f"{number:,} {noun}s"


def rule(smallest_lift: float, smallest_erased: float) -> str:
    """Describe the rule in words, with the given thresholds."""
    halved_erased = percent(UNUSUAL_SHARE * smallest_erased)
    halved_lift = f"{UNUSUAL_SHARE * smallest_lift:g} SD"
    return (
        "Compared with copies of an ordinary token, a sticky token's copies leave at least "
        f"{percent(smallest_erased)} less of a text's meaning (erased), or move texts at least "
        f"{smallest_lift:g} SD closer to unrelated texts (lift). For a token with an unusual vector, "
        f"{halved_erased} or {halved_lift} is enough."
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


def reason(*, erased: float | None, lift_sd: float | None, unusual_vector: bool) -> str:
    """Describe in words why a token is flagged.

    Args:
        erased: erased share of the token; None if it does not reach the threshold.
        lift_sd: lift relative to the ordinary token; None if it does not reach the threshold.
        unusual_vector: whether the token is flagged only because its vector is unusual.
    """
    reasons = []
    if erased is not None:
        reasons.append(f"leaves {percent(erased)} less of a text's meaning than an ordinary token does")
    if lift_sd is not None:
        reasons.append(f"moves texts {in_sd(lift_sd)} closer to unrelated texts")
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
        return self._sentence(
            token,
            "queries that it answers",
            self.token.answering,
            self.without.answering,
            None if self.ordinary is None else self.ordinary.answering,
        )

    def turns_up(self, token: str) -> str:
        """Return a sentence that says how often documents with copies are found by unrelated queries."""
        return self._sentence(
            token,
            "queries about other things",
            self.token.unrelated,
            self.without.unrelated,
            None if self.ordinary is None else self.ordinary.unrelated,
        )

    def _sentence(
        self, token: str, queries: str, share: float, without: float, ordinary: float | None
    ) -> str:
        """Return a sentence that says how many queries find a document with copies, and without copies.

        Args:
            token: the token.
            queries: the queries in words.
            share: share of the queries that find the document with copies of the token.
            without: the same share without copies.
            ordinary: the same share with copies of an ordinary token. If ``ordinary`` is None, the sentence
                does not mention ordinary tokens.
        """
        compared = f"{percent(without)} without copies"
        if ordinary is not None:
            compared += f", {percent(ordinary)} with copies of an ordinary token"
        return (
            f"With {COPIES} copies of {quoted(token)}, a document is in the top {TOP} for {percent(share)} "
            f"of the {queries} ({compared})"
        )


# What a high value of each measure means for a search. These are clauses without a capital letter or a full
# stop: `consequences` turns them into sentences, and the glossary appends them to its sentences.
_NOT_FOUND = "documents with copies are no longer found for what they say"
_ELSEWHERE = "where they turn up instead depends on texts that were not measured: judge your own"
MEANING_OF_ERASED = f"{_NOT_FOUND}; {_ELSEWHERE}"
MEANING_OF_LIFT = (
    "documents with copies come closer to unrelated texts, and may turn up in searches for other things"
)
MEANING_OF_UNUSUAL = "no trained token has a vector like it: it was altered, or never trained"


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
    erases_more = is_erasing(row)
    if harm is not None:
        return harm.not_found(row["token"]) if erases_more else harm.turns_up(row["token"])
    if row.get("erased") is None or row.get("lift_sd") is None:
        return None
    if erases_more:
        erased = percent(row["erased"])
        return (
            f"Copies of {quoted(row['token'])} leave {erased} less of a text's meaning than copies of an "
            "ordinary token"
        )
    return f"Copies of {quoted(row['token'])} move texts {in_sd(row['lift_sd'])} closer to unrelated texts"


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
    erases = reaches(row, "erased", thresholds)
    lifts = reaches(row, "lift_sd", thresholds)
    sentences = []
    if erases:
        sentences.append(_NOT_FOUND)
        if harm is not None:
            sentences.append(harm.not_found(row["token"]))
    if lifts:
        sentences.append(MEANING_OF_LIFT)
        if harm is not None:
            sentences.append(harm.turns_up(row["token"]))
    elif erases:
        sentences.append(_ELSEWHERE)  # where the documents turn up instead is unknown
    # A token is mild if it reaches only the lower thresholds for tokens with unusual vectors. Only older runs
    # have mild tokens without ``vector_deviation``.
    if row["severity"] == "mild" and row.get("vector_deviation") is not None:
        sentences.append(f"its vector is unusual: {MEANING_OF_UNUSUAL}")
    return [f"{sentence[:1].upper()}{sentence[1:]}." for sentence in sentences]


def reaches(row: Mapping[str, Any], measure: str, thresholds: Mapping[str, float]) -> bool:
    """Return whether the lower end of a token's interval reaches the threshold of a measure.

    Return False if the row has no interval for the measure, or if there is no threshold.
    """
    low = row.get(f"{measure}_low")
    return low is not None and measure in thresholds and low >= thresholds[measure]


def rank_in_a_search(token: str, lift_sd: float, moved: Moved) -> str:
    """Return a sentence on how copies change the rank of an average unrelated document in a search."""
    copies = "1 copy" if moved.copies == 1 else f"{moved.copies} copies"
    ordinary = ""
    if moved.ordinary is not None:
        ordinary = f", and {percent(moved.ordinary)} with copies of an ordinary token"
    return (
        f"With {copies} of {quoted(token)} (lift {in_sd(lift_sd)}), an average unrelated document outranks "
        f"{percent(moved.ahead)} of the others in a search. Without copies it outranks 50%{ordinary}."
    )


def table_row(
    row: Mapping[str, Any], smallest_lift: float, smallest_erased: float, unusual: float
) -> dict[str, Any]:
    """Return a token's row in the table that the terminal and reports show as the result of a run.

    Args:
        row: the token's row of tokens.parquet.
        smallest_lift: threshold for the lift of a token whose vector is not unusual.
        smallest_erased: threshold for the erased share of a token whose vector is not unusual.
        unusual: smallest vector deviation of an unusual vector.

    Returns:
        The values, keyed by column: ``token``; ``erased``; ``lift_sd``; ``vector``, which is "unusual" or
        empty; and ``verdict``. The verdict includes the severity of a flagged token. If an unflagged token
        was measured in the confirming carriers, the verdict includes the interval of the erased share or else
        of the lift, such as "benign, 39% to 42%", if the interval reaches the threshold.
    """
    deviation = row["vector_deviation"]
    is_unusual = deviation is not None and deviation >= unusual
    if row["severity"] is not None:
        verdict = f"{row['verdict']}, {row['severity']}"
    elif row["confirmed"] and row["erased_high"] >= smallest_erased:
        verdict = f"benign, {percent_interval(row['erased_low'], row['erased_high'])}"
    elif row["confirmed"] and row["lift_sd_high"] >= smallest_lift:
        verdict = f"benign, {sd_interval(row['lift_sd_low'], row['lift_sd_high'])}"
    else:
        verdict = row["verdict"] or ""
    return {
        "token": row["token"],
        "erased": row["erased"],
        "lift_sd": row["lift_sd"],
        "vector": "unusual" if is_unusual else "",
        "verdict": verdict,
    }


# Columns of the table that shows the result of a run of profile, with their types.
ANSWER_COLUMNS = (
    Column("token", "token"),
    ERASED,
    LIFT,
    Column("vector", "vector"),
    Column("verdict", "verdict"),
)
_ANSWER_TYPES = {
    "token": pl.String,
    "erased": pl.Float64,
    "lift_sd": pl.Float64,
    "vector": pl.String,
    "verdict": pl.String,
}


def answer_table(settings: StoredSettings, tokens: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of `ANSWER_COLUMNS` for tokens of a run with these settings."""
    thresholds = [settings.number(name) for name in ("smallest_lift", "smallest_erased", "unusual")]
    rows = [table_row(row, *thresholds) for row in tokens.iter_rows(named=True)]
    return pl.DataFrame(rows, schema=_ANSWER_TYPES)


def strongest_title(settings: StoredSettings) -> str:
    """Return the title of the table that lists the strongest unflagged tokens of a run of profile."""
    smallest_erased = percent(settings.number("smallest_erased"))
    smallest_lift = in_sd(settings.number("smallest_lift"))
    return f"Strongest unflagged tokens (thresholds: {smallest_erased}, {smallest_lift})"


def is_erasing(row: Mapping[str, Any]) -> bool:
    """Return whether a token's erased share is at least as extreme as its lift; True if a value is missing.

    To compare the two measures, each value is divided by the minimum that makes a token severe.
    """
    erased = row.get("erased")
    lift = row.get("lift_sd")
    if erased is None or lift is None:
        return True
    return bool(erased / SEVERE_ERASED >= lift / SEVERE_LIFT)


GLOSSARY = {
    "erased": "How much less of a text's meaning copies of the token leave than copies of an ordinary token "
    "do: 50% if they leave half as much. A high share means: "
    f"{MEANING_OF_ERASED}.",
    "lift": "How much closer copies of the token move texts to unrelated texts than copies of an ordinary "
    "token do, in standard deviations (SD) of the model's similarities, averaged over the kinds of text. A "
    f"high lift means: {MEANING_OF_LIFT}.",
    "vector": "How many median absolute deviations the token's own vector lies above the median in the "
    f"directions in which vectors hardly vary. From 6 on it is unusual: {MEANING_OF_UNUSUAL}.",
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
