"""Explanations as a section of the report: what is there is shown, what is not is said, nothing acts."""

import json
import math
import shutil

import polars as pl
import pytest

import planted
import stickytoken
import tiny
from naming import naming, says
from report_pages import Page
from stickytoken.data import collect_sentences
from stickytoken.errors import RunError
from stickytoken.explanation import ExplainSettings, explain
from stickytoken.explanation.files import explanation_folders
from stickytoken.reports import report as make_report
from stickytoken.reports.content import read_content
from stickytoken.reports.facts import explained_tokens

pytestmark = pytest.mark.slow  # whole runs

COPIED = "explained_run"
SMALL = ExplainSettings(carriers=4, benign=4, attribution=False, directions=16)
KINDS = ["attention", "heads", "drift", "pooling", "attribution", "embedding"]


def folder_of(run, place=0):
    return explanation_folders(run / "explain")[place]


def change(folder, **changes):
    path = folder / "explanation.json"
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | changes), encoding="utf-8")


def test_the_section_stands_before_the_table_with_all_figures(explained_run):
    page = Page(stickytoken.report(explained_run))
    ids = [value for tag, name, value in page.attributes if (tag, name) == ("h2", "id")]
    assert ids[ids.index("explanations") + 1] == "flagged"
    tokens = explained_tokens(read_content(explained_run))
    assert {token.token for token in tokens} == {"river", "garden"}
    names = [f"explain-{token.token_id}-{kind}" for token in tokens for kind in KINDS]
    assert [name for name in page.data["figures"] if name.startswith("explain-")] == names
    assert all(token.verdict in page.text for token in tokens)


def test_markdown_and_json_say_the_same_and_all_figures_are_saved(explained_run, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "plotly.io.write_images", lambda _, paths, **__: [path.write_bytes(b"drawn") for path in paths]
    )
    document = json.loads(stickytoken.report(explained_run, format="json", figures=tmp_path))
    text = stickytoken.report(explained_run, format="md")
    assert "\n## Why tokens stick\n" in text
    stored = read_content(explained_run).explanations
    saved = {path.stem for path in tmp_path.iterdir()}
    for explanation, load_or_explain in zip(document["explanations"], stored, strict=True):
        assert explanation["verdict"] == load_or_explain.token.verdict
        assert saved.issuperset(figure["name"] for figure in explanation["figures"])
        alts = {figure["name"].split("-")[-1]: figure["alt"] for figure in explanation["figures"]}
        assert list(alts) == KINDS
        assert f"### {explanation['token']}" in text
        assert (
            f"is {load_or_explain.tables['pairs']['similarity_before'][0]:.3f} without" in alts["attribution"]
        )


def test_explanations_of_elsewhere_are_shown_when_asked_for(explained_run, small_run, tmp_path):
    elsewhere = shutil.copytree(explained_run / "explain", tmp_path / "why")
    plain = Page(stickytoken.report(small_run.path))
    assert not any(name.startswith("explain-") for name in plain.data["figures"])
    page = Page(stickytoken.report(small_run.path, explanations=elsewhere))
    assert page.data["figures"] == Page(stickytoken.report(explained_run)).data["figures"]
    result = planted.command("report", small_run.path, "-f", "md", "--explanations", elsewhere)
    assert "Why tokens stick" in result.stdout


def test_of_many_tokens_the_first_are_drawn_and_all_are_told_of(run_copy):
    source = folder_of(run_copy)
    document = json.loads((source / "explanation.json").read_text("utf-8"))
    vocabulary = pl.read_parquet(run_copy / "tokens.parquet").head(4 + 3)
    for token_id, token in vocabulary.select("token_id", "token").iter_rows():
        other = source.with_name(str(token_id))
        if not other.exists():
            shutil.copytree(source, other)
            change(other, tokens=[document["tokens"][0] | {"token_id": token_id, "token": token}])
    tokens = explained_tokens(read_content(run_copy))
    assert len(tokens) > 4
    assert [bool(token.figures) for token in tokens] == [index < 4 for index in range(len(tokens))]
    page = Page(stickytoken.report(run_copy))
    assert {token.token for token in tokens} <= set(page.tokens)
    assert page.tags.count("figure") == len(page.data["figures"])


