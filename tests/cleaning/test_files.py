"""Files of documents: only the text changes, in every format, and a scan finds what cleaning changes."""

import csv
import gzip
import io
import json
import re
import shlex
import tempfile
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st
from pyarrow import parquet
from typer.testing import CliRunner

import planted
import scanned
from naming import naming, says
from stickytoken import Cleaner
from stickytoken.cleaning.files import clean_document, clean_file
from stickytoken.cleaning.rules import read_list
from stickytoken.cli.app import app
from stickytoken.data.documents import Document, NamedColumns, open_documents, unicode_text
from stickytoken.data.rewriting import cut, open_source
from stickytoken.data.rows import Meter
from stickytoken.scanning.scan import scan
from stickytoken.settings.reading import Columns

EXAMPLES = 40
WORD = scanned.STICKY
PARTS = (
    f"{WORD} ", WORD, f"{WORD.upper()} ", "the ", "flow ", "very ", "buy now ", "zebra ", "x", " ", ", ", ".",
    "[SEP]", "[SE", "P]", "<|endof", "text|>", "<|endoftext|>", "\u200b", "\u0301", "é", "中", "\U0001f642",
    '"', "'", "\\", "\\u0041", "/",
)  # fmt: skip
pieces = st.tuples(st.sampled_from(PARTS), st.sampled_from((1, 1, 1, 2, 4, 5)))
texts = st.lists(pieces, max_size=25).map(lambda chosen: "".join(piece * count for piece, count in chosen))
long_texts = st.lists(st.one_of(texts, st.sampled_from(("\n", ",", "\t"))), max_size=3).map("".join)
others = st.sampled_from(
    (
        "",
        "doc[SEP]7",
        "http://x/[PAD]?q=1",
        f"{WORD} {WORD} {WORD} {WORD}",
        "a,b",
        'a "quoted" one',
        "two\nlines",
    )
)

# Records are written as fixed pieces with holes for texts between them; a damaged one has no hole.


@dataclass
class Record:
    fixed: list[bytes]
    texts: list[str]
    holes: list[bytes]


@dataclass
class Case:
    """A file as it is written, and the pattern of the bytes of a text in it."""

    ending: str
    head: bytes
    records: list[Record]
    newline: bytes
    hole: str
    read: object  # turns the bytes of a hole into a text

    @property
    def content(self) -> bytes:
        lines = [self.head] if self.head else []
        for record in self.records:
            line = record.fixed[0]
            for hole, fixed in zip(record.holes, record.fixed[1:], strict=True):
                line += hole + fixed
            lines.append(line)
        return b"".join(line + self.newline for line in lines)


def json_text(text: str, escaped: bool) -> bytes:
    return json.dumps(text, ensure_ascii=escaped or "\ud800" in text).encode()


@st.composite
def json_cases(draw) -> Case:
    has_title = draw(st.booleans())
    records = []
    for _ in range(draw(st.integers(1, 6))):
        if draw(st.integers(0, 5)) == 0:
            records.append(
                Record([draw(st.sampled_from((b'{"text": ', b'{"text": 3}', b"", b"[1]")))], [], [])
            )
            continue
        escaped = draw(st.booleans())
        space = draw(st.sampled_from((b"", b" ", b"\t ")))
        texts_of_row = [
            draw(long_texts) + draw(st.sampled_from(("", "", "\ud800"))) for _ in range(1 + has_title)
        ]
        fixed = [b'{"_id":' + space + json_text(draw(others), escaped) + b', "url" : ']
        fixed[0] += json_text(draw(others), escaped) + b"," + space
        fixed[0] += b'"title": ' if has_title else b'"te\\u0078t":' + space
        if has_title:
            fixed.append(b', "text":' + space)
        fixed.append(b', "n": 1.50, "nested": {"text": "[SEP]"}' + space + b"}")
        records.append(Record(fixed, texts_of_row, [json_text(text, escaped) for text in texts_of_row]))
    last = b'{"_id": "last", "url": "", "title": "", "text": "a plain line"}'
    records.append(Record([last], [], []))
    newline = draw(st.sampled_from((b"\n", b"\r\n")))
    return Case(".jsonl", b"", records, newline, r'"(?:[^"\\]|\\.)*"', json.loads)


