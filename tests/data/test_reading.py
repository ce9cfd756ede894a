"""Documents of every kind, as a stream, with what is wrong named."""

import io
import json
import sys

import datasets
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stickytoken.data.documents import Document, Meter, Skipped, Wanted, lines, open_documents, unicode_text
from stickytoken.errors import InputError
from tables import table

TEXTS = ["first one", 'with "quotes", commas\nand lines', "\u00e9\u4e2d\U0001f642"]


def read(source, /, **wanted):
    """All records of a source; the meter ends at the total where there is one."""
    meter = Meter()
    found = list(open_documents(source, Wanted(**wanted)).read(meter))
    assert meter.total is None or meter.share == 1
    return found


def texts_of(records):
    return [record.text for record in records]


def refused(source, /, *parts, **wanted):
    with pytest.raises(InputError) as caught:
        read(source, **wanted)
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl", "parquet"])
def test_a_table_gives_text_id_and_source(write, ending):
    sources = ["web", "web", None]
    frame = pl.DataFrame({"id": ["a", "b", "c"], "text": TEXTS, "source": sources, "n": [1, 2, 3]})
    path = write(f"table[1]*.{ending}", table(ending, frame))  # not a pattern
    found = read(path)
    assert texts_of(found) == TEXTS
    assert [record.id for record in found] == ["a", "b", "c"]
    assert [record.source or None for record in found] == ["web", "web", None]
    assert [record.number for record in found] == [0, 1, 2]
    assert {record.path for record in found} == {str(path)}
    lines_named = {"csv": [2, 3, 5], "tsv": [2, 3, 5], "jsonl": [1, 2, 3], "parquet": [None] * 3}
    assert [record.line for record in found] == lines_named[ending]


def test_a_text_file_has_a_document_on_each_line(write):
    found = read(write("a.txt", b"\xef\xbb\xbfone\r\n\r\ntwo\rthree\nfour"))
    assert texts_of(found) == ["one", "two", "three", "four"]
    assert [record.line for record in found] == [1, 3, 4, 5]


def test_damaged_lines_are_named_with_their_byte_and_cost_no_other(write):
    found = read(write("a.txt", b"good\nbad \xff line\nnull \0 here\nlast\n"))
    path = found[0].path
    assert texts_of(record for record in found if isinstance(record, Document)) == ["good", "last"]
    assert [record for record in found if isinstance(record, Skipped)] == [
        Skipped(f"{path}, line 2", "byte 9 (0xff) is not UTF-8"),
        Skipped(f"{path}, line 3", "byte 21 is zero, as in a binary file"),
    ]
    assert [record.number for record in found if isinstance(record, Document)] == [0, 3]


def test_damaged_rows_of_a_table_are_skipped(write):
    last = "word " * 100_000  # longer than the csv module allows
    found = read(write("a.csv", b"id,text\n1,good\n2,b\xffd\n3\n4," + last.encode()))
    assert texts_of(record for record in found if isinstance(record, Document)) == ["good", last]
    assert [record.reason for record in found if isinstance(record, Skipped)] == [
        "byte 18 (0xff) is not UTF-8",
        "1 fields, and the header has 2",
    ]


def test_damaged_json_lines_are_skipped(write):
    content = (
        b'{"text": "good"}\n{"text": \n{"text": null}\n{"text": 3}\n[1]\n"a string"\n\n{"text": "last"}\n'
    )
    found = read(write("a.jsonl", content))
    documents = [record for record in found if isinstance(record, Document)]
    assert texts_of(documents) == ["good", "a string", "last"]
    reasons = [record.reason for record in found if isinstance(record, Skipped)]
    assert reasons[0].startswith("not JSON: ")
    assert reasons[1:] == [
        "column 'text' is missing",
        "column 'text' is int, not text",
        "JSON of type list, not an object",
    ]


def test_a_folder_has_a_document_in_each_file_and_several_in_each_table(tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / ".hidden").write_text("no")
    (tmp_path / "notes" / "a.md").write_text("one\ntwo")
    (tmp_path / "b.txt").write_text("three")
    (tmp_path / "c.jsonl").write_text('{"text": "four"}\n{"text": "five"}\n')
    (tmp_path / "d.png").write_bytes(b"\x89PNG\0")
    (tmp_path / "e.csv").write_text("text,text\n1,2\n")
    found = read(tmp_path)
    documents = [record for record in found if isinstance(record, Document)]
    assert texts_of(documents) == ["three", "four", "five", "one\ntwo"]
    assert [record.id for record in documents] == ["b.txt", "line 1", "line 2", "notes/a.md"]
    assert [record.source for record in documents] == [None, None, None, "notes"]
    skipped = [record for record in found if isinstance(record, Skipped)]
    assert [record.reason.split(":")[0] for record in skipped] == [
        "byte 0 (0x89) is not UTF-8",
        f"{tmp_path / 'e.csv'} has two columns called 'text'",
    ]


