"""Reports of runs: what stands in them, for every state that a run can be in."""

import base64
import gzip
import hashlib
import json
import math
import re
import shlex
import shutil
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from markupsafe import escape
from plotly.offline import get_plotlyjs

import planted
import profiled
import repaired
import stickytoken
from naming import naming, says
from report_pages import Page
from stickytoken import open_run
from stickytoken.demo.context import EXAMPLES
from stickytoken.detection.run import next_steps
from stickytoken.errors import InputError, RunError
from stickytoken.repairs.records import last_verified
from stickytoken.reports import facts
from stickytoken.reports.cards import cards
from stickytoken.reports.content import read_content
from stickytoken.reports.facts import columns, explained_tokens, report_figures
from stickytoken.reports.templating import commands, cosine, glossary, number, plain

FIGURES = ["erased-distribution", "push-distribution", "push-erased"]
SECTIONS = ["steps", "strongest", *FIGURES, "flagged", "computed", "words"]


def section_ids(html):
    return re.findall(r'<h2 id="([^"]+)"', html)


def test_the_parts_stand_in_the_order_of_what_matters(run, html):
    assert section_ids(html) == SECTIONS
    page = Page(html)
    headline = f"model: {run.description.headline}"
    assert headline in page.text
    row = run.sticky.row(0, named=True)
    reason = row["reason"][1:]  # a card begins it with a capital letter
    marks = (
        headline,
        reason,
        "no longer found for what they say",
        "What to do",
        "Strongest unflagged tokens",
    )
    assert sorted(marks, key=page.text.index) == list(marks)
    assert page.tokens[0] == "!"
    for value in (run.record.identity, run.record.versions["torch"], "smallest push", "seed"):
        assert value in page.text


def test_a_card_shows_a_lowered_threshold_with_all_its_digits():
    shown = cards(read_content(EXAMPLES / "all-MiniLM-L6-v2"))
    (card,) = [card for card in shown if card.row["token"] == "[CLS]"]
    push = next(measure for measure in card.measures if measure.title == "push")
    assert says(push.threshold, 1.25)


def test_a_card_shows_both_measures_with_interval_and_threshold(run, html):
    row = run.sticky.row(0, named=True)
    (card,) = cards(read_content(run.path))
    erased, push, vector = card.measures
    assert [measure.title for measure in card.measures] == ["erased", "push", "vector"]
    assert erased.value == f"{100 * row['erased']:.0f}%"
    low, high = math.floor(100 * row["erased_low"]), math.ceil(100 * row["erased_high"])
    assert erased.interval == f"{low}% to {high}%"
    assert push.value == f"{row['push']:.1f}×"
    assert push.interval.endswith("×")
    assert erased.threshold == "sticky from 40%"
    assert vector.strip is None
    assert vector.value == "usual"
    assert "unusual from 6 above" in vector.threshold
    for shown in (erased.value, push.value, f"90% interval {push.interval}"):
        assert shown in Page(html).text


def test_the_strip_of_a_card_has_one_scale(run):
    (card,) = cards(read_content(run.path))
    strip = card.measures[0].strip
    assert strip.high == 98  # the end of the scale
    row = run.sticky.row(0, named=True)
    shares = (row["erased_low"], row["erased"], row["erased_high"], 0.0, 0.4)
    positions = (strip.low, strip.value, strip.high, strip.ordinary, strip.threshold)
    line = np.polyfit(shares, positions, 1)
    assert np.polyval(line, shares) == pytest.approx(positions, abs=0.02)


def test_the_mark_of_an_ordinary_token_is_at_its_push(run_copy):
    path = run_copy / "tokens.parquet"
    tokens = pl.read_parquet(path)
    pushed = [
        pl.lit(value).alias(name) for name, value in (("push", 60.0), ("push_low", 50.0), ("push_high", 70.0))
    ]
    tokens.with_columns(pushed).write_parquet(path)
    content = read_content(run_copy)
    (card,) = cards(content)
    strip = next(measure.strip for measure in card.measures if measure.title == "push")
    ordinary = content.run.result.ordinary_push
    values = (50.0, 60.0, 70.0, ordinary, content.run.thresholds()["push"])
    positions = (strip.low, strip.value, strip.high, strip.ordinary, strip.threshold)
    line = np.polyfit(values, positions, 1)
    assert np.polyval(line, values) == pytest.approx(positions, abs=0.02)