def field(text: str, separator: str, quoted: bool) -> bytes:
    if quoted or any(sign in text for sign in (separator, '"', "\n")):
        text = '"' + text.replace('"', '""') + '"'
    return text.encode()


@st.composite
def separated_cases(draw) -> Case:
    ending, separator = draw(st.sampled_from(((".csv", ","), (".tsv", "\t"))))
    mark = separator.encode()
    records = []
    for _ in range(draw(st.integers(1, 6))):
        if draw(st.integers(0, 5)) == 0:
            records.append(Record([draw(st.sampled_from((b"one", mark * 7, b"", b"\xff")))], [], []))
            continue
        text = draw(long_texts)
        before = mark.join(field(draw(others), separator, draw(st.booleans())) for _ in range(2))
        behind = field(draw(others), separator, draw(st.booleans()))
        # In TSV, quotes that nothing needs are part of the text, and change what is beside the copies.
        hole = field(text, separator, draw(st.booleans()) and ending == ".csv")
        records.append(Record([before + mark, mark + behind], [text], [hole]))
    records.append(Record([mark.join((b"last", b"", b"a plain line", b""))], [], []))
    head = mark.join((b"id", b"url", b"text", b"n"))

    def read(raw: bytes) -> str:
        rows = list(csv.reader(io.StringIO(raw.decode(), newline=""), delimiter=separator))
        return rows[0][0] if rows else ""

    newline = draw(st.sampled_from((b"\n", b"\r\n")))
    pattern = rf'"(?:[^"]|"")*"|[^"{separator}\r\n][^{separator}\r\n]*|'
    return Case(ending, head, records, newline, pattern, read)


@st.composite
def line_cases(draw) -> Case:
    records = []
    for _ in range(draw(st.integers(1, 6))):
        text = draw(texts)
        if draw(st.integers(0, 5)) == 0 or not text.strip():
            records.append(Record([draw(st.sampled_from((b"\xff bad", b"", b"zero \0")))], [], []))
        else:
            records.append(Record([b"", b""], [text], [text.encode()]))
    records.append(Record([b"a plain line"], [], []))
    newline = draw(st.sampled_from((b"\n", b"\r\n", b"\r")))
    return Case(".txt", b"", records, newline, r"[^\r\n]*", bytes.decode)


@pytest.fixture(scope="module")
def cleaner(scanned_run):
    return Cleaner.from_run(scanned_run)


def clean_path(path: Path, cleaner: Cleaner, **wanted):
    """Return what cleaning a file writes, and the totals."""
    output = io.BytesIO()
    totals = clean_file(open_source(path, NamedColumns(**wanted)), cleaner, output)
    return output.getvalue(), totals


def unpacked(content: bytes, path: Path) -> bytes:
    return gzip.decompress(content) if path.suffix == ".gz" else content


def require_same_findings(run: Path, path: Path, cleaned: Path, cleaner: Cleaner) -> None:
    """A scan finds what cleaning says it removed, and nothing afterwards; cleaning again changes nothing."""
    content, totals = clean_path(path, cleaner)
    before = scan(run, path, workers=1).result
    assert before.documents == totals.documents
    assert before.found + before.suspected >= totals.changed
    assert {kind.value for kind in totals.changed_by_cause} <= {"flagged", "special"}
    assert all(count <= before.kinds[kind] for kind, count in totals.changed_by_cause.items())
    cleaned.write_bytes(content)
    after = scan(run, cleaned, workers=1).result
    assert (after.found + after.suspected == 0, after.skipped) == (not totals.left_by_cause, before.skipped)
    assert clean_path(cleaned, cleaner)[0] == content


