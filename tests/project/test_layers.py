"""How the package is built: which way imports point, what is loaded when, how long things are."""

import ast
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import stickytoken

PACKAGE = Path(stickytoken.__file__).parent
# Lowest first. A part may import lower parts and itself, and nothing beside or above it.
LAYERS = [
    {"errors", "version"},
    {"insertion", "machine", "unit_vectors", "validation"},
    {"findings"},
    {"vocabulary"},
    {"data"},
    {"corpora", "tasks"},
    {"encoders"},
    {"inspection", "measurement"},
    {"methods"},
    {"detection"},
    {"cleaning"},
    {"adapters", "attribution", "explanation", "impacts", "scanning"},
    {"evaluation", "gate", "repairs"},
    {"comparisons"},
    {"model_cards", "reports"},
    {"demo"},
    {"cli"},
    {"__main__"},
]
RANK = {part: rank for rank, parts in enumerate(LAYERS) for part in parts}
HEAVY = (
    "torch",
    "transformers",
    "sentence_transformers",
    "scipy.stats",
    "polars",
    "datasets",
    "plotly",
    "jinja2",
    "gradio",
    "mteb",
    "ray",
    "sklearn",
)
MODULE_LINES = 700
FUNCTION_LINES = 80


class Import:
    """One name that a module imports, and how."""

    def __init__(self, name, line, depth):
        self.name = name
        self.line = line
        self.depth = depth

    @property
    def top(self):
        return self.name.split(".")[0]

    @property
    def part(self):
        """The part of the package that is imported; `__init__` for the front door."""
        return (*self.name.split("."), "__init__")[1]


def modules(package=PACKAGE):
    return sorted(package.rglob("*.py"))


def part_of(path, package):
    """The folder or module right below the package that a file belongs to."""
    return path.relative_to(package).parts[0].removesuffix(".py")


@cache
def imports_of(path, package):
    """Every import of a file, at whatever depth, with whether it runs when the module is loaded.

    depth is "module" for what runs at import, "function" inside a function and "typing"
    under ``if TYPE_CHECKING``.
    """
    dotted = [package.name, *path.relative_to(package).with_suffix("").parts]
    parent = dotted[:-1]

    def visit(node, depth):
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, node.lineno, depth) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = parent[: len(parent) - node.level + 1] if node.level else []
            name = ".".join([*base, *([node.module] if node.module else [])])
            # `from stickytoken import runs` imports a part as much as `import stickytoken.detection`.
            whole = name == package.name
            for alias in node.names:
                yield Import(f"{name}.{alias.name}" if whole else name, node.lineno, depth)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            for child in ast.iter_child_nodes(node):
                yield from visit(child, "function")
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for child in node.body:
                yield from visit(child, "typing" if depth == "module" else depth)
            for child in node.orelse:
                yield from visit(child, depth)
        else:
            for child in ast.iter_child_nodes(node):
                yield from visit(child, depth)

    return list(visit(ast.parse(path.read_text("utf-8")), "module"))


def wrong_imports(package):
    """Imports that point sideways or up, as text."""
    found = []
    for path in modules(package):
        part = part_of(path, package)
        for each in imports_of(path, package):
            if each.top != package.name:
                continue
            if part == "__init__":
                right = each.depth == "typing" or each.part in ("errors", "version")
            elif part == "cli" and each.name == package.name:  # it calls what a Python user calls
                right = True
            else:
                right = each.part == part or RANK.get(each.part, len(LAYERS)) < RANK[part]
            if not right:
                found.append(f"{path.relative_to(package)}:{each.line} imports {each.name}")
    return found


def public_names_without_docstring(tree, name, public):
    """The module, and what it defines of the names in `public`, with their methods."""
    found = [] if ast.get_docstring(tree) else [name]
    for node in tree.body:
        overload = isinstance(node, ast.FunctionDef) and "overload" in map(ast.unparse, node.decorator_list)
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and node.name in public and not overload:
            methods = node.body if isinstance(node, ast.ClassDef) else []
            shown = [each for each in methods if isinstance(each, ast.FunctionDef) and each.name[0] != "_"]
            found += [f"{name}:{each.name}" for each in (node, *shown) if not ast.get_docstring(each)]
    return found


def exported_names():
    lists = [
        node.value
        for tree in trees().values()
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    ]
    return {name for each in lists for name in ast.literal_eval(each)}


def long_functions(tree):
    """Functions with too many lines of code; the signature and the docstring are not counted."""
    return [
        node.name
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and code_lines(node) > FUNCTION_LINES
    ]


