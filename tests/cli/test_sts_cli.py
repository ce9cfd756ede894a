"""Embed, evaluate and tune on the command line, and what they rest on."""

import json
import tempfile

import numpy as np
import polars as pl
import pytest
from scipy.stats import spearmanr

import planted
import tiny
import tiny_decoders
from prompted_loading import load_prompted
from stickytoken import load_encoder
from stickytoken.errors import InputError
from stickytoken.evaluation import compare, cosines, read_similarity, tune, tune_contrast

SENTENCES = tiny.sentences(24)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_decoders.saved_decoder(tmp_path_factory.mktemp("qwen2") / "tiny-qwen2")


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    generator = np.random.default_rng(0)
    rows = [
        {"sentence1": first, "sentence2": second, "score": float(score), "genre": "x"}
        for first, second, score in zip(
            SENTENCES[:12], SENTENCES[12:], generator.integers(0, 11, 12) / 2, strict=True
        )
    ]
    path = tmp_path_factory.mktemp("task") / "sts.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def document(*arguments):
    result = planted.command(*arguments, "--format", "json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def plain_score(encoder, task):
    """With the slowest tools at hand."""
    found = []
    for first, second in zip(task.first, task.second, strict=True):
        left, right = encoder.encode([first])[0], encoder.encode([second])[0]
        found.append(left @ right / np.linalg.norm(left) / np.linalg.norm(right))
    return 100 * spearmanr(found, task.gold).statistic


@pytest.mark.slow
def test_token_prepending_stands_beside_the_plain_prompt_at_the_same_layer(folder, task):
    options = {"device": "cpu", "prompt": "prompteol"}
    span = {"token_prepending": True, "start": 1, "exit": 3}
    pairs = read_similarity(task)
    found = document(
        "evaluate",
        folder,
        "--task",
        task,
        "--device",
        "cpu",
        "--prompt",
        "prompteol",
        "--token-prepending",
        "--start",
        1,
        "--exit",
        3,
        "--layer",
        3,
    )
    rows = found["scores"]
    assert [(row["encoding"], row["start"], row["exit"], row["layer"]) for row in rows] == [
        ("plain prompt", None, None, 4),
        ("plain prompt", None, None, 3),
        ("token prepending", 1, 3, 3),
    ]
    expected = [
        plain_score(load_prompted(folder, **options, layer=-1), pairs),
        plain_score(load_prompted(folder, **options, layer=3), pairs),
        plain_score(load_prompted(folder, **options, **span, layer=3), pairs),
    ]
    assert [row["scores"]["spearman"] for row in rows] == pytest.approx(expected, abs=1e-6)
    assert len({row["scores"]["spearman"] for row in rows}) > 1
    assert (found["kind"], found["unit"], found["units"], found["cut"]) == ("sts", "pairs", 12, 0)


@pytest.mark.slow
def test_contrast_stands_beside_token_prepending_and_the_plain_prompt(folder, task):
    options = {"device": "cpu", "prompt": "prompteol", "layer": 3}
    span = {"token_prepending": True, "start": 1, "exit": 3}
    contrast = {"contrast": True, "contrast_layer": 2, "contrast_strength": 0.25}
    given = "--device cpu --prompt prompteol --layer 3 --token-prepending --start 1 --exit 3".split()
    given += "--contrast --contrast-layer 2 --contrast-strength 0.25".split()
    rows = document("evaluate", folder, "--task", task, *given)["scores"]
    settings = ("encoding", "start", "exit", "layer", "contrast_layer", "contrast_strength", "contrast_rule")
    assert [tuple(row[name] for name in settings) for row in rows] == [
        ("plain prompt", None, None, 4, None, None, None),
        ("plain prompt", None, None, 3, None, None, None),
        ("token prepending", 1, 3, 3, None, None, None),
        ("contrast", None, None, 3, 2, 0.25, "scaled"),
        ("token prepending, contrast", 1, 3, 3, 2, 0.25, "scaled"),
    ]
    pairs = read_similarity(task)
    ways = ({"layer": -1}, {}, span, contrast, span | contrast)
    expected = [plain_score(load_prompted(folder, **options | way), pairs) for way in ways]
    assert [row["scores"]["spearman"] for row in rows] == pytest.approx(expected, abs=1e-6)
    table = planted.command("evaluate", folder, "--task", task, *given, COLUMNS="200").stdout
    assert "contrast layer" in table
    assert "token prepending, contrast" in table


@pytest.mark.slow
@pytest.mark.parametrize("span", [None, {"token_prepending": True, "start": 1, "exit": 3}])
def test_tuning_contrast_keeps_token_prepending_and_finds_the_best(folder, task, span):
    pairs, options = read_similarity(task), {"device": "cpu", "prompt": "prompteol"}
    encoder = load_prompted(folder, **options, **(span or {}))
    found = tune_contrast(encoder, pairs)
    tried = [own for own in found.tried if own.contrast_layer is not None]
    settings = list(dict.fromkeys((own.contrast_layer, own.contrast_strength) for own in tried))
    assert settings[:3] == [(0, 0.5), (1, 0.5), (2, 0.5)]
    assert {strength for layer, strength in settings[3:]} == {0.25, 1.0, 2.0}
    assert {layer for layer, _ in settings[3:]} == {
        max(tried[:9], key=lambda own: own.spearman).contrast_layer
    }
    assert all(own.layer > own.contrast_layer for own in tried)
    assert {own.start for own in tried} == {None if span is None else 1}
    assert found.best == max(tried, key=lambda own: own.spearman)
    for own in (*tried[:: len(tried) // 3], found.best):
        again = load_prompted(
            folder,
            **options,
            **(span or {}),
            contrast=True,
            contrast_layer=own.contrast_layer,
            contrast_strength=own.contrast_strength,
            layer=own.layer,
        )
        assert own.spearman == pytest.approx(plain_score(again, pairs), abs=1e-6)
    assert (found.plain_at_best.start, found.plain_at_best.contrast_layer) == (None, None)


@pytest.mark.slow
def test_tuning_contrast_on_the_command_line(folder, task):
    given = ("--device", "cpu", "--contrast", "--contrast-layer", 1, "--contrast-rule", "sub_head_norm")
    best = document("tune", folder, "--task", task, *given)["best"]
    shown = planted.command("tune", folder, "--task", task, *given, COLUMNS="160").stdout
    wanted = f"--contrast --contrast-layer 1 --contrast-rule sub_head_norm --layer {best['layer']} scores"
    assert wanted in " ".join(shown.split())
    assert f"Contrast on {folder}" in shown


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--exit", "3"), "--exit 3 is what tune chooses: leave it out, or keep it with --contrast"),
        (("--contrast-layer", "1"), "contrast_layer would have no effect"),
        (("--contrast", "--contrast-strength", "-1"), "the contrast strength is -1.0: pass a finite number"),
        (("--contrast", "--contrast-strength", "nan"), "the contrast strength is nan"),
        (("--contrast", "--contrast-layer", "9"), "the contrast layer is 9, but"),
        (("--contrast", "--contrast-rule", "x"), "the contrast rule 'x' is unknown: use one of scaled"),
        (("--contrast", "--start", "1"), "which is off: turn on token prepending"),
        (("--contrast", "--prompt", "echo"), "an echo prompt reads every token of the sentence"),
        (("--contrast", "--prompt", "Word: {sentence}:"), "contrast needs a prompt that quotes the sentence"),
    ],
)
def test_what_cannot_be_tuned_is_one_line(folder, task, options, reason):
    planted.refused("tune", folder, "--task", task, "--device", "cpu", *options, saying=reason)


def test_a_sentence_transformer_is_scored_as_it_is(bert_folder, task):
    (row,) = document("evaluate", bert_folder, "--task", task, "--device", "cpu")["scores"]
    encoder = load_encoder(bert_folder, device="cpu")
    assert row["encoding"] == "as it is"
    assert row["scores"]["spearman"] == pytest.approx(plain_score(encoder, read_similarity(task)), abs=1e-6)
    assert [each.layer for each in compare(encoder, read_similarity(task)).scores] == [None]


@pytest.mark.slow
def test_tuning_tries_what_it_says_and_the_best_is_the_best(folder, task):
    encoder = load_encoder(folder, device="cpu", prompt="prompteol")
    pairs = read_similarity(task)
    steps = []
    found = tune(encoder, pairs, progress=lambda done, total: steps.append((done, total)))
    spans = list(dict.fromkeys((own.start, own.exit) for own in found.tried))
    assert spans[0] == (None, None)
    assert {(1, 2), (1, 3)} <= set(spans)
    assert len(found.tried) == len(spans) * 4
    for own in found.tried[:: len(found.tried) // 7]:
        options = (
            {} if own.start is None else {"token_prepending": True, "start": own.start, "exit": own.exit}
        )
        again = load_prompted(folder, device="cpu", prompt="prompteol", layer=own.layer, **options)
        assert own.spearman == pytest.approx(plain_score(again, pairs), abs=1e-6)
    prepended = [own for own in found.tried if own.start is not None]
    assert found.best.spearman == max(own.spearman for own in prepended)
    assert (found.plain_at_best.start, found.plain_at_best.layer) == (None, found.best.layer)
    assert steps[0][0] == 0
    assert steps[-1][0] == steps[-1][1]


@pytest.mark.slow
def test_tuning_on_the_command_line_shows_the_curve_and_the_choice(folder, task):
    found = document("tune", folder, "--task", task, "--device", "cpu")
    best = found["best"]
    result = planted.command("tune", folder, "--task", task, "--device", "cpu")
    assert result.exit_code == 0
    wanted = f"--token-prepending --start {best['start']} --exit {best['exit']} --layer {best['layer']}"
    assert wanted in result.stdout
    assert "#" in result.stdout


def test_cosines_are_those_of_each_pair():
    generator = np.random.default_rng(1)
    first, second = generator.standard_normal((2, 30, 5)).astype(np.float32)
    expected = [a @ b / np.linalg.norm(a) / np.linalg.norm(b) for a, b in zip(first, second, strict=True)]
    assert cosines(first, second) == pytest.approx(expected, abs=1e-6)


def test_embed_writes_every_text_in_its_order(folder, tmp_path):
    texts = ["the river", "", "the river", *SENTENCES[:3]]
    (tmp_path / "texts.txt").write_text("\n".join(texts) + "\n")
    out = tmp_path / "vectors.parquet"
    arguments = (
        "embed",
        folder,
        "--input",
        tmp_path / "texts.txt",
        "--out",
        out,
        "--device",
        "cpu",
        "--prompt",
        "prompteol",
        "--token-prepending",
    )
    assert document(*arguments)["texts"] == 6
    frame = pl.read_parquet(out)
    assert frame["text"].to_list() == texts
    assert frame.schema["vector"] == pl.Array(pl.Float32, tiny_decoders.DIMENSION)
    encoder = load_prompted(folder, device="cpu", prompt="prompteol", token_prepending=True)
    assert np.abs(frame["vector"].to_numpy() - encoder.encode(texts)).max() < 1e-6
    again = planted.command(*arguments)
    assert again.exit_code == 1
    assert "already exists" in again.stderr


def test_embed_reads_the_column_of_a_table(bert_folder, tmp_path):
    pl.DataFrame({"id": ["1", "2"], "title": ["a bird", "a stone"]}).write_csv(tmp_path / "table.csv")
    out = tmp_path / "vectors.parquet"
    document(
        "embed",
        bert_folder,
        "--input",
        tmp_path / "table.csv",
        "--column",
        "title",
        "--out",
        out,
        "--device",
        "cpu",
    )
    expected = load_encoder(bert_folder, device="cpu").encode(["a bird", "a stone"])
    assert np.array_equal(pl.read_parquet(out)["vector"].to_numpy(), expected)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.jsonl", '{"sentence1": "a", "sentence2": "b"}\n', "has an unknown layout"),
        ("a.jsonl", '{"sentence1": "a", "sentence2": "b", "score": 1}\n', "at least 3 pairs"),
        ("a.csv", "sentence1,sentence2,score\na,b,1\na,b,1\na,c,1\n", "scores that differ"),
        ("a.csv", "sentence1,sentence2,score\na,b,1\na,b,x\na,c,1\n", "row 2 is .x., not a finite number"),
        (
            "a.jsonl",
            '{"sentence1": "a", "sentence2": "b", "score": 1}\n{"sentence1": "a", "score": 2}\n' * 2,
            "row 2 is missing or blank",
        ),
        ("a.txt", "a\n", "a task is a folder or a"),
    ],
)
def test_a_task_that_cannot_be_read_is_one_line(write, folder, name, content, reason):
    path = write(name, content)
    with pytest.raises(InputError, match=reason):
        read_similarity(path)
    for command in ("evaluate", "tune"):
        result = planted.command(command, folder, "--task", path)
        assert result.exit_code == 1
        assert len(result.stderr.strip().splitlines()) == 1
        assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("source", "output", "reason"),
    [
        ("missing.txt", "out.parquet", "no file"),
        ("texts.txt", "out.csv", "written as .parquet"),
        ("texts.txt", "no/such/out.parquet", "no folder"),
        ("nulls.jsonl", "out.parquet", "row 2 has no text"),
    ],
)
def test_what_embed_cannot_read_or_write_is_one_line(write, tmp_path, folder, source, output, reason):
    write("texts.txt", "a\nb\n")
    write("nulls.jsonl", '{"text": "a"}\n{"text": null}\n')
    result = planted.command("embed", folder, "--input", tmp_path / source, "--out", tmp_path / output)
    assert result.exit_code == 1
    assert reason in result.stderr
    assert not (tmp_path / output).exists()


