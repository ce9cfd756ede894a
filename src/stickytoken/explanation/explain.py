"""Explain tokens: match benign tokens, look inside the model, compare, sum up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property, partial
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from stickytoken.corpora import load_sentences
from stickytoken.corpora.choice import SentenceSource, readable
from stickytoken.detection.model_files import encoder_for, worst_tokens
from stickytoken.detection.run import Run, open_run
from stickytoken.detection.run_folder import flagged_tokens
from stickytoken.detection.selection import TokenSource, available_tokens
from stickytoken.detection.selection import token_ids as named_ids
from stickytoken.encoders.loading.load import AnyModel
from stickytoken.encoders.protocol import EncoderIdentity, require_ids
from stickytoken.errors import InputError, ModelError
from stickytoken.explanation._attributing import Attributed, AttributedTexts, attribute
from stickytoken.explanation._material import EmbeddingMatrix, Material, gather, share_below
from stickytoken.explanation._measuring import Checkpoints, Measured, Surroundings, mean_direction, measure
from stickytoken.explanation._verdict import RunVerdict, findings, verdict
from stickytoken.explanation.files import (
    ATTRIBUTION_SCHEMA,
    BENIGN_SCHEMA,
    HEADS_SCHEMA,
    MEASURES_SCHEMA,
    NEIGHBOURS_SCHEMA,
    PAIRS_SCHEMA,
    ExplanationContent,
    require_place,
    stored_explanation,
    write_tables,
)
from stickytoken.explanation.result import Explanation, TokenExplanation
from stickytoken.explanation.settings import ExplainSettings
from stickytoken.explanation.tables import frame, head_rows, measure_rows, pair_tables
from stickytoken.machine import digest
from stickytoken.measurement.resume import identity_of
from stickytoken.measurement.stage import ProgressCallback, ignore_progress
from stickytoken.measurement.store import ResultFolder
from stickytoken.unit_vectors import exact_unit_vectors
from stickytoken.validation import file_path, list_of, or_default, require_callable
from stickytoken.vocabulary import BenignMatch, Vocabulary, categorize, match_benign

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
    """Compare every token with its benign tokens and build the explanation."""
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
        require_place(out)
        require_unlocked(out, tokens, run)
    if tokens is None:
        tokens = _worst(run)
    encoder = require_ids(encoder_for(encoder, run, "explain"), "explain")
    inspector = inspector_of(encoder)
    if corpus is not None:
        corpus = readable(corpus, encoder.tokenizer, encoder.name)
    vocabulary = categorize(encoder.tokenizer)
    token_ids = _token_ids(vocabulary, tokens)
    unread = {token.id for token in vocabulary.available if not encoder.fits((token.id,))}
    for token_id in unread.intersection(token_ids):
        raise InputError(f"token id {token_id} has no embedding in {encoder.name}: leave it out")
    # A run says which tokens are benign. Without one, those that somebody asks about are not presumed to be.
    suspected = flagged_tokens(run) if run is not None else set(token_ids)
    excluded = unread | suspected
    matches = {
        token_id: match_benign(vocabulary, token_id, excluded, settings.benign, settings.seed)
        for token_id in token_ids
    }
    material = gather(encoder, settings, run, chosen, corpus)
    job = Job(inspector, vocabulary, settings, material, matches, run, encoder.identity)
    surroundings = cache(partial(_surroundings, job, progress))
    matrix = cache(partial(_matrix, inspector))
    contents = []
    for token_id, match in matches.items():
        own = replace(job, matches={token_id: match})
        compute = partial(_explained, own, token_id, surroundings, matrix, progress)
        if out is None:
            contents.append(compute(Checkpoints()))
        else:
            contents.append(stored_explanation(out / str(token_id), job.parts(token_id), compute))
    return Explanation.of(contents)


def require_unlocked(folder: Path, tokens: TokenSource | None, run: Run | None) -> None:
    """Refuse tokens whose explanation another process is writing, as far as that shows without the model."""
    if tokens is None:
        named: list[object] = list(_worst(run))
    else:
        named = list(tokens) if isinstance(tokens, (list, tuple)) else [tokens]  # an iterator is not used up
    ids = {} if run is None else dict(run.tokens.select("token", "token_id").iter_rows())
    known = [ids.get(each) if isinstance(each, str) else each for each in named]
    for token_id in known:
        if isinstance(token_id, Integral):
            ResultFolder(folder / str(token_id)).require_unlocked()


def _worst(run: Run | None) -> list[int]:
    if run is None:
        raise InputError("no tokens are named: pass tokens, or a run whose sticky tokens are explained")
    return worst_tokens(run, _MOST_OF_RUN)


def _token_ids(vocabulary: Vocabulary, tokens: TokenSource) -> list[int]:
    ids = named_ids(vocabulary, tokens)
    for place, token_id in enumerate(ids):
        if token_id in ids[:place]:
            raise InputError(f"token id {token_id} is given twice: leave one out")
    available_tokens(vocabulary, ids)  # refuses tokens that cannot occur in text
    return ids


def _explained(
    job: Job,
    token_id: int,
    shared: Callable[[], Surroundings],
    shared_matrix: Callable[[], EmbeddingMatrix | None],
    progress: ProgressCallback,
    checkpoints: Checkpoints,
) -> ExplanationContent:
    surroundings, names = shared(), job.inspector.encoder.tokenizer.entries
    measured = checkpoints.measured(token_id)
    if measured is None:
        measured = measure(job.inspector, job.material.carriers, job.benign, surroundings, progress)
        checkpoints.commit_measured(token_id, measured)
    matrix, notes = shared_matrix(), _notes(job, measured)
    attributed = None
    if job.settings.attribution:
        if checkpoints.folder is not None:
            write_tables(checkpoints.folder, assemble(job, measured, None, matrix, notes).content(token_id))
        texts = AttributedTexts(job.material.carriers, job.material.anchors, surroundings)
        try:
            attributed = attribute(job.inspector, texts, job.benign, job.settings, progress, checkpoints)
            notes.append(
                f"the attributions of {names[token_id]!r} are off by at most {attributed.error:.2g} of a "
                f"unit vector ({job.settings.steps} points per integral, more where it changes sharply)"
            )
        except ModelError as error:
            notes.append(f"attribution was not possible: {error}")
    if matrix is None:
        notes.append(
            f"the embedding matrix was not measured: {job.inspector.encoder.name} does not expose it"
        )
    return assemble(job, measured, attributed, matrix, notes).content(token_id)


def _matrix(inspector: Inspector) -> EmbeddingMatrix | None:
    rows = inspector.embedding_matrix()
    return None if rows is None else EmbeddingMatrix(rows, inspector.encoder.tokenizer.entries)


def _surroundings(job: Job, progress: ProgressCallback) -> Surroundings:
    """Encode the anchors, and compute the mean direction and, without a run, the mean similarity."""
    encoder, settings = job.inspector.encoder, job.settings
    anchors = exact_unit_vectors(encoder.encode(list(job.material.anchors)))
    mean = job.material.mean_similarity
    if mean is None:
        carriers = exact_unit_vectors(encoder.encode_ids([each.before for each in job.material.carriers]))
        mean = float((carriers @ anchors.T).mean())
    ids = [token.id for token in job.vocabulary.available if encoder.fits((token.id,))]
    drawn = np.random.default_rng([settings.seed, _DIRECTION_KEY]).permutation(ids)[: settings.directions]
    direction = mean_direction(job.inspector, sorted(int(k) for k in drawn), progress)
    return Surroundings(direction, anchors, mean)


def _notes(job: Job, measured: Measured) -> list[str]:
    name, found = job.inspector.encoder.name, next(iter(measured.values.values()))
    notes = []
    if not job.inspector.has_layers:
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
    if len(job.material.carriers) == 1:
        notes.append("values have no interval over texts, because there is only one text")
    if job.run is None:
        notes.append("the benign tokens are assumed to be benign, because no run was given")
    return notes
