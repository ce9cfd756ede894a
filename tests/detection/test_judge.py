"""Judging a corpus by a finished run."""

import shutil
from pathlib import Path

import polars as pl
import pytest

import planted
import profiled
from stickytoken import judge, load_encoder
from stickytoken.data import collect_sentences
from stickytoken.errors import InputError, RunError

OTHER = profiled.WORDS[::2]
SMALL = {"sentences": profiled.sentences(400, OTHER, seed=5), "anchors": 200}


@pytest.fixture(scope="module")
def pulling():
    return load_encoder(profiled.planted_model(2))


@pytest.fixture(scope="module")
def run(pulling, tmp_path_factory):
    return profiled.detect_profile(pulling, tmp_path_factory.mktemp("judged") / "run")


@pytest.fixture(scope="module")
def found(run, pulling):
    return judge(run, **SMALL, encoder=pulling)


def test_the_planted_token_is_sticky_on_another_corpus(found):
    assert found.sticky["token"].to_list() == [planted.PLANTED]
    (row,) = found.sticky.to_dicts()
    assert row["texts"] == 192
    assert row["severity"] == "severe"
    assert row["lift_sd_low"] < row["lift_sd"] < row["lift_sd_high"]
    assert "1 sticky" in repr(found)


def most_texts(judged):
    """The number of texts in which the tokens that may reach the threshold were measured."""
    return judged.tokens.drop_nulls("verdict")["texts"].max()


def test_only_tokens_that_may_reach_the_threshold_are_measured_closely(found, run):
    measured = found.tokens.drop_nulls("verdict")
    closely = measured.filter(pl.col("texts") == 192)
    others = measured.filter(pl.col("texts") == 24)
    assert len(closely) + len(others) == len(measured)
    assert 0 < len(closely) < len(others)
    assert (others["lift_sd_high"] < run.settings.number("smallest_lift")).all()
    assert (others["verdict"] == "benign").all()


def test_a_small_corpus_gives_fewer_texts(pulling, run):
    judged = judge(run, sentences=profiled.sentences(56, OTHER, seed=6), encoder=pulling)
    # Half of a small corpus is kept for comparison, so at most 28 texts get copies.
    assert judged.anchors == 28
    assert 24 < most_texts(judged) <= 28


def test_a_tiny_corpus_gives_all_tokens_the_same_few_texts(pulling, run, found):
    judged = judge(run, sentences=profiled.sentences(48, OTHER, seed=6), encoder=pulling)
    assert most_texts(judged) == 24
    assert judged.sticky["token"].to_list() == [planted.PLANTED]
    assert interval_width(found.sticky) < interval_width(judged.sticky)


def interval_width(tokens):
    """The width of the interval of the only token's lift."""
    return (tokens["lift_sd_high"] - tokens["lift_sd_low"]).item()


def test_enough_texts_get_copies_if_all_texts_are_long(pulling, run):
    clauses = [text.rstrip(".") for text in profiled.sentences(3200, OTHER, seed=7)]
    long_texts = [" ".join(clauses[start : start + 8]) for start in range(0, len(clauses), 8)]
    judged = judge(run, sentences=long_texts, encoder=pulling)
    assert most_texts(judged) == 192


def test_only_measured_tokens_have_a_verdict_and_a_lift(found, run):
    assert found.tokens["token_id"].equals(run.tokens["token_id"])
    assert found.measured == found.tokens["confirmed"].sum() == found.tokens["verdict"].count()
    others = found.tokens.filter(~pl.col("confirmed"))
    assert 0 < len(others) < len(found.tokens)
    for name in ("verdict", "lift_sd", "lift_sd_low", "lift"):
        assert others[name].null_count() == len(others)


def test_what_a_token_erases_is_the_runs(found, run):
    assert found.tokens["erased"].equals(run.tokens["erased"])


def test_a_lift_is_the_same_number_in_both_units(found):
    (row,) = found.sticky.to_dicts()
    assert row["lift"] == pytest.approx(found.ordinary_lift + row["lift_sd"] * found.similarity_spread)


def test_a_judgement_says_how_long_it_took(found):
    assert found.summary()["seconds"] == found.seconds > 0


def test_progress_begins_with_the_plain_texts(run, pulling):
    steps = []
    found = judge(run, **SMALL, encoder=pulling, progress=steps.append)
    plain = [step for step in steps if step.stage == "plain texts"]
    assert steps[: len(plain)] == plain
    assert plain[0].done == 0
    assert plain[-1].done == plain[-1].total == found.anchors


def test_the_summary_lists_the_flagged_tokens(found):
    listed = [row["token"] for row in found.summary()["flagged"]]
    assert listed == found.flagged["token"].to_list()


@pytest.mark.slow
def test_lifts_agree_with_a_run_made_on_the_corpus(found, pulling, tmp_path):
    corpus = collect_sentences(SMALL["sentences"], "test")
    own_run = profiled.detect_profile(pulling, tmp_path / "own", sentences=corpus)
    assert found.sticky["token"].equals(own_run.sticky["token"])
    judged = found.sticky.row(0, named=True)
    measured = own_run.sticky.row(0, named=True)
    assert judged["lift_sd"] == pytest.approx(measured["lift_sd"], rel=0.15)


def test_the_same_call_gives_the_same_numbers(found, run, pulling):
    again = judge(str(run.path), **SMALL, encoder=pulling)
    assert again.tokens.equals(found.tokens)
    assert run.judge(**SMALL, encoder=pulling).tokens.equals(found.tokens)


@pytest.mark.slow
def test_named_tokens_are_judged_beside_the_random_ones_of_the_run(pulling, tmp_path):
    run = profiled.detect_profile(pulling, tmp_path / "run", tokens=[34, 200])
    judgement = judge(run, **SMALL, encoder=pulling)
    assert judgement.tokens["token_id"].to_list() == [34, 200]
    assert judgement.sticky["token_id"].to_list() == [34]


@pytest.mark.parametrize("content", [None, b"PAR1 nothing"])
def test_a_run_without_effects_is_refused(run, pulling, tmp_path, content):
    folder = Path(shutil.copytree(run.path, tmp_path / "run"))
    (folder / "effects.parquet").unlink()
    if content is not None:
        (folder / "effects.parquet").write_bytes(content)
    with pytest.raises(RunError, match=r"effects\.parquet" if content else r"has no effects\.parquet"):
        judge(folder, **SMALL, encoder=pulling)


REFUSED = [
    ([], "empty"),
    (["one text", "another text"], "needed"),
    (profiled.sentences(25, OTHER, seed=5), "only 1 text usable for comparison, but 2 are needed"),
    ("no-such-file.txt", "no file"),
]


def test_what_cannot_be_judged_is_refused(run, pulling, small_run):
    for sentences, message in REFUSED:
        with pytest.raises(InputError, match=message):
            judge(run, sentences, encoder=pulling)
    with pytest.raises(InputError, match="of the method std, which cannot judge another corpus"):
        judge(small_run, **SMALL)
    with pytest.raises(RunError, match="a different model"):
        judge(run, **SMALL, encoder=load_encoder(profiled.planted_model(1)))
