"""The command line: one document on stdout, everything else on stderr."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer

import planted
import stickytoken
from stickytoken import analyze_vocabulary, open_run
from stickytoken.cli.app import app
from stickytoken.methods.std.plan import StdEvidence

COMMANDS = typer.main.get_command(app).commands


# Help


def test_the_commands_are_those_of_the_design():
    assert list(COMMANDS) == [
        "tokens",
        "detect",
        "judge",
        "show",
        "probe",
        "report",
        "compare",
        "published",
        "card",
        "explain",
        "why",
        "impact",
        "repair",
        "scan",
        "clean",
        "check",
        "demo",
        "embed",
        "evaluate",
        "tune",
    ]
    result = planted.command("--help")
    assert result.exit_code == 0
    main, _, others = result.stdout.partition("Sentence embeddings from language models")
    listed = [
        re.findall(r"^│ (\w+) ", part.partition(" Commands ")[2] or part, re.MULTILINE)
        for part in (main, others)
    ]
    assert listed == [list(COMMANDS)[:-3], list(COMMANDS)[-3:]]


def example_of(name):
    """The words of the example in a command's help."""
    result = planted.command(name, "--help")
    assert result.exit_code == 0
    assert result.stderr == ""
    assert "Example: stickytoken" in result.stdout
    return shlex.split(re.search(r"Example: (stickytoken .*)", COMMANDS[name].help)[1])


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_every_command_has_an_example_that_the_command_takes(name, tmp_path, monkeypatch):
    # The files that examples name.
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts.txt").write_text("a\n")
    pairs = '{"sentence1": "a", "sentence2": "b", "score": %d}\n'
    for task in ("stsb-dev.jsonl", "stsb-test.jsonl"):
        (tmp_path / task).write_text("".join(pairs % score for score in range(3)))
    words = example_of(name)
    assert words[:2] == ["stickytoken", name]
    context = COMMANDS[name].make_context(name, words[2:])
    assert context.params
    assert context.args == []
    # Options are judged before the model is loaded: nothing but the model is wrong.
    absent = tmp_path / "absent"
    place = 3 if words[2].startswith("--") else 2
    words[place] = str(absent)
    planted.refused(*words[1:], saying=f"no (run )?folder '{absent}'")


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_explains_every_option(name):
    for parameter in COMMANDS[name].params:
        assert parameter.help, parameter.name


def test_the_list_of_commands_says_of_each_in_a_whole_sentence_what_it_does():
    summaries = [command.help.partition("\n\n")[0] for command in COMMANDS.values()]
    assert [text for text in summaries if not re.fullmatch(r"[A-Z][^\n]+[^.]\.", text)] == []


def test_the_version_is_that_of_the_package():
    result = planted.command("--version")
    assert (result.exit_code, result.stdout) == (0, f"stickytoken {stickytoken.__version__}\n")


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
    found = planted.document(planted.command("tokens", bert_folder, "--format", "json"))
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
        found = planted.document(planted.command(*arguments, "-f", "json"))
        assert found["entries"] == wanted[:limit]
        table = planted.command(*arguments)
        heading = f"First {min(limit, len(wanted))} of {len(wanted)} {category} tokens"
        assert heading in " ".join(table.stdout.split())
        assert table.stdout.count("##") == 2 * min(limit, len(wanted))


def test_tokens_counts_every_category_in_its_table(bert_folder):
    result = planted.command("tokens", bert_folder)
    assert result.exit_code == 0
    assert re.search(r"OK +91 +72\.8%", result.stdout)
    assert re.search(r"MEANINGLESS +0 +0\.0%", result.stdout)
    assert "95 of 125 tokens can appear in text." in result.stdout


def test_detect_gives_one_document_which_show_repeats(planted_folder, planted_options, tmp_path):
    arguments = ("detect", planted_folder, *planted_options, "--out", tmp_path / "run", "--format", "json")
    result = planted.command(*arguments)
    found = planted.document(result)
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
        assert planted.document(planted.command(*again)) == found


def test_progress_and_notes_go_to_stderr(planted_folder, planted_options, tmp_path):
    result = planted.command(
        "detect", planted_folder, *planted_options, "--sample", "9", "--out", tmp_path / "run"
    )
    assert result.exit_code == 0
    for stage in ("mean similarity: 125 of 125", "score: 9 of 9", "validate: 9 of 9"):
        assert sum(line.startswith(stage) for line in planted.lines_of(result.stderr)) == 1
        assert stage not in result.stdout
    assert "note: the verdict is an outlier rule, and 9 candidates are few for it" in result.stderr
    assert "note:" not in result.stdout
    assert "method std, a selection of 9 of 95 available tokens" in result.stdout


