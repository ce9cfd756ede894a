"""What a detection method is (`Method`), and what every method computes from.

To add a method, write a folder with a subclass of `Method` and register its entry.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeAlias, TypeVar, cast

import polars as pl

import stickytoken.methods as terms
from stickytoken.data import PairCorpus, Sentences
from stickytoken.encoders import views as model_views
from stickytoken.encoders.protocol import Encoder, IdEncoder, reads_ids
from stickytoken.encoders.views import MeanSimilarity, View, Views
from stickytoken.errors import InputError
from stickytoken.insertion import Insertion, Token
from stickytoken.machine import digest, keep, recalled
from stickytoken.measurement import ResultFolder, ShardCost, engine as engines
from stickytoken.measurement.engine import Engine, Progress, ProgressCallback, Stage
from stickytoken.measurement.resume import Record
from stickytoken.methods.probes import AnchorPanel, EvidenceStage, as_carriers, fitting_copies
from stickytoken.methods.statistics import TokenEffects
from stickytoken.unit_vectors import unit_vectors
from stickytoken.validation import real_number
from stickytoken.vocabulary import Vocabulary


class PlanRecord(Record):
    mean_similarity: float  # u, the mean cosine over the vocabulary
    mean_similarity_entries: int  # vocabulary entries that u rests on
    mean_similarity_error: float = 0.0  # standard error of u; 0 if it rests on the whole vocabulary
    isoscore: float | None = None  # evenness of the vocabulary's vectors; null in runs of earlier versions

    @property
    def space(self) -> list[str]:
        if self.isoscore is None:
            return []
        return [
            f"IsoScore {self.isoscore:.3f}: 0 if the vocabulary's vectors vary along one direction only, "
            "1 if they vary alike along all"
        ]

    @property
    def mean_similarity_text(self) -> str:
        error = f" ± {self.mean_similarity_error:.4f}" if self.mean_similarity_error else ""
        return f"{self.mean_similarity:.4f}{error}"


class ResultRecord(Record):
    sticky: int  # sticky tokens
    sequences: int  # texts that shards encoded
    seconds: float  # time that shards took


DIMENSIONS_FILE = "dimensions.json"
DIMENSION_TOKENS_FILE = "dimensions.parquet"


class DimensionRecord(Record):
    layer: int | None  # layers that run; null for the model as it is
    dimension: int
    sticky: int
    topical: int
    severe: int  # flagged tokens of this severity
    serious: int
    mild: int
    negligible: int
    similarity_spread: float  # standard deviation of the similarities of texts
    ordinary_lift: float  # lift of the typical token
    ordinary_sd: float  # spread of ordinary tokens' lifts, in those standard deviations
    largest_sd: float | None  # largest lift above the typical token's, in those standard deviations
    mean_similarity: float  # u, the mean cosine over the vocabulary
    # Contraction of the typical token; null in runs of earlier versions.
    ordinary_contraction: float | None = None

    @property
    def view(self) -> View:
        return View(self.dimension, self.layer)


class DimensionsRecord(Record):
    views: list[DimensionRecord]  # the model as it is first


def tokens_in(path: Path, view: View) -> pl.DataFrame:
    table = ResultFolder(path).read_table(DIMENSION_TOKENS_FILE, ("layer", "dimension", "token_id"))
    own = pl.col("layer").eq_missing(pl.lit(view.layer, dtype=pl.Int64))
    return table.filter(own & (pl.col("dimension") == view.dimension)).drop("layer", "dimension")


class MethodSettings(Protocol):  # a frozen dataclass with defaults and at least these fields
    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

    @property
    def seed(self) -> int: ...  # of all random sampling
    @property
    def insertion(self) -> Insertion: ...  # how copies go into a text


def adjusted_defaults(settings: MethodSettings, texts_only: bool) -> MethodSettings:
    if texts_only and settings.insertion is Insertion.IDS:
        return replace(settings, insertion=Insertion.WORDS)
    return settings


Settings_co = TypeVar("Settings_co", bound=MethodSettings, covariant=True)


@dataclass(frozen=True)
class Job(Generic[Settings_co]):
    encoder: Encoder
    settings: Settings_co
    corpus: Sentences | PairCorpus
    vocabulary: Vocabulary
    tokens: list[Token]  # to measure; a run has them by ascending id
    restricted: bool  # whether some available tokens are left out
    sampled: bool  # whether the tokens are all available ones or a random sample, not named by a user

    @property
    def sentences(self) -> Sentences:
        return cast(Sentences, self.corpus)


# Texts in a shard: what a kill loses, and enough of every length to fill batches.
SHARD_PROBES = 8192


@dataclass
class FolderRunner:
    engine: Engine
    folder: ResultFolder
    progress: ProgressCallback
    shard_probes: int = SHARD_PROBES
    _shards: dict[str, int] = field(default_factory=dict)  # by stage

    def __call__(self, stage: Stage, tokens: Sequence[Token]) -> pl.DataFrame:
        shards = engines.cut_into_shards(tokens, stage.probes_per_token, self.shard_probes)
        self._shards[stage.name] = len(shards)
        rows: engines.Rows[engines.Shard] = engines.Rows(
            lambda shard: [token.id for token in shard.tokens], "token_id", lambda shard: len(shard.tokens)
        )
        work = engines.TokenWork(stage), ShardCost(0, 0)
        place = self.engine, self.folder, self.progress
        return pl.concat(engines.run_work(stage.name, lambda: work, shards, rows, *place))

    @property
    def cost(self) -> ShardCost:
        return self.folder.total_cost(self._shards)  # of earlier sessions, too


@dataclass(frozen=True)
class MemoryRunner:
    encoder: Encoder
    progress: ProgressCallback
    shard_probes: int = 2048  # small enough to show progress

    def __call__(self, stage: Stage, tokens: Sequence[Token]) -> pl.DataFrame:
        size = max(1, self.shard_probes // stage.probes_per_token)
        rows: list[dict[str, Any]] = []
        sequences = 0
        self.progress(Progress(stage.name, 0, len(tokens)))
        for start in range(0, len(tokens), size):
            shard = engines.Shard(start, tuple(tokens[start : start + size]))
            measured, encoded = engines.compute_shard(stage, shard, self.encoder)
            rows += measured
            sequences += encoded
            self.progress(Progress(stage.name, len(rows), len(tokens), len(rows), sequences))
        return pl.DataFrame(rows, infer_schema_length=None)


class Tokens(NamedTuple):
    as_ids: list[Token]  # the model sees exactly n copies
    written: list[Token]  # words of the text, tokenized with it
    glued: list[Token]  # tokenized with the text, joined to it without a space

    @property
    def ids(self) -> list[int]:
        return [token.id for tokens in self for token in tokens]


class Rechecked(NamedTuple):
    rows: pl.DataFrame  # one per token, as in tokens.parquet
    lifts: dict[int, float]  # mean lift of each token, by id, without shrinkage
    ordinary_lift: float  # of the typical token
    ordinary_contraction: float


@dataclass(frozen=True)
class RecheckJob:
    encoder: IdEncoder
    vocabulary: Vocabulary
    corpus: Sentences  # of the run, or another one
    plan: PlanRecord  # of the run
    used: Collection[str]  # carriers and anchors of the run
    settings: MethodSettings  # of the run, of any method
    seed: int  # another one than that of the run
    same_model: bool  # whether the mean similarity of the plan is that of the encoder
    progress: ProgressCallback


class Recheck(Protocol):  # one model on texts that a run has not used
    @property
    def vocabulary(self) -> Vocabulary: ...
    @property
    def similarity_spread(self) -> float: ...  # standard deviation of the similarities of the texts
    @property
    def carriers(self) -> int: ...  # number of texts that copies go into
    @property
    def anchors(self) -> int: ...  # number of texts that they are compared with
    @property
    def copies(self) -> tuple[int, ...]: ...  # of `curves`, without 0

    def of_model(self, encoder: IdEncoder, vocabulary: Vocabulary, name: str) -> Recheck: ...
    def ordinary(self, excluded: Iterable[int], count: int | None = None) -> list[Token]: ...
    # Mean lift and contraction of tokens by id, in all carriers.
    def measured(self, tokens: Tokens) -> dict[int, tuple[float, float]]: ...
    # Measured together with ordinary tokens, and judged as a run does.
    def judged(self, tokens: Tokens, excluded: Iterable[int]) -> Rechecked: ...
    # Mean similarity of unrelated pairs by number of copies, 0 first.
    def curves(self, tokens: Tokens) -> dict[int, list[float]]: ...


def model_mean(encoder: Encoder, progress: ProgressCallback, most: int | None = None) -> MeanSimilarity:
    views = model_views.only_own(encoder)
    return model_means(encoder, views, [views.own], progress, most)[views.own]


def model_means(
    encoder: Encoder,
    views: Views,
    wanted: Sequence[View],
    progress: ProgressCallback,
    most: int | None = None,
) -> dict[View, MeanSimilarity]:
    """Compute u in some views in one pass, or look it up by the model's identity; see `mean_similarity`."""
    keys, known = dict[View, str](), dict[View, MeanSimilarity]()
    # An encoder of texts only may change without notice: an object of the user, a server.
    for view in wanted if reads_ids(encoder) else ():
        # The version is increased when the same model gives another value.
        parts: dict[str, Any] = {"version": 2, "encoder": asdict(encoder.identity), "most": most}
        if view != views.own:
            parts |= {"layer": view.layer, "dimension": view.dimension}
        keys[view] = f"mean-similarity-{digest(parts)}"
        with suppress(TypeError):  # none, or of another version: computed again
            known[view] = MeanSimilarity(**(recalled(keys[view]) or {}))

    def report(done: int, total: int, computed: int = 0) -> None:
        progress(Progress("mean similarity", done, total, computed, computed))

    if missing := [view for view in wanted if view not in known]:
        # The model itself where its own vectors are all that is needed.
        reading = encoder if missing == [views.own] else model_views.whole_vectors(encoder, views.layers)
        found = model_views.mean_similarities(
            reading, missing, lambda done, total: report(done, total, done), most=most
        )
        for view, u in zip(missing, found, strict=True):
            known[view] = u
            if view in keys:
                keep(keys[view], u._asdict())
    else:
        entries = known[wanted[0]].entries + known[wanted[0]].left_out
        report(0, entries)
        report(entries, entries)
    return {view: known[view] for view in wanted}


