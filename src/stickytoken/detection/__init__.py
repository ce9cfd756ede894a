"""Detect sticky tokens.

`detect` measures a model's tokens and stores the results as a run. `probe` measures named tokens without
storing a run.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import stickytoken.data as readers
import stickytoken.validation as checks
from stickytoken.data.readability import require_readable
from stickytoken.detection import run_folder
from stickytoken.detection.naming import TokenSource, choose_tokens, reachable_ids, token_ids
from stickytoken.detection.run import Run, load_for_documents, open_run, record_normalizer
from stickytoken.encoders.files.spec import EncoderSpec
from stickytoken.encoders.protocol import (
    Encoder,
    EncoderIdentity,
    capabilities_of,
    confirm_answers,
    refused_texts,
    similarity_of,
)
from stickytoken.errors import EncodingError, warn
from stickytoken.insertion import Insertion, Token
from stickytoken.loading import AnyModel, reads_texts_only
from stickytoken.machine import digest
from stickytoken.measurement import ray_engine, resume, store
from stickytoken.measurement.engine import ProgressCallback, ignore_progress
from stickytoken.methods import SETTINGS_OF_METHOD, base, choose_method, method_named
from stickytoken.methods.runner import Runner, shard_probes_for
from stickytoken.settings import choose_insertion
from stickytoken.unit_vectors import Similarity
from stickytoken.vocabulary import (
    CandidateTokenizer,
    Vocabulary,
    categorize,
    choose_joinings,
    frame_with_special,
    special_tokens,
)

__all__ = ["Run", "detect", "open_run", "probe"]

# Increase this number whenever a change makes the same inputs give different results.
IDENTITY_VERSION = 10


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
    shard_probes: int | None = None,
    progress: ProgressCallback = ignore_progress,
) -> Run:
    """Find the sticky tokens of a model. The same call continues an interrupted run.

    Args:
        encoder: The model: an encoder, or anything else that `load_encoder` takes.
        method: Name of the method. If None, it is the method that the settings belong to, or else the first
            method that accepts the input.
        sentences: The corpus: a list of sentences, or anything else that `load_sentences` takes. If None, the
            bundled corpus is used.
        pairs: Sentence pairs, or a file of them, instead of sentences. Only some methods accept pairs.
        tokens: Ids or texts of the tokens to measure, or files of them. If None, all available tokens are
            measured.
        sample: Number of tokens to draw at random from ``tokens``. If None, all of ``tokens`` are measured.
        settings: Settings of the method. If None, the defaults are used. Unless they say how copies are
            inserted, it is by ``words`` if the model only accepts text.
        seed: Seed to use instead of the one in the settings. If None, the seed of the settings is used.
        out: The run folder. If None, it is ``runs/<model>-<method>-<identity>``.
        engine: Where to compute. ``local`` computes in this process, and ``ray`` on the Ray cluster named by
            RAY_ADDRESS or on one started on this machine. A `RayCluster` or an open engine, such as one from
            `ray_engine`, can also be passed. The engine affects the results only through rounding, so a run
            can be continued with another engine.
        shard_probes: Number of texts per shard. If the process is killed, at most one shard of work is lost.
            If None, a shard has 8,192 texts, or 32,768 on a CUDA GPU. The size of the shards affects the
            results only through rounding, but if a run is continued with another size, its shards are
            computed again.
        progress: Called with the progress at every step.

    Returns:
        The finished run. If the run was already finished, it is opened without computing it again.

    Raises:
        InputError: The sentences, pairs, tokens or settings cannot be used.
        EncodingError: A text has no usable vector.
        RunError: The folder contains another run or other files, is in use by another process, or cannot be
            written.

    Examples:
        >>> opened = stickytoken.detect(model, out="run")  # the run is finished, so it is opened
        >>> len(opened.sticky)
        18
    """
    began = time.perf_counter()
    question = _Question.from_arguments(encoder, method, settings, sentences, pairs, progress)
    if seed is not None:
        question = replace(question, settings=replace(question.settings, seed=seed))
    out = None if out is None else checks.file_path("out", out)
    if out is not None:
        run_folder.require_usable(out, question.method_name, question.settings)
    encoder = question.load(encoder)
    # The identity is read first, because reading it applies changes that the user made to the model.
    model_identity = encoder.identify()
    corpus, vocabulary = question.read_with(encoder)
    tokenizer = encoder.tokenizer
    if tokens is None and isinstance(tokenizer, CandidateTokenizer):
        # A candidate vocabulary also contains ordinary words for comparison, but only the candidates are
        # measured.
        tokens = tokenizer.candidate_ids
    named = None if tokens is None else token_ids(vocabulary, tokens)
    chosen = choose_tokens(vocabulary, named, sample, question.settings.seed)
    chosen_ids = {token.id for token in chosen}
    added: list[Token] = []
    if question.method_name == "profile":
        # It always measures special tokens: they are few, and the first that anyone tries.
        added = [token for token in special_tokens(vocabulary, tokenizer) if token.id not in chosen_ids]
    scope = base.Scope.WHOLE
    if tokens is not None:
        scope = base.Scope.NAMED
    elif sample is not None:
        scope = base.Scope.SAMPLE
    job = base.Job(
        encoder,
        question.settings,
        corpus,
        vocabulary,
        tokens=sorted([*chosen, *added], key=lambda token: token.id),
        scope=scope,
    )
    record = _make_record(job, question.method_name, model_identity)
    if scope is base.Scope.SAMPLE:  # the special tokens must not count as drawn at random
        record = record.model_copy(update={"beside_sample": [token.id for token in added]})
    folder_path = out or store.default_folder(encoder.name, record.method, record.identity)
    folder = run_folder.RunFolder(folder_path, began)
    with resume.resumed(folder, run_folder.RUN, record) as held:
        if not held.finished:
            with ray_engine.chosen_engine(engine, encoder) as opened:
                if shard_probes is None:
                    # The shards of an interrupted session can be read only if they have the same size. So the
                    # device on which the run began decides, which its record names first.
                    shard_probes = shard_probes_for(held.record.model.device)
                held.prepare(held.record)
                runner = Runner(opened, folder, progress, shard_probes)
                # An interrupted session may have left its plan.
                plan = folder.read_plan(record.method) or _make_plan(question.method, job, runner)
                # The first files are written after the last check of what the user passed. The runner has
                # written them if it encoded texts for the plan.
                folder.begin()
                folder.write_record(store.PLAN_FILE, plan)
                folder.write_table(store.VOCABULARY_FILE, frame_with_special(vocabulary, tokenizer))
                table, result = question.method.compute(job, plan, runner, folder)
                folder.write_table(store.TOKENS_FILE, table)
                confirm_answers(encoder)
                held.finish(held.record.model_copy(update={"result": result}))
        run = open_run(folder.path)
        record_normalizer(run, tokenizer)
    return run


@dataclass(frozen=True, slots=True)
class _Question:
    """What to measure: a method with its settings, and a corpus, checked before the model is loaded."""

    method_name: str
    settings: base.MethodSettings
    corpus: readers.Sentences | readers.PairCorpus

    @classmethod
    def from_arguments(
        cls,
        model: AnyModel,
        method: str | None,
        settings: base.MethodSettings | None,
        sentences: readers.SentenceSource | None,
        pairs: readers.PairSource | None,
        progress: ProgressCallback,
    ) -> _Question:
        name = choose_method(method, settings, pairs is not None)
        settings = choose_insertion(settings or SETTINGS_OF_METHOD[name](), reads_texts_only(model))
        checks.require_callable("progress", progress)
        return cls(name, settings, readers.choose_corpus(sentences, pairs))

    @property
    def method(self) -> base.Method:
        return method_named(self.method_name)

    def load(self, model: AnyModel) -> Encoder:
        encoder = load_for_documents(model)
        similarity = similarity_of(encoder)
        if similarity is not Similarity.COSINE:
            warn(
                f"{encoder.name} compares vectors by {similarity}, but "
                f"{self.method.describe_similarity(similarity)}"
            )
        return encoder

    def read_with(self, encoder: Encoder) -> tuple[readers.Sentences | readers.PairCorpus, Vocabulary]:
        """Return the corpus, if the model can read it, and the model's vocabulary."""
        corpus = require_readable(self.corpus, encoder.tokenizer, encoder.name)
        vocabulary = categorize(encoder.tokenizer)
        return corpus, choose_joinings(vocabulary, encoder.tokenizer, self.settings.inserted_as)