def test_embed_reads_lines_as_a_file_has_them(write, tmp_path, folder):
    texts = ["a\u2028b", "c\x0cd", "", "e\x85f", "g"]
    write("texts.txt", "\r\n".join(texts) + "\n")
    out = tmp_path / "vectors.parquet"
    options = ("--device", "cpu", "--prompt", "prompteol")
    found = document("embed", folder, "--input", tmp_path / "texts.txt", "--out", out, *options)
    assert found["texts"] == len(texts)
    assert pl.read_parquet(out)["text"].to_list() == texts


def test_embed_finds_out_that_nothing_can_be_written_before_it_encodes(write, tmp_path, monkeypatch):
    write("texts.txt", "a\n")

    def full(**_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    arguments = ("--input", tmp_path / "texts.txt", "--out", tmp_path / "out.parquet")
    # The model is not even looked for.
    planted.refused("embed", "no/such/model", *arguments, saying="cannot be written: No space left")


def test_an_interrupt_promises_no_more_than_is_so(write, tmp_path, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("stickytoken.evaluation.embed_file", interrupted)
    texts, output = write("texts.txt", "a b\n"), tmp_path / "vectors.parquet"
    result = planted.command("embed", "all-MiniLM-L6-v2", "--input", texts, "--out", output)
    assert (result.exit_code, result.stdout, result.stderr) == (130, "", "interrupted\n")
    assert not output.exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ("tune", "--prompt", "no place"),
        ("evaluate", "--prompt", "no place", "--token-prepending"),
        ("evaluate", "--prompt", "no place", "--layer", "2"),
    ],
)
def test_a_prompt_without_a_place_is_named_as_what_is_wrong(folder, task, arguments):
    command, *options = arguments
    reason = "the prompt 'no place' is not one of prompteol, cot, ke, ck, metaeol, echo and has no place"
    planted.refused(command, folder, "--task", task, "--device", "cpu", *options, saying=reason)


def test_tuning_a_sentence_transformer_or_an_echo_is_refused(folder, bert_folder, task):
    for model, prompt in ((bert_folder, '"{sentence}":'), (folder, "echo")):
        result = planted.command("tune", model, "--task", task, "--device", "cpu", "--prompt", prompt)
        assert result.exit_code == 1
        assert "error: " in result.stderr
