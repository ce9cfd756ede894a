"""Build the documentation.

python website/build.py    # then open build/docs/index.html

The pages are those of docs/, the README and other files of the repository's root, and two that are
generated from the code. They are first collected in one folder, so that the site generator needs no plugins.
The reports of the packaged runs are written into the same folder, and the pictures of the gallery link to
them.
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
# Files in the root of the repository, where GitHub looks for them, and their pages.
_ROOT_FILES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "AGENTS.md": "rules.md",
    "SECURITY.md": "security.md",
    "CITATION.cff": "CITATION.cff",
    "LICENSE": "LICENSE",
}
_FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
# A link whose text is the name of a file; the site shows the title of the page instead.
_FILE_LINK = re.compile(r"\[(?P<page>\w+)\.md\](?=\((?P=page)\.md)")
_OUTPUT = re.compile(r"(?<=^```console\n).*?(?=^```)", re.DOTALL | re.MULTILINE)
# Characters of a line in the output of a command, on a screen of 1,280 pixels.
_OUTPUT_WIDTH = 96
# A picture of the report of a packaged run, or of its section on the repair.
_GALLERY = re.compile(r"<picture>.*?images/gallery-(?P<run>[\w-]+?)(?P<repair>-repaired)?\.png\)</picture>")
_LINK = re.compile(r"(?<=\]\()(?!https?:|#|mailto:)(?P<target>[^)#\s]+)")


def main() -> None:
    """Build the site in build/docs."""
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    sys.exit(build(ROOT / "build"))


def build(folder: Path) -> int:
    """Build the site in ``folder/docs``, from pages in ``folder/pages``; return the exit status.

    Any warning, such as one of a dead link, is a failure.
    """
    assemble(folder / "pages")
    shutil.copy(ROOT / "website" / "mkdocs.yml", folder)
    paths = os.pathsep.join(str(ROOT / name) for name in ("website", "src"))
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    environment = {**os.environ, "PYTHONPATH": paths, "NO_COLOR": "1"}
    return subprocess.run(command, cwd=folder, env=environment, check=False).returncode


def assemble(folder: Path) -> None:
    """Write all pages into a folder, which is emptied first."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "docs", folder)
    shutil.copytree(ROOT / "website" / "static", folder, dirs_exist_ok=True)
    for source, target in _ROOT_FILES.items():
        (folder / target).write_text(moved((ROOT / source).read_text("utf-8")), encoding="utf-8")
    titles = {page.stem: _title(page) for page in folder.glob("*.md")}
    for page in folder.rglob("*.md"):
        page.write_text(readable(page.read_text("utf-8"), titles), encoding="utf-8")
    examples = (folder / "examples").absolute()
    examples.mkdir(exist_ok=True)  # docs/ has one with reports of runs that are too large to package
    # A report shows the path of its run as it was passed: the name alone is the same on every machine.
    with contextlib.chdir(EXAMPLES):
        for run in sorted(path.name for path in EXAMPLES.iterdir()):
            stickytoken.report(run, out=examples / f"{run}.html")
    gallery = folder / "report.md"
    gallery.write_text(_GALLERY.sub(_linked, gallery.read_text("utf-8")), encoding="utf-8")
    (folder / "reference").mkdir()
    (folder / "reference" / "commands.md").write_text(command_page(), encoding="utf-8")
    (folder / "reference" / "python.md").write_text(python_page(), encoding="utf-8")


def moved(text: str) -> str:
    """Return a page from the root of the repository with its links as they are from docs/."""
    fences = [fence.span() for fence in _FENCED.finditer(text)]

    def link(match: re.Match[str]) -> str:
        target = match["target"]
        is_fenced = any(start <= match.start() < end for start, end in fences)
        if is_fenced:
            return target
        return _ROOT_FILES.get(target, target.removeprefix("docs/"))

    text = _LINK.sub(link, text)
    return text.replace('srcset="docs/', 'srcset="').replace('src="docs/', 'src="')


def readable(text: str, titles: Mapping[str, str]) -> str:
    """Return a page with titles in place of file names, and with long sentences in outputs wrapped.

    Args:
        text: the page.
        titles: of the pages, by name without ending.
    """

    def titled(link: re.Match[str]) -> str:
        return f"[{titles.get(link['page'], link['page'])}]"

    def wrapped(output: re.Match[str]) -> str:
        return "".join(_wrapped(line) for line in output[0].splitlines(keepends=True))

    return _OUTPUT.sub(wrapped, _FILE_LINK.sub(titled, text))


def _wrapped(line: str) -> str:
    """Wrap a line of an output, unless it is a command, which is copied, or the row of a table."""
    if line.startswith("$ ") or len(line) <= _OUTPUT_WIDTH or "  " in line.strip():
        return line
    return textwrap.fill(line, _OUTPUT_WIDTH, break_long_words=False, break_on_hyphens=False) + "\n"


def _linked(picture: re.Match[str]) -> str:
    """Make a picture of a report a link to that report."""
    section = "#repair" if picture["repair"] else ""
    return f'<a href="examples/{picture["run"]}.html{section}">{picture[0]}</a>'


def _title(page: Path) -> str:
    """Return the first heading of a page, or the name of its file."""
    heading = re.search(r"^# (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return page.stem if heading is None else heading[1]


if __name__ == "__main__":
    main()
