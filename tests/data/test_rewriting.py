"""Documents written back: only what a cut names is left out, however oddly a file is written."""

import io
import json
import tempfile
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st
from pyarrow import parquet

from naming import naming
from stickytoken.data.documents import Document, NamedColumns, open_documents
from stickytoken.data.rewriting import open_source, require_same_format, rewrite
from stickytoken.data.rows import Meter
from stickytoken.errors import InputError


def records(path):
    return list(open_documents(path, NamedColumns()).read(Meter()))


def rewritten(path, cuts_of, column=None):
    output = io.BytesIO()
    rewrite(
        open_source(path, NamedColumns(column)),
        output,
        lambda document: [cuts_of(text) for text in document.parts],
        lambda _: None,
    )
    return output.getvalue()


def split(path):
    """What stays and what is set aside of a file if every second document goes."""
    kept, aside = io.BytesIO(), io.BytesIO()
    rewrite(
        open_source(path, NamedColumns()),
        kept,
        lambda document: None if document.number % 2 else [[] for _ in document.parts],
        lambda _: None,
        set_aside=aside,
    )
    return kept.getvalue(), aside.getvalue()


def first_character(text):
    return [(0, 1)] if text else []


def assert_first_characters_go(name, content):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(content)
        try:
            records(path)
        except InputError:  # a quotation mark is never closed
            return
        assert rewritten(path, lambda _: []) == content
        before = records(path)
        parts = split(path)
        path.write_bytes(rewritten(path, first_character))
        after = records(path)
        records_of_parts = []
        for part in parts:
            path.write_bytes(part)
            records_of_parts.append(records(path))
    assert len(after) == len(before)
    for old, new in zip(before, after, strict=True):
        assert type(new) is type(old)
        if isinstance(old, Document):
            assert (new.text, new.id, new.line) == (old.text[1:], old.id, old.line)
    for record in before:  # a record that cannot be read stays
        is_aside = isinstance(record, Document) and record.number % 2
        found = records_of_parts[bool(is_aside)].pop(0)
        assert type(found) is type(record)
        if isinstance(record, Document):
            assert found.text == record.text
    assert records_of_parts == [[], []]


@given(st.lists(st.sampled_from(["a", "b", " ", ",", ",", '"', '"', "\n", "\r\n", "\r"]), max_size=40))
@settings(max_examples=200)
def test_rows_of_csv_are_quoted_in_every_way(parts):
    assert_first_characters_go("own.csv", b"id,text,url\n" + "".join(parts).encode() + b"\nx,y,z\n")


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ('1,ab,"x"', '1,b,"x"'),
        ('1,"a""b",x', '1,"""b",x'),
        ('1,"""b",x', '1,"b",x'),
        ('1,"a"b,x', '1,"b",x'),
        ('1,"a\r\nb",x', '1,"\r\nb",x'),
        ('1,"a\rb",x', '1,"\rb",x'),
        ('1,"a\r\nb\nc",x', '1,"\r\nb\nc",x'),
        ("1,a,x", "1,,x"),
        ('1,a"b,x', '1,"""b",x'),
    ],
)
def test_the_quotes_of_a_field_stay_as_they_are(write, row, expected):
    path = write("own.csv", f"id,text,url\n{row}\n")
    assert rewritten(path, first_character) == f"id,text,url\n{expected}\n".encode()


def test_a_file_without_quoting_gets_none(write):
    path = write("own.tsv", 'id\ttext\n1\t"ab\n2\tc"d\n')
    assert rewritten(path, first_character) == b'id\ttext\n1\tab\n2\t"d\n'


@given(st.lists(st.sampled_from(['"', "\\", "é", "\U0001f642", "\ud83d", "\ude42", "\n", "a"]), max_size=12))
@settings(max_examples=100)
def test_strings_of_json_are_escaped_in_every_way(parts):
    line = json.dumps({"id": 1, "text": "".join(parts)})
    assert_first_characters_go("own.jsonl", line.encode() + b'\n{"text": "last"}\n')
    assert_first_characters_go("own.json", b"[\n" + line.encode() + b',5 ,\n{"text": "last"}\n]\n')


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('{"text":"\\u00e9\\u00e8" , "n": 1e0}', '{"text":"\\u00e8" , "n": 1e0}'),
        ('{"nested": {"text": "a"}, "t\\u0065xt": "b"}', '{"nested": {"text": "a"}, "t\\u0065xt": ""}'),
        ('  "a string"  ', '  " string"  '),
        ('{"": "a string"}', '{"": " string"}'),
        ('{"_id": "d", "title": "ab", "text": "cd"}', '{"_id": "d", "title": "b", "text": "d"}'),
    ],
)
def test_only_the_string_of_the_column_changes(write, line, expected):
    path = write("own.jsonl", f"{line}\r\n")
    assert rewritten(path, first_character) == f"{expected}\r\n".encode()


