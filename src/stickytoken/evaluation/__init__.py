"""Score an encoder on labelled data, and embed files of texts."""

from stickytoken.evaluation.comparison import Comparison, Score, compare
from stickytoken.evaluation.embedding import embed_file
from stickytoken.evaluation.tasks import find_task, read_similarity
from stickytoken.evaluation.tuning import Tuning, tune

__all__ = ["Comparison", "Score", "Tuning", "compare", "embed_file", "find_task", "read_similarity", "tune"]
