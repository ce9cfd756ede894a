"""The command line: one document on stdout, everything else on stderr, token text made harmless."""

import json
import re
import shlex
import shutil
import subprocess
import sys
import unicodedata
from pathlib import Path

import polars as pl
import pytest
import typer
from tokenizers import Tokenizer, models

import planted
from stickytoken import analyze_vocabulary, open_run
from stickytoken.cli.main import app
from stickytoken.cli.progress import progress_bar
from stickytoken.runs import Evidence
from stickytoken.runs.progress import Progress

COMMANDS = typer.main.get_command(app).commands


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    path = tmp_path_factory.mktemp("texts") / "sentences.txt"
    path.write_text("\n".join(planted.small_corpus().texts), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def planted_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("planted") / "planted-model"
    planted.planted_model(3).save(str(folder))
    return folder


@pytest.fixture(scope="module")
def options(texts):
    """The least that detect needs beside the model; every token is validated."""
    return [
        "--sentences",
        texts,
        *planted.SMALL_OPTIONS,
        "--candidate-share",
        "1",
        "--validation-pairs",
        "20",
    ]


@pytest.fixture(scope="module")
def run_folder(planted_folder, options, tmp_path_factory):
    """A run with sticky tokens."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    result = planted.command("detect", planted_folder, *options, "--out", folder)
    assert result.exit_code == 0, result.stderr
    return folder


def document(result):
    """The one JSON document that stdout holds, of finite numbers and in ASCII."""

    def refuse(name):
        raise AssertionError(f"{name} is no JSON")

    assert result.exit_code == 0, result.stderr
    assert result.stdout.isascii()
    assert result.stdout.endswith("\n")
    return json.loads(result.stdout, parse_constant=refuse)


# Help


def test_the_commands_are_those_of_the_design():
    assert list(COMMANDS) == ["tokens", "detect", "probe", "show"]
    result = planted.command("--help")
    assert result.exit_code == 0
    assert all(re.search(rf"^  {name} ", result.stdout, re.MULTILINE) for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_every_command_has_an_example_that_the_command_takes(name):
    result = planted.command(name, "--help")
    assert result.exit_code == 0
    assert result.stderr == ""
    found = re.search(
        r"Example: (stickytoken .*?)\n\n", result.stdout.replace("\n  ", " ") + "\n\n", re.DOTALL
    )
    words = shlex.split(found[1].split("  ")[0])
    assert words[:2] == ["stickytoken", name]
    context = COMMANDS[name].make_context(name, words[2:])
    assert context.params
    assert context.args == []


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_explains_every_option(name):
    for parameter in COMMANDS[name].params:
        assert parameter.help, parameter.name


def test_the_version_is_that_of_the_package():
    from importlib.metadata import version

    result = planted.command("--version")
    assert (result.exit_code, result.stdout) == (0, f"stickytoken {version('stickytoken')}\n")


def test_help_does_not_wait_for_torch():
    script = (
        "import sys; from stickytoken.cli.main import main\n"
        "sys.argv = ['stickytoken', 'detect', '--help']\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert end.code == 0\n"
        "heavy = {'torch', 'transformers', 'sentence_transformers', 'polars'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# Documents


def test_tokens_gives_one_document(bert_folder, encoder):
    found = document(planted.command("tokens", bert_folder, "--format", "json"))
    vocabulary = analyze_vocabulary(encoder)
    assert found == {
        "model": str(bert_folder),
        "vocab_size": 125,
        "available": 95,
        "categories": vocabulary.counts(),
    }
    assert sum(found["categories"].values()) == 125


def test_tokens_lists_the_entries_of_a_category(bert_folder, encoder):
    frame = analyze_vocabulary(encoder).frame()
    category = "UNREACHABLE_MULTI_TOKEN"
    wanted = frame.filter(category=category).to_dicts()
    for spelling, limit in ((category, 50), (category.lower(), 4)):
        arguments = ("tokens", bert_folder, "--category", spelling, "--limit", limit)
        found = document(planted.command(*arguments, "-f", "json"))
        assert found["entries"] == wanted[:limit]
        table = planted.command(*arguments)
        heading = f"First {min(limit, len(wanted))} of {len(wanted)} {category}"
        assert heading in " ".join(table.stdout.split())
        assert table.stdout.count("##") == 2 * min(limit, len(wanted))


def test_tokens_counts_every_category_in_its_table(bert_folder):
    result = planted.command("tokens", bert_folder)
    assert result.exit_code == 0
    assert re.search(r"OK +│ +91 +│ 72\.8%", result.stdout)
    assert re.search(r"MEANINGLESS +│ +0 +│ 0\.0%", result.stdout)
    assert "95 of 125 entries can occur in text." in result.stdout


def test_detect_gives_one_document_which_show_repeats(planted_folder, options, tmp_path):
    arguments = ("detect", planted_folder, *options, "--out", tmp_path / "run", "--format", "json")
    result = planted.command(*arguments)
    found = document(result)
    wanted = {"run", "method", "model", "available", "candidates", "sticky", "seconds", "sequences"}
    assert wanted <= set(found)
    assert (found["run"], found["method"]) == (str(tmp_path / "run"), "std")
    assert found["model"] == str(planted_folder)
    assert found["available"] == found["scored"] == found["candidates"] == 95
    assert found["sequences"] == 95 * (2 * 9 + 1) + 95 * 20 * 9
    assert found["seconds"] >= 0
    assert found["sticky"][0]["token"] == planted.PLANTED
    assert found["sticky"][0]["validation_rate"] == pytest.approx(1)
    assert {"token_id", "token", "category", "sticky_score", "verdict"} <= set(found["sticky"][0])
    for again in (arguments, ("show", tmp_path / "run", "--format", "json")):
        assert document(planted.command(*again)) == found


def test_progress_and_notes_go_to_stderr(planted_folder, options, tmp_path):
    result = planted.command("detect", planted_folder, *options, "--sample", "9", "--out", tmp_path / "run")
    assert result.exit_code == 0
    for stage in ("mean similarity: 125 of 125", "score: 9 of 9", "validate: 9 of 9"):
        assert sum(line.startswith(stage) for line in planted.lines_of(result.stderr)) == 1
        assert stage not in result.stdout
    assert "note: the verdict is an outlier rule, and 9 candidates are few for it" in result.stderr
    assert "note:" not in result.stdout
    assert "method std, a selection of 9 of 95 available tokens" in result.stdout


def test_on_a_terminal_stdout_is_still_one_document(planted_folder, options, tmp_path):
    arguments = ("detect", planted_folder, *options, "--sample", "5", "--out", tmp_path / "run", "-f", "json")
    result = planted.command(*arguments, FORCE_COLOR="1")
    assert document(result)["scored"] == 5
    assert "\x1b[" in result.stderr


def test_a_run_without_sticky_tokens_says_so(bert_folder, texts, tmp_path):
    result = planted.command(
        "detect", bert_folder, "--sentences", texts, *planted.SMALL_OPTIONS, "--out", tmp_path / "run"
    )
    assert result.exit_code == 0
    assert result.stdout.startswith("No sticky tokens among 19 validated candidates.\n")
    assert "all 95 of 95 available tokens" in result.stdout


def test_the_options_of_detect_reach_the_run(planted_folder, options, tmp_path):
    out = tmp_path / "run"
    arguments = "--seed 9 --insertion ids --copies 2 --scoring-pairs 3 --outlier-range 1.5 --pair-count 70"
    chosen = tmp_path / "chosen.csv"
    chosen.write_text("token\nriver\nstone\nbird\n!\n", encoding="utf-8")
    result = planted.command(
        "detect",
        planted_folder,
        *options,
        *arguments.split(),
        "--tokens",
        chosen,
        "--sample",
        "3",
        "--out",
        out,
    )
    assert result.exit_code == 0, result.stderr
    run = open_run(out)
    settings = run.record.settings
    assert (settings["seed"], settings["insertion"], settings["copies"]) == (9, "ids", 2)
    assert (settings["scoring_pairs"], settings["validation_pairs"]) == (3, 20)
    assert (settings["outlier_range"], settings["pairs"], settings["sentences"]) == (1.5, 70, 40)
    assert settings["candidate_share"] == 1
    assert len(run.tokens) == 3
    assert set(run.tokens["token"]) < {"river", "stone", "bird", "!"}


def test_detect_reads_pairs_and_says_where_they_disagree_with_the_model(planted_folder, options, tmp_path):
    pairs = tmp_path / "pairs.csv"
    pairs.write_text(
        "sentence1,sentence2,similarity\nthe bird sings.,a quiet river.,-0.9\nold stone.,new song.,-0.8\n",
        encoding="utf-8",
    )
    arguments = [*options[2:], "--pairs", pairs, "--sample", "5", "--out", tmp_path / "run"]
    result = planted.command("detect", planted_folder, *arguments)
    assert result.exit_code == 0, result.stderr
    assert "note: similarities in the pair file differ by up to" in result.stderr
    record = open_run(tmp_path / "run").record
    assert (record.corpus.source, record.corpus.sentences) == (str(pairs), None)


def test_detect_names_its_folder_after_the_run(planted_folder, options, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = document(planted.command("detect", planted_folder, *options, "--sample", "4", "--format", "json"))
    assert re.fullmatch(r"runs/planted-model-std-[0-9a-f]{12}", Path(found["run"]).as_posix())
    assert open_run(found["run"]).result.scored == 4


def test_probe_gives_one_document(planted_folder, texts):
    arguments = ("probe", planted_folder, "!", "river", "--sentences", texts, *planted.PROBE_OPTIONS)
    result = planted.command(*arguments, "--format", "json")
    found = document(result)
    assert [each["token"] for each in found] == ["!", "river"]
    for each in found:
        assert {"token_id", "token", "validation_rate", "by_placement"} <= set(each)
        assert list(each["validation_rate"]) == ["cosine", "euclidean", "manhattan"]
        assert set(each["by_placement"]) == {"prefix", "suffix", "random"}
        assert set(each) == set(Evidence.__dataclass_fields__)
    assert "validate: 2 of 2" in result.stderr
    by_id = planted.command(
        "probe", planted_folder, "--ids", *(each["token_id"] for each in found), *arguments[4:], "-f", "json"
    )
    assert document(by_id) == found


def test_probe_prints_rates_by_placement(planted_folder, texts):
    result = planted.command("probe", planted_folder, "!", "--sentences", texts, *planted.PROBE_OPTIONS)
    assert result.exit_code == 0
    row = next(line for line in result.stdout.splitlines() if "│ ! " in line)
    assert row.count("1.0000") >= 3
    assert "6 pairs below the model's mean similarity" in result.stdout


def test_probe_stores_nothing(planted_folder, texts, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    planted.command("probe", planted_folder, "!", "--sentences", texts, *planted.PROBE_OPTIONS)
    assert list(tmp_path.iterdir()) == []


def test_progress_without_a_terminal_is_a_line_a_stage(capsys, monkeypatch):
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    with progress_bar() as progress:
        for done in (0, 50, 100):
            progress(Progress("score", done, 100, done, 10 * done))
        progress(Progress("validate", 0, 7))
        progress(Progress("validate", 7, 7))
    captured = capsys.readouterr()
    assert captured.out == ""
    first, second = captured.err.splitlines()
    assert re.fullmatch(r"score: 100 of 100 in 0 s, [\d,]+ texts/s", first)
    assert second == "validate: 7 of 7 in 0 s"


# Show


def chosen(*conditions, sort=None, limit=50):
    """Ids that a filter of show must list."""

    def of(table):
        rows = table.filter(*conditions)
        if sort:
            rows = rows.sort(sort, "token_id", descending=[True, False], nulls_last=True)
        return rows["token_id"].to_list()[:limit]

    return of


VALIDATED = pl.col("verdict").is_not_null()
FILTERS = {
    "--token !": chosen(pl.col("token") == "!"),
    "--token river": chosen(pl.col("token") == "river"),
    "--verdict sticky": chosen(pl.col("verdict") == "sticky"),
    "--verdict benign --limit 7": chosen(pl.col("verdict") == "benign", limit=7),
    "--category OK_SPECIAL": chosen(pl.col("category") == "OK_SPECIAL"),
    "--category ok_special": chosen(pl.col("category") == "OK_SPECIAL"),
    "--contains in": chosen(pl.col("decoded").str.contains("in", literal=True)),
    "--contains .": chosen(pl.col("decoded") == "."),
    "--contains [": chosen(pl.col("decoded").str.starts_with("[")),
    "--contains zzz": chosen(pl.col("decoded") == "zzz"),
    "--validated --limit 100": chosen(VALIDATED, limit=100),
    "--sort lift": chosen(sort="lift"),
    "--sort sticky_score --limit 3": chosen(sort="sticky_score", limit=3),
    "--validated --sort validation_rate": chosen(VALIDATED, sort="validation_rate"),
    "--contains e --verdict benign --sort lift --limit 5": chosen(
        pl.col("decoded").str.contains("e", literal=True), pl.col("verdict") == "benign", sort="lift", limit=5
    ),
}


@pytest.fixture(scope="module")
def partly_validated(bert_folder, texts, tmp_path_factory):
    """A run in which most tokens have no verdict."""
    folder = tmp_path_factory.mktemp("runs") / "partly"
    arguments = ("--sentences", texts, *planted.SMALL_OPTIONS, "--out", folder)
    assert planted.command("detect", bert_folder, *arguments).exit_code == 0
    return folder


@pytest.mark.parametrize("arguments", FILTERS)
def test_show_lists_what_its_filters_choose(run_folder, partly_validated, arguments):
    for folder in (run_folder, partly_validated):
        wanted = FILTERS[arguments](open_run(folder).tokens)
        found = document(planted.command("show", folder, *arguments.split(), "--format", "json"))
        assert [row["token_id"] for row in found["tokens"]] == wanted
        assert found["run"] == str(folder)
        table = planted.command("show", folder, *arguments.split())
        assert table.exit_code == 0
        assert re.search(rf"^{len(wanted)} of \d+ tokens *$", table.stdout, re.MULTILINE)
        assert table.stderr == ""


def test_the_filters_of_these_tests_choose_something(run_folder, partly_validated):
    tables = [open_run(folder).tokens for folder in (run_folder, partly_validated)]
    empty = [name for name, choose in FILTERS.items() if not any(choose(table) for table in tables)]
    assert empty == ["--contains zzz"]


def test_show_without_filters_prints_what_detect_printed(run_folder, planted_folder, options):
    shown = planted.command("show", run_folder)
    detected = planted.command("detect", planted_folder, *options, "--out", run_folder)
    assert shown.exit_code == 0
    assert shown.stdout == detected.stdout
    assert shown.stdout.startswith(f"Sticky tokens of {planted_folder}")
    assert re.search(r"│ +34 │ ! +│ OK +│", shown.stdout)


def test_show_prints_a_dash_for_what_was_not_computed(partly_validated):
    table = open_run(partly_validated).tokens
    token = table.filter(pl.col("verdict").is_null())["token"][-1]
    row = next(
        line
        for line in planted.command("show", partly_validated, "--token", token).stdout.splitlines()
        if f"│ {token} " in line
    )
    assert [cell.strip() for cell in row.strip("│").split("│")][-3:] == ["-", "-", "-"]


# Hostile text

HOSTILE = {
    "[bold red]evil[/bold red]": "[bold red]evil[/bold red]",
    "[/]": "[/]",
    "[link=http://x]": "[link=http://x]",
    ":skull:": ":skull:",
    "\x1b[31mred\x1b[0m": r"\x1b[31mred\x1b[0m",
    "\x1b]0;title\x07": r"\x1b]0;title\x07",
    "\x9b2J": r"\x9b2J",
    "\u202egnp.exe": r"\u202egnp.exe",
    "\u2066in\u2069": r"\u2066in\u2069",
    "\u200bzero": r"\u200bzero",
    "\ufeffmark": r"\ufeffmark",
    "a\rb": r"a\rb",
    "a\nb": r"a\nb",
    "a\tb": r"a\tb",
    "\x00nul": r"\x00nul",
    "\x08\x7fdel": r"\x08\x7fdel",
    "\u2028line": r"\u2028line",
    "\U000e0041tag": r"\U000e0041tag",
    "\u00a0space": r"\xa0space",
    "</script><b>": "</script><b>",
    '"quote"': '"quote"',
    "é中🙂": "é中🙂",
}


def assert_harmless(output):
    dangerous = {
        character
        for character in output
        if character != "\n" and unicodedata.category(character) in {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
    }
    assert not dangerous


@pytest.fixture(scope="module")
def hostile_tokenizer(tmp_path_factory):
    """A folder with a tokenizer whose vocabulary is hostile."""
    folder = tmp_path_factory.mktemp("hostile")
    vocabulary = {"[UNK]": 0} | {text: place for place, text in enumerate(HOSTILE, start=1)}
    Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]")).save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture
def hostile_run(run_folder, tmp_path):
    """A run whose tokens, all sticky, are hostile."""
    folder = Path(shutil.copytree(run_folder, tmp_path / "run"))
    table = pl.read_parquet(folder / "tokens.parquet").head(len(HOSTILE))
    texts = pl.Series(list(HOSTILE))
    table = table.with_columns(token=texts, decoded=texts, verdict=pl.lit("sticky"))
    table.write_parquet(folder / "tokens.parquet")
    return folder


def test_hostile_vocabulary_is_printed_escaped_by_tokens(hostile_tokenizer):
    result = planted.command("tokens", hostile_tokenizer, "--category", "OK", "--limit", "99")
    assert result.exit_code == 0
    assert_harmless(result.stdout)
    for shown in HOSTILE.values():
        assert result.stdout.count(f"│ {shown} ") == 2, shown
    found = document(
        planted.command("tokens", hostile_tokenizer, "--category", "OK", "--limit", "99", "-f", "json")
    )
    assert [entry["token"] for entry in found["entries"]] == ["[UNK]", *HOSTILE]


@pytest.mark.parametrize("filters", [[], ["--verdict", "sticky"]], ids=["summary", "list"])
def test_hostile_tokens_of_a_run_are_printed_escaped_by_show(hostile_run, filters):
    result = planted.command("show", hostile_run, *filters)
    assert result.exit_code == 0
    assert_harmless(result.stdout)
    for shown in HOSTILE.values():
        assert f"│ {shown} " in result.stdout, shown
    found = document(planted.command("show", hostile_run, *filters, "--format", "json"))
    assert {row["token"] for row in found["tokens" if filters else "sticky"]} == set(HOSTILE)


def test_on_a_terminal_hostile_tokens_have_no_effect_either(hostile_run):
    result = planted.command("show", hostile_run, FORCE_COLOR="1", COLUMNS="120")
    styles = r"\x1b\[[0-9;]*m"
    assert_harmless(re.sub(styles, "", result.stdout))
    assert set(re.findall(styles, result.stdout)) <= {"\x1b[1m", "\x1b[0m", "\x1b[3m", "\x1b[1;3m"}
    assert "[bold red]evil[/bold red]" in result.stdout


def test_a_hostile_token_is_found_by_its_text(hostile_run):
    for text in HOSTILE:
        found = document(planted.command("show", hostile_run, "--token", text, "-f", "json"))
        assert [row["token"] for row in found["tokens"]] == [text]


def test_hostile_arguments_are_escaped_in_errors(planted_folder, texts, tmp_path):
    hostile = "\x1b[31m[bold]\u202e\nno"
    arguments = ("--sentences", texts, *planted.PROBE_OPTIONS)
    (tmp_path / "in" / hostile).mkdir(parents=True)
    for result in (
        planted.command("tokens", tmp_path / hostile),
        planted.command("detect", planted_folder, "--sentences", tmp_path / hostile),
        planted.command("detect", planted_folder, "--sentences", tmp_path / "in" / hostile),
        planted.command("show", tmp_path / hostile),
        planted.command("show", tmp_path / "in" / hostile),
        planted.command("probe", planted_folder, hostile, *arguments),
    ):
        assert result.exit_code == 1
        *_, error = planted.lines_of(result.stderr)
        assert error.startswith("error: ")
        assert "[31m[bold]" in error
        assert_harmless(error)


def test_a_hostile_model_name_is_escaped(hostile_tokenizer, hostile_run, tmp_path):
    """A run folder may come from somebody else, and so may a folder name."""
    hostile = "\x1b[31m[bold]evil\u202e"
    folder = Path(shutil.copytree(hostile_tokenizer, tmp_path / hostile))
    shown = planted.command("tokens", folder)
    assert shown.exit_code == 0
    assert_harmless(shown.stdout)
    assert r"\x1b[31m[bold]evil\u202e" in shown.stdout

    record = json.loads((hostile_run / "run.json").read_text("utf-8"))
    record["model"]["name"] = hostile
    (hostile_run / "run.json").write_text(json.dumps(record), encoding="utf-8")
    shown = planted.command("show", hostile_run.rename(tmp_path / "run\x1b]0;evil\u202e"))
    assert shown.exit_code == 0
    assert_harmless(shown.stdout)
    assert r"Sticky tokens of \x1b[31m[bold]evil\u202e" in shown.stdout
    assert shown.stdout.rstrip().endswith(r"run\x1b]0;evil\u202e")


# Real processes


def test_the_command_in_a_process_of_its_own_prints_one_document(planted_folder, options, run_folder):
    arguments = ["detect", planted_folder, *options, "--out", run_folder, "--format", "json"]
    done = subprocess.run(
        [sys.executable, "-c", "from stickytoken.cli.main import main; main()", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    shown = document(planted.command("show", run_folder, "--format", "json"))
    assert json.loads(done.stdout) == shown


def test_an_error_in_a_process_of_its_own_is_one_line_and_status_1(planted_folder):
    script = "from stickytoken.cli.main import main; main()"
    arguments = ["detect", str(planted_folder), "--sentences", "absent.txt"]
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == "error: no file 'absent.txt'\n"
