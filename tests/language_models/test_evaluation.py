"""Embeddings and scores of language models, their tuning, and the commands embed, evaluate and tune."""

import json
import re
import tempfile
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings, strategies as st
from scipy.stats import spearmanr
from sentence_transformers import SentenceTransformer
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import normalize

import planted
import task_files as files
import tiny
import tiny_architectures
import tiny_decoders
from naming import naming, says
from prompted_loading import load_prompted
from stickytoken import load_encoder
from stickytoken.cli.commands.language_models import _collect_notes, _print_tuning
from stickytoken.data.tasks import find_task
from stickytoken.encoders.scoring import truncate_texts
from stickytoken.errors import InputError
from stickytoken.evaluation import (
    Comparison,
    Difference,
    compare,
    embed_file,
    guess_note,
    read_similarity,
    read_text_file,
    tune,
)
from stickytoken.language_models.reading import TokenPrepending
from stickytoken.unit_vectors import unit_vectors

PROMPTED = {"device": "cpu", "prompt": "prompteol"}
SPAN = {"token_prepending": True, "start": 1, "exit": 3}
READINGS = ({"layer": -1}, {"layer": 3}, {"layer": 3, **SPAN})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_decoders.saved_decoder(tmp_path_factory.mktemp("qwen2") / "tiny-qwen2")


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    return files.sts(tmp_path_factory.mktemp("task"), 12)


@pytest.fixture(scope="module")
def encoders(folder):
    return [load_prompted(folder, **PROMPTED, **options) for options in READINGS]


@pytest.mark.slow
def test_classes_are_scored_as_sklearn_scores_them(encoders, tmp_path):
    path = files.classification(tmp_path)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    train, test = ([row for row in rows if row["split"] == split] for split in ("train", "test"))
    comparison = compare(encoders[-1], find_task(path)[0])
    for encoder, row in zip(encoders, comparison.scores, strict=True):
        features = normalize(encoder.encode([row["text"] for row in rows]).astype(np.float64))
        model = LogisticRegression(max_iter=1000, random_state=42)
        model.fit(features[: len(train)], [row["label"] for row in train])
        accuracy = model.score(features[len(train) :], [row["label"] for row in test])
        assert row.scores["accuracy"] == pytest.approx(100 * accuracy, abs=1e-4)
    with pytest.raises(InputError, match=naming(path, "classification")):
        read_similarity(path)


@pytest.mark.slow
def test_texts_beyond_the_context_are_cut_alike_and_counted(folder, write):
    encoder = load_prompted(folder, **PROMPTED, max_length=90, **READINGS[-1])
    long = "the river sings " * 30
    rows = [
        {"sentence1": first, "sentence2": f"{long}{index}", "score": index}
        for index, first in enumerate(tiny.sentences(6))
    ]
    task, _ = find_task(write("long.jsonl", "\n".join(map(json.dumps, rows))))
    comparison = compare(encoder, task)
    assert comparison.cut == 6
    # After truncation, all pairs have the same second sentence.
    assert comparison.scores[0].scores["spearman"] is not None


def test_a_text_that_occurs_twice_is_cut_and_counted_once(encoder, write):
    long = "the river sings " * 60
    rows = [
        {"text": text, "label": number % 2, "split": "folds"}
        for number, text in enumerate([*tiny.sentences(39), long])
    ]
    folds, _ = find_task(write("folds.jsonl", "\n".join(map(json.dumps, rows))))
    assert folds.layout == "classification-by-folds"
    rows = [
        {"sentence1": long, "sentence2": second, "score": score}
        for score, second in enumerate(["a bird", "a river", long])
    ]
    pairs, _ = find_task(write("pairs.jsonl", "\n".join(map(json.dumps, rows))))
    assert [truncate_texts(encoder, task)[1] for task in (folds, pairs)] == [1, 1]


@pytest.mark.slow
def test_a_metric_that_is_not_defined_is_null(encoders, write):
    rows = [{"sentence1": "a bird", "sentence2": "a bird", "score": score} for score in range(4)]
    task, _ = find_task(write("alike.jsonl", "\n".join(map(json.dumps, rows))))
    undefined = {"spearman": None, "pearson": None}
    assert [row.scores for row in compare(encoders[-1], task).scores] == [undefined] * 3


