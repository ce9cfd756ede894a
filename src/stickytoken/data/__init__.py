"""Load the texts that runs use. This module loads sentences and sentence pairs.

Sampling and selecting sentence pairs is step 1 of the Sticky Token Detector (Chen et al. 2025).
"""

from __future__ import annotations

import hashlib
import math
import unicodedata
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import TypeAlias, TypeVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stickytoken.data._hub import HUB
from stickytoken.data.documents import PAIR_NAMES, NamedColumns, open_documents
from stickytoken.data.rows import TABLE_SUFFIXES, Meter, Skipped, format_of, is_number
from stickytoken.data.tables import number_of, read_table
from stickytoken.errors import InputError, warn
from stickytoken.machine import digest
from stickytoken.settings.reading import ColumnChoice, Columns
from stickytoken.unit_vectors import unit_vectors
from stickytoken.validation import file_path, list_of, shown
from stickytoken.words import counted

__all__ = [
    "PAPER_DATASETS",
    "Sentences",
    "bundled_frame",
    "bundled_sentences",
    "load_sentences",
    "pairs_from_file",
    "text_kinds",
    "text_kinds_frame",
]

LONGEST_SENTENCE = 100_000
"""Maximum number of characters in a sentence. No model reads more, and tokenizing megabytes takes minutes."""

