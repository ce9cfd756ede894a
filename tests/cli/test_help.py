"""What --help shows, options and rare settings, files with either, and completion in a shell."""

import re
import shlex
from pathlib import Path

import pytest
import typer
from rich.text import Text
from typer.core import TyperOption
from typer.testing import CliRunner

import planted
from naming import naming
from stickytoken.cleaning import SpanKind
from stickytoken.cli import _options
from stickytoken.cli._command import project_table
from stickytoken.cli.app import app
from stickytoken.cli.commands import shipping
from stickytoken.encoders import Prompting
from stickytoken.encoders.files.spec import EncoderSpec
from stickytoken.errors import InputError
from stickytoken.explanation import ExplainSettings
from stickytoken.gate import FailOn
from stickytoken.methods import SETTINGS_OF_METHOD
from stickytoken.settings import DETECT_ONLY, command_line_types, descriptions
from stickytoken.settings.repair import RepairSettings
from stickytoken.vocabulary import Category

GROUP = typer.main.get_command(app)
COMMANDS = GROUP.commands
PANELS = [
    "Model",
    "Tokens and texts",
    "Method",
    "Output",
    "Computation",
    "Models behind an endpoint",
    "Language models",
]
# Commands by the question that they answer.
COMMAND_GROUPS = {
    "Find sticky tokens": "detect audit show probe",
    "Fix a model or documents": "repair scan clean check",
    "Understand and report": "explain why report published card demo",
    "Language models": "embed evaluate tune",
    "Tokenizers": "tokens",
}


@pytest.fixture(autouse=True)
def in_a_repository(tmp_path, monkeypatch):
    (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path)


def options(name):
    own_options = [option for option in COMMANDS[name].params if isinstance(option, TyperOption)]
    return {option.name: option for option in own_options}


def settings(name):
    return {option.name: option for option in COMMANDS[name].settings.values()}


def test_commands_are_grouped_by_question():
    groups = {}
    for line in planted.command("--help").stdout.splitlines():
        title = re.match(r"╭─ (.+?) ─+╮$", line)
        if title:
            groups[title[1]] = []
        name = re.match(r"│ (\w+) ", line)
        if name:
            groups[list(groups)[-1]].append(name[1])
    del groups["Options"]
    assert groups == {title: names.split() for title, names in COMMAND_GROUPS.items()}


def test_no_command_prints_the_help():
    without_command = planted.command()
    assert without_command.exit_code == 2
    assert without_command.stdout.strip() == planted.command("--help").stdout.strip()


def test_the_summary_of_a_command_is_one_sentence_on_one_line():
    summaries = [command.help.partition("\n\n")[0] for command in COMMANDS.values()]
    assert [text for text in summaries if not re.fullmatch(r"[A-Z][^\n]+[^.]\.", text)] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_help_is_short_and_lists_rare_options_as_settings(name):
    result = planted.command(name, "--help", COLUMNS="80")
    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    option_lines = [line for line in lines if line.startswith(("│ --", "│ *  --", "│    --"))]
    assert 0 < len(option_lines) <= (25 if name == "detect" else 20)
    titles = [title for title in re.findall(r"^╭─ (.+?) ─+╮$", result.stdout, re.M) if title != "Arguments"]
    assert titles == [title for title in PANELS if title in titles]
    for option in ("--help", "--quiet", "--verbose", "-q", "-v"):
        assert option in result.stdout.partition("╭─ Output ")[2]
    # Square brackets in a help text can be read as markup, and vanish.
    others = COMMANDS[name].settings
    texts = [COMMANDS[name].help, *(param.help for param in (*COMMANDS[name].params, *others.values()))]
    assert [text for text in texts if not text or Text.from_markup(text).plain != text] == []
    assert "Args:" not in result.stdout
    if others:
        listed = planted.command(name, "--set", "help", COLUMNS="200").stdout
        assert [command for command in others if f"\n{command} " not in listed] == []


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name == "demo" else []) for name in COMMANDS]
)
def test_the_example_in_the_help_of_a_command_is_valid(name, tmp_path):
    # With the files that examples name.
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
    planted.assert_refused(*words[1:], saying=naming(absent))


