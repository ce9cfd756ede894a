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
from stickytoken.evaluation import read_similarity, tune, tune_contrast

SENTENCES = tiny.sentences(24)
PROMPTED = {"device": "cpu", "prompt": "prompteol"}
SPAN = {"token_prepending": True, "start": 1, "exit": 3}
SPAN_OPTIONS = "--token-prepending --set start=1 --set exit=3".split()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_decoders.saved_decoder(tmp_path_factory.mktemp("qwen2") / "tiny-qwen2")


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    scores = np.random.default_rng(0).integers(0, 11, 12) / 2
    rows = [
        {"sentence1": first, "sentence2": second, "score": float(score), "genre": "x"}
        for first, second, score in zip(SENTENCES[:12], SENTENCES[12:], scores, strict=True)
    ]
    path = tmp_path_factory.mktemp("task") / "sts.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def document(*arguments):
    return planted.document(planted.command(*arguments, "--device", "cpu", "--format", "json"))


def plain_score(encoder, task):
    """With the slowest tools at hand."""
    found = []
    for first, second in zip(task.first, task.second, strict=True):
        left, right = encoder.encode([first])[0], encoder.encode([second])[0]
        found.append(left @ right / np.linalg.norm(left) / np.linalg.norm(right))
    return 100 * spearmanr(found, task.gold).statistic


@pytest.mark.slow
def test_contrast_stands_beside_token_prepending_and_the_plain_prompt(folder, task):
    contrast = {"contrast": True, "contrast_layer": 2, "contrast_strength": 0.25}
    given = ["--prompt", "prompteol", "--set", "layer=3", *SPAN_OPTIONS]
    given += "--contrast --set contrast-layer=2 --set contrast-strength=0.25".split()
    found = document("evaluate", folder, "--task", task, *given)
    names = ("encoding", "start", "exit", "layer", "contrast_layer", "contrast_strength", "contrast_rule")
    assert [tuple(row[name] for name in names) for row in found["scores"]] == [
        ("plain prompt", None, None, 4, None, None, None),
        ("plain prompt", None, None, 3, None, None, None),
        ("token prepending", 1, 3, 3, None, None, None),
        ("contrast", None, None, 3, 2, 0.25, "scaled"),
        ("token prepending, contrast", 1, 3, 3, 2, 0.25, "scaled"),
    ]
    assert (found["kind"], found["unit"], found["units"], found["cut"]) == ("sts", "pairs", 12, 0)
    pairs = read_similarity(task)
    ways = ({"layer": -1}, {}, SPAN, contrast, SPAN | contrast)
    expected = [plain_score(load_prompted(folder, **PROMPTED | {"layer": 3} | way), pairs) for way in ways]
    assert [row["scores"]["spearman"] for row in found["scores"]] == pytest.approx(expected, abs=1e-6)
    table = planted.command("evaluate", folder, "--task", task, "--device", "cpu", *given, COLUMNS="200")
    assert "contrast layer" in table.stdout
    assert "token prepending, contrast" in table.stdout


