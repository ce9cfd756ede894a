"""Score an encoder on labelled data, and embed files of texts."""

from stickytoken.evaluation._comparison import Comparison, Score, compare
from stickytoken.evaluation._tasks import find_task, read_similarity
from stickytoken.evaluation._tuning import Tuning, tune
from stickytoken.evaluation.embedding import embed_file

__all__ = ["Comparison", "Score", "Tuning", "compare", "embed_file", "find_task", "read_similarity", "tune"]
