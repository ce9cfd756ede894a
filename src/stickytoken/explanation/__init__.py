"""Explain why a token sticks: what the model does with its copies, compared with matched benign tokens."""

from stickytoken.explanation.explain import explain
from stickytoken.explanation.measuring import ExplainSettings
from stickytoken.explanation.result import Explanation

__all__ = ["ExplainSettings", "Explanation", "explain"]
