"""Coordinate an impact measurement: choose tokens, run tasks, compare, commit."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import polars as pl

from stickytoken.encoders.protocol import Encoder
from stickytoken.errors import InputError, RunError
from stickytoken.impacts.compute import TaskOutcomes, TaskRunner, run_conditions, shard_stage
from stickytoken.impacts.conditions import Condition, Kind, make_conditions
from stickytoken.impacts.effects import condition_rows, effect_row, score_rows
from stickytoken.impacts.intrusion import IntrusionRunner, SearchCorpus, load_search_corpus
from stickytoken.impacts.intrusion_rows import copies_needed, intrusion_rows, intrusion_summary
from stickytoken.impacts.mteb_tasks import MtebTask, UnreachableTaskError, find_mteb_task, run_mteb
from stickytoken.impacts.record import ImpactRecord, ImpactResultRecord, TaskRecord, TokenRecord
from stickytoken.impacts.results import IMPACT_FILE, TABLES, Impact, markdown, open_impact
from stickytoken.impacts.settings import ImpactSettings
from stickytoken.impacts.statistics import corrected
from stickytoken.impacts.tasks import Task, load_task
from stickytoken.impacts.tokens import flagged_tokens, match_benign, named_tokens, worst_tokens
from stickytoken.insertion import Token
from stickytoken.runs.environment import hardware, now, package_versions
from stickytoken.runs.identity import differences, digest
from stickytoken.runs.progress import ProgressCallback, ignore_progress
from stickytoken.runs.run import Run, open_run
from stickytoken.runs.store import RunFolder
from stickytoken.vocabulary import Vocabulary, categorize

if TYPE_CHECKING:
    from mteb.abstasks import AbsTask

AnyTask: TypeAlias = Task | MtebTask
TaskSource: TypeAlias = "str | Path | Task | AbsTask"

# Raise it when the same inputs would give other numbers than before.
_IDENTITY_VERSION = 1
_IDENTITY_SHOWN = 12


@dataclass(frozen=True)
class _Plan:
    """What a measurement computes, and what identifies it."""

    encoder: Encoder
    settings: ImpactSettings
    sticky: list[Token]
    benign: list[Token]
    tasks: list[AnyTask]
    corpus: SearchCorpus | None
    names: dict[int, str]
    notes: list[str]

    @property
    def conditions(self) -> list[Condition]:
        """Of all tasks."""
        return make_conditions(self.sticky, self.benign, self.settings.seed, self.settings.seeds)

    @property
    def parts(self) -> dict[str, Any]:
        """Everything that can change the numbers, as JSON values."""
        return {
            "version": _IDENTITY_VERSION,
            "encoder": asdict(self.encoder.identity),
            "settings": json.loads(json.dumps(asdict(self.settings))),
            "tasks": {task.name: task.fingerprint for task in self.tasks},
            "intrusion": self.corpus.fingerprint if self.corpus else None,
            "sticky": [token.id for token in self.sticky],
            "benign": [token.id for token in self.benign],
        }

    def token_records(self) -> list[TokenRecord]:
        """The tokens, each benign one with the token that it is compared with."""
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
                kind=kind.value,
                matched_to=match,
            )
            for token, kind, match in pairs
        ]


def impact(
    encoder: Encoder,
    tasks: Sequence[TaskSource] = (),
    *,
    run: Run | str | Path | None = None,
    tokens: Sequence[int] | None = None,
    exclude: Collection[int] = (),
    intrusion: str | Path | None = None,
    settings: ImpactSettings | None = None,
    out: str | Path | None = None,
    progress: ProgressCallback = ignore_progress,
) -> Impact:
    """Measure what tokens cost. The same call continues a measurement that was cut off.

    Every task is measured on clean texts, with copies of each sticky token, with copies of
    each matched benign token, and with mixtures of either.

    Args:
        encoder: the model.
        tasks: files or folders of a known layout, names of MTEB tasks, or MTEB tasks.
        run: a finished detection of this model, whose sticky tokens are measured.
        tokens: ids of the tokens to measure instead.
        exclude: ids that may not serve as benign tokens, beside those that the run flagged.
        intrusion: documents that copies are put into, to see whether queries find them: a BEIR
            folder, a file of documents, or ``bundled``.
        settings: None is the defaults.
        out: the folder; None is ``runs/<model>-impact-<identity>``.
        progress: told of every step.

    Returns:
        The finished measurement; tasks that could not be reached are in its ``failed``.

    Raises:
        InputError: tasks, tokens or settings that cannot be used, or no task could be run.
        EncodingError: a text without a usable vector.
        RunError: the run is of another model; the folder is of another measurement or process.
        MissingExtraError: an MTEB task without the extra ``impact``.
    """
    plan = _planned(encoder, tasks, run, tokens, exclude, intrusion, settings or ImpactSettings())
    record = ImpactRecord(
        identity=digest(plan.parts),
        identity_parts=plan.parts,
        model=encoder.name,
        device=encoder.device,
        settings=asdict(plan.settings),
        tokens=plan.token_records(),
        notes=plan.notes,
        versions=package_versions(),
        hardware=hardware(encoder.device),
        started=now(),
    )
    path = Path(out).expanduser() if out is not None else _default_path(record)
    return _execute(plan, record, RunFolder(path), progress)


def _planned(
    encoder: Encoder,
    tasks: Sequence[TaskSource],
    run: Run | str | Path | None,
    tokens: Sequence[int] | None,
    exclude: Collection[int],
    intrusion: str | Path | None,
    settings: ImpactSettings,
) -> _Plan:
    if not tasks and intrusion is None:
        raise InputError("there is nothing to measure: pass a task, or documents for an intrusion")
    opened = run if isinstance(run, Run) or run is None else open_run(run)
    if opened is not None:
        _require_model(opened, encoder)
    loaded, notes = _loaded(tasks)
    vocabulary = categorize(encoder.tokenizer)
    sticky = _wanted(vocabulary, opened, tokens, settings.sticky)
    flagged = {*exclude, *(flagged_tokens(opened) if opened is not None else ())}
    if opened is None:
        notes.append("no run says which tokens are sticky: a benign token may be one")
    benign = match_benign(vocabulary, sticky, flagged, settings.benign, settings.seed)
    corpus = load_search_corpus(intrusion, settings.seed) if intrusion is not None else None
    names = dict(zip(vocabulary.ids, vocabulary.tokens, strict=True))
    return _Plan(encoder, settings, sticky, benign, loaded, corpus, names, notes)


def _wanted(vocabulary: Vocabulary, run: Run | None, tokens: Sequence[int] | None, count: int) -> list[Token]:
    if tokens is not None:
        return named_tokens(vocabulary, tokens)
    if run is None:
        raise InputError(
            "which tokens are to be measured? Pass the folder of a finished detection, or name tokens with "
            "--tokens"
        )
    return named_tokens(vocabulary, worst_tokens(run, count))


def _require_model(run: Run, encoder: Encoder) -> None:
    theirs = run.record.identity_parts.get("encoder", {})
    if parts := differences(json.loads(json.dumps(asdict(encoder.identity))), theirs):
        raise RunError(
            f"the run in {run.path} is of another model than {encoder.name!r} (they differ in "
            f"{', '.join(parts)}): pass the model of the run, with the same prompt and precision"
        )


def _loaded(sources: Sequence[TaskSource]) -> tuple[list[AnyTask], list[str]]:
    tasks: list[AnyTask] = []
    notes: list[str] = []
    for source in sources:
        task: AnyTask
        path = Path(source).expanduser() if isinstance(source, (str, Path)) else None
        if path is not None and path.exists():
            task, said = load_task(path)
            tasks.append(task)
            notes += said
        elif path is not None and (path.suffix or len(path.parts) > 1):
            raise InputError(f"no task file or folder {str(path)!r}")
        elif path is None and hasattr(source, "outcomes"):
            tasks.append(cast("Task", source))
        else:
            tasks.append(find_mteb_task(source))
    stages = [shard_stage(task.name) for task in tasks]
    for stage, each in zip(stages, tasks, strict=True):
        if stages.count(stage) > 1:
            raise InputError(f"two tasks are called {each.name!r}: rename a file, or measure them apart")
    return tasks, notes


def _execute(plan: _Plan, record: ImpactRecord, folder: RunFolder, progress: ProgressCallback) -> Impact:
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


def _compute(plan: _Plan, record: ImpactRecord, folder: RunFolder, progress: ProgressCallback) -> None:
    found, failed = _run_tasks(plan, folder, progress)
    conditions = plan.conditions
    effects = [effect_row(each, conditions, plan.settings) for each in found]
    for row, q_value in zip(effects, corrected([row["p_value"] for row in effects]), strict=True):
        row["q_value"] = q_value
    rows = {
        "effects": effects,
        "conditions": [
            row for each in found for row in condition_rows(each, conditions, plan.names, plan.settings)
        ],
        "scores": [row for each in found for row in score_rows(each, conditions, plan.names)],
    }
    intrusion, curves, stages = _run_intrusion(plan, folder, progress)
    rows |= {"intrusion": intrusion, "intrusion_curves": curves}
    for name, table in TABLES.items():
        folder.write_table(name, pl.DataFrame(rows[Path(name).stem], schema=table))
    cost = folder.total_cost({shard_stage(each.task.name): len(conditions) for each in found} | stages)
    result = ImpactResultRecord(
        sequences=cost.sequences,
        seconds=round(cost.seconds, 1),
        failed=failed,
        tasks=[_task_record(each) for each in found],
    )
    record = record.model_copy(update={"result": result})
    folder.write_text("impact.md", markdown(record, {Path(n).stem: rows[Path(n).stem] for n in TABLES}))
    folder.write_record(IMPACT_FILE, record)


def _run_tasks(
    plan: _Plan, folder: RunFolder, progress: ProgressCallback
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
        raise InputError(f"no task could be run: {next(iter(failed.values()))}")
    return found, failed


def _run_intrusion(
    plan: _Plan, folder: RunFolder, progress: ProgressCallback
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], dict[str, int]]:
    """Rows of both tables, and the number of shards by stage."""
    if plan.corpus is None:
        return [], [], {}
    conditions = [each for each in plan.conditions if len(each.tokens) == 1 and each.repetition == 0]
    runner = IntrusionRunner(plan.encoder, plan.settings, plan.corpus, [*plan.sticky, *plan.benign])
    name = f"intrusion into {plan.corpus.name}"
    outcomes = run_conditions(
        name, runner.columns, runner.units, conditions, runner.outcomes, folder, progress
    )
    needed = dict(zip([each.tokens[0].id for each in conditions], copies_needed(outcomes), strict=True))
    curves = intrusion_rows(outcomes, conditions, plan.names)
    for row in curves:
        row |= {"corpus": plan.corpus.name, "copies_needed": needed[row["token_id"]]}
    summary = intrusion_summary(outcomes, conditions, plan.settings, plan.corpus.name)
    for row in summary:
        row["cut"] = runner.cut
    return summary, curves, {shard_stage(name): len(conditions)}


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


def _default_path(record: ImpactRecord) -> Path:
    stem = re.sub(r"[^A-Za-z0-9._]+", "-", Path(record.model).name).strip("-.") or "model"
    return Path("runs") / f"{stem}-impact-{record.identity[:_IDENTITY_SHOWN]}"
