"""Repair of models that read queries and documents on different routes."""

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

import profiled
import repaired
import tiny_architectures as architectures
from naming import says
from stickytoken import load_encoder
from stickytoken.repairs import RepairSettings, repair

pytestmark = pytest.mark.slow  # whole runs

TEXT = f"the {repaired.WORD} of the river"


def saved_router(folder, *, shared):
    """Save a model with a sticky word on both routes, which share their modules or have their own."""
    query = repaired.planted_words(repaired.WORD)
    document = query if shared else repaired.planted_words(repaired.WORD)
    return architectures.saved(architectures.router(query, document), folder)


def changed(before, after, route):
    """Say whether the vector of a text with the sticky word differs between two saved models."""
    vectors = [
        SentenceTransformer(str(folder), device="cpu").encode(TEXT, task=route) for folder in (before, after)
    ]
    return not np.array_equal(*vectors)


@pytest.mark.parametrize(
    ("route", "shared", "measured", "other"),
    [("query", False, "query", "document"), (None, True, "document", "query")],
)
def test_the_measured_route_is_repaired(route, shared, measured, other, tmp_path):
    folder = saved_router(tmp_path / "model", shared=shared)
    run = profiled.detect_profile(load_encoder(folder, device="cpu", route=route), tmp_path / "run")
    mended = repair(
        run,
        out=tmp_path / "mended",
        sentences=repaired.unused_corpus(),
        task=repaired.task_file(tmp_path),
    )
    assert mended.verified, mended.record.verification
    assert changed(folder, tmp_path / "mended", measured)
    assert changed(folder, tmp_path / "mended", other) is shared
    (note,) = mended.record.notes
    assert says(note, repr(measured))
    assert (f"--route {other}" in note) is not shared


@pytest.mark.parametrize("shared", [False, True])
def test_a_row_of_one_route_is_written(shared, tmp_path):
    folder = saved_router(tmp_path / "model", shared=shared)
    run = profiled.detect_profile(load_encoder(folder, device="cpu", route="query"), tmp_path / "run")
    repair(run, out=tmp_path / "mended", settings=RepairSettings(strategy="nearest", verify=False))
    assert changed(folder, tmp_path / "mended", "query")
    assert changed(folder, tmp_path / "mended", "document") is shared


def test_affected_documents_are_read_on_the_repaired_route(tmp_path):
    query = repaired.planted_words(repaired.WORD)
    document = architectures.static_model()
    folder = architectures.saved(architectures.router(query, document), tmp_path / "model")
    run = profiled.detect_profile(load_encoder(folder, device="cpu", route="query"), tmp_path / "run")
    mended = repair(
        run, out=tmp_path / "mended", settings=RepairSettings(strategy="unreachable", verify=False)
    )
    affected = mended.affected([f"a {repaired.WORD}", f"a {repaired.OTHER}"], folder)
    assert affected["index"].to_list() == [0]
