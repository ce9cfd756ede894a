"""The gate for build servers: may a model, and may a set of documents, ship?"""

from stickytoken.gate._result import Check, FailOn, Outcome
from stickytoken.gate.check import check

__all__ = ["Check", "FailOn", "Outcome", "check"]
