"""Sentences from files, and every way in which they can be bad."""

import codecs

import pytest

from stickytoken.data import load_sentences, sentences_from_file
from stickytoken.data.sentences import LONGEST_SENTENCE, Sentences, collect_sentences
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


@pytest.mark.parametrize("ending", ["CSV", "Txt", "JSONL", "Parquet"])
def test_endings_may_be_upper_case(write, ending):
    low = ending.lower()
    content = "a b\nc\n" if low == "txt" else table(low, {"text": ["a b", "c"]})
    assert load_sentences(write(f"s.{ending}", content)).texts == ("a b", "c")


@pytest.mark.parametrize("ending", TABLES)
@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"sentence1": ["a", "b"], "sentence2": ["c", "a"], "sentence": ["x", "y"]}, ("a", "b", "c")),
        ({"text": ["x", "y"], "sentence": ["a", "b"]}, ("a", "b")),
        ({"sentence1": ["x", "y"], "text": ["a", "b"]}, ("a", "b")),
        ({"phrase": TEXTS}, TEXTS),
        ({"id": [1, 2], "score": [0.5, 1e-3], "phrase": ["a", "b"]}, ("a", "b")),
    ],
    ids=["sentence1 and sentence2", "sentence", "text", "the only column", "the only text column"],
)
def test_the_usual_columns_are_found(write, ending, columns, expected):
    assert load_sentences(write(f"s.{ending}", table(ending, columns))).texts == expected


@pytest.mark.parametrize("ending", TABLES)
def test_a_named_column_goes_before_the_usual_ones(write, ending):
    path = write(f"s.{ending}", table(ending, {"sentence": ["x", "y"], "other": ["a", "b"]}))
    assert load_sentences(path, "other").texts == ("a", "b")
    assert sentences_from_file(path, column="other").texts == ("a", "b")


def test_blank_and_repeated_sentences_are_left_out_and_counted(write):
    found = load_sentences(write("s.txt", "a b\n\n  \t\na b\n c \nc\na b\n"))
    assert found.texts == ("a b", "c")
    assert (found.blank, found.duplicates) == (2, 3)


@pytest.mark.parametrize("ending", TABLES)
def test_missing_values_of_a_table_count_as_blank(write, ending):
    path = write(f"s.{ending}", table(ending, {"sentence": ["a", None, " ", "b"], "n": [1, 2, 3, 4]}))
    found = load_sentences(path)
    assert (found.texts, found.blank) == (("a", "b"), 2)


def test_a_cell_that_says_null_is_a_word(write):
    assert load_sentences(write("s.csv", "sentence,n\nnull,1\nNA,2\n")).texts == ("null", "NA")


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", [b"", codecs.BOM_UTF8])
@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("s.txt", ["a b", "c"]),
        ("s.csv", ["sentence,n", "a b,1", "c,2"]),
        ("quoted.csv", ['"sentence","n"', '"a b",1', '"c",2']),
        ("s.tsv", ["sentence\tn", "a b\t1", "c\t2"]),
        ("s.jsonl", ['{"sentence": "a b"}', '{"sentence": "c"}']),
    ],
)
def test_line_ends_and_byte_order_marks_are_no_part_of_a_sentence(write, name, lines, mark, end):
    found = load_sentences(write(name, mark + "".join(line + end for line in lines).encode()))
    assert (found.texts, found.blank) == (("a b", "c"), 0)


@pytest.mark.parametrize("separator", ["\u2028", "\x0b", "\x0c", "\x1c", "\x85"])
def test_only_line_ends_end_a_line(write, separator):
    """Web text holds characters that Python's splitlines takes for line ends."""
    assert load_sentences(write("s.txt", f"a{separator}b\nc\n")).texts == (f"a{separator}b", "c")


def test_a_csv_cell_may_hold_quotes_commas_and_line_ends(write):
    found = load_sentences(write("s.csv", 'sentence,n\n"say ""a"", then\nb",1\n'))
    assert found.texts == ('say "a", then\nb',)


# The bad ways: each error names the file.


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("s.txt", "", "is empty"),
        ("s.csv", "", "is empty"),
        ("s.parquet", b"", "is empty"),
        ("s.txt", " \n\t\r\n", "is empty"),
        ("s.txt", codecs.BOM_UTF8 + b"\n", "has no sentences: every line is blank"),
        ("s.csv", codecs.BOM_UTF8, "is not a readable csv file"),
        ("s.csv", "sentence,n\n", "has no sentences: every line is blank"),
        ("s.csv", "sentence,n\n ,1\n,2\n", "has no sentences: every line is blank"),
        ("s.jsonl", '{"text": " "}\n{"text": null}\n', "has no sentences: every line is blank"),
        ("s.txt", b"a\0b\n", "is a binary file, not text"),
        ("s.txt", b"\x89PNG\r\n\x1a\n\0\0", r"is not UTF-8 text \(byte 0\)"),
        ("s.txt", "caf\N{LATIN SMALL LETTER E WITH ACUTE}".encode("latin-1"), r"not UTF-8 text \(byte 3\)"),
        ("s.csv", "sentence\ncaf\xe9\n".encode("latin-1"), r"not UTF-8 text \(byte 12\)"),
        ("s.jsonl", "caf\xe9".encode("latin-1"), r"not UTF-8 text \(byte 3\)"),
        ("s.txt", "a b".encode("utf-16"), r"not UTF-8 text \(byte 0\)"),
        ("s.tsv", b"sentence\tn\na\0b\t1\n", "is a binary file, not text"),
        ("s.csv", "sentence,n\na,1,surplus\n", "is not a readable csv file"),
        ("s.csv", 'sentence,n\n"never closed,1\n', "is not a readable csv file"),
        ("s.jsonl", '{"text": "a"}\nno json\n', "is not a readable jsonl file: line 2: Expecting value"),
        (
            "s.jsonl",
            '{"text": "a"}\n\n{"text": NaN}\n',
            "line 3: NaN is not a number in JSON",
        ),
        ("s.jsonl", '{"text": "a"', "is not a readable jsonl file"),
        ("s.jsonl", "[1, 2]\n", "is not a readable jsonl file"),
        ("s.jsonl", '"a b"\n', "is not a readable jsonl file"),
        ("s.parquet", b"no parquet at all", "is not a readable parquet file"),
        ("s.parquet", table("parquet", {"text": TEXTS})[:-5], "is not a readable parquet file"),
        ("s.pdf", "a b", "has the ending '.pdf': use .txt, .csv, .tsv, .jsonl, .ndjson, .parquet"),
        ("s.json", '["a b"]', "has the ending '.json'"),
        ("s.csv", "first,second\na,b\n", "which column of .* It has first, second: name one"),
        ("s.csv", "id,score\n1,2\n", "which column of .* It has id, score: name one"),
        ("s.jsonl", '{"text": 5}\n', "column 'text' of .* contains Int64, not text"),
        ("s.jsonl", '{"text": ["a"]}\n', "column 'text' of .* not text"),
        ("s.parquet", table("parquet", {"text": [1, 2]}), "column 'text' of .* contains Int64, not text"),
        ("s.parquet", table("parquet", {"sentence": [b"a"]}), "column 'sentence' of .* not text"),
        ("s.parquet", table("parquet", {"n": [1], "m": [2]}), "which column of .* It has n, m"),
        ("s.parquet", table("parquet", {}), "which column of .* It has none"),
        ("s.csv", 'a,"text",text\n1,x,y\n', "two columns called 'text': rename or remove one"),
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


