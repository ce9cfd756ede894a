"""How events of the app are run."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

import gradio as gr

# All events that need the model stand in one queue, one at a time; what a visitor asks for while waiting
# replaces what he asked before.
ON_MODEL: dict[str, Any] = {
    "concurrency_id": "model",
    "concurrency_limit": 1,
    "trigger_mode": "always_last",
    "show_progress": "minimal",
    "api_visibility": "private",
}
# Events that only read what is in memory.
ON_TABLES: dict[str, Any] = {
    "concurrency_id": "tables",
    "concurrency_limit": 4,
    "trigger_mode": "always_last",
    "show_progress": "hidden",
    "api_visibility": "private",
}
# Events that wait for the model to be loaded, and then hand out what was computed once for all visitors.
ON_STARTUP: dict[str, Any] = {
    "concurrency_id": "startup",
    "concurrency_limit": 16,
    "trigger_mode": "once",
    "show_progress": "minimal",
    "api_visibility": "private",
}


def on_first_opening(
    tab: gr.Tab, handler: Callable[..., Any], inputs: list[Any], outputs: list[Any], **how: Any
) -> None:
    """Run an event when a visitor opens a tab for the first time; what he makes of it later stays.

    Args:
        tab: the tab.
        handler: returns the values of the outputs.
        inputs: of the handler.
        outputs: of the handler.
        how: the event is run.
    """
    seen = gr.State(False)

    @wraps(handler)
    def opened(was_seen: bool, *values: Any) -> list[Any]:
        return [True, *([gr.skip()] * len(outputs) if was_seen else handler(*values))]

    # Gradio reads there how many inputs there are, and whether progress is wanted.
    signature = inspect.signature(handler)
    first = inspect.Parameter("was_seen", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    vars(opened)["__signature__"] = signature.replace(parameters=[first, *signature.parameters.values()])
    tab.select(opened, [seen, *inputs], [seen, *outputs], **how)
