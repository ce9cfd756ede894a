"""How the package is built: directions of imports, private modules, lazy imports, docstrings."""

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
ROOT = Path(__file__).resolve().parents[2]
# Lowest first. A part may import lower parts and itself, and nothing beside or above it.
LAYERS = [
    {"errors", "version"},
    {"insertion", "intervals", "machine", "token_vectors", "unit_vectors", "validation"},
    {"findings", "search", "settings", "words"},
    {"vocabulary"},
    {"data"},
    {"encoders"},
    {"inspection"},
    {"language_models"},
    {"loading"},
    {"measurement"},
    {"methods"},
    {"detection"},
    {"cleaning", "published", "run_summary"},
    {"adapters", "attribution", "explanation", "scanning"},
    {"evaluation", "gate", "repairs"},
    {"audits"},
    {"evaluators", "model_cards", "reports"},
    {"demo"},
    {"cli"},
    {"__main__"},
]
RANK = {module: rank for rank, layer in enumerate(LAYERS) for module in layer}
# Saved language models import `CausalPrompt` by this name. It points up, and holds nothing else.
NAME_IN_SAVED_MODELS = "stickytoken.encoders.causal_module"
# Who may know that an encoder is that of a language model. Everything else has it from the loader.
KNOW_LANGUAGE_MODELS = {"cli", "evaluation", "language_models", "loading"}
HEAVY = (
    "torch", "transformers", "sentence_transformers", "scipy.stats", "polars", "datasets", "plotly", "jinja2",
    "gradio", "mteb", "ray", "sklearn",
)  # fmt: skip
# What the benchmarks need is public.
OUTSIDE = list((ROOT / "benchmarks").glob("*.py"))
# Modules that only their own folder imports today, and that are public all the same.
OPEN_MODULES = {
    "stickytoken.audits.results",
    "stickytoken.cli.app",
    "stickytoken.explanation.embedding_matrix",
    "stickytoken.explanation.result",
    "stickytoken.explanation.measuring",
} | {f"stickytoken.repairs.{name}" for name in ("model_folder", "rows", "tokenizer_edit")}


MODULES = {
    ".".join((PACKAGE.name, *path.relative_to(PACKAGE).with_suffix("").parts)): path
    for path in sorted(PACKAGE.rglob("*.py"))
}
TREES = {name: ast.parse(path.read_text("utf-8")) for name, path in MODULES.items()}


def part_of(name):
    """The folder or module right below the package; `__init__` for the front door."""
    return (*name.split("."), "__init__")[1]


def imports_of(importer, tree):
    """What a module imports, at whatever depth: name, line, and "module", "function" or "typing".

    A name is that of a module, where `from` imports one from its package.
    """
    parent = importer.split(".")[:-1]

    def visit(node, depth):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno, depth) for alias in node.names)
            return
        if isinstance(node, ast.ImportFrom):
            base = parent[: len(parent) - node.level + 1] if node.level else []
            name = ".".join([*base, *([node.module] if node.module else [])])
            # `from stickytoken import detection` imports a part as much as `import stickytoken.detection`.
            for alias in node.names:
                inner = f"{name}.{alias.name}"
                is_ours = inner in MODULES or f"{inner}.__init__" in MODULES or name == PACKAGE.name
                yield inner if is_ours else name, node.lineno, depth
            return
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            depth = "function"
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test) and depth == "module":
            depth = "typing"
        for child in ast.iter_child_nodes(node):
            yield from visit(child, depth)

    return visit(tree, "module")


@cache
def imports():
    return {name: list(imports_of(name, tree)) for name, tree in TREES.items()}


def points_up(importer, name, depth):
    importing_part = part_of(importer)
    other = part_of(name)
    if name.split(".")[0] != PACKAGE.name:
        return False
    if importing_part == "__init__":
        return depth != "typing" and other not in ("errors", "version")
    if importing_part == "cli" and name == PACKAGE.name:  # it calls what a Python user calls
        return False
    return other != importing_part and RANK.get(other, len(LAYERS)) >= RANK[importing_part]


def within(folder, importer):
    return importer == folder or importer.startswith(f"{folder}.")


def public_names_without_docstring(tree, name, public):
    """The module, and what it defines of the names in `public`, with their methods."""
    undocumented = [] if ast.get_docstring(tree) else [name]
    for node in tree.body:
        overload = isinstance(node, ast.FunctionDef) and "overload" in map(ast.unparse, node.decorator_list)
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and node.name in public and not overload:
            methods = node.body if isinstance(node, ast.ClassDef) else []
            public_methods = [
                method for method in methods if isinstance(method, ast.FunctionDef) and method.name[0] != "_"
            ]
            undocumented += [
                f"{name}:{definition.name}"
                for definition in (node, *public_methods)
                if not ast.get_docstring(definition)
            ]
    return undocumented


def test_imports_point_one_way():
    everything = [(importer, *module) for importer, modules in imports().items() for module in modules]
    pointing_up = [link for link in everything if points_up(link[0], link[1], link[3])]
    assert [link for link in pointing_up if link[0] != NAME_IN_SAVED_MODELS] == []


def test_only_the_loader_scores_and_commands_know_language_models():
    knowing = {
        importer
        for importer, modules in imports().items()
        for name, _, _ in modules
        if part_of(name) == "language_models" and name.startswith(PACKAGE.name)
    }
    assert {part_of(importer) for importer in knowing - {NAME_IN_SAVED_MODELS}} == KNOW_LANGUAGE_MODELS
    assert NAME_IN_SAVED_MODELS in knowing


