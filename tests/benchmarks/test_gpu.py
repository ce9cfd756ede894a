"""The script for a lent GPU, on the CPU with a tiny model."""

import json

import pytest

import bench
import gpu
import planted
import profiled
import tiny

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A tiny BERT that reads the bundled sentences, letter by letter."""
    folder = tmp_path_factory.mktemp("tiny")
    backbone = tiny.bert_backbone(folder / "backbone", max_length=256)
    tiny.sentence_transformer(backbone).save(str(folder / "model"))
    return folder / "model"


@pytest.fixture
def visit(model, tmp_path, monkeypatch):
    """Run steps of the script, and return what it has written then."""
    monkeypatch.setattr(bench, "RESULTS", tmp_path)
    monkeypatch.setattr(gpu, "STD", planted.SMALL)
    monkeypatch.setattr(gpu, "PROFILE", profiled.SMALL)
    monkeypatch.setattr(gpu, "SHARD_TOKENS", 1)
    monkeypatch.setattr(gpu, "MANY_TOKENS", 2)

    def run(steps, seconds=600):
        gpu.main(
            device="cpu",
            steps=steps,
            seconds=seconds,
            model=str(model),
            mpnet=tmp_path / "missing",
            correctness_tokens=6,
            sample=3,
            work=tmp_path / "work",
        )
        written = tmp_path / "gpu.json"
        return json.loads(written.read_text("utf-8")) if written.exists() else None

    return run


@pytest.mark.nightly  # three runs on the packaged model
def test_verdicts_in_lower_precision_are_those_of_float32(visit):
    document = visit("correctness")
    assert document["finished"] == ["correctness"]
    assert [check["ours"].split(" (")[0] for check in document["checks"]] == ["10 of 10", "10 of 10"]
    assert all(check["passed"] for check in document["checks"])


@pytest.mark.nightly  # the command with its default settings, in a process of its own
def test_whole_runs_are_timed(visit):
    document = visit("detect")
    assert document["finished"] == ["detect"]
    assert document["checks"][0]["detail"]["texts"] > 0


def test_std_is_whole_if_the_time_allows(visit):
    document = visit("std")
    assert document["finished"] == ["std"]
    assert document["checks"][0]["passed"]


def test_throughput_compares_with_the_library(visit):
    document = visit("throughput")
    names = [check["name"] for check in document["checks"]]
    assert "throughput: engine" in names
    assert "throughput: encode, batches of 32" in names


def test_a_finished_step_is_not_repeated(visit, capsys):
    first = visit("std")
    second = visit("std")
    assert first["checks"] == second["checks"]
    assert "done before" in capsys.readouterr().out


def test_a_visit_without_time_begins_no_step(visit, capsys):
    assert visit("std", seconds=0) is None
    assert "std: left out, the time is over" in capsys.readouterr().out


def test_std_stops_when_the_time_is_over(visit, monkeypatch, tmp_path):
    """The rest is estimated, and a later visit finishes the step."""

    def seconds_left(visit):
        scored = any((tmp_path / "work" / "std" / "shards").glob("*.parquet"))
        return -1.0 if scored else 600.0

    with monkeypatch.context() as patch:
        patch.setattr(gpu.Visit, "seconds_left", property(seconds_left))
        document = visit("std")
    assert document["finished"] == []
    assert document["checks"][0]["name"] == "std, whole vocabulary, unfinished"
    assert visit("std")["finished"] == ["std"]


def test_a_failing_step_is_recorded_and_the_next_one_runs(visit, monkeypatch):
    def fail(visit):
        raise RuntimeError("no kernel image is available")

    monkeypatch.setitem(gpu.STEPS, "correctness", fail)
    document = visit("correctness,std")
    assert document["finished"] == ["std"]
    assert document["checks"][0]["ours"] == "RuntimeError: no kernel image is available"


def test_an_unknown_step_is_refused(visit):
    with pytest.raises(SystemExit, match="detekt"):
        visit("detekt")
