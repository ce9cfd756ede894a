"""Whole impact measurements: results, resumption, other folders, bad input."""

import json
import shutil
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from scipy.stats import spearmanr

import impact_files as files
import planted
from stickytoken import open_impact, open_run
from stickytoken.data.tasks import load_task
from stickytoken.errors import InputError, RunError
from stickytoken.impacts import ImpactSettings, impact
from stickytoken.impacts.results import TABLES
from stickytoken.impacts.statistics import gaps, impact_markdown
from stickytoken.insertion import Insertion, Placement, Token, copies_as_ids


@pytest.fixture(scope="module")
def planted_encoder():
    return files.planted_encoder()


@pytest.fixture(scope="module")
def sticky(planted_encoder):
    return files.token_id(planted_encoder, planted.PLANTED)


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    return files.mixed_tasks(tmp_path_factory.mktemp("tasks"))


@pytest.fixture(scope="module")
def options(planted_encoder, sticky):
    return {"tokens": [sticky, files.token_id(planted_encoder, "?")], "settings": files.FEW}


@pytest.fixture(scope="module")
def whole(planted_encoder, options, tasks, tmp_path_factory):
    return impact(planted_encoder, tasks, out=tmp_path_factory.mktemp("impact") / "whole", **options)


def test_a_planted_token_costs_more_than_a_benign_one(planted_encoder, sticky, tasks, tmp_path):
    settings = replace(files.FEW, benign=3)
    found = impact(planted_encoder, tasks, tokens=[sticky], settings=settings, out=tmp_path / "out")
    effects = {row["task"]: row for row in found.effects.filter("main").to_dicts()}
    assert set(effects) == {"sts", "groups", "beir"}
    row = effects["sts"]
    assert row["difference_low"] > 0
    assert row["sticky"] < row["benign"] < row["clean"]
    assert row["p_value"] == pytest.approx(1 / 4)  # the highest of four
    # Only the main metrics count as tests.
    assert row["q_value"] >= row["p_value"]
    assert found.effects.filter(~pl.col("main"))["q_value"].null_count() == 5
    assert (tmp_path / "out" / "impact.md").read_text("utf-8").count("too few tokens") == len(effects)


def test_every_measured_token_has_a_benign_match_of_its_own(whole, options):
    benign = [token for token in whole.record.tokens if token.kind == "benign"]
    assert [token.matched_to for token in benign] == options["tokens"]
    assert len({token.token_id for token in benign} - set(options["tokens"])) == 2


def test_scores_are_those_of_texts_edited_by_hand(whole, planted_encoder, sticky, tasks):
    task, _ = load_task(tasks[0])
    left = planted_encoder.encode(task.first)
    scores = whole.scores.filter(task="sts", metric="spearman")

    def score(right):
        cosines = (left * right).sum(1) / np.linalg.norm(left, axis=1) / np.linalg.norm(right, axis=1)
        return pytest.approx(spearmanr(task.gold, cosines).statistic, abs=1e-6)

    assert scores.filter(kind="clean")["score"].to_list() == [score(planted_encoder.encode(task.second))] * 2
    contents = planted_encoder.tokenize(task.second)
    for repetition in range(2):
        edited = []
        for raw, text in zip(task.second, contents, strict=True):
            path = gaps(files.FEW.seed + repetition, raw, len(text.words), 4)
            edited.append(copies_as_ids(Token(sticky, "!"), text, Placement.RANDOM, 4, path))
        row = scores.filter(kind="named", token_id=sticky, repetition=repetition)
        assert row["score"].item() == score(planted_encoder.encode_ids(edited))


def test_tokens_that_no_run_calls_sticky_are_named(whole):
    assert [(each.token, each.kind) for each in whole.record.tokens][:2] == [("!", "named"), ("?", "named")]
    kinds = {"clean", "named", "benign", "named mixture", "benign mixture"}
    assert set(whole.conditions["kind"]) == set(whole.scores["kind"]) == kinds
    text = (whole.path / "impact.md").read_text("utf-8")
    assert text.count("sticky") == text.count("no run says which tokens are sticky") == 1


def test_every_distinct_input_is_encoded_once(planted_encoder, sticky, tasks, tmp_path):
    encoder = files.Counting(planted_encoder)
    settings = replace(files.FEW, placement=Placement.SUFFIX, seeds=3)
    found = impact(encoder, tasks[:1], tokens=[sticky], settings=settings, out=tmp_path / "out")
    assert len(encoder.seen) == len(set(encoder.seen)) == found.result.sequences
    task, _ = load_task(tasks[0])
    # Suffix copies are the same in all repetitions; the first sentences are never edited.
    assert found.result.sequences <= len({*task.first, *task.second}) + 2 * len(set(task.second))


@pytest.mark.parametrize(("side", "edited"), [("query", 20), ("document", 60), ("both", 80)])
def test_the_side_says_which_texts_are_edited(planted_encoder, sticky, tasks, tmp_path, side, edited):
    settings = replace(files.FEW, side=side, seeds=1)
    found = impact(planted_encoder, tasks[1:], tokens=[sticky], settings=settings, out=tmp_path / "out")
    assert {task.name: task.edited for task in found.result.tasks} == {"groups": 60, "beir": edited}