def test_a_module_has_an_underscore_if_and_only_if_its_own_folder_alone_imports_it():
    outside = {f"outside.{path.stem}": ast.parse(path.read_text("utf-8")) for path in OUTSIDE}
    everybody = imports() | {name: list(imports_of(name, tree)) for name, tree in outside.items()}
    used = {importer: {name for name, _, _ in links} for importer, links in everybody.items()}
    wrong = set()
    for name in MODULES:
        folder, _, last = name.rpartition(".")
        users = [importer for importer, names in used.items() if name in names]
        inside = all(within(folder, user) for user in users)
        private = last.startswith("_") and not last.startswith("__")
        if private is not inside and users and folder != PACKAGE.name and (private or last[0] != "_"):
            wrong.add(name)
    assert wrong == OPEN_MODULES


def modules_that_import(*libraries, depths=("module", "typing", "function")):
    return {
        importer
        for importer, modules in imports().items()
        for name, _, depth in modules
        if name.split(".")[0] in libraries and depth in depths
    }


def test_libraries_are_imported_where_they_may_be():
    assert modules_that_import("click") == set()
    assert {part_of(name) for name in modules_that_import("typer")} == {"cli"}
    # Nothing imports these before a model is asked for.
    at_top = {part_of(name) for name in modules_that_import("torch", depths=("module",))}
    assert at_top == {"encoders", "inspection", "language_models", "repairs"}
    models = ("transformers", "sentence_transformers", "datasets", "tokenizers")
    assert modules_that_import(*models, depths=("module",)) <= {
        "stickytoken.adapters.guarding",
        "stickytoken.encoders.inputs.routes",
        "stickytoken.evaluators",
        "stickytoken.language_models.module",
    }
    # Their folders check at the door that these are installed.
    assert {part_of(name) for name in modules_that_import("plotly")} <= {"reports", "demo"}
    assert {part_of(name) for name in modules_that_import("jinja2", "markupsafe")} <= {"reports"}
    assert {part_of(name) for name in modules_that_import("gradio", "starlette")} <= {"demo"}


def loaded_by(code, *arguments):
    """Which heavy libraries a fresh interpreter has loaded after the code, and what it printed."""
    report = f"""
import atexit, json, sys
def report():
    sys.stderr.write("\\nloaded:" + json.dumps([name for name in {HEAVY!r} if name in sys.modules]))
atexit.register(report)
{code}
"""
    command = [sys.executable, "-c", report, *arguments]
    environment = {**os.environ, "NO_COLOR": "1", "COLUMNS": "100"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    return json.loads(done.stderr.rpartition("loaded:")[2]), done.stdout


def test_importing_the_package_loads_the_standard_library_only():
    code = "before = set(sys.modules); import stickytoken; dir(stickytoken); stickytoken.StickyTokenError"
    code += "; print(*(set(sys.modules) - before))"
    loaded = loaded_by(code)[1].split()
    ours = {name for name in loaded if name.startswith("stickytoken")}
    assert ours == {"stickytoken", "stickytoken.errors", "stickytoken.version"}
    assert {name.partition(".")[0] for name in loaded} - sys.stdlib_module_names == {"stickytoken"}


@pytest.mark.slow
def test_the_page_of_the_web_app_is_there_before_what_only_a_model_needs():
    pytest.importorskip("gradio", reason="gradio is not installed")
    assert loaded_by("import stickytoken.demo.server")[0] == ["polars", "plotly", "jinja2", "gradio"]


def test_neither_help_nor_the_version_loads_a_heavy_library():
    from stickytoken.cli.app import app

    commands = [command.name or command.callback.__name__ for command in app.registered_commands]
    code = """
from stickytoken.cli.main import main
for line in sys.argv[1:]:
    sys.argv = ["stickytoken", *line.split()]
    try:
        main()
    except SystemExit:
        pass
"""
    loaded, printed = loaded_by(code, "--help", "--version", *(f"{command} --help" for command in commands))
    assert loaded == []
    assert printed.count("Usage") == len(commands) + 1 >= 19
    assert f"stickytoken {stickytoken.__version__}\n" in printed


def test_every_module_and_everything_public_has_a_docstring():
    assigned = (node for tree in TREES.values() for node in tree.body if isinstance(node, ast.Assign))
    lists = [node.value for node in assigned if ast.unparse(node.targets[0]) == "__all__"]
    public = {name for names in lists for name in ast.literal_eval(names)}
    bare = [
        undocumented
        for name, tree in TREES.items()
        for undocumented in public_names_without_docstring(tree, name, public)
    ]
    assert bare == []


def test_the_checks_find_what_they_look_for():
    def first(importer, line):
        return next(imports_of(f"stickytoken.{importer}", ast.parse(line)))

    late = "def late():\n    from stickytoken.cli.main import app"
    lines = {"data.tables": "import stickytoken.measurement", "detection.run": late}
    front = "from stickytoken.detection import detect"
    lines |= {"encoders.protocol": "from .. import detection", "__init__": front}
    for importer, line in lines.items():
        name, _, depth = first(importer, line)
        assert points_up(f"stickytoken.{importer}", name, depth), line
    typing = f"if TYPE_CHECKING:\n    {front}"
    assert not points_up("stickytoken.__init__", *first("__init__", typing)[::2])
    bare = '"""M."""\nclass A:\n    def b(self): ...\n    def _c(self): ...\ndef d(): ...\ndef e(): ...\n'
    assert public_names_without_docstring(ast.parse(bare), "m", {"A", "d"}) == ["m:A", "m:b", "m:d"]
