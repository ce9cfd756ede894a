"""Sentences from datasets on the Hugging Face Hub."""

from __future__ import annotations

import polars as pl

from stickytoken.corpora.corpus import Sentences, collect_sentences
from stickytoken.corpora.files import text_columns
from stickytoken.corpora.tables import text_column
from stickytoken.errors import InputError, MissingExtraError

PAPER_NAME = "paper"
# The datasets of the published runs; of multilingual ones the English configuration is read.
PAPER_DATASETS = (
    "mteb/sts13-sts",
    "mteb/sts22-crosslingual-sts",
    "mteb/sts12-sts",
    "mteb/stsbenchmark-sts",
    "mteb/sickr-sts",
    "mteb/sts14-sts",
    "mteb/biosses-sts",
    "mteb/sts16-sts",
    "mteb/sts15-sts",
    "mteb/stsb_multi_mt",
    "mteb/sts17-crosslingual-sts",
)
_ENGLISH_CONFIGURATIONS = ("en", "en-en")


def sentences_from_hub(names: tuple[str, ...], column: str | None = None) -> Sentences:
    """Read sentences from one or more Hub datasets.

    Args:
        names: Repositories, each optionally followed by ``@split``; the test split by default.
        column: The column with the sentences; None chooses as for files.

    Raises:
        MissingExtraError: `datasets` is not installed.
        InputError: A dataset cannot be reached or has no such column.
    """
    texts: list[str | None] = []
    for name in names:
        repository, _, split = name.partition("@")
        if not repository.strip():
            raise InputError(
                f"{'hub:' + name!r} names no data set: pass hub:REPOSITORY, or hub:REPOSITORY@SPLIT"
            )
        frame = _load(repository, split or "test")
        columns = (column,) if column else text_columns(frame, name)
        texts += [text for each in columns for text in text_column(frame, each, name)]
    shown = names[0] if len(names) == 1 else f"{len(names)} hub data sets"
    return collect_sentences(texts, shown)


def _load(repository: str, split: str) -> pl.DataFrame:
    try:
        import datasets
        from datasets.exceptions import DatasetsError
    except ImportError as error:
        raise MissingExtraError(f"reading {repository} from the hub", "hub") from error
    try:
        configurations = datasets.get_dataset_config_names(repository)
        wanted = next((name for name in _ENGLISH_CONFIGURATIONS if name in configurations), None)
        loaded = datasets.load_dataset(repository, wanted, split=split)
    except (OSError, ValueError, LookupError, RuntimeError, DatasetsError) as error:
        reason = " ".join(str(error.__cause__ or error).split())[:200]
        raise InputError(f"the data set {repository!r} (split {split!r}) cannot be read: {reason}") from error
    frame = pl.from_arrow(loaded.data.table)
    if not isinstance(frame, pl.DataFrame):
        raise InputError(f"the data set {repository!r} (split {split!r}) is not a table")
    return frame
