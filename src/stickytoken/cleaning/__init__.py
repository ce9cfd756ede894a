"""Find and remove copies of sticky tokens, text of special tokens and runs in documents.

Light on purpose: a cleaner loads without torch, NumPy or Polars, so that an ingestion service can use it.
"""

from stickytoken.cleaning.cleaner import Cleaned, Cleaner, Removal
from stickytoken.cleaning.rules import CleaningRules
from stickytoken.cleaning.spans import Action, Span, SpanKind, find_spans

__all__ = ["Action", "Cleaned", "Cleaner", "CleaningRules", "Removal", "Span", "SpanKind", "find_spans"]
