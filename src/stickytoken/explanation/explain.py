"""Explain tokens: match benign tokens, look inside the model, compare, sum up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stickytoken.data import load_sentences
from stickytoken.data.corpora import SentenceSource, readable
from stickytoken.detection.run import Run, encoder_for, flagged_tokens, open_run, worst_tokens
from stickytoken.detection.selection import TokenSource, available_tokens
from stickytoken.detection.selection import token_ids as named_ids
from stickytoken.encoders.loading.load import AnyModel
from stickytoken.encoders.protocol import EncoderIdentity, require_ids
from stickytoken.errors import InputError, ModelError
from stickytoken.explanation import files, measuring
from stickytoken.explanation.measuring import EmbeddingMatrix, ExplainSettings, Part, PlacedCarrier, gather
from stickytoken.explanation.result import Explanation, RunVerdict, findings, verdict
from stickytoken.machine import digest
from stickytoken.measurement.engine import Progress, ProgressCallback, ignore_progress
from stickytoken.measurement.resume import identity_of, package_versions
from stickytoken.measurement.store import ResultFolder
from stickytoken.unit_vectors import exact_unit_vectors, unit_vectors
from stickytoken.validation import file_path, list_of, or_default, require_callable
from stickytoken.vocabulary import BenignMatch, Vocabulary, categorize, match_benign

if TYPE_CHECKING:
    from stickytoken.inspection.integrated_jacobians import JacobianIntegrator
    from stickytoken.inspection.module_embedding import Inspector

Vector = NDArray[np.float64]

# Increase it when the same inputs give different numbers than before.
_IDENTITY_VERSION = 2
_DIRECTION_KEY = 1
# Of a run's sticky tokens; each takes most of a minute on two cores.
_MOST_OF_RUN = 3


def explain(
    encoder: AnyModel | None = None,
    tokens: TokenSource | None = None,
    *,
    run: Run | str | Path | None = None,
    texts: Iterable[str] | str | None = None,
    sentences: SentenceSource | None = None,
    settings: ExplainSettings | None = None,
    out: str | Path | None = None,
    progress: ProgressCallback = ignore_progress,
) -> Explanation:
    """Show what a model does with copies of tokens, compared with matched benign tokens.

    Args:
        encoder: the model: anything that `load_encoder` takes, including an encoder; None loads the model of
            the run.
        tokens: ids or texts of available tokens, or a file of them; None takes the worst sticky tokens of the
            run, at most three.
        run: a finished run of this model, or its folder. Its flagged tokens are not used as benign tokens,
            and its carriers, anchors and mean similarity are used.
        texts: carriers to use instead of those of the run or the corpus.
        sentences: the corpus: a list of sentences, or anything that `load_sentences` takes; None takes
            the texts of the run, or the bundled corpus.
        settings: settings of the explanation; None takes the defaults.
        out: folder that gets one folder per token, committed as soon as that token is explained; None writes
            nothing. The same call continues an interrupted explanation and opens a finished one.
        progress: called after every step.

    Raises:
        InputError: tokens, texts or settings cannot be used, or too few benign tokens match.
        ModelError: the inside of the encoder cannot be inspected.
        EncodingError: a text has no usable vector.
        RunError: the run belongs to another model, or ``out`` holds another explanation of a token or cannot
            be written.
    """
    from stickytoken.inspection import inspector_of

    settings = or_default("settings", settings, ExplainSettings())
    require_callable("progress", progress)
    run = None if run is None else open_run(run)
    given = [texts] if isinstance(texts, str) else texts
    chosen = None if given is None else list_of("texts", "texts", given)
    corpus = None if sentences is None else load_sentences(sentences)
    out = None if out is None else file_path("out", out)
    if out is not None:
        files.require_place(out)
        require_unlocked(out, tokens, run)
    if tokens is None:
        tokens = _worst(run)
    encoder = require_ids(encoder_for(encoder, run, "explain"), "explain")
    inspector = inspector_of(encoder)
    if corpus is not None:
        corpus = readable(corpus, encoder.tokenizer, encoder.name)
    vocabulary = categorize(encoder.tokenizer)
    token_ids = named_ids(vocabulary, tokens)
    for place, token_id in enumerate(token_ids):
        if token_id in token_ids[:place]:
            raise InputError(f"token id {token_id} is given twice: leave one out")
    available_tokens(vocabulary, token_ids)  # refuses tokens that cannot occur in text
    unread = {token.id for token in vocabulary.available if not encoder.fits((token.id,))}
    for token_id in unread.intersection(token_ids):
        raise InputError(f"token id {token_id} has no embedding in {encoder.name}: leave it out")
    # A run says which tokens are benign. Without one, those that somebody asks about are not presumed to be.
    excluded = unread | (flagged_tokens(run) if run is not None else set(token_ids))
    matches = {k: match_benign(vocabulary, k, excluded, settings.benign, settings.seed) for k in token_ids}
    material = gather(encoder, settings, run, chosen, corpus)
    job = _Job(inspector, vocabulary, settings, *material, run, encoder.identity, progress)
    contents = []
    for token_id, match in matches.items():
        parts = job.parts(token_id, match)
        compute = partial(job.explained, token_id, match, parts)
        if out is None:
            contents.append(compute(measuring.Checkpoints()))
        else:
            contents.append(files.stored_explanation(out / str(token_id), parts, compute))
    return Explanation.of(contents)


def require_unlocked(folder: Path, tokens: TokenSource | None, run: Run | None) -> None:
    """Refuse tokens whose explanation another process is writing, as far as that shows without the model."""
    if tokens is None:
        named: list[object] = list(_worst(run))
    else:
        named = list(tokens) if isinstance(tokens, (list, tuple)) else [tokens]  # an iterator is not used up
    ids = {} if run is None else dict(run.tokens.select("token", "token_id").iter_rows())
    for each in named:
        token_id = ids.get(each) if isinstance(each, str) else each
        if isinstance(token_id, Integral):
            ResultFolder(folder / str(token_id)).require_unlocked()


def _worst(run: Run | None) -> list[int]:
    if run is None:
        raise InputError("no tokens are named: pass tokens, or a run whose sticky tokens are explained")
    return worst_tokens(run, _MOST_OF_RUN)


@dataclass(frozen=True)
class _Job:
    inspector: Inspector
    vocabulary: Vocabulary
    settings: ExplainSettings
    carriers: Sequence[PlacedCarrier]
    anchors: Sequence[str]
    source: str  # of the carriers
    run: Run | None
    identity: EncoderIdentity
    progress: ProgressCallback

    @property
    def names(self) -> Mapping[int, str]:
        return self.inspector.encoder.tokenizer.entries

    @cached_property
    def surroundings(self) -> measuring.Surroundings:
        encoder, settings = self.inspector.encoder, self.settings
        anchors = exact_unit_vectors(encoder.encode(list(self.anchors)))
        if self.run is not None:
            mean = self.run.plan.mean_similarity
        else:
            before = [each.before for each in self.carriers]
            mean = float((exact_unit_vectors(encoder.encode_ids(before)) @ anchors.T).mean())
        ids = [token.id for token in self.vocabulary.available if encoder.fits((token.id,))]
        drawn = np.random.default_rng([settings.seed, _DIRECTION_KEY]).permutation(ids)[: settings.directions]
        direction = measuring.mean_direction(self.inspector, sorted(int(k) for k in drawn), self.progress)
        return measuring.Surroundings(direction, anchors, mean)

    @cached_property
    def matrix(self) -> EmbeddingMatrix | None:
        rows = self.inspector.embedding_matrix()
        return None if rows is None else EmbeddingMatrix(rows, self.names)

    def said(self, token_id: int) -> RunVerdict | None:
        rows = [] if self.run is None else self.run.tokens.filter(token_id=token_id).to_dicts()
        if self.run is None or not rows or rows[0]["verdict"] is None:
            return None
        row, scale = rows[0], self.run.method.scale(self.run)
        lift = row["lift"]
        return RunVerdict(
            verdict=row["verdict"],
            lift=lift,
            sd=None if scale is None or lift is None else (lift - scale.ordinary) / scale.spread,
            **{name: row.get(name) for name in ("severity", "universality", "kind", "texts")},
        )

    def parts(self, token_id: int, match: BenignMatch) -> dict[str, Any]:
        said = self.said(token_id)
        return identity_of(
            _IDENTITY_VERSION,
            self.identity,
            self.settings,
            token=token_id,
            benign=[token.id for token in match.tokens],
            carriers=digest([[each.text, each.template] for each in self.carriers]),
            anchors=digest(self.anchors),
            mean_similarity=None if self.run is None else self.run.plan.mean_similarity,
            run_verdict=None if said is None else said.verdict,
            **({} if said is None else {"run": asdict(said)}),
        )

    def explained(
        self, token_id: int, match: BenignMatch, parts: dict[str, Any], checkpoints: measuring.Checkpoints
    ) -> files.StoredExplanation:
        benign = [each.id for each in match.tokens]
        own = partial(measuring.measure, self.inspector, self.carriers, token_id, benign)
        measured = checkpoints.measured(token_id, lambda: own(self.surroundings, self.progress))
        assembled = partial(self.assembled, token_id, match, parts, measured)
        notes = self.notes(measured)
        values: dict[int, dict[str, Vector]] = {}
        pairs: list[dict[str, Any]] = []
        if self.settings.attribution:
            if checkpoints.folder is not None:
                files.write_tables(checkpoints.folder, assembled(values, pairs, notes))
            try:
                values, pairs, error = self.attributed(token_id, benign, checkpoints)
                notes.append(
                    f"the attributions of {self.names[token_id]!r} are off by at most {error:.2g} of a unit "
                    f"vector ({self.settings.steps} points per integral, more where it changes sharply)"
                )
            except ModelError as problem:
                notes.append(f"attribution was not possible: {problem}")
        if self.matrix is None:
            name = self.inspector.encoder.name
            notes.append(f"the embedding matrix was not measured: {name} does not expose it")
        return assembled(values, pairs, notes)

    def attributed(
        self, token_id: int, benign: Sequence[int], checkpoints: measuring.Checkpoints
    ) -> tuple[dict[int, dict[str, Vector]], list[dict[str, Any]], float]:
        """Attribute similarities to unrelated anchors to the copies and to the carrier.

        The contribution of the reference is the same for all tokens in the same positions, so it says nothing
        about any one of them.

        Returns:
            Values by token id and measure, shape (carriers,); similarities of pairs as sums over positions;
            and the largest distance between the summed contributions of a text and its unit vector.
        """
        from stickytoken.inspection.integrated_jacobians import JacobianIntegrator

        settings, anchors = self.settings, self.anchors
        integrator, encoder = JacobianIntegrator(self.inspector), self.inspector.encoder
        first = self.carriers[: max(settings.attribution_carriers, settings.pairs)]
        old = encoder.encode_ids([carrier.before for carrier in first]).astype(np.float64)
        chosen = []
        for carrier, vector in list(zip(first, old, strict=True))[: settings.pairs]:
            before = self.surroundings.anchors @ unit_vectors(vector)
            unrelated = np.flatnonzero(self.surroundings.unrelated(vector))
            # The median unrelated anchor, so that the outcome does not choose it.
            place = int(unrelated[np.argsort(before[unrelated], kind="stable")[len(unrelated) // 2]])
            columns = encoder.tokenize([anchors[place]])[0].ids
            chosen.append((carrier, anchors[place], columns, float(before[place])))
        some = first[: settings.attribution_carriers]
        tokens = [token_id, *benign[: settings.attribution_benign]]
        parts = [len(set(carrier.labels)) for carrier in some]
        sizes = [len(carrier.labels) + len(columns) for carrier, _, columns, _ in chosen]
        total, done, computed = len(tokens) * sum(parts) + sum(sizes), 0, 0
        self.progress(Progress("attribution", 0, total))

        def kept(stage: str, index: int, key: int, size: int, compute: Callable[[], dict[str, Any]]) -> Any:
            nonlocal done, computed
            found, new = checkpoints.kept(stage, index, key, compute)
            computed += size if new else 0
            done += size
            self.progress(Progress("attribution", done, total, computed))
            return found

        values: dict[int, dict[str, Vector]] = {}
        pairs: list[dict[str, Any]] = []
        errors: list[float] = []
        for place, key in enumerate(tokens):
            rows = []
            for number, (carrier, vector) in enumerate(zip(some, old, strict=False)):
                far = self.surroundings.anchors[self.surroundings.unrelated(vector)]
                compute = partial(_by_part, integrator, carrier, key, far, settings.steps)
                rows.append(kept("attribution", place * len(some) + number, key, parts[number], compute))
            values[key] = {name: np.array([row[name] for row in rows]) for name in files.AREAS["attribution"]}
            errors += [row["error"] for row in rows]
            if key == token_id:
                for number, pair in enumerate(chosen):
                    compute = partial(_pair_matrix, integrator, key, settings.steps, *pair)
                    found = kept("pair", number, key, sizes[number], compute)
                    pairs.append(found | {"values": np.array(found["values"])})
        return values, pairs, max(errors)

    def notes(self, measured: measuring.Measured) -> list[str]:
        name, found = self.inspector.encoder.name, next(iter(measured.values.values()))
        notes = []
        if not self.inspector.has_layers:
            notes.append(f"{name} is a static embedding model: it has no attention and no layers")
        elif not measured.heads:
            notes.append(f"attention was not measured: {name} does not expose its attention weights")
        if "copies_norm" not in found:
            notes.append(f"hidden states were not measured: {name} does not expose them")
        if "pooling_share" not in found:
            notes.append(
                "the copies' share of the vector was not measured: "
                f"the pooling of {name} is not a sum over positions"
            )
        if len(self.carriers) == 1:
            notes.append("values have no interval over texts, because there is only one text")
        if self.run is None:
            notes.append("the benign tokens are assumed to be benign, because no run was given")
        return notes

    def assembled(
        self,
        token_id: int,
        match: BenignMatch,
        parts: dict[str, Any],
        measured: measuring.Measured,
        attributed: Mapping[int, Mapping[str, Vector]],
        pairs: Sequence[Mapping[str, Any]],
        notes: Sequence[str],
    ) -> files.StoredExplanation:
        names, matrix, confidence = self.names, self.matrix, self.settings.confidence
        token, others = names[token_id], [each.id for each in match.tokens]
        categories = {
            k: self.vocabulary.categories[self.vocabulary.place(k)].value for k in (token_id, *others)
        }
        summaries, cells = files.pair_tables(token_id, pairs, names)
        measures, heads = self._measure_rows(token_id, others, measured, attributed), []
        if token_id in measured.heads:
            theirs = np.stack([measured.heads[k] for k in others])
            heads = files.head_rows(measured.heads[token_id], theirs, confidence)
        near = [] if matrix is None else matrix.neighbours(token_id, self.settings.neighbours)
        own = {"token_id": token_id}
        rows: dict[str, list[dict[str, Any]]] = {
            "measures": [own | {"token": token} | row for row in measures],
            "heads": [own | {"token": token} | row for row in heads],
            "pairs": summaries,
            "attribution": cells,
            "benign": [
                own
                | {"benign_id": each.id, "benign": names[each.id], "category": categories[each.id]}
                | {"characters": len(each.text.strip()), "attributed": each.id in attributed}
                for each in match.tokens
            ],
            "neighbours": [
                own | {"rank": rank, "neighbour_id": other, "neighbour": names[other], "cosine": cosine}
                for rank, (other, cosine) in enumerate(near, start=1)
            ],
        }
        tables = {
            name: pl.DataFrame(rows[name], schema=dict(schema))
            for name, schema in files.TABLE_SCHEMAS.items()
        }
        said, differing = self.said(token_id), findings(measures)
        explained = files.TokenExplanation(
            token_id=token_id,
            token=token,
            category=categories[token_id],
            run_verdict=None if said is None else said.verdict,
            verdict=verdict(token, token_id, measures, differing, len(others), said),
            findings=tuple(differing),
            same_category=match.same_category,
            **{
                name: table.drop("token_id", "token", strict=False).to_dicts()
                for name, table in tables.items()
                if name != "attribution"
            },
        )
        notes = list(notes)
        if not match.same_category:
            notes.append(
                f"too few other tokens have the category {explained.category}: {token!r} is compared with "
                "tokens of other categories"
            )
        record = files.ExplanationRecord(
            schema_version=files.EXPLANATION_SCHEMA_VERSION,
            identity=digest(parts),
            identity_parts=parts,
            model=self.inspector.encoder.name,
            pooling=self.inspector.pooling,
            carriers=len(self.carriers),
            source=self.source,
            settings=asdict(self.settings),
            vocabulary={} if matrix is None else matrix.geometry,
            notes=notes,
            tokens=[explained],
            versions=package_versions(),
        )
        return files.StoredExplanation(record, tables)

    def _measure_rows(
        self,
        token_id: int,
        others: Sequence[int],
        measured: measuring.Measured,
        attributed: Mapping[int, Mapping[str, Vector]],
    ) -> list[dict[str, Any]]:
        def rows_of(name: str, values: Vector, benign: Vector) -> list[dict[str, Any]]:
            return files.measure_rows(name, values, benign, self.settings.confidence)

        rows: list[dict[str, Any]] = []
        for name, values in measured.values[token_id].items():
            rows += rows_of(name, values, np.stack([measured.values[k][name] for k in others]))
        for name, distances in measured.distances.items():
            rows += rows_of(name, distances[0], distances[1:])
        nearest = [k for k in others if k in attributed]
        for name, values in attributed.get(token_id, {}).items():
            rows += rows_of(name, values, np.stack([attributed[k][name] for k in nearest]))
        if self.matrix is not None:
            size = len(self.matrix.rows)
            available = [token.id for token in self.vocabulary.available if token.id < size]
            for name, column in self.matrix.measures.items():
                # The share of available entries below the token; a row of zeros has no cosine.
                value, others_below = column[token_id], column[available] < column[token_id]
                below = None if np.isnan(value) else float(others_below.mean())
                measure = rows_of(name, column[[token_id]], column[list(others)][:, None])
                rows += [row | {"share_below": below} for row in measure]
        return rows


def _by_part(
    integrator: JacobianIntegrator,
    carrier: PlacedCarrier,
    token_id: int,
    anchors: Vector,
    steps: int,
) -> dict[str, Any]:
    # The parts of the attribution are numbered without gaps.
    present = sorted(set(carrier.labels))
    labels = [present.index(label) for label in carrier.labels]
    found = integrator.contributions(carrier.with_copies(token_id), labels, steps)
    by_part = {label: (anchors @ found.parts[place]).mean() for place, label in enumerate(present)}
    shares = (by_part[int(Part.COPIES)], by_part.get(int(Part.CARRIER), 0.0))
    return dict(zip(files.AREAS["attribution"], map(float, shares), strict=True)) | {"error": found.error}


def _pair_matrix(
    integrator: JacobianIntegrator,
    token_id: int,
    steps: int,
    carrier: PlacedCarrier,
    anchor: str,
    columns: tuple[int, ...],
    before: float,
) -> dict[str, Any]:
    """Attribute the similarity of a carrier with copies and an anchor to pairs of positions."""
    from stickytoken.inspection import similarity_matrix

    rows = carrier.with_copies(token_id)
    left = integrator.contributions(rows, range(len(rows)), steps)
    right = integrator.contributions(columns, range(len(columns)), steps)
    return {
        "carrier": carrier.text,
        "anchor": anchor,
        "rows": rows,
        "row_labels": carrier.labels,
        "columns": columns,
        "values": similarity_matrix(left, right),  # shape (rows + 1, columns + 1), the references last
        "before": before,
        "similarity": float(left.vector @ right.vector),
    }
