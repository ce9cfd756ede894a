"""Explanations as a section of the report: what is there is shown, what is not is said, nothing acts."""

import json
import math
import shutil

import polars as pl
import pytest

import planted
import profiled
import stickytoken
import tiny
from report_pages import Page
from stickytoken.data.corpora import collect_sentences
from stickytoken.errors import InputError, RunError
from stickytoken.explanation import ExplainSettings, explain
from stickytoken.explanation.files import explanation_folders, read_explanation
from stickytoken.reports import report as make_report
from stickytoken.reports.content import explained_tokens, read_content

pytestmark = pytest.mark.slow  # whole runs

COPIED = "explained_run"
SMALL = ExplainSettings(carriers=4, benign=4, attribution=False, directions=16)
KINDS = ["attention", "heads", "drift", "pooling", "attribution", "embedding"]


def folder_of(run, place=0):
    return explanation_folders(run / "explain")[place]


def change(folder, **changes):
    """Write other entries into explanation.json."""
    path = folder / "explanation.json"
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | changes), encoding="utf-8")


# What is shown


def test_the_section_stands_before_the_table_with_all_figures(explained_run):
    html = stickytoken.report(explained_run)
    page = Page(html)
    assert len(html.encode()) < 5_000_000
    ids = [value for tag, name, value in page.attributes if (tag, name) == ("h2", "id")]
    assert ids[ids.index("explanations") + 1] == "flagged"
    tokens = explained_tokens(read_content(explained_run))
    assert {each["token"] for each in tokens} == {"river", "garden"}
    names = [f"explain-{each['token_id']}-{kind}" for each in tokens for kind in KINDS]
    assert [name for name in page.data["figures"] if name.startswith("explain-")] == names
    labels = [value for tag, name, value in page.attributes if (tag, name) == ("div", "aria-label")]
    for each in tokens:
        assert each["verdict"] in page.text
        for figure in each["figures"]:
            assert figure.alt in labels
            assert figure.alt in page.text
            assert figure.table.rows
            assert all(len(row) == len(figure.table.columns) for row in figure.table.rows)


def test_markdown_and_json_say_the_same(explained_run):
    document = json.loads(stickytoken.report(explained_run, format="json"))
    text = stickytoken.report(explained_run, format="md")
    stored = [read_explanation(folder) for folder in explanation_folders(explained_run / "explain")]
    assert {each["verdict"] for each in document["explanations"]} == {each.token.verdict for each in stored}
    for each in document["explanations"]:
        assert [figure["name"].split("-")[-1] for figure in each["figures"]] == KINDS
        assert f"### {each['token']}" in text
        assert "\n## Why tokens stick\n" in text
        pair = next(found for found in stored if found.token.token_id == each["token_id"]).tables["pairs"]
        said = next(figure["alt"] for figure in each["figures"] if figure["name"].endswith("attribution"))
        assert f"is {pair['similarity_before'][0]:.3f} without copies" in said


def test_explanations_of_elsewhere_are_shown_when_asked_for(explained_run, small_run, tmp_path):
    elsewhere = shutil.copytree(explained_run / "explain", tmp_path / "why")
    plain = Page(stickytoken.report(small_run.path))
    assert not any(name.startswith("explain-") for name in plain.data["figures"])
    shown = Page(stickytoken.report(small_run.path, explanations=elsewhere))
    assert shown.data["figures"] == Page(stickytoken.report(explained_run)).data["figures"]
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
    assert [bool(each["figures"]) for each in tokens] == [place < 4 for place in range(len(tokens))]
    page = Page(stickytoken.report(run_copy))
    assert {each["token"] for each in tokens} <= set(page.tokens)
    assert page.tags.count("figure") == len(page.data["figures"])


def test_saved_figures_are_those_of_the_page(explained_run, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "plotly.io.write_images", lambda _, paths, **__: [path.write_bytes(b"drawn") for path in paths]
    )
    stickytoken.report(explained_run, format="json", figures=tmp_path / "figures")
    saved = {path.name for path in (tmp_path / "figures").iterdir()}
    names = Page(stickytoken.report(explained_run)).data["figures"]
    assert saved == {f"{name}.{kind}" for name in names for kind in ("png", "svg")}


def test_a_model_without_attention_is_said_to_have_none(tmp_path):
    model = profiled.planted_model(2)
    run = profiled.detect_profile(stickytoken.load_encoder(model), tmp_path / "run")
    explain(
        stickytoken.load_encoder(model), [planted.PLANTED], run=run, settings=SMALL, out=run.path / "explain"
    )
    (token,) = explained_tokens(read_content(run.path))
    assert token["run_verdict"] == "sticky"
    words = {figure.name.split("-")[-1]: figure.alt for figure in token["figures"]}
    assert words["heads"] == "This model does not expose its attention."
    assert words["attention"] == "This model does not expose it."
    page = Page(stickytoken.report(run))
    assert "static embedding model: it has no attention" in page.text


