"""Options of the app's events."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

import gradio as gr

# Handlers check their inputs themselves: what Gradio's components refuse, they refuse with a traceback in the
# log, and the old answer stays in the page.
_CHECKED_BY_HANDLER: dict[str, Any] = {"preprocess": False, "api_visibility": "private"}

# Events that need the model share one queue, one at a time; a newer request replaces one that waits.
ON_MODEL: dict[str, Any] = _CHECKED_BY_HANDLER | {
    "concurrency_id": "model",
    "concurrency_limit": 1,
    "trigger_mode": "always_last",
    "show_progress": "minimal",
}
# Events that only read tables in memory.
ON_TABLES: dict[str, Any] = _CHECKED_BY_HANDLER | {
    "concurrency_id": "tables",
    "concurrency_limit": 4,
    "trigger_mode": "always_last",
    "show_progress": "hidden",
}
# Events that wait until the model is loaded, then return what is computed once for all visitors.
ON_STARTUP: dict[str, Any] = _CHECKED_BY_HANDLER | {
    "concurrency_id": "startup",
    "concurrency_limit": 16,
    "trigger_mode": "once",
    "show_progress": "minimal",
}


def on_first_opening(
    tab: gr.Tab, handler: Callable[..., Any], inputs: list[Any], outputs: list[Any], **how: Any
) -> None:
    """Run an event when a visitor opens a tab for the first time, and never again."""
    seen = gr.State(False)

    @wraps(handler)
    def opened(was_seen: bool, *values: Any) -> list[Any]:
        return [True, *([gr.skip()] * len(outputs) if was_seen else handler(*values))]

    # Gradio reads the number of inputs and the wish for progress from the signature.
    signature = inspect.signature(handler)
    first = inspect.Parameter("was_seen", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    vars(opened)["__signature__"] = signature.replace(parameters=[first, *signature.parameters.values()])
    tab.select(opened, [seen, *inputs], [seen, *outputs], **how)