@pytest.mark.slow
def test_tuning_contrast_keeps_token_prepending_and_finds_the_best(folder, task):
    pairs, span = read_similarity(task), SPAN
    found = tune_contrast(load_prompted(folder, **PROMPTED, **span), pairs)
    tried = [own for own in found.tried if own.contrast_layer is not None]
    settings = list(dict.fromkeys((own.contrast_layer, own.contrast_strength) for own in tried))
    assert settings[:3] == [(0, 0.5), (1, 0.5), (2, 0.5)]
    best_layer = max(tried[:9], key=lambda own: own.spearman).contrast_layer
    assert set(settings[3:]) == {(best_layer, strength) for strength in (0.25, 1.0, 2.0)}
    assert all(own.layer > own.contrast_layer for own in tried)
    assert {own.start for own in tried} == {span.get("start")}
    assert found.best == max(tried, key=lambda own: own.spearman)
    for own in (*tried[:: len(tried) // 3], found.best):
        contrast = {"contrast_layer": own.contrast_layer, "contrast_strength": own.contrast_strength}
        again = load_prompted(folder, **PROMPTED, **span, contrast=True, **contrast, layer=own.layer)
        assert own.spearman == pytest.approx(plain_score(again, pairs), abs=1e-6)
    assert (found.plain_at_best.start, found.plain_at_best.contrast_layer) == (None, None)


@pytest.mark.slow
def test_tuning_tries_what_it_says_and_the_best_is_the_best(folder, task):
    pairs, steps = read_similarity(task), []
    encoder = load_encoder(folder, **PROMPTED)
    found = tune(encoder, pairs, progress=lambda done, total: steps.append((done, total)))
    spans = list(dict.fromkeys((own.start, own.exit) for own in found.tried))
    assert spans[0] == (None, None)
    assert {(1, 2), (1, 3)} <= set(spans)
    assert len(found.tried) == len(spans) * 4
    for own in found.tried[:: len(found.tried) // 7]:
        span = {} if own.start is None else SPAN | {"start": own.start, "exit": own.exit}
        again = load_prompted(folder, **PROMPTED, layer=own.layer, **span)
        assert own.spearman == pytest.approx(plain_score(again, pairs), abs=1e-6)
    assert found.best.spearman == max(own.spearman for own in found.tried if own.start is not None)
    assert (found.plain_at_best.start, found.plain_at_best.layer) == (None, found.best.layer)
    assert (steps[0][0], steps[-1][0]) == (0, steps[-1][1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "title", "wanted"),
    [
        ("", "Token prepending", "--token-prepending --set start={start} --set exit={exit}"),
        (
            "--contrast --set contrast-layer=1 --set contrast-rule=sub_head_norm",
            "Contrast",
            "--contrast --set contrast-layer=1 --set contrast-rule=sub_head_norm",
        ),
    ],
)
def test_tuning_on_the_command_line_shows_the_curve_and_the_choice(folder, task, given, title, wanted):
    best = document("tune", folder, "--task", task, *given.split())["best"]
    arguments = ("--task", task, "--device", "cpu", *given.split())
    shown = planted.command("tune", folder, *arguments, COLUMNS="160").stdout
    assert f"best: {wanted.format(**best)} --set layer={best['layer']} scores" in " ".join(shown.split())
    assert f"{title} on {folder}" in shown


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ("--set exit=3", "exit 3 is what tune chooses: leave it out, or keep it with --contrast"),
        ("--set contrast-layer=1", "contrast_layer would have no effect"),
        ("--contrast --set contrast-layer=9", "the contrast layer is 9, but"),
        ("--prompt plain", "the prompt 'plain' is not one of prompteol, .* and has no place"),
    ],
)
def test_what_cannot_be_tuned_is_one_line(folder, task, options, reason):
    planted.refused("tune", folder, "--task", task, "--device", "cpu", *options.split(), saying=reason)


def test_what_cannot_be_evaluated_is_one_line(folder, bert_folder, task, tmp_path):
    own = ("--task", task, "--device", "cpu")
    planted.refused("tune", bert_folder, *own, "--prompt", '"{sentence}":', saying="is a SentenceTransformer")
    few = tmp_path / "few.jsonl"
    few.write_text('{"sentence1": "a", "sentence2": "b", "score": 1}\n')
    for command in ("evaluate", "tune"):
        planted.refused(command, folder, "--task", few, saying="at least 3 pairs")


# embed


def test_embed_writes_every_text_in_its_order(folder, tmp_path):
    texts = ["the river", "", "the river", "a\u2028b", "c\x0cd", "e\x85f", *SENTENCES[:3]]
    (tmp_path / "texts.txt").write_text("\r\n".join(texts) + "\n", newline="")
    out = tmp_path / "vectors.parquet"
    given = ("--input", tmp_path / "texts.txt", "--out", out, "--prompt", "prompteol", "--token-prepending")
    assert document("embed", folder, *given)["texts"] == len(texts)
    frame = pl.read_parquet(out)
    assert frame["text"].to_list() == texts
    assert frame.schema["vector"] == pl.Array(pl.Float32, tiny_decoders.DIMENSION)
    encoder = load_prompted(folder, **PROMPTED, token_prepending=True)
    assert np.abs(frame["vector"].to_numpy() - encoder.encode(texts)).max() < 1e-6
    planted.refused("embed", folder, *given, saying="already exists")


@pytest.mark.parametrize(
    ("source", "output", "reason"),
    [
        ("missing.txt", "out.parquet", "no file"),
        ("texts.txt", "out.csv", "written as .parquet"),
        ("nulls.jsonl", "out.parquet", "row 2 has no text"),
        ("texts.txt", "full.parquet", "cannot be written: No space left"),
    ],
)
def test_what_embed_cannot_read_or_write_is_one_line(tmp_path, monkeypatch, source, output, reason):
    """The model is not even looked for."""

    def full(**_):
        raise OSError(28, "No space left on device")

    (tmp_path / "texts.txt").write_text("a\nb\n")
    (tmp_path / "nulls.jsonl").write_text('{"text": "a"}\n{"text": null}\n')
    if output == "full.parquet":
        monkeypatch.setattr(tempfile, "TemporaryFile", full)
    files = ("--input", tmp_path / source, "--out", tmp_path / output)
    planted.refused("embed", "no/such/model", *files, saying=reason)
    assert not (tmp_path / output).exists()
