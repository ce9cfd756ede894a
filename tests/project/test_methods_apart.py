"""Nothing outside `methods/` knows a detection method by name: the registry and the protocol say all."""

import ast
from pathlib import Path

import pytest

import stickytoken
from stickytoken.methods.registry import entries

PACKAGE = Path(stickytoken.__file__).parent
NAMES = {entry.name for entry in entries()}
HOMES = {f"stickytoken.methods.{name}" for name in NAMES}


def known_methods(tree):
    """Lines that name a method, import from its folder, or compare or look up a method by its name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and node.value in NAMES:
            yield node.lineno
        elif isinstance(node, ast.Import):
            yield from (node.lineno for alias in node.names if _of_method(alias.name))
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            within = {f"{module}.{alias.name}" for alias in node.names}
            if _of_method(module) or any(_of_method(name) for name in within):
                yield node.lineno


def _of_method(module):
    return any(module == home or module.startswith(f"{home}.") for home in HOMES)


def test_nothing_outside_of_methods_knows_a_method():
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        inside = path.relative_to(PACKAGE)
        # The front door exports the settings of the methods that come with the package; it asks for none.
        if inside.parts[0] in ("methods", "__init__.py"):
            continue
        if lines := sorted(known_methods(ast.parse(path.read_text("utf-8")))):
            found[str(inside)] = lines
    assert found == {}


def test_what_the_methods_share_knows_none_of_them():
    """The registry alone imports their entries."""
    for path in sorted((PACKAGE / "methods").glob("*.py")):
        lines = list(known_methods(ast.parse(path.read_text("utf-8"))))
        assert len(lines) == (1 if path.name == "registry.py" else 0), path


@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_method_does_not_know_the_others(name):
    others = NAMES - {name}
    for path in sorted((PACKAGE / "methods" / name).rglob("*.py")):
        tree = ast.parse(path.read_text("utf-8"))
        for node in ast.walk(tree):
            assert not (isinstance(node, ast.Constant) and node.value in others), path
            if isinstance(node, ast.ImportFrom):
                assert not any(f"methods.{other}" in (node.module or "") for other in others), path


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("if run.record.method == 'std': pass", True),
        ("words = {'profile': 1}", True),
        ("match method:\n    case 'std': pass", True),
        ("from stickytoken.methods.std.plan import StdPlanRecord", True),
        ("import stickytoken.methods.profile", True),
        ("def late():\n    from stickytoken.methods import profile", True),
        ("from stickytoken.methods.registry import method_named", False),
        ("help = 'std: pairs'", False),
        ("x.std(ddof=1)", False),
    ],
)
def test_what_is_looked_for_is_found(line, found):
    assert bool(list(known_methods(ast.parse(line)))) is found
