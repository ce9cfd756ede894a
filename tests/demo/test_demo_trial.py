"""What the web app computes where a visitor tries a token, and what it lets a visitor ask."""

from html import unescape
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose

import web_app
from naming import naming, says
from stickytoken import load_encoder, load_sentences
from stickytoken.demo.context import AppContext, SharedModel, find_runs, named_token
from stickytoken.errors import InputError
from stickytoken.insertion import Placement, insert_as_ids
from stickytoken.unit_vectors import exact_unit_vectors
from task_files import Counting

A, B = "the river is old and quiet.", "a baker opens the window"
COUNTS = [0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32]
BENIGN = 4


@pytest.fixture(scope="module")
def counting(bert_folder):
    return Counting(load_encoder(bert_folder))


@pytest.fixture(scope="module")
def model(counting):
    return SharedModel(counting)


@pytest.fixture(scope="module")
def ask(model):
    context = AppContext(model, find_runs([], Path("no-such"), []), None, load_sentences(None))
    return web_app.event_of(web_app.started(context), "click", *web_app.TRY)


@pytest.fixture
def tried(ask, counting):
    def tried(*values):
        counting.seen.clear()
        return web_app.plots(ask(*values)), list(counting.seen)

    return tried


@pytest.mark.parametrize(
    ("place", "values", "named"),
    [
        (0, ("", "  \n", None, 3, ["a"]), ["sentence A", "empty"]),
        (1, ("x" * 1001,), ["sentence B", "1,001", "1,000"]),
        (4, (0, 33, 2.5, -1, float("nan"), 10**400), ["copies", "whole number", "1 to 32"]),
        (4, (None,), ["copies", "empty"]),
        (4, (True, "3", [3]), ["copies", "number"]),
        (3, ("middle", None, ["suffix"]), ["place"]),
        (2, ("", None, 5), ["token", "empty"]),
        (2, ("volcano",), ["'volcano'"]),
        (2, ("#99999", "[unused0]"), ["cannot occur in text"]),
        (2, ("#999999999999999999999",), ["no token"]),
        (2, ("99999",), ["#99999"]),
        (2, ("x" * 201,), ["token", 201]),
    ],
)
def test_what_no_field_sends_is_refused_and_not_computed(ask, counting, place, values, named):
    counting.seen.clear()
    for value in values:
        asked = [A, B, "river", "suffix", 3]
        asked[place] = value
        message, *rest = ask(*asked)
        assert says(unescape(message), *named)
        assert web_app.plots(rest) == []
    assert counting.seen == []


def test_every_token_has_a_name_that_finds_it(model):
    river = named_token(model.vocabulary, "river")
    assert river.text.strip() == "river"
    assert named_token(model.vocabulary, f" #{river.id} ") == river
    for token in model.vocabulary.available:
        assert named_token(model.vocabulary, model.name_of(token.id)) == token
    with pytest.raises(InputError, match=naming(99999)):
        model.name_of(99999)


@pytest.mark.parametrize("placement", list(Placement))
def test_a_trial_equals_texts_encoded_one_by_one(tried, counting, model, placement):
    (curve, heat), texts_seen = tried(A, B, "river", placement.value, 3)
    anchor, *rest = exact_unit_vectors(np.stack([counting.encode_ids([ids])[0] for ids in texts_seen]))
    assert_allclose(anchor, exact_unit_vectors(counting.encode([A]))[0], atol=1e-5)
    if placement is not Placement.RANDOM:
        token = named_token(model.vocabulary, "river")
        plain = counting.tokenize([B])[0]
        texts = [plain.ids, *insert_as_ids(token, plain, placement, 32)]
        assert texts_seen[1 : 1 + len(COUNTS)] == [texts[count] for count in COUNTS]
    curves, rest = np.split(np.stack(rest), [len(COUNTS) * (1 + BENIGN)])
    lines = (curves @ anchor).reshape(1 + BENIGN, len(COUNTS))
    (line,) = [trace for trace in curve.data if trace.mode == "lines+markers"]
    assert_allclose(line.y, lines[0], atol=2e-5)
    (mean,) = [trace for trace in curve.data if trace.line.dash == "dash"]
    assert_allclose(mean.y, lines[1:].mean(axis=0), atol=2e-5)
    plain, token, benign = np.split(rest, 3)
    for cells, rows in zip(heat.data, (plain, token, benign), strict=True):
        assert_allclose(np.array(cells.z), rows @ plain.T, atol=1e-3)
    # Colours are for pairs of different sentences: one is always most similar to itself.
    pairs = np.array([np.array(cells.z)[~np.eye(len(plain), dtype=bool)] for cells in heat.data])
    assert heat.layout.coloraxis.cmax == pytest.approx(pairs.max(), abs=1e-3)
    # B with its copies against A: a cell of the heat map is a point of the curve.
    assert heat.data[1].z[1][0] == pytest.approx(line.y[COUNTS.index(3)], abs=1e-3)


def test_random_copies_stand_alike_for_every_token(tried, model):
    _, texts_seen = tried(A, B, "river", "random", 3)
    token = named_token(model.vocabulary, "river").id
    first_texts = texts_seen[1 : 1 + len(COUNTS)]
    other = texts_seen[1 + len(COUNTS) : 1 + 2 * len(COUNTS)]
    assert [ids.count(token) for ids in first_texts] == COUNTS
    (benign,) = set(other[-1]) - set(first_texts[-1])
    assert [tuple(benign if k == token else k for k in ids) for ids in first_texts] == other


def test_the_number_asked_for_is_on_the_curve_and_said(ask):
    message, *rest = ask(A, B, "river", "suffix", 5)
    curve, _ = web_app.plots(rest)
    (line,) = [trace for trace in curve.data if trace.mode == "lines+markers"]
    assert list(line.customdata) == [*COUNTS[:5], 5, *COUNTS[5:]]
    assert says(message.replace("−", "-"), f"{line.y[0]:.3f}", f"{line.y[5]:.3f}")
    (band,) = [trace for trace in curve.data if trace.fill == "toself"]
    low, high = sorted((band.y[5], band.y[-6]))
    assert f"it is {'within' if low <= line.y[5] <= high else 'outside'} their range" in unescape(message)


def test_what_the_model_does_not_read_whole_is_refused_or_left_out(ask):
    long = " ".join(["river"] * 40)
    assert says(ask(A, long, "river", "suffix", 32)[0], 72)
    assert says(ask(f"{long} {long}", B, "river", "suffix", 3)[0], "sentence A", 80)
    curve, heat = web_app.plots(ask(A, long, "river", "suffix", 12))
    assert curve.data[-1].customdata[-1] == 16
    assert heat.data[0].y[:2] == ("A", "B")


def test_a_text_without_tokens_is_refused(planted_profile):
    startup = web_app.started(web_app.context_of(planted_profile[0]))
    message = web_app.event_of(startup, "click", *web_app.TRY)("\u200b", "baba", "baba", "suffix", 1)[0]
    assert says(message, "sentence A", "no tokens")
