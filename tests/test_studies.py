"""Studies: both lists, harm against a slow plain search, stability, files, resuming and the command."""

import csv
import json
import re
import shutil

import polars as pl
import pytest
from scipy.stats import spearmanr, ttest_ind

import impact_files
import profiled
from engines import InterruptionError
from naming import naming
from planted import command
from stickytoken import load_encoder, study
from stickytoken.errors import InputError, RunError
from stickytoken.measurement import ResultFolder
from stickytoken.studies import _format_latex, _harm_in_documents, _make_rereadable

pytestmark = pytest.mark.slow
SENTENCES = profiled.sentences(1100)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    profiled.planted_model(strength=3).save(str(folder))
    return load_encoder(folder, device="cpu")


@pytest.fixture(scope="module")
def finished(encoder, browser, tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    task = impact_files.mixed_tasks(folder)[0]
    return study(encoder, tasks=[task], sentences=SENTENCES, sets=1, out=folder / "study")


def test_both_methods_measure_the_same_tokens(finished):
    std_ids = set(finished.std.tokens["token_id"])
    assert std_ids == set(finished.profile.tokens["token_id"])
    assert len(std_ids) == finished.std.available
    assert finished.std.tokens["sticky_score"].null_count() == 0


def test_harm_in_documents_is_compared_with_that_of_random_tokens(finished):
    audited = finished.audit.tokens
    ids = audited.filter(group="random")["token_id"].to_list()[::4]
    of_list = audited.filter(pl.col("token_id").is_in(ids))
    others = audited.filter(pl.col("group") == "random", ~pl.col("token_id").is_in(ids))
    is_listed = pl.col("token_id").is_in(ids)
    labels = pl.when(is_listed).then(pl.lit("some")).otherwise(pl.col("lists"))
    rows = list(_harm_in_documents(finished.tokens.with_columns(lists=labels), {"some": ids}))
    for row, column in zip(rows, ("found", "push"), strict=True):
        test = ttest_ind(of_list[column], others[column], equal_var=False)
        assert (row["tokens"], row["value"]) == (len(ids), pytest.approx(of_list[column].mean()))
        assert row["random"] == pytest.approx(others[column].mean())
        assert (row["low"], row["high"]) == pytest.approx(tuple(test.confidence_interval(0.95)))
    hidden, pushed = rows
    assert hidden["predicts"] == (hidden["high"] < 0)
    assert pushed["predicts"] == (pushed["low"] > 0)


def test_two_tokens_have_no_interval(finished):
    row = finished.harm.filter(list="profile").row(0, named=True)
    assert row["tokens"] == finished.profile.sticky.height == 2
    assert (row["low"], row["high"], row["predicts"]) == (None, None, None)


def test_harm_on_a_task_is_that_of_the_impact(finished):
    (effect,) = finished.impacts["profile"].effects.filter("main").to_dicts()
    (row,) = finished.harm.filter(
        pl.col("list") == "profile", pl.col("harm").str.contains("spearman")
    ).to_dicts()
    assert row["difference"] == pytest.approx(-effect["difference"])
    assert (row["low"], row["high"]) == pytest.approx((-effect["difference_high"], -effect["difference_low"]))
    assert row["predicts"] == (effect["difference_low"] > 0)


def test_stability_compares_scores_and_sticky_tokens(finished):
    (row,) = finished.stability.to_dicts()
    other = pl.read_parquet(finished.path / "set-1" / "tokens.parquet").sort("token_id")
    std = finished.std.tokens.sort("token_id")
    assert row["shared"] == std.height == other.height
    assert row["spearman_score"] == pytest.approx(
        spearmanr(std["sticky_score"], other["sticky_score"]).statistic
    )
    assert row["spearman_score"] < 1
    sticky = [set(table.filter(verdict="sticky")["token_id"]) for table in (std, other)]
    assert row["sticky_in_both"] == len(sticky[0] & sticky[1])
    assert row["jaccard"] == pytest.approx(len(sticky[0] & sticky[1]) / len(sticky[0] | sticky[1]))


def test_given_pairs_are_halved_and_a_sample_is_scored_in_part(encoder, finished, tmp_path):
    pairs = {(pair.sentence1, pair.sentence2, pair.similarity) for pair in finished.std.plan.validation}
    sampled = study(encoder, pairs=sorted(pairs), sample=70, sets=1, out=tmp_path / "study")
    plan = json.loads((sampled.path / "set-1" / "plan.json").read_text("utf-8"))
    used = {(pair["sentence1"], pair["sentence2"]) for pair in plan["scoring"]}
    assert used < {pair[:2] for pair in pairs}
    other = pl.read_parquet(sampled.path / "set-1" / "tokens.parquet")
    assert set(other["token_id"]) < set(sampled.std.tokens["token_id"])
    (row,) = sampled.stability.to_dicts()
    assert row["shared"] == other.height == 64
    assert "jaccard" not in row


def test_tables_and_figures_are_files(finished):
    for name in ("harm", "tokens", "stability"):
        table = getattr(finished, name)
        with (finished.path / f"{name}.csv").open(encoding="utf-8", newline="") as file:
            rows = list(csv.reader(file))
        assert rows[0] == table.columns
        assert len(rows) == 1 + table.height
        latex = (finished.path / f"{name}.tex").read_text("utf-8")
        assert latex.count(r"\\") == 1 + table.height
    figures = {path.name for path in (finished.path / "figures").glob("*.pdf")}
    assert {"pair-similarities.pdf", "mean-shift.pdf", "flagged-categories.pdf"} <= figures
    page = (finished.path / "study.md").read_text("utf-8")
    assert all(f"| {row[0]} | " in page for row in finished.harm.iter_rows())


def test_hostile_tokens_stay_text_in_latex():
    table = pl.DataFrame({"a_b": ["\\input{x}", "50% & $1 #_^~", "[x]"], "n": [1.0, None, 2.5]})
    assert _format_latex(table).splitlines()[2:] == [
        r"a\_b & n \\",
        r"\midrule",
        r"\textbackslash{}input\{x\} & 1.000 \\",
        r"50\% \& \$1 \#\_\textasciicircum{}\textasciitilde{} & - \\",
        r"{[}x] & 2.500 \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]


def test_the_command_continues_a_study(encoder, finished, tmp_path):
    copy = tmp_path / "study"
    shutil.copytree(finished.path, copy)
    shutil.rmtree(copy / "set-1")
    sentences = tmp_path / "sentences.txt"
    sentences.write_text("\n".join(SENTENCES), "utf-8")
    options = ["--sentences", str(sentences), "--set", "sets=1", "--device", "cpu"]
    kept = (copy / "profile" / "time.json").stat().st_mtime_ns
    result = command("study", encoder.name, *options, "--out", str(copy), "--format", "json")
    document = json.loads(result.stdout)
    again = pl.DataFrame(document["stability"])["spearman_score"][0]
    assert again == pytest.approx(finished.stability["spearman_score"][0])
    assert (copy / "profile" / "time.json").stat().st_mtime_ns == kept


def test_a_study_refuses_a_negative_number_of_sets(encoder):
    with pytest.raises(InputError, match=naming("sets", -1)):
        study(encoder, sets=-1)


def test_what_cannot_be_studied_is_refused_before_anything_is_measured(encoder, tmp_path):
    options = {"sentences": SENTENCES, "sets": 0, "out": tmp_path / "study"}
    with pytest.raises(InputError, match=naming("nope.jsonl")):
        study(encoder, tasks=["nope.jsonl"], **options)
    with pytest.raises(InputError, match=naming("missing.jsonl")):
        study(encoder, documents="missing.jsonl", **options)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_other_documents_is_left_alone(encoder, tmp_path):
    folder = tmp_path / "study"
    documents = impact_files.beir(tmp_path / "beir")

    def begin(source):
        def stop(step):
            raise InterruptionError

        study(encoder, sentences=SENTENCES, sets=0, documents=source, out=folder, progress=stop)

    with pytest.raises(InterruptionError):
        begin(documents)
    copied = shutil.copytree(documents, tmp_path / "copied")
    with pytest.raises(InterruptionError):
        begin(copied)  # the name is of no importance
    for changed in ("qrels/test.tsv", "queries.jsonl", "corpus.jsonl"):
        before = (copied / changed).read_bytes()
        (copied / changed).write_bytes(before.replace(b"1", b"3"))
        with pytest.raises(RunError, match=naming(folder, "documents")):
            begin(copied)
        (copied / changed).write_bytes(before)


@pytest.fixture(scope="module")
def without_browser(encoder, tmp_path_factory):
    """A small study in other documents than the packaged ones, on a machine without a browser."""
    folder = tmp_path_factory.mktemp("small")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BROWSER_PATH", str(folder / "absent"))
        documents = impact_files.beir(folder / "beir")
        return study(
            encoder, sentences=SENTENCES, sample=20, sets=0, documents=documents, out=folder / "study"
        )


def test_a_study_without_a_browser_has_everything_but_figures(without_browser):
    (note,) = without_browser.notes
    assert re.search(naming("BROWSER_PATH"), note)
    assert list(without_browser.path.glob("figures/*")) == []
    assert "BROWSER" in (without_browser.path / "study.md").read_text("utf-8")
    assert (without_browser.path / "harm.csv").is_file()


def test_the_page_says_first_what_speaks_against_its_numbers(finished, without_browser):
    pages = [(each.path / "study.md").read_text("utf-8") for each in (finished, without_browser)]
    for page, measured in zip(pages, (finished, without_browser), strict=True):
        shared = f"same {len(measured.audit.result.stuffed_ids)} documents"
        assert page.index(shared) < page.index("| list |")
    packaged, own = pages
    assert packaged.index("--documents") < packaged.index("| list |")
    assert "--documents" not in own


def test_texts_that_can_be_read_once_are_kept_for_the_audit():
    texts = [f"the river is {number}" for number in range(3)]
    once, once_hash = _make_rereadable(iter(texts))
    assert [row["text"] for row in once] == texts
    assert once_hash == _make_rereadable(texts)[1] != _make_rereadable(texts[:2])[1]


def test_only_one_process_writes_a_study(encoder, finished):
    options = {"sentences": SENTENCES, "sets": 1}
    with ResultFolder(finished.path).locked(), pytest.raises(RunError, match=naming(finished.path)):
        study(encoder, out=finished.path, **options)


def test_a_folder_of_another_study_or_of_something_else_is_left_alone(encoder, finished, tmp_path):
    options = {"sentences": SENTENCES, "sets": 0}
    with pytest.raises(RunError, match=naming(finished.path, "seed")):
        study(encoder, seed=1, out=finished.path, **options)
    with pytest.raises(RunError, match=naming(finished.std.path)):
        study(encoder, out=finished.std.path, **options)
    (tmp_path / "study.json").write_text("{")
    with pytest.raises(RunError, match=naming(tmp_path / "study.json")):
        study(encoder, out=tmp_path, **options)