def test_a_mistyped_task_file_names_the_closest(tmp_path):
    (tmp_path / "stsb-dev.jsonl").touch()
    with pytest.raises(InputError, match=naming("stsb-deev.jsonl", "stsb-dev.jsonl")):
        find_task(tmp_path / "stsb-deev.jsonl")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_mistyped_task_of_mteb_names_the_closest():
    pytest.importorskip("mteb")
    with pytest.raises(InputError, match=naming("STSBenchmrk", "STSBenchmark")):
        find_task("STSBenchmrk")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_task_of_mteb_is_scored_as_mteb_scores_the_saved_model(encoders, tmp_path, monkeypatch):
    mteb = pytest.importorskip("mteb")
    from mteb import mocks
    from sentence_transformers import SentenceTransformer

    monkeypatch.setattr(mteb, "get_task", lambda name, languages=None: mocks.MockRetrievalTask())
    task, notes = find_task("MockRetrievalTask")
    assert notes == []
    for index, (encoder, row) in enumerate(zip(encoders, compare(encoders[-1], task).scores, strict=True)):
        saved = str(tmp_path / str(index))
        encoder.sentence_transformer().save(saved, create_model_card=False)
        model = SentenceTransformer(saved, device="cpu", trust_remote_code=True)
        kind = mocks.MockRetrievalTask()
        result = mteb.evaluate(model, kind, cache=None, co2_tracker=False, show_progress_bar=False)
        expected = 100 * result.task_results[0].get_score()
        assert row.scores == {"main_score": pytest.approx(expected, abs=1e-4)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "line"),
    [
        (("--prompt", "prompteol"), "layer: 4 of 4 (default: the last layer)"),
        (None, "layer: 2 of 4 (saved with the model)"),
    ],
)
def test_embed_tells_which_layer_it_reads_and_who_chose_it(folder, tmp_path, options, line):
    (tmp_path / "texts.txt").write_text("A man repairs a bicycle\n")
    where = ("--input", tmp_path / "texts.txt", "--out", tmp_path / "vectors.parquet", "--device", "cpu")
    if options is None:
        encoder = load_prompted(folder, **PROMPTED, layer=2)
        folder = tmp_path / "saved"
        options = ()
        encoder.sentence_transformer().save(str(folder))
    printed = planted.command("embed", folder, *options, *where)
    assert line in printed.stderr.splitlines()
    assert line not in printed.stdout


@pytest.mark.slow
def test_every_command_that_loads_a_prompted_model_tells_its_layer(folder, tmp_path):
    line = "layer: 4 of 4 (default: the last layer)"
    sentences = tmp_path / "sentences.txt"
    sentences.write_text("\n".join(tiny.sentences(60)))
    options = ("--sentences", sentences, "--prompt", "prompteol", "--device", "cpu")
    printed = planted.command("probe", folder, "river", *options, *planted.PROBE_OPTIONS)
    assert printed.stderr.splitlines().count(line) == 1, printed.stderr
    run = tmp_path / "run"
    options = (*options, *planted.SMALL_OPTIONS)
    printed = planted.command("detect", folder, *options, "--sample", 9, "--out", run)
    assert printed.stderr.splitlines().count(line) == 1, printed.stderr
    # The run records which layer that is, and that nobody chose it.
    printed = planted.command("explain", run, "river", "--device", "cpu")
    assert printed.stderr.splitlines().count(line) == 1, printed.stderr


def document(*arguments):
    return planted.document(planted.command(*arguments, "--device", "cpu", "--format", "json"))


def plain_score(encoder, task):
    calls = []
    for first, second in zip(task.first, task.second, strict=True):
        first_vector = encoder.encode([first])[0]
        right = encoder.encode([second])[0]
        calls.append(first_vector @ right / np.linalg.norm(first_vector) / np.linalg.norm(right))
    return 100 * spearmanr(calls, task.gold).statistic