def test_on_a_terminal_stdout_is_still_one_document(planted_folder, planted_options, tmp_path):
    arguments = (
        "detect",
        planted_folder,
        *planted_options,
        "--sample",
        "5",
        "--out",
        tmp_path / "run",
        "-f",
        "json",
    )
    result = planted.command(*arguments, FORCE_COLOR="1")
    assert planted.document(result)["scored"] == 5
    assert "\x1b[" in result.stderr


def test_a_run_without_sticky_tokens_says_so(bert_folder, sentence_file, tmp_path):
    result = planted.command(
        "detect", bert_folder, "--sentences", sentence_file, *planted.SMALL_OPTIONS, "--out", tmp_path / "run"
    )
    assert result.exit_code == 0
    assert result.stdout.startswith("No sticky tokens among 19 validated candidates.\n")
    assert "all 95 of 95 available tokens" in result.stdout


def test_the_options_of_detect_reach_the_run(planted_folder, planted_options, tmp_path):
    out = tmp_path / "run"
    arguments = "--seed 9 --insertion ids --copies 2 --scoring-pairs 3 --outlier-range 1.5 --pair-count 70"
    chosen = tmp_path / "chosen.csv"
    chosen.write_text("token\nriver\nstone\nbird\n!\n", encoding="utf-8")
    result = planted.command(
        "detect",
        planted_folder,
        *planted_options,
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


def test_detect_reads_pairs_and_says_where_they_disagree_with_the_model(
    planted_folder, planted_options, tmp_path
):
    pairs = tmp_path / "pairs.csv"
    pairs.write_text(
        "sentence1,sentence2,similarity\nthe bird sings.,a quiet river.,-0.9\nold stone.,new song.,-0.8\n",
        encoding="utf-8",
    )
    arguments = [*planted_options[2:], "--pairs", pairs, "--sample", "5", "--out", tmp_path / "run"]
    result = planted.command("detect", planted_folder, *arguments)
    assert result.exit_code == 0, result.stderr
    assert "note: similarities in the pair file differ by up to" in result.stderr
    record = open_run(tmp_path / "run").record
    assert (record.corpus.source, record.corpus.sentences) == (str(pairs), None)


def test_detect_names_its_folder_after_the_run(planted_folder, planted_options, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = planted.document(
        planted.command("detect", planted_folder, *planted_options, "--sample", "4", "--format", "json")
    )
    assert re.fullmatch(r"runs/planted-model-std-[0-9a-f]{12}", Path(found["run"]).as_posix())
    assert open_run(found["run"]).result.scored == 4


def test_probe_gives_one_document(planted_folder, sentence_file):
    arguments = ("probe", planted_folder, "!", "river", "--sentences", sentence_file, *planted.PROBE_OPTIONS)
    result = planted.command(*arguments, "--format", "json")
    found = planted.document(result)
    assert [each["token"] for each in found] == ["!", "river"]
    for each in found:
        assert {"token_id", "token", "validation_rate", "by_placement"} <= set(each)
        assert list(each["validation_rate"]) == ["cosine", "euclidean", "manhattan"]
        assert set(each["by_placement"]) == {"prefix", "suffix", "random"}
        assert set(each) == set(StdEvidence.__dataclass_fields__)
    assert "validate: 2 of 2" in result.stderr
    by_id = planted.command(
        "probe", planted_folder, "--ids", *(each["token_id"] for each in found), *arguments[4:], "-f", "json"
    )
    assert planted.document(by_id) == found


def test_probe_prints_rates_by_placement(planted_folder, sentence_file):
    result = planted.command(
        "probe", planted_folder, "!", "--sentences", sentence_file, *planted.PROBE_OPTIONS
    )
    assert result.exit_code == 0
    row = next(line for line in result.stdout.splitlines() if " ! " in line)
    assert row.count("1.0000") >= 3
    assert "6 pairs below the model's mean similarity" in result.stdout


def test_probe_stores_nothing(planted_folder, sentence_file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    planted.command("probe", planted_folder, "!", "--sentences", sentence_file, *planted.PROBE_OPTIONS)
    assert list(tmp_path.iterdir()) == []


# Real processes


@pytest.mark.slow
def test_the_command_in_a_process_of_its_own_prints_one_document(
    planted_folder, planted_options, planted_run
):
    arguments = ["detect", planted_folder, *planted_options, "--out", planted_run, "--format", "json"]
    done = subprocess.run(
        [sys.executable, "-c", "from stickytoken.cli.main import main; main()", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    shown = planted.document(planted.command("show", planted_run, "--format", "json"))
    assert json.loads(done.stdout) == shown


def test_an_error_in_a_process_of_its_own_is_one_line_and_status_1(planted_folder):
    script = "from stickytoken.cli.main import main; main()"
    arguments = ["detect", str(planted_folder), "--sentences", "absent.txt"]
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == "error: no file 'absent.txt' (in Python, pass sentences themselves as a list)\n"
