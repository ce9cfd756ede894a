"""Score encoders on labelled data, choose the layers of token prepending, and embed the texts of a file."""

from stickytoken.data.tasks import find_task
from stickytoken.evaluation._embedding import EmbeddedFile, embed_file, read_text_file, require_new_file
from stickytoken.evaluation._scores import (
    Comparison,
    Difference,
    Score,
    TaskMean,
    average,
    compare,
    guess_note,
)
from stickytoken.evaluation._tuning import Tried, Tuning, layers_scored, read_similarity, tune

__all__ = [
    "Comparison",
    "Difference",
    "EmbeddedFile",
    "Score",
    "TaskMean",
    "Tried",
    "Tuning",
    "average",
    "compare",
    "embed_file",
    "find_task",
    "guess_note",
    "layers_scored",
    "read_similarity",
    "read_text_file",
    "require_new_file",
    "tune",
]