@pytest.mark.slow
def test_differences_are_those_of_the_scores_and_their_intervals_contain_them(encoders, task):
    comparison = compare(encoders[-1], find_task(task)[0])
    scores = {(row.encoding, row.layer): row.scores["spearman"] for row in comparison.scores}
    compared = [(row.encoding, row.layer, row.plain_layer) for row in comparison.differences]
    assert compared == [("plain prompt", 3, 4), ("token prepending", 3, 4), ("token prepending", 3, 3)]
    for row in comparison.differences:
        expected = scores[row.encoding, row.layer] - scores["plain prompt", row.plain_layer]
        assert row.value == pytest.approx(expected)
    assert all(row.low <= row.value <= row.high for row in comparison.differences)


@pytest.mark.slow
def test_several_tasks_are_scored_and_averaged(folder, tmp_path):
    paths = [files.sts(tmp_path / name, size) for name, size in (("a", 12), ("b", 9))]
    arguments = ("--prompt", "prompteol", "--layer", "3")
    document_found = document("evaluate", folder, "--task", paths[0], "--task", paths[1], *arguments)
    scores = [[row["scores"]["spearman"] for row in one["scores"]] for one in document_found["tasks"]]
    assert document_found["mean"]["scores"] == pytest.approx(np.mean(scores, axis=0))
    alone = document("evaluate", folder, "--task", paths[1], *arguments)
    assert [row["scores"] for row in alone["scores"]] == [
        row["scores"] for row in document_found["tasks"][1]["scores"]
    ]
    (difference,) = document_found["mean"]["differences"]
    assert difference["value"] == pytest.approx(np.diff(document_found["mean"]["scores"])[0])
    assert difference["low"] <= difference["value"] <= difference["high"]


def test_a_note_on_truncated_texts_names_the_task():
    comparisons = [Comparison(cut=1), Comparison(), Comparison(cut=2)]
    first, second = _collect_notes(["STS12", "STS13", "STS14"], comparisons, None)
    assert says(first, "STS12", "1 text")
    assert says(second, "STS14", "2 texts")


def test_a_guessed_layer_that_is_worse_than_the_last_one_is_named():
    def comparison(low, high):
        return Comparison(differences=[Difference("plain prompt", 3, 4, (low + high) / 2, low, high)])

    assert says(guess_note(comparison(-4.0, -1.0)), "worse", "layer 3")
    assert guess_note(comparison(-4.0, 1.0)) is None
    assert guess_note(Comparison()) is None


@pytest.mark.slow
def test_token_prepending_stands_beside_the_plain_prompt(folder, task):
    arguments = "--prompt prompteol --layer 3 --token-prepending --set start=1 --set exit=3".split()
    document_found = document("evaluate", folder, "--task", task, *arguments)
    names = ("encoding", "start", "exit", "layer")
    assert [tuple(row[name] for name in names) for row in document_found["scores"]] == [
        ("plain prompt", None, None, 4),
        ("plain prompt", None, None, 3),
        ("token prepending", 1, 3, 3),
    ]
    assert (
        document_found["kind"],
        document_found["unit"],
        document_found["units"],
        document_found["cut"],
    ) == ("sts", "pairs", 12, 0)
    pairs = read_similarity(task)
    ways = ({"layer": -1}, {}, SPAN)
    expected = [plain_score(load_prompted(folder, **PROMPTED | {"layer": 3} | way), pairs) for way in ways]
    assert [row["scores"]["spearman"] for row in document_found["scores"]] == pytest.approx(
        expected, abs=1e-6
    )


