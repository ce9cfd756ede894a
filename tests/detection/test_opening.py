"""A run folder that somebody has damaged is refused when it is opened, with what writes it again."""

import json
import shutil

import polars as pl
import pytest

import planted
from naming import naming
from stickytoken import check, detect, open_run
from stickytoken.cleaning.rules import rules_of_run
from stickytoken.detection.finding import find_run
from stickytoken.errors import RunError


@pytest.fixture
def run_copy(small_run, tmp_path):
    return shutil.copytree(small_run.path, tmp_path / "run")


@pytest.mark.parametrize(
    ("change", "values"),
    [
        (lambda table: table.head(10), [10, 95]),
        (lambda table: table.with_columns(verdict=pl.lit("benign")), ["0 sticky tokens"]),
        (lambda table: table.with_columns(verdict=pl.lit(None, pl.String)), ["0 sticky tokens"]),
        (lambda table: table.with_columns(verdict=pl.lit("weird")), ["'weird'", "std"]),
    ],
)
def test_a_table_that_is_not_the_one_of_the_record_is_refused(run_copy, change, values):
    path = run_copy / "tokens.parquet"
    change(pl.read_parquet(path)).write_parquet(path)
    with pytest.raises(RunError, match=naming(path, *values, "stickytoken detect")):
        open_run(run_copy)
    planted.assert_refused("clean", run_copy, "--rules-out", run_copy / "rules.json", saying=naming(path))


def open_whole(folder):
    """Read all files that `clean` needs."""
    return rules_of_run(open_run(folder))


@pytest.mark.parametrize("name", ["tokens.parquet", "vocabulary.parquet", "normalizer.json"])
def test_a_damaged_file_is_written_again_by_the_command_that_the_error_names(
    run_copy, encoder, small_run, name
):
    (run_copy / name).write_bytes(b"damaged")
    with pytest.raises(RunError, match=naming(run_copy / name, "stickytoken detect")):
        open_whole(run_copy)
    (run_copy / name).unlink()
    if name != "normalizer.json":  # a run whose normaliser isn't known has none
        with pytest.raises(RunError, match=naming(run_copy, name, "stickytoken detect")):
            open_whole(run_copy)
    detect(encoder, sentences=planted.small_corpus(), settings=planted.SMALL, out=run_copy)
    assert open_whole(run_copy) == rules_of_run(small_run)


def test_special_tokens_that_are_normalised_are_recorded_also_in_a_run_that_lacks_them(run_copy, encoder):
    path = run_copy / "normalizer.json"
    record = json.loads(path.read_text("utf-8"))
    assert record.pop("normalized_specials") == []
    path.write_text(json.dumps(record), "utf-8")
    assert open_run(run_copy).normalized_specials == ()
    detect(encoder, sentences=planted.small_corpus(), settings=planted.SMALL, out=run_copy)
    assert json.loads(path.read_text("utf-8"))["normalized_specials"] == []
    path.write_text(json.dumps(record | {"normalized_specials": ["[SEP]"]}), "utf-8")
    assert rules_of_run(open_run(run_copy)).normalized_specials == ("[SEP]",)


def test_a_run_without_its_record_is_a_damaged_run_and_no_model(run_copy):
    (run_copy / "run.json").unlink()
    for use in (open_run, find_run, check):
        with pytest.raises(RunError, match=naming(run_copy, "run.json", "stickytoken detect")):
            use(run_copy)
