"""A run that is cut off, by a kill or by Ctrl-C, continues where it stopped."""

import json
import os
import shutil
import signal
import sys
from pathlib import Path

import polars as pl
import pytest

import planted
import profiled
import stickytoken
from interrupted import assert_same_run, copied, died, finished, started, wait_for_shards
from naming import naming
from stickytoken import detect, load_encoder, open_run
from stickytoken.detection.run_folder import RunFolder
from stickytoken.errors import RunError
from stickytoken.measurement import store

pytestmark = pytest.mark.slow

SHARDS = 123  # of the mean similarity, the random sample, the rounds of scoring, and the candidates


@pytest.fixture(scope="module")
def whole(bert_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert finished(planted.detect_small, bert_folder, folder) == 0
    assert len(planted.shards_of(folder)) == SHARDS
    return folder


@pytest.fixture
def run_copy(whole, tmp_path):
    return copied(whole, tmp_path / "run")


def continued(encoder, folder, **options):
    """The same detection in this process; it commits a shard for every token."""
    given = {"sentences": planted.small_corpus(), "settings": planted.SMALL}
    return detect(encoder, out=folder, **given | {"shard_probes": planted.SHARD_PROBES} | options)


def test_a_damaged_shard_is_computed_again_and_the_others_are_not(encoder, run_copy, whole):
    before = planted.shards_of(run_copy)
    (run_copy / "tokens.parquet").unlink()
    names = sorted(before)
    broken = {names[0], names[-1]}  # of the first stage and of the last
    for name in broken:
        (run_copy / name).write_bytes(before[name][1][:-1])
    continued(encoder, run_copy)
    after = planted.shards_of(run_copy)
    assert {name for name in before if after[name] != before[name]} == broken
    for name in broken:
        assert pl.read_parquet(run_copy / name).equals(pl.read_parquet(whole / name))
    assert_same_run(run_copy, whole)


def test_a_run_that_began_on_another_device_keeps_its_shards(encoder, run_copy, monkeypatch):
    """Shards on a GPU are larger by default."""
    before = planted.shards_of(run_copy)
    model = json.loads((run_copy / "run.json").read_text("utf-8"))["model"]
    planted.edit_record(run_copy, model=model | {"device": "cuda:0"})
    (run_copy / "tokens.parquet").unlink()

    def size_for(device):
        return planted.SHARD_PROBES if device.startswith("cuda") else 8192

    monkeypatch.setattr("stickytoken.detection.shard_probes_for", size_for)
    run = continued(encoder, run_copy, shard_probes=None)
    assert run.record.model.device == "cuda:0, later cpu"
    assert planted.shards_of(run_copy) == before


def test_a_finished_run_is_opened_without_computing_or_writing(encoder, run_copy):
    before = planted.files_of(run_copy)
    events = []
    run = continued(encoder, run_copy, progress=events.append)
    assert events == []
    assert planted.files_of(run_copy) == before
    assert run.tokens.equals(pl.read_parquet(run_copy / "tokens.parquet"))


def test_every_file_is_written_while_the_run_is_locked(encoder, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    names = set()

    def write_locked(path, content):
        with pytest.raises(RunError, match=naming(folder)):
            RunFolder(folder).require_unlocked()
        names.add(path.name)
        write_atomically(path, content)

    write_atomically = store.write_atomically
    monkeypatch.setattr(store, "write_atomically", write_locked)
    continued(encoder, folder, tokens=["river"])
    assert {"run.json", "tokens.parquet", "normalizer.json"} <= names


def test_a_resumed_run_keeps_the_time_at_which_it_was_started(encoder, run_copy):
    record = (run_copy / "run.json").read_text("utf-8")
    began = open_run(run_copy).record.started
    (run_copy / "run.json").write_text(record.replace(began, "2024-02-03T04:05:06+00:00"), encoding="utf-8")
    (run_copy / "tokens.parquet").unlink()
    assert continued(encoder, run_copy).record.started == "2024-02-03T04:05:06+00:00"


def test_a_continued_run_adds_the_wall_time_of_earlier_sessions(encoder, run_copy):
    (run_copy / "time.json").write_text('{"seconds": 5000.0}', encoding="utf-8")
    (run_copy / "tokens.parquet").unlink()
    run = continued(encoder, run_copy)
    assert run.result.seconds > 5000


def test_ctrl_c_ends_the_command_with_one_line_and_the_same_command_continues(
    bert_folder, sentence_file, whole, tmp_path
):
    folder = tmp_path / "run"
    output = tmp_path / "output"
    output.mkdir()
    options = ["--sentences", str(sentence_file), *planted.SMALL_OPTIONS, "--out", str(folder)]
    command = ["detect", str(bert_folder), *options]
    for goal in (0, 1, 20, 60):
        earlier = len(list((folder / "shards").glob("*.parquet")))
        process = started(planted.command_line, command, output)
        # A shard of its own: a signal that comes while the process starts does not reach the command.
        wait_for_shards(process, folder, max(goal, earlier + 1) if goal else 0)
        os.kill(process.pid, signal.SIGINT)
        process.join()
        stdout, stderr = ((output / name).read_text("utf-8") for name in ("stdout", "stderr"))
        assert (process.exitcode, stdout) == (130, "")
        # One line at the end, which counts the finished shards if there are any.
        lines = planted.lines_of(stderr)
        shards = len(list((folder / "shards").glob("*.parquet")))
        message = f"finished shards are kept: {shards} in {folder}; " if shards else ""
        assert lines[-1] == f"interrupted: {message}run the same command again to continue"
        assert not any(word in stderr for word in ("Traceback", "Error"))
        assert not list(folder.rglob("*.tmp"))
        for path in (folder / "shards").glob("*.parquet"):
            assert pl.read_parquet(path).height > 0
    before = planted.shards_of(folder)
    assert 60 <= len(before) < SHARDS
    assert json.loads((folder / "time.json").read_text("utf-8"))["seconds"] > 0
    assert finished(planted.command_line, command, output) == 0
    after = planted.shards_of(folder)
    assert {name: after[name] for name in before} == before
    assert_same_run(folder, whole)


def test_ctrl_c_while_a_record_is_written_is_ctrl_c_and_no_other_error(encoder, tmp_path, monkeypatch):
    """Libraries that call Python from compiled code may turn an interrupt into an error of their own."""
    written = []
    write_record = RunFolder.write_record

    def recorded(folder, name, record):
        written.append((name, record))
        write_record(folder, name, record)

    monkeypatch.setattr(RunFolder, "write_record", recorded)
    continued(encoder, tmp_path / "run", tokens=[60])
    records = {"identity.json", "run.json", "plan.json", "normalizer.json", "time.json"}
    assert {name for name, _ in written} == records
    for name, record in written:
        moments = 0
        while interrupted_at_call(moments, lambda: write_record(RunFolder(tmp_path), name, record)):  # noqa: B023
            moments += 1
        assert moments > 3


def interrupted_at_call(moment, work):
    """Whether work makes so many Python calls; an interrupt meets the last of them and must come out."""
    calls = 0

    def hook(_frame, event, _argument):
        nonlocal calls
        calls += event == "call"
        if event == "call" and calls > moment:
            sys.setprofile(None)
            raise KeyboardInterrupt

    before = sys.getprofile()
    sys.setprofile(hook)
    try:
        work()
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(before)
    return False


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return profiled.save_bert(tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="module")
def whole_profile(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert finished(profiled.detect_in_small_shards, model, folder) == 0
    names = [name.split("/")[1].split("-")[0] for name in planted.shards_of(folder)]
    assert min(names.count(step) for step in ("pilot", "screen", "confirm")) > 5
    return folder


def test_a_kill_in_any_round_leaves_a_run_that_continues(model, whole_profile, tmp_path):
    folder = tmp_path / "run"
    before = ("identity.json", "plan.json", "vocabulary.parquet")
    rounds = ("pilot-000005.parquet", "screen-000000.parquet", "confirm-1-000003.parquet")
    after = ("effects.parquet", "tokens.parquet")
    for name in (*before, *rounds, *after):
        assert died(profiled.detect_in_small_shards, model, folder, name) == name
        assert not list(folder.rglob(name))
    last = died(profiled.detect_in_small_shards, model, folder, "run.json", b"ordinary_contraction")
    assert last == "run.json"  # the last file, with results
    with pytest.raises(RunError, match="finished"):
        open_run(folder)
    assert finished(profiled.detect_in_small_shards, model, folder) == 0
    assert_same_run(folder, whole_profile)


def test_the_plan_is_read_again_and_not_made_anew(model, whole_profile, tmp_path):
    folder = copied(whole_profile, tmp_path / "run")
    shutil.rmtree(folder / "shards")
    (folder / "tokens.parquet").unlink()
    marked = open_run(whole_profile).plan.model_copy(update={"call_noise": 0.5})
    (folder / "plan.json").write_text(marked.model_dump_json(), encoding="utf-8")
    profiled.detect_profile(load_encoder(model, device="cpu"), folder, shard_probes=profiled.SHARD_PROBES)
    assert open_run(folder).plan == marked
    for name in ("tokens.parquet", "vocabulary.parquet"):
        assert (folder / name).read_bytes() == (whole_profile / name).read_bytes(), name
    assert not list(folder.rglob("*.tmp"))
    ours, theirs = open_run(folder).result, open_run(whole_profile).result
    assert ours.model_copy(update={"seconds": 0}) == theirs.model_copy(update={"seconds": 0})


def test_what_only_one_session_knows_is_recorded_with_the_device_of_the_other():
    on_cpu = {"device": "cpu", "cpus": "2"}
    on_gpu = {"device": "cuda:0", "cpus": "2", "device_name": "NVIDIA H200"}
    run = open_run(Path(stickytoken.__file__).parent / "demo/example/all-MiniLM-L6-v2").record
    first, second = (run.model_copy(update={"hardware": hardware}) for hardware in (on_cpu, on_gpu))
    assert first.continued_by(second).hardware["device_name"] == "cpu, later NVIDIA H200"
    assert second.continued_by(first).hardware["device_name"] == "NVIDIA H200, later cpu"