@pytest.mark.slow
def test_tuning_tries_what_it_says_and_the_best_is_the_best(folder, task):
    pairs = read_similarity(task)
    steps = []
    encoder = load_encoder(folder, **PROMPTED)
    tuning = tune(encoder, pairs, progress=lambda done, total: steps.append((done, total)))
    spans = list(dict.fromkeys((trial.start, trial.exit) for trial in tuning.tried))
    assert spans[0] == (None, None)
    assert {(1, 2), (1, 3)} <= set(spans)
    for start, exit_layer in spans:
        layers = [trial.layer for trial in tuning.tried if (trial.start, trial.exit) == (start, exit_layer)]
        assert layers == list(range(1 if start is None else start + 1, 5))
    for trial in tuning.tried[:: len(tuning.tried) // 7]:
        span = {} if trial.start is None else SPAN | {"start": trial.start, "exit": trial.exit}
        again = load_prompted(folder, **PROMPTED, layer=trial.layer, **span)
        assert trial.spearman == pytest.approx(plain_score(again, pairs), abs=1e-6)
    assert tuning.tuned.spearman == max(trial.spearman for trial in tuning.tried if trial.start is not None)
    assert tuning.best.spearman == max(trial.spearman for trial in tuning.tried)
    assert (tuning.plain_at_tuned.start, tuning.plain_at_tuned.layer) == (None, tuning.tuned.layer)
    assert (steps[0][0], steps[-1][0]) == (0, steps[-1][1])


@pytest.mark.slow
def test_tuning_on_the_command_line_shows_the_curve_and_the_choice(folder, task):
    options = "--token-prepending --set start={start} --set exit={exit}"
    answer = document("tune", folder, "--task", task)
    tuned = answer["tuned"]
    arguments = ("--task", task, "--device", "cpu")
    printed = planted.command("tune", folder, *arguments, COLUMNS="160").stdout
    last_line = " ".join(printed[printed.index("best: ") :].split())
    assert f"{options.format(**tuned)} --layer {tuned['layer']} scores {tuned['spearman']:.2f}" in last_line
    if answer["plain"]["spearman"] >= tuned["spearman"]:
        assert last_line.startswith(f"best: the plain prompt with --layer {answer['plain']['layer']} scores")
    assert f"Token prepending on {folder}" in printed
    assert "#" * round(tuned["spearman"] / 2) in re.findall("#+", printed)


def test_the_plain_prompt_is_recommended_if_it_scores_best(encoders, tmp_path, capsys):
    plain_at_last_layer = encoders[0]
    texts = tiny.sentences(24)
    units = unit_vectors(plain_at_last_layer.encode(texts))
    rows = [
        {"sentence1": first, "sentence2": second, "score": float(cosine)}
        for first, second, cosine in zip(
            texts[:12], texts[12:], (units[:12] * units[12:]).sum(axis=1), strict=True
        )
    ]
    task = tmp_path / "own.jsonl"
    task.write_text("\n".join(map(json.dumps, rows)))
    tuning = tune(plain_at_last_layer, read_similarity(task))
    assert (tuning.best, tuning.best.is_plain, tuning.best.layer) == (tuning.plain, True, 4)
    assert tuning.best.spearman == pytest.approx(100)
    assert tuning.tuned.spearman < 100
    _print_tuning("a model", tuning)
    assert says(capsys.readouterr().out, "best", "plain", "--layer 4", "100.00")


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_prepending_that_has_no_effect_is_refused(encoders, data):
    layers = 4
    start = data.draw(st.integers(0, layers - 1), label="start")
    exit_layer = data.draw(st.integers(start + 1, layers + 2), label="exit")
    layer = data.draw(st.integers(1, layers), label="layer")
    plain = encoders[0]

    def reread(prepending, layer):
        return plain.reread(replace(plain.reading, prepending=prepending, layer=layer))

    prepending = TokenPrepending(start, exit_layer)
    if layer <= start:
        with pytest.raises(InputError, match=naming(start, layer)):
            reread(prepending, layer)
        return
    texts = tiny.sentences(3)
    prepended = reread(prepending, layer).encode(texts)
    # The same prompt with the placeholder, but without a copied state up to the layer that is read.
    if layer < layers:
        uncopied = reread(TokenPrepending(layers - 1, layers), -1).encode_layers(texts, [layer])[:, 0]
        assert np.abs(prepended - uncopied).max() > 1e-5
    assert np.abs(prepended - reread(None, layer).encode(texts)).max() > 1e-5


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ("--set start=9", naming("start", 9)),
        ("--prompt plain", naming("prompt", "'plain'", "prompteol")),
    ],
)
def test_what_cannot_be_tuned_is_one_line(folder, task, options, reason):
    planted.assert_refused("tune", folder, "--task", task, "--device", "cpu", *options.split(), saying=reason)


