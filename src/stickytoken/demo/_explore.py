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
        run_field: Field for the run to explore.
        first_screen: The headline of the run's report, and the rest of the report's first screen.
        search_field: Input field for a text that the listed tokens must contain.
        filters: One field for each column in `_FILTERED`, for the values to list.
        count_message: Message that says how many tokens match the search and the filters.
        table: Table of the matching tokens.
        token_field: Field for the token whose card is shown.
        card: The card of the chosen token.
    """

    run_field: gr.Dropdown
    first_screen: list[gr.HTML]
    search_field: gr.Textbox
    filters: list[gr.Dropdown]
    count_message: gr.HTML
    table: gr.Dataframe
    token_field: gr.Dropdown
    card: gr.HTML


def explore_tab(startup: Startup) -> None:
    """Add the components and events of the tab that shows the tokens of a run."""
    if startup.first_label is None:
        gr.HTML(ui.message(_NO_RUN))
        return
    components = _add_components(startup.library, startup.first_label)
    _add_events(startup.library, components)


def _add_components(library: RunLibrary, label: str) -> _Components:
    """Add the components of the tab, filled with the run of the given label, and return them."""
    content = library.content(label)
    tokens = _find_tokens(content)
    run_field = gr.Dropdown(library.labels, value=label, label="Run", interactive=True)
    html_by_name = _render_first_screen(content, library.report_path(label))
    first_screen = [gr.HTML(html, elem_id=f"explore-{name}") for name, html in html_by_name.items()]
    with gr.Row():
        search_field = gr.Textbox(label="Search", info="part of a token", min_width=160)
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
    count_message = gr.HTML(_render_count(content, len(tokens)), elem_id="explore-count")
    table = gr.Dataframe(
        _make_table(content, tokens), interactive=False, max_height=420,
        show_label=False, label="Tokens of the run",
        elem_id="explore-table", buttons=[],
    )  # fmt: skip
    token_field = gr.Dropdown(
        _list_token_choices(tokens), value=worst_token(content), label="Token to show", interactive=True,
        info="or click a row of the table", elem_id="explore-token",
    )  # fmt: skip
    card = gr.HTML(_render_card(content, worst_token(content)), elem_id="explore-card")
    return _Components(
        run_field, first_screen, search_field, filters, count_message, table, token_field, card
    )


def _add_events(library: RunLibrary, components: _Components) -> None:
    handlers = _Handlers(library)
    run_opened = _add_run_event(handlers, components)
    searched = _add_search_event(handlers, components)
    _add_click_event(handlers, components)
    show_card = ui.show_errors(handlers.show_card, lambda error: [error])
    card_inputs = [components.run_field, components.token_field]
    components.token_field.input(show_card, card_inputs, components.card, **ui.TABLE_QUEUE)
    # Another run or another search may have changed the chosen token, whose card is shown.
    for event in (run_opened, searched):
        event.then(show_card, card_inputs, components.card, **ui.TABLE_QUEUE)


def _add_run_event(handlers: _Handlers, components: _Components) -> Any:
    open_run = ui.show_errors(handlers.open_run, _replace_run)
    outputs = [
        components.search_field,
        *components.filters,
        *components.first_screen,
        components.count_message,
        components.table,
        components.token_field,
    ]
    return components.run_field.input(open_run, components.run_field, outputs, **ui.TABLE_QUEUE)


def _add_search_event(handlers: _Handlers, components: _Components) -> Any:
    search_tokens = ui.show_errors(handlers.search_tokens, _replace_matches)
    # Gradio reports pasted text as a change event but not as an input event.
    triggers = [components.search_field.change, *(field.input for field in components.filters)]
    inputs = [components.run_field, components.search_field, *components.filters]
    outputs = [components.count_message, components.table, components.token_field]
    return gr.on(triggers, search_tokens, inputs, outputs, **ui.TABLE_QUEUE)


def _add_click_event(handlers: _Handlers, components: _Components) -> None:
    """When a visitor clicks a row of the table, choose its token and show the card.

    The event sets the card itself, which shows the error if the row has no token. `show_card` would erase the
    error, because no token is chosen then.
    """
    select_row = ui.show_errors(handlers.select_row, _replace_selection)
    outputs = [components.token_field, components.card]
    components.table.select(select_row, components.run_field, outputs, **ui.TABLE_QUEUE)


class _Handlers:
    """Handlers of the tab's events, each of which returns new values for the components that change."""

    def __init__(self, library: RunLibrary) -> None:
        self._library = library

    def open_run(self, label: str) -> list[Any]:
        content = self._library.content(label)
        tokens = _find_tokens(content)
        searched = ""
        filters = [gr.update(choices=_list_choices(content, name), value=[]) for name in _FILTERED]
        first_screen = _render_first_screen(content, self._library.report_path(label)).values()
        count_message = _render_count(content, len(tokens))
        token_update = gr.update(choices=_list_token_choices(tokens), value=worst_token(content))
        return [searched, *filters, *first_screen, count_message, _make_table(content, tokens), token_update]

    def search_tokens(self, label: object, text: object, *filter_values: object) -> list[Any]:
        content = self._library.content(label)
        searched = text if isinstance(text, str) else ""
        matches = _find_tokens(content, searched, filter_values)
        token_update = gr.update(choices=_list_token_choices(matches))
        # Choose the first match. Without a search, keep the current token.
        if searched and len(matches):
            token_update["value"] = matches["token_id"][0]
        return [_render_count(content, len(matches)), _make_table(content, matches), token_update]

    def select_row(self, label: object, event: gr.SelectData) -> list[Any]:
        content = self._library.content(label)
        # Every run has a column with the title "id", but a click may come without the cells of a row.
        titles = [column.title for column in facts.columns(content)]
        cells = event.row_value if isinstance(event.row_value, list) else []
        id_column = titles.index("id")
        has_id = id_column < len(cells) and cells[id_column] not in (None, "")
        if not has_id:
            return [gr.skip(), gr.skip()]  # the token and its card stay as they are
        token_id = check_token_id(cells[id_column])
        return [gr.update(value=token_id), _render_card(content, token_id)]

    def show_card(self, label: object, token_id: object) -> list[Any]:
        if token_id is None:
            return [""]
        return [_render_card(self._library.content(label), check_token_id(token_id))]


