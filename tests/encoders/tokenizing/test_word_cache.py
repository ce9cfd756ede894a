"""Ids put together from words, held against the whole tokenizer."""

import json
from functools import cache

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer

import tiny
import tiny_architectures as architectures
import word_pipelines as pipelines
from stickytoken.encoders import load_tokenizer
from stickytoken.encoders.tokenizer import Boundaries, HuggingFaceTokenizer, WordCache, boundaries
from stickytoken.errors import EncodingError
from stickytoken.insertion import Placement, Token, copies_as_text

pytestmark = pytest.mark.slow

BUILDERS = {**pipelines.CACHED, "MiniLM": lambda: load_tokenizer("all-MiniLM-L6-v2")._backend}
PUBLISHED = ["t5", "roberta-base"]
TEXTS = [*tiny.sentences(20), *architectures.HOSTILE_TEXTS]
reproducible = settings(max_examples=50, suppress_health_check=list(HealthCheck))
batches = st.lists(pipelines.hostile_texts, max_size=4)
carriers = st.lists(
    st.one_of(st.sampled_from(tiny.sentences(20)), pipelines.hostile_texts), min_size=1, max_size=3
)
token_lists = st.lists(pipelines.tokens, min_size=1, max_size=4)
names = pytest.mark.parametrize("name", list(BUILDERS))


class Counting:
    """A pipeline that counts the texts it is given."""

    def __init__(self, backend):
        self.backend = backend
        self.texts = 0

    def __getattr__(self, name):
        return getattr(self.backend, name)

    def encode_batch_fast(self, texts, **options):
        self.texts += len(texts)
        return self.backend.encode_batch_fast(texts, **options)


@cache
def backend_of(name) -> Tokenizer:
    return BUILDERS[name]()


@cache
def cache_of(name) -> WordCache:
    """One cache for all examples, so that they meet what others left."""
    found = WordCache.of(backend_of(name))
    assert found is not None
    return found


def plain(backend, texts):
    return [backend.encode(text, add_special_tokens=False).ids for text in texts]


def probes(tokens, carriers):
    """Copies before, behind and among the words of each carrier, token by token, as runs do."""
    return [
        copies_as_text(Token(0, token), carrier, placement, copies, path)
        for token in tokens
        for carrier in carriers
        for placement, path in ((Placement.PREFIX, ()), (Placement.SUFFIX, ()), (Placement.RANDOM, (0, 0, 0)))
        for copies in (1, 3)
    ]


def assert_equal(cache, backend, texts):
    expected = plain(backend, texts)
    for _ in range(3):  # unknown; seen once; known
        found = cache.encode(texts)
        assert found == expected, [text for text, a, b in zip(texts, found, expected, strict=True) if a != b]


# Equal to the whole tokenizer.


@names
@reproducible
@given(texts=batches)
def test_hostile_texts_have_the_ids_of_the_whole_tokenizer(name, texts):
    assert_equal(cache_of(name), backend_of(name), texts)


@names
@settings(reproducible, max_examples=40)  # each of them is dozens of texts
@given(tokens=token_lists, carriers=carriers)
def test_copies_in_carriers_have_the_ids_of_the_whole_tokenizer(name, tokens, carriers):
    assert_equal(cache_of(name), backend_of(name), probes(tokens, carriers))


@names
def test_a_fresh_cache_gives_what_one_that_has_seen_much_gives(name):
    fresh = WordCache.of(backend_of(name))
    assert fresh.encode(TEXTS) == cache_of(name).encode(TEXTS) == plain(backend_of(name), TEXTS)
    assert [fresh.encode([text])[0] for text in reversed(TEXTS)] == fresh.encode(TEXTS)[::-1]


@pytest.mark.parametrize("name", PUBLISHED)
@reproducible
@given(texts=batches, tokens=token_lists, carriers=carriers)
def test_published_tokenizers_agree_with_their_caches(shared, name, texts, tokens, carriers):
    backend = published(shared / "tokenizers" / name)
    assert_equal(published_cache(shared / "tokenizers" / name), backend, [*texts, *probes(tokens, carriers)])


@cache
def published(folder):
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


@cache
def published_cache(folder):
    return WordCache.of(published(folder))


def test_special_tokens_that_are_split_are_split_here_too():
    backend = Tokenizer.from_str(backend_of("bert").to_str())
    backend.encode_special_tokens = True
    texts = ["the [SEP] river", "the river[MASK] sings", "[CLS]"]
    assert plain(backend, texts) != plain(backend_of("bert"), texts)
    assert_equal(WordCache.of(backend), backend, texts)


# Where it does not hold.