@given(case=st.one_of(json_cases(), separated_cases(), line_cases()), packed=st.booleans())
@settings(max_examples=EXAMPLES)
def test_lines_and_rows_keep_every_byte_but_those_of_the_text(case, packed, scanned_run, cleaner):
    with tempfile.TemporaryDirectory() as folder:
        ending = case.ending + (".gz" if packed else "")
        path = Path(folder) / f"documents{ending}"
        path.write_bytes(gzip.compress(case.content) if packed else case.content)
        content = unpacked(clean_path(path, cleaner)[0], path)
        rest = content.removeprefix(case.head + case.newline) if case.head else content
        for record in case.records:
            expected = []
            if record.texts:
                texts = {str(number): unicode_text(text) for number, text in enumerate(record.texts)}
                text, starts = Columns().fill(texts)
                document = Document(0, "0", text, parts=tuple(texts.values()), starts=tuple(starts.values()))
                _, cuts = clean_document(cleaner, document)
                # What is written is cut where it stands, so that even a lone surrogate stays.
                expected = list(map(cut, record.texts, cuts))
            for fixed, text in zip(record.fixed, [*expected, None], strict=True):
                assert rest.startswith(fixed)
                rest = rest[len(fixed) :]
                if text is not None:
                    hole = re.compile(case.hole.encode(), re.DOTALL).match(rest)
                    assert case.read(hole[0]) == text
                    rest = rest[hole.end() :]
            assert rest.startswith(case.newline)
            rest = rest[len(case.newline) :]
        assert rest == b""
        require_same_findings(scanned_run, path, Path(folder) / f"cleaned{ending}", cleaner)


def test_an_edited_string_keeps_the_escapes_of_its_record(cleaner, tmp_path):
    path = tmp_path / "documents.jsonl"
    record = r'{"text": "caf\u00e9\/ bera bera bera bera \ud83d\ude00 \ud800 \"end\" ", "n": "\u0041"}'
    path.write_text(record + "\n", "utf-8")
    content, totals = clean_path(path, cleaner)
    assert totals.changed == 1
    after = content.decode()
    assert "bera" not in after
    assert after.startswith(r'{"text": "caf\u00e9\/')
    assert after.endswith(r'\ud83d\ude00 \ud800 \"end\" ", "n": "\u0041"}' + "\n")


ROW = {
    "id": others,
    "url": others,
    "text": st.one_of(st.none(), long_texts),
    "n": st.one_of(st.none(), st.integers(0, 9)),
}
KINDS = (pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string()))


@given(
    rows=st.lists(st.fixed_dictionaries(ROW), max_size=8),
    kind=st.sampled_from(KINDS),
    compression=st.sampled_from(("snappy", "zstd", "none")),
    group=st.integers(1, 5),
)
@settings(max_examples=EXAMPLES)
def test_a_parquet_file_keeps_schema_metadata_and_other_columns(
    rows, kind, compression, group, scanned_run, cleaner
):
    rows = [*rows, {"id": "last", "url": "", "text": "a plain line", "n": 1}]
    field_of_n = pa.field("n", pa.decimal128(5, 2), metadata={"unit": "m"})
    fields = [
        pa.field("id", pa.string(), nullable=False),
        ("url", pa.large_string()),
        ("text", kind),
        field_of_n,
    ]
    schema = pa.schema(fields, metadata={"pandas": "{}", "own": "é"})
    table = pa.Table.from_pylist(rows, schema=schema)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "documents.parquet"
        parquet.write_table(table, path, compression=compression, row_group_size=group)
        content, _ = clean_path(path, cleaner)
        before = parquet.ParquetFile(path)
        after = parquet.ParquetFile(io.BytesIO(content))
        assert after.schema_arrow.equals(before.schema_arrow, check_metadata=True)
        assert after.num_row_groups == before.num_row_groups
        codecs = [file.metadata.row_group(0).column(3).compression for file in (before, after)]
        assert codecs[0] == codecs[1]
        assert after.read().drop_columns("text").equals(before.read().drop_columns("text"))
        expected = [None if row["text"] is None else cleaner(row["text"]) for row in rows]
        assert after.read()["text"].to_pylist() == expected
        before.close()
        require_same_findings(scanned_run, path, Path(folder) / "cleaned.parquet", cleaner)


