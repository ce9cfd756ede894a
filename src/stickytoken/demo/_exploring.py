"""The token table of a run with its filters, and the evidence of one token."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from stickytoken.demo._inputs import TABLE_ROWS
from stickytoken.demo.shared_model import SharedModel
from stickytoken.detection.token_evidence import token_evidence
from stickytoken.reports.content import RunContent
from stickytoken.reports.token_table import columns, rows_of
from stickytoken.visible_text import visible

NOT_JUDGED = "not judged"
# In columns of text, such as the severity of a token that is not flagged; columns of numbers stay numbers.
NO_TEXT = "–"


@dataclass(frozen=True, slots=True)
class Filters:
    """Which tokens of a run are shown; an empty filter keeps everything.

    Attributes:
        text: part of the token or of its text; case is ignored.
        verdicts: allowed verdicts; `NOT_JUDGED` for tokens without one.
        entries: allowed kinds of entry.
        scripts: allowed scripts.
    """

    text: str = ""
    verdicts: tuple[str, ...] = ()
    entries: tuple[str, ...] = ()
    scripts: tuple[str, ...] = ()


def choices(content: RunContent, column: str) -> list[str]:
    """Return the values that a run has in a column."""
    if content.run is None:
        return []
    found = content.tokens[column].fill_null(NOT_JUDGED).unique().to_list()
    return sorted(found)


def filtered(content: RunContent, filters: Filters) -> pl.DataFrame:
    """Return the rows that pass all filters: sticky, then topical, then other tokens, worst first."""
    if content.run is None:
        return content.tokens
    kept = content.tokens
    for column, wanted in (
        ("verdict", filters.verdicts),
        ("entry", filters.entries),
        ("script", filters.scripts),
    ):
        if wanted:
            kept = kept.filter(pl.col(column).fill_null(NOT_JUDGED).is_in(list(wanted)))
    if text := filters.text.strip().lower():
        names = pl.col("token", "decoded").str.to_lowercase()
        kept = kept.filter(pl.any_horizontal(names.str.contains(text, literal=True)))
    order = pl.col("verdict").replace_strict({"sticky": 0, "topical": 1}, default=2, return_dtype=pl.Int64)
    return kept.sort(
        order, content.method.ranked_by.key, "token_id", descending=[False, True, False], nulls_last=True
    )


def headings(content: RunContent) -> list[str]:
    """Return the headings of the table."""
    return [column.title for column in columns(content)]


def table_rows(content: RunContent, tokens: pl.DataFrame) -> list[list[Any]]:
    """Return the cells of the first rows: text made visible, a dash for none; numbers rounded, or None."""
    shown = columns(content)
    return [
        [_cell(row.get(column.key), column.digits) for column in shown]
        for row in rows_of(content, tokens.head(TABLE_ROWS))
    ]


def shown_rows(content: RunContent, rows: list[list[Any]]) -> list[list[str]]:
    """Return the same cells as they are read: all numbers of a column with equally many digits."""
    digits = [column.digits for column in columns(content)]
    return [[_text(cell, wanted) for cell, wanted in zip(row, digits, strict=True)] for row in rows]


def id_column(content: RunContent) -> int:
    """Return the index of the token id in a row of the table."""
    return headings(content).index("id")


def kept_evidence(content: RunContent, token_id: int) -> RunContent | None:
    """Return the run with its stored evidence of one token; None if it stores none."""
    kept = content.evidence
    if kept is None or token_id not in kept.tokens["token_id"]:
        return None
    chosen = kept.tokens.filter(pl.col("ordinary") | (pl.col("token_id") == token_id))
    # An ordinary token that is asked for is drawn like any other, beside the rest of the ordinary ones.
    chosen = chosen.with_columns(ordinary=pl.col("ordinary") & (pl.col("token_id") != token_id))
    return replace(content, evidence=replace(kept, tokens=chosen))


def computed_evidence(content: RunContent, token_id: int, model: SharedModel) -> RunContent:
    """Return the run with evidence of one token, computed now by its model."""
    kept = content.evidence
    if content.run is None:
        return content
    with model.encoder():
        found = token_evidence(model.reopened(content.run), [token_id], with_ordinary=kept is None)
    if kept is None:
        return replace(content, evidence=found)
    rows = pl.concat([found.tokens, kept.tokens.filter("ordinary")])
    return replace(content, evidence=replace(kept, tokens=rows))


def tokens_offered(tokens: pl.DataFrame, most: int = TABLE_ROWS) -> list[tuple[str, int]]:
    """Return label and id of the first rows, to choose from."""
    if tokens.is_empty():
        return []
    rows = tokens.head(most).select("token", "token_id").iter_rows()
    return [(f"{visible(token)} (id {token_id})", token_id) for token, token_id in rows]


def _text(cell: Any, digits: int | None) -> str:
    if isinstance(cell, float) and digits is not None:
        return f"{cell:.{digits}f}".replace("-", "\N{MINUS SIGN}")
    return NO_TEXT if cell is None else str(cell)


def _cell(value: Any, digits: int | None) -> Any:
    if isinstance(value, str):
        return visible(value)
    if value is None and digits is None:
        return NO_TEXT
    return round(value, digits) if isinstance(value, float) and digits is not None else value
