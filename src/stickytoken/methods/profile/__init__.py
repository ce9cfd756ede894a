"""The profile method: every token's lift with an interval, rounds that narrow the upper tail."""

from __future__ import annotations

from typing import Any

from stickytoken.insertion import Insertion
from stickytoken.machine import Precision
from stickytoken.methods.entry import SEED, MethodEntry, Option, insertion_option


def _load() -> Any:
    from stickytoken.methods.profile._method import ProfileMethod

    return ProfileMethod()


ENTRY = MethodEntry(
    name="profile",
    summary="every token, with an interval",
    options=(
        SEED,
        insertion_option(Insertion.IDS),
        Option("budget", float, "Texts per available token, on average.", "4"),
        Option("confidence", float, "Coverage of the intervals.", "0.9", probe=True),
        Option("fdr", float, "False discovery rate of the verdicts.", "0.05"),
        Option(
            "smallest_effect",
            float,
            "Smallest lift that must not be missed, in standard deviations of the model's similarities.",
            "0.5",
        ),
        Option(
            "adaptive",
            bool,
            "Spend more texts on the tokens that lift most; false spends the same on every token.",
            "true",
        ),
        Option(
            "dimensions",
            str,
            "Also judge by so many first components of the vectors, such as 64,128,256.",
            "the model's own",
            rare=False,
        ),
        Option(
            "layers",
            str,
            "Also judge by the vectors after so many layers, such as 2,4,6.",
            "the model's own",
            rare=False,
        ),
        Option(
            "screen_precision",
            Precision,
            "Precision of the pass over all tokens: faster, less exact. CPU: bfloat16. GPU: tf32, bfloat16, "
            "float16.",
            "the model's own",
        ),
    ),
    takes_pairs=False,
    load=_load,
)


__all__ = ["ENTRY"]
