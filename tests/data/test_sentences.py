"""Sentences from files, and every way in which they can be bad."""

import codecs

import pytest

from stickytoken.data import load_sentences, sentences_from_file
from stickytoken.data.corpora import LONGEST_SENTENCE, Sentences, collect_sentences
from stickytoken.errors import InputError, StickyTokenWarning
from tables import TABLES, table

TEXTS = ("A red boat.", "Größe, \N{SNOWMAN} and 'quotes'", 'She said "no", then left', "One")


# The good ways.


def test_a_text_file_holds_a_sentence_a_line(write, monkeypatch):
    path = write("s.txt", "\n".join(TEXTS) + "\n")
    found = load_sentences(path)
    assert found.texts == TEXTS
    assert (found.blank, found.duplicates, found.topics) == (0, 0, None)
    assert load_sentences(str(path)) == found
    monkeypatch.setenv("HOME", str(path.parent))
    assert load_sentences("~/s.txt").texts == TEXTS
    write("paper", "a b\nc")  # named like a corpus, it is reached by its path
    monkeypatch.chdir(path.parent)
    assert load_sentences("./paper").texts == ("a b", "c")


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"sentence1": ["a", "b"], "sentence2": ["c", "a"], "sentence": ["x", "y"]}, ("a", "b", "c")),
        ({"text": ["x", "y"], "sentence": ["a", "b"]}, ("a", "b")),
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
    assert sentences_from_file(path, column="other").texts == ("a", "b")
    with pytest.raises(InputError, match="has no column 'third': it has sentence, other"):
        load_sentences(path, "third")


def test_blank_and_repeated_sentences_are_left_out_and_counted(write):
    corpus = collect_sentences(["a", "", "b", "a", "c"], "test", topics=["1", "2", "3", "4", "5"])
    assert corpus == Sentences(("a", "b", "c"), "test", topics=("1", "3", "5"), blank=1, duplicates=1)
    found = load_sentences(write("s.txt", "a b\n\n  \t\na b\n c \nc\na b\n"))
    assert found.texts == ("a b", "c")
    assert (found.blank, found.duplicates) == (2, 3)


@pytest.mark.parametrize("ending", TABLES)
def test_missing_values_of_a_table_count_as_blank(write, ending):
    rows = {"sentence": ["null", None, " ", "b"], "n": [1, 2, 3, 4]}
    found = load_sentences(write(f"s.{ending.upper()}", table(ending, rows)))
    assert (found.texts, found.blank) == (("null", "b"), 2)


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
        found = load_sentences(write(name, mark + "".join(line + end for line in lines).encode()))
        assert (found.texts, found.blank) == (("a b", "c"), 0)


def test_only_line_ends_end_a_line(write):
    """Web text holds characters that Python's splitlines takes for line ends."""
    text = "a\u2028b\x0bc\x0cd\x1ce\x85f"
    assert load_sentences(write("s.txt", f"{text}\ng\n")).texts == (text, "g")


# The bad ways: each error names the file.


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("s.txt", " \n\t\r\n", "is empty"),
        ("s.txt", codecs.BOM_UTF8 + b"\n", "has no sentences: every line is blank"),
        ("s.csv", codecs.BOM_UTF8, "is not a readable csv file"),
        ("s.csv", f"text\n{'y' * 200_000}\n", "longer than 100,000 characters, the others blank"),
        ("s.csv", "n,text\n1,7\n2.5,-3e5\n", "has only numbers, such as 7: pass sentences"),
        ("s.txt", b"a\0b\n", "is a binary file, not text"),
        ("s.csv", "sentence\ncaf\xe9\n".encode("latin-1"), r"not UTF-8 text \(byte 12\)"),
        ("s.csv", "sentence,n\na,1,surplus\n", "is not a readable csv file"),
        ("s.jsonl", '{"text": "a"}\nno json\n', "is not a readable jsonl file: line 2: Expecting value"),
        ("s.jsonl", '{"text": "a"}\n\n{"text": NaN}\n', "line 3: NaN is not a number in JSON"),
        ("s.parquet", table("parquet", {"text": TEXTS})[:-5], "is not a readable parquet file"),
        ("s.json", '["a b"]', "has the ending '.json': use .txt, .csv, .tsv, .jsonl, .ndjson, .parquet"),
        ("s.csv", "first,second\na,b\n", "which column of .* It has first, second: name one"),
        ("s.csv", "id,score\n1,2\n", "which column of .* It has id, score: name one"),
        ("s.jsonl", '{"text": 5}\n', "column 'text' of .* contains Int64, not text"),
        ("s.parquet", table("parquet", {}), "which column of .* It has none"),
        ("s.tsv", "a\ttext\ttext\n1\tx\ty\n", "two columns called 'text': rename or remove one"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_with_what_is_wrong(write, name, content, message):
    path = write(name, content)
    with pytest.raises(InputError, match=message) as error:
        load_sentences(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 500


@pytest.mark.parametrize("name", ["there", "there.csv"])
def test_a_missing_file_and_a_folder_are_named(tmp_path, name):
    with pytest.raises(InputError, match=f"no file '{tmp_path / name}'"):
        load_sentences(tmp_path / name)
    (tmp_path / name).mkdir()
    with pytest.raises(InputError, match=f"{tmp_path / name} is a folder: pass a file"):
        load_sentences(tmp_path / name)


def test_a_text_file_and_the_bundled_corpus_have_no_columns(write):
    with pytest.raises(InputError, match="text file without columns"):
        load_sentences(write("s.txt", "a\n"), "sentence")
    for source in (None, "bundled"):
        with pytest.raises(InputError, match="no columns to choose from"):
            load_sentences(source, "sentence")


# The corpus.


def test_a_sample_is_drawn_without_replacement_and_by_seed():
    corpus = collect_sentences([f"sentence {k}" for k in range(200)], "test")
    first = corpus.sample(50, seed=1)
    assert len(set(first)) == 50
    assert set(first) <= set(corpus.texts)
    assert corpus.sample(50, seed=1) == first
    assert corpus.sample(50, seed=2) != first
    assert sorted(corpus.sample(200, seed=3)) == sorted(corpus.texts)
    with pytest.raises(InputError, match="test has 200 distinct sentences, but 201 are needed"):
        corpus.sample(201, seed=0)


def test_the_fingerprint_is_of_the_sentences_in_order_and_of_nothing_else():
    def fingerprint(*texts):
        return Sentences(texts, "test").fingerprint

    topics = [
        Sentences(("a", "b"), "elsewhere", topics=each, blank=3) for each in (None, ("x", "y"), ("y", "x"))
    ]
    assert {each.fingerprint for each in topics} == {topics[0].fingerprint_with_topics, fingerprint("a", "b")}
    assert len({each.fingerprint_with_topics for each in topics}) == 3
    others = [("b", "a"), ("ab",), ("a",), ("a", "b", "c"), ("", "ab"), ("a b",)]
    assert len({fingerprint("a", "b"), *(fingerprint(*texts) for texts in others)}) == len(others) + 1


def test_a_line_too_long_for_any_model_is_left_out_with_a_warning(write):
    longest = "x" * LONGEST_SENTENCE
    path = write("s.txt", f"a b\n{longest}\n{longest}y\nc d\n")
    with pytest.warns(StickyTokenWarning, match="left out 1 sentence longer than 100,000 characters"):
        found = load_sentences(path)
    assert (found.texts, found.too_long) == (("a b", longest, "c d"), 1)
