"""What the web app computes where a visitor tries a token."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose

from stickytoken import load_encoder
from stickytoken.demo._try import (
    Question,
    describe_answer,
    measure_trial,
    pair_heatmap,
    plan_trial,
    similarity_curve,
)
from stickytoken.demo.context import named_token
from stickytoken.errors import InputError
from stickytoken.insertion import Placement, Token, insert_as_ids

A, B = "the river is old and quiet.", "a baker opens the window"
OTHERS = ("a bird sings in winter.", "the doctor mends a copper engine")


def question(shared_model, name="river", placement=Placement.SUFFIX, copies=3, **changes):
    token = named_token(shared_model.vocabulary, name)
    benign = shared_model.benign(token.id, None, 3)
    return replace(Question(A, B, token, placement, copies, benign, OTHERS), **changes)


@pytest.mark.parametrize("placement", list(Placement))
def test_a_trial_equals_texts_encoded_one_by_one(shared_model, placement):
    asked = question(shared_model, placement=placement)
    with shared_model.encoder() as encoder:
        answer = measure_trial(encoder, plan_trial(encoder, asked))
        trial = answer.trial

        def unit(ids):
            vector = encoder.encode_ids([ids])[0].astype(float)
            return vector / np.linalg.norm(vector)

        anchor = unit(trial.anchor)
        slow = [float(unit(ids) @ anchor) for ids in trial.curves[0]]
        plain = np.array([unit(ids) for ids in trial.plain])
        token = np.array([unit(ids) for ids in trial.with_token])
        before = unit(encoder.tokenize([B])[0].ids) @ anchor
    assert_allclose(answer.curve, slow, atol=1e-5)
    assert_allclose(answer.plain, plain @ plain.T, atol=1e-5)
    assert_allclose(answer.with_token, token @ plain.T, atol=1e-5)
    assert answer.before == pytest.approx(before, abs=1e-5)
    # B with its copies against A: a cell of the heat-map is a point of the curve.
    assert answer.with_token[1, 0] == pytest.approx(answer.after, abs=1e-5)
    assert answer.with_benign[1, 0] == pytest.approx(answer.benign_after[0], abs=1e-5)


def test_copies_stand_where_they_are_asked_for(shared_model):
    with shared_model.encoder() as encoder:
        plain = encoder.tokenize([B])[0]
        for placement in (Placement.PREFIX, Placement.SUFFIX):
            asked = question(shared_model, placement=placement)
            trial = plan_trial(encoder, asked)
            wanted = insert_as_ids(asked.token, plain, placement, 32)
            assert trial.curves[0] == tuple([plain.ids, *wanted][n] for n in trial.counts)


def test_random_copies_are_nested_and_stand_alike_for_every_token(shared_model):
    with shared_model.encoder() as encoder:
        asked = question(shared_model, placement=Placement.RANDOM)
        trial = plan_trial(encoder, asked)
    own, other = trial.curves[0], trial.curves[1]
    for ids, count in zip(own, trial.counts, strict=True):
        assert ids.count(asked.token.id) == count
    swapped = [tuple(asked.benign[0].id if k == asked.token.id else k for k in ids) for ids in own]
    assert swapped == list(other)


def test_the_number_asked_for_is_on_the_curve(shared_model):
    with shared_model.encoder() as encoder:
        trial = plan_trial(encoder, question(shared_model, copies=5))
    assert trial.counts == (0, 1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32)


def test_what_the_model_does_not_read_whole_is_refused_or_left_out(shared_model):
    long = " ".join(["river"] * 40)
    with shared_model.encoder() as encoder:
        with pytest.raises(InputError, match=r"sentence B has 72 tokens with 32 copies, more than"):
            plan_trial(encoder, question(shared_model, carrier=long, copies=32))
        with pytest.raises(InputError, match="sentence A has 80 tokens, more than"):
            plan_trial(encoder, question(shared_model, anchor=f"{long} {long}"))
        trial = plan_trial(encoder, question(shared_model, carrier=long, copies=12))
        assert trial.counts[-1] == 16
        trial = plan_trial(encoder, question(shared_model, others=(long, *OTHERS), copies=30))
        assert trial.names == ("A", "B", "D", "E")
        assert trial.texts == (A, B, *OTHERS)


def test_a_text_without_tokens_is_refused(planted_profile):
    encoder = load_encoder(planted_profile[0])
    with pytest.raises(InputError, match="sentence A has no tokens"):
        plan_trial(encoder, Question("\u200b", "bada", Token(70, "bada"), Placement.SUFFIX, 1, (), ()))


def test_figures_of_a_trial_say_what_was_measured(shared_model):
    with shared_model.encoder() as encoder:
        answer = measure_trial(encoder, plan_trial(encoder, question(shared_model)))
    names = [shared_model.vocabulary.decoded[token.id] for token in answer.trial.question.benign]
    curve = similarity_curve(answer, "river", names, 0.3)
    drawn = {trace.name: list(trace.y) for trace in curve.plot.data if trace.mode == "lines+markers"}
    assert_allclose(next(iter(drawn.values())), answer.curve, atol=1e-5)
    assert f"from {answer.before:.3f} to {answer.after:.3f}" in curve.alt
    assert [row[0] for row in curve.table.rows] == ["river", *(f"{name} (benign)" for name in names)]
    assert describe_answer(answer, "river").startswith("3 copies of river change the similarity")
    inside = min(answer.benign_after) <= answer.after <= max(answer.benign_after)
    ends = "): it is within their range." if inside else "): it is outside their range."
    assert describe_answer(answer, "river").endswith(ends)
    pairs = pair_heatmap(answer, "river", names[0])
    assert len(pairs.plot.data) == 3
    assert_allclose(np.array(pairs.plot.data[1].z), answer.with_token, atol=1e-3)
    assert [row[:2] for row in pairs.table.rows] == list(zip("ABCD", (A, B, *OTHERS), strict=True))
