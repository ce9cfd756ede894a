"""Documents of every kind, as a stream, and data sets of the hub; with what is wrong named."""

import csv
import gzip
import io
import json
import os
import random
import sys
from pathlib import Path

import datasets
import polars as pl
import pytest
from hypothesis import given, strategies as st

import task_files
from naming import naming, says
from stickytoken.data import PAPER_DATASETS, load_sentences
from stickytoken.data.documents import Document, NamedColumns, open_documents
from stickytoken.data.rows import Dialect, Meter, Skipped, lines, read_separated_rows, unicode_text
from stickytoken.errors import InputError, MissingExtraError
from stickytoken.settings.reading import Columns
from tables import table

TEXTS = ["first one", 'with "quotes", commas\nand lines', "\u00e9\u4e2d\U0001f642"]


def read(source, /, **columns):
    """All records of a source; the meter counts them, and ends at the total where there is one."""
    meter = Meter()
    records = list(open_documents(source, NamedColumns(**columns)).read(meter))
    assert meter.records == len(records)
    assert meter.total is None or meter.share == 1
    return records


def split(records):
    documents = [record for record in records if isinstance(record, Document)]
    skipped = [record for record in records if isinstance(record, Skipped)]
    return documents, [record.text for record in documents], skipped


def assert_refused(source, /, *keywords, **columns):
    with pytest.raises(InputError, match=naming(*keywords)):
        read(source, **columns)


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl", "parquet"])
def test_a_table_gives_text_id_and_source(write, ending):
    sources = ["web", "web", None]
    frame = pl.DataFrame({"id": ["a", "b", "c"], "text": TEXTS, "source": sources, "n": [1, 2, 3]})
    path = write(f"table[1]*.{ending}", table(ending, frame))  # not a pattern
    records = read(path)
    lines_named = {"jsonl": [1, 2, 3], "parquet": [None] * 3}.get(ending, [2, 3, 5])
    rows = [
        (record.text, record.id, record.source, record.number, record.path, record.line) for record in records
    ]
    columns = (TEXTS, "abc", sources, range(3), [str(path)] * 3, lines_named)
    assert rows == list(zip(*columns, strict=True))


def test_a_text_file_has_a_document_on_each_line_and_damaged_ones_are_named_with_their_byte(write):
    documents, *_ = split(read(write("a.txt", b"\xef\xbb\xbfone\r\n\r\ntwo\rthree\nfour")))
    assert [(document.text, document.line) for document in documents] == [
        ("one", 1),
        ("two", 3),
        ("three", 4),
        ("four", 5),
    ]
    path = write("a.txt", b"good\nbad \xff line\nnull \0 here\nlast\n")
    documents, texts, skipped = split(read(path))
    assert (texts, [document.number for document in documents]) == (["good", "last"], [0, 3])
    assert [record.place for record in skipped] == [f"{path}, line 2", f"{path}, line 3"]
    assert says(skipped[0].reason, "byte 9", "0xff", "UTF-8")
    assert says(skipped[1].reason, "byte 21", "zero")


def test_damaged_rows_and_json_lines_are_skipped(write):
    last = "word " * 100_000  # longer than the csv module allows
    _, texts, skipped = split(read(write("a.csv", b"id,text\n1,good\n2,b\xffd\n3\n4," + last.encode())))
    assert texts == ["good", last]
    damaged, short = [record.reason for record in skipped]
    assert says(damaged, "byte 18", "0xff", "UTF-8")
    assert says(short, "1 field", 2)
    rows = b'{"text": "good"}\n{"text": \n{"text": null}\n{"text": 3}\n[1]\n"a string"\n\n{"text": "last"}\n'
    _, texts, skipped = split(read(write("a.jsonl", rows)))
    assert texts == ["good", "a string", "last"]
    values = [("JSON",), ("'text'",), ("'text'", "int"), ("JSON", "list")]
    assert all(says(record.reason, *named) for record, named in zip(skipped, values, strict=True))


