"""stickytoken show: the summary of a run, and lists of its tokens."""

import re
import shlex
import shutil
from pathlib import Path

import polars as pl
import pytest

import planted
from stickytoken import open_run


def chosen(*conditions, sort="validation_rate", limit=50):
    """Ids that a filter of show must list; the method std ranks by the validation rate."""

    def of(table):
        rows = table.filter(*conditions)
        rows = rows.sort(sort, "token_id", descending=[True, False], nulls_last=True)
        return rows["token_id"].to_list()[:limit]

    return of


VALIDATED = pl.col("verdict").is_not_null()
FILTERS = {
    "--limit 3": chosen(limit=3),
    "--limit 50": chosen(),
    "--limit 1000": chosen(limit=1000),
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
def partly_validated(bert_folder, sentence_file, tmp_path_factory):
    """A run in which most tokens have no verdict."""
    folder = tmp_path_factory.mktemp("runs") / "partly"
    arguments = ("--sentences", sentence_file, *planted.SMALL_OPTIONS, "--out", folder)
    assert planted.command("detect", bert_folder, *arguments).exit_code == 0
    return folder


@pytest.mark.parametrize("arguments", FILTERS)
def test_show_lists_what_its_filters_choose(planted_run, partly_validated, arguments):
    for folder in (planted_run, partly_validated):
        wanted = FILTERS[arguments](open_run(folder).tokens)
        found = planted.document(planted.command("show", folder, *arguments.split(), "--format", "json"))
        assert [row["token_id"] for row in found["tokens"]] == wanted
        assert found["run"] == str(folder)
        table = planted.command("show", folder, *arguments.split())
        assert table.exit_code == 0
        title = rf"{len(wanted)} of \d+ tokens" if wanted else "no tokens match"
        assert re.search(rf"^{title} *$", table.stdout, re.MULTILINE)
        assert table.stderr == ""


def test_the_filters_of_these_tests_choose_something(planted_run, partly_validated):
    tables = [open_run(folder).tokens for folder in (planted_run, partly_validated)]
    empty = [name for name, choose in FILTERS.items() if not any(choose(table) for table in tables)]
    assert empty == ["--contains zzz"]


def test_show_without_filters_prints_what_detect_printed(planted_run, planted_folder, planted_options):
    shown = planted.command("show", planted_run)
    detected = planted.command("detect", planted_folder, *planted_options, "--out", planted_run)
    assert shown.exit_code == 0
    assert shown.stdout == detected.stdout
    found = open_run(planted_run)
    assert len(found.sticky) == found.result.sticky == 3
    finding = "3 sticky tokens among 95 validated candidates.\n"
    assert shown.stdout.startswith(f"{finding}Sticky tokens of {planted_folder}")
    assert re.search(r"^ *34 +! .* sticky *$", shown.stdout, re.MULTILINE)


def test_show_prints_a_dash_for_what_was_not_computed(partly_validated):
    table = open_run(partly_validated).tokens
    token = table.filter(pl.col("verdict").is_null())["token"][-1]
    row = next(
        line
        for line in planted.command("show", partly_validated, "--token", token).stdout.splitlines()
        if f" {token} " in line
    )
    assert row.split()[-3:] == ["-", "-", "-"]


def test_show_refuses_topical_tokens_of_the_method_std(planted_run):
    saying = "used the method std, which has no verdict 'topical': list by sticky or benign"
    planted.refused("show", planted_run, "--verdict", "topical", saying=saying)


def test_of_many_sticky_tokens_the_worst_are_printed_and_a_command_lists_all(planted_profile, tmp_path):
    folder = Path(shutil.copytree(planted_profile[1], tmp_path / "a run"))
    table = pl.read_parquet(folder / "tokens.parquet").sort("lift", descending=True)
    many = pl.int_range(pl.len()) < 25
    table.with_columns(
        verdict=pl.when(many).then(pl.lit("sticky")).otherwise("verdict"),
        severity=pl.when(many).then(pl.lit("mild")).otherwise("severity"),
    ).write_parquet(folder / "tokens.parquet")
    lines = planted.command("show", folder).stdout.splitlines()
    assert [bool(re.search(r" sticky *$", line)) for line in lines].count(True) == 20
    (more,) = (line for line in lines if line.startswith("and 5 more: "))
    program, *arguments = shlex.split(more.removeprefix("and 5 more: "))
    assert program == "stickytoken"
    listed = planted.command(*arguments).stdout
    assert "25 of 25 tokens" in listed
    assert len(planted.document(planted.command("show", folder, "--format", "json"))["sticky"]) == 25
