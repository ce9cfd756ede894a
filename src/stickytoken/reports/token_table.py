"""Tables of tokens: their columns and rows."""

from __future__ import annotations

from typing import Any

import polars as pl

from stickytoken.methods.descriptions import Column
from stickytoken.reports.content import RunContent, moved

_FIRST = (Column("token", "token"), Column("verdict", "verdict"))
_LAST = (Column("kind", "kind"), Column("script", "script"), Column("token_id", "id"))


def columns(content: RunContent) -> tuple[Column, ...]:
    """The columns of a table of tokens, those of the method in the middle."""
    return (*_FIRST, *content.method.reported, *_LAST)


def flagged_rows(content: RunContent) -> list[dict[str, Any]]:
    """All flagged tokens, sticky ones first, with `sd` beside what tokens.parquet says."""
    return rows_of(content, content.flagged)


def rows_of(content: RunContent, tokens: pl.DataFrame) -> list[dict[str, Any]]:
    """Rows of tokens with `sd`, the lift beyond an ordinary token's in standard deviations."""
    return tokens.with_columns(sd=moved(content)).to_dicts() if len(tokens) else []
