"""Run the stages of a run of std, and report its progress as a whole, in texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import polars as pl

from stickytoken.insertion import Token
from stickytoken.measurement.engine import Progress
from stickytoken.measurement.stages import Stage
from stickytoken.measurement.store import ResultFolder
from stickytoken.methods.runner import Runner

# Name of the only stage that a user sees.
_TEXTS = "texts"


@dataclass
class CountedRunner:
    """Runs stages, and reports the progress of the whole run in texts.

    A stage reports its own progress in tokens, which take different numbers of texts in different stages.
    """

    runner: Runner
    folder: ResultFolder  # keeps the shards of the runner, with their cost
    truncate: bool  # whether texts that are too long for the model are truncated
    expected_texts: int = 0  # estimated number of texts to encode in the whole run
    done_texts: int = 0  # number of texts in the finished stages, including texts encoded in earlier sessions
    computed_texts: int = 0  # number of texts encoded in this session

    def __call__(self, stage: Stage, tokens: Sequence[Token], text_count: int) -> pl.DataFrame:
        """Run a stage and report its progress. Return one row per token.

        Args:
            stage: the stage.
            tokens: the tokens to measure.
            text_count: number of texts that the stage encodes for all tokens together.
        """
        texts_per_token = text_count / max(1, len(tokens))
        report_to_user = self.runner.progress
        computed_before = self.computed_texts

        def report(of_stage: Progress) -> None:
            """Report the progress of the run in texts, converted from the stage's progress in tokens."""
            self.computed_texts = computed_before + round(of_stage.computed * texts_per_token)
            done = self.done_texts + round(of_stage.done * texts_per_token)
            # The estimate `expected_texts` may be too low, so raise the total to at least the number of texts
            # at the end of this stage.
            total = max(self.expected_texts, self.done_texts + text_count)
            # `sequences` counts encoded texts, as `computed` does here.
            report_to_user(
                Progress(_TEXTS, done, total, computed=self.computed_texts, sequences=self.computed_texts)
            )

        run_stage = replace(self.runner, progress=report)
        table = run_stage(stage, tokens, truncate=self.truncate)
        self.done_texts += text_count
        return table

    def announce(self, scoring_texts: int, validation_texts: int) -> None:
        """Tell the user how many texts are left to encode, and how long they will take at the current rate.

        Also update `expected_texts`.

        Args:
            scoring_texts: estimated number of texts that are left to encode in order to score tokens.
            validation_texts: estimated number of texts to encode in order to validate candidates.
        """
        remaining_texts = scoring_texts + validation_texts
        self.expected_texts = self.done_texts + remaining_texts
        cost = self.folder.total_cost()  # of all texts so far, including texts encoded in earlier sessions
        # A cost of 0 would make the quotients below infinite, so both divisors have a lower bound.
        hours = remaining_texts * cost.seconds / max(1, cost.sequences) / 3600
        how_long = f"{hours:.1f} hours" if hours >= 1 else f"{60 * hours:.0f} minutes"
        texts_a_second = cost.sequences / max(cost.seconds, 1e-9)
        note = (
            f"still to encode: about {scoring_texts:,} texts to score tokens and {validation_texts:,} to "
            f"validate candidates, {how_long} at {texts_a_second:,.0f} texts a second"
        )
        # `sequences` counts encoded texts, as `computed` does here.
        self.runner.progress(
            Progress(
                _TEXTS,
                done=self.done_texts,
                total=self.expected_texts,
                computed=self.computed_texts,
                sequences=self.computed_texts,
                note=note,
            )
        )
