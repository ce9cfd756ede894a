"""Combines the progress of several stages into that of one measurement."""

from __future__ import annotations

from collections.abc import Mapping

from stickytoken.measurement.engine import Progress, ProgressCallback


class WholeProgress:
    """Adds up the steps of all stages, so that a user sees one progress bar for the whole measurement.

    Args:
        label: name of the measurement, which is shown instead of the names of the stages.
        texts: approximate number of texts that each stage encodes, by name of the stage.
        progress: called with the progress of the whole measurement after every step of a stage.
    """

    def __init__(self, label: str, texts: Mapping[str, int], progress: ProgressCallback) -> None:
        self._label = label
        self._texts = {stage: max(1, count) for stage, count in texts.items()}
        self._steps: dict[str, Progress] = {}
        self._progress = progress

    def __call__(self, step: Progress) -> None:
        """Add a step of a stage, and report the progress of the whole measurement."""
        if step.stage not in self._texts:
            self._progress(step)
            return
        self._steps[step.stage] = step
        done = 0.0
        computed = 0.0
        for stage, latest in self._steps.items():
            texts_per_unit = self._texts[stage] / max(1, latest.total)
            done += latest.done * texts_per_unit
            computed += latest.computed * texts_per_unit
        sequences = sum(latest.sequences for latest in self._steps.values())
        total = sum(self._texts.values())
        self._progress(Progress(self._label, round(done), total, round(computed), sequences, step.note))
