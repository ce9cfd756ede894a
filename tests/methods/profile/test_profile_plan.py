"""The plan: which texts carry, how the budget is spent; and the settings."""

import itertools
import math
import re
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, strategies as st

import profiled
from naming import naming
from stickytoken import analyze_vocabulary, load_encoder
from stickytoken.data import load_sentences, open_ended
from stickytoken.errors import InputError
from stickytoken.insertion import Insertion, Placement, Token
from stickytoken.machine import Precision
from stickytoken.measurement.engine import ignore_progress
from stickytoken.methods.base import Job, Scope
from stickytoken.methods.profile.plan import (
    LEAST_CONFIRMED,
    PILOT_TOKENS,
    Cell,
    carriers_needed,
    cells,
    choose_texts,
    pilots_needed,
    tokens_per_batch,
    tokens_to_confirm,
)
from stickytoken.methods.profile.rounds import make_plan
from stickytoken.methods.profile.texts import TextGroup, choose_carriers, group_texts
from stickytoken.methods.runner import Runner
from stickytoken.settings.profile import ProfileSettings
from stickytoken.validation import real_number, whole_number
from word_bag import WordBag


def planned(encoder, corpus, settings=profiled.SMALL):
    job = Job(encoder, settings, corpus, analyze_vocabulary(encoder), [], scope=Scope.WHOLE)
    return make_plan(job, Runner.in_memory(encoder, ignore_progress))


@pytest.fixture(scope="module")
def plan(encoder):
    return planned(encoder, profiled.corpus())


def test_carriers_are_distinct_sentences_of_the_corpus(plan):
    assert {f"{text}." for text in plan.carriers} <= set(profiled.corpus().texts)
    assert len(set(plan.carriers)) == len(plan.carriers) == 2 + 24


def test_pilots_are_random_available_tokens(encoder, plan):
    available = [token.id for token in analyze_vocabulary(encoder).available]
    assert set(plan.pilots) <= set(available)
    assert len(plan.pilots) == len(set(plan.pilots)) == PILOT_TOKENS
    assert plan.pilots == sorted(plan.pilots)
    assert plan.pilots != available[:PILOT_TOKENS]


def test_pilots_are_none_of_the_candidates_that_a_user_lists():
    listed = [f"listed{number}" for number in range(500)]
    encoder = load_encoder(WordBag().encode, candidates=listed)
    plan = planned(encoder, profiled.corpus(), replace(profiled.SMALL, insertion="words"))
    assert len(plan.pilots) == PILOT_TOKENS
    assert not set(plan.pilots) & set(encoder.tokenizer.candidate_ids)


def test_the_seed_draws_carriers_and_pilots(encoder, plan):
    other = planned(encoder, profiled.corpus(), replace(profiled.SMALL, seed=7))
    assert other.carriers != plan.carriers
    assert other.pilots != plan.pilots


@pytest.mark.parametrize("ending", ["?!", " .", "…", "。", '."', ".)", ""])
def test_a_text_loses_the_punctuation_that_ends_it_and_no_other(ending):
    assert open_ended(f"Mr. O'Neil (72) isn't here{ending}") == "Mr. O'Neil (72) isn't here"
    for text in ("...", "a", "100 €", "x = 3 +"):  # punctuation alone, a word, symbols
        assert open_ended(text) == text


def test_long_texts_carry_by_their_first_sentence(encoder):
    sentences = profiled.sentences(200)
    texts = [" ".join([text, *sentences[:4]]) for text in sentences[100:]]
    carriers = choose_carriers(encoder, profiled.SMALL, [TextGroup("own", texts)], 20, "test")
    assert len(carriers) == 20
    assert {open_ended(text) for text in sentences[100:]} >= set(carriers)
    assert all(any(text.startswith(carrier) for text in texts) for carrier in carriers)


def test_groups_with_few_texts_leave_their_carriers_to_the_others(foreign):
    corpus = profiled.corpus(160, topics=2)
    topics = [f"rare {k}" if k < 2 else topic for k, topic in enumerate(corpus.topics)]
    plan = planned(foreign, replace(corpus, topics=tuple(topics)))
    assert len(plan.carriers) == 26


def test_a_corpus_that_is_used_up_or_too_small_is_refused(encoder):
    corpus = profiled.corpus(60)
    vocabulary = analyze_vocabulary(encoder)
    with pytest.raises(InputError, match=naming(60, corpus.source, "--sentences")):
        choose_texts(
            encoder,
            profiled.SMALL,
            corpus,
            vocabulary,
            carriers=24,
            pilots=32,
            few_documents=True,
            is_allowed=lambda text: False,
        )
    few = profiled.corpus(8)
    with pytest.raises(InputError, match=naming(8, few.source, carriers_needed(profiled.SMALL))):
        planned(encoder, few)