@dataclass(frozen=True)
class StoredSettings:
    values: Mapping[str, Any]  # from run.json
    defaults: MethodSettings  # of the method
    place: str  # the file, for errors

    def number(self, name: str) -> float:
        return real_number(f"{name} in {self.place}", self.values.get(name, getattr(self.defaults, name)))

    def restored(self) -> MethodSettings:
        """The settings as the method's own class; what is unknown or compound keeps its default."""
        known = self.defaults.__dataclass_fields__
        plain = {k: v for k, v in self.values.items() if k in known and not isinstance(v, dict)}
        if plain.get("screen_precision") == "int8":  # of earlier versions; a finished run screens no more
            del plain["screen_precision"]
        return replace(self.defaults, **plain)

    def text(self, name: str) -> str:
        value = self.values.get(name, getattr(self.defaults, name))
        return " or ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


MEASURING = "measure"
"""Name of the stage of a judgement whose tokens are chosen by results."""


def evidence_stage(
    job: Job[MethodSettings], carriers: list[str], sentences: list[str], anchors: AnchorPanel, u: float
) -> EvidenceStage:
    encoder, insertion = job.encoder, job.settings.insertion
    panel = anchors.against(unit_vectors(encoder.encode(carriers)), u)
    copies = fitting_copies(encoder, insertion, carriers, (1, 2, 4, 8, 16, 32))  # enough for a curve's shape
    shown, given = max(count for count in copies if count <= 8), as_carriers(encoder, insertion, carriers)
    return EvidenceStage(given, copies, panel, pair_copies=shown, texts=carriers, sentences=sentences)


