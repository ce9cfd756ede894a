"""Whole impact measurements: results, other folders and bad input."""

import json
import shlex
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
from naming import naming, says
from stickytoken import open_impact, open_run
from stickytoken.data.tasks import load_task
from stickytoken.errors import InputError, RunError
from stickytoken.impacts import ImpactSettings, impact
from stickytoken.impacts._editing import draw_random_path
from stickytoken.impacts.results import TABLES
from stickytoken.impacts.wording import impact_markdown, token_sentences
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
def whole(planted_encoder, sticky, tasks, tmp_path_factory):
    tokens = [sticky, files.token_id(planted_encoder, "?")]
    folder = tmp_path_factory.mktemp("impact") / "whole"
    return impact(planted_encoder, tasks, out=folder, tokens=tokens, settings=files.FEW)


def test_named_tokens_have_benign_matches_of_their_own(whole):
    named = whole.record.tokens[:2]
    benign = whole.record.tokens[2:]
    assert [(token.token, token.kind) for token in named] == [("!", "named"), ("?", "named")]
    assert [token.matched_to for token in benign] == [token.token_id for token in named]
    assert len({token.token_id for token in whole.record.tokens}) == 4
    kinds = {"clean", "named", "benign", "named mixture", "benign mixture"}
    assert set(whole.conditions["kind"]) == set(whole.scores["kind"]) == kinds
    text = (whole.path / "impact.md").read_text("utf-8")
    assert text.count("sticky") == text.count("no run says which tokens are sticky") == 1


@pytest.mark.slow
def test_a_planted_token_costs_more_than_a_benign_one(planted_encoder, sticky, tasks, tmp_path):
    settings = replace(files.FEW, benign=3)
    result = impact(planted_encoder, tasks, tokens=[sticky], settings=settings, out=tmp_path / "out")
    effects = {row["task"]: row for row in result.effects.filter("main").to_dicts()}
    assert set(effects) == {"sts", "groups", "beir"}
    row = effects["sts"]
    assert row["difference_low"] > 0
    assert row["sticky"] < row["benign"] < row["clean"]
    assert row["p_value"] == pytest.approx(1 / 4)  # the highest of four
    # Only the main metrics count as tests.
    assert row["q_value"] >= row["p_value"]
    assert set(result.effects.filter(~pl.col("main"))["q_value"]) == {None}
    assert (tmp_path / "out" / "impact.md").read_text("utf-8").count("too few tokens") == len(effects)


def test_scores_are_those_of_texts_edited_by_hand(whole, planted_encoder, sticky, tasks):
    task, _ = load_task(tasks[0])
    first_vectors = planted_encoder.encode(task.first)
    scores = whole.scores.filter(task="sts", metric="spearman")

    def score(right):
        cosines = (
            (first_vectors * right).sum(1)
            / np.linalg.norm(first_vectors, axis=1)
            / np.linalg.norm(right, axis=1)
        )
        return pytest.approx(spearmanr(task.gold, cosines).statistic, abs=1e-6)

    assert scores.filter(kind="clean")["score"].to_list() == [score(planted_encoder.encode(task.second))] * 2
    contents = planted_encoder.tokenize(task.second)
    for repetition in range(2):
        edited = []
        for raw, text in zip(task.second, contents, strict=True):
            path = draw_random_path(files.FEW.seed + repetition, raw, len(text.words), 4)
            edited.append(copies_as_ids(Token(sticky, "!"), text, Placement.RANDOM, 4, path))
        row = scores.filter(kind="named", token_id=sticky, repetition=repetition)
        assert row["score"].item() == score(planted_encoder.encode_ids(edited))


def test_every_distinct_input_is_encoded_once(planted_encoder, sticky, tasks, tmp_path):
    encoder = files.Counting(planted_encoder)
    settings = replace(files.FEW, placement=Placement.SUFFIX, seeds=3)
    result = impact(encoder, tasks[:1], tokens=[sticky], settings=settings, out=tmp_path / "out")
    assert len(encoder.seen) == len(set(encoder.seen)) == result.result.sequences
    task, _ = load_task(tasks[0])
    # Suffix copies are the same in all repetitions; the first sentences are never edited.
    assert result.result.sequences <= len({*task.first, *task.second}) + 2 * len(set(task.second))


@pytest.mark.parametrize(("side", "edited"), [("query", 20), ("document", 60), ("both", 80)])
def test_the_side_says_which_texts_are_edited(planted_encoder, sticky, tasks, tmp_path, side, edited):
    settings = replace(files.FEW, side=side, seeds=1)
    result = impact(planted_encoder, tasks[1:], tokens=[sticky], settings=settings, out=tmp_path / "out")
    assert {task.name: task.edited for task in result.result.tasks} == {"groups": 60, "beir": edited}


@pytest.mark.parametrize("insertion", [Insertion.IDS, Insertion.TEXT])
def test_long_texts_are_cut_alike_and_counted(encoder, tmp_path, insertion):
    texts = [(" ".join([text] * 30), label) for text, label in files.topical_texts(12)]
    path = files.lines(tmp_path / "long.jsonl", [{"text": t, "label": g} for t, g in texts])
    tokens = [files.token_id(encoder, "river")]
    settings = replace(files.FEW, insertion=insertion, seeds=1)
    counting = files.Counting(encoder)
    result = impact(counting, [path], tokens=tokens, settings=settings, out=tmp_path / "out")
    (task,) = result.result.tasks
    assert (task.cut, task.texts) == (12, 12)
    assert len({len(ids) for ids in counting.seen if isinstance(ids, tuple)}) <= 2


