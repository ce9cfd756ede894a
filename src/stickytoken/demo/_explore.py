"""Explore: the table of a run, and the evidence of the chosen token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import gradio as gr
import polars as pl

from stickytoken.demo import _components as ui
from stickytoken.demo.context import (
    TABLE_ROWS,
    SharedModel,
    Startup,
    checked_choices,
    checked_token_id,
    worst_token,
)
from stickytoken.detection.selection import token_evidence
from stickytoken.errors import InputError
from stickytoken.reports import content as facts
from stickytoken.reports.content import RunContent, cards, columns, rows_of
from stickytoken.reports.sections import curve_figures
from stickytoken.validation import visible

_FILTERED = ("verdict", "entry", "script")
_NO_RUN = (
    "There is no run to explore: make one with `stickytoken detect MODEL`, then start the app with --run RUN."
)


def explore_tab(startup: Startup, own_tab: gr.Tab) -> None:
    if startup.opened is None:
        gr.HTML(ui.message(_NO_RUN))
        return
    content = startup.library.content(startup.opened)
    rows = filtered(content)
    run = gr.Dropdown(startup.library.labels, value=startup.opened, label="Run", interactive=True)
    about = gr.HTML(_about(content), elem_id="explore-about")
    with gr.Row():
        search = gr.Textbox(label="Search", info="part of a token", min_width=160)
        filters = [
            gr.Dropdown(
                choices(content, name), value=[], multiselect=True, label=name.capitalize(), min_width=160
            )
            for name in _FILTERED
        ]
    count = gr.HTML(_counted(len(rows)), elem_id="explore-count")
    table = gr.Dataframe(
        _table(content, rows), interactive=False, max_height=420, show_label=False, label="Tokens of the run",
        elem_id="explore-table", buttons=[],
    )  # fmt: skip
    token_id = worst_token(content) if content.run is not None else None
    token = gr.Dropdown(
        tokens_offered(rows), value=token_id, label="Token to show", interactive=True,
        info="or click a row of the table", elem_id="explore-token",
    )  # fmt: skip
    shown = [gr.HTML("", elem_id="explore-evidence"), *ui.figure_slots(1)]
    look = ui.show_errors(_chosen(startup), lambda error: [error, *ui.slot_contents([None])])
    ui.on_first_opening(own_tab, look, [run, token], shown, **ui.ON_MODEL)
    _connect(startup, look, run, [search, *filters], [about, count, table, token], shown)


def _about(content: RunContent) -> str:
    return ui.render(
        "run.html.j2",
        tone=facts.tone(content),
        headline=facts.headline(content),
        meaning=facts.meaning(content),
        steps=facts.steps(content),
        facts=facts.key_facts(content),
        notes=facts.notes(content),
    )


def _counted(rows: int) -> str:
    listed = f"; the first {TABLE_ROWS} are listed, so narrow the search" if rows > TABLE_ROWS else ""
    return ui.message(
        f"{rows:,} {'token' if rows == 1 else 'tokens'}{listed}. A token is sticky if its lift is large and "
        "on most kinds of text; severity grades flagged tokens only."
    )


def _table(content: RunContent, rows: pl.DataFrame) -> dict[str, Any]:
    cells = table_rows(content, rows)
    # Numbers stay numbers, so that they sort; what is read has equal digits.
    shown = {"display_value": shown_rows(content, cells)}
    return {"headers": headings(content), "data": cells, "metadata": shown}


def _chosen(startup: Startup) -> Any:
    def chosen(label: object, token_id: object) -> list[Any]:
        if token_id is None:
            return ["", *ui.slot_contents([None])]
        content, wanted = startup.library.content(label), checked_token_id(token_id)
        if content.run is None:
            raise InputError("this run is not finished, so no token has evidence yet")
        shown = kept_evidence(content, wanted)
        if shown is None:
            shown = computed_evidence(content, wanted, startup.context().model)
        found = cards(shown, shown.tokens.filter(token_id=wanted))
        if not found:
            raise InputError(f"the run did not examine token id {wanted}: choose one from its table")
        card = ui.render("evidence.html.j2", card=found[0], confidence=content.confidence)
        return [card, *ui.slot_contents(curve_figures(shown) or [None])]

    return chosen


def _connect(
    startup: Startup, look: Any, run: Any, filters: list[Any], listing: list[Any], shown: list[Any]
) -> None:
    library = startup.library
    about, count, table, token = listing
    no_tokens = [gr.update(value={"headers": [], "data": []}), gr.update(choices=[], value=None)]

    def open_run(label: object) -> list[Any]:
        found = library.content(label)
        rows = filtered(found)
        fresh = [gr.update(choices=choices(found, name), value=[]) for name in _FILTERED]
        first = worst_token(found) if found.run is not None else None
        offered = gr.update(choices=tokens_offered(rows), value=first)
        return ["", *fresh, _about(found), _counted(len(rows)), _table(found, rows), offered]

    def no_run(error: str) -> list[Any]:
        return ["", *(gr.update(choices=[], value=[]) for _ in _FILTERED), error, "", *no_tokens]

    def narrow(label: object, text: object, *wanted: object) -> list[Any]:
        found = library.content(label)
        chosen = {name: checked_choices(name, values) for name, values in zip(_FILTERED, wanted, strict=True)}
        rows = filtered(found, text if isinstance(text, str) else "", **chosen)
        return [_counted(len(rows)), _table(found, rows), gr.update(choices=tokens_offered(rows))]

    def select(label: object, event: gr.SelectData) -> list[Any]:
        place = id_column(library.content(label))
        cells = event.row_value if isinstance(event.row_value, list) else []
        known = place < len(cells) and cells[place] not in (None, "")
        return [gr.update(value=checked_token_id(cells[place])) if known else gr.skip(), gr.skip()]

    choice = run.input(
        ui.show_errors(open_run, no_run), run, [*filters, about, count, table, token], **ui.ON_TABLES
    )
    choice.then(look, [run, token], shown, **ui.ON_MODEL)
    # Pasted text is a change but not an input.
    triggers = [filters[0].change, *(each.input for each in filters[1:])]
    narrowed = ui.show_errors(narrow, lambda error: [error, *no_tokens])
    gr.on(triggers, narrowed, [run, *filters], [count, table, token], **ui.ON_TABLES)
    selected = ui.show_errors(select, lambda error: [gr.update(value=None), error])
    table.select(selected, run, [token, shown[0]], **ui.ON_TABLES).then(
        look, [run, token], shown, **ui.ON_MODEL
    )
    token.input(look, [run, token], shown, **ui.ON_MODEL)


NOT_JUDGED = "not judged"
# In columns of text, such as the severity of a token that is not flagged; columns of numbers stay numbers.
NO_TEXT = "–"


def choices(content: RunContent, column: str) -> list[str]:
    if content.run is None:
        return []
    return sorted(content.tokens[column].fill_null(NOT_JUDGED).unique())


def filtered(content: RunContent, text: str = "", **wanted: Sequence[str]) -> pl.DataFrame:
    """Return the rows that pass all filters: sticky, then topical, then other tokens, worst first.

    Values are wanted by column, `NOT_JUDGED` for tokens without a verdict; none allows all.
    """
    if content.run is None:
        return content.tokens
    kept = content.tokens
    for column, values in wanted.items():
        if values:
            kept = kept.filter(pl.col(column).fill_null(NOT_JUDGED).is_in(list(values)))
    if text := text.strip().lower():
        names = pl.col("token", "decoded").str.to_lowercase()
        kept = kept.filter(pl.any_horizontal(names.str.contains(text, literal=True)))
    order = pl.col("verdict").replace_strict({"sticky": 0, "topical": 1}, default=2, return_dtype=pl.Int64)
    return kept.sort(
        order, content.method.ranked_by.key, "token_id", descending=[False, True, False], nulls_last=True
    )


def headings(content: RunContent) -> list[str]:
    return [column.title for column in columns(content)]


def table_rows(content: RunContent, tokens: pl.DataFrame) -> list[list[Any]]:
    """Return the cells of the first rows: text made visible, a dash for none; numbers rounded, or None."""

    def cell(value: Any, digits: int | None) -> Any:
        if isinstance(value, str):
            return visible(value)
        if value is None and digits is None:
            return NO_TEXT
        return round(value, digits) if isinstance(value, float) and digits is not None else value

    shown = columns(content)
    return [
        [cell(row.get(column.key), column.digits) for column in shown]
        for row in rows_of(content, tokens.head(TABLE_ROWS))
    ]


def shown_rows(content: RunContent, rows: list[list[Any]]) -> list[list[str]]:
    """Return the same cells as they are read: all numbers of a column with equally many digits."""

    def text(cell: Any, digits: int | None) -> str:
        if isinstance(cell, float) and digits is not None:
            return f"{cell:.{digits}f}".replace("-", "\N{MINUS SIGN}")
        return NO_TEXT if cell is None else str(cell)

    digits = [column.digits for column in columns(content)]
    return [[text(cell, wanted) for cell, wanted in zip(row, digits, strict=True)] for row in rows]


def id_column(content: RunContent) -> int:
    return headings(content).index("id")


def tokens_offered(tokens: pl.DataFrame) -> list[tuple[str, int]]:
    if tokens.is_empty():
        return []
    rows = tokens.head(TABLE_ROWS).select("token", "token_id").iter_rows()
    return [(f"{visible(token)} (id {token_id})", token_id) for token, token_id in rows]


def kept_evidence(content: RunContent, token_id: int) -> RunContent | None:
    """Return the run with its stored evidence of one token; None if it stores none."""
    kept = content.evidence
    if kept is None or token_id not in kept.tokens["token_id"]:
        return None
    chosen = kept.tokens.filter(pl.col("ordinary") | (pl.col("token_id") == token_id))
    # An ordinary token that is asked for is drawn like any other, beside the rest of the ordinary ones.
    chosen = chosen.with_columns(ordinary=pl.col("ordinary") & (pl.col("token_id") != token_id))
    return replace(content, evidence=kept._replace(tokens=chosen))


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
    return replace(content, evidence=kept._replace(tokens=rows))
