"""Put the results into the tables of docs/benchmarks.md, docs/why.md and docs/dimensions.md.

python benchmarks/fill_tables.py            # after a benchmark was run
python benchmarks/fill_tables.py --check    # says what is not up to date, and changes nothing

A table stands between ``<!-- NAME -->`` and ``<!-- end -->``; NAME is that of a file in benchmarks/results/.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from typing import Any

from checks import RESULTS

_DOCS = RESULTS.parents[1] / "docs"
PAGES = (_DOCS / "benchmarks.md", _DOCS / "why.md", _DOCS / "dimensions.md")
_TABLE = re.compile(r"<!-- (?P<name>[\w-]+) -->\n.*?<!-- end -->", re.DOTALL)


def table(name: str) -> str:
    """The checks of a result file as a Markdown table, or the columns and rows that it holds."""
    path = RESULTS / f"{name}.json"
    if not path.is_file():
        raise SystemExit(f"a page has a table {name!r}, and there is no {path}")
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    columns = document.get("columns", ["check", "bar", "ours", ""])
    rows = [columns, ["---"] * len(columns)]
    rows += document.get("rows") or [
        [each["name"], each["bar"], each["ours"], "" if each["passed"] else "missed"]
        for each in document["checks"]
    ]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)


def filled(page: str) -> str:
    """The page with every table as the results have it."""
    return _TABLE.sub(
        lambda found: f"<!-- {found['name']} -->\n\n{table(found['name'])}\n\n<!-- end -->", page
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit status 1 if it would")
    arguments = parser.parse_args()
    for path in PAGES:
        before = path.read_text(encoding="utf-8")
        after = filled(before)
        if arguments.check and after != before:
            sys.exit(f"{path} is not up to date: run python benchmarks/fill_tables.py")
        if not arguments.check:
            path.write_text(after, encoding="utf-8")


if __name__ == "__main__":
    main()
