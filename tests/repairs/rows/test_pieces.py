"""The pieces that an entry falls into: what the tokenizer itself would say without the entry."""

import json

import pytest
from tokenizers import Tokenizer

import tiny
import tiny_architectures as architectures
from stickytoken.repairs.rows import pieces_of

TOKENIZERS = {
    "wordpiece": tiny.wordpiece_tokenizer,
    "byte-level": architectures.roberta_tokenizer,
    "unigram": architectures.xlm_roberta_tokenizer,
    "sentencepiece": architectures.mistral_tokenizer,
}


@pytest.fixture(scope="module", params=TOKENIZERS)
def backend(request):
    return TOKENIZERS[request.param]().backend_tokenizer


def names(backend, ids):
    return [backend.id_to_token(token_id) for token_id in ids]


def entries(backend):
    """Entries of several characters that are no special tokens."""
    added = backend.get_added_tokens_decoder()
    vocabulary = backend.get_vocab()
    return sorted(
        token_id
        for name, token_id in vocabulary.items()
        if token_id not in added and len(name.strip("#▁Ġ")) > 1 and not name.startswith(("<0x", "[", "<"))
    )


def spelled(name):
    return name.removeprefix("##")


def test_pieces_spell_the_entry_without_it(backend):
    ids = entries(backend)
    assert len(ids) > 20
    for token_id in ids:
        (pieces,) = pieces_of(backend, [token_id]).values()
        assert token_id not in pieces
        assert "".join(map(spelled, names(backend, pieces))) == spelled(backend.id_to_token(token_id))
        assert len(pieces) > 1


def test_repaired_entries_are_no_pieces_of_each_other(backend):
    ids = entries(backend)[::3]
    for pieces in pieces_of(backend, ids).values():
        assert set(ids).isdisjoint(pieces)


def test_wordpiece_cuts_the_longest_match_first_at_both_ends_of_a_word():
    backend = tiny.wordpiece_tokenizer(
        words=["stonework", "##work", "##stonework", "##stone"]
    ).backend_tokenizer
    ids = [backend.token_to_id(name) for name in ("stonework", "##stonework")]
    assert [names(backend, pieces) for pieces in pieces_of(backend, ids).values()] == [
        ["stone", "##work"],
        ["##stone", "##work"],
    ]


def test_a_leading_space_is_part_of_the_entry():
    backend = architectures.roberta_tokenizer().backend_tokenizer
    for name in ("Ġriver", "river"):
        token_id = backend.token_to_id(name)
        if token_id is not None:
            assert "".join(names(backend, pieces_of(backend, [token_id])[token_id])) == name


@pytest.mark.parametrize(("kind", "name"), [("wordpiece", "q"), ("wordpiece", "[CLS]"), ("byte-level", "q")])
def test_single_characters_and_special_tokens_have_no_pieces(kind, name):
    backend = TOKENIZERS[kind]().backend_tokenizer
    token_id = backend.token_to_id(name)
    assert pieces_of(backend, [token_id]) == {token_id: ()}


def test_a_character_falls_into_bytes_where_there_are_bytes():
    backend = architectures.mistral_tokenizer().backend_tokenizer
    pipeline = json.loads(backend.to_str())
    pipeline["model"]["byte_fallback"] = True
    backend = Tokenizer.from_str(json.dumps(pipeline))
    token_id = backend.token_to_id("q")
    assert names(backend, pieces_of(backend, [token_id])[token_id]) == ["<0x71>"]


def test_the_pipeline_is_not_changed(backend):
    before = backend.to_str()
    pieces_of(backend, entries(backend)[:3])
    assert backend.to_str() == before
