"""Vocabularies of models that tell none: tokenizers, tiktoken, candidates; and how copies are written."""

import json
import re
from pathlib import Path

import httpx
import numpy as np
import pytest

import profiled
import stickytoken
import tiny
import tiny_architectures as architectures
from naming import naming
from stickytoken import detect, load_encoder
from stickytoken.encoders import load_tokenizer
from stickytoken.encoders.endpoint.vocabulary import CandidateVocabulary, load_vocabulary, vocabulary_of
from stickytoken.errors import InputError, ModelError
from stickytoken.insertion import Insertion, Joining, Placement, copies_as_text
from stickytoken.vocabulary import categorize, choose_joinings
from word_bag import WordBag

PAGE = Path(__file__).resolve().parents[3] / "docs" / "endpoints.md"


@pytest.fixture
def tiny_encoding(monkeypatch):
    """The name of an encoding of tiktoken that needs no file."""
    registry = pytest.importorskip("tiktoken.registry", reason="tiktoken is not installed")
    registry.list_encoding_names()  # finds the constructors
    single_bytes = [bytes([byte]) for byte in range(256)]
    tokens = [*single_bytes, b"th", b"the", b" t", b" th", b" the", b"ri", b"riv"]
    definition = {
        "name": "tiny",
        "pat_str": r" ?\p{L}+|\s+|[^\s\p{L}]+",
        "mergeable_ranks": {token: rank for rank, token in enumerate(tokens)},
        "special_tokens": {"<|endoftext|>": 300},
    }
    monkeypatch.setitem(registry.ENCODING_CONSTRUCTORS, "tiny", lambda: definition)
    yield "tiny"
    registry.ENCODINGS.pop("tiny", None)


def test_an_encoding_of_tiktoken_is_a_vocabulary(tiny_encoding):
    tokenizer = load_vocabulary(f"tiktoken:{tiny_encoding}")
    (ids,) = tokenizer.encode_many(["the the river"])
    assert tokenizer.decode_many([ids]) == ["the the river"]
    assert [tokenizer.entries[token_id] for token_id in ids[:2]] == ["the", " the"]
    assert [tokenizer.entries[token_id] for token_id in tokenizer.special_ids] == ["<|endoftext|>"]
    assert len(tokenizer.entries) == 256 + 7 + 1  # without the ids between the tokens and the special one
    vocabulary = categorize(tokenizer)
    categories = dict(zip(vocabulary.tokens, vocabulary.categories, strict=True))
    assert categories[" the"] == "OK"
    assert not categories["<|endoftext|>"].available


def test_a_file_of_tiktoken_is_refused():
    with pytest.raises(InputError, match=naming("tiktoken:o200k_base", "TIKTOKEN_CACHE_DIR")):
        load_vocabulary("o200k_base.tiktoken")


def test_an_unknown_encoding_is_refused():
    pytest.importorskip("tiktoken", reason="tiktoken is not installed")
    with pytest.raises(ModelError, match=naming("cl100k_base")):
        load_vocabulary("tiktoken:nothing")


def test_candidates_come_before_ordinary_words():
    vocabulary = CandidateVocabulary(["SolidGold", " Magikarp", "SolidGold", "river"])
    assert vocabulary.candidate_ids == (0, 1, 2)
    assert [vocabulary.entries[token_id] for token_id in range(3)] == ["SolidGold", " Magikarp", "river"]
    assert len(set(vocabulary.entries.values())) == len(vocabulary.entries) == 3 + 2000
    assert len(categorize(vocabulary).available) == 2003
    assert CandidateVocabulary(["a"]).fingerprint != vocabulary.fingerprint


def test_the_fingerprint_tells_candidates_from_ordinary_words():
    """Random tokens are drawn from ordinary words only."""
    one = CandidateVocabulary(["SolidGold"])
    first_word = one.entries[1]
    two = CandidateVocabulary(["SolidGold", first_word])
    two.entries = one.entries
    two._ids = one._ids
    assert one.fingerprint != two.fingerprint


def test_tokens_of_other_texts_are_estimated():
    vocabulary = CandidateVocabulary(["SolidGold", "river"])
    unknown_id = 2002
    assert vocabulary.encode_many(["river", "a longer text", ""]) == [[1], [unknown_id] * 4, []]


