"""Change what text reaches in a tokenizer, without changing any token id."""

from stickytoken.repairs.tokenizer_edit._edit import TokenizerEdit, edited_tokenizer, splittable
from stickytoken.repairs.tokenizer_edit._pipeline import Pipeline, read_object, read_pipeline
from stickytoken.repairs.tokenizer_edit._unreachable import merge_pairs, renamed_model, word_pieces

__all__ = [
    "Pipeline",
    "TokenizerEdit",
    "edited_tokenizer",
    "merge_pairs",
    "read_object",
    "read_pipeline",
    "renamed_model",
    "splittable",
    "word_pieces",
]
