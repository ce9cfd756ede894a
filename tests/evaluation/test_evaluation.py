"""Scores of tasks of every layout and of MTEB: token prepending and the plain prompt."""

import json

import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, ndcg_score, v_measure_score

import impact_files as files
import planted
import tiny
import tiny_decoders
from prompted_loading import load_prompted
from stickytoken.data.tasks import find_task
from stickytoken.errors import InputError
from stickytoken.evaluation import compare, read_similarity

pytestmark = pytest.mark.slow

OPTIONS = "--prompt prompteol --token-prepending --set start=1 --set exit=3 --set layer=-2".split()
READINGS = (
    {"layer": -1},
    {"layer": 3},
    {"layer": 3, "token_prepending": True, "start": 1, "exit": 3},
)
MAKERS = {
    "sts": files.sts,
    "pair-classification": files.pair_classification,
    "clustering": files.clustering,
    "classification": files.classification,
    "retrieval": lambda folder: files.beir(folder / "beir"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_decoders.saved_decoder(tmp_path_factory.mktemp("qwen2") / "tiny-qwen2")


@pytest.fixture(scope="module")
def encoders(folder):
    return [load_prompted(folder, device="cpu", prompt="prompteol", **options) for options in READINGS]


def rows_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def units(encoder, texts):
    vectors = encoder.encode(texts).astype(np.float64)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


# Reference scores of each layout, computed with scikit-learn only.


def pair_score(encoder, path):
    rows = rows_of(path)
    first, second = (units(encoder, [row[side] for row in rows]) for side in ("sentence1", "sentence2"))
    return average_precision_score([row["label"] for row in rows], (first * second).sum(1))


def clustering_score(encoder, path):
    rows = rows_of(path)
    labels = [row["label"] for row in rows]
    model = KMeans(len(set(labels)), n_init=10, random_state=42)
    return v_measure_score(labels, model.fit_predict(units(encoder, [row["text"] for row in rows])))


def classification_score(encoder, path):
    rows = rows_of(path)
    train, test = ([row for row in rows if row["split"] == split] for split in ("train", "test"))
    model = LogisticRegression(max_iter=1000, random_state=42)
    model.fit(units(encoder, [row["text"] for row in train]), [row["label"] for row in train])
    return model.score(units(encoder, [row["text"] for row in test]), [row["label"] for row in test])


def retrieval_score(encoder, path):
    documents, queries = rows_of(path / "corpus.jsonl"), rows_of(path / "queries.jsonl")
    first, second = (units(encoder, [row["text"] for row in rows]) for rows in (queries, documents))
    scores = first @ second.T
    relevance = np.zeros_like(scores)
    for line in (path / "qrels" / "test.tsv").read_text().splitlines()[1:]:
        query, document, score = line.split("\t")
        relevance[int(query[1:]), int(document[1:])] = int(score)
    return ndcg_score(relevance, scores, k=10)


ORACLES = {
    "pair-classification": pair_score,
    "clustering": clustering_score,
    "classification": classification_score,
    "retrieval": retrieval_score,
}


def test_a_task_is_scored_with_and_without_token_prepending(folder, tmp_path):
    path = files.clustering(tmp_path)
    found = planted.document(planted.command("evaluate", folder, "--task", path, *OPTIONS, "-f", "json"))
    assert found["kind"] == "clustering"
    rows = [(row["encoding"], row["start"], row["exit"], row["layer"]) for row in found["scores"]]
    assert rows == [
        ("plain prompt", None, None, 4),
        ("plain prompt", None, None, 3),
        ("token prepending", 1, 3, 3),
    ]
    assert len({tuple(row["scores"]) for row in found["scores"]}) == 1
    table = planted.command("evaluate", folder, "--task", path, *OPTIONS)
    assert all(metric in table.stdout for metric in found["scores"][0]["scores"])


@pytest.mark.parametrize("layout", ORACLES)
def test_scores_are_those_of_scikit_learn(encoders, layout, tmp_path):
    path = MAKERS[layout](tmp_path)
    task, _ = find_task(path)
    for encoder, row in zip(encoders, compare(encoders[-1], task).scores, strict=True):
        expected = 100 * ORACLES[layout](encoder, path)
        # Trec's gain is the score itself, as scikit-learn's.
        assert row.scores[task.metrics[0]] == pytest.approx(expected, abs=1e-4)


def test_texts_beyond_the_context_are_cut_alike_and_counted(folder, write):
    encoder = load_prompted(folder, device="cpu", prompt="prompteol", max_length=90, **READINGS[-1])
    long = "the river sings " * 30
    rows = [
        {"sentence1": first, "sentence2": f"{long}{place}", "score": place}
        for place, first in enumerate(tiny.sentences(6))
    ]
    task, _ = find_task(write("long.jsonl", "\n".join(map(json.dumps, rows))))
    found = compare(encoder, task)
    assert found.cut == 6
    assert len(found.scores) == 3
    # After truncation, all pairs have the same second sentence.
    assert found.scores[0].scores["spearman"] is not None


def test_a_metric_that_is_not_defined_is_null(encoders, write):
    rows = [{"sentence1": "a bird", "sentence2": "a bird", "score": place} for place in range(4)]
    task, _ = find_task(write("alike.jsonl", "\n".join(map(json.dumps, rows))))
    undefined = {"spearman": None, "pearson": None}
    assert [row.scores for row in compare(encoders[-1], task).scores] == [undefined] * 3


@pytest.mark.filterwarnings("ignore")
def test_a_task_of_mteb_is_scored_as_mteb_scores_the_saved_model(encoders, tmp_path, monkeypatch):
    mteb = pytest.importorskip("mteb")
    from mteb import mocks
    from sentence_transformers import SentenceTransformer

    monkeypatch.setattr(mteb, "get_task", lambda name: mocks.MockRetrievalTask())
    task, notes = find_task("MockRetrievalTask")
    assert notes == []
    for place, (encoder, row) in enumerate(zip(encoders, compare(encoders[-1], task).scores, strict=True)):
        saved = str(tmp_path / str(place))
        encoder.sentence_transformer().save(saved, create_model_card=False)
        model = SentenceTransformer(saved, device="cpu", trust_remote_code=True)
        kind = mocks.MockRetrievalTask()
        result = mteb.evaluate(model, kind, cache=None, co2_tracker=False, show_progress_bar=False)
        expected = 100 * result.task_results[0].get_score()
        assert row.scores == {"main_score": pytest.approx(expected, abs=1e-4)}


def test_tuning_takes_pairs_with_scores_alone(folder, tmp_path):
    path = files.clustering(tmp_path)
    with pytest.raises(InputError, match="is a clustering task: pass pairs"):
        read_similarity(path)
    for source, reason in (
        (path, "is a clustering task"),
        (tmp_path / "none.jsonl", "no task file"),
        ("NoSuchTaskAnywhere", "no task file"),
    ):
        planted.refused("tune", folder, "--task", source, "--device", "cpu", saying=reason)
    planted.refused(
        "evaluate", folder, "--task", "no/such", "--device", "cpu", saying="no task file or folder"
    )


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (("--prompt", "prompteol"), "layer: 4 of 4 (default: the last layer)"),
        (
            ("--prompt", "ke", "--contrast", "--set", "layer=2"),
            "contrast: layer 0, counted from 0, rule scaled, strength 0.5",
        ),
        (None, "layer: 2 of 4 (saved with the model)"),
    ],
)
def test_embed_tells_which_layer_it_reads_and_who_chose_it(folder, tmp_path, options, line):
    (tmp_path / "texts.txt").write_text("A man repairs a bicycle\n")
    where = ("--input", tmp_path / "texts.txt", "--out", tmp_path / "vectors.parquet", "--device", "cpu")
    if options is None:
        encoder = load_prompted(folder, device="cpu", prompt="prompteol", layer=2)
        folder, options = tmp_path / "saved", ()
        encoder.sentence_transformer().save(str(folder))
    found = planted.command("embed", folder, *options, *where)
    assert line in found.stderr.splitlines()
    assert line not in found.stdout
