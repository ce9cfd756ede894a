"""Which run a model is checked by, which of its sticky tokens fail the check, and what never passes it."""

import json
import re
import shutil
from pathlib import Path

import polars as pl
import pytest

import planted
import profiled
import stickytoken
from naming import naming, says
from stickytoken import Cleaner, open_run
from stickytoken.cleaning import CleaningRules
from stickytoken.detection import finding
from stickytoken.detection.run import Run
from stickytoken.errors import InputError, RunError
from stickytoken.findings import Level
from stickytoken.gate import FailOn, Outcome, check
from stickytoken.settings.profile import ProfileSettings
from stickytoken.settings.reading import Columns


@pytest.fixture
def own(planted_profile, tmp_path):
    """A model and the folder of its runs, which a test may change."""
    model, run = planted_profile
    shutil.copytree(model, tmp_path / "model")
    copied_run = Path(shutil.copytree(run, tmp_path / "runs" / "run"))
    settings = open_run(copied_run).record.settings
    # It was made with a higher threshold, which would not be taken for the model.
    planted.edit_record(copied_run, settings=settings | {"smallest_push": ProfileSettings().smallest_push})
    return tmp_path / "model", tmp_path / "runs"


def test_the_newest_run_over_the_whole_vocabulary_is_taken(own):
    model, runs = own

    def copy(name, **changes):
        planted.edit_record(Path(shutil.copytree(runs / "run", runs / name)), **changes)

    identity_parts = json.loads((runs / "run" / "run.json").read_text("utf-8"))["identity_parts"]
    copy("later", started="2040-01-01T00:00:00+00:00")
    copy("unfinished", started="2041-01-01T00:00:00+00:00", result=None)
    copy("part", started="2042-01-01T00:00:00+00:00", identity_parts=identity_parts | {"tokens": "0" * 64})
    copy(
        "other",
        started="2043-01-01T00:00:00+00:00",
        identity_parts=identity_parts | {"encoder": {"weights": "0"}},
    )
    copy("damaged", schema_version=99)
    settings = open_run(runs / "run").record.settings
    copy("lenient", started="2044-01-01T00:00:00+00:00", settings=settings | {"smallest_push": 10.0})
    result = check(model, folder=runs)
    assert result.run == runs / "later"
    assert any("damaged" in note and "skipped" in note for note in result.notes)
    assert any("lenient" in note and "skipped" in note for note in result.notes)
    # One that is named is taken whatever its thresholds are.
    assert check(model, folder=runs / "lenient").run == runs / "lenient"


def test_a_model_that_no_run_fits_is_refused_or_measured(own, pristine):
    with pytest.raises(RunError, match=naming(own[1] / "run", pristine)):
        check(pristine, folder=own[1] / "run")
    # The tiny tokenizer reads letters, so this takes a model that knows its words alone.
    model = own[0].with_name("foreign")
    profiled.foreign_model().save(str(model))
    with pytest.raises(InputError, match=naming(model)):
        check(model, folder=own[1])


@pytest.mark.slow
def test_a_missing_run_is_made_where_the_runs_are_and_found_the_next_time(own, monkeypatch):
    model, runs = own
    detected = []

    def detect(encoder, *, out, **options):
        detected.append(out)
        return profiled.detect_profile(encoder, out)  # with few texts

    monkeypatch.setattr(finding, "detect", detect)
    shutil.rmtree(runs / "run")
    first = check(model, folder=runs)
    assert (check(model, folder=runs).run, len(detected)) == (first.run, 1)
    assert list(runs.iterdir()) == [first.run]


def test_a_model_object_is_compared_by_identity_and_a_run_is_taken(own):
    model, runs = own
    encoder = stickytoken.load_encoder(model)
    assert check(encoder, folder=runs).run == check(Run(runs / "run")).run == runs / "run"
    with pytest.raises(InputError, match=naming("revision")):
        check(encoder, folder=runs, revision="main")


