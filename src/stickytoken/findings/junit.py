"""Findings as JUnit XML, which nearly every build server shows as tests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from xml.etree import ElementTree as ET

from stickytoken.findings._finding import Finding, Level, Rule
from stickytoken.visible_text import visible

_FAILING = frozenset({Level.ERROR})


def junit(
    findings: Iterable[Finding], rules: Sequence[Rule], suite: str, incomplete: Sequence[str] = ()
) -> str:
    """Return findings as a JUnit XML document in ASCII.

    A rule without findings is one passed test. A finding of level error is a failed test; one of another
    level is a passed test with its message as output.

    Args:
        findings: what was found.
        rules: every rule that was checked, also those without findings.
        suite: name of the test suite, such as the model.
        incomplete: what could not be checked, one message each: tests with errors.

    Raises:
        ValueError: a finding names a rule that is not among the rules.
    """
    by_rule: dict[str, list[Finding]] = {rule.id: [] for rule in rules}
    for finding in findings:
        if finding.rule not in by_rule:
            raise ValueError(f"a finding names the rule {finding.rule!r}, which is not among the rules")
        by_rule[finding.rule].append(finding)
    cases = [_error(message) for message in incomplete]
    for rule in rules:
        found = by_rule[rule.id]
        # A rule that could not be checked has not passed.
        if not found and not incomplete:
            cases.append(_case(rule.id, rule.title))
        cases += [_finding_case(finding) for finding in found]
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


def _error(message: str) -> ET.Element:
    case = _case("complete", "Everything could be checked")
    ET.SubElement(case, "error", {"type": "incomplete", "message": visible(message)})
    return case


def _finding_case(finding: Finding) -> ET.Element:
    case = _case(finding.rule, finding.message)
    if finding.path is not None:
        case.set("file", visible(finding.path))
    if finding.line is not None:
        case.set("line", str(finding.line))
    if finding.level in _FAILING:
        attributes = {"type": finding.rule, "message": visible(finding.message)}
        ET.SubElement(case, "failure", attributes).text = _details(finding)
    else:
        ET.SubElement(case, "system-out").text = f"{finding.level.value}: {visible(finding.message)}"
    return case


def _details(finding: Finding) -> str:
    lines = [finding.message]
    lines += [f"{key}: {value}" for key, value in finding.properties.items() if value is not None]
    return "\n".join(visible(line) for line in lines)
