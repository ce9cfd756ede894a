"""`CausalPrompt` under the name by which saved models import it, which must not change."""

from stickytoken.language_models.module import CausalPrompt

__all__ = ["CausalPrompt"]