# Which sticky tokens fail the check, alone and against a baseline; what is not enough to pass it


@pytest.fixture(scope="module")
def runs(planted_profile, tmp_path_factory):
    """A function that returns runs of models whose planted token has different strengths."""
    folder = tmp_path_factory.mktemp("strengths")
    run_of = {(2,): stickytoken.open_run(planted_profile[1])}

    def run(strength, **changes):
        key = (strength, *changes.items())
        if key not in run_of:
            encoder = stickytoken.load_encoder(profiled.planted_model(2 * strength))
            run_of[key] = profiled.detect_in_documents(encoder, folder / f"run-{len(run_of)}", **changes)
        return run_of[key]

    return run


@pytest.fixture
def altered(runs, tmp_path):
    """A function that copies the run of the planted model and changes its table or its record."""

    def alter(change=lambda table: table, strength=2, **record):
        folder = tmp_path / f"altered-{len(list(tmp_path.iterdir()))}"
        shutil.copytree(runs(strength).path, folder)
        planted.replace_tokens(folder, change(pl.read_parquet(folder / "tokens.parquet")))
        planted.edit_record(folder, **record)
        return folder

    return alter


EXAMPLE = Path(stickytoken.__file__).parent / "demo" / "example" / "all-MiniLM-L6-v2"


def named(result, level=Level.ERROR):
    return [finding.properties["token"] for finding in result.findings if finding.level is level]


@pytest.mark.slow
def test_a_sticky_token_closes_the_gate_and_without_one_it_is_open(runs):
    result = check(runs(2))
    assert result.outcome is Outcome.FAILED
    assert planted.PLANTED in named(result)
    assert result.counted == result.sticky == len(runs(2).sticky)
    first = result.findings[0]
    assert first.identity == (Path(runs(2).model_name).name, first.properties["token"])
    (note,) = (note for note in result.notes if "non-default settings" in note)
    assert "confirming_texts 24" in note
    assert "seed" not in note
    result = check(runs(0))
    assert (result.passed, result.findings, result.incomplete) == (True, (), ())


def test_errors_are_there_if_and_only_if_more_count_than_are_tolerated(altered):
    grades = ["severe", "serious", "serious", "mild", "mild", None]

    def graded(table):
        first = pl.int_range(len(table)) < len(grades)
        severity = pl.Series("severity", [*grades, *[None] * (len(table) - len(grades))])
        return table.with_columns(
            severity, verdict=pl.when(first).then(pl.lit("sticky")).otherwise(pl.lit("benign"))
        )

    run = altered(graded)
    for fail_on, counting, tolerated in (
        (FailOn.STICKY, 6, 5),
        (FailOn.MILD, 5, 4),
        (FailOn.SERIOUS, 3, 3),
        (FailOn.SEVERE, 1, 0),
    ):
        result = check(run, fail_on=fail_on, max_tokens=tolerated)
        assert result.counted == counting
        assert len(named(result)) == (counting if counting > tolerated else 0)
        assert (result.outcome is Outcome.FAILED) == (counting > tolerated)
        levels = [finding.level for finding in result.findings]
        assert len(levels) == len(grades)
        assert levels == sorted(levels, key=[Level.ERROR, Level.WARNING, Level.NOTE].index)


def test_options_that_need_a_run_are_named_as_arguments():
    cleaner = Cleaner(CleaningRules(words=("river",)))
    with pytest.raises(InputError, match=r"leave out max_tokens\b"):
        check(cleaner, documents=["a river"], max_tokens=3)