@dataclass(frozen=True)
class Judgement:
    """Verdicts of a run for a corpus.

    Attributes:
        tokens: one row per token of the run: token_id, token, decoded, category, texts (carriers of this
            corpus that the token was put into; 0 if its lift is computed from the run alone), lift,
            lift_low, lift_high, universality, moves_up, contraction, fixed_point, q_value, severity and
            verdict. moves_up is the share of random queries and documents of the corpus for which the copies
            move the document up by at least a tenth of the corpus; only flagged tokens have it.
        source: where the corpus came from.
        texts: distinct texts of the corpus.
        anchors: number of them that carriers were compared with.
        left_out: texts that the model does not read whole.
        ordinary_lift: lift of the typical token on the corpus.
        similarity_spread: standard deviation of the similarities within the corpus.
        error: standard error of the lifts that are computed from the run.
        measured: number of tokens that were put into texts of the corpus.
        undecided: tokens that may be flagged but were not among those.
        narrow_limit: median similarity within a narrow corpus, which has too few pairs below the model's mean
            similarity: its pairs below this median count as unrelated. None for any other corpus.
        others: judgements in the other views that were asked for.
    """

    tokens: pl.DataFrame
    source: str
    texts: int
    anchors: int
    left_out: int
    ordinary_lift: float
    similarity_spread: float
    error: float
    measured: int
    undecided: int
    narrow_limit: float | None = None
    others: Mapping[View, Judgement] = field(default_factory=dict)

    def __repr__(self) -> str:
        counts = ", ".join(f"{len(self.having(verdict)):,} {verdict}" for verdict in terms.Verdict)
        return f"<Judgement: {counts} on {self.texts:,} texts from {self.source}>"

    @property
    def sticky(self) -> pl.DataFrame:
        return self.having(terms.Verdict.STICKY)

    @property
    def flagged(self) -> pl.DataFrame:
        return self.having(terms.Verdict.STICKY, terms.Verdict.TOPICAL)

    def having(self, *verdicts: terms.Verdict) -> pl.DataFrame:
        return self.tokens.filter(pl.col("verdict").is_in(list(verdicts))).sort(
            "lift", "token_id", descending=[True, False]
        )

    def at(self, dimension: int, layer: int | None = None) -> Judgement:
        found = next((each for view, each in self.others.items() if view.is_at(dimension, layer)), None)
        if found is None:
            known = "; ".join(map(str, self.others)) or "no other view"
            raise InputError(f"the judgement has no {View(dimension, layer)}: it has {known}")
        return found

    def by_dimension(self) -> pl.DataFrame:
        rows = [
            {
                "layer": view.layer,
                "dimension": view.dimension,
                "sticky": len(found.sticky),
                "topical": len(found.flagged) - len(found.sticky),
                **found.severities(),
                "similarity_spread": found.similarity_spread,
                "ordinary_lift": found.ordinary_lift,
                "largest_sd": found.tokens.select(
                    (pl.col("lift").max() - found.ordinary_lift) / found.similarity_spread
                ).item(),
            }
            for view, found in self.others.items()
        ]
        return pl.DataFrame(rows, schema_overrides={"layer": pl.Int64})

    def severities(self) -> dict[str, int]:
        return terms.severity_counts(self.tokens)

    def summary(self) -> dict[str, Any]:
        numbers = {name: value for name, value in vars(self).items() if name not in ("tokens", "others")}
        found = numbers | {"flagged": self.flagged.to_dicts()}
        if not self.others:
            return found
        by_view = [
            row | {"flagged": each.flagged.to_dicts()}
            for row, each in zip(self.by_dimension().to_dicts(), self.others.values(), strict=True)
        ]
        return found | {"dimensions": by_view}


