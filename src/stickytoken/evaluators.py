"""Look for sticky tokens while sentence-transformers trains a model."""

from __future__ import annotations

import csv
import logging
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from sentence_transformers.base.evaluation import SentenceEvaluator

from stickytoken.data import SentenceSource
from stickytoken.detection import detect
from stickytoken.methods.measures import ERASED, PUSH
from stickytoken.run_summary import RunSummary
from stickytoken.settings.profile import ProfileSettings
from stickytoken.validation import whole_number
from stickytoken.words import counted, quoted

__all__ = ["StickyTokenEvaluator"]

logger = logging.getLogger(__name__)


class StickyTokenEvaluator(SentenceEvaluator):
    """Measures the special tokens that text can produce and random tokens, as `stickytoken.detect` does.

    The metrics, of which lower values are better:

    - ``sticky``, the primary one: number of sticky tokens.
    - ``hidden``: largest erased share.
    - ``pushed``: largest push; missing if the texts do not suffice for documents.

    The same random tokens are measured at every call. The model does not change, and nothing is kept from one
    call to the next, so that the metrics follow the weights.

    Args:
        sample: number of random tokens.
        sentences: as in `stickytoken.detect`.
        settings: as in `stickytoken.detect`.
        name: what the names of the metrics and of the CSV file begin with.
        write_csv: whether to append the metrics to ``sticky_tokens_<name>_results.csv`` in the output folder.

    Raises:
        InputError: ``sample`` is not a positive whole number.

    >>> from stickytoken.evaluators import StickyTokenEvaluator
    >>> StickyTokenEvaluator(sample=16, name="dev").csv_file
    'sticky_tokens_dev_results.csv'
    """

    def __init__(
        self,
        sample: int = 32,
        *,
        sentences: SentenceSource | None = None,
        settings: ProfileSettings | None = None,
        name: str = "",
        write_csv: bool = True,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.sample = whole_number("sample", sample, 1)
        self.sentences = sentences
        self.settings = settings or ProfileSettings()
        self.name = name
        self.write_csv = write_csv
        self.primary_metric = "sticky"
        self.greater_is_better = False
        self.csv_file = "_".join(filter(None, ("sticky_tokens", name, "results.csv")))
        self.csv_headers = ["epoch", "steps", "sticky", "hidden", "pushed"]

    def __call__(
        self, model: Any, output_path: str | None = None, epoch: int = -1, steps: int = -1
    ) -> dict[str, float]:
        """Measure a model.

        Args:
            model: a SentenceTransformer.
            output_path: folder of the CSV file; if None, no file is written.
            epoch: number of the epoch, for the CSV file; -1 outside a training.
            steps: number of the step, for the CSV file; -1 at the end of an epoch.

        Returns:
            The metrics, keyed by name. If the evaluator has a name, the names of the metrics begin with it.

        Raises:
            InputError: the sentences or settings cannot be used.
            ModelError: the model cannot be used.
            EncodingError: the model gives no usable vector for a text.
        """
        # A new folder at each call, because detection in the folder of a finished run measures nothing again.
        with TemporaryDirectory() as folder:
            run = detect(
                model,
                sample=self.sample,
                sentences=self.sentences,
                settings=self.settings,
                out=Path(folder) / "run",
            )
        names = [quoted(token) for token in run.sticky["token"]]
        logger.info(f"{counted(len(names), 'sticky token')} {' '.join(names)}".rstrip())
        metrics = {"sticky": float(len(names))}
        summary = RunSummary(run)
        for name, measure in (("hidden", ERASED), ("pushed", PUSH)):
            worst = summary.worst_token(measure)
            if worst is not None:  # the push is unknown if the texts do not suffice for documents
                metrics[name] = worst.value
        if output_path is not None and self.write_csv:
            row = {"epoch": epoch, "steps": steps, **metrics}
            self._append(Path(output_path) / self.csv_file, row)
        metrics = self.prefix_name_to_metrics(metrics, self.name)
        self.store_metrics_in_model_card_data(model, metrics, epoch, steps)
        return metrics

    def _append(self, path: Path, row: dict[str, float]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        is_new = not path.exists()
        with path.open("a", newline="", encoding="utf-8") as stream:
            writer = csv.DictWriter(stream, self.csv_headers)
            if is_new:
                writer.writeheader()
            writer.writerow(row)

    def get_config_dict(self) -> dict[str, Any]:
        """Return what the model card says about how the metrics were measured."""
        return {"sample": self.sample, "seed": self.settings.seed}
