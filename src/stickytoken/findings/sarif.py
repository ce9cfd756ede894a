"""Findings as SARIF 2.1.0, the format of GitHub code scanning and most viewers.

Section numbers refer to the SARIF 2.1.0 standard of OASIS.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import quote

from stickytoken.findings._finding import Finding, JsonValue, Rule
from stickytoken.visible_text import visible

_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_FINGERPRINT = "stickytoken/v1"
# The one fingerprint that GitHub reads. Without it, GitHub hashes the line, which several findings share.
_GITHUB_FINGERPRINT = "primaryLocationLineHash"
_ROOT = "SRCROOT"


def sarif(
    findings: Iterable[Finding], rules: Sequence[Rule], tool_version: str, incomplete: Sequence[str] = ()
) -> dict[str, Any]:
    """Return findings as a SARIF document in JSON values.

    Args:
        findings: what was found; paths are relative to the root of the repository.
        rules: every rule that was checked, also those without findings.
        tool_version: version of stickytoken.
        incomplete: what could not be checked, one message each. A document with any reports a failed run.

    Raises:
        ValueError: a finding names a rule that is not among the rules.
    """
    places = {rule.id: place for place, rule in enumerate(rules)}
    invocation: dict[str, Any] = {"executionSuccessful": not incomplete}
    if incomplete:
        invocation["toolExecutionNotifications"] = [
            {"level": "error", "message": {"text": message_text(message)}} for message in incomplete
        ]
    run = {
        "tool": {
            "driver": {
                "name": "stickytoken",
                "semanticVersion": tool_version,
                "rules": [_rule(rule) for rule in rules],
            }
        },
        "invocations": [invocation],
        "columnKind": "unicodeCodePoints",
        "results": [_result(finding, places) for finding in findings],
    }
    return {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}


def _rule(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.id,
        "name": "".join(word.capitalize() for word in rule.id.split("-")),
        "shortDescription": {"text": message_text(rule.title)},
        "fullDescription": {"text": message_text(rule.help)},
        "help": {"text": message_text(rule.help)},
        "defaultConfiguration": {"level": rule.level.value},
    }


def _result(finding: Finding, places: dict[str, int]) -> dict[str, Any]:
    if finding.rule not in places:
        raise ValueError(f"a finding names the rule {finding.rule!r}, which is not among the rules")
    return {
        "ruleId": finding.rule,
        "ruleIndex": places[finding.rule],
        "level": finding.level.value,
        "message": {"text": message_text(finding.message)},
        "locations": [_location(finding)],
        "partialFingerprints": {
            _FINGERPRINT: finding.fingerprint,
            _GITHUB_FINGERPRINT: f"{finding.fingerprint}:1",
        },
        "properties": {key: _shown(value) for key, value in finding.properties.items()},
    }


def _location(finding: Finding) -> dict[str, Any]:
    if finding.path is None:
        name = "/".join(visible(part) for part in finding.identity) or finding.rule
        return {"logicalLocations": [{"fullyQualifiedName": name}]}
    place = {"uri": relative_uri(finding.path), "uriBaseId": _ROOT}
    # GitHub shows no result without a line.
    return {"physicalLocation": {"artifactLocation": place, "region": {"startLine": finding.line or 1}}}


def relative_uri(path: str) -> str:
    """Return a relative path as a relative URI; bytes of a name that are not UTF-8 are kept."""
    try:
        name = path.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        name = path.encode("utf-8", "surrogatepass")
    return quote(name, safe="/")


def message_text(text: str) -> str:
    """Return text that a reader of SARIF shows literally.

    Braces would begin a placeholder (3.11.5), and ``[text](address)`` would be a link (3.11.6). Square
    brackets elsewhere are literal, so that ``[CLS]`` stays readable in viewers that know no escapes.
    """
    shown = visible(text)
    if "](" in shown:
        for character in "\\[]":
            shown = shown.replace(character, f"\\{character}")
    return shown.replace("{", "{{").replace("}", "}}")


def _shown(value: JsonValue) -> JsonValue:
    """Make the text in JSON values visible, keys included."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, list):
        return [_shown(each) for each in value]
    if isinstance(value, dict):
        return {visible(key): _shown(each) for key, each in value.items()}
    return value