RULES_LINE = '{"_id": "doc[SEP]7", "url": "http://x/[PAD]?q=1", "text": "air [SEP] flow"}\n'


def command(*arguments, content=b""):
    done = CliRunner().invoke(app, ["clean", *map(str, arguments)], input=content)
    return done.exit_code, done.stdout_bytes, done.stderr


@pytest.fixture(scope="module")
def cleaner_file(cleaner, tmp_path_factory):
    path = tmp_path_factory.mktemp("rules") / "rules.json"
    cleaner.save(path)
    return path


def test_ids_and_addresses_with_special_tokens_stay(cleaner_file, write):
    expected = RULES_LINE.replace("air [SEP] flow", "air flow").encode()
    status, output, _ = command(cleaner_file, write("own.jsonl", RULES_LINE))
    assert (status, output) == (0, expected)
    assert command(cleaner_file, "-", "--column", "text", content=RULES_LINE.encode())[1] == expected


def test_a_column_is_named_and_no_other_is_cleaned(cleaner_file, write):
    path = write("own.csv", "key,body,text\n[SEP],air [SEP] flow,[SEP]\n")
    _, output, _ = command(cleaner_file, path, "--column", "body", "--id", "key")
    assert output == b"key,body,text\n[SEP],air flow,[SEP]\n"
    status, output, errors = command(cleaner_file, path, "--column", "nothing")
    assert (status, output) == (1, b"")
    assert says(errors, "'nothing'", "key", "body", "text")


def test_a_file_may_be_cleaned_in_place(cleaner_file, write):
    path = write("own.txt", "air [SEP] flow\nvery very very very good\n")
    status, output, errors = command(cleaner_file, path, "--out", path, "--unsafe-fixes")
    assert (status, output, path.read_bytes()) == (0, b"", b"air flow\nvery good\n")
    assert says(errors, "2 of 2", "special token: 1", "repetition: 1")
    assert says(errors, "first copy", "'very' (line 2)")


def test_only_documents_where_copies_of_a_repetition_went_are_counted(cleaner_file, write):
    hidden = "ver<|im_end|>y ve<|im_end|>ry v<|im_end|>ery very very good"
    texts = [hidden, hidden, "very very very very good"]
    lines = [json.dumps({"_id": f"d{number}", "text": text}) for number, text in enumerate(texts)]
    _, _, errors = command(
        cleaner_file, write("own.jsonl", "\n".join(lines) + "\n"), "--diff", "--unsafe-fixes"
    )
    (line,) = [line for line in errors.splitlines() if "'very'" in line]
    assert "more" not in line


def test_a_long_repeated_word_is_named_by_its_beginning(cleaner_file, write):
    path = write("own.txt", " ".join(["pneumonoultramicroscopicsilicovolcanoconiosis"] * 6) + "\n")
    assert "'pneumonoultramicroscopicsilicovolcanocon...'" in command(cleaner_file, path, "--unsafe-fixes")[2]


def test_documents_are_named_where_a_first_copy_stays(cleaner_file, write):
    lines = [json.dumps({"_id": f"d{number}", "text": "very very very very good"}) for number in range(5)]
    _, _, errors = command(
        cleaner_file, write("own.jsonl", "\n".join(lines) + "\n"), "--diff", "--unsafe-fixes"
    )
    assert says(errors, "'very' (d0)", "'very' (d1)", "'very' (d2)", "2 more")


