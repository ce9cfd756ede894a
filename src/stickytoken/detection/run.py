"""A finished run, opened for reading: its results, its model, and what to do next."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

import polars as pl

from stickytoken.detection.run_folder import LoadingRecord, RunFolder, RunRecord
from stickytoken.encoders.files.spec import EncoderSpec
from stickytoken.encoders.protocol import Encoder, EncoderIdentity, similarity_of
from stickytoken.encoders.roles import Role, identity_of_queries, in_role
from stickytoken.errors import InputError, ModelError, RunError
from stickytoken.loading import AnyModel, load_encoder, load_from_spec
from stickytoken.measurement.resume import Record, differences
from stickytoken.measurement.store import (
    NORMALIZER_FILE,
    RUN_FILE,
    command_of,
    validated,
)
from stickytoken.methods import (
    SETTINGS_OF_METHOD,
    Column,
    RunDescription,
    Verdict,
    base,
    method_named,
    wording,
)
from stickytoken.methods.measures import Severity, thresholds
from stickytoken.methods.wording import Harm
from stickytoken.settings.profile import ProfileSettings
from stickytoken.unit_vectors import Similarity
from stickytoken.validation import file_path, visible, whole_number
from stickytoken.vocabulary import NormalizingTokenizer, RoundTripTokenizer, find_normalized_specials

# Maximum number of sticky tokens that a notebook shows of a run.
_ROWS_IN_NOTEBOOK = 20


class Run:
    """The results of one finished run.

    Args:
        path: The run folder.

    Raises:
        RunError: The folder is not a run, is damaged or is not finished.

    Examples:
        >>> run.model_name, len(run.tokens), len(run.sticky)
        ('all-MiniLM-L6-v2', 23699, 18)
        >>> run.sticky["token"].to_list()[:3]
        ['[CLS]', 'ذ', 'ও']
        >>> run.thresholds()
        {'erased': 0.4, 'push': 1.5}
    """

    def __init__(self, path: Path) -> None:
        """Read the record and the table of tokens, and check that they can be used."""
        self._folder = RunFolder(path)
        self.record, self.result = self._folder.read_finished()
        self.method: base.Method = method_named(self.record.method)
        self.tokens: pl.DataFrame = self._folder.read_tokens(self.record, self.result)

    def __repr__(self) -> str:
        count = f"{len(self.sticky):,} of {self.record.tokens:,} tokens sticky"
        return f"<Run: {self.record.model.name}, {self.record.method}, {count}, in {self.path}>"

    def _repr_html_(self) -> str:
        """How a notebook shows the run: its worst sticky tokens."""
        titles = {"token_id": "id", "token": "token", "category": "category"}  # keyed by column
        for column in self.listed(self.sticky):
            titles[column.key] = column.title
        titles["verdict"] = "verdict"
        rows = self.sticky.select(list(titles)).head(_ROWS_IN_NOTEBOOK).rows()
        head = "".join(f"<th>{_cell_as_html(title)}</th>" for title in titles.values())
        body = ""
        for row in rows:
            cells = "".join(f"<td>{_cell_as_html(value)}</td>" for value in row)
            body += f"<tr>{cells}</tr>"
        omitted = len(self.sticky) - len(rows)
        note = f"<p>{omitted:,} more in <code>run.sticky</code></p>" if omitted else ""
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        return f"<p>{_cell_as_html(repr(self))}</p>{table}{note}"

    @property
    def path(self) -> Path:
        """The run folder."""
        return self._folder.path

    @property
    def sticky(self) -> pl.DataFrame:
        """The sticky tokens, worst first."""
        sticky = self.tokens.filter(pl.col("verdict") == "sticky")
        if "severity" in sticky.columns:  # which only profile has
            return worst_first(sticky)
        ranked_by = self.method.TABLE.ranked_by.key
        return sticky.sort(ranked_by, "token_id", descending=[True, False], nulls_last=True)

    @property
    def sticky_ids(self) -> frozenset[int]:
        """The ids of the sticky tokens."""
        return frozenset(self.tokens.filter(pl.col("verdict") == "sticky")["token_id"])

    def strongest(self, count: int) -> pl.DataFrame:
        """Return about ``count`` of the strongest tokens that are not sticky.

        The first half has the tokens with the largest values in the column that the method ranks tokens by,
        confirmed tokens before those that were only screened. The second half has the largest pushes. A run
        of std measures no push, so all tokens are chosen by the ranking column.
        """
        ranked_by = self.method.TABLE.ranked_by.key
        is_unflagged = pl.col("verdict").ne_missing("sticky")  # also without a verdict
        unflagged = self.tokens.filter(is_unflagged)
        has_push = "push" in unflagged.columns
        count_by_rank = max(1, count // 2) if has_push else count
        by_rank = ["confirmed", ranked_by] if "confirmed" in unflagged.columns else [ranked_by]
        ids = _find_ids_of_largest(unflagged.drop_nulls(ranked_by), by_rank, count_by_rank)
        if has_push:
            remaining = unflagged.filter(~pl.col("token_id").is_in(ids)).drop_nulls("push")
            ids += _find_ids_of_largest(remaining, ["push"], count_by_rank)
        # The join keeps the order of the ids.
        strongest = pl.DataFrame({"token_id": ids}, schema={"token_id": pl.Int64})
        return strongest.join(unflagged, on="token_id", maintain_order="left").select(self.tokens.columns)

    def listed(self, rows: pl.DataFrame) -> list[Column]:
        """Return the columns to show in a short table of the given rows, without empty text columns."""
        columns = []
        for column in self.method.TABLE.listed:
            is_number = column.digits is not None
            has_values = column.key in rows.columns and rows[column.key].null_count() < len(rows)
            if is_number or has_values:
                columns.append(column)
        return columns

    @property
    def model_name(self) -> str:
        """The model as the user named it."""
        return self.record.model.name

    @property
    def model_title(self) -> str:
        """The model as the user named it, with the layer and dimensions if they are not the defaults."""
        return self.record.model.title

    @property
    def repairable(self) -> bool:
        """Whether `repair` takes the model: not behind an endpoint, through a prompt or at an inner layer."""
        loading = self.record.model.loading
        if loading is None:
            return True
        return loading.endpoint is None and loading.layer_choice is None and loading.prompting.layer is None

    @property
    def available(self) -> int:
        """Number of vocabulary entries that can occur in text."""
        return self.record.model.available

    @cached_property
    def settings(self) -> Any:
        """Settings of the method, an instance of its settings class.

        Raises:
            RunError: run.json has a value that is not allowed.
        """
        return validated(SETTINGS_OF_METHOD[self.record.method], self.record.settings, self.path / RUN_FILE)

    @cached_property
    def description(self) -> RunDescription:
        """What the method says about the run, in the terminal and in reports.

        Raises:
            RunError: plan.json is missing or damaged.
        """
        return self.method.describe_run(self)

    @property
    def is_profile(self) -> bool:
        """Whether the method is profile; see `RunRecord.is_profile`."""
        return self.record.is_profile

    @property
    def confidence(self) -> float | None:
        """Coverage of the intervals of the run, between 0 and 1; None for std, which computes none."""
        return self.settings.confidence if self.is_profile else None

    def thresholds(self, row: Mapping[str, Any] | None = None) -> dict[str, float]:
        """Return the thresholds for a token, keyed by column; empty for std, which has none.

        Args:
            row: The token's row of tokens.parquet. A token with an unusual vector has lower thresholds. If
                None, return the thresholds for all other tokens.
        """
        if not self.is_profile:
            return {}
        deviation = None if row is None else row["vector_deviation"]
        values = thresholds(deviation, self.settings)
        return {column: float(value) for column, value in values.items()}

    @property
    def vocabulary(self) -> pl.DataFrame:
        """All vocabulary entries with their categories, and which of them are special tokens."""
        return self._folder.read_vocabulary()

    @property
    def normalizer(self) -> str | None:
        """The normaliser of the model's tokenizer, in JSON as the tokenizers library writes it.

        None if it isn't known.
        """
        record = self._folder.read_record(NORMALIZER_FILE, NormalizerRecord)
        return None if record is None else json.dumps(record.normalizer)

    @property
    def normalized_specials(self) -> tuple[str, ...]:
        """Texts of the special tokens that the tokenizer also reads from other spellings, such as ``<UNK>``.

        Empty if they aren't known.
        """
        record = self._folder.read_record(NORMALIZER_FILE, NormalizerRecord)
        return () if record is None else tuple(record.normalized_specials or ())

    @property
    def plan(self) -> base.PlanRecord:
        """The plan of the run: what the method computed from model and corpus before it measured any token.

        Raises:
            RunError: plan.json is missing or damaged.
        """
        plan = self._folder.read_plan(self.record.method)
        if plan is None:
            raise RunError(f"{self.path} has no plan.json: run {command_of(self.path)} again to write it")
        return plan

    @property
    def has_named_tokens(self) -> bool:
        """Whether a user named the tokens, which then are neither all available ones nor a random sample."""
        return self.record.scope is base.Scope.NAMED

    @cached_property  # the plan is read from its file
    def most_documents(self) -> int | None:
        """The number of documents that receive copies of a token, if no step drops it; None if none do."""
        plan: Any = self.plan
        if not self.is_profile or plan.documents is None:
            return None
        return len(plan.documents.chosen)

    def harm(self, token_id: int) -> Harm | None:
        """Return what copies of a token do to documents; None unless it was measured in all of them."""
        result: Any = self.result
        if not self.is_profile or result.ordinary_push is None:
            return None
        row = self.tokens.filter(pl.col("token_id") == token_id).row(0, named=True)
        if row["push"] is None or row["found"] is None or row["documents"] != self.most_documents:
            return None
        return Harm(
            token=row["token"],
            push=row["push"],
            found=row["found"],
            ordinary_push=result.ordinary_push,
            ordinary_found=result.ordinary_found,
            found_without=result.found,
        )

    def worst_harm(self) -> str | None:
        """Return a sentence, without a full stop, on the sticky token that does most to documents.

        It is about the first sticky token if none was measured in documents, and None without any.
        """
        if self.sticky.is_empty():
            return None
        rows = self.sticky.to_dicts()
        harms = [self.harm(row["token_id"]) for row in rows]
        # Of equal tokens, such as all if no harm is known, `max` takes the first.
        worst = max(range(len(rows)), key=lambda index: _extent(harms[index]))
        return wording.harm_sentence(rows[worst], harms[worst])

    def token(self, token: int | str) -> pl.DataFrame:
        """Return the rows of a token that is named by its id, vocabulary string or decoded text.

        Raises:
            InputError: The run has no such token, or the value is neither an id nor a text.
        """
        if not isinstance(token, str):
            rows = self.tokens.filter(pl.col("token_id") == whole_number("token", token))
        else:
            rows = self.tokens.filter(pl.col("token") == token)
            if rows.is_empty() and token.strip():  # spaces alone would match any token of spaces
                rows = self.tokens.filter(pl.col("decoded").str.strip_chars() == token.strip())
        if rows.is_empty():
            raise InputError(f"the run in {self.path} has no token {token!r}")
        return rows

    def summary(self) -> dict[str, Any]:
        """Return the result and the sticky tokens as JSON-serializable values."""
        return {
            "run": str(self.path),
            "method": self.record.method,
            "model": self.record.model.name,
            "headline": f"{self.model_title}: {self.description.headline}",
            "available": self.record.model.available,
            **self.result.model_dump(),
            "sticky": self.sticky.to_dicts(),
        }


def worst_first(tokens: pl.DataFrame) -> pl.DataFrame:
    """Sort tokens: sticky tokens first, then all others.

    Tokens with the same verdict are sorted by severity, then by erased share, then by push, worst first.
    """
    # Everything is sorted in ascending order, so large values of what is bad are negated.
    rank_of_verdict = {verdict.value: rank for rank, verdict in enumerate(Verdict)}  # sticky is the first
    last = len(rank_of_verdict)  # for tokens without a verdict
    order = [pl.col("verdict").replace_strict(rank_of_verdict, default=last, return_dtype=pl.Int8)]
    if "severity" in tokens.columns:
        rank_of_severity = {severity.value: severity.rank for severity in Severity}
        rank = pl.col("severity").replace_strict(rank_of_severity, default=-1, return_dtype=pl.Int8)
        order.append(-rank)
    order += [-pl.col(name) for name in ("erased", "push") if name in tokens.columns]
    return tokens.sort(*order, "token_id", nulls_last=True)


def _find_ids_of_largest(tokens: pl.DataFrame, columns: Sequence[str], count: int) -> list[int]:
    """The columns must have no nulls, which polars would sort before the largest values."""
    descending = [*(True for _ in columns), False]  # ascending by id
    ids: list[int] = (
        tokens.sort(*columns, "token_id", descending=descending)["token_id"].head(count).to_list()
    )
    return ids


def _cell_as_html(value: object) -> str:
    if value is None:
        return "-"
    return html.escape(visible(f"{value:.4g}" if isinstance(value, float) else str(value)))


def is_run(path: str | Path) -> bool:
    """Return whether a path is a run folder, even one without run.json, which `open_run` refuses."""
    folder = RunFolder(file_path("the run", path))
    return folder.holds_run() or folder.lacks_record()


def open_run(path: Run | str | Path) -> Run:
    """Open a finished run from its folder; an open `Run` is returned unchanged.

    Raises:
        InputError: The argument is not a path.
        RunError: The folder is not a run, is damaged or is not finished.

    Examples:
        >>> run = stickytoken.open_run("run")
        >>> run.is_profile
        True
    """
    return path if isinstance(path, Run) else Run(file_path("the run", path))


class NormalizerRecord(Record):
    """normalizer.json: the normaliser of the tokenizer, which cleaning compares words with."""

    normalizer: dict[str, Any]
    # Texts of the special tokens that are also read from other spellings; null in a file of an earlier
    # version.
    normalized_specials: list[str] | None = None


def record_normalizer(run: Run, tokenizer: RoundTripTokenizer) -> None:
    """Write normalizer.json into a run folder, unless the normaliser isn't known or the file is complete."""
    normalizer = tokenizer.normalizer if isinstance(tokenizer, NormalizingTokenizer) else None
    if normalizer is None:
        return
    folder = RunFolder(run.path)
    record = folder.read_record(NORMALIZER_FILE, NormalizerRecord)
    if record is None or record.normalized_specials is None:
        specials = run.vocabulary.filter("special").select("token_id", "decoded")
        normalized_specials = find_normalized_specials(dict(specials.iter_rows()), tokenizer)
        record = NormalizerRecord(normalizer=json.loads(normalizer), normalized_specials=normalized_specials)
        folder.write_record(NORMALIZER_FILE, record)


