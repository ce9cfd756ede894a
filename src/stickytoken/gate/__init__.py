"""The gate for CI: decide whether a model and a set of documents can ship."""

from stickytoken.gate._tokens import Check, FailOn, Outcome
from stickytoken.gate.check import check

__all__ = ["Check", "FailOn", "Outcome", "check"]