def test_a_folder_has_a_document_in_each_file_and_several_in_each_table(tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / ".hidden").write_text("no")
    (tmp_path / "notes" / "a.md").write_text("one\ntwo")
    (tmp_path / "b.txt").write_text("three")
    (tmp_path / "c.jsonl").write_text('{"text": "four"}\n{"text": "five"}\n')
    (tmp_path / "d.png").write_bytes(b"\x89PNG\0")
    (tmp_path / "e.csv").write_text("text,text\n1,2\n")
    documents, texts, skipped = split(read(tmp_path))
    assert texts == ["three", "four", "five", "one\ntwo"]
    assert [record.id for record in documents] == ["b.txt", "line 1", "line 2", "notes/a.md"]
    assert [record.source for record in documents] == [None, None, None, "notes"]
    picture, table = [record.reason for record in skipped]
    assert says(picture, "byte 0", "0x89", "UTF-8")
    assert says(table, tmp_path / "e.csv", "two", "'text'")


@pytest.mark.skipif(os.name != "posix", reason="POSIX links and pipes only")
def test_what_a_folder_has_beside_files_and_folders_is_named(tmp_path):
    documents_folder = tmp_path / "documents"
    documents_folder.mkdir()
    (documents_folder / "a.txt").write_text("one")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "b.txt").write_text("two")
    (documents_folder / "linked").symlink_to(tmp_path / "elsewhere")
    (documents_folder / "broken.txt").symlink_to(tmp_path / "nowhere.txt")
    os.mkfifo(documents_folder / "pipe.txt")
    _, texts, skipped = split(read(documents_folder))
    assert texts == ["one"]
    assert {Path(record.place).name for record in skipped} == {"linked", "broken.txt", "pipe.txt"}


@pytest.mark.parametrize("ending", ["txt", "csv", "tsv", "jsonl"])
def test_a_compressed_file_is_read_as_the_file_itself(write, ending):
    content = b"one\ntwo\n"
    if ending != "txt":
        content = table(ending, pl.DataFrame({"id": ["a", "b"], "text": ["one", "two"]}))
    plain = read(write(f"own.{ending}", content))
    packed = read(write(f"own.{ending}.gz", gzip.compress(content)))
    assert [(document.text, document.id, document.line) for document in packed] == [
        (document.text, document.id, document.line) for document in plain
    ]


def test_damaged_compressed_files_are_named(write, tmp_path):
    damaged = gzip.compress(b"one\n" * 1000)[:-12]
    assert_refused(write("a.txt.gz", damaged), "a.txt.gz")
    assert_refused(write("b.txt.gz", "no gzip"), "b.txt.gz")
    assert_refused(write("c.parquet.gz", "x"), "c.parquet.gz")
    write("d.txt.gz", gzip.compress(b"two\nlines"))
    documents, _, skipped = split(read(tmp_path))
    assert [record.text for record in documents] == ["two\nlines"]
    assert len(skipped) == 3


@pytest.mark.parametrize("compressed", [(), ("corpus",), ("queries",), ("corpus", "queries")])
def test_a_beir_folder_has_its_corpus_with_titles(tmp_path, compressed):
    rows = [{"_id": "d1", "title": "Title", "text": "and text"}, {"_id": "d2", "title": "", "text": "alone"}]
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "queries.jsonl").write_text('{"_id": "q", "text": "query"}\n')
    for name in compressed:
        task_files.compress(tmp_path / f"{name}.jsonl")
    records = read(tmp_path)
    assert [record.id for record in records] == ["d1", "d2"]
    assert [record.text.strip() for record in records] == ["Title and text", "alone"]


