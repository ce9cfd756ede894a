"""Findings as GitHub workflow commands, shown next to the code.

GitHub shows at most ten errors, ten warnings and ten notices of a step, so the first lines count most.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from stickytoken.findings._finding import Finding, Level
from stickytoken.visible_text import visible

_COMMANDS = {Level.ERROR: "error", Level.WARNING: "warning", Level.NOTE: "notice"}


def github_annotations(findings: Iterable[Finding], incomplete: Sequence[str] = ()) -> Iterator[str]:
    """Yield one line per finding, in the order given, after what could not be checked.

    Args:
        findings: what was found.
        incomplete: what could not be checked, one message each.
    """
    for message in incomplete:
        yield _command("error", {"title": "stickytoken could not check everything"}, message)
    for finding in findings:
        properties: dict[str, str] = {}
        if finding.path is not None:
            properties = {"file": finding.path, "line": str(finding.line or 1)}
        properties["title"] = f"stickytoken: {finding.rule}"
        yield _command(_COMMANDS[finding.level], properties, finding.message)


def _command(name: str, properties: Mapping[str, str], message: str) -> str:
    listed = ",".join(f"{key}={_property(value)}" for key, value in properties.items())
    return f"::{name} {listed}::{_data(message)}"


def _data(text: str) -> str:
    """Escape the message of a workflow command; control characters are visible, so no line can end early."""
    return visible(text).replace("%", "%25")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