Settings = TypeVar("Settings", bound=MethodSettings)
Plan = TypeVar("Plan", bound=PlanRecord)
Result = TypeVar("Result", bound=ResultRecord)
Plan_co = TypeVar("Plan_co", bound=PlanRecord, covariant=True)
Result_co = TypeVar("Result_co", bound=ResultRecord, covariant=True)


class ProbedToken(Protocol):  # a dataclass with at least these fields
    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

    @property
    def token_id(self) -> int: ...
    @property
    def token(self) -> str: ...  # its vocabulary string


class FinishedRun(Protocol[Plan_co, Result_co]):  # what a method reads of a `stickytoken.detection.Run`
    @property
    def path(self) -> Path: ...
    @property
    def model_name(self) -> str: ...  # as the user named it
    @property
    def available(self) -> int: ...  # vocabulary entries that can occur in text
    @property
    def settings(self) -> StoredSettings: ...
    @property
    def plan(self) -> Plan_co: ...
    @property
    def result(self) -> Result_co: ...
    @property
    def tokens(self) -> pl.DataFrame: ...
    @property
    def sticky(self) -> pl.DataFrame: ...  # worst first
    def moved(self, token_id: int) -> terms.Moved | None: ...  # None where the run has not kept it


class Method(ABC, Generic[Settings, Plan, Result]):
    """A detection method.

    tokens.parquet has at least token_id, token, decoded, category, lift and verdict. A method that grades
    flagged tokens has a column severity (severe, serious, mild or negligible, null for benign tokens); one
    that says what a topical token is about has a column kind; one with intervals has lift_low and lift_high.
    Reports use them where they are.
    """

    entry: terms.MethodEntry  # set by the registry
    settings: type[Settings]
    plan_record: type[Plan]  # plan.json
    result_record: type[Result]  # the result in run.json
    columns: tuple[str, ...]  # that tokens.parquet must have
    # Those of them that runs of earlier versions lack, with their types: they are null there.
    later_columns: Mapping[str, Any] = MappingProxyType({})
    # Columns that `stickytoken show` prints between category and verdict; one of text is left out where no
    # token has a value.
    listed: tuple[terms.Column, ...]
    # Columns that a report shows behind the verdict; ``sd`` is the lift on the method's scale.
    reported: tuple[terms.Column, ...]
    ranked_by: terms.Column  # how bad a token is, the worst highest
    verdicts: tuple[terms.Verdict, ...] = (terms.Verdict.STICKY, terms.Verdict.BENIGN)
    judges_every_token: bool = True  # whether every token that it puts into texts gets a verdict
    judges_corpora: bool = False  # whether a finished run can judge the texts of another corpus, by `judge`
    measures_lift: bool = True  # whether it puts tokens into texts; else the column lift is null
    uses_topics: bool = False  # whether topics of the sentences, and bundled kinds of text, change numbers
    glossary: Mapping[str, str] = MappingProxyType({})  # words of its reports and what they mean
    uses_whole_vectors: bool = False  # whether it reads the whole vectors of a model that truncates them
    effort: frozenset[str] = frozenset()  # settings of how closely tokens are measured, not of what is

    # To compute.

    @abstractmethod
    def make_plan(self, job: Job[Settings], progress: ProgressCallback) -> Plan:
        """Derive from the model and the corpus what is needed before any token is measured."""

    @abstractmethod
    def compute(
        self, job: Job[Settings], plan: Plan, vocabulary: pl.DataFrame, run: FolderRunner
    ) -> tuple[pl.DataFrame, Result]:
        """Run all stages and judge the tokens; return tokens.parquet, and the result in run.json."""

    def probe(self, job: Job[Settings], progress: ProgressCallback) -> Sequence[ProbedToken]:
        """Measure the job's tokens without a run folder, in the job's order."""
        raise InputError(
            f"the method {self.entry.name} does not measure single tokens: use detect, or another method"
        )

    def evidence_stage(self, job: Job[Settings], plan: Plan) -> EvidenceStage | None:
        """Encode carriers and anchors of the plan, to show on them what a token does; None without any."""
        return None

    def texts(self, plan: Plan) -> terms.PlanTexts:
        return terms.PlanTexts([], [], by_topic=False)

    # To tell.

    @abstractmethod
    def headline(self, run: FinishedRun[Plan, Result]) -> str:
        """Say in a sentence or two whether the model has a problem, and how bad it is."""

    def lines(self, run: FinishedRun[Plan, Result]) -> list[str]:
        """Summarise a run for a terminal: the finding first, then its basis."""
        return [self.headline(run)]

    def notes(self, run: FinishedRun[Plan, Result]) -> list[str]:
        """Say what a reader should know before relying on the run."""
        return []

    def key_facts(self, run: FinishedRun[Plan, Result]) -> list[terms.Fact]:
        return []  # besides those that every run has

    @abstractmethod
    def how(self, settings: StoredSettings) -> str:
        """Explain the method in a few sentences."""

    def plan_facts(self, plan: Plan) -> dict[str, Any]:
        return {name: value for name, value in plan if isinstance(value, int | float)}

    def figures(self, run: FinishedRun[Plan, Result]) -> list[terms.Figure]:
        """Describe the figures that a report draws from tokens.parquet."""
        title = self.ranked_by.title
        return [
            terms.Distribution("distribution", f"{title.capitalize()} of all tokens", self.ranked_by, {}, "")
        ]

    def probe_lines(self, probed: Sequence[Any]) -> list[terms.ProbeTable | str]:
        """Lay out what `probe` returned as tables and sentences."""
        names = [each.name for each in fields(probed[0])]
        rows = [[getattr(each, name) for name in names] for each in probed]
        return [terms.ProbeTable(f"Tokens by the method {self.entry.name}", names, rows)]

    def scale(self, run: FinishedRun[Plan, Result]) -> terms.Scale | None:
        """Say what makes lifts comparable between models; None where the method does not measure it."""
        return None

    # What only some methods can do.

    def require_judging(self, run: FinishedRun[Plan, Result]) -> None:
        """Refuse a run that cannot judge another corpus, by its method or because it lacks something."""
        raise InputError(
            f"{run.path} is a run of the method {self.entry.name}, which cannot judge another corpus: detect "
            "with --method profile"
        )

    def judge(
        self,
        job: Job[Settings],
        run: FinishedRun[Plan, Result],
        anchors: int,
        progress: ProgressCallback,
        view: View | None = None,
    ) -> Judgement:
        """Judge the tokens of a run, which are the job's, by a run that `require_judging` accepts.

        At most `anchors` texts of the job's corpus are compared with. The view, which the run must have
        measured, is that of the job's encoder; None is the model as it is.
        """
        raise NotImplementedError

    def recheck(self, job: RecheckJob, name: str) -> Recheck:
        """Put a model on texts that a run has not used, to measure tokens again."""
        raise InputError(f"the method {self.entry.name} does not measure tokens again on other texts")

    def token_effects(self, run: FinishedRun[Plan, Result]) -> TokenEffects | None:
        return None


AnyMethod: TypeAlias = Method[Any, Any, Any]
