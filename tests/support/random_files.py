"""Random files of every format, with the texts that a plain reader finds in them."""

import csv
import gzip
import io
import json
import random

import polars as pl

from stickytoken.settings.reading import Columns

REFUSED = "refused"
_WORDS = ["river", "wing", "Größe", "今天", "\U0001f642", 'say "no"', "a, b", "c;d", "x|y", "3", "'t", "<b>"]


def random_file(seed, folder):
    """Write a file; return its path, the columns to read, and a text or None for each record, or REFUSED."""
    generator = random.Random(seed)
    kind = generator.choice(
        ["csv", "tsv", "plain.tsv", "jsonl", "lines.json", "array.json", "parquet", "txt"]
    )
    write = {"csv": _csv, "tsv": _csv, "plain.tsv": _plain_tsv, "parquet": _parquet, "txt": _lines}.get(
        kind, _json
    )
    content, expected, columns = write(generator, kind)
    suffix = kind.split(".")[-1]
    if suffix != "parquet" and generator.random() < 0.2:
        content = gzip.compress(content)
        suffix += ".gz"
    path = folder / f"{seed}.{suffix}"
    path.write_bytes(content)
    return path, columns, expected


def _text(generator, *, more=()):
    words = generator.choices([*_WORDS, *more], k=generator.randint(1, 6))
    return generator.choice(["", "It: "]) + " ".join(words)


def _rows(generator, **options):
    return [
        {"id": f"d{number}", "title": _text(generator, **options), "text": _text(generator, **options)}
        for number in range(generator.randint(1, 8))
    ]


def _choice(generator):
    """Columns to read, and a function that gives their text in a row."""
    return generator.choice(
        [
            (Columns(), lambda row: row["text"]),
            (Columns("title"), lambda row: row["title"]),
            (Columns(("title", "text")), lambda row: f"{row['title']} {row['text']}"),
            (Columns(template="{title}: {text}!"), lambda row: f"{row['title']}: {row['text']}!"),
        ]
    )


def _encoded(generator, text, expected):
    """The bytes of a file that consists of lines, and what is read of them: another encoding is refused."""
    if generator.random() < 0.1:
        return text.encode("utf-16"), REFUSED
    mark = generator.choice([b"", b"\xef\xbb\xbf"])
    return mark + text.encode(), expected


def _csv(generator, kind):
    breaks = ["one\ntwo", '"'] if kind == "csv" else ["one\ntwo"]
    rows = _rows(generator, more=breaks)
    delimiter = generator.choice([",", ";", "|"]) if kind == "csv" else "\t"
    columns, text_of = _choice(generator)
    stream = io.StringIO()
    end = generator.choice(["\n", "\r\n"])
    writer = csv.DictWriter(
        stream,
        ["id", "title", "text"],
        delimiter=delimiter,
        lineterminator=end,
        quoting=generator.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    )
    writer.writeheader()
    writer.writerows(rows)
    expected = [text_of(row) for row in rows]
    is_default = delimiter in ",\t"
    if not is_default and generator.random() < 0.7:
        columns = Columns(columns.column, columns.template, delimiter)
    elif not is_default:
        expected = REFUSED
    damage = generator.choice(["", "", "surplus", "open"])
    content = stream.getvalue()
    if damage == "surplus" and expected != REFUSED:
        content += delimiter.join("abcd") + end
        expected.append(None)
    if damage == "open" and kind == "csv" and expected != REFUSED:
        content += f'd9{delimiter}"never closed'
        expected = REFUSED
    return *_encoded(generator, content, expected), columns


def _plain_tsv(generator, kind):
    """A file without quoting, in which a quotation mark may open in one line and close in a later one."""
    rows = _rows(generator)
    first, last = generator.choice(rows), generator.choice(rows)
    first["title"] = '"' + first["title"]
    last["title"] += '"'
    columns, text_of = _choice(generator)
    lines = ["id\ttitle\ttext", *("\t".join(row.values()) for row in rows)]
    return *_encoded(generator, "\n".join(lines) + "\n", [text_of(row) for row in rows]), columns


def _lines(generator, kind):
    texts = [_text(generator) for _ in range(5)]
    return *_encoded(generator, "\n\n".join(texts), texts), Columns()


def _json(generator, kind):
    rows = _rows(generator, more=["one\ntwo", "\t"])
    name, text_of = generator.choice(
        [
            ("text", lambda row: row.get("text")),
            ("meta.summary", lambda row: (row["meta"] or {}).get("summary")),
        ]
    )
    for row in rows:
        row["meta"] = generator.choice([{}, [], None, {"summary": _text(generator)}, {"summary": None}])
        if len(rows) > 2 and row is rows[-1]:
            del row["text"]
    expected = [text_of(row) for row in rows]
    is_ascii = generator.random() < 0.5
    objects = [json.dumps(row, ensure_ascii=is_ascii) for row in rows]
    twice = generator.choice(["", "", "text", "other"])
    if twice:
        member = json.dumps("again") if twice == "text" else '{"x": 1, "x": "y z"}'
        objects[0] = f"{{{json.dumps(twice)}: {member}, {objects[0][1:]}"
        if twice == "text" and "text" in rows[0]:
            expected = REFUSED
    if kind == "array.json":
        content = "[" + generator.choice([",", ",\n ", " , "]).join(objects) + "]\n"
    else:
        content = "\n".join(objects) + "\n"
    return *_encoded(generator, content, expected), Columns(name)


def _parquet(generator, kind):
    rows = _rows(generator, more=["one\ntwo"])
    for row in rows:
        row["meta"] = generator.choice([{"summary": None}, {"summary": _text(generator)}])
    columns, text_of = generator.choice(
        [*([_choice(generator)] * 2), (Columns("meta.summary"), lambda row: row["meta"]["summary"])]
    )
    schema = {
        "id": pl.String,
        "title": pl.String,
        "text": pl.String,
        "meta": pl.Struct({"summary": pl.String}),
    }
    stream = io.BytesIO()
    pl.DataFrame(rows, schema=schema).write_parquet(stream)
    expected = [text_of(row) for row in rows]
    return stream.getvalue(), expected, columns


_WRITERS = {
    "csv": _csv,
    "tsv": _csv,
    "plain.tsv": _plain_tsv,
    "jsonl": _json,
    "lines.json": _json,
    "array.json": _json,
    "parquet": _parquet,
    "txt": _lines,
}
