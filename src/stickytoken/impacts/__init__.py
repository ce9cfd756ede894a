"""Measure what sticky tokens cost in similarity, retrieval, clustering, classification and intrusion."""

from __future__ import annotations

import re
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeAlias, TypeVar, cast

import numpy as np
import polars as pl
from numpy.typing import NDArray

import stickytoken.measurement as store
from stickytoken.data import bundled_frame, load_sentences, tasks as task_data
from stickytoken.data.metrics import Outcomes, Task, Values, fingerprint
from stickytoken.data.tasks import AnyTask, MtebTask
from stickytoken.detection import TokenSource, available_tokens, token_ids
from stickytoken.detection.run import Run, encoder_for, flagged_tokens, open_run, worst_tokens
from stickytoken.encoders import protocol
from stickytoken.encoders.loading import AnyModel
from stickytoken.encoders.protocol import Encoder, IdEncoder, similarity_of
from stickytoken.errors import InputError
from stickytoken.impacts import results, statistics
from stickytoken.impacts.results import Impact, ImpactSettings, TaskRecord, TokenRecord, open_impact
from stickytoken.impacts.statistics import COPIES, TOP, Carrier, Condition, Rows, needed_room, prepare, probe
from stickytoken.insertion import Insertion, Placement, Probe, Side, Token
from stickytoken.machine import digest
from stickytoken.measurement import ResultFolder, ShardCost, engine as engines, resume
from stickytoken.measurement.ray_engine import EngineChoice, chosen_engine
from stickytoken.unit_vectors import Similarity
from stickytoken.validation import file_path, list_of, or_default, require_callable
from stickytoken.vocabulary import categorize, match_apart

if TYPE_CHECKING:
    from mteb.abstasks import AbsTask
    from torch.utils.data import DataLoader

__all__ = ["Impact", "ImpactSettings", "Side", "impact", "open_impact"]

TaskSource: TypeAlias = "str | Path | Task | AbsTask"

# Increase it when the same inputs give different numbers than before.
_IDENTITY_VERSION = 2