def test_no_card_argues_against_its_verdict(run_copy):
    path = run_copy / "tokens.parquet"
    numbers = {"erased": 0.72, "erased_low": 0.7, "erased_high": 0.74}
    numbers |= {"push": 0.8, "push_low": 0.7, "push_high": 0.9}
    change = [
        pl.when(token=planted.PLANTED).then(value).otherwise(name).alias(name)
        for name, value in numbers.items()
    ]
    pl.read_parquet(path).with_columns(change).write_parquet(path)
    (card,) = cards(read_content(run_copy))
    erased, push, _ = card.measures
    assert erased.threshold
    assert (push.threshold, push.strip) == ("", None)
    assert "where they don't belong" not in " ".join(card.consequences)


def test_the_harm_in_a_search_is_told(run, html):
    harm = run.harm(run.sticky["token_id"][0])
    assert f"{harm.found:.0%}" in harm.hides
    assert f"{harm.found_without:.0%}" in harm.hides
    assert harm.hides in Page(html).text
    (worst,) = json.loads(stickytoken.report(run, format="json"))["worst"]
    assert any(harm.hides in sentence for sentence in worst["consequences"])


def test_the_page_allows_its_own_scripts_by_hash_and_asks_for_nothing(html):
    assert len(html.encode()) < 5_000_000
    page = Page(html)
    (policy,) = [value for _, _, value in page.attributes if "default-src" in str(value)]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe-eval" not in policy
    assert "'unsafe-inline'" not in policy.split("style-src")[0]
    script = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)[-1]
    library = gzip.decompress(base64.b64decode(re.search(r'id="plotly-gz">([^<]+)<', html)[1]))
    assert library.decode() == get_plotlyjs()
    for allowed in (script.encode(), library):
        assert base64.b64encode(hashlib.sha256(allowed).digest()).decode() in policy
    links = [value for _, name, value in page.attributes if name in ("src", "href", "action", "srcset")]
    assert all(value.startswith(("#", "data:,")) for value in links)
    assert not [name for _, name, _ in page.attributes if name.startswith("on")]


def test_every_figure_has_its_words_its_numbers_and_a_name(run, explained_run):
    for folder in (run.path, explained_run):
        content = read_content(folder)
        page = Page(stickytoken.report(folder))
        explained = [figure for token in explained_tokens(content) for figure in token.figures]
        figures = [*report_figures(content), *explained]
        names = [figure.name for figure in figures]
        assert set(page.data["figures"]) == set(names)
        assert folder != run.path or names == FIGURES
        labels = [value for tag, name, value in page.attributes if (tag, name) == ("div", "aria-label")]
        for figure in figures:
            assert figure.alt in labels
            assert figure.alt in page.text
            assert figure.reading in page.text
            assert figure.table.rows
            assert all(len(row) == len(figure.table.columns) for row in figure.table.rows)


def test_json_and_markdown_have_everything(run):
    document = json.loads(stickytoken.report(run, format="json"))
    assert document["headline"] == f"model: {run.description.headline}"
    assert (document["model"], document["method"]) == (run.record.model.name, "profile")
    (worst,) = document["worst"]
    sticky = run.sticky.row(0, named=True)
    assert {key: worst[key] for key in sticky} == sticky
    assert (worst["entry"], worst["script"], worst["length"]) == ("symbol", "none", 1)
    ids = run.vocabulary["token_id"].sort().to_list()
    assert worst["position"] == pytest.approx(ids.index(sticky["token_id"]) / (len(ids) - 1))
    assert [figure["name"] for figure in document["figures"]] == FIGURES
    text = stickytoken.report(run, format="md")
    titles = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert titles[:3] == [
        "Sticky tokens",
        "Strongest unflagged tokens (thresholds: 40%, 5.0×)",
        "What to do",
    ]
    assert titles[-3:] == ["All flagged tokens", "What was computed", "How to read the numbers"]
    assert r"| \! | sticky | serious |" in text


