"""A process that repairs is killed at any moment: no folder looks finished and is not."""

import random
import time

import numpy as np
import pytest

import planted
import repaired
from stickytoken.encoders import load_encoder
from stickytoken.errors import RunError
from stickytoken.measurement.store import move_folder
from stickytoken.repairs.documents import write_documents
from stickytoken.repairs.model_folder import ModelEdit, clear_workshop, workshop

EDIT = ModelEdit(rows={7: np.ones(32, dtype=np.float32)})
RECORD = repaired.repair_record("river")


def write(source, encoder, out):
    """Build, document and show a repaired model."""
    with workshop(out, source, encoder) as bench:
        folder = bench.build(EDIT)
        write_documents(folder, RECORD)
        move_folder(folder, out)


def write_many(source, place):
    """Write the same repaired model again and again."""
    encoder = load_encoder(source)
    for number in range(10_000):
        write(source, encoder, place / str(number))


def content_of(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_errors_name_the_folder_that_was_passed(pristine, tmp_path):
    encoder, out = load_encoder(pristine), tmp_path / "out"
    with workshop(out, pristine, encoder) as bench:
        with pytest.raises(RunError, match=f"^{out} is being written") as error:
            workshop(out, pristine, encoder).__enter__()
        assert "repairing" not in str(error.value)
        folder = bench.build(EDIT)
    with pytest.raises(RunError, match=f"write {out}/REPAIR.md"), workshop(out, pristine, encoder):
        raise RunError(f"no space left to write {folder}/REPAIR.md")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_folder_that_is_there_is_complete(pristine, tmp_path):
    encoder = load_encoder(pristine)
    write(pristine, encoder, tmp_path / "whole")
    whole = content_of(tmp_path / "whole")
    generator = random.Random(0)
    unfinished = 0
    for attempt in range(3):
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
        for folder in finished:
            assert content_of(folder) == whole
        left = list(place.glob(".*.repairing"))
        unfinished += len(left)
        for folder in left:
            target = place / folder.name.removeprefix(".").removesuffix(".repairing")
            if target.exists():  # killed after its last step
                clear_workshop(target)
            else:
                write(pristine, encoder, target)
            assert content_of(target) == whole
        assert not list(place.glob(".*"))
    assert unfinished
