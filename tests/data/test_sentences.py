"""Sentences and pairs: from files, from the package, sampled, chosen, and how each can be bad."""

import codecs
import itertools
import random
import re
from collections import Counter
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import assume, given, settings, strategies as st
from sklearn.metrics.pairwise import cosine_similarity
from tokenizers import Tokenizer, models, pre_tokenizers

import planted
import tiny
from naming import naming
from stickytoken import detect, load_tokenizer, probe
from stickytoken.data import (
    LONGEST_SENTENCE,
    PairCorpus,
    SentencePair,
    Sentences,
    bundled_frame,
    bundled_sentences,
    collect_sentences,
    load_sentences,
    pairs_from_file,
    sample_pairs,
    select_pairs,
    text_kinds,
    text_kinds_frame,
)
from stickytoken.data.readability import require_readable
from stickytoken.errors import InputError, StickyTokenWarning
from stickytoken.methods import SETTINGS_OF_METHOD
from tables import TABLES, table

TEXTS = (
    *("A red boat.", "Größe, \N{SNOWMAN} and 'quotes'", 'She said "no", then left', "One"),
    "a\u2028b\x0bc\x0cd\x1ce\x85f",  # what Python's splitlines takes for line ends
)


def test_a_text_file_holds_a_sentence_a_line(write, monkeypatch):
    path = write("s.txt", "\n".join(TEXTS) + "\n")
    corpus = load_sentences(path)
    assert corpus.texts == TEXTS
    assert (corpus.blank, corpus.duplicates, corpus.topics) == (0, 0, None)
    assert load_sentences(str(path)) == corpus
    monkeypatch.setenv("HOME", str(path.parent))
    assert load_sentences("~/s.txt").texts == TEXTS
    write("paper", "a b\nc")  # named like a corpus, it is reached by its path
    monkeypatch.chdir(path.parent)
    assert load_sentences("./paper").texts == ("a b", "c")
    write("bundled", "d e\nf")
    assert load_sentences(Path("./paper")).texts == ("a b", "c")
    assert load_sentences(Path("./bundled")).texts == ("d e", "f")


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"sentence1": ["a", "b"], "sentence2": ["c", "a"], "sentence": ["x", "y"]}, ("a", "b", "c")),
        ({"text": ["a", "b"], "sentence": ["x", "y"]}, ("a", "b")),
        ({"sentence1": ["x", "y"], "text": ["a", "b"]}, ("a", "b")),
        ({"id": [1, 2], "score": [0.5, 1e-3], "phrase": ["a", "b"]}, ("a", "b")),
    ],
)
def test_the_usual_columns_are_found(write, columns, expected):
    for ending in ("csv", "jsonl"):
        assert load_sentences(write(f"s.{ending}", table(ending, columns))).texts == expected


@pytest.mark.parametrize("ending", TABLES)
def test_a_named_column_goes_before_the_usual_ones(write, ending):
    path = write(f"s.{ending}", table(ending, {"sentence": ["x", "y"], "other": ["a", "b"]}))
    assert load_sentences(path, column="other").texts == ("a", "b")
    with pytest.raises(InputError, match=naming("'third'", "sentence", "other")):
        load_sentences(path, "third")


def test_blank_and_repeated_sentences_are_left_out_and_counted(write):
    corpus = collect_sentences(["a", "", "b", "a", "c"], "test", topics=["1", "2", "3", "4", "5"])
    assert corpus == Sentences(("a", "b", "c"), "test", topics=("1", "3", "5"), blank=1, duplicates=1)
    found = load_sentences(write("s.txt", "a b\n\n  \t\na b\n c \nc\na b\n"))
    assert found.texts == ("a b", "c")
    assert (found.blank, found.duplicates) == (0, 3)  # a blank line is no record


@pytest.mark.parametrize("ending", TABLES)
@pytest.mark.filterwarnings("ignore:.*without readable text")
def test_missing_values_of_a_table_count_as_blank(write, ending):
    rows = {"sentence": ["null", None, " ", "b"], "n": [1, 2, 3, 4]}
    corpus = load_sentences(write(f"s.{ending.upper()}", table(ending, rows)))
    assert (corpus.texts, corpus.blank) == (("null", "b"), 2)


