"""The tab that shows the tokens of a run as a table, and the card of the chosen token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from shlex import quote
from typing import Any

import gradio as gr
import polars as pl

from stickytoken.demo import _components as ui
from stickytoken.demo.context import EXAMPLES, RunLibrary, Startup, check_token_id, worst_token
from stickytoken.detection.run import next_steps
from stickytoken.errors import InputError
from stickytoken.methods import Column
from stickytoken.repairs.records import last_verified
from stickytoken.reports import facts
from stickytoken.reports.cards import FIRST_CARDS, cards
from stickytoken.reports.content import RunContent
from stickytoken.run_summary import rule_lines, short_headline, tone_of
from stickytoken.validation import visible

# Maximum number of rows in the table; more would make the page slow.
_TABLE_ROWS = 500
# Columns of the table that have a filter.
_FILTERED = ("verdict", "entry", "script")
_NO_RUN = (
    "There is no run to explore: make one with `stickytoken detect MODEL`, then start the app with --run RUN."
)


@dataclass(frozen=True)
class _Components:
    """The components of the tab.

    Attributes:
        run: Field for the run to explore.
        about: The headline of the run's report, and the rest of the report's first screen.
        search: Input field for a text that the listed tokens must contain.
        filters: One filter for each column in `_FILTERED`.
        count: Message that says how many tokens match the search and the filters.
        table: Table of the matching tokens.
        token: Field for the token whose card is shown.
        card: The card of the chosen token.
    """

    run: gr.Dropdown
    about: list[gr.HTML]
    search: gr.Textbox
    filters: list[gr.Dropdown]
    count: gr.HTML
    table: gr.Dataframe
    token: gr.Dropdown
    card: gr.HTML


def explore_tab(startup: Startup) -> None:
    """Add the components and events of the tab that shows the tokens of a run."""
    if startup.opened is None:
        gr.HTML(ui.message(_NO_RUN))
        return
    components = _add_components(startup.library, startup.opened)
    _add_events(startup.library, components)


def _add_components(library: RunLibrary, label: str) -> _Components:
    """Add the components of the tab, filled with the run of the given label, and return them."""
    content = library.content(label)
    rows = _find_tokens(content)
    run = gr.Dropdown(library.labels, value=label, label="Run", interactive=True)
    first_screen = _render_first_screen(content, library.report_path(label))
    about = [gr.HTML(html, elem_id=f"explore-{name}") for name, html in first_screen.items()]
    with gr.Row():
        search = gr.Textbox(label="Search", info="part of a token", min_width=160)
        filters = [
            gr.Dropdown(
                _list_choices(content, name),
                value=[],
                multiselect=True,
                label=name.capitalize(),
                min_width=160,
            )
            for name in _FILTERED
        ]
    count = gr.HTML(_render_count(content, len(rows)), elem_id="explore-count")
    table = gr.Dataframe(
        _make_table(content, rows), interactive=False, max_height=420,
        show_label=False, label="Tokens of the run",
        elem_id="explore-table", buttons=[],
    )  # fmt: skip
    token = gr.Dropdown(
        _list_token_choices(rows), value=worst_token(content), label="Token to show", interactive=True,
        info="or click a row of the table", elem_id="explore-token",
    )  # fmt: skip
    card = gr.HTML(_render_card(content, worst_token(content)), elem_id="explore-card")
    return _Components(run, about, search, filters, count, table, token, card)


def _add_events(library: RunLibrary, components: _Components) -> None:
    """Connect the components to their handlers. Every event also updates the card of the chosen token.

    `ui.show_errors` gives each handler a fallback, such as `_replace_run` for `open_run`. If the handler
    fails, the fallback returns values that show the error in the components of the handler.
    """
    handlers = _Handlers(library)
    show_card = ui.show_errors(handlers.show_card, lambda error: [error])
    run = components.run
    token = components.token
    card = components.card
    # A search changes these.
    matches = [components.count, components.table, token]
    open_run = ui.show_errors(handlers.open_run, _replace_run)
    run_outputs = [components.search, *components.filters, *components.about, *matches]
    run_opened = run.input(open_run, run, run_outputs, **ui.ON_TABLES)
    run_opened.then(show_card, [run, token], card, **ui.ON_TABLES)

    search_tokens = ui.show_errors(handlers.search_tokens, _replace_matches)
    # Gradio reports pasted text as a change event but not as an input event.
    triggers = [components.search.change, *(field.input for field in components.filters)]
    search_inputs = [run, components.search, *components.filters]
    searched = gr.on(triggers, search_tokens, search_inputs, matches, **ui.ON_TABLES)
    searched.then(show_card, [run, token], card, **ui.ON_TABLES)

    select_row = ui.show_errors(handlers.select_row, _replace_selection)
    # The card shows the error if the row cannot be selected.
    row_selected = components.table.select(select_row, run, [token, card], **ui.ON_TABLES)
    row_selected.then(show_card, [run, token], card, **ui.ON_TABLES)

    token.input(show_card, [run, token], card, **ui.ON_TABLES)


class _Handlers:
    """Handlers of the tab's events, each of which returns new values for the components that change."""

    def __init__(self, library: RunLibrary) -> None:
        self._library = library

    def open_run(self, label: str) -> list[Any]:
        content = self._library.content(label)
        tokens = _find_tokens(content)
        search = ""
        filters = [gr.update(choices=_list_choices(content, name), value=[]) for name in _FILTERED]
        # The headline and the rest of the first screen, as HTML.
        about = _render_first_screen(content, self._library.report_path(label)).values()
        count = _render_count(content, len(tokens))
        token_field = gr.update(choices=_list_token_choices(tokens), value=worst_token(content))
        return [search, *filters, *about, count, _make_table(content, tokens), token_field]

    def search_tokens(self, label: object, text: object, *filter_values: object) -> list[Any]:
        content = self._library.content(label)
        searched = text if isinstance(text, str) else ""
        matches = _find_tokens(content, searched, filter_values)
        token = gr.update(choices=_list_token_choices(matches))
        # Select the first match. Without a search, keep the current token.
        if searched and len(matches):
            token["value"] = matches["token_id"][0]
        return [_render_count(content, len(matches)), _make_table(content, matches), token]

    def select_row(self, label: object, event: gr.SelectData) -> list[Any]:
        # Every run has a column with the title "id", but a click may come without the cells of a row.
        titles = [column.title for column in facts.columns(self._library.content(label))]
        cells = event.row_value if isinstance(event.row_value, list) else []
        id_column = titles.index("id")
        has_id = id_column < len(cells) and cells[id_column] not in (None, "")
        token = gr.update(value=check_token_id(cells[id_column])) if has_id else gr.skip()
        # The card is an output because an error is shown in its place; see `_replace_selection`.
        unchanged_card = gr.skip()
        return [token, unchanged_card]

    def show_card(self, label: object, token_id: object) -> list[Any]:
        if token_id is None:
            return [""]
        return [_render_card(self._library.content(label), check_token_id(token_id))]


