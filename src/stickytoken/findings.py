"""Findings in the formats of build servers: SARIF 2.1.0, JUnit XML and GitHub annotations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, TypeAlias
from urllib.parse import quote
from xml.etree import ElementTree as ET

from stickytoken.machine import digest
from stickytoken.validation import visible

JsonValue: TypeAlias = "str | int | float | bool | list[JsonValue] | dict[str, JsonValue] | None"


class Level(StrEnum):
    """The severity of a finding.

    Examples:
        >>> from stickytoken.findings import Level
        >>> list(map(str, Level))
        ['error', 'warning', 'note']
    """

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule that a check applies.

    Attributes:
        id: short name in lower case, such as ``sticky-token``.
        title: one sentence without a full stop, such as ``No token of the model is sticky``.
        help: what a finding means and what to do about it, in full sentences.
        level: the usual severity of a finding under this rule.

    Examples:
        >>> stickytoken.check(run).rules[0].id
        'sticky-token'
    """

    id: str
    title: str
    help: str
    level: Level


@dataclass(frozen=True, slots=True)
class Finding:
    """A violation of a rule, such as a sticky token.

    The texts of a finding may contain control characters or markup, so every output format escapes them.

    Attributes:
        rule: id of the rule.
        level: severity.
        message: one sentence that describes the finding.
        path: path of the file relative to the root of the repository, with forward slashes; None if the
            finding is not in a file of the repository.
        line: 1-based line number in the file; None if unknown.
        outside: absolute path of a file outside the repository, or the name of another source such as
            ``stdin``; None if the finding is in the repository or has no source.
        identity: values that identify the finding across runs, such as the model and the token.
        properties: further values to include in JSON and SARIF output.

    Examples:
        >>> from stickytoken.findings import Finding, Level
        >>> finding = Finding(
        ...     rule="copies", level=Level.WARNING, message="the word is repeated", path="a.txt", line=3,
        ...     identity=("a", "the"), properties={},
        ... )
        >>> finding.level.value, finding.line
        ('warning', 3)
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
        """Hash of the rule and the identity, which lets build servers recognise the finding in later runs."""
        return digest([self.rule, *(self.identity or (self.message, self.path or ""))])


__all__ = ["Finding", "JsonValue", "Level", "Rule"]


_GITHUB_COMMANDS = {Level.ERROR: "error", Level.WARNING: "warning", Level.NOTE: "notice"}


def github_annotations(findings: Iterable[Finding], incomplete: Sequence[str] = ()) -> Iterator[str]:
    """Yield workflow commands that GitHub shows as annotations, one line each.

    Args:
        findings: the findings.
        incomplete: the reasons why some checks could not be carried out.
    """
    for message in incomplete:
        yield _write_github_command("error", {"title": "stickytoken could not check everything"}, message)
    for finding in findings:
        properties: dict[str, str] = {}
        if finding.path is not None:
            properties = {"file": finding.path, "line": str(finding.line or 1)}
        properties["title"] = f"stickytoken: {finding.rule}"
        yield _write_github_command(_GITHUB_COMMANDS[finding.level], properties, finding.message)


def _write_github_command(name: str, properties: Mapping[str, str], message: str) -> str:
    # Returns, for example, ``::error file=a.txt,line=3::a message``.
    escaped_properties = []
    for key, value in properties.items():
        # Colons and commas are escaped, because they separate the properties of a command.
        escaped_value = _escape_for_github(value).replace(":", "%3A").replace(",", "%2C")
        escaped_properties.append(f"{key}={escaped_value}")
    return f"::{name} {','.join(escaped_properties)}::{_escape_for_github(message)}"


def _escape_for_github(text: str) -> str:
    # `visible` escapes line breaks, so the text cannot end the workflow command that contains it.
    return visible(text).replace("%", "%25")


def junit(
    findings: Iterable[Finding],
    rules: Sequence[Rule],
    suite: str,
    incomplete: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> str:
    """Return JUnit XML.

    A finding is a failed test if its level is error, and a passed test otherwise. A rule without findings is
    a passed test.

    Args:
        findings: the findings.
        rules: the rules that were checked.
        suite: name of the test suite.
        incomplete: the reasons why some checks could not be carried out. If some checks could not be carried
            out, rules without findings are left out instead of being reported as passed tests.
        notes: remarks that do not affect the outcome; they are the output of the suite.
    """
    findings_of_rule: dict[str, list[Finding]] = {rule.id: [] for rule in rules}
    for finding in findings:
        findings_of_rule[finding.rule].append(finding)
    cases = []
    for reason in incomplete:
        case = _make_case("complete", "Everything could be checked")
        ET.SubElement(case, "error", {"type": "incomplete", "message": visible(reason)})
        cases.append(case)
    for rule in rules:
        is_passed = not findings_of_rule[rule.id] and not incomplete
        if is_passed:
            cases.append(_make_case(rule.id, rule.title))
        cases += [_make_finding_case(finding) for finding in findings_of_rule[rule.id]]
    # The root element and its only suite have the same counts.
    counts = {
        "tests": str(len(cases)),
        "failures": str(sum(case.find("failure") is not None for case in cases)),
        "errors": str(len(incomplete)),
        "skipped": "0",
    }
    root = ET.Element("testsuites", {"name": "stickytoken", **counts})
    test_suite = ET.SubElement(root, "testsuite", {"name": visible(suite), **counts})
    test_suite.extend(cases)
    if notes:
        ET.SubElement(test_suite, "system-out").text = "\n".join(map(visible, notes))
    ET.indent(root)
    content: bytes = ET.tostring(root, encoding="us-ascii", xml_declaration=True)
    return content.decode("ascii") + "\n"


def _make_finding_case(finding: Finding) -> ET.Element:
    """Return a finding as a JUnit test case: failed if its level is error, and passed otherwise.

    JUnit has no warnings, so the message of a passed test is in the output of the test.
    """
    case = _make_case(finding.rule, finding.message)
    message = visible(finding.message)
    if finding.path is not None:
        case.set("file", visible(finding.path))
    if finding.line is not None:
        case.set("line", str(finding.line))
    if finding.level is not Level.ERROR:
        ET.SubElement(case, "system-out").text = f"{finding.level.value}: {message}"
        return case
    details = [message]
    for key, value in finding.properties.items():
        if value is not None:
            details.append(visible(f"{key}: {value}"))
    failure = ET.SubElement(case, "failure", {"type": finding.rule, "message": message})
    failure.text = "\n".join(details)
    return case


def _make_case(rule: str, name: str) -> ET.Element:
    return ET.Element("testcase", {"classname": f"stickytoken.{rule}", "name": visible(name)})


@cache
def _find_repository_root(folder: Path) -> Path:
    for candidate in (folder, *folder.parents):
        if (candidate / ".git").exists():
            return candidate.resolve()
    return folder.resolve()


def repository_path(path: Path) -> str | None:
    """Return a path relative to the repository root; None if the path is outside or is the root itself."""
    try:
        relative_path = path.resolve().relative_to(_find_repository_root(Path.cwd()))
    except (ValueError, OSError):  # the path is outside, or cannot be resolved
        return None
    return None if relative_path == Path() else relative_path.as_posix()


def place_of(path: Path) -> tuple[str | None, str | None]:
    """Return the values of `Finding.path` and `Finding.outside` for a file; exactly one of them is None."""
    path_in_repository = repository_path(path)
    if path_in_repository is not None:
        return path_in_repository, None
    try:
        return None, path.resolve().as_posix()
    except OSError:  # the system cannot follow a symbolic link in the path
        return None, path.absolute().as_posix()


STDIN_NAME = "stdin"
# File at which findings without a file are reported, because GitHub rejects results without a file.
_PROJECT_FILE = "pyproject.toml"
_IN_REPOSITORY = "SRCROOT"
_OUTSIDE = "FILESYSTEM"
# Maximum number of results that GitHub accepts in one file.
_MOST_RESULTS = 25_000
_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
# The only fingerprint that GitHub reads. Without this fingerprint, GitHub would use a hash of the line, which
# is equal for all findings that refer to one line.
_GITHUB_FINGERPRINT = "primaryLocationLineHash"


def sarif(
    findings: Iterable[Finding],
    rules: Sequence[Rule],
    tool_version: str,
    incomplete: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    """Return a SARIF log that GitHub code scanning accepts.

    Unlike the SARIF schema, GitHub requires a file and a line for every result, relative URIs and a help text
    for every rule, and accepts at most 25,000 results.

    Args:
        findings: the findings.
        rules: the rules that were checked.
        tool_version: version of stickytoken.
        incomplete: the reasons why some checks could not be carried out.
        notes: remarks that do not affect the outcome.
    """
    listed_findings = list(findings)
    notifications = [_make_notification("error", message) for message in incomplete]
    notifications += [_make_notification("note", message) for message in notes]
    if len(listed_findings) > _MOST_RESULTS:
        left_out = len(listed_findings) - _MOST_RESULTS
        gravest_first = list(Level)  # the order in which `Level` declares its values
        listed_findings.sort(key=lambda finding: gravest_first.index(finding.level))
        del listed_findings[_MOST_RESULTS:]
        message = f"{left_out:,} findings are left out: GitHub accepts {_MOST_RESULTS:,}"
        notifications.append(_make_notification("warning", message))
    invocation: dict[str, Any] = {"executionSuccessful": not incomplete}
    if notifications:
        invocation["toolExecutionNotifications"] = notifications
    driver = {
        "name": "stickytoken",
        "semanticVersion": tool_version,
        "rules": [_describe_rule(rule) for rule in rules],
    }
    rule_indexes = {rule.id: index for index, rule in enumerate(rules)}
    results = []
    occurrences: Counter[str] = Counter()  # of each fingerprint
    for finding in listed_findings:
        occurrences[finding.fingerprint] += 1
        rule_index = rule_indexes[finding.rule]
        results.append(_make_result(finding, rule_index, occurrences[finding.fingerprint]))
    run = {
        "tool": {"driver": driver},
        "invocations": [invocation],
        "originalUriBaseIds": {_OUTSIDE: {"uri": "file:///"}},
        "columnKind": "unicodeCodePoints",
        "results": results,
    }
    return {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}


def _describe_rule(rule: Rule) -> dict[str, Any]:
    """Return a rule as a `reportingDescriptor` of SARIF (section 3.49)."""
    return {
        "id": rule.id,
        "name": "".join(word.capitalize() for word in rule.id.split("-")),
        "shortDescription": {"text": message_text(rule.title)},
        "fullDescription": {"text": message_text(rule.help)},
        "help": {"text": message_text(rule.help)},
        "defaultConfiguration": {"level": rule.level.value},
    }


def _make_result(finding: Finding, rule_index: int, occurrence: int) -> dict[str, Any]:
    """Return a finding as a `result` of SARIF (section 3.27).

    ``occurrence`` counts the results with this fingerprint, from 1.
    """
    fingerprints = {
        "stickytoken/v1": finding.fingerprint,
        # GitHub shows findings with one fingerprint as one alert, and two documents may have the same id and
        # words. Its own fingerprints end with a number that distinguishes equal lines.
        _GITHUB_FINGERPRINT: f"{finding.fingerprint}:{occurrence}",
    }
    return {
        "ruleId": finding.rule,
        "ruleIndex": rule_index,
        "level": finding.level.value,
        "message": {"text": message_text(finding.message)},
        "locations": [_locate(finding)],
        "partialFingerprints": fingerprints,
        "properties": {key: _escape_invisible(value) for key, value in finding.properties.items()},
    }


def _make_notification(level: str, message: str) -> dict[str, Any]:
    """Return a problem with the check itself as a `notification` of SARIF (section 3.58)."""
    return {"level": level, "message": {"text": message_text(message)}}


def _locate(finding: Finding) -> dict[str, Any]:
    """Return where a finding is, as a `location` of SARIF (section 3.28)."""
    line = finding.line or 1
    if finding.path is not None:
        return _make_location(finding.path, _IN_REPOSITORY, line)
    # GitHub rejects a finding without a file, so a finding outside the repository's files gets
    # `_PROJECT_FILE`.
    location = _make_location(_PROJECT_FILE, _IN_REPOSITORY, line)
    if finding.outside is not None:
        # `outside` is the absolute path of a file outside the repository, or the name of a source such as
        # stdin.
        base = _OUTSIDE if _is_absolute(finding.outside) else _IN_REPOSITORY
        relative_to_base = finding.outside.lstrip("/")
        location = _make_location(relative_to_base, base, line)
    name = "/".join(visible(value) for value in finding.identity) or finding.rule
    return location | {"logicalLocations": [{"fullyQualifiedName": name}]}


def _is_absolute(path: str) -> bool:
    return PurePosixPath(path).is_absolute() or PureWindowsPath(path).is_absolute()


def _make_location(path: str, base: str, line: int) -> dict[str, Any]:
    try:
        uri = quote(path, errors="surrogateescape")  # preserves bytes that are not valid UTF-8
    except UnicodeEncodeError:  # the path has surrogates that stand for no bytes
        uri = quote(path, errors="surrogatepass")
    file = {"uri": uri, "uriBaseId": base}
    return {"physicalLocation": {"artifactLocation": file, "region": {"startLine": line}}}


def message_text(text: str) -> str:
    """Escape text so that no part of it acts as a placeholder (SARIF, section 3.11.5) or a link (3.11.6)."""
    escaped = visible(text)
    if "](" in escaped:  # without it, brackets form no link, and read better without a backslash
        for character in "\\[]":
            escaped = escaped.replace(character, f"\\{character}")
    return escaped.replace("{", "{{").replace("}", "}}")


def _escape_invisible(value: JsonValue) -> JsonValue:
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, list):
        return [_escape_invisible(member) for member in value]
    if isinstance(value, dict):
        return {visible(key): _escape_invisible(member) for key, member in value.items()}
    return value
