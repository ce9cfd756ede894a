"""Runs that several tests of reports read."""

import pytest

import profiled
from stickytoken import load_encoder


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A profile run with one sticky token."""
    encoder = load_encoder(profiled.planted_model(2))
    return profiled.detect_profile(encoder, tmp_path_factory.mktemp("run") / "run")


@pytest.fixture(scope="module")
def clean_run(tmp_path_factory):
    """A profile run over a few tokens, none of them sticky."""
    encoder = load_encoder(profiled.planted_model(0))
    return profiled.detect_profile(encoder, tmp_path_factory.mktemp("run") / "clean", sample=10)
