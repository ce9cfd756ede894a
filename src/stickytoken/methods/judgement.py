"""The judgement of a finished run on another corpus."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import polars as pl

from stickytoken.methods.verdicts import Verdict

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

    def summary(self) -> dict[str, Any]:
        """The judgement in JSON values, with the flagged tokens."""
        numbers = {name: value for name, value in vars(self).items() if name != "tokens"}
        return numbers | {"flagged": self.flagged.to_dicts()}
