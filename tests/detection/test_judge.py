"""Judging a corpus by a finished run."""

import json
import shutil
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from scipy.stats import norm, spearmanr

import planted
import profiled
from stickytoken import judge, load_encoder
from stickytoken.data import collect_sentences
from stickytoken.errors import InputError, RunError
from stickytoken.methods.profile import verdict

OTHER = profiled.WORDS[::2]
SMALL = {"sentences": profiled.sentences(400, OTHER, seed=5), "anchors": 200}


@pytest.fixture(scope="module")
def pulling():
    return load_encoder(profiled.planted_model(2))


@pytest.fixture(scope="module")
def run(pulling, tmp_path_factory):
    return profiled.detect_profile(pulling, tmp_path_factory.mktemp("judged") / "run", smallest_effect=1)


@pytest.fixture(scope="module")
def found(run, pulling):
    return judge(run, **SMALL, encoder=pulling)


def test_the_planted_token_is_sticky_on_another_corpus_and_no_other(found, run):
    assert found.sticky["token"].to_list() == [planted.PLANTED]
    (row,) = found.sticky.to_dicts()
    assert row["texts"] == 24
    assert row["severity"] == "severe"
    assert row["moves_up"] > 0.3
    assert row["lift_low"] < row["lift"] < row["lift_high"]
    assert set(found.tokens.filter(pl.col("verdict") == "benign")["severity"]) == {None}
    assert "1 sticky" in repr(found)
    assert found.tokens["token_id"].equals(run.tokens["token_id"])
    assert found.tokens.select("lift", "lift_low", "lift_high").null_count().sum_horizontal().item() == 0
    assert found.measured == (found.tokens["texts"] > 0).sum()
    assert [row["token"] for row in found.summary()["flagged"]] == found.flagged["token"].to_list()


@pytest.mark.slow
def test_lifts_agree_with_a_run_made_on_the_corpus(found, pulling, tmp_path):
    own = profiled.detect_profile(
        pulling,
        tmp_path / "own",
        sentences=collect_sentences(SMALL["sentences"], "test"),
        budget=20,
        smallest_effect=1,
    )
    ours, theirs = found.tokens.sort("token_id"), own.tokens.sort("token_id")
    assert ours["token_id"].equals(theirs["token_id"])
    assert spearmanr(ours["lift"], theirs["lift"])[0] > 0.7
    assert ours.filter(verdict="sticky")["token"].equals(theirs.filter(verdict="sticky")["token"])
    (judged,), (measured,) = (each.filter(verdict="sticky").to_dicts() for each in (ours, theirs))
    assert judged["lift"] == pytest.approx(measured["lift"], rel=0.15)


def test_computed_lifts_have_the_error_of_the_computation_and_measured_ones_their_own(
    run, pulling, tmp_path, monkeypatch
):
    folder = Path(shutil.copytree(run.path, tmp_path / "run"))
    plan = json.loads((folder / "plan.json").read_text("utf-8")) | {"call_noise": 0.01}
    (folder / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
    judged, find_lifts = [], verdict.find_lifts
    monkeypatch.setattr(verdict, "find_lifts", lambda *given: judged.append(given) or find_lifts(*given))
    found = judge(folder, **SMALL, encoder=pulling)
    ((tokens, *_, reach),) = judged
    computed = tokens.texts == 0
    assert (found.error > 0, reach is tokens.lift.high) == (True, True)
    assert 0 < computed.sum() < len(computed)
    np.testing.assert_array_equal(tokens.tested.error == found.error, computed)
    half = found.tokens.filter(texts=0).select(pl.col("lift_high") - pl.col("lift")).to_series()
    np.testing.assert_allclose(half, norm.ppf(0.95) * found.error)


def test_the_same_call_gives_the_same_numbers_and_a_run_in_a_folder_does_too(found, run, pulling):
    events = []
    again = judge(str(run.path), **SMALL, encoder=pulling, progress=events.append)
    assert again.tokens.equals(found.tokens)
    calibrated = [(event.done, event.total) for event in events if event.stage == "calibrate"]
    assert (calibrated, calibrated[-1]) == (sorted(calibrated), (len(run.tokens), len(run.tokens)))
    assert run.judge(**SMALL, encoder=pulling).tokens.equals(found.tokens)


@pytest.mark.slow
def test_named_tokens_are_judged_beside_the_random_ones_of_the_run(pulling, tmp_path):
    run = profiled.detect_profile(pulling, tmp_path / "run", tokens=[34, 200], smallest_effect=1)
    found = judge(run, **SMALL, encoder=pulling)
    assert found.tokens["token_id"].to_list() == [34, 200]
    assert found.sticky["token_id"].to_list() == [34]


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
    (profiled.sentences(25, OTHER, seed=5), "1 text left to compare with, and 2 are needed"),
    ("no-such-file.txt", "no file"),
]


def test_what_cannot_be_judged_is_refused(run, pulling, small_run):
    for sentences, message in REFUSED:
        with pytest.raises(InputError, match=message):
            judge(run, sentences, encoder=pulling)
    with pytest.raises(InputError, match="of the method std, which cannot judge another corpus"):
        judge(small_run, **SMALL)
    with pytest.raises(RunError, match="another model"):
        judge(run, **SMALL, encoder=load_encoder(profiled.planted_model(1)))