# If a handler of this tab fails, one of these functions returns the values that show the error. They are
# functions and not constants, because Gradio modifies the values that it receives.


def _replace_run(error: str) -> list[Any]:
    search = ""
    filters = [gr.update(choices=[], value=[]) for _ in _FILTERED]
    headline = error
    about = ""
    return [search, *filters, headline, about, *_replace_matches("")]


def _replace_matches(error: str) -> list[Any]:
    no_table = gr.update(value={"headers": [], "data": []})
    no_token = gr.update(choices=[], value=None)
    return [error, no_table, no_token]


def _replace_selection(error: str) -> list[Any]:
    return [gr.update(value=None), error]


def _render_card(content: RunContent, token_id: int) -> str:
    rows_of_token = content.tokens.filter(token_id=token_id)
    if rows_of_token.is_empty():
        raise InputError(f"the run did not examine token id {token_id}: choose one from its table")
    (card,) = cards(content, rows_of_token)
    return ui.render("card.html.j2", card=card, confidence=content.confidence)


def _render_first_screen(content: RunContent, report_path: str) -> dict[str, str]:
    """Return, as HTML, the run's ``headline``, and the rest of its report's first screen (``about``)."""
    steps = list(next_steps(content.run, last_verified(content.repairs)))
    if content.run.path.is_relative_to(EXAMPLES):
        # The path of the installed package is of no use to visitors.
        installed = quote(str(content.run.path))
        steps = [step._replace(command=step.command.replace(installed, "RUN")) for step in steps]
    tone = tone_of(content.sticky)
    sticky = len(content.sticky)
    about = ui.render(
        "run.html.j2",
        tone=tone,
        cards=cards(content, content.sticky.head(FIRST_CARDS)),
        sticky=sticky,
        strongest=None if sticky else facts.strongest(content),
        steps=steps,
        rule=rule_lines(content.run),
        confidence=content.confidence,
        facts=facts.key_facts(content),
        notes=facts.notes(content),
        report=report_path,
    )
    headline = ui.render("headline.html.j2", tone=tone, headline=short_headline(content.run))
    return {"headline": headline, "about": about}