# The model of a run, loaded again.


class ModelIdentity(NamedTuple):
    """How a model encodes documents and queries, and compares them."""

    documents: EncoderIdentity
    queries: EncoderIdentity | None  # None if queries are encoded like documents
    similarity: Similarity  # how vectors are compared


def identify_model(encoder: Encoder) -> ModelIdentity:
    """Return the identity of a model. This hashes its weights, so compute it once for several runs.

    Args:
        encoder: The model, as it encodes documents.
    """
    return ModelIdentity(encoder.identify(), identity_of_queries(encoder), similarity_of(encoder))


def model_difference(record: RunRecord, model: ModelIdentity) -> list[str] | None:
    """Return the names of the properties that differ between the model of a run and another model.

    The list is empty if the two models are the same. The result is None if the record does not identify its
    model. Queries are compared only for a run of profile: std encodes none.
    """
    recorded = record.identity_parts.get("encoder")
    if not isinstance(recorded, dict):
        return None
    different = differences(asdict(model.documents), recorded)
    if not record.is_profile:
        return different
    # Queries have an entry only if they are encoded otherwise than documents.
    recorded_queries = record.identity_parts.get("queries", recorded)
    different_in_queries = differences(asdict(model.queries or model.documents), recorded_queries)
    different += [f"{name} of queries" for name in different_in_queries if name not in different]
    # The similarity has an entry only if it is not the cosine.
    if record.identity_parts.get("similarity", Similarity.COSINE) != model.similarity:
        different.append("similarity")
    return different


