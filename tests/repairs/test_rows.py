"""New rows on tiny models, and the pieces of entries."""

import json

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

import tiny
import tiny_architectures as architectures
from naming import naming
from stickytoken.errors import RepairError
from stickytoken.repairs import rows
from stickytoken.repairs.rows import cut_into_pieces, make_related_rows

KINDS = ("bert", "roberta", "t5", "qwen3", "gemma2")


@pytest.fixture(scope="module")
def backbones(tmp_path_factory):
    root = tmp_path_factory.mktemp("rows")
    return {
        architecture.name: architecture.save(root / architecture.name)
        for architecture in architectures.ARCHITECTURES
        if architecture.name in KINDS
    }


def model_of(backbones, kind):
    return architectures.stacked(backbones[kind], pooling="mean", normalize=kind != "t5")


@pytest.fixture
def model(backbones):
    return model_of(backbones, "bert")


def table_of(model):
    return model[0].model.get_input_embeddings().weight


def ids_of(model, *words):
    """Entries that are whole words; with a leading space where the tokenizer has them."""
    vocabulary = model.tokenizer.get_vocab()
    marked = [[mark + word for mark in ("", "▁", "Ġ")] for word in words]
    return [next(vocabulary[entry] for entry in entries if entry in vocabulary) for entries in marked]


def made(model, ids, avoided=()):
    return make_related_rows(model, ids, avoided, seed=3)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.slow
def test_rows_are_made_for_every_architecture(backbones, kind):
    model = model_of(backbones, kind)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    ids = ids_of(model, "the", "on")
    rows = made(model, ids)
    assert list(rows) == ids
    for token_id, row in rows.items():
        assert (row.dtype, row.shape) == (np.float32, table_of(model)[0].shape)
        assert np.isfinite(row).all()
        assert not np.allclose(row, table_of(model)[token_id].detach())
    assert all(torch.equal(weights[name], value) for name, value in model.state_dict().items())
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())


def test_relatives_count_where_spelling_tells_the_row():
    stems = ("stonew", "riverb", "glassm", "paperl")
    ends = ("s", "er", "ed", "ing", "ly", "ness")
    words = [stem + end for stem in stems for end in ends]
    model = static_model(words)
    ids = [model.tokenizer.token_to_id(word) for word in ("stonewer", "paperling")]
    others = [model.tokenizer.token_to_id(word) for word in words]
    table = model[0].embedding.weight.detach()
    mean = table.mean(dim=0)
    true = (table[ids] - mean).clone()
    table[ids] = 7.0
    rows = made(model, ids)
    for row, expected in zip(rows.values(), true, strict=True):
        cosine = torch.nn.functional.cosine_similarity(torch.from_numpy(row) - mean, expected, dim=0)
        assert cosine > 0.6
        lengths = (table[others] - mean).norm(dim=1)
        assert lengths.min() <= (torch.from_numpy(row) - mean).norm() <= lengths.median() * 1.2


def test_entries_that_may_be_sticky_and_those_repaired_are_neither_relatives_nor_pieces():
    model = static_model(["stonewer", "stonewed", "stonewing", "stone", "##wer"])
    wanted_id, *others = (model.tokenizer.token_to_id(name) for name in ("stonewer", "stonewed", "stone"))
    table = model[0].embedding.weight.detach()
    lengths = []
    for size in (1.0, 7.0):
        table[[wanted_id, *others]] = size
        lengths.append(made(model, [wanted_id], avoided=others)[wanted_id])
    np.testing.assert_array_equal(*lengths)


def test_pieces_of_a_repaired_entry_may_be_entries_of_the_sample():
    model = static_model(["stonexwer", "stone", "##x", "##wer"])
    wanted_id, piece = (model.tokenizer.token_to_id(name) for name in ("stonexwer", "##x"))
    table = model[0].embedding.weight.detach()
    table[:, -1] = 0.0
    table[piece, -1] = 50.0  # in the middle of the entry: it has no similar spelling
    row = made(model, [wanted_id])[wanted_id]
    assert row[-1] > 5 * np.abs(row[:-1]).max()


