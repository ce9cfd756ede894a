"""Evaluation tasks from files, whose layout determines the kind of task, and from MTEB."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias

import polars as pl

from stickytoken.data import metrics, tables, text_kinds
from stickytoken.data.metrics import ClassificationTask, Sample, Task, Values
from stickytoken.errors import InputError, require_package

LAYOUTS = (
    "STS: sentence1, sentence2, score",
    "pair classification: sentence1, sentence2, label (0 or 1)",
    "reranking: query, positive, negative (lists of texts)",
    "classification: text, label, split (train or test); or a folder with a train and a test file",
    "clustering: text, label",
    "retrieval: a folder with corpus.jsonl, queries.jsonl and qrels/test.tsv, as in BEIR",
)
CORPUS, QUERIES = "corpus.jsonl", "queries.jsonl"
_KNOWN = f"Known layouts: {'; '.join(LAYOUTS)}"
_SPLITS = ("train", "test", "dev", "validation")


def load_task(path: Path) -> tuple[Task, list[str]]:
    """Read a task, with notes on what was left out, from a csv, tsv, jsonl or parquet file, or from a folder.

    Raises:
        InputError: the layout is unknown, or the content cannot be used.
    """
    if (path / CORPUS).is_file() and (path / QUERIES).is_file():
        return _retrieval(path)
    if path.is_dir():
        files = [
            next((file for end in tables.TABLE_SUFFIXES if (file := path / f"{name}{end}").is_file()), None)
            for name in ("train", "test")
        ]
        parts = [(tables.read_table(file), file) for file in files if file is not None]
        if len(parts) < 2:
            raise InputError(f"the folder {path} has an unknown layout. {_KNOWN}")
        for frame, file in parts:
            tables.require_columns(frame, ("text", "label"), file)
        return _classification(parts, path), []
    if path.suffix.lower() not in tables.TABLE_SUFFIXES:
        raise InputError(f"{path}: a task is a folder or a {', '.join(tables.TABLE_SUFFIXES)} file. {_KNOWN}")
    frame = tables.read_table(path)
    for columns, build in _BUILDERS:
        if set(columns) <= set(frame.columns):
            if frame.is_empty():
                raise InputError(f"{path} has no rows")
            return build(frame, path), []
    raise InputError(
        f"{path} has an unknown layout, with columns {', '.join(frame.columns) or '(none)'}. {_KNOWN}"
    )


def _name(path: Path) -> str:
    if path.stem in _SPLITS:
        return f"{path.resolve().parent.name}-{path.stem}"
    return path.resolve().stem


def _pairs(frame: pl.DataFrame, path: Path) -> Task:
    scored = "score" in frame.columns
    gold = tables.numbers(frame, "score" if scored else "label", path)
    first, second = (tables.filled_texts(frame, each, path) for each in ("sentence1", "sentence2"))
    if scored:
        if len(gold) < 3 or len(set(gold)) == 1:
            raise InputError(f"{path}: a correlation needs at least 3 pairs, and scores that differ")
        return metrics.SimilarityTask(_name(path), first, second, gold)
    if set(gold) != {0.0, 1.0}:
        raise InputError(f"{path}: labels of pairs must be 0 or 1, and both must occur")
    return metrics.PairClassificationTask(_name(path), first, second, gold)


def _reranking(frame: pl.DataFrame, path: Path) -> Task:
    queries = tables.filled_texts(frame, "query", path)
    positive, negative = (tables.text_lists(frame, each, path) for each in ("positive", "negative"))
    ids: dict[str, str] = {}
    candidates: dict[str, tuple[str, ...]] = {}
    relevant: dict[str, dict[str, int]] = {}
    for row, (good, bad) in enumerate(zip(positive, negative, strict=True)):
        if common := set(good) & set(bad):
            raise InputError(
                f"{path}: row {row + 1} has {min(common)[:80]!r} among both positives and negatives"
            )
        found = [ids.setdefault(text, f"d{len(ids)}") for text in (*good, *bad)]
        candidates[f"q{row}"] = tuple(dict.fromkeys(found))
        relevant[f"q{row}"] = {ids[text]: 1 for text in good}
    names = {f"q{row}": text for row, text in enumerate(queries)}
    documents = {number: text for text, number in ids.items()}
    return metrics.RerankingTask(_name(path), names, documents, relevant, candidates)


def _split_classification(frame: pl.DataFrame, path: Path) -> Task:
    splits = tables.labels(frame, "split", path)
    if unknown := sorted(set(splits) - set(_SPLITS)):
        raise InputError(f"{path}: split {unknown[0]!r} is unknown: use train and test")
    for name in ("train", "test"):
        if name not in splits:
            raise InputError(f"{path} has no rows of the split {name!r}")
    parts = [(frame.filter(pl.Series(splits) == name), path) for name in ("train", "test")]
    return _classification(parts, path)


def _classification(parts: Sequence[tuple[pl.DataFrame, Path]], path: Path) -> Task:
    (train, train_labels), (test, test_labels) = (
        (tables.filled_texts(frame, "text", file), tables.labels(frame, "label", file))
        for frame, file in parts
    )
    counts = Counter(train_labels)
    for label in sorted({*train_labels, *test_labels}):
        if counts[label] < 2:
            problem = "occurs only once in" if counts[label] else "is missing from"
            raise InputError(
                f"{path}: the label {label!r} {problem} the training texts: "
                "remove its texts, or merge it with another label"
            )
    _require_two(counts, path)
    return ClassificationTask(_name(path), train, train_labels, test, test_labels)


def _clustering(frame: pl.DataFrame, path: Path) -> Task:
    texts, groups = tables.filled_texts(frame, "text", path), tables.labels(frame, "label", path)
    counts = Counter(groups)
    _require_two(counts, path)
    if alone := next((label for label, count in counts.items() if count < 2), None):
        raise InputError(
            f"{path}: the label {alone!r} occurs only once: remove the text, or merge the label with another"
        )
    return metrics.ClusteringTask(_name(path), texts, groups)


def _require_two(counts: Counter[str], path: Path) -> None:
    if len(counts) < 2:
        raise InputError(
            f"{path}: all texts have the label {next(iter(counts))!r}: at least two labels are needed"
        )


_BUILDERS: tuple[tuple[tuple[str, ...], Callable[[pl.DataFrame, Path], Task]], ...] = (
    (("sentence1", "sentence2", "score"), _pairs),
    (("sentence1", "sentence2", "label"), _pairs),
    (("query", "positive", "negative"), _reranking),
    (("text", "label", "split"), _split_classification),
    (("text", "label"), _clustering),
)


def _retrieval(folder: Path) -> tuple[Task, list[str]]:
    """Read a folder in the layout of BEIR, with notes on what was left out or counts in a way of its own."""
    documents = read_texts(folder / CORPUS, titles=True)
    queries = read_queries(folder / QUERIES)
    qrels = folder / "qrels"
    files = sorted(qrels.glob("*.tsv")) if qrels.is_dir() else []
    chosen = [path for path in files if path.stem == "test"] or files
    if len(chosen) != 1:
        names = ", ".join(path.name for path in files) or "none"
        raise InputError(f"{qrels} must contain test.tsv, or a single .tsv file: it contains {names}")
    relevant, notes = _read_qrels(chosen[0], documents, queries)
    judged = {query: text for query, text in queries.items() if query in relevant}
    if not judged:
        raise InputError(
            f"{chosen[0]}: no query has a relevant document: add judgements with a positive score"
        )
    if len(judged) < len(queries):
        left_out = len(queries) - len(judged)
        notes.append(f"{left_out} of {len(queries)} queries have no relevant document and are left out")
    unranked = _queries_in_corpus(judged, documents, relevant)
    if unranked:
        notes.append(
            f"{len(unranked)} of {len(judged)} queries are documents under the same id, which are not ranked "
            "for them, as in MTEB's ArguAna"
        )
    task = metrics.RetrievalTask(
        folder.resolve().name,
        judged,
        documents,
        {query: relevant[query] for query in judged},
        unranked,
    )
    return task, [f"{folder.name}: {note}" for note in notes]


def _queries_in_corpus(
    queries: dict[str, str], documents: dict[str, str], relevant: dict[str, dict[str, int]]
) -> tuple[str, ...]:
    """Return the queries whose document under the same id is the query itself.

    In ArguAna and Quora, queries are documents of the corpus, and each would find itself first. In other
    collections, queries and documents are numbered apart, and equal ids mean nothing; there, the document
    under the id of a query may even be its answer.
    """
    shared = [query for query in queries if query in documents and relevant[query].get(query, 0) <= 0]
    same_text = [query for query in shared if _as_words(queries[query]) in _as_words(documents[query])]
    one_numbering = len(shared) == len(queries) or 2 * len(same_text) > len(shared)
    return tuple(shared) if one_numbering else ()


def _as_words(text: str) -> str:
    return " ".join(text.casefold().split())


def read_texts(path: Path, *, titles: bool) -> dict[str, str]:
    frame = tables.read_table(path)
    tables.require_columns(frame, ("_id", "text"), path)
    texts = [text or "" for text in tables.text_column(frame, "text", path)]
    if titles and frame.schema.get("title") == pl.String:
        texts = [f"{title or ''} {text}" for title, text in zip(frame["title"], texts, strict=True)]
    return dict(zip(tables.ids(frame, "_id", path), map(str.strip, texts), strict=True))


def read_queries(path: Path) -> dict[str, str]:
    found = read_texts(path, titles=False)
    if blank := next((query for query, text in found.items() if not text), None):
        raise InputError(f"{path}: the query {blank!r} is blank: fill it in or leave it out")
    return found


_QRELS_COLUMNS = ("query-id", "corpus-id", "score")


def _read_qrels(
    path: Path, documents: dict[str, str], queries: dict[str, str]
) -> tuple[dict[str, dict[str, int]], list[str]]:
    """Return the judgements of queries with a relevant document, and notes.

    Judgements of queries that are missing are left out. A judged document that is missing stays: it counts as
    relevant and not found, as in trec_eval, BEIR and MTEB.

    Raises:
        InputError: a score is not a whole number, two judgements contradict each other, or all are of
            documents or queries that are missing.
    """
    frame = _qrels_table(path)
    scores = tables.numbers(frame, "score", path)
    query_ids = tables.labels(frame, "query-id", path)
    document_ids = tables.labels(frame, "corpus-id", path)
    judgements: dict[str, dict[str, int]] = defaultdict(dict)
    missing_documents: list[str] = []
    missing_queries: list[str] = []
    repeated = 0
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
            repeated += 1
            continue
        if document not in documents:
            missing_documents.append(document)
        judgements[query][document] = int(score)
    for missing, name in ((missing_queries, QUERIES), (missing_documents, CORPUS)):
        if len(missing) == len(scores):
            raise InputError(
                f"{path}: no id that it judges is in {name}, such as {missing[0]!r}: the files belong to "
                "different collections"
            )
    notes = []
    if missing_documents:
        notes.append(
            f"{len(missing_documents)} of {len(scores)} judgements are of documents that are not in "
            f"{CORPUS}, such as {missing_documents[0]!r}: they count as not found, as in BEIR and MTEB"
        )
    if missing_queries:
        notes.append(
            f"{len(missing_queries)} of {len(scores)} judgements are of queries that are not in {QUERIES}, "
            f"such as {missing_queries[0]!r}: they are left out"
        )
    if repeated:
        notes.append(f"{repeated} of {len(scores)} judgements repeat an earlier one")
    relevant = {query: judged for query, judged in judgements.items() if max(judged.values()) > 0}
    return relevant, notes


def _qrels_table(path: Path) -> pl.DataFrame:
    """Read judgements with a header, as in BEIR, or without one: of three columns, or of four as in TREC."""
    content = tables.decode(tables.read_bytes(path), path)
    lines = [line for line in content.splitlines() if line.strip()]
    if "query-id" in lines[0]:
        frame = tables.read_table(path)
        tables.require_columns(frame, _QRELS_COLUMNS, path)
        return frame
    rows: list[tuple[str, str, str]] = []
    for number, line in enumerate(lines, start=1):
        fields = line.split("\t") if "\t" in line else line.split()
        if len(fields) == 4:  # the second is the iteration, which nobody uses
            del fields[1]
        if len(fields) != 3:
            raise InputError(
                f"{path}: line {number} has {len(fields)} fields: write a header "
                f"({', '.join(_QRELS_COLUMNS)}), or lines of query, document and score"
            )
        rows.append((fields[0].strip(), fields[1].strip(), fields[2].strip()))
    return pl.DataFrame(rows, schema=dict.fromkeys(_QRELS_COLUMNS, pl.String), orient="row")


def kinds_task() -> ClassificationTask:
    corpus = text_kinds()
    by_kind: dict[str, list[str]] = defaultdict(list)
    for text, kind in zip(corpus.texts, corpus.topics or (), strict=True):
        by_kind[kind].append(text)
    (train, train_kinds), (test, test_kinds) = (
        zip(*((text, kind) for kind, texts in by_kind.items() for text in texts[start::2]), strict=True)
        for start in (0, 1)
    )
    return ClassificationTask("kinds of text", train, train_kinds, test, test_kinds)


# MTEB names of the tasks of Chen et al. 2025.
PAPER_TASKS = (
    *("Banking77Classification", "EmotionClassification", "MassiveIntentClassification"),
    *("BiorxivClusteringS2S", "MedrxivClusteringS2S", "TwentyNewsgroupsClustering"),
    *("SprintDuplicateQuestions", "StackOverflowDupQuestions", "SciDocsRR"),
    *("SciFact", "ArguAna", "NFCorpus"),
    *("SICK-R", "STS16", "STSBenchmark", "SummEval"),
)


class UnreachableTaskError(InputError):
    """The data of an MTEB task cannot be loaded."""


class MtebTask:
    """An MTEB task. It yields one number per condition, so it has no intervals."""

    layout = "mteb"
    unit = "tasks"
    metrics = ("main_score",)
    columns = metrics
    units = 1

    def __init__(self, task: Any) -> None:
        self.task = task
        self.name = str(task.metadata.name)

    @property
    def fingerprint(self) -> str:
        return metrics.fingerprint(self.layout, self.name, dict(self.task.metadata.dataset), version("mteb"))

    def scores(self, metric: str, outcomes: Values, sample: Sample = None) -> Values:
        del metric, sample
        return outcomes[:, 0, 0]


AnyTask: TypeAlias = Task | MtebTask


def find_task(source: str | Path) -> tuple[AnyTask, list[str]]:
    """Load a task, with notes on what was left out, from a file or folder, or from MTEB by name.

    Raises:
        InputError: there is no such task, or it cannot be used.
        MissingExtraError: an MTEB task is named, and MTEB is not installed.
    """
    path = Path(source).expanduser()
    if path.exists():
        return load_task(path)
    if path.suffix or len(path.parts) > 1:
        raise InputError(f"there is no task file or folder {str(path)!r}")
    return find_mteb_task(str(source)), []


def find_mteb_task(source: Any) -> MtebTask:
    require_package("mteb", f"{str(source)!r} is not a file or folder; as an MTEB task it", "mteb")
    import mteb
    from mteb.abstasks import AbsTask

    if isinstance(source, AbsTask):
        return MtebTask(source)
    try:
        return MtebTask(mteb.get_task(str(source)))
    except (KeyError, ValueError) as error:
        raise InputError(
            f"{str(source)!r} is neither a file or folder nor an MTEB task. Known layouts of files: "
            f"{'; '.join(LAYOUTS)}"
        ) from error


def require_module(encoder: Any) -> Any:
    model = getattr(encoder, "model", None)
    if model is None:
        raise InputError(
            f"{encoder.name!r} is not a SentenceTransformer, which MTEB tasks need: load the model as one"
        )
    return model


def evaluate(model: Any, task: MtebTask) -> float:
    import mteb

    options: Any = {"batch_size": 32, "show_progress_bar": False}
    result = mteb.evaluate(
        model, task.task, cache=None, co2_tracker=False, show_progress_bar=False, encode_kwargs=options
    )
    score = float(result.task_results[0].get_score())
    return score if math.isfinite(score) else math.nan


def load_data(task: MtebTask) -> None:
    from datasets.exceptions import DatasetsError

    if task.task.data_loaded:
        return
    try:
        task.task.load_data()
    except (OSError, ValueError, RuntimeError, LookupError, ImportError, DatasetsError) as error:
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise UnreachableTaskError(
            f"the data of {task.name} cannot be loaded, which needs the network or a cached copy: {reason}"
        ) from error