def test_a_beir_folder_has_its_corpus_with_titles(tmp_path):
    rows = [{"_id": "d1", "title": "Title", "text": "and text"}, {"_id": "d2", "title": "", "text": "alone"}]
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "queries.jsonl").write_text('{"_id": "q", "text": "query"}\n')
    found = read(tmp_path)
    assert [record.id for record in found] == ["d1", "d2"]
    assert [record.text.strip() for record in found] == ["Title and text", "alone"]


def test_columns_are_named_or_found(write):
    path = write("a.csv", "key,body,place\n7,hello,web\n")
    (record,) = read(path, id_column="key", source_column="place")
    assert (record.text, record.id, record.source) == ("hello", "7", "web")
    refused(write("b.csv", "x,y\na,b\n"), "which column", "x, y")
    refused(path, "has no column 'nope'", "key, body, place", column="nope")
    refused(write("c.jsonl", '{"a": "x"}\n'), "has no column 'nope'", column="nope")
    refused(write("d.parquet", pl.DataFrame({"text": [1]})), "contains Int64", column="text")
    refused(write("d.parquet", pl.DataFrame({"text": [1]})), "no column", "contains text: it has text")
    (record,) = read(write("d.parquet", pl.DataFrame({"text": pl.Series(["hello"], dtype=pl.Categorical)})))
    assert record.text == "hello"
    refused(write("e.txt", "a"), "without columns", column="a")


def test_objects_are_documents_too():
    assert texts_of(read(["a", "b"])) == ["a", "b"]
    assert texts_of(read(text for text in ["a", "b"])) == ["a", "b"]
    rows = [{"text": "a", "id": 1}, {"text": "b", "id": 2}]
    for source in (rows, pl.DataFrame(rows), pl.DataFrame(rows).to_arrow(), datasets.Dataset.from_list(rows)):
        assert [(record.text, record.id) for record in read(source)] == [("a", "1"), ("b", "2")]
    assert texts_of(read(pl.Series(["a", "b"]))) == ["a", "b"]
    mixed = read(["a", None, 3])
    assert [type(record) for record in mixed] == [Document, Skipped, Skipped]
    for wrong in (b"bytes", 3, {"a": 1}, None):
        refused(wrong, "pass a list of texts")


def test_a_data_set_in_a_folder_is_read_as_from_the_hub(tmp_path):
    (tmp_path / "data").mkdir()
    pl.DataFrame({"text": ["a", "b"]}).write_ndjson(tmp_path / "data" / "train.jsonl")
    assert texts_of(read(f"hub:{tmp_path / 'data'}")) == ["a", "b"]
    refused("hub:", "names no data set")
    refused(f"hub:{tmp_path / 'nothing'}", "cannot be read")


def test_standard_input_is_lines_or_json(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"one\ntwo\n")))
    assert texts_of(read("-")) == ["one", "two"]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"body": "one"}\n')))
    assert texts_of(read("-", column="body")) == ["one"]


def test_what_cannot_be_read_is_refused(tmp_path, write):
    refused(tmp_path / "nothing", "no file or folder")
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", "contains no files")
    refused(write("a.pdf", "x"), "the ending '.pdf'")
    refused(write("a.csv", ""), "is empty")
    refused(write("b.txt", "text".encode("utf-16")), "UTF-16")
    refused(write("a.parquet", b"PAR1 no PAR1"), "not a readable parquet file")
    refused(["text"], "no columns", column="a")


def test_lone_surrogates_become_replacement_characters(write):
    (record,) = read(write("a.jsonl", '{"text": "a\\ud800b \\ud83d\\ude42"}\n'))
    assert record.text == "a\ufffdb \U0001f642"
    assert unicode_text("plain") == "plain"


@given(
    st.lists(st.binary(max_size=12).filter(lambda line: not set(line) & set(b"\r\n"))),
    st.sampled_from([b"\n", b"\r\n"]),
)
def test_every_line_is_read_with_its_offset(contents, end):
    content = end.join(contents)
    found = list(lines(io.BytesIO(content), "x", Meter()))
    for line in found:
        start = line.offset
        assert content[start : start + len(line.content)] == line.content
    assert b"".join(line.content for line in found) == content.removeprefix(b"\xef\xbb\xbf").replace(end, b"")