def test_carriers_are_as_long_as_asked(encoder):
    texts = [" ".join(profiled.WORDS[k : k + 2 + k % 40]) for k in range(120)]
    lengths = dict(zip(texts, map(len, encoder.content_ids(texts)), strict=True))
    carriers = choose_carriers(encoder, profiled.SMALL, [TextGroup("own", texts)], 20, "test", 9.0)
    farthest = sorted(abs(length - 9) for length in lengths.values())[19]
    assert all(abs(lengths[carrier] - 9) <= farthest for carrier in carriers)


def test_carriers_of_other_texts_are_as_long_as_those_of_the_bundled_corpus():
    model = load_encoder("all-MiniLM-L6-v2", device="cpu")

    def carriers_of(corpus):
        return planned(model, corpus).carriers

    bundled = carriers_of(load_sentences(None))
    short = [f"{word} {number}" for number in range(300) for word in ("yes", "no")]
    usual = [f"boats {number} near the {word}" for number in range(300) for word in ("pier", "mill")]
    other = carriers_of(load_sentences([*short, *usual]))
    lengths = [np.mean([len(ids) for ids in model.content_ids(carriers)]) for carriers in (bundled, other)]
    assert lengths[1] == pytest.approx(lengths[0], abs=1.5)
    assert set(other) <= set(usual)


def test_carriers_leave_room_for_the_copies(encoder):
    texts = [" ".join(profiled.WORDS[k : k + 2 + k % 40]) for k in range(120)]
    group = [TextGroup("own", texts)]

    class Short:
        name, max_length = "short", 60
        content_ids = staticmethod(encoder.content_ids)

        def fits(self, ids):
            return len(ids) <= 60

    for copies, insertion, count, room in (((4,), "ids", 100, 4), ((2, 3), "text", 60, 24)):
        settings = replace(profiled.SMALL, copies=copies, insertion=Insertion(insertion))
        carriers = choose_carriers(Short(), settings, group, count, "test")
        assert max(map(len, encoder.content_ids(carriers))) + room <= 60
    with pytest.raises(InputError, match=naming(60, "short")):
        choose_carriers(Short(), settings, group, 119, "test")


# How the budget is spent: cells, carriers and tokens of each round.

distinct_copies = st.lists(st.integers(1, 40), min_size=1, max_size=6, unique=True)


@given(distinct_copies, st.integers(0, 60))
def test_any_three_neighbours_hold_all_placements_and_a_full_turn_every_combination_once(copies, start):
    turn = 3 * len(copies)
    counts = cells(ProfileSettings(copies=copies), start + turn)
    assert len(counts) == start + turn
    assert {cell.placement for cell in counts[start : start + 3]} == set(Placement)
    assert set(counts[start:]) == {Cell(placement, count) for placement in Placement for count in copies}
    for earlier, right in itertools.pairwise(counts):
        assert len(copies) == 1 or earlier.copies != right.copies


@pytest.mark.parametrize("vocabulary", [13_000, 30_522, 128_000, 250_000])
@pytest.mark.parametrize("budget", [2.5, 3.4, 5, 20])
def test_screen_and_confirmation_keep_within_the_budget(vocabulary, budget):
    plan = ProfileSettings(budget=budget)
    confirmed = tokens_to_confirm(plan, vocabulary)
    spent = vocabulary * plan.screening_texts + confirmed * plan.confirming_texts
    if confirmed > LEAST_CONFIRMED:
        assert budget * vocabulary - plan.confirming_texts < spent <= budget * vocabulary


def test_a_small_selection_may_exceed_the_budget():
    assert tokens_to_confirm(ProfileSettings(), 3) == LEAST_CONFIRMED


def test_a_run_needs_the_carriers_of_its_screen_and_those_that_confirm():
    assert carriers_needed(ProfileSettings(screening_texts=3, confirming_texts=20)) == 23


@pytest.mark.parametrize(
    ("scope", "count", "pilots", "batch"),
    [
        (Scope.WHOLE, 300, 128, 64),
        (Scope.SAMPLE, 5, 32, 16),
        (Scope.SAMPLE, 400, 50, 16),
        (Scope.SAMPLE, 1024, 128, 64),
    ],
)
def test_a_run_over_few_tokens_has_fewer_pilots_and_smaller_batches(encoder, scope, count, pilots, batch):
    settings = profiled.SMALL
    vocabulary = analyze_vocabulary(encoder)
    tokens = [Token(number, "word") for number in range(count)]
    corpus = profiled.corpus()
    job = Job(encoder, settings, corpus, vocabulary, tokens, scope=scope)
    assert pilots_needed(job) == pilots
    assert tokens_per_batch(job) == batch


