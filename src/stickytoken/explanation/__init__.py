"""Explain why a token sticks: what the model does with its copies, compared with matched benign tokens."""

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

from stickytoken.data import SentenceSource, load_sentences, readable
from stickytoken.detection import TokenSource, available_tokens, token_ids as named_ids
from stickytoken.detection.run import Run, encoder_for, flagged_tokens, open_run, worst_tokens
from stickytoken.encoders.loading import AnyModel
from stickytoken.encoders.protocol import require_ids
from stickytoken.errors import InputError, ModelError
from stickytoken.explanation import files, measuring
from stickytoken.explanation.measuring import PARTS, EmbeddingMatrix, ExplainSettings, Part, PlacedCarrier
from stickytoken.explanation.result import OF_RUN, Explanation, findings, verdict
from stickytoken.machine import digest
from stickytoken.measurement import ResultFolder
from stickytoken.measurement.engine import Progress, ProgressCallback, ignore_progress
from stickytoken.measurement.resume import identity_of, package_versions
from stickytoken.unit_vectors import exact_unit_vectors, unit_vectors
from stickytoken.validation import file_path, list_of, or_default, require_callable
from stickytoken.vocabulary import BenignMatch, Vocabulary, categorize, match_benign

if TYPE_CHECKING:
    from stickytoken.inspection.module_embedding import Inspector

__all__ = ["ExplainSettings", "Explanation", "explain"]

Vector = NDArray[np.float64]

# Increase it when the same inputs give different numbers than before.
_IDENTITY_VERSION = 3


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
        encoder: anything that `load_encoder` takes, or an encoder; None loads the model of the run.
        tokens: ids or texts of available tokens, or a file of them; None takes the three worst of the run.
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
    if twice := [token_id for place, token_id in enumerate(token_ids) if token_id in token_ids[:place]]:
        raise InputError(f"token id {twice[0]} is given twice: leave one out")
    available_tokens(vocabulary, token_ids)  # refuses tokens that cannot occur in text
    unread = {token.id for token in vocabulary.available if not encoder.fits((token.id,))}
    for token_id in unread.intersection(token_ids):
        raise InputError(f"token id {token_id} has no embedding in {encoder.name}: leave it out")
    # A run says which tokens are benign. Without one, those that somebody asks about are not presumed to be.
    excluded = unread | (flagged_tokens(run) if run is not None else set(token_ids))
    matches = {k: match_benign(vocabulary, k, excluded, settings.benign, settings.seed) for k in token_ids}
    material = measuring.gather(encoder, settings, run, chosen, corpus)
    job = _Job(inspector, vocabulary, settings, *material, run, progress)
    contents = []
    for token_id, match in matches.items():
        parts = job.parts(token_id, match)
        compute, place = partial(job.explained, token_id, match, parts), out and out / str(token_id)
        contents.append(compute(None) if place is None else files.stored_explanation(place, parts, compute))
    return Explanation(contents)


def require_unlocked(folder: Path, tokens: TokenSource | None, run: Run | None) -> None:
    tokens = _worst(run) if tokens is None else tokens
    named: Sequence[object] = tokens if isinstance(tokens, (list, tuple)) else [tokens]
    ids = {} if run is None else dict(run.tokens.select("token", "token_id").iter_rows())
    for each in named:
        token_id = ids.get(each) if isinstance(each, str) else each
        if isinstance(token_id, Integral):
            ResultFolder(folder / str(token_id)).require_unlocked()


def _worst(run: Run | None) -> list[int]:
    if run is None:
        raise InputError("no tokens are named: pass tokens, or a run whose sticky tokens are explained")
    return worst_tokens(run, 3)  # each takes most of a minute on two cores


# Vocabulary entries that are pooled at a time.
_ENTRIES = 64


