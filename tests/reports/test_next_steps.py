"""What a report says first: what a sticky token is, and what to do about those of the model."""

import json
import re
import shlex
import shutil
from dataclasses import replace

import polars as pl
import pytest
from markupsafe import escape

import planted
import repaired
import stickytoken
from stickytoken import open_run
from stickytoken.comparisons import ComparedRun
from stickytoken.detection.run import next_steps
from stickytoken.reports.content import MOST_CARDS, key_facts, meaning, read_content, report_figures, steps


def commands(run):
    return [shlex.split(step.command)[1] for step in next_steps(run)]


def loaded(run, folder, **changes):
    """Copy a run and say how its model was loaded."""
    place = shutil.copytree(run.path, folder)
    document = json.loads((place / "run.json").read_text("utf-8"))
    document["model"]["loading"] = changes
    (place / "run.json").write_text(json.dumps(document), encoding="utf-8")
    return open_run(place)


def test_a_model_with_sticky_tokens_is_repaired_first(run):
    assert commands(run) == ["repair", "scan", "clean", "check"]


def test_a_model_without_them_is_judged_on_documents(clean_run):
    assert commands(clean_run) == ["judge", "scan"]


@pytest.mark.parametrize(("worst", "first"), [("mild", "scan"), ("serious", "repair")])
def test_a_model_with_mild_tokens_alone_is_repaired_only_if_documents_repeat_them(run_copy, worst, first):
    table = pl.read_parquet(run_copy / "tokens.parquet")
    grades = ["mild"] * len(table)
    grades[table["token_id"].to_list().index(open_run(run_copy).sticky["token_id"][-1])] = worst
    table.with_columns(severity=pl.Series(grades)).write_parquet(run_copy / "tokens.parquet")
    shown = planted.command("show", run_copy).stderr
    assert f": stickytoken {first} " in shown
    assert ("repair the model only if they do" in shown) is (worst == "mild")
    assert sorted(commands(open_run(run_copy))) == ["check", "clean", "repair", "scan"]


def test_what_cannot_be_repaired_is_not_offered_a_repair(run, tmp_path):
    prompted = loaded(run, tmp_path / "prompted", prompt="prompteol", layer=-1)
    assert commands(prompted) == ["scan", "clean"]
    assert commands(loaded(run, tmp_path / "local", prompt="")) == commands(run)


@pytest.mark.parametrize(("passed", "first"), [(True, "embed"), (False, "repair"), (None, "repair")])
def test_a_verified_repair_is_used_and_not_written_again(run_copy, passed, first):
    record = repaired.repair_record(planted.PLANTED, passed=passed)
    folder = run_copy / f"repair-{record.identity}"
    folder.mkdir()
    (folder / "repair.json").write_text(record.model_dump_json(), encoding="utf-8")
    found = steps(read_content(run_copy))
    assert [step.command.split()[1] for step in found] == [first, "scan", "clean", "check"]
    assert ("written on 2026-01-01 and verified" in stickytoken.report(run_copy)) is bool(passed)
    assert f"stickytoken {first} " in planted.command("show", run_copy).stderr


def test_commands_and_their_options_exist(run, clean_run):
    for step in (*next_steps(run), *next_steps(clean_run)):
        assert step.purpose.split()[0] in ("write", "find", "take", "check", "see")  # reads on after "to"
        words = shlex.split(step.command)
        shown = planted.command(words[1], "--help")
        assert shown.exit_code == 0
        assert all(word in shown.stdout for word in words if word.startswith("--"))


def test_a_folder_with_a_hostile_name_is_one_word(run, tmp_path):
    place = shutil.copytree(run.path, tmp_path / "a $(b) 'c' <d>")
    for step in next_steps(open_run(place))[:3]:
        assert shlex.split(step.command)[2] == str(place)
    html = stickytoken.report(place)
    assert "<d>" not in html
    assert "$(b)" in html


def test_a_run_over_some_tokens_does_not_acquit_the_model(clean_run):
    assert len(clean_run.tokens) < clean_run.available
    assert meaning(read_content(clean_run.path)).endswith("the others may.")
    assert "needs no repair" not in stickytoken.report(clean_run)


def test_how_far_texts_move_is_said_as_a_similarity(run, tmp_path):
    worst = run.sticky.row(0, named=True)
    said = f"copies of {worst['token']!r} raise the cosine similarity of unrelated texts by "
    assert f"such tokens: {said}{worst['lift']:.2f} on average." in meaning(read_content(run.path))
    place = shutil.copytree(run.path, tmp_path / "acquitted")
    table = pl.read_parquet(place / "tokens.parquet")
    acquitted = table.with_columns(
        verdict=pl.lit("benign"), lift=pl.when(token_id=worst["token_id"]).then(0.004).otherwise(-0.1)
    )
    acquitted.write_parquet(place / "tokens.parquet")
    known = replace(read_content(place), tokens=acquitted)
    assert f"enough to matter: even {said}less than 0.01 on average. It needs no repair." in meaning(known)
    fallen = replace(known, tokens=acquitted.with_columns(lift=pl.lit(-0.1)))
    assert meaning(fallen).endswith("No token of this model does so enough to matter: it needs no repair.")


@pytest.mark.slow
def test_every_form_of_a_report_says_the_same(run):
    html = stickytoken.report(run)
    document = json.loads(stickytoken.report(run, format="json"))
    told = str(escape(document["meaning"]))
    assert document["next_steps"] == [step._asdict() for step in next_steps(run)]
    marks = ('id="reasons"', 'id="steps"', told, 'class="facts"')
    assert sorted(marks, key=html.index) == list(marks)
    for row in read_content(run.path).sticky.head(3).to_dicts():
        assert f"<bdi>{escape(row['reason'])}</bdi></li>" in html
    text = stickytoken.report(run, format="md")
    assert all(step.purpose in text for step in next_steps(run))
    assert all(f"{step.purpose[1:]}:" in html for step in next_steps(run))


def test_the_token_of_the_headline_is_the_first_that_is_shown(run):
    document = json.loads(stickytoken.report(run, format="json"))
    names = run.sticky["token"].to_list()
    assert [row["token"] for row in document["flagged"][: len(names)]] == names
    assert [row["token"] for row in document["worst"]] == names[:MOST_CARDS]


def test_the_command_line_ends_with_the_first_of_them(run):
    shown = planted.command("show", run.path)
    assert re.search(
        r"^next, to write a repaired, verified copy .*: stickytoken repair ", shown.stderr, re.MULTILINE
    )


def test_kinds_are_drawn_only_for_more_tokens_than_have_cards(run):
    assert 0 < len(run.sticky) <= MOST_CARDS
    names = [figure.name for figure in report_figures(read_content(run.path))]
    assert "who-they-are" not in names


def test_no_number_of_copies_contradicts_the_lift(run):
    worst = ComparedRun("model", run).worst
    facts = {fact.meaning: fact.value for fact in key_facts(read_content(run.path))}
    copies = [value for meaning, value in facts.items() if "needed for a serious effect" in meaning]
    assert worst.deviations >= 0.5
    assert not any(value.startswith("more than") for value in copies)
