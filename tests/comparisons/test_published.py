"""The published results: whole, found by name, and beside a run."""

import csv
import io

import numpy as np
import polars as pl
import pytest
from scipy.stats import kstest, rankdata

import planted
import profiled
from stickytoken import load_encoder, open_run
from stickytoken.comparisons import published
from stickytoken.comparisons.published import beside_run, published_model, published_models, published_tokens
from stickytoken.errors import InputError


@pytest.fixture(scope="module")
def run(planted_profile):
    return open_run(planted_profile[1])


def publish(monkeypatch, tokens):
    """Let the tables say that all-MiniLM-L6-v2 has these tokens."""
    whole = published._table

    def table(name):
        if name == "published_models.csv":
            return whole(name)
        rows = [("all-MiniLM-L6-v2", k, token, "OK", 50.0, 0.9) for k, token in tokens]
        return pl.DataFrame(rows, schema=whole(name).schema, orient="row")

    monkeypatch.setattr(published, "_table", table)


def test_the_tables_are_whole():
    models = published_models()
    assert len(models) == models["model"].n_unique() == 40
    assert models.null_count().sum_horizontal().item() == 0
    counts = [len(published_tokens(name)) for name in models["model"]]
    assert counts == models["sticky"].to_list()
    assert sum(counts) == 868


def test_they_say_what_the_paper_says(shared):
    models = pl.read_csv(shared / "paper" / "models.csv")
    ours = published_models()
    assert ours["model"].to_list() == models["model_name"].to_list()
    for own, theirs in (("vocabulary", "vocab_size"), ("available", "available_tokens"),
                        ("candidates", "candidates"), ("sticky", "sticky_tokens"),
                        ("mean_similarity", "vocabulary_mean_cosine")):  # fmt: skip
        assert ours[own].to_list() == pytest.approx(models[theirs].to_list(), 1e-5)
    with (shared / "paper" / "sticky_tokens.csv").open(encoding="utf-8", newline="") as stream:
        rows = {(row["model"], int(row["token_id"])): row for row in csv.DictReader(stream)}
    assert len(rows) == 868
    for name in ours["model"]:
        for row in published_tokens(name).iter_rows(named=True):
            theirs = rows[name, row["token_id"]]
            assert row["token"] == theirs["token"]
            numbers = {each: float(theirs[each]) for each in ("sticky_score", "validation_rate")}
            assert {each: row[each] for each in numbers} == pytest.approx(numbers, 1e-4, abs=1e-4)


def test_a_model_is_found_by_its_names():
    for name in (" ALL-minilm-l6-V2 ", "sentence-transformers/all-MiniLM-L6-v2"):
        assert published_model(name)["sticky"] == 21


@pytest.mark.parametrize(
    ("name", "hint"), [("org/e5-smal", "the closest are e5-small"), ("", "`stickytoken published` lists all")]
)
def test_an_unknown_model_is_refused_with_the_closest(name, hint):
    with pytest.raises(InputError, match=hint):
        published_model(name)


def test_the_tokens_stand_beside_the_run(run, monkeypatch):
    rows = run.tokens.head(9)
    chosen = [*rows.select("token_id", "token").iter_rows(), run.sticky.select("token_id", "token").row(0)]
    chosen = list(dict.fromkeys(chosen))
    publish(monkeypatch, [*chosen, (chosen[0][0], "another token")])
    found = beside_run(run, "all-minilm-l6-v2")
    assert (found.unknown, found.unexamined, found.sticky) == (1, 0, 1)
    lifts = run.tokens["lift"].to_numpy()
    ranks = dict(zip(run.tokens["token_id"], rankdata(lifts) / len(lifts), strict=True))
    expected = [ranks[k] for k, _ in chosen]
    assert found.tokens["percentile"].to_list() == pytest.approx([*expected, None], abs=1e-12)
    assert found.chance == pytest.approx(kstest(np.array(expected), "uniform").pvalue)
    scale = run.method.scale(run)
    row = run.token(chosen[0][0]).row(0, named=True)
    for end in ("", "_low", "_high"):
        assert found.tokens[f"sd{end}"][0] == pytest.approx(
            (row[f"lift{end}"] - scale.ordinary) / scale.spread
        )
    assert found.tokens.row(-1, named=True)["verdict"] is None


def test_tokens_that_a_sample_left_out_are_counted(run, monkeypatch, tmp_path):
    chosen = list(run.tokens.select("token_id", "token").iter_rows())
    publish(monkeypatch, chosen)
    part = profiled.detect_profile(load_encoder(profiled.planted_model(2)), tmp_path / "part", sample=20)
    found = beside_run(part, "all-MiniLM-L6-v2")
    assert (found.unknown, found.unexamined, found.chance) == (0, len(chosen) - 20, None)
    assert any("were not examined" in line for line in found.in_words())


def test_a_run_of_another_method_has_verdicts_only(planted_run, monkeypatch):
    run = open_run(planted_run)
    publish(monkeypatch, list(run.tokens.select("token_id", "token").head(30).iter_rows()))
    found = beside_run(run, "all-MiniLM-L6-v2")
    assert found.tokens.select("sd", "percentile").null_count().row(0) == (30, 30)
    assert found.in_words()[0].endswith("of the 30 published tokens that it examined sticky")


def test_a_run_of_another_vocabulary_is_refused(run):
    with pytest.raises(InputError, match="of the 21 published tokens of all-MiniLM-L6-v2, 0 are in"):
        beside_run(run, "all-MiniLM-L6-v2")
    planted.refused("published", "--run", run.path, saying="name it before --run")
    planted.refused("published", "gte-base", "--run", run.path.parent, saying="is not a run folder")


def test_the_command_lists_and_looks_up():
    document = planted.document(planted.command("published", "--format", "json"))
    assert [row["model"] for row in document["models"]] == published_models()["model"].to_list()
    assert "ACL 2025" in document["source"]
    table = planted.command("published", "gte-base").stdout
    assert "18 published sticky tokens of gte-base" in table
    assert "counts cannot be compared" in " ".join(table.split())
    printed = planted.command("published", "gte-base", "--format", "csv").stdout
    assert pl.read_csv(io.StringIO(printed))["token_id"].equals(published_tokens("gte-base")["token_id"])
    planted.refused("published", "gte-bas", saying="the closest are gte-base")
