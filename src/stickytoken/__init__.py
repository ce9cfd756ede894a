"""Find, explain, measure and repair sticky tokens in text embedding models.

Importing this package is cheap: torch is imported when a model is loaded.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from stickytoken.errors import (
    EncodingError,
    InputError,
    MissingExtraError,
    ModelError,
    RepairError,
    RunError,
    StickyTokenError,
    StickyTokenWarning,
)
from stickytoken.version import __version__

if TYPE_CHECKING:
    from stickytoken.adapters.guarding import guard
    from stickytoken.attribution.result import Why
    from stickytoken.attribution.why import why
    from stickytoken.cleaning import Cleaner
    from stickytoken.comparisons import Comparison, compare
    from stickytoken.data import load_sentences
    from stickytoken.detection import Run, detect, judge, open_run, probe
    from stickytoken.encoders import Encoder, analyze_vocabulary, load_encoder, load_tokenizer
    from stickytoken.encoders.endpoint.options import EndpointOptions
    from stickytoken.explanation import ExplainSettings, explain
    from stickytoken.gate import check
    from stickytoken.impacts import ImpactSettings, impact, open_impact
    from stickytoken.methods.profile.anchors import ProfileSettings
    from stickytoken.methods.std.plan import StdSettings
    from stickytoken.repairs import Repair, open_repair, repair
    from stickytoken.reports import report
    from stickytoken.scanning.scan import scan

__all__ = [
    "Cleaner",
    "Comparison",
    "Encoder",
    "EncodingError",
    "EndpointOptions",
    "ExplainSettings",
    "ImpactSettings",
    "InputError",
    "MissingExtraError",
    "ModelError",
    "ProfileSettings",
    "Repair",
    "RepairError",
    "Run",
    "RunError",
    "StdSettings",
    "StickyTokenError",
    "StickyTokenWarning",
    "Why",
    "__version__",
    "analyze_vocabulary",
    "check",
    "compare",
    "detect",
    "explain",
    "guard",
    "impact",
    "judge",
    "load_encoder",
    "load_sentences",
    "load_tokenizer",
    "open_impact",
    "open_repair",
    "open_run",
    "probe",
    "repair",
    "report",
    "scan",
    "why",
]

_HOMES = {
    "Cleaner": "stickytoken.cleaning",
    "Comparison": "stickytoken.comparisons",
    "Encoder": "stickytoken.encoders",
    "EndpointOptions": "stickytoken.encoders.endpoint.options",
    "ExplainSettings": "stickytoken.explanation",
    "ImpactSettings": "stickytoken.impacts",
    "ProfileSettings": "stickytoken.methods.profile.anchors",
    "Repair": "stickytoken.repairs",
    "Run": "stickytoken.detection",
    "StdSettings": "stickytoken.methods.std.plan",
    "Why": "stickytoken.attribution.result",
    "analyze_vocabulary": "stickytoken.encoders",
    "check": "stickytoken.gate",
    "compare": "stickytoken.comparisons",
    "detect": "stickytoken.detection",
    "explain": "stickytoken.explanation",
    "guard": "stickytoken.adapters.guarding",
    "impact": "stickytoken.impacts",
    "judge": "stickytoken.detection",
    "load_encoder": "stickytoken.encoders",
    "load_sentences": "stickytoken.data",
    "load_tokenizer": "stickytoken.encoders",
    "open_impact": "stickytoken.impacts",
    "open_repair": "stickytoken.repairs",
    "open_run": "stickytoken.detection",
    "probe": "stickytoken.detection",
    "repair": "stickytoken.repairs",
    "report": "stickytoken.reports",
    "scan": "stickytoken.scanning.scan",
    "why": "stickytoken.attribution.why",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'stickytoken' has no attribute {name!r}")
    try:
        return getattr(import_module(_HOMES[name]), name)
    except MissingExtraError as error:
        return _refusing(name, error)


def _refusing(name: str, error: MissingExtraError) -> Any:
    """Return a function in place of one that needs an extra: `help` and ``import *`` work, calls raise."""

    def refused(*_: Any, **__: Any) -> None:
        raise error.with_traceback(None)

    refused.__name__ = refused.__qualname__ = name
    refused.__doc__ = f"{error}."
    return refused


def __dir__() -> list[str]:
    return __all__
