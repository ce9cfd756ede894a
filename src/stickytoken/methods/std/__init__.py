"""The paper's method: score every token on five pairs, validate the best, find outliers."""

from __future__ import annotations

from typing import Any

from stickytoken.insertion import Insertion
from stickytoken.methods.entry import SEED, MethodEntry, Option, insertion_option


def _load() -> Any:
    from stickytoken.methods.std._method import StdMethod

    return StdMethod()


ENTRY = MethodEntry(
    name="std",
    summary="Chen et al. 2025",
    options=(
        SEED,
        insertion_option(Insertion.TEXT),
        Option("copies", int, "Largest number of copies in a text.", "8", least=1, probe=True),
        Option(
            "sentence_count",
            int,
            "Number of sentences sampled from the corpus.",
            "1000",
            field="sentences",
            least=2,
            probe=True,
        ),
        Option(
            "pair_count",
            int,
            "Number of pairs sampled from the sentences, evenly over similarity.",
            "1000",
            field="pairs",
            least=1,
            probe=True,
        ),
        Option("scoring_pairs", int, "Number of pairs that score a token.", "5", least=1),
        Option("validation_pairs", int, "Number of pairs that validate a token.", "250", least=1, probe=True),
        Option("candidate_share", float, "Share of the tokens that is validated.", "0.02"),
        Option(
            "outlier_range",
            float,
            "Call a candidate sticky above Q3 + this x IQR of the validation rates.",
            "0.7",
            least=0,
        ),
    ),
    takes_pairs=True,
    load=_load,
)


__all__ = ["ENTRY"]
