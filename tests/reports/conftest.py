"""Runs that several tests of reports read."""

import shutil
from pathlib import Path

import pytest

import impact_files
import profiled
from stickytoken import load_encoder
from stickytoken.explanation import ExplainSettings, explain
from stickytoken.impacts import impact

EXPLAINED = ExplainSettings(
    copies=3, carriers=4, benign=4, attribution_carriers=1, attribution_benign=3, steps=3, directions=16
)


@pytest.fixture(scope="session")
def planted_encoder():
    """A model with one sticky token."""
    return load_encoder(profiled.planted_model(2))


@pytest.fixture(scope="session")
def run(planted_encoder, tmp_path_factory):
    """Its run."""
    return profiled.detect_profile(planted_encoder, tmp_path_factory.mktemp("run") / "run")


@pytest.fixture(scope="session")
def clean_run(tmp_path_factory):
    """A profile run over a few tokens, none of them sticky."""
    encoder = load_encoder(profiled.planted_model(0))
    return profiled.detect_profile(encoder, tmp_path_factory.mktemp("run") / "clean", sample=10)


@pytest.fixture(scope="session")
def explained_run(small_run, encoder, tmp_path_factory):
    """A run of a tiny BERT with two explained tokens."""
    folder = Path(shutil.copytree(small_run.path, tmp_path_factory.mktemp("explained") / "run"))
    explain(encoder, ["river", "garden"], run=small_run, settings=EXPLAINED, out=folder / "explain")
    return folder


@pytest.fixture(scope="session")
def measured(run, planted_encoder, tmp_path_factory):
    """A measurement of the sticky token, in a copy of the folder of its run."""
    folder = Path(shutil.copytree(run.path, tmp_path_factory.mktemp("measured") / "run"))
    tasks = impact_files.mixed_tasks(folder.parent / "tasks")
    found = impact(planted_encoder, tasks, run=folder, intrusion=tasks[-1], settings=impact_files.FEW)
    assert found.path.parent == folder
    return found


@pytest.fixture
def run_copy(request, tmp_path):
    """A copy, which a test may change, of the run with a sticky token or of another that the module names."""
    source = request.getfixturevalue(getattr(request.module, "COPIED", "run"))
    folder = source if isinstance(source, Path) else source.path
    folder = folder.parent if folder.name.startswith("impact-") else folder
    return Path(shutil.copytree(folder, tmp_path / "copy"))