def test_without_a_corpus_carriers_come_from_all_kinds_in_turn(encoder):
    groups = group_texts(encoder, load_sentences())
    texts = choose_carriers(encoder, ProfileSettings(), groups, 51, "test")
    sizes = []
    for group in groups:
        whole = {open_ended(text) for text in group.texts}
        first_sentences = {open_ended(re.split(r"(?<=[.?!])\s", text)[0]) for text in group.texts}
        sizes.append(len((whole | first_sentences) & set(texts)))
    assert set(sizes) == {4, 5}
    assert sum(sizes) == len(texts) == 51


# Settings, and numbers from users: what is taken, refused and made one.

SPELLINGS = [3, 3.0, np.int8(3), np.float32(3), Decimal("3"), Fraction(3)]
BOUNDS = {"confirming_texts": 4, "screening_texts": 2, "seed": 0}


def assert_refused(said, **values):
    ((name, value),) = values.items()
    with pytest.raises(InputError, match=naming(name, *said)):
        ProfileSettings(**{name: value})


@pytest.mark.parametrize("value", SPELLINGS, ids=lambda value: type(value).__name__)
def test_every_spelling_of_a_number_becomes_one(value):
    numbers = whole_number("count", value, 3), real_number("size", value)
    assert numbers == (3, 3.0)
    assert [type(number) for number in numbers] == [int, float]
    assert whole_number("seed", 2**70 + 1, 0) == 2**70 + 1  # too large for a float


@pytest.mark.parametrize("value", [2.5, "3", None, [3], 3j, math.nan], ids=repr)
def test_what_is_not_a_whole_number_is_refused_by_its_name_and_value(value):
    with pytest.raises(InputError, match=naming("count", value, "whole number")):
        whole_number("count", value, 0)
    if isinstance(value, float):
        return
    with pytest.raises(InputError, match=naming("size", value, "number")):
        real_number("size", value)


@pytest.mark.parametrize(("name", "least"), BOUNDS.items())
def test_whole_numbers_are_taken_from_their_least_on(name, least):
    assert getattr(ProfileSettings(**{name: least}), name) == least
    assert_refused([least - 1], **{name: least - 1})
    assert_refused(["nan"], **{name: math.nan})


@pytest.mark.parametrize("name", ["unusual", "budget"])
@pytest.mark.parametrize("value", [0, -1, math.inf, math.nan])
def test_sizes_are_finite_and_above_zero(name, value):
    assert_refused([float(value), "above 0"], **{name: value})


@pytest.mark.parametrize("name", ["confidence", "smallest_erased"])
def test_shares_lie_strictly_between_zero_and_one(name):
    for value in (np.nextafter(0, 1), np.nextafter(1, 0)):
        assert getattr(ProfileSettings(**{name: value}), name) == value
    for value in (0, 1, math.nan):
        assert_refused([float(value), "above 0", "below 1"], **{name: value})


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"budget": "0.5"}, ["'0.5'", "number"]),
        ({"budget": 1.5}, [1.5, 2]),
        ({"confirming_texts": 10.5}, [10.5, "whole number"]),
        ({"smallest_push": 1}, [1]),
        ({"documents": "most"}, ["'most'", "some", "all"]),
        ({"copies": ()}, ["empty"]),
        ({"copies": (8, 0)}, [0, 1]),
        ({"copies": "84"}, ["'84'", "whole number"]),
        ({"insertion": "TEXT"}, ["'TEXT'", "text", "ids", "words"]),
        ({"screen_precision": "int8"}, ["'int8'", "tf32", "bfloat16", "float16"]),
    ],
)
def test_what_cannot_be_used_is_refused_by_its_name_and_value(values, said):
    assert_refused(said, **values)


def test_spellings_of_the_same_values_are_the_same_settings():
    spelled = {
        "budget": np.float64(3.4),
        "insertion": "ids",
        "copies": [np.int64(8), 4.0],
        "confirming_texts": 48.0,
    }
    assert repr(ProfileSettings(**spelled, seed=np.int32(42))) == repr(
        ProfileSettings(insertion=Insertion.IDS)
    )
    assert ProfileSettings(copies=np.int64(8)) == ProfileSettings(copies=[8])
    assert ProfileSettings(screen_precision="bfloat16").screen_precision is Precision.BFLOAT16
