"""The plan: which texts carry, which are compared with, and the numbers that describe them."""

import itertools
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import profiled
from stickytoken import load_encoder
from stickytoken.data import load_sentences
from stickytoken.data.corpora import open_ended
from stickytoken.encoders import analyze_vocabulary
from stickytoken.errors import InputError
from stickytoken.insertion import Insertion, Placement
from stickytoken.methods.base import Job
from stickytoken.methods.profile.anchors import ProfileSettings, TextGroup, short_texts, sources
from stickytoken.methods.profile.plan import (
    LATE_REFERENCE,
    Cell,
    carriers_needed,
    cells,
    highest,
    make_profile_plan,
    screening_carriers,
    tokens_to_confirm,
)


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
    job = Job(encoder, settings, corpus, analyze_vocabulary(encoder), [], restricted=False, sampled=False)
    return make_profile_plan(job, lambda progress: None)


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
    texts = [*(anchor.text for anchor in plan.anchors), *(named[k] for k in plan.vocabulary_anchors)]
    groups = [anchor.group for anchor in plan.anchors]
    groups += [len(plan.groups) - 1] * len(plan.vocabulary_anchors)
    carriers, anchors = (model.encode(own, normalize_embeddings=True) for own in (plan.carriers, texts))
    before, sizes = carriers @ anchors.T, Counter(groups)
    weights = np.array([plan.groups[group].weight / sizes[group] for group in groups])
    weights = np.tile(weights / len(carriers), (len(carriers), 1))
    assert weights.sum() == pytest.approx(1)
    mean = (weights * before).sum()
    assert plan.similarity_spread == pytest.approx((weights * (before - mean) ** 2).sum() ** 0.5, abs=1e-5)
    assert plan.share_below == pytest.approx(weights[before < plan.mean_similarity].sum(), abs=1e-6)
    for place, group in enumerate(plan.groups):
        assert group.spread == pytest.approx(np.std(before[:, np.array(groups) == place]), abs=1e-5)


@pytest.mark.parametrize("ending", ["?!", " .", "…", "。", '."', ".)", ""])
def test_a_text_loses_the_punctuation_that_ends_it_and_no_other(ending):
    assert open_ended(f"Mr. O'Neil (72) isn't here{ending}") == "Mr. O'Neil (72) isn't here"
    for text in ("...", "a", "100 €", "x = 3 +"):  # punctuation alone, a word, symbols
        assert open_ended(text) == text


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


def test_carriers_leave_room_for_the_copies(encoder):
    texts = [" ".join(profiled.WORDS[k : k + 2 + k % 40]) for k in range(120)]
    group = [TextGroup("own", texts, 1.0, False)]

    class Short:
        """The model, if it read 60 tokens."""

        name, max_length = "short", 60
        content_ids = staticmethod(encoder.content_ids)

        def fits(self, ids):
            return len(ids) <= 60

    for copies, insertion, count, room in (((4,), "ids", 100, 4), ((2, 3), "text", 60, 24)):
        settings = replace(profiled.SMALL, copies=copies, insertion=Insertion(insertion))
        found = short_texts(Short(), settings, group, count, "test")
        assert max(map(len, encoder.content_ids(list(found)))) + room <= 60
    with pytest.raises(InputError, match="leave room for the copies in the 60 tokens that short reads"):
        short_texts(Short(), settings, group, 119, "test")


# How the budget is spent: cells, carriers and tokens of each round.

# However small the selection is, this many tokens go on.
LEAST = 30
distinct_copies = st.lists(st.integers(1, 40), min_size=1, max_size=6, unique=True)
budgets = st.one_of(st.integers(3, 40), st.floats(3, 40))


def texts_of(plan, vocabulary):
    """All texts of a run on a whole vocabulary, at most: no token of the pilot is also confirmed."""
    screened = vocabulary * screening_carriers(plan)
    if not plan.adaptive:
        return screened
    late = min(LATE_REFERENCE, plan.reference, vocabulary)
    further = min(vocabulary - late, tokens_to_confirm(plan, vocabulary))
    return screened + late * carriers_needed(plan) + further * plan.confirming_texts


@given(distinct_copies, st.integers(0, 60))
def test_any_three_neighbours_hold_all_placements_and_a_full_turn_every_combination_once(copies, start):
    turn = 3 * len(copies)
    found = cells(ProfileSettings(copies=copies), start + turn)
    assert len(found) == start + turn
    assert {cell.placement for cell in found[start : start + 3]} == set(Placement)
    assert set(found[start:]) == {Cell(placement, count) for placement in Placement for count in copies}
    for left, right in itertools.pairwise(found):
        assert len(copies) == 1 or left.copies != right.copies


@pytest.mark.parametrize("vocabulary", [5_000, 13_000, 25_000, 30_522, 50_257, 128_000, 200_000])
@pytest.mark.parametrize("budget", [3, 4, 5, 7.5, 10, 20])
def test_the_budget_holds_on_average_unless_the_least_selection_alone_exceeds_it(vocabulary, budget):
    plan = ProfileSettings(budget=budget)
    spent, over = texts_of(plan, vocabulary), 0
    if tokens_to_confirm(plan, vocabulary) == LEAST:
        over = LATE_REFERENCE * carriers_needed(plan) + LEAST * plan.confirming_texts
    assert spent <= budget * vocabulary + over
    if not over:
        # Nothing is left unspent but what one more token would cost.
        assert spent > budget * vocabulary - plan.confirming_texts


value_columns = st.integers(1, 3).flatmap(
    lambda width: st.lists(
        st.tuples(st.integers(0, 10**6), st.lists(st.integers(-3, 3), min_size=width, max_size=width)),
        unique_by=lambda own: own[0],
        min_size=1,
    )
)


def in_turn(tokens, count):
    """Each column picks its best among those that are left, one after another."""
    left, chosen = dict(tokens), []
    width = len(tokens[0][1])
    passed = [sorted(left, key=lambda own, k=k: (-left[own][k], own)) for k in range(width)]
    for rank in range(len(tokens)):
        for column in range(width):
            own = passed[column][rank]
            if own not in chosen and len(chosen) < count:
                chosen.append(own)
    return sorted(chosen)


@settings(max_examples=200)
@given(value_columns, st.integers(0, 12), st.randoms(use_true_random=False))
def test_the_columns_choose_in_turn_in_whatever_order_the_tokens_come(tokens, count, shuffler):
    expected = in_turn(tokens, count)
    shuffler.shuffle(tokens)
    ids = np.array([own[0] for own in tokens], dtype=np.int64)
    found = highest(ids, np.array([own[1] for own in tokens], dtype=float), count)
    assert found.tolist() == expected
    assert len(found) == min(count, len(tokens))
    assert found.dtype == np.int64


def test_without_a_corpus_carriers_come_from_all_kinds_in_turn(encoder):
    groups, _ = sources(encoder, load_sentences())
    needed = 51
    found = list(short_texts(encoder, ProfileSettings(), groups, needed, "test").values())[:needed]
    sizes = Counter(group.name for text in found for group in groups if text in group.texts)
    assert set(sizes) == {group.name for group in groups}
    assert set(sizes.values()) == {4, 5}
