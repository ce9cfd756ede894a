"""Whole impact measurements: results, resumption, other folders, bad input."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from scipy.stats import spearmanr

import impact_files as files
import planted
from stickytoken import open_impact, open_run
from stickytoken.errors import EncodingError, InputError, RunError
from stickytoken.impacts import ImpactSettings, Side, impact
from stickytoken.impacts.conditions import gaps
from stickytoken.impacts.results import TABLES
from stickytoken.impacts.statistics import impact_markdown
from stickytoken.insertion import Insertion, Placement, Token, copies_as_ids
from stickytoken.tasks import load_task


@pytest.fixture(scope="module")
def planted_encoder():
    return files.planted_encoder()


@pytest.fixture(scope="module")
def sticky(planted_encoder):
    return files.token_id(planted_encoder, planted.PLANTED)


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tasks")
    return [files.sts(folder), files.clustering(folder), files.beir(folder / "beir")]


@pytest.fixture(scope="module")
def whole(planted_encoder, sticky, tasks, tmp_path_factory):
    """An uninterrupted measurement of the planted token and an ordinary one."""
    ids = [sticky, files.token_id(planted_encoder, "?")]
    out = tmp_path_factory.mktemp("impact") / "whole"
    return impact(planted_encoder, tasks, tokens=ids, settings=files.FEW, out=out)


# Results.


def test_a_planted_token_costs_more_than_a_benign_one(planted_encoder, sticky, tasks, tmp_path):
    settings = replace(files.FEW, benign=3)
    found = impact(planted_encoder, tasks, tokens=[sticky], settings=settings, out=tmp_path / "out")
    effects = {row["task"]: row for row in found.effects.filter("main").to_dicts()}
    assert set(effects) == {"sts", "groups", "beir"}
    assert effects["sts"]["difference_low"] > 0
    assert effects["sts"]["sticky"] < effects["sts"]["benign"] < effects["sts"]["clean"]
    # The highest of four is too few to conclude.
    assert effects["sts"]["p_value"] == pytest.approx(1 / 4)
    assert effects["sts"]["q_value"] >= effects["sts"]["p_value"]
    said = "too few tokens to conclude (1 named token with 3 benign ones; 16 more would do)"
    assert (tmp_path / "out" / "impact.md").read_text("utf-8").count(said) == len(effects)


def test_an_ordinary_token_costs_no_more_than_another(tasks, tmp_path):
    encoder = files.planted_encoder(0)
    ids = [files.token_id(encoder, each) for each in ("river", "song", "glass", "bird")]
    settings = replace(files.FEW, benign=3)
    found = impact(encoder, tasks[:1], tokens=ids, settings=settings, out=tmp_path / "out")
    row, secondary = found.effects.to_dicts()
    assert row["p_value"] > 0.05
    assert (row["metric"], secondary["metric"]) == ("spearman", "pearson")
    # Only the main metric counts as a test, so only its p-value is corrected.
    assert row["q_value"] == row["p_value"]
    assert secondary["q_value"] is None
    assert (row["tokens"], row["benign_tokens"]) == (4, 12)


def test_scores_are_those_of_texts_edited_by_hand(whole, planted_encoder, sticky, tasks):
    task, _ = load_task(tasks[0])
    first, second = planted_encoder.tokenize(task.first), planted_encoder.tokenize(task.second)
    left = planted_encoder.encode_ids([text.ids for text in first])
    for repetition in range(2):
        edited = [
            copies_as_ids(
                Token(sticky, "!"),
                text,
                Placement.RANDOM,
                4,
                gaps(files.FEW.seed + repetition, raw, len(text.words), 4),
            )
            for raw, text in zip(task.second, second, strict=True)
        ]
        right = planted_encoder.encode_ids(edited)
        cosines = [a @ b / np.linalg.norm(a) / np.linalg.norm(b) for a, b in zip(left, right, strict=True)]
        row = whole.scores.filter(
            task="sts", metric="spearman", kind="named", token_id=sticky, repetition=repetition
        )
        assert row["score"].item() == pytest.approx(spearmanr(task.gold, cosines).statistic, abs=1e-6)


def test_clean_scores_are_those_of_the_texts_as_they_are(whole, planted_encoder, tasks):
    task, _ = load_task(tasks[0])
    left, right = planted_encoder.encode(task.first), planted_encoder.encode(task.second)
    cosines = (left * right).sum(1) / np.linalg.norm(left, axis=1) / np.linalg.norm(right, axis=1)
    clean = whole.scores.filter(task="sts", metric="spearman", kind="clean")["score"].to_list()
    assert clean == pytest.approx([spearmanr(task.gold, cosines).statistic] * 2, abs=1e-9)


def test_what_is_shown_of_a_measurement_is_short(whole):
    counts = f"tokens: 2, tasks: {len(whole.result.tasks)}"
    assert repr(whole) == f"<Impact: {whole.record.model}, {counts}, in {whole.path}>"


def test_tables_agree_with_each_other(whole):
    scores = whole.scores.group_by("task", "metric", "kind", "token_id").agg(pl.col("score").mean())
    joined = whole.conditions.join(scores, on=["task", "metric", "kind", "token_id"], nulls_equal=True)
    assert len(joined) == len(whole.conditions) == (2 + 2 + 4) * (1 + 2 + 2 + 2)
    np.testing.assert_allclose(joined["score"], joined["score_right"])
    clean = whole.conditions.filter(kind="clean").rows_by_key(["task", "metric"], named=True, unique=True)
    drops = whole.conditions.filter(pl.col("kind") != "clean")
    for row in drops.iter_rows(named=True):
        assert row["drop"] == pytest.approx(clean[row["task"], row["metric"]]["score"] - row["score"])
        assert row["drop_low"] <= row["drop_high"]
    assert len(whole.effects) == 2 + 2 + 4
    assert whole.effects.filter("main")["metric"].to_list() == ["spearman", "v_measure", "ndcg_at_10"]
    for row in whole.effects.iter_rows(named=True):
        mean = drops.filter(task=row["task"], metric=row["metric"], kind="named")["drop"].mean()
        assert row["drop_sticky"] == pytest.approx(mean)
        assert row["difference"] == pytest.approx(row["drop_sticky"] - row["drop_benign"])
        assert row["difference_low"] <= row["difference"] <= row["difference_high"]
        assert row["drop_sticky_relative"] == pytest.approx(mean / row["clean"])


def test_every_distinct_input_is_encoded_once(planted_encoder, sticky, tasks, tmp_path):
    encoder = files.Counting(planted_encoder)
    settings = replace(files.FEW, placement=Placement.SUFFIX, seeds=3)
    found = impact(encoder, tasks[:1], tokens=[sticky], settings=settings, out=tmp_path / "out")
    assert len(encoder.seen) == len(set(encoder.seen)) == found.result.sequences
    task, _ = load_task(tasks[0])
    # Suffix copies are the same in all repetitions; the first sentences are never edited.
    assert found.result.sequences <= len({*task.first, *task.second}) + 2 * len(set(task.second))


@pytest.mark.parametrize("side", list(Side))
def test_the_side_says_which_texts_are_edited(planted_encoder, sticky, tasks, tmp_path, side):
    settings = replace(files.FEW, side=side, seeds=1)
    found = impact(planted_encoder, tasks, tokens=[sticky], settings=settings, out=tmp_path / "out")
    edited = {task.name: task.edited for task in found.result.tasks}
    expected = {"query": 20, "document": 60, "both": 80}[side.value]
    assert edited["beir"] == expected
    assert edited["groups"] == 60


@pytest.mark.parametrize("insertion", list(Insertion))
def test_long_texts_are_cut_alike_and_counted(encoder, tmp_path, insertion):
    texts = [(" ".join([text] * 30), label) for text, label in files.topical_texts(12)]
    path = files.lines(tmp_path / "long.jsonl", [{"text": t, "label": g} for t, g in texts])
    tokens = [files.token_id(encoder, "river")]
    settings = replace(files.FEW, insertion=insertion, seeds=1)
    counting = files.Counting(encoder)
    found = impact(counting, [path], tokens=tokens, settings=settings, out=tmp_path / "out")
    (task,) = found.result.tasks
    assert (task.cut, task.texts) == (12, 12)
    assert len({len(each) for each in counting.seen if isinstance(each, tuple)}) <= 2
    with pytest.raises(InputError, match="leave no room for a text"):
        impact(encoder, [path], tokens=tokens, settings=replace(settings, copies=62), out=tmp_path / "other")


def test_a_text_without_a_vector_is_an_error_and_no_zero(planted_encoder, sticky, tmp_path):
    folder = files.beir(tmp_path / "beir")
    corpus = folder / "corpus.jsonl"
    corpus.write_text(corpus.read_text("utf-8") + json.dumps({"_id": "empty", "text": ""}) + "\n")
    with pytest.raises(EncodingError, match=r"has no tokens|is zero"):
        impact(planted_encoder, [folder], tokens=[sticky], settings=files.FEW, out=tmp_path / "out")


# Finished measurements, and other folders.


def test_a_finished_measurement_is_opened_and_not_computed_again(whole, planted_encoder, sticky, tasks):
    before = planted.files_of(whole.path)
    counting = files.Counting(planted_encoder)
    ids = [sticky, files.token_id(planted_encoder, "?")]
    impact(counting, tasks, tokens=ids, settings=files.FEW, out=whole.path)
    assert counting.seen == []
    assert planted.files_of(whole.path) == before


@pytest.mark.parametrize(
    ("changes", "part"),
    [({"copies": 5}, "settings.copies"), ({"seed": 1}, "settings.seed"), ({"benign": 2}, "benign")],
)
def test_a_folder_of_another_measurement_is_refused(whole, planted_encoder, sticky, tasks, changes, part):
    ids = [sticky, files.token_id(planted_encoder, "?")]
    before = planted.files_of(whole.path)
    with pytest.raises(RunError, match=f"contains a different impact \\(it differs in .*{part}"):
        impact(planted_encoder, tasks, tokens=ids, settings=replace(files.FEW, **changes), out=whole.path)
    with pytest.raises(RunError, match=r"it differs in tasks\.groups"):
        impact(planted_encoder, [tasks[0], tasks[2]], tokens=ids, settings=files.FEW, out=whole.path)
    assert planted.files_of(whole.path) == before


def test_a_folder_with_something_else_in_it_is_refused(planted_encoder, sticky, tasks, tmp_path, planted_run):
    (tmp_path / "notes.txt").write_text("mine")
    for folder in (tmp_path, planted_run):
        with pytest.raises(RunError, match="contains files but no impact"):
            impact(planted_encoder, tasks[:1], tokens=[sticky], settings=files.FEW, out=folder)


def test_a_damaged_shard_is_computed_again(whole, planted_encoder, sticky, tasks, tmp_path):
    ids = [sticky, files.token_id(planted_encoder, "?")]
    options = {"tokens": ids, "settings": files.FEW, "out": tmp_path / "out"}
    impact(planted_encoder, tasks[:1], **options)
    path = tmp_path / "out" / "shards" / "task-sts-000002.parquet"
    content = path.read_bytes()
    path.write_bytes(content[:-20])
    (tmp_path / "out" / "effects.parquet").unlink()
    again = impact(planted_encoder, tasks[:1], **options)
    assert path.read_bytes()[:4] == content[:4]
    expected = whole.conditions.filter(task="sts")
    assert again.conditions.equals(expected)


def test_a_table_of_an_earlier_version_is_named(whole, tmp_path):
    folder = Path(shutil.copytree(whole.path, tmp_path / "copy"))
    effects = folder / "effects.parquet"
    pl.read_parquet(effects).drop("main").write_parquet(effects)
    with pytest.raises(RunError, match="has no column 'main': delete it and run the same command again"):
        assert open_impact(folder).effects.is_empty()


def test_what_is_no_impact_is_refused(tmp_path, whole):
    with pytest.raises(RunError, match=r"it has no impact\.json"):
        open_impact(tmp_path / "nowhere")
    record = json.loads((whole.path / "impact.json").read_text())
    (tmp_path / "impact.json").write_text(json.dumps(record | {"schema_version": 99}))
    with pytest.raises(RunError, match="schema version 99"):
        open_impact(tmp_path)
    (tmp_path / "impact.json").write_text("{}")
    with pytest.raises(RunError, match="is not a valid record"):
        open_impact(tmp_path)


# Bad input.


def test_nothing_to_measure_is_said(planted_encoder, sticky, tasks, tmp_path):
    with pytest.raises(InputError, match="pass a task, or documents for an intrusion"):
        impact(planted_encoder, tokens=[sticky])
    with pytest.raises(InputError, match="no tokens to measure: pass the folder of a finished run"):
        impact(planted_encoder, tasks)
    with pytest.raises(InputError, match="no task file or folder"):
        impact(planted_encoder, [tmp_path / "missing.csv"], tokens=[sticky])
    with pytest.raises(InputError, match="two tasks have the name 'sts'"):
        impact(planted_encoder, [tasks[0], tasks[0]], tokens=[sticky])


def test_a_run_of_another_model_is_refused(encoder, tasks, planted_run):
    with pytest.raises(RunError, match=r"was made with another model .*they differ in .*weights"):
        impact(encoder, tasks, run=planted_run)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"copies": 0}, "copies is 0"),
        ({"seeds": 0}, "seeds is 0"),
        ({"resamples": 5}, "resamples is 5"),
        ({"confidence": 1.0}, "confidence is 1.0"),
        ({"seed": -1}, "seed is -1"),
        ({"copies": 2.5}, "copies is 2.5"),
        ({"benign": "2"}, "benign is '?2"),
        ({"confidence": None}, "confidence is None"),
        ({"placement": "sideways"}, "placement is 'sideways': it must be prefix or suffix or random"),
        ({"insertion": None}, "insertion is None"),
        ({"side": "left"}, "side is 'left'"),
    ],
)
def test_settings_out_of_range_are_refused(changes, message):
    with pytest.raises(InputError, match=message):
        ImpactSettings(**changes)


def test_choices_may_be_named():
    found = ImpactSettings(placement="prefix", insertion="words", side="both")
    assert found == ImpactSettings(placement=Placement.PREFIX, insertion=Insertion.WORDS, side=Side.BOTH)
    assert found.placement is Placement.PREFIX
    assert found.insertion is Insertion.WORDS
    assert found.side is Side.BOTH


def test_markdown_holds_hostile_names(whole):
    rows = {name.removesuffix(".parquet"): [] for name in TABLES}
    bad = "a|b\n<img src=x> `*_[x](y)\x1b"
    row = dict.fromkeys(TABLES["conditions.parquet"]) | {"task": bad, "kind": "sticky", "token": bad}
    text = impact_markdown(whole.record, rows | {"conditions": [row]})
    (line,) = [line for line in text.splitlines() if "img" in line]
    assert line.count("|") - line.count("\\|") == 9
    assert "<img" not in line
    assert "\x1b" not in text


# The public function and the command line.


@pytest.fixture(scope="module")
def short():
    return ["--repetitions", "1", "--resamples", "100", "--copies", "4", "--device", "cpu"]


def test_a_run_is_measured_by_its_own_tokens(planted_run, tasks, tmp_path, short):
    result = planted.command(
        "impact", planted_run, "--task", tasks[0], *short, "--out", tmp_path / "out", "--format", "json"
    )
    document = planted.document(result)
    sticky = open_run(planted_run).sticky["token"].to_list()
    found = [token["token"] for token in document["tokens"] if token["kind"] == "sticky"]
    assert found == sticky[:5]
    assert document["failed"] == {}
    assert document["effects"][0]["task"] == "sts"
    assert (tmp_path / "out" / "impact.md").read_text("utf-8").startswith("# What sticky tokens cost")
    table = planted.command("impact", planted_run, "--task", tasks[0], *short, "--out", tmp_path / "out")
    assert table.exit_code == 0, table.stderr
    assert "sts: sticky tokens lower spearman" in table.stdout


def test_a_measurement_lies_in_the_folder_of_its_run(planted_run, tasks, tmp_path, short):
    run = Path(shutil.copytree(planted_run, tmp_path / "run"))
    result = planted.command("impact", run, "--task", tasks[0], *short)
    assert result.exit_code == 0, result.stderr
    (folder,) = run.glob("impact-*")
    assert open_impact(folder).record.identity.startswith(folder.name.removeprefix("impact-"))
    assert f"for a report with this: stickytoken report {run}" in " ".join(planted.lines_of(result.stderr))
    # The run is unchanged: the same detection opens it, and its report shows both.
    assert open_run(run).tokens.equals(open_run(planted_run).tokens)
    assert "## What copies cost" in planted.command("report", run, "--format", "md").stdout


def test_named_tokens_of_a_model_are_measured(planted_folder, tasks, tmp_path, short):
    (tmp_path / "tokens.txt").write_text("?\n")
    out = ["--out", tmp_path / "out", "--format", "json"]
    names = ["--tokens", "!", "--tokens", tmp_path / "tokens.txt"]
    result = planted.command("impact", planted_folder, *names, "--task", tasks[0], *short, *out)
    document = planted.document(result)
    assert [each["token"] for each in document["tokens"]][:2] == ["!", "?"]
    assert [each["kind"] for each in document["tokens"]][:2] == ["named", "named"]
    kinds = {row["kind"] for row in document["conditions"]}
    assert kinds == {"clean", "named", "benign", "named mixture", "benign mixture"}
    text = (tmp_path / "out" / "impact.md").read_text("utf-8")
    assert text.startswith("# What named tokens cost")
    assert "sticky" not in text.replace("no run says which tokens are sticky", "")
    assert any("no run says which tokens are sticky" in note for note in document["notes"])


def test_a_run_without_sticky_tokens_offers_to_name_some(planted_run, tasks, tmp_path, short):
    folder = tmp_path / "run"
    folder.mkdir()
    for path in planted_run.iterdir():
        if path.is_file():
            (folder / path.name).write_bytes(path.read_bytes())
    tokens = pl.read_parquet(folder / "tokens.parquet").with_columns(verdict=pl.lit("benign"))
    tokens.write_parquet(folder / "tokens.parquet")
    said = "found no sticky tokens: name the tokens to look at"
    planted.refused("impact", folder, "--task", tasks[0], *short, saying=said)


def test_a_model_without_tokens_is_refused(planted_folder, tasks):
    planted.refused("impact", planted_folder, "--task", tasks[0], saying="name tokens with --tokens")


def test_an_unknown_layout_is_one_line_that_lists_the_layouts(planted_folder, tmp_path):
    path = files.lines(tmp_path / "odd.jsonl", [{"a": "b"}])
    said = "STS: sentence1, sentence2, score;.*as in BEIR"
    planted.refused("impact", planted_folder, "--tokens", "!", "--task", path, saying=said)


def test_a_side_that_does_not_exist_is_wrong_usage(planted_folder):
    result = planted.command("impact", planted_folder, "--tokens", "!", "--side", "left")
    assert result.exit_code == 2
