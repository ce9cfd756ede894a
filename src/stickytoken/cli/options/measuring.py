"""Settings that several measurements share."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from stickytoken.cli.options.panels import method_option

CopiesInText: TypeAlias = Annotated[
    int, method_option("--copies", min=1, help="Number of copies of a token in a text.")
]
IntervalConfidence: TypeAlias = Annotated[
    float, method_option("--confidence", help="Coverage of the intervals.")
]
AnySeed: TypeAlias = Annotated[int, method_option("--seed", min=0, help="Seed of all random sampling.")]