@dataclass(frozen=True)
class _Job:
    inspector: Inspector
    vocabulary: Vocabulary
    settings: ExplainSettings
    carriers: Sequence[PlacedCarrier]
    anchors: Sequence[str]
    source: str  # of the carriers
    run: Run | None
    progress: ProgressCallback

    @cached_property
    def surroundings(self) -> measuring.Surroundings:
        encoder, settings = self.inspector.encoder, self.settings
        anchors = exact_unit_vectors(encoder.encode(list(self.anchors)))
        if self.run is not None:
            mean = self.run.plan.mean_similarity
        else:
            before = [each.before for each in self.carriers]
            mean = float((exact_unit_vectors(encoder.encode_ids(before)) @ anchors.T).mean())
        # The mean direction of random vocabulary entries.
        ids = [token.id for token in self.vocabulary.available if encoder.fits((token.id,))]
        drawn = np.random.default_rng([settings.seed, 1]).permutation(ids)[: settings.directions]
        entries, pooled = sorted(int(k) for k in drawn), list[Vector]()
        self.progress(Progress("mean direction", 0, len(entries)))
        for start in range(0, len(entries), _ENTRIES):
            # Hidden states of all entries at once would need more memory than many a model.
            some = entries[start : start + _ENTRIES]
            looked = self.inspector.look([(k,) for k in some], [(0,)] * len(some), PARTS)
            pooled += [each.pooled for each in looked if each.pooled is not None and each.pooled.any()]
            done = start + len(some)
            self.progress(Progress("mean direction", done, len(entries), done, done))
        direction = unit_vectors(np.stack(pooled)).mean(axis=0) if pooled else np.zeros(0)
        return measuring.Surroundings(unit_vectors(direction) if direction.any() else None, anchors, mean)

    @cached_property
    def matrix(self) -> EmbeddingMatrix | None:
        rows = self.inspector.embedding_matrix()
        return None if rows is None else EmbeddingMatrix(rows, self.inspector.encoder.tokenizer.entries)

    def parts(self, token_id: int, match: BenignMatch) -> dict[str, Any]:
        of_run: dict[str, Any] = {}
        rows = [] if self.run is None else self.run.tokens.filter(token_id=token_id).to_dicts()
        if self.run is not None and rows and rows[0]["verdict"] is not None:
            of_run = {name: rows[0].get(name) for name in OF_RUN}
        return identity_of(
            _IDENTITY_VERSION,
            self.inspector.encoder.identity,
            self.settings,
            token=token_id,
            benign=[token.id for token in match.tokens],
            carriers=digest([[each.text, each.template] for each in self.carriers]),
            anchors=digest(self.anchors),
            mean_similarity=None if self.run is None else self.run.plan.mean_similarity,
            run_verdict=of_run.get("verdict"),
            **({"run": of_run} if of_run else {}),
        )

    def explained(
        self, token_id: int, match: BenignMatch, parts: dict[str, Any], folder: ResultFolder | None
    ) -> files.StoredExplanation:
        name, token = self.inspector.encoder.name, self.inspector.encoder.tokenizer.entries[token_id]
        tokens, notes = [token_id, *(each.id for each in match.tokens)], []

        def measure() -> dict[str, Any]:
            return measuring.measure(self.inspector, self.carriers, tokens, self.surroundings, self.progress)

        measured, _ = files.kept(folder, "inside", 0, token_id, measure)
        if not self.inspector.has_layers:
            notes.append(f"{name} is a static embedding model: it has no attention and no layers")
        elif not measured["heads"]:
            notes.append(f"attention was not measured: {name} does not expose its attention weights")
        if "copies_norm" not in measured["values"][str(token_id)]:
            notes.append(f"hidden states were not measured: {name} does not expose them")
        if "pooling_share" not in measured["values"][str(token_id)]:
            notes.append(
                "the copies' share of the vector was not measured: "
                f"the pooling of {name} is not a sum over positions"
            )
        if len(self.carriers) == 1:
            notes.append("values have no interval over texts, because there is only one text")
        if self.run is None:
            notes.append("the benign tokens are assumed to be benign, because no run was given")
        attributed: dict[int, dict[str, Vector]] = {}
        pairs: list[dict[str, Any]] = []
        if self.settings.attribution:
            if folder is not None:  # attribution takes long: what is known by now can be read meanwhile
                files.write_tables(folder, self.tables(token_id, match, measured, attributed, pairs))
            try:
                attributed, pairs, error = self.attributed(tokens, folder)
                notes.append(
                    f"the attributions of {token!r} are off by at most {error:.2g} of a unit vector "
                    f"({self.settings.steps} points per integral, more where it changes sharply)"
                )
            except ModelError as problem:
                notes.append(f"attribution was not possible: {problem}")
        if self.matrix is None:
            notes.append(f"the embedding matrix was not measured: {name} does not expose it")
        if not match.same_category:
            notes.append(
                f"too few other tokens have the category {self.category(token_id)}: {token!r} is compared "
                "with tokens of other categories"
            )
        tables = self.tables(token_id, match, measured, attributed, pairs)
        measures = tables["measures"].to_dicts()
        differing = findings(measures)
        explained = files.TokenExplanation(
            token_id=token_id,
            token=token,
            category=self.category(token_id),
            run_verdict=parts["run_verdict"],
            verdict=verdict(token, token_id, measures, differing, len(match.tokens), parts.get("run")),
            findings=tuple(differing),
            same_category=match.same_category,
            **{
                name: table.drop("token_id", "token", strict=False).to_dicts()
                for name, table in tables.items()
                if name != "attribution"
            },
        )
        record = files.ExplanationRecord(
            identity=digest(parts),
            identity_parts=parts,
            model=name,
            pooling=self.inspector.pooling,
            carriers=len(self.carriers),
            source=self.source,
            settings=asdict(self.settings),
            vocabulary={} if self.matrix is None else self.matrix.geometry,
            notes=notes,
            tokens=[explained],
            versions=package_versions(),
        )
        return files.StoredExplanation(record, tables)

    def attributed(
        self, tokens: Sequence[int], folder: ResultFolder | None
    ) -> tuple[dict[int, dict[str, Vector]], list[dict[str, Any]], float]:
        # The contribution of the reference is the same for all tokens, so it says nothing about any of them.
        from stickytoken.inspection import similarity_matrix
        from stickytoken.inspection.integrated_jacobians import JacobianIntegrator

        settings, anchors = self.settings, self.surroundings.anchors
        integrator, encoder = JacobianIntegrator(self.inspector), self.inspector.encoder

        def by_part(carrier: PlacedCarrier, token_id: int, far: Vector) -> dict[str, Any]:
            present = sorted(set(carrier.labels))  # numbered without gaps for the integrator
            labels = [present.index(label) for label in carrier.labels]
            found = integrator.contributions(carrier.with_copies(token_id), labels, settings.steps)
            means = {label: float((far @ found.parts[place]).mean()) for place, label in enumerate(present)}
            shares = (means[int(Part.COPIES)], means.get(int(Part.CARRIER), 0.0))
            return dict(zip(files.AREAS["attribution"], shares, strict=True)) | {"error": found.error}

        def by_position(pair: Mapping[str, Any]) -> dict[str, Any]:
            left, right = (
                integrator.contributions(pair[ids], range(len(pair[ids])), settings.steps)
                for ids in ("rows", "columns")
            )
            return {"values": similarity_matrix(left, right), "similarity": float(left.vector @ right.vector)}

        first = self.carriers[: max(settings.attribution_carriers, settings.pairs)]
        old = encoder.encode_ids([carrier.before for carrier in first]).astype(np.float64)
        unrelated = [self.surroundings.unrelated(vector) for vector in old]
        pairs: list[dict[str, Any]] = []
        for number, carrier in enumerate(first[: settings.pairs]):
            before, places = anchors @ unit_vectors(old[number]), np.flatnonzero(unrelated[number])
            # The median unrelated anchor, so that the outcome does not choose it.
            place = int(places[np.argsort(before[places], kind="stable")[len(places) // 2]])
            pair: dict[str, Any] = {"carrier": carrier.text, "rows": carrier.with_copies(tokens[0])}
            pair |= {"row_labels": carrier.labels, "columns": encoder.tokenize([self.anchors[place]])[0].ids}
            pairs.append(pair | {"anchor": self.anchors[place], "before": float(before[place])})
        # Stage, index and token of each computation, and its size in parts or positions.
        jobs: list[tuple[str, int, int, int, Callable[[], dict[str, Any]]]] = []
        some = first[: settings.attribution_carriers]
        for place, key in enumerate(tokens[: 1 + settings.attribution_benign]):
            for number, carrier in enumerate(some):
                far, index = anchors[unrelated[number]], place * len(some) + number
                parts = partial(by_part, carrier, key, far)
                jobs.append(("attribution", index, key, len(set(carrier.labels)), parts))
            for number, pair in enumerate(pairs if place == 0 else ()):
                size = len(pair["rows"]) + len(pair["columns"])
                jobs.append(("pair", number, key, size, partial(by_position, pair)))
        total, done, computed = sum(job[3] for job in jobs), 0, 0
        values: dict[int, list[dict[str, Any]]] = {}
        self.progress(Progress("attribution", 0, total))
        for stage, index, key, size, compute in jobs:
            content, new = files.kept(folder, stage, index, key, compute)
            computed += size if new else 0
            done += size
            self.progress(Progress("attribution", done, total, computed))
            if stage == "pair":
                pairs[index] |= content
            else:
                values.setdefault(key, []).append(content)
        names = files.AREAS["attribution"]
        error = max(row["error"] for rows in values.values() for row in rows)
        by_name = {
            k: {name: np.array([row[name] for row in rows]) for name in names} for k, rows in values.items()
        }
        return by_name, pairs, error

    def tables(
        self,
        token_id: int,
        match: BenignMatch,
        measured: Mapping[str, Mapping[str, Any]],
        attributed: Mapping[int, Mapping[str, Vector]],
        pairs: Sequence[Mapping[str, Any]],
    ) -> dict[str, pl.DataFrame]:
        names, confidence = self.inspector.encoder.tokenizer.entries, self.settings.confidence
        matrix = self.matrix
        token, others = {"token_id": token_id, "token": names[token_id]}, [each.id for each in match.tokens]
        measures: list[dict[str, Any]] = []

        def add(name: str, values: Vector, benign: Vector, **more: Any) -> None:
            rows = files.measure_rows(name, values, benign, confidence)
            measures.extend(token | row | more for row in rows)

        values = {int(k): each for k, each in measured["values"].items()}
        for name, own in values[token_id].items():
            add(name, np.array(own), np.array([values[k][name] for k in others]))
        for name, distances in measured["distances"][str(token_id)].items():
            add(name, np.array(distances[0]), np.array(distances[1:]))
        for name, own in attributed.get(token_id, {}).items():
            add(name, own, np.stack([attributed[k][name] for k in others if k in attributed]))
        if matrix is not None:
            available = [each.id for each in self.vocabulary.available if each.id < len(matrix.rows)]
            for name, column in matrix.measures.items():
                # The share of available entries below the token; a row of zeros has no cosine.
                below = float((column[available] < column[token_id]).mean())
                share = None if np.isnan(column[token_id]) else below
                add(name, column[[token_id]], column[others][:, None], share_below=share)
        summaries, cells = files.pair_tables(token_id, pairs, names)
        heads, near = [], [] if matrix is None else matrix.neighbours(token_id, self.settings.neighbours)
        if str(token_id) in measured["heads"]:
            own, *rest = (np.array(measured["heads"][str(k)]) for k in (token_id, *others))
            heads = files.head_rows(own, np.stack(rest), confidence)
        rows: dict[str, list[dict[str, Any]]] = {
            "measures": measures,
            "heads": [token | row for row in heads],
            "pairs": summaries,
            "attribution": cells,
            "benign": [
                {"token_id": token_id, "benign_id": each.id, "benign": names[each.id]}
                | {"category": self.category(each.id), "characters": len(each.text.strip())}
                | {"attributed": each.id in attributed}
                for each in match.tokens
            ],
            "neighbours": [
                {"token_id": token_id, "rank": rank, "neighbour_id": other}
                | {"neighbour": names[other], "cosine": cosine}
                for rank, (other, cosine) in enumerate(near, start=1)
            ],
        }
        return {name: pl.DataFrame(rows[name], schema=schema) for name, schema in files.TABLE_SCHEMAS.items()}

    def category(self, token_id: int) -> str:
        return self.vocabulary.categories[self.vocabulary.place(token_id)].value