@pytest.mark.parametrize("wrong", [("--allow", "nowhere.txt"), ("--column", "nothing")])
def test_nothing_is_written_if_anything_is_wrong(cleaner_file, write, tmp_path, wrong):
    path = write("own.jsonl", RULES_LINE)
    write("out.jsonl", "earlier")
    assert command(cleaner_file, path, *wrong, "--out", tmp_path / "out.jsonl")[:2] == (1, b"")
    assert (tmp_path / "out.jsonl").read_text() == "earlier"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["out.jsonl", "own.jsonl"]
    assert command(cleaner_file, path, *wrong)[1] == b""


def test_a_damaged_compressed_file_is_an_error_and_writes_nothing(cleaner_file, write):
    path = write("own.txt.gz", gzip.compress(b"air [SEP] flow\n" * 1000)[:-12])
    status, output, errors = command(cleaner_file, path)
    assert (status, output) == (1, b"")
    assert says(errors, "own.txt.gz", "gzip")


def test_the_ending_of_the_output_decides_whether_it_is_compressed(cleaner_file, write, tmp_path):
    path = write("own.txt", "air [SEP] flow\n")
    command(cleaner_file, path, "--out", tmp_path / "out.txt.gz")
    assert gzip.decompress((tmp_path / "out.txt.gz").read_bytes()) == b"air flow\n"
    status, _, errors = command(cleaner_file, path, "--out", tmp_path / "out.csv")
    assert status == 1
    assert says(errors, tmp_path / "out.csv", "format")


def test_what_may_belong_to_a_text_is_counted_and_goes_on_request(cleaner_file, write):
    words = [f"word{number} zebra" if number % 2 else f"word{number}" for number in range(15)]
    path = write("own.txt", f"{' '.join(words)}\n")
    _, output, errors = command(cleaner_file, path)
    assert output == path.read_bytes()
    assert says(errors, "none of 1")
    assert says(errors, "1 document", "suspected copies")
    assert "--unsafe-fixes would remove more from 1 document:" in errors
    changed_too = write("changed.txt", f"[SEP] {' '.join(words)}\n")
    _, _, errors = command(cleaner_file, changed_too)
    assert "1 of 1 document changed" in errors
    assert "remove more from 1 document:" in errors
    _, output, errors = command(cleaner_file, path, "--unsafe-fixes")
    assert b"zebra" not in output
    assert says(errors, "1 of 1", "suspected copies: 1")


@pytest.mark.parametrize(
    ("name", "kept", "aside"),
    [
        ("own.txt", "one\n\ntwo\n", "air [SEP] flow\n[SEP]\n"),
        ("own.csv", "id,text\n1,one\n4,two\n", "id,text\n2,air [SEP] flow\n3,[SEP]\n"),
        ("own.jsonl", '{"text": "one"}\n{"text": "two"}\n', '{"text": "air [SEP] flow"}\n'),
    ],
)
def test_documents_are_set_aside_byte_for_byte(cleaner_file, write, tmp_path, name, kept, aside):
    head = "id,text\n" if name.endswith(".csv") else ""
    first, *rest = kept.removeprefix(head).splitlines(keepends=True)
    path = write(name, head + first + aside.removeprefix(head) + "".join(rest))
    outputs = [tmp_path / f"kept-{name}", tmp_path / f"aside-{name}"]
    status, _, errors = command(cleaner_file, path, "--out", outputs[0], "--quarantine", outputs[1])
    assert status == 0
    assert [output.read_text() for output in outputs] == [kept, aside]
    assert says(errors, "set aside", "special token:")