def is_same_model(record: RunRecord, model: ModelIdentity) -> bool:
    """Return whether a run was made with a model; False if the record does not identify its model."""
    return model_difference(record, model) == []


def require_same_model(run: Run, encoder: Encoder) -> None:
    """Raise an error if an encoder is not the model of a run."""
    different = model_difference(run.record, identify_model(encoder))
    if different is None:
        raise RunError(f"{run.path} does not record its model: run the detection again")
    if different:
        raise RunError(
            f"the run in {run.path} was made with a different model from {encoder.name!r} (they differ in "
            f"{', '.join(different)}): pass the model of the run, with the same prompt and precision"
        )


def complete_spec(run: RunRecord, chosen: EncoderSpec) -> EncoderSpec:
    """Return how to load the model of a run again: as the run did, except for what the user chose.

    Args:
        run: The record of the run.
        chosen: Where the model is now, and the user's options.
    """
    loading = run.model.loading
    if loading is None:
        # The encoder was made from a model object. Its identity has two of the options.
        identity = run.identity_parts.get("encoder", {})
        options = {name: identity[name] for name in ("dtype", "prompt") if name in identity}
        loading = LoadingRecord.model_validate(options)
    return loading.complete(chosen)


def load_for_documents(model: AnyModel, revision: str | None = None) -> Encoder:
    """Load a model to encode texts as documents: those receive copies."""
    any_kind: Any = model  # not every kind of model that `load_encoder` takes has a revision
    encoder: Encoder = in_role(load_encoder(any_kind, revision=revision), Role.DOCUMENT)
    return encoder


