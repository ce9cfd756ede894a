"""Benign tokens that tokens are compared with."""

import pytest

import tiny
from stickytoken.encoders._tokenizer import HuggingFaceTokenizer
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
    assert not {token_id, token_id + 1} & {*ids}
    names = [vocabulary.tokens[vocabulary.ids.index(k)] for k in ids]
    assert not any(name.startswith("##") for name in names)
    assert all(len(name) > 1 for name in names)
    assert match == match_benign(vocabulary, token_id, {token_id + 1}, 8, 42)
    assert match != match_benign(vocabulary, token_id, {token_id + 1}, 8, 43)


@pytest.mark.parametrize(("count", "most"), [(3, 16), (16, 19), (19, 40)])
def test_a_smaller_request_gets_the_first_of_a_larger_one(vocabulary, count, most):
    (token_id,) = ids_of(vocabulary, "garden")
    whole = match_benign(vocabulary, token_id, (), most, 0).tokens
    assert len(set(whole)) == most
    assert match_benign(vocabulary, token_id, (), count, 0).tokens == whole[:count]


@pytest.mark.parametrize("seed", [0, 42])
def test_a_measurement_of_a_token_has_the_first_of_the_benign_tokens_of_its_explanation(vocabulary, seed):
    """`explain` matches every token alone, `impact` all tokens apart; of one token both are the same."""
    token_ids = ids_of(vocabulary, "garden", "river", "songs")
    alone = match_benign(vocabulary, token_ids[0], {5, *token_ids}, 16, seed).tokens
    for each in (1, 8, 16, 19):
        measured = match_apart(vocabulary, token_ids[:1], {5, *token_ids}, each, seed)
        assert tuple(measured[:16]) == alone[:each]
    found = match_apart(vocabulary, token_ids, {5}, 2, seed)
    assert found[0] == alone[0]
    for place, token_id in enumerate(token_ids):
        matches = match_benign(vocabulary, token_id, {5, *token_ids}, 16, seed).tokens
        own = (found[place], found[place + 3])
        assert own == tuple(token for token in matches if token in own)


def test_a_token_alone_in_its_category_is_compared_with_others(vocabulary):
    special = [k for k, c in zip(vocabulary.ids, vocabulary.categories, strict=True) if c == "OK_SPECIAL"]
    assert special
    match = match_benign(vocabulary, special[0], special, 5, 0)
    assert not match.same_category
    assert len(match.tokens) == 5


def test_tokens_go_on_when_others_have_all_that_were_drawn(vocabulary):
    available = [token.id for token in vocabulary.available]
    token_ids, excluded = available[:6], set(available[30:])
    # A further token changes no earlier first match.
    first = match_apart(vocabulary, token_ids[:5], {*excluded, token_ids[5]}, 1, 0)
    assert match_apart(vocabulary, token_ids, excluded, 1, 0)[:5] == first
    found = match_apart(vocabulary, token_ids, excluded, 4, 0)
    assert {token.id for token in found} == set(available[6:30])
    with pytest.raises(InputError, match="too few tokens that are not flagged to match 6 tokens with 5 each"):
        match_apart(vocabulary, token_ids, excluded, 5, 0)


def test_no_benign_token_is_an_error(vocabulary):
    everything = set(vocabulary.ids)
    with pytest.raises(InputError, match=r"'garden'. has 0 benign tokens to compare with, but 3 are needed"):
        match_benign(vocabulary, *ids_of(vocabulary, "garden"), everything, 5, 0)
