"""Runs that several tests of reports read."""

import shutil
from pathlib import Path

import polars as pl
import pytest

import planted
import profiled
import stickytoken
from stickytoken import load_encoder, open_run
from stickytoken.explanation import ExplainSettings, explain

EXPLAINED = ExplainSettings(
    copies=3, carriers=4, benign=4, attribution_carriers=1, attribution_benign=3, directions=16
)


@pytest.fixture(scope="session")
def planted_encoder(planted_profile):
    return load_encoder(planted_profile[0])


@pytest.fixture(scope="session")
def run(planted_profile):
    return open_run(planted_profile[1])


@pytest.fixture(scope="session")
def html(run):
    return stickytoken.report(run)


@pytest.fixture(scope="session")
def clean_run(tmp_path_factory):
    encoder = load_encoder(profiled.planted_model(0))
    return profiled.detect_profile(encoder, tmp_path_factory.mktemp("run") / "clean", sample=10)


@pytest.fixture(scope="session")
def explained_run(small_run, encoder, tmp_path_factory):
    folder = Path(shutil.copytree(small_run.path, tmp_path_factory.mktemp("explained") / "run"))
    explain(encoder, ["river", "garden"], run=small_run, settings=EXPLAINED, out=folder / "explain")
    return folder


@pytest.fixture
def run_copy(request, tmp_path):
    """A copy, which a test may change, of the run with a sticky token or of another that the module names."""
    source = request.getfixturevalue(getattr(request.module, "COPIED", "run"))
    folder = source if isinstance(source, Path) else source.path
    return Path(shutil.copytree(folder, tmp_path / "copy"))


@pytest.fixture
def retabled(run_copy):
    def change(**columns):
        table = pl.read_parquet(run_copy / "tokens.parquet").with_columns(**columns)
        planted.replace_tokens(run_copy, table)
        return run_copy

    return change
