"""Reports of runs: what stands in them, for every state that a run can be in."""

import base64
import gzip
import hashlib
import json
import re
import shutil

import numpy as np
import polars as pl
import pytest
from plotly.offline import get_plotlyjs

import planted
import profiled
import stickytoken
from report_pages import Page
from stickytoken import open_run
from stickytoken.errors import InputError, RunError
from stickytoken.reports.content import cards, read_content, report_figures

SECTIONS = [
    "reasons", "steps", "worst", "lift-distribution", "symptom-curves", "lift-contraction",
    "flagged", "computed", "words",
]  # fmt: skip


def section_ids(html):
    return re.findall(r'<h2 id="([^"]+)"', html)


# The page


def test_the_parts_stand_in_the_order_of_what_matters(run):
    html = stickytoken.report(run)
    assert section_ids(html) == SECTIONS
    page = Page(html)
    headline = run.method.headline(run)
    assert headline in page.text
    assert page.text.index(headline) < page.text.index("The worst tokens")
    assert page.tokens[0] == "!"
    row = run.sticky.row(0, named=True)
    assert f"lift {row['lift']:.3f}" in page.text
    assert f"90% interval {row['lift_low']:.3f} to {row['lift_high']:.3f}" in page.text
    (card,) = cards(read_content(run.path))
    assert card.strip["high"] == 98  # the end of the scale
    places, lifts = card.strip, (row["lift_low"], row["lift"], row["lift_high"], run.result.ordinary_lift)
    line = np.polyfit(lifts, [places[name] for name in ("low", "value", "high", "ordinary")], 1)
    assert np.polyval(line, lifts) == pytest.approx(list(places.values()), abs=0.02)
    pair = run.evidence.tokens.row(0, named=True)
    for name in ("typical_carrier", "typical_anchor", "largest_carrier", "largest_anchor"):
        assert pair[name] in page.text
    assert "! × 8" in page.text
    for value in (run.record.identity, run.record.versions["torch"], "smallest effect", "seed"):
        assert value in page.text


def test_the_page_allows_its_own_scripts_by_hash_and_asks_for_nothing(run):
    html = stickytoken.report(run)
    assert len(html.encode()) < 5_000_000
    page = Page(html)
    (policy,) = [
        value for tag, name, value in page.attributes if tag == "meta" and "default-src" in str(value)
    ]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe-eval" not in policy
    assert "'unsafe-inline'" not in policy.split("style-src")[0]
    script = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)[-1]
    packed = re.search(r'id="plotly-gz">([^<]+)<', html)[1]
    library = gzip.decompress(base64.b64decode(packed))
    assert library.decode() == get_plotlyjs()
    for allowed in (script.encode(), library):
        assert base64.b64encode(hashlib.sha256(allowed).digest()).decode() in policy
    links = [value for _, name, value in page.attributes if name in ("src", "href", "action", "srcset")]
    assert all(value.startswith(("#", "data:,")) for value in links)
    assert not [name for _, name, _ in page.attributes if name.startswith("on")]


def test_every_figure_has_its_words_its_numbers_and_a_name(run):
    figures = report_figures(read_content(run.path))
    page = Page(stickytoken.report(run))
    assert list(page.data["figures"]) == [figure.name for figure in figures] == SECTIONS[3:6]
    labels = [value for tag, name, value in page.attributes if (tag, name) == ("div", "aria-label")]
    for figure in figures:
        assert figure.alt in labels
        assert figure.alt in page.text
        assert figure.reading in page.text
        assert figure.table.rows
        assert all(len(row) == len(figure.table.columns) for row in figure.table.rows)


# Markdown and JSON


def test_json_is_one_document_with_everything(run):
    document = json.loads(stickytoken.report(run, format="json"))
    assert document["headline"] == run.method.headline(run)
    assert (document["model"], document["method"], document["finished"]) == (
        run.record.model.name,
        "profile",
        True,
    )
    (worst,) = document["worst"]
    sticky = run.sticky.row(0, named=True)
    assert {key: worst[key] for key in sticky} == sticky
    spread = run.plan.similarity_spread
    assert worst["sd"] == pytest.approx((sticky["lift"] - run.result.ordinary_lift) / spread)
    assert [pair["which"] for pair in worst["pairs"]] == ["typical", "largest"]
    assert (worst["entry"], worst["script"], worst["length"]) == ("symbol", "none", 1)
    ids = run.vocabulary["token_id"].sort().to_list()
    assert worst["position"] == pytest.approx(ids.index(sticky["token_id"]) / (len(ids) - 1))
    assert document["curves"][0]["token"] == "!"
    assert len(document["ordinary_curves"]) == 8
    assert [figure["name"] for figure in document["figures"]] == SECTIONS[3:6]


def test_markdown_has_the_same_parts(run):
    text = stickytoken.report(run, format="md")
    titles = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert titles[0] == "The worst tokens"
    assert titles[-3:] == ["All flagged tokens", "What was computed", "How to read the numbers"]
    assert r"| \! | sticky | severe |" in text


