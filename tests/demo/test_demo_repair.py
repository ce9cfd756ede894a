"""The tab Repair: both models on a visitor's sentences."""

import numpy as np
import pytest

pytest.importorskip("gradio", reason="gradio is not installed")

import repaired
import web_app
from stickytoken import load_encoder
from stickytoken.demo._compare import NO_REPAIR, RepairView
from stickytoken.demo.context import SharedModel, Startup
from stickytoken.encoders.loading.load import loaded_like
from stickytoken.errors import InputError
from stickytoken.insertion import Placement
from stickytoken.repairs import repair
from stickytoken.repairs.result import REPAIR_FILE, open_repair

A, B = "the river sings in winter", "a stone falls behind the old market"


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


def test_without_a_repair_the_page_says_how_to_make_one(page):
    panel = web_app.open_tab(page, "Repair")
    assert panel.locator("code").all_inner_texts() == NO_REPAIR.split("`")[1::2]
