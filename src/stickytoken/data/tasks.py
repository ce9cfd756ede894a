"""Load evaluation tasks from files and from MTEB. The columns of a file determine the kind of task."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from stickytoken.data import metrics, text_kinds
from stickytoken.data.metrics import ClassificationTask, Task
from stickytoken.data.rows import GZIP, TABLE_SUFFIXES, format_of, plain_or_gzipped
from stickytoken.data.tables import Table, read_lines, read_table
from stickytoken.errors import InputError, require_package
from stickytoken.validation import file_path, suggestion

LAYOUTS = (
    "STS: sentence1, sentence2, score (and split, of which test is taken)",
    "classification: text, label, split (train or test; or folds in every row, for ten folds); or a folder "
    "with a train and a test file",
    "pair transfer: sentence1, sentence2, label, split (train or test)",
    "retrieval: a folder with corpus.jsonl, queries.jsonl and qrels/test.tsv, as in BEIR",
)
CORPUS = "corpus.jsonl"
QUERIES = "queries.jsonl"
_QRELS = "qrels"
_SUPPORTED = f"Supported layouts: {'; '.join(LAYOUTS)}"
_SPLITS = ("train", "test", "dev", "validation")
# The split that every row names in a task whose texts are predicted fold by fold.
_ALL_FOLDS = "folds"


def load_task(path: Path, split: str = "test") -> tuple[Task, list[str]]:
    """Read a task from a csv, tsv, jsonl or parquet file, or from a folder.

    Args:
        path: The file or folder.
        split: Which pairs of an STS table are taken, if its column ``split`` names several splits.

    Returns:
        The task, and notes on what was left out.

    Raises:
        InputError: The layout is unknown, or the content cannot be used.
    """
    if _holds_queries(path):
        return _make_retrieval(path)
    if path.is_dir():
        return _make_classification_of_folder(path), []
    suffix, _ = format_of(path)
    if suffix not in TABLE_SUFFIXES:
        raise InputError(f"{path}: a task is a folder or a {', '.join(TABLE_SUFFIXES)} file. {_SUPPORTED}")
    table = read_table(path)
    for columns, build in _BUILDERS:
        if set(columns) <= set(table.columns):
            if not table.height:
                raise InputError(f"{path} has no rows")
            notes = []
            if table.meter.spanning:  # rows of several lines may come from a stray quotation mark
                notes.append(f"{path.name}: {table.meter.summary()}")
            if build is _make_similarity:  # all other tasks have training rows, too
                table = _choose_pairs(table, split)
            return build(table), notes
    raise InputError(
        f"{path} has an unknown layout, with columns {', '.join(table.columns) or '(none)'}. {_SUPPORTED}"
    )


def _make_classification_of_folder(folder: Path) -> Task:
    tables = []
    for name in ("train", "test"):
        possible_files = [folder / f"{name}{suffix}" for suffix in TABLE_SUFFIXES]
        files = [file for file in possible_files if file.is_file()]
        if not files:
            raise InputError(f"the folder {folder} has an unknown layout. {_SUPPORTED}")
        table = read_table(files[0])
        table.require(("text", "label"))
        tables.append(table)
    train, test = tables
    return _make_classification(train, test, folder)


def _make_task_name(path: Path) -> str:
    if path.stem in _SPLITS:  # a file "test.csv" alone doesn't say which task it is
        return f"{path.resolve().parent.name}-{path.stem}"
    return path.resolve().stem


def _choose_pairs(table: Table, split: str) -> Table:
    if "split" not in table.columns:
        return table
    splits = sorted(set(table.labels("split")))
    if len(splits) == 1:
        return table
    names = ("dev", "validation") if split == "dev" else (split,)  # two names for the same
    for name in names:
        if name in splits:
            return table.rows_with("split", name)
    raise InputError(
        f"{table.path} has pairs of the splits {', '.join(splits)}, but none of {split}: keep only the pairs "
        "to score"
    )


def _make_similarity(table: Table) -> Task:
    path = table.path
    gold = table.numbers("score")
    first = table.filled_texts("sentence1")
    second = table.filled_texts("sentence2")
    if len(gold) < 3 or len(set(gold)) == 1:
        raise InputError(f"{path}: a correlation needs at least 3 pairs, and scores that differ")
    return metrics.SimilarityTask(_make_task_name(path), first, second, gold)


def _make_split_classification(table: Table) -> Task:
    if set(table.labels("split")) == {_ALL_FOLDS}:
        return _make_cross_validated(table)
    train, test = _split_rows(table)
    return _make_classification(train, test, table.path)


def _split_rows(table: Table) -> tuple[Table, Table]:
    splits = table.labels("split")
    unknown = sorted(set(splits) - set(_SPLITS))
    if unknown:
        raise InputError(
            f"{table.path}: split {unknown[0]!r} is unknown: use train and test, or {_ALL_FOLDS} in every row"
        )
    for name in ("train", "test"):
        if name not in splits:
            raise InputError(f"{table.path} has no rows of the split {name!r}")
    # Rows of other known splits are left out.
    return table.rows_with("split", "train"), table.rows_with("split", "test")


def _make_cross_validated(table: Table) -> Task:
    path = table.path
    texts = table.filled_texts("text")
    labels = table.labels("label")
    counts = Counter(labels)
    _require_two_labels(counts, path)
    for label, count in counts.items():
        if count < metrics.FOLDS:
            raise InputError(
                f"{path}: the label {label!r} has {count} texts, but {metrics.FOLDS} folds need at least one "
                "in each: remove its texts, or merge it with another label"
            )
    # All texts are both training and test texts.
    return metrics.CrossValidatedTask(
        _make_task_name(path), train=texts, train_labels=labels, test=texts, test_labels=labels
    )


def _make_pair_transfer(table: Table) -> Task:
    path = table.path
    train, test = _split_rows(table)
    train_labels = train.labels("label")
    test_labels = test.labels("label")
    _require_two_labels(Counter(train_labels), path)
    unseen_labels = sorted(set(test_labels) - set(train_labels))
    if unseen_labels:
        raise InputError(
            f"{path}: the label {unseen_labels[0]!r} is missing from the training pairs: remove its pairs"
        )
    return metrics.PairTransferTask(
        _make_task_name(path),
        train=train.filled_texts("sentence1"),
        train_second=train.filled_texts("sentence2"),
        train_labels=train_labels,
        test=test.filled_texts("sentence1"),
        test_second=test.filled_texts("sentence2"),
        test_labels=test_labels,
    )


def _make_classification(train: Table, test: Table, path: Path) -> Task:
    train_texts = train.filled_texts("text")
    train_labels = train.labels("label")
    test_texts = test.filled_texts("text")
    test_labels = test.labels("label")
    train_counts = Counter(train_labels)
    for label in sorted({*train_labels, *test_labels}):
        if train_counts[label] < 2:
            problem = "occurs only once in" if train_counts[label] == 1 else "is missing from"
            raise InputError(
                f"{path}: the label {label!r} {problem} the training texts: "
                "remove its texts, or merge it with another label"
            )
    _require_two_labels(train_counts, path)
    return ClassificationTask(_make_task_name(path), train_texts, train_labels, test_texts, test_labels)


def _require_two_labels(counts: Counter[str], path: Path) -> None:
    if len(counts) < 2:
        raise InputError(
            f"{path}: all texts have the label {next(iter(counts))!r}: at least two labels are needed"
        )


_BUILDERS: tuple[tuple[tuple[str, ...], Callable[[Table], Task]], ...] = (
    (("sentence1", "sentence2", "score"), _make_similarity),
    (("sentence1", "sentence2", "label", "split"), _make_pair_transfer),
    (("text", "label", "split"), _make_split_classification),
)


class RetrievalFiles(NamedTuple):
    """What the files of a folder in the BEIR layout say.

    Attributes:
        queries: the texts of the queries that have a relevant document, keyed by id.
        documents: the texts of the documents, keyed by id.
        relevant: for each query, the scores of the judged documents, keyed by document.
        unranked: ids of the queries that are also documents, and are removed from their own results.
        notes: problems with the judgements, and the queries that were left out.
    """

    queries: dict[str, str]
    documents: dict[str, str]
    relevant: dict[str, dict[str, int]]
    unranked: tuple[str, ...]
    notes: list[str]


def _holds_queries(folder: Path) -> bool:
    return all(plain_or_gzipped(folder / name).is_file() for name in (CORPUS, QUERIES))


def holds_judgements(folder: Path) -> bool:
    """Return whether a folder has documents, queries and relevance judgements in the BEIR layout."""
    return _holds_queries(folder) and (folder / _QRELS).is_dir()


def read_retrieval(folder: Path) -> RetrievalFiles:
    """Read documents, queries and relevance judgements from a folder in the BEIR layout.

    Raises:
        InputError: a file is missing or cannot be used, or no query has a relevant document.
    """
    documents = read_texts(plain_or_gzipped(folder / CORPUS), titles=True)
    queries = read_queries(plain_or_gzipped(folder / QUERIES))
    qrels = folder / _QRELS
    files = sorted([*qrels.glob("*.tsv"), *qrels.glob(f"*.tsv{GZIP}")])
    test_files = [path for path in files if path.name.removesuffix(GZIP) == "test.tsv"]
    if not test_files:
        test_files = files  # a collection with a single split may give it another name
    if len(test_files) != 1:
        names = ", ".join(path.name for path in files) or "none"
        raise InputError(f"{qrels} must contain test.tsv, or a single .tsv file: it contains {names}")
    relevant, notes = _read_qrels(test_files[0], documents, queries)
    judged = {query_id: text for query_id, text in queries.items() if query_id in relevant}
    if not judged:
        raise InputError(
            f"{test_files[0]}: no query has a relevant document: add judgements with a positive score"
        )
    if len(judged) < len(queries):
        unjudged = len(queries) - len(judged)
        notes.append(f"{unjudged} of {len(queries)} queries have no relevant document and are left out")
    unranked = _find_queries_in_corpus(judged, documents, relevant)
    if unranked:
        notes.append(
            f"{len(unranked)} of {len(judged)} queries are also documents with the same id, and are left out "
            "of their own rankings, as in MTEB's ArguAna"
        )
    return RetrievalFiles(
        queries=judged,
        documents=documents,
        relevant={query_id: relevant[query_id] for query_id in judged},  # in the order of the queries
        unranked=unranked,
        notes=[f"{folder.name}: {note}" for note in notes],
    )


def _make_retrieval(folder: Path) -> tuple[Task, list[str]]:
    queries, documents, relevant, unranked, notes = read_retrieval(folder)
    return metrics.RetrievalTask(folder.resolve().name, queries, documents, relevant, unranked), notes


def _find_queries_in_corpus(
    queries: dict[str, str], documents: dict[str, str], relevant: dict[str, dict[str, int]]
) -> tuple[str, ...]:
    """Return the ids of the queries that are documents of the corpus too, and so would find themselves first.

    This is so in ArguAna and Quora. Other collections number queries and documents independently, so a
    document with the id of a query is another text, and may be relevant to the query. The texts show which:
    unless most documents that share their id with a query contain its text, no id is returned.
    """
    candidate_ids = []  # of queries that share their id with a document that isn't judged relevant
    contained_count = 0  # number of these documents that contain the text of the query
    for query_id, query_text in queries.items():
        is_judged_relevant = relevant[query_id].get(query_id, 0) > 0
        if query_id in documents and not is_judged_relevant:
            candidate_ids.append(query_id)
            contained_count += _normalize(query_text) in _normalize(documents[query_id])
    most_are_contained = 2 * contained_count > len(candidate_ids)
    return tuple(candidate_ids) if most_are_contained else ()


def _normalize(text: str) -> str:
    return " ".join(text.casefold().split())


def read_texts(path: Path, *, titles: bool) -> dict[str, str]:
    """Return the texts of a BEIR file, keyed by id. With ``titles``, each text starts with its title."""
    table = read_table(path)
    table.require(("_id", "text"))
    texts = [text or "" for text in table.texts("text")]  # a missing text counts as blank
    if titles and "title" in table.columns:
        texts = [f"{title or ''} {text}" for title, text in zip(table.texts("title"), texts, strict=True)]
    stripped_texts = [text.strip() for text in texts]
    return dict(zip(table.ids("_id"), stripped_texts, strict=True))


def read_queries(path: Path) -> dict[str, str]:
    """Return the queries of a BEIR file, keyed by id. No query may be blank."""
    queries = read_texts(path, titles=False)
    for query, text in queries.items():
        if not text:
            raise InputError(f"{path}: the query {query!r} is blank: fill it in or leave it out")
    return queries


_QRELS_COLUMNS = ("query-id", "corpus-id", "score")


def _read_qrels(
    path: Path, documents: dict[str, str], queries: dict[str, str]
) -> tuple[dict[str, dict[str, int]], list[str]]:
    """Read the judgements of the queries that have a relevant document.

    Judgements of queries that are not in the collection are left out. Judgements of documents that are not in
    the collection are kept: if such a document is relevant, it counts as not found, as in trec_eval, BEIR and
    MTEB.

    Returns:
        For each query, the scores of the judged documents, keyed by document; and notes on missing ids and
        repeated judgements.

    Raises:
        InputError: A score is not a whole number, two judgements contradict each other, or the collection
            contains none of the judged queries or none of the judged documents.
    """
    table = _read_qrels_table(path)
    scores = table.numbers("score")
    query_ids = table.labels("query-id")
    document_ids = table.labels("corpus-id")
    judgements: dict[str, dict[str, int]] = defaultdict(dict)  # scores, keyed by query and document
    missing_documents: list[str] = []
    missing_queries: list[str] = []
    repeated_count = 0
    rows = zip(query_ids, document_ids, scores, strict=True)
    for row, (query, document, score) in enumerate(rows, start=1):
        if score != int(score):
            raise InputError(f"{path}: the score in row {row} is {score}, not a whole number")
        if query not in queries:
            missing_queries.append(query)
            continue
        if document in judgements[query]:
            if judgements[query][document] != int(score):
                raise InputError(
                    f"{path}: row {row} judges document {document!r} for query {query!r} again, with another "
                    "score: remove one"
                )
            repeated_count += 1
            continue
        if document not in documents:
            missing_documents.append(document)
        judgements[query][document] = int(score)
    for missing_ids, kind, file_name in (
        (missing_queries, "query", QUERIES),
        (missing_documents, "document", CORPUS),
    ):
        if len(missing_ids) == len(scores):  # all judgements
            raise InputError(
                f"{path}: none of its {kind} ids, such as {missing_ids[0]!r}, is in {file_name}: use files "
                "of one collection"
            )
    relevant = {}
    for query, score_of_document in judgements.items():
        has_relevant_document = max(score_of_document.values()) > 0
        if has_relevant_document:
            relevant[query] = score_of_document
    return relevant, _list_qrels_problems(len(scores), missing_documents, missing_queries, repeated_count)


def _list_qrels_problems(
    judgement_count: int,
    missing_documents: Sequence[str],
    missing_queries: Sequence[str],
    repeated_count: int,
) -> list[str]:
    notes = []
    if missing_documents:
        notes.append(
            f"{len(missing_documents)} of {judgement_count} judgements are of documents that are not in "
            f"{CORPUS}, such as {missing_documents[0]!r}: no query can find them"
        )
    if missing_queries:
        notes.append(
            f"{len(missing_queries)} of {judgement_count} judgements are of queries that are not in "
            f"{QUERIES}, such as {missing_queries[0]!r}: they are left out"
        )
    if repeated_count:
        notes.append(f"{repeated_count} of {judgement_count} judgements repeat an earlier one")
    return notes


def _read_qrels_table(path: Path) -> Table:
    """Read relevance judgements.

    A file with a header has the columns of BEIR. A file without a header has three fields per line, or four
    fields as in TREC.

    Returns:
        A table with the columns query-id, corpus-id and score.
    """
    lines = [line for line in read_lines(path) if line.strip()]
    has_header = "query-id" in lines[0]
    if has_header:
        table = read_table(path)
        table.require(_QRELS_COLUMNS)
        return table
    columns: dict[str, list[str]] = {name: [] for name in _QRELS_COLUMNS}
    for number, line in enumerate(lines, start=1):
        fields = line.split("\t") if "\t" in line else line.split()
        if len(fields) == 4:
            # The second field of a TREC line is the iteration, which is not used.
            del fields[1]
        if len(fields) != 3:
            raise InputError(
                f"{path}: line {number} has {len(fields)} fields: write a header "
                f"({', '.join(_QRELS_COLUMNS)}), or lines of query, document and score"
            )
        for name, value in zip(_QRELS_COLUMNS, fields, strict=True):
            columns[name].append(value.strip())
    return Table(path, _QRELS_COLUMNS, values_of=columns.__getitem__, height=len(lines))


def kinds_task() -> ClassificationTask:
    """Return the task of predicting each bundled text's kind. Half of the texts are training texts."""
    corpus = text_kinds()
    texts_of: dict[str, list[str]] = defaultdict(list)
    for text, kind in zip(corpus.texts, corpus.topics or (), strict=True):
        texts_of[kind].append(text)
    train_texts: list[str] = []
    train_kinds: list[str] = []
    test_texts: list[str] = []
    test_kinds: list[str] = []
    for kind, texts in texts_of.items():
        even_texts = texts[0::2]
        odd_texts = texts[1::2]
        train_texts += even_texts
        train_kinds += [kind] * len(even_texts)
        test_texts += odd_texts
        test_kinds += [kind] * len(odd_texts)
    return ClassificationTask(
        "kinds of text", tuple(train_texts), tuple(train_kinds), tuple(test_texts), tuple(test_kinds)
    )


