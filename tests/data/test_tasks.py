"""Task files: known layouts, bad input, and metrics against reference libraries."""

import json

import numpy as np
import polars as pl
import pytest
from scipy.stats import pearsonr, spearmanr
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, f1_score, ndcg_score
from sklearn.model_selection import StratifiedKFold, cross_val_predict

import task_files as files
from naming import naming, says
from stickytoken.data import metrics
from stickytoken.data.tasks import LAYOUTS, load_task
from stickytoken.errors import InputError
from stickytoken.evaluation import read_similarity
from stickytoken.unit_vectors import exact_unit_vectors

BUILDERS = {
    "sts": files.sts,
    "classification": files.classification,
    "retrieval": lambda folder: files.beir(folder / "beir"),
}


def outcomes_of(task):
    """Random unit vectors of the task's texts by role, and what it makes of vectors of other lengths."""
    generator = np.random.default_rng(0)
    vectors = {role: generator.normal(size=(len(texts), 8)) for role, texts in task.texts.items()}
    units = {role: rows / np.linalg.norm(rows, axis=1, keepdims=True) for role, rows in vectors.items()}
    return units, task.outcomes({role: rows.astype(np.float32) for role, rows in vectors.items()}, 0)


@pytest.mark.parametrize("layout", BUILDERS)
def test_a_file_is_recognised_by_its_columns(tmp_path, layout):
    task, notes = load_task(BUILDERS[layout](tmp_path))
    assert (task.layout, notes) == (layout, [])
    vectors, outcomes = outcomes_of(task)
    assert outcomes.shape == (task.units, len(task.metrics) if layout == "retrieval" else 1)
    assert set(vectors) == set(task.texts)


def test_other_formats_give_the_same_task_and_other_content_another(tmp_path):
    path = files.sts(tmp_path)
    other = tmp_path / "sts.csv"
    frame = pl.read_ndjson(path)
    frame.write_csv(other)
    assert load_task(other)[0].fingerprint == load_task(path)[0].fingerprint
    frame.with_columns(pl.col("score").reverse()).write_csv(other)
    assert load_task(other)[0].fingerprint != load_task(path)[0].fingerprint


@pytest.mark.parametrize("dev", ["dev", "validation"])
def test_only_the_pairs_of_one_split_are_scored(tmp_path, dev):
    rows = []
    for name, offset in (("train", 0), (dev, 10), ("test", 20)):
        rows += [row | {"score": row["score"] + offset, "split": name} for row in pairs()]
    path = files.lines(tmp_path / "stsbenchmark.jsonl", rows)
    assert load_task(path)[0].gold == (20, 21, 22, 23)
    assert read_similarity(path).gold == (10, 11, 12, 13)
    files.lines(path, rows[:4])  # a single split is the task, whatever its name
    assert load_task(path)[0].gold == (0, 1, 2, 3)
    files.lines(path, rows[:8])
    with pytest.raises(InputError, match=naming(path, ", ".join(sorted([dev, "train"])), "test")):
        load_task(path)


def test_a_folder_with_two_splits_is_a_classification(tmp_path):
    rows = [{"text": text, "label": topic} for text, topic in files.topical_texts(40)]
    files.lines(tmp_path / "train.jsonl", rows[:30])
    files.lines(tmp_path / "test.jsonl", rows[30:])
    task, _ = load_task(tmp_path)
    assert (task.layout, task.units) == ("classification", 10)


def test_a_task_in_a_file_test_is_named_after_its_folder(tmp_path):
    path = files.sts(tmp_path).rename(tmp_path / "test.jsonl")
    assert load_task(path)[0].name == f"{tmp_path.name}-test"


