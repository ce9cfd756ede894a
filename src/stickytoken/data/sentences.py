"""Corpora of sentences: from files, hub data sets, lists, or the package itself."""

from __future__ import annotations

import hashlib
import math
import unicodedata
import warnings
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path

import numpy as np
import polars as pl

from stickytoken.data import tables
from stickytoken.errors import InputError, StickyTokenWarning
from stickytoken.validation import file_path, list_of, shown

LONGEST_SENTENCE = 100_000
"""Characters of the longest sentence: no model reads more, and tokenizing megabytes takes minutes."""

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


@dataclass(frozen=True)
class Sentences:
    """Distinct, non-blank sentences in a fixed order.

    Attributes:
        texts: The sentences.
        source: Where they came from, for display.
        topics: The topic of each sentence, where the corpus has them.
        blank: Number of blank or missing sentences left out.
        duplicates: Number of repeated sentences left out.
        too_long: Number of sentences left out for their length.
        unknown: Share of the characters that the model's tokenizer does not know; None before a model
            was chosen.
        bundled: Whether this is the package's own corpus, which stands for no index in particular.
    """

    texts: tuple[str, ...]
    source: str
    topics: tuple[str, ...] | None = None
    blank: int = 0
    duplicates: int = 0
    too_long: int = 0
    unknown: float | None = None
    bundled: bool = False

    def __len__(self) -> int:
        return len(self.texts)

    def __repr__(self) -> str:
        topics = "" if self.topics is None else f" on {len(set(self.topics))} topics"
        return f"<Sentences: {len(self):,} from {self.source}{topics}>"

    @property
    def fingerprint(self) -> str:
        """SHA-256 over the sentences in order."""
        return _digest(self.texts)

    @property
    def fingerprint_with_topics(self) -> str:
        """SHA-256 over the sentences and, where there are any, their topics."""
        return _digest((*self.texts, *(self.topics or ())))

    def sample(self, count: int, seed: int) -> tuple[str, ...]:
        """Draw ``count`` sentences without replacement.

        Raises:
            InputError: The corpus has fewer.
        """
        if count > len(self.texts):
            raise InputError(
                f"{self.source} has {len(self.texts)} distinct sentences, but {count} are needed: "
                f"pass a larger corpus, or sample at most {len(self.texts)}"
            )
        chosen = np.random.default_rng(seed).choice(len(self.texts), size=count, replace=False)
        return tuple(self.texts[k] for k in chosen)