def code_lines(function):
    body = function.body[1:] if ast.get_docstring(function) else function.body
    return function.end_lineno - body[0].lineno + 1 if body else 0


def printing_lines(tree):
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]


@cache
def trees():
    return {str(path.relative_to(PACKAGE)): ast.parse(path.read_text("utf-8")) for path in modules()}


# Directions.


def test_every_part_of_the_package_has_its_layer():
    assert {part_of(path, PACKAGE) for path in modules()} - set(RANK) <= {"__init__"}


@pytest.mark.slow
def test_imports_point_one_way():
    assert wrong_imports(PACKAGE) == []


def test_the_front_door_loads_the_errors_and_the_version_and_nothing_else():
    eager = [each for each in imports_of(PACKAGE / "__init__.py", PACKAGE) if each.depth == "module"]
    assert {each.part for each in eager if each.top == "stickytoken"} == {"errors", "version"}
    assert {each.top for each in eager} - {"stickytoken"} <= set(sys.stdlib_module_names)


@pytest.mark.parametrize(
    ("path", "line", "wrong"),
    [
        ("data/tables.py", "from stickytoken.encoders import load_encoder", True),
        ("data/tables.py", "import stickytoken.measurement.store", True),
        ("data/tables.py", "from stickytoken.detection import pairs", True),
        ("data/tables.py", "from stickytoken.insertion import Token", False),
        ("encoders/protocol.py", "from stickytoken.detection import detect", True),
        ("encoders/protocol.py", "from stickytoken.encoders.protocol import Encoder", False),
        ("encoders/protocol.py", "from .protocol import Encoder", False),
        ("encoders/protocol.py", "from ..detection import detect", True),
        ("encoders/protocol.py", "from .. import detection", True),
        ("detection/detect.py", "from stickytoken.cli.main import app", True),
        ("detection/detect.py", "def late():\n    from stickytoken.cli.main import app", True),
        ("detection/detect.py", "if TYPE_CHECKING:\n    from stickytoken.cli.main import app", True),
        ("detection/detect.py", "from stickytoken import cli", True),
        ("detection/detect.py", "from stickytoken import detect", True),
        ("detection/detect.py", "import stickytoken", True),
        ("detection/detect.py", "from stickytoken.methods.std import plan", False),
        ("detection/detect.py", "import numpy", False),
        ("cli/main.py", "from stickytoken.detection import detect", False),
        ("cli/main.py", "import stickytoken", False),
        ("__init__.py", "from stickytoken.detection import detect", True),
        ("__init__.py", "from stickytoken.errors import StickyTokenError", False),
        ("__init__.py", "if TYPE_CHECKING:\n    from stickytoken.detection import detect", False),
    ],
)
def test_an_import_that_points_the_wrong_way_is_found(tmp_path, path, line, wrong):
    package = tmp_path / "stickytoken"
    (package / path).parent.mkdir(parents=True)
    (package / path).write_text(line + "\n")
    assert bool(wrong_imports(package)) is wrong


def test_no_part_of_the_package_has_the_name_of_a_public_function():
    """Importing the part would put a module in the function's place."""
    assert {part_of(path, PACKAGE) for path in modules()} & set(stickytoken.__all__) == set()


# What is imported where.


def test_only_the_command_line_imports_typer_and_nobody_imports_click():
    for path in modules():
        tops = {each.top for each in imports_of(path, PACKAGE)}
        assert "click" not in tops, path
        assert "typer" not in tops or part_of(path, PACKAGE) == "cli", path


def test_torch_is_imported_at_the_top_of_what_computes_with_a_model_only():
    """Nothing imports these before a model is asked for."""
    at_top = {
        part_of(path, PACKAGE)
        for path in modules()
        if any(each.top == "torch" and each.depth == "module" for each in imports_of(path, PACKAGE))
    }
    assert at_top == {"encoders", "inspection", "repairs"}


def test_transformers_and_datasets_are_imported_inside_functions_only():
    for path in modules():
        if str(path.relative_to(PACKAGE)) in (
            "adapters/_guarded_model.py",
            "encoders/sentence_transformer.py",
            "encoders/prompted/module.py",
        ):
            continue
        for each in imports_of(path, PACKAGE):
            if each.top in ("transformers", "sentence_transformers", "datasets", "tokenizers"):
                assert each.depth != "module", f"{path}:{each.line}"


