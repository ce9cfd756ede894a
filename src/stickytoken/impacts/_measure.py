"""Run an impact measurement: choose tokens, run tasks, compare, commit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import polars as pl

from stickytoken.data import tasks as task_data
from stickytoken.data.metrics import Task
from stickytoken.data.tasks import AnyTask, MtebTask
from stickytoken.detection.detect import TokenSource, available_tokens, token_ids
from stickytoken.detection.run import Run, encoder_for, flagged_tokens, open_run, worst_tokens
from stickytoken.encoders import protocol
from stickytoken.encoders.loading.load import AnyModel
from stickytoken.encoders.protocol import Encoder, IdEncoder
from stickytoken.errors import InputError
from stickytoken.impacts import _vectors, results, statistics
from stickytoken.impacts.results import Impact, ImpactRecord, ImpactSettings, TokenRecord
from stickytoken.impacts.statistics import Condition
from stickytoken.insertion import Insertion, Placement, Side, Token
from stickytoken.machine import digest
from stickytoken.measurement import resume
from stickytoken.measurement.engine import ProgressCallback, ignore_progress
from stickytoken.measurement.ray_engine import EngineChoice, chosen_engine
from stickytoken.measurement.store import ResultFolder, ShardCost, default_folder, folder_name
from stickytoken.validation import file_path, list_of, or_default, require_callable
from stickytoken.vocabulary import categorize, match_apart

if TYPE_CHECKING:
    from mteb.abstasks import AbsTask
    from torch.utils.data import DataLoader


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
    progress: ProgressCallback = ignore_progress,
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
    corpus = None if intrusion is None else _vectors.load_search_corpus(intrusion, settings.seed)
    parts = resume.identity_of(
        _IDENTITY_VERSION,
        reading.identity,
        settings,
        tasks={task.name: task.fingerprint for task in loaded},
        intrusion=corpus.fingerprint if corpus else None,
        sticky=[token.id for token in sticky],
        benign=[token.id for token in benign],
        **({"named": named} if named else {}),
    )
    record = ImpactRecord(
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
        out = run.path / folder_name(results.IMPACT, record.identity)
    out = out or default_folder(record.model, results.IMPACT, record.identity)
    folder = ResultFolder(out)
    conditions = statistics.make_conditions(sticky, benign, settings.seed, settings.seeds)
    with resume.resumed(folder, results.IMPACTS, record) as held:
        if held.finished:
            return results.open_impact(out)
        held.begin(held.record.model_copy(update={"result": None}))
        with chosen_engine(engine, reading) as opened:
            runner = _vectors.Runner(reading, settings, conditions, opened, folder, progress)
            by_id = {each.token_id: each for each in listed}
            rows, records, failed = _run_tasks(loaded, runner, by_id)
            if failed and not records and corpus is None:
                reason = next(iter(failed.values()))
                raise InputError(f"no task could be run ({', '.join(failed)}): {reason}")
            if corpus is not None:
                rows |= _vectors.run_intrusion(runner, corpus, by_id)
            cost = folder.total_cost(runner.shards)
            result = results.ImpactResultRecord(
                sequences=cost.sequences, seconds=round(cost.seconds, 1), failed=failed, tasks=records
            )
            finished = held.record.model_copy(update={"result": result})
            for name, columns in results.TABLES.items():
                folder.write_table(name, pl.DataFrame(rows[Path(name).stem], columns))
            folder.write_text("impact.md", statistics.impact_markdown(finished, rows))
            held.finish(finished)
            for path in out.glob(f"{_vectors.VECTORS}*.npz"):  # the shards contain all outcomes
                path.unlink(missing_ok=True)
        return results.open_impact(out)


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
    stages = Counter(_vectors.shard_stage(task.name) for task in tasks)
    if twice := [task.name for task in tasks if stages[_vectors.shard_stage(task.name)] > 1]:
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
    tasks: Sequence[AnyTask], runner: _vectors.Runner, listed: Mapping[int, TokenRecord]
) -> tuple[dict[str, statistics.Rows], list[results.TaskRecord], dict[str, str]]:
    """Return the rows of tables, the records of tasks that ran, and why others could not be run."""
    settings, conditions = runner.settings, runner.conditions
    rows: dict[str, statistics.Rows] = {Path(name).stem: [] for name in results.TABLES}
    records: list[results.TaskRecord] = []
    failed: dict[str, str] = {}
    for task in tasks:
        if isinstance(task, MtebTask):
            reading = protocol.require_ids(runner.encoder, "an MTEB task", "use a task from files")
            room = statistics.needed_room(reading, conditions, settings.copies, Insertion.TEXT)
            work = _MtebWork(_vectors.shard_stage(task.name), task, settings, room)
            make_work, columns = (lambda work=work: (work, ShardCost(0, 0))), (*task.columns, _TEXTS, _CUT)
            try:
                found = runner.run(work.name, make_work, task.units, columns, conditions, task.name)
            except task_data.UnreachableTaskError as error:
                failed[task.name] = str(error)
                continue
            texts, cut = found[-1, -1, -2:].astype(int).tolist()
            outcomes, record = found[:, :, :-2], _vectors.task_record(task, texts, texts, cut)
        else:
            outcomes, record = _vectors.run_task(runner, task)
        records.append(record)
        for table, own in statistics.task_rows(task, outcomes, conditions, settings, listed).items():
            rows[table] += own
    # Only the main metrics count as tests.
    p_values = [row["p_value"] if row["main"] else None for row in rows["effects"]]
    for row, q_value in zip(rows["effects"], statistics.corrected(p_values), strict=True):
        row["q_value"] = q_value
    return rows, records, failed


class EditingEncoder:
    """MTEB's own wrapper of a SentenceTransformer, which gets edited texts.

    No condition can get vectors or scores of another: any cache of the inner model is keyed by the edited
    texts, and the name under which MTEB stores results differs between conditions.
    """

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
        carriers = statistics.prepare(self._encoder, texts, self._room, Insertion.TEXT, "an MTEB task")
        self.cut += sum(carrier.cut for carrier in carriers)
        settings = self._settings
        return [str(statistics.probe(settings, each, self._condition, settings.copies)) for each in carriers]


# Columns besides the score: numbers of texts encoded and truncated.
_TEXTS, _CUT = "texts", "cut"


@dataclass(frozen=True)
class _MtebWork(_vectors.GroupWork):
    name: str
    task: MtebTask
    settings: ImpactSettings
    room: int

    def compute(self, prepared: _vectors.Group, encoder: Encoder) -> tuple[list[dict[str, Any]], int]:
        task_data.load_data(self.task)
        reading = protocol.require_ids(encoder, "impact")
        found: dict[int | None, dict[str, Any]] = {}
        rows: list[dict[str, Any]] = []
        for condition in prepared:  # repetitions that edit texts alike are evaluated once
            placed = bool(condition.tokens) and self.settings.placement is Placement.RANDOM
            edit = condition.seed if placed or len(condition.tokens) > 1 else None
            if edit not in found:
                model = EditingEncoder(reading, condition, self.settings, self.room)
                score = {_vectors.UNIT: 0, self.task.columns[0]: task_data.evaluate(model, self.task)}
                found[edit] = score | {_TEXTS: model.encoded, _CUT: model.cut}
            rows.append(found[edit])
        return rows, sum(row[_TEXTS] for row in found.values())
