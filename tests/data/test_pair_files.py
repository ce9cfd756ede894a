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


def row(similarity, first="a", second="b"):
    return json.dumps({"sentence1": first, "sentence2": second, "similarity": similarity}) + "\n"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        *(
            (
                "p.csv",
                f'sentence1,sentence2,similarity\na,b,0.5\nc,d,"{wrong}"\n',
                "pair 2 .* between -1 and 1",
            )
            for wrong in ("nan", "inf", "-inf", "1.01", "-1.01", "high", "", "0,5")
        ),
        *(("p.jsonl", row(wrong), "similarity") for wrong in ([0.5], {"cosine": 0.5}, True, "high", None)),
        ("p.parquet", pl.DataFrame(PAIRS | {"similarity": [b"0.5", b"1"]}), "similarity"),
        *(
            (
                "p.csv",
                f"sentence1,sentence2,similarity\na,b,0.5\n{cells},0.5\n",
                "pair 2 has a blank sentence",
            )
            for cells in (",b", "a,", "   ,b", 'a,"\t"')
        ),
        *(
            ("p.csv", table("csv", PAIRS).replace(each.encode(), b"y", 1), f"column '{each}'")
            for each in PAIRS
        ),
        ("p.csv", "", "is empty"),
        ("p.csv", "sentence1,sentence2,similarity\n", "has no pairs"),
        ("p.csv", b"sentence1\xff", "is not UTF-8 text"),
        ("p.txt", "a\tb\t0.5\n", "pairs are read from .csv, .tsv, .jsonl, .ndjson, .parquet"),
        ("p.jsonl", row(0.5, first=1), "column 'sentence1' of"),
        ("p.parquet", b"no parquet at all", "is not a readable parquet file"),
    ],
)
def test_a_pair_file_that_cannot_be_used_is_named_with_what_is_wrong(write, name, content, message):
    path = write(name, content)
    with pytest.raises(InputError, match=message) as error:
        pairs_from_file(path)
    assert str(path) in str(error.value)