# If a handler of this tab fails, one of the following functions returns the values that show the error. The
# values are no constants, because Gradio modifies the values that it receives.


def _replace_run(error: str) -> list[Any]:
    searched = ""
    filters = [gr.update(choices=[], value=[]) for _ in _FILTERED]
    headline = error
    rest_of_first_screen = ""
    return [searched, *filters, headline, rest_of_first_screen, *_replace_matches("")]


def _replace_matches(error: str) -> list[Any]:
    no_table = gr.update(value={"headers": [], "data": []})
    no_tokens = gr.update(choices=[], value=None)
    return [error, no_table, no_tokens]  # the error in place of the number of matches


def _replace_selection(error: str) -> list[Any]:
    no_token = gr.update(value=None)
    return [no_token, error]  # the error in place of the card


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
    sticky_count = len(content.sticky)
    about = ui.render(
        "run.html.j2",
        tone=tone,
        cards=cards(content, content.sticky.head(FIRST_CARDS)),
        sticky=sticky_count,
        strongest=None if sticky_count else facts.strongest(content),
        steps=steps,
        rule=rule_lines(content.run),
        confidence=content.confidence,
        facts=facts.key_facts(content),
        notes=facts.notes(content),
        report=report_path,
    )
    headline = ui.render("headline.html.j2", tone=tone, headline=short_headline(content.run))
    return {"headline": headline, "about": about}


def _render_count(content: RunContent, match_count: int) -> str:
    text = f"{match_count:,} {'token' if match_count == 1 else 'tokens'}"
    if match_count > _TABLE_ROWS:
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
    """Return the run's table of the tokens that contain a text and pass the filters, sticky tokens first.

    ``filter_values`` has, for each column in `_FILTERED`, the values that the visitor chose; it is empty if
    no column is filtered.
    """
    tokens = content.tokens
    for column, values in zip(_FILTERED, filter_values, strict=False):
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
    if values is None:  # no value is chosen
        return []
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise InputError(f"the filter {column} must be a list of strings: choose entries from its menu")
    return values


def _make_table(content: RunContent, tokens: pl.DataFrame) -> dict[str, Any]:
    """Return the value of the `gr.Dataframe` that lists the tokens."""
    columns = facts.columns(content)
    values = []  # the cells by which Gradio sorts, one list per row
    texts = []  # the cells that Gradio shows
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