def _digest(texts: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for text in texts:
        encoded = text.encode("utf-8", "surrogatepass")
        digest.update(len(encoded).to_bytes(8, "big") + encoded)
    return digest.hexdigest()


def load_sentences(
    source: Sentences | str | Path | Iterable[str] | None = None, column: str | None = None
) -> Sentences:
    """Load a corpus.

    Args:
        source: A file; ``hub:repository@split``, or ``hub:repository`` for its only split or else
            ``train``; ``paper`` for the test splits of the eleven STS datasets of the paper; None or
            ``bundled`` for the package's own corpus; or the sentences themselves, as a list or a column of
            a table.
        column: The column with the sentences, for files and Hub datasets.

    Raises:
        InputError: The corpus cannot be read or is empty.
        MissingExtraError: A Hub dataset is requested without the extra ``hub``.
    """
    if column is not None and not isinstance(column, str):
        raise InputError(f"column is {column!r}: pass the name of a column")
    if not isinstance(source, (str, Path)) or str(source) == "bundled":
        if column is not None:
            raise InputError("there are no columns to choose from: omit the column")
        if isinstance(source, Sentences):
            return source
        return bundled_sentences() if source is None or isinstance(source, (str, Path)) else _given(source)
    name = str(source)
    if name == "paper":
        return sentences_from_hub(tuple(f"{each}@test" for each in PAPER_DATASETS), column)
    if name.startswith(tables.HUB):
        return sentences_from_hub((name.removeprefix(tables.HUB),), column)
    path = file_path("sentences", source)
    try:
        is_there = path.exists()
    except OSError:  # reading it says why
        is_there = True
    if isinstance(source, str) and not is_there:
        raise InputError(f"no file {shown(source)} (in Python, pass sentences themselves as a list)")
    return sentences_from_file(path, column)


def sentences_from_file(path: Path, column: str | None = None) -> Sentences:
    """Read sentences from txt (one per line), csv, tsv, jsonl or parquet.

    Args:
        path: The file.
        column: The column with the sentences; None takes ``sentence1`` and ``sentence2``,
            ``sentence``, ``text``, or the only text column.

    Raises:
        InputError: The file or the column cannot be used.
    """
    suffix = path.suffix.lower()
    if suffix in tables.TABLE_SUFFIXES:
        return collect_sentences(_texts(tables.read_table(path), column, str(path)), str(path))
    if suffix not in (".txt", ""):
        raise InputError(f"{path} has the ending {suffix!r}: use .txt, {', '.join(tables.TABLE_SUFFIXES)}")
    return collect_sentences(tables.read_lines(path, column), str(path))


def sentences_from_hub(names: tuple[str, ...], column: str | None = None) -> Sentences:
    """Read sentences from one or more Hub datasets.

    Args:
        names: Repositories, each optionally followed by ``@split``; by default the only split, or ``train``.
        column: The column with the sentences; None chooses as for files.

    Raises:
        MissingExtraError: `datasets` is not installed.
        InputError: A dataset cannot be reached or has no such column.
    """
    texts = [text for name in names for text in _texts(tables.hub_table(name), column, name)]
    return collect_sentences(texts, names[0] if len(names) == 1 else f"{len(names)} hub data sets")


def _texts(frame: pl.DataFrame, column: str | None, name: str) -> list[str | None]:
    columns = (column,) if column else tables.text_columns(frame, name)
    return [text for each in columns for text in tables.text_column(frame, each, name)]


def _given(values: object) -> Sentences:
    """Collect sentences of a list or another iterable; None and NaN count as blank, as in a file."""
    texts = []
    for place, value in enumerate(list_of("sentences", "sentences", values), start=1):
        nan = isinstance(value, float) and math.isnan(value)
        missing = value is None or nan or type(value).__name__ == "NAType"
        if not isinstance(value, str) and not missing:
            raise InputError(f"sentence {place} is {shown(value)}: pass texts")
        texts.append(str(value) if isinstance(value, str) else None)
    if not texts:
        raise InputError("the list of sentences is empty: pass sentences, or leave them out")
    return collect_sentences(texts, "the given list")


def collect_sentences(
    texts: Iterable[str | None], source: str, topics: Sequence[str] | None = None
) -> Sentences:
    first_seen: dict[str, int] = {}
    blank = duplicates = too_long = 0
    for position, text in enumerate(texts):
        stripped = (text or "").strip()
        if not stripped:
            blank += 1
        elif len(stripped) > LONGEST_SENTENCE:
            too_long += 1
        elif stripped in first_seen:
            duplicates += 1
        else:
            first_seen[stripped] = position
    limit = f"longer than {LONGEST_SENTENCE:,} characters"
    if not first_seen:
        reason = f"{too_long} of its lines are {limit}, the others" if too_long else "every line is"
        raise InputError(f"{source} has no sentences: {reason} blank. Pass one sentence per line")
    with suppress(ValueError):
        for text in first_seen:
            float(text)
        raise InputError(f"{source} has only numbers, such as {next(iter(first_seen))}: pass sentences")
    if too_long:
        counted = "1 sentence" if too_long == 1 else f"{too_long} sentences"
        warnings.warn(f"{source}: left out {counted} {limit}", StickyTokenWarning, stacklevel=2)
    return Sentences(
        texts=tuple(first_seen),
        source=source,
        topics=None if topics is None else tuple(topics[k] for k in first_seen.values()),
        blank=blank,
        duplicates=duplicates,
        too_long=too_long,
    )


def bundled_frame() -> pl.DataFrame:
    """Return the bundled corpus, one row per sentence: pair_id, topic, sentence. Two rows share a pair_id."""
    return _bundled("sentences", {"pair_id": pl.Int64, "topic": pl.String, "sentence": pl.String})


def _bundled(name: str, schema: dict[str, type[pl.DataType]]) -> pl.DataFrame:
    content = files("stickytoken.data").joinpath(f"bundled/{name}.csv").read_bytes()
    return pl.read_csv(content, schema=schema)


def bundled_sentences() -> Sentences:
    """Return the bundled corpus: 840 English sentences on 64 topics, each with a paraphrase."""
    frame = bundled_frame()
    found = collect_sentences(frame["sentence"].to_list(), "the bundled corpus", frame["topic"].to_list())
    return replace(found, bundled=True)


def text_kinds_frame() -> pl.DataFrame:
    """Return texts of ten kinds that are embedded in production, one row per text: kind, text.

    The kinds are news, encyclopedia, science, law, medicine, code, questions, reviews, chat and email,
    with 80 English texts each: phrases, sentences and short paragraphs on as many subjects as the kind
    allows, so that the mean vector of a kind stands for the kind and not for a subject. All of them
    were written for this project: living people, companies and cases in them are made up.
    """
    return _bundled("kinds", {"kind": pl.String, "text": pl.String})


def text_kinds() -> Sentences:
    """Return the texts of `text_kinds_frame` as a corpus whose topics are the kinds."""
    frame = text_kinds_frame()
    return collect_sentences(frame["text"].to_list(), "the bundled kinds of text", frame["kind"].to_list())


def open_ended(text: str) -> str:
    """Remove the punctuation at the end of a text.

    Copies after a full stop act differently from copies after a word, and corpora differ in their
    punctuation: if carriers kept theirs, lifts would depend on it.
    """
    words = text.rstrip()
    while words and unicodedata.category(words[-1]).startswith("P"):
        words = words[:-1].rstrip()
    return words or text
