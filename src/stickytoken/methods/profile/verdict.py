"""Judge tokens: sticky, topical or benign, and how severe; also again, on texts that a run has not used."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stickytoken.data.sentences import open_ended
from stickytoken.encoders.protocol import Encoder, IdEncoder, reads_ids
from stickytoken.encoders.views import MeanSimilarity, ViewEncoder
from stickytoken.errors import ModelError
from stickytoken.insertion import Insertion, Joining, Token
from stickytoken.inspection import inspector_of
from stickytoken.measurement.engine import ProgressCallback
from stickytoken.methods.base import MeasuredTokens, MemoryRunner, Rechecked, RecheckJob, Tokens
from stickytoken.methods.entry import SEVERITY_BOUNDS, Severity, Verdict, severity_of
from stickytoken.methods.probes import SYMPTOM_CARRIERS, AnchorPanel, SymptomStage, Vector, fitting_copies
from stickytoken.methods.profile.anchors import ProfilePlanRecord, ProfileSettings, anchor_panel
from stickytoken.methods.profile.estimates import (
    LEAST_NULL_TOKENS,
    Ids,
    Measurements,
    TokenEstimates,
    contractions_of,
    estimate,
    lifts_of,
    measurements,
    reach,
    together,
    unexplained,
)
from stickytoken.methods.profile.plan import ProfileStage, Round, make_profile_plan, round_stage
from stickytoken.methods.statistics import Estimates, Pull, fixed_points, q_values
from stickytoken.vocabulary import Vocabulary

# A lift that may be smaller than this share of the smallest effect is never flagged.
NEGLIGIBLE_SHARE = 0.5
# A sticky token lifts most kinds of text.
UNIVERSAL_SHARE = 0.5
# Copies erase far more than usual if fewer than one in so many ordinary tokens does.
RARE = 2000
# They must also take, with confidence, this share of what an ordinary token leaves of a text. Where too few
# tokens show what is rare, it is the second share.
_LEAST_ERASED, _ERASED_WITHOUT_NULL = SEVERITY_BOUNDS[Severity.MILD], SEVERITY_BOUNDS[Severity.SERIOUS]
# Fewer carriers say nothing about their noise.
_LEAST_CARRIERS = 2

MEASURED_COLUMNS = (
    "token_id",
    "token",
    "decoded",
    "category",
    "texts",
    "lift",
    "lift_low",
    "lift_high",
    "lift_words",
    "universality",
    "kind",
    "validation_rate",
    "contraction",
    "contraction_low",
    "contraction_high",
    "erases",
    "fixed_point",
    "q_value",
    "severity",
    "verdict",
    "reason",
)
TOKEN_COLUMNS = (*MEASURED_COLUMNS, "precision")
LATER_COLUMNS = {
    "contraction_low": pl.Float64,
    "contraction_high": pl.Float64,
    "erases": pl.Boolean,
    "reason": pl.String,
}


class Flagged(NamedTuple):
    """Tokens whose lifts matter."""

    # None without an empirical null: too few tokens, or effects that differ by no more than noise.
    q_values: Vector | None
    found: NDArray[np.bool_]  # whether each token's lift matters, shape (T,)
    large: NDArray[np.bool_]  # whether it is large enough to, whatever other tokens do


def find_lifts(
    tokens: TokenEstimates,
    null_tokens: int,
    available: int,
    smallest: float,
    fdr: float,
    outliers_only: bool = False,
) -> Flagged:
    """Find lifts that matter: large ones, and smaller ones that ordinary tokens do not have.

    The interval must lie above half the smallest effect. With an empirical null, it must also reach the
    smallest effect, or the lift must be an outlier of its vocabulary, with false discoveries over all
    its tokens controlled, measured or not: whoever names the strongest tokens of a vocabulary does not make
    them rare. So a token with the smallest effect is missed only if its interval excludes it.
    """
    large = tokens.lift.low > tokens.null.center + NEGLIGIBLE_SHARE * smallest
    # A null of no width would call everything beyond the noise an outlier.
    if null_tokens < LEAST_NULL_TOKENS or tokens.null.spread == 0:
        return Flagged(None, large, large)
    found = q_values(tokens.null.exceedance(tokens.tested), max(available, len(tokens.ids)))
    reaching = tokens.lift.high >= tokens.null.center + smallest
    return Flagged(found, large & ((reaching & (not outliers_only)) | (found <= fdr)), large & reaching)


def universality(effects: Vector, spreads: Vector, smallest: float) -> Vector:
    """Compute the share of the kinds of text that tokens lift by at least half the smallest effect."""
    known = np.isfinite(effects)
    lifted = known & (np.nan_to_num(effects) >= NEGLIGIBLE_SHARE * smallest * spreads)
    counts = known.sum(axis=1)
    shares = np.divide(lifted.sum(axis=1), counts, out=np.full(len(counts), np.nan), where=counts > 0)
    return np.asarray(shares, dtype=np.float64)


def share_erased(contraction: Vector | float, ordinary: float) -> Any:
    """Compute the share of what an ordinary token leaves of a text that copies take from it as well."""
    return (contraction - ordinary) / max(1 - ordinary, np.finfo(float).tiny)


def severities(
    effects: Vector, erased: Vector, erases: NDArray[np.bool_], verdicts: Sequence[Verdict]
) -> list[Severity | None]:
    """Grade flagged tokens by the larger of two numbers.

    One is the effect above the ordinary token's, the other, of tokens that erase, `share_erased`.
    """
    grades = np.where(erases, np.maximum(effects, erased), effects)
    return [
        None if verdict is Verdict.BENIGN else severity_of(grade)
        for grade, verdict in zip(grades, verdicts, strict=True)
    ]


def verdicts(
    mattering: NDArray[np.bool_],
    on_a_kind: NDArray[np.bool_],
    universal: Vector,
    erases: NDArray[np.bool_],
) -> list[Verdict]:
    """Call tokens sticky that erase texts or lift most kinds of text, and topical if they lift only some."""
    flagged = mattering | on_a_kind | erases
    sticky = erases | flagged & ~(universal <= UNIVERSAL_SHARE)
    return [
        Verdict.STICKY if is_sticky else Verdict.TOPICAL if is_flagged else Verdict.BENIGN
        for is_sticky, is_flagged in zip(sticky, flagged, strict=True)
    ]


def is_character(tokens: pl.DataFrame) -> NDArray[np.bool_]:
    """Tell entries that are a single letter, digit or symbol from longer ones."""
    return (tokens["decoded"].str.strip_chars().str.len_chars() <= 1).to_numpy()


class Erasing(NamedTuple):
    """What copies leave of a text."""

    contraction: Estimates  # of every token, on the scale of the last round
    ordinary: float  # contraction of the typical token
    found: NDArray[np.bool_]  # whether a token erases far more than ordinary ones


def embedding_matrix(encoder: Encoder) -> NDArray[np.floating[Any]] | None:
    """Return the matrix of token embeddings; None where it is not at hand."""
    try:
        model = encoder.model if isinstance(encoder, ViewEncoder) else encoder
        return inspector_of(model).embedding_matrix() if reads_ids(model) else None
    except ModelError:
        return None


def text_anchors(panel: AnchorPanel, plan: ProfilePlanRecord) -> NDArray[np.float32]:
    """Vectors of the anchors that are texts, not vocabulary entries."""
    return panel.vectors[panel.groups < len(plan.groups) - bool(plan.vocabulary_anchors)]


def erasures(
    rounds: Mapping[Round, Measurements],
    panel: AnchorPanel,
    vocabulary: pl.DataFrame,
    plan: ProfilePlanRecord,
    unselected: Ids,
    settings: ProfileSettings,
    embedding: NDArray[np.floating[Any]] | None,
) -> TokenEstimates:
    """Estimate the contraction of every token times its `reach`, on which it may be found to erase texts.

    The contraction alone would also find rare names and numbers, which erase a text in favour of a meaning
    that few texts share. Where the embedding matrix is known, shape (V, d), the reach is that of the part of
    the pull that the token's row does not explain. Single characters erase more than words, and are compared
    with one another.
    """
    texts, ids = text_anchors(panel, plan), rounds[Round.SCREEN].ids
    pulls: Mapping[Round, NDArray[np.floating[Any]]] = {
        step: each.effects.pull for step, each in rounds.items()
    }
    if embedding is not None:
        pulls = unexplained(rounds, embedding[ids], unselected, np.array(plan.late_reference))
    weights = {step: reach(pull, texts) for step, pull in pulls.items()}
    entries = vocabulary.filter(pl.col("token_id").is_in(ids)).sort("token_id")
    characters = is_character(entries)
    return estimate(
        *contractions_of(rounds, weights),
        unselected,
        np.array(plan.late_reference),
        settings.confidence,
        plan.call_noise,
        kinds=(characters, ~characters),
    )


def find_erasing(
    rounds: Mapping[Round, Measurements],
    panel: AnchorPanel,
    vocabulary: pl.DataFrame,
    plan: ProfilePlanRecord,
    unselected: Ids,
    available: int,
    settings: ProfileSettings,
    embedding: NDArray[np.floating[Any]] | None,
) -> Erasing:
    """Find tokens whose copies erase a text and draw it toward others, as those of ordinary tokens do not."""
    late = np.array(plan.late_reference)
    lost = estimate(*contractions_of(rounds), unselected, late, settings.confidence, plan.call_noise)
    value, error, low, high = lost.lift
    contraction = Estimates(value + lost.level, error, low + lost.level, high + lost.level)
    ordinary = lost.null.center + lost.level
    least = share_erased(contraction.low, ordinary)
    if len(unselected) < LEAST_NULL_TOKENS or lost.null.spread == 0:
        return Erasing(contraction, ordinary, least > _ERASED_WITHOUT_NULL)
    tested = erasures(rounds, panel, vocabulary, plan, unselected, settings, embedding)
    chances = tested.exceedance()
    rare = (chances <= 1 / RARE) | (q_values(chances, max(available, len(tested.ids))) <= settings.fdr)
    found = rare & (least > _LEAST_ERASED)
    if Round.CONFIRM in rounds:  # the few texts of the first round are not enough
        found &= np.isin(tested.ids, rounds[Round.CONFIRM].ids)
    return Erasing(contraction, ordinary, found)


class Findings(NamedTuple):
    """The finished table, one row per measured token, and what the verdicts rest on."""

    tokens: pl.DataFrame
    ordinary_lift: float  # of the typical token
    ordinary_spread: float  # standard deviation of the lifts of ordinary tokens
    ordinary_contraction: float  # of the typical token
    empirical_null: bool  # whether false discoveries are controlled


def decide(
    vocabulary: pl.DataFrame,
    available: int,
    rounds: Mapping[Round, Measurements],
    plan: ProfilePlanRecord,
    unselected: Ids,
    settings: ProfileSettings,
    panel: AnchorPanel,
    embedding: NDArray[np.floating[Any]] | None,
    spelled: Sequence[int] = (),
) -> Findings:
    """Judge all measured tokens.

    Those that texts spell with several entries are ``spelled``: more entries erase more, so how much they
    erase is not judged.
    """
    late, smallest = np.array(plan.late_reference), settings.smallest_effect
    tokens = estimate(*lifts_of(rounds), unselected, late, settings.confidence, plan.call_noise)
    spread = plan.similarity_spread
    lifting = find_lifts(tokens, len(unselected), available, smallest * spread, settings.fdr)
    # Tokens that were selected by their lift must not define what is ordinary in the last round.
    known = _latest(rounds, {Round.SCREEN: unselected, Round.CONFIRM: late})
    groups = known.groups
    erasing = find_erasing(rounds, panel, vocabulary, plan, unselected, available, settings, embedding)
    erasing = erasing._replace(found=erasing.found & ~np.isin(tokens.ids, spelled))
    lost, erases = erasing.contraction, erasing.found

    # A topical token is graded, and named, by the kind of text that it lifts most.
    on_kinds = _on_kinds(rounds, plan, unselected, available, settings)
    kinds = np.array([group.kind for group in plan.groups])
    spreads = np.array([group.spread for group in plan.groups])
    universal = universality(groups[:, kinds], spreads[kinds], smallest)
    on_a_kind = np.asarray(on_kinds.any(axis=1))
    found = verdicts(lifting.found, on_a_kind, universal, erases)
    topical = on_a_kind & np.array([verdict is Verdict.TOPICAL for verdict in found])
    by_kind = np.where(on_kinds, groups / spreads, -np.inf)
    names = np.array([group.name for group in plan.groups])
    most = [name if own else None for name, own in zip(names[by_kind.argmax(axis=1)], topical, strict=True)]
    effects = (tokens.lift.value - tokens.null.center) / spread
    effects = np.where(topical, np.maximum(effects, by_kind.max(axis=1)), effects)

    unknown, erased = np.full(len(tokens.ids), np.nan), share_erased(lost.value, erasing.ordinary)
    columns: dict[str, Any] = {
        "token_id": tokens.ids,
        "texts": tokens.texts,
        "lift": tokens.lift.value + tokens.level,
        "lift_low": tokens.lift.low + tokens.level,
        "lift_high": tokens.lift.high + tokens.level,
        "lift_words": groups[:, -1] + known.levels[-1] if plan.vocabulary_anchors else unknown,
        "validation_rate": known.rising,
        "contraction": lost.value,
        "contraction_low": lost.low,
        "contraction_high": lost.high,
        "erases": erases,
        "fixed_point": fixed_points(known.effects, panel.weights @ panel.vectors),
        "q_value": unknown if lifting.q_values is None else lifting.q_values,
        "universality": universal,
        "kind": most,
        "severity": severities(effects, erased, erases, found),
        "verdict": found,
    }
    measured = kinds & np.isfinite(groups)
    lifted = measured & (groups >= NEGLIGIBLE_SHARE * smallest * spreads)
    named = np.where((topical | ~lifting.found)[:, None], by_kind, -np.inf)
    columns["reason"] = _reasons(names, measured, lifted, named, lifting, erasing)
    texts = dict.fromkeys(("kind", "severity", "verdict", "reason"), pl.String)
    table = pl.DataFrame(columns, schema_overrides=texts).with_columns(pl.col(pl.Float64).fill_nan(None))
    return Findings(
        table.join(vocabulary, on="token_id", how="left", validate="1:1")
        .select(MEASURED_COLUMNS)
        .sort("token_id"),
        tokens.null.center + tokens.level,
        tokens.null.spread,
        erasing.ordinary,
        lifting.q_values is not None,
    )


# Kinds of text that a reason names.
_NAMED_KINDS = 2


def _reasons(
    names: NDArray[np.str_],
    known: NDArray[np.bool_],
    lifted: NDArray[np.bool_],
    outlying: Vector,
    lifting: Flagged,
    erasing: Erasing,
) -> list[str | None]:
    """Say in words why each token is flagged; None of those that are not.

    Groups of text have names, shape (G,); those of a kind are known of a token, and it lifts some, shape
    (T, G). It is an outlier on the groups where its effect is finite, and the largest is named.
    """
    found: list[str | None] = []
    for row, lifts in enumerate(lifting.found):
        said, own = [], names[lifted[row]].tolist()
        if erasing.found[row]:
            toward = " and ".join(own) if len(own) <= _NAMED_KINDS else f"{len(own)} kinds"
            said.append(
                f"erases {erasing.contraction.value[row]:.0%} of a text (an ordinary token: "
                f"{erasing.ordinary:.0%}), draws it toward "
                f"{toward or 'no kind that was measured: judge your own texts'}"
            )
        if lifts:
            said.append(f"{'large lift' if lifting.large[row] else 'outlier'} over all texts")
        if (count := int(np.isfinite(outlying[row]).sum())) > 0:
            more = {1: "", 2: " and 1 more kind"}.get(count, f" and {count - 1} more kinds")
            said.append(f"outlier on {names[outlying[row].argmax()]}{more}")
        if said and known[row].any() and not erasing.found[row]:
            said.append(f"lifts {len(own)} of {known[row].sum()} kinds of text")
        found.append("; ".join(said) or None)
    return found


class _Latest(NamedTuple):
    """What the last round that each token reached says of it."""

    groups: Vector
    levels: Vector
    rising: Vector
    effects: Pull


def _latest(rounds: Mapping[Round, Measurements], reference: Mapping[Round, Ids]) -> _Latest:
    first = rounds[Round.SCREEN]
    rising, levels = np.full(len(first.ids), np.nan), np.empty(0)
    groups = np.full((len(rising), first.groups.shape[2]), np.nan)
    contraction, pull = first.effects.contraction.copy(), first.effects.pull.copy()
    for step, ordinary in reference.items():
        if (measured := rounds.get(step)) is not None:
            rows, means = first.rows(measured.ids), measured.group_means()
            levels = np.median(means[np.isin(measured.ids, ordinary)], axis=0)
            groups[rows], rising[rows] = means - levels, measured.rising.mean(axis=1)
            contraction[rows], pull[rows] = measured.effects
    return _Latest(groups, levels, rising, Pull(contraction, pull))


def _on_kinds(
    rounds: Mapping[Round, Measurements],
    plan: ProfilePlanRecord,
    unselected: Ids,
    available: int,
    settings: ProfileSettings,
) -> NDArray[np.bool_]:
    """Find outliers on one of several groups, with false discoveries controlled over all groups."""
    found = np.zeros((len(rounds[Round.SCREEN].ids), len(plan.groups)), dtype=np.bool_)
    of_lift = [place for place, group in enumerate(plan.groups) if group.weight > 0]
    if len(of_lift) < 2 or len(unselected) < LEAST_NULL_TOKENS:
        return found
    late = np.array(plan.late_reference)
    for group in of_lift:
        first, last = lifts_of(rounds, group)
        if min(each.values.shape[1] for each in (first, last) if each is not None) < _LEAST_CARRIERS:
            continue
        tokens = estimate(first, last, unselected, late, settings.confidence, plan.call_noise)
        smallest = settings.smallest_effect * plan.groups[group].spread
        fdr = settings.fdr / len(of_lift)
        on_group = find_lifts(tokens, len(unselected), available, smallest, fdr, outliers_only=True)
        found[:, group] = on_group.found
        if last is not None:  # the few texts of the first round are not enough to name a kind
            found[:, group] &= np.isin(first.ids, last.ids)
    return found


_CURVE_COPIES = (1, 2, 4, 8, 16)
_CARRIERS = 24
_ANCHORS = 330
# A few more than an empirical null needs, because some of them may be tokens that are asked about.
_ORDINARY = 256


def recheck(job: RecheckJob, name: str) -> ProfileRecheck:
    """Choose texts that a run has not used, and put a model on them."""
    plan, used = job.plan, list(job.used)
    if isinstance(plan, ProfilePlanRecord):
        used += [*plan.carriers, *(anchor.text for anchor in plan.anchors)]
    known = {open_ended(text) for text in used}
    begun = tuple(known)  # the first sentence of a long text may have been a carrier
    # Every token on the same texts, with the run's smallest lift that matters.
    settings = replace(
        job.settings if isinstance(job.settings, ProfileSettings) else ProfileSettings(),
        adaptive=False,
        budget=float(_CARRIERS),
        anchors=_ANCHORS,
        vocabulary_anchors=0,
        reference=_ORDINARY,
        screen_precision=None,
        seed=job.seed,
    )
    u = MeanSimilarity(plan.mean_similarity, plan.mean_similarity_entries, 0, plan.mean_similarity_error)
    texts = make_profile_plan(
        job.encoder,
        settings,
        job.corpus,
        job.vocabulary.available,
        job.progress,
        unused=lambda text: open_ended(text) not in known and not text.startswith(begun),
        similarity=u if job.same_model else None,
    )
    return ProfileRecheck(job.encoder, job.vocabulary, settings, texts, job.progress, name)


@dataclass(frozen=True)
class ProfileRecheck:
    """One model on the texts of a plan; see `stickytoken.methods.base.Recheck`."""

    encoder: IdEncoder
    vocabulary: Vocabulary
    settings: ProfileSettings
    plan: ProfilePlanRecord
    progress: ProgressCallback
    name: str  # of the model in progress reports, such as ``before``

    @cached_property
    def _panel(self) -> AnchorPanel:
        return anchor_panel(self.encoder, self.plan, self.vocabulary.available)

    @cached_property
    def _stage(self) -> ProfileStage:
        places = range(len(self.plan.carriers))
        return round_stage(
            self.encoder, self.settings, self.plan, self._panel, Round.SCREEN, places, f"{self.name}: ids"
        )

    @property
    def similarity_spread(self) -> float:
        return self.plan.similarity_spread

    @property
    def carriers(self) -> int:
        return len(self.plan.carriers)

    @property
    def anchors(self) -> int:
        return len(self.plan.anchors)

    @cached_property
    def copies(self) -> tuple[int, ...]:
        return fitting_copies(self.encoder, Insertion.TEXT, self.plan.carriers, _CURVE_COPIES)

    def of_model(self, encoder: IdEncoder, vocabulary: Vocabulary, name: str) -> ProfileRecheck:
        return replace(self, encoder=encoder, vocabulary=vocabulary, name=name)

    def ordinary(self, excluded: Iterable[int], count: int | None = None) -> list[Token]:
        named, left_out = {token.id: token for token in self.vocabulary.available}, set(excluded)
        return [named[k] for k in self.plan.reference if k in named and k not in left_out][:count]

    def measured(self, tokens: Tokens) -> MeasuredTokens:
        found = self._measurements(tokens)
        ids = found.ids.tolist()
        return MeasuredTokens(
            dict(zip(ids, found.lifts.mean(axis=1).tolist(), strict=True)),
            dict(zip(ids, found.effects.contraction.tolist(), strict=True)),
        )

    def _measurements(self, tokens: Tokens) -> Measurements:
        run = MemoryRunner(self.encoder, self.progress)
        texts = replace(self._stage, name=f"{self.name}: text", carriers=tuple(self.plan.carriers))
        ways = (
            (self._stage, tokens.as_ids),
            (texts, [replace(token, joining=Joining.WORDS) for token in tokens.written]),
            (texts, [replace(token, joining=Joining.GLUED) for token in tokens.glued]),
        )
        found = [measurements(run(stage, own), len(self.plan.carriers)) for stage, own in ways if own]
        return reduce(together, found)

    def judged(self, tokens: Tokens, excluded: Iterable[int]) -> Rechecked:
        ordinary = self.ordinary((*excluded, *tokens.ids))
        found = self._measurements(tokens._replace(as_ids=[*tokens.as_ids, *ordinary]))
        ids = np.array([token.id for token in ordinary])
        vocabulary, available = self.vocabulary.frame(), len(self.vocabulary.available)
        rounds = {Round.SCREEN: found}
        judged = decide(
            vocabulary,
            available,
            rounds,
            self.plan,
            ids,
            self.settings,
            self._panel,
            embedding_matrix(self.encoder),
            [token.id for token in (*tokens.written, *tokens.glued)],
        )
        usual = found.rows(ids)
        means: Vector = found.lifts.mean(axis=1)
        return Rechecked(
            judged.tokens.filter(pl.col("token_id").is_in(tokens.ids)),
            dict(zip(found.ids.tolist(), means.tolist(), strict=True)),
            float(np.median(means[usual])),
            float(np.median(found.effects.contraction[usual])),
        )

    def curves(self, tokens: Tokens) -> dict[int, list[float]]:
        places = list(range(min(SYMPTOM_CARRIERS, len(self.plan.carriers))))
        panel = self._stage.panel.chosen(places)
        texts = tuple(self.plan.carriers[place] for place in places)
        stage = SymptomStage(self._stage.carriers[: len(places)], self.copies, panel, f"{self.name}: curves")
        written = replace(stage, carriers=texts, name=f"{self.name}: curves of text")
        run = MemoryRunner(self.encoder, self.progress)
        apart = [Token(token.id, f" {token.text}") for token in tokens.written]
        rows = [
            row
            for each, own in ((stage, tokens.as_ids), (written, [*apart, *tokens.glued]))
            if own
            for row in run(each, own).to_dicts()
        ]
        return {row["token_id"]: row["below"] for row in rows}
