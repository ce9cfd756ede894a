"""An explanation as an object, a document and files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from stickytoken.errors import InputError
from stickytoken.explanation._measuring import Checkpoints
from stickytoken.explanation._verdict import Finding
from stickytoken.explanation.files import (
    EXPLANATION_SCHEMA_VERSION,
    TABLE_SCHEMAS,
    ExplainedTokenRecord,
    ExplanationContent,
    ExplanationRecord,
    stored_explanation,
)
from stickytoken.explanation.settings import ExplainSettings
from stickytoken.machine import digest
from stickytoken.measurement.resume import package_versions

TABLES = tuple(TABLE_SCHEMAS)


@dataclass(frozen=True, slots=True)
class TokenExplanation:
    """What was found about one token.

    Attributes:
        token_id: id of the token.
        token: its vocabulary string.
        category: its vocabulary category.
        run_verdict: verdict of the run; None without a run.
        verdict: summary in one sentence.
        findings: measures outside the benign interval.
        same_category: whether the benign tokens have the same category.
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
        model: name given by the user.
        tokens: explained tokens in the order requested.
        measures: one row per token, measure and layer: the value with its interval, and the benign interval.
        heads: attention that the copies receive, one row per token, layer and head; rows without a head are
            means over heads.
        pairs: pairs whose similarity was attributed.
        attribution: matrices of these pairs, one row per cell.
        benign: benign tokens of each token.
        neighbours: nearest rows of the embedding matrix.
        vocabulary: geometry of the embedding matrix; empty if the model does not expose it.
        notes: what could not be measured, and why.
        settings: settings of the explanation.
        carriers: number of texts that copies were added to.
        source: where these texts come from.
        pooling: pooling of the model; None if unknown.
        parts: everything that can change the numbers, by token id.
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

    def __repr__(self) -> str:
        return f"<Explanation: {self.model}, tokens: {len(self.tokens)}, carriers: {self.carriers}>"

    def of_token(self, token_id: int) -> dict[str, pl.DataFrame]:
        """Return all tables of one token, by name."""
        return {name: getattr(self, name).filter(token_id=token_id) for name in TABLES}

    def document(self, token_ids: tuple[int, ...] | None = None) -> dict[str, Any]:
        """Return JSON values of all tokens, or of some; matrices are only in the tables."""
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
        """Return one token in the form in which `read_explanation` reads it back.

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
            folder: folder that gets one folder per token, named by id. A folder that already holds the same
                explanation is left as it is.

        Returns:
            The folders, in the order of the tokens.

        Raises:
            RunError: a folder holds another explanation or something else, or cannot be written.
        """
        written = []
        for each in self.tokens:
            place = Path(folder).expanduser() / str(each.token_id)
            stored_explanation(place, self.parts[each.token_id], partial(self._whole, each.token_id))
            written.append(place)
        return written

    def _whole(self, token_id: int, checkpoints: Checkpoints) -> ExplanationContent:
        del checkpoints  # everything is computed
        return self.content(token_id)

    @classmethod
    def of(cls, contents: Sequence[ExplanationContent]) -> Explanation:
        """Join the explanations of several tokens that share model, settings and texts."""
        first = contents[0].record
        return cls(
            model=first.model,
            tokens=tuple(_token(content.token) for content in contents),
            **{name: pl.concat([content.tables[name] for content in contents]) for name in TABLES},
            vocabulary=first.vocabulary,
            notes=tuple(dict.fromkeys(note for content in contents for note in content.record.notes)),
            settings=ExplainSettings(**first.settings),
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
