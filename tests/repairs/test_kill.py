"""A process that writes models is killed at any moment: no folder looks finished and is not."""

import random
import time

import numpy as np
import pytest

import planted
from stickytoken.repairs.model_folder import ModelEdit, write_model

EDIT = ModelEdit(rows={7: np.ones(32, dtype=np.float32)})


def write_many(source, place):
    """Write the same repaired model again and again."""
    for number in range(10_000):
        write_model(source, place / str(number), EDIT, {"repair.json": "{}"})


def content_of(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_a_folder_that_is_there_is_complete(pristine, tmp_path):
    write_model(pristine, tmp_path / "whole", EDIT, {"repair.json": "{}"})
    whole = content_of(tmp_path / "whole")
    generator = random.Random(0)
    unfinished = 0
    for attempt in range(5):
        place = tmp_path / str(attempt)
        place.mkdir()
        process = planted.processes().Process(target=write_many, args=(pristine, place))
        process.start()
        while process.is_alive() and not (place / "1").is_dir():
            time.sleep(0.001)
        time.sleep(generator.uniform(0, 0.2))
        process.kill()
        process.join()
        finished = [folder for folder in place.iterdir() if not folder.name.startswith(".")]
        assert len(finished) >= 2
        assert all(content_of(folder) == whole for folder in finished)
        left = list(place.glob(".*.unfinished"))
        unfinished += len(left)
        for folder in left:
            target = place / folder.name.split(".")[1]
            write_model(pristine, target, EDIT, {"repair.json": "{}"})
            assert content_of(target) == whole
        assert not list(place.glob(".*.unfinished"))
    assert unfinished