# Runs in every state


def test_a_run_without_sticky_tokens_shows_the_highest_for_scale(clean_run):
    page = Page(stickytoken.report(clean_run))
    assert "has no sticky tokens among those measured" in page.text
    assert "No token is sticky" in page.text
    assert "only 10 of 335 available tokens were examined" in page.text
    highest = clean_run.tokens.sort("lift", descending=True)["token"].head(3).to_list()
    assert page.tokens[:9:3] == highest


def test_a_report_of_a_clean_model_closes_all_but_the_answer(run, clean_run):
    html = stickytoken.report(clean_run)
    closed = re.findall(r'<details class="part"><summary><h2 id="([^"]+)"', html)
    assert closed == [
        part for part in section_ids(html) if part not in ("steps", "worst", "lift-distribution")
    ]
    assert '<details class="part">' not in stickytoken.report(run)


def test_the_contents_lead_to_every_part(run, clean_run, run_copy):
    planted.edit_record(run_copy, result=None)
    for page in map(stickytoken.report, (run, clean_run, run_copy)):
        contents = page[page.index('<nav class="contents"') : page.index("</nav>")]
        assert re.findall('href="#([^"]+)"', contents) == [
            part for part in section_ids(page) if part not in ("reasons", "steps")
        ]


def test_a_run_of_the_method_std(planted_run):
    html = stickytoken.report(planted_run)
    assert section_ids(html)[1:5] == ["worst", "score-distribution", "rate-distribution", "symptom-curves"]
    page = Page(html)
    found = open_run(planted_run)
    assert f"{found.result.sticky} sticky tokens among" in page.text
    worst = found.sticky.row(0, named=True)
    rate = f"{worst['validation_rate']:.0%}"
    assert f"The worst, {worst['token']!r}, draws {rate} of the unrelated pairs together" in page.text
    assert "does not measure contraction" in page.text
    document = json.loads(stickytoken.report(planted_run, format="json"))
    assert [row["token"] for row in document["flagged"]] == found.sticky["token"].to_list()
    assert {row["sd"] for row in document["flagged"]} == {None}
    assert "validation rate" in stickytoken.report(planted_run, format="md")


def test_a_run_without_evidence_says_what_is_missing_and_shows_the_rest(run_copy):
    for name in ("evidence.json", "evidence.parquet"):
        (run_copy / name).unlink()
    html = stickytoken.report(run_copy)
    assert section_ids(html) == [part for part in SECTIONS if part != "symptom-curves"]
    assert "made without symptom curves and example pairs. Run the same stickytoken detect" in Page(html).text


def test_a_run_that_is_not_finished_shows_what_is_there(run_copy):
    planted.edit_record(run_copy, result=None)
    (run_copy / "tokens.parquet").unlink()
    html = stickytoken.report(run_copy)
    page = Page(html)
    assert section_ids(html) == ["computed", "words"]
    assert (
        f"not finished, {profiled.AVAILABLE} of {profiled.AVAILABLE} tokens have been measured so far"
        in page.text
    )
    assert "tokens measured in the stage screen" in page.text
    assert "UNREACHABLE_SPECIAL" in page.text
    assert f"{open_run_plan(run_copy)['mean_similarity']:.6g}" in page.text
    assert 'id="plotly-gz"' not in html
    document = json.loads(stickytoken.report(run_copy, format="json"))
    assert (document["finished"], document["flagged"], document["figures"]) == (False, [], [])
    assert "not finished" in stickytoken.report(run_copy, format="md")
    for name in ("plan.json", "vocabulary.parquet"):
        (run_copy / name).unlink()
    shutil.rmtree(run_copy / "shards")
    assert "not finished, 0 of" in stickytoken.report(run_copy)


def open_run_plan(folder):
    return json.loads((folder / "plan.json").read_text("utf-8"))


def test_a_vocabulary_with_thousands_of_sticky_tokens(run_copy):
    table = pl.read_parquet(run_copy / "tokens.parquet")
    many = pl.concat([table.with_columns(pl.lit("sticky").alias("verdict"), severity=pl.lit("mild"))] * 9)
    many = many.with_columns(token_id=pl.int_range(pl.len(), dtype=pl.Int64))
    many.write_parquet(run_copy / "tokens.parquet")
    html = stickytoken.report(run_copy)
    assert len(html.encode()) < 5_000_000
    assert f"The first 1000 of {len(many)} tokens; tokens.parquet" in html
    assert f"The 12 worst of {len(many)}" in html


@pytest.mark.parametrize("name", ["evidence.parquet", "tokens.parquet", "vocabulary.parquet"])
def test_a_damaged_file_is_named(run_copy, name):
    (run_copy / name).write_bytes(b"PAR1")
    with pytest.raises(RunError, match=name.replace(".", r"\.")):
        stickytoken.report(run_copy)
    pl.DataFrame({"other": [1]}).write_parquet(run_copy / name)
    with pytest.raises(RunError, match=rf"{name.replace('.', '[.]')} has no column"):
        stickytoken.report(run_copy)