@pytest.mark.parametrize("line", ["no json", '{"text": NaN}', '{"text": null}', "[1]"])
def test_a_record_without_readable_text_is_left_out_and_named(write, line):
    path = write("s.jsonl", f'{{"text": "a"}}\n{line}\n{{"text": "b"}}\n')
    with pytest.warns(StickyTokenWarning, match=naming(path, "1 record", "line 2")):
        corpus = load_sentences(path)
    assert (corpus.texts, corpus.blank) == (("a", "b"), 1)


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("s.txt", ["a b", "c"]),
        ("quoted.csv", ['"sentence","n"', '"a b",1', '"c",2']),
        ("s.jsonl", ['{"sentence": "a b"}', '{"sentence": "c"}']),
    ],
)
def test_line_ends_and_byte_order_marks_are_no_part_of_a_sentence(write, name, lines):
    for mark, end in ((b"", "\n"), (codecs.BOM_UTF8, "\r\n")):
        corpus = load_sentences(write(name, mark + "".join(line + end for line in lines).encode()))
        assert (corpus.texts, corpus.blank) == (("a b", "c"), 0)


@pytest.mark.parametrize(
    ("name", "content", "values"),
    [
        ("s.txt", " \n\t\r\n", ()),
        ("s.txt", codecs.BOM_UTF8 + b"\n", ()),
        ("s.csv", codecs.BOM_UTF8, ()),
        ("s.csv", f"text\n{'y' * 200_000}\n", ["100,000"]),
        ("s.csv", "n,text\n1,7\n2.5,-3e5\n", [7]),
        ("s.txt", b"a\0b\n", ["byte 1"]),
        ("s.csv", "sentence\ncaf\xe9\n".encode("latin-1"), ["byte 12", "0xe9", "UTF-8"]),
        ("s.csv", "sentence,n\na,1,surplus\n", ["line 2", 3]),
        ("s.jsonl", "no json\n", ["line 1"]),
        ("s.parquet", table("parquet", {"text": TEXTS})[:-5], ()),
        ("s.md", "a b", ["'.md'"]),
        ("s.csv", "first,second\na,b\n", ["first", "second"]),
        ("s.csv", "id,score\n1,2\n", ["id", "score"]),
        ("s.jsonl", '{"text": 5}\n', ["text"]),
        ("s.parquet", table("parquet", {}), ()),
        ("s.tsv", "a\ttext\ttext\n1\tx\ty\n", ["'text'"]),
    ],
)
def test_a_file_that_cannot_be_used_is_named_with_what_is_wrong(write, name, content, values):
    path = write(name, content)
    with pytest.raises(InputError, match=naming(path, *values)) as error:
        load_sentences(path)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 500


def test_a_missing_file_a_folder_and_what_has_no_columns_are_named(tmp_path, write):
    for source, named in (
        ((tmp_path / "there.csv",), tmp_path / "there.csv"),
        ((tmp_path,), tmp_path),
        ((write("s.txt", "a\n"), "sentence"), tmp_path / "s.txt"),
        ((None, "sentence"), "--column sentence"),
    ):
        with pytest.raises(InputError, match=naming(named)):
            load_sentences(*source)


def test_a_sample_is_drawn_without_replacement_and_by_seed():
    corpus = collect_sentences([f"sentence {k}" for k in range(200)], "test")
    first = corpus.sample(50, seed=1)
    assert len(set(first)) == 50
    assert set(first) <= set(corpus.texts)
    assert corpus.sample(50, seed=1) == first
    assert corpus.sample(50, seed=2) != first
    assert sorted(corpus.sample(200, seed=3)) == sorted(corpus.texts)
    with pytest.raises(InputError, match=naming("test", 200, 201)):
        corpus.sample(201, seed=0)


def test_the_fingerprint_is_of_the_sentences_in_order_and_of_nothing_else():
    def fingerprint(*texts):
        return Sentences(texts, "test").fingerprint

    topics = [
        Sentences(("a", "b"), "other", topics=labels, blank=3) for labels in (None, tuple("xy"), tuple("yx"))
    ]
    assert {corpus.fingerprint for corpus in topics} == {
        topics[0].fingerprint_with_topics,
        fingerprint("a", "b"),
    }
    assert len({corpus.fingerprint_with_topics for corpus in topics}) == 3
    others = [("b", "a"), ("ab",), ("a",), ("a", "b", "c"), ("", "ab"), ("a b",)]
    assert len({fingerprint("a", "b"), *(fingerprint(*texts) for texts in others)}) == len(others) + 1