# What stands before a record that is set aside, and the end of its line, in files that are written oddly.
ODD = {
    "unreadable rows before the first": (
        "own.csv",
        "id,text\n1,ragged,x\n\n2,air [SEP] flow\n3,one\n",
        "id,text\n1,ragged,x\n\n3,one\n",
        "id,text\n2,air [SEP] flow\n",
    ),
    "lines that end in a carriage return": (
        "own.csv",
        "id,text\r1,[SEP] x\r2,one\r",
        "id,text\r2,one\r",
        "id,text\r1,[SEP] x\r",
    ),
    "lines of text that do": ("own.txt", "[SEP] x\rone\r[SEP] y", "one\r", "[SEP] x\r[SEP] y\r"),
    "no end of the last line": (
        "own.csv",
        "id,text\r\n1,one\r\n2,[SEP] x",
        "id,text\r\n1,one\r\n",
        "id,text\r\n2,[SEP] x\r\n",
    ),
    "no row": ("own.csv", "id,text\n1,one", "id,text\n1,one", "id,text\n"),
    "an array": (
        "own.json",
        '\ufeff[\n {"text": "[SEP] x"},\n 5,\n {"text": "one" , "n": 1e0} ,\n {"text": "[SEP]"}\n]\n',
        '\ufeff[\n 5,\n {"text": "one" , "n": 1e0}\n]\n',
        '\ufeff[\n {"text": "[SEP] x"} ,\n {"text": "[SEP]"}\n]\n',
    ),
    "an array without others": ("own.json", '["[SEP] x", "[SEP]"]', "[]", '["[SEP] x", "[SEP]"]'),
    "an array without any": ("own.json", '[ "one","two" ]', '[ "one","two" ]', "[  ]"),
}


@pytest.mark.parametrize("case", ODD)
def test_what_is_set_aside_is_a_file_of_its_own(cleaner_file, write, tmp_path, case):
    name, content, kept, aside = ODD[case]
    outputs = [tmp_path / f"kept-{name}", tmp_path / f"aside-{name}"]
    path = write(name, content)
    status, _, errors = command(cleaner_file, path, "--out", outputs[0], "--quarantine", outputs[1])
    assert status == 0, errors
    assert [output.read_bytes().decode() for output in outputs] == [kept, aside]
    if name.endswith(".json"):
        for output in outputs:
            assert isinstance(json.loads(output.read_text("utf-8-sig")), list)


def test_rows_of_parquet_are_set_aside(cleaner, tmp_path):
    path = tmp_path / "own.parquet"
    texts_of_rows = ["one", "air [SEP] flow", None, "two"]
    parquet.write_table(pa.table({"text": texts_of_rows, "n": range(4)}), path, row_group_size=2)
    kept, aside = io.BytesIO(), io.BytesIO()
    totals = clean_file(open_source(path, NamedColumns()), cleaner, kept, quarantine=aside)
    assert totals.set_aside == 1
    assert parquet.read_table(kept).to_pydict() == {"text": ["one", None, "two"], "n": [0, 2, 3]}
    assert parquet.read_table(aside).to_pydict() == {"text": ["air [SEP] flow"], "n": [1]}


@pytest.mark.parametrize(("name", "content"), [("own.csv", "id,text\n"), ("own.txt", "")])
def test_a_file_without_documents_is_an_error_as_for_scan(cleaner_file, write, tmp_path, name, content):
    path = write(name, content)
    status, output, errors = command(cleaner_file, path, "--out", tmp_path / f"out-{name}")
    assert (status, output) == (1, b"")
    assert says(errors, path, "empty")
    assert not (tmp_path / f"out-{name}").exists()
    assert planted.command("scan", str(cleaner_file), str(path)).exit_code == 1


