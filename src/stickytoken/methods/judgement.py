"""The judgement of a finished run on another corpus."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from stickytoken.encoders.views import View
from stickytoken.errors import InputError
from stickytoken.methods.verdicts import Verdict, severity_counts

MEASURING = "measure"
"""Name of the stage of a judgement whose tokens are chosen by results."""


@dataclass(frozen=True)
class Judgement:
    """Verdicts of a run for a corpus.

    Attributes:
        tokens: one row per token of the run: token_id, token, decoded, category, texts (carriers of this
            corpus that the token was put into; 0 if its lift is computed from the run alone), lift,
            lift_low, lift_high, universality, moves_up, contraction, fixed_point, q_value, severity and
            verdict. moves_up is the share of random queries and documents of the corpus for which the copies
            move the document up by at least a tenth of the corpus; only flagged tokens have it.
        source: where the corpus came from.
        texts: distinct texts of the corpus.
        anchors: number of them that carriers were compared with.
        left_out: texts that the model does not read whole.
        ordinary_lift: lift of the typical token on the corpus.
        similarity_spread: standard deviation of the similarities within the corpus.
        error: standard error of the lifts that are computed from the run.
        measured: number of tokens that were put into texts of the corpus.
        undecided: tokens that may be flagged but were not among those.
        others: judgements in the other views that were asked for.
    """

    tokens: pl.DataFrame
    source: str
    texts: int
    anchors: int
    left_out: int
    ordinary_lift: float
    similarity_spread: float
    error: float
    measured: int
    undecided: int
    others: Mapping[View, Judgement] = field(default_factory=dict)

    def __repr__(self) -> str:
        counts = ", ".join(f"{len(self.having(verdict)):,} {verdict}" for verdict in Verdict)
        return f"<Judgement: {counts} on {self.texts:,} texts from {self.source}>"

    @property
    def sticky(self) -> pl.DataFrame:
        """The sticky tokens, worst first."""
        return self.having(Verdict.STICKY)

    @property
    def flagged(self) -> pl.DataFrame:
        """The sticky and the topical tokens, worst first."""
        return self.having(Verdict.STICKY, Verdict.TOPICAL)

    def having(self, *verdicts: Verdict) -> pl.DataFrame:
        """The tokens with one of these verdicts, worst first."""
        return self.tokens.filter(pl.col("verdict").is_in(list(verdicts))).sort(
            "lift", "token_id", descending=[True, False]
        )

    def at(self, dimension: int, layer: int | None = None) -> Judgement:
        """The judgement in another view that was asked for.

        Raises:
            InputError: it was not.
        """
        found = next((each for view, each in self.others.items() if view.is_at(dimension, layer)), None)
        if found is None:
            known = "; ".join(map(str, self.others)) or "no other view"
            raise InputError(f"the judgement has no {View(dimension, layer)}: it has {known}")
        return found

    def by_dimension(self) -> pl.DataFrame:
        """One row per view that was asked for: counts, largest lift, spread of the similarities."""
        rows = [
            {
                "layer": view.layer,
                "dimension": view.dimension,
                "sticky": len(found.sticky),
                "topical": len(found.flagged) - len(found.sticky),
                **found.severities(),
                "similarity_spread": found.similarity_spread,
                "ordinary_lift": found.ordinary_lift,
                "largest_sd": (float(found.tokens["lift"].to_numpy().max()) - found.ordinary_lift)
                / found.similarity_spread,
            }
            for view, found in self.others.items()
        ]
        return pl.DataFrame(rows, schema_overrides={"layer": pl.Int64})

    def severities(self) -> dict[str, int]:
        """Count the flagged tokens of every severity."""
        return severity_counts(self.tokens)

    def summary(self) -> dict[str, Any]:
        """The judgement in JSON values, with the flagged tokens."""
        numbers = {name: value for name, value in vars(self).items() if name not in ("tokens", "others")}
        found = numbers | {"flagged": self.flagged.to_dicts()}
        if not self.others:
            return found
        by_view = [
            row | {"flagged": each.flagged.to_dicts()}
            for row, each in zip(self.by_dimension().to_dicts(), self.others.values(), strict=True)
        ]
        return found | {"dimensions": by_view}
