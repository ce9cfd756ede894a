"""Print an explanation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stickytoken.cli.output.console import inform, print_line, print_table

if TYPE_CHECKING:
    from stickytoken.explanation import Explanation
    from stickytoken.explanation.result import TokenExplanation

# The most telling measures; all of them are in the files and in JSON.
_SHOWN = (
    "lift_sentences",
    "attention_received",
    "carrier_cosine_drift",
    "copies_cosine_distance",
    "pooling_share",
    "pooling_toward_mean",
    "attributed_to_copies",
    "embedding_norm",
    "embedding_cosine_to_mean",
    "embedding_cosine_to_unused",
)
_COLUMNS = ("measure", "layer", "value", "low", "high", "benign_low", "benign_high", "deviations", "outside")
_PAIR_COLUMNS = (
    "similarity_before",
    "similarity",
    "from_copies",
    "from_carrier",
    "from_reference",
    "completeness_error",
)
_HEADS = 5


def print_explanation(found: Explanation) -> None:
    """Print a verdict in words for every token, then tables."""
    for each in found.tokens:
        print_line(each.verdict)
    for each in found.tokens:
        _print_token(found, each)
    asked = found.settings
    print_line(
        f"{asked.copies} copies ({asked.placement}) in {found.carriers} texts of {found.source}; "
        f"pooling: {found.pooling or 'unknown'}. low, high: {asked.confidence:.0%} interval of the mean over "
        "texts; benign low, high: the range of one more benign token, over all layers together."
    )
    for note in found.notes:
        inform(f"note: {note}")


def _print_token(found: Explanation, token: TokenExplanation) -> None:
    from stickytoken.explanation.tables import furthest

    tables = found.of_token(token.token_id)
    rows = {row["measure"]: row for row in furthest(tables["measures"])}
    print_table(
        f"{token.token!r} ({token.token_id}) compared with {len(tables['benign'])} benign tokens, "
        "at the layer where it differs most",
        [column.replace("_", " ") for column in _COLUMNS],
        [_cells(rows[name]) for name in _SHOWN if name in rows],
    )
    heads = tables["heads"].drop_nulls("head").sort("wasserstein", descending=True).head(_HEADS)
    if not heads.is_empty():
        columns = (
            "layer",
            "head",
            "value",
            "benign_mean",
            "deviations",
            "wasserstein",
            "wasserstein_benign",
            "kl",
        )
        print_table(
            "Attention that the copies receive: the heads that differ most from those of benign tokens",
            [column.replace("_", " ") for column in columns],
            heads.select(columns).iter_rows(),
        )
    for pair in tables["pairs"].to_dicts():
        print_table(
            f"Similarity as a sum over tokens, of {pair['carrier']!r} and {pair['anchor']!r}",
            [column.replace("_", " ") for column in _PAIR_COLUMNS],
            [[pair[column] for column in _PAIR_COLUMNS]],
        )
    if not tables["neighbours"].is_empty():
        near = ", ".join(
            f"{name!r} {cosine:.2f}"
            for name, cosine in tables["neighbours"].select("neighbour", "cosine").rows()
        )
        print_line(f"nearest embeddings: {near}")


def _cells(row: dict[str, Any]) -> list[object]:
    shown = {True: "yes", False: "no", None: None}
    row = row | {"measure": row["measure"].replace("_", " "), "outside": shown[row["outside"]]}
    return [row[column] for column in _COLUMNS]
