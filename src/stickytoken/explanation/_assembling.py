"""Turn measurements of all tokens into an explanation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from stickytoken.detection.run import Run
from stickytoken.encoders.protocol import EncoderIdentity
from stickytoken.explanation._attributing import Attributed
from stickytoken.explanation._embeddings import EmbeddingMatrix, share_below
from stickytoken.explanation._material import Material
from stickytoken.explanation._measuring import Measured
from stickytoken.explanation._verdict import RunVerdict, findings, verdict
from stickytoken.explanation.record import (
    ATTRIBUTION_SCHEMA,
    BENIGN_SCHEMA,
    HEADS_SCHEMA,
    MEASURES_SCHEMA,
    NEIGHBOURS_SCHEMA,
    PAIRS_SCHEMA,
)
from stickytoken.explanation.result import Explanation, TokenExplanation
from stickytoken.explanation.settings import ExplainSettings
from stickytoken.explanation.tables import frame, head_rows, measure_rows, pair_tables
from stickytoken.hashing import digest
from stickytoken.measurement.identity import identity_of
from stickytoken.vocabulary.benign import BenignMatch
from stickytoken.vocabulary.categories import Vocabulary

if TYPE_CHECKING:
    from stickytoken.inspection.protocol import Inspector

# Increase it when the same inputs give different numbers than before.
_IDENTITY_VERSION = 2


@dataclass(frozen=True)
class Job:
    """What an explanation is computed from.

    Attributes:
        inspector: shows what happens inside the model.
        vocabulary: the model's vocabulary.
        settings: settings of the explanation.
        material: carriers and anchors.
        matches: benign tokens by explained token.
        run: the run that the tokens come from, if any.
        identity: identity of the model, computed for this explanation.
    """

    inspector: Inspector
    vocabulary: Vocabulary
    settings: ExplainSettings
    material: Material
    matches: dict[int, BenignMatch]
    run: Run | None
    identity: EncoderIdentity

    @cached_property
    def verdicts(self) -> dict[int, str | None]:
        """Verdict of every token in the run, by id; empty without a run."""
        return {} if self.run is None else dict(self.run.tokens.select("token_id", "verdict").iter_rows())

    def run_verdict(self, token_id: int) -> RunVerdict | None:
        """Return what the run says about a token; None if there is no run or it has no verdict."""
        if self.run is None or self.verdicts.get(token_id) is None:
            return None
        row = self.run.tokens.row(by_predicate=pl.col("token_id") == token_id, named=True)
        scale, lift = self.run.method.scale(self.run), row["lift"]
        known = ("severity", "universality", "kind", "texts")
        return RunVerdict(
            verdict=row["verdict"],
            lift=lift,
            sd=None if scale is None or lift is None else (lift - scale.ordinary) / scale.spread,
            **{name: row.get(name) for name in known},
        )

    def parts(self, token_id: int) -> dict[str, Any]:
        """Return everything that can change the explanation of a token, as JSON values."""
        said = self.run_verdict(token_id)
        return identity_of(
            _IDENTITY_VERSION,
            self.identity,
            self.settings,
            token=token_id,
            benign=self.benign[token_id],
            carriers=digest([[each.text, each.template] for each in self.material.carriers]),
            anchors=digest(self.material.anchors),
            mean_similarity=self.material.mean_similarity,
            run_verdict=self.verdicts.get(token_id),
            **({} if said is None else {"run": asdict(said)}),
        )

    @property
    def benign(self) -> dict[int, list[int]]:
        """Ids of the benign tokens, by explained token."""
        return {k: [token.id for token in match.tokens] for k, match in self.matches.items()}


def assemble(
    job: Job,
    measured: Measured,
    attributed: Attributed | None,
    matrix: EmbeddingMatrix | None,
    notes: list[str],
) -> Explanation:
    """Compare every token with its benign tokens and build the explanation.

    Args:
        job: what the explanation is computed from.
        measured: measurements on the carriers.
        attributed: attributions; None if they were not requested or are not possible.
        matrix: the embedding matrix; None if the model does not expose it.
        notes: what could not be measured, and why.
    """
    names = job.inspector.encoder.tokenizer.entries
    heads: list[dict[str, Any]] = []
    pairs: list[dict[str, Any]] = []
    cells: list[dict[str, Any]] = []
    rows = _rows_by_token(job, measured, attributed, matrix)
    for token_id in job.matches:
        own = {"token_id": token_id, "token": names[token_id]}
        if token_id in measured.heads:
            benign = np.stack([measured.heads[k] for k in job.benign[token_id]])
            found = head_rows(measured.heads[token_id], benign, job.settings.confidence)
            heads += [own | row for row in found]
        if attributed is not None:
            summaries, matrix_cells = pair_tables(token_id, attributed.pairs[token_id], names)
            pairs += summaries
            cells += matrix_cells
    tokens = tuple(_token(job, token_id, rows[token_id]) for token_id in job.matches)
    notes = [*notes, *_notes_on_matches(tokens)]
    measures = [
        {"token_id": token_id, "token": names[token_id]} | row for token_id in rows for row in rows[token_id]
    ]
    return Explanation(
        model=job.inspector.encoder.name,
        tokens=tokens,
        measures=frame(measures, MEASURES_SCHEMA),
        heads=frame(heads, HEADS_SCHEMA),
        pairs=frame(pairs, PAIRS_SCHEMA),
        attribution=frame(cells, ATTRIBUTION_SCHEMA),
        benign=frame(_benign_rows(job, names, attributed), BENIGN_SCHEMA),
        neighbours=frame(_neighbour_rows(job, names, matrix), NEIGHBOURS_SCHEMA),
        vocabulary={} if matrix is None else matrix.geometry,
        notes=tuple(notes),
        settings=job.settings,
        carriers=len(job.material.carriers),
        source=job.material.source,
        pooling=job.inspector.pooling,
        parts={token_id: job.parts(token_id) for token_id in job.matches},
    )


def _token(job: Job, token_id: int, rows: list[dict[str, Any]]) -> TokenExplanation:
    """Sum up what was found about one token."""
    place = job.vocabulary.place(token_id)
    name, match, differing = job.vocabulary.tokens[place], job.matches[token_id], findings(rows)
    return TokenExplanation(
        token_id=token_id,
        token=name,
        category=job.vocabulary.categories[place].value,
        run_verdict=job.verdicts.get(token_id),
        verdict=verdict(name, token_id, rows, differing, len(match.tokens), job.run_verdict(token_id)),
        findings=tuple(differing),
        same_category=match.same_category,
    )


def _notes_on_matches(tokens: Sequence[TokenExplanation]) -> list[str]:
    return [
        f"too few other tokens have the category {each.category}: {each.token!r} is compared with tokens of "
        "other categories"
        for each in tokens
        if not each.same_category
    ]


def _rows_by_token(
    job: Job, measured: Measured, attributed: Attributed | None, matrix: EmbeddingMatrix | None
) -> dict[int, list[dict[str, Any]]]:
    """Return the rows of the table of measures by token id, without the token's name."""
    confidence = job.settings.confidence
    of_rows = {} if matrix is None else matrix.measures
    available = [token.id for token in job.vocabulary.available]
    found: dict[int, list[dict[str, Any]]] = {}
    for token_id, others in job.benign.items():
        rows: list[dict[str, Any]] = []
        for name, values in measured.values[token_id].items():
            benign = np.stack([measured.values[k][name] for k in others])
            rows += measure_rows(name, values, benign, confidence)
        for name, distances in measured.distances[token_id].items():
            rows += measure_rows(name, distances[0], distances[1:], confidence)
        if attributed is not None:
            nearest = [k for k in others if k in attributed.values]
            for name, values in attributed.values[token_id].items():
                benign = np.stack([attributed.values[k][name] for k in nearest])
                rows += measure_rows(name, values, benign, confidence)
        for name, column in of_rows.items():
            own, theirs = column[[token_id]], column[list(others)][:, None]
            rows += measure_rows(name, own, theirs, confidence, share_below(column, token_id, available))
        found[token_id] = rows
    return found


def _benign_rows(job: Job, names: Mapping[int, str], attributed: Attributed | None) -> list[dict[str, Any]]:
    categories = dict(zip(job.vocabulary.ids, job.vocabulary.categories, strict=True))
    return [
        {
            "token_id": token_id,
            "benign_id": token.id,
            "benign": names[token.id],
            "category": categories[token.id].value,
            "characters": len(token.text.strip()),
            "attributed": attributed is not None and token.id in attributed.values,
        }
        for token_id, match in job.matches.items()
        for token in match.tokens
    ]


def _neighbour_rows(
    job: Job, names: Mapping[int, str], matrix: EmbeddingMatrix | None
) -> list[dict[str, Any]]:
    if matrix is None:
        return []
    return [
        {
            "token_id": token_id,
            "rank": rank,
            "neighbour_id": other,
            "neighbour": names[other],
            "cosine": cosine,
        }
        for token_id in job.matches
        for rank, (other, cosine) in enumerate(matrix.neighbours(token_id, job.settings.neighbours), start=1)
    ]
