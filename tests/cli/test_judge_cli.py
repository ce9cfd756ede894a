"""The judge command."""

import csv
import io
import json

import polars as pl
import pytest

import planted
import profiled
from hostile import HOSTILE, assert_harmless
from stickytoken.cli.output.console import print_csv


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A model, its run and texts to judge."""
    folder = tmp_path_factory.mktemp("judge")
    profiled.planted_model(2).save(str(folder / "model"))
    texts = {"run.txt": profiled.sentences(200), "own.txt": profiled.sentences(300, seed=3)}
    for name, own in texts.items():
        (folder / name).write_text("\n".join(own) + "\n", encoding="utf-8")
    rows = "\n".join(f'{k},"{text}"' for k, text in enumerate(texts["own.txt"]))
    (folder / "own.csv").write_text(f"number,body\n{rows}\n", encoding="utf-8")
    result = planted.command(
        "detect", folder / "model", "--sentences", folder / "run.txt", "--smallest-effect", 1,
        "--out", folder / "run", "--no-report",
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    return folder


def judged(place, *options, texts="own.txt"):
    return planted.command("judge", place / "run", "--sentences", place / texts, *options)


def test_the_finding_comes_first_then_the_tokens_and_what_they_rest_on(place):
    result = judged(place)
    assert result.exit_code == 0, result.stderr
    lines = planted.lines_of(result.stdout)
    assert lines[0] == "1 token is sticky on these texts"
    assert "1 of 1 flagged tokens" in result.stdout
    assert "moves up" in result.stdout
    assert "300 texts from" in result.stdout
    assert "tokens were measured on these texts" in result.stdout


def test_json_holds_the_flagged_tokens_and_csv_all_of_them(place):
    document = json.loads(judged(place, "--format", "json").stdout)
    assert [row["token"] for row in document["flagged"]] == [planted.PLANTED]
    assert document["texts"] == 300
    rows = list(csv.DictReader(io.StringIO(judged(place, "--format", "csv").stdout)))
    assert len(rows) == profiled.AVAILABLE
    assert {row["token"]: row["verdict"] for row in rows}[planted.PLANTED] == "sticky"


def test_a_column_is_read_and_fewer_anchors_are_taken(place):
    result = judged(place, "--column", "body", "--anchors", 50, "--format", "json", texts="own.csv")
    document = json.loads(result.stdout)
    assert document["anchors"] == 50
    assert [row["token"] for row in document["flagged"]] == [planted.PLANTED]


def test_cells_that_a_spreadsheet_would_compute_or_a_terminal_obey_are_harmless(capsys):
    texts = ["=1+1", "+1", "-1", "@cmd", *HOSTILE, "plain"]
    print_csv(pl.DataFrame({"token": texts, "decoded": texts}))
    written = capsys.readouterr().out
    assert_harmless(written)
    cells = [row["token"] for row in csv.DictReader(io.StringIO(written))]
    assert cells == ["'=1+1", "'+1", "'-1", "'@cmd", *HOSTILE.values(), "plain"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--sentences", "nope.txt"], "nope.txt"),
        (["--sentences", "\x1b[31mred"], "no file"),
        (["--column", "missing"], "column"),
        (["--anchors", "1"], "anchors"),
        (["--model", "nope"], "nope"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(place, options, said):
    result = judged(place, *options, texts="own.csv")
    assert result.exit_code in (1, 2)
    assert said in result.stderr
    assert "Traceback" not in result.stderr
    assert_harmless(result.stderr)


def test_a_folder_that_is_no_run_and_a_run_of_another_method_are_refused(place, small_run):
    for folder, said in ((place, "not a run folder"), (small_run.path, "cannot judge another corpus")):
        result = planted.command("judge", folder, "--sentences", place / "own.txt")
        assert result.exit_code == 1
        assert said in result.stderr


def test_sentences_are_required(place):
    result = planted.command("judge", place / "run")
    assert result.exit_code == 2
    assert "--sentences" in result.stderr
