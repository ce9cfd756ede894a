"""Build the documentation.

python website/build.py    # then open build/docs/index.html

Pages are those of docs/, the README and its neighbours, and two that are generated from the code. They are
put together in one folder first, so that the site's program needs no plugins for it. The reports of the
packaged runs are written beside them, and the pictures of the gallery lead there.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path

import stickytoken
from command_reference import command_page
from python_reference import python_page

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "src" / "stickytoken" / "demo" / "example"
# Files that stand where GitHub looks for them, and their pages.
_BESIDE = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "AGENTS.md": "rules.md",
    "SECURITY.md": "security.md",
    "CITATION.cff": "CITATION.cff",
    "LICENSE": "LICENSE",
}
_FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
# A link that shows the name of a file, as it does where files are read.
_FILE_LINK = re.compile(r"\[(?P<page>\w+)\.md\](?=\((?P=page)\.md)")
_OUTPUT = re.compile(r"(?<=^```console\n).*?(?=^```)", re.DOTALL | re.MULTILINE)
_OUTPUT_WIDTH = 96
# A picture of the report of a packaged run, or of its section on the repair.
_GALLERY = re.compile(r"<picture>.*?images/gallery-(?P<run>[\w-]+?)(?P<repair>-repaired)?\.png\)</picture>")
_LINK = re.compile(r"(?<=\]\()(?!https?:|#|mailto:)(?P<target>[^)#\s]+)")


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    sys.exit(build(ROOT / "build"))


def build(folder: Path) -> int:
    """Build the site into ``folder/docs``, from pages in ``folder/pages``; return the exit status.

    Any warning, such as a dead link, is a failure.
    """
    assemble(folder / "pages")
    shutil.copy(ROOT / "website" / "mkdocs.yml", folder)
    paths = os.pathsep.join(str(ROOT / name) for name in ("website", "src"))
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    environment = {**os.environ, "PYTHONPATH": paths, "NO_COLOR": "1"}
    return subprocess.run(command, cwd=folder, env=environment, check=False).returncode


def assemble(folder: Path) -> None:
    """Write all pages into a folder, which is made anew."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "docs", folder)
    shutil.copytree(ROOT / "website" / "static", folder, dirs_exist_ok=True)
    for source, page in _BESIDE.items():
        (folder / page).write_text(moved((ROOT / source).read_text("utf-8")), encoding="utf-8")
    titles = {page.stem: _title(page) for page in folder.glob("*.md")}
    for written in folder.rglob("*.md"):
        written.write_text(readable(written.read_text("utf-8"), titles), encoding="utf-8")
    examples = (folder / "examples").absolute()
    examples.mkdir(exist_ok=True)  # with reports of runs that are too large to package
    with contextlib.chdir(EXAMPLES):  # reports name their run as it is given
        for run in sorted(path.name for path in EXAMPLES.iterdir()):
            stickytoken.report(run, out=examples / f"{run}.html")
    gallery = folder / "report.md"
    gallery.write_text(_GALLERY.sub(_linked, gallery.read_text("utf-8")), encoding="utf-8")
    (folder / "reference").mkdir()
    for page, content in (("commands", command_page()), ("python", python_page())):
        (folder / "reference" / f"{page}.md").write_text(content, encoding="utf-8")


def moved(text: str) -> str:
    """Return a page from the root of the repository with its links as they are from docs/."""
    fenced = [found.span() for found in _FENCED.finditer(text)]

    def link(found: re.Match[str]) -> str:
        target = found["target"]
        if any(start <= found.start() < end for start, end in fenced):
            return target
        return _BESIDE.get(target, target.removeprefix("docs/"))

    return _LINK.sub(link, text).replace('srcset="docs/', 'srcset="')


def readable(text: str, titles: Mapping[str, str]) -> str:
    """Return a page with titles in place of file names, and sentences of an output folded to its width.

    Args:
        text: the page.
        titles: of the pages, by name without ending.
    """

    def titled(found: re.Match[str]) -> str:
        return f"[{titles.get(found['page'], found['page'])}]"

    def folded(found: re.Match[str]) -> str:
        return "".join(_folded(line) for line in found[0].splitlines(keepends=True))

    return _OUTPUT.sub(folded, _FILE_LINK.sub(titled, text))


def _folded(line: str) -> str:
    # Commands are copied, and the columns of a table stay below each other.
    if line.startswith("$ ") or len(line) <= _OUTPUT_WIDTH or "  " in line.strip():
        return line
    return textwrap.fill(line, _OUTPUT_WIDTH, break_long_words=False, break_on_hyphens=False) + "\n"


def _linked(found: re.Match[str]) -> str:
    part = "#repair" if found["repair"] else ""
    return f'<a href="examples/{found["run"]}.html{part}">{found[0]}</a>'


def _title(page: Path) -> str:
    found = re.search(r"^# (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return page.stem if found is None else found[1]


if __name__ == "__main__":
    main()