def test_a_line_too_long_for_any_model_is_left_out_with_a_warning(write):
    longest = "x" * LONGEST_SENTENCE
    path = write("s.txt", f"a b\n{longest}\n{longest}y\nc d\n")
    with pytest.warns(StickyTokenWarning, match=naming("1 sentence", "100,000")):
        corpus = load_sentences(path)
    assert (corpus.texts, corpus.too_long) == (("a b", longest, "c d"), 1)


# Sentences and texts of ten kinds that come with the package


KINDS = "news encyclopedia science law medicine code questions reviews chat email".split()


@pytest.fixture(scope="module")
def frame():
    return bundled_frame()


def words(text):
    return re.findall(r"[a-z0-9']+", text.lower())


def near(groups, least):
    sets = [(group, frozenset(words(text))) for group, text in groups]
    return [
        (first, second)
        for (first, first_words), (second, right) in itertools.combinations(sets, 2)
        if first != second and len(first_words & right) >= least * len(first_words | right)
    ]


def test_there_are_840_pairs_of_distinct_sentences_each_on_one_topic(frame):
    texts = frame["sentence"].to_list()
    assert frame.schema == {"pair_id": pl.Int64, "topic": pl.String, "sentence": pl.String}
    assert len({" ".join(words(text)) for text in texts}) == len(texts) == 1680
    assert Counter(frame["pair_id"]) == dict.fromkeys(range(1, 841), 2)
    assert frame.group_by("pair_id").agg(pl.col("topic").n_unique())["topic"].max() == 1
    assert Counter(frame.group_by("topic").agg(pl.col("pair_id").n_unique())["pair_id"]) == {15: 40, 10: 24}
    assert [text for text in texts if not text.isascii() or text != " ".join(text.split())] == []
    assert [text for text in texts if text[-1] not in ".?!"] == []
    corpus = bundled_sentences()
    assert (corpus.texts, corpus.topics) == (tuple(texts), tuple(frame["topic"]))
    assert (corpus.blank, corpus.duplicates, corpus.bundled) == (0, 0, True)
    assert load_sentences() == load_sentences("bundled") == corpus


@pytest.mark.slow
def test_a_paraphrase_is_more_than_the_same_words_and_no_two_pairs_say_nearly_the_same(frame):
    assert near(frame.select("pair_id", "sentence").iter_rows(), 0.5) == []
    for _, pair in frame.group_by("pair_id"):
        assert near(enumerate(pair["sentence"]), 0.75) == []


def test_each_of_ten_kinds_has_as_many_distinct_texts(frame):
    kinds = text_kinds_frame()
    assert kinds.schema == {"kind": pl.String, "text": pl.String}
    assert kinds["kind"].unique(maintain_order=True).to_list() == KINDS
    assert Counter(kinds["kind"]) == dict.fromkeys(KINDS, 80)
    assert (text_kinds().texts, text_kinds().topics) == (tuple(kinds["text"]), tuple(kinds["kind"]))
    assert near(enumerate(kinds["text"]), 0.4) == []
    assert [text for text in kinds["text"] if text != text.strip() or set("\t\r") & set(text)] == []
    assert set(kinds["text"]) & set(frame["sentence"]) == set()


# A corpus that a tokenizer cannot read is refused, and one that it reads stays as it is


CHINESE = "今天天气很好 我们去公园散步 这本书讲述了一个故事 他昨天坐飞机到了上海 政府宣布了新的政策".split()
EMOJI = ["😀😃", "🎉🎊", "👍🙏👍", "🚀"]


@pytest.fixture(scope="module")
def wordpiece(bert_folder):
    return load_tokenizer(bert_folder)


def test_a_corpus_of_unknown_characters_is_refused(wordpiece, tmp_path):
    pieces = [("<unk>", 0.0), ("▁", -1.0), *((letter, -2.0) for letter in "abcdefghijklmnopqrstuvwxyz.")]
    unigram = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=False))
    unigram.pre_tokenizer = pre_tokenizers.Metaspace()
    unigram.save(str(tmp_path / "tokenizer.json"))
    for texts, tokenizer in ((CHINESE, wordpiece), (EMOJI, load_tokenizer(tmp_path))):
        with pytest.raises(InputError, match=r"tiny.* (9\d|100)%.* test"):
            require_readable(collect_sentences(texts, "test"), tokenizer, "tiny")