def _make_plan(method: base.Method, job: base.Job[Any], runner: Runner) -> base.PlanRecord:
    """Make the plan, and make it again whenever the server refuses one of its texts, without this text."""
    while True:
        refused_before = len(refused_texts(job.encoder))
        try:
            plan: base.PlanRecord = method.make_plan(job, runner)
        except EncodingError:
            if len(refused_texts(job.encoder)) == refused_before:  # another plan would fail likewise
                raise
        else:
            return plan


def _make_record(
    job: base.Job[base.MethodSettings], method: str, model: EncoderIdentity
) -> run_folder.RunRecord:
    """Return the record of a run that is about to start."""
    encoder = job.encoder
    tokens = None if job.scope is base.Scope.WHOLE else digest([token.id for token in job.tokens])
    parts = resume.identity_of(
        IDENTITY_VERSION,
        model,
        job.settings,
        method=method,
        corpus=job.corpus.fingerprint,
        tokens=tokens,
    )
    if method == "profile":
        from stickytoken.methods import profile

        # Its ``corpus`` replaces the one above: profile draws texts by topic, so its hash covers the topics.
        parts |= profile.identity_parts(job)
    capabilities = capabilities_of(encoder)
    spec = capabilities.spec
    model_record = run_folder.ModelRecord(
        name=encoder.name,
        vocabulary=len(job.vocabulary),
        available=len(job.vocabulary.available),
        device=encoder.device,
        parameters=capabilities.parameters,
        loading=None if spec is None else run_folder.LoadingRecord.of(spec),
        route=capabilities.route,
        folder=_folder_of(spec),
    )
    return run_folder.RunRecord(
        identity=digest(parts),
        identity_parts=parts,
        method=method,
        model=model_record,
        corpus=_corpus_record(job.corpus),
        tokens=len(job.tokens),
        settings=asdict(job.settings),
        versions=resume.package_versions(),
        hardware=resume.hardware(encoder.device),
        started=resume.now(),
    )


