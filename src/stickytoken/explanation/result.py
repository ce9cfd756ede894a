"""An explanation, as an object, a document and files."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import polars as pl

from stickytoken.errors import InputError, RunError
from stickytoken.explanation.files import ExplanationContent
from stickytoken.explanation.record import (
    EXPLANATION_FILE,
    EXPLANATION_SCHEMA_VERSION,
    TABLE_SCHEMAS,
    ExplanationRecord,
)
from stickytoken.explanation.settings import ExplainSettings
from stickytoken.explanation.verdict import Finding
from stickytoken.measurement.atomic import write_atomically
from stickytoken.measurement.environment import package_versions

TABLES = tuple(TABLE_SCHEMAS)


@dataclass(frozen=True, slots=True)
class TokenExplanation:
    """What was found about one token.

    Attributes:
        token_id: its id.
        token: the vocabulary string.
        category: what the round trip says.
        run_verdict: of the run; None without one.
        verdict: in words.
        findings: measures outside the benign interval.
        same_category: whether the benign tokens are of its category.
    """

    token_id: int
    token: str
    category: str
    run_verdict: str | None
    verdict: str
    findings: tuple[Finding, ...]
    same_category: bool


@dataclass(frozen=True)
class Explanation:
    """Why tokens stick, or that they do not.

    Attributes:
        model: as the user named it.
        tokens: in the order asked for.
        measures: one row a token, measure and layer: value with interval, benign interval.
        heads: attention that the copies receive, one row a token, layer and head; head null is their mean.
        pairs: pairs whose similarity was attributed.
        attribution: their matrices, one row a cell.
        benign: the benign tokens of each token.
        neighbours: nearest rows of the embedding matrix.
        vocabulary: how the embedding matrix lies in space; empty where it cannot be reached.
        notes: what could not be measured, and why.
        settings: as asked for.
        carriers: texts that the copies were put into.
        source: where these came from.
        pooling: how the model pools; None where nobody can say.
    """

    model: str
    tokens: tuple[TokenExplanation, ...]
    measures: pl.DataFrame
    heads: pl.DataFrame
    pairs: pl.DataFrame
    attribution: pl.DataFrame
    benign: pl.DataFrame
    neighbours: pl.DataFrame
    vocabulary: Mapping[str, float | int]
    notes: tuple[str, ...]
    settings: ExplainSettings
    carriers: int
    source: str
    pooling: str | None

    def of_token(self, token_id: int) -> dict[str, pl.DataFrame]:
        """All tables of one token, by name."""
        return {name: getattr(self, name).filter(token_id=token_id) for name in TABLES}

    def document(self, token_ids: tuple[int, ...] | None = None) -> dict[str, Any]:
        """JSON values of all tokens, or of some; the matrices are in the tables only."""
        chosen = [each for each in self.tokens if token_ids is None or each.token_id in token_ids]
        tokens = []
        for each in chosen:
            tables = self.of_token(each.token_id)
            tokens.append(
                asdict(each)
                | {
                    name: tables[name].drop("token_id", "token", strict=False).to_dicts()
                    for name in TABLES
                    if name != "attribution"
                }
            )
        return {
            "schema_version": EXPLANATION_SCHEMA_VERSION,
            "model": self.model,
            "pooling": self.pooling,
            "carriers": self.carriers,
            "source": self.source,
            "settings": asdict(self.settings),
            "vocabulary": dict(self.vocabulary),
            "notes": list(self.notes),
            "tokens": tokens,
        }

    def content(self, token_id: int) -> ExplanationContent:
        """One token as `read_explanation` gives it once it is written, for whoever draws it.

        Raises:
            InputError: the token was not explained.
        """
        record = ExplanationRecord.model_validate(self._record(token_id))
        if not record.tokens:
            explained = ", ".join(str(each.token_id) for each in self.tokens)
            raise InputError(f"token id {token_id} was not explained: ask for one of {explained}")
        return ExplanationContent(record, record.tokens[0], self.of_token(token_id))

    def write(self, folder: str | Path) -> list[Path]:
        """Write a folder a token: explanation.json, and a Parquet file a table.

        Args:
            folder: gets a folder named by id for each token; what is there of the same token is replaced.

        Returns:
            The folders, in the order of the tokens.

        Raises:
            RunError: the folder cannot be written.
        """
        written = []
        for each in self.tokens:
            place = Path(folder).expanduser() / str(each.token_id)
            try:
                place.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise RunError(f"{place} cannot be written: {error.strerror or error}") from error
            for name, table in self.of_token(each.token_id).items():
                _write(place / f"{name}.parquet", _parquet(table))
            document = self._record(each.token_id)
            _write(place / EXPLANATION_FILE, json.dumps(document, indent=2, allow_nan=False).encode() + b"\n")
            written.append(place)
        return written

    def _record(self, token_id: int) -> dict[str, Any]:
        return self.document((token_id,)) | {"versions": package_versions()}


def _parquet(table: pl.DataFrame) -> bytes:
    buffer = io.BytesIO()
    table.write_parquet(buffer)
    return buffer.getvalue()


def _write(path: Path, content: bytes) -> None:
    def write(stream: BinaryIO) -> None:
        stream.write(content)

    write_atomically(path, write)
