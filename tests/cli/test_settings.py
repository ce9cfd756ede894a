"""Rare options: --set, --config and the table [tool.stickytoken] of pyproject.toml."""

from pathlib import Path

import pytest
import typer
from typer.core import TyperOption

import planted
from stickytoken.cli._command import project_table
from stickytoken.cli.app import app
from stickytoken.errors import InputError

GROUP = typer.main.get_command(app)
COMMANDS = GROUP.commands


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def written(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def values_of(command, *arguments):
    """What a command would run with."""
    parent = typer.Context(GROUP, info_name="stickytoken")
    return COMMANDS[command].make_context(command, [*map(str, arguments)], parent=parent).params


def test_settings_have_the_types_of_the_options():
    given = [f"--set={each}" for each in ("token-budget=64", "packed-layers=false", "fdr=0.01", "engine=ray")]
    found = values_of("detect", "m", *given, "--set", "trust_remote_code=true")
    assert (found["token_budget"], found["packed_layers"], found["fdr"]) == (64, False, 0.01)
    assert (found["engine"].value, found["trust_remote_code"]) == ("ray", True)
    assert values_of("detect", "m")["token_budget"] is None
    assert values_of("detect", "m", "--set", "fdr=0.1", "--set", "fdr=0.2")["fdr"] == 0.2


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("token-budget", "not of the form name=value"),
        ("token-budget=0", "'--set token-budget': .*greater than or equal to 1"),
        ("engine=dask", "'--set engine': 'dask' is not one of 'local', 'ray'"),
        ("seed=3", "seed is an option: use --seed"),
        ("sed=3", "there is no setting 'sed': --set help lists them"),
        # What was an option before names its setting.
        ("--token-budget=3", "is a setting: pass --set token-budget=VALUE"),
        ("--no-report", "is a setting: pass --set report=false"),
        ("--adaptive", "is a setting: pass --set adaptive=true"),
    ],
)
def test_a_wrong_setting_is_one_line(given, said):
    arguments = [given] if given.startswith("--") else ["--set", given]
    planted.refused("detect", "m", *arguments, status=2, saying=said)


# Files.


def test_the_command_line_comes_before_the_file_and_the_file_before_the_project(root):
    written(
        root / "pyproject.toml", "[tool.stickytoken.detect]\nseed = 1\nsample = 5\nfdr = 0.1\nbudget = 8\n"
    )
    file = written(root / "fast.toml", "seed = 2\nfdr = 0.2\n[detect]\nsample = 6\n[probe]\nseed = 9\n")
    found = values_of("detect", "m", "--config", file, "--seed", 3, "--set", "fdr=0.3")
    assert [found[name] for name in ("seed", "sample", "fdr", "budget")] == [3, 6, 0.3, 8.0]
    assert (
        values_of("probe", "m", "a", "--config", written(root / "p.toml", "[probe]\nseed = 9\n"))["seed"] == 9
    )


@pytest.mark.parametrize("name", ["detect", "repair", "tokens"])
def test_every_option_can_stand_in_a_file(name, root):
    own = [option for option in COMMANDS[name].params if isinstance(option, TyperOption)]
    for option in (*own, *COMMANDS[name].settings.values()):
        key = max(option.opts, key=len).removeprefix("--set ").lstrip("-")
        if key not in ("set", "config") and not option.multiple:
            file = written(root / "x.toml", f"{key} = []\n")
            with pytest.raises(InputError, match=f"{key} in the file is "):
                values_of(name, "--config", file)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sed = 3\n", "the file has no entry 'sed': use .*seed"),
        ("seed = '3'\n", "seed in the file is '3': use a number"),
        ("seed = -1\n", "seed in the file is -1: .*greater than or equal to 0"),
        ("quiet = 'yes'\n", "quiet in the file is 'yes': use true or false"),
        ("[detekt]\nseed = 3\n", r"has a table \[detekt\], and there is no such command"),
        ("[detect\n", "is not valid TOML"),
        ("seed = '\xff'\n", "must be TOML in UTF-8"),
        (None, "cannot be read"),
    ],
)
def test_a_wrong_file_is_one_line(root, text, said):
    file = root / "wrong.toml"
    if text is not None:
        file.write_text(text, encoding="latin-1")
    planted.refused("detect", "m", "--config", file, saying=said)


# The entries of the table itself are those of check.


def test_every_entry_of_a_check_is_read(root):
    written(
        root / "pyproject.toml",
        '[project]\nname = "x"\n\n[tool.stickytoken]\nfail-on = "serious"\nmax = 3\n'
        'model = "all-MiniLM-L6-v2"\nrevision = "main"\nfolder = "measured"\nbaseline = "runs/a"\n',
    )
    found = values_of("check")
    assert (found["source"], found["revision"], found["fail_on"]) == ("all-MiniLM-L6-v2", "main", "serious")
    assert (found["max_tokens"], str(found["folder"]), str(found["baseline"])) == (3, "measured", "runs/a")
    assert project_table(root).model_line == 7
    written(root / "pyproject.toml", '# first\n[tool.stickytoken]\nmax = 1\n[tool.other]\nmodel = "x"\n')
    assert project_table(root).model_line == 2
    written(root / "pyproject.toml", "[tool.stickytoken\n")
    planted.refused("detect", "m", saying="is not valid TOML")
    assert planted.command("detect", "--help").exit_code == 0


def test_paths_are_relative_to_the_file_and_names_of_models_stay(root, monkeypatch):
    inner = root / "docs" / "deep"
    inner.mkdir(parents=True)
    (root / "model").mkdir()
    written(root / "pyproject.toml", '[tool.stickytoken]\nmodel = "model"\nbaseline = "runs/a"\n')
    monkeypatch.chdir(inner)
    found = values_of("check")
    assert (Path(found["source"]), found["baseline"]) == (root / "model", root / "runs/a")
    written(root / "pyproject.toml", '[tool.stickytoken]\nmodel = "organisation/model"\n')
    assert values_of("check")["source"] == "organisation/model"


def test_the_nearest_table_counts_and_none_above_the_repository(root, monkeypatch):
    written(root / "pyproject.toml", '[tool.stickytoken]\nmodel = "outer"\n')
    inner = root / "inner"
    inner.mkdir()
    written(inner / "pyproject.toml", '[project]\nname = "x"\n')
    monkeypatch.chdir(inner)
    assert values_of("check")["source"] == "outer"
    (inner / ".git").mkdir()
    assert values_of("check")["source"] is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[tool.stickytoken]\nmodle = 'x'\n", r"\[tool.stickytoken\] has no entry 'modle': use .*model"),
        ("[tool.stickytoken]\nfail-on = 'bad'\n", "fail-on in .* is 'bad': .*sticky, serious, severe"),
        ("[tool.stickytoken]\nmodel = 3\n", "model in .* is 3"),
        ("[tool]\nstickytoken = 3\n", "must be a table"),
    ],
)
def test_a_wrong_table_is_one_line(root, text, said):
    written(root / "pyproject.toml", text)
    planted.refused("check", saying=said)
