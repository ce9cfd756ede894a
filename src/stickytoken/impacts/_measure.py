"""Run an impact measurement: choose tokens, run tasks, compare, commit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import polars as pl

from stickytoken.detection.model_files import encoder_for, worst_tokens
from stickytoken.detection.run import Run, open_run
from stickytoken.detection.run_folder import flagged_tokens
from stickytoken.detection.selection import TokenSource, available_tokens, token_ids
from stickytoken.encoders.loading.load import AnyModel
from stickytoken.encoders.protocol import (
    Encoder,
    IdEncoder,
    WordEncoder,
    reads_ids,
    require_ids,
    require_words,
)
from stickytoken.errors import InputError
from stickytoken.impacts._intrusion import (
    IntrusionWork,
    SearchCorpus,
    TaskEffects,
    copies_needed,
    intrusion_rows,
    intrusion_summary,
    load_search_corpus,
    plan_intrusion,
    with_q_values,
)
from stickytoken.impacts._vectors import (
    NO_COST,
    UNIT,
    Group,
    GroupRunner,
    GroupWork,
    TaskOutcomes,
    TaskRunner,
    remove_vectors,
    shard_stage,
)
from stickytoken.impacts.conditions import (
    NAMED,
    Condition,
    Kind,
    Treatment,
    make_conditions,
    needed_room,
    prepare,
)
from stickytoken.impacts.results import (
    IMPACT,
    IMPACTS,
    TABLES,
    Impact,
    ImpactRecord,
    ImpactResultRecord,
    ImpactSettings,
    TaskRecord,
    TokenRecord,
    open_impact,
    require_place,
)
from stickytoken.impacts.statistics import impact_markdown
from stickytoken.insertion import Insertion, Placement, Side, Token
from stickytoken.machine import digest
from stickytoken.measurement.atomic import default_folder, folder_name
from stickytoken.measurement.ray_engine import EngineChoice, chosen_engine
from stickytoken.measurement.resume import Resumed, hardware, identity_of, now, package_versions, resumed
from stickytoken.measurement.stage import ProgressCallback, ignore_progress
from stickytoken.measurement.store import ResultFolder, ShardCost
from stickytoken.tasks import Task
from stickytoken.tasks.mteb import (
    AnyTask,
    MtebTask,
    UnreachableTaskError,
    evaluate,
    find_mteb_task,
    find_task,
    load_data,
    require_module,
)
from stickytoken.validation import file_path, list_of, or_default, require_callable
from stickytoken.vocabulary import Vocabulary, categorize, match_apart

if TYPE_CHECKING:
    from mteb.abstasks import AbsTask
    from torch.utils.data import DataLoader


TaskSource: TypeAlias = "str | Path | Task | AbsTask"

# Increase it when the same inputs give different numbers than before.
_IDENTITY_VERSION = 2


@dataclass(frozen=True)
class ImpactPlan:
    """What a measurement computes, and what identifies it.

    Attributes:
        encoder: the model.
        settings: settings of the measurement.
        sticky: tokens to measure.
        benign: benign tokens matched with them.
        tasks: tasks to measure.
        corpus: corpus of the intrusion, if any.
        names: vocabulary strings by id.
        notes: what a reader should know.
        run: folder of the run that the tokens come from, if any.
        named: ids of the measured tokens that no run calls sticky.
    """

    encoder: WordEncoder
    settings: ImpactSettings
    sticky: list[Token]
    benign: list[Token]
    tasks: list[AnyTask]
    corpus: SearchCorpus | None
    names: dict[int, str]
    notes: list[str]
    run: Path | None
    named: frozenset[int]

    @property
    def conditions(self) -> list[Condition]:
        """Conditions of all tasks."""
        return make_conditions(self.sticky, self.benign, self.settings.seed, self.settings.seeds)

    @cached_property
    def parts(self) -> dict[str, Any]:
        """Everything that can change the numbers, as JSON values."""
        return identity_of(
            _IDENTITY_VERSION,
            self.encoder.identity,
            self.settings,
            tasks={task.name: task.fingerprint for task in self.tasks},
            intrusion=self.corpus.fingerprint if self.corpus else None,
            sticky=[token.id for token in self.sticky],
            benign=[token.id for token in self.benign],
            **({"named": sorted(self.named)} if self.named else {}),
        )

    def token_records(self) -> list[TokenRecord]:
        """Return records of all tokens, each benign one with the token that it is compared with."""
        matches = [
            (token, self.sticky[place % len(self.sticky)].id) for place, token in enumerate(self.benign)
        ]
        pairs = [
            *((token, Kind.STICKY, None) for token in self.sticky),
            *((token, Kind.BENIGN, match) for token, match in matches),
        ]
        return [
            TokenRecord(
                token_id=token.id,
                token=self.names[token.id],
                text=token.text,
                kind=NAMED if kind is Kind.STICKY and token.id in self.named else kind.value,
                matched_to=match,
            )
            for token, kind, match in pairs
        ]


def make_plan(
    encoder: WordEncoder,
    tasks: Sequence[TaskSource],
    run: Run | None,
    tokens: TokenSource | None,
    exclude: Iterable[int | str],
    intrusion: str | Path | None,
    settings: ImpactSettings,
) -> ImpactPlan:
    """Load tasks, choose tokens, and match them with benign tokens; see `impact`."""
    if not tasks and intrusion is None:
        raise InputError("there is nothing to measure: pass a task, or documents for an intrusion")
    loaded, notes = _loaded(tasks)
    vocabulary = categorize(encoder.tokenizer)
    sticky = _wanted(vocabulary, run, tokens, settings.sticky)
    flagged = set(flagged_tokens(run))
    if excluded := list_of("token ids or texts", "exclude", exclude, ordered=False):
        flagged.update(token_ids(vocabulary, excluded))
    if run is None:
        notes.append("no run says which tokens are sticky, so a benign token may be one of them")
    unread = {token.id for token in vocabulary.available if not encoder.fits((token.id,))}
    benign = match_apart(
        vocabulary, [token.id for token in sticky], flagged | unread, settings.benign, settings.seed
    )
    corpus = load_search_corpus(intrusion, settings.seed) if intrusion is not None else None
    names = dict(zip(vocabulary.ids, vocabulary.tokens, strict=True))
    folder = None if run is None else run.path
    verdicts = set() if run is None else set(run.sticky["token_id"])
    named = frozenset(token.id for token in sticky if token.id not in verdicts)
    return ImpactPlan(encoder, settings, sticky, benign, loaded, corpus, names, notes, folder, named)


def _wanted(vocabulary: Vocabulary, run: Run | None, tokens: TokenSource | None, count: int) -> list[Token]:
    if tokens is not None:
        return available_tokens(vocabulary, token_ids(vocabulary, tokens))
    if run is None:
        raise InputError(
            "no tokens to measure: pass the folder of a finished run, or name the tokens (--tokens)"
        )
    return available_tokens(vocabulary, worst_tokens(run, count))


def _loaded(sources: Sequence[TaskSource]) -> tuple[list[AnyTask], list[str]]:
    tasks: list[AnyTask] = []
    notes: list[str] = []
    for source in sources:
        if isinstance(source, (str, Path)):
            task, said = find_task(source)
            tasks.append(task)
            notes += said
        elif hasattr(source, "outcomes"):
            tasks.append(cast("Task", source))
        else:
            tasks.append(find_mteb_task(source))
    stages = [shard_stage(task.name) for task in tasks]
    for stage, each in zip(stages, tasks, strict=True):
        if stages.count(stage) > 1:
            raise InputError(
                f"two tasks have the name {each.name!r}: rename a file, or measure them separately"
            )
    return tasks, notes


_BATCH = 32


class EditingEncoder:
    """MTEB's own wrapper of a SentenceTransformer, which gets edited texts.

    Texts are edited first, so any cache of the inner model is keyed by the edited texts. The name under
    which MTEB stores results differs between conditions. No condition can get vectors or scores of another.
    """

    def __init__(self, encoder: IdEncoder, condition: Condition, settings: ImpactSettings, room: int) -> None:
        from mteb.models import SentenceTransformerEncoderWrapper

        model = require_module(encoder)
        self._encoder = encoder
        self._condition = condition
        self._side = settings.side
        self._room = room
        self._treatment = replace(Treatment.of(settings), insertion=Insertion.TEXT)
        self._inner: Any = SentenceTransformerEncoderWrapper(model)
        self.encoded = 0
        self.cut = 0
        identity = [asdict(encoder.identity), asdict(condition), asdict(self._treatment), settings.side, room]
        self.mteb_model_meta = self._inner.mteb_model_meta.model_copy(
            update={"name": f"stickytoken/{condition.kind.value}", "revision": digest(identity)}
        )

    def encode(self, inputs: DataLoader[Any], *, prompt_type: Any = None, **options: Any) -> Any:
        """Edit and encode batches of texts; see `mteb.EncoderProtocol`."""
        if self._edits(prompt_type):
            inputs = self._edited(inputs)
        self.encoded += len(inputs.dataset)  # type: ignore[arg-type]
        return self._inner.encode(inputs, prompt_type=prompt_type, **options)

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Return the model's similarity of all pairs of vectors."""
        return self._inner.similarity(embeddings1, embeddings2)

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Return the model's similarity of each vector with its partner."""
        return self._inner.similarity_pairwise(embeddings1, embeddings2)

    def edit(self, texts: Sequence[str]) -> list[str]:
        """Return the edited texts."""
        if not self._condition.tokens and not self._room:
            return list(texts)
        carriers = prepare(self._encoder, texts, self._room, Insertion.TEXT, "an MTEB task")
        self.cut += sum(carrier.cut for carrier in carriers)
        return [str(self._treatment.probe(carrier, self._condition)) for carrier in carriers]

    def _edits(self, prompt_type: Any) -> bool:
        """Whether to edit these texts; tasks without sides always are."""
        return prompt_type is None or self._side is Side.BOTH or str(prompt_type.value) == self._side.value

    def _edited(self, inputs: DataLoader[Any]) -> DataLoader[Any]:
        from datasets import Dataset
        from torch.utils.data import DataLoader as Loader

        texts = [text for batch in inputs for text in batch["text"]]
        return Loader(Dataset.from_dict({"text": self.edit(texts)}), batch_size=inputs.batch_size or _BATCH)


