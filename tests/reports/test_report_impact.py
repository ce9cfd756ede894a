"""What copies cost, in the report: figures with their words and numbers, hostile names, missing values."""

import json
import re
import shutil
from pathlib import Path

import polars as pl
import pytest

import impact_files as files
import planted
import stickytoken
from naming import says
from report_pages import Page
from stickytoken.explanation import ExplainSettings, explain
from stickytoken.impacts.results import TABLES, impacts_in
from stickytoken.reports.content import read_content
from stickytoken.reports.facts import report_figures, run_details
from stickytoken.reports.figures.effects import costs

FIGURES = ["impact-costs", "impact-tokens"]
COPIED = "measured"


@pytest.mark.slow
def test_an_explanation_and_an_impact_of_a_token_show_the_same_benign_token_first(run_copy, planted_encoder):
    settings = ExplainSettings(carriers=3, benign=4, attribution=False, directions=8)
    explain(planted_encoder, [planted.PLANTED], run=run_copy, settings=settings, out=run_copy / "explain")
    content = read_content(run_copy)
    (explained,), (measured,) = content.explanations, content.impacts
    matches = [
        token.token for token in measured.record.tokens if token.matched_to == explained.token.token_id
    ]
    benign = explained.tables["benign"]["benign"].to_list()
    assert matches == benign[: files.FEW.benign]
    assert run_details(content)[f"impact {measured.path.name}"]["benign tokens"] == benign[:1]


def impact_of(run):
    (impact_folder,) = run.glob("impact-*")
    return impact_folder


def test_the_figures_have_the_numbers_of_the_measurement(measured):
    html = stickytoken.report(measured.path.parent)
    assert [section for section in re.findall(r'<h2 id="([^"]+)"', html) if section in FIGURES] == FIGURES
    assert measured.path.name in html
    content = read_content(measured.path.parent)
    figures = [figure for figure in report_figures(content) if figure.name in FIGURES]
    assert [figure.name for figure in figures] == FIGURES
    effects = measured.effects.to_dicts()
    assert [row[:2] for row in figures[0].table.rows] == [[e["task"], e["metric"]] for e in effects]
    assert [row[7] for row in figures[0].table.rows] == [e["difference_low"] for e in effects]
    arms = figures[0].plot.data[0].error_x
    for above, below, row in zip(arms.array, arms.arrayminus, effects, strict=True):
        ends = (row["drop_sticky"] + above, row["drop_sticky"] - below)
        assert ends == pytest.approx((row["drop_sticky_high"], row["drop_sticky_low"]), abs=1e-5)
    assert says(figures[0].alt, "sticky", "spearman", f"{effects[0]['drop_sticky']:.4f}")


def test_markdown_has_the_tables_and_json_the_numbers(measured):
    text = stickytoken.report(measured.path.parent, format="md")
    section_text = text[text.index("## What copies cost") : text.index("## All flagged tokens")]
    assert section_text.count("\n| ---") == 2
    assert "| sts | spearman |" in section_text
    document = json.loads(stickytoken.report(measured.path.parent, format="json"))
    assert document["computed"][f"impact {measured.path.name}"]["copies"] == 4


def test_a_run_without_a_measurement_says_nothing_of_it(html):
    assert "impact" not in html.lower().replace("--impact", "")


def test_a_measurement_that_is_not_finished_or_damaged_is_named_and_the_rest_is_shown(run_copy):
    first = impact_of(run_copy)
    second = Path(shutil.copytree(first, run_copy / "impact-second"))
    record = json.loads((first / "impact.json").read_text("utf-8"))
    (first / "impact.json").write_text(json.dumps(record | {"result": None}), encoding="utf-8")
    text = stickytoken.report(run_copy, format="md")
    assert "not finished" in text
    assert "## What copies cost" in text
    (second / "effects.parquet").write_bytes(b"x")
    assert impacts_in(run_copy)[0] == ()
    text = stickytoken.report(run_copy, format="md")
    assert says(text, "effects.parquet")
    assert "## What copies cost" not in text
    assert "## All flagged tokens" in text


@pytest.mark.slow
def test_the_latest_measurement_comes_first_and_old_ones_are_counted(run_copy):
    first = impact_of(run_copy)
    record = json.loads((first / "impact.json").read_text("utf-8"))
    for number in range(4):
        later = Path(shutil.copytree(first, run_copy / f"impact-{number}"))
        changed = record | {"started": f"2099-01-0{number + 1}T00:00:00+00:00"}
        (later / "impact.json").write_text(json.dumps(changed), encoding="utf-8")
    assert [impact.path.name for impact in impacts_in(run_copy)[0]][:4] == [
        f"impact-{k}" for k in (3, 2, 1, 0)
    ]
    html = stickytoken.report(run_copy)
    assert html.count('<h2 id="impact-costs') == 3
    assert says(html, "latest 3 of 5")


def test_what_is_missing_stays_missing(run_copy):
    for name, columns in TABLES.items():
        numbers = [name for name, kind in columns.items() if kind is pl.Float64]
        missing = [name for name in numbers if "hits" not in name and "rank" not in name]
        table = pl.read_parquet(impact_of(run_copy) / name)
        table = table.with_columns(pl.lit(None, pl.Float64).alias(name) for name in missing)
        table.write_parquet(impact_of(run_copy) / name)
    page = Page(stickytoken.report(run_copy))
    assert "nan" not in page.text.lower()
    assert "NaN" not in json.dumps(page.data)
    assert "spearman is not defined" in page.text
    document = json.loads(stickytoken.report(run_copy, format="json"))
    costs_shown = next(figure for figure in document["figures"] if figure["name"] == "impact-costs")
    assert {tuple(row[3:]) for row in costs_shown["rows"]} == {(None,) * 9}


def test_a_task_without_intervals_is_drawn_without_them():
    """As of MTEB, which gives one number a condition."""
    row = dict.fromkeys(TABLES["effects.parquet"]) | {
        "task": "t", "metric": "main_score", "main": True, "clean": 0.9, "sticky": 0.5, "benign": 0.8,
        "drop_sticky": 0.4, "drop_benign": 0.1, "difference": 0.3, "p_value": 1 / 9,
        "tokens": 1, "benign_tokens": 8,
    }  # fmt: skip
    figure = costs([row])
    assert [trace["x"] for trace in json.loads(figure.plot.to_json())["data"]] == [[0.4], [0.1]]
    assert figure.plot.data[0].error_x.array == (None,)
    assert says(figure.alt, "1 sticky token", "8 benign", 11)
