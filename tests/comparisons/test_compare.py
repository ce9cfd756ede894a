"""Runs side by side: the numbers, what can be compared, and every wrong way to ask."""

import csv
import functools
import io
import json
import shutil
from pathlib import Path

import polars as pl
import pytest
from markupsafe import escape
from scipy.stats import ttest_ind

import planted
import profiled
import repaired
import stickytoken
from hostile import HOSTILE, assert_harmless
from naming import naming, says
from report_pages import Page
from stickytoken import compare, comparisons, load_encoder, open_run
from stickytoken.comparisons import Answer, ComparedNumber, published
from stickytoken.comparisons.published import (
    beside_run,
    mention_of_paper,
    published_model,
    published_models,
    published_tokens,
    with_runs,
)
from stickytoken.errors import InputError
from stickytoken.measurement import ResultFolder
from stickytoken.methods.measures import ERASED, PUSH
from stickytoken.repairs.records import REPAIR_FILE
from stickytoken.reports._comparison import finding
from stickytoken.validation import markdown

YES, CARE, NO = Answer


@pytest.fixture(scope="module")
def detected(tmp_path_factory):
    encoder = load_encoder(profiled.planted_model(0))
    return lambda name, **options: profiled.detect_in_documents(
        encoder, tmp_path_factory.mktemp("run") / name, **options
    )


@pytest.fixture(scope="module")
def run(planted_profile):
    return open_run(planted_profile[1])


@pytest.fixture(scope="module")
def clean(detected):
    return detected("clean")


@pytest.fixture(scope="module")
def sample(detected):
    return detected("sample", sample=40)


@pytest.fixture
def changed(clean, tmp_path):
    def change(name="changed", **parts):
        folder = Path(shutil.copytree(clean.path, tmp_path / name))
        record = json.loads((folder / "run.json").read_text("utf-8"))
        for path, value in parts.items():
            *above, last = path.split("__")
            functools.reduce(dict.__getitem__, above, record)[last] = value
        planted.edit_record(folder, **record)
        return folder

    return change


def reasons(found):
    return " | ".join(reason.sentence for reason in found.comparability.reasons)


def test_the_worst_token_has_its_interval(run, clean):
    measure, worst = "erased", "erases_most"
    first, second = compare([run, clean.path]).table.to_dicts()
    row = run.sticky.row(0, named=True)
    assert first[f"{worst}_token"] == "!"
    assert first[f"{worst}_verdict"] == "sticky"
    assert first[f"{worst}_severity"] == row["severity"]
    for end in ("", "_low", "_high"):
        assert first[f"{measure}{end}"] == row[f"{measure}{end}"]
    assert second[measure] == clean.tokens.filter("confirmed")[measure].max()
    assert second[f"{worst}_severity"] is None


def test_an_interval_just_below_a_threshold_does_not_seem_to_reach_it():
    worst = comparisons.WorstToken(5, "!", "benign", None, 0.45, 0.396, 0.504)
    assert comparisons.shown_value(ERASED, worst) == "45% (39% to 51%)"
    worst = comparisons.WorstToken(5, "!", "benign", None, 1.7, 1.46, 1.94)
    assert comparisons.shown_value(PUSH, worst) == "1.7× (1.4 to 2.0×)"


def test_the_numbers_are_those_of_the_runs(run, clean):
    comparison = compare([run, clean.path])
    first, second = comparison.table.to_dicts()
    assert [first["folder"], second["folder"]] == [str(run.path), str(clean.path)]
    assert (first["sticky"], first["examined"], first["available"]) == (1, *[profiled.AVAILABLE] * 2)
    assert first["sticky_per_10000"] == pytest.approx(1e4 / profiled.AVAILABLE)
    assert first["sticky_per_10000_low"] < first["sticky_per_10000"] < first["sticky_per_10000_high"]
    assert first["selection"] == "all available tokens"
    assert (first["repair"], first["confidence"]) == ("no", 0.9)
    assert (second["sticky"], second["sticky_per_10000_low"]) == (0, 0.0)
    assert comparison.comparability.answers == dict.fromkeys(ComparedNumber, YES)


def test_runs_agree_with_themselves(run, tmp_path):
    comparison = compare([run, shutil.copytree(run.path, tmp_path / "again")])
    (agreement,) = comparison.agreements
    assert agreement.jaccard == 1.0
    assert (agreement.spearman_erased, agreement.spearman_push) == (pytest.approx(1.0), pytest.approx(1.0))
    assert agreement.shared == profiled.AVAILABLE
    assert [token.token for token in comparison.tokens] == ["!"]
    assert comparison.names == ("model (run)", "model (again)")
    assert set(comparison.comparability.answers.values()) == {YES}
    assert comparison.comparability.reasons == ()


