"""Measure what sticky tokens cost in similarity, retrieval, clustering and classification."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
import polars as pl

import stickytoken.measurement as store
from stickytoken import wall_time
from stickytoken.data import tasks as task_data
from stickytoken.data.metrics import Task
from stickytoken.data.tasks import AnyTask, MtebTask
from stickytoken.detection.naming import TokenSource, available_tokens, token_ids
from stickytoken.detection.run import Run, encoder_for, open_run, worst_tokens
from stickytoken.encoders import protocol
from stickytoken.encoders.protocol import confirm_answers, similarity_of
from stickytoken.encoders.roles import identity_of_queries
from stickytoken.encoders.scoring import find_role
from stickytoken.errors import InputError
from stickytoken.impacts import _statistics, results, wording
from stickytoken.impacts._editing import Condition, make_conditions
from stickytoken.impacts._mteb import run_mteb_task
from stickytoken.impacts._running import (
    VECTORS,
    TaskRunner,
    make_stage_name,
    name_clean_stage,
    run_task,
)
from stickytoken.impacts._statistics import Rows
from stickytoken.impacts.results import NAMED, Impact, TaskRecord, TokenRecord, open_impact
from stickytoken.insertion import Insertion, Side, Token
from stickytoken.loading import AnyModel
from stickytoken.machine import digest
from stickytoken.measurement import ResultFolder, engine as engines, resume
from stickytoken.measurement.ray_engine import EngineChoice, chosen_engine
from stickytoken.measurement.whole_progress import WholeProgress
from stickytoken.methods.probes import require_insertion
from stickytoken.settings import choose_insertion
from stickytoken.settings.impact import Edits, ImpactSettings
from stickytoken.unit_vectors import Similarity
from stickytoken.validation import file_path, list_of, or_default, require_callable
from stickytoken.vocabulary import Vocabulary, categorize, match_apart

if TYPE_CHECKING:
    from mteb.abstasks import AbsTask

__all__ = ["Impact", "ImpactSettings", "Side", "impact", "open_impact"]

TaskSource: TypeAlias = "str | Path | Task | AbsTask"

# Increment this when a code change alters the results for the same inputs.
_IDENTITY_VERSION = 3


def impact(
    encoder: AnyModel | None = None,
    tasks: TaskSource | Sequence[TaskSource] = (),
    *,
    run: Run | str | Path | None = None,
    tokens: TokenSource | None = None,
    exclude: Iterable[int | str] = (),
    settings: ImpactSettings | None = None,
    out: str | Path | None = None,
    engine: EngineChoice = "local",
    progress: engines.ProgressCallback = engines.ignore_progress,
) -> Impact:
    """Measure how much copies of tokens lower the scores of a model on tasks.

    Every task is measured on clean texts, on texts with copies of each sticky token, on texts with copies of
    each matched benign token, and on texts with a mixture of sticky tokens or a mixture of benign tokens.
    Repeating the call continues an interrupted measurement.

    Args:
        encoder: anything that `load_encoder` takes, or an encoder; if None, the run's model is loaded.
        tasks: one or several tasks. A task is a file or folder with a known layout, the name of an MTEB task,
            or a task object.
        run: a finished run of this model, or its folder. The sticky tokens of the run are measured.
        tokens: ids or texts of tokens to measure instead of the run's sticky tokens, or files of them.
        exclude: ids or texts of tokens that must not be used as benign tokens, in addition to those that the
            run flagged.
        settings: settings of the measurement; if None, the defaults are used.
        out: folder for the results; if None, ``impact-<identity>`` in the run folder, where the run's report
            finds it, or ``runs/<model>-impact-<identity>`` without a run.
        engine: where to compute, as in `detect`. The engine affects the results only through rounding, so a
            measurement can be continued with another engine.
        progress: called after every step.

    Returns:
        The finished measurement, whose ``failed`` attribute names the tasks whose data could not be loaded.

    Raises:
        InputError: tasks, tokens or settings cannot be used, or no task could be run.
        EncodingError: a text has no usable vector.
        RunError: the run belongs to another model, or the folder belongs to another measurement or is in use.
        MissingExtraError: a task needs an extra (``mteb`` or ``impact``) that is not installed.

    Examples:
        >>> settings = stickytoken.ImpactSettings(benign=2)
        >>> impact = stickytoken.impact(model, "sts.jsonl", tokens=["[CLS]"], settings=settings, out="impact")
        >>> impact.effects["metric"].to_list()
        ['spearman', 'pearson']
    """
    settings = or_default("settings", settings, ImpactSettings())
    began = wall_time.beginning()
    require_callable("progress", progress)
    if out is not None:
        out = file_path("out", out)
        resume.require_place(out, results.IMPACTS)
    run = None if run is None else open_run(run)
    # A task of this package has the attribute `outcomes`, and a task of MTEB has `metadata`.
    is_one_task = isinstance(tasks, (str, Path)) or hasattr(tasks, "outcomes") or hasattr(tasks, "metadata")
    sources: list[TaskSource] = (
        [cast("TaskSource", tasks)] if is_one_task else list_of("tasks", "tasks", tasks)
    )
    if not sources:
        raise InputError("there is nothing to measure: pass a task (--task)")
    if tokens is None:
        tokens = _choose_sticky(run, settings)
    model = encoder_for(encoder, run, "impact")
    # The insertion has no effect on the edits of the paper.
    texts_only = settings.edits is Edits.COPIES and not protocol.reads_ids(model)
    settings = choose_insertion(settings, texts_only, Insertion.TEXT)
    require_insertion(model, settings.inserted_as)
    word_encoder = protocol.require_words(model, "impact")
    loaded, notes = _load_tasks(sources)
    token_records = _choose_tokens(word_encoder, run, tokens, exclude, settings)
    if run is None:
        notes.append("no run says which tokens are sticky, so a benign token may be one of them")
    if settings.edits is Edits.PAPER and not _has_all_scores(run):
        notes.append(
            "the benign tokens are matched to the sticky ones: Chen et al. draw theirs from the tokens with "
            "the lowest scores, which a run of `detect --method std --set scores=all` has"
        )
    record = _make_record(word_encoder, settings, loaded, token_records, notes)
    if out is None and run is not None:
        out = run.path / store.folder_name(results.IMPACT, record.identity)
    out = out or store.default_folder(record.model, results.IMPACT, record.identity)
    folder = ResultFolder(out, began)
    sticky = [Token(token.token_id, token.text) for token in token_records if token.kind != "benign"]
    benign = [Token(token.token_id, token.text) for token in token_records if token.kind == "benign"]
    conditions = make_conditions(sticky, benign, settings)
    with resume.resumed(folder, results.IMPACTS, record) as held:
        if not held.finished:
            # If a table of a finished measurement was deleted, the record has a result. It is removed, and
            # the missing parts are measured again.
            held.begin(held.record.model_copy(update={"result": None}))
            with chosen_engine(engine, word_encoder) as opened:
                texts_by_stage = _count_texts_by_stage(loaded, conditions, settings)
                whole_progress = WholeProgress("impact", texts_by_stage, progress)
                runner = TaskRunner(word_encoder, settings, conditions, opened, folder, whole_progress)
                _measure(runner, held, loaded)
    return open_impact(out)


def _measure(
    runner: TaskRunner, held: resume.Resumed[results.ImpactRecord], tasks: Sequence[AnyTask]
) -> None:
    """Run all tasks, write the tables, and finish the record."""
    folder = runner.folder
    tokens_by_id = {token.token_id: token for token in held.record.tokens}
    measured = _run_tasks(tasks, runner, tokens_by_id)
    if measured.failed and not measured.records:
        reason = next(iter(measured.failed.values()))
        raise InputError(f"no task could be run ({', '.join(measured.failed)}): {reason}")
    rows_by_table = measured.rows_by_table
    paired_test = None
    if runner.settings.edits is Edits.PAPER:
        paired_test = _statistics.paired_test(rows_by_table["effects"], runner.settings.seed)
    result = results.ImpactResultRecord(
        paired_test=paired_test,
        sequences=folder.total_cost().sequences,
        seconds=round(folder.seconds, 1),
        failed=measured.failed,
        tasks=measured.records,
    )
    finished = held.record.model_copy(update={"result": result})
    for name, columns in results.TABLES.items():
        folder.write_table(name, pl.DataFrame(rows_by_table[Path(name).stem], columns))
    folder.write_text("impact.md", wording.impact_markdown(finished, rows_by_table))
    confirm_answers(runner.encoder)  # raises an error if a server changed its model meanwhile
    held.finish(finished)
    if not measured.failed:  # otherwise, the next session reads the vectors again
        folder.remove_stages(VECTORS)


def _make_record(
    encoder: protocol.WordEncoder,
    settings: ImpactSettings,
    tasks: Sequence[AnyTask],
    token_records: Sequence[TokenRecord],
    notes: list[str],
) -> results.ImpactRecord:
    """Return the record of a measurement that has not begun; a note may be added to ``notes``.

    The identity of the measurement is a hash of all inputs.
    """
    inputs: dict[str, Any] = {
        "tasks": {task.name: task.fingerprint for task in tasks},
        "sticky": [token.token_id for token in token_records if token.kind != "benign"],
        "benign": [token.token_id for token in token_records if token.kind == "benign"],
    }
    # The default of an option is left out of the identity, so that measurements from before the option
    # existed keep their identity.
    named = sorted(token.token_id for token in token_records if token.kind == NAMED)
    if named:
        inputs["named"] = named
    queries = identity_of_queries(encoder)  # None if queries are encoded like documents
    has_queries = any(task.has_queries for task in tasks)
    if queries is not None and has_queries:
        inputs["queries"] = asdict(queries)
    similarity = similarity_of(encoder)
    if similarity is not Similarity.COSINE:
        inputs["similarity"] = similarity.value
        notes.append(f"vectors are compared by the model's own similarity, {similarity}")
    identity_parts = resume.identity_of(_IDENTITY_VERSION, encoder.identify(), settings, **inputs)
    return results.ImpactRecord(
        identity=digest(identity_parts),
        identity_parts=identity_parts,
        model=encoder.name,
        device=encoder.device,
        settings=asdict(settings),
        tokens=list(token_records),
        notes=notes,
        versions=resume.package_versions(),
        hardware=resume.hardware(encoder.device),
        started=resume.now(),
    )


# Assumed number of texts that an MTEB task encodes under one condition. The actual number is unknown until
# the data of the task is loaded.
_MTEB_TEXTS = 5_000


def _count_texts_by_stage(
    tasks: Sequence[AnyTask], conditions: Sequence[Condition], settings: ImpactSettings
) -> dict[str, int]:
    # Returns rough numbers of texts to encode, keyed by stage, which are only for the display of progress.
    texts_by_stage: dict[str, int] = {}
    for task in tasks:
        if isinstance(task, MtebTask):
            texts_by_stage[task.name] = len(conditions) * _MTEB_TEXTS
            continue
        edited_roles = task.edited(settings.side)
        edited = sum(len(texts) for role, texts in task.texts.items() if role in edited_roles)
        texts_by_stage[task.name] = len(conditions) * edited
        # Texts without copies are encoded once for all conditions.
        for text_role, texts in task.texts.items():
            clean_stage = name_clean_stage(task, find_role(task, text_role))
            texts_by_stage[clean_stage] = texts_by_stage.get(clean_stage, 0) + len(texts)
    return texts_by_stage


def _load_tasks(sources: Sequence[TaskSource]) -> tuple[list[AnyTask], list[str]]:
    """Return the tasks that the sources name, and notes about them.

    Raises:
        InputError: a task cannot be found or read, or two have the same name.
    """
    tasks: list[AnyTask] = []
    notes: list[str] = []
    for source in sources:
        if isinstance(source, (str, Path)):
            task, notes_about_task = task_data.find_task(source)
            tasks.append(task)
            notes += notes_about_task
        elif hasattr(source, "outcomes"):  # a task of this package
            tasks.append(cast("Task", source))
        else:
            tasks.append(task_data.find_mteb_task(source))
    # Two tasks with the same name would share their shards.
    names_by_stage: dict[str, str] = {}
    for task in tasks:
        stage = make_stage_name(task.name)
        if stage in names_by_stage:
            raise InputError(
                f"two tasks have the name {names_by_stage[stage]!r}: rename a file, or measure them "
                "separately"
            )
        names_by_stage[stage] = task.name
    return tasks, notes


def _choose_sticky(run: Run | None, settings: ImpactSettings) -> list[int]:
    if run is None:
        raise InputError(
            "no tokens to measure: name them (--tokens), or pass the folder of a finished run, which "
            "`stickytoken detect` makes"
        )
    if settings.edits is not Edits.PAPER:
        return worst_tokens(run, settings.sticky)
    # Chen et al. take all sticky tokens, in the order of their scores, which only std computes.
    if "sticky_score" in run.sticky.columns:
        by_score = run.sticky.sort("sticky_score", "token_id", descending=[True, False])
        return by_score["token_id"].to_list()
    return worst_tokens(run, len(run.sticky))


def _choose_tokens(
    encoder: protocol.WordEncoder,
    run: Run | None,
    tokens: TokenSource,
    exclude: Iterable[int | str],
    settings: ImpactSettings,
) -> list[TokenRecord]:
    """Return the tokens to measure, followed by the benign tokens that are matched to them.

    ``tokens`` are the tokens to measure, and ``exclude`` has the tokens that must not be used as benign
    tokens.
    """
    vocabulary = categorize(encoder.tokenizer)
    is_published = settings.edits is Edits.PAPER
    sticky = available_tokens(vocabulary, token_ids(vocabulary, tokens))
    # Tokens that must not be used as benign tokens: they are sticky, excluded by the user, or too long.
    barred: set[int] = set() if run is None else set(run.sticky_ids)
    excluded = list_of("token ids or texts", "exclude", exclude, ordered=False)
    if excluded:
        excluded_ids = token_ids(vocabulary, excluded)
        for token_id in excluded_ids:
            vocabulary.place(token_id)  # raises an error if there is no such id
        barred.update(excluded_ids)
    barred |= {token.id for token in vocabulary.available if not encoder.fits((token.id,))}
    if is_published and run is not None and _has_all_scores(run):
        unusable = barred | {token.id for token in sticky}
        benign = _draw_lowest_scoring(vocabulary, run, unusable, len(sticky), settings.seed)
    else:
        sticky_ids = [token.id for token in sticky]
        matches = 1 if is_published else settings.benign
        benign = match_apart(vocabulary, sticky_ids, barred, matches, settings.seed)
    sticky_in_run = set() if run is None else set(run.sticky["token_id"])
    string_by_id = dict(zip(vocabulary.ids, vocabulary.tokens, strict=True))
    token_records = []
    for token in sticky:
        kind = "sticky" if token.id in sticky_in_run else NAMED
        record = TokenRecord(
            token_id=token.id, token=string_by_id[token.id], text=token.text, kind=kind, matched_to=None
        )
        token_records.append(record)
    for number, token in enumerate(benign):
        # The first match of every measured token comes first, followed by the second match of every measured
        # token, and so on.
        match = sticky[number % len(sticky)].id
        record = TokenRecord(
            token_id=token.id, token=string_by_id[token.id], text=token.text, kind="benign", matched_to=match
        )
        token_records.append(record)
    return token_records


def _has_all_scores(run: Run | None) -> bool:
    if run is None or "sticky_score" not in run.tokens.columns:
        return False
    return run.tokens["sticky_score"].null_count() == 0


def _draw_lowest_scoring(
    vocabulary: Vocabulary, run: Run, unusable: set[int], count: int, seed: int
) -> list[Token]:
    # Draws ``count`` benign tokens as Chen et al. do: from the 2 x ``count`` usable tokens with the lowest
    # scores.
    ascending = run.tokens.sort("sticky_score", "token_id")["token_id"].to_list()
    usable_ascending = [token_id for token_id in ascending if token_id not in unusable]
    lowest = usable_ascending[: 2 * count]
    if len(lowest) < count:
        raise InputError(f"{count} benign tokens are needed, but the run has only {len(lowest)} to draw from")
    drawn = np.random.default_rng(seed).choice(lowest, count, replace=False)
    return available_tokens(vocabulary, drawn.tolist())


@dataclass(frozen=True)
class _Measured:
    """The rows of every table, keyed by name of the table, and the record of each task."""

    rows_by_table: dict[str, Rows]
    records: list[TaskRecord]
    failed: dict[str, str]  # reason why a task could not be run, keyed by name of the task


def _run_tasks(
    tasks: Sequence[AnyTask], runner: TaskRunner, tokens_by_id: Mapping[int, TokenRecord]
) -> _Measured:
    """Run all tasks, and return their rows and records. A task whose data cannot be loaded is left out."""
    table_names = [Path(file).stem for file in results.TABLES]
    measured = _Measured(rows_by_table={name: [] for name in table_names}, records=[], failed={})
    for task in tasks:
        if isinstance(task, MtebTask):
            try:
                outcomes, record = run_mteb_task(runner, task)
            except task_data.UnreachableTaskError as error:
                measured.failed[task.name] = str(error)
                runner.progress(engines.Progress(task.name, 1, 1))  # reports the task as done
                continue
        else:
            outcomes, record = run_task(runner, task)
        measured.records.append(record)
        rows_of_task = _statistics.make_task_rows(
            task, outcomes, runner.conditions, runner.settings, tokens_by_id
        )
        for table, own_rows in rows_of_task.items():
            measured.rows_by_table[table] += own_rows
    # Several tasks are tested by their main metrics, so only the p-values of main metrics are corrected.
    effects = measured.rows_by_table["effects"]
    p_values = [row["p_value"] if row["main"] else None for row in effects]
    for row, q_value in zip(effects, _statistics.correct_p_values(p_values), strict=True):
        row["q_value"] = q_value
    return measured