def test_a_finished_measurement_is_opened_and_another_refused(whole, planted_encoder, tasks):
    tokens = [token.token_id for token in whole.record.tokens[:2]]
    before = planted.files_of(whole.path)
    counting = files.Counting(planted_encoder)
    impact(counting, tasks, out=whole.path, tokens=tokens, settings=files.FEW)
    assert counting.seen == []
    other = {"tokens": tokens, "settings": replace(files.FEW, copies=5)}
    with pytest.raises(RunError, match=naming("settings.copies", "tasks.groups")):
        impact(planted_encoder, [tasks[0], tasks[2]], out=whole.path, **other)
    assert planted.files_of(whole.path) == before


def test_what_is_no_whole_impact_is_refused(tmp_path, whole):
    with pytest.raises(RunError, match=naming(tmp_path / "nowhere", "impact.json")):
        open_impact(tmp_path / "nowhere")
    folder = Path(shutil.copytree(whole.path, tmp_path / "copy"))
    table = pl.read_parquet(folder / "effects.parquet")
    table.with_columns(task=pl.lit(None, pl.String)).write_parquet(folder / "effects.parquet")
    with pytest.raises(RunError, match=naming("effects.parquet", "'task'")):
        open_impact(folder)
    record = json.loads((folder / "impact.json").read_text())
    for change, phrase in (({"schema_version": 99}, naming(99)), ({"result": None}, naming(folder))):
        (folder / "impact.json").write_text(json.dumps(record | change))
        with pytest.raises(RunError, match=phrase):
            open_impact(folder)


def test_what_cannot_be_measured_is_said(
    encoder, planted_encoder, sticky, tasks, planted_run, planted_folder
):
    for arguments, kind, phrase in (
        ({"tokens": [sticky]}, InputError, naming("--task")),
        ({"tasks": tasks}, InputError, naming("--tokens")),
        ({"tasks": ["missing.csv"], "tokens": [sticky]}, InputError, "missing.csv"),
        ({"tasks": tasks, "tokens": [sticky], "exclude": [10**6]}, InputError, naming(10**6)),
        ({"tasks": [tasks[0]] * 2, "tokens": [sticky]}, InputError, naming("'sts'")),
        ({"tasks": tasks, "encoder": encoder, "run": planted_run}, RunError, naming("weights")),
    ):
        with pytest.raises(kind, match=phrase):
            impact(**{"encoder": planted_encoder} | arguments)
    planted.assert_refused("impact", planted_folder, "--task", tasks[0], saying="--tokens")


def test_markdown_holds_hostile_names(whole):
    bad = "a|b\n<img src=x> `*_[x](y)\x1b"
    row = dict.fromkeys(TABLES["conditions.parquet"]) | {"task": bad, "kind": "sticky", "token": bad}
    text = impact_markdown(whole.record, defaultdict(list, conditions=[row]))
    lines = text.splitlines()
    (number,) = [number for number, line in enumerate(lines) if "img" in line]
    line = lines[number]
    assert line.count("|") - line.count("\\|") == lines[number - 1].count("|")  # the line below the header
    assert "<img" not in line
    assert "\x1b" not in text


@pytest.mark.slow
def test_a_run_is_measured_by_its_own_tokens_in_its_own_folder(planted_run, tasks, tmp_path):
    run = shutil.copytree(planted_run, tmp_path / "a run", ignore=shutil.ignore_patterns("impact-*"))
    short = "--set repetitions=1 --set resamples=100 --copies 4 --device cpu".split()
    command = ("impact", run, "--task", tasks[0], *short)
    document = planted.document(planted.command(*command, "--format", "json"))
    sticky_tokens = [token["token"] for token in document["tokens"] if token["kind"] == "sticky"]
    assert sticky_tokens == open_run(run).sticky["token"].to_list()[:5]
    (folder,) = run.glob("impact-*")
    assert (folder / "impact.md").read_text("utf-8").startswith("# What sticky tokens cost")
    settings = ImpactSettings(copies=4, resamples=100)
    assert impact(tasks=tasks[0], run=run, settings=settings).path == folder  # with the model of the run
    table = planted.command(*command)
    assert says(table.stdout, "sts", "sticky tokens", "spearman")
    assert f"stickytoken report {shlex.quote(str(run))}" in " ".join(planted.lines_of(table.stderr))


# Documents pushed into search results: ranks against a slow reference


def test_the_conclusion_has_a_sentence_for_each_token_and_task(whole):
    sentences = token_sentences(whole)
    starts = [sentence.partition(":")[0] for sentence in sentences]
    tasks = ("sts", "groups", "beir")
    assert starts == [f"{token!r}, {task}" for token in ("!", "?") for task in tasks]
    (row,) = whole.conditions.filter(task="sts", metric="spearman", token="!").to_dicts()
    assert says(sentences[0], f"{row['score']:.4f}", f"{-row['drop_high']:+.4f}")


def test_the_progress_is_one_bar(planted_encoder, sticky, tasks, tmp_path):
    steps = []
    settings = replace(files.FEW, seeds=1)
    impact(
        planted_encoder, tasks[:2], tokens=[sticky], settings=settings, out=tmp_path / "out",
        progress=steps.append,
    )  # fmt: skip
    assert {step.stage for step in steps} == {"impact"}
    assert len({step.total for step in steps}) == 1
    done = [step.done for step in steps]
    assert done == sorted(done)
    assert done[-1] == steps[-1].total
