"""The method std on the command line, and tokens: one document on stdout, everything else on stderr."""

import json
import re
import shlex
import shutil
from pathlib import Path

import polars as pl
import pytest

import planted
from naming import naming, says
from stickytoken import analyze_vocabulary, open_run
from stickytoken.methods.std import StdEvidence


def test_tokens_counts_every_category_and_lists_its_entries(bert_folder, encoder):
    printed_document = planted.document(planted.command("tokens", bert_folder, "--format", "json"))
    counts = analyze_vocabulary(encoder).counts()
    document = {"model": str(bert_folder), "vocab_size": 125, "available": 95, "categories": counts}
    assert printed_document == document
    table = planted.command("tokens", bert_folder).stdout
    assert re.search(r"OK +91 +72\.8%", table)
    assert says(table, "95 of 125")
    category, limit = "UNREACHABLE_MULTI_TOKEN", 4
    expected = analyze_vocabulary(encoder).frame().filter(category=category).to_dicts()
    arguments = ("tokens", bert_folder, "--category", category.lower(), "--limit", limit)
    printed_document = planted.document(planted.command(*arguments, "-f", "json"))
    assert printed_document["entries"] == expected[:limit]
    table = planted.command(*arguments).stdout
    assert says(" ".join(table.split()), limit, len(expected), category)
    assert table.count("##") == 2 * limit


def test_detect_gives_one_document_which_show_repeats(planted_folder, planted_options, planted_run):
    arguments = ("detect", planted_folder, *planted_options, "--out", planted_run)
    document = planted.document(planted.command(*arguments, "--format", "json"))
    assert (document["run"], document["method"], document["model"]) == (
        str(planted_run),
        "std",
        str(planted_folder),
    )
    assert document["available"] == document["scored"] == document["candidates"] == 95
    plan = json.loads((planted_run / "plan.json").read_text("utf-8"))
    carriers = {pair["sentence2"] for pair in plan["validation"]}
    of_tokens = 95 * (2 * 9 + 1) + 95 * (2 * len(carriers) + 20) * 3
    assert document["sequences"] == of_tokens + 125  # and the mean similarity
    assert document["seconds"] >= 0
    first = document["sticky"][0]
    assert (first["token"], first["validation_rate"]) == (planted.PLANTED, pytest.approx(1))
    assert {"token_id", "category", "sticky_score", "verdict"} <= set(first)
    assert planted.document(planted.command("show", planted_run, "--format", "json")) == document
    printed = planted.command("show", planted_run).stdout
    assert printed == planted.command(*arguments).stdout
    assert says(printed.splitlines()[0], "3 sticky tokens", 95)
    assert re.search(r"^ *34 +! .* sticky *$", printed, re.MULTILINE)


