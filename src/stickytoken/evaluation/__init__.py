"""Score an encoder on labelled data, and embed files of texts."""

from stickytoken.evaluation._comparison import Comparison, Score, compare
from stickytoken.evaluation._tasks import find_task, read_similarity
from stickytoken.evaluation._tuning import Tried, Tuning, layers_scored, tune, tune_contrast
from stickytoken.evaluation.embedding import embed_file

__all__ = [
    "Comparison",
    "Score",
    "Tried",
    "Tuning",
    "compare",
    "embed_file",
    "find_task",
    "layers_scored",
    "read_similarity",
    "tune",
    "tune_contrast",
]
