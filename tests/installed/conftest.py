"""Tests of an installed wheel. They build environments, so only `make test-dist` collects them."""

import os

collect_ignore_glob = [] if os.environ.get("STICKYTOKEN_WHEEL") else ["test_*.py"]
