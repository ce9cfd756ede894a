"""The numbers that sum up a run are those of its tables, and say which tokens they stand for."""

import shutil

import polars as pl
import pytest

import profiled
from stickytoken import load_encoder, open_run
from stickytoken.methods.measures import ERASED, MEASURES, PUSH
from stickytoken.run_summary import Examined, RunSummary


@pytest.fixture(scope="module")
def detected(tmp_path_factory):
    encoder = load_encoder(profiled.planted_model(0))

    def detect(name, **options):
        folder = tmp_path_factory.mktemp("run") / name
        return RunSummary(profiled.detect_in_documents(encoder, folder, **options))

    return detect


@pytest.fixture(scope="module")
def sticky(planted_profile):
    return RunSummary(open_run(planted_profile[1]))


@pytest.fixture(scope="module")
def clean(detected):
    return detected("clean")


def test_the_worst_token_has_its_interval(sticky):
    worst = sticky.worst_token(ERASED)
    row = sticky.run.sticky.row(0, named=True)
    assert (worst.token, worst.verdict, worst.severity) == ("!", "sticky", row["severity"])
    assert (worst.value, worst.low, worst.high) == (row["erased"], row["erased_low"], row["erased_high"])


def test_a_token_that_was_only_screened_is_not_the_worst(clean, tmp_path):
    folder = shutil.copytree(clean.run.path, tmp_path / "run")
    screened = clean.run.tokens.filter(~pl.col("confirmed"))["token_id"][0]
    erased = pl.when(token_id=screened).then(0.9).otherwise("erased")
    clean.run.tokens.with_columns(erased=erased).write_parquet(folder / "tokens.parquet")
    worst = RunSummary(open_run(folder)).worst_token(ERASED)
    assert worst.value == clean.run.tokens.filter("confirmed")["erased"].max()
    assert (worst.verdict, worst.severity) == ("benign", None)


def test_the_largest_push_is_one_of_all_documents(clean, tmp_path):
    folder = shutil.copytree(clean.run.path, tmp_path / "run")
    tokens = clean.run.tokens.drop_nulls("push")
    most = tokens["documents"].max()
    in_all = (
        tokens.filter(documents=most).sort("push", "token_id", descending=[True, False]).row(0, named=True)
    )
    dropped = tokens.filter(pl.col("documents") < most)["token_id"][0]
    push = pl.when(token_id=dropped).then(9.0).otherwise("push")
    clean.run.tokens.with_columns(push=push).write_parquet(folder / "tokens.parquet")
    worst = RunSummary(open_run(folder)).worst_token(PUSH)
    assert (worst.token, worst.value) == (in_all["token"], in_all["push"])


def test_a_method_without_the_measures_has_no_worst_token(planted_run):
    summary = RunSummary(open_run(planted_run))
    assert [summary.worst_token(measure) for measure in MEASURES] == [None, None]
    assert summary.confidence == 0.9
    assert summary.sticky_share is not None


def test_the_share_is_that_of_the_examined_tokens(sticky, clean):
    assert sticky.examined is Examined.WHOLE
    value, low, high = sticky.sticky_share
    assert value == pytest.approx(1 / profiled.AVAILABLE)
    assert low < value < high
    assert clean.sticky_share[:2] == (0, 0)


@pytest.mark.slow
def test_a_sample_widens_the_interval_of_the_share(clean, detected):
    sample = detected("sample", sample=40)
    assert sample.examined is Examined.SAMPLE
    assert sample.sticky_share.high > clean.sticky_share.high


@pytest.mark.slow
def test_chosen_tokens_stand_for_nothing_else(detected):
    chosen = detected("chosen", tokens=list(profiled.WORDS[:30]))
    assert chosen.examined is Examined.CHOSEN
    assert chosen.sticky_share is None