def test_a_model_without_attention_is_said_to_have_none(run, planted_encoder, tmp_path):
    folder = shutil.copytree(run.path, tmp_path / "run")
    explain(planted_encoder, [planted.PLANTED], run=folder, settings=SMALL, out=folder / "explain")
    (token,) = explained_tokens(read_content(folder))
    assert token.run_verdict == "sticky"
    words = {figure.name.split("-")[-1]: figure.alt for figure in token.figures}
    assert says(words["heads"], "not", "attention")
    assert says(words["attention"], "not", "expose")
    assert says(Page(stickytoken.report(folder)).text, "static", "no attention")


@pytest.mark.parametrize(
    ("name", "damage", "values"),
    [
        ("heads.parquet", b"PAR1", ("damaged",)),
        ("explanation.json", b"{", ("damaged",)),
        ("explanation.json", b'{"schema_version": 2}', ("version", 2)),
        ("explanation.json", b"[]", ("valid",)),
        ("explanation.json", b'{"schema_version": 3}', ("identity",)),
        ("measures.parquet", pl.col("value").cast(pl.String), ("String", "Float64")),
        ("measures.parquet", pl.lit(math.nan).alias("benign_mean"), ("finite", "'benign_mean'")),
        ("neighbours.parquet", pl.lit(None, pl.Float64).alias("cosine"), ("empty", "'cosine'")),
    ],
)
def test_a_damaged_explanation_keeps_nobody_from_the_report(run_copy, name, damage, values):
    path = folder_of(run_copy) / name
    if isinstance(damage, bytes):
        path.write_bytes(damage)
    else:
        pl.read_parquet(path).with_columns(damage).write_parquet(path)
    page = Page(stickytoken.report(run_copy))
    assert all(str(value) in page.text for value in (name, *values))
    assert len([figure for figure in page.data["figures"] if figure.startswith("explain-")]) == len(KINDS)
    with pytest.raises(RunError, match=naming(path, *values)):
        make_report(run_copy, explanations=run_copy / "explain")


def test_an_explanation_of_another_vocabulary_is_not_shown(run_copy):
    token = json.loads((folder_of(run_copy) / "explanation.json").read_text("utf-8"))["tokens"][0]
    change(folder_of(run_copy), tokens=[token | {"token": "elsewhere"}])
    assert says(Page(stickytoken.report(run_copy)).text, "'elsewhere'")
    assert len(read_content(run_copy).explanations) == 1
    change(folder_of(run_copy), tokens=[])
    assert "explanation.json" in Page(stickytoken.report(run_copy)).text
    change(folder_of(run_copy), tokens=[token], identity_parts={"encoder": "damaged"})
    assert "different model" in Page(stickytoken.report(run_copy)).text


def test_an_explanation_of_another_model_with_the_same_vocabulary_is_not_shown(run_copy, tmp_path):
    other = tiny.sentence_transformer(tiny.bert_backbone(tmp_path / "other", seed=1), normalize=True)
    corpus = collect_sentences(tiny.sentences(40), "test")
    out = run_copy / "explain"
    explanation = explain(
        stickytoken.load_encoder(other), ["window"], sentences=corpus, settings=SMALL, out=out
    )
    page = Page(stickytoken.report(run_copy))
    assert "differ in weights" in page.text
    assert {explanation.token.token for explanation in read_content(run_copy).explanations} == {
        "river",
        "garden",
    }
    stranger = str(explanation.tokens[0].token_id)
    shutil.copytree(out / stranger, tmp_path / "why" / stranger)
    with pytest.raises(RunError, match=naming(tmp_path / "why" / stranger, "weights")):
        make_report(run_copy, explanations=tmp_path / "why")


def test_explanations_that_cannot_be_shown_are_refused(explained_run, tmp_path):
    planted.assert_refused(
        "report", explained_run, "--explanations", tmp_path, saying=naming(tmp_path, "explanation")
    )