@pytest.mark.parametrize("insertion", [Insertion.IDS, Insertion.TEXT])
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


def test_a_finished_measurement_is_opened_and_another_refused(
    whole, planted_encoder, options, tasks, tmp_path, planted_run
):
    before = planted.files_of(whole.path)
    counting = files.Counting(planted_encoder)
    impact(counting, tasks, out=whole.path, **options)
    assert counting.seen == []
    other = options | {"settings": replace(files.FEW, copies=5)}
    with pytest.raises(RunError, match=r"it differs in settings\.copies, tasks\.groups"):
        impact(planted_encoder, [tasks[0], tasks[2]], out=whole.path, **other)
    assert planted.files_of(whole.path) == before
    (tmp_path / "notes.txt").write_text("mine")
    for folder in (tmp_path, planted_run):
        with pytest.raises(RunError, match="contains files but no impact"):
            impact(planted_encoder, tasks[:1], out=folder, **options)


def test_what_is_no_whole_impact_is_refused(tmp_path, whole):
    with pytest.raises(RunError, match=r"it has no impact\.json"):
        open_impact(tmp_path / "nowhere")
    folder = Path(shutil.copytree(whole.path, tmp_path / "copy"))
    table = pl.read_parquet(folder / "effects.parquet")
    table.with_columns(task=pl.lit(None, pl.String)).write_parquet(folder / "effects.parquet")
    with pytest.raises(RunError, match="has an empty value in column 'task'"):
        open_impact(folder)
    record = json.loads((folder / "impact.json").read_text())
    for content, said in (
        (record | {"schema_version": 99}, "schema version 99"),
        (record | {"result": None}, "not finished"),
    ):
        (folder / "impact.json").write_text(json.dumps(content))
        with pytest.raises(RunError, match=said):
            open_impact(folder)


def test_what_cannot_be_measured_is_said(encoder, planted_encoder, sticky, tasks, planted_run):
    for given, kind, said in (
        ({"tokens": [sticky]}, InputError, "pass a task, or documents for an intrusion"),
        ({"tasks": tasks}, InputError, "no tokens to measure"),
        ({"tasks": ["missing.csv"], "tokens": [sticky]}, InputError, "no task file or folder"),
        ({"tasks": [tasks[0]] * 2, "tokens": [sticky]}, InputError, "two tasks have the name 'sts'"),
        ({"tasks": tasks, "encoder": encoder, "run": planted_run}, RunError, "another model .*weights"),
    ):
        with pytest.raises(kind, match=said):
            impact(**{"encoder": planted_encoder} | given)


@pytest.mark.parametrize(
    ("name", "value"), [("copies", 0), ("resamples", 5), ("confidence", 1.0), ("benign", "2"), ("side", None)]
)
def test_settings_out_of_range_are_refused(name, value):
    with pytest.raises(InputError, match=f"{name} is '?{value}"):
        ImpactSettings(**{name: value})


def test_markdown_holds_hostile_names(whole):
    bad = "a|b\n<img src=x> `*_[x](y)\x1b"
    row = dict.fromkeys(TABLES["conditions.parquet"]) | {"task": bad, "kind": "sticky", "token": bad}
    text = impact_markdown(whole.record, defaultdict(list, conditions=[row]))
    (line,) = [line for line in text.splitlines() if "img" in line]
    assert line.count("|") - line.count("\\|") == 9
    assert "<img" not in line
    assert "\x1b" not in text


SHORT = "--set repetitions=1 --set resamples=100 --copies 4 --device cpu".split()


@pytest.mark.slow
def test_a_run_is_measured_by_its_own_tokens_in_its_own_folder(planted_run, tasks, tmp_path):
    run = shutil.copytree(planted_run, tmp_path / "run", ignore=shutil.ignore_patterns("impact-*"))
    result = planted.command("impact", run, "--task", tasks[0], *SHORT, "--format", "json")
    document = planted.document(result)
    found = [token["token"] for token in document["tokens"] if token["kind"] == "sticky"]
    assert found == open_run(run).sticky["token"].to_list()[:5]
    (folder,) = run.glob("impact-*")
    assert (folder / "impact.md").read_text("utf-8").startswith("# What sticky tokens cost")
    settings = ImpactSettings(copies=4, resamples=100)
    assert impact(tasks=tasks[0], run=run, settings=settings).path == folder  # with the model of the run
    table = planted.command("impact", run, "--task", tasks[0], *SHORT)
    assert "sts: sticky tokens lower spearman" in table.stdout
    assert f"for a report with this: stickytoken report {run}" in " ".join(planted.lines_of(table.stderr))


def test_the_command_refuses_what_it_cannot_measure(planted_folder, tasks):
    planted.refused("impact", planted_folder, "--task", tasks[0], saying="name tokens with --tokens")
