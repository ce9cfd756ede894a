"""Runs that several tests of reports read."""

import shutil
from pathlib import Path

import pytest

import profiled
from stickytoken import load_encoder


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    """A profile run with one sticky token."""
    encoder = load_encoder(profiled.planted_model(2))
    return profiled.detect_profile(encoder, tmp_path_factory.mktemp("run") / "run")


@pytest.fixture(scope="session")
def clean_run(tmp_path_factory):
    """A profile run over a few tokens, none of them sticky."""
    encoder = load_encoder(profiled.planted_model(0))
    return profiled.detect_profile(encoder, tmp_path_factory.mktemp("run") / "clean", sample=10)


@pytest.fixture
def run_copy(run, tmp_path):
    """A copy of the first that a test may change."""
    return Path(shutil.copytree(run.path, tmp_path / "copy"))