def test_an_option_has_one_meaning_in_every_command():
    """The same name is the same kind of value, and stands in the same panel."""
    values_seen = {}
    for command in COMMANDS:
        for name, option in options(command).items():
            if (command, name) != ("tune", "prompt"):  # it has a default of its own
                described = (str(option.type_descriptor.annotation), option.rich_help_panel)
                values_seen.setdefault(option.opts[0], set()).add(described)
    # A report is html; tune takes one task file, others several names; the web app opens several runs.
    assert {name for name, uses in values_seen.items() if len(uses) > 1} == {"--format", "--task", "--run"}


def test_every_option_reaches_the_model(monkeypatch, tmp_path):
    specs = []

    def load(spec):
        specs.append(spec)
        raise InputError("enough")

    monkeypatch.setattr("stickytoken.loading.load_from_spec", load)
    (tmp_path / "texts.txt").write_text("a\n")
    values = {"token_prepending": True, "start": 2, "exit": 5, "layer": -3}
    loading = {"revision": "main", "trust_remote_code": True, "device": "cuda:1", "dtype": "float16"}
    loading |= {"token_budget": 9, "truncate_dim": 8, "route": "document"}
    all_values = loading | {"prompt": "ke", "prompt_name": "query"} | values
    words = []
    for name, value in all_values.items():
        flag = name.replace("_", "-")
        text = str(value).lower() if isinstance(value, bool) else str(value)
        if name in settings("embed"):
            words += ["--set", f"{flag}={text}"]
        else:
            words += [f"--{flag}"] if value is True else [f"--{flag}", text]
    files = ("--input", tmp_path / "texts.txt", "--out", tmp_path / "v.parquet")
    planted.assert_refused("embed", "m", *files, *words, saying="enough")
    planted.assert_refused("embed", "m", *files, saying="enough")
    prompting = Prompting("ke", "query", **values)
    assert specs == [EncoderSpec(model="m", prompting=prompting, **loading), EncoderSpec(model="m")]


def test_intervals_have_the_coverage_of_those_of_a_run():
    own = settings("explain")["confidence"].default
    assert own == SETTINGS_OF_METHOD["profile"]().confidence


def test_a_setting_can_have_another_name_on_the_command_line():
    assert settings("explain")["attributed_pairs"].default == ExplainSettings().pairs
    values = values_of("audit", "r", "--documents", "d.txt", "--set", "most-documents=50")
    assert (values["documents"], values["most_documents"]) == ("d.txt", 50)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (
            ExplainSettings,
            {"benign": 2, "confidence": 1.0, "pairs": 1.5, "placement": "up", "attribution": 1},
        ),
        (RepairSettings, {"strategy": None, "seed": -1, "verify": "yes"}),
    ],
)
def test_settings_out_of_range_are_refused(kind, values):
    for name, value in values.items():
        with pytest.raises(InputError, match=naming(name, value)):
            kind(**{name: value})


@pytest.mark.parametrize("method", SETTINGS_OF_METHOD)
def test_commands_have_all_settings_of_a_method(method):
    for name, setting_type in command_line_types(SETTINGS_OF_METHOD[method]).items():
        for command in ["detect", *([] if DETECT_ONLY in setting_type.metadata else ["probe"])]:
            assert (options(command) | settings(command))[name].default is None
    helps = {name: option.help for name, option in (options("detect") | settings("detect")).items()}
    assert helps["insertion"].endswith(" Default: ids (profile), text (std).")
    assert helps["budget"].endswith(" Default: 3.4 (profile).")
    assert helps["screen_precision"].endswith(" Default: the model's own (profile).")
    assert helps["method"].endswith(" Default: profile, or std with --set pairs=FILE.")


