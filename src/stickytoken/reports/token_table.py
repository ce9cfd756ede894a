"""Tables of tokens: their columns and rows."""

from __future__ import annotations

from typing import Any

import polars as pl

from stickytoken.methods.descriptions import Column
from stickytoken.reports.content import RunContent, standardized_lift

_FIRST = (Column("token", "token"), Column("verdict", "verdict"))
_LAST = (Column("entry", "entry"), Column("script", "script"), Column("token_id", "id"))


def columns(content: RunContent) -> tuple[Column, ...]:
    """Return the columns of a table of tokens; those of the method are in the middle."""
    return (*_FIRST, *content.method.reported, *_LAST)


def filled_columns(content: RunContent) -> tuple[Column, ...]:
    """Return the columns in which a flagged token has a value: a page has no room for empty ones."""
    flagged = content.flagged
    return tuple(
        column
        for column in columns(content)
        if column.key not in flagged.columns or flagged[column.key].is_not_null().any()
    )


def flagged_rows(content: RunContent) -> list[dict[str, Any]]:
    """Return all flagged tokens, sticky ones first, with `sd`."""
    return rows_of(content, content.flagged)


def rows_of(content: RunContent, tokens: pl.DataFrame) -> list[dict[str, Any]]:
    """Return rows of tokens with `sd`, their lift beyond an ordinary token's."""
    if tokens.is_empty():
        return []
    return tokens.with_columns(sd=standardized_lift(content)).to_dicts()
