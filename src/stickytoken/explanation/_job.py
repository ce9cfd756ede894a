"""Explain tokens one at a time on the same texts: measure, compare, and build the tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stickytoken.detection.run import Run
from stickytoken.encoders.protocol import find_kept_prompt
from stickytoken.explanation import files, measuring
from stickytoken.explanation._attribution import (
    NO_ATTRIBUTION,
    Attribution,
    Attributor,
    make_cell_rows,
    make_pair_rows,
)
from stickytoken.explanation.embedding_matrix import EmbeddingMatrix
from stickytoken.explanation.measuring import Material, Part, Surroundings
from stickytoken.explanation.result import RUN_COLUMNS, describe_verdict, find_differences
from stickytoken.explanation.statistics import make_head_rows, make_measure_rows
from stickytoken.machine import digest
from stickytoken.measurement.engine import Progress, ProgressCallback
from stickytoken.measurement.resume import identity_of, package_versions
from stickytoken.measurement.store import ResultFolder
from stickytoken.settings.explain import ExplainSettings
from stickytoken.unit_vectors import exact_unit_vectors, unit_vectors
from stickytoken.vocabulary import BenignMatch, Vocabulary

if TYPE_CHECKING:
    from stickytoken.inspection.module_embedding import Inspector

Floats: TypeAlias = NDArray[np.float64]

# Increment this when a code change alters the results for the same inputs.
_IDENTITY_VERSION = 8
# Number of vocabulary entries whose pooled vectors are computed at a time. The hidden states of all entries
# at once could need more memory than the model itself.
_ENTRIES_AT_A_TIME = 64


@dataclass(frozen=True)
class Job:
    """Explains tokens of one model with the same texts and settings."""

    inspector: Inspector
    vocabulary: Vocabulary
    settings: ExplainSettings
    material: Material
    run: Run | None
    progress: ProgressCallback

    @property
    def model_name(self) -> str:
        return self.inspector.encoder.name

    @cached_property
    def surroundings(self) -> Surroundings:
        """The vectors that the carriers' vectors are compared with, and the limit for unrelated texts."""
        encoder = self.inspector.encoder
        anchors = exact_unit_vectors(encoder.encode(list(self.material.anchors)))
        carriers = exact_unit_vectors(
            encoder.encode_ids([carrier.ids_before for carrier in self.material.carriers])
        )
        mean_similarity = float((carriers @ anchors.T).mean())
        return Surroundings(self._compute_mean_direction(), anchors, mean_similarity)

    def _compute_mean_direction(self) -> Floats | None:
        """Return the mean direction of the model's pooled states for single tokens, shape (P,).

        A random sample of tokens is drawn from the vocabulary, and each of them is encoded alone; if the
        pooling leaves out the prompt, behind the prompt. The model's pooling combines the last hidden states
        into a vector of length P, the pooled states of the token. The result is the mean direction of the
        pooled states of the sampled tokens, scaled to length 1. Return None if no token has pooled states
        that are known and not zero, or if the mean is zero.
        """
        encoder = self.inspector.encoder
        prompt = find_kept_prompt(encoder, encoder.tokenize([""])[0])
        readable_ids = [token.id for token in self.vocabulary.available if encoder.fits((*prompt, token.id))]
        generator = np.random.default_rng([self.settings.seed, 1])  # not the stream that orders texts
        sampled_ids = generator.permutation(readable_ids)[: self.settings.directions]
        token_ids = sorted(int(token_id) for token_id in sampled_ids)
        pooled_vectors: list[Floats] = []
        self.progress(Progress("mean direction", 0, len(token_ids)))
        for start in range(0, len(token_ids), _ENTRIES_AT_A_TIME):
            group = token_ids[start : start + _ENTRIES_AT_A_TIME]
            contents = [(*prompt, token_id) for token_id in group]
            # `look` requires the part of each token, which makes no difference to the pooled states.
            part_of_id = [(int(Part.CARRIER),) * len(content) for content in contents]
            insides = self.inspector.look(contents, part_of_id, Part.SPECIAL)
            pooled_vectors += [
                inside.pooled for inside in insides if inside.pooled is not None and inside.pooled.any()
            ]
            done = start + len(group)
            self.progress(Progress("mean direction", done, len(token_ids), done, done))
        if not pooled_vectors:
            return None
        mean = unit_vectors(np.stack(pooled_vectors)).mean(axis=0)
        return unit_vectors(mean) if mean.any() else None

    @cached_property
    def matrix(self) -> EmbeddingMatrix | None:
        """The model's embedding matrix; None if the model does not expose it."""
        rows = self.inspector.embedding_matrix()
        return None if rows is None else EmbeddingMatrix(rows, self.inspector.encoder.tokenizer.entries)

    def list_identity_parts(self, token_id: int, match: BenignMatch) -> dict[str, Any]:
        """Return everything that can change the explanation of a token, as JSON values keyed by name."""
        # What the run says about the token, keyed by column; None without a verdict.
        run_columns: dict[str, Any] | None = None
        if self.run is not None:
            rows = self.run.tokens.filter(token_id=token_id).to_dicts()
            if rows and rows[0]["verdict"] is not None:
                run_columns = {name: rows[0].get(name) for name in RUN_COLUMNS}
        return identity_of(
            _IDENTITY_VERSION,
            self.inspector.encoder.identify(),
            self.settings,
            token=token_id,
            benign=[token.id for token in match.tokens],
            carriers=digest([[carrier.text, carrier.template] for carrier in self.material.carriers]),
            anchors=digest(self.material.anchors),
            run=run_columns,
        )

    def explain(
        self,
        token_id: int,
        match: BenignMatch,
        identity_parts: dict[str, Any],
        folder: ResultFolder | None,
    ) -> files.StoredExplanation:
        """Explain a token.

        Args:
            token_id: Id of the token.
            match: The benign tokens to compare the token with.
            identity_parts: Everything that determines the result, as `list_identity_parts` returns it.
            folder: Folder in which each result is stored as soon as it is computed. If None, nothing is
                stored.

        Returns:
            The record and the tables of the token.
        """
        token = self.inspector.encoder.tokenizer.entries[token_id]
        benign_ids = [benign.id for benign in match.tokens]

        def measure() -> dict[str, Any]:
            tokens = [token_id, *benign_ids]
            return measuring.measure(
                self.inspector, self.material.carriers, tokens, self.surroundings, self.progress
            )

        # Read the result if an earlier call has stored it; otherwise call `measure` and store its result.
        measured, _ = files.read_or_compute(folder, "inside", index=0, token_id=token_id, compute=measure)
        notes = self._list_notes(measured, token_id)
        attribution = NO_ATTRIBUTION
        if self.settings.attribution:
            # Attribution takes longest. If it is interrupted, the tables without attribution can be read.
            if folder is not None:
                files.write_tables(folder, self._make_tables(token_id, match, measured, attribution))
            attributor = Attributor(self.inspector.encoder, self.material, self.surroundings, self.settings)
            attribution = attributor.attribute(token_id, benign_ids, folder, self.progress)
        if self.matrix is None:
            notes.append(f"the embedding matrix was not measured: {self.model_name} does not expose it")
        if not match.same_category:
            notes.append(
                f"too few other tokens have the category {self._find_category(token_id)}: {token!r} is "
                "compared with tokens of other categories"
            )
        tables = self._make_tables(token_id, match, measured, attribution)
        measures = tables["measures"].to_dicts()
        differences = find_differences(measures)
        run_columns = identity_parts["run"]  # what the run says about the token, or None
        # The table "attribution" has too many rows for the record.
        rows_by_table = {
            name: table.drop("token_id", "token", strict=False).to_dicts()
            for name, table in tables.items()
            if name != "attribution"
        }
        explanation = files.TokenExplanation(
            token_id=token_id,
            token=token,
            category=self._find_category(token_id),
            run_verdict=None if run_columns is None else run_columns["verdict"],
            verdict=describe_verdict(token, token_id, measures, differences, len(match.tokens), run_columns),
            findings=tuple(differences),
            same_category=match.same_category,
            **rows_by_table,
        )
        record = files.ExplanationRecord(
            identity=digest(identity_parts),
            identity_parts=identity_parts,
            model=self.model_name,
            pooling=self.inspector.pooling,
            carriers=len(self.material.carriers),
            source=self.material.source,
            settings=asdict(self.settings),
            vocabulary={} if self.matrix is None else self.matrix.geometry,
            notes=notes,
            tokens=[explanation],
            versions=package_versions(),
        )
        return files.StoredExplanation(record, tables)

    def _list_notes(self, measured: Mapping[str, Any], token_id: int) -> list[str]:
        """Return notes on the measures that the model does not support, and on limits of the results."""
        name = self.model_name
        measures = measured["values"][str(token_id)]  # read from JSON, whose keys are strings
        notes = []
        if not self.inspector.has_layers:
            notes.append(f"{name} is a static embedding model: it has no attention and no layers")
        elif not measured["heads"]:
            notes.append(f"attention was not measured: {name} does not expose its attention weights")
        if "copies_norm" not in measures:
            notes.append(f"hidden states were not measured: {name} does not expose them")
        if "pooling_share" not in measures:
            notes.append(
                "the copies' share of the vector was not measured: "
                f"the pooling of {name} is not a sum over positions"
            )
        if self.settings.attribution and any(carrier.kept_prompt for carrier in self.material.carriers):
            notes.append(
                f"the pooling of {name} leaves out the prompt: in the attribution, it stays before all texts "
                "and is no part"
            )
        if len(self.material.carriers) == 1:
            notes.append("values have no interval over texts, because there is only one text")
        if self.run is None:
            notes.append("the benign tokens are assumed to be benign, because no run was given")
        return notes

    def _make_tables(
        self,
        token_id: int,
        match: BenignMatch,
        measured: Mapping[str, Mapping[str, Any]],
        attribution: Attribution,
    ) -> dict[str, pl.DataFrame]:
        """Return all tables of a token.

        ``measured`` is the result of `measuring.measure`, read from JSON, whose keys are strings.
        """
        names = self.inspector.encoder.tokenizer.entries
        benign_ids = [benign.id for benign in match.tokens]
        measures = self._make_text_rows(token_id, benign_ids, measured)
        measures += self._make_attribution_rows(token_id, benign_ids, attribution)
        measures += self._make_matrix_rows(token_id, benign_ids)
        heads: list[dict[str, Any]] = []
        heads_by_token = measured["heads"]
        if str(token_id) in heads_by_token:  # attention was measured
            benign_heads = np.stack([np.array(heads_by_token[str(benign_id)]) for benign_id in benign_ids])
            token_heads = np.array(heads_by_token[str(token_id)])
            heads = make_head_rows(token_heads, benign_heads, self.settings.confidence)
        benign_rows = [
            {
                "token_id": token_id,
                "benign_id": benign.id,
                "benign": names[benign.id],
                "category": self._find_category(benign.id),
                "characters": len(benign.text.strip()),
                "attributed": benign.id in attribution.by_token,
            }
            for benign in match.tokens
        ]
        neighbours: list[tuple[int, float]] = []
        if self.matrix is not None:
            neighbours = self.matrix.find_neighbours(token_id, self.settings.neighbours)
        neighbour_rows = [
            {
                "token_id": token_id,
                "rank": rank,
                "neighbour_id": neighbour_id,
                "neighbour": names[neighbour_id],
                "cosine": cosine,
            }
            for rank, (neighbour_id, cosine) in enumerate(neighbours, start=1)
        ]
        token = {"token_id": token_id, "token": names[token_id]}
        rows: dict[str, list[dict[str, Any]]] = {
            "measures": [token | row for row in measures],
            "heads": [token | row for row in heads],
            "pairs": make_pair_rows(token_id, attribution.pairs),
            "attribution": make_cell_rows(token_id, attribution.pairs, names),
            "benign": benign_rows,
            "neighbours": neighbour_rows,
        }
        return {name: pl.DataFrame(rows[name], schema=schema) for name, schema in files.TABLE_SCHEMAS.items()}

    def _make_text_rows(
        self, token_id: int, benign_ids: Sequence[int], measured: Mapping[str, Mapping[str, Any]]
    ) -> list[dict[str, Any]]:
        """Return the rows of the measures that were taken in the carriers.

        ``measured`` is the result of `measuring.measure`, read from JSON, whose keys are strings.
        """
        values_by_token = {int(key): values for key, values in measured["values"].items()}
        rows: list[dict[str, Any]] = []
        for name, values in values_by_token[token_id].items():
            benign_values = np.array([values_by_token[benign_id][name] for benign_id in benign_ids])
            rows += make_measure_rows(name, np.array(values), benign_values, self.settings.confidence)
        # Distances are stored under the examined token only. The first item has the distances of the examined
        # token, and each further item has those of a benign token.
        for name, distances in measured["distances"][str(token_id)].items():
            token_distances = np.array(distances[0])  # shape (carriers, layers + 1)
            benign_distances = np.array(distances[1:])
            rows += make_measure_rows(name, token_distances, benign_distances, self.settings.confidence)
        return rows

    def _make_attribution_rows(
        self, token_id: int, benign_ids: Sequence[int], attribution: Attribution
    ) -> list[dict[str, Any]]:
        # Returns a row of the table "measures" for each measure of the attribution.
        by_token = attribution.by_token  # empty if nothing was attributed
        attributed_ids = [benign_id for benign_id in benign_ids if benign_id in by_token]
        rows: list[dict[str, Any]] = []
        for name, contributions in by_token.get(token_id, {}).items():
            benign = np.stack([by_token[benign_id][name] for benign_id in attributed_ids])
            rows += make_measure_rows(name, contributions, benign, self.settings.confidence)
        return rows

    def _make_matrix_rows(self, token_id: int, benign_ids: list[int]) -> list[dict[str, Any]]:
        # Returns a row of the table "measures" for each measure of the token's row in the embedding matrix.
        if self.matrix is None:
            return []  # the model does not expose its embedding matrix
        row_count = len(self.matrix.rows)  # a vocabulary may have more entries than the matrix has rows
        available_ids = [token.id for token in self.vocabulary.available if token.id < row_count]
        rows: list[dict[str, Any]] = []
        for name, column in self.matrix.measures.items():
            share_below = None
            if not np.isnan(column[token_id]):  # a row of zeros has no cosine
                share_below = float((column[available_ids] < column[token_id]).mean())
            # A token has one value, which `make_measure_rows` takes like the value in a single carrier.
            values = column[[token_id]]  # shape (1,)
            benign_values = column[benign_ids][:, None]  # shape (benign tokens, 1)
            measure_rows = make_measure_rows(name, values, benign_values, self.settings.confidence)
            rows += [row | {"share_below": share_below} for row in measure_rows]
        return rows

    def _find_category(self, token_id: int) -> str:
        return self.vocabulary.categories[self.vocabulary.index_of(token_id)].value
