"""How good an encoder is on labelled data, and what it gives for a file of texts."""

from stickytoken.evaluation.comparison import StsComparison, compare_sts
from stickytoken.evaluation.embedding import embed_file
from stickytoken.evaluation.sts import StsTask, read_sts
from stickytoken.evaluation.tuning import Tuning, tune

__all__ = ["StsComparison", "StsTask", "Tuning", "compare_sts", "embed_file", "read_sts", "tune"]