def impact(
    encoder: AnyModel | None = None,
    tasks: TaskSource | Sequence[TaskSource] = (),
    *,
    run: Run | str | Path | None = None,
    tokens: TokenSource | None = None,
    exclude: Iterable[int | str] = (),
    intrusion: str | Path | None = None,
    settings: ImpactSettings | None = None,
    out: str | Path | None = None,
    engine: EngineChoice = "local",
    progress: engines.ProgressCallback = engines.ignore_progress,
) -> Impact:
    """Measure what tokens cost. The same call continues an interrupted measurement.

    Every task is measured on clean texts, with copies of each sticky token, with copies of
    each matched benign token, and with mixtures of either.

    Args:
        encoder: anything that `load_encoder` takes, or an encoder; None loads the model of the run.
        tasks: files or folders with a known layout, names of MTEB tasks, or MTEB tasks; one or several.
        run: a finished run of this model, whose sticky tokens are measured.
        tokens: ids or texts of the tokens to measure instead, or a file of them.
        exclude: ids or texts of tokens that must not be used as benign tokens, in addition to those that the
            run flagged.
        intrusion: documents to insert copies into, to test whether queries find them: a BEIR folder, a file
            of documents, or ``bundled``.
        settings: settings of the measurement; None takes the defaults.
        out: the folder; None takes ``impact-<identity>`` in the run folder, where the run's report finds it,
            or ``runs/<model>-impact-<identity>`` without a run.
        engine: where to compute, as in `detect`. It changes no number beyond rounding, and a measurement can
            be continued on another engine.
        progress: called after every step.

    Returns:
        The finished measurement; tasks whose data could not be loaded are in its ``failed``.

    Raises:
        InputError: tasks, tokens or settings cannot be used, or no task could be run.
        EncodingError: a text has no usable vector.
        RunError: the run belongs to another model, or the folder belongs to another measurement or is in use.
        MissingExtraError: a task needs an extra (``mteb`` or ``impact``) that is not installed.
    """
    given, settings = settings, or_default("settings", settings, ImpactSettings())
    require_callable("progress", progress)
    if out is not None:
        out = file_path("out", out)
        results.require_place(out)
    intrusion = None if intrusion is None else file_path("intrusion", intrusion)
    run = None if run is None else open_run(run)
    single = isinstance(tasks, (str, Path)) or hasattr(tasks, "outcomes")
    chosen: list[TaskSource] = [cast("TaskSource", tasks)] if single else list_of("tasks", "tasks", tasks)
    model = encoder_for(encoder, run, "impact")
    if given is None and not protocol.reads_ids(model):
        settings = replace(settings, insertion=Insertion.TEXT)
    reading = (
        protocol.require_ids(model, "insertion 'ids'", "set insertion to 'text'")
        if settings.insertion is Insertion.IDS
        else protocol.require_words(model, "impact")
    )
    if not chosen and intrusion is None:
        raise InputError("there is nothing to measure: pass a task, or documents for an intrusion")
    loaded, notes = _loaded(chosen)
    listed = _tokens(reading, run, tokens, exclude, settings)
    sticky = [Token(each.token_id, each.text) for each in listed if each.kind != "benign"]
    benign = [Token(each.token_id, each.text) for each in listed if each.kind == "benign"]
    named = sorted(each.token_id for each in listed if each.kind == statistics.NAMED)
    if run is None:
        notes.append("no run says which tokens are sticky, so a benign token may be one of them")
    corpus = None if intrusion is None else load_search_corpus(intrusion, settings.seed)
    parts = resume.identity_of(
        _IDENTITY_VERSION,
        reading.identity,
        settings,
        tasks={task.name: task.fingerprint for task in loaded},
        intrusion=corpus.fingerprint if corpus else None,
        sticky=[token.id for token in sticky],
        benign=[token.id for token in benign],
        **({"named": named} if named else {}),
        **_noted_similarity(reading, notes),
    )
    record = results.ImpactRecord(
        identity=digest(parts),
        identity_parts=parts,
        model=reading.name,
        device=reading.device,
        settings=asdict(settings),
        tokens=listed,
        notes=notes,
        versions=resume.package_versions(),
        hardware=resume.hardware(reading.device),
        started=resume.now(),
    )
    if out is None and run is not None:
        out = run.path / store.folder_name(results.IMPACT, record.identity)
    out = out or store.default_folder(record.model, results.IMPACT, record.identity)
    folder = ResultFolder(out)
    conditions = statistics.make_conditions(sticky, benign, settings.seed, settings.seeds)
    with resume.resumed(folder, results.IMPACTS, record) as held:
        if held.finished:
            return open_impact(out)
        held.begin(held.record.model_copy(update={"result": None}))
        with chosen_engine(engine, reading) as opened:
            runner = Runner(reading, settings, conditions, opened, folder, progress)
            by_id = {each.token_id: each for each in listed}
            rows, records, failed = _run_tasks(loaded, runner, by_id)
            if failed and not records and corpus is None:
                reason = next(iter(failed.values()))
                raise InputError(f"no task could be run ({', '.join(failed)}): {reason}")
            if corpus is not None:
                rows |= run_intrusion(runner, corpus, by_id)
            cost = folder.total_cost(runner.shards)
            result = results.ImpactResultRecord(
                sequences=cost.sequences, seconds=round(cost.seconds, 1), failed=failed, tasks=records
            )
            finished = held.record.model_copy(update={"result": result})
            for name, columns in results.TABLES.items():
                folder.write_table(name, pl.DataFrame(rows[Path(name).stem], columns))
            folder.write_text("impact.md", statistics.impact_markdown(finished, rows))
            held.finish(finished)
            for path in out.glob(f"{VECTORS}*.npz"):  # the shards contain all outcomes
                path.unlink(missing_ok=True)
        return open_impact(out)