def test_a_run_without_sticky_tokens_shows_the_strongest_and_says_what_it_did_not_measure(html, clean_run):
    clean = stickytoken.report(clean_run)
    page = Page(clean)
    assert says(page.text, "no sticky tokens", 15)
    assert says(page.text, "thresholds: 40%, 1.5×")
    assert says(page.text, "15 of 335")
    assert page.tokens[: len(clean_run.strongest(8))] == clean_run.strongest(8)["token"].to_list()
    closed = re.findall(r'<details class="part"><summary><h2 id="([^"]+)"', clean)
    assert set(section_ids(clean)) - set(closed) == {"steps", "strongest", "erased-distribution"}
    assert '<details class="part">' not in html


def test_the_contents_lead_to_every_part(html):
    contents = html[html.index('<nav class="contents"') : html.index("</nav>")]
    sections = [section for section in section_ids(html) if section != "steps"]
    assert re.findall('href="#([^"]+)"', contents) == sections


def test_a_run_of_the_method_std(planted_run):
    html = stickytoken.report(planted_run)
    figures = ["score-distribution", "rate-distribution", "rate-lift"]
    assert [section for section in section_ids(html) if section in figures] == figures
    page = Page(html)
    run_found = open_run(planted_run)
    assert says(page.text, f"{run_found.result.sticky} sticky tokens", "paper")
    worst = run_found.sticky.row(0, named=True)
    rate = f"{worst['validation_rate']:.0%}"
    assert says(page.text, repr(worst["token"]), rate)
    document = json.loads(stickytoken.report(planted_run, format="json"))
    assert [row["token"] for row in document["flagged"]] == run_found.sticky["token"].to_list()
    assert "validation rate" in stickytoken.report(planted_run, format="md")


def test_a_run_that_is_not_finished_has_no_report(run_copy):
    planted.edit_record(run_copy, result=None)
    with pytest.raises(RunError, match=naming(run_copy, "finished")):
        stickytoken.report(run_copy)


def test_a_vocabulary_with_thousands_of_sticky_tokens(run_copy):
    table = pl.read_parquet(run_copy / "tokens.parquet")
    many = pl.concat([table.with_columns(pl.lit("sticky").alias("verdict"), severity=pl.lit("mild"))] * 9)
    many = many.with_columns(token_id=pl.int_range(pl.len(), dtype=pl.Int64))
    planted.replace_tokens(run_copy, many)
    html = stickytoken.report(run_copy)
    assert len(html.encode()) < 5_000_000
    assert says(html, f"1000 of {len(many)}", "tokens.parquet")
    assert says(html, f"12 worst of {len(many)}")
    assert 'id="figure-who-they-are"' in html


def test_a_damaged_file_is_named(run_copy):
    for name in ("tokens.parquet", "vocabulary.parquet"):
        content = (run_copy / name).read_bytes()
        (run_copy / name).write_bytes(b"PAR1")
        with pytest.raises(RunError, match=naming(run_copy / name)):
            stickytoken.report(run_copy)
        pl.DataFrame({"other": [1]}).write_parquet(run_copy / name)
        with pytest.raises(RunError, match=naming(name, "column")):
            stickytoken.report(run_copy)
        (run_copy / name).write_bytes(content)


def test_what_cannot_be_reported_is_refused(run, run_copy, tmp_path):
    planted.edit_record(run_copy, schema_version=99)
    for error, reported, options, phrase in (
        (RunError, tmp_path / "absent", {}, naming(tmp_path / "absent")),
        (RunError, tmp_path, {}, naming(tmp_path)),
        (RunError, run_copy, {}, naming("version", 99)),
        (InputError, run, {"format": "pdf"}, naming("'pdf'", "html", "md", "json")),
        (InputError, run, {"out": tmp_path}, naming(tmp_path)),
        (InputError, run, {"out": tmp_path / "no" / "r.html"}, naming(tmp_path / "no")),
    ):
        with pytest.raises(error, match=phrase):
            stickytoken.report(reported, **options)