def _folder_of(spec: EncoderSpec | None) -> str | None:
    if spec is None or spec.endpoint is not None or not Path(spec.model).is_dir():
        return None
    return str(Path(spec.model).resolve())


def _corpus_record(corpus: readers.Sentences | readers.PairCorpus) -> run_folder.CorpusRecord:
    if isinstance(corpus, readers.PairCorpus):
        return run_folder.CorpusRecord(source=corpus.source, sentences=None, unknown=corpus.unknown)
    return run_folder.CorpusRecord(
        source=corpus.source,
        sentences=len(corpus),
        unknown=corpus.unknown,
        blank=corpus.blank,
        duplicates=corpus.duplicates,
        too_long=corpus.too_long,
        columns=corpus.columns,
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
    """Measure the tokens that the caller names, without writing a run folder.

    Args:
        encoder: The model: an encoder, or anything else that `load_encoder` takes.
        tokens: Ids or texts of tokens, or files of them. Unless the insertion is ``ids``, every token must
            be able to occur in text.
        method: Name of the method. If None, it is the method that the settings belong to, or else the first
            method that accepts the input.
        sentences: The corpus: a list of sentences, or anything else that `load_sentences` takes. If None, the
            bundled corpus is used.
        pairs: Sentence pairs, or a file of them, instead of sentences. Only some methods accept pairs.
        settings: Settings of the method. If None, the defaults are used. Unless they say how copies are
            inserted, it is by ``words`` if the model only accepts text.
        progress: Called with the progress at every step.

    Returns:
        What the method measured for each token, in the order of ``tokens``.

    Raises:
        InputError: A token cannot be probed, or an input cannot be used.
        EncodingError: A server gives no vector for a text with copies of a token.

    Examples:
        >>> import numpy as np
        >>> def embed(texts):
        ...     counts = [[1 + text.count(letter) for letter in "aeioudlnrst"] for text in texts]
        ...     return np.array(counts, dtype=np.float32)
        >>> encoder = stickytoken.load_encoder(embed, candidates=["river", "tttt"])
        >>> settings = stickytoken.ProfileSettings(screening_texts=2, confirming_texts=4)
        >>> river, _ = stickytoken.probe(encoder, ["river", "tttt"], settings=settings)
        >>> river.verdict
        'benign'
    """
    question = _Question.from_arguments(encoder, method, settings, sentences, pairs, progress)
    settings = question.settings
    encoder = question.load(encoder)
    corpus, vocabulary = question.read_with(encoder)
    ids = token_ids(vocabulary, tokens)
    if settings.inserted_as is not Insertion.IDS:
        advice = "to probe it, insert its id instead of text (insertion 'ids')"
        ids = reachable_ids(vocabulary, ids, advice)
    probed = [vocabulary.token(vocabulary.index_of(token_id)) for token_id in ids]
    job = base.Job(encoder, settings, corpus, vocabulary, probed, scope=base.Scope.NAMED)
    return question.method.probe(job, progress)