def _noted_similarity(encoder: Encoder, notes: list[str]) -> dict[str, str]:
    """Return what the model's own similarity adds to the identity, and add it to the notes."""
    similarity = similarity_of(encoder)
    if similarity is Similarity.COSINE:  # the identity is what it was before there were others
        return {}
    notes.append(f"vectors are compared by the model's own similarity, {similarity}")
    return {"similarity": similarity.value}


def _loaded(sources: Sequence[TaskSource]) -> tuple[list[AnyTask], list[str]]:
    tasks: list[AnyTask] = []
    notes: list[str] = []
    for source in sources:
        if isinstance(source, (str, Path)):
            task, about = task_data.find_task(source)
            tasks.append(task)
            notes += about
        else:
            known = hasattr(source, "outcomes")
            tasks.append(cast("Task", source) if known else task_data.find_mteb_task(source))
    stages = Counter(shard_stage(task.name) for task in tasks)
    if twice := [task.name for task in tasks if stages[shard_stage(task.name)] > 1]:
        raise InputError(f"two tasks have the name {twice[0]!r}: rename a file, or measure them separately")
    return tasks, notes


def _tokens(
    encoder: protocol.WordEncoder,
    run: Run | None,
    tokens: TokenSource | None,
    exclude: Iterable[int | str],
    settings: ImpactSettings,
) -> list[TokenRecord]:
    known = categorize(encoder.tokenizer)
    if tokens is not None:
        wanted = token_ids(known, tokens)
    elif run is not None:
        wanted = worst_tokens(run, settings.sticky)
    else:
        raise InputError(
            "no tokens to measure: pass the folder of a finished run, or name the tokens (--tokens)"
        )
    sticky = available_tokens(known, wanted)
    barred = set(flagged_tokens(run))
    if excluded := list_of("token ids or texts", "exclude", exclude, ordered=False):
        barred.update(token_ids(known, excluded))
    barred |= {token.id for token in known.available if not encoder.fits((token.id,))}
    benign = match_apart(known, [token.id for token in sticky], barred, settings.benign, settings.seed)
    verdicts = set() if run is None else set(run.sticky["token_id"])
    kinds = ["sticky" if token.id in verdicts else statistics.NAMED for token in sticky]
    # The first match of every measured token comes first, then the second.
    matches = [None] * len(sticky) + [sticky[place % len(sticky)].id for place in range(len(benign))]
    listed = zip([*sticky, *benign], kinds + ["benign"] * len(benign), matches, strict=True)
    names = dict(zip(known.ids, known.tokens, strict=True))
    return [
        TokenRecord(token_id=token.id, token=names[token.id], text=token.text, kind=kind, matched_to=match)
        for token, kind, match in listed
    ]


def _run_tasks(
    tasks: Sequence[AnyTask], runner: Runner, listed: Mapping[int, TokenRecord]
) -> tuple[dict[str, Rows], list[TaskRecord], dict[str, str]]:
    settings, conditions = runner.settings, runner.conditions
    rows: dict[str, Rows] = {Path(name).stem: [] for name in results.TABLES}
    records: list[TaskRecord] = []
    failed: dict[str, str] = {}
    for task in tasks:
        if isinstance(task, MtebTask):
            reading = protocol.require_ids(runner.encoder, "an MTEB task", "use a task from files")
            room = needed_room(reading, conditions, settings.copies, Insertion.TEXT)
            work = _MtebWork(shard_stage(task.name), task, settings, room)
            make_work, columns = (lambda work=work: (work, ShardCost(0, 0))), (*task.columns, _TEXTS, _CUT)
            try:
                found = runner.run(work.name, make_work, task.units, columns, conditions, task.name)
            except task_data.UnreachableTaskError as error:
                failed[task.name] = str(error)
                continue
            texts, cut = found[-1, -1, -2:].astype(int).tolist()
            outcomes, record = found[:, :, :-2], task_record(task, texts, texts, cut)
        else:
            outcomes, record = run_task(runner, task)
        records.append(record)
        for table, own in statistics.task_rows(task, outcomes, conditions, settings, listed).items():
            rows[table] += own
    # Only the main metrics count as tests.
    p_values = [row["p_value"] if row["main"] else None for row in rows["effects"]]
    for row, q_value in zip(rows["effects"], statistics.corrected(p_values), strict=True):
        row["q_value"] = q_value
    return rows, records, failed