# What cannot be shown


@pytest.mark.parametrize(
    ("name", "content", "saying"),
    [
        ("heads.parquet", b"PAR1", "is damaged"),
        ("explanation.json", b"{", "is damaged"),
        (
            "explanation.json",
            b'{"schema_version": 1}',
            "has schema version 1, but this stickytoken reads version 2",
        ),
        ("explanation.json", b"[]", "has schema version null"),
        ("explanation.json", b'{"schema_version": 2}', "is not a valid record"),
    ],
)
def test_a_damaged_explanation_keeps_nobody_from_the_report(run_copy, name, content, saying):
    (folder_of(run_copy) / name).write_bytes(content)
    page = Page(stickytoken.report(run_copy))
    assert saying in page.text
    assert len([figure for figure in page.data["figures"] if figure.startswith("explain-")]) == len(KINDS)
    assert saying.replace("_", r"\_") in stickytoken.report(run_copy, format="md")
    with pytest.raises(RunError, match=saying):
        make_report(run_copy, explanations=run_copy / "explain")


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        (
            "measures",
            pl.col("value").cast(pl.String),
            "has String values instead of Float64 in column 'value'",
        ),
        (
            "measures",
            pl.lit(math.nan).alias("benign_mean"),
            "not finite in column 'benign_mean'",
        ),
        ("neighbours", pl.lit(None, pl.Float64).alias("cosine"), "has an empty value in column 'cosine'"),
    ],
)
def test_tables_that_somebody_changed_are_refused(run_copy, name, change, said):
    path = folder_of(run_copy) / f"{name}.parquet"
    pl.read_parquet(path).with_columns(change).write_parquet(path)
    assert said in Page(stickytoken.report(run_copy)).text
    pl.DataFrame({"other": [1]}).write_parquet(path)
    assert "has no column" in Page(stickytoken.report(run_copy)).text


def test_an_explanation_of_another_schema_or_model_is_not_shown(run_copy):
    change(folder_of(run_copy), schema_version=99)
    other = folder_of(run_copy, 1)
    token = json.loads((other / "explanation.json").read_text("utf-8"))["tokens"][0]
    change(other, tokens=[token | {"token": "elsewhere"}])
    page = Page(stickytoken.report(run_copy))
    assert "has schema version 99" in page.text
    assert "explains the token 'elsewhere'" in page.text
    assert not any(name.startswith("explain-") for name in page.data["figures"])
    with pytest.raises(RunError, match="it belongs to another model"):
        make_report(run_copy, explanations=_only(other, run_copy.with_name("why")))
    change(other, tokens=[])
    assert "is not a valid record" in Page(stickytoken.report(run_copy)).text
    change(other, tokens=[token], identity_parts={"encoder": "damaged"})
    assert "explains another model, not that of the run" in Page(stickytoken.report(run_copy)).text


def test_an_explanation_of_another_model_with_the_same_vocabulary_is_not_shown(run_copy, tmp_path):
    other = tiny.sentence_transformer(tiny.bert_backbone(tmp_path / "other", seed=1), normalize=True)
    corpus = collect_sentences(tiny.sentences(40), "test")
    out = run_copy / "explain"
    found = explain(stickytoken.load_encoder(other), ["window"], sentences=corpus, settings=SMALL, out=out)
    page = Page(stickytoken.report(run_copy))
    assert "explains another model, not that of the run (they differ in weights)" in page.text
    assert {each.token.token for each in read_content(run_copy).explanations} == {"river", "garden"}
    stranger = out / str(found.tokens[0].token_id)
    with pytest.raises(RunError, match="run explain with the model of the run"):
        make_report(run_copy, explanations=_only(stranger, tmp_path / "why"))


def _only(folder, place):
    shutil.copytree(folder, place / folder.name)
    return place


def test_explanations_that_cannot_be_shown_are_refused(explained_run, tmp_path):
    with pytest.raises(InputError, match="contains no explanation: pass the folder"):
        make_report(explained_run, explanations=tmp_path)
    comparison = stickytoken.compare([explained_run, shutil.copytree(explained_run, tmp_path / "again")])
    with pytest.raises(InputError, match="explanations belong to one run: leave them out of a comparison"):
        make_report(comparison, explanations=explained_run / "explain")
    planted.refused("report", explained_run, "--explanations", tmp_path, saying="contains no explanation")
