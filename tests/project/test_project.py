"""The project around the code: front door, version, documents, pins, paths."""

import re
import shlex
import shutil
import subprocess
import tomllib
from functools import cache
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from typer.main import get_command

import stickytoken
from stickytoken.cli.app import app

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(stickytoken.__file__).parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
COMMANDS = sorted(command.name or command.callback.__name__ for command in app.registered_commands)
# Folders of one machine: home folders, and where a checkout may have lain.
MACHINE_PATH = re.compile(r"(?<![\w.:/-])/(?:home|Users|root|work)/\w|[A-Z]:\\\\?Users\\")


def documents():
    paths = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    return "\n".join(path.read_text("utf-8") for path in paths)


def tracked_files():
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run([git, "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    return [path for name in listed.decode().split("\0") if name and (path := ROOT / name).is_file()]


# The front door.


def test_every_public_name_resolves_to_something_documented():
    assert dir(stickytoken) == sorted(set(stickytoken.__all__)) == stickytoken.__all__
    assert Version(stickytoken.__version__)
    for name in set(stickytoken.__all__) - {"__version__"}:
        found = getattr(stickytoken, name)
        assert found.__name__ == name
        assert found.__module__.startswith("stickytoken.")
        assert found.__doc__, name


def test_a_name_that_is_not_public_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'stickytoken' has no attribute 'find_everything'"):
        _ = stickytoken.find_everything


# Documents.


def test_the_version_is_set_in_one_place_and_the_documents_agree():
    assert "version" not in PROJECT
    assert "version" in PROJECT["dynamic"]
    newest = re.search(
        r"^## (?!Unreleased)(\S+) \((\S+)\)$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE
    )
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert citation["version"] == newest[1] == stickytoken.__version__
    assert str(citation["date-released"]) == newest[2]


def test_every_public_name_is_documented():
    assert set(stickytoken.__all__) <= set(re.findall(r"\w+", documents()))


@cache
def options_of(command):
    """All spellings of a command's options, as typer reads them."""
    (found,) = (each for each in get_command(app).commands.values() if each.name == command)
    return {"--help"} | {name for each in found.params for name in (*each.opts, *each.secondary_opts)}


def written_commands():
    """Every command line in the documents' blocks of code: the command and its options."""
    blocks = re.findall(r"^```\w*\n(.*?)^```", documents(), re.DOTALL | re.MULTILINE)
    lines = [line.split("  #")[0] for block in blocks for line in block.splitlines()]
    typed = [line.removeprefix("$ ") for line in lines]
    split = [shlex.split(line, comments=True) for line in typed if line.startswith("stickytoken ")]
    return [(words[1], [word for word in words[2:] if re.match("--?[a-z]", word)]) for words in split]


def test_every_command_line_in_the_documents_is_real():
    lines = written_commands()
    wrong = [(command, option) for command, options in lines for option in set(options) - options_of(command)]
    assert wrong == []
    assert {command for command, _ in lines} == set(COMMANDS)


def test_every_option_in_the_page_on_usage_is_real():
    """Options of other programs stand in blocks of code only."""
    text = re.sub(r"```.*?```", "", (ROOT / "docs" / "usage.md").read_text("utf-8"), flags=re.DOTALL)
    shared = {name for each in get_command(app).params for name in each.opts}
    known = shared.union(*map(options_of, COMMANDS))
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)) - known == set()


def test_the_table_of_places_names_every_folder_and_top_level_module_once():
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    rows = re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)
    places = [place for row in rows for place in re.findall(r"`([^`]+)`", row)]
    folders = {f"{path.parent.relative_to(PACKAGE)}/" for path in PACKAGE.rglob("*.py")} - {"./"}
    modules = {path.name for path in PACKAGE.glob("*.py")} - {"__init__.py"}
    assert sorted(places) == sorted(folders | modules)


# Dependencies.


def pins(file="constraints.txt"):
    lines = (ROOT / file).read_text("utf-8").splitlines()
    pinned = [line.split("==") for line in lines if line.strip() and not line.startswith("#")]
    return {canonicalize_name(name): pin for name, pin in pinned}


EXTRAS = PROJECT["optional-dependencies"]
# Whoever wants these has them already; only the tests need all of them.
FRAMEWORKS = {"haystack", "langchain", "llama-index"}


def test_every_dependency_is_pinned_to_a_version_that_it_allows_and_to_the_lowest():
    """torch alone is higher than the lowest: its file says why."""
    lowest, tested = pins("constraints-lowest.txt"), pins()
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
    (frameworks,) = (each for each in map(Requirement, EXTRAS["dev"]) if each.name == PROJECT["name"])
    assert frameworks.extras == FRAMEWORKS


def test_every_extra_is_documented():
    text = documents() + (ROOT / "AGENTS.md").read_text("utf-8")
    named = re.findall(r"(?:stickytoken|'\.)\[([a-z,-]+)\]", text)
    assert set(EXTRAS) <= {extra for each in named for extra in each.split(",")}


# Paths.


def test_no_tracked_file_names_a_path_of_one_machine():
    assert MACHINE_PATH.search("cd /" + "home/someone/project")
    assert not MACHINE_PATH.search("https://example.org/home/page")
    files = tracked_files()
    named = {
        f"{path.relative_to(ROOT)}:{line}"
        for path in files
        for line, text in enumerate(path.read_bytes().decode("utf-8", "replace").splitlines(), start=1)
        if MACHINE_PATH.search(text)
    }
    assert named == set()
    assert len(files) > 10
