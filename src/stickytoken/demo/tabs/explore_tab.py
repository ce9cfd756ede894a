"""Explore: the table of a run, and the evidence of the chosen token."""

from __future__ import annotations

from typing import Any

import gradio as gr

from stickytoken.demo._answers import (
    Filters,
    choices,
    computed_evidence,
    filtered,
    headings,
    id_column,
    kept_evidence,
    shown_rows,
    table_rows,
    tokens_offered,
    worst_token,
)
from stickytoken.demo._components import (
    ON_MODEL,
    ON_TABLES,
    figure_slots,
    message,
    on_first_opening,
    render,
    show_errors,
    slot_contents,
)
from stickytoken.demo.context import TABLE_ROWS, RunLibrary, Startup, checked_choices, checked_token_id
from stickytoken.errors import InputError
from stickytoken.reports.content import RunContent, card_of, headline, key_facts, meaning, notes, steps, tone
from stickytoken.reports.figure_set import curve_figures
from stickytoken.reports.figures.figure import ReportFigure

_FILTERED = ("verdict", "entry", "script")
NO_RUN = (
    "There is no run to explore: make one with `stickytoken detect MODEL`, then start the app with --run RUN."
)


class Explore:
    """Contents of the tab."""

    def __init__(self, startup: Startup) -> None:
        self._startup = startup

    def about(self, content: RunContent) -> str:
        """Return the headline of a run, its key numbers and notes."""
        return render(
            "run.html.j2",
            tone=tone(content),
            headline=headline(content),
            meaning=meaning(content),
            steps=steps(content),
            facts=key_facts(content),
            notes=notes(content),
        )

    def evidence(self, content: RunContent, token_id: int) -> tuple[str, ReportFigure | None]:
        """Return the card of a token and its symptom curves."""
        if content.run is None:
            raise InputError("this run is not finished, so no token has evidence yet")
        shown = kept_evidence(content, token_id)
        if shown is None:
            shown = computed_evidence(content, token_id, self._startup.context().model)
        card = card_of(shown, token_id)
        if card is None:
            raise InputError(f"the run did not examine token id {token_id}: choose one from its table")
        confidence = content.confidence
        figures = curve_figures(shown, content.run)
        return render("evidence.html.j2", card=card, confidence=confidence), figures[0] if figures else None

    def chosen(self, label: object, token_id: object) -> list[Any]:
        """Return the values of the evidence's outputs: empty if no token is chosen."""
        if token_id is None:
            return ["", *slot_contents([None])]
        content = self._startup.library.content(label)
        card, curve = self.evidence(content, checked_token_id(token_id))
        return [card, *slot_contents([curve])]


def explore_tab(startup: Startup, own_tab: gr.Tab) -> None:
    """Lay out the tab with the run that the app opens with."""
    if startup.opened is None:
        gr.HTML(message(NO_RUN))
        return
    tab = Explore(startup)
    content = startup.library.content(startup.opened)
    rows = filtered(content, Filters())
    run = gr.Dropdown(startup.library.labels, value=startup.opened, label="Run", interactive=True)
    about = gr.HTML(tab.about(content), elem_id="explore-about")
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
    shown = [gr.HTML("", elem_id="explore-evidence"), *figure_slots(1)]
    on_first_opening(own_tab, show_errors(tab.chosen, _no_evidence), [run, token], shown, **ON_MODEL)
    _connect(startup.library, tab, run, [search, *filters], [about, count, table, token], shown)


def _connect(
    library: RunLibrary, tab: Explore, run: Any, filters: list[Any], listing: list[Any], shown: list[Any]
) -> None:
    about, count, table, token = listing
    no_tokens = [gr.update(value={"headers": [], "data": []}), gr.update(choices=[], value=None)]

    def open_run(label: object) -> list[Any]:
        found = library.content(label)
        rows = filtered(found, Filters())
        fresh = [gr.update(choices=choices(found, name), value=[]) for name in _FILTERED]
        first = worst_token(found) if found.run is not None else None
        offered = gr.update(choices=tokens_offered(rows), value=first)
        return ["", *fresh, tab.about(found), _counted(len(rows)), _table(found, rows), offered]

    def no_run(error: str) -> list[Any]:
        return ["", *(gr.update(choices=[], value=[]) for _ in _FILTERED), error, "", *no_tokens]

    def narrow(label: object, text: object, *wanted: object) -> list[Any]:
        found = library.content(label)
        chosen = [checked_choices(name, values) for name, values in zip(_FILTERED, wanted, strict=True)]
        rows = filtered(found, Filters(text if isinstance(text, str) else "", *chosen))
        return [_counted(len(rows)), _table(found, rows), gr.update(choices=tokens_offered(rows))]

    def select(label: object, event: gr.SelectData) -> list[Any]:
        place = id_column(library.content(label))
        cells = event.row_value if isinstance(event.row_value, list) else []
        known = place < len(cells) and cells[place] not in (None, "")
        return [gr.update(value=checked_token_id(cells[place])) if known else gr.skip(), gr.skip()]

    look = show_errors(tab.chosen, _no_evidence)
    choice = run.input(
        show_errors(open_run, no_run), run, [*filters, about, count, table, token], **ON_TABLES
    )
    choice.then(look, [run, token], shown, **ON_MODEL)
    # Pasted text is a change but not an input.
    triggers = [filters[0].change, *(each.input for each in filters[1:])]
    narrowed = show_errors(narrow, lambda error: [error, *no_tokens])
    gr.on(triggers, narrowed, [run, *filters], [count, table, token], **ON_TABLES)
    selected = show_errors(select, lambda error: [gr.update(value=None), error])
    table.select(selected, run, [token, shown[0]], **ON_TABLES).then(look, [run, token], shown, **ON_MODEL)
    token.input(look, [run, token], shown, **ON_MODEL)


def _no_evidence(error: str) -> list[Any]:
    return [error, *slot_contents([None])]


def _table(content: RunContent, rows: Any) -> dict[str, Any]:
    cells = table_rows(content, rows)
    # Numbers stay numbers, so that they sort; what is read has equal digits.
    shown = {"display_value": shown_rows(content, cells)}
    return {"headers": headings(content), "data": cells, "metadata": shown}


def _counted(rows: int) -> str:
    listed = f"; the first {TABLE_ROWS} are listed, so narrow the search" if rows > TABLE_ROWS else ""
    return message(
        f"{rows:,} {'token' if rows == 1 else 'tokens'}{listed}. A token is sticky if its lift is large and "
        "on most kinds of text; severity grades flagged tokens only."
    )
