"""A measurement interrupted by a kill or an error, or continued on Ray, ends with the same results."""

import pytest

import engines
import impact_files as files
import planted
from interrupted import finished, killed_again_and_again
from naming import naming
from stickytoken import open_impact
from stickytoken.errors import InputError, RunError
from stickytoken.impacts import _running, impact
from stickytoken.impacts.results import TABLES
from stickytoken.measurement.ray_engine import ray_engine

pytestmark = pytest.mark.slow


class _AfterGroups:
    """A progress callback that interrupts a measurement when a session has computed some groups."""

    def __init__(self, groups):
        self.left = groups
        self.computed = 0

    def __call__(self, step):
        if step.computed > self.computed:
            self.computed = step.computed
            self.left -= 1
            if not self.left:
                raise engines.InterruptionError


# Of three tasks: clean, two tokens, their matches, two mixtures.
SHARDS = 3 * 7


@pytest.fixture(scope="module")
def whole(bert_folder, tmp_path_factory):
    """The folder of an uninterrupted measurement, computed in its own process."""
    folder = tmp_path_factory.mktemp("whole") / "impact"
    files.mixed_tasks(folder.parent / "tasks")
    assert finished(files.measure_small, bert_folder, folder) == 0
    assert len(planted.shards_of(folder)) == SHARDS
    return folder


def assert_same(folder, whole):
    """Assert that results have the same bytes, and that records differ only in times."""
    for name in (*TABLES, "impact.md"):
        assert (folder / name).read_bytes() == (whole / name).read_bytes(), name
    assert [path.name for path in folder.rglob("*.tmp")] == []
    assert list(folder.rglob("vectors-*")) == []
    ours, theirs = open_impact(folder).result, open_impact(whole).result
    assert ours.model_copy(update={"seconds": 0}) == theirs.model_copy(update={"seconds": 0})


def shards_of_conditions(folder):
    """Return the shards that a finished measurement keeps, as those without copies are removed."""
    return {name: data for name, data in planted.shards_of(folder).items() if "vectors-" not in name}


def test_a_measurement_that_is_killed_again_and_again_ends_with_the_same_bytes(bert_folder, whole, tmp_path):
    files.mixed_tasks(tmp_path / "tasks")
    folder = tmp_path / "impact"
    files_of_killed = killed_again_and_again(
        files.measure_small,
        bert_folder,
        folder,
        kills=6,
        in_shards=4,
        committed=shards_of_conditions,
        further_shards=4,
        all_shards=SHARDS,
    )
    assert 0 < len(files_of_killed) < SHARDS
    with pytest.raises(RunError, match=naming(folder)):
        open_impact(folder)
    assert finished(files.measure_small, bert_folder, folder) == 0
    shards = planted.shards_of(folder)
    assert {name: shards[name] for name in files_of_killed} == files_of_killed
    assert_same(folder, whole)


@pytest.fixture(scope="module")
def options(encoder, tmp_path_factory):
    tasks = files.mixed_tasks(tmp_path_factory.mktemp("tasks"))
    tokens = [files.token_id(encoder, word) for word in ("river", "song")]
    return {"tasks": tasks, "tokens": tokens, "settings": files.FEW}


def test_a_later_session_encodes_nothing_again(encoder, options, tmp_path):
    arguments = options | {"tasks": options["tasks"][:1]}
    sessions = []
    for done in (1, 3, 1):
        sessions.append(files.Counting(encoder))
        progress = _AfterGroups(done)
        with pytest.raises(engines.InterruptionError):
            impact(sessions[-1], progress=progress, out=tmp_path / "out", **arguments)
    sessions.append(files.Counting(encoder))
    result = impact(sessions[-1], out=tmp_path / "out", **arguments)
    alone = files.Counting(encoder)
    expected = impact(alone, out=tmp_path / "alone", **arguments)
    assert sorted([batch for session in sessions for batch in session.seen]) == sorted(alone.seen)
    assert result.result.sequences == len(alone.seen)
    assert_same(result.path, expected.path)


def test_texts_without_copies_are_kept_shard_by_shard(encoder, options, tmp_path, monkeypatch):
    monkeypatch.setattr(_running, "_SHARD_TEXTS", 16)
    arguments = options | {"tasks": [options["tasks"][2]]}  # retrieval, of queries and documents
    first = files.Counting(encoder)
    with pytest.raises(engines.InterruptionError):
        impact(first, progress=_AfterGroups(4), out=tmp_path / "out", **arguments)
    second = files.Counting(encoder)
    result = impact(second, out=tmp_path / "out", **arguments)
    alone = files.Counting(encoder)
    expected = impact(alone, out=tmp_path / "alone", **arguments)
    assert first.seen
    assert sorted(first.seen + second.seen) == sorted(alone.seen)
    assert_same(result.path, expected.path)


def test_neither_the_order_of_tasks_nor_ray_changes_a_number(encoder, options, tmp_path):
    expected = impact(encoder, out=tmp_path / "forwards", **options)
    backwards = impact(encoder, out=tmp_path / "backwards", **options | {"tasks": options["tasks"][::-1]})
    assert backwards.effects["task"].to_list() == expected.effects.sort("task")["task"].to_list()
    for table in ("effects", "conditions", "scores"):
        ours = getattr(backwards, table)
        theirs = getattr(expected, table)
        for task in ("sts", "groups", "beir"):
            assert ours.filter(task=task).equals(theirs.filter(task=task)), (table, task)
    with engines.local_ray(), ray_engine(encoder, workers=2) as on_ray:
        on_workers = impact(encoder, out=tmp_path / "ray", engine=on_ray, **options)
        progress = _AfterGroups(7 + 2)
        with pytest.raises(engines.InterruptionError):
            impact(encoder, out=tmp_path / "both", progress=progress, **options)
        on_both_tasks = impact(encoder, out=tmp_path / "both", engine=on_ray, **options)
    for result in (on_workers, on_both_tasks):
        assert_same(result.path, expected.path)
    with pytest.raises(InputError, match=naming("'dask'")):
        impact(encoder, out=tmp_path / "other", engine="dask", **options)