def test_correlations_are_those_of_scipy(tmp_path):
    task, _ = load_task(files.sts(tmp_path))
    vectors, outcomes = outcomes_of(task)
    row_of_text = [
        {text: place for place, text in enumerate(task.texts[role])} for role in ("query", "document")
    ]
    first_vectors = vectors["query"][[row_of_text[0][text] for text in task.first]]
    right = vectors["document"][[row_of_text[1][text] for text in task.second]]
    np.testing.assert_allclose(outcomes[:, 0], (first_vectors * right).sum(1), atol=1e-6)
    conditions = np.stack([outcomes, -outcomes])
    gold = np.array(task.gold)
    for sample in (None, np.random.default_rng(0).integers(task.units, size=task.units)):
        units = slice(None) if sample is None else sample
        for metric, oracle in (("spearman", spearmanr), ("pearson", pearsonr)):
            expected = oracle(gold[units], outcomes[units, 0]).statistic
            np.testing.assert_allclose(
                task.scores(metric, conditions, sample), [expected, -expected], atol=1e-12
            )
    conditions[0] = 0.3  # a constant side has no correlation
    assert np.isnan(task.scores("spearman", conditions)).tolist() == [True, False]


def test_retrieval_is_what_sklearn_says(tmp_path):
    task, _ = load_task(files.beir(tmp_path / "beir"))
    vectors, outcomes = outcomes_of(task)
    similarities = vectors["query"] @ vectors["document"].T
    gains = np.array(
        [[judged.get(document, 0) for document in task.documents] for judged in task.relevant.values()]
    )
    assert list(task.relevant) == list(task.queries)
    sample = np.array([0, 0, 3])
    expected = ndcg_score(gains[sample], similarities[sample], k=10)
    np.testing.assert_allclose(task.scores("ndcg_at_10", outcomes[None], sample), expected)
    rows = list(zip(gains > 0, similarities, strict=True))
    precision = [average_precision_score(gold, row) for gold, row in rows]
    np.testing.assert_allclose(outcomes[:, task.metrics.index("map")], precision)
    ranks = [(row > row[gold].max()).sum() + 1 for gold, row in rows]
    np.testing.assert_allclose(outcomes[:, task.metrics.index("mrr")], 1 / np.array(ranks))


def test_classes_are_what_sklearn_says(tmp_path):
    task, _ = load_task(files.classification(tmp_path))
    vectors, outcomes = outcomes_of(task)
    model = LogisticRegression(max_iter=1000).fit(vectors["train"], list(task.train_labels))
    predicted = model.predict(vectors["test"])
    accuracy = np.mean(predicted == np.array(task.test_labels))
    macro = f1_score(task.test_labels, predicted, average="macro", zero_division=0.0)
    for metric, expected in (("accuracy", accuracy), ("macro_f1", macro)):
        np.testing.assert_allclose(task.scores(metric, outcomes[None]), [expected])


def by_folds(folder, texts=60):
    rows = [{"text": text, "label": label, "split": "folds"} for text, label in files.topical_texts(texts)]
    return files.lines(folder / "folds.jsonl", rows)


def pair_transfer(folder):
    texts = [text for text, _ in files.topical_texts(60)]
    rows = [
        {"sentence1": text, "sentence2": other, "label": len(text) % 2, "split": split}
        for split, offset in (("train", 1), ("test", 7))
        for text, other in zip(texts, texts[offset:], strict=False)
    ]
    return files.lines(folder / "transfer.jsonl", rows)


def test_ten_folds_are_predicted_as_sklearn_predicts_them(tmp_path):
    task, _ = load_task(by_folds(tmp_path))
    assert (task.layout, task.units) == ("classification-by-folds", 60)
    vectors, outcomes = outcomes_of(task)
    vectors["test"] = vectors["train"]
    outcomes = task.outcomes(vectors, 0)
    folds = StratifiedKFold(10, shuffle=True, random_state=0)
    model = LogisticRegression(max_iter=1000, random_state=0)
    expected = cross_val_predict(model, exact_unit_vectors(vectors["train"]), task.test_labels, cv=folds)
    accuracy = np.mean(expected == np.array(task.test_labels))
    assert task.scores("accuracy", outcomes[None])[0] == pytest.approx(accuracy)
    with pytest.raises(InputError, match=naming(10)):
        load_task(by_folds(tmp_path, 12))


def test_pairs_are_classified_by_the_features_of_senteval(tmp_path):
    task, _ = load_task(pair_transfer(tmp_path))
    assert (task.layout, task.unit, task.units) == ("pair-transfer", "pairs", 53)
    vectors, outcomes = outcomes_of(task)
    train, second, query, document = (
        exact_unit_vectors(vectors[role]) for role in ("train", "train_second", "query", "document")
    )
    model = LogisticRegression(max_iter=1000, random_state=0)
    model.fit(np.hstack([abs(train - second), train * second]), task.train_labels)
    predicted = model.predict(np.hstack([abs(query - document), query * document]))
    accuracy = np.mean(predicted == np.array(task.test_labels))
    assert task.scores("accuracy", outcomes[None])[0] == pytest.approx(accuracy)


