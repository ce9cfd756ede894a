"""Visibility: a module with an underscore is used in its folder only, and one used there only has it."""

import ast
from pathlib import Path

import pytest

import stickytoken

PACKAGE = Path(stickytoken.__file__).parent
ROOT = Path(__file__).resolve().parents[2]
# What the benchmarks need, and a method that is no part of the package, is public.
OUTSIDE = [*(ROOT / "benchmarks").glob("*.py"), ROOT / "tests" / "support" / "toy_method.py"]
# Modules that only their own folder imports today, and that are public all the same.
OPEN_MODULES = {"stickytoken.cli.app", "stickytoken.explanation.result", "stickytoken.explanation.settings"}


def dotted(path):
    return ".".join((PACKAGE.name, *path.relative_to(PACKAGE).with_suffix("").parts))


MODULES = {dotted(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def imported(source):
    """Modules of the package that a source imports, by whatever spelling."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
        else:
            continue
        yield from (name for name in names if name in MODULES)


def within(folder, importer):
    return importer == folder or importer.startswith(f"{folder}.")


def intrusions(importer, source):
    """Private modules of other folders that a module imports."""
    for name in imported(source):
        folder, _, last = name.rpartition(".")
        if last.startswith("_") and not last.endswith("__") and not within(folder, importer):
            yield name


def test_a_module_with_an_underscore_is_imported_within_its_folder_only():
    found = {name: list(intrusions(name, path.read_text("utf-8"))) for name, path in MODULES.items()}
    found |= {path.name: list(intrusions("outside", path.read_text("utf-8"))) for path in OUTSIDE}
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


@pytest.mark.parametrize(
    ("importer", "line", "wrong"),
    [
        ("stickytoken.cli.show", "from stickytoken.gate._tokens import x", True),
        ("stickytoken.cli.show", "from stickytoken.gate import _tokens", True),
        ("stickytoken.cli.show", "def late():\n    import stickytoken.gate._tokens", True),
        ("stickytoken.gate.check", "from stickytoken.gate._tokens import x", False),
        ("stickytoken.gate.deeper.files", "from stickytoken.gate._tokens import x", False),
        ("stickytoken.cli.show", "from stickytoken.data.tasks import _private_name", False),
    ],
)
def test_an_import_of_what_is_private_is_found(importer, line, wrong):
    assert bool(list(intrusions(importer, line))) is wrong


def test_a_module_that_only_its_own_folder_imports_has_an_underscore():
    users = {name: set() for name in MODULES}
    sources = [*MODULES.items(), *(("outside", path) for path in OUTSIDE)]
    for importer, path in sources:
        for name in imported(path.read_text("utf-8")):
            users[name].add(importer)
    bare = set()
    for name, importers in users.items():
        folder, _, last = name.rpartition(".")
        own = importers and all(within(folder, importer) for importer in importers)
        if own and folder != PACKAGE.name and not last.startswith("_"):
            bare.add(name)
    assert bare <= OPEN_MODULES
