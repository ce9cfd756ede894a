"""Fill the tables of benchmarks/results/README.md from the result files. Takes a few seconds.

In the page, a table stands between `<!-- NAME -->` and `<!-- end -->`, where NAME is the name of a result
file in benchmarks/results/ without its suffix.

    python benchmarks/fill_tables.py
    python benchmarks/fill_tables.py --check
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import typer

from bench import RESULTS, commands, refuse
from stickytoken.validation import markdown_table

PAGE = RESULTS / "README.md"
CHECK_COLUMNS = ("check", "bar", "ours", "")
_TABLE = re.compile(r"<!-- (?P<name>[\w-]+) -->\n.*?<!-- end -->", re.DOTALL)


def table(name: str) -> str:
    """Return the Markdown table of a result file.

    If the file contains ``rows``, they are the table; otherwise, the table has one row for each check.
    """
    path = RESULTS / f"{name}.json"
    if not path.is_file():
        refuse(f"the page has a table {name!r}, and there is no {path}")
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    columns = document.get("columns", CHECK_COLUMNS)
    rows = document.get("rows")
    if not rows:
        rows = [check_row(check) for check in document["checks"]]
    return markdown_table(columns, [escaped_cells(row) for row in rows])


def check_row(check: Mapping[str, Any]) -> list[str]:
    """Return the cells of one check, in the order of `CHECK_COLUMNS`."""
    verdict = "" if check["passed"] else "missed"
    return [check["name"], check["bar"], check["ours"], verdict]


def escaped_cells(cells: Iterable[str]) -> list[str]:
    """Return the cells of a row with vertical bars escaped, which would otherwise end a cell."""
    return [cell.replace("|", "\\|") for cell in cells]


def filled(page: str) -> str:
    """Return the text of the page with the current content of every table."""

    def fill(match: re.Match[str]) -> str:
        name = match["name"]
        return f"<!-- {name} -->\n\n{table(name)}\n\n<!-- end -->"

    return _TABLE.sub(fill, page)


def main(
    check: Annotated[bool, typer.Option(help="Change nothing; fail if the page is not up to date.")] = False,
) -> None:
    """Fill the tables of benchmarks/results/README.md from the result files in the same folder.

    In the page, a table stands between <!-- NAME --> and <!-- end -->, where NAME is the name of a result
    file without its suffix.
    """
    current_page = PAGE.read_text(encoding="utf-8")
    new_page = filled(current_page)
    if not check:
        PAGE.write_text(new_page, encoding="utf-8")
    elif new_page != current_page:
        refuse(f"{PAGE} is not up to date: run python benchmarks/fill_tables.py")


if __name__ == "__main__":
    commands(__doc__, main)
