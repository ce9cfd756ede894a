"""Detect sticky tokens: identify the run, choose its tokens, plan, compute, decide, commit."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from numbers import Integral
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import polars as pl

import stickytoken.data as readers
import stickytoken.measurement as store
import stickytoken.validation as checks
from stickytoken.data import tables
from stickytoken.detection import run as runs_of, run_folder
from stickytoken.detection.run import Run, open_run
from stickytoken.encoders.loading import AnyModel, load_encoder, reads_texts_only, route_of
from stickytoken.encoders.loading.resolution import EncoderSpec
from stickytoken.encoders.protocol import Encoder, EncoderIdentity, similarity_of, without_refused_texts
from stickytoken.errors import InputError, StickyTokenWarning
from stickytoken.insertion import Insertion, Token
from stickytoken.machine import digest
from stickytoken.measurement import ray_engine, resume
from stickytoken.measurement.engine import ProgressCallback, ignore_progress
from stickytoken.methods import base, probes, registry, small_search
from stickytoken.unit_vectors import Similarity
from stickytoken.validation import shown
from stickytoken.vocabulary import Vocabulary, categorize, written

__all__ = ["Run", "detect", "judge", "open_run", "probe"]

TokenSource: TypeAlias = int | str | Path | Iterable[int | str]

# Increase it when the same inputs give other numbers than before.
IDENTITY_VERSION = 8


def identity_parts(
    encoder: EncoderIdentity,
    method: str,
    settings: Any,
    corpus: str,
    tokens: Sequence[Token] | None,
) -> dict[str, Any]:
    return resume.identity_of(
        IDENTITY_VERSION,
        encoder,
        settings,
        method=method,
        corpus=corpus,
        tokens=None if tokens is None else digest([token.id for token in tokens]),
    )


def detect(  # noqa: PLR0913 - all of them keyword-only, one decision each
    encoder: AnyModel,
    *,
    method: str | None = None,
    sentences: readers.SentenceSource | None = None,
    pairs: readers.PairSource | None = None,
    tokens: TokenSource | None = None,
    sample: int | None = None,
    settings: base.MethodSettings | None = None,
    seed: int | None = None,
    out: str | Path | None = None,
    engine: ray_engine.EngineChoice = "local",
    evidence: bool = True,
    shard_probes: int | None = None,
    progress: ProgressCallback = ignore_progress,
) -> Run:
    """Find sticky tokens. The same call continues a run that was cut off.

    Args:
        encoder: the model: anything that `load_encoder` takes, an encoder included.
        method: name of the method; None is the one that the settings belong to, else the first that takes
            what is given.
        sentences: the corpus: a list of sentences, or anything that `load_sentences` takes; None is the
            bundled corpus.
        pairs: pairs, or a file of them, in place of sentences, for a method that takes them.
        tokens: ids or texts of the tokens to examine, or a file of them; None is all available ones.
        sample: look at a random sample of this many of them.
        settings: of the method; None is its defaults, and insertion as words where a model reads only texts.
        seed: replaces the seed of the settings.
        out: the run folder; None is ``runs/<model>-<method>-<identity>``.
        engine: ``local``, this process; ``ray``, the workers of a Ray on this machine or of the cluster
            that RAY_ADDRESS names; a `RayCluster`; or an engine that is open, such as that of `ray_engine`.
            It changes no number beyond rounding, and a run can be continued with another.
        evidence: also keep what reports show beside the numbers: symptom curves and real pairs.
            A finished run without it gets it.
        shard_probes: texts in a shard, which is what a kill costs at most; None is 8,192, or 32,768 on a
            CUDA GPU. It changes no number beyond rounding, but a run that is continued with another value
            computes its shards again.
        progress: told of every step.

    Returns:
        The finished run. A run that was finished before is opened, not computed again.

    Raises:
        InputError: sentences, pairs, tokens or settings that cannot be used.
        EncodingError: a text without a usable vector.
        RunError: the folder belongs to another run or process, or cannot be written.
    """
    chosen_method = registry.choose_method(method, settings, pairs is not None)
    settings = settings or base.adjusted_defaults(chosen_method.settings(), reads_texts_only(encoder))
    if seed is not None:
        settings = replace(settings, seed=seed)
    checks.require_callable("progress", progress)
    corpus = readers.choose_corpus(sentences, pairs)
    out = None if out is None else checks.file_path("out", out)
    if out is not None:
        run_folder.require_usable(out, chosen_method.entry.name, settings)
    files = runs_of.look_at_model(str(encoder)) if isinstance(encoder, (str, Path)) else None
    encoder = load_encoder(encoder)
    _say_what_is_measured(encoder)
    model_identity = encoder.identity  # before its tokenizer is used: the user may have changed the model
    corpus = readers.readable(corpus, encoder.tokenizer, encoder.name)
    vocabulary = written(categorize(encoder.tokenizer), encoder.tokenizer, settings.insertion)
    if tokens is None and sample is None:  # of a list of candidates, not the words beside them
        tokens = getattr(encoder.tokenizer, "candidate_ids", None)
    named = None if tokens is None else token_ids(vocabulary, tokens)
    chosen = choose_tokens(vocabulary, named, sample, settings.seed)
    restricted = tokens is not None or sample is not None
    job = base.Job(encoder, settings, corpus, vocabulary, chosen, restricted, tokens is None)
    record = _record(job, chosen_method, model_identity)
    folder = run_folder.RunFolder(out or store.default_folder(encoder.name, record.method, record.identity))
    with resume.resumed(folder, run_folder.RUN, record) as held:
        if not held.finished:
            with ray_engine.chosen_engine(engine, encoder) as opened:
                entries = vocabulary.frame()
                plan = folder.read_plan(chosen_method.entry.name)
                if plan is None:
                    plan = without_refused_texts(encoder, lambda: chosen_method.make_plan(job, progress))
                held.begin(held.record.model_copy(update={"result": None}))
                folder.write_record(store.PLAN_FILE, plan)
                folder.write_table(store.VOCABULARY_FILE, entries)
                if shard_probes is None:
                    shard_probes = base.shard_probes_for(encoder.device)
                runner = base.FolderRunner(opened, folder, progress, shard_probes)
                table, result = chosen_method.compute(job, plan, entries, runner)
                folder.write_table(store.TOKENS_FILE, runner.without_unanswered(table))
                held.finish(held.record.model_copy(update={"result": result}))
        run = open_run(folder.path)
        if evidence and not run_folder.has_evidence(folder):
            stage = chosen_method.evidence_stage(job, run.plan)
            if stage is not None:
                search = small_search.search_stage(encoder, settings.insertion, _searchable(run))
                found = run_folder.measured_evidence(job, stage, run, search=search, progress=progress)
                folder.write_table(run_folder.EVIDENCE_FILE, found.tokens)
                folder.write_record(run_folder.EVIDENCE_RECORD_FILE, found.record)
    runs_of.record_model(run.path, run.record, files)
    return run


def _searchable(run: Run) -> list[str]:
    """Return the texts of a run that a small search can be made of."""
    texts = run.method.texts(run.plan)
    return [*texts.carriers, *texts.anchors]


def _say_what_is_measured(encoder: Encoder) -> None:
    similarity = similarity_of(encoder)
    if similarity is not Similarity.COSINE:
        warnings.warn(
            f"{encoder.name} compares vectors by {similarity}; detection measures cosine similarity, which "
            "ignores the lengths of vectors",
            StickyTokenWarning,
            stacklevel=3,
        )


def _record(
    job: base.Job[base.MethodSettings], method: base.AnyMethod, model: EncoderIdentity
) -> run_folder.RunRecord:
    encoder, corpus, name = job.encoder, job.corpus, method.entry.name
    fingerprint = readers.corpus_fingerprint(corpus, method.uses_topics)
    tokens = job.tokens if job.restricted else None
    parts = identity_parts(model, name, job.settings, fingerprint, tokens)
    loading = endpoint = None
    spec: EncoderSpec | None = getattr(encoder, "spec", None)
    if spec is not None:  # or nobody but its maker can load the encoder again
        if spec.endpoint is not None:
            endpoint = run_folder.EndpointRecord(
                tokenizer=spec.vocabulary,
                candidates=spec.candidates,
                max_length=spec.max_length,
                dimensions=spec.endpoint.dimensions,
                key_variable=spec.endpoint.key_variable,
            )
        loading = run_folder.LoadingRecord(
            dtype=spec.dtype,
            revision=spec.revision,
            layer_choice=spec.layer_choice,
            truncate_dim=spec.truncate_dim,
            endpoint=endpoint,
            route=spec.route,
            **{name: value for name, value in asdict(spec.prompting).items() if name != "prompt_name"},
        )
    return run_folder.RunRecord(
        identity=digest(parts),
        identity_parts=parts,
        method=name,
        model=run_folder.ModelRecord(
            name=encoder.name,
            vocabulary=len(job.vocabulary),
            available=len(job.vocabulary.available),
            device=encoder.device,
            parameters=getattr(encoder, "parameters", None),
            loading=loading,
            route=route_of(encoder),
        ),
        corpus=run_folder.CorpusRecord(
            source=corpus.source,
            sentences=len(corpus) if isinstance(corpus, readers.Sentences) else None,
            unknown=corpus.unknown,
            **{name: getattr(corpus, name, 0) for name in ("blank", "duplicates", "too_long")},
        ),
        tokens=len(job.tokens),
        settings=asdict(job.settings),
        versions=resume.package_versions(),
        hardware=resume.hardware(encoder.device),
        started=resume.now(),
    )


def probe(
    encoder: AnyModel,
    tokens: TokenSource,
    *,
    method: str | None = None,
    sentences: readers.SentenceSource | None = None,
    pairs: readers.PairSource | None = None,
    settings: base.MethodSettings | None = None,
    progress: ProgressCallback = ignore_progress,
) -> Sequence[base.ProbedToken]:
    """Measure named tokens, without a run folder.

    Args:
        encoder: the model: anything that `load_encoder` takes, an encoder included.
        tokens: ids or texts of tokens, or a file of them; with text insertion they must be able to occur
            in text.
        method: name of the method; None is the one that the settings belong to, else the first that takes
            what is given.
        sentences: the corpus: a list of sentences, or anything that `load_sentences` takes; None is the
            bundled corpus.
        pairs: pairs, or a file of them, in place of sentences, for a method that takes them.
        settings: of the method; None is its defaults, and insertion as words where a model reads only texts.
        progress: told of every step.

    Returns:
        What the method measured, one item per token in the order given.

    Raises:
        InputError: a token that cannot be probed, or inputs that cannot be used.
    """
    chosen = registry.choose_method(method, settings, pairs is not None)
    settings = settings or base.adjusted_defaults(chosen.settings(), reads_texts_only(encoder))
    checks.require_callable("progress", progress)
    corpus = readers.choose_corpus(sentences, pairs)
    encoder = load_encoder(encoder)
    _say_what_is_measured(encoder)
    corpus = readers.readable(corpus, encoder.tokenizer, encoder.name)
    vocabulary = written(categorize(encoder.tokenizer), encoder.tokenizer, settings.insertion)
    probed = []
    for token_id in token_ids(vocabulary, tokens):
        place = vocabulary.place(token_id)
        category = vocabulary.categories[place]
        if settings.insertion is not Insertion.IDS and not category.available:
            raise InputError(
                f"token id {token_id} ({vocabulary.tokens[place]!r}) cannot occur in text "
                f"({category.value}): probe it with ids insertion"
            )
        probed.append(vocabulary.token(place))
    job = base.Job(encoder, settings, corpus, vocabulary, probed, True, False)
    return chosen.probe(job, progress)


ANCHORS = 2000


def judge(
    run: Run | str | Path,
    sentences: readers.SentenceSource,
    *,
    column: str | None = None,
    encoder: AnyModel | None = None,
    anchors: int = ANCHORS,
    progress: ProgressCallback = ignore_progress,
) -> base.Judgement:
    """Measure what the tokens of a finished run do to the texts of a corpus.

    Only texts of the corpus are encoded, a few random tokens in them, and the tokens that may matter there:
    all other lifts are computed from the pulls and contractions that the run measured. A run made on the
    corpus, with ``detect(..., sentences=...)``, measures every token on it and takes minutes.

    Args:
        run: a finished run, or its folder.
        sentences: the corpus: a list of texts, or anything that `load_sentences` takes.
        column: the column with the texts, for files and Hub datasets.
        encoder: the run's model; None loads the one that the run names, as it was loaded.
        anchors: random texts of the corpus to compare with, at most.
        progress: told of every step.

    Raises:
        InputError: the corpus cannot be used, or the run's method cannot judge.
        ModelError: the model cannot be found or used.
        RunError: the folder is no finished run, is damaged, or its model is another.
    """
    opened = open_run(run)
    opened.method.require_judging(opened)
    checks.require_callable("progress", progress)
    anchors = checks.whole_number("anchors", anchors, 2)
    corpus = readers.load_sentences(sentences, column)
    model = runs_of.encoder_for(encoder, opened, "judge")
    corpus = readers.readable(corpus, model.tokenizer, model.name)
    settings: Any = runs_of.restored_settings(opened)
    vocabulary = written(categorize(model.tokenizer), model.tokenizer, settings.insertion)
    of_run = set(opened.tokens["token_id"].to_list())
    tokens = [token for token in vocabulary.available if token.id in of_run]
    restricted = len(tokens) < len(vocabulary.available)
    job = base.Job(model, settings, corpus, vocabulary, tokens, restricted, not restricted)
    return opened.method.judge(job, opened, anchors, progress)


_BY_ID = re.compile(r"\s*#(\d{1,9})\s*", re.ASCII)


def choose_tokens(
    vocabulary: Vocabulary, ids: Sequence[int] | None, sample: int | None, seed: int
) -> list[Token]:
    tokens = vocabulary.available if ids is None else available_tokens(vocabulary, ids)
    available = {token.id: token for token in sorted(tokens, key=lambda token: token.id)}
    if not available:
        raise InputError(
            "there are no tokens to test: the vocabulary has no available entry, or none was named"
        )
    if sample is None:
        return list(available.values())
    sample = checks.whole_number("sample", sample)
    if not 1 <= sample <= len(available):
        raise InputError(
            f"sample is {sample}: it must be between 1 and {len(available)}, the number of tokens"
        )
    return [available[token_id] for token_id in drawn_ids(list(available), sample, seed)]


def drawn_ids(ids: Sequence[int], sample: int, seed: int) -> list[int]:
    drawn = np.random.default_rng(seed).choice(ids, size=sample, replace=False)
    return sorted(int(token_id) for token_id in drawn)


def available_tokens(vocabulary: Vocabulary, ids: Sequence[int]) -> list[Token]:
    available = {token.id: token for token in vocabulary.available}
    for token_id in ids:
        if token_id not in available:
            categories = dict(zip(vocabulary.ids, vocabulary.categories, strict=True))
            reason = categories.get(token_id, "not in the vocabulary")
            raise InputError(f"token id {token_id} cannot occur in text ({reason}): leave it out")
    return [available[token_id] for token_id in dict.fromkeys(ids)]


def token_ids(vocabulary: Vocabulary, tokens: TokenSource) -> list[int]:
    if isinstance(tokens, PathLike):
        return token_ids_from_file(vocabulary, checks.file_path("tokens", tokens))
    single = isinstance(tokens, (str, Integral)) and not isinstance(tokens, bool)
    given = [tokens] if single else checks.list_of("token ids or texts", "tokens", tokens, ordered=False)
    if not given:
        raise InputError("the list of tokens is empty: name at least one token")
    found = []
    for place, token in enumerate(given, start=1):
        if not isinstance(token, (str, Integral)) or isinstance(token, bool):
            raise InputError(f"token {place} is {shown(token)}: pass a token id, or the text of a token")
        found.append(find_token(vocabulary, token) if isinstance(token, str) else int(token))
    return found


def find_token(vocabulary: Vocabulary, text: str) -> int:
    """Find an entry by its vocabulary string, or else its decoded text, or this without outer white space."""
    for names in (vocabulary.tokens, vocabulary.decoded, tuple(name.strip() for name in vocabulary.decoded)):
        found = [
            (token_id, category)
            for token_id, name, category in zip(vocabulary.ids, names, vocabulary.categories, strict=True)
            if name == text and text
        ]
        reachable = [token_id for token_id, category in found if category.available]
        wanted = reachable or [token_id for token_id, _ in found]
        if len(wanted) == 1:
            return wanted[0]
        if wanted:
            shown = ", ".join(str(token_id) for token_id in wanted[:5])
            raise InputError(f"{text!r} may be any of the token ids {shown}: pass the id instead")
    raise InputError(f"the vocabulary has no token {text!r}: `stickytoken tokens` lists what there is")


def find_named(vocabulary: Vocabulary, name: str) -> int:
    """Find an entry by ``#`` and its id, or as in `find_token`."""
    if (by_id := _BY_ID.fullmatch(name)) is not None:
        return int(by_id.group(1))
    try:
        return find_token(vocabulary, name)
    except InputError as error:
        if name.strip().isdecimal():
            raise InputError(f"{error}; if you mean the id, write #{name.strip()}") from error
        raise


