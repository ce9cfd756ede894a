"""The published results of forty models: the tables, a run beside them, and every wrong way to ask."""

import csv
import io
import shutil

import polars as pl
import pytest
from scipy.stats import ttest_ind

import planted
import profiled
from naming import naming, says
from stickytoken import load_encoder, open_run, published
from stickytoken.errors import InputError
from stickytoken.published import (
    beside_run,
    mention_of_paper,
    published_model,
    published_models,
    published_tokens,
    with_runs,
)


@pytest.fixture(scope="module")
def run(planted_profile):
    return open_run(planted_profile[1])


def publish(monkeypatch, tokens):
    full_table = published._read_table

    def table(name):
        if name == "published_models.csv":
            return full_table(name)
        rows = [("all-MiniLM-L6-v2", k, token, "OK", 50.0, 0.9, 0.9, 0.8) for k, token in tokens]
        return pl.DataFrame(rows, schema=full_table(name).schema, orient="row")

    monkeypatch.setattr(published, "_read_table", table)


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
    for our_column, theirs in (("vocabulary", "vocab_size"), ("available", "available_tokens"),
                        ("candidates", "candidates"), ("sticky", "sticky_tokens"),
                        ("mean_similarity", "vocabulary_mean_cosine")):  # fmt: skip
        assert ours[our_column].to_list() == pytest.approx(models[theirs].to_list(), 1e-5)
    with (shared / "paper" / "sticky_tokens.csv").open(encoding="utf-8", newline="") as stream:
        rows = {(row["model"], int(row["token_id"])): row for row in csv.DictReader(stream)}
    assert len(rows) == 868
    for name in ours["model"]:
        for row in published_tokens(name).iter_rows(named=True):
            theirs = rows[name, row["token_id"]]
            assert row["token"] == theirs["token"]
            assert row["sticky_score"] == pytest.approx(float(theirs["sticky_score"]), 1e-4)


def test_each_published_rate_has_the_name_of_its_distance(shared):
    with (shared / "paper" / "sticky_tokens_rates.csv").open(encoding="utf-8", newline="") as stream:
        rows = {(row["model"], int(row["token_id"])): row for row in csv.DictReader(stream)}
    assert len(rows) == 868
    columns = {
        "validation_rate": "rate_cosine",
        "validation_rate_euclidean": "rate_euclidean",
        "validation_rate_manhattan": "rate_manhattan",
    }
    for name in published_models()["model"]:
        for row in published_tokens(name).iter_rows(named=True):
            theirs = rows[name, row["token_id"]]
            rates = {column: float(theirs[their_column]) for column, their_column in columns.items()}
            assert {column: row[column] for column in columns} == pytest.approx(rates, abs=1e-6)


def test_the_rate_of_cls_is_its_cosine_rate():
    cls = published_tokens("all-MiniLM-L6-v2").row(by_predicate=pl.col("token") == "[CLS]", named=True)
    rates = (cls["validation_rate"], cls["validation_rate_euclidean"], cls["validation_rate_manhattan"])
    assert rates == (0.876, 0.876, 0.973091)
    assert "0.973" not in planted.command("published", "all-MiniLM-L6-v2").stdout


def test_a_model_is_found_by_its_names():
    for name in (" ALL-minilm-l6-V2 ", "sentence-transformers/all-MiniLM-L6-v2"):
        assert published_model(name)["sticky"] == 21


@pytest.mark.parametrize(
    ("name", "hint"),
    [("org/e5-smal", naming("org/e5-smal", "e5-small")), ("", naming("stickytoken published"))],
)
def test_an_unknown_model_is_refused_with_the_closest(name, hint):
    with pytest.raises(InputError, match=hint):
        published_model(name)


def test_the_tokens_stand_beside_the_run(run, monkeypatch):
    rows = run.tokens.head(9)
    chosen = [*rows.select("token_id", "token").iter_rows(), run.sticky.select("token_id", "token").row(0)]
    chosen = list(dict.fromkeys(chosen))
    publish(monkeypatch, [*chosen, (chosen[0][0], "another token")])
    beside = beside_run(run, "all-minilm-l6-v2")
    assert (beside.unknown, beside.unexamined, beside.sticky) == (1, 0, 1)
    is_chosen = pl.col("token_id").is_in([token_id for token_id, _ in chosen])
    theirs = run.tokens.filter(is_chosen)["erased"].to_numpy()
    others = run.tokens.filter(~is_chosen)["erased"].to_numpy()
    expected = ttest_ind(theirs, others, equal_var=False).confidence_interval()
    assert (beside.erased.published, beside.erased.others) == pytest.approx((theirs.mean(), others.mean()))
    assert (beside.erased.low, beside.erased.high) == pytest.approx((expected.low, expected.high))
    assert beside.erased.above == (run.tokens.filter(is_chosen)["erased_low"] > 0).sum()
    row = run.token(chosen[0][0]).row(0, named=True)
    for end in ("", "_low", "_high"):
        assert beside.tokens[f"erased{end}"][0] == row[f"erased{end}"]
    assert beside.tokens.row(-1, named=True)["verdict"] is None


