"""Settings of the whole test run. Its fixtures are in tests/support/shared_fixtures.py."""

import os
import signal
from importlib.util import find_spec

import pytest

# Nothing in the tests may reach a network, whatever the machine's settings are.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
# Tiny models gain nothing from threads, and lose much to threads that wait for each other.
os.environ["OMP_NUM_THREADS"] = "1"

import hypothesis

# Whether a test passes depends neither on chance nor on how busy the machine is.
hypothesis.settings.register_profile("stickytoken", deadline=None, derandomize=True)
hypothesis.settings.load_profile("stickytoken")


# Without Gradio the web app cannot be imported; tests of an installed wheel build environments.
_NEEDED = {"demo": find_spec("gradio"), "installed": os.environ.get("STICKYTOKEN_WHEEL")}
collect_ignore_glob = [f"{folder}/*" for folder, found in _NEEDED.items() if not found]

# Of the tests that start a browser or Ray: two and one, so that every run of the tests has each.
ON_EVERY_RUN = (
    "test_hostile_text_is_text_everywhere",
    "test_it_is_quiet_and_never_wider_than_the_screen",
    "test_a_worker_that_is_killed_in_the_middle_is_replaced_and_changes_no_byte",
)


# In the background of a shell, Ctrl-C is ignored, and so it would be by the processes that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    """Import the fixtures, and torch with them, unless this process only hands tests out to others."""
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        config.pluginmanager.import_plugin("shared_fixtures")


def pytest_make_parametrize_id(val: object) -> str | None:
    """Name a case by the values that a message names."""
    from naming import Naming

    return "-".join(map(str, val.values)) if isinstance(val, Naming) else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what uses the fixture `browser`, and what runs at night, before `-m` selects."""
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker("browser")
        dear = "test_ray_engine" in item.nodeid or item.get_closest_marker("browser") is not None
        at_night = item.name == "test_entries_and_all_specials_of_every_tokenizer_there_is[roberta-base]"
        if at_night or (dear and item.originalname not in ON_EVERY_RUN):
            item.add_marker("nightly")
