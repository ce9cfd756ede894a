"""Models that several modules measure, and that none changes."""

import pytest

import profiled
from stickytoken import load_encoder


@pytest.fixture(scope="session")
def model():
    """Has one sticky token, and reads English letter by letter."""
    return profiled.planted_model(2)


@pytest.fixture(scope="session")
def encoder(model):
    return load_encoder(model)


@pytest.fixture(scope="session")
def foreign():
    """Does not read the bundled kinds of text."""
    return load_encoder(profiled.foreign_model())