def test_elements_of_an_array_and_nested_fields_are_written_back(write):
    content = '[{"m": {"s": "ab", "s2": "x"}} ,\n {"m": [], "n": 1e0}, {"m": {"s": "cd"}} ]\n'
    path = write("own.json", content)
    changed = rewritten(path, first_character, column="m.s")
    assert changed.decode() == content.replace("ab", "b").replace("cd", "d")


def test_nested_fields_of_parquet_are_written_back(write):
    rows = [{"m": {"s": "ab", "n": 1}}, {"m": None}, {"m": {"s": "cd", "n": 2}}]
    path = write("own.parquet", pl.DataFrame(rows))
    written = pl.read_parquet(io.BytesIO(rewritten(path, first_character, column="m.s")))
    assert written["m"].to_list() == [{"s": "b", "n": 1}, None, {"s": "d", "n": 2}]


def test_times_beside_a_nested_text_keep_their_nanoseconds(tmp_path):
    """Python's times have microseconds."""
    fields = {"s": pa.string(), "at": pa.time64("ns"), "deep": pa.struct({"t": pa.string()})}
    rows = [{"s": "ab", "at": 1_234_567_891, "deep": {"t": "ef"}}, None, {"s": "cd", "at": 5, "deep": None}]
    table = pa.table({"m": pa.array(rows, type=pa.struct(fields))})
    parquet.write_table(table, tmp_path / "own.parquet")
    for column, changed in (("m.s", ["b", None, "d"]), ("m.deep.t", ["f", None, None])):
        content = rewritten(tmp_path / "own.parquet", first_character, column=column)
        written = parquet.read_table(io.BytesIO(content))["m"].combine_chunks()
        assert written.field("at").cast(pa.int64()).to_pylist() == [1_234_567_891, None, 5]
        texts = written.field("s") if column == "m.s" else written.field("deep").field("t")
        assert texts.to_pylist() == changed
        assert written.type == table["m"].type


@pytest.mark.parametrize("nested", [False, True])
def test_parquet_with_times_that_would_change_is_refused(nested, tmp_path):
    """pyarrow reads INT96, the times of Spark and Hive, as nanoseconds, which end in 2262."""
    times = pa.array([253_402_214_400_000_000, 0], pa.timestamp("us"))  # 9999-12-31 and 1970-01-01
    if nested:
        times = pa.StructArray.from_arrays([times], names=["until"])
    table = pa.table({"text": ["ab", "cd"], "valid": times})
    path = tmp_path / "own.parquet"
    parquet.write_table(table, path, use_deprecated_int96_timestamps=True, store_schema=False)
    output = io.BytesIO()
    with pytest.raises(InputError, match=naming(path, "valid", "INT96")):
        rewrite(open_source(path, NamedColumns()), output, lambda _: [first_character("ab")], lambda _: None)
    assert output.getvalue() == b""


def test_an_output_of_another_format_is_refused(write, tmp_path):
    source = open_source(write("own.jsonl", '{"text": "a"}\n'), NamedColumns())
    for name in ("out.ndjson", "out.jsonl.gz", "out"):
        require_same_format(source, tmp_path / name)
    for name in ("out.csv", "out.txt", "out.parquet"):
        with pytest.raises(InputError, match=naming(tmp_path / name)):
            require_same_format(source, tmp_path / name)
    lines = open_source(write("lines.json", '\n{"text": "a"}\n'), NamedColumns())
    require_same_format(lines, tmp_path / "out.jsonl")
    array = open_source(write("array.json", '\n [{"text": "a"}]\n'), NamedColumns())
    require_same_format(array, tmp_path / "out.json")
    with pytest.raises(InputError, match=naming(tmp_path / "out.jsonl")):  # it would hold no lines
        require_same_format(array, tmp_path / "out.jsonl")