# Columns besides the score: numbers of texts encoded and truncated.
_TEXTS, _CUT = "texts", "cut"


@dataclass(frozen=True)
class MtebWork(GroupWork):
    """The main score of a task under the conditions of each group."""

    name: str
    task: MtebTask
    settings: ImpactSettings
    room: int

    def compute(self, prepared: Group, encoder: Encoder) -> tuple[list[dict[str, Any]], int]:
        """Score every repetition; repetitions that edit texts identically are evaluated once."""
        load_data(self.task)
        reading = require_ids(encoder, "impact")
        found: dict[int | None, dict[str, Any]] = {}
        rows: list[dict[str, Any]] = []
        for condition in prepared.conditions:
            edit = condition.seed if self._is_random(condition) else None
            if edit not in found:
                model = EditingEncoder(reading, condition, self.settings, self.room)
                score = evaluate(model, self.task)
                found[edit] = {UNIT: 0, self.task.columns[0]: score, _TEXTS: model.encoded, _CUT: model.cut}
            rows.append(found[edit])
        return rows, sum(row[_TEXTS] for row in found.values())

    def _is_random(self, condition: Condition) -> bool:
        """Whether a seed changes how a condition edits a text."""
        return condition.mixture or (bool(condition.tokens) and self.settings.placement is Placement.RANDOM)


