"""The paper's published tables, read from a folder."""

from __future__ import annotations

from pathlib import Path

import polars as pl

PUBLISHED = Path(__file__).resolve().parents[2] / "shared" / "paper"
MINILM_U = 0.1998460739850998
MINILM_SCORE_THRESHOLD = 49.2041992


def table(folder: Path, name: str) -> pl.DataFrame:
    """Read one published table."""
    path = folder / f"{name}.csv"
    if not path.is_file():
        raise SystemExit(f"no published table {path}: pass its folder with --published")
    return pl.read_csv(path, infer_schema_length=None)
