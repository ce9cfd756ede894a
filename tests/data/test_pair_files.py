"""Pairs from files, and every way in which they can be bad."""

import json

import polars as pl
import pytest

from stickytoken.data import pairs_from_file
from stickytoken.data.corpora import SentencePair
from stickytoken.errors import InputError
from tables import TABLES, table

PAIRS = {
    "sentence1": ["A red boat.", 'She said "no"'],
    "sentence2": ["One, two", "Größe"],
    "similarity": [0.25, -1.0],
}


@pytest.mark.parametrize("ending", TABLES)
def test_pairs_are_read_from_every_table(write, ending):
    path = write(f"p.{ending}", table(ending, {"extra": [1, 2], **PAIRS}))
    assert pairs_from_file(path) == [
        SentencePair("A red boat.", "One, two", 0.25),
        SentencePair('She said "no"', "Größe", -1.0),
    ]


@pytest.mark.parametrize("similarity", ["-1", "1", "0", "1.0000001", "-1.0000001", "5e-1", " 0.5", "0.5 "])
def test_a_similarity_may_be_written_in_any_usual_way(write, similarity):
    path = write("p.csv", f"sentence1,sentence2,similarity\na,b,{similarity}\n")
    assert [pair.similarity for pair in pairs_from_file(path)] == [float(similarity)]


@pytest.mark.parametrize("similarity", ["nan", "inf", "-inf", "1.01", "-1.01", "42", "high", "", "0,5"])
def test_a_similarity_that_is_no_cosine_is_named_by_file_and_row(write, similarity):
    cell = f'"{similarity}"' if similarity else ""
    path = write("p.csv", f"sentence1,sentence2,similarity\na,b,0.5\nc,d,{cell}\ne,f,0.5\n")
    with pytest.raises(InputError, match=r"pair 2 .* must be between -1 and 1") as error:
        pairs_from_file(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("value", [[0.5], {"cosine": 0.5}, True, "high", None])
def test_a_similarity_of_another_kind_is_refused(write, value):
    row = json.dumps({"sentence1": "a", "sentence2": "b", "similarity": value})
    path = write("p.jsonl", row + "\n")
    with pytest.raises(InputError, match="similarity") as error:
        pairs_from_file(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("kind", [pl.Binary, pl.Date])
def test_a_similarity_column_that_holds_no_numbers_is_refused(write, kind):
    values = pl.Series("similarity", [b"0.5"] if kind is pl.Binary else [1]).cast(kind)
    path = write("p.parquet", pl.DataFrame({"sentence1": ["a"], "sentence2": ["b"]}).with_columns(values))
    with pytest.raises(InputError, match="similarity") as error:
        pairs_from_file(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("blank", ["", "   ", '"\t"'])
@pytest.mark.parametrize("side", [1, 2])
def test_a_blank_sentence_is_named_by_file_and_row(write, blank, side):
    cells = ["a", "b"]
    cells[side - 1] = blank
    path = write("p.csv", f"sentence1,sentence2,similarity\na,b,0.5\nc,d,0.5\n{','.join(cells)},0.5\n")
    with pytest.raises(InputError, match="pair 3 has a blank sentence") as error:
        pairs_from_file(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("missing", PAIRS)
def test_a_missing_column_of_pairs_is_named(write, missing):
    columns = {name: values for name, values in PAIRS.items() if name != missing}
    path = write("p.csv", table("csv", columns))
    with pytest.raises(InputError, match=f"lacks the column '{missing}'") as error:
        pairs_from_file(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("p.csv", "", "is empty"),
        ("p.csv", "sentence1,sentence2,similarity\n", "has no pairs"),
        ("p.csv", b"sentence1\xff", "is not UTF-8 text"),
        ("p.txt", "a\tb\t0.5\n", "pairs are read from .csv, .tsv, .jsonl, .ndjson, .parquet"),
        ("p.jsonl", '{"sentence1": 1, "sentence2": "b", "similarity": 0.5}\n', "column 'sentence1' of"),
        ("p.parquet", b"no parquet at all", "is not a readable parquet file"),
    ],
)
def test_a_pair_file_that_cannot_be_used_is_named_with_what_is_wrong(write, name, content, message):
    path = write(name, content)
    with pytest.raises(InputError, match=message) as error:
        pairs_from_file(path)
    assert str(path) in str(error.value)


def test_a_missing_pair_file_and_a_folder_are_named(tmp_path):
    with pytest.raises(InputError, match="no file"):
        pairs_from_file(tmp_path / "absent.csv")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(InputError, match="is a folder"):
        pairs_from_file(tmp_path / "folder.csv")
