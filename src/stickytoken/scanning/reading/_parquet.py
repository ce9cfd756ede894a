"""Documents of a Parquet file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import polars as pl

from stickytoken.errors import InputError
from stickytoken.scanning.reading.columns import Place, Wanted, choose_columns, record_of
from stickytoken.scanning.reading.documents import Meter, Numbering, Record

_ROWS = 4096
_DAMAGE = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError)


def parquet_documents(path: Path, wanted: Wanted, numbering: Numbering, meter: Meter) -> Iterator[Record]:
    """Yield the document of each row."""
    name = os.fsencode(path).decode("utf-8", "backslashreplace")
    try:
        size = path.stat().st_size
        table = pl.scan_parquet(path, glob=False)
        schema = table.collect_schema()
        rows = table.select(pl.len()).collect().item()
    except _DAMAGE as error:
        raise InputError(
            f"{name} is not a readable parquet file: {' '.join(str(error).split())[:200]}"
        ) from error
    textual = [column for column, kind in schema.items() if kind == pl.String]
    columns = choose_columns(schema.names(), wanted, name, textual)
    for column in columns.texts:
        if column not in textual:
            raise InputError(f"column {column!r} of {name} contains {schema[column]}, not text")
    row = 0
    try:
        for batch in table.select(columns.all).collect_batches(chunk_size=_ROWS):
            for values in batch.iter_rows(named=True):
                row += 1
                yield record_of(values, columns, numbering.take(), name, Place(row=row))
            meter.done += round(size * batch.height / max(1, rows))
    except _DAMAGE as error:
        raise InputError(
            f"{name} is damaged after row {row}: {' '.join(str(error).split())[:200]}"
        ) from error
