"""Interrupted explanations continue, finished ones are opened, others are refused."""

import json
from dataclasses import replace

import polars as pl
import pytest

import planted
import tiny
from stickytoken import load_encoder
from stickytoken.data.corpora import collect_sentences
from stickytoken.errors import RunError
from stickytoken.explanation import ExplainSettings, Explanation, explain
from stickytoken.explanation.files import read_explanation
from stickytoken.explanation.result import TABLES
from stickytoken.inspection.integrated_jacobians import JacobianIntegrator
from stickytoken.inspection.module_embedding import input_embeddings
from stickytoken.measurement import store

pytestmark = pytest.mark.slow  # whole runs

SETTINGS = ExplainSettings(
    copies=3, carriers=4, benign=4, attribution_carriers=1, attribution_benign=3, steps=3, directions=16
)
OPTIONS = {"sentences": collect_sentences(tiny.sentences(40), "test"), "settings": SETTINGS}


@pytest.fixture(scope="module")
def encoder(bert_folder):
    return load_encoder(bert_folder, device="cpu")


@pytest.fixture(scope="module")
def whole(encoder, tmp_path_factory):
    """An explanation that was not interrupted, and its files."""
    out = tmp_path_factory.mktemp("whole")
    return explain(encoder, ["river"], out=out, **OPTIONS), out


def contents(folder):
    return {
        path.relative_to(folder): path.read_bytes() for path in folder.rglob("*.*") if path.name != ".lock"
    }


def test_an_interrupt_loses_only_the_text_that_is_being_attributed(encoder, whole, tmp_path, monkeypatch):
    texts, attribute = [], JacobianIntegrator.contributions

    def counted(self, content, *arguments):
        texts.append(tuple(content))
        if len(texts) == 4:
            raise KeyboardInterrupt
        return attribute(self, content, *arguments)

    monkeypatch.setattr(JacobianIntegrator, "contributions", counted)
    with pytest.raises(KeyboardInterrupt):
        explain(encoder, ["river"], out=tmp_path, **OPTIONS)
    (folder,) = tmp_path.iterdir()
    # What is known by then can be read.
    areas = set(pl.read_parquet(folder / "measures.parquet")["area"])
    assert "attention" in areas
    assert "attribution" not in areas
    assert not (folder / "explanation.json").exists()
    events = []
    explain(encoder, ["river"], out=tmp_path, progress=events.append, **OPTIONS)
    lost = texts.pop(3)
    assert texts[3] == lost
    # One text of the token and of each of three benign ones, and both texts of the pair.
    assert len(texts) == 1 + SETTINGS.attribution_benign + 2
    assert "inside" not in {event.stage for event in events}
    # Those of the token itself had been kept: they count as done, not as computed.
    steps = [event for event in events if event.stage == "attribution"]
    assert (steps[1].computed, steps[-1].computed) == (0, SETTINGS.attribution_benign * steps[1].done)
    assert steps[-1].done == steps[-1].total
    assert contents(tmp_path) == contents(whole[1])


@pytest.mark.parametrize("moment", ["heads.parquet", "explanation.json"])
def test_an_interrupt_while_a_file_is_written_is_continued(encoder, whole, tmp_path, monkeypatch, moment):
    write = store.write_atomically

    def interrupted(path, content):
        if path.name == moment:
            raise KeyboardInterrupt
        write(path, content)

    monkeypatch.setattr(store, "write_atomically", interrupted)
    with pytest.raises(KeyboardInterrupt):
        explain(encoder, ["river"], out=tmp_path, **OPTIONS)
    monkeypatch.undo()
    explain(encoder, ["river"], out=tmp_path, **OPTIONS)
    assert contents(tmp_path) == contents(whole[1])


def test_progress_of_attribution_counts_parts_of_texts(encoder):
    events = []
    found = explain(encoder, ["river"], progress=events.append, **OPTIONS)
    steps = [event for event in events if event.stage == "attribution"]
    rows, columns = found.attribution["row"].max(), found.attribution["column"].max()  # without references
    assert steps[-1].total == 2 * (1 + SETTINGS.attribution_benign) + rows + columns
    assert [event.done for event in steps[:3]] == [0, 2, 2 + rows + columns]
    assert all(event.done == event.computed for event in steps)


def test_a_finished_explanation_is_opened_and_says_the_same(encoder, whole):
    first, out = whole
    before, events = planted.files_of(out), []
    second = explain(encoder, ["river"], out=out, progress=events.append, **OPTIONS)
    assert events == []
    assert planted.files_of(out) == before
    assert second.document() == first.document()
    assert second.settings == first.settings
    for name in TABLES:
        assert getattr(second, name).equals(getattr(first, name)), name
    assert {k: json.loads(json.dumps(each)) for k, each in first.parts.items()} == second.parts


def test_a_token_without_an_embedding_and_the_settings_of_a_later_version_are_opened(bert_folder, tmp_path):
    encoder = load_encoder(bert_folder, device="cpu")
    token_id = next(k for k, token in encoder.tokenizer.entries.items() if token == "river")
    input_embeddings(encoder.model).weight.data[token_id] = 0
    settings = replace(SETTINGS, attribution=False)
    found = explain(encoder, ["river"], out=tmp_path, **OPTIONS | {"settings": settings})
    assert found.measures.filter(measure="embedding_cosine_to_mean")["value"].item() is None
    path = tmp_path / str(token_id) / "explanation.json"
    record = json.loads(path.read_text("utf-8"))
    path.write_text(json.dumps(record | {"settings": record["settings"] | {"later": 1}}), encoding="utf-8")
    opened = Explanation([read_explanation(path.parent)])
    assert opened.measures.equals(found.measures)
    assert opened.settings == settings


def test_a_folder_of_another_explanation_is_refused(encoder, bert_folder, whole):
    out = whole[1]
    before = planted.files_of(out)
    changed = load_encoder(bert_folder, device="cpu")
    next(changed.model.parameters()).data[7] += 1
    for model, options, part in (
        (encoder, {"settings": replace(SETTINGS, benign=5)}, r"benign.*, settings\.benign"),
        (encoder, {"sentences": collect_sentences(tiny.sentences(40)[5:], "test")}, "anchors"),
        (encoder, {"texts": ["the river sings"]}, "carriers"),
        (changed, {}, r"encoder\.weights\)"),
    ):
        with pytest.raises(RunError, match=f"contains a different explanation \\(it differs in .*{part}"):
            explain(model, ["river"], out=out, **OPTIONS | options)
    assert planted.files_of(out) == before