def run_mteb(
    task: MtebTask,
    encoder: IdEncoder,
    settings: ImpactSettings,
    conditions: Sequence[Condition],
    runner: GroupRunner,
) -> TaskOutcomes:
    """Compute the main score of a task under all conditions."""
    tokens = sorted({token for each in conditions for token in each.tokens}, key=lambda token: token.id)
    room = needed_room(encoder, tokens, settings.copies, Insertion.TEXT)
    work = MtebWork(shard_stage(task.name), task, settings, room)
    frame = runner.run(work.name, lambda: (work, NO_COST), task.units, conditions, task.name)
    outcomes = runner.outcomes(frame, task.columns, task.units)
    texts, cut = (int(frame[column][-1]) for column in (_TEXTS, _CUT))
    return TaskOutcomes(task, outcomes, edited=texts, cut=cut, texts=texts)


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
    progress: ProgressCallback = ignore_progress,
) -> Impact:
    """Measure what tokens cost. The same call continues an interrupted measurement.

    Every task is measured on clean texts, with copies of each sticky token, with copies of
    each matched benign token, and with mixtures of either.

    Args:
        encoder: the model: anything that `load_encoder` takes, including an encoder; None loads the model of
            the run.
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
    out = None if out is None else file_path("out", out)
    if out is not None:
        require_place(out)
    intrusion = None if intrusion is None else file_path("intrusion", intrusion)
    run = None if run is None else open_run(run)
    single = isinstance(tasks, (str, Path)) or hasattr(tasks, "outcomes")
    chosen: list[TaskSource] = [cast("TaskSource", tasks)] if single else list_of("tasks", "tasks", tasks)
    loaded = encoder_for(encoder, run, "impact")
    if given is None and not reads_ids(loaded):
        settings = replace(settings, insertion=Insertion.TEXT)
    as_ids = settings.insertion is Insertion.IDS
    reading = (
        require_ids(loaded, "insertion 'ids'", "set insertion to 'text'")
        if as_ids
        else require_words(loaded, "impact")
    )
    plan = make_plan(reading, chosen, run, tokens, exclude, intrusion, settings)
    record = _record(plan)
    path = _default_path(plan, record) if out is None else out
    folder = ResultFolder(path)
    with resumed(folder, IMPACTS, record) as held:
        if not held.finished:
            held.begin(held.record.model_copy(update={"result": None}))
            with chosen_engine(engine, plan.encoder) as opened:
                _compute(plan, held, GroupRunner(opened, folder, progress))
        return open_impact(path)


def _record(plan: ImpactPlan) -> ImpactRecord:
    """Identify a measurement, and describe it before it is computed."""
    return ImpactRecord(
        identity=digest(plan.parts),
        identity_parts=plan.parts,
        model=plan.encoder.name,
        device=plan.encoder.device,
        settings=asdict(plan.settings),
        tokens=plan.token_records(),
        notes=plan.notes,
        versions=package_versions(),
        hardware=hardware(plan.encoder.device),
        started=now(),
    )


def _compute(plan: ImpactPlan, held: Resumed[ImpactRecord], runner: GroupRunner) -> None:
    found, failed = _run_tasks(plan, runner)
    intrusion, curves = _run_intrusion(plan, runner)
    effects = [TaskEffects(each, plan.conditions, plan.settings, plan.names, plan.named) for each in found]
    rows = {
        "effects": with_q_values([row for each in effects for row in each.effect_rows()]),
        "conditions": [row for each in effects for row in each.condition_rows()],
        "scores": [row for each in effects for row in each.score_rows()],
        "intrusion": intrusion,
        "intrusion_curves": curves,
    }
    for name, table in TABLES.items():
        held.folder.write_table(name, pl.DataFrame(rows[Path(name).stem], schema=table))
    result = ImpactResultRecord(
        sequences=runner.cost.sequences,
        seconds=round(runner.cost.seconds, 1),
        failed=failed,
        tasks=[_task_record(each) for each in found],
    )
    record = held.record.model_copy(update={"result": result})
    held.folder.write_text("impact.md", impact_markdown(record, rows))
    held.finish(record)
    remove_vectors(held.folder.path)


def _run_tasks(plan: ImpactPlan, groups: GroupRunner) -> tuple[list[TaskOutcomes], dict[str, str]]:
    runner = TaskRunner(plan.encoder, plan.settings, plan.conditions, groups)
    found: list[TaskOutcomes] = []
    failed: dict[str, str] = {}
    for task in plan.tasks:
        try:
            if isinstance(task, MtebTask):
                reading = require_ids(plan.encoder, "an MTEB task", "use a task from files")
                found.append(run_mteb(task, reading, plan.settings, plan.conditions, groups))
            else:
                found.append(runner.run(task))
        except UnreachableTaskError as error:
            failed[task.name] = str(error)
    if failed and not found and plan.corpus is None:
        raise InputError(f"no task could be run ({', '.join(failed)}): {next(iter(failed.values()))}")
    return found, failed


def _run_intrusion(
    plan: ImpactPlan, groups: GroupRunner
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the rows of both tables."""
    if plan.corpus is None:
        return [], []
    corpus = plan.corpus.name
    conditions = [each for each in plan.conditions if len(each.tokens) == 1 and each.repetition == 0]
    intrusion = plan_intrusion(
        f"intrusion-{shard_stage(corpus)}",
        plan.encoder,
        plan.settings,
        plan.corpus,
        [*plan.sticky, *plan.benign],
    )

    def make_work() -> tuple[IntrusionWork, ShardCost]:
        clean, spent = groups.clean(intrusion.name, intrusion.clean)
        return IntrusionWork(intrusion, clean), spent

    units = len(intrusion.targets)
    frame = groups.run(intrusion.name, make_work, units, conditions, f"intrusion into {corpus}")
    found = groups.outcomes(frame, intrusion.columns, units)
    needed = dict(zip([each.tokens[0].id for each in conditions], copies_needed(found), strict=True))
    curves = intrusion_rows(found, conditions, plan.names, plan.named)
    for row in curves:
        row |= {"corpus": corpus, "copies_needed": needed[row["token_id"]]}
    summary = intrusion_summary(found, conditions, plan.settings, corpus)
    for row in summary:
        row["cut"] = intrusion.cut
    return summary, curves


def _task_record(found: TaskOutcomes) -> TaskRecord:
    task = found.task
    return TaskRecord(
        name=task.name,
        layout=task.layout,
        unit=task.unit,
        units=task.units,
        texts=found.texts,
        edited=found.edited,
        cut=found.cut,
        metrics=list(task.metrics),
    )


def _default_path(plan: ImpactPlan, record: ImpactRecord) -> Path:
    if plan.run is not None:
        return plan.run / folder_name(IMPACT, record.identity)
    return default_folder(record.model, IMPACT, record.identity)
