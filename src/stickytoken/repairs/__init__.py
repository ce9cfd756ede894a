"""Repair a model: the same model without its sticky tokens, in a folder that loads without this package."""

from stickytoken.repairs.repair import repair
from stickytoken.repairs.result import Repair, open_repair

__all__ = ["Repair", "open_repair", "repair"]