def load_recorded(run: RunRecord) -> Encoder:
    """Load the model of a run, or connect to its endpoint, with the options that the run records."""
    spec = complete_spec(run, EncoderSpec(model=run.model.location))
    return in_role(load_from_spec(spec), Role.DOCUMENT)


@contextmanager
def naming_model_in_errors(run: object, replacement: str) -> Iterator[None]:
    """Add to an error about loading the model of a run whose model it is, and how to pass it if it has moved.

    Args:
        run: The run, as the user named it.
        replacement: What the user can pass instead, such as ``--model``.
    """
    try:
        yield
    except ModelError as error:
        raise ModelError(f"the model of {run}: {error} (if it has moved, pass {replacement})") from error


def encoder_for(model: AnyModel | None, run: Run | None, purpose: str) -> Encoder:
    """Return the encoder that the caller passed, or else the model of the run, loaded as in the run.

    Args:
        model: The model that the caller passed. If None, the model of the run is loaded.
        run: A run of this model; None if there is no run.
        purpose: Name of the function that needs the model, for the error if both are None.

    Raises:
        InputError: There is neither a model nor a run.
        ModelError: The model of the run cannot be loaded.
        RunError: The model that the caller passed is not the model of the run.
    """
    if model is not None:
        encoder = load_for_documents(model)
    elif run is None:
        raise InputError(f"{purpose} needs a model or a run: pass a model's name, folder or object, or run=")
    else:
        with naming_model_in_errors(run.path, "it as encoder"):
            encoder = load_recorded(run.record)
    if run is not None:
        require_same_model(run, encoder)
    return encoder


