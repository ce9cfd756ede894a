"""Explore: the table of a run, and the evidence of the chosen token."""

from __future__ import annotations

from dataclasses import replace
from shlex import quote
from typing import Any

import gradio as gr
import polars as pl

from stickytoken.demo import _components as ui
from stickytoken.demo.context import EXAMPLES, Startup, checked_token_id, worst_token
from stickytoken.detection import token_evidence
from stickytoken.errors import InputError
from stickytoken.methods import Column
from stickytoken.reports import content as facts
from stickytoken.validation import visible

_TABLE_ROWS = 500
_FILTERED = ("verdict", "entry", "script")
_NO_RUN = (
    "There is no run to explore: make one with `stickytoken detect MODEL`, then start the app with --run RUN."
)


def explore_tab(startup: Startup, own_tab: gr.Tab) -> None:
    if startup.opened is None:
        gr.HTML(ui.message(_NO_RUN))
        return
    library = startup.library
    content = library.content(startup.opened)
    rows = _filtered(content)
    run = gr.Dropdown(library.labels, value=startup.opened, label="Run", interactive=True)
    about = [gr.HTML(said, elem_id=f"explore-{name}") for name, said in _about(content).items()]
    with gr.Row():
        search = gr.Textbox(label="Search", info="part of a token", min_width=160)
        filters = [
            gr.Dropdown(
                _choices(content, name), value=[], multiselect=True, label=name.capitalize(), min_width=160
            )
            for name in _FILTERED
        ]
    count = gr.HTML(_counted(content, len(rows)), elem_id="explore-count")
    table = gr.Dataframe(
        _table(content, rows), interactive=False, max_height=420, show_label=False, label="Tokens of the run",
        elem_id="explore-table", buttons=[],
    )  # fmt: skip
    token = gr.Dropdown(
        _offered(rows), value=_first(content), label="Token to show", interactive=True,
        info="or click a row of the table", elem_id="explore-token",
    )  # fmt: skip
    shown = [gr.HTML("", elem_id="explore-evidence"), *ui.figure_slots(1)]

    def open_run(label: object) -> list[Any]:
        found = library.content(label)
        rows = _filtered(found)
        fresh = [gr.update(choices=_choices(found, name), value=[]) for name in _FILTERED]
        offered = gr.update(choices=_offered(rows), value=_first(found))
        return ["", *fresh, *_about(found).values(), _counted(found, len(rows)), _table(found, rows), offered]

    def no_tokens() -> list[Any]:  # each time anew, because Gradio modifies updates
        return [gr.update(value={"headers": [], "data": []}), gr.update(choices=[], value=None)]

    def no_run(error: str) -> list[Any]:
        return ["", *(gr.update(choices=[], value=[]) for _ in _FILTERED), error, "", "", *no_tokens()]

    def narrow(label: object, text: object, *wanted: object) -> list[Any]:
        found = library.content(label)
        rows = _filtered(found, text if isinstance(text, str) else "", *wanted)
        # What is looked for is shown; with no search, the token stays that is shown.
        first: dict[str, Any] = {"value": rows["token_id"][0]} if text and len(rows) else {}
        return [_counted(found, len(rows)), _table(found, rows), gr.update(choices=_offered(rows), **first)]

    def select(label: object, event: gr.SelectData) -> list[Any]:
        place = [column.title for column in facts.columns(library.content(label))].index("id")
        cells = event.row_value if isinstance(event.row_value, list) else []
        known = place < len(cells) and cells[place] not in (None, "")
        return [gr.update(value=checked_token_id(cells[place])) if known else gr.skip(), gr.skip()]

    def look(label: object, token_id: object) -> list[Any]:
        return _evidence(startup, label, token_id)

    looked = ui.show_errors(look, lambda error: [error, *ui.slot_contents([None])])
    ui.on_first_opening(own_tab, looked, [run, token], shown, **ui.ON_MODEL)
    listing = [*about, count, table, token]
    choice = run.input(ui.show_errors(open_run, no_run), run, [search, *filters, *listing], **ui.ON_TABLES)
    choice.then(looked, [run, token], shown, **ui.ON_MODEL)
    # Pasted text is a change but not an input.
    triggers = [search.change, *(each.input for each in filters)]
    narrowed = ui.show_errors(narrow, lambda error: [error, *no_tokens()])
    gr.on(triggers, narrowed, [run, search, *filters], [count, table, token], **ui.ON_TABLES).then(
        looked, [run, token], shown, **ui.ON_MODEL
    )
    selected = ui.show_errors(select, lambda error: [gr.update(value=None), error])
    table.select(selected, run, [token, shown[0]], **ui.ON_TABLES).then(
        looked, [run, token], shown, **ui.ON_MODEL
    )
    token.input(looked, [run, token], shown, **ui.ON_MODEL)


def _first(content: facts.RunContent) -> int | None:
    return None if content.run is None else worst_token(content)


