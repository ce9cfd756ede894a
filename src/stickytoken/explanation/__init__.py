"""Explain why a token sticks: what the model does with its copies, compared with matched benign tokens."""

from stickytoken.explanation.explain import explain
from stickytoken.explanation.result import Explanation
from stickytoken.explanation.settings import ExplainSettings

__all__ = ["ExplainSettings", "Explanation", "explain"]