@pytest.mark.parametrize("method", list(SETTINGS_OF_METHOD))
def test_a_run_on_such_a_corpus_is_refused_before_anything_is_encoded(encoder, tmp_path, method):
    """It would say: no sticky tokens."""
    texts = [f"{first}{second}" for first in CHINESE for second in CHINESE] * 2
    events = []
    with pytest.raises(InputError, match=naming("the given list")):
        detect(encoder, method=method, sentences=texts, out=tmp_path / "run", progress=events.append)
    with pytest.raises(InputError, match=naming("the given list")):
        probe(encoder, ["river"], method=method, sentences=texts, progress=events.append)
    assert events == []
    assert not (tmp_path / "run").exists()


def test_a_small_share_of_the_characters_is_told_and_recorded(encoder, tmp_path):
    texts = [*planted.small_corpus().texts, *(f"{text} {'今' * 3}" for text in planted.small_corpus().texts)]
    with pytest.warns(StickyTokenWarning, match=r"\d\.\d%"):
        run = detect(encoder, sentences=texts, settings=planted.SMALL, tokens=[60], out=tmp_path / "run")
    characters = sum(len(text.replace(" ", "")) for text in texts)
    assert run.record.corpus.unknown == pytest.approx(3 * 60 / characters)


def test_sentences_that_unknown_tokens_make_equal_are_kept_once(wordpiece):
    texts = [*tiny.sentences(60), *(f"the {word} stone" for word in ("river 今", "river 天", "River 😀"))]
    texts.append("a 今 bird")
    found = require_readable(
        collect_sentences(texts, "test", topics=[str(k) for k in range(64)]), wordpiece, "tiny"
    )
    assert found.texts == (*texts[:61], texts[63])
    assert found.topics == (*(str(k) for k in range(61)), "63")
    assert found.duplicates == 2
    # Texts that differ in case alone are two texts, as they were in published runs.
    corpus = collect_sentences([*tiny.sentences(60), tiny.sentences(60)[0].upper()], "test")
    assert require_readable(corpus, wordpiece, "tiny").fingerprint == corpus.fingerprint


def test_pairs_are_checked_too(wordpiece):
    pairs = tuple(SentencePair(text, "the river", 0.5) for text in CHINESE)
    with pytest.raises(InputError, match=naming("tiny", "pairs")):
        require_readable(PairCorpus(pairs, "pairs"), wordpiece, "tiny")
    plain = PairCorpus((SentencePair("a stone", "the river", 0.5),), "pairs")
    assert require_readable(plain, wordpiece, "tiny").pairs == plain.pairs


def test_a_tokenizer_without_spans_counts_tokens():
    class Spanless:
        unknown_id = 0

        def encode_many(self, texts):
            return [[0 if "x" in word else 1 for word in text.split()] for text in texts]

        def encode_with_spans(self, texts):
            return [(ids, None) for ids in self.encode_many(texts)]

    texts = [f"a b c d e f g h i {letter}" for letter in "jklmnopqrst"] + ["a b c d e f g h i x"]
    assert require_readable(collect_sentences(texts, "test"), Spanless(), "model").unknown == pytest.approx(
        1 / 120
    )


# Pairs: read from files, sampled evenly over similarity, chosen below the mean similarity


def slow_sample(sentences, vectors, count):
    cosines = cosine_similarity(vectors)
    index_pairs = itertools.combinations(range(len(sentences)), 2)
    pairs = sorted((cosines[i, j], sentences[i], sentences[j]) for i, j in index_pairs)
    free = pairs.copy()
    chosen = []
    for target in np.linspace(pairs[0][0], pairs[-1][0], min(count, len(pairs))):
        chosen.append(min(free, key=lambda pair, target=target: abs(pair[0] - target)))
        free.remove(chosen[-1])
    return sorted(chosen)


@pytest.mark.parametrize(("sentences", "count"), [(2, 1), (8, 10), (15, 105), (6, 500)])
def test_sampled_pairs_equal_a_search_through_all_pairs(sentences, count):
    generator = np.random.default_rng(count)
    names = [f"sentence {k}" for k in range(sentences)]
    vectors = generator.standard_normal((sentences, 4)) * generator.uniform(0.5, 2, (sentences, 1))
    pairs = sample_pairs(names, vectors, count)
    expected = slow_sample(names, vectors, count)
    assert [pair.sentences for pair in pairs] == [(first, second) for _, first, second in expected]
    assert [pair.similarity for pair in pairs] == pytest.approx([pair[0] for pair in expected], abs=1e-12)


