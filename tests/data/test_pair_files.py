"""Pairs from files, and every way in which they can be bad."""

import pytest

from stickytoken.data import pairs_from_file
from stickytoken.data.corpora import SentencePair
from stickytoken.errors import InputError
from tables import table

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


BAD = ("nan", "1.01", "high", "", "0,5")
HEADER = "sentence1,sentence2,similarity\n"


def test_a_similarity_may_be_written_in_any_usual_way(write):
    usual = ("-1", "1.0000001", "5e-1", " 0.5 ")
    path = write("p.csv", HEADER + "".join(f"a,b,{similarity}\n" for similarity in usual))
    assert [pair.similarity for pair in pairs_from_file(path)] == [*map(float, usual)]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        *(
            ("p.csv", f'{HEADER}a,b,0.5\nc,d,"{wrong}"\n', "pair 2 .* between -1 and 1")
            for wrong in ("nan", "1.01", "high", "", "0,5")
        ),
        ("p.jsonl", '{"sentence1": "a", "sentence2": "b", "similarity": [0.5]}\n', "contains List"),
        ("p.jsonl", '{"sentence1": "a", "sentence2": "b", "similarity": true}\n', "contains Boolean"),
        ("p.csv", f"{HEADER}a,b,0.5\n  ,b,0.5\n", "pair 2 has a blank sentence"),
        ("p.csv", "sentence1,similarity\na,0.5\n", "lacks the column 'sentence2'"),
        ("p.csv", HEADER, "has no pairs"),
        ("p.txt", "a\tb\t0.5\n", "pairs are read from .csv, .tsv, .jsonl, .ndjson, .parquet"),
        ("p.jsonl", '{"sentence1": 1, "sentence2": "b", "similarity": 0}\n', "column 'sentence1' of"),
    ],
)
def test_a_pair_file_that_cannot_be_used_is_named_with_what_is_wrong(write, name, content, message):
    path = write(name, content)
    with pytest.raises(InputError, match=message) as error:
        pairs_from_file(path)
    assert str(path) in str(error.value)
