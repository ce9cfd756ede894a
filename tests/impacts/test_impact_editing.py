"""Copies in a text, truncation that makes room, conditions, matched tokens."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import impact_files as files
import tiny
from stickytoken.errors import InputError
from stickytoken.impacts import ImpactSettings
from stickytoken.impacts.statistics import (
    Condition,
    Kind,
    gaps,
    make_conditions,
    needed_room,
    prepare,
    probe,
    turns,
)
from stickytoken.insertion import Insertion, Placement, Token


def test_places_are_a_function_of_the_seed_and_the_text():
    found = gaps(1, "a text", 5, 8)
    assert found == gaps(1, "a text", 5, 8)
    assert found not in (gaps(2, "a text", 5, 8), gaps(1, "another", 5, 8))
    assert all(0 <= gap <= 5 + step for step, gap in enumerate(gaps(1, "a text", 5, 8)))


@given(kinds=st.integers(1, 5), copies=st.integers(1, 12), seed=st.integers(0, 9))
def test_a_mixture_has_its_tokens_as_often_as_possible(kinds, copies, seed):
    counts = np.bincount(turns(seed, "text", kinds, copies), minlength=kinds)
    assert counts.sum() == copies
    assert counts.max() - counts.min() <= 1


@pytest.mark.parametrize("insertion", list(Insertion))
@pytest.mark.parametrize("placement", list(Placement))
def test_all_tokens_go_to_the_same_places_of_a_text(encoder, insertion, placement):
    tokens = [Token(files.token_id(encoder, word), word) for word in ("river", "stone")]
    (carrier,) = prepare(encoder, ["the old song falls over green glass"], 4, insertion, "t")
    settings = ImpactSettings(placement=placement, insertion=insertion)
    probes = [probe(settings, carrier, Condition(Kind.STICKY, (token,), 0, 3), 4) for token in tokens]
    if insertion is not Insertion.IDS:
        assert probes[0].split().count("river") == 4
        assert probes[0].replace("river", "stone") == probes[1]
    else:
        assert probes[0].count(tokens[0].id) == 4
        swapped = tuple(tokens[1].id if each == tokens[0].id else each for each in probes[0])
        assert swapped == probes[1]


# Truncation.


def long_text(words):
    return " ".join(tiny.WORDS[place % len(tiny.WORDS)] for place in range(words))


def test_ids_are_cut_where_the_model_would_cut(encoder):
    texts = [long_text(200), long_text(54), long_text(55)]
    found = prepare(encoder, texts, 8, Insertion.IDS, "t")
    assert [len(each.content.ids) for each in found] == [54, 54, 54]
    assert [each.cut for each in found] == [True, False, True]
    whole = encoder.tokenize(texts[:1])[0].ids
    assert found[0].content.ids == whole[:54]
    assert all(encoder.fits((*each.content.ids, *(5,) * 8)) for each in found)
    assert not prepare(files.planted_encoder(), texts, 8, Insertion.IDS, "t")[0].cut  # without a limit


def test_text_is_cut_behind_a_word(encoder):
    (found,) = prepare(encoder, [long_text(200)], 8, Insertion.TEXT, "t")
    assert found.cut
    assert long_text(200).startswith(found.text + " ")
    assert len(encoder.tokenize([found.text])[0].ids) == len(found.content.ids) <= 54
    longer = long_text(200)[: len(found.text)] + " " + long_text(200)[len(found.text) :].split()[0]
    assert len(encoder.tokenize([longer])[0].ids) > 54


def test_copies_that_leave_no_room_are_refused(encoder):
    with pytest.raises(InputError, match="copies of 62 tokens leave no room for a text"):
        prepare(encoder, ["a river"], 62, Insertion.IDS, "sts")
    prepare(encoder, ["a river"], 61, Insertion.IDS, "sts")


def test_copies_as_words_need_room_for_every_id(encoder):
    tokens = [Token(1, "river"), Token(2, "xyz")]
    conditions = [Condition(Kind.STICKY, (token,), 0, 0) for token in tokens]
    assert needed_room(encoder, conditions, 4, Insertion.TEXT) == 12
    assert needed_room(encoder, conditions, 4, Insertion.IDS) == 4


# Conditions and tokens.


def test_conditions_are_complete_and_share_their_seeds():
    sticky, benign = [Token(1, "a"), Token(2, "b")], [Token(k, "c") for k in (3, 4, 5, 6)]
    found = make_conditions(sticky, benign, 42, 2)
    assert len(found) == 2 * (1 + 2 + 4 + 2)
    assert {condition.seed for condition in found} == {42, 43}
    mixtures = [[token.id for token in each.tokens] for each in found if len(each.tokens) > 1]
    assert mixtures == [[1, 2], [1, 2], [3, 4], [3, 4]]
    assert not any(len(each.tokens) > 1 for each in make_conditions(sticky[:1], benign, 0, 1))