def _about(content: facts.RunContent) -> dict[str, str]:
    """Render the answer of a run: its headline, and the rest of the first screen of its report."""
    steps = list(facts.steps(content))
    if content.path.is_relative_to(EXAMPLES):  # where the package is installed, which helps nobody
        installed = quote(str(content.path))
        steps = [step._replace(command=step.command.replace(installed, "RUN")) for step in steps]
    tone = facts.tone(content)
    sticky = len(content.sticky)
    about = ui.render(
        "run.html.j2",
        tone=tone,
        cards=facts.cards(content, content.sticky.head(facts.FIRST_CARDS)),
        sticky=sticky,
        strongest=None if sticky else facts.strongest(content),
        steps=steps,
        rule=facts.rule(content),
        confidence=content.confidence,
        facts=facts.key_facts(content),
        notes=facts.notes(content),
    )
    headline = ui.render("headline.html.j2", tone=tone, headline=facts.headline(content))
    return {"headline": headline, "about": about}


def _counted(content: facts.RunContent, rows: int) -> str:
    said = f"{rows:,} {'token' if rows == 1 else 'tokens'}"
    if rows > _TABLE_ROWS:
        said += f"; the first {_TABLE_ROWS} are listed, so narrow the search"
    said += "."
    if "reason" in content.tokens.columns:
        said += " The column reason says why a token is flagged."
    return ui.message(said)


_NOT_JUDGED = "not judged"
# In columns of text, such as the severity of a token that is not flagged; columns of numbers stay numbers.
_NO_TEXT = "–"


def _choices(content: facts.RunContent, column: str) -> list[str]:
    if content.run is None:
        return []
    return sorted(content.tokens[column].fill_null(_NOT_JUDGED).unique())


def _filtered(content: facts.RunContent, text: str = "", *wanted: object) -> pl.DataFrame:
    if content.run is None:
        return content.tokens
    kept = content.tokens
    for column, values in zip(_FILTERED, wanted, strict=False):
        if values is not None and not (
            isinstance(values, list) and all(isinstance(each, str) for each in values)
        ):
            raise InputError(f"{column} is not a list of entries: choose some from the list")
        if values:
            kept = kept.filter(pl.col(column).fill_null(_NOT_JUDGED).is_in(values))
    if text := text.strip().lower():
        names = pl.col("token", "decoded").str.to_lowercase()
        kept = kept.filter(pl.any_horizontal(names.str.contains(text, literal=True)))
    places = {token_id: place for place, token_id in enumerate(content.flagged["token_id"])}
    order = pl.col("token_id").replace_strict(places, default=len(places), return_dtype=pl.Int64)
    return kept.sort(
        order, content.method.ranked_by.key, "token_id", descending=[False, True, False], nulls_last=True
    )


def _table(content: facts.RunContent, tokens: pl.DataFrame) -> dict[str, Any]:
    """Lay out tokens for Gradio: values to sort by, and the same as text to read."""
    columns = facts.columns(content)
    values = []
    texts = []
    for row in facts.rows_of(content, tokens.head(_TABLE_ROWS)):
        values.append([_value(row.get(column.key), column) for column in columns])
        texts.append([_text(row.get(column.key), column) for column in columns])
    return {
        "headers": [column.title for column in columns],
        "data": values,
        "metadata": {"display_value": texts},
    }


def _value(value: Any, column: Column) -> Any:
    """Return a cell's value as it is sorted; a number has as many digits as its text."""
    if isinstance(value, str):
        return visible(value)
    if value is None:
        return _NO_TEXT if column.digits is None else None
    if isinstance(value, float) and column.digits is not None:
        # A percentage has two digits fewer than the share.
        return round(value, column.digits + 2 if column.unit == "%" else column.digits)
    return value


def _text(value: Any, column: Column) -> str:
    """Return a cell's value as it is read."""
    return _NO_TEXT if value is None else visible(column.text(value))


def _offered(tokens: pl.DataFrame) -> list[tuple[str, int]]:
    if tokens.is_empty():
        return []
    rows = tokens.head(_TABLE_ROWS).select("token", "token_id").iter_rows()
    return [(f"{visible(token)} (id {token_id})", token_id) for token, token_id in rows]


def _evidence(startup: Startup, label: object, token_id: object) -> list[Any]:
    if token_id is None:
        return ["", *ui.slot_contents([None])]
    content, wanted = startup.library.content(label), checked_token_id(token_id)
    if content.run is None:
        raise InputError("this run is not finished, so no token has evidence yet")
    kept = content.evidence
    if kept is not None and wanted in kept.tokens["token_id"]:
        chosen = kept.tokens.filter(pl.col("ordinary") | (pl.col("token_id") == wanted))
        # An ordinary token that is asked for is drawn like any other, beside the other ordinary ones.
        rows = chosen.with_columns(ordinary=pl.col("ordinary") & (pl.col("token_id") != wanted))
        kept = kept._replace(tokens=rows)
    else:
        model = startup.context().model
        with model.encoder():
            found = token_evidence(model.reopened(content.run), [wanted], with_ordinary=kept is None)
        if kept is None:
            kept = found
        else:
            kept = kept._replace(tokens=pl.concat([found.tokens, kept.tokens.filter("ordinary")]))
    shown = replace(content, evidence=kept)
    found_cards = facts.cards(shown, shown.tokens.filter(token_id=wanted))
    if not found_cards:
        raise InputError(f"the run did not examine token id {wanted}: choose one from its table")
    card = ui.render("evidence.html.j2", card=found_cards[0], confidence=content.confidence)
    return [card, *ui.slot_contents(facts.curve_figures(shown) or [None])]
