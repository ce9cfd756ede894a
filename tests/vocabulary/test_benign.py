"""Benign tokens that tokens are compared with."""

import pytest

import tiny
from stickytoken.encoders.tokenizer import HuggingFaceTokenizer
from stickytoken.errors import InputError
from stickytoken.vocabulary import categorize, match_apart, match_benign


@pytest.fixture(scope="module")
def vocabulary():
    """One of some three hundred entries."""
    words = [f"{word}{ending}" for word in tiny.WORDS for ending in ("", "s", "ing", "ed")]
    return categorize(HuggingFaceTokenizer(tiny.wordpiece_tokenizer(words=words)))


def ids_of(vocabulary, *names):
    return [vocabulary.ids[vocabulary.tokens.index(name)] for name in names]


def test_benign_tokens_are_alike_and_not_excluded(vocabulary):
    (token_id,) = ids_of(vocabulary, "garden")
    match = match_benign(vocabulary, token_id, {token_id + 1}, 8, 42)
    assert match.same_category
    assert len(match.tokens) == 8
    ids = [token.id for token in match.tokens]
    assert token_id not in ids
    assert token_id + 1 not in ids
    names = [vocabulary.tokens[vocabulary.ids.index(k)] for k in ids]
    assert not any(name.startswith("##") for name in names)
    assert all(len(name) > 1 for name in names)
    assert match == match_benign(vocabulary, token_id, {token_id + 1}, 8, 42)
    assert match != match_benign(vocabulary, token_id, {token_id + 1}, 8, 43)


@pytest.mark.parametrize(("count", "most"), [(3, 16), (8, 16), (16, 19), (8, 40), (19, 40), (40, 60)])
def test_a_smaller_request_gets_the_first_of_a_larger_one(vocabulary, count, most):
    (token_id,) = ids_of(vocabulary, "garden")
    whole = match_benign(vocabulary, token_id, (), most, 0).tokens
    assert len(set(whole)) == most
    assert match_benign(vocabulary, token_id, (), count, 0).tokens == whole[:count]


@pytest.mark.parametrize("seed", [0, 42])
def test_a_measurement_of_a_token_has_the_first_of_the_benign_tokens_of_its_explanation(vocabulary, seed):
    """`explain` matches every token alone, `impact` all tokens apart; of one token both are the same."""
    (token_id,) = ids_of(vocabulary, "garden")
    flagged = set(ids_of(vocabulary, "river", "stone"))
    explained = match_benign(vocabulary, token_id, flagged | {token_id}, 16, seed).tokens
    for each in (1, 8, 16, 19):
        measured = match_apart(vocabulary, [token_id], flagged, each, seed)
        assert tuple(measured[:16]) == explained[:each]


def test_a_token_alone_in_its_category_is_compared_with_others(vocabulary):
    special = [k for k, c in zip(vocabulary.ids, vocabulary.categories, strict=True) if c == "OK_SPECIAL"]
    assert special
    match = match_benign(vocabulary, special[0], special, 5, 0)
    assert not match.same_category
    assert len(match.tokens) == 5


def test_no_benign_token_is_an_error(vocabulary):
    everything = set(vocabulary.ids)
    with pytest.raises(InputError, match=r"'garden'. has 0 benign tokens to compare with, but 3 are needed"):
        match_benign(vocabulary, *ids_of(vocabulary, "garden"), everything, 5, 0)


# Several tokens at once.


@pytest.mark.parametrize("seed", [0, 42])
def test_the_first_match_is_the_one_that_the_token_has_alone(vocabulary, seed):
    """An explanation and an impact measurement of a token show the same benign token first."""
    token_ids = ids_of(vocabulary, "garden", "river", "songs")
    found = match_apart(vocabulary, token_ids, {5}, 2, seed)
    for place, token_id in enumerate(token_ids):
        alone = match_benign(vocabulary, token_id, {5, *token_ids}, 16, seed).tokens
        assert [found[place], found[place + 3]] == [
            token for token in alone if token in (found[place], found[place + 3])
        ]
    assert found[0] == match_benign(vocabulary, token_ids[0], {5, *token_ids}, 16, seed).tokens[0]


def test_no_token_is_the_match_of_two(vocabulary):
    token_ids = ids_of(vocabulary, "river", "stone", "songs", "birds")
    for seed in range(3):
        found = [token.id for token in match_apart(vocabulary, token_ids, (), 6, seed)]
        assert len(set(found)) == len(found) == 24
        assert not {*found} & {*token_ids}


def test_tokens_go_on_when_others_have_all_that_were_drawn(vocabulary):
    available = [token.id for token in vocabulary.available]
    token_ids, excluded = available[:6], set(available[30:])
    found = match_apart(vocabulary, token_ids, excluded, 4, 0)
    assert {token.id for token in found} == set(available[6:30])
    with pytest.raises(InputError, match="too few tokens that are not flagged to match 6 tokens with 5 each"):
        match_apart(vocabulary, token_ids, excluded, 5, 0)


def test_a_further_token_changes_no_earlier_first_match(vocabulary):
    token_ids = ids_of(vocabulary, "garden", "river")
    more = match_apart(
        vocabulary, [*token_ids, *ids_of(vocabulary, "stone")], ids_of(vocabulary, "stone"), 1, 0
    )
    assert more[:2] == match_apart(vocabulary, token_ids, ids_of(vocabulary, "stone"), 1, 0)
