"""The profile method on the command line: detect, show, probe and judge, with dimensions too."""

import csv
import io
import json
import re
from dataclasses import asdict
from pathlib import Path

import polars as pl
import pytest

import planted
import profiled
from stickytoken import open_run
from stickytoken.methods.profile.anchors import ProfileSettings
from stickytoken.methods.profile.verdict import TOKEN_COLUMNS

pytestmark = pytest.mark.slow  # whole runs


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("profile")
    profiled.planted_model(2).save(str(folder / "planted"))
    profiled.planted_model(0).save(str(folder / "ordinary"))
    for name, texts in {
        "sentences.txt": profiled.sentences(200),
        "own.txt": profiled.sentences(300, seed=3),
        "chosen.txt": ["!", "river", "stone"],
    }.items():
        (folder / name).write_text("\n".join(texts) + "\n", encoding="utf-8")
    rows = "\n".join(f'{k},"{text}"' for k, text in enumerate(profiled.sentences(300, seed=3)))
    (folder / "own.csv").write_text(f"number,body\n{rows}\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def options(place):
    return ["--sentences", place / "sentences.txt", "--device", "cpu"]


@pytest.fixture(scope="module")
def run(place, options):
    """The folder of a run over the whole vocabulary, and of its printed results."""
    result = planted.command("detect", place / "planted", *options, "--out", place / "run")
    assert result.exit_code == 0, result.stderr
    (place / "printed.txt").write_text(result.stdout, encoding="utf-8")
    return place / "run"


def test_detect_says_first_whether_there_is_a_problem(place, run, options, tmp_path):
    shown = planted.command("show", run)
    assert shown.stdout == (place / "printed.txt").read_text("utf-8")
    first, second, *_ = shown.stdout.splitlines()
    document = planted.document(planted.command("show", run, "--format", "json"))
    assert " ".join(sorted(document)) == (
        "available candidates empirical_null erasing headline looked_at method model ordinary_contraction "
        "ordinary_lift ordinary_spread run screening_carriers seconds sequences sticky "
        "texts_per_token topical"
    )
    assert document["available"] == document["looked_at"] == profiled.AVAILABLE
    (sticky,) = document["sticky"]
    assert (set(sticky), sticky["token"]) == (set(TOKEN_COLUMNS), planted.PLANTED)
    found = open_run(run)
    moved = found.moved(found.sticky["token_id"].item())
    assert first == (
        f"{place / 'planted'} has 1 sticky token (1 severe): 8 copies of '!' let an average unrelated "
        f"document outrank {moved.ahead:.0%} of the others in a search; without copies it outranks 50%, "
        f"with copies of an ordinary token {moved.ordinary:.0%}."
    )
    lift = (found.sticky["lift"].item() - found.result.ordinary_lift) / found.plan.similarity_spread
    assert f", '!' by {lift:.1f} SD more; " in shown.stdout
    assert second.strip() == f"Sticky tokens of {place / 'planted'}"
    assert re.search(r"34 +! +( +[\d.]+){4} +severe +erases .* sticky", shown.stdout)
    assert f"method profile, all {profiled.AVAILABLE} of {profiled.AVAILABLE} available" in shown.stdout
    assert f"{found.result.texts_per_token:g} texts per token" in shown.stdout
    assert "its tokens too similar, to tell what is ordinary" in shown.stderr
    ordinary = planted.command("detect", place / "ordinary", *options, "--out", tmp_path / "run")
    assert f"{place / 'ordinary'} has no sticky tokens; for scale, 8 copies of " in ordinary.stdout


def test_tokens_that_were_asked_for_are_all_listed(place, options, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = ("detect", place / "planted", *options, "--tokens", place / "chosen.txt", "--tokens", "a")
    result = planted.command(*given)
    assert result.stdout.splitlines()[1].strip() == f"Tokens of {place / 'planted'} that were asked for"
    assert re.search(r"34 +! +.* sticky *$", result.stdout, re.MULTILINE)
    assert re.search(r"\d+ +\w+ +.* benign *$", result.stdout, re.MULTILINE)
    stages = [one.split(":")[0] for one in planted.lines_of(result.stderr) if one[:4] not in ("note", "next")]
    assert stages == ["mean similarity", "pilot", "screen", "confirm", "evidence", "report"]
    (folder,) = Path("runs").iterdir()
    assert re.fullmatch(r"planted-profile-[0-9a-f]{12}", folder.name)
    assert sorted(open_run(folder).tokens["token"]) == ["!", "a", "river", "stone"]


def test_the_options_of_detect_reach_the_run(place, options, tmp_path):
    given = (
        "--method profile --seed 9 --insertion text --set budget=8 --set confidence=0.8 --set fdr=0.1 "
        "--set smallest-effect=0.3 --set adaptive=false --sample 20 --set report=false"
    ).split()
    result = planted.command("detect", place / "planted", *options, *given, "--out", tmp_path / "run")
    assert "planted that were asked for" in result.stdout, result.stderr
    run = open_run(tmp_path / "run")
    wanted = {"seed": 9, "insertion": "text", "budget": 8, "confidence": 0.8, "fdr": 0.1}
    assert run.record.settings.items() >= (wanted | {"smallest_effect": 0.3, "adaptive": False}).items()
    assert (set(run.tokens["texts"]), len(run.tokens)) == ({8}, 20)
    given = ("--set", "adaptive=true", "--sample", 3, "--out", tmp_path / "other")
    defaults = planted.command("detect", place / "planted", *options, *given)
    assert defaults.exit_code == 0, defaults.stderr
    assert open_run(tmp_path / "other").record.settings == json.loads(json.dumps(asdict(ProfileSettings())))


@pytest.mark.parametrize(
    ("command", "saying"),
    [
        ("detect MODEL CORPUS --set fdr=2", "fdr is 2.0: it must lie between 0 and 1"),
        ("detect MODEL CORPUS --set copies=3", "--set copies is not an option of the method profile: leave"),
        ("detect MODEL --set pairs=p.csv --set fdr=0.1", "--set fdr is not an option of the method std"),
        ("show RUN --sort severity", "profile, which cannot be sorted by 'severity': sort by lift, "),
        ("show RUN --validated --sort lift", "profile, which judges every token: leave --validated"),
        ("show RUN --by-dimension", "was made without dimensions and layers: detect with --dimensions"),
        ("show RUN --at-dimension 8", "it has only the model as it is"),
        ("judge RUN CORPUS --dimensions 8", "was made without dimensions"),
    ],
)
def test_what_a_method_or_a_run_does_not_have_is_refused(place, run, tmp_path, monkeypatch, command, saying):
    monkeypatch.chdir(tmp_path)
    given = {"MODEL": place / "planted", "RUN": run, "CORPUS": f"--sentences {place / 'own.txt'}"}
    for name, value in given.items():
        command = command.replace(name, str(value))
    planted.refused(*command.split(), saying=saying)


def test_probe_prints_the_evidence_and_both_curves_and_stores_nothing(
    place, run, options, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    result = planted.command("probe", place / "planted", "!", "river", *options)
    assert re.search(r"34 +! +OK( +[\d.]+){4} +severe +sticky", result.stdout)
    for side in ("below", "above"):
        assert f"Similarity of pairs {side} the mean similarity, by number of copies" in result.stdout
    for name in ("!", "river", r"\(ordinary tokens\)"):
        assert len(re.findall(rf"^{name}( +-?\d\.\d{{4}}){{7}} *$", result.stdout, re.MULTILINE)) == 2
    u = open_run(run).plan.mean_similarity
    assert result.stdout.endswith(f"the model's mean similarity is {u:.4f}.\n")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def deep(place, options):
    """The folder of a run with dimensions; its printed results lie beside it."""
    given = "--dimensions 8,24 --set smallest-effect=1 --set budget=8 --set adaptive=false".split()
    result = planted.command("detect", place / "planted", *options, *given, "--out", place / "deep")
    assert result.exit_code == 0, result.stderr
    (place / "deep.txt").write_text(result.stdout, encoding="utf-8")
    return place / "deep"


def test_every_dimension_has_a_row_and_its_own_tokens(place, deep):
    table = planted.document(planted.command("show", deep, "--by-dimension", "--format", "json"))
    assert [row["dimension"] for row in table["dimensions"]] == [32, 8, 24]
    assert table["dimensions"][0]["sticky"] == 1
    printed = planted.command("show", deep, "--by-dimension").stdout
    assert printed in (place / "deep.txt").read_text("utf-8")
    assert re.findall(r"^ *(32|8|24) ", printed, re.MULTILINE) == ["32", "8", "24"]
    at = ("show", deep, "--at-dimension", 8, "--format", "json")
    listed = planted.document(planted.command(*at, "--limit", 5))["tokens"]
    own = pl.read_parquet(deep / "dimensions.parquet").filter(dimension=8).sort("lift", descending=True)
    assert [row["lift"] for row in listed] == own["lift"].head(5).to_list()
    one = planted.document(planted.command(*at, "--token", planted.PLANTED))
    assert [row["token"] for row in one["tokens"]] == [planted.PLANTED]
    planted.refused("show", deep, "--at-layer", 1, saying="has no layer 1")


def test_a_judgement_says_the_finding_first_then_the_tokens_and_what_they_rest_on(place, deep):
    given = ("judge", deep, "--dimensions", "24", "--sentences")
    result = planted.command(*given, place / "own.txt")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("1 token is sticky on these texts\n")
    for said in ("1 of 1 flagged tokens", "moves up: ", "300 texts from", "tokens were measured on"):
        assert said in result.stdout
    assert "by dimension" in result.stdout
    given = (*given, place / "own.csv", "--column", "body", "--format")
    rows = list(csv.DictReader(io.StringIO(planted.command(*given, "csv").stdout)))
    assert len(rows) == profiled.AVAILABLE
    document = planted.document(planted.command(*given, "json"))
    assert [row["token"] for row in document["flagged"]] == [planted.PLANTED]
    (row,) = document["dimensions"]
    assert row["dimension"] == 24
    assert row["sticky"] == sum(each["verdict"] == "sticky" for each in row["flagged"])
