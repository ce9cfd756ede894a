"""Scores of tasks from files and of MTEB: token prepending and the plain prompt."""

import json

import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.metrics import v_measure_score

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


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_decoders.saved_decoder(tmp_path_factory.mktemp("qwen2") / "tiny-qwen2")


@pytest.fixture(scope="module")
def encoders(folder):
    return [load_prompted(folder, device="cpu", prompt="prompteol", **options) for options in READINGS]


def test_a_task_is_scored_with_and_without_token_prepending(folder, encoders, tmp_path):
    path = files.clustering(tmp_path)
    found = planted.document(planted.command("evaluate", folder, "--task", path, *OPTIONS, "-f", "json"))
    assert found["kind"] == "clustering"
    rows = [(row["encoding"], row["start"], row["exit"], row["layer"]) for row in found["scores"]]
    assert rows == [
        ("plain prompt", None, None, 4),
        ("plain prompt", None, None, 3),
        ("token prepending", 1, 3, 3),
    ]
    texts = [json.loads(line) for line in path.read_text().splitlines()]
    labels = [row["label"] for row in texts]
    for encoder, row in zip(encoders, found["scores"], strict=True):
        vectors = encoder.encode([row["text"] for row in texts]).astype(np.float64)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        clusters = KMeans(len(set(labels)), n_init=10, random_state=42).fit_predict(vectors)
        assert row["scores"]["v_measure"] == pytest.approx(100 * v_measure_score(labels, clusters), abs=1e-4)
    table = planted.command("evaluate", folder, "--task", path, *OPTIONS)
    assert all(metric in table.stdout for metric in found["scores"][0]["scores"])


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
    with pytest.raises(InputError, match="is a clustering task: pass pairs"):
        read_similarity(files.clustering(tmp_path))
    planted.refused("tune", folder, "--task", "none.jsonl", "--device", "cpu", saying="no task file")


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (("--prompt", "prompteol"), "layer: 4 of 4 (default: the last layer)"),
        (("--prompt", "ke", "--contrast"), "contrast: layer 0, counted from 0, rule scaled, strength 0.5"),
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