@pytest.mark.slow
def test_progress_and_notes_go_to_stderr(planted_folder, planted_options, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = ("detect", planted_folder, *planted_options, "--sample", "9")
    result = planted.command(*arguments)
    assert result.exit_code == 0
    for stage in ("mean similarity: 125 of 125", "texts: "):
        assert sum(line.startswith(stage) for line in planted.lines_of(result.stderr)) == 1
        assert stage not in result.stdout
    assert says(result.stderr, "note", "9 candidates")
    assert says(result.stdout, "std", "9 of 95")
    again = planted.command(*arguments, "--seed", "1", "-f", "json", FORCE_COLOR="1")
    document = planted.document(again)
    assert "\x1b[" in again.stderr  # on a terminal stdout is still one document
    assert re.fullmatch(r"runs/planted-model-std-[0-9a-f]{12}", Path(document["run"]).as_posix())
    assert open_run(document["run"]).result.scored == 9


def test_probe_gives_one_document_and_stores_nothing(planted_folder, sentence_file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = ("--sentences", sentence_file, *planted.PROBE_OPTIONS)
    result = planted.command("probe", planted_folder, "!", "river", *options, "--format", "json")
    document = planted.document(result)
    assert [row["token"] for row in document] == ["!", "river"]
    for row in document:
        assert set(row) == set(StdEvidence.__dataclass_fields__)
        assert list(row["validation_rate"]) == ["cosine", "euclidean", "manhattan"]
        assert set(row["by_placement"]) == {"prefix", "suffix", "random"}
    assert "validate: 2 of 2" in result.stderr
    ids = [row["token_id"] for row in document]
    by_id = planted.command("probe", planted_folder, *(f"#{i}" for i in ids), *options, "-f", "json")
    assert planted.document(by_id) == document
    table = planted.command("probe", planted_folder, "!", *options).stdout
    assert next(line for line in table.splitlines() if " ! " in line).count("1.0000") >= 3
    assert says(table, "6 pairs")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def partly_validated(bert_folder, sentence_file, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "partly"
    arguments = ("--sentences", sentence_file, *planted.SMALL_OPTIONS, "--out", folder)
    result = planted.command("detect", bert_folder, *arguments)
    assert result.exit_code == 0
    first_line = result.stdout.splitlines()[0]
    assert says(first_line, "3 sticky tokens", 19)
    assert says(result.stdout, "available", 95)
    return folder


@pytest.mark.parametrize(
    ("arguments", "condition", "sort", "limit"),
    [
        ("--sort lift", True, "lift", 50),
        ("--verdict benign --limit 7", pl.col("verdict") == "benign", "validation_rate", 7),
        ("--category ok_special", pl.col("category") == "OK_SPECIAL", "validation_rate", 50),
        ("--contains zzz", False, "validation_rate", 50),
        ("--validated --limit 100", pl.col("verdict").is_not_null(), "validation_rate", 100),
        ("--contains [ --limit 5", pl.col("decoded").str.contains("[", literal=True), "validation_rate", 5),
    ],
)
def test_show_lists_what_its_filters_choose(partly_validated, arguments, condition, sort, limit):
    table = open_run(partly_validated).tokens.filter(pl.lit(True) & condition)
    rows = table.sort(sort, "token_id", descending=[True, False], nulls_last=True)
    expected = rows["token_id"].to_list()[:limit]
    assert bool(expected) == (condition is not False)
    arguments_of_show = ("show", partly_validated, *arguments.split())
    document = planted.document(planted.command(*arguments_of_show, "--format", "json"))
    assert ([row["token_id"] for row in document["tokens"]], document["run"]) == (
        expected,
        str(partly_validated),
    )
    printed = planted.command(*arguments_of_show)
    title = rf"{len(expected)} of \d+ tokens" if expected else "no tokens match"
    assert re.search(rf"^{title} *$", printed.stdout, re.MULTILINE)
    assert printed.stderr == ""
    if arguments == "--sort lift":  # what was not computed is a dash
        token = table.filter(pl.col("verdict").is_null())["token"][-1]
        lines = planted.command("show", partly_validated, "--token", token).stdout.splitlines()
        assert next(line for line in lines if f" {token} " in line).split()[-4:] == [
            "-",
            "-",
            "not",
            "validated",
        ]
        planted.assert_refused("show", partly_validated, "--token", "", saying=naming("token", "''"))
        planted.assert_refused("show", partly_validated, "--contains", "", saying=naming("--contains", "''"))


def test_the_worst_of_many_sticky_tokens_are_printed(planted_profile, tmp_path):
    folder = Path(shutil.copytree(planted_profile[1], tmp_path / "a run"))
    table = pl.read_parquet(folder / "tokens.parquet").sort("erased", descending=True)
    many = pl.when(pl.int_range(pl.len()) < 25)
    verdict = many.then(pl.lit("sticky"))
    severity = many.then(pl.lit("mild"))
    table = table.with_columns(verdict=verdict.otherwise("verdict"), severity=severity.otherwise("severity"))
    planted.replace_tokens(folder, table)
    lines = planted.command("show", folder).stdout.splitlines()
    assert sum(bool(re.search(r" sticky, mild *$", line)) for line in lines) == 20
    (summary_line,) = (line for line in lines if line.startswith("and 5 more: "))
    program, *arguments = shlex.split(summary_line.removeprefix("and 5 more: "))
    assert program == "stickytoken"
    assert "25 of 25 tokens" in planted.command(*arguments).stdout
    assert len(planted.document(planted.command("show", folder, "--format", "json"))["sticky"]) == 25