def test_columns_are_named_or_found(write):
    path = write("a.csv", "key,body,place\n7,hello,web\n")
    (record,) = read(path, id_column="key", source_column="place")
    assert (record.text, record.id, record.source) == ("hello", "7", "web")
    assert_refused(write("b.csv", "x,y\na,b\n"), "x", "y")
    assert_refused(path, "'nope'", "key", "body", "place", column="nope")
    assert_refused(write("c.jsonl", '{"a": "x"}\n'), "'nope'", column="nope")
    numbers = write("d.parquet", pl.DataFrame({"text": [1]}))
    assert_refused(numbers, "Int64", column="text")
    assert_refused(numbers, "Int64")
    (record,) = read(write("d.parquet", pl.DataFrame({"text": pl.Series(["hello"], dtype=pl.Categorical)})))
    assert record.text == "hello"
    assert_refused(write("e.txt", "a"), "e.txt", column="a")


def test_a_line_for_excel_is_no_header(write):
    path = write("a.csv", "sep=;\nid;text\n1;hello\n")
    for delimiter in (None, ";"):
        assert_refused(path, "';'", column=Columns("text", delimiter=delimiter))


def test_a_column_called_topic_is_the_source_unless_it_is_the_text(write, tmp_path):
    (record,) = read(write("a.jsonl", '{"text": "hello", "topic": "greetings"}\n'))
    assert record.source == "greetings"
    (record,) = read(write("b.jsonl", '{"text": "hello", "topic": "greetings", "source": "web"}\n'))
    assert record.source == "web"
    (record,) = read(write("c.jsonl", '{"topic": "hello"}\n'))
    assert (record.text, record.source) == ("hello", None)
    parquet = tmp_path / "d.parquet"
    pl.DataFrame({"text": ["hello"]}).write_parquet(parquet)
    for path in (write("d.jsonl", '{"text": "hello"}\n'), parquet):
        assert_refused(path, "'topic'", source_column="topic")


def test_objects_are_documents_too():
    for source in (["a", "b"], (text for text in "ab"), pl.Series(["a", "b"])):
        assert split(read(source))[1] == ["a", "b"]
    rows = [{"text": "a", "id": 1}, {"text": "b", "id": 2}]
    for source in (rows, pl.DataFrame(rows), pl.DataFrame(rows).to_arrow(), datasets.Dataset.from_list(rows)):
        assert [(record.text, record.id) for record in read(source)] == [("a", "1"), ("b", "2")]
    assert [type(record) for record in read(["a", None, 3])] == [Document, Skipped, Skipped]
    for wrong in (b"bytes", 3, {"a": 1}, None):
        assert_refused(wrong, repr(wrong))


def test_standard_input_is_lines_or_json(monkeypatch):
    for content, columns in ((b"one\n", {}), (b'{"body": "one"}\n', {"column": "body"})):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
        assert split(read("-", **columns))[1] == ["one"]
    with_delimiter = {"column": Columns("body", delimiter=";")}
    for columns, keyword in (({}, "JSON"), (with_delimiter, "delimiter")):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"body": "one"}\n')))
        assert_refused("-", keyword, **columns)


