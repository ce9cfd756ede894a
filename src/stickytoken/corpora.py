"""The public names of `stickytoken.data` under their earlier name."""

from stickytoken.data import (
    PAPER_DATASETS,
    Sentences,
    bundled_frame,
    bundled_sentences,
    load_sentences,
    pairs_from_file,
    sentences_from_file,
    sentences_from_hub,
    text_kinds,
    text_kinds_frame,
)

__all__ = [
    "PAPER_DATASETS",
    "Sentences",
    "bundled_frame",
    "bundled_sentences",
    "load_sentences",
    "pairs_from_file",
    "sentences_from_file",
    "sentences_from_hub",
    "text_kinds",
    "text_kinds_frame",
]