def test_the_lists_of_a_team_hold_for_every_command(cleaner_file, write, tmp_path):
    path = write("own.txt", f"air [SEP] flow\n{scanned.copies()} x\nplain text\n")
    allowed = write("allow.txt", "[SEP] # our field\n")
    known = tmp_path / "known.txt"
    lists = ("--allow", str(allowed), "--known", str(known))
    status = planted.command(
        "scan", str(cleaner_file), str(path), "--allow", str(allowed), "--set", f"write-known={known}"
    )
    assert "(1 more documents)" in status.stderr
    assert f"line 2: {WORD}" in known.read_text()
    assert command(cleaner_file, path, *lists)[1] == path.read_bytes()
    found = planted.command("scan", str(cleaner_file), str(path), *lists)
    assert says(found.stdout, "none of 3 documents")
    checked = planted.command("check", str(cleaner_file), "--documents", str(path), *lists)
    assert checked.exit_code == 0
    assert planted.command("check", str(cleaner_file), "--documents", str(path)).exit_code == 10


@pytest.mark.parametrize("content", ["über".encode("utf-16"), b"a\xff\n"])
@pytest.mark.parametrize("option", ["--allow={}", "--known={}", "--set=write-known={}"])
def test_a_list_that_is_not_utf_8_is_refused(cleaner_file, write, tmp_path, option, content):
    path = write("own.txt", "plain text\n")
    words = write("list.txt", content)
    given = (cleaner_file, path, "--scan-folder", tmp_path / "scan", option.format(words))
    planted.assert_refused("scan", *given, saying=naming(words, "UTF-8"))
    assert not (tmp_path / "scan").exists()
    assert words.read_bytes() == content


def test_a_byte_order_mark_is_no_part_of_a_word(write):
    assert read_list(write("list.txt", "able\n".encode("utf-8-sig")), "the words") == ["able"]