def test_libraries_of_pages_are_imported_by_reports_and_the_web_app_only():
    """Their folders check at the door that these are installed."""
    for path in modules():
        tops = {each.top for each in imports_of(path, PACKAGE)}
        allowed = {"reports": {"plotly", "jinja2", "markupsafe"}, "demo": {"plotly", "gradio", "starlette"}}
        found = tops & {"plotly", "jinja2", "markupsafe", "gradio", "starlette"}
        assert found <= allowed.get(part_of(path, PACKAGE), set()), path


def loaded_by(code, *arguments):
    """Which heavy libraries a fresh interpreter has loaded after the code, and what it printed."""
    report = f"""
import atexit, json, sys
def report():
    loaded = [name for name in {HEAVY!r} if name in sys.modules]
    sys.stderr.write("\\nloaded:" + json.dumps(loaded))
atexit.register(report)
{code}
"""
    environment = {**os.environ, "NO_COLOR": "1", "COLUMNS": "100"}
    done = subprocess.run(
        [sys.executable, "-c", report, *arguments],
        capture_output=True,
        text=True,
        env=environment,
        check=True,
    )
    return json.loads(done.stderr.rpartition("loaded:")[2]), done.stdout


def test_importing_the_package_loads_the_standard_library_only():
    code = "import sys; before = set(sys.modules); import stickytoken; print(*(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    assert {name for name in loaded if name.startswith("stickytoken")} == {
        "stickytoken",
        "stickytoken.errors",
        "stickytoken.version",
    }
    assert {name.partition(".")[0] for name in loaded} - sys.stdlib_module_names == {"stickytoken"}


@pytest.mark.slow
def test_the_page_of_the_web_app_is_there_before_what_only_a_model_needs():
    pytest.importorskip("gradio", reason="gradio is not installed")
    loaded, _ = loaded_by("import stickytoken.demo.server, stickytoken.demo.server")
    assert loaded == ["polars", "plotly", "jinja2", "gradio"]


def test_listing_the_names_of_the_package_loads_no_heavy_library():
    loaded, _ = loaded_by("import stickytoken; dir(stickytoken); stickytoken.StickyTokenError")
    assert loaded == []


def test_what_is_loaded_is_noticed():
    assert "polars" in loaded_by("import stickytoken; stickytoken.load_sentences")[0]


@pytest.mark.parametrize(
    "command",
    [
        (),
        ("tokens",),
        ("detect",),
        ("probe",),
        ("show",),
        ("report",),
        ("explain",),
        ("impact",),
        ("repair",),
        ("embed",),
        ("evaluate",),
        ("tune",),
        ("demo",),
        ("scan",),
        ("check",),
        ("clean",),
        ("why",),
        ("compare",),
        ("published",),
        ("card",),
    ],
)
def test_help_loads_no_heavy_library(command):
    loaded, printed = loaded_by("from stickytoken.cli.main import main; main()", *command, "--help")
    assert loaded == []
    assert "Usage" in printed


def test_the_version_loads_no_heavy_library():
    loaded, printed = loaded_by("from stickytoken.cli.main import main; main()", "--version")
    assert loaded == []
    assert printed.startswith("stickytoken ")


# Size and care.


def test_nothing_is_printed_but_by_the_console():
    assert {name: lines for name, tree in trees().items() if (lines := printing_lines(tree))} == {}


def test_no_module_is_too_long():
    sizes = {path.name: len(path.read_text("utf-8").splitlines()) for path in modules()}
    assert {name: size for name, size in sizes.items() if size > MODULE_LINES} == {}


def test_no_function_is_too_long():
    assert {name: long for name, tree in trees().items() if (long := long_functions(tree))} == {}


def test_every_module_and_everything_public_has_a_docstring():
    public = exported_names()
    bare = [
        each for name, tree in trees().items() for each in public_names_without_docstring(tree, name, public)
    ]
    assert bare == []


def test_the_checks_of_size_and_care_find_what_they_look_for():
    short = "def short():\n    '''Said\n    in two lines.'''\n" + "    x = 1\n" * FUNCTION_LINES
    assert long_functions(ast.parse(short)) == []
    assert long_functions(ast.parse(short + "    x = 1\n")) == ["short"]
    assert printing_lines(ast.parse("def f():\n    return [print(x) for x in y]\n")) == [2]
    bare = '"""M."""\nclass A:\n    def b(self): ...\n    def _c(self): ...\ndef d(): ...\ndef e(): ...\n'
    assert public_names_without_docstring(ast.parse(bare), "m", {"A", "d"}) == ["m:A", "m:b", "m:d"]
    assert public_names_without_docstring(ast.parse("x = 1"), "m", set()) == ["m"]
