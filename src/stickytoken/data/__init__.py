"""Every reader of texts and tables: sentences, pairs, documents, evaluation tasks, hub data sets."""

from stickytoken.data.corpora import (
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
