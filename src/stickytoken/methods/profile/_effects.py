"""effects.parquet: what a run keeps of every token's pull and contraction, to judge other corpora by."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stickytoken.measurement.store import ResultFolder
from stickytoken.methods.profile.estimates import Ids, Measurements
from stickytoken.methods.profile.rounds import Round
from stickytoken.methods.protocol import FinishedRun
from stickytoken.methods.pull import Pull
from stickytoken.methods.token_effects import TokenEffects

EFFECTS_FILE = "effects.parquet"
EFFECTS_COLUMNS = ("token_id", "round", "contraction", "pull")


class RoundEffects(NamedTuple):
    """Effects that one round measured.

    Attributes:
        ids: token ids, ascending, shape (T,).
        effects: contraction and pull of each.
    """

    ids: Ids
    effects: Pull


def effects_frame(rounds: dict[Round, Measurements]) -> pl.DataFrame:
    """Lay out the effects of all rounds, one row per round and token.

    Tokens of the last round are in both: how the rounds differ tells the error of the first.

    Returns:
        token_id; round; contraction; pull, one float16 per dimension: two bytes times the dimension of the
        model for each available token, 18 MB for all-MiniLM-L6-v2.
    """
    return pl.concat(
        [
            pl.DataFrame(
                {
                    "token_id": measured.ids,
                    "round": [step.value] * len(measured.ids),
                    "contraction": measured.effects.contraction.astype(np.float32),
                    "pull": measured.effects.pull.astype(np.float16),
                }
            )
            for step, measured in rounds.items()
        ]
    )


def round_effects(frame: pl.DataFrame, step: Round) -> RoundEffects:
    """Read the effects of one round; there may be none."""
    rows = frame.filter(pl.col("round") == step.value).sort("token_id")
    pull: NDArray[np.float32] = rows["pull"].to_numpy().astype(np.float32)
    effects = Pull(rows["contraction"].to_numpy().astype(np.float64), pull)
    return RoundEffects(rows["token_id"].to_numpy(), effects)


def token_effects(run: FinishedRun[Any, Any]) -> TokenEffects:
    """Return the effects that the first round measured of every token.

    Raises:
        RunError: effects.parquet is missing.
    """
    frame = ResultFolder(run.path).read_table(EFFECTS_FILE, EFFECTS_COLUMNS)
    screened = round_effects(frame, Round.SCREEN)
    return TokenEffects(screened.ids, screened.effects.contraction, screened.effects.pull)
