"""Threads that wait for one another leave the processor to others."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import os, sys
from stickytoken.cli.main import main
sys.argv = ["stickytoken", "--version"]
try:
    main()
except SystemExit:
    print(os.environ["OMP_WAIT_POLICY"])
"""


@pytest.mark.parametrize("chosen", [None, "ACTIVE"])
def test_commands_let_threads_sleep_unless_told_otherwise(chosen):
    environment = {key: value for key, value in os.environ.items() if key != "OMP_WAIT_POLICY"}
    if chosen:
        environment["OMP_WAIT_POLICY"] = chosen
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split()[-1] == (chosen or "PASSIVE")
