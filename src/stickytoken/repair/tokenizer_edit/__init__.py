"""Change what text reaches in a tokenizer, without changing any token id."""

from stickytoken.repair.tokenizer_edit._edit import TokenizerEdit, edited_tokenizer, splittable

__all__ = ["TokenizerEdit", "edited_tokenizer", "splittable"]