T = TypeVar("T")

# Number of inputs without copies that an engine encodes at a time.
SHARD_PROBES = 8192
UNIT = "unit"
VECTORS = "vectors-"  # begins the names of files with vectors of a measurement that is not finished


@dataclass(frozen=True)
class CleanVectors:
    probes: tuple[Probe, ...]  # all distinct inputs without copies, shared by all conditions
    vectors: NDArray[np.float32]  # shape (n, d)

    @cached_property
    def places(self) -> dict[Probe, int]:
        return {probe: place for place, probe in enumerate(self.probes)}

    def of(
        self, probes: Sequence[Probe], encoder: Encoder, edited: dict[Probe, NDArray[np.float32]]
    ) -> NDArray[np.float32]:
        clean = self.places  # what is neither here nor in `edited` is encoded and added to that
        if missing := [each for each in dict.fromkeys(probes) if each not in clean and each not in edited]:
            tokenized = engines.tokenized_probes(encoder, missing)
            edited.update(zip(missing, engines.encode_probes(encoder, tokenized), strict=True))
        return np.stack([self.vectors[clean[each]] if each in clean else edited[each] for each in probes])


@dataclass(frozen=True)
class Shard(Generic[T]):
    index: int
    items: tuple[T, ...]


@dataclass(frozen=True)
class _Encoding:
    name: str

    def prepare(self, shard: Shard[Probe], encoder: Encoder) -> Sequence[Probe]:
        return engines.tokenized_probes(encoder, shard.items)

    def compute(self, prepared: Sequence[Probe], encoder: Encoder) -> tuple[list[dict[str, Any]], int]:
        return [{"vectors": engines.encode_probes(encoder, prepared)}], len(prepared)


# All repetitions of a token: a session that began between them would form other batches.
Group: TypeAlias = tuple[Condition, ...]


class GroupWork:
    def prepare(self, shard: Shard[Condition], encoder: Encoder) -> Group:
        del encoder  # probes are made when they are encoded, which limits memory
        return shard.items


@dataclass(frozen=True)
class Runner:
    encoder: protocol.WordEncoder
    settings: ImpactSettings
    conditions: Sequence[Condition]
    engine: engines.Engine
    folder: ResultFolder
    progress: engines.ProgressCallback
    shards: dict[str, int] = field(default_factory=dict)  # numbers of shards of what was run

    def clean(self, name: str, probes: Sequence[Probe]) -> tuple[CleanVectors, ShardCost]:
        distinct, file = tuple(dict.fromkeys(probes)), self.folder.path / f"{VECTORS}{name}.npz"
        found: tuple[NDArray[np.float32], float] | None = None
        try:
            # NumPy leaves a damaged file open if it opened it itself.
            with file.open("rb") as stored, np.load(stored, allow_pickle=False) as content:
                found = content["vectors"], float(content["seconds"])
        except (OSError, EOFError, ValueError, KeyError, RuntimeError, zipfile.BadZipFile):
            pass  # missing or damaged
        if found is None:
            started = time.perf_counter()
            starts = range(0, len(distinct), SHARD_PROBES)
            shards = [Shard(k, distinct[begin : begin + SHARD_PROBES]) for k, begin in enumerate(starts)]
            computed = self.engine.compute(_Encoding(file.stem), shards)
            in_order = sorted(computed, key=lambda each: each.shard.index)
            vectors = np.concatenate([each.rows[0]["vectors"] for each in in_order])
            found = vectors, time.perf_counter() - started
            spent = np.array(found[1])
            store.write_atomically(file, lambda stream: np.savez(stream, vectors=vectors, seconds=spent))
        return CleanVectors(distinct, found[0]), ShardCost(found[1], len(distinct))

    def run(
        self,
        name: str,
        make_work: Callable[[], tuple[engines.Work[Shard[Condition], Any], ShardCost]],
        units: int,
        columns: Sequence[str],
        conditions: Sequence[Condition],
        title: str,
    ) -> NDArray[np.float64]:
        groups = [Shard(index, each) for index, each in enumerate(statistics.by_tokens(conditions))]
        rows: engines.Rows[Shard[Condition]] = engines.Rows(
            lambda group: [*range(units)] * len(group.items), UNIT, lambda _: 1
        )
        found = engines.run_work(
            name, make_work, groups, rows, self.engine, self.folder, self.progress, title
        )
        self.shards[name] = len(groups)  # of a task that could not be run, there are none
        values = pl.concat(found).select(columns).to_numpy().astype(np.float64)
        return values.reshape(-1, units, len(columns))