def test_what_cannot_be_reported_is_refused(run, run_copy, tmp_path):
    with pytest.raises(RunError, match="no run folder"):
        stickytoken.report(tmp_path / "absent")
    with pytest.raises(RunError, match="is not a run folder"):
        stickytoken.report(tmp_path)
    with pytest.raises(InputError, match="there is no run to report"):
        stickytoken.report()
    with pytest.raises(InputError, match="format 'pdf' is unknown: use one of html, md, json"):
        stickytoken.report(run, format="pdf")
    for out, reason in ((tmp_path, "it is a folder"), (tmp_path / "no" / "r.html", "there is no folder")):
        with pytest.raises(RunError, match=reason):
            stickytoken.report(run, out=out)
    planted.edit_record(run_copy, schema_version=99)
    with pytest.raises(RunError, match="has schema version 99"):
        stickytoken.report(run_copy)


def test_settings_that_an_earlier_version_did_not_write_are_its_defaults(run, run_copy):
    planted.edit_record(run_copy, settings={})
    assert "90% interval" in stickytoken.report(run_copy)
    planted.edit_record(run_copy, settings={"smallest_effect": "<b>"})
    with pytest.raises(InputError, match=r"smallest_effect in .*run\.json is '<b>': it must be a number"):
        stickytoken.report(run_copy)


# Several runs


def test_several_runs_are_a_comparison_and_the_report_says_so(run, clean_run):
    for call in (lambda: stickytoken.report(run, clean_run), lambda: stickytoken.report(run, run, run)):
        with pytest.raises(
            InputError, match=r"about one run, but [23] were passed: .* `stickytoken compare`"
        ):
            call()
    planted.refused("report", run.path, clean_run.path, saying="`stickytoken compare`")
    assert not (run.path / "report.html").exists()


# The command


@pytest.mark.slow
def test_detect_writes_the_report_unless_told_not_to(planted_run, planted_folder, planted_options, tmp_path):
    assert Page((planted_run / "report.html").read_text("utf-8")).tokens
    arguments = ("detect", planted_folder, *planted_options, "--out", tmp_path / "run")
    assert planted.command(*arguments, "--set", "report=false").exit_code == 0
    assert not {"report.html", "evidence.json"} & {path.name for path in (tmp_path / "run").iterdir()}
    result = planted.command(*arguments)
    assert result.exit_code == 0
    assert f"report: {tmp_path / 'run' / 'report.html'}" in result.stderr.replace("\n", "")
    assert open_run(tmp_path / "run").evidence is not None


def test_the_command_writes_into_the_run_folder_or_a_file(run_copy, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = planted.command("report", run_copy)
    assert result.exit_code == 0, result.stderr
    assert result.stdout == f"report: {run_copy / 'report.html'}\n"
    assert (run_copy / "report.html").read_text("utf-8") == stickytoken.report(run_copy)
    assert planted.command("report", run_copy, "--out", tmp_path / "other.html").exit_code == 0
    assert (tmp_path / "other.html").read_bytes() == (run_copy / "report.html").read_bytes()


def test_the_command_prints_markdown_and_json(run_copy):
    assert planted.document(planted.command("report", run_copy, "--format", "json"))["finished"] is True
    assert planted.command("report", run_copy, "-f", "md").stdout == stickytoken.report(run_copy, format="md")
    assert not (run_copy / "report.html").exists()


def test_the_command_opens_a_browser_when_asked(run_copy, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", lambda url: bool(opened.append(url)) or True)
    assert planted.command("report", run_copy, "--open").exit_code == 0
    assert opened == [(run_copy / "report.html").as_uri()]
    planted.refused("report", run_copy, "--open", "-f", "md", saying="--open needs an HTML file")
    monkeypatch.setattr("webbrowser.open", lambda _: False)
    result = planted.command("report", run_copy, "--open")
    assert result.exit_code == 1
    assert "no browser could be started" in result.stderr


def test_the_command_refuses_in_one_line(run_copy, tmp_path):
    planted.refused("report", tmp_path, saying="is not a run folder")
    planted.refused("report", status=2, saying="Missing argument")
    assert planted.command("report", run_copy, "--format", "pdf").exit_code == 2
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    planted.refused("report", run_copy, "--figures", tmp_path / "file", saying="cannot be created")


@pytest.mark.slow
def test_a_full_disk_is_told_of_and_leaves_the_old_report(run_copy, monkeypatch):
    planted.command("report", run_copy)
    before = planted.files_of(run_copy)

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("stickytoken.measurement.store.os.fsync", full)
    planted.refused("report", run_copy, saying="no space left to write")
    assert planted.files_of(run_copy) == before