@pytest.mark.parametrize(("copies", "outcome"), [(2, Outcome.PASSED), (3, Outcome.FAILED)])
def test_copies_of_a_flagged_special_token_in_documents_fail_the_check(copies, outcome):
    rules = CleaningRules(words=("[CLS]",), specials=("[CLS]",))
    assert check(Cleaner(rules), documents=[f"{'[CLS] ' * copies}a river"]).outcome is outcome


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"words": ["river"]}, naming("words", "documents")),
        ({"column": ["a", "b"]}, naming("column", "'a, b'", "documents")),
        ({"column": Columns(delimiter=";")}, naming("delimiter", "';'", "documents")),
        ({"fail_on": "bad"}, naming("fail_on", "'bad'", "sticky", "mild", "serious", "severe", "none")),
        ({"max_tokens": -1}, naming("max_tokens", -1, 0)),
        ({"progress": 3}, naming("progress", 3)),
        ({"fail_on": "none"}, naming("fail_on", "'none'", "documents")),
        ({"fail_on": "severe"}, naming("std", "--fail-on sticky")),
    ],
)
def test_wrong_options_are_refused_and_those_that_a_method_lacks(small_run, options, message):
    assert check(small_run).counted == len(small_run.sticky)
    with pytest.raises(InputError, match=message):
        check(small_run, **options)


@pytest.mark.parametrize(
    ("fail_on", "counted"),
    [
        ("sticky", "sticky token"),
        ("mild", "mild, serious or severe sticky token"),
        ("serious", "serious or severe sticky token"),
        ("severe", "severe sticky token"),
    ],
)
def test_the_headline_names_the_severities_that_count(runs, fail_on, counted):
    headline = check(runs(2), fail_on=fail_on).headline()
    assert re.search(rf" has (\d+|no) {counted}s?$", headline)


def test_the_headline_of_a_comparison_says_so(runs):
    headline = check(runs(2), baseline=runs(2), max_tokens=3).headline()
    assert says(headline, "baseline", 3)


@pytest.mark.slow
def test_a_run_or_baseline_over_a_part_of_the_vocabulary_never_passes(runs, tmp_path):
    encoder = stickytoken.load_encoder(profiled.planted_model(0))
    sample = profiled.detect_in_documents(encoder, tmp_path / "run", sample=40)
    for result in (check(sample), check(runs(0), baseline=sample)):
        assert result.outcome is Outcome.INCONCLUSIVE
        assert says(result.incomplete[0], 45)
    assert says(result.incomplete[0], "baseline")
    # A sticky token fails the check even if the run covers only a sample.
    model = stickytoken.load_encoder(profiled.planted_model(4))
    token = next(key for key, text in model.tokenizer.entries.items() if text == planted.PLANTED)
    result = check(profiled.detect_profile(model, tmp_path / "few", tokens=[token, 50, 51]))
    assert result.outcome is Outcome.FAILED
    assert result.incomplete


def test_the_headline_of_a_sample_says_how_many_tokens_were_examined(finished_run):
    headline = check(finished_run, max_tokens=99).headline()
    assert says(headline, "inconclusive", "30 of 95")


@pytest.mark.parametrize(
    ("unmeasured", "named"),
    [({"ordinary_push": None}, ("push", "sentences")), ({"unconfirmed": 3}, (3, "budget"))],
)
def test_a_run_that_could_not_measure_all_it_should_never_passes_but_may_be_a_baseline(
    runs, altered, unmeasured, named
):
    result = runs(0).record.result.model_dump(mode="json") | unmeasured
    folder = altered(strength=0, result=result)
    checked = check(folder)
    assert checked.outcome is Outcome.INCONCLUSIVE
    (reason,) = checked.incomplete
    assert says(reason, folder, *named)
    assert check(runs(0), baseline=folder).passed


def test_tokens_without_a_verdict_are_counted(altered):
    def without_verdicts(table):
        return table.with_columns(
            verdict=pl.when(~pl.col("token_id").is_in(table["token_id"].head(2))).then("verdict")
        )

    reasons = check(altered(without_verdicts)).incomplete
    assert any(says(reason, "no verdict", 2) for reason in reasons)