def test_a_setting_that_is_not_allowed_is_named(run, run_copy):
    planted.edit_record(run_copy, settings=run.record.settings | {"smallest_push": "<b>"})
    with pytest.raises(RunError, match=naming("smallest_push", run_copy / "run.json")):
        stickytoken.report(run_copy)


@pytest.mark.slow
def test_detect_writes_the_report_unless_told_not_to(planted_run, planted_folder, planted_options, tmp_path):
    assert Page((planted_run / "report.html").read_text("utf-8")).tokens
    arguments = ("detect", planted_folder, *planted_options, "--out", tmp_path / "run")
    assert planted.command(*arguments, "--set", "report=false").exit_code == 0
    assert not (tmp_path / "run" / "report.html").exists()
    result = planted.command(*arguments)
    assert result.exit_code == 0
    assert f"report: {tmp_path / 'run' / 'report.html'}" in result.stderr.replace("\n", "")


def test_the_command_writes_prints_and_opens(run_copy, tmp_path, monkeypatch):
    assert planted.command("report", run_copy, "-f", "md").stdout == stickytoken.report(run_copy, format="md")
    assert not (run_copy / "report.html").exists()
    opened = []
    monkeypatch.setattr("webbrowser.open", lambda url: opened.append(url) or len(opened) == 1)
    result = planted.command("report", run_copy, "--open")
    assert result.exit_code == 0, result.stderr
    assert result.stdout == f"report: {run_copy / 'report.html'}\n"
    assert (run_copy / "report.html").read_text("utf-8") == stickytoken.report(run_copy)
    result = planted.command("report", run_copy, "--open", "--out", tmp_path / "other.html")
    assert opened == [path.as_uri() for path in (run_copy / "report.html", tmp_path / "other.html")]
    assert result.exit_code == 1
    assert says(result.stderr, "browser")
    planted.assert_refused("report", run_copy, "--open", "-f", "md", saying=naming("--open", "HTML"))
    planted.assert_refused(
        "report", run_copy, "--figures", tmp_path / "other.html", saying=naming(tmp_path / "other.html")
    )


def test_the_steps_depend_on_what_was_found_and_whether_it_can_be_repaired(run, run_copy, clean_run):
    def commands(run):
        return [shlex.split(step.command)[1] for step in next_steps(run)]

    assert commands(run) == ["repair", "scan", "clean", "check"]
    assert commands(clean_run) == ["audit", "scan"]
    for step in (*next_steps(run), *next_steps(clean_run)):
        words = shlex.split(step.command)
        help_text = planted.command(words[1], "--help").stdout
        assert all(word in help_text for word in words if word.startswith("--"))
    document = json.loads((run_copy / "run.json").read_text("utf-8"))
    for loading, first in (
        ({"prompt": "prompteol", "layer": -1}, "scan"),
        ({"layer_choice": "saved with the model"}, "scan"),
        ({"layer": 1}, "scan"),
        ({"endpoint": {}}, "scan"),
        ({"prompt": ""}, "repair"),
    ):
        planted.edit_record(run_copy, model=document["model"] | {"loading": loading})
        assert commands(open_run(run_copy))[0] == first


@pytest.mark.parametrize(("worst", "first"), [("mild", "scan"), ("serious", "repair")])
def test_a_model_with_mild_tokens_alone_is_repaired_only_if_documents_repeat_them(
    run, retabled, worst, first
):
    grades = ["mild"] * len(run.tokens)
    grades[run.tokens["token_id"].to_list().index(run.sticky["token_id"][-1])] = worst
    folder = retabled(severity=pl.Series(grades))
    message = planted.command("show", folder).stderr
    assert f": stickytoken {first} " in message
    assert ("repair the model only if they do" in message) is (worst == "mild")
    commands = [shlex.split(step.command)[1] for step in next_steps(open_run(folder))]
    assert sorted(commands) == ["check", "clean", "repair", "scan"]
    (purpose,) = (step.purpose for step in next_steps(open_run(folder)) if " clean " in step.command)
    assert purpose.startswith("or take" if worst == "mild" else "then take")


