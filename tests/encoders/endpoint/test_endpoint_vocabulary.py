"""Vocabularies of models that tell none: tokenizers, tiktoken, candidates; and how copies are written."""

import base64
import json
import re
from pathlib import Path

import httpx
import numpy as np
import pytest

import stickytoken
import tiny
import tiny_architectures as architectures
from stickytoken.encoders import load_encoder, load_tokenizer
from stickytoken.encoders.endpoint.vocabulary import CandidateVocabulary, load_vocabulary, vocabulary_of
from stickytoken.errors import InputError, ModelError
from stickytoken.insertion import Insertion, Joining, Placement, copies_as_text
from stickytoken.vocabulary import categorize, written
from word_bag import WordBag

PAGE = Path(__file__).resolve().parents[3] / "docs" / "endpoints.md"


@pytest.fixture
def tiktoken_file(tmp_path):
    pytest.importorskip("tiktoken", reason="tiktoken is not installed")
    tokens = [bytes([byte]) for byte in range(256)] + [b"th", b"the", b" t", b" th", b" the", b"ri", b"riv"]
    path = tmp_path / "cl100k_base.tiktoken"
    path.write_bytes(b"".join(base64.b64encode(t) + f" {k}\n".encode() for k, t in enumerate(tokens)))
    return path


def test_an_encoding_of_tiktoken_is_read_from_its_file(tiktoken_file):
    found = load_vocabulary(tiktoken_file)
    (ids,) = found.encode_many(["the the river"])
    assert found.decode_many([ids]) == ["the the river"]
    assert [found.entries[token_id] for token_id in ids[:2]] == ["the", " the"]
    assert {found.entries[token_id] for token_id in found.special_ids} >= {"<|endoftext|>"}
    vocabulary = categorize(found)
    categories = dict(zip(vocabulary.tokens, vocabulary.categories, strict=True))
    assert categories[" the"] == "OK"
    assert not categories["<|endoftext|>"].available
    assert found.fingerprint == load_vocabulary(str(tiktoken_file)).fingerprint


def test_files_that_are_no_encoding_are_refused(tiktoken_file):
    for name, content, said in (
        ("other.tiktoken", b"", "tiktoken has no encoding 'other'"),
        ("gpt2.tiktoken", b"", "not an encoding that is one file"),
        ("o200k_base.tiktoken", b"no lines of it", "not a file of tiktoken"),
        ("p50k_base.tiktoken", tiktoken_file.read_bytes()[:13], "not the file of p50k_base"),
    ):
        path = tiktoken_file.with_name(name)
        path.write_bytes(content)
        with pytest.raises(ModelError, match=said):
            load_vocabulary(path)
    with pytest.raises(ModelError, match="no file"):
        load_vocabulary("missing.tiktoken")
    with pytest.raises(ModelError, match="tiktoken has no encoding 'nothing': use one of"):
        load_vocabulary("tiktoken:nothing")


def test_candidates_are_a_vocabulary_with_ordinary_words_beside_them():
    found = CandidateVocabulary(["SolidGold", " Magikarp", "SolidGold", "river"])
    assert found.candidate_ids == (0, 1, 2)
    assert [found.entries[k] for k in range(3)] == ["SolidGold", " Magikarp", "river"]
    assert len(found.entries) == 2003
    assert len(set(found.entries.values())) == 2003
    assert found.encode_many(["river", "a longer text", ""]) == [[2], [2003] * 4, []]
    assert len(categorize(found).available) == 2003
    assert CandidateVocabulary(["a"]).fingerprint != found.fingerprint


def test_candidates_come_from_a_file_or_a_list(write):
    found = vocabulary_of(None, write("words.txt", "one\n two \r\n\nthree\n"))
    assert [found.entries[k] for k in found.candidate_ids] == ["one", " two ", "three"]
    assert isinstance(vocabulary_of(None, ["a", "b"]), CandidateVocabulary)
    assert vocabulary_of(None, None) is None
    for bad, said in ((write("none.txt", "\n \n"), "is empty"), ([], "empty"), ("missing.txt", "missing")):
        with pytest.raises(InputError, match=said):
            vocabulary_of(None, bad)


def test_a_function_is_an_encoder(bert_folder):
    bag = WordBag()

    def service(texts):
        return bag.encode(texts)

    found = load_encoder(service, tokenizer=bert_folder, max_length=20)
    assert (found.name, found.max_length) == ("service", 20)
    assert found.encode(["a bird"]).shape == (1, 16)
    assert len(found.tokenizer.entries) == len(load_tokenizer(bert_folder).entries)
    assert load_encoder(service, candidates=["stone", "bird"]).tokenizer.candidate_ids == (0, 1)
    for options, said in (
        ({"device": "cpu"}, "device cannot be set"),
        ({"tokenizer": 3}, "vocabulary of a int"),
    ):
        with pytest.raises((InputError, ModelError), match=said):
            load_encoder(service, **options)
    with pytest.raises(InputError, match=r"tokenizer cannot be set on .*neither a model behind an endpoint"):
        load_encoder(bert_folder, tokenizer=bert_folder)


@pytest.mark.parametrize(
    ("tokenizer", "share"),
    [(tiny.wordpiece_tokenizer(), 1.0), (architectures.qwen_tokenizer(closing=False), 0.75)],
)
def test_copies_are_written_so_that_the_tokenizer_sees_them(tokenizer, share):
    tokenizer = vocabulary_of(tokenizer, None)
    vocabulary = categorize(tokenizer)
    glued = written(vocabulary, tokenizer, Insertion.TEXT).available
    words = written(vocabulary, tokenizer, Insertion.WORDS).available
    assert glued == vocabulary.available
    assert {token.joining for token in glued} == {Joining.GLUED}

    def seen(token):
        text = copies_as_text(token, "a", Placement.SUFFIX, 8)
        return tokenizer.encode_many([text])[0].count(token.id) >= 7

    assert sum(map(seen, words)) >= share * len(words)
    assert sum(map(seen, words)) >= 0.9 * sum(map(seen, glued))


def test_the_documented_example_of_another_service_runs(bert_folder, monkeypatch):
    section = PAGE.read_text("utf-8").partition("## Any other service")[2]
    code = re.search(r"```python\n(.*?)```", section, re.DOTALL).group(1)
    monkeypatch.setenv("COHERE_API_KEY", "a key")
    monkeypatch.setattr(stickytoken, "detect", lambda encoder, sample: encoder)

    def answer(request):
        asked = json.loads(request.content)
        assert str(request.url) == "https://api.cohere.com/v2/embed"
        assert request.headers["Authorization"] == "Bearer a key"
        assert len(asked["texts"]) <= 96
        found = np.asarray(WordBag().encode(asked["texts"])).tolist()
        return httpx.Response(200, json={"embeddings": dict.fromkeys(asked["embedding_types"], found)})

    monkeypatch.setattr(httpx, "post", httpx.Client(transport=httpx.MockTransport(answer)).post)
    code = code.replace("Cohere/multilingual-22-12", str(bert_folder))
    names = {}
    exec(compile(code, "the example", "exec"), names)
    texts = tiny.sentences(200)
    np.testing.assert_allclose(names["run"].encode(texts), WordBag().encode(texts), rtol=1e-6)