def test_only_a_language_model_can_be_tuned(bert_folder, task):
    arguments = ("--task", task, "--device", "cpu", "--prompt", '"{sentence}":')
    planted.assert_refused("tune", bert_folder, *arguments, saying="SentenceTransformer")


def test_rows_are_lines_of_a_text_file_with_blank_and_unreadable_lines(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_bytes(b"a\n\n\xff\xff\n\nb\n\xff\n")
    assert read_text_file(path).texts == ("a", "", None, "", "b", None)


def test_embed_writes_every_text_in_its_order(folder, tmp_path):
    texts = ["the river", "", "the river", "a\u2028b", "c\x0cd", "e\x85f", *tiny.sentences(3)]
    (tmp_path / "texts.txt").write_text("\r\n".join(texts) + "\n", newline="")
    out = tmp_path / "vectors.parquet"
    arguments = (
        "--input",
        tmp_path / "texts.txt",
        "--out",
        out,
        "--prompt",
        "prompteol",
        "--token-prepending",
    )
    assert document("embed", folder, *arguments)["texts"] == len(texts)
    frame = pl.read_parquet(out)
    assert frame["text"].to_list() == texts
    assert frame.schema["vector"] == pl.Array(pl.Float32, tiny_decoders.DIMENSION)
    encoder = load_prompted(folder, **PROMPTED, token_prepending=True)
    # `embed` forms other batches, so results differ by rounding, which is relative to the largest component.
    expected = encoder.encode(texts)
    tolerance = 1e-6 * np.abs(expected).max()
    np.testing.assert_allclose(frame["vector"].to_numpy(), expected, rtol=0, atol=tolerance)
    planted.assert_refused("embed", folder, *arguments, saying=naming(out))


def test_one_text_never_costs_the_others(bert_folder, tmp_path):
    """Too long, it is truncated as sentence-transformers does; missing, it has no vector."""
    model = SentenceTransformer(str(bert_folder), device="cpu")
    static = tiny_architectures.static_model()
    texts = ["the river", None, " ".join(["river", "stones"] * model.max_seq_length), "", "the garden"]
    whole = [text for text in texts if text is not None]
    for name, embedder in (("bert", model), ("static", static)):
        out = tmp_path / f"{name}.parquet"
        embedded = embed_file(load_encoder(embedder, device="cpu"), texts, out)
        frame = pl.read_parquet(out)
        assert frame["text"].to_list() == texts
        vectors = dict(zip(whole, embedder.encode(whole, normalize_embeddings=True), strict=True))
        for text, vector in frame.iter_rows():
            if text is None or (name == "static" and text == ""):
                assert vector is None
            else:
                unit = np.array(vector) / np.linalg.norm(vector)
                np.testing.assert_allclose(unit, vectors[text], atol=1e-5)
        assert embedded.truncated == (1 if name == "bert" else 0)
        assert embedded.without_vector == (() if name == "bert" else ("",))


@pytest.mark.parametrize(
    ("source", "output", "reason"),
    [
        ("missing.txt", "out.parquet", naming("missing.txt")),
        ("texts.txt", "out.csv", naming(".parquet")),
        ("nulls.jsonl", "out.parquet", naming("nulls.jsonl", "column")),
        ("texts.txt", "full.parquet", naming("full.parquet", "space")),
    ],
)
def test_what_embed_cannot_read_or_write_is_one_line(tmp_path, monkeypatch, source, output, reason):

    def full(**_):
        raise OSError(28, "No space left on device")

    (tmp_path / "texts.txt").write_text("a\nb\n")
    (tmp_path / "nulls.jsonl").write_text('{"text": null}\n')
    if output == "full.parquet":
        monkeypatch.setattr(tempfile, "TemporaryFile", full)
    files = ("--input", tmp_path / source, "--out", tmp_path / output)
    planted.assert_refused("embed", "no/such/model", *files, saying=reason)
    assert not (tmp_path / output).exists()
