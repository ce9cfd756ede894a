"""A run of the profile method that is cut off continues where it stopped, whatever the round."""

import shutil

import pytest

import planted
import profiled
from interrupted import assert_same_run, copied, died, finished
from stickytoken import load_encoder, open_run
from stickytoken.errors import RunError

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The folder of a tiny BERT with the large vocabulary."""
    return profiled.save_bert(tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="module")
def whole(model, tmp_path_factory):
    """The folder of a run that nothing interrupted."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert finished(profiled.detect_in_small_shards, model, folder) == 0
    names = [name.split("/")[1].split("-")[0] for name in planted.shards_of(folder)]
    assert min(names.count(step) for step in ("pilot", "screen", "confirm")) > 5
    return folder


@pytest.fixture
def run_copy(whole, tmp_path):
    return copied(whole, tmp_path / "run")


def continued(model, folder):
    """Compute the table anew in this process, in as small shards; tokens that were computed, by stage."""
    (folder / "tokens.parquet").unlink()
    events = []
    options = {"shard_probes": profiled.SHARD_PROBES, "progress": events.append}
    profiled.detect_profile(load_encoder(model, device="cpu"), folder, **options)
    return {event.stage: event.computed for event in events}


def test_a_kill_in_any_round_leaves_a_run_that_continues(model, whole, tmp_path):
    folder = tmp_path / "run"
    first = ("identity.json", "plan.json", "vocabulary.parquet", "pilot-000005.parquet")
    later = ("screen-000000.parquet", "confirm-000003.parquet", "effects.parquet", "tokens.parquet")
    for name in (*first, *later):
        assert died(profiled.detect_in_small_shards, model, folder, name) == name
        assert not list(folder.rglob(name))
    last = died(profiled.detect_in_small_shards, model, folder, "run.json", b"ordinary_lift")
    assert last == "run.json"  # the last file, with results
    with pytest.raises(RunError, match="not finished"):
        open_run(folder)
    assert finished(profiled.detect_in_small_shards, model, folder) == 0
    assert_same_run(folder, whole)


def test_the_plan_is_read_again_and_not_made_anew(model, run_copy, whole):
    """What a plan says is final: a run that continues plans nothing again."""
    shutil.rmtree(run_copy / "shards")
    assert "mean similarity" not in continued(model, run_copy)
    assert_same_run(run_copy, whole)
