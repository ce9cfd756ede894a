"""Dimensions on the command line: detect, show, judge, report."""

import json

import polars as pl
import pytest

import planted
import profiled


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A model, texts, and a run with dimensions."""
    folder = tmp_path_factory.mktemp("dimensions")
    profiled.planted_model(2).save(str(folder / "model"))
    (folder / "texts.txt").write_text("\n".join(profiled.sentences(200)) + "\n", encoding="utf-8")
    result = detected(folder, folder / "run", "--dimensions", "8, 24", "--smallest-effect", 1)
    assert result.exit_code == 0, result.stderr
    (folder / "shown.txt").write_text(result.stdout, encoding="utf-8")
    return folder


def detected(place, out, *options):
    return planted.command(
        "detect", place / "model", "--sentences", place / "texts.txt", "--out", out, "--budget", 8,
        "--no-adaptive", *options,
    )  # fmt: skip


def test_detect_prints_one_row_per_dimension_below_the_finding(place):
    lines = planted.lines_of((place / "shown.txt").read_text())
    assert "sticky" in lines[0]
    at = next(k for k, line in enumerate(lines) if "by dimension" in line)
    text = "\n".join(lines[at:])
    assert "largest lift, SD" in text
    for dimension in ("32", "8", "24"):
        assert any(dimension in line.replace("│", " ").split() for line in lines[at:])


def test_show_has_the_table_alone_and_the_tokens_of_a_dimension(place):
    run = place / "run"
    table = planted.document(planted.command("show", run, "--by-dimension", "--format", "json"))
    assert [row["dimension"] for row in table["dimensions"]] == [32, 8, 24]
    assert table["dimensions"][0]["sticky"] == 1
    whole = planted.document(planted.command("show", run, "--format", "json"))
    assert whole["dimensions"] == table["dimensions"]
    listed = planted.document(
        planted.command("show", run, "--at-dimension", 8, "--limit", 5, "--format", "json")
    )
    own = pl.read_parquet(run / "dimensions.parquet").filter(dimension=8).sort("lift", descending=True)
    assert [row["lift"] for row in listed["tokens"]] == own["lift"].head(5).to_list()
    assert planted.command("show", run, "--at-dimension", 8, "--verdict", "sticky").exit_code == 0
    one = planted.document(
        planted.command("show", run, "--at-dimension", 8, "--token", planted.PLANTED, "--format", "json")
    )
    assert [row["token"] for row in one["tokens"]] == [planted.PLANTED]


def test_judge_adds_a_row_per_dimension(place):
    options = ("judge", place / "run", "--sentences", place / "texts.txt", "--dimensions", "24")
    document = planted.document(planted.command(*options, "--format", "json"))
    assert [row["dimension"] for row in document["dimensions"]] == [24]
    assert document["dimensions"][0]["sticky"] == len(
        [row for row in document["dimensions"][0]["flagged"] if row["verdict"] == "sticky"]
    )
    assert "by dimension" in planted.command(*options).stdout


def test_the_report_draws_them(place):
    document = json.loads(planted.command("report", place / "run", "--format", "json").stdout)
    (figure,) = [each for each in document["figures"] if each["name"] == "by-dimension"]
    assert [row[1] for row in figure["rows"]] == [32, 8, 24]
    assert "1 sticky" in figure["alt"]
    assert "By dimension and layer" in planted.command("report", place / "run", "--format", "md").stdout


@pytest.mark.parametrize(
    ("option", "value", "saying"),
    [
        ("--dimensions", "0", "dimensions is 0: it must be at least 1"),
        ("--dimensions", "-8", "dimensions is -8"),
        ("--dimensions", "8,8", "dimensions include 8 twice"),
        ("--dimensions", "8.5", "must be a whole number"),
        ("--dimensions", "33", "have 32 components: use at most 32"),
        ("--layers", "1", "cannot be read, because it has a StaticEmbedding"),
        ("--layers", "two", "must be a whole number"),
    ],
)
def test_what_cannot_be_used_is_one_line(place, option, value, saying, tmp_path):
    planted.refused(
        "detect", place / "model", "--sentences", place / "texts.txt", "--out", tmp_path / "run",
        f"{option}={value}", saying=saying,
    )  # fmt: skip


def test_other_methods_and_runs_without_dimensions_are_refused(place, tmp_path):
    saying = "--dimensions is not an option of the method std"
    planted.refused("detect", place / "model", "--method", "std", "--dimensions", "8", saying=saying)
    plain = tmp_path / "plain"
    assert detected(place, plain, "--no-report").exit_code == 0
    planted.refused("show", plain, "--by-dimension", saying="was made without dimensions and layers")
    planted.refused("show", plain, "--at-dimension", 8, saying="it has only the model as it is")
    planted.refused("show", place / "run", "--at-layer", 1, saying="has no layer 1")
    texts = ("--sentences", place / "texts.txt")
    planted.refused("judge", plain, *texts, "--dimensions", 8, saying="was made without dimensions")
    planted.refused("judge", place / "run", *texts, "--dimensions", 9, saying="has dimensions 8, 24")