@dataclass(frozen=True)
class TaskWork(GroupWork):
    name: str
    task: Task
    carriers: Mapping[str, Sequence[Carrier]]
    edited: frozenset[str]
    settings: ImpactSettings
    clean: CleanVectors
    similarity: Similarity

    def compute(self, prepared: Group, encoder: Encoder) -> tuple[list[dict[str, Any]], int]:
        edited: dict[Probe, NDArray[np.float32]] = {}
        rows = []
        for condition in prepared:
            by_role = {}
            for role, carriers in self.carriers.items():
                copies = self.settings.copies if role in self.edited else 0
                probes = [probe(self.settings, each, condition, copies) for each in carriers]
                by_role[role] = self.clean.of(probes, encoder, edited)
            outcomes = self.task.outcomes(by_role, condition.seed, self.similarity)
            rows += as_rows(self.task.columns, outcomes)
        return rows, len(edited)


def as_rows(columns: Sequence[str], outcomes: Outcomes) -> list[dict[str, Any]]:
    return [
        {UNIT: unit, **dict(zip(columns, row, strict=True))} for unit, row in enumerate(outcomes.tolist())
    ]


def run_task(runner: Runner, task: Task) -> tuple[NDArray[np.float64], TaskRecord]:
    settings, conditions = runner.settings, runner.conditions
    edited, name, insertion = task.edited(settings.side), shard_stage(task.name), settings.insertion
    room = needed_room(runner.encoder, conditions, settings.copies, insertion)
    carriers = {
        role: prepare(runner.encoder, texts, room if role in edited else 0, insertion, task.name)
        for role, texts in task.texts.items()
    }
    everything = [carrier for each in carriers.values() for carrier in each]

    def make_work() -> tuple[TaskWork, ShardCost]:
        clean, spent = runner.clean(name, [carrier.clean(insertion) for carrier in everything])
        similarity = similarity_of(runner.encoder)
        return TaskWork(name, task, carriers, edited, settings, clean, similarity), spent

    outcomes = runner.run(name, make_work, task.units, task.columns, conditions, task.name)
    cut = sum(carrier.cut for carrier in everything)
    return outcomes, task_record(task, len(everything), sum(len(carriers[role]) for role in edited), cut)


def task_record(task: AnyTask, texts: int, edited: int, cut: int) -> TaskRecord:
    about: dict[str, Any] = {name: getattr(task, name) for name in ("name", "layout", "unit", "units")}
    return TaskRecord(texts=texts, edited=edited, cut=cut, metrics=list(task.metrics), **about)


def shard_stage(name: str) -> str:
    return "task-" + re.sub(r"[^A-Za-z0-9._]+", "-", name)


_QUERIES = 200
# Hits, then median ranks, for each number of copies.
_COLUMNS = tuple(f"{kind}_{copies}" for kind in ("hits", "rank") for copies in COPIES)


class SearchCorpus(NamedTuple):
    name: str
    queries: Sequence[str]
    documents: Sequence[str]
    fingerprint: str


