"""The texts of ten kinds that come with the package: enough of each kind, distinct, and short enough."""

import itertools
import re
from collections import Counter, defaultdict
from importlib.resources import files

import polars as pl
import pytest

from stickytoken.data import bundled_frame, text_kinds_frame

KINDS = (
    "news",
    "encyclopedia",
    "science",
    "law",
    "medicine",
    "code",
    "questions",
    "reviews",
    "chat",
    "email",
)
PER_KIND = 80


@pytest.fixture(scope="module")
def frame():
    return text_kinds_frame()


@pytest.fixture(scope="module")
def texts(frame):
    """The texts of each kind."""
    found = defaultdict(list)
    for kind, text in frame.iter_rows():
        found[kind].append(text)
    return found


def words(text):
    return re.findall(r"[a-z0-9']+", text.lower())


def test_each_of_ten_kinds_has_as_many_texts(frame):
    assert frame.schema == {"kind": pl.String, "text": pl.String}
    assert frame["kind"].unique(maintain_order=True).to_list() == list(KINDS)
    assert Counter(frame["kind"]) == dict.fromkeys(KINDS, PER_KIND)


def test_no_text_is_missing_or_blank_or_has_stray_white_space(frame):
    assert frame.null_count().sum_horizontal().item() == 0
    assert [text for text in frame["text"] if not text or text != text.strip()] == []
    assert [text for text in frame["text"] if "\t" in text or "\r" in text] == []


def test_all_texts_are_distinct_in_their_words(frame):
    assert len({" ".join(words(text)) for text in frame["text"]}) == len(KINDS) * PER_KIND


def test_no_two_texts_say_nearly_the_same(frame):
    sets = [(text, frozenset(words(text))) for text in frame["text"]]
    near = [
        (first, second)
        for (first, left), (second, right) in itertools.combinations(sets, 2)
        if len(left & right) >= 0.4 * len(left | right)
    ]
    assert near == []


def test_no_text_is_long_and_each_kind_has_short_ones_and_paragraphs(texts):
    for kind, own in texts.items():
        sizes = [len(text.split()) for text in own]
        assert max(sizes) <= 100
        assert sum(6 <= size <= 14 for size in sizes) >= 0.375 * PER_KIND, kind
        if kind != "questions":
            assert sum(size >= 25 for size in sizes) >= 0.2 * PER_KIND, kind


def test_openings_vary(texts):
    for kind, own in texts.items():
        openings = Counter(" ".join(words(text)[:3]) for text in own)
        assert [opening for opening, count in openings.items() if count > 3] == [], kind


def test_no_text_is_among_the_bundled_sentences(frame):
    assert set(frame["text"]) & set(bundled_frame()["sentence"]) == set()


def test_the_texts_are_among_the_resources_of_the_package(frame):
    resource = files("stickytoken.data").joinpath("bundled/kinds.csv")
    assert resource.is_file()
    assert resource.read_text("utf-8").startswith("kind,text\n")
    assert frame["text"][0] in resource.read_text("utf-8")
