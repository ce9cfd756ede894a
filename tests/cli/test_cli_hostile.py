"""Token text and names that would harm a terminal are made harmless."""

import json
import re
import shutil
from pathlib import Path

import polars as pl
import pytest
from tokenizers import Tokenizer, models

import planted
from hostile import HOSTILE, assert_harmless


@pytest.fixture(scope="module")
def hostile_tokenizer(tmp_path_factory):
    """A folder with a tokenizer whose vocabulary is hostile."""
    folder = tmp_path_factory.mktemp("hostile")
    vocabulary = {"[UNK]": 0} | {text: place for place, text in enumerate(HOSTILE, start=1)}
    Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]")).save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture
def hostile_run(planted_run, tmp_path):
    """A run of a model with a hostile name, whose tokens, all sticky, are hostile; somebody else made it."""
    folder = Path(shutil.copytree(planted_run, tmp_path / "run"))
    table = pl.read_parquet(folder / "tokens.parquet").head(len(HOSTILE))
    texts = pl.Series(list(HOSTILE))
    table = table.with_columns(token=texts, decoded=texts, verdict=pl.lit("sticky"))
    table.write_parquet(folder / "tokens.parquet")
    record = json.loads((folder / "run.json").read_text("utf-8"))
    planted.edit_record(folder, model=record["model"] | {"name": "\x1b[31m[bold]evil\u202e"})
    return folder


def test_hostile_vocabulary_is_printed_escaped_by_tokens(hostile_tokenizer):
    result = planted.command("tokens", hostile_tokenizer, "--category", "OK", "--limit", "99")
    assert result.exit_code == 0
    assert_harmless(result.stdout)
    for shown in HOSTILE.values():
        assert len(re.findall(rf"(?<!\S){re.escape(shown)}(?!\S)", result.stdout)) == 2, shown


@pytest.mark.parametrize("filters", [[], ["--verdict", "sticky"]], ids=["summary", "list"])
def test_hostile_tokens_of_a_run_are_printed_escaped_by_show(hostile_run, filters):
    result = planted.command("show", hostile_run, *filters)
    assert result.exit_code == 0
    assert_harmless(result.stdout)
    assert filters or r"Sticky tokens of \x1b[31m[bold]evil\u202e" in result.stdout
    listed = [shown for shown in HOSTILE.values() if f" {shown} " in result.stdout]
    assert len(listed) == (len(HOSTILE) if filters else 20)
    found = planted.document(planted.command("show", hostile_run, *filters, "--format", "json"))
    assert {row["token"] for row in found["tokens" if filters else "sticky"]} == set(HOSTILE)
    terminal = planted.command("show", hostile_run, *filters, FORCE_COLOR="1", COLUMNS="120").stdout
    styles = r"\x1b\[[0-9;]*m"
    assert_harmless(re.sub(styles, "", terminal))
    assert set(re.findall(styles, terminal)) <= {"\x1b[1m", "\x1b[0m", "\x1b[3m", "\x1b[1;3m"}
    assert [shown for shown in HOSTILE.values() if shown in terminal] == listed


def test_hostile_arguments_are_escaped_in_errors(planted_folder, sentence_file, tmp_path):
    hostile = "\x1b[31m[bold]\u202e\nno"
    arguments = ("--sentences", sentence_file, *planted.PROBE_OPTIONS)
    (tmp_path / "in" / hostile).mkdir(parents=True)
    for result in (
        planted.command("detect", planted_folder, "--sentences", tmp_path / hostile),
        planted.command("show", tmp_path / "in" / hostile),
        planted.command("probe", planted_folder, hostile, *arguments),
    ):
        assert result.exit_code == 1
        *_, error = planted.lines_of(result.stderr)
        assert error.startswith("error: ")
        assert r"ld]\u202e" in error
        assert_harmless(error)
