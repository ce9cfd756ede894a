"""The plan: which texts carry, which are compared with, and the numbers that describe them."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

import profiled
from stickytoken import load_encoder
from stickytoken.corpora import load_sentences
from stickytoken.corpora.corpus import collect_sentences, open_ended
from stickytoken.encoders import analyze_vocabulary
from stickytoken.errors import InputError
from stickytoken.insertion import Insertion
from stickytoken.methods.profile.anchors import TextGroup, short_texts, sources
from stickytoken.methods.profile.plan import make_profile_plan
from stickytoken.methods.profile.settings import ProfileSettings

ENDINGS = [".", "!", "?!", " .", "...", "…", "。", '."', ".)", ""]


@pytest.fixture(scope="module")
def model():
    return profiled.planted_model(2)


@pytest.fixture(scope="module")
def encoder(model):
    return load_encoder(model)


@pytest.fixture(scope="module")
def foreign():
    return load_encoder(profiled.foreign_model())


def planned(encoder, corpus, settings=profiled.SMALL):
    available = analyze_vocabulary(encoder).available
    return make_profile_plan(encoder, settings, corpus, available, lambda progress: None)


@pytest.fixture(scope="module")
def plan(encoder):
    return planned(encoder, profiled.corpus())


def test_anchors_and_carriers_share_no_sentence(plan):
    anchors = [anchor.text for anchor in plan.anchors]
    own = [anchor.text for anchor in plan.anchors if plan.groups[anchor.group].weight > 0]
    texts = set(profiled.corpus().texts)
    assert set(own) <= texts
    assert {f"{text}." for text in plan.carriers} <= texts - set(anchors)
    assert len(set(plan.carriers)) == len(plan.carriers) == 3 + 24
    assert len(set(anchors)) == len(anchors)


def test_without_a_corpus_carriers_come_from_all_kinds_in_turn(encoder):
    groups = sources(encoder, load_sentences()).own
    needed = 51
    found = list(short_texts(encoder, ProfileSettings(), groups, needed, "test").values())[:needed]
    sizes = Counter(group.name for text in found for group in groups if text in group.texts)
    assert set(sizes) == {group.name for group in groups}
    assert set(sizes.values()) == {4, 5}


def test_reference_tokens_are_random_and_the_pilot_is_a_part_of_them(encoder, plan):
    available = {token.id for token in analyze_vocabulary(encoder).available}
    assert set(plan.late_reference) <= set(plan.reference) <= available
    assert (len(plan.reference), len(plan.late_reference)) == (250, 128)
    assert plan.reference == sorted(set(plan.reference))
    fewer = planned(encoder, profiled.corpus(), replace(profiled.SMALL, reference=50))
    assert fewer.late_reference == fewer.reference
    assert len(fewer.reference) == 50
    assert set(fewer.reference) <= set(plan.reference)


def test_the_numbers_of_a_plan_equal_loops_over_pairs(model, plan, encoder):
    named = {token.id: token.text for token in analyze_vocabulary(encoder).available}
    texts = [(anchor.text, anchor.group) for anchor in plan.anchors]
    texts += [(named[token_id], len(plan.groups) - 1) for token_id in plan.vocabulary_anchors]
    sizes = Counter(group for _, group in texts)
    carriers = model.encode(plan.carriers, normalize_embeddings=True)
    before = carriers @ model.encode([text for text, _ in texts], normalize_embeddings=True).T
    pairs, weights, below = [], [], 0.0
    for k in range(len(plan.carriers)):
        for a, (_, group) in enumerate(texts):
            pairs.append(float(before[k, a]))
            weights.append(plan.groups[group].weight / sizes[group] / len(plan.carriers))
            below += weights[-1] * (pairs[-1] < plan.mean_similarity)
    assert sum(weights) == pytest.approx(1)
    mean = sum(w * pair for w, pair in zip(weights, pairs, strict=True))
    variance = sum(w * (pair - mean) ** 2 for w, pair in zip(weights, pairs, strict=True))
    assert plan.similarity_spread == pytest.approx(variance**0.5, abs=1e-5)
    assert plan.share_below == pytest.approx(below, abs=1e-6)
    for place, group in enumerate(plan.groups):
        columns = [a for a, (_, own) in enumerate(texts) if own == place]
        assert group.spread == pytest.approx(np.std(before[:, columns]), abs=1e-5)


def test_a_plan_is_a_function_of_its_inputs(encoder, plan):
    assert planned(encoder, profiled.corpus()) == plan


# carriers


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_text_loses_the_punctuation_that_ends_it_and_no_other(ending):
    assert open_ended(f"Mr. O'Neil (72) isn't here{ending}") == "Mr. O'Neil (72) isn't here"


@pytest.mark.parametrize("text", ["...", "", " ?! ", "a", "100 €", "x = 3 +"])
def test_a_text_of_punctuation_alone_and_one_that_ends_with_a_word_or_symbol_stay(text):
    assert open_ended(text) == text


def test_carriers_of_corpora_that_differ_in_their_endings_alone_are_the_same(encoder):
    bare = [text.removesuffix(".") for text in profiled.sentences(200)]
    marked = [f"{text}{'.?,'[k % 3]}" for k, text in enumerate(bare)]
    found = [
        short_texts(encoder, profiled.SMALL, [TextGroup("own", texts, 1.0, False)], 27, "test")
        for texts in (bare, marked)
    ]
    assert list(found[0]) == list(found[1])
    assert list(found[0].values()) == list(found[0])
    assert all(text[:-1] == carrier for carrier, text in found[1].items())


def test_a_sentence_with_several_endings_carries_once(encoder):
    texts = [*profiled.sentences(80), *(f"{text}!" for text in profiled.sentences(80))]
    carriers = planned(encoder, collect_sentences(texts, "test")).carriers
    assert len(set(carriers)) == len(carriers) == 27


def test_carriers_are_among_the_shortest_texts_of_their_kind(encoder):
    texts = profiled.sentences(400)
    found = short_texts(encoder, profiled.SMALL, [TextGroup("own", texts, 1.0, True)], 20, "test")
    assert all(open_ended(text) == carrier for carrier, text in found.items())
    lengths = sorted(map(len, encoder.content_ids(texts)))
    assert len(found) == 30  # half as many again, of which the plan takes those that it can use
    assert sorted(map(len, encoder.content_ids(list(found.values())))) == lengths[:30]


def test_all_sentences_of_a_corpus_may_carry_and_long_texts_do_by_their_first(encoder):
    sentences = profiled.sentences(200)
    texts = [*sentences[:100], *(" ".join([text, *sentences[:4]]) for text in sentences[100:])]
    found = short_texts(encoder, profiled.SMALL, [TextGroup("own", texts, 1.0, False)], 20, "test")
    assert len(found) == 100  # half of the texts stay for the anchors
    assert {open_ended(text) for text in sentences} >= set(found)
    for carrier, text in found.items():
        assert text in texts
        assert text.startswith(carrier)
    assert {len(text) > len(carrier) + 1 for carrier, text in found.items()} == {True, False}


def test_groups_with_few_texts_leave_their_carriers_to_the_others(foreign):
    """Four topics, of which two have one sentence."""
    corpus = profiled.corpus(160, topics=2)
    topics = [f"rare {k}" if k < 2 else topic for k, topic in enumerate(corpus.topics)]
    plan = planned(foreign, replace(corpus, topics=tuple(topics)))
    assert len(plan.carriers) == 27
    assert "rare 0" not in {group.name for group in plan.groups}


@pytest.mark.parametrize(("copies", "insertion", "room"), [((4,), "ids", 4), ((2, 3), "text", 24)])
def test_carriers_leave_room_for_the_copies(encoder, copies, insertion, room):
    texts = [" ".join(profiled.WORDS[k : k + 2 + k % 40]) for k in range(120)]
    settings = replace(profiled.SMALL, copies=copies, insertion=Insertion(insertion))

    class Short:
        """The model, if it read 60 tokens."""

        name, max_length = "short", 60
        content_ids = staticmethod(encoder.content_ids)

        def fits(self, ids):
            return len(ids) <= 60

    group = [TextGroup("own", texts, 1.0, False)]
    found = short_texts(Short(), settings, group, 100, "test") if room == 4 else None
    if found is None:
        with pytest.raises(InputError, match="leave room for the copies in the 60 tokens that short reads"):
            short_texts(Short(), settings, group, 119, "test")
        found = short_texts(Short(), settings, group, 60, "test")
    lengths = list(map(len, encoder.content_ids(list(found))))
    assert max(lengths) + min(room, 30) <= 60