def test_what_cannot_be_read_is_refused(tmp_path, write):
    assert_refused(tmp_path / "nothing", tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    assert_refused(tmp_path / "empty", tmp_path / "empty")
    assert_refused(write("a.pdf", "x"), "'.pdf'")
    assert_refused(write("a.csv", ""), "a.csv")
    assert_refused(write("b.txt", "text".encode("utf-16")), "b.txt", "UTF-16")
    assert_refused(write("a.parquet", b"PAR1 no PAR1"), "a.parquet")
    assert_refused(["text"], "the given texts", column="a")


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
    file_lines = list(lines(io.BytesIO(content), "x", Meter()))
    for line in file_lines:
        start = line.offset
        assert content[start : start + len(line.content)] == line.content
    assert b"".join(line.content for line in file_lines) == content.removeprefix(b"\xef\xbb\xbf").replace(
        end, b""
    )


# Data sets of the hub


@pytest.fixture
def local_hub(tmp_path, monkeypatch):
    """A folder that `datasets` reads in place of a repository; its cache is temporary."""
    assert datasets.config.HF_HUB_OFFLINE
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "repository"
    folder.mkdir()
    return folder


def texts_of(source):
    documents = [record.text for record in open_documents(source, NamedColumns()).read(Meter())]
    assert load_sentences(source).texts == tuple(documents)
    return documents


@pytest.mark.parametrize(
    ("splits", "named", "read"),
    [
        (["validation"], "", "validation"),
        (["train", "test"], "", "train"),
        (["train", "test"], "@test", "test"),
    ],
)
def test_sentences_and_documents_are_read_from_the_same_split(local_hub, splits, named, read):
    for split in splits:
        (local_hub / f"{split}.csv").write_text(f"text\nthe {split} split\n")
    assert texts_of(f"hub:{local_hub}{named}") == [f"the {read} split"]


def test_without_a_usual_split_the_splits_are_listed(local_hub):
    for split in ("validation", "test"):
        (local_hub / f"{split}.csv").write_text("text\nno\n")
    message = naming(repr(str(local_hub)), "validation", "test", f"hub:{local_hub}@SPLIT")
    for read in (load_sentences, lambda source: list(open_documents(source, NamedColumns()).read(Meter()))):
        with pytest.raises(InputError, match=message):
            read(f"hub:{local_hub}")


def test_a_data_set_of_parquet_files_is_read_with_a_named_column(local_hub):
    pl.DataFrame({"text": ["no"], "body": ["yes"], "n": [1]}).write_parquet(local_hub / "test.parquet")
    assert load_sentences(f"hub:{local_hub}", "body").texts == ("yes",)
    with pytest.raises(InputError, match=naming("'title'", "text", "body", "n")):
        load_sentences(f"hub:{local_hub}", "title")


def test_the_english_configuration_is_taken_where_there_are_several(local_hub):
    for language in ("de", "en"):
        (local_hub / f"{language}.csv").write_text(f"text\n{language}\n")
    configuration = "- config_name: {0}\n  data_files:\n  - split: test\n    path: {0}.csv\n"
    configurations = configuration.format("de") + configuration.format("en")
    (local_hub / "README.md").write_text(f"---\nconfigs:\n{configurations}---\n")
    assert texts_of(f"hub:{local_hub}") == ["en"]


def test_several_data_sets_are_put_together(local_hub, tmp_path, monkeypatch):
    second = tmp_path / "second"
    second.mkdir()
    (local_hub / "test.csv").write_text("text\na\nb\n")
    (second / "test.csv").write_text("sentence1,sentence2\nb,c\n")
    monkeypatch.setattr("stickytoken.data.PAPER_DATASETS", (str(local_hub), str(second)))
    corpus = load_sentences("paper")
    assert corpus.texts == ("a", "b", "c")
    assert (corpus.source, corpus.duplicates) == ("2 hub data sets", 1)


def test_a_split_that_does_not_exist_is_named(local_hub):
    (local_hub / "test.csv").write_text("text\nno\n")
    with pytest.raises(InputError, match=naming(local_hub, "'dev'")):
        load_sentences(f"hub:{local_hub}@dev")
    with pytest.raises(InputError, match=naming("'hub:@train'")):
        load_sentences("hub:@train")
    with pytest.raises(InputError, match=naming(repr(PAPER_DATASETS[0]), "'test'")):
        load_sentences("paper")


@pytest.mark.parametrize(("name", "content"), [(".hidden", "a"), ("test.jsonl", '{"text": "a"}\nno json\n')])
def test_a_data_set_that_cannot_be_read_is_named(local_hub, name, content):
    (local_hub / name).write_text(content)
    for source in (str(local_hub), "nobody/nothing"):
        with pytest.raises(InputError, match=naming(source)):
            load_sentences(f"hub:{source}")


def test_without_the_package_datasets_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtraError, match=naming("stickytoken[hub]")):
        load_sentences("paper")


