"""Coordinate a detection: identify, plan, compute, decide, commit."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import polars as pl

from stickytoken.detection.pairs import SentencePair
from stickytoken.detection.stage import Shard, Stage, cut_into_shards
from stickytoken.detection.std.settings import StdSettings
from stickytoken.encoders.protocol import Encoder
from stickytoken.errors import InputError, RunError
from stickytoken.insertion import Token
from stickytoken.runs.corpora import PairCorpus, choose_corpus, corpus_record
from stickytoken.runs.engines.local import run_stage
from stickytoken.runs.environment import hardware, now, package_versions
from stickytoken.runs.identity import differences, digest, identity_parts
from stickytoken.runs.progress import ProgressCallback, ignore_progress
from stickytoken.runs.run import Run, open_run
from stickytoken.runs.schema import ModelRecord, ResultRecord, RunRecord, StdPlanRecord
from stickytoken.runs.selection import choose_tokens
from stickytoken.runs.std_plan import make_plan, scoring_stage, validation_stage
from stickytoken.runs.std_results import choose_candidates, decide
from stickytoken.runs.store import PLAN_FILE, RUN_FILE, TOKENS_FILE, VOCABULARY_FILE, RunFolder
from stickytoken.sentences import Sentences
from stickytoken.vocabulary import Vocabulary, categorize

METHODS = ("std",)
# Texts a shard: what a kill loses, and enough of every length to fill batches.
_SHARD_PROBES = 8192
_IDENTITY_SHOWN = 12


def detect(
    encoder: Encoder,
    *,
    method: str = "std",
    sentences: Sentences | str | Path | None = None,
    pairs: Sequence[SentencePair] | str | Path | None = None,
    tokens: Sequence[int] | None = None,
    sample: int | None = None,
    settings: StdSettings | None = None,
    seed: int | None = None,
    out: str | Path | None = None,
    progress: ProgressCallback = ignore_progress,
) -> Run:
    """Find sticky tokens. The same call continues a run that was cut off.

    Args:
        encoder: the model, from `load_encoder`.
        method: ``std``, the paper's.
        sentences: the corpus, or what `load_sentences` takes; None is the bundled one.
        pairs: pairs, or a file of them, in place of sampling from sentences.
        tokens: ids of the tokens to look at; None is all available ones.
        sample: look at a random sample of this many of them.
        settings: of the method; None is the published ones.
        seed: replaces the seed of the settings.
        out: the run folder; None is ``runs/<model>-<method>-<identity>``.
        progress: told of every step.

    Returns:
        The finished run. A run that was finished before is opened, not computed again.

    Raises:
        InputError: sentences, pairs, tokens or settings that cannot be used.
        EncodingError: a text without a usable vector.
        RunError: the folder belongs to another run or process, or cannot be written.
    """
    if method not in METHODS:
        raise InputError(f"method {method!r} is unknown: use {', '.join(METHODS)}")
    settings = settings or StdSettings()
    if seed is not None:
        settings = replace(settings, seed=seed)
    corpus = choose_corpus(sentences, pairs)
    vocabulary = categorize(encoder.tokenizer)
    chosen = choose_tokens(vocabulary, tokens, sample, settings.seed)
    restricted = None if tokens is None and sample is None else chosen
    parts = identity_parts(encoder.identity, method, settings, corpus.fingerprint, restricted)
    record = RunRecord(
        identity=digest(parts),
        identity_parts=parts,
        method="std",
        model=ModelRecord(
            name=encoder.name,
            vocabulary=len(vocabulary),
            available=len(vocabulary.available),
            device=encoder.device,
            parameters=getattr(encoder, "parameters", None),
        ),
        corpus=corpus_record(corpus),
        tokens=len(chosen),
        settings=asdict(settings),
        versions=package_versions(),
        hardware=hardware(encoder.device),
        started=now(),
    )
    path = Path(out).expanduser() if out is not None else _default_path(encoder.name, record)
    return _execute(_Job(encoder, settings, corpus, vocabulary, chosen, record), RunFolder(path), progress)


@dataclass(frozen=True)
class _Job:
    encoder: Encoder
    settings: StdSettings
    corpus: Sentences | PairCorpus
    vocabulary: Vocabulary
    tokens: list[Token]
    record: RunRecord


def _execute(job: _Job, folder: RunFolder, progress: ProgressCallback) -> Run:
    if folder.holds_other_files():
        raise RunError(f"{folder.path} holds files but no run: choose an empty or a new folder")
    with folder.locked():
        if folder.holds_run():
            earlier = folder.read_run()
            _require_same(earlier, job.record, folder)
            if earlier.result is not None and (folder.path / TOKENS_FILE).is_file():
                return open_run(folder.path)
        _compute(job, folder, progress)
    return open_run(folder.path)


def _compute(job: _Job, folder: RunFolder, progress: ProgressCallback) -> None:
    vocabulary = job.vocabulary.frame()
    plan = folder.read_plan(StdPlanRecord)
    if plan is None:
        plan = make_plan(job.encoder, job.settings, job.corpus, progress)
    record = folder.read_run() if folder.holds_run() else job.record
    folder.write_record(RUN_FILE, record)  # only now: input that cannot be planned must not block the folder
    folder.write_record(PLAN_FILE, plan)
    folder.write_table(VOCABULARY_FILE, vocabulary)
    scoring = scoring_stage(job.encoder, job.settings, plan, job.vocabulary.available, job.tokens)
    scores = _run(scoring, job.tokens, job.encoder, folder, progress)
    candidates = choose_candidates(scores, job.settings)
    wanted = set(candidates.ids)
    validation = validation_stage(job.encoder, job.settings, plan)
    validated = [token for token in job.tokens if token.id in wanted]
    verdicts = decide(
        vocabulary, scores, _run(validation, validated, job.encoder, folder, progress), job.settings
    )
    folder.write_table(TOKENS_FILE, verdicts.tokens)
    cost = folder.total_cost(
        {
            stage.name: len(_shards(stage, tokens))
            for stage, tokens in ((scoring, job.tokens), (validation, validated))
        }
    )
    result = ResultRecord(
        scored=len(job.tokens),
        candidates=len(candidates.ids),
        sticky=int((verdicts.tokens["verdict"] == "sticky").sum()),
        score_threshold=candidates.threshold,
        rate_threshold=verdicts.threshold,
        sequences=cost.sequences,
        seconds=round(cost.seconds, 1),
    )
    folder.write_record(RUN_FILE, record.model_copy(update={"result": result}))


def _run(
    stage: Stage, tokens: Sequence[Token], encoder: Encoder, folder: RunFolder, progress: ProgressCallback
) -> pl.DataFrame:
    return run_stage(stage, _shards(stage, tokens), encoder, folder, progress)


def _shards(stage: Stage, tokens: Sequence[Token]) -> list[Shard]:
    return cut_into_shards(tokens, stage.probes_per_token, _SHARD_PROBES)


def _require_same(earlier: RunRecord, ours: RunRecord, folder: RunFolder) -> None:
    if earlier.identity == ours.identity:
        return
    parts = ", ".join(differences(ours.identity_parts, earlier.identity_parts)) or "its identity"
    raise RunError(f"{folder.path} holds another run (it differs in {parts}): choose another folder")


def _default_path(name: str, record: RunRecord) -> Path:
    stem = re.sub(r"[^A-Za-z0-9._]+", "-", Path(name).name).strip("-.") or "model"
    return Path("runs") / f"{stem}-{record.method}-{record.identity[:_IDENTITY_SHOWN]}"
