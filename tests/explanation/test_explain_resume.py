"""Interrupted explanations continue, finished ones are opened, others are refused."""

import json
from dataclasses import replace

import polars as pl
import pytest

import planted
import tiny
from interrupted import died, finished, killed_again_and_again
from stickytoken import load_encoder
from stickytoken.data.corpora import collect_sentences
from stickytoken.errors import RunError
from stickytoken.explanation import ExplainSettings, explain
from stickytoken.explanation.result import TABLES

pytestmark = pytest.mark.slow  # whole runs

SETTINGS = ExplainSettings(
    copies=3, carriers=4, benign=4, attribution_carriers=1, attribution_benign=3, steps=3, directions=16
)
TOKENS = ("river", "garden", "window", "stone")


def corpus():
    return collect_sentences(tiny.sentences(40), "test")


def explain_small(model, out):
    encoder = load_encoder(model, device="cpu")
    explain(encoder, TOKENS, sentences=corpus(), settings=SETTINGS, out=out)


def explained_tokens(folder):
    return {
        path.parent.name: (path.stat().st_mtime_ns, path.read_bytes())
        for path in folder.glob("*/explanation.json")
    }


@pytest.fixture(scope="module")
def whole(bert_folder, tmp_path_factory):
    """The folder of uninterrupted explanations, computed in its own process."""
    folder = tmp_path_factory.mktemp("whole") / "explain"
    assert finished(explain_small, bert_folder, folder) == 0
    return folder


@pytest.fixture(scope="module")
def encoder(bert_folder):
    return load_encoder(bert_folder, device="cpu")


def again(encoder, out, tokens=TOKENS, **options):
    return explain(encoder, tokens, out=out, **{"sentences": corpus(), "settings": SETTINGS} | options)


def assert_same(folder, whole):
    names = sorted(path.relative_to(whole) for path in whole.rglob("*.*") if path.suffix != ".lock")
    assert len(names) == len(TOKENS) * (len(TABLES) + 2 + 1)
    assert sorted(path.relative_to(folder) for path in folder.rglob("*.*")) == names
    for name in names:
        assert (folder / name).read_bytes() == (whole / name).read_bytes(), name


def assert_equal(one, other):
    assert one.document() == other.document()
    for name in TABLES:
        assert getattr(one, name).equals(getattr(other, name)), name


def test_explanations_that_are_killed_again_and_again_end_with_the_same_bytes(bert_folder, whole, tmp_path):
    folder = tmp_path / "explain"
    seen = killed_again_and_again(
        explain_small, bert_folder, folder, kills=3, in_shards=1, committed=explained_tokens, most=1
    )
    assert seen
    assert finished(explain_small, bert_folder, folder) == 0
    found = explained_tokens(folder)
    assert {name: found[name] for name in seen} == seen
    assert_same(folder, whole)


def test_an_interrupt_loses_only_the_text_that_is_being_attributed(encoder, tmp_path, monkeypatch):
    from stickytoken.inspection.integrated_jacobians import JacobianIntegrator

    whole = again(encoder, tmp_path / "whole", ["river"])
    texts, attribute = [], JacobianIntegrator.contributions

    def counted(self, content, *arguments):
        texts.append(tuple(content))
        if len(texts) == 4:
            raise KeyboardInterrupt
        return attribute(self, content, *arguments)

    monkeypatch.setattr(JacobianIntegrator, "contributions", counted)
    with pytest.raises(KeyboardInterrupt):
        again(encoder, tmp_path / "out", ["river"])
    (folder,) = (tmp_path / "out").iterdir()
    # What is known by then can be read.
    measures = pl.read_parquet(folder / "measures.parquet")
    assert "attention" in set(measures["area"])
    assert "attribution" not in set(measures["area"])
    assert not (folder / "explanation.json").exists()
    events = []
    found = again(encoder, tmp_path / "out", ["river"], progress=events.append)
    lost = texts.pop(3)
    assert texts[3] == lost
    # One text of the token and of each of three benign ones, and both texts of the pair.
    assert len(texts) == 1 + SETTINGS.attribution_benign + 2
    assert "inside" not in {event.stage for event in events}
    # Those of the token itself had been kept: they count as done, not as computed.
    steps = [event for event in events if event.stage == "attribution"]
    assert (steps[1].computed, steps[-1].computed) == (0, SETTINGS.attribution_benign * steps[1].done)
    assert steps[-1].done == steps[-1].total
    assert_equal(found, whole)
    assert not (folder / "shards").exists()


def test_progress_of_attribution_counts_parts_of_texts(encoder):
    events = []
    found = again(encoder, None, ["river"], progress=events.append)
    steps = [event for event in events if event.stage == "attribution"]
    rows, columns = found.attribution["row"].max(), found.attribution["column"].max()  # without references
    assert steps[-1].total == 2 * (1 + SETTINGS.attribution_benign) + rows + columns
    assert [event.done for event in steps[:3]] == [0, 2, 2 + rows + columns]
    assert all(event.done == event.computed for event in steps)


@pytest.mark.parametrize("moment", ["heads.parquet", "explanation.json"])
def test_a_kill_while_a_file_is_written_leaves_a_folder_that_the_same_call_takes(
    bert_folder, whole, tmp_path, moment
):
    folder = tmp_path / "explain"
    assert died(explain_small, bert_folder, folder, moment) == moment
    assert finished(explain_small, bert_folder, folder) == 0
    assert_same(folder, whole)


def test_a_finished_explanation_is_opened_and_says_the_same(encoder, tmp_path):
    first = again(encoder, tmp_path / "out", ["river", "garden"])
    before, events = planted.files_of(tmp_path), []
    second = again(encoder, tmp_path / "out", ["river", "garden"], progress=events.append)
    assert events == []
    assert planted.files_of(tmp_path) == before
    assert_equal(second, first)
    assert second.settings == first.settings
    for token_id, parts in again(encoder, None, ["river", "garden"]).parts.items():
        record = json.loads((tmp_path / "out" / str(token_id) / "explanation.json").read_text("utf-8"))
        assert record["identity_parts"] == json.loads(json.dumps(parts)) == second.parts[token_id]


def test_a_folder_of_another_explanation_is_refused(encoder, bert_folder, tmp_path):
    again(encoder, tmp_path / "out", ["river"])
    before = planted.files_of(tmp_path)
    changed = load_encoder(bert_folder, device="cpu")
    next(changed.model.parameters()).data[7] += 1
    for model, options, part in (
        (encoder, {"settings": replace(SETTINGS, copies=4)}, r"settings\.copies"),
        (encoder, {"settings": replace(SETTINGS, benign=5)}, "benign"),
        (encoder, {"sentences": collect_sentences(tiny.sentences(40)[5:], "test")}, "anchors"),
        (encoder, {"texts": ["the river sings"]}, "carriers"),
        (changed, {}, r"encoder\.weights\)"),
    ):
        with pytest.raises(RunError, match=f"contains a different explanation \\(it differs in .*{part}"):
            again(model, tmp_path / "out", ["river"], **options)
    assert planted.files_of(tmp_path) == before