def separated(lines, delimiter=",", *, quoted=True):
    stream = [f"{line}\n".encode() for line in lines]
    header, *rows = read_separated_rows(
        stream, "x", Meter(), Dialect(delimiter, quoted), named_delimiter=True
    )
    return [header, *(row for row in rows if not isinstance(row.value, Skipped))]


def test_a_record_begins_on_the_line_of_its_first_field():
    header, *rows = separated(["a,b", '"x', "", 'y",z', "", "c,d"])
    assert (header.line, header.value) == (1, ("a", "b"))
    assert [(row.line, row.value) for row in rows] == [
        (2, {"a": "x\n\ny", "b": "z"}),
        (6, {"a": "c", "b": "d"}),
    ]


@pytest.mark.parametrize("delimiter", [",", "\t"])
def test_records_are_split_as_the_csv_module_does(delimiter):
    generator = random.Random(0)
    for _ in range(2_000):
        text = "".join(generator.choices(f'a{delimiter}"\n b', weights=[4, 3, 3, 2, 1, 1], k=14))
        lines = ["h", *text.split("\n")]
        width = generator.randint(1, 3)
        lines[0] = delimiter.join("hij"[:width])
        try:
            records = list(csv.reader([f"{line}\n" for line in lines], delimiter=delimiter, strict=True))
        except csv.Error:
            continue
        expected = [fields for fields in records[1:] if len(fields) == width]
        found = [list(row.value.values()) for row in separated(lines, delimiter)[1:]]
        assert found == expected, text


@pytest.mark.parametrize(
    "name",
    ["a.csv", "a.csv.gz", "a.tsv"],
)
def test_a_quotation_mark_that_is_never_closed_is_named(write, name):
    content = b'id\ttext\n1\ta\n2\t"b ""c""\nd' if "tsv" in name else b'id,text\n1,a\n2,"b\n3,c\n'
    path = write(name, gzip.compress(content) if name.endswith("gz") else content)
    if "tsv" in name:
        assert split(read(path))[1] == ["a", '"b ""c""']
    else:
        assert_refused(path, name, "line 3")


@pytest.mark.parametrize(
    ("name", "header", "other"),
    [
        ("a.csv", "id;text;url", ";"),
        ("a.csv", "id\ttext", "\t"),
        ("a.csv", "id|text", "|"),
        ("a.tsv", "id,text", ","),
    ],
)
def test_a_header_with_another_delimiter_is_refused_with_the_option(write, name, header, other):
    row = other.join(["1", "The wing: more", "https://a.org/?b"][: len(header.split(other))])
    path = write(name, f"{header}\n{row}\n")
    assert_refused(path, repr(other), header.encode("unicode_escape").decode())
    (document,) = read(path, column=Columns("text", delimiter=other))
    assert document.text == "The wing: more"
    own = "," if name == "a.csv" else "\t"
    texts = split(read(path, column=Columns(header, delimiter=own)))[1]
    assert texts == [row]


TSV = "sentence\tother\tn\n"


@pytest.mark.parametrize(
    ("rows", "texts"),
    [
        ('"a\tx\t1\nb "c\tx\t2\nd"\tx\t3\n', ['"a', 'b "c', 'd"']),  # opens here, closes there
        ('"a b"\tx\t1\n', ['"a b"']),
        ('"a ""b"""\tx\t1\n"c"\tx\t2\n', ['a "b"', "c"]),  # doubled
        ('"a\nb"\tx\t1\n', ["a\nb"]),
        ('"a\tb"\tx\t1\nc\tx\t2\n', ["a\tb", "c"]),
    ],
)
def test_tsv_has_quoting_only_where_the_file_proves_it(write, rows, texts):
    assert split(read(write("a.tsv", TSV + rows)))[1] == texts