def test_settings_that_methods_share_have_one_type_and_one_description():
    types_by_name = {}
    texts_by_name = {}
    for settings_class in SETTINGS_OF_METHOD.values():
        for name, setting_type in command_line_types(settings_class).items():
            types_by_name.setdefault(name, set()).add((setting_type.kind, setting_type.repeated))
            texts_by_name.setdefault(name, set()).add(descriptions(settings_class)[name])
    assert {name for name, types in types_by_name.items() if len(types) > 1} == set()
    assert {name for name, texts in texts_by_name.items() if len(texts) > 1} == set()


def test_a_setting_only_for_python_is_not_on_the_command_line():
    assert "attribution_carriers" not in options("explain") | settings("explain")


def test_every_category_of_the_vocabulary_is_explained():
    assert list(_options.CATEGORIES) == list(Category)


def test_check_can_fail_on_every_grade_and_cause():
    assert list(shipping._GRADES) == list(FailOn)
    assert list(shipping._CAUSES) == list(SpanKind)


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("explain --set conf", "confidence="),
        ("detect m --method p", "profile"),
        ("show r --category ok", "ok ok_special"),
        ("show r --category Und", "Undecodeable"),
        ("show r --category UNREACHABLE_S", "UNREACHABLE_SPECIAL UNREACHABLE_SINGLE_TOKEN"),
    ],
)
def test_commands_options_and_values_are_completed(words, offered):
    variables = {"COMP_WORDS": f"stickytoken {words}", "COMP_CWORD": str(len(words.split()))}
    variables |= {"_STICKYTOKEN_COMPLETE": "complete_bash"}
    done = CliRunner(env=variables).invoke(app, [], prog_name="stickytoken")
    assert done.stdout.split() == offered.split()


# Rare options: --set and the table [tool.stickytoken] of pyproject.toml


def values_of(command, *arguments):
    parent = typer.Context(GROUP, info_name="stickytoken")
    return COMMANDS[command].make_context(command, [*map(str, arguments)], parent=parent).params


def test_settings_have_the_types_of_the_options():
    arguments = [f"--set={assignment}" for assignment in ("token-budget=64", "unusual=7", "engine=ray")]
    values = values_of("detect", "m", *arguments, "--set", "trust_remote_code=true")
    assert (values["token_budget"], values["unusual"]) == (64, 7)
    assert (values["engine"].value, values["trust_remote_code"]) == ("ray", True)
    assert values_of("detect", "m")["token_budget"] is None
    assert values_of("detect", "m", "--set", "unusual=5", "--set", "unusual=8")["unusual"] == 8


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("token-budget", naming("name=value")),
        ("token-budget=0", naming("token-budget", 1)),
        ("engine=dask", naming("engine", "'dask'", "'local'", "'ray'")),
        ("seed=3", naming("--seed")),
        ("sed=3", naming("'sed'", "--set help")),
        ("token_bugdet=3", naming("'token-bugdet'", "token-budget")),
        # What was an option before names its setting.
        ("--token-budget=3", naming("--set token-budget=VALUE")),
        ("--no-report", naming("--set report=false")),
        ("--unusual", naming("--set unusual=VALUE")),
    ],
)
def test_a_wrong_setting_is_one_line(assignment, message):
    arguments = [assignment] if assignment.startswith("--") else ["--set", assignment]
    planted.assert_refused("detect", "m", *arguments, status=2, saying=message)


@pytest.mark.parametrize(
    ("command", "right_option"),
    [
        ("scan r a.jsonl --source place", "--set source-column=COLUMN"),
        ("clean r --documents a.txt", "second argument"),
        ("probe m --tokens river", "arguments after the model"),
        ("audit r --documents a.txt --tokenizer t", "--set tokenizer=VALUE"),
    ],
)
def test_a_guessed_option_names_the_right_one(command, right_option):
    planted.assert_refused(*command.split(), status=2, saying=re.escape(right_option))