def test_a_token_that_a_server_gave_no_vector_for_has_no_verdict_but_needs_one(altered):
    """Its share of recognised copies is null, as are its measurements. That of a misread token is low."""

    def of_a_server(table):
        unanswered, misread = table["token_id"].head(2)
        without_verdict = pl.col("token_id").is_in([unanswered, misread])
        shares = {unanswered: None, misread: 0.25}
        return table.with_columns(
            verdict=pl.when(~without_verdict).then("verdict"),
            copies_seen=pl.col("token_id").replace_strict(shares, default=1.0, return_dtype=pl.Float64),
        )

    result = check(altered(of_a_server, strength=0))
    assert result.outcome is Outcome.INCONCLUSIVE
    assert any(says(reason, "no verdict", 1) for reason in result.incomplete)


def test_a_damaged_or_unfinished_run_is_refused_and_an_unreadable_corpus_never_passes(altered):
    repeated = altered(lambda table: pl.concat([table.head(1), table.head(len(table) - 1)]))
    with pytest.raises(RunError, match=naming(repeated / "tokens.parquet")):
        check(repeated)
    unfinished = altered(result=None)
    with pytest.raises(RunError, match=naming(unfinished, "finished")):
        check(unfinished)
    result = check(altered(strength=0, corpus={"source": "polish.txt", "sentences": 200, "unknown": 0.4}))
    assert result.outcome is Outcome.INCONCLUSIVE
    assert re.search(naming("40%", "polish.txt"), result.incomplete[0])


@pytest.mark.slow
def test_noise_is_no_change_in_either_direction(runs):
    result = check(runs(2), baseline=runs(2))
    assert result.passed
    assert {finding.level for finding in result.findings} == {Level.NOTE}
    assert {finding.properties["change"] for finding in result.findings} == {"known"}
    # The same model, measured on other texts.
    for strength in (0, 2):
        first = runs(strength)
        second = runs(strength, seed=7)
        assert check(second, baseline=first).passed
        assert check(first, baseline=second).passed


def test_a_token_that_became_sticky_is_new(runs):
    result = check(runs(2), baseline=runs(0))
    assert planted.PLANTED in named(result)
    first = result.findings[0].properties
    assert first["change"] == "new"
    assert first["baseline_erased"] < first["erased_low"]


@pytest.mark.slow
def test_a_token_that_became_stickier_is_worse_and_one_that_became_milder_is_not(runs):
    findings_found = check(runs(3), baseline=runs(1)).findings
    assert [f.properties["change"] for f in findings_found if f.properties["token"] == planted.PLANTED] == [
        "worse"
    ]
    assert check(runs(1), baseline=runs(3)).counted == 0


def test_overlapping_intervals_are_no_change(altered, runs):
    measure = "erased"

    def lower(by):
        def change(table):
            moved = pl.when(pl.col("token") == planted.PLANTED).then(by).otherwise(0)
            width = pl.col(f"{measure}_high") - pl.col(f"{measure}_low")
            names = (measure, f"{measure}_low", f"{measure}_high")
            return table.with_columns((pl.col(name) - moved * width).alias(name) for name in names)

        return change

    assert planted.PLANTED not in named(check(runs(2), baseline=altered(lower(0.9))))
    assert planted.PLANTED in named(check(runs(2), baseline=altered(lower(1.1))))


def test_a_push_that_the_baseline_did_not_measure_is_new(runs, altered):
    is_planted = pl.col("token") == planted.PLANTED
    names = ("push", "push_low", "push_high")

    def with_push(*values):
        def change(table):
            planted_values = zip(names, values, strict=True)
            return table.with_columns(
                pl.when(is_planted).then(pl.lit(value, pl.Float64)).otherwise(name).alias(name)
                for name, value in planted_values
            )

        return change

    unmeasured = altered(with_push(None, None, None))
    for run, change in (
        (with_push(9.0, 8.0, 10.0), "new"),  # the threshold of these runs is 5
        (with_push(1.2, 0.9, 1.4), "known"),
    ):
        findings = check(altered(run), baseline=unmeasured).findings
        (finding,) = (found for found in findings if found.properties["token"] == planted.PLANTED)
        assert finding.properties["change"] == change
        assert finding.level is (Level.ERROR if change == "new" else Level.NOTE)