def test_json_is_read_as_what_it_is(write):
    rows = [{"text": "one", "n": {"a": []}}, {"text": "two]"}]
    lines_of_json = "".join(json.dumps(row) + "\n" for row in rows)
    for content in (lines_of_json, json.dumps(rows), json.dumps(rows, indent=2) + "\n", "\n [ ]\n"):
        texts = split(read(write("a.json", content)))[1]
        assert texts == ([] if "[ ]" in content else ["one", "two]"])
    array = write("a.json", json.dumps(rows, indent=2))
    assert [record.line for record in read(array)] == [2, 8]
    for damaged in (
        '[{"text": "a"}',
        '[{"text": "a"} {"text": "b"}]',
        '[{"text": "a"}] {}',
        '{"text":\n"a"}',
    ):
        assert_refused(write("a.json", damaged), "a.json")


@pytest.mark.parametrize(
    "content", ['{"text": "a", "text": "b"}\n', '{"m": {"s": "a", "s": "b"}, "text": "c"}\n']
)
def test_an_object_with_a_key_twice_is_refused_with_its_line(write, content):
    path = write("a.jsonl", '{"text": "x", "m": {"s": "y"}}\n' + content)
    column, key = ("text", "text") if content.startswith('{"text"') else ("m.s", "s")
    assert_refused(path, "line 2", repr(key), column=column)
    if column == "m.s":  # nobody reads it
        assert split(read(path))[1] == ["x", "c"]


def test_several_columns_and_a_template_are_read_and_the_others_named(write):
    rows = [
        {"title": "T", "text": "a", "m": {"s": "u", "n": 1}, "list": ["b"]},
        {"text": "c", "m": [], "late": "d"},
    ]
    path = write("a.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    for column, texts, columns, unread in (
        (None, ["a", "c"], ["text"], ["title", "m.s", "list", "late"]),
        (("title", "text"), ["T a", "c"], ["title", "text"], ["m.s", "list", "late"]),
        ("m.s", ["u"], ["m.s"], ["title", "text", "list", "late"]),
        (Columns(template="{title}. {m.s}"), ["T. u"], ["title", "m.s"], ["text", "list", "late"]),
    ):
        meter = Meter()
        records = list(open_documents(path, NamedColumns(column)).read(meter))
        assert split(records)[1] == texts
        assert (meter.columns, meter.unread, meter.records) == (columns, unread, 2)
        assert all(name in meter.summary() for name in unread)
    for wrong in ({"template": "{title"}, {"template": "no column"}, {"column": "a", "template": "{b}"}):
        with pytest.raises(InputError):
            Columns(**wrong)
    for formatted in ("{text!r}", "{title}. {text:>10}", "{text!r:>10}"):
        with pytest.raises(InputError, match=naming(repr(formatted))):
            Columns(template=formatted)


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl", "parquet", None])
def test_a_column_in_which_text_begins_late_is_named(write, ending):
    """The first 100 rows choose the columns, and rows of a number have no text."""
    late = ["7"] * 150 + ["a comment"] * 50
    frame = pl.DataFrame({"year": ["7"] * 200, "text": ["a text"] * 200, "late": late})
    if ending in ("jsonl", "parquet", None):
        nested = [{"number": 1, "note": "a note" if number == 180 else None} for number in range(200)]
        frame = frame.with_columns(nested=pl.Series(nested), list=pl.Series([[]] * 199 + [["an item"]]))
    source = frame if ending is None else write(f"late.{ending}", table(ending, frame))
    meter = Meter()
    list(open_documents(source, NamedColumns()).read(meter))
    assert meter.unread == ["late", "nested.note", "list"][: len(frame.columns) - 2]


def test_a_long_name_of_a_nested_field_is_shortened(write):
    nested = '{"a":' * 900 + '"some text"' + "}" * 900
    meter = Meter()
    list(
        open_documents(write("a.jsonl", f'{{"text": "x", "m": {nested}}}\n'), NamedColumns(None)).read(meter)
    )
    assert meter.unread == ["m" + ".a" * 900]
    assert len(meter.summary()) < 200