def test_tokens_that_a_sample_left_out_are_counted(run, monkeypatch, tmp_path):
    chosen = list(run.tokens.select("token_id", "token").iter_rows())
    publish(monkeypatch, chosen)
    sampled_run = profiled.detect_profile(
        load_encoder(profiled.planted_model(2)), tmp_path / "part", sample=20
    )
    beside = beside_run(sampled_run, "all-MiniLM-L6-v2")
    assert (beside.unknown, beside.unexamined, beside.erased) == (0, len(chosen) - 25, None)
    assert any("not examined" in line for line in beside.in_words())


def test_a_run_of_the_paper_s_method_is_compared_by_scores_and_rates(small_run, monkeypatch):
    tokens = small_run.tokens.select("token_id", "token", "sticky_score", "validation_rate", "verdict")
    publish(monkeypatch, list(tokens.select("token_id", "token").head(30).iter_rows()))
    beside = beside_run(small_run, "all-MiniLM-L6-v2")
    first = tokens.head(30)
    rejected = first["verdict"].null_count()  # scored, but no candidates
    assert 0 < rejected < 30
    assert (beside.unexamined, beside.rejected) == (0, rejected)
    assert beside.sticky == (first["verdict"] == "sticky").sum()
    assert beside.others == len(small_run.sticky) - beside.sticky
    assert beside.tokens["run_score"].head(30).equals(first["sticky_score"], check_names=False)
    assert beside.tokens["run_rate"].head(30).equals(first["validation_rate"], check_names=False)
    assert says(beside.in_words()[0], 30)
    assert says(beside.in_words()[1], rejected, "threshold")


def test_a_published_token_of_another_vocabulary_is_not_examined(small_run, monkeypatch):
    first = small_run.tokens.head(30)
    tokens = list(first.select("token_id", "token").iter_rows())
    publish(monkeypatch, [*tokens, (tokens[0][0], "another token")])
    beside = beside_run(small_run, "all-MiniLM-L6-v2")
    assert (beside.unknown, beside.unexamined) == (1, 0)
    assert beside.tokens["run_score"][30] is None
    assert says(beside.in_words()[0], 30)


def test_own_runs_are_appended_to_the_published_table(small_run, run, finished_run):
    table = with_runs([small_run])
    assert table.head(40).select(published_models().columns).equals(published_models())
    assert set(table["differs"].head(40)) == {None}
    row = table.row(-1, named=True)
    assert (row["available"], row["candidates"]) == (95, small_run.result.candidates)
    assert row["score_threshold"] == small_run.result.score_threshold
    assert (row["validation_pairs"], row["seed"]) == (planted.SMALL.validation_pairs, planted.SMALL.seed)
    differing = f"validation_pairs {planted.SMALL.validation_pairs} instead of 250"
    assert differing in row["differs"]
    assert row["differs"].endswith(f"{row['corpus']} instead of STS")
    printed = planted.command("published", "--add", small_run.path, "--format", "csv").stdout
    assert len(pl.read_csv(io.StringIO(printed))) == 41
    with pytest.raises(InputError, match=naming(run.path, run.record.method)):
        with_runs([run])
    with pytest.raises(InputError, match=naming(30, 95)):
        with_runs([finished_run])
    planted.assert_refused("published", "gte-base", "--add", small_run.path, saying=naming("--run", "--add"))


def test_a_run_of_a_model_of_the_paper_mentions_its_list(run, small_run, monkeypatch, tmp_path):
    name = "all-MiniLM-L6-v2"
    chosen = list(run.tokens.select("token_id", "token").head(3).iter_rows())
    publish(monkeypatch, chosen)
    assert mention_of_paper(run) is None  # a folder of another name
    path = shutil.copytree(run.path, tmp_path / "run")
    planted.edit_record(path, model=run.record.model.model_dump(mode="json") | {"name": f"/models/{name}"})
    run = open_run(path)
    mention = mention_of_paper(run)
    assert mention is not None
    assert says(mention, "Chen et al. (2025)", 3, "another definition", f"stickytoken published {name}")
    assert mention in " ".join(planted.command("show", run.path).stdout.split())
    assert mention_of_paper(small_run) is None  # its method is the paper's
    publish(monkeypatch, [*chosen, (chosen[0][0], "another token")])
    assert mention_of_paper(run) is None  # another vocabulary


def test_a_run_of_another_vocabulary_is_refused(run):
    with pytest.raises(InputError, match=naming(0, 21, "all-MiniLM-L6-v2")):
        beside_run(run, "all-MiniLM-L6-v2")
    planted.assert_refused("published", "--run", run.path, saying=naming("name", "--run"))
    planted.assert_refused("published", "gte-base", "--run", run.path.parent, saying=naming(run.path.parent))


def test_the_command_lists_and_looks_up():
    document = planted.document(planted.command("published", "--format", "json"))
    assert [row["model"] for row in document["models"]] == published_models()["model"].to_list()
    assert "ACL 2025" in document["source"]
    table = planted.command("published", "gte-base").stdout
    assert says(table, 18, "gte-base")
    assert "counts cannot be compared" in " ".join(table.split())
    printed = planted.command("published", "gte-base", "--format", "csv").stdout
    assert pl.read_csv(io.StringIO(printed))["token_id"].equals(published_tokens("gte-base")["token_id"])
    planted.assert_refused("published", "gte-bas", saying=naming("gte-bas", "gte-base"))