@pytest.mark.parametrize("name", list(pipelines.NOT_CACHED))
def test_pipelines_that_may_look_over_a_boundary_are_refused(name):
    backend = pipelines.NOT_CACHED[name]()
    assert boundaries(backend) is None
    assert WordCache.of(backend) is None
    adapted = HuggingFaceTokenizer(backend)
    assert adapted.encode_many(TEXTS) == plain(backend, TEXTS)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("merges over words", "sings the river"),
        ("whole texts looked up", "the river"),
        ("an expression", "the river"),
        ("two words replaced", "sings the river"),
        ("the mark replaced", "on the river"),
        ("an unknown split", "the river"),
        ("no split of bytes", "the river"),
        ("an added token of two words", "in the river"),
        ("the text twice", "the river"),
    ],
)
def test_cutting_would_be_wrong_where_it_is_refused(name, text):
    """Not for every example: some are refused because nobody has shown that they may be cut."""
    backend = pipelines.NOT_CACHED[name]()
    if name == "whole texts looked up":
        pipeline = json.loads(backend.to_str())
        pipeline["model"]["vocab"]["the▁river"] = len(pipeline["model"]["vocab"])
        backend = Tokenizer.from_str(json.dumps(pipeline))
    if name in ("an unknown split", "no split of bytes"):
        pipeline = json.loads(backend.to_str())
        pipeline["model"]["vocab"]["eĠ"] = len(pipeline["model"]["vocab"])
        pipeline["model"]["merges"].insert(0, ["e", "Ġ"])
        backend = Tokenizer.from_str(json.dumps(pipeline))
    assert WordCache(backend, Boundaries(" ", stops=False)).encode([text]) != plain(backend, [text])


def test_dropout_is_refused():
    backend = pipelines.changed(architectures.roberta_tokenizer, model={"dropout": 0.5})
    assert boundaries(backend) is None
    still = pipelines.changed(architectures.roberta_tokenizer, model={"dropout": 0.0})
    assert boundaries(still) == boundaries(backend_of("roberta"))


def test_stops_are_boundaries_only_where_they_are_cut_and_no_added_token_holds_one():
    assert boundaries(backend_of("bert")) == Boundaries(" ", stops=True)
    assert boundaries(backend_of("roberta")) == Boundaries(" ", stops=True)
    for name in ("roberta, blank in front", "qwen", "t5", "mistral", "gemma"):
        assert boundaries(backend_of(name)) == Boundaries(" ", stops=False)
    assert boundaries(backend_of("legacy llama")) == Boundaries("", stops=False)
    stop = pipelines.changed(architectures.bert_tokenizer, added=[AddedToken("s.the")])
    assert boundaries(stop) == Boundaries(" ", stops=False)
    assert_equal(WordCache.of(stop), stop, probes(["the", "The"], ["the river walks.", "on and on."]))


def test_a_step_written_in_python_is_refused():
    class Own:
        def pre_tokenize(self, pretok):
            pass

    from tokenizers import pre_tokenizers

    backend = pipelines.changed(
        architectures.bert_tokenizer, pre_tokenizer=pre_tokenizers.PreTokenizer.custom(Own())
    )
    assert boundaries(backend) is None


# A cache.


@names
def test_what_is_known_is_not_tokenized_again(name):
    counting = Counting(backend_of(name))
    cache = WordCache(counting, boundaries(backend_of(name)))
    carriers = [f"{text[:-1]} stops" for text in tiny.sentences(10) if "stone" not in text]
    texts = probes(["river"], carriers)
    cache.encode(texts)
    cache.encode(texts)
    known = counting.texts
    cache.encode(texts)
    assert counting.texts == known
    # Of another token, each carrier brings what is glued to it: its first and its last word.
    cache.encode(probes(["winter"], carriers))
    assert counting.texts - known <= 4 * len(carriers) + 10
    assert counting.texts - known < len(probes(["winter"], carriers))


def test_the_cache_is_bounded_and_forgetting_changes_nothing():
    backend = backend_of("bert")
    cache = WordCache(backend, boundaries(backend), capacity=20_000)
    entries, hashes = [], []
    for number in range(300):
        texts = [f"{text} {number}" for text in tiny.sentences(5, seed=number)]
        assert cache.encode(texts) == plain(backend, texts)
        entries.append(len(cache._beginnings) + len(cache._continuations))
        hashes.append(len(cache._seen))
    assert 30 < max(entries) < 20_000 / 200 + 50
    assert 30 < max(hashes) < 20_000 / 64 + 10
    assert min(entries[100:]) < max(entries) / 2


def test_texts_of_known_words_in_ever_new_orders_are_bounded_too():
    backend = backend_of("bert")
    cache = WordCache(backend, boundaries(backend), capacity=60_000)
    most = 0
    for number in range(150):
        texts = tiny.sentences(20, seed=number)
        assert cache.encode(texts) == plain(backend, texts)
        most = max(most, len(cache._seen))
    assert 100 < most < 60_000 / 64 + 40


def test_what_is_returned_is_the_callers_own():
    cache = WordCache.of(backend_of("bert"))
    texts = ["the river sings", "the river", "the"]
    for _ in range(4):
        for ids in cache.encode(texts):
            ids.clear()
    assert cache.encode(texts) == plain(backend_of("bert"), texts)


@pytest.mark.parametrize("name", ["bert", "roberta", "t5", "gemma"])
def test_half_a_surrogate_pair_is_named_with_its_text_and_leaves_the_cache_as_it_was(name):
    adapted = HuggingFaceTokenizer(backend_of(name))
    for broken in ("the river \ud83d sings", "\udc00", "the river sings \ud83d"):
        for _ in range(3):
            with pytest.raises(EncodingError, match="half a surrogate pair") as caught:
                adapted.encode_many(["the river", broken])
            assert ascii(broken)[1:-1].split(" ")[0] in str(caught.value)
            assert adapted.encode_many(TEXTS) == plain(backend_of(name), TEXTS)


def test_no_texts_have_no_ids():
    assert cache_of("bert").encode([]) == []
