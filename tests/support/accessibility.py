"""What axe-core says about a page: https://github.com/dequelabs/axe-core."""

from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

GRAVE = ("serious", "critical")
ALL = ("minor", "moderate", *GRAVE)


@cache
def _axe():
    spec = find_spec("axe_playwright_python")
    if spec is None:
        pytest.skip("axe-playwright-python, which ships axe-core, is not installed")
    return Path(spec.origin).with_name("axe.min.js").read_text("utf-8")


def violations(page, impacts=GRAVE):
    """One line for each element of an open page that breaks a rule of these impacts."""
    page.evaluate(_axe())
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{rule['impact']} {rule['id']}: {node['html'][:200]}: {node['failureSummary']}"
        for rule in found["violations"]
        if rule["impact"] in impacts
        for node in rule["nodes"]
    ]
