"""What the web app computes where a visitor tries a token or a repair, and what it lets a visitor ask."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose

import repaired
import web_app
from stickytoken import load_encoder
from stickytoken.demo._compare import RepairView
from stickytoken.demo._try import (
    Question,
    describe_answer,
    measure_trial,
    pair_heatmap,
    plan_trial,
    similarity_curve,
)
from stickytoken.demo.context import (
    COPIES,
    TEXT_CHARACTERS,
    SharedModel,
    Startup,
    checked_choices,
    checked_count,
    checked_placement,
    checked_text,
    checked_token_id,
    named_token,
)
from stickytoken.encoders.loading.load import loaded_like
from stickytoken.errors import InputError
from stickytoken.insertion import Placement, Token, insert_as_ids
from stickytoken.repairs import repair
from stickytoken.repairs.result import REPAIR_FILE, open_repair

A, B = "the river is old and quiet.", "a baker opens the window"
OTHERS = ("a bird sings in winter.", "the doctor mends a copper engine")

# Inputs.


def empty(text):
    return checked_text("sentence A", text)


def copies(value):
    return checked_count("copies", value, 1, COPIES)


def verdicts(value):
    return checked_choices("verdict", value)


@pytest.mark.parametrize(
    ("check", "values", "reason"),
    [
        (empty, ("", "  \n", None, 3, ["a"]), "sentence A is empty"),
        (
            empty,
            ("x" * (TEXT_CHARACTERS + 1),),
            "it has 1,001 characters|has 1,001 characters, and the limit",
        ),
        (
            copies,
            (0, COPIES + 1, 2.5, -1, float("nan"), 10**400),
            "copies is .*: enter a whole number from 1",
        ),
        (copies, (None,), "copies is empty: enter a whole number"),
        (copies, (True, "3", [3]), "copies is not a number: enter a whole number"),
        (checked_placement, ("middle", None, ["suffix"]), "the place of the copies is unknown"),
        (checked_token_id, ("x", "1" * 10, True, 1.0, None, 10**9), "no token with that id"),
        (verdicts, ("sticky", [1]), "verdict is not a list"),
    ],
)
def test_what_no_field_sends_is_refused(check, values, reason):
    for value in values:
        with pytest.raises(InputError, match=reason):
            check(value)


def test_what_fields_send_is_read():
    assert checked_text("it", "x" * TEXT_CHARACTERS)
    assert (copies(1), copies(COPIES)) == (1, COPIES)
    assert checked_placement("suffix") is Placement.SUFFIX
    assert (checked_token_id(7), checked_token_id("7")) == (7, 7)
    assert verdicts(None) == ()
    assert verdicts(["sticky"]) == ("sticky",)


def test_a_token_is_named_by_its_string_or_its_id(shared_model):
    river = named_token(shared_model.vocabulary, "river")
    assert river.text.strip() == "river"
    assert named_token(shared_model.vocabulary, f" #{river.id} ") == river
    for token in shared_model.vocabulary.available:
        assert named_token(shared_model.vocabulary, shared_model.name_of(token.id)) == token
    with pytest.raises(InputError, match="no token id 99999"):
        shared_model.name_of(99999)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "the token is empty"),
        (None, "the token is empty"),
        (5, "the token is empty"),
        ("volcano", "the vocabulary has no token 'volcano'"),
        ("#99999", "token id 99999 cannot occur in text"),
        ("#999999999999999999999", "the vocabulary has no token"),
        ("99999", "if you mean the id, write #99999"),
        ("[unused0]", "cannot occur in text"),
        ("x" * 201, "the token has 201 characters"),
    ],
)
def test_a_token_that_nobody_can_try_is_refused(shared_model, name, reason):
    with pytest.raises(InputError, match=reason):
        named_token(shared_model.vocabulary, name)


# Try.


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


# Repair.


@pytest.fixture(scope="module")
def mended(tmp_path_factory):
    """A run, and the repair of its sticky word."""
    run = repaired.saved_run(tmp_path_factory.mktemp("repaired"), repaired.WORD)
    out = tmp_path_factory.mktemp("out") / "model"
    return run, repair(run, out=out, strategy="unreachable", verify=False)


@pytest.fixture(scope="module")
def view(mended):
    run, found = mended
    context = web_app.context_of(run.path.parent / "model", [run.path])
    with context.model.encoder() as encoder:
        own = SharedModel(loaded_like(encoder, found.path))
    assert context.model.is_model_of(found.record)
    assert not own.is_model_of(found.record)
    return opened(found, context, own)


def opened(found, context, own):
    startup = Startup(context.model.name, context.library, found)
    startup.finish(
        lambda: type(context)(context.model, context.library, context.content, context.corpus, own)
    )
    return RepairView(startup, found)


def token_of(mended):
    return mended[1].record.tokens[0].token_id


def cosine(model, first, second):
    a, b = (model.encode([text])[0].astype(np.float64) for text in (first, second))
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


@pytest.mark.parametrize("placement", list(Placement))
def test_both_models_read_what_the_visitor_wrote(view, mended, placement):
    run, found = mended
    answer = view.answer(A, B, token_of(mended), placement.value, 4)
    before, after = answer.lines["before the repair"], answer.lines["after the repair"]
    assert before[0] == pytest.approx(after[0])
    assert answer.same
    assert answer.at("before the repair") > answer.at("after the repair")
    assert answer.change("before the repair") == pytest.approx(before[answer.counts.index(4)] - before[0])
    assert list(answer.read).count(repaired.WORD) == 0
    if placement is Placement.SUFFIX:
        original = load_encoder(run.path.parent / "model")
        text = " ".join([B, *[repaired.WORD] * 4])
        assert answer.at("before the repair") == pytest.approx(cosine(original, A, text))
        assert answer.at("after the repair") == pytest.approx(cosine(load_encoder(found.path), A, text))


def test_the_answer_is_shown_with_its_figure_and_says_that_nothing_was_verified(view, mended):
    said, *slot = view.answered(A, B, token_of(mended), "suffix", 8)
    assert "not verified" in said
    assert "8 copies of" in said
    assert slot[0]["visible"]
    asked, *_ = view.opening()
    assert asked["interactive"]


def test_hostile_names_reasons_and_findings_are_text(view, mended, tmp_path):
    evil = "</script><img src=x onerror=alert(1)>"
    found = mended[1]
    token = found.record.tokens[0].model_copy(update={"token": evil, "text": evil, "reason": evil})
    verification = repaired.repair_record(evil).verification
    record = found.record.model_copy(update={"tokens": [token], "verification": verification})
    (tmp_path / evil.replace("/", "")).mkdir()
    (tmp_path / evil.replace("/", "") / REPAIR_FILE).write_text(record.model_dump_json(), "utf-8")
    hostile = RepairView(view._startup, open_repair(tmp_path / evil.replace("/", "")))
    said, slot, *_ = hostile.answered(A, f"{B} {evil}", token.token_id, "suffix", 4)
    assert "alert(1)" in said
    assert "<img" not in said + str(slot)
    assert "<script" not in said + str(slot)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({0: " "}, "sentence A is empty"),
        ({1: 5}, "sentence B is empty"),
        ({2: 10**6}, "no token with that id"),
        ({2: None}, "no token with that id"),
        ({3: "above"}, "place of the copies"),
        ({4: 0}, "1 to 32"),
    ],
)
def test_what_cannot_be_used_is_refused(view, mended, change, reason):
    asked = dict(enumerate((A, B, token_of(mended), "suffix", 4))) | change
    with pytest.raises(InputError, match=reason):
        view.answer(*asked.values())


def test_a_repair_of_another_model_is_refused(mended, bert_folder):
    other = opened(mended[1], web_app.context_of(bert_folder), None)
    with pytest.raises(InputError, match="of a different model than"):
        other.answer(A, B, token_of(mended), "suffix", 4)
