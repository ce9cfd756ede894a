"""Findings in the formats of build servers: SARIF 2.1.0, JUnit XML and GitHub annotations."""

from stickytoken.findings._finding import Finding, JsonValue, Level, Rule

__all__ = ["Finding", "JsonValue", "Level", "Rule"]
