"""What --help shows, the options of every command, and completion in a shell."""

import re
import shlex

import pytest
import typer
from rich.text import Text
from typer.core import TyperOption

import planted
from stickytoken import encoders
from stickytoken.cli import _options
from stickytoken.cli.app import app
from stickytoken.encoders import Prompting
from stickytoken.errors import InputError
from stickytoken.explanation import ExplainSettings
from stickytoken.impacts import ImpactSettings
from stickytoken.methods.entry import MethodEntry, Option
from stickytoken.methods.registry import entries, method_named, register
from stickytoken.vocabulary import Category

COMMANDS = typer.main.get_command(app).commands
OUTPUT = "Output"
PANELS = [
    *("Model", "Tokens and texts", "Method", "Computation", "Models behind an endpoint", "Language models"),
    OUTPUT,
]


def options(name):
    own = [option for option in COMMANDS[name].params if isinstance(option, TyperOption)]
    return {option.name: option for option in own}


def settings(name):
    return {option.name: option for option in COMMANDS[name].settings.values()}


def test_the_commands_are_those_of_the_design():
    assert " ".join(COMMANDS) == (
        "tokens detect judge show probe report compare published card explain why impact repair scan clean "
        "check demo embed evaluate tune"
    )
    without = planted.command()  # wrong usage
    assert (without.exit_code, without.stdout.strip()) == (2, planted.command("--help").stdout.strip())
    shown = without.stdout.partition("Sentence embeddings from language models")
    listed = [re.findall(r"^│ (\w+) ", part.partition(" Commands ")[2] or part, re.M) for part in shown[::2]]
    assert listed == [list(COMMANDS)[:-3], ["embed", "evaluate", "tune"]]
    summaries = [command.help.partition("\n\n")[0] for command in COMMANDS.values()]
    assert [text for text in summaries if not re.fullmatch(r"[A-Z][^\n]+[^.]\.", text)] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_what_people_use_fits_a_narrow_terminal_and_lists_the_rest_as_settings(name):
    result = planted.command(name, "--help", COLUMNS="80")
    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    shown = [line for line in lines if line.startswith(("│ --", "│ *  --", "│    --"))]
    assert 0 < len(shown) <= (24 if name == "detect" else 20)
    titles = [title for title in re.findall(r"^╭─ (.+?) ─+╮$", result.stdout, re.M) if title != "Arguments"]
    assert titles == [title for title in PANELS if title in titles]
    for option in ("--help", "--quiet", "--verbose", "-q", "-v"):
        assert option in result.stdout.partition(f"╭─ {OUTPUT} ")[2]
    # Square brackets in a help text can be read as markup, and vanish.
    others = COMMANDS[name].settings
    texts = [COMMANDS[name].help, *(param.help for param in (*COMMANDS[name].params, *others.values()))]
    assert [text for text in texts if not text or Text.from_markup(text).plain != text] == []
    assert "Args:" not in result.stdout
    if others:
        listed = planted.command(name, "--set", "help", COLUMNS="200").stdout
        assert [each for each in others if f"\n{each} " not in listed] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_every_command_has_an_example_that_the_command_takes(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # with the files that examples name
    (tmp_path / "texts.txt").write_text("a\n")
    pairs = '{"sentence1": "a", "sentence2": "b", "score": %d}\n'
    for task in ("stsb-dev.jsonl", "stsb-test.jsonl"):
        (tmp_path / task).write_text("".join(pairs % score for score in range(3)))
    words = shlex.split(re.search(r"Example: (stickytoken .*)", COMMANDS[name].help)[1])
    assert words[:2] == ["stickytoken", name]
    context = COMMANDS[name].make_context(name, words[2:])
    assert context.params
    assert context.args == []
    # Options are judged before the model is loaded: nothing but the model is wrong.
    absent = tmp_path / "absent"
    words[3 if words[2].startswith("--") else 2] = str(absent)
    planted.refused(*words[1:], saying=f"no (run )?folder '{absent}'")


# Options


def test_an_option_has_one_meaning_in_every_command():
    """The same name is the same kind of value, and stands in the same panel."""
    seen = {}
    for command in COMMANDS:
        for name, option in options(command).items():
            if (command, name) != ("tune", "prompt"):  # it has a default of its own
                described = (str(option.type_descriptor.annotation), option.rich_help_panel)
                seen.setdefault(option.opts[0], set()).add(described)
    # A report is html; tune takes one task file, others several names; the web app opens several runs.
    assert {name for name, uses in seen.items() if len(uses) > 1} == {"--format", "--task", "--run"}


def test_every_option_reaches_load_encoder(monkeypatch, tmp_path):
    found = {}

    def load(model, **given):
        found.update(given, model=model)
        raise InputError("enough")

    monkeypatch.setattr(encoders, "load_encoder", load)
    (tmp_path / "texts.txt").write_text("a\n")
    values = {"token_prepending": True, "start": 2, "exit": 5, "layer": -3, "contrast": True}
    values |= {"contrast_layer": 1, "contrast_strength": 0.25, "contrast_rule": "norm"}
    loading = {"revision": "main", "trust_remote_code": True, "device": "cuda:1", "dtype": "float16"}
    loading |= {"token_budget": 9, "packed_layers": False}
    given = loading | {"prompt": "ke", "prompt_name": "query"} | values
    words = []
    for name, value in given.items():
        flag = name.replace("_", "-")
        said = str(value).lower() if isinstance(value, bool) else str(value)
        if name in settings("embed"):
            words += ["--set", f"{flag}={said}"]
        else:
            words += [f"--{flag}"] if value is True else [f"--{flag}", said]
    files = ("--input", tmp_path / "texts.txt", "--out", tmp_path / "v.parquet")
    planted.refused("embed", "m", *files, *words, saying="enough")
    assert found == {"model": "m", "prompt": Prompting("ke", "query", **values), **loading}
    planted.refused("embed", "m", *files, saying="enough")
    nothing = dict.fromkeys(loading) | {"trust_remote_code": False, "dtype": "float32"}
    assert found == {"model": "m", "prompt": Prompting(), **nothing}


@pytest.mark.parametrize(("name", "own"), [("explain", ExplainSettings()), ("impact", ImpactSettings())])
def test_options_of_settings_have_the_defaults_of_the_settings(name, own):
    found = options(name) | settings(name)
    shared = [option for option in found.values() if hasattr(own, option.name)]
    assert len(shared) > 8
    assert {option.name: option.default for option in shared} == {
        option.name: getattr(own, option.name) for option in shared
    }
    assert own.confidence == method_named("profile").settings().confidence


@pytest.mark.parametrize("entry", entries(), ids=lambda entry: entry.name)
def test_every_option_of_a_method_is_one_of_its_settings_and_shows_its_default(entry):
    own = method_named(entry.name).settings()
    for option in entry.options:
        value = getattr(own, option.setting)
        if isinstance(value, bool) or value in (None, ()):
            assert option.default == (str(value).lower() if isinstance(value, bool) else "the model's own")
        else:
            assert type(value) is option.kind
            assert option.kind(option.default) == value, option.name
        for name in ["detect", *(["probe"] if option.probe else [])]:
            assert (options(name) | settings(name))[option.name].default is None
    helps = {name: option.help for name, option in (options("detect") | settings("detect")).items()}
    assert helps["insertion"].endswith(" Default: ids (profile), text (std).")
    assert helps["budget"].endswith(" Default: 4 (profile).")
    assert helps["method"].endswith(" Default: profile, or std with --set pairs=FILE.")


def test_one_name_has_one_meaning():
    meant = Option("copies", float, "Something else.", "1")
    entry = MethodEntry("other", "", (meant,), takes_pairs=False, load=lambda: method_named("std"))
    with pytest.raises(InputError, match="--copies of the method other differs from --copies"):
        register(entry)
    assert "other" not in {each.name for each in entries()}


def test_every_category_of_the_vocabulary_is_explained():
    assert list(_options.CATEGORIES) == list(Category)


# Completion


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("explain --set conf", "confidence="),
        ("detect m --method p", "profile"),
        ("show r --category ok", "ok ok_special"),
    ],
)
def test_commands_options_and_values_are_completed(words, offered):
    variables = {"COMP_WORDS": f"stickytoken {words}", "COMP_CWORD": str(len(words.split()))}
    program = f"import sys; sys.argv[0] = 'stickytoken'; {planted.COMMAND_LINE}"
    done = planted.program(program, _STICKYTOKEN_COMPLETE="complete_bash", **variables)
    assert done.stdout.split() == offered.split()
