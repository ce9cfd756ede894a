"""The sentences that come with the package: enough of them, varied, and in pairs."""

import itertools
import re
import subprocess
import sys
from collections import Counter, defaultdict
from importlib.resources import files

import polars as pl
import pytest

from stickytoken.data import bundled_frame, bundled_sentences, load_sentences


@pytest.fixture(scope="module")
def frame():
    return bundled_frame()


@pytest.fixture(scope="module")
def texts(frame):
    return frame["sentence"].to_list()


@pytest.fixture(scope="module")
def pairs(frame):
    """The two sentences of each pair, by pair_id."""
    found = defaultdict(list)
    for pair_id, sentence in frame.select("pair_id", "sentence").iter_rows():
        found[pair_id].append(sentence)
    return found


def words(text):
    return re.findall(r"[a-z0-9']+", text.lower())


def jaccard(left, right):
    return len(left & right) / len(left | right)


def test_there_are_1680_distinct_sentences(frame, texts):
    assert frame.schema == {"pair_id": pl.Int64, "topic": pl.String, "sentence": pl.String}
    assert frame.null_count().sum_horizontal().item() == 0
    assert len(texts) == 1680
    assert len({" ".join(words(text)) for text in texts}) == 1680


def test_there_are_840_pairs_of_exactly_two_on_one_topic(frame, pairs):
    assert sorted(pairs) == list(range(1, 841))
    assert {len(both) for both in pairs.values()} == {2}
    assert frame.group_by("pair_id").agg(pl.col("topic").n_unique())["topic"].max() == 1


def test_each_topic_has_10_or_15_pairs(frame):
    per_topic = frame.group_by("topic").agg(pl.col("pair_id").n_unique())
    assert Counter(per_topic["pair_id"]) == {15: 40, 10: 24}
    assert all(re.fullmatch(r"[a-z][a-z ]*[a-z]", topic) for topic in per_topic["topic"])


def test_sentences_have_4_to_30_words_and_no_stray_white_space(texts):
    sizes = [len(text.split()) for text in texts]
    assert min(sizes) >= 4
    assert max(sizes) <= 30
    assert all(text == " ".join(text.split()) for text in texts)


def test_sentences_are_ascii_and_end_like_sentences(texts):
    assert [text for text in texts if not text.isascii()] == []
    assert [text for text in texts if text[-1] not in ".?!"] == []
    assert [text for text in texts if not (text[0].isupper() or text[0].isdigit() or text[0] in "\"'")] == []


def test_no_two_pairs_say_nearly_the_same(pairs):
    sets = [(pair_id, frozenset(words(text))) for pair_id, both in pairs.items() for text in both]
    near = [
        (first, second)
        for (first, left), (second, right) in itertools.combinations(sets, 2)
        if first != second and jaccard(left, right) >= 0.5
    ]
    assert near == []


def test_a_paraphrase_is_more_than_the_same_words(pairs):
    near = [both for both in pairs.values() if jaccard(*(frozenset(words(text)) for text in both)) >= 0.75]
    assert near == []


def test_openings_vary(texts):
    openings = Counter(" ".join(words(text)[:3]) for text in texts)
    assert [opening for opening, count in openings.items() if count > 3] == []


def test_forms_vary(texts):
    sizes = [len(text.split()) for text in texts]
    endings = Counter(text.rstrip("\"'")[-1] for text in texts)
    assert sum(size <= 7 for size in sizes) >= 0.25 * len(texts)
    assert sum(size >= 15 for size in sizes) >= 0.1 * len(texts)
    assert len(set(sizes)) >= 15
    assert endings["?"] >= 0.05 * len(texts)
    assert endings["!"] >= 1
    first_words = Counter(words(text)[0] for text in texts)
    assert max(first_words.values()) <= 0.1 * len(texts)


def test_the_corpus_keeps_all_sentences_with_their_topics(frame, texts):
    corpus = bundled_sentences()
    assert corpus.texts == tuple(texts)
    assert corpus.topics == tuple(frame["topic"])
    assert (corpus.blank, corpus.duplicates) == (0, 0)
    assert load_sentences() == load_sentences("bundled") == corpus


def test_the_sentences_are_among_the_resources_of_the_package(texts):
    resource = files("stickytoken.data").joinpath("bundled/sentences.csv")
    assert resource.is_file()
    assert resource.read_text("ascii").count("\n") == 1681
    assert texts[0] in resource.read_text("ascii")


def test_the_sentences_are_found_from_any_folder(tmp_path, texts):
    code = "from stickytoken import load_sentences; import sys; sys.stdout.write(load_sentences().texts[-1])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout == texts[-1]
