"""How events of the app are run."""

from __future__ import annotations

from typing import Any

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
