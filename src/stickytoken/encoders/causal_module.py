"""The import path of `CausalPrompt`. Saved models name it in modules.json, so it must not change."""

from stickytoken.encoders.prompted.module import CausalPrompt

__all__ = ["CausalPrompt"]
