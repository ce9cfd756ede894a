"""Run an impact measurement: choose tokens, run tasks, compare, commit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

import polars as pl

from stickytoken.detection.run import Run, open_run
from stickytoken.detection.run_model import encoder_for
from stickytoken.detection.selection import TokenSource
from stickytoken.encoders.loading.load import AnyModel
from stickytoken.encoders.protocol import reads_ids, require_ids, require_words
from stickytoken.errors import InputError
from stickytoken.hashing import digest
from stickytoken.impacts._compute import GroupRunner, TaskOutcomes, TaskRunner, remove_vectors, shard_stage
from stickytoken.impacts._effects import TaskEffects, with_q_values
from stickytoken.impacts._intrusion import IntrusionWork, plan_intrusion
from stickytoken.impacts._intrusion_rows import copies_needed, intrusion_rows, intrusion_summary
from stickytoken.impacts._markdown import impact_markdown
from stickytoken.impacts._mteb_work import run_mteb
from stickytoken.impacts._plan import ImpactPlan, TaskSource, make_plan
from stickytoken.impacts.record import ImpactRecord, ImpactResultRecord, TaskRecord
from stickytoken.impacts.results import IMPACT, IMPACTS, TABLES, Impact, open_impact, require_place
from stickytoken.impacts.settings import ImpactSettings
from stickytoken.insertion import Insertion
from stickytoken.measurement.default_folder import default_folder, folder_name
from stickytoken.measurement.engines.choice import EngineChoice, chosen_engine
from stickytoken.measurement.environment import hardware, now, package_versions
from stickytoken.measurement.progress import ProgressCallback, ignore_progress
from stickytoken.measurement.resume import Resumed, resumed
from stickytoken.measurement.store import ResultFolder, ShardCost
from stickytoken.tasks.mteb import MtebTask, UnreachableTaskError
from stickytoken.validation import file_path, list_of, or_default, require_callable


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