@pytest.mark.parametrize(("passed", "first"), [(True, "embed"), (False, "repair"), (None, "repair")])
def test_a_verified_repair_is_used_and_not_written_again(run_copy, passed, first):
    record = repaired.repair_record(planted.PLANTED, passed=passed)
    folder = run_copy / f"repair-{record.identity}"
    folder.mkdir()
    (folder / "repair.json").write_text(record.model_dump_json(), encoding="utf-8")
    content = read_content(run_copy)
    listed_steps = next_steps(content.run, last_verified(content.repairs))
    assert [step.command.split()[1] for step in listed_steps] == [first, "scan", "clean", "check"]
    assert ("verified on 2026-01-01:" in stickytoken.report(run_copy)) is bool(passed)
    assert f"stickytoken {first} " in planted.command("show", run_copy).stderr


@pytest.mark.parametrize(
    ("changes", "options"),
    [
        ({}, []),
        ({"route": "document"}, ["--route", "document"]),
        ({"route": "query", "loading": {"route": "query"}}, ["--route", "query"]),
        ({"loading": {"prompt": "a b: ", "truncate_dim": 8}}, ["--prompt", "a b: ", "--truncate-dim", "8"]),
        ({"loading": {"prompt": "", "dtype": "float16"}}, ["--prompt", "", "--set", "dtype=float16"]),
    ],
)
def test_a_repaired_model_encodes_documents_as_the_run_did(run_copy, changes, options):
    document = json.loads((run_copy / "run.json").read_text("utf-8"))
    planted.edit_record(run_copy, model=document["model"] | changes)
    words = shlex.split(next_steps(open_run(run_copy), "2026-01-01")[0].command)
    end = ["--input", "YOUR_DOCUMENTS", "--out", "YOUR_VECTORS"]
    assert words == ["stickytoken", "embed", "YOUR_FOLDER", *options, *end]


def test_a_folder_with_a_hostile_name_is_one_word(run, tmp_path):
    folder = shutil.copytree(run.path, tmp_path / "a $(b) 'c' <d>")
    for step in next_steps(open_run(folder))[:3]:
        assert shlex.split(step.command)[2] == str(folder)
    html = stickytoken.report(folder)
    assert "<d>" not in html
    assert "$(b)" in html


def test_every_form_of_a_report_says_the_same(run, html):
    document = json.loads(stickytoken.report(run, format="json"))
    text = stickytoken.report(run, format="md").replace("\\", "")
    assert document["next_steps"] == [step._asdict() for step in next_steps(run)]
    rule = document["rule"][0]
    assert rule in text
    marks = ('class="card sticky"', 'id="steps"', str(escape(rule)), 'class="facts"')
    assert sorted(marks, key=html.index) == list(marks)
    for row in run.sticky.head(3).to_dicts():
        assert f"{escape(row['reason'][1:])}</bdi>" in html
        assert row["reason"] in text
    for step in next_steps(run):
        assert step.purpose[1:] in text
        assert f"{step.purpose[1:]}:" in html


def test_a_right_to_left_token_does_not_reverse_the_numbers_after_it(run_copy):
    table = pl.read_parquet(run_copy / "tokens.parquet")
    named = pl.when(pl.col("verdict") == "sticky").then(pl.lit("ذ")).otherwise("token")
    table.with_columns(token=named).write_parquet(run_copy / "tokens.parquet")
    cards = re.findall(r'<p class="harm">.*</p>', stickytoken.report(run_copy))
    assert "copies of &#39;<bdi>ذ</bdi>&#39;" in "".join(cards)


