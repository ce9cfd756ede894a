"""Columns of data sets are cleaned by `map`, batch by batch or row by row."""

import pytest
from datasets import Dataset
from datasets.fingerprint import Hasher

from naming import naming
from stickytoken import Cleaner
from stickytoken.adapters.datasets import ColumnCleaner
from stickytoken.errors import InputError

ROWS = {
    "id": [1, 2, 3, 4],
    "text": ["the river", "able able able able a bird", None, "a [SEP] stone"],
    "title": ["one", "two [SEP]", "", None],
}


DATASET = Dataset.from_dict(ROWS)


@pytest.mark.parametrize("options", [{"batched": True}, {"batched": True, "batch_size": 1}, {}])
def test_a_column_is_cleaned_and_nothing_else_changes(cleaner, options):
    cleaned = DATASET.map(ColumnCleaner(cleaner), **options)
    assert cleaned.to_dict() == ROWS | {"text": ["the river", "a bird", None, "a stone"]}
    assert cleaned.features == DATASET.features


def test_a_note_says_what_was_found_in_each_row(cleaner):
    cleaned = DATASET.map(ColumnCleaner(cleaner, ["text", "title"], note="found"), batched=True)
    assert cleaned["title"] == ["one", "two", "", None]
    assert cleaned["found"] == ["", "text: 1 flagged; title: 1 special", "", "text: 1 special"]
    assert DATASET.map(ColumnCleaner(cleaner, note="found"))["found"][1] == "1 flagged"


@pytest.mark.parametrize("columns", [["parts", "title"], ["title", "parts"]])
def test_a_row_may_have_a_text_in_one_column_and_a_list_in_another(cleaner, columns):
    row = {"title": "two [SEP]", "parts": ["the river", "able able able able a bird"]}
    cleaned_row = ColumnCleaner(cleaner, columns, note="found")(row)
    assert (cleaned_row["title"], cleaned_row["parts"]) == ("two", ["the river", "a bird"])
    assert sorted(cleaned_row["found"].split("; ")) == ["parts: 1 flagged", "title: 1 special"]


def test_equal_cleaners_share_a_cache(cleaner, cleaner_file, thorough):
    used = ColumnCleaner(cleaner_file)
    used({"text": ["able able able able and words that it remembers: été"]})
    fresh = ColumnCleaner(Cleaner.from_file(cleaner_file))
    assert Hasher.hash(used) == Hasher.hash(fresh)
    assert Hasher.hash(fresh) != Hasher.hash(ColumnCleaner(thorough))
    assert Hasher.hash(fresh) != Hasher.hash(ColumnCleaner(cleaner_file, "title"))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda c: ColumnCleaner(c, "body")(ROWS), naming("'body'", "id", "text", "title")),
        (lambda c: ColumnCleaner(c, "id")(ROWS), naming("'id'", "row 1")),
        (lambda c: ColumnCleaner(c, []), naming("columns", [])),
        (lambda c: ColumnCleaner(c, note=3), naming("note", 3)),
    ],
)
def test_what_cannot_be_used_is_refused(cleaner, call, message):
    with pytest.raises(InputError, match=message):
        call(cleaner)