def load_search_corpus(source: str | Path, seed: int) -> SearchCorpus:
    if str(source) == "bundled":  # one of each pair of paraphrases is a query
        pairs = bundled_frame().group_by("pair_id", maintain_order=True).agg("sentence")["sentence"]
        chosen = np.random.default_rng(seed).permutation(len(pairs))[:_QUERIES]
        queries = [pairs[int(place)][0] for place in sorted(chosen)]
        documents = [sentence for pair in pairs for sentence in pair if sentence not in set(queries)]
        name = "bundled sentences"
    elif (path := Path(source).expanduser()).is_dir():
        texts, searched = path / task_data.CORPUS, path / task_data.QUERIES
        if not texts.is_file() or not searched.is_file():
            raise InputError(
                f"the folder {path} does not contain {texts.name} and {searched.name}: pass a BEIR folder or "
                "a file"
            )
        documents = [text for text in task_data.read_texts(texts, titles=True).values() if text]
        queries, name = list(task_data.read_queries(searched).values()), path.resolve().name
    else:  # random documents of a file are the queries
        sentences = load_sentences(path)
        order = np.random.default_rng(seed).permutation(len(sentences))
        count = min(_QUERIES, len(sentences) // 3)
        queries, documents = (
            [sentences.texts[place] for place in sorted(part)] for part in (order[:count], order[count:])
        )
        name = path.resolve().stem
    if len(documents) <= 2 * TOP or not queries:
        raise InputError(
            f"{name} has {len(documents)} documents and {len(queries)} queries: "
            f"a top {TOP} needs more than {2 * TOP} documents and at least one query"
        )
    return SearchCorpus(name, queries, documents, fingerprint("intrusion", queries, documents, COPIES, TOP))


@dataclass(frozen=True)
class _IntrusionWork(GroupWork):
    name: str
    places: Sequence[int]
    targets: Sequence[Carrier]
    settings: ImpactSettings
    queries: Sequence[Probe]
    documents: Sequence[Probe]
    clean: CleanVectors
    similarity: Similarity

    def compute(self, prepared: Group, encoder: Encoder) -> tuple[Rows, int]:
        (condition,) = prepared
        edited: dict[Probe, NDArray[np.float32]] = {}
        probes = [
            probe(self.settings, target, condition, copies) for target in self.targets for copies in COPIES
        ]
        # Rank each vector among the other documents, shape (queries, vectors); it wins ties.
        queries, similarities, in_order = self._searched
        vectors = self.similarity.prepared(self.clean.of(probes, encoder, edited))
        found = self.similarity.of_all(queries, vectors)
        own = np.repeat(self.places, len(COPIES))
        above = [
            len(row) - np.searchsorted(row, each, side="right")
            for row, each in zip(in_order, found, strict=True)
        ]
        ranks = 1 + np.stack(above) - (similarities[:, own] > found)
        shape = len(self.targets), len(COPIES)
        hits = (ranks <= TOP).sum(axis=0).reshape(shape)
        middle = np.median(ranks, axis=0).reshape(shape)
        return as_rows(_COLUMNS, np.hstack([hits, middle]).astype(np.float64)), len(edited)

    @cached_property
    def _searched(self) -> tuple[Values, Values, Values]:
        """Return the queries, their similarities to all documents, and these in ascending order."""
        places = self.clean.places
        queries, documents = (
            self.similarity.prepared(self.clean.vectors[[places[text] for text in texts]])
            for texts in (self.queries, self.documents)
        )
        similarities = self.similarity.of_all(queries, documents)
        return queries, similarities, np.sort(similarities, axis=1)


def run_intrusion(runner: Runner, corpus: SearchCorpus, listed: Mapping[int, TokenRecord]) -> dict[str, Rows]:
    encoder, settings = runner.encoder, runner.settings
    conditions = [each for each in runner.conditions if len(each.tokens) == 1 and each.repetition == 0]
    insertion, name = settings.insertion, f"intrusion-{shard_stage(corpus.name)}"
    drawn = np.random.default_rng([settings.seed, len(corpus.documents)]).permutation(len(corpus.documents))
    places = sorted(drawn[:50].tolist())
    room = needed_room(encoder, conditions, COPIES[-1], insertion)
    chosen = [corpus.documents[place] for place in places]
    targets = prepare(encoder, chosen, room, insertion, corpus.name)
    documents, queries = (
        [each.clean(insertion) for each in prepare(encoder, texts, 0, insertion, corpus.name)]
        for texts in (corpus.documents, corpus.queries)
    )

    def make_work() -> tuple[_IntrusionWork, ShardCost]:
        probes = [*queries, *documents, *(target.clean(insertion) for target in targets)]
        clean, spent = runner.clean(name, probes)
        work = _IntrusionWork(
            name, places, targets, settings, queries, documents, clean, similarity_of(encoder)
        )
        return work, spent

    title = f"intrusion into {corpus.name}"
    found = runner.run(name, make_work, len(targets), _COLUMNS, conditions, title)
    cut = sum(target.cut for target in targets)
    return statistics.intrusion_rows(corpus.name, found, conditions, settings, listed, cut)


class EditingEncoder:
    """MTEB's own wrapper of a SentenceTransformer, which gets edited texts."""

    # No condition gets another's vectors or scores: caches know texts as edited, and results their condition.

    def __init__(self, encoder: IdEncoder, condition: Condition, settings: ImpactSettings, room: int) -> None:
        from mteb.models import SentenceTransformerEncoderWrapper

        self._encoder = encoder
        self._condition = condition
        self._settings = replace(settings, insertion=Insertion.TEXT)
        self._room = room
        self._inner: Any = SentenceTransformerEncoderWrapper(task_data.require_module(encoder))
        self.similarity = self._inner.similarity
        self.similarity_pairwise = self._inner.similarity_pairwise
        self.encoded = self.cut = 0
        identity = [asdict(encoder.identity), asdict(condition), asdict(self._settings), room]
        self.mteb_model_meta = self._inner.mteb_model_meta.model_copy(
            update={"name": f"stickytoken/{condition.kind.value}", "revision": digest(identity)}
        )

    def encode(self, inputs: DataLoader[Any], *, prompt_type: Any = None, **options: Any) -> Any:
        side = self._settings.side
        # Tasks without sides are always edited.
        if prompt_type is None or side is Side.BOTH or str(prompt_type.value) == side.value:
            from datasets import Dataset
            from torch.utils.data import DataLoader as Loader

            texts = self.edit([text for batch in inputs for text in batch["text"]])
            inputs = Loader(Dataset.from_dict({"text": texts}), batch_size=inputs.batch_size or 32)
        self.encoded += len(inputs.dataset)  # type: ignore[arg-type]
        return self._inner.encode(inputs, prompt_type=prompt_type, **options)

    def edit(self, texts: Sequence[str]) -> list[str]:
        if not self._condition.tokens and not self._room:
            return list(texts)
        carriers = prepare(self._encoder, texts, self._room, Insertion.TEXT, "an MTEB task")
        self.cut += sum(carrier.cut for carrier in carriers)
        settings = self._settings
        return [str(probe(settings, each, self._condition, settings.copies)) for each in carriers]


# Columns besides the score: numbers of texts encoded and truncated.
_TEXTS, _CUT = "texts", "cut"


@dataclass(frozen=True)
class _MtebWork(GroupWork):
    name: str
    task: MtebTask
    settings: ImpactSettings
    room: int

    def compute(self, prepared: Group, encoder: Encoder) -> tuple[list[dict[str, Any]], int]:
        task_data.load_data(self.task)
        reading = protocol.require_ids(encoder, "impact")
        found: dict[int | None, dict[str, Any]] = {}
        rows: list[dict[str, Any]] = []
        for condition in prepared:  # repetitions that edit texts alike are evaluated once
            placed = bool(condition.tokens) and self.settings.placement is Placement.RANDOM
            edit = condition.seed if placed or len(condition.tokens) > 1 else None
            if edit not in found:
                model = EditingEncoder(reading, condition, self.settings, self.room)
                score = {UNIT: 0, self.task.columns[0]: task_data.evaluate(model, self.task)}
                found[edit] = score | {_TEXTS: model.encoded, _CUT: model.cut}
            rows.append(found[edit])
        return rows, sum(row[_TEXTS] for row in found.values())