@pytest.mark.parametrize(
    ("measure", "unsettled", "values"),
    [
        ("push", {"documents": 4}, (9.0, 8.0, 10.0)),
        ("erased", {"confirmed": False}, None),
    ],
)
def test_what_the_baseline_did_not_measure_to_the_end_is_new(runs, altered, measure, unsettled, values):
    """The intervals of a token that dropped out are so wide that a much larger value would be known."""
    is_planted = pl.col("token") == planted.PLANTED

    def with_values(**columns):
        return lambda table: table.with_columns(
            pl.when(is_planted).then(pl.lit(value, table.schema[name])).otherwise(name).alias(name)
            for name, value in columns.items()
        )

    columns = (measure, f"{measure}_low", f"{measure}_high")
    wide = dict(zip(columns, (1.0, 0.0, 99.0), strict=True))
    own = with_values(**({} if values is None else dict(zip(columns, values, strict=True))))
    for baseline, change in ((wide, "known"), (wide | unsettled, "new")):
        findings = check(altered(own), baseline=altered(with_values(**baseline))).findings
        (finding,) = (found for found in findings if found.properties["token"] == planted.PLANTED)
        assert finding.properties["change"] == change


def test_texts_that_are_not_the_packaged_ones_are_noted_once(runs):
    assert sum(says(note, "packaged", "test") for note in check(runs(0)).notes) == 1
    assert not any(says(note, "packaged") for note in check(EXAMPLE).notes)


def test_only_settings_that_are_not_the_default_are_called_changed(runs):
    (note,) = [note for note in check(runs(0), fail_on="sticky").notes if says(note, "settings")]
    assert says(note, "confirming_texts 24")
    assert not says(note, "copies")  # a tuple, which JSON writes as a list


def test_a_check_says_how_many_tokens_were_measured_in_documents(runs):
    run = runs(0)
    result = check(run)
    assert result.passed
    (sentence,) = (line for line in run.description.lines if says(line, "measured in"))
    assert says(sentence, run.result.in_documents, run.result.random_in_documents)
    assert sentence in result.notes
    assert sentence in result.summary()["notes"]


@pytest.mark.slow
def test_a_baseline_that_measured_something_else_is_refused(runs, altered, small_run, tmp_path):
    encoder = stickytoken.load_encoder(profiled.planted_model(0))
    other_texts = profiled.detect_profile(encoder, tmp_path / "run", sentences=profiled.corpus(150))
    settings = runs(2).record.settings
    for baseline, reason in (
        (small_run, naming("method", "std")),
        (other_texts, naming(other_texts.path, other_texts.record.corpus.source)),
        (altered(settings=settings | {"smallest_push": 1.9}), naming("settings", "smallest_push")),
        (altered(settings=settings | {"unusual": 9.0}), naming("settings", "unusual")),
    ):
        with pytest.raises(InputError, match=reason):
            check(runs(2), baseline=baseline)
    with pytest.raises(InputError, match=naming(small_run.path, "std", "profile")):
        check(small_run, baseline=small_run)


def test_random_tokens_bound_only_what_was_drawn_like_them(encoder, tmp_path):
    """Tokens that somebody named may push more often than random ones of the vocabulary."""
    sampled = profiled.detect_in_documents(encoder, tmp_path / "run", sample=40)
    (bound,) = (sentence for sentence in sampled.description.coverage if "95% confidence" in sentence)
    # The bound is about all tokens from which random ones were drawn, not about those not measured alone.
    result = sampled.result
    assert says(
        bound, "all tokens", "same way", f"{result.looked_at - result.in_documents:,} were not measured"
    )
    named = shutil.copytree(sampled.path, tmp_path / "named")
    planted.edit_record(named, beside_sample=None)
    coverage = open_run(named).description.coverage
    assert any("not measured" in sentence for sentence in coverage)
    assert not any("95% confidence" in sentence for sentence in coverage)
