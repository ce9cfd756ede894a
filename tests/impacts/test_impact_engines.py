"""Impact measurements on Ray equal those of one process."""

import pytest

import engines
import impact_files as files
from stickytoken import load_encoder
from stickytoken.errors import InputError
from stickytoken.impacts import impact
from stickytoken.impacts.results import TABLES
from stickytoken.measurement.ray_engine import ray_engine


@pytest.fixture(scope="module")
def encoder(bert_folder):
    return load_encoder(bert_folder, device="cpu")


@pytest.fixture(scope="module")
def on_ray(encoder):
    """Two workers with one core each."""
    with engines.local_ray(), ray_engine(encoder, workers=2) as opened:
        yield opened


@pytest.fixture(scope="module")
def options(encoder, tmp_path_factory):
    tasks = files.mixed_tasks(tmp_path_factory.mktemp("tasks"))
    tokens = [files.token_id(encoder, each) for each in ("river", "song")]
    return {"tasks": tasks, "tokens": tokens, "intrusion": tasks[-1], "settings": files.FEW}


@pytest.mark.slow
def test_ray_gives_the_bytes_of_one_process_and_continues_what_that_began(encoder, on_ray, options, tmp_path):
    whole = impact(encoder, out=tmp_path / "whole", **options)
    on_workers = impact(encoder, out=tmp_path / "ray", engine=on_ray, **options)
    progress = engines.interrupted_after("groups", done=2)
    with pytest.raises(engines.InterruptionError):
        impact(encoder, out=tmp_path / "both", progress=progress, **options)
    both = impact(encoder, out=tmp_path / "both", engine=on_ray, **options)
    for found in (on_workers, both):
        for name in (*TABLES, "impact.md"):
            assert (found.path / name).read_bytes() == (whole.path / name).read_bytes(), name
        assert found.result.sequences == whole.result.sequences


def test_an_engine_that_does_not_exist_is_refused(encoder, options, tmp_path):
    with pytest.raises(InputError, match="engine 'dask' is unknown"):
        impact(encoder, out=tmp_path / "out", engine="dask", **options)