def token_ids_from_file(vocabulary: Vocabulary, path: Path) -> list[int]:
    """Read tokens from the lines of a txt file, or columns ``token_id`` and ``token``, which must agree."""
    if path.suffix.lower() not in tables.TABLE_SUFFIXES:
        names = [line for line in tables.decode(tables.read_bytes(path), path).split("\n") if line.strip()]
    else:
        frame = tables.read_table(path)
        if "token_id" in frame.columns:
            values = frame["token_id"]
            if not values.dtype.is_numeric() and values.dtype != pl.String:
                raise InputError(f"column 'token_id' of {path} contains {values.dtype}, not whole numbers")
            whole = values.cast(pl.Int64, strict=False)
            if values.dtype.is_float():
                whole = whole.set(values != whole, None)
            if (missing := whole.is_null()).any():
                row = missing.to_list().index(True) + 1
                raise InputError(f"{path}: the token_id of row {row} is not a whole number")
            ids: list[int] = whole.to_list()
            given = frame["token"].to_list() if "token" in frame.columns else [None] * len(ids)
            places = {token_id: place for place, token_id in enumerate(vocabulary.ids)}
            for row, (token_id, token) in enumerate(zip(ids, given, strict=True), start=1):
                place = places.get(token_id)
                if place is None or token is None:  # what is not in the vocabulary is refused later
                    continue
                name, text = vocabulary.tokens[place], vocabulary.decoded[place]
                if str(token) not in (name, text) and str(token).strip() not in (name.strip(), text.strip()):
                    raise InputError(
                        f"{path}: row {row} says that token id {token_id} is {shown(token)}, and this model "
                        f"has {name!r} there: the table is of another model, or one of the columns is wrong"
                    )
            return ids
        if "token" not in frame.columns:
            raise InputError(
                f"{path} has no column 'token_id' or 'token': it has {', '.join(frame.columns) or 'none'}"
            )
        texts = frame["token"]
        if texts.dtype != pl.String:
            raise InputError(f"column 'token' of {path} contains {texts.dtype}, not text")
        if (missing := texts.is_null()).any():
            raise InputError(f"{path}: the token of row {missing.to_list().index(True) + 1} is missing")
        names = texts.to_list()
    ids_by_token = dict(zip(vocabulary.tokens, vocabulary.ids, strict=True))
    return [
        ids_by_token[name] if name in ids_by_token else find_named(vocabulary, name.rstrip("\r"))
        for name in names
    ]


@dataclass(frozen=True)
class Reopened:
    run: Run
    job: base.Job[base.MethodSettings]  # its corpus is empty, because the plan holds all texts
    stage: probes.EvidenceStage  # carriers and anchors, encoded once


def reopen(run: Run, encoder: Encoder, vocabulary: Vocabulary) -> Reopened:
    runs_of.require_same_model(run, encoder)
    job = base.Job(
        encoder,
        runs_of.restored_settings(run),
        readers.Sentences((), "the plan of the run"),
        vocabulary,
        [],
        True,
        False,
    )
    stage = run.method.evidence_stage(job, run.plan)
    if stage is None:
        raise InputError(f"the method {run.record.method} puts no tokens into texts, so it has none to show")
    return Reopened(run, job, stage)


def token_evidence(opened: Reopened, token_ids: Sequence[int], with_ordinary: bool) -> run_folder.RunEvidence:
    named = [token.id for token in available_tokens(opened.job.vocabulary, token_ids)]
    return run_folder.measured_evidence(opened.job, opened.stage, opened.run, named, with_ordinary)