def _render_count(content: RunContent, rows: int) -> str:
    text = f"{rows:,} {'token' if rows == 1 else 'tokens'}"
    if rows > _TABLE_ROWS:
        text += f"; the first {_TABLE_ROWS} are listed, so narrow the search"
    text += "."
    if "reason" in content.tokens.columns:
        text += " The column reason says why a token is flagged."
    return ui.message(text)


_NOT_JUDGED = "not judged"
# Stands for missing text, such as the severity of a token that is not flagged.
_NO_TEXT = "–"


def _list_choices(content: RunContent, column: str) -> list[str]:
    return sorted(content.tokens[column].fill_null(_NOT_JUDGED).unique())


def _find_tokens(content: RunContent, text: str = "", filter_values: Sequence[object] = ()) -> pl.DataFrame:
    """Return the tokens that contain a text and pass the filters, those that are sticky first.

    ``filter_values`` has what the visitor chose for each of `_FILTERED`, or nothing if nothing was chosen.
    """
    tokens = content.tokens
    for column, values in zip(_FILTERED, filter_values, strict=False):  # without values, nothing is filtered
        accepted = _check_filter(column, values)
        if accepted:
            tokens = tokens.filter(pl.col(column).fill_null(_NOT_JUDGED).is_in(accepted))
    searched = text.strip().lower()
    if searched:
        names = pl.col("token", "decoded").str.to_lowercase()
        tokens = tokens.filter(pl.any_horizontal(names.str.contains(searched, literal=True)))
    rank_by_id = {token_id: rank for rank, token_id in enumerate(content.sticky["token_id"])}
    # Tokens that are not sticky share the rank after the last sticky one.
    rank = pl.col("token_id").replace_strict(rank_by_id, default=len(rank_by_id), return_dtype=pl.Int64)
    return tokens.sort(
        rank,
        content.run.method.TABLE.ranked_by.key,
        "token_id",
        descending=[False, True, False],
        nulls_last=True,
    )


def _check_filter(column: str, values: object) -> list[str]:
    if values is None:  # an empty filter
        return []
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise InputError(f"the filter {column} must be a list of strings: choose entries from its menu")
    return values


def _make_table(content: RunContent, tokens: pl.DataFrame) -> dict[str, Any]:
    columns = facts.columns(content)
    values = []  # by which Gradio sorts
    texts = []  # that it shows
    for row in tokens.head(_TABLE_ROWS).to_dicts():
        values.append([_make_sort_value(row.get(column.key), column) for column in columns])
        texts.append([_format_cell(row.get(column.key), column) for column in columns])
    return {
        "headers": [column.title for column in columns],
        "data": values,
        "metadata": {"display_value": texts},
    }


def _make_sort_value(value: Any, column: Column) -> Any:
    if isinstance(value, str):
        return visible(value)
    if value is None:
        return _NO_TEXT if column.digits is None else None
    if isinstance(value, float) and column.digits is not None:
        # A share that is shown as a percentage is rounded to two more decimals than the percentage, because
        # the percentage is 100 times the share.
        return round(value, column.digits + 2 if column.unit == "%" else column.digits)
    return value


def _format_cell(value: Any, column: Column) -> str:
    return _NO_TEXT if value is None else visible(column.text(value))


def _list_token_choices(tokens: pl.DataFrame) -> list[tuple[str, int]]:
    if tokens.is_empty():
        return []
    rows = tokens.head(_TABLE_ROWS).select("token", "token_id").iter_rows()
    return [(f"{visible(token)} (id {token_id})", token_id) for token, token_id in rows]
