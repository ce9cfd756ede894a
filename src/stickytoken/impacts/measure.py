"""Coordinate an impact measurement: choose tokens, run tasks, compare, commit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import polars as pl

from stickytoken.detection.run import Run, open_run
from stickytoken.detection.selection import TokenSource
from stickytoken.encoders.loading.load import AnyModel, load_encoder
from stickytoken.encoders.protocol import require_ids
from stickytoken.errors import InputError, RunError
from stickytoken.hashing import digest
from stickytoken.impacts.compute import (
    GroupOutcomes,
    Stage,
    TaskOutcomes,
    TaskRunner,
    remove_vectors,
    run_groups,
    shard_stage,
    vectors_file,
)
from stickytoken.impacts.conditions import Condition, grouped
from stickytoken.impacts.effects import TaskEffects, with_q_values
from stickytoken.impacts.intrusion import IntrusionRunner
from stickytoken.impacts.intrusion_rows import copies_needed, intrusion_rows, intrusion_summary
from stickytoken.impacts.markdown import impact_markdown
from stickytoken.impacts.mteb_tasks import MtebTask, UnreachableTaskError, run_mteb
from stickytoken.impacts.plan import ImpactPlan, TaskSource, make_plan
from stickytoken.impacts.record import ImpactRecord, ImpactResultRecord, TaskRecord
from stickytoken.impacts.results import IMPACT, IMPACT_FILE, TABLES, Impact, open_impact
from stickytoken.impacts.settings import ImpactSettings
from stickytoken.measurement.default_folder import default_folder, folder_name
from stickytoken.measurement.environment import hardware, now, package_versions
from stickytoken.measurement.identity import differences
from stickytoken.measurement.progress import ProgressCallback, ignore_progress
from stickytoken.measurement.store import ResultFolder
from stickytoken.validation import file_path, list_of, or_default, require_callable


def impact(
    encoder: AnyModel,
    tasks: TaskSource | Sequence[TaskSource] = (),
    *,
    run: Run | str | Path | None = None,
    tokens: TokenSource | None = None,
    exclude: Iterable[int | str] = (),
    intrusion: str | Path | None = None,
    settings: ImpactSettings | None = None,
    out: str | Path | None = None,
    progress: ProgressCallback = ignore_progress,
) -> Impact:
    """Measure what tokens cost. The same call continues a measurement that was cut off.

    Every task is measured on clean texts, with copies of each sticky token, with copies of
    each matched benign token, and with mixtures of either.

    Args:
        encoder: the model: anything that `load_encoder` takes, an encoder included.
        tasks: files or folders of a known layout, names of MTEB tasks, or MTEB tasks; one or several.
        run: a finished detection of this model, whose sticky tokens are measured.
        tokens: ids or texts of the tokens to measure instead, or a file of them.
        exclude: ids or texts of tokens that must not serve as benign ones, beside those that the run
            flagged.
        intrusion: documents that copies are put into, to see whether queries find them: a BEIR
            folder, a file of documents, or ``bundled``.
        settings: None is the defaults.
        out: the folder; None is ``impact-<identity>`` in the run's folder, where the run's report finds it,
            or ``runs/<model>-impact-<identity>`` without a run.
        progress: told of every step.

    Returns:
        The finished measurement; tasks that could not be reached are in its ``failed``.

    Raises:
        InputError: tasks, tokens or settings that cannot be used, or no task could be run.
        EncodingError: a text without a usable vector.
        RunError: the run is of another model; the folder is of another measurement or process.
        MissingExtraError: a task needs an extra (``mteb`` or ``impact``) that is not installed.
    """
    settings = or_default("settings", settings, ImpactSettings())
    require_callable("progress", progress)
    out = None if out is None else file_path("out", out)
    intrusion = None if intrusion is None else file_path("intrusion", intrusion)
    run = None if run is None else open_run(run)
    single = isinstance(tasks, (str, Path)) or hasattr(tasks, "outcomes")
    chosen: list[TaskSource] = [cast("TaskSource", tasks)] if single else list_of("tasks", "tasks", tasks)
    reading = require_ids(load_encoder(encoder), "impact")
    plan = make_plan(reading, chosen, run, tokens, exclude, intrusion, settings)
    record = ImpactRecord(
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
    path = _default_path(plan, record) if out is None else out
    return _execute(plan, record, ResultFolder(path), progress)


def _execute(
    plan: ImpactPlan, record: ImpactRecord, folder: ResultFolder, progress: ProgressCallback
) -> Impact:
    ours = (folder.path / IMPACT_FILE).is_file()
    if not ours and (folder.holds_run() or folder.holds_other_files()):
        raise RunError(f"{folder.path} holds files but no impact: choose an empty or a new folder")
    with folder.locked():
        earlier = folder.read_record(IMPACT_FILE, ImpactRecord)
        if earlier is not None:
            if earlier.identity != record.identity:
                parts = (
                    ", ".join(differences(record.identity_parts, earlier.identity_parts)) or "its identity"
                )
                raise RunError(
                    f"{folder.path} holds another impact (it differs in {parts}): choose another folder"
                )
            finished = earlier.result is not None and not earlier.result.failed
            if finished and all((folder.path / name).is_file() for name in TABLES):
                return open_impact(folder.path)
        record = earlier or record
        folder.write_record(IMPACT_FILE, record.model_copy(update={"result": None}))
        _compute(plan, record, folder, progress)
    return open_impact(folder.path)


def _compute(
    plan: ImpactPlan, record: ImpactRecord, folder: ResultFolder, progress: ProgressCallback
) -> None:
    found, failed = _run_tasks(plan, folder, progress)
    conditions = plan.conditions
    intrusion, curves, stages = _run_intrusion(plan, folder, progress)
    effects = [TaskEffects(each, conditions, plan.settings, plan.names) for each in found]
    rows = {
        "effects": with_q_values([row for each in effects for row in each.effect_rows()]),
        "conditions": [row for each in effects for row in each.condition_rows()],
        "scores": [row for each in effects for row in each.score_rows()],
        "intrusion": intrusion,
        "intrusion_curves": curves,
    }
    for name, table in TABLES.items():
        folder.write_table(name, pl.DataFrame(rows[Path(name).stem], schema=table))
    groups = len(grouped(conditions))
    cost = folder.total_cost({shard_stage(each.task.name): groups for each in found} | stages)
    result = ImpactResultRecord(
        sequences=cost.sequences,
        seconds=round(cost.seconds, 1),
        failed=failed,
        tasks=[_task_record(each) for each in found],
    )
    record = record.model_copy(update={"result": result})
    folder.write_text("impact.md", impact_markdown(record, rows))
    folder.write_record(IMPACT_FILE, record)
    remove_vectors(folder)


def _run_tasks(
    plan: ImpactPlan, folder: ResultFolder, progress: ProgressCallback
) -> tuple[list[TaskOutcomes], dict[str, str]]:
    runner = TaskRunner(plan.encoder, plan.settings, plan.conditions, folder, progress)
    found: list[TaskOutcomes] = []
    failed: dict[str, str] = {}
    for task in plan.tasks:
        try:
            if isinstance(task, MtebTask):
                found.append(run_mteb(task, plan.encoder, plan.settings, plan.conditions, folder, progress))
            else:
                found.append(runner.run(task))
        except UnreachableTaskError as error:
            failed[task.name] = str(error)
    if failed and not found and plan.corpus is None:
        raise InputError(f"no task could be run ({', '.join(failed)}): {next(iter(failed.values()))}")
    return found, failed


def _run_intrusion(
    plan: ImpactPlan, folder: ResultFolder, progress: ProgressCallback
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], dict[str, int]]:
    """Rows of both tables, and the number of shards by stage."""
    if plan.corpus is None:
        return [], [], {}
    conditions = [each for each in plan.conditions if len(each.tokens) == 1 and each.repetition == 0]
    key = f"intrusion-{shard_stage(plan.corpus.name)}"
    tokens = [*plan.sticky, *plan.benign]
    runner = IntrusionRunner(plan.encoder, plan.settings, plan.corpus, tokens, vectors_file(folder, key))

    def outcomes(group: Sequence[Condition]) -> GroupOutcomes:
        found, encoded = runner.outcomes(group[0])
        return found, encoded + (runner.clean if group[0] == conditions[0] else 0)

    stage = Stage(key, f"intrusion into {plan.corpus.name}", runner.columns, runner.units)
    found = run_groups(stage, conditions, outcomes, folder, progress)
    needed = dict(zip([each.tokens[0].id for each in conditions], copies_needed(found), strict=True))
    curves = intrusion_rows(found, conditions, plan.names)
    for row in curves:
        row |= {"corpus": plan.corpus.name, "copies_needed": needed[row["token_id"]]}
    summary = intrusion_summary(found, conditions, plan.settings, plan.corpus.name)
    for row in summary:
        row["cut"] = runner.cut
    return summary, curves, {key: len(conditions)}


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