def test_fewer_than_two_sentences_make_no_pair():
    with pytest.raises(InputError, match=naming(2, 1)):
        sample_pairs(["alone"], np.ones((1, 3)), 5)


def pairs_at(similarities):
    return [SentencePair(f"anchor {k}", f"carrier {k}", value) for k, value in enumerate(similarities)]


@settings(max_examples=100)
@given(
    st.lists(st.floats(-1, 1, width=32), min_size=1, max_size=40, unique=True),
    st.integers(1, 30),
    st.floats(-0.5, 1.5),
)
def test_selected_pairs_equal_a_search_through_all_pairs(similarities, count, u):
    below = [value for value in similarities if value < u]
    low = min(similarities)
    assume(below)
    targets = np.linspace(low, low + 0.8 * (u - low), min(count, len(below)))
    # Which of two pairs at the same distance from a target, to rounding, does not matter.
    for pair, target in zip(select_pairs(pairs_at(similarities), u, count), targets, strict=True):
        nearest = min(abs(value - target) for value in below)
        assert abs(pair.similarity - target) == pytest.approx(nearest, abs=1e-15)


def test_a_pair_at_u_itself_is_not_below_it():
    pairs = pairs_at([0.3, 0.2])
    assert select_pairs(pairs, 0.3, 2) == [pairs[1]]
    with pytest.raises(InputError, match=r"\b2\b.* 0\.2"):
        select_pairs(pairs, 0.2, 2)


def test_the_order_of_pairs_changes_nothing_even_of_equal_similarity():
    generator = random.Random(0)
    pairs = pairs_at([round(generator.uniform(-0.5, 1), 1) for _ in range(60)])
    shuffled = generator.sample(pairs, len(pairs))
    assert shuffled != pairs
    assert select_pairs(shuffled, 0.4, 20) == select_pairs(pairs, 0.4, 20)


PAIRS = {
    "sentence1": ["A red boat.", 'She said "no"'],
    "sentence2": ["One, two", "Größe"],
    "similarity": [0.25, -1.0],
}


@pytest.mark.parametrize("ending", ["tsv", "jsonl", "parquet"])
def test_pairs_are_read_from_every_table(write, ending):
    path = write(f"p.{ending}", table(ending, {"extra": [1, 2], **PAIRS}))
    assert pairs_from_file(path) == [
        SentencePair("A red boat.", "One, two", 0.25),
        SentencePair('She said "no"', "Größe", -1.0),
    ]


HEADER = "sentence1,sentence2,similarity\n"


def test_a_similarity_may_be_written_in_any_usual_way(write):
    usual = ("-1", "1.0000001", "5e-1", " 0.5 ")
    path = write("p.csv", HEADER + "".join(f"a,b,{similarity}\n" for similarity in usual))
    assert [pair.similarity for pair in pairs_from_file(path)] == [*map(float, usual)]


@pytest.mark.parametrize(
    ("name", "content", "values"),
    [
        *(
            ("p.csv", f'{HEADER}a,b,0.5\nc,d,"{wrong}"\n', ["pair 2", -1, 1])
            for wrong in ("nan", "1.01", "high", "", "0,5")
        ),
        ("p.jsonl", '{"sentence1": "a", "sentence2": "b", "similarity": [0.5]}\n', ["pair 1", -1, 1]),
        ("p.jsonl", '{"sentence1": "a", "sentence2": "b", "similarity": true}\n', ["pair 1", -1, 1]),
        ("p.csv", f"{HEADER}a,b,0.5\n  ,b,0.5\n", ["pair 2"]),
        ("p.csv", "sentence1,similarity\na,0.5\n", ["'sentence2'"]),
        ("p.csv", HEADER, ()),
        ("p.txt", "a\tb\t0.5\n", [".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet"]),
        ("p.jsonl", '{"sentence1": 1, "sentence2": "b", "similarity": 0}\n', ["sentence1", "row 1"]),
    ],
)
def test_a_pair_file_that_cannot_be_used_is_named_with_what_is_wrong(write, name, content, values):
    path = write(name, content)
    with pytest.raises(InputError, match=naming(path, *values)):
        pairs_from_file(path)
