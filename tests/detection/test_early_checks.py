"""What cannot work is refused before the long work: before the model is loaded, or before u is computed."""

import os
from dataclasses import replace

import pytest

import planted
import profiled
import tiny
from stickytoken import detect, explain, impact
from stickytoken.errors import InputError, ModelError, RunError

NO_MODEL = "no-such-folder/of/a-model"
"""Loading it fails, so whatever is refused otherwise was refused before."""


def test_the_model_of_these_tests_cannot_be_loaded(tmp_path):
    with pytest.raises(ModelError):
        detect(NO_MODEL, settings=planted.SMALL, out=tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_folder_with_other_files_is_refused_before_the_model_is_loaded(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(RunError, match="contains files but no run"):
        detect(NO_MODEL, settings=planted.SMALL, out=tmp_path)


def test_a_run_with_other_settings_is_refused_before_the_model_is_loaded(small_run):
    with pytest.raises(RunError, match=r"a different run \(it differs in settings.copies\)"):
        detect(NO_MODEL, settings=replace(planted.SMALL, copies=2), out=small_run.path)
    with pytest.raises(RunError, match=r"a different run \(it differs in method, "):
        detect(NO_MODEL, settings=profiled.SMALL, out=small_run.path)
    with pytest.raises(ModelError):
        detect(NO_MODEL, settings=planted.SMALL, out=small_run.path)


def test_a_locked_folder_is_refused_before_the_model_is_loaded(tmp_path):
    with planted.held(tmp_path / "run"), pytest.raises(RunError, match="written by another process"):
        detect(NO_MODEL, settings=planted.SMALL, out=tmp_path / "run")


@pytest.mark.slow
def test_a_locked_folder_of_an_impact_or_explanation_is_refused_before_the_model_is_loaded(
    small_run, tmp_path
):
    token_id, token = small_run.tokens.select("token_id", "token").row(0)
    calls = {
        tmp_path / "impact": lambda: impact(NO_MODEL, tokens=["river"], out=tmp_path / "impact"),
        tmp_path / "ids" / "60": lambda: explain(NO_MODEL, [7, 60], out=tmp_path / "ids"),
        tmp_path / "names" / str(token_id): lambda: explain(
            NO_MODEL, [token], run=small_run, out=tmp_path / "names"
        ),
    }
    for folder, call in calls.items():
        with planted.held(folder), pytest.raises(RunError, match="written by another process"):
            call()
        with pytest.raises(ModelError):
            call()


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="permissions do not bind this user")
def test_a_read_only_folder_is_refused_before_the_model_is_loaded(tmp_path):
    (tmp_path / "fixed").mkdir(mode=0o500)
    with pytest.raises(RunError, match="is read-only"):
        detect(NO_MODEL, settings=planted.SMALL, out=tmp_path / "fixed" / "run")


def test_a_precision_that_the_model_lacks_is_refused_before_the_vocabulary_is_encoded(encoder, tmp_path):
    events = []
    with pytest.raises(InputError, match="tf32"):
        detect(
            encoder,
            sentences=profiled.corpus(),
            settings=replace(profiled.SMALL, screen_precision="tf32"),
            out=tmp_path / "run",
            progress=events.append,
        )
    assert events == []


def test_a_path_from_a_notebook_may_begin_with_the_home_folder(encoder, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    run = detect(encoder, sentences=tiny.sentences(60), settings=planted.SMALL, tokens=[60], out="~/run")
    assert run.path == tmp_path / "run"


def test_a_folder_in_the_way_of_an_explanation_or_impact_is_refused_first(small_run, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    wrong = "is the folder of a run or another measurement: choose another one, such as .*explain"
    with pytest.raises(RunError, match=wrong):
        explain(NO_MODEL, ["river"], out=small_run.path)
    for out in (tmp_path, small_run.path):
        with pytest.raises(RunError, match="contains files but no impact"):
            impact(NO_MODEL, tokens=[5], intrusion="bundled", out=out)
    planted.refused("explain", NO_MODEL, "river", "--out", small_run.path, saying=wrong)