# The Hub datasets used in the published runs. Only the English part of each multilingual dataset is read.
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
        source: Where the sentences come from, for display.
        topics: The topic of each sentence; None if the corpus has no topics.
        blank: Number of blank or missing sentences that were left out.
        duplicates: Number of repeated sentences that were left out.
        too_long: Number of sentences that were left out because they exceed `LONGEST_SENTENCE`.
        unknown: Share of characters that the model's tokenizer does not know; None if not measured yet.
        bundled: Whether this is the package's own corpus.
        reading: What was read of a file, in words; empty if the sentences come from elsewhere.
        columns: Which columns of a file they are, as the user chose; empty if they were found by name.

    Examples:
        >>> stickytoken.load_sentences("documents.jsonl").texts[0]
        'A plain text about rivers and boats.'
    """

    texts: tuple[str, ...]
    source: str
    topics: tuple[str, ...] | None = None
    blank: int = 0
    duplicates: int = 0
    too_long: int = 0
    unknown: float | None = None
    bundled: bool = False
    reading: str = field(default="", compare=False)
    columns: Columns = field(default_factory=Columns, compare=False)

    def __len__(self) -> int:
        return len(self.texts)

    def __repr__(self) -> str:
        topics = "" if self.topics is None else f" on {len(set(self.topics))} topics"
        return f"<Sentences: {len(self):,} from {self.source}{topics}>"

    @property
    def fingerprint(self) -> str:
        """SHA-256 over the sentences in order."""
        return _hash_texts(self.texts)

    @property
    def fingerprint_with_topics(self) -> str:
        """SHA-256 over the sentences and their topics, if the corpus has topics."""
        return _hash_texts((*self.texts, *(self.topics or ())))

    def sample(self, count: int, seed: int) -> tuple[str, ...]:
        """Return ``count`` sentences, drawn without replacement.

        Raises:
            InputError: The corpus has fewer sentences than ``count``.
        """
        if count > len(self.texts):
            raise InputError(
                f"{self.source} has {len(self.texts)} distinct sentences, but {count} are needed: "
                f"pass a larger corpus, or sample at most {len(self.texts)}"
            )
        indices = np.random.default_rng(seed).choice(len(self.texts), size=count, replace=False)
        return tuple(self.texts[index] for index in indices)


def _hash_texts(texts: Iterable[str]) -> str:
    sha256 = hashlib.sha256()
    for text in texts:
        encoded = text.encode("utf-8", "surrogatepass")  # a list of Python texts may have lone surrogates
        # The length of each text is hashed too, so that ("ab", "c") and ("a", "bc") differ.
        sha256.update(len(encoded).to_bytes(8, "big") + encoded)
    return sha256.hexdigest()


def load_sentences(
    source: Sentences | str | Path | Iterable[str] | None = None, column: ColumnChoice = None
) -> Sentences:
    """Load a corpus.

    Args:
        source: A file; a Hub dataset, as ``hub:repository@split`` or ``hub:repository`` (which reads the only
            split, or ``train`` if there are several); ``paper`` for the test splits of the paper's eleven STS
            datasets; None or ``bundled`` for the package's own corpus; or the sentences themselves, as a list
            or a table column.
        column: The column that contains the sentences, for files and Hub datasets; or several, or `Columns`.
            If None, the columns ``sentence1`` and ``sentence2`` are read or, if they do not exist, the column
            of a usual name for the text of a document, such as ``text`` or ``content``.

    Raises:
        InputError: The corpus cannot be read or is empty.
        MissingExtraError: A Hub dataset is requested, but the ``hub`` extra is not installed.

    Examples:
        >>> sentences = stickytoken.load_sentences(["the river", "a boat"])
        >>> sentences.texts
        ('the river', 'a boat')
    """
    columns = NamedColumns(column, sentence_pairs=True)
    # Only a string may be a keyword. A path is a file, whatever its name: `Path("./paper")` is "paper".
    keyword = source if isinstance(source, str) else ""
    is_bundled = source is None or keyword == "bundled"
    has_columns = isinstance(source, (str, Path)) and not is_bundled
    user_chose_columns = columns.text_columns != Columns()
    if user_chose_columns and not has_columns:
        chosen = " ".join(columns.text_columns.as_options())
        raise InputError(
            f"a column is chosen ({chosen}), but only files and Hub datasets have columns: leave it out, "
            "or pass a file of sentences (--sentences)"
        )
    if isinstance(source, Sentences):
        return source
    if is_bundled:
        return bundled_sentences()
    if not isinstance(source, (str, Path)):
        return _collect_values(source)
    if keyword == "paper":
        sources: list[str | Path] = [f"{HUB}{dataset}@test" for dataset in PAPER_DATASETS]
        return _read_sentences(sources, columns, f"{len(sources)} hub data sets")
    if keyword.startswith(HUB):
        return _read_sentences([keyword], columns, keyword.removeprefix(HUB))
    path = file_path("sentences", source)
    if path.is_dir():
        raise InputError(f"{path} is a folder: pass a file")
    # A string may be meant as a sentence. That a `Path` doesn't exist is said when it is opened.
    if isinstance(source, str) and not path.exists():
        raise InputError(f"no file {shown(source)} (in Python, pass sentences themselves as a list)")
    return _read_sentences([path], columns, str(path))


def _read_sentences(sources: Iterable[str | Path], columns: NamedColumns, name: str) -> Sentences:
    """Return the sentences of files or Hub datasets. Records without readable text count as blank."""
    texts: list[str | None] = []  # None for a record without readable text
    skipped: list[Skipped] = []
    meter = Meter()
    user_named_columns = bool(columns.text_columns.names)
    for source in sources:
        # In a table of sentence pairs, all first sentences come before the second ones.
        first_texts: list[str | None] = []
        second_texts: list[str] = []
        for record in open_documents(source, columns).read(meter):
            if isinstance(record, Skipped):
                skipped.append(record)
                first_texts.append(None)
            elif record.columns == PAIR_NAMES and not user_named_columns:
                first_texts.append(record.parts[0])
                second_texts.append(record.parts[1])
            else:
                first_texts.append(record.text)
        texts += [*first_texts, *second_texts]
    if skipped:
        first_problem = f"{skipped[0].place}: {skipped[0].reason}"
        if len(skipped) == len(texts):
            raise InputError(f"{name} has no readable text; {first_problem}")
        records = counted(len(skipped), "record")
        warn(f"{name}: left out {records} without readable text, the first of them {first_problem}")
    return replace(collect_sentences(texts, name), reading=meter.summary(), columns=columns.text_columns)


def _is_missing(value: object) -> bool:
    is_nan = isinstance(value, float) and math.isnan(value)
    is_pandas_na = type(value).__name__ == "NAType"  # pandas itself is not imported
    return value is None or is_nan or is_pandas_na


def _collect_values(values: object) -> Sentences:
    texts: list[str | None] = []
    for number, value in enumerate(list_of("sentences", "sentences", values), start=1):
        if isinstance(value, str):
            texts.append(str(value))  # a text of NumPy becomes a plain one
        elif _is_missing(value):
            texts.append(None)
        else:
            raise InputError(f"sentence {number} is {shown(value)}: pass texts")
    if not texts:
        raise InputError("the list of sentences is empty: pass at least one sentence, or no list at all")
    return collect_sentences(texts, "the given list")


def collect_sentences(
    texts: Iterable[str | None], source: str, topics: Sequence[str] | None = None
) -> Sentences:
    """Strip the sentences, and return a corpus without those that are blank, repeated or too long.

    Args:
        texts: The sentences. A missing sentence is None.
        source: Where the sentences come from, for messages.
        topics: The topic of each sentence.

    Raises:
        InputError: No sentence is left, or all of them are numbers.
    """
    first_position_of: dict[str, int] = {}  # where each sentence occurs first in `texts`
    blank = duplicates = too_long = 0
    for position, text in enumerate(texts):
        stripped = (text or "").strip()
        if not stripped:
            blank += 1
        elif len(stripped) > LONGEST_SENTENCE:
            too_long += 1
        elif stripped in first_position_of:
            duplicates += 1
        else:
            first_position_of[stripped] = position
    distinct_sentences = tuple(first_position_of)
    limit = f"longer than {LONGEST_SENTENCE:,} characters"
    if not distinct_sentences:
        problem = "every line is blank"
        if too_long:
            problem = f"{too_long} of its lines are {limit}, the others blank"
        raise InputError(f"{source} has no sentences: {problem}. Pass one sentence per line")
    if all(map(is_number, distinct_sentences)):
        raise InputError(f"{source} has only numbers, such as {distinct_sentences[0]}: pass sentences")
    if too_long:
        noun = "sentence" if too_long == 1 else "sentences"
        warn(f"{source}: left out {too_long} {noun} {limit}")
    distinct_topics = None
    if topics is not None:
        distinct_topics = tuple(topics[position] for position in first_position_of.values())
    return Sentences(distinct_sentences, source, distinct_topics, blank, duplicates, too_long)


def bundled_frame() -> pl.DataFrame:
    """Return the bundled corpus as a table with the columns pair_id, topic and sentence.

    Two sentences with the same pair_id are paraphrases of each other.

    Examples:
        >>> from stickytoken.data import bundled_frame
        >>> bundled_frame().columns
        ['pair_id', 'topic', 'sentence']
    """
    return _read_bundled("sentences", {"pair_id": pl.Int64, "topic": pl.String, "sentence": pl.String})


def _read_bundled(name: str, schema: dict[str, type[pl.DataType]]) -> pl.DataFrame:
    content = files("stickytoken.data").joinpath(f"bundled/{name}.csv").read_bytes()
    return pl.read_csv(content, schema=schema)


def bundled_sentences() -> Sentences:
    """Return the bundled corpus: 840 English sentences on 64 topics, and a paraphrase of each.

    Examples:
        >>> from stickytoken.data import bundled_sentences
        >>> len(bundled_sentences().texts)
        1680
    """
    frame = bundled_frame()
    texts = frame["sentence"].to_list()
    corpus = collect_sentences(texts, "the bundled corpus", frame["topic"].to_list())
    return replace(corpus, bundled=True)


def text_kinds_frame() -> pl.DataFrame:
    """Return the bundled texts of ten kinds as a table with the columns kind and text.

    The kinds are those that production systems embed: news, encyclopedia, science, law, medicine, code,
    questions, reviews, chat and email. Each kind has 80 English texts: phrases, sentences and short
    paragraphs. The texts cover as many subjects as their kind allows, so that their mean vector represents
    the kind rather than a subject. All texts were written for this project. Apart from historical figures,
    all people, companies and cases in the texts are fictitious.

    Examples:
        >>> from stickytoken.data import text_kinds_frame
        >>> text_kinds_frame().columns
        ['kind', 'text']
    """
    return _read_bundled("kinds", {"kind": pl.String, "text": pl.String})


def text_kinds() -> Sentences:
    """Return the texts of `text_kinds_frame` as a corpus whose topics are the kinds.

    Examples:
        >>> from stickytoken.data import text_kinds
        >>> sorted(set(text_kinds().topics))[:3]
        ['chat', 'code', 'email']
    """
    frame = text_kinds_frame()
    return collect_sentences(frame["text"].to_list(), "the bundled kinds of text", frame["kind"].to_list())


def open_ended(text: str) -> str:
    """Return a text without its final punctuation.

    Copies of a token have a different effect after punctuation. Removing the punctuation makes the results
    independent of whether the sentences of a corpus end in punctuation.
    """
    shortened = text.rstrip()
    # The Unicode categories of punctuation begin with P.
    while shortened and unicodedata.category(shortened[-1]).startswith("P"):
        shortened = shortened[:-1].rstrip()
    # A text of nothing but punctuation stays.
    return shortened or text


@dataclass(frozen=True, slots=True)
class SentencePair:
    """Two sentences and their similarity.

    Attributes:
        sentence1: The anchor, which is never changed.
        sentence2: The carrier, into which tokens are inserted.
        similarity: The cosine similarity of the sentences under the model.
    """

    sentence1: str
    sentence2: str
    similarity: float

    @property
    def sentences(self) -> tuple[str, str]:
        return self.sentence1, self.sentence2


@dataclass(frozen=True)
class PairCorpus:
    """Sentence pairs that a user passes instead of a corpus.

    Attributes:
        pairs: The pairs.
        source: Where the pairs come from, for display.
        unknown: Share of characters that the model's tokenizer does not know; None if not measured yet.
    """

    pairs: tuple[SentencePair, ...]
    source: str
    unknown: float | None = None

    @property
    def fingerprint(self) -> str:
        return digest([[pair.sentence1, pair.sentence2, pair.similarity] for pair in self.pairs])


SentenceSource: TypeAlias = Sentences | str | Path | Iterable[str]
PairSource: TypeAlias = str | Path | Iterable[SentencePair | tuple[str, str, float]]
Corpus = TypeVar("Corpus", bound=Sentences | PairCorpus)


def corpus_fingerprint(corpus: Sentences) -> str:
    """Return a hash of everything in a corpus, and in the package's own texts, that can change a result."""
    # The bundled corpus counts as one kind of text, but the same sentences read from a file count as the
    # user's own corpus. The results differ, so the fingerprints must differ too.
    return digest([corpus.fingerprint_with_topics, corpus.bundled, text_kinds().fingerprint_with_topics])