def test_candidates_come_from_a_file_or_a_list(write):
    vocabulary = vocabulary_of(None, write("words.txt", "one\n two \r\n\nthree\n"))
    candidates = [vocabulary.entries[token_id] for token_id in vocabulary.candidate_ids]
    assert candidates == ["one", " two ", "three"]
    assert isinstance(vocabulary_of(None, ["a", "b"]), CandidateVocabulary)
    assert vocabulary_of(None, None) is None


def test_missing_candidates_are_refused(write):
    blank_file = write("none.txt", "\n \n")
    for source, value in ((blank_file, blank_file), ([], "empty"), ("missing.txt", "missing.txt")):
        with pytest.raises(InputError, match=naming(value)):
            vocabulary_of(None, source)


def embed(texts):
    return WordBag().encode(texts)


def test_a_function_is_an_encoder(bert_folder):
    encoder = load_encoder(embed, tokenizer=bert_folder, max_length=20)
    assert (encoder.name, encoder.max_length) == ("embed", 20)
    assert encoder.encode(["a bird"]).shape == (1, 16)
    assert len(encoder.tokenizer.entries) == len(load_tokenizer(bert_folder).entries)


def test_a_sample_of_candidates_has_no_ordinary_words(tmp_path):
    candidates = [f"candidate{number}" for number in range(40)]
    encoder = load_encoder(embed, candidates=candidates)
    few = {"sentences": profiled.corpus(), "settings": profiled.SMALL}
    run = detect(encoder, sample=3, out=tmp_path / "run", **few)
    assert set(run.tokens["token"].to_list()) <= set(candidates)


def test_a_function_may_have_candidates_only():
    assert load_encoder(embed, candidates=["stone", "bird"]).tokenizer.candidate_ids == (0, 1)


def test_a_function_refuses_options_that_it_would_ignore():
    with pytest.raises(InputError, match=naming("device")):
        load_encoder(embed, device="cpu")
    with pytest.raises(ModelError, match=naming("int")):
        load_encoder(embed, tokenizer=3)


def test_a_model_with_a_tokenizer_takes_no_other(bert_folder):
    with pytest.raises(InputError, match=naming("tokenizer")):
        load_encoder(bert_folder, tokenizer=bert_folder)


@pytest.mark.parametrize(
    ("tokenizer", "share"),
    [(tiny.wordpiece_tokenizer(), 1.0), (architectures.qwen_tokenizer(closing=False), 0.75)],
)
def test_copies_are_written_so_that_the_tokenizer_sees_them(tokenizer, share):
    tokenizer = vocabulary_of(tokenizer, None)
    vocabulary = categorize(tokenizer)
    glued = choose_joinings(vocabulary, tokenizer, Insertion.TEXT).available
    words = choose_joinings(vocabulary, tokenizer, Insertion.WORDS).available
    assert glued == vocabulary.available
    assert {token.joining for token in glued} == {Joining.GLUED}

    def seen(token):
        text = copies_as_text(token, "a", Placement.SUFFIX, 8)
        return tokenizer.encode_many([text])[0].count(token.id) >= 7

    assert sum(map(seen, words)) >= share * len(words)
    assert sum(map(seen, words)) >= 0.9 * sum(map(seen, glued))


def test_the_documented_example_of_another_service_runs(bert_folder, monkeypatch):
    section = PAGE.read_text("utf-8").partition("## What if the service has another API?")[2]
    code = re.search(r"```python\n(.*?)```", section, re.DOTALL).group(1)
    monkeypatch.setenv("COHERE_API_KEY", "a key")
    monkeypatch.setattr(stickytoken, "detect", lambda encoder, sample: encoder)

    def answer(request):
        body = json.loads(request.content)
        assert str(request.url) == "https://api.cohere.com/v2/embed"
        assert request.headers["Authorization"] == "Bearer a key"
        assert len(body["texts"]) <= 96
        vectors = np.asarray(WordBag().encode(body["texts"])).tolist()
        return httpx.Response(200, json={"embeddings": dict.fromkeys(body["embedding_types"], vectors)})

    monkeypatch.setattr(httpx, "post", httpx.Client(transport=httpx.MockTransport(answer)).post)
    code = code.replace("Cohere/multilingual-22-12", str(bert_folder))
    names = {}
    exec(compile(code, "the example", "exec"), names)
    texts = tiny.sentences(200)
    np.testing.assert_allclose(names["run"].encode(texts), WordBag().encode(texts), rtol=1e-6)
