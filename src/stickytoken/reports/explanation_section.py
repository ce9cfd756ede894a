"""The section of a report that explains tokens: verdicts, findings and figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from stickytoken.explanation.files import ExplanationContent
from stickytoken.reports.content import RunContent
from stickytoken.reports.figures import explanation as attribution_matrix
from stickytoken.reports.figures import explanation as head_map
from stickytoken.reports.figures import explanation as interval_rows
from stickytoken.reports.figures import explanation as layer_curves
from stickytoken.reports.figures.figure import ReportFigure, stacked
from stickytoken.reports.templating import number, plain

# Further tokens are described without figures: the page must open on a phone.
MOST_DRAWN = 4
_ATTENTION = MappingProxyType(
    {
        "attention_received": "from all positions",
        "attention_from_others": "from all but the copies",
    }
)
_DRIFT = MappingProxyType(
    {
        "carrier_cosine_drift": "carrier's tokens: drift",
        "copies_cosine_distance": "copies: distance to benign",
    }
)
_POOLING = MappingProxyType(
    {
        "pooling_share": "copies' share of the vector",
        "pooling_norm_share": "copies' share of the lengths",
        "pooling_toward_mean": "copies, along the mean",
        "vector_toward_mean": "whole vector, along the mean",
    }
)
_EMBEDDING = MappingProxyType(
    {
        "embedding_norm": "length",
        "embedding_distance_to_mean": "distance to the mean",
        "embedding_cosine_to_mean": "cosine to the mean",
        "embedding_distance_to_unused": "distance to unused",
        "embedding_cosine_to_unused": "cosine to unused",
    }
)


@dataclass(frozen=True)
class ExplainedToken:
    """One token of the section.

    Attributes:
        token_id: its id.
        token: the vocabulary string.
        run_verdict: of the run.
        verdict: of the explanation, in words.
        findings: measures outside the benign interval, one line each.
        basis: what the verdict rests on, in words.
        notes: what could not be measured.
        figures: empty for all but the first few tokens.
    """

    token_id: int
    token: str
    run_verdict: str | None
    verdict: str
    findings: tuple[str, ...]
    basis: str
    notes: tuple[str, ...]
    figures: tuple[ReportFigure, ...]


def explained_tokens(content: RunContent) -> list[ExplainedToken]:
    """Return the explained tokens: first those that the run flags, worst first."""
    order = (
        {token_id: place for place, token_id in enumerate(content.flagged["token_id"])} if content.run else {}
    )
    ranked = sorted(
        content.explanations,
        key=lambda each: (order.get(each.token.token_id, len(order)), each.token.token_id),
    )
    return [
        ExplainedToken(
            token_id=each.token.token_id,
            token=each.token.token,
            run_verdict=each.token.run_verdict,
            verdict=each.token.verdict,
            findings=tuple(_finding_lines(each)),
            basis=_basis(each),
            notes=tuple(each.record.notes),
            figures=tuple(explanation_figures(each)) if place < MOST_DRAWN else (),
        )
        for place, each in enumerate(ranked)
    ]


def explanation_figures(found: ExplanationContent) -> list[ReportFigure]:
    """Return all figures of one token; a figure says so if the model does not expose its data."""
    return [
        _layers(
            found, "attention", "Attention that the copies receive, by layer", _ATTENTION, _READ_ATTENTION
        ),
        _heads(found),
        _layers(found, "drift", "Drift of the hidden states, by layer", _DRIFT, _READ_DRIFT),
        _pooling(found),
        _attribution(found),
        _embedding(found),
    ]


_READ_ATTENTION = (
    "Green: the mean of matched benign tokens, and the interval in which one more such token would lie, "
    "over all layers at once. Filled marks lie outside it; the first of them is where the effect begins. "
    "Attention shows where layers read from, not how much of it reaches the vector."
)
_READ_DRIFT = (
    "First panel: how far the states of the carrier's own tokens move when copies are added. Second "
    "panel: how far the states of the copies lie from those of matched benign tokens. Layer 0 is the "
    "embedding layer. In a causal model, tokens before the copies cannot drift."
)


def _layers(
    found: ExplanationContent, name: str, title: str, panels: Mapping[str, str], reading: str
) -> ReportFigure:
    measures, token = found.tables["measures"], found.token.token
    plot = layer_curves.draw_layer_curves(measures, panels, token)
    shown = layer_curves.table_layer_curves(measures, panels)
    drawn = len({row[0] for row in shown.rows})
    return ReportFigure(
        _named(found, name),
        title,
        plot,
        layer_curves.describe_layer_curves(measures, panels, token),
        reading,
        shown,
        stacked(plot, drawn, 360 * drawn) if drawn > 1 else {},
    )


def _heads(found: ExplanationContent) -> ReportFigure:
    heads = found.tables["heads"]
    return ReportFigure(
        _named(found, "heads"),
        "Attention that the copies receive, by layer and head",
        head_map.draw_head_map(heads),
        head_map.describe_head_map(heads),
        "Orange heads attend more to these copies than to copies of matched benign tokens, blue heads "
        "less. A dot marks a head outside the benign interval over all heads at once.",
        head_map.table_head_map(heads),
    )


def _pooling(found: ExplanationContent) -> ReportFigure:
    measures, token = found.tables["measures"], found.token.token
    pooling = found.record.pooling or "unknown"
    return ReportFigure(
        _named(found, "pooling"),
        "What the copies contribute to the sentence vector",
        interval_rows.interval_rows(measures, _POOLING, token),
        interval_rows.describe_rows(measures, _POOLING, token),
        f"Pooling of this model: {pooling}. With mean pooling every position contributes a share; with "
        "CLS or last-token pooling the copies contribute nothing, or everything, by construction. Green: the "
        "interval of the matched benign tokens.",
        interval_rows.rows_table(measures, _POOLING),
    )


def _attribution(found: ExplanationContent) -> ReportFigure:
    cells, pairs = found.tables["attribution"], found.tables["pairs"].sort("pair")
    pair = pairs.row(0, named=True) if len(pairs) else None
    first = cells.filter(pair=pair["pair"]) if pair else cells.clear()
    return ReportFigure(
        _named(found, "attribution"),
        "One pair's similarity, token by token",
        attribution_matrix.draw_attribution_matrix(first),
        attribution_matrix.describe_attribution_matrix(first, pair),
        "Integrated Jacobians (Moeller et al. 2023): the cells sum to the similarity. Orange cells add to "
        "it, blue cells subtract. After the tokens comes the reference, a text of padding; the last "
        "column is the sum of each row. Compare row sums, and cells with one another: adjacent copies "
        "share what they contribute together.",
        attribution_matrix.table_attribution_matrix(first),
    )


def _embedding(found: ExplanationContent) -> ReportFigure:
    measures, token = found.tables["measures"], found.token.token
    matrix = found.record.vocabulary
    shape = (
        f" Over the whole vocabulary the mean cosine of two rows is {number(matrix['mean_cosine'], 3)} (0: "
        "they point in all directions evenly), and the widest direction explains "
        f"{matrix['first_component_share']:.1%} of the variance."
        if {"mean_cosine", "first_component_share"} <= set(matrix)
        else ""
    )
    return ReportFigure(
        _named(found, "embedding"),
        "The row of the embedding matrix",
        interval_rows.embedding_place(measures, _EMBEDDING, token),
        interval_rows.describe_place(measures, found.tables["neighbours"], _EMBEDDING, token),
        "Rows close to those of unused entries were hardly trained (Land and Bartolo 2024). An unusual row "
        "need not be sticky, and a sticky token need not have an unusual row." + shape,
        interval_rows.place_table(measures, _EMBEDDING),
        {"xaxis.title.text": "% of the available<br>tokens below"},
    )


def _named(found: ExplanationContent, name: str) -> str:
    return f"explain-{found.token.token_id}-{name}"


def _finding_lines(found: ExplanationContent) -> list[str]:
    lines = []
    for each in found.token.findings:
        line = f"{each.called}: {number(each.value, 3)}, benign {number(each.benign_mean, 3)}"
        if each.deviations is not None:
            line += f", {number(each.deviations, 1)} SD"
        if each.begins is not None:
            line += f", begins in layer {each.begins}"
        lines.append(line)
    return lines


def _basis(found: ExplanationContent) -> str:
    record, settings = found.record, found.record.settings
    return (
        f"{plain(settings.get('copies'))} copies ({plain(settings.get('placement'))}) in {record.carriers} "
        f"texts of {record.source}, compared with {len(found.tables['benign'])} matched benign "
        f"tokens{'' if found.token.same_category else ' of other categories'}."
    )
