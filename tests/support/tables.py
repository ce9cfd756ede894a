"""Tables in every format that is read."""

import io

import polars as pl

TABLES = ("csv", "tsv", "jsonl", "ndjson", "parquet")


def table(ending, columns):
    frame = pl.DataFrame(columns)
    if ending == "parquet":
        stream = io.BytesIO()
        frame.write_parquet(stream)
        return stream.getvalue()
    if ending in ("jsonl", "ndjson"):
        return frame.write_ndjson().encode()
    return frame.write_csv(separator="\t" if ending == "tsv" else ",").encode()
