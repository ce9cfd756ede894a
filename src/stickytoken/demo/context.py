"""The context that all tabs of the app share."""

from __future__ import annotations

from dataclasses import dataclass

from stickytoken.corpora import Sentences
from stickytoken.demo._naming import name_of, shown_name
from stickytoken.demo.run_library import RunLibrary
from stickytoken.demo.shared_model import SharedModel
from stickytoken.detection.run import Run
from stickytoken.detection.schema import RunRecord
from stickytoken.reports.content import RunContent


@dataclass(frozen=True)
class Context:
    """Shared by all visitors and never changed.

    Attributes:
        model: the model.
        library: the runs.
        content: a finished run of the loaded model, for its sentences and its tokens; None without one.
        corpus: sentences to use if there is no run.
        repaired: the model after a repair; None without one.
    """

    model: SharedModel
    library: RunLibrary
    content: RunContent | None
    corpus: Sentences
    repaired: SharedModel | None = None

    @property
    def run(self) -> Run | None:
        """The run of the loaded model."""
        return None if self.content is None else self.content.run

    def name_of(self, token_id: int) -> str:
        """Return what a visitor can type to name a token."""
        return name_of(self.model.vocabulary, token_id)

    def shown_name(self, token_id: int) -> str:
        """Return a token's vocabulary string with every character visible."""
        return shown_name(self.model.vocabulary, token_id)

    def verdict_of(self, token_id: int) -> str | None:
        """Return the verdict on a token in the run of the loaded model."""
        if self.run is None:
            return None
        found = self.run.tokens.filter(token_id=token_id)["verdict"]
        return found[0] if len(found) else None


def make_context(
    model: SharedModel, library: RunLibrary, corpus: Sentences, repaired: SharedModel | None = None
) -> Context:
    """Find the run that belongs to the model.

    Args:
        model: the model.
        library: the runs.
        corpus: sentences to use if there is no run.
        repaired: the model after a repair; None without one.

    Raises:
        RunError: that run cannot be read.
    """
    own = next((label for label in library.labels if _is_finished_run_of(library.record(label), model)), None)
    content = None if own is None else library.content(own)
    return Context(model, library, content, corpus, repaired)


def _is_finished_run_of(record: RunRecord, model: SharedModel) -> bool:
    return record.result is not None and model.is_model_of(record)
