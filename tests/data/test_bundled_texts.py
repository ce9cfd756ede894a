"""The sentences and the texts of ten kinds that come with the package: enough, varied and distinct."""

import itertools
import re
from collections import Counter

import polars as pl
import pytest

from stickytoken.data import bundled_frame, bundled_sentences, load_sentences, text_kinds, text_kinds_frame

KINDS = "news encyclopedia science law medicine code questions reviews chat email".split()
PER_KIND = 80


@pytest.fixture(scope="module")
def frame():
    return bundled_frame()


@pytest.fixture(scope="module")
def texts(frame):
    return frame["sentence"].to_list()


def words(text):
    return re.findall(r"[a-z0-9']+", text.lower())


def near(groups, least):
    """Texts of different groups that share so much of their words."""
    sets = [(group, frozenset(words(text))) for group, text in groups]
    return [
        (first, second)
        for (first, left), (second, right) in itertools.combinations(sets, 2)
        if first != second and len(left & right) >= least * len(left | right)
    ]


# Sentences.


def test_there_are_840_pairs_of_distinct_sentences_each_on_one_topic(frame, texts):
    assert frame.schema == {"pair_id": pl.Int64, "topic": pl.String, "sentence": pl.String}
    assert len({" ".join(words(text)) for text in texts}) == len(texts) == 1680
    assert Counter(frame["pair_id"]) == dict.fromkeys(range(1, 841), 2)
    assert frame.group_by("pair_id").agg(pl.col("topic").n_unique())["topic"].max() == 1
    per_topic = frame.group_by("topic").agg(pl.col("pair_id").n_unique())
    assert Counter(per_topic["pair_id"]) == {15: 40, 10: 24}
    assert [text for text in texts if not text.isascii() or text != " ".join(text.split())] == []
    assert [text for text in texts if text[-1] not in ".?!"] == []


@pytest.mark.slow
def test_a_paraphrase_is_more_than_the_same_words_and_no_two_pairs_say_nearly_the_same(frame):
    assert near(frame.select("pair_id", "sentence").iter_rows(), 0.5) == []
    for _, pair in frame.group_by("pair_id"):
        assert near(enumerate(pair["sentence"]), 0.75) == []


def test_the_corpus_keeps_all_sentences_with_their_topics(frame, texts):
    corpus = bundled_sentences()
    assert (corpus.texts, corpus.topics) == (tuple(texts), tuple(frame["topic"]))
    assert (corpus.blank, corpus.duplicates, corpus.bundled) == (0, 0, True)
    assert load_sentences() == load_sentences("bundled") == corpus


# Kinds of text.


def test_each_of_ten_kinds_has_as_many_distinct_texts(texts):
    kinds = text_kinds_frame()
    assert kinds.schema == {"kind": pl.String, "text": pl.String}
    assert kinds["kind"].unique(maintain_order=True).to_list() == KINDS
    assert Counter(kinds["kind"]) == dict.fromkeys(KINDS, PER_KIND)
    assert (text_kinds().texts, text_kinds().topics) == (tuple(kinds["text"]), tuple(kinds["kind"]))
    assert near(enumerate(kinds["text"]), 0.4) == []
    assert [text for text in kinds["text"] if text != text.strip() or set("\t\r") & set(text)] == []
    assert set(kinds["text"]) & set(texts) == set()