# MTEB names of the seven STS tasks that papers on prompted language models average over.
STS_TASKS = ("STS12", "STS13", "STS14", "STS15", "STS16", "STSBenchmark", "SICK-R")


class MtebTask:
    """An MTEB task. MTEB gives a single score, so there is no confidence interval."""

    layout = "mteb"
    unit = "tasks"
    has_queries = True  # some tasks have; MTEB itself tells queries and documents apart
    metrics = ("main_score",)
    units = 1

    def __init__(self, task: Any) -> None:
        self.task = task
        self.name = str(task.metadata.name)

    @property
    def fingerprint(self) -> str:
        return metrics.fingerprint(self.layout, self.name, dict(self.task.metadata.dataset), version("mteb"))


AnyTask: TypeAlias = Task | MtebTask


def find_task(source: str | Path) -> tuple[AnyTask, list[str]]:
    """Load a task from a file or a folder, or from MTEB by its name.

    Returns:
        The task, and notes on what was left out.

    Raises:
        InputError: There is no such task, or it cannot be used.
        MissingExtraError: An MTEB task is named, but MTEB is not installed.

    Examples:
        >>> from stickytoken.evaluation import find_task
        >>> task, notes = find_task("sts.jsonl")
        >>> task.units
        6
    """
    path = file_path("task", source)
    if path.exists():
        return load_task(path)
    if path.suffix or len(path.parts) > 1:
        hint = ""
        if path.parent.is_dir():
            hint = suggestion(path.name, [neighbour.name for neighbour in path.parent.iterdir()])
        raise InputError(f"there is no task file or folder {str(path)!r}{hint}")
    return _find_mteb_task(str(source)), []


