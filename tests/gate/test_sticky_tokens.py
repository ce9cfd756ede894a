"""Which sticky tokens close the gate, alone and against a baseline; and what is not enough to open it."""

import json
import shutil
from pathlib import Path

import polars as pl
import pytest

import planted
import profiled
import stickytoken
from stickytoken.errors import InputError, RunError
from stickytoken.findings import Level
from stickytoken.gate import FailOn, Outcome, check


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs of models whose planted token has different strengths."""
    folder = tmp_path_factory.mktemp("strengths")
    made = {}

    def run(strength, **changes):
        key = (strength, *changes.items())
        if key not in made:
            encoder = stickytoken.load_encoder(profiled.planted_model(strength))
            made[key] = profiled.detect_profile(encoder, folder / f"run-{len(made)}", **changes)
        return made[key]

    return run


@pytest.fixture
def altered(runs, tmp_path):
    """A function that copies the run of the planted model and changes its table or its record."""

    def alter(change=lambda table: table, strength=2, **record):
        folder = tmp_path / f"altered-{len(list(tmp_path.iterdir()))}"
        shutil.copytree(runs(strength).path, folder)
        change(pl.read_parquet(folder / "tokens.parquet")).write_parquet(folder / "tokens.parquet")
        written = json.loads((folder / "run.json").read_text("utf-8"))
        (folder / "run.json").write_text(json.dumps(written | record), encoding="utf-8")
        return folder

    return alter


def named(found, level=Level.ERROR):
    return [finding.properties["token"] for finding in found.findings if finding.level is level]


@pytest.mark.slow
def test_a_sticky_token_closes_the_gate_and_without_one_it_is_open(runs):
    found = check(runs(2))
    assert found.outcome is Outcome.CLOSED
    assert planted.PLANTED in named(found)
    assert found.counted == found.sticky == len(runs(2).sticky)
    first = found.findings[0]
    assert first.identity == (Path(runs(2).model_name).name, first.properties["token"])
    (note,) = (note for note in found.notes if "non-default settings" in note)
    assert "anchors 80" in note
    assert "seed" not in note
    found = check(runs(0))
    assert (found.passed, found.findings, found.incomplete) == (True, (), ())


def test_errors_are_there_if_and_only_if_more_count_than_are_tolerated(altered):
    grades = ["severe", "serious", "serious", "mild", "negligible", None]

    def graded(table):
        first = pl.int_range(len(table)) < len(grades)
        severity = pl.Series("severity", [*grades, *[None] * (len(table) - len(grades))])
        return table.with_columns(
            severity, verdict=pl.when(first).then(pl.lit("sticky")).otherwise(pl.lit("benign"))
        )

    run = altered(graded)
    for fail_on, counting in ((FailOn.STICKY, 6), (FailOn.SERIOUS, 3), (FailOn.SEVERE, 1)):
        for tolerated in (0, 1, 50):
            found = check(run, fail_on=fail_on, max_tokens=tolerated)
            assert found.counted == counting
            assert len(named(found)) == (counting if counting > tolerated else 0)
            assert (found.outcome is Outcome.CLOSED) == (counting > tolerated)
            levels = [finding.level for finding in found.findings]
            assert len(levels) == 6
            assert levels == sorted(levels, key=[Level.ERROR, Level.WARNING, Level.NOTE].index)


def test_a_method_without_grades_is_checked_for_sticky_tokens_only(small_run):
    assert check(small_run).counted == len(small_run.sticky)
    with pytest.raises(InputError, match="does not grade tokens: use --fail-on sticky"):
        check(small_run, fail_on="severe")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fail_on": "bad"}, "fail_on is 'bad': use sticky, serious, severe"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"progress": 3}, "progress"),
    ],
)
def test_wrong_options_are_refused(runs, options, message):
    with pytest.raises(InputError, match=message):
        check(runs(0), **options)


@pytest.mark.slow
def test_a_run_or_baseline_over_a_part_of_the_vocabulary_never_passes(runs, tmp_path):
    encoder = stickytoken.load_encoder(profiled.planted_model(0))
    sample = profiled.detect_profile(encoder, tmp_path / "run", sample=40)
    for found in (check(sample), check(runs(0), baseline=sample)):
        assert found.outcome is Outcome.INCONCLUSIVE
        assert "covered 40 of" in found.incomplete[0]
    assert found.incomplete[0].startswith("the baseline in")
    # A sticky token in a sample closes the gate all the same.
    model = stickytoken.load_encoder(profiled.planted_model(2))
    token = next(key for key, text in model.tokenizer.entries.items() if text == planted.PLANTED)
    found = check(profiled.detect_profile(model, tmp_path / "few", tokens=[token, 50, 51]))
    assert found.outcome is Outcome.CLOSED
    assert found.incomplete


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda table: table.head(100), "has 100 rows in tokens.parquet"),
        (lambda table: table.with_columns(verdict=pl.lit("benign")), "0 sticky tokens in tokens.parquet and"),
        (lambda table: table.with_columns(verdict=pl.lit("fine")), "that the method profile does not give"),
        (lambda table: table.with_columns(verdict=pl.lit(None, pl.String)), "has no verdict on"),
    ],
)
def test_a_table_that_lacks_something_never_passes(altered, change, reason):
    found = check(altered(change))
    assert not found.passed
    assert any(reason in each for each in found.incomplete)


def test_a_damaged_or_unfinished_run_is_refused(altered):
    with pytest.raises(RunError, match="no column of distinct token ids"):
        check(altered(lambda table: pl.concat([table.head(1), table.head(len(table) - 1)])))
    with pytest.raises(RunError, match="is not finished"):
        check(altered(result=None))


def test_an_unreadable_corpus_never_passes(altered):
    corpus = {"source": "polish.txt", "sentences": 200, "unknown": 0.4}
    found = check(altered(strength=0, corpus=corpus))
    assert found.outcome is Outcome.INCONCLUSIVE
    assert "cannot read 40% of polish.txt" in found.incomplete[0]


@pytest.mark.slow
def test_noise_is_no_change_in_either_direction(runs):
    found = check(runs(2), baseline=runs(2))
    assert found.passed
    assert {finding.level for finding in found.findings} == {Level.NOTE}
    assert {finding.properties["change"] for finding in found.findings} == {"known"}
    # The same model, measured on other texts.
    for strength in (0, 2):
        first, second = runs(strength), runs(strength, seed=7)
        assert check(second, baseline=first).passed
        assert check(first, baseline=second).passed


def test_a_token_that_became_sticky_is_new(runs):
    found = check(runs(2), baseline=runs(0))
    assert planted.PLANTED in named(found)
    first = found.findings[0].properties
    assert first["change"] == "new"
    assert first["baseline_effect_high"] < first["effect_low"]


@pytest.mark.slow
def test_a_token_that_became_stickier_is_worse_and_one_that_became_milder_is_not(runs):
    found = check(runs(3), baseline=runs(1)).findings
    assert [f.properties["change"] for f in found if f.properties["token"] == planted.PLANTED] == ["worse"]
    assert check(runs(1), baseline=runs(3)).counted == 0


def test_a_baseline_from_before_a_setting_was_added_is_compared_at_its_default(runs, altered):
    settings = runs(2).record.settings
    earlier = {name: value for name, value in settings.items() if name not in ("dimensions", "fdr")}
    assert check(runs(2), baseline=altered(settings=earlier)).passed
    with pytest.raises(InputError, match=r"other settings .*\(fdr\)"):
        check(runs(2), baseline=altered(settings=settings | {"fdr": 0.2}))


def test_overlapping_intervals_are_no_change(altered, runs):
    """A lower estimate in the baseline alone says nothing."""

    def lower(by):
        def change(table):
            moved = pl.when(pl.col("token") == planted.PLANTED).then(by).otherwise(0)
            return table.with_columns(
                (pl.col(name) - moved * (pl.col("lift_high") - pl.col("lift_low"))).alias(name)
                for name in ("lift", "lift_low", "lift_high")
            )

        return change

    assert planted.PLANTED not in named(check(runs(2), baseline=altered(lower(0.9))))
    assert planted.PLANTED in named(check(runs(2), baseline=altered(lower(1.1))))


@pytest.mark.parametrize(("below", "new"), [(0.01, True), (-0.01, False)])
@pytest.mark.parametrize("known", [True, False], ids=["with intervals", "of an earlier version"])
def test_a_token_that_began_to_erase_texts_is_new_whatever_it_lifts(altered, runs, below, new, known):
    """The baseline's contraction ends just below, or above, where that of the run begins."""
    (row,) = runs(2).sticky.filter(pl.col("token") == planted.PLANTED).to_dicts()
    end = row["contraction_low"] - below

    def change(table):
        table = table.with_columns(contraction=pl.lit(end), verdict=pl.lit("benign"), erases=pl.lit(False))
        later = ["contraction_low", "contraction_high", "erases", "reason"]
        return table.with_columns(contraction_high=pl.lit(end)) if known else table.drop(later)

    found = check(runs(2), baseline=altered(change))
    assert (planted.PLANTED in named(found)) is new
    assert all("erases" in each.message for each in found.findings)


@pytest.mark.slow
def test_a_baseline_that_measured_something_else_is_refused(runs, altered, small_run, tmp_path):
    encoder = stickytoken.load_encoder(profiled.planted_model(0))
    other_texts = profiled.detect_profile(encoder, tmp_path / "run", sentences=profiled.corpus(150))
    settings = json.loads((runs(2).path / "run.json").read_text("utf-8"))["settings"]
    for baseline, reason in (
        (small_run, "used the method std"),
        (other_texts, "on other texts"),
        (altered(settings=settings | {"smallest_effect": 0.9}), "other settings than .*smallest_effect"),
    ):
        with pytest.raises(InputError, match=reason):
            check(runs(2), baseline=baseline)
    with pytest.raises(InputError, match="measures no intervals"):
        check(small_run, baseline=small_run)
