"""Findings in the formats of build servers: SARIF 2.1.0, JUnit XML and GitHub annotations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import quote
from xml.etree import ElementTree as ET

from stickytoken.machine import digest
from stickytoken.validation import visible

JsonValue: TypeAlias = "str | int | float | bool | list[JsonValue] | dict[str, JsonValue] | None"


class Level(StrEnum):
    """How much a finding matters."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Rule:
    """What a check looks for.

    Attributes:
        id: short name in lower case, such as ``sticky-token``.
        title: one sentence without a full stop, such as ``No token of the model is sticky``.
        help: what a finding means and what to do about it, in whole sentences.
        level: level of most of its findings.
    """

    id: str
    title: str
    help: str
    level: Level


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was found.

    Text may be hostile: every format escapes it.

    Attributes:
        rule: id of the rule.
        level: how much it matters.
        message: one sentence for people.
        path: file in the repository, relative to its root, with slashes; None if it belongs to no file there.
        line: line in the file, from 1.
        outside: the file outside the repository, as an absolute path, or what else was read, such as
            ``stdin``; None if it belongs to no file at all.
        identity: what makes it the same finding in a later run, such as rule, model and token.
        properties: anything else, as JSON values.
    """

    rule: str
    level: Level
    message: str
    path: str | None = None
    line: int | None = None
    identity: tuple[str, ...] = ()
    properties: Mapping[str, JsonValue] = field(default_factory=dict)
    outside: str | None = None

    @property
    def fingerprint(self) -> str:
        """Hash of the identity, by which later runs recognise the finding."""
        return digest([self.rule, *(self.identity or (self.message, self.path or ""))])


__all__ = ["Finding", "JsonValue", "Level", "Rule"]


_COMMANDS = {Level.ERROR: "error", Level.WARNING: "warning", Level.NOTE: "notice"}


def github_annotations(findings: Iterable[Finding], incomplete: Sequence[str] = ()) -> Iterator[str]:
    for message in incomplete:
        yield _command("error", {"title": "stickytoken could not check everything"}, message)
    for finding in findings:
        properties: dict[str, str] = {}
        if finding.path is not None:
            properties = {"file": finding.path, "line": str(finding.line or 1)}
        properties["title"] = f"stickytoken: {finding.rule}"
        yield _command(_COMMANDS[finding.level], properties, finding.message)


def _command(name: str, properties: Mapping[str, str], message: str) -> str:
    escaped = {key: _escaped(value).replace(":", "%3A") for key, value in properties.items()}
    listed = ",".join(f"{key}={value.replace(',', '%2C')}" for key, value in escaped.items())
    return f"::{name} {listed}::{_escaped(message)}"


def _escaped(text: str) -> str:
    # Control characters are visible, so no line can end early.
    return visible(text).replace("%", "%25")


def junit(
    findings: Iterable[Finding], rules: Sequence[Rule], suite: str, incomplete: Sequence[str] = ()
) -> str:
    """Return JUnit XML: only findings of level error fail, and a rule without findings is one passed test."""
    by_rule: dict[str, list[Finding]] = {rule.id: [] for rule in rules}
    for finding in findings:
        by_rule[finding.rule].append(finding)
    cases = []
    for message in incomplete:
        cases.append(_case("complete", "Everything could be checked"))
        ET.SubElement(cases[-1], "error", {"type": "incomplete", "message": visible(message)})
    for rule in rules:
        # A rule that could not be checked has not passed.
        if not by_rule[rule.id] and not incomplete:
            cases.append(_case(rule.id, rule.title))
        for finding in by_rule[rule.id]:
            case, message = _case(rule.id, finding.message), visible(finding.message)
            cases.append(case)
            if finding.path is not None:
                case.set("file", visible(finding.path))
            if finding.line is not None:
                case.set("line", str(finding.line))
            if finding.level is not Level.ERROR:
                ET.SubElement(case, "system-out").text = f"{finding.level.value}: {message}"
                continue
            known = {key: value for key, value in finding.properties.items() if value is not None}
            details = [message, *(visible(f"{key}: {value}") for key, value in known.items())]
            failure = ET.SubElement(case, "failure", {"type": rule.id, "message": message})
            failure.text = "\n".join(details)
    counts = {
        "tests": str(len(cases)),
        "failures": str(sum(case.find("failure") is not None for case in cases)),
        "errors": str(len(incomplete)),
        "skipped": "0",
    }
    root = ET.Element("testsuites", {"name": "stickytoken", **counts})
    ET.SubElement(root, "testsuite", {"name": visible(suite), **counts}).extend(cases)
    ET.indent(root)
    content: bytes = ET.tostring(root, encoding="us-ascii", xml_declaration=True)
    return content.decode("ascii") + "\n"


def _case(rule: str, name: str) -> ET.Element:
    return ET.Element("testcase", {"classname": f"stickytoken.{rule}", "name": visible(name)})


@cache
def _root(here: Path) -> Path:
    return next((each for each in (here, *here.parents) if (each / ".git").exists()), here).resolve()


def repository_path(path: Path) -> str | None:
    try:
        inside = path.resolve().relative_to(_root(Path.cwd()))
    except (ValueError, OSError):
        return None
    return None if inside == Path() else inside.as_posix()


def place_of(path: Path) -> tuple[str | None, str | None]:
    """Return a file as `Finding.path` and `Finding.outside` have it: one of them is None."""
    inside = repository_path(path)
    if inside is not None:
        return inside, None
    try:
        return None, path.resolve().as_posix()
    except OSError:
        return None, path.absolute().as_posix()


STDIN_NAME = "stdin"
# The file that a finding without a file is shown in: GitHub refuses results without one.
_PROJECT_FILE = "pyproject.toml"
_IN_REPOSITORY = "SRCROOT"
_OUTSIDE = "FILESYSTEM"
# GitHub refuses files with more results.
_MOST_RESULTS = 25_000
_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
# The one fingerprint that GitHub reads. Without it, GitHub hashes the line, which several findings share.
_GITHUB_FINGERPRINT = "primaryLocationLineHash"


def sarif(
    findings: Iterable[Finding], rules: Sequence[Rule], tool_version: str, incomplete: Sequence[str] = ()
) -> dict[str, Any]:
    """Return a SARIF log that GitHub code scanning accepts.

    GitHub asks for more than the schema: a file and a line for every result, relative URIs, a help text for
    every rule, and at most 25,000 results.
    """
    places = {rule.id: place for place, rule in enumerate(rules)}
    kept = list(findings)
    notifications = [_notification("error", message) for message in incomplete]
    if len(kept) > _MOST_RESULTS:
        left_out = len(kept) - _MOST_RESULTS
        order = list(Level)
        kept = sorted(kept, key=lambda finding: order.index(finding.level))[:_MOST_RESULTS]
        message = f"{left_out:,} findings are left out: GitHub takes {_MOST_RESULTS:,}"
        notifications.append(_notification("warning", message))
    invocation: dict[str, Any] = {"executionSuccessful": not incomplete}
    if notifications:
        invocation["toolExecutionNotifications"] = notifications
    described_rules = [
        {
            "id": rule.id,
            "name": "".join(word.capitalize() for word in rule.id.split("-")),
            "shortDescription": {"text": message_text(rule.title)},
            "fullDescription": {"text": message_text(rule.help)},
            "help": {"text": message_text(rule.help)},
            "defaultConfiguration": {"level": rule.level.value},
        }
        for rule in rules
    ]
    results = []
    for finding in kept:
        fingerprints = {
            "stickytoken/v1": finding.fingerprint,
            _GITHUB_FINGERPRINT: f"{finding.fingerprint}:1",
        }
        result = {
            "ruleId": finding.rule,
            "ruleIndex": places[finding.rule],
            "level": finding.level.value,
            "message": {"text": message_text(finding.message)},
            "locations": [_location(finding)],
            "partialFingerprints": fingerprints,
            "properties": {key: _shown(value) for key, value in finding.properties.items()},
        }
        results.append(result)
    run = {
        "tool": {
            "driver": {"name": "stickytoken", "semanticVersion": tool_version, "rules": described_rules}
        },
        "invocations": [invocation],
        "originalUriBaseIds": {_OUTSIDE: {"uri": "file:///"}},
        "columnKind": "unicodeCodePoints",
        "results": results,
    }
    return {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}


def _notification(level: str, message: str) -> dict[str, Any]:
    return {"level": level, "message": {"text": message_text(message)}}


def _location(finding: Finding) -> dict[str, Any]:
    """Return the file and line of a finding, and its name if it has no file."""
    line = finding.line or 1
    if finding.path is not None:
        return _physical(finding.path, _IN_REPOSITORY, line)
    location = _physical(_PROJECT_FILE, _IN_REPOSITORY, line)
    if finding.outside is not None:
        base = _OUTSIDE if finding.outside.startswith("/") else _IN_REPOSITORY
        location = _physical(finding.outside.lstrip("/"), base, line)
    name = "/".join(visible(part) for part in finding.identity) or finding.rule
    return location | {"logicalLocations": [{"fullyQualifiedName": name}]}


def _physical(path: str, base: str, line: int) -> dict[str, Any]:
    """Return a location in a file by a relative URI, without a leading slash, dots or a colon."""
    try:
        uri = quote(path, errors="surrogateescape")  # bytes that are not UTF-8 stay
    except UnicodeEncodeError:
        uri = quote(path, errors="surrogatepass")
    file = {"uri": uri, "uriBaseId": base}
    return {"physicalLocation": {"artifactLocation": file, "region": {"startLine": line}}}


def message_text(text: str) -> str:
    """Return text that a reader of SARIF shows literally: no placeholders (3.11.5), no links (3.11.6)."""
    shown = visible(text)
    if "](" in shown:  # elsewhere brackets are literal, and readable in viewers that know no escapes
        for character in "\\[]":
            shown = shown.replace(character, f"\\{character}")
    return shown.replace("{", "{{").replace("}", "}}")


def _shown(value: JsonValue) -> JsonValue:
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, list):
        return [_shown(each) for each in value]
    if isinstance(value, dict):
        return {visible(key): _shown(each) for key, each in value.items()}
    return value