def choose_corpus(sentences: SentenceSource | None, pairs: PairSource | None) -> Sentences | PairCorpus:
    """Load the sentences or the pairs that were passed, or the bundled corpus if neither was passed."""
    if pairs is None:
        return load_sentences(sentences)
    if sentences is not None:
        raise InputError("sentences and pairs are both given, but pairs replace the sentences: pass only one")
    if isinstance(pairs, (str, Path)):
        return PairCorpus(tuple(pairs_from_file(file_path("pairs", pairs))), str(pairs))
    values = list_of("pairs", "pairs", pairs)
    if not values:
        raise InputError("the list of pairs is empty: pass at least one pair")
    checked_pairs = []
    for number, value in enumerate(values, start=1):
        if isinstance(value, SentencePair):
            checked_pairs.append(value)
        elif isinstance(value, Sequence) and not isinstance(value, (str, bytes)) and len(value) == 3:
            sentence1, sentence2, similarity = value
            checked_pairs.append(_check_pair(sentence1, sentence2, similarity, f"pair {number}"))
        else:
            raise InputError(
                f"pair {number} is {shown(value)}: pass (sentence1, sentence2, similarity), or a file of "
                "pairs"
            )
    return PairCorpus(tuple(checked_pairs), "given pairs")


def pairs_from_file(path: Path) -> list[SentencePair]:
    """Read pairs from a table with the columns sentence1, sentence2 and similarity.

    Raises:
        InputError: The file cannot be read, a column is missing, a sentence is blank, or a similarity is
            not between -1 and 1.

    Examples:
        >>> from pathlib import Path
        >>> from stickytoken.data import pairs_from_file
        >>> pairs_from_file(Path("pairs.csv"))
        [SentencePair(sentence1='a river', sentence2='a stream', similarity=0.8)]
    """
    suffix, _ = format_of(path)
    if suffix not in TABLE_SUFFIXES:
        raise InputError(f"{path}: pairs can be read only from {', '.join(TABLE_SUFFIXES)} files")
    table = read_table(path)
    needed = ("sentence1", "sentence2", "similarity")
    for column in needed:
        if column not in table.columns:
            raise InputError(
                f"{path} lacks the column {column!r}: pairs need the columns {', '.join(needed)}, but the "
                f"file has {', '.join(table.columns)}"
            )
    similarities = map(number_of, table.values_of("similarity"))
    rows = zip(table.texts("sentence1"), table.texts("sentence2"), similarities, strict=True)
    pairs = []
    for number, (sentence1, sentence2, similarity) in enumerate(rows, start=1):
        pairs.append(_check_pair(sentence1, sentence2, similarity, f"{path}: pair {number}"))
    if not pairs:
        raise InputError(f"{path} has no pairs")
    return pairs