@pytest.mark.parametrize(
    ("first", "second", "names"),
    [
        ("/some/place/model", "/third/place", ("model", "place")),
        ("/some/place/model", "/other/place/model", ("/some/place/model", "/other/place/model")),
        ("/model", "http://127.0.0.1:1/v1#small", ("model", "small")),
        ("/model", "/model", ("1: model (x)", "2: model (x)")),
    ],
)
def test_names_tell_the_runs_apart(changed, tmp_path, first, second, names):
    (tmp_path / "other").mkdir()
    loading = {"endpoint": {}} if "#" in second else None
    runs = [changed("x", model__name=first), changed("other/x", model__name=second, model__loading=loading)]
    assert compare(runs).names == names


def test_a_sample_widens_one_number_and_weakens_the_others(clean, sample):
    comparison = compare([clean, sample])
    assert set(comparison.comparability.answers.values()) == {CARE}
    assert says(reasons(comparison), "sample", 45, 335)
    whole_row, sample_row = comparison.table.to_dicts()
    assert sample_row["selection"] == "a random sample"
    assert comparison.agreements[0].jaccard is None  # neither has a sticky token
    assert sample_row["sticky_per_10000_high"] > whole_row["sticky_per_10000_high"]


def test_chosen_tokens_stand_for_nothing_else(clean, detected):
    comparison = compare([clean, detected("chosen", tokens=list(profiled.WORDS[:30]))])
    assert set(comparison.comparability.answers.values()) == {NO}
    assert comparison.table["sticky_per_10000"].to_list()[1] is None
    assert comparison.table["selection"][1] == "chosen tokens"


def test_methods_are_not_compared(clean, planted_run):
    comparison = compare([clean, planted_run])
    assert set(comparison.comparability.answers.values()) == {NO}
    assert says(reasons(comparison), "methods", "profile")
    row = comparison.table.row(1, named=True)
    assert (row["erased"], row["push"], row["pushes_most_token"]) == (None, None, None)
    assert "not drawn, because the method does not measure it" in Page(stickytoken.report(comparison)).text


@pytest.mark.parametrize(
    ("parts", "answer", "named"),
    [
        ({"corpus__source": "elsewhere"}, NO, ["texts", "test", "elsewhere"]),
        ({"identity_parts__corpus": "another"}, NO, ["sentences", "test"]),
        ({"settings__smallest_push": 1.2}, NO, ["smallest push", 5.0, 1.2]),
        ({"settings__budget": 9.0}, CARE, ["budget", 3.4, 9.0]),
        ({"settings__seed": 1}, CARE, ["seed", 42, 1]),
        ({"identity_parts__version": 3}, CARE, ["versions", 3]),
        ({"identity_parts__encoder__prompt": "query: "}, CARE, ["prompts", "none"]),
        ({"identity_parts__encoder__dtype": "bfloat16"}, CARE, ["precisions", "float32", "bfloat16"]),
        ({"identity_parts__encoder": "damaged"}, CARE, ["precisions", "float32"]),
        ({"identity_parts__encoder__modules": "x"}, CARE, ["pooling"]),
        ({"model__loading": {"endpoint": {}}}, CARE, ["endpoint"]),
    ],
)
def test_what_differs_is_said(clean, changed, parts, answer, named):
    comparison = compare([clean, changed(**parts)])
    assert says(reasons(comparison), *named)
    assert comparison.comparability.answers[ComparedNumber.ERASED] is answer
    old = sum("earlier version" in note for note in comparison.notes)
    assert old == ("identity_parts__version" in parts)


def test_a_vocabulary_limits_the_share_alone(clean, changed):
    folder = changed(identity_parts__encoder__weights="x", identity_parts__encoder__tokenizer="y")
    comparison = compare([clean, folder])
    assert comparison.comparability.answers == {
        ComparedNumber.ERASED: YES,
        ComparedNumber.PUSH: YES,
        ComparedNumber.SHARE: CARE,
    }
    assert says(reasons(comparison), "335 to 335")