def test_every_entry_of_a_check_is_read(tmp_path, write):
    write(
        "pyproject.toml",
        '[project]\nname = "x"\n\n[tool.stickytoken]\nfail-on = "serious"\nmax = 3\n'
        'model = "all-MiniLM-L6-v2"\nrevision = "main"\nfolder = "measured"\nbaseline = "runs/a"\n'
        'documents = "corpus"\ncolumn = ["title", "text"]\n',
    )
    values = values_of("check")
    assert (values["source"], values["revision"], values["fail_on"]) == (
        "all-MiniLM-L6-v2",
        "main",
        "serious",
    )
    assert (values["max_tokens"], str(values["folder"]), str(values["baseline"])) == (3, "measured", "runs/a")
    assert (values["documents"], values["column"]) == ("corpus", ["title", "text"])
    file, table = project_table(tmp_path)
    assert (table["max"], shipping.line_of_model(file.read_text("utf-8"))) == (3, 7)
    assert shipping.line_of_model('# first\n[tool.stickytoken]\nmax = 1\n[tool.other]\nmodel = "x"\n') == 2
    write("pyproject.toml", "[tool.stickytoken\n")
    planted.assert_refused("check", saying=naming("pyproject.toml", "TOML"))
    assert planted.command("check", "--help").exit_code == 0


def test_paths_are_relative_to_the_file_and_names_of_models_stay(tmp_path, write, monkeypatch):
    inner = tmp_path / "docs" / "deep"
    inner.mkdir(parents=True)
    (tmp_path / "model").mkdir()
    write("pyproject.toml", '[tool.stickytoken]\nmodel = "model"\nbaseline = "runs/a"\n')
    monkeypatch.chdir(inner)
    values = values_of("check")
    assert (Path(values["source"]), values["baseline"]) == (tmp_path / "model", tmp_path / "runs/a")
    write("pyproject.toml", '[tool.stickytoken]\nmodel = "organisation/model"\n')
    assert values_of("check")["source"] == "organisation/model"


def test_the_nearest_table_counts_and_none_above_the_repository(tmp_path, write, monkeypatch):
    write("pyproject.toml", '[tool.stickytoken]\nmodel = "outer"\n')
    inner = tmp_path / "inner"
    inner.mkdir()
    write("inner/pyproject.toml", '[project]\nname = "x"\n')
    monkeypatch.chdir(inner)
    assert values_of("check")["source"] == "outer"
    (inner / ".git").mkdir()
    assert values_of("check")["source"] is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[tool.stickytoken]\nmodle = 'x'\n",
            naming("[tool.stickytoken]", "'modle'", "model"),
        ),
        (
            "[tool.stickytoken]\nfail-on = 'bad'\n",
            naming("fail-on", "'bad'", "sticky", "mild", "serious", "severe"),
        ),
        ("[tool.stickytoken]\nmodel = 3\n", naming("model", 3)),
        ("[tool.stickytoken]\nmax = 1.5\n", naming("max", 1.5)),
        ("[tool.stickytoken]\nmax = -1\n", naming("max", -1, 0)),
        ("[tool.stickytoken]\ncolumn = ['']\n", naming("column")),
        ("[tool.stickytoken]\nmodel = '~nobody-here/m'\n", naming("model", "~nobody-here/m")),
        ("[tool.stickytoken]\nformat = 'json'\n", naming("'format'", "fail-on")),
        ("[tool.stickytoken]\nmodel = '\xff'\n", naming("pyproject.toml", "UTF-8")),
        ("[tool]\nstickytoken = 3\n", "table"),
    ],
)
def test_a_wrong_table_is_one_line(write, text, message):
    write("pyproject.toml", text.encode("latin-1"))
    planted.assert_refused("check", saying=message)


@pytest.mark.parametrize("command", [("check",), ("detect", "m")])
def test_a_table_of_a_command_is_refused_rather_than_ignored(write, command):
    write("pyproject.toml", "[tool.stickytoken.detect]\nseed = 1\n")
    planted.assert_refused(*command, saying=naming("pyproject.toml", "[tool.stickytoken.detect]"))