def _check_pair(sentence1: object, sentence2: object, similarity: object, where: str) -> SentencePair:
    for sentence in (sentence1, sentence2):
        is_missing = sentence is None  # in a table; it counts as blank
        if not isinstance(sentence, str) and not is_missing:
            raise InputError(f"{where} has {shown(sentence)} as a sentence: pass text")
        if is_missing or not str(sentence).strip():
            raise InputError(f"{where} has a blank sentence")
        if len(str(sentence)) > LONGEST_SENTENCE:
            raise InputError(f"{where} has a sentence longer than {LONGEST_SENTENCE:,} characters")
    # The rounded similarity of two equal sentences may be slightly above 1. A NaN is not in the range either.
    if not isinstance(similarity, (int, float, np.number)) or not abs(float(similarity)) <= 1.001:
        raise InputError(f"{where} has the similarity {shown(similarity)}: it must be between -1 and 1")
    return SentencePair(str(sentence1), str(sentence2), float(similarity))


def sample_pairs(sentences: Sequence[str], vectors: NDArray[np.floating], count: int) -> list[SentencePair]:
    """Choose distinct sentence pairs whose similarities are spread evenly over the whole range.

    ``count`` target similarities are evenly spaced from the lowest to the highest. For each target in turn,
    the pair with the nearest similarity is chosen from the pairs that no earlier target has taken.

    Args:
        sentences: The N sentences.
        vectors: The vectors of the sentences, shape (N, D).
        count: Number of pairs to choose. If the sentences form fewer pairs than this, all pairs are chosen.

    Returns:
        The chosen pairs in ascending order of similarity.
    """
    if len(sentences) < 2:
        raise InputError(f"pairs need at least 2 sentences, got {len(sentences)}")
    units = unit_vectors(vectors)
    # Every pair of two different sentences once. The arrays have the shape (pairs,).
    first_indices, second_indices = np.triu_indices(len(sentences), k=1)
    similarities = (units @ units.T).astype(np.float64)[first_indices, second_indices]
    by_similarity = np.argsort(similarities, kind="stable")  # the pairs' indices, least similar first
    # The pairs that no target has taken yet: their ranks in `by_similarity`, and their similarities. Both
    # lists are ascending, and element i of both is the same pair.
    free_ranks = list(range(len(by_similarity)))
    free_similarities = similarities[by_similarity].tolist()
    targets = np.linspace(free_similarities[0], free_similarities[-1], min(count, len(by_similarity)))
    chosen_ranks: list[int] = []
    for target in targets.tolist():
        nearest = _find_nearest_index(free_similarities, target)
        chosen_ranks.append(free_ranks.pop(nearest))
        del free_similarities[nearest]
    chosen_pairs = []
    for pair in by_similarity[sorted(chosen_ranks)]:
        first_sentence = sentences[first_indices[pair]]
        second_sentence = sentences[second_indices[pair]]
        chosen_pairs.append(SentencePair(first_sentence, second_sentence, float(similarities[pair])))
    return chosen_pairs


