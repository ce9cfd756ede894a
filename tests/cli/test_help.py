"""What --help shows, and completion in a shell."""

import os
import re
import shutil
import subprocess
import sys

import pytest
import typer
from rich.text import Text
from typer.core import TyperOption

import planted
from stickytoken.cli.app import app
from stickytoken.cli.options import output as panels
from stickytoken.explanation import ExplainSettings
from stickytoken.impacts import ImpactSettings
from stickytoken.methods.registry import entries, method_named

COMMANDS = typer.main.get_command(app).commands
PANELS = [
    panels.MODEL,
    panels.TEXTS,
    panels.METHOD,
    panels.COMPUTATION,
    panels.ENDPOINT,
    panels.LANGUAGE_MODELS,
    panels.OUTPUT,
]


def options(name):
    return {option.name: option for option in COMMANDS[name].params if isinstance(option, TyperOption)}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_options_of_every_command_stand_in_the_same_panels(name):
    shown = re.findall(r"^╭─ (.+?) ─+╮$", planted.command(name, "--help").stdout, re.MULTILINE)
    titles = [title for title in shown if title != "Arguments"]
    assert titles == [title for title in PANELS if title in titles]
    assert titles[-1] == panels.OUTPUT
    assert "--help" in planted.command(name, "--help").stdout.partition(f"╭─ {panels.OUTPUT} ")[2]


@pytest.mark.parametrize("name", ["detect", "probe", "explain", "impact", "demo", "embed", "evaluate"])
def test_options_of_language_models_have_a_panel_of_their_own(name):
    found = {
        each for each, option in options(name).items() if option.rich_help_panel == panels.LANGUAGE_MODELS
    }
    contrast = {"contrast", "contrast_layer", "contrast_strength", "contrast_rule"}
    assert found == contrast | {"prompt", "prompt_name", "token_prepending", "start", "exit", "layer"}


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_every_character_of_its_texts(name):
    """Square brackets in a help text can be read as markup, and vanish."""
    texts = [COMMANDS[name].help, *(param.help for param in COMMANDS[name].params)]
    assert [text for text in texts if Text.from_markup(text).plain != text] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_help_fits_a_narrow_terminal(name):
    printed = planted.command(name, "--help", COLUMNS="80").stdout
    assert max(map(len, printed.splitlines())) <= 80


def test_no_help_text_begins_with_the_name_of_a_method():
    names = tuple(f"{entry.name}:" for entry in entries())
    for command in COMMANDS:
        for name, option in options(command).items():
            assert name == "method" or not (option.help or "").startswith(names)


def test_an_option_has_one_meaning_in_every_command():
    """The same name is the same kind of value, and stands in the same panel."""
    seen = {}
    for command in COMMANDS:
        for name, option in options(command).items():
            if (command, name) == ("tune", "prompt"):  # it has a default of its own
                continue
            described = (option.type_descriptor.annotation, option.rich_help_panel)
            seen.setdefault(option.opts[0], {})[command] = str(described)
    # A report is html; tune takes one task file, others several names; the web app opens several runs.
    for name in ("--format", "--task", "--run"):
        seen.pop(name)
    different = {name: uses for name, uses in seen.items() if len(set(uses.values())) > 1}
    assert different == {}


def test_every_interval_has_the_same_coverage_unless_the_user_says_otherwise():
    assert ExplainSettings().confidence == method_named("profile").settings().confidence
    assert ImpactSettings().confidence == method_named("profile").settings().confidence


def test_every_command_that_works_can_be_quiet_and_verbose():
    for name in COMMANDS:
        assert options(name)["quiet"].opts == ["--quiet", "-q"]
        assert options(name)["verbose"].opts == ["--verbose", "-v"]


def test_without_a_command_the_help_is_printed_and_the_status_is_that_of_wrong_usage():
    result = planted.command()
    assert result.exit_code == 2
    assert result.stdout.strip() == planted.command("--help").stdout.strip()


# Completion.


def completions(*words):
    """What bash is offered after some words."""
    environment = os.environ | {
        "_STICKYTOKEN_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(words),
        "COMP_CWORD": str(len(words) - 1),
    }
    script = "import sys; sys.argv[0] = 'stickytoken'; from stickytoken.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.split()


def test_commands_options_and_values_are_completed():
    assert completions("stickytoken", "de") == ["detect", "demo"]
    assert completions("stickytoken", "explain", "--conf") == ["--confidence"]
    assert completions("stickytoken", "detect", "m", "--method", "p") == ["profile"]
    assert completions("stickytoken", "show", "r", "--category", "OK") == ["OK", "OK_SPECIAL"]
    assert completions("stickytoken", "show", "r", "--category", "ok") == ["ok", "ok_special"]


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_the_completion_that_is_shown_works_in_bash(tmp_path):
    """A bash that reads the script asks the command for what it offers."""
    program = tmp_path / "stickytoken"
    program.write_text(f"#!{sys.executable}\nfrom stickytoken.cli.main import main\n\nmain()\n")
    program.chmod(0o755)
    environment = os.environ | {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1",
    }
    script = (
        'eval "$(stickytoken --show-completion bash)"; complete -p stickytoken; '
        "COMP_WORDS=(stickytoken expl); COMP_CWORD=1; _stickytoken_completion stickytoken; "
        'echo "offered: ${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "-c", script], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    assert "offered: explain" in done.stdout.splitlines()