def rule_of(run: Run) -> ProfileSettings:
    """Return the settings of a run of `profile`, whose thresholds are the rule; else the default ones."""
    settings: ProfileSettings = run.settings if run.is_profile else ProfileSettings()
    return settings


# What to do next.


class NextStep(NamedTuple):
    """A step that the user can take after a run."""

    purpose: str  # an imperative in lower case, without a full stop
    command: str  # the command line; the user replaces the names in capitals


def next_steps(run: Run, repair_verified_on: str | None = None) -> tuple[NextStep, ...]:
    """Return the steps that a user can take after a run, the best step first.

    Args:
        run: The run.
        repair_verified_on: The date of a verified repair of the run's model; None if it has none.
    """
    folder = quote(str(run.path))
    audit = f"stickytoken audit {folder} --documents YOUR_DOCUMENTS"
    scan = f"stickytoken scan {folder} YOUR_DOCUMENTS"
    if run.sticky.is_empty():
        scanned = NextStep("find documents that repeat a word or contain special tokens", scan)
        return NextStep("see what copies do to your own documents", audit), scanned
    clean = NextStep("then take the copies out of them", f"stickytoken clean {folder} YOUR_DOCUMENTS")
    find = NextStep("find the documents that contain copies", scan)
    if not run.repairable:
        return find, clean
    check = NextStep("check the repaired copy, or another model, in CI", "stickytoken check YOUR_FOLDER")
    find_instead = find._replace(purpose=f"or keep this model, and {find.purpose}")
    if repair_verified_on is not None:
        use_repaired = NextStep(
            "encode your documents again with the repaired model (YOUR_FOLDER), verified on "
            f"{repair_verified_on}",
            f"stickytoken embed YOUR_FOLDER{_options_for_documents(run)} --input YOUR_DOCUMENTS "
            "--out YOUR_VECTORS",
        )
        return use_repaired, find_instead, clean, check
    if not run.is_profile:
        # Most of the tokens that the paper's method calls sticky affect texts no more than ordinary ones do.
        compare = NextStep(
            "see which of these tokens matter on texts, before you repair any",
            f"stickytoken detect {quote(run.model_name)}",
        )
        return compare, find, clean, check
    repair = NextStep(
        "write a repaired, verified copy of the model, then encode your documents with it",
        f"stickytoken repair {folder} --out YOUR_FOLDER",
    )
    has_only_mild_tokens = set(run.sticky["severity"]) == {Severity.MILD}
    if has_only_mild_tokens:
        find_first = find._replace(
            purpose="see whether your documents repeat these mild tokens, "
            "and repair the model only if they do"
        )
        repair_then = repair._replace(purpose=f"if they do, {repair.purpose}")
        return find_first, repair_then, clean._replace(purpose="or take the copies out"), check
    return repair, find_instead, clean, check


def _options_for_documents(run: Run) -> str:
    """Return the options with which `embed` encodes documents as the run did, each after a space."""
    spec = complete_spec(run.record, EncoderSpec(model="YOUR_FOLDER"))
    prompt = spec.prompting.prompt
    if not prompt and run.record.model.loading is None:  # the user named none
        prompt = None
    route = spec.route
    # `embed` encodes texts without a role, unless a route is named.
    has_roles = "queries" in run.record.identity_parts or run.record.model.route == Role.DOCUMENT
    if route is None and run.record.model.route is not None and has_roles:
        route = Role.DOCUMENT.value
    options = ""
    if prompt is not None:
        options += f" --prompt {quote(prompt)}"
    if route is not None:
        options += f" --route {quote(route)}"
    if spec.truncate_dim is not None:
        options += f" --truncate-dim {spec.truncate_dim}"
    if spec.dtype not in (None, "float32"):  # the default
        options += f" --set dtype={spec.dtype}"
    return options


def _extent(harm: Harm | None) -> float:
    return -math.inf if harm is None else max(harm.shares)
