"""A measurement interrupted by a kill or an error, or continued on Ray, ends with the same results."""

import numpy as np
import pytest

import engines
import impact_files as files
import planted
from interrupted import finished, killed_again_and_again
from naming import naming
from stickytoken import open_impact
from stickytoken.encoders.roles import Role
from stickytoken.errors import InputError, RunError
from stickytoken.impacts import impact
from stickytoken.impacts._running import TaskRunner
from stickytoken.impacts.results import TABLES
from stickytoken.measurement import ResultFolder
from stickytoken.measurement.engine import LocalEngine, ignore_progress
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
    assert list(folder.glob("vectors-*")) == []
    ours, theirs = open_impact(folder).result, open_impact(whole).result
    assert ours.model_copy(update={"seconds": 0}) == theirs.model_copy(update={"seconds": 0})


def test_a_measurement_that_is_killed_again_and_again_ends_with_the_same_bytes(bert_folder, whole, tmp_path):
    files.mixed_tasks(tmp_path / "tasks")
    folder = tmp_path / "impact"
    files_of_killed = killed_again_and_again(
        files.measure_small, bert_folder, folder, kills=6, in_shards=4, further_shards=4, all_shards=SHARDS
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


def encrypted(content):
    """Say in the directory of a ZIP archive that its first file is encrypted."""
    offset = content.index(b"PK\x01\x02") + 8
    return content[:offset] + b"\x01" + content[offset + 1 :]


@pytest.mark.parametrize("damaged", [lambda content: content[:-30], encrypted], ids=["cut", "encrypted"])
def test_damaged_vectors_are_computed_again(encoder, options, tmp_path, damaged):
    arguments = options | {"tasks": options["tasks"][:1]}
    with pytest.raises(engines.InterruptionError):
        impact(encoder, progress=_AfterGroups(2), out=tmp_path / "out", **arguments)
    (file,) = (tmp_path / "out").glob("vectors-*.npz")
    file.write_bytes(damaged(file.read_bytes()))
    result = impact(encoder, out=tmp_path / "out", **arguments)
    assert result.scores.equals(impact(encoder, out=tmp_path / "alone", **arguments).scores)


def test_stored_vectors_are_of_the_same_texts_and_role(encoder, tmp_path):
    def clean(name, texts, role):
        counting = files.Counting(encoder)
        engine = LocalEngine(counting)
        runner = TaskRunner(counting, files.FEW, (), engine, ResultFolder(tmp_path), ignore_progress)
        vectors = runner.clean_vectors(name, texts, role).vectors
        np.testing.assert_allclose(vectors, encoder.encode(texts), atol=1e-6)
        return len(counting.seen)

    texts = ["the river", "a stone"]
    assert clean("task-x", texts, Role.QUERY) == 2
    assert clean("task-x-query", ["a song", "the bird"], None) == 2
    assert clean("task-x", texts, Role.QUERY) == 0
    assert clean("task-x", ["a letter", "a stone"], Role.QUERY) == 2
    assert clean("task-x", texts[:1], Role.QUERY) == 1


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
