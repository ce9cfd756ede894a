"""Combine the progress of several stages into the progress of one measurement."""

from __future__ import annotations

from collections.abc import Mapping

from stickytoken.measurement.engine import Progress, ProgressCallback


class WholeProgress:
    """Adds up the progress of all stages, so that the user sees one progress bar for the whole measurement.

    Args:
        label: name of the measurement, which is shown instead of the stage names.
        texts: approximate number of texts that each stage encodes, keyed by stage name.
        progress: called with the progress of the whole measurement whenever a stage reports progress.
    """

    def __init__(self, label: str, texts: Mapping[str, int], progress: ProgressCallback) -> None:
        self._label = label
        self._texts = {stage: count for stage, count in texts.items() if count}
        self._latest_steps: dict[str, Progress] = {}  # keyed by stage
        self._progress = progress

    def __call__(self, step: Progress) -> None:
        """Record the progress of a stage, and report the progress of the whole measurement.

        A stage whose number of texts was not given is not part of the whole. Its progress is reported as it
        is.
        """
        if step.stage not in self._texts:
            self._progress(step)
            return
        self._latest_steps[step.stage] = step
        # Each stage counts its progress in another unit. All counts are converted to texts.
        done = 0.0
        computed = 0.0
        for stage, latest in self._latest_steps.items():
            texts_per_unit = self._texts[stage] / max(1, latest.total)
            done += latest.done * texts_per_unit
            computed += latest.computed * texts_per_unit
        sequences = sum(latest.sequences for latest in self._latest_steps.values())
        total = sum(self._texts.values())
        self._progress(
            Progress(self._label, round(done), total, round(computed), sequences, step.note, unit="texts")
        )