@pytest.mark.parametrize(
    "options",
    [
        ("--template", "{title}. {text} ({metadata.summary})"),
        ("--column", "title", "--column", "text", "--column", "metadata.summary"),
    ],
)
def test_every_command_compares_the_same_text_with_those_that_are_known(
    cleaner_file, write, tmp_path, options
):
    copies = scanned.copies()
    rows = [
        {"id": "d1", "title": f"air {copies}", "text": "a flow", "metadata": {"summary": "[SEP] x"}},
        {"id": "d2", "title": " ", "text": f"{copies} flow", "metadata": {"summary": "last"}},
        {"id": "d3", "text": f"  {copies} flow", "metadata": {"summary": ""}},
    ]
    path = write("own.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    known = tmp_path / "known.txt"
    scan = ("scan", str(cleaner_file), str(path), *options)
    written = planted.command(*scan, "--set", f"write-known={known}")
    assert "(3 more documents)" in written.stderr
    lists = ("--known", str(known))
    assert says(planted.command(*scan, *lists).stdout, "none of 3 documents")
    checked = planted.command("check", str(cleaner_file), "--documents", str(path), *options, *lists)
    assert checked.exit_code == 0
    assert command(cleaner_file, path, *options, *lists)[1] == path.read_bytes()
    kept, aside = tmp_path / "kept.jsonl", tmp_path / "aside.jsonl"
    command(cleaner_file, path, *options, *lists, "--out", kept, "--quarantine", aside)
    assert (kept.read_bytes(), aside.read_bytes()) == (path.read_bytes(), b"")


@pytest.mark.parametrize(
    ("template", "title", "text"),
    [
        ("{title} {text}", "", "the flow of air"),  # four in a row, of two fields
        ("{title}. They say: {text}", f"{WORD} {WORD}", f"{WORD} {WORD} the flow of air"),
        ("{title} [SEP] {text} x", "", "the flow of air"),
    ],
)
def test_what_goes_is_what_a_scan_finds_in_the_text_as_the_index_embeds_it(
    cleaner_file, write, template, title, text
):
    before = {"title": f"{WORD} {WORD}", "text": f"{WORD} {WORD} the flow of air"}
    if "[SEP]" in template:
        before = {"title": "", "text": f"{WORD} {WORD} {WORD} {WORD} the flow of air"}
    path = write("own.jsonl", json.dumps(before) + "\n")
    _, output, _ = command(cleaner_file, path, "--template", template)
    assert json.loads(output) == {"title": title, "text": text}


def test_words_of_the_template_are_no_reason_to_change_or_to_set_aside_a_document(
    cleaner_file, write, tmp_path
):
    path = write("own.jsonl", '{"title": "air", "text": "flow"}\n')
    options = ("--template", "{title} [SEP] {text}")
    _, output, errors = command(cleaner_file, path, *options)
    assert (output, "none of 1 document changed" in errors) == (path.read_bytes(), True)
    kept, aside = tmp_path / "kept.jsonl", tmp_path / "aside.jsonl"
    command(cleaner_file, path, *options, "--out", kept, "--quarantine", aside)
    assert (kept.read_bytes(), aside.read_bytes()) == (path.read_bytes(), b"")


def test_a_row_of_a_single_field_is_never_lost(cleaner_file, write):
    path = write("own.csv", f"text\n{scanned.copies()}\nlast\n")
    _, output, errors = command(cleaner_file, path)
    assert output == b'text\n""\nlast\n'
    assert says(errors, "1 document", "left")
    path = write("own.tsv", f"text\n{scanned.copies()}\nlast\n")
    _, output, errors = command(cleaner_file, path)
    # In a TSV file without quoting, quotation marks would be the text.
    assert output == b"text\n \nlast\n"
    assert says(errors, "1 document", "left")
    cleaned = write("cleaned.tsv", output)
    assert [record.text for record in open_documents(cleaned, NamedColumns()).read(Meter())] == [" ", "last"]
    assert pl.read_csv(cleaned, separator="\t")["text"].to_list() == [" ", "last"]


def verification(errors):
    """The arguments of the command on the last line of stderr."""
    name, _, printed_command = errors.splitlines()[-1].partition(": ")
    assert name == "verify"
    program, *arguments = shlex.split(printed_command)
    assert program == "stickytoken"
    return arguments


@pytest.mark.parametrize("name", ["out.csv", "my; file's $(name).csv", "-out.csv"])
def test_the_last_line_is_a_command_that_verifies_the_file(scanned_run, write, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    path = write("own.csv", f"key,body,text\n1,air {scanned.copies()},x\n2,flow,y\n")
    _, _, errors = command(scanned_run, path, "--column", "body", "--id", "key", f"--out={name}")
    arguments = verification(errors)
    assert arguments[:2] == ["scan", str(scanned_run)]
    result = planted.command(*arguments, "--scan-folder", tmp_path / "scan")
    assert result.exit_code == 0, result.stderr
    assert says(result.stdout, "none of 2 documents")


def test_a_file_cleaned_by_rules_is_verified_by_the_same_rules(cleaner_file, write, tmp_path):
    path = write("own.txt", "air [SEP] flow\n")
    _, _, errors = command(cleaner_file, path, "--out", tmp_path / "out.txt")
    arguments = verification(errors)
    assert arguments == ["scan", str(cleaner_file), str(tmp_path / "out.txt")]
    assert says(planted.command(*arguments).stdout, "none of 1 document")


def test_a_file_whose_extension_scan_cannot_read_has_no_such_line(scanned_run, write, tmp_path):
    path = write("own.txt", "air [SEP] flow\n")
    _, _, errors = command(scanned_run, path, "--out", tmp_path / "out.cleaned")
    assert not errors.splitlines()[-1].startswith("verify: ")


def test_a_difference_writes_no_documents_and_says_so(cleaner_file, write):
    path = write("own.txt", "air [SEP] flow\n")
    _, output, errors = command(cleaner_file, path, "--diff")
    assert b"[-[SEP]-]" in output
    assert says(errors, "no documents")


def test_cleaning_that_takes_no_time_prints_no_progress(cleaner_file, write):
    path = write("own.txt", "air [SEP] flow\n" * 500)
    _, _, errors = command(cleaner_file, path)
    read_line, changed_line = errors.splitlines()
    assert says(read_line, 500)
    assert says(changed_line, "500 of 500", "special token: 500")