def test_other_carriers_of_the_same_texts_are_noticed(clean, changed):
    folder = changed()
    plan = json.loads((folder / "plan.json").read_text("utf-8"))
    kept = len(plan["carriers"]) // 2 - 1
    plan["carriers"][kept:] = [f"another {carrier}" for carrier in plan["carriers"][kept:]]
    (folder / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
    comparison = compare([clean, folder])
    assert comparison.comparability.answers[ComparedNumber.ERASED] is CARE
    shared = f"{kept / len(plan['carriers']):.0%}"
    assert says(reasons(comparison), "texts", "model (clean)", "model (changed)", shared)


@pytest.mark.parametrize(
    ("folder", "passed", "state"),
    [
        ("run/repair-2", True, "verified"),
        ("run/repair-2", False, "NOT VERIFIED"),
        ("run/repair-2", None, "not verified"),
        ("model", True, "is itself repaired"),
    ],
)
def test_the_latest_repair_is_told(clean, changed, tmp_path, folder, passed, state):
    run = changed("run", model__name=str(tmp_path / "model"))
    for path, passes, month in (("run/repair-1", True, 1), (folder, passed, 2)):
        record = repaired.repair_record("!", passed=passes)
        changes = {"identity": path, "identity_parts": {"encoder": {"weights": "before"}}}
        changes |= {"run": clean.record.identity, "started": f"2026-0{month}-01T00:00:00+00:00"}
        (tmp_path / path).mkdir()
        ResultFolder(tmp_path / path).write_record(REPAIR_FILE, record.model_copy(update=changes))
    assert compare([clean, run]).table["repair"].to_list() == ["no", state]


def test_the_command_prints_and_writes(run, clean, tmp_path):
    page = tmp_path / "page.html"
    result = planted.command("compare", run.path, clean.path, "--out", page)
    assert result.exit_code == 0, result.stderr
    assert f"page: {page}" in result.stderr.replace("\n", "")
    assert page.read_text("utf-8") == stickytoken.report(compare([run, clean]))
    for text in ("largest erased share: comparable", "Clopper and Pearson 1934", "'!' (serious)"):
        assert text in result.stdout
    document = planted.document(planted.command("compare", run.path, clean.path, "--format", "json"))
    assert document == json.loads(json.dumps(compare([run, clean]).summary()))
    printed = planted.command("compare", run.path, clean.path, "--format", "csv").stdout
    assert pl.read_csv(io.StringIO(printed))["folder"].to_list() == [str(run.path), str(clean.path)]


def test_hostile_names_and_tokens_stay_text(clean, changed):
    name = "=1+1</script><script>alert(1)</script>\x1b[31mred\u202e\n"
    folder = changed(model__name=name)
    table = pl.read_parquet(folder / "tokens.parquet").sort("erased", descending=True)
    texts = [name, *HOSTILE, "@SUM(A1)"]
    named = table.head(len(texts)).with_columns(
        token=pl.Series(texts), verdict=pl.lit("sticky"), severity=pl.lit("severe")
    )
    named.write_parquet(folder / "tokens.parquet")
    for format_ in ("table", "json", "csv"):
        result = planted.command("compare", clean.path, folder, "--format", format_)
        assert result.exit_code == 0, result.stderr
        assert_harmless(result.stdout)
    cells = [cell for row in csv.reader(io.StringIO(result.stdout)) for cell in row]
    assert not [cell for cell in cells if cell.startswith(("=", "+", "@"))]
    comparison = compare([clean, folder])
    html = stickytoken.report(comparison)
    assert_harmless(html.replace("\u2068", "").replace("\u2069", ""))
    assert Page(html).tags.count("script") == 3
    assert_harmless(stickytoken.report(comparison, format="md"))


def test_what_cannot_be_compared_is_refused(run, changed, tmp_path):
    unfinished = changed(result=None)
    for paths, phrase in (
        ([], naming(1, "stickytoken report")),
        ([run.path / ".." / run.path.name], naming(run.path.name)),
        ([tmp_path], naming(tmp_path)),
        ([unfinished], naming(unfinished)),
    ):
        planted.assert_refused("compare", run.path, *paths, saying=phrase)
    with pytest.raises(InputError, match=naming("runs")):
        compare(str(run.path))


def test_a_comparison_begins_with_which_runs_found_sticky_tokens(run, clean, sample):
    comparison = compare([run, clean, sample])
    first, second, third = comparison.names
    named = f"{first} found sticky tokens; {second} and {third} found none."
    assert finding(comparison).startswith(named)
    html = stickytoken.report(comparison)
    assert html.index(str(escape(finding(comparison)))) < html.index('<main id="main"')
    assert set(Page(html).data["figures"]) == {"worst-by-run", "sticky-tokens-by-run"}
    assert markdown(finding(comparison)) in stickytoken.report(comparison, format="md")
    assert json.loads(stickytoken.report(comparison, format="json")) == json.loads(
        json.dumps(comparison.summary())
    )
    assert says(finding(compare([clean, sample])), "No run")


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
    validated = first.filter(pl.col("verdict").is_not_null())
    assert 0 < len(validated) < 30
    assert beside.unexamined == 30 - len(validated)
    assert beside.sticky == (validated["verdict"] == "sticky").sum()
    assert beside.others == len(small_run.sticky) - beside.sticky
    assert beside.tokens["run_score"].head(30).equals(first["sticky_score"], check_names=False)
    assert beside.tokens["run_rate"].head(30).equals(first["validation_rate"], check_names=False)
    assert says(beside.in_words()[0], len(validated))


def test_a_published_token_of_another_vocabulary_is_not_examined(small_run, monkeypatch):
    first = small_run.tokens.head(30)
    tokens = list(first.select("token_id", "token").iter_rows())
    publish(monkeypatch, [*tokens, (tokens[0][0], "another token")])
    beside = beside_run(small_run, "all-MiniLM-L6-v2")
    validated = first["verdict"].drop_nulls()
    assert (beside.unknown, beside.unexamined) == (1, 30 - len(validated))
    assert beside.tokens["run_score"][30] is None
    assert says(beside.in_words()[0], len(validated))


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


def test_a_run_of_a_model_of_the_paper_mentions_its_list(run, small_run, clean, monkeypatch, tmp_path):
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