def static_model(words):
    """Word vectors: the words share a vector with those of the same first six letters."""
    tokenizer = tiny.wordpiece_tokenizer(words=words).backend_tokenizer
    generator = torch.Generator().manual_seed(5)
    rows = torch.randn(tokenizer.get_vocab_size(), 32, generator=generator)
    for stem in dict.fromkeys(word[:6] for word in words):
        own_row = torch.randn(32, generator=generator)
        for word in (word for word in words if word.startswith(stem)):
            rows[tokenizer.token_to_id(word)] = own_row + 0.2 * torch.randn(32, generator=generator)
    return tiny.static_model(tokenizer, rows)


def test_no_entry_is_a_relative_of_itself():
    matrix = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    rows_found = []
    spelled = {0: "<stone>", 1: "<stones>", 2: "<stoner>"}
    mean = np.zeros(4, dtype=np.float32)
    for size in (1.0, 7.0):
        matrix[0] = size
        from_relatives, _ = rows._predict_deviations(matrix, mean, np.arange(3), spelled, [0], {0: ()})
        rows_found.append(from_relatives)
    np.testing.assert_array_equal(*rows_found)


def test_half_precision_is_computed_in_single_and_left_as_it_is(model):
    model = model.to(torch.bfloat16)
    (stone,) = ids_of(model, "stone")
    row = made(model, [stone])[stone]
    assert row.dtype == np.float32
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    single, again = (made(model.float(), [stone])[stone] for _ in range(2))
    np.testing.assert_allclose(row, single, atol=1e-4)
    np.testing.assert_array_equal(single, again)  # the seed alone decides


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("?", naming("'?'", "nearest")),
        *((token_id, naming(token_id)) for token_id in (-1, 10**6)),
    ],
)
def test_what_cannot_have_a_row_is_refused(model, entry, message):
    vocabulary = model.tokenizer.get_vocab()
    with pytest.raises(RepairError, match=message):
        made(model, [vocabulary.get(entry, entry)])


# Pieces: what the tokenizer itself would say without the entry.

TOKENIZERS = {
    "wordpiece": tiny.wordpiece_tokenizer,
    "byte-level": architectures.roberta_tokenizer,
    "unigram": architectures.xlm_roberta_tokenizer,
    "sentencepiece": architectures.mistral_tokenizer,
}


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_pieces_spell_the_entry_without_it(kind):
    backend = TOKENIZERS[kind]().backend_tokenizer
    before = backend.to_str()
    added = backend.get_added_tokens_decoder()
    ids = sorted(
        token_id
        for name, token_id in backend.get_vocab().items()
        if token_id not in added and len(name.strip("#▁Ġ")) > 1 and not name.startswith(("<0x", "[", "<"))
    )
    assert len(ids) > 20
    for token_id in ids:
        (pieces,) = cut_into_pieces(backend, [token_id]).values()
        assert token_id not in pieces
        spelled = "".join(backend.id_to_token(piece).removeprefix("##") for piece in pieces)
        assert spelled == backend.id_to_token(token_id).removeprefix("##")
        assert len(pieces) > 1
    for pieces in cut_into_pieces(backend, ids[::3]).values():  # repaired entries are no pieces of each other
        assert set(ids[::3]).isdisjoint(pieces)
    assert backend.to_str() == before


@pytest.mark.parametrize(
    ("kind", "words", "entry", "pieces"),
    [
        # WordPiece cuts the longest match first, at both ends of a word.
        ("wordpiece", ["stonework", "##work", "##stone"], "stonework", ["stone", "##work"]),
        ("wordpiece", ["##work", "##stonework", "##stone"], "##stonework", ["##stone", "##work"]),
        ("wordpiece", [], "q", []),
        ("wordpiece", [], "[CLS]", []),
        ("byte-level", None, "q", []),
    ],
)
def test_pieces_of_words_of_single_characters_and_of_special_tokens(kind, words, entry, pieces):
    options = {} if words is None else {"words": words}
    backend = TOKENIZERS[kind](**options).backend_tokenizer
    (entry_pieces,) = cut_into_pieces(backend, [backend.token_to_id(entry)]).values()
    assert [backend.id_to_token(piece) for piece in entry_pieces] == pieces


def test_a_character_falls_into_bytes_where_there_are_bytes():
    pipeline = json.loads(architectures.mistral_tokenizer().backend_tokenizer.to_str())
    pipeline["model"]["byte_fallback"] = True
    backend = Tokenizer.from_str(json.dumps(pipeline))
    q, byte = (backend.token_to_id(entry) for entry in ("q", "<0x71>"))
    assert cut_into_pieces(backend, [q]) == {q: (byte,)}
