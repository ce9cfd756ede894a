"""Put the results into the tables of results/README.md; --check only says what is not up to date.

A table stands between <!-- NAME --> and <!-- end -->; NAME is that of a file in benchmarks/results/.
"""

from __future__ import annotations

import json
import re
from typing import Any

from bench import RESULTS, commands, refuse
from stickytoken.validation import markdown_table

PAGE = RESULTS / "README.md"
_TABLE = re.compile(r"<!-- (?P<name>[\w-]+) -->\n.*?<!-- end -->", re.DOTALL)


def table(name: str) -> str:
    """The checks of a result file as a Markdown table, or the columns and rows that it holds."""
    path = RESULTS / f"{name}.json"
    if not path.is_file():
        refuse(f"the page has a table {name!r}, and there is no {path}")
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    columns = document.get("columns", ("check", "bar", "ours", ""))
    rows = document.get("rows") or [
        [each["name"], each["bar"], each["ours"], "" if each["passed"] else "missed"]
        for each in document["checks"]
    ]
    return markdown_table(columns, [[cell.replace("|", "\\|") for cell in row] for row in rows])


def filled(page: str) -> str:
    """The page with every table as the results have it."""
    return _TABLE.sub(
        lambda found: f"<!-- {found['name']} -->\n\n{table(found['name'])}\n\n<!-- end -->", page
    )


def main(check: bool = False) -> None:
    before = PAGE.read_text(encoding="utf-8")
    after = filled(before)
    if not check:
        PAGE.write_text(after, encoding="utf-8")
    elif after != before:
        refuse(f"{PAGE} is not up to date: run python benchmarks/fill_tables.py")


if __name__ == "__main__":
    commands(__doc__, main)
