"""Find, explain, measure and repair sticky tokens in text embedding models.

Importing this package is cheap: torch is imported when a model is loaded.

The examples in docstrings use the packaged model, its run, some texts, and a small language model::

    model = stickytoken.load_encoder("all-MiniLM-L6-v2")
    run = stickytoken.open_run("run")
    documents = ["A plain text about rivers and boats.", ...]
    decoder = stickytoken.load_encoder("decoder", prompt="prompteol")
"""

from __future__ import annotations

from importlib import import_module

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

# Type checkers know this name. Importing it from `typing` would take most of the time of this import.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from stickytoken.adapters.guarding import guard
    from stickytoken.attribution import Why, why
    from stickytoken.audits import audit, open_audit
    from stickytoken.cleaning import Cleaner
    from stickytoken.data import load_sentences
    from stickytoken.detection import Run, detect, open_run, probe
    from stickytoken.encoders import Encoder, load_tokenizer
    from stickytoken.explanation import explain
    from stickytoken.gate import check
    from stickytoken.loading import analyze_vocabulary, load_encoder
    from stickytoken.repairs import Repair, open_repair, repair
    from stickytoken.reports import report
    from stickytoken.scanning.results import open_scan
    from stickytoken.scanning.scan import scan
    from stickytoken.settings.audit import AuditSettings
    from stickytoken.settings.endpoint import EndpointOptions
    from stickytoken.settings.explain import ExplainSettings
    from stickytoken.settings.profile import ProfileSettings
    from stickytoken.settings.repair import RepairSettings
    from stickytoken.settings.std import StdSettings

__all__ = [
    "AuditSettings",
    "Cleaner",
    "Encoder",
    "EncodingError",
    "EndpointOptions",
    "ExplainSettings",
    "InputError",
    "MissingExtraError",
    "ModelError",
    "ProfileSettings",
    "Repair",
    "RepairError",
    "RepairSettings",
    "Run",
    "RunError",
    "StdSettings",
    "StickyTokenError",
    "StickyTokenWarning",
    "Why",
    "__version__",
    "analyze_vocabulary",
    "audit",
    "check",
    "detect",
    "explain",
    "guard",
    "load_encoder",
    "load_sentences",
    "load_tokenizer",
    "open_audit",
    "open_repair",
    "open_run",
    "open_scan",
    "probe",
    "repair",
    "report",
    "scan",
    "why",
]

_EXPORTS = {
    "stickytoken.adapters.guarding": ("guard",),
    "stickytoken.attribution": ("Why", "why"),
    "stickytoken.audits": ("audit", "open_audit"),
    "stickytoken.cleaning": ("Cleaner",),
    "stickytoken.data": ("load_sentences",),
    "stickytoken.detection": ("Run", "detect", "open_run", "probe"),
    "stickytoken.encoders": ("Encoder", "load_tokenizer"),
    "stickytoken.explanation": ("explain",),
    "stickytoken.gate": ("check",),
    "stickytoken.loading": ("analyze_vocabulary", "load_encoder"),
    "stickytoken.repairs": ("Repair", "open_repair", "repair"),
    "stickytoken.reports": ("report",),
    "stickytoken.scanning.results": ("open_scan",),
    "stickytoken.scanning.scan": ("scan",),
    "stickytoken.settings.audit": ("AuditSettings",),
    "stickytoken.settings.endpoint": ("EndpointOptions",),
    "stickytoken.settings.explain": ("ExplainSettings",),
    "stickytoken.settings.profile": ("ProfileSettings",),
    "stickytoken.settings.repair": ("RepairSettings",),
    "stickytoken.settings.std": ("StdSettings",),
}
_HOMES = {name: module for module, names in _EXPORTS.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'stickytoken' has no attribute {name!r}")
    try:
        return getattr(import_module(_HOMES[name]), name)
    except MissingExtraError as error:
        return _placeholder(name, error)


def _placeholder(name: str, error: MissingExtraError) -> Any:
    def placeholder(*_: Any, **__: Any) -> None:
        raise error.with_traceback(None)

    placeholder.__name__ = placeholder.__qualname__ = name
    placeholder.__doc__ = f"{error}."
    return placeholder


def __dir__() -> list[str]:
    return __all__
