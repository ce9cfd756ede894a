"""An explanation, as an object, a document and files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from stickytoken.errors import InputError
from stickytoken.explanation.files import ExplanationContent, stored_explanation
from stickytoken.explanation.record import (
    EXPLANATION_SCHEMA_VERSION,
    TABLE_SCHEMAS,
    ExplainedTokenRecord,
    ExplanationRecord,
)
from stickytoken.explanation.settings import ExplainSettings
from stickytoken.explanation.verdict import Finding
from stickytoken.hashing import digest
from stickytoken.insertion import Placement
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
        parts: by token id, everything that can change its numbers.
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
    parts: Mapping[int, dict[str, Any]]

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
        """Write one folder per token: explanation.json, and a Parquet file per table.

        Args:
            folder: gets a folder named by id for each token; one that holds the same explanation already is
                left as it is.

        Returns:
            The folders, in the order of the tokens.

        Raises:
            RunError: a folder holds another explanation or something else, or cannot be written.
        """
        written = []
        for each in self.tokens:
            place = Path(folder).expanduser() / str(each.token_id)
            stored_explanation(place, self.parts[each.token_id], partial(self.content, each.token_id))
            written.append(place)
        return written

    @classmethod
    def of(cls, contents: Sequence[ExplanationContent]) -> Explanation:
        """Join the explanations of several tokens by the same model, settings and texts."""
        first = contents[0].record
        settings = first.settings | {"placement": Placement(first.settings["placement"])}
        return cls(
            model=first.model,
            tokens=tuple(_token(content.token) for content in contents),
            **{name: pl.concat([content.tables[name] for content in contents]) for name in TABLES},
            vocabulary=first.vocabulary,
            notes=tuple(dict.fromkeys(note for content in contents for note in content.record.notes)),
            settings=ExplainSettings(**settings),
            carriers=first.carriers,
            source=first.source,
            pooling=first.pooling,
            parts={content.token.token_id: content.record.identity_parts for content in contents},
        )

    def _record(self, token_id: int) -> dict[str, Any]:
        parts = self.parts.get(token_id, {})
        return {
            "schema_version": EXPLANATION_SCHEMA_VERSION,
            "identity": digest(parts),
            "identity_parts": parts,
            **self.document((token_id,)),
            "versions": package_versions(),
        }


def _token(record: ExplainedTokenRecord) -> TokenExplanation:
    return TokenExplanation(
        token_id=record.token_id,
        token=record.token,
        category=record.category,
        run_verdict=record.run_verdict,
        verdict=record.verdict,
        findings=tuple(Finding(**each.model_dump()) for each in record.findings),
        same_category=record.same_category,
    )
