"""Fixtures of the tests of scans."""

import pytest

import scanned


@pytest.fixture(scope="session")
def scanned_run(tmp_path_factory):
    """The folder of a run whose model has one sticky word."""
    return scanned.save_run(tmp_path_factory.mktemp("scanned"))