def _find_nearest_index(ascending: Sequence[float], target: float) -> int:
    right = bisect_left(ascending, target)  # index of the first number that isn't below the target
    if right == 0:
        return 0
    if right == len(ascending):
        return right - 1
    left_is_nearer = target - ascending[right - 1] <= ascending[right] - target
    return right - 1 if left_is_nearer else right


def select_pairs(pairs: Sequence[SentencePair], mean_similarity: float, count: int) -> list[SentencePair]:
    """Choose pairs whose similarities are spread over the lower 80% of the range from minimum to mean.

    Let u be the mean similarity. Only pairs with a similarity below u can be chosen. The target similarities
    are evenly spaced over [min, min + 0.8 (u - min)]; their number is ``count``, or the number of pairs below
    u if that is smaller. For each target, the pair with the nearest similarity is chosen. Where pairs are
    sparse, the same pair is chosen for several targets and is returned several times, as in the published
    runs.

    Raises:
        InputError: No pair has a similarity below u.
    """
    # Equally similar pairs are sorted by their sentences, so that the order of `pairs` has no effect.
    pairs_below = sorted(
        (pair for pair in pairs if pair.similarity < mean_similarity),
        key=lambda pair: (pair.similarity, *pair.sentences),
    )
    if not pairs_below:
        raise InputError(
            f"none of the {len(pairs)} sentence pairs has a similarity below the model's mean "
            f"{mean_similarity:.4f}: use sentences on more varied subjects"
        )
    similarities = np.array([pair.similarity for pair in pairs_below])
    lowest = similarities[0]
    highest_target = lowest + 0.8 * (mean_similarity - lowest)
    targets = np.linspace(lowest, highest_target, min(count, len(pairs_below)))
    nearest_indices = [int(np.abs(similarities - target).argmin()) for target in targets]
    return [pairs_below[index] for index in nearest_indices]