def test_a_report_needs_no_effects(run, html, run_copy, planted_encoder):
    """The example that comes with the package has none: they are large."""
    (run_copy / "effects.parquet").unlink()
    bare = open_run(run_copy)
    assert bare.tokens.equals(run.tokens)
    assert Page(stickytoken.report(run_copy).replace(str(run_copy), str(run.path))).text == Page(html).text
    before = planted.files_of(run_copy)
    profiled.detect_in_documents(planted_encoder, run_copy)
    assert planted.files_of(run_copy) == before


def test_a_hostile_reason_is_escaped_in_the_table(retabled):
    reason = pl.when(token="!").then(pl.lit("pushes <b>law"))
    html = stickytoken.report(retabled(reason=reason))
    assert '<td data-label="reason">pushes &lt;b&gt;law</td>' in html


def test_columns_that_no_flagged_token_fills_are_left_out(run, retabled):
    names = ("found", "documents")
    folder = retabled(**{name: pl.lit(None, run.tokens.schema[name]) for name in names})
    html = stickytoken.report(folder)
    assert '<td data-label="push"' in html
    assert '<td data-label="found by its queries"' not in html
    assert '<td data-label="documents"' not in html
    for other in ("md", "json"):
        stickytoken.report(folder, format=other)
    assert planted.command("show", folder).exit_code == 0


def test_a_number_that_only_some_tokens_have_is_a_dash_for_the_others(run, retabled):
    worst, second = run.tokens.sort("erased", descending=True)["token_id"][:2]
    flagged = pl.col("token_id").is_in([worst, second])
    verdict = pl.when(flagged).then(pl.lit("sticky")).otherwise("verdict")
    html = stickytoken.report(retabled(verdict=verdict, vector_deviation=pl.when(token_id=worst).then(0.5)))
    assert html.count('<td data-label="vector" data-value="">–</td>') == 1
    assert html.count('<td data-label="vector" class="number" data-value="0.5">0.5</td>') == 1


def test_the_glossary_explains_every_heading(run):
    """Headings that are plain words of English need no entry; the ends of an interval share one."""
    content = read_content(run.path)
    titles = {column.title.partition(",")[0] for column in columns(content)}
    assert titles - {"token", "script", "id"} <= set(glossary(content.run.method.TABLE))
    assert len({column.title for column in columns(content)}) == len(columns(content))


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        (plain([]), "–"),
        (plain(None), "–"),
        (plain(""), "(empty)"),
        (plain([8, 4]), "8, 4"),
        (plain({"token_prepending": True, "layer": -1}), "token prepending: yes, layer: −1"),
        (plain(-0.00158148), "−0.00158148"),
        (commands("run `detect A` again"), "run <code>detect A</code> again"),
        (commands("`a` and `<b>`"), "<code>a</code> and <code>&lt;b&gt;</code>"),
        (commands("a name ` <b>"), "a name ` &lt;b&gt;"),
        (commands("`\u202e`"), r"<code>\u202e</code>"),
        # A change near zero has no sign.
        (cosine(-0.0004, 3), "0.000"),
        (cosine(-0.0281, 3), "−0.028"),
        (cosine(None, 3), "–"),
        # What the digits do not show is less than they do, or zero.
        (number(0.04, 1), "< 0.1"),
        (number(-0.04, 1), "0.0"),
        (number(-0.06, 1), "−0.1"),
        (number(1234.5, 1), "1,234.5"),
        (number(-1234), "−1,234"),
        (number(999), "999"),
    ],
)
def test_settings_numbers_and_texts_are_written_for_people(written, shown):
    assert written == shown


@pytest.mark.parametrize("part", ["scans", "audits"])
def test_parts_that_a_report_leaves_out_are_counted(run_copy, part):
    content = read_content(run_copy)
    shown = facts.notes(replace(content, **{part: (None,) * 3}))
    assert facts.notes(replace(content, **{part: (None,) * 4})) == [
        *shown,
        f"only the latest 3 of 4 {part} in the run folder are shown",
    ]