def _find_mteb_task(name: str) -> MtebTask:
    require_package("mteb", f"{name!r} is not a file or folder; as an MTEB task it", "mteb")
    import mteb

    try:
        return MtebTask(mteb.get_task(name))
    except (KeyError, ValueError) as error:
        hint = suggestion(name, [task.metadata.name for task in mteb.get_tasks(exclude_superseded=False)])
        raise InputError(
            f"{name!r} is neither a file or folder nor an MTEB task{hint}: pass a table with the columns of "
            "a task, a folder in the layout of BEIR, or the name of an MTEB task"
        ) from error


def require_module(encoder: Any) -> Any:
    """Return the SentenceTransformer of an encoder, which MTEB tasks need."""
    if not hasattr(encoder, "library_model"):
        raise InputError(
            f"{encoder.name!r} is not a SentenceTransformer, which MTEB tasks need: load the model as one"
        )
    return encoder.library_model()


def evaluate(model: Any, task: MtebTask) -> float:
    """Return the main score of a model on an MTEB task; NaN if MTEB gives no finite score."""
    import mteb

    options: Any = {"batch_size": 32, "show_progress_bar": False}
    result = mteb.evaluate(
        model, task.task, cache=None, co2_tracker=False, show_progress_bar=False, encode_kwargs=options
    )
    score = float(result.task_results[0].get_score())
    return score if math.isfinite(score) else math.nan


def load_data(task: MtebTask) -> None:
    """Load the data of an MTEB task if it is not loaded yet.

    Raises:
        InputError: The data is not on this machine and cannot be downloaded.
    """
    from datasets.exceptions import DatasetsError

    if task.task.data_loaded:
        return
    try:
        task.task.load_data()
    except (OSError, ValueError, RuntimeError, LookupError, ImportError, DatasetsError) as error:
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise InputError(
            f"the data of {task.name} can be loaded neither from the cache nor from the network: {reason}"
        ) from error
