"""Explain one token within the limits of the app, as figures and tables, all measures on one scale."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl

from stickytoken.corpora import Sentences
from stickytoken.demo.context import (
    COPIES,
    EXPLAIN_BENIGN,
    EXPLAIN_CARRIERS,
    TABLE_ROWS,
    SharedModel,
    checked_count,
    checked_placement,
)
from stickytoken.detection.run import Run
from stickytoken.detection.selection import token_evidence
from stickytoken.encoders.protocol import IdReader
from stickytoken.errors import InputError
from stickytoken.explanation import ExplainSettings, Explanation, explain
from stickytoken.explanation.tables import furthest
from stickytoken.insertion import Insertion, Joining, Placement, Token, place_as_text
from stickytoken.measurement.stage import Progress
from stickytoken.methods.probes import KeyedPaths
from stickytoken.reports.content import RunContent, columns, rows_of
from stickytoken.reports.explanation_section import explanation_figures
from stickytoken.reports.figures.figure import ORDINARY, STICKY, DataTable, ReportFigure, new_figure
from stickytoken.unit_vectors import exact_unit_vectors
from stickytoken.validation import visible
from stickytoken.vocabulary import LEAST_BENIGN, Category, Vocabulary

_PAIRS_ATTRIBUTED = 2
_DIRECTIONS = 256
_FINDINGS = ("measure", "layer", "begins", "value", "benign mean", "SD")


def chosen_settings(
    copies: object, carriers: object, benign: object, placement: object, attribution: object
) -> ExplainSettings:
    """Return the settings of an explanation in the app."""
    return ExplainSettings(
        copies=checked_count("the number of copies", copies, 1, COPIES),
        placement=checked_placement(placement),
        carriers=checked_count("the number of texts", carriers, 2, EXPLAIN_CARRIERS),
        benign=checked_count("the number of benign tokens", benign, LEAST_BENIGN, EXPLAIN_BENIGN),
        attribution=attribution is True,
        attribution_carriers=_PAIRS_ATTRIBUTED,
        attribution_benign=LEAST_BENIGN,
        directions=_DIRECTIONS,
    )


def explain_on(
    model: SharedModel,
    token: Token,
    run: Run | None,
    settings: ExplainSettings,
    progress: Callable[[Progress], None],
) -> Explanation:
    """Explain one token while holding the model exclusively."""
    with model.encoder() as encoder:
        return explain(encoder, [token.id], run=run, settings=settings, progress=progress)


# The overview of all measures, and the figures of the report.
FIGURES = 7


def figures_of(found: Explanation) -> list[ReportFigure | None]:
    """Return the figures of the explained token; None for a figure without data."""
    (token,) = found.tokens
    drawn = explanation_figures(found.content(token.token_id))
    overview = deviation_figure(found.measures, visible(token.token))
    return [figure if figure.table.rows else None for figure in (overview, *drawn)]


def findings_table(found: Explanation) -> DataTable:
    """Return one row per measure outside the benign interval."""
    return DataTable(
        _FINDINGS,
        [
            (
                each.called,
                layer_name(each.layer),
                layer_name(each.begins),
                each.value,
                each.benign_mean,
                each.deviations,
            )
            for each in found.tokens[0].findings
        ],
    )


def neighbours_table(found: Explanation) -> DataTable:
    """Return the nearest rows of the embedding matrix."""
    names = pl.col("neighbour"), pl.col("neighbour_id").cast(pl.String), pl.col("cosine")
    rows = found.neighbours.select(*names).rows()
    return DataTable(("nearest embedding", "id", "cosine"), rows)


def pairs_table(found: Explanation) -> DataTable:
    """Return the attributed pairs, each similarity as a sum."""
    columns = [name for name in found.pairs.columns if name not in ("token_id", "token", "pair")]
    return DataTable([name.replace("_", " ") for name in columns], found.pairs.select(columns).rows())


_MEASURES = ("measure", "layer", "value", "low", "high", "benign_low", "benign_high", "deviations", "outside")


def deviation_figure(measures: pl.DataFrame, token: str) -> ReportFigure:
    """Draw all measures on one scale: standard deviations of the benign tokens."""
    rows = [row for row in furthest(measures) if row["deviations"] is not None]
    rows.sort(key=lambda row: abs(row["deviations"]))
    figure = new_figure(height=110 + 24 * max(1, len(rows)))
    marks = ((True, "diamond", "outside the benign interval"), (False, "circle-open", "inside"))
    for outside, symbol, name in marks:
        chosen = [row for row in rows if bool(row["outside"]) is outside]
        if chosen:
            figure.add_scatter(
                x=[round(row["deviations"], 3) for row in chosen],
                y=[_measure_name(row) for row in chosen],
                mode="markers",
                marker={"color": STICKY if outside else ORDINARY, "symbol": symbol, "size": 10},
                name=name,
                hovertemplate="%{y}: %{x:.1f} SD<extra></extra>",
            )
    figure.add_vline(x=0, line={"color": ORDINARY, "width": 1})
    figure.update_xaxes(title_text="standard deviations of the benign tokens", zeroline=False)
    figure.update_yaxes(categoryorder="array", categoryarray=[_measure_name(row) for row in rows])
    figure.update_layout(hovermode="closest")
    count = sum(bool(row["outside"]) for row in rows)
    return ReportFigure(
        "deviations",
        "All measures",
        figure,
        f"{count} of {len(rows)} measures of {token} lie outside the interval of the benign tokens."
        + (
            f" The largest deviation: {_measure_name(rows[-1])}, {rows[-1]['deviations']:+.1f} SD."
            if rows
            else ""
        ),
        "Each measure at the layer where it differs most. One measure just outside the interval means "
        "little; several far outside, together with rising similarities, mean a lot.",
        measures_table(measures),
        # The names of the measures leave little room.
        {"xaxis.title.text": "SD of the<br>benign tokens", "xaxis.nticks": 4, "xaxis.tickangle": 0},
    )


def measures_table(measures: pl.DataFrame) -> DataTable:
    """Return one row per measure, at the layer where it is furthest from the benign tokens."""
    rows = [
        tuple(layer_name(row[name]) if name == "layer" else row[name] for name in _MEASURES)
        for row in furthest(measures)
    ]
    return DataTable([name.replace("_", " ") for name in _MEASURES], rows)


def layer_name(layer: int | None) -> str | None:
    """Return a layer number as text, so that it is shown as a label."""
    return None if layer is None else str(layer)


def _measure_name(row: dict[str, Any]) -> str:
    layer = "" if row["layer"] is None else f", layer {row['layer']}"
    return f"{row['measure'].replace('_', ' ')}{layer}"


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


_COUNTS = (0, 1, 2, 4, 8, 16, 32)
_SEED = 42
_KEY = 1


@dataclass(frozen=True, slots=True)
class RepairQuestion:
    """Inputs of the tab.

    Attributes:
        anchor: the sentence that stays unchanged.
        carrier: the sentence that gets the copies.
        text: text of the token.
        placement: where the copies go.
        copies: number of copies, at least 1.
        ordinary: tokens to compare with.
    """

    anchor: str
    carrier: str
    text: str
    placement: Placement
    copies: int
    ordinary: tuple[Token, ...]


@dataclass(frozen=True)
class RepairAnswer:
    """Cosine similarities of the two sentences by number of copies.

    Attributes:
        question: what was asked.
        counts: numbers of copies, 0 first.
        lines: similarities before and after the repair, and of ordinary tokens before it, by name.
        same: whether both models give sentence B without copies the same vector.
        read: sentence B with the copies, as the repaired model's tokenizer reads it.
    """

    question: RepairQuestion
    counts: tuple[int, ...]
    lines: dict[str, list[float]]
    same: bool
    read: tuple[str, ...]

    def at(self, name: str) -> float:
        """Return the similarity with the copies that were asked for."""
        return self.lines[name][self.counts.index(self.question.copies)]

    def change(self, name: str) -> float:
        """Return by how much these copies change the similarity."""
        return self.at(name) - self.lines[name][0]


def measure_repair(original: IdReader, repaired: IdReader, question: RepairQuestion) -> RepairAnswer:
    """Write the copies into sentence B as words, and compare it with sentence A in both models."""
    counts = sorted({question.copies, *_COUNTS})
    written = [_written(question, question.text, n) for n in counts]
    fitting = [
        n
        for n, *ids in zip(counts, original.content_ids(written), repaired.content_ids(written), strict=True)
        if all(encoder.fits(own) for encoder, own in zip((original, repaired), ids, strict=True))
    ]
    if question.copies not in fitting:
        raise InputError(
            f"sentence B with {question.copies} copies is longer than {original.name} reads "
            f"({original.max_length} tokens): shorten it or use fewer copies"
        )
    counts = [n for n in counts if n in fitting]
    texts = [_written(question, question.text, n) for n in counts]
    before, after = (_similarities(encoder, question.anchor, texts) for encoder in (original, repaired))
    usual = [
        _similarities(original, question.anchor, [_written(question, token.text, n) for n in counts])
        for token in question.ordinary
    ]
    ordinary = [float(np.mean(values)) for values in zip(*usual, strict=True)]
    first, second = (encoder.encode([question.carrier]) for encoder in (original, repaired))
    (ids,) = repaired.content_ids([_written(question, question.text, question.copies)])
    entries = repaired.tokenizer.entries
    lines = {"before the repair": before, "after the repair": after, "ordinary tokens": ordinary}
    return RepairAnswer(
        question,
        tuple(counts),
        {name: values for name, values in lines.items() if values},
        bool(np.array_equal(first, second)),
        tuple(entries[k] for k in ids),
    )


def _similarities(encoder: IdReader, anchor: str, texts: Sequence[str]) -> list[float]:
    units = exact_unit_vectors(encoder.encode([anchor, *texts]))
    return [float(value) for value in units[1:] @ units[0]]


def _written(question: RepairQuestion, text: str, copies: int) -> str:
    path: tuple[int, ...] = ()
    if question.placement is Placement.RANDOM:
        words = len(question.carrier.split())
        path = KeyedPaths(_SEED, _KEY, (words,), max(*_COUNTS, copies), Insertion.IDS).of(Token(0, ""))[0]
    return place_as_text([text.strip()] * copies, question.carrier, question.placement, path, Joining.WORDS)


_COPIES = 8
_OTHERS = 6
_LISTED = 200
# Short sentences are preferred for the heat-map: they are read in a table.
_CHARACTERS = 120


@dataclass(frozen=True, slots=True)
class Example:
    """Inputs of the example shown first.

    Attributes:
        anchor: sentence A.
        carrier: sentence B.
        token_id: the token.
        copies: number of copies.
        why: where token and sentences come from.
    """

    anchor: str
    carrier: str
    token_id: int
    copies: int
    why: str


def worked_example(content: RunContent | None, vocabulary: Vocabulary, corpus: Sentences) -> Example:
    """Choose the worst token of a run with its typical pair; without a run, any token and two sentences."""
    sentences = spread(list(corpus.texts), 2)
    if content is None or content.run is None:
        why = "No run of this model is open, so its sticky tokens are not known."
        return Example(sentences[0], sentences[-1], _any_token(vocabulary), _COPIES, why)
    which = "the worst token" if len(content.flagged) else "not sticky, but ranks highest"
    if row := _worst_with_pair(content):
        why = (
            f"It is {which} in the run {content.path.name}; the sentences are a typical unrelated pair of "
            "that run."
        )
        copies = content.evidence.record.pair_copies if content.evidence else _COPIES
        return Example(row["typical_anchor"], row["typical_carrier"], row["token_id"], copies, why)
    own = own_sentences(content, corpus)
    why = f"It is {which} in the run {content.path.name}; the sentences are from that run."
    return Example(own[0], own[-1], worst_token(content), _COPIES, why)


def worst_token(content: RunContent) -> int:
    """Return the first flagged token, or else the one that ranks highest."""
    if content.run is None:
        raise ValueError("an unfinished run has no worst token")
    if len(content.flagged):
        return int(content.flagged["token_id"][0])
    ranked = content.tokens.sort(
        content.method.ranked_by.key, "token_id", descending=[True, False], nulls_last=True
    )
    return int(ranked["token_id"][0])


def listed_tokens(content: RunContent | None) -> list[tuple[int, str]]:
    """Return tokens of a run to choose from, with their verdicts: flagged ones, then ordinary ones."""
    if content is None or content.run is None:
        return []
    listed = [
        (token_id, verdict)
        for token_id, verdict in content.flagged.head(_LISTED).select("token_id", "verdict").iter_rows()
    ]
    if content.evidence is None:
        return listed
    seen = {token_id for token_id, _ in listed}
    shown = content.evidence.tokens.select("token_id", "ordinary").iter_rows()
    return listed + [
        (token_id, "ordinary" if ordinary else "not sticky")
        for token_id, ordinary in shown
        if token_id not in seen
    ]


def own_sentences(content: RunContent | None, corpus: Sentences) -> list[str]:
    """Return the sentences that a run compared with, ordered by topic; else those of a corpus."""
    if content is None or content.plan is None:
        return list(corpus.texts)
    return content.method.texts(content.plan).anchors or list(corpus.texts)


def other_sentences(content: RunContent | None, corpus: Sentences) -> tuple[str, ...]:
    """Return a few sentences on different topics."""
    texts = own_sentences(content, corpus)
    short = [text for text in texts if len(text) <= _CHARACTERS]
    return tuple(spread(short or texts, _OTHERS))


def spread(texts: list[str], count: int) -> list[str]:
    """Return some of the texts, evenly spaced."""
    if len(texts) <= count:
        return texts
    return [texts[(2 * k + 1) * len(texts) // (2 * count)] for k in range(count)]


def _worst_with_pair(content: RunContent) -> dict[str, Any] | None:
    if content.evidence is None:
        return None
    shown = content.evidence.tokens.filter(~pl.col("ordinary") & pl.col("typical_before").is_not_null())
    return shown.head(1).to_dicts()[0] if len(shown) else None


def _any_token(vocabulary: Vocabulary) -> int:
    """Return a special token that can occur in text, or else a word; special tokens are often the worst."""
    entries = zip(vocabulary.ids, vocabulary.categories, strict=True)
    special = [token_id for token_id, category in entries if category is Category.OK_SPECIAL]
    return (special or [token.id for token in vocabulary.available])[0]
