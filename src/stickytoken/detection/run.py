"""A finished run, opened for reading."""

from __future__ import annotations

import hashlib
import html
import json
import os
import stat
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple, TypeVar

import polars as pl

from stickytoken.data import SentenceSource
from stickytoken.detection import _older_runs, run_folder
from stickytoken.detection.run_folder import EndpointRecord, LoadingRecord, RunEvidence, RunFolder, RunRecord
from stickytoken.encoders.endpoint import EndpointOptions, names_endpoint
from stickytoken.encoders.loading import AnyModel, load_encoder
from stickytoken.encoders.loading.resolution import Origin, resolve_model
from stickytoken.encoders.protocol import Encoder, EncoderIdentity, Prompting
from stickytoken.errors import InputError, ModelError, RunError
from stickytoken.machine import digest
from stickytoken.measurement import TOKENS_FILE, VOCABULARY_FILE
from stickytoken.measurement.resume import MeasurementRecord, Record, differences, package_versions
from stickytoken.methods import Column, Moved, Severity, base, wording
from stickytoken.methods.registry import method_named
from stickytoken.methods.wording import SearchHarm
from stickytoken.validation import file_path, visible, whole_number

RecordKind = TypeVar("RecordKind")


class Run:
    """The results of one finished run.

    Args:
        path: the run folder.

    Raises:
        RunError: The folder is not a run, is damaged or is not finished.
    """

    def __init__(self, path: Path) -> None:
        self._folder = RunFolder(path)
        if not self._folder.exists():
            raise RunError(f"no run folder {str(path)!r}")
        self.record: RunRecord = self._folder.read_run()
        if self.record.result is None:
            raise RunError(f"the run in {path} is not finished: run the same command again to continue it")
        self.method: base.AnyMethod = method_named(self.record.method)
        self.result: base.ResultRecord = self.record.result
        self.tokens: pl.DataFrame = self._read_tokens()
        for column in (*self.method.listed, *self.method.reported, self.method.ranked_by):
            dtype = self.tokens.schema.get(column.key, pl.Null())
            if column.digits is not None and not (dtype.is_numeric() or dtype == pl.Null):
                raise RunError(
                    f"{path / TOKENS_FILE} has {dtype} in the column {column.key!r}, which holds numbers: "
                    "delete it and run the same command again"
                )
        if self.sticky[self.method.ranked_by.key].null_count():
            raise RunError(
                f"{path / TOKENS_FILE} has sticky tokens without a number in the column "
                f"{self.method.ranked_by.key!r}: delete it and run the same command again"
            )

    def _read_tokens(self) -> pl.DataFrame:
        """Read tokens.parquet, in today's form."""
        if not self.is_of_older_rule:
            return self._folder.read_table(TOKENS_FILE, self.method.columns)
        plan: Any = self.plan
        result: Any = self.result
        return _older_runs.upgraded_tokens(
            self._folder.read_table(TOKENS_FILE, ("token_id", "lift", "lift_low", "lift_high", "verdict")),
            ordinary_lift=result.ordinary_lift,
            spread=plan.similarity_spread,
            ordinary_contraction=result.ordinary_contraction,
        )

    @property
    def is_of_older_rule(self) -> bool:
        """Whether the verdicts were given by the rule of an earlier version."""
        return self.record.schema_version < self.method.rule_since

    def __repr__(self) -> str:
        found = f"{len(self.sticky):,} of {self.record.tokens:,} tokens sticky"
        return f"<Run: {self.record.model.name}, {self.record.method}, {found}, in {self.path}>"

    def _repr_html_(self) -> str:
        titles = {"token_id": "id", "token": "token", "category": "category"}
        listed = self.listed(self.sticky)
        titles |= {column.key: column.title for column in listed} | {"verdict": "verdict"}
        rows = self.sticky.select(list(titles)).head(20).rows()
        head = "".join(f"<th>{_cell(title)}</th>" for title in titles.values())
        body = "".join(f"<tr>{''.join(f'<td>{_cell(value)}</td>' for value in row)}</tr>" for row in rows)
        left_out = len(self.sticky) - len(rows)
        more = f"<p>{left_out:,} more in <code>run.sticky</code></p>" if left_out else ""
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        return f"<p>{_cell(repr(self))}</p>{table}{more}"

    @property
    def path(self) -> Path:
        """The run folder."""
        return self._folder.path

    @property
    def sticky(self) -> pl.DataFrame:
        """The sticky tokens, worst first."""
        sticky = self.tokens.filter(pl.col("verdict") == "sticky")
        if "severity" in sticky.columns:
            return base.worst_first(sticky)
        return sticky.sort(self.method.ranked_by.key, "token_id", descending=[True, False], nulls_last=True)

    def strongest(self, count: int) -> pl.DataFrame:
        """The tokens that stand out most without being flagged.

        Half of them are those with the largest value in the column that the method ranks by. The other half
        are those with the largest lift, where the method measures one in standard deviations.
        """
        others = self.tokens.filter(~run_folder.is_flagged())
        measures = [self.method.ranked_by.key]
        if "lift_sd" in others.columns:
            measures.append("lift_sd")
        share = max(1, count // len(measures))
        chosen: list[int] = []
        for measure in measures:
            left = others.filter(~pl.col("token_id").is_in(chosen)).drop_nulls(measure)
            ranked = left.sort(measure, "token_id", descending=[True, False])
            chosen += ranked["token_id"].head(share).to_list()
        order = pl.DataFrame({"token_id": chosen}, schema={"token_id": pl.Int64})
        return order.join(others, on="token_id", maintain_order="left").select(others.columns)

    def listed(self, rows: pl.DataFrame) -> list[Column]:
        """Columns of a short table of some tokens; without those of text that are empty for all of them."""
        return [
            column
            for column in self.method.listed
            if column.digits is not None
            or (column.key in rows.columns and rows[column.key].null_count() < len(rows))
        ]

    @property
    def model_name(self) -> str:
        """The model as the user named it."""
        return self.record.model.name

    @property
    def model_title(self) -> str:
        """The model as the user named it, and how it was read if not as it was saved."""
        return self.record.model.long_title

    @property
    def available(self) -> int:
        """Vocabulary entries that can occur in text."""
        return self.record.model.available

    @property
    def settings(self) -> base.StoredSettings:
        """Settings of the method."""
        return self._folder.settings_of(self.record)

    @property
    def vocabulary(self) -> pl.DataFrame:
        """All vocabulary entries with their categories."""
        return self._folder.read_table(VOCABULARY_FILE)

    @property
    def plan(self) -> base.PlanRecord:
        """What was derived from the model and the corpus before any token.

        Raises:
            RunError: plan.json is missing or damaged.
        """
        plan = self._folder.read_plan(self.record.method)
        if plan is None:
            raise RunError(f"{self.path} has no plan.json: run the same command again to write it")
        return plan

    @property
    def evidence(self) -> RunEvidence | None:
        """Symptom curves and real pairs; None where none were kept.

        Raises:
            RunError: what is there is damaged.
        """
        return run_folder.read_evidence(self._folder)

    def moved(self, token_id: int) -> Moved | None:
        """What copies of a token do to the rank of an average unrelated document.

        None where the run has not kept it: for most tokens, and in a run without evidence.
        """
        evidence = self.evidence
        return None if evidence is None else evidence.moved(token_id)

    def harm(self, token_id: int) -> SearchHarm | None:
        """What copies of a token do in a small search; None where the run has not kept it."""
        evidence = self.evidence
        return None if evidence is None else evidence.harm(token_id)

    def harm_sentences(self, limit: int) -> list[str]:
        """Say for the worst sticky tokens what their copies do in a search, without full stops."""
        sentences = []
        for row in self.sticky.head(limit).iter_rows(named=True):
            sentence = wording.harm_sentence(row, self.harm(row["token_id"]))
            if sentence is not None:
                sentences.append(sentence)
        return sentences

    def plan_of(self, kind: type[RecordKind]) -> RecordKind:
        """The plan of a method.

        Raises:
            RunError: the run is of another method, or has no plan.
        """
        return self._of(self.plan, kind)

    def result_of(self, kind: type[RecordKind]) -> RecordKind:
        """The result of a method.

        Raises:
            RunError: the run is of another method.
        """
        return self._of(self.result, kind)

    def _of(self, record: object, kind: type[RecordKind]) -> RecordKind:
        if not isinstance(record, kind):
            raise RunError(f"{self.path} contains a run of the method {self.record.method}")
        return record

    def token(self, token: int | str) -> pl.DataFrame:
        """The rows of one token, given as id, vocabulary string or decoded text.

        Raises:
            InputError: The run has no such token, or the value is neither an id nor a text.
        """
        if not isinstance(token, str):
            rows = self.tokens.filter(pl.col("token_id") == whole_number("token", token))
        else:
            rows = self.tokens.filter(pl.col("token") == token)
        if rows.is_empty() and isinstance(token, str) and token.strip():
            rows = self.tokens.filter(pl.col("decoded").str.strip_chars() == token.strip())
        if rows.is_empty():
            raise InputError(f"the run in {self.path} has no token {token!r}")
        return rows

    def judge(self, sentences: SentenceSource, **options: Any) -> base.Judgement:
        """Measure what the tokens do to the texts of a corpus; see `stickytoken.judge`."""
        from stickytoken.detection import judge

        return judge(self, sentences, **options)

    def summary(self) -> dict[str, Any]:
        """The run in JSON values, the sticky tokens included."""
        return {
            "run": str(self.path),
            "method": self.record.method,
            "model": self.record.model.name,
            "headline": self.method.headline(self),
            "available": self.record.model.available,
            **self.result.model_dump(),
            "sticky": self.sticky.to_dicts(),
        }


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return html.escape(visible(f"{value:.4g}" if isinstance(value, float) else str(value)))


def is_run(path: str | Path) -> bool:
    return RunFolder(file_path("the run", path)).holds_run()


def open_run(path: Run | str | Path) -> Run:
    """Open a finished run; a `Run` is returned as it is.

    Raises:
        InputError: The argument is not a path.
        RunError: The folder is not a run, is damaged or is not finished.
    """
    return path if isinstance(path, Run) else Run(file_path("the run", path))


def flagged_tokens(run: Run | None) -> frozenset[int]:
    return frozenset() if run is None else frozenset(run_folder.flagged_ids(run.tokens))


_FILE = "model.json"
_VERSION = 1
_READERS = ("stickytoken", "torch", "transformers", "sentence-transformers", "tokenizers")
_POINTING_ELSEWHERE = ("adapter_config.json", "router_config.json")
# Two states of a file with the same times cannot be told apart, and some file systems count in steps of two
# seconds. Files this old when they were first looked at cannot have changed unseen since.
_SETTLED = 3_000_000_000


class ModelFilesRecord(Record):
    """model.json: the files that the model of a run was loaded from, with nothing but its name."""

    schema_version: int
    files: str
    versions: dict[str, str]
    encoder: dict[str, Any]


class FileState(NamedTuple):
    size: int
    modified: int  # in nanoseconds, as the next
    changed: int
    inode: int
    device: int


@dataclass(frozen=True, slots=True)
class ModelFiles:
    folder: Path
    states: Mapping[str, FileState]  # of every file, by relative path
    looked_at: int  # the moment, in nanoseconds

    @property
    def settled(self) -> bool:
        latest = (max(state.modified, state.changed) for state in self.states.values())
        return all(moment < self.looked_at - _SETTLED for moment in latest)

    def fingerprint(self) -> str | None:
        found = []
        for name in sorted(self.states):
            with suppress(OSError), (self.folder / name).open("rb") as stream:
                found.append([name, hashlib.file_digest(stream, "sha256").hexdigest()])
        unchanged = len(found) == len(self.states) and _states(self.folder) == self.states
        return digest(found) if unchanged else None


def look_at_model(name: str, revision: str | None = None) -> ModelFiles | None:
    if names_endpoint(name):
        return None
    source = resolve_model(name, revision)
    folder = Path(source.location)
    if source.origin is Origin.HUB or not _is_self_contained(folder):
        return None
    looked_at = time.time_ns()
    states = _states(folder)
    return ModelFiles(folder, states, looked_at) if states else None


def record_model(path: Path, record: RunRecord, files: ModelFiles | None) -> None:
    if files is None or not files.settled or (fingerprint := files.fingerprint()) is None:
        return
    own = _model_files(record, fingerprint)
    if own is not None and not is_model_of(path, record, fingerprint):
        with suppress(RunError):
            RunFolder(path).write_record(_FILE, own)


def is_model_of(path: Path, record: RunRecord, fingerprint: str) -> bool:
    own = _model_files(record, fingerprint)
    with suppress(RunError):  # a damaged record is replaced
        return own is not None and RunFolder(path).read_record(_FILE, ModelFilesRecord) == own
    return False


def _model_files(record: RunRecord, fingerprint: str) -> ModelFilesRecord | None:
    encoder = record.identity_parts.get("encoder")
    if not isinstance(encoder, dict):
        return None
    versions = {name: version for name, version in package_versions().items() if name in _READERS}
    return ModelFilesRecord(schema_version=_VERSION, files=fingerprint, versions=versions, encoder=encoder)


def _states(folder: Path) -> dict[str, FileState] | None:
    found: dict[str, FileState] = {}
    unread: list[OSError] = []
    for parent, folders, names in os.walk(folder, onerror=unread.append, followlinks=False):
        for name in [*names, *(each for each in folders if (Path(parent) / each).is_symlink())]:
            path = Path(parent) / name
            try:
                state = path.stat()
            except OSError:
                return None
            if not stat.S_ISREG(state.st_mode):  # neither a file nor a folder
                return None
            found[str(path.relative_to(folder))] = FileState(
                state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino, state.st_dev
            )
    return None if unread else found


def _is_self_contained(folder: Path) -> bool:
    if any(next(folder.rglob(name), None) is not None for name in _POINTING_ELSEWHERE):
        return False
    if not (folder / "modules.json").is_file():
        return True
    try:
        modules = json.loads((folder / "modules.json").read_text("utf-8"))
        return all(
            str(module["type"]).startswith("sentence_transformers.")
            and not Path(str(module["path"])).is_absolute()
            and ".." not in Path(str(module["path"])).parts
            for module in modules
        ) and all(
            "name_or_path" not in text.read_text("utf-8") for text in folder.rglob("sentence_*_config.json")
        )
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False


def model_difference(record: MeasurementRecord, identity: EncoderIdentity) -> list[str] | None:
    recorded = record.identity_parts.get("encoder")
    return differences(asdict(identity), recorded) if isinstance(recorded, dict) else None


def require_same_model(run: Run, encoder: Encoder) -> None:
    different = model_difference(run.record, encoder.identity)
    if different is None:
        raise RunError(f"{run.path} does not record its model: run the detection again")
    if different:
        raise RunError(
            f"the run in {run.path} was made with another model than {encoder.name!r} (they differ in "
            f"{', '.join(different)}): pass the model of the run, with the same prompt and precision"
        )


def recorded_loading(run: RunRecord) -> LoadingRecord:
    if run.model.loading is not None:
        return run.model.loading
    known = run.identity_parts.get("encoder", {})
    return LoadingRecord(**{name: known[name] for name in ("dtype", "prompt") if name in known})


def encoder_for(model: AnyModel | None, run: Run | None, purpose: str) -> Encoder:
    if model is None and run is None:
        raise InputError(f"{purpose} needs a model or a run: pass a model's name, folder or object, or run=")
    if run is None:
        return load_encoder(model)  # type: ignore[arg-type]
    if model is not None:
        encoder = load_encoder(model)
    else:
        name, recorded = run.model_name, recorded_loading(run.record)
        try:
            if recorded.endpoint is not None:
                encoder = load_recorded_endpoint(name, recorded, EndpointOptions())
            else:
                prompt = Prompting(**recorded.prompting())
                encoder = load_encoder(
                    name,
                    prompt=prompt,
                    dtype=recorded.dtype,
                    revision=recorded.revision,
                    truncate_dim=recorded.truncate_dim,
                    route=recorded.route,
                )
        except ModelError as error:
            moved = "(if it has moved, pass it as encoder)"
            raise ModelError(f"the model of {run.path}: {error} {moved}") from error
    require_same_model(run, encoder)
    return encoder


def load_recorded_endpoint(name: str, recorded: LoadingRecord, options: EndpointOptions) -> Encoder:
    known = recorded.endpoint or EndpointRecord()
    return load_encoder(
        name,
        prompt=recorded.prompt,
        max_length=known.max_length,
        truncate_dim=recorded.truncate_dim,
        tokenizer=known.tokenizer,
        candidates=known.candidates,
        endpoint=replace(
            options,
            dimensions=options.dimensions or known.dimensions,
            key_variable=options.key_variable or known.key_variable,
        ),
    )


def restored_settings(run: Run) -> base.MethodSettings:
    try:
        return run.settings.restored()
    except (TypeError, InputError) as error:
        raise RunError(f"the settings in {run.path} cannot be used: {error}") from error


def worst_tokens(run: Run, count: int) -> list[int]:
    found: list[int] = run.sticky["token_id"].to_list()
    if not found:
        raise InputError(f"the run in {run.path} found no sticky tokens: name the tokens to look at")
    return found[:count]


class NextStep(NamedTuple):
    purpose: str  # an imperative in small letters, without a full stop
    command: str  # the command line; names in capitals are for the user to fill in


def next_steps(run: Run, repaired: str | None = None) -> tuple[NextStep, ...]:
    """Return what a user can do about what a run found; ``repaired`` is the date of a verified repair."""
    folder = quote(str(run.path))
    judge = f"stickytoken judge {folder} --sentences YOUR_DOCUMENTS"
    scan = f"stickytoken scan {folder} YOUR_DOCUMENTS"
    if run.sticky.is_empty():
        scanned = NextStep("find documents that repeat a word or contain special tokens", scan)
        judged = NextStep("see what tokens do among your own documents", judge)
        return (judged, scanned) if run.method.judges_corpora else (scanned,)
    clean = NextStep("then take the copies out of them", f"stickytoken clean {folder} YOUR_DOCUMENTS")
    find = NextStep("find the documents that contain copies", f"{scan} --effect")
    loading = run.record.model.loading
    if loading is not None and (loading.endpoint is not None or loading.layer is not None):
        return find, clean  # of an endpoint, a prompt or a layer, only documents can be mended
    check = NextStep("check the repaired copy, or another model, in CI", "stickytoken check YOUR_FOLDER")
    repair = NextStep(
        "write a repaired, verified copy of the model, then encode your documents with it",
        f"stickytoken repair {folder} --out YOUR_FOLDER",
    )
    if repaired is not None:
        repair = NextStep(
            f"encode your documents again with the repaired model (YOUR_FOLDER), verified on {repaired}",
            "stickytoken embed YOUR_FOLDER --input YOUR_DOCUMENTS --out YOUR_VECTORS",
        )
    elif not run.method.judges_corpora:
        # Sticky by another definition; most of these tokens do what ordinary ones do.
        compare = NextStep(
            "see which of these tokens matter on texts, before you repair any",
            f"stickytoken detect {quote(run.model_name)}",
        )
        return compare, find, clean, check
    elif "severity" in run.sticky.columns and set(run.sticky["severity"]) == {Severity.MILD}:
        check_first = (
            "see whether your documents repeat these mild tokens, and repair the model only if they do"
        )
        mend = repair._replace(purpose=f"if they do, {repair.purpose}")
        return (
            find._replace(purpose=check_first),
            mend,
            clean._replace(purpose="or take the copies out"),
            check,
        )
    return repair, find._replace(purpose=f"or keep this model, and {find.purpose}"), clean, check
