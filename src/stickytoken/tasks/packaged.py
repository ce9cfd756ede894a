"""The packaged task: classify texts by kind."""

from __future__ import annotations

from stickytoken.corpora import text_kinds
from stickytoken.tasks._labels import ClassificationTask

PACKAGED_TASK = "kinds of text"


def kinds_task() -> ClassificationTask:
    """Return a classification of the bundled texts of ten kinds; every second text trains the classifier."""
    corpus = text_kinds()
    seen: dict[str, int] = {}
    splits: tuple[list[tuple[str, str]], list[tuple[str, str]]] = ([], [])
    for text, kind in zip(corpus.texts, corpus.topics or (), strict=True):
        place = seen[kind] = seen.get(kind, -1) + 1
        splits[place % 2].append((text, kind))
    train, test = splits
    return ClassificationTask(
        PACKAGED_TASK,
        tuple(text for text, _ in train),
        tuple(kind for _, kind in train),
        tuple(text for text, _ in test),
        tuple(kind for _, kind in test),
    )