def test_scores_of_many_conditions_and_of_a_sample_are_those_of_sklearn(tmp_path):
    task, _ = load_task(files.classification(tmp_path))
    names = sorted(set(task.test_labels))
    gold = np.array([names.index(label) for label in task.test_labels])
    generator = np.random.default_rng(0)
    predicted = generator.integers(len(names), size=(6, task.units))
    predicted[0], predicted[1] = gold, 0
    sample = generator.integers(task.units, size=task.units)
    for units in (None, sample):
        scores = task.scores("macro_f1", predicted[:, :, None].astype(float), units)
        chosen = slice(None) if units is None else units
        expected = [
            f1_score(gold[chosen], row[chosen], average="macro", zero_division=0.0) for row in predicted
        ]
        np.testing.assert_allclose(scores, expected, atol=1e-12)


def pairs(**changes):
    rows = [{"sentence1": f"a {k}", "sentence2": f"b {k}", "score": float(k)} for k in range(4)]
    rows[1] |= changes
    return rows


def split(*labels):
    splits = zip(("train", "test"), labels, strict=True)
    return [
        {"text": "a", "label": label, "split": name}
        for name, split_labels in splits
        for label in split_labels
    ]


@pytest.mark.parametrize(
    ("rows", "values"),
    [
        ([{"question": "a", "answer": "b"}], ["question", "answer"]),
        (pairs(score=None), ["score", "row 2", None]),
        (pairs(sentence1=" "), ["sentence1", "row 2"]),
        (pairs()[:2], [3]),
        ([row | {"score": 1.0} for row in pairs()], ["scores"]),
        ([{"sentence1": "a", "sentence2": "b", "label": 1}] * 3, ["label"]),
        ([{"text": "a", "label": "x"}] * 3, ["text, label"]),
        (split("xxx", "x"), ["'x'"]),
        (split("xxy", "x"), ["'y'"]),
        (split(["x", None], "x"), ["label", "row 2"]),
        ([{"text": "a", "label": "x", "split": "train"}] * 2, ["'test'"]),
        ([{"text": "a", "label": "x", "split": "first"}] * 2, ["'first'"]),
        (split("xxyyz", "x"), ["'z'"]),
        (split("xxyy", "w"), ["'w'"]),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(tmp_path, rows, values):
    path = files.lines(tmp_path / "task.jsonl", rows)
    with pytest.raises(InputError, match=naming(path, *values)):
        load_task(path)


def test_a_file_without_rows_and_other_files_are_refused_with_the_known_layouts(tmp_path, write):
    for rows, values in (("", ()), ("a,b,1\nc,d,NaN\ne,f,3\n", ["score", "row 2", "'NaN'"])):
        with pytest.raises(InputError, match=naming(tmp_path / "task.csv", *values)):
            load_task(write("task.csv", f"sentence1,sentence2,score\n{rows}"))
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "folder", write("notes.md", "x")):
        with pytest.raises(InputError) as caught:
            load_task(path)
        assert all(layout in str(caught.value) for layout in LAYOUTS)


def edit(path, function):
    files.lines(path, function([json.loads(line) for line in path.read_text("utf-8").splitlines()]))


@pytest.mark.parametrize(
    ("file", "change", "values"),
    [
        ("corpus.jsonl", lambda rows: [*rows, rows[0]], ["_id", "'d0'", "row 61"]),
        ("corpus.jsonl", lambda rows: [{"_id": "x", "text": "a"}], ["corpus.jsonl"]),
        ("queries.jsonl", lambda rows: [{"_id": "x", "text": "a"}], ["'q0'", "queries.jsonl"]),
        ("queries.jsonl", lambda rows: [rows[0] | {"text": ""}, *rows[1:]], ["'q0'"]),
        ("corpus.jsonl", lambda rows: [{"id": "x"}], ["'_id'"]),
        ("qrels/test.tsv", "q0\td0\t1\nq0\td0\t2", ["'d0'", "'q0'", "row 2"]),
        ("qrels/test.tsv", "q0\td0\t0", ["test.tsv"]),
        ("qrels/test.tsv", "q0\td0\t0.5", [0.5]),
    ],
)
def test_a_beir_folder_that_is_wrong_is_refused(tmp_path, file, change, values):
    folder = files.beir(tmp_path / "beir")
    if isinstance(change, str):
        (folder / file).write_text(f"query-id\tcorpus-id\tscore\n{change}\n")
    else:
        edit(folder / file, change)
    with pytest.raises(InputError, match=naming(*values)):
        load_task(folder)


def test_a_beir_folder_may_be_compressed(tmp_path):
    folder = files.beir(tmp_path / "beir")
    expected = load_task(folder)
    for name in ("corpus.jsonl", "queries.jsonl", "qrels/test.tsv"):
        files.compress(folder / name)
    assert load_task(folder) == expected


@pytest.mark.parametrize("content", ["", "\ufeff", "\u2003\n"], ids=["nothing", "byte order mark", "spaces"])
def test_empty_judgements_are_refused(tmp_path, content):
    folder = files.beir(tmp_path / "beir")
    path = folder / "qrels" / "test.tsv"
    path.write_text(content, "utf-8")
    with pytest.raises(InputError, match=naming(path, "is empty")):
        load_task(folder)


def test_queries_without_relevant_documents_are_left_out_and_counted(tmp_path):
    folder = files.beir(tmp_path / "beir")
    edit(folder / "queries.jsonl", lambda rows: [*rows, {"_id": "lonely", "text": "a bird"}])
    path = folder / "qrels" / "test.tsv"
    path.write_text(path.read_text() + "lonely\td5\t0\n")
    task, notes = load_task(folder)
    assert (task.name, task.units) == ("beir", 20)
    (note,) = notes
    assert says(note, "beir", "1 of 21 queries")


def small_beir(folder, queries, documents, qrels):
    """Write a folder in the layout of BEIR; return its task and notes."""
    (folder / "qrels").mkdir(parents=True)
    files.lines(folder / "corpus.jsonl", [{"_id": name, "text": text} for name, text in documents.items()])
    files.lines(folder / "queries.jsonl", [{"_id": name, "text": text} for name, text in queries.items()])
    (folder / "qrels" / "test.tsv").write_text(qrels)
    return load_task(folder)


HEADER = "query-id\tcorpus-id\tscore\n"
QUERIES = {"q0": "cold river", "q1": "old house"}
DOCUMENTS = {"d0": "the river is cold", "d1": "a house of stone", "d2": "winter music"}


def test_a_judged_document_that_is_missing_counts_as_not_found(tmp_path):
    qrels = f"{HEADER}q0\td0\t1\nq0\tgone\t1\nq1\td1\t1\n"
    task, notes = small_beir(tmp_path / "mini", QUERIES, DOCUMENTS, qrels)
    (note,) = notes
    assert says(note, "mini", "1 of 3 judgements", "corpus.jsonl", "'gone'")
    units = np.eye(3, dtype=np.float32)
    outcomes = task.outcomes({"query": units[:2], "document": units}, 0)
    assert outcomes[:, task.metrics.index("recall_at_100")].tolist() == [0.5, 1.0]


def test_judgements_of_a_missing_query_are_left_out_and_counted(tmp_path):
    qrels = f"{HEADER}q0\td0\t1\nq1\td1\t1\nq9\td1\t1\nq9\td2\t1\n"
    task, notes = small_beir(tmp_path / "mini", QUERIES, DOCUMENTS, qrels)
    assert list(task.queries) == ["q0", "q1"]
    (note,) = notes
    assert says(note, "mini", "2 of 4 judgements", "queries.jsonl", "'q9'")


def test_a_repeated_judgement_counts_once(tmp_path):
    qrels = f"{HEADER}q0\td0\t1\nq1\td1\t1\nq0\td0\t1\n"
    task, notes = small_beir(tmp_path / "mini", QUERIES, DOCUMENTS, qrels)
    assert task.relevant == {"q0": {"d0": 1}, "q1": {"d1": 1}}
    (note,) = notes
    assert says(note, "mini", "1 of 3 judgements")


@pytest.mark.parametrize(
    "qrels", ["q0 0 d0 1\nq1 0 d1 1\n", "q0\t0\td0\t1\nq1\tQ0\td1\t1\n", "q0\td0\t1\nq1\td1\t1\n"]
)
def test_judgements_may_have_no_header_as_in_trec(tmp_path, qrels):
    task, notes = small_beir(tmp_path / "mini", QUERIES, DOCUMENTS, qrels)
    assert task.relevant == {"q0": {"d0": 1}, "q1": {"d1": 1}}
    assert notes == []


def test_a_query_that_is_a_document_is_not_ranked_for_itself(tmp_path):
    documents = {f"a{number}": f"argument {number}" for number in range(6)}
    queries = {f"a{number}": f"Argument  {number}" for number in range(3)}
    qrels = HEADER + "".join(f"a{number}\ta{number + 3}\t1\n" for number in range(3))
    task, notes = small_beir(tmp_path / "mini", queries, documents, qrels)
    assert task.unranked == ("a0", "a1", "a2")
    (note,) = notes
    assert says(note, "mini", "3 of 3 queries")
    vectors = exact_unit_vectors(np.random.default_rng(0).normal(size=(6, 4))).astype(np.float32)
    similarities = vectors[:3] @ vectors.T
    gains = np.zeros((3, 6))
    gains[np.arange(3), np.arange(3) + 3] = 1
    others = ~np.eye(3, 6, dtype=bool)
    expected = [
        ndcg_score(gains[[row]][:, others[row]], similarities[[row]][:, others[row]], k=10)
        for row in range(3)
    ]
    outcomes = task.outcomes({"query": vectors[:3], "document": vectors}, 0)
    np.testing.assert_allclose(outcomes[:, task.metrics.index("ndcg_at_10")], expected)


def test_a_document_that_answers_the_query_of_its_id_is_ranked(tmp_path):
    queries = {"0": "cold river", "1": "old house"}
    documents = {"0": "the river is cold", "1": "a house of stone", "2": "winter music"}
    task, notes = small_beir(tmp_path / "mini", queries, documents, f"{HEADER}0\t0\t1\n1\t1\t1\n")
    assert (task.unranked, notes) == ((), [])


def test_one_id_in_common_does_not_mean_one_numbering(tmp_path):
    queries = {"d0": "winter", "q1": "old house"}
    task, _ = small_beir(tmp_path / "mini", queries, DOCUMENTS, f"{HEADER}d0\td2\t1\nq1\td1\t1\n")
    assert task.unranked == ()


def test_queries_and_documents_may_be_numbered_independently(tmp_path):
    """If all ids of queries are ids of documents, too, only the texts say whether they are the same."""
    queries = {"0": "winter song", "1": "old house", "2": "cold river"}
    documents = {"0": "a song of summer", "1": "the house of stone", "2": "a cold river in May", "3": "music"}
    qrels = f"{HEADER}0\t3\t1\n1\t3\t1\n2\t3\t1\n"
    task, notes = small_beir(tmp_path / "mini", queries, documents, qrels)
    assert (task.unranked, notes) == ((), [])


def test_queries_are_documents_even_if_a_few_texts_differ(tmp_path):
    """MTEB removes the document of the same id from all results of ArguAna and Quora."""
    queries = {"0": "winter song", "1": "old house", "2": "cold rivers"}
    documents = {"0": "Music: winter song", "1": "Old house", "2": "cold river", "3": "music"}
    qrels = f"{HEADER}0\t3\t1\n1\t3\t1\n2\t3\t1\n"
    task, _ = small_beir(tmp_path / "mini", queries, documents, qrels)
    assert task.unranked == ("0", "1", "2")


def test_the_fingerprint_of_a_task_without_such_queries_is_that_of_earlier_versions(tmp_path):
    task, _ = small_beir(tmp_path / "mini", QUERIES, DOCUMENTS, f"{HEADER}q0\td0\t1\nq1\td1\t1\n")
    assert task.fingerprint == metrics.fingerprint("retrieval", task.queries, task.documents, task.relevant)
