"""What every method writes into plan.json, and into run.json as its result."""

from __future__ import annotations

from pathlib import Path

import polars as pl
from pydantic import Field

from stickytoken.encoders.views import View
from stickytoken.measurement.resume import Record
from stickytoken.measurement.store import ResultFolder


class PlanRecord(Record):
    """What plan.json of every method contains."""

    mean_similarity: float = Field(description="u, the mean cosine over the vocabulary")
    mean_similarity_entries: int = Field(description="vocabulary entries that u rests on")
    mean_similarity_error: float = Field(
        default=0.0, description="standard error of u; 0 if it rests on the whole vocabulary"
    )

    @property
    def mean_similarity_text(self) -> str:
        """Write u with its standard error, if it has one."""
        error = f" ± {self.mean_similarity_error:.4f}" if self.mean_similarity_error else ""
        return f"{self.mean_similarity:.4f}{error}"


class ResultRecord(Record):
    """What the result of every method contains."""

    sticky: int = Field(description="sticky tokens")
    sequences: int = Field(description="texts that shards encoded")
    seconds: float = Field(description="time that shards took")


DIMENSIONS_FILE = "dimensions.json"
DIMENSION_TOKENS_FILE = "dimensions.parquet"


class DimensionRecord(Record):
    """What was found in one view."""

    layer: int | None = Field(description="layers that run; null for the model as it is")
    dimension: int
    sticky: int
    topical: int
    severe: int = Field(description="flagged tokens of this severity")
    serious: int
    mild: int
    negligible: int
    similarity_spread: float = Field(description="standard deviation of the similarities of texts")
    ordinary_lift: float = Field(description="lift of the typical token")
    ordinary_sd: float = Field(description="spread of ordinary tokens' lifts, in those standard deviations")
    largest_sd: float | None = Field(
        description="largest lift above the typical token's, in those standard deviations"
    )
    mean_similarity: float = Field(description="u, the mean cosine over the vocabulary")

    @property
    def view(self) -> View:
        """The view, without its place among the columns."""
        return View(self.dimension, self.layer)


class DimensionsRecord(Record):
    """dimensions.json: one row per view, the model as it is first."""

    views: list[DimensionRecord]


def read_dimensions(path: Path) -> list[DimensionRecord]:
    """Read the views of a run; none if it has only the model as it is."""
    record = ResultFolder(path).read_record(DIMENSIONS_FILE, DimensionsRecord)
    return [] if record is None else record.views


def tokens_in(path: Path, view: View) -> pl.DataFrame:
    """Read the tokens of a run in one view, with the columns of tokens.parquet."""
    table = ResultFolder(path).read_table(DIMENSION_TOKENS_FILE, ("layer", "dimension", "token_id"))
    own = pl.col("layer").eq_missing(pl.lit(view.layer, dtype=pl.Int64))
    return table.filter(own & (pl.col("dimension") == view.dimension)).drop("layer", "dimension")


def dimensions_table(records: list[DimensionRecord]) -> pl.DataFrame:
    """Lay out the views as a table, one row each."""
    kinds = {"layer": pl.Int64, "largest_sd": pl.Float64}
    return pl.DataFrame([record.model_dump() for record in records], schema_overrides=kinds)
