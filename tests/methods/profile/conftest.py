"""Models that several modules measure, and that none changes."""

import pytest

import profiled
from stickytoken import load_encoder


@pytest.fixture(scope="session")
def model():
    return profiled.planted_model(4)


@pytest.fixture(scope="session")
def encoder(model):
    return load_encoder(model)


@pytest.fixture(scope="session")
def foreign():
    return load_encoder(profiled.foreign_model())
