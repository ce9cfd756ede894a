"""Fixtures of the tests of adapters."""

import os

import pytest

from stickytoken import Cleaner
from stickytoken.cleaning import CleaningRules

# Libraries that report to their makers, or would.
os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"
os.environ["LANGSMITH_TRACING"] = "false"

RULES = CleaningRules(words=("able", "stone"), specials=("[SEP]", "<|endoftext|>"))


@pytest.fixture(scope="session")
def cleaner():
    return Cleaner(RULES)


@pytest.fixture(scope="session")
def thorough():
    return Cleaner(RULES, unsafe_fixes=True)


@pytest.fixture(scope="session")
def cleaner_file(cleaner, tmp_path_factory):
    path = tmp_path_factory.mktemp("cleaner") / "rules.json"
    cleaner.save(path)
    return path