def test_a_parquet_file_that_lost_bytes_in_its_middle_is_named(write):
    content = table("parquet", {"text": [f"sentence {k} of many: {k * k}" for k in range(4000)]})
    path = write("s.parquet", content[:4] + content[4 + len(content) // 2 :])
    with pytest.raises(InputError, match="is not a readable parquet file") as error:
        load_sentences(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("name", ["there", "there.csv", "there.txt"])
def test_a_missing_file_and_a_folder_are_named(tmp_path, name):
    with pytest.raises(InputError, match=f"no file '{tmp_path / name}'"):
        load_sentences(tmp_path / name)
    (tmp_path / name).mkdir()
    with pytest.raises(InputError, match=f"{tmp_path / name} is a folder: pass a file"):
        load_sentences(tmp_path / name)


@pytest.mark.parametrize("ending", TABLES)
def test_a_missing_column_is_named_with_those_that_there_are(write, ending):
    path = write(f"s.{ending}", table(ending, {"first": ["a"], "second": ["b"]}))
    with pytest.raises(InputError, match="has no column 'third': it has first, second") as error:
        load_sentences(path, "third")
    assert str(path) in str(error.value)


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


def test_a_sample_of_fewer_sentences_than_asked_for_is_refused(write):
    path = write("s.txt", "a\nb\na\n")
    with pytest.raises(InputError, match="has 2 distinct sentences, but 3 are needed") as error:
        load_sentences(path).sample(3, seed=0)
    assert str(path) in str(error.value)


def test_topics_stay_with_their_sentences():
    corpus = collect_sentences(["a", "", "b", "a", "c"], "test", topics=["1", "2", "3", "4", "5"])
    assert corpus == Sentences(("a", "b", "c"), "test", topics=("1", "3", "5"), blank=1, duplicates=1)


def test_the_fingerprint_is_of_the_sentences_in_order_and_of_nothing_else():
    def fingerprint(*texts, **others):
        return Sentences(texts, others.pop("source", "test"), **others).fingerprint

    assert fingerprint("a", "b") == fingerprint("a", "b", source="elsewhere", blank=3)
    others = [("b", "a"), ("ab",), ("a",), ("a", "b", "c"), ("", "ab"), ("a b",)]
    assert len({fingerprint("a", "b"), *(fingerprint(*texts) for texts in others)}) == len(others) + 1


def test_topics_have_a_fingerprint_of_their_own():
    corpora = [
        Sentences(("a", "b\ud800"), "test", topics=topics) for topics in (None, ("x", "y"), ("y", "x"))
    ]
    assert len({each.fingerprint for each in corpora} | {corpora[0].fingerprint_with_topics}) == 1
    assert len({each.fingerprint_with_topics for each in corpora}) == 3


@pytest.mark.parametrize(
    ("name", "content", "column"),
    [
        ("s.csv", "n,text\n1,a\n2.5,b\n", "n"),
        ("s.txt", "1\n2\n-3e5\n", None),
        ("s.tsv", "text\n7\n8\n", "text"),
    ],
)
def test_numbers_are_no_sentences(write, name, content, column):
    with pytest.raises(InputError, match=r"has only numbers, such as [17]: pass sentences"):
        load_sentences(write(name, content), column)


def test_a_line_too_long_for_any_model_is_left_out_with_a_warning(write):
    path = write("s.txt", f"a b\n{'x' * 1_000_000}\nc d\n")
    with pytest.warns(StickyTokenWarning, match="left out 1 sentence longer than 100,000 characters"):
        found = load_sentences(path)
    assert (found.texts, found.too_long) == (("a b", "c d"), 1)


def test_a_file_of_one_huge_line_is_refused(write):
    with pytest.raises(InputError, match="longer than 100,000 characters, the others blank"):
        load_sentences(write("s.csv", f"text\n{'y' * 1_000_000}\n"))


def test_a_sentence_of_the_greatest_length_is_kept():
    text = "x" * LONGEST_SENTENCE
    assert collect_sentences([text], "test").texts == (text,)
