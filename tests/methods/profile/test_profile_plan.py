"""Which texts carry, which are compared with."""

import pytest

import profiled
from stickytoken import load_encoder
from stickytoken.corpora.corpus import collect_sentences, open_ended

ROUNDS = ("screen", "refine", "confirm")
ENDINGS = [".", "!", "?!", " .", "...", "…", "。", '."', ".)", ""]


@pytest.fixture(scope="module")
def encoder():
    return load_encoder(profiled.planted_model(2))


@pytest.fixture(scope="module")
def run(encoder, tmp_path_factory):
    return profiled.detect_profile(encoder, tmp_path_factory.mktemp("plan") / "run")


def carriers_of(run):
    return [text for step in ROUNDS for text in run.plan.carriers[step]]


def test_anchors_and_carriers_share_no_sentence_and_rounds_share_no_carrier(run):
    plan, carriers = run.plan, carriers_of(run)
    assert [len(plan.carriers[step]) for step in ROUNDS] == [3, 4, 24]
    anchors = [anchor.text for anchor in plan.sentence_anchors]
    texts = set(profiled.corpus().texts)
    assert set(anchors) <= texts
    assert {f"{text}." for text in carriers} <= texts - set(anchors)
    assert len(set(carriers)) == len(carriers)
    assert len(set(anchors)) == len(anchors)
    assert set(plan.late_reference) <= set(plan.reference)
    assert len(plan.reference) == 250


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_text_loses_the_punctuation_that_ends_it_and_no_other(ending):
    assert open_ended(f"Mr. O'Neil (72) isn't here{ending}") == "Mr. O'Neil (72) isn't here"


@pytest.mark.parametrize("text", ["...", "", " ?! ", "a", "100 €", "x = 3 +"])
def test_a_text_of_punctuation_alone_and_one_that_ends_with_a_word_or_symbol_stay(text):
    assert open_ended(text) == text


def test_carriers_of_corpora_that_differ_in_their_endings_alone_are_the_same(encoder, tmp_path):
    bare = [text.removesuffix(".") for text in profiled.corpus().texts]
    corpora = ([*bare], [f"{text} {ENDINGS[k % len(ENDINGS)]}" for k, text in enumerate(bare)])
    first, second = (
        profiled.detect_profile(
            encoder, tmp_path / str(k), sentences=collect_sentences(texts, "test"), tokens=[34]
        )
        for k, texts in enumerate(corpora)
    )
    # Length counts the mark, so that ties between short sentences may fall otherwise.
    common = set(carriers_of(first)) & set(carriers_of(second))
    assert set(carriers_of(second)) <= set(bare)
    assert len(common) > 0.5 * len(carriers_of(first))


def test_a_sentence_with_several_endings_carries_once(encoder, tmp_path):
    texts = [*profiled.sentences(80), *(f"{text}!" for text in profiled.sentences(80))]
    run = profiled.detect_profile(
        encoder, tmp_path / "run", sentences=collect_sentences(texts, "test"), tokens=[34]
    )
    carriers = carriers_of(run)
    assert len(set(carriers)) == len(carriers) == 31
