"""Find, prove and measure sticky tokens in text embedding models.

Importing this package is cheap: torch is loaded when a model is.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from stickytoken.errors import StickyTokenError

if TYPE_CHECKING:
    from stickytoken.corpora import load_sentences
    from stickytoken.detection import detect, open_run
    from stickytoken.encoders import analyze_vocabulary, load_encoder, load_tokenizer
    from stickytoken.explanation import explain
    from stickytoken.impacts import impact, open_impact
    from stickytoken.reports import report

__all__ = [
    "StickyTokenError",
    "analyze_vocabulary",
    "detect",
    "explain",
    "impact",
    "load_encoder",
    "load_sentences",
    "load_tokenizer",
    "open_impact",
    "open_run",
    "report",
]

_HOMES = {
    "analyze_vocabulary": "stickytoken.encoders",
    "detect": "stickytoken.detection",
    "explain": "stickytoken.explanation",
    "impact": "stickytoken.impacts",
    "load_encoder": "stickytoken.encoders",
    "load_sentences": "stickytoken.corpora",
    "load_tokenizer": "stickytoken.encoders",
    "open_impact": "stickytoken.impacts",
    "open_run": "stickytoken.detection",
    "report": "stickytoken.reports",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'stickytoken' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
