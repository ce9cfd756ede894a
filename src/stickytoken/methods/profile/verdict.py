"""Judge tokens: sticky, topical or benign, and how severe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import scipy
from numpy.typing import NDArray

from stickytoken.encoders.protocol import Encoder, reads_ids
from stickytoken.encoders.views import ViewEncoder
from stickytoken.errors import ModelError
from stickytoken.inspection import inspector_of
from stickytoken.methods import SEVERITY_BOUNDS, Severity, Verdict, severity_of
from stickytoken.methods.base import Job
from stickytoken.methods.probes import AnchorPanel, Vector
from stickytoken.methods.profile import estimates
from stickytoken.methods.profile.anchors import ProfilePlanRecord, ProfileSettings
from stickytoken.methods.profile.estimates import LEAST_NULL_TOKENS, Ids, Lifts, Measurements, TokenEstimates
from stickytoken.methods.profile.plan import Round
from stickytoken.methods.statistics import (
    Estimates,
    Pull,
    combined,
    fixed_points,
    q_values,
    share_erased,
    tail_chances,
)

# A lift that may be smaller than this share of the smallest effect is never flagged.
NEGLIGIBLE_SHARE = 0.5
# A sticky token lifts most kinds of text.
UNIVERSAL_SHARE = 0.5
# What copies erase and lift is rare if fewer than one in so many ordinary tokens does as much.
RARE = 2000
# How rarely copies of a token with as unusual a row erase as much.
MADE = 1 / RARE / 10
# So many rows for each dimension of the embedding show how rows vary.
_ROWS_PER_DIMENSION = 10
# Rows this near in the vocabulary show what is usual for a row; fewer or more, 51 to 401, tell the same ones.
_NEIGHBOURS = 101
# A reason names a row that is unusual among so many.
_UNUSUAL = 0.01
# Where too few tokens show what is rare, copies must take, with confidence, this share of what an ordinary
# token leaves of a text.
_ERASED_WITHOUT_NULL = SEVERITY_BOUNDS[Severity.SERIOUS]

LATER_COLUMNS = {
    "contraction_low": pl.Float64,
    "contraction_high": pl.Float64,
    "erases": pl.Boolean,
    "reason": pl.String,
}
MEASURED_COLUMNS = (
    *("token_id", "token", "decoded", "category", "texts", "lift", "lift_low", "lift_high", "lift_words"),
    *("universality", "kind", "validation_rate", "contraction", "contraction_low", "contraction_high"),
    *("erases", "fixed_point", "q_value", "severity", "verdict", "reason"),
)
TOKEN_COLUMNS = (*MEASURED_COLUMNS, "precision")


@dataclass(frozen=True)
class Measured:  # what the rounds measured in one view, and what it is judged by
    job: Job[ProfileSettings]
    plan: ProfilePlanRecord  # with the numbers of the view
    panel: AnchorPanel
    unselected: Ids  # tokens that no user chose: all, or a random sample
    carriers: list[int]  # places in the plan of the first round's carriers
    # The first round and, if there is one, the last, which has the pilot's tokens too.
    rounds: dict[Round, Measurements]

    def estimate(
        self, values: Mapping[Round, Vector], kinds: Sequence[NDArray[np.bool_]] = ()
    ) -> TokenEstimates:
        found = {step: Lifts(self.rounds[step].ids, each) for step, each in values.items()}
        return estimates.estimate(
            found[Round.SCREEN],
            found.get(Round.CONFIRM),
            self.unselected,
            np.array(self.plan.late_reference),
            self.job.settings.confidence,
            self.plan.call_noise,
            kinds,
        )

    def lifts(self) -> TokenEstimates:
        return self.estimate({step: each.lifts for step, each in self.rounds.items()})

    def contractions(self) -> TokenEstimates:
        # Single characters erase more than words, and are compared with one another.
        ids = self.rounds[Round.SCREEN].ids
        entries = self.job.vocabulary.frame().filter(pl.col("token_id").is_in(ids)).sort("token_id")
        characters = is_character(entries)
        kinds = (characters, ~characters)
        return self.estimate({step: each.contractions for step, each in self.rounds.items()}, kinds)


class Flagged(NamedTuple):
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
    reach: Vector | None,
) -> Flagged:
    """Find lifts that matter: large ones, and smaller ones that ordinary tokens do not have."""
    # The interval must lie above half the smallest effect. With an empirical null, the reach must also be the
    # smallest effect, or the lift an outlier of its vocabulary, with false discoveries over all its tokens
    # controlled: whoever names the strongest does not make them rare. Without a reach, only outliers count.
    large = tokens.lift.low > tokens.null.center + NEGLIGIBLE_SHARE * smallest
    # A null of no width would call everything beyond the noise an outlier.
    if null_tokens < LEAST_NULL_TOKENS or tokens.null.spread == 0:
        return Flagged(None, large, large)
    found = q_values(tokens.null.exceedance(tokens.tested), max(available, len(tokens.ids)))
    reaching = large & (reach is not None and reach >= tokens.null.center + smallest)
    return Flagged(found, reaching | large & (found <= fdr), reaching)


def universality(effects: Vector, spreads: Vector, smallest: float) -> Vector:
    """Compute the share of the kinds of text that tokens lift by at least half the smallest effect."""
    known = np.isfinite(effects)
    lifted = known & (np.nan_to_num(effects) >= NEGLIGIBLE_SHARE * smallest * spreads)
    counts = known.sum(axis=1)
    shares = np.divide(lifted.sum(axis=1), counts, out=np.full(len(counts), np.nan), where=counts > 0)
    return np.asarray(shares, dtype=np.float64)


def severities(
    effects: Vector, erased: Vector, erases: NDArray[np.bool_], verdicts: Sequence[Verdict]
) -> list[Severity | None]:
    """Grade flagged tokens by the effect above the ordinary token's, or by `share_erased` if it is larger."""
    # What was made to act on other texts than those measured is no less than mild.
    grades = np.where(erases, np.maximum(effects, erased).clip(SEVERITY_BOUNDS[Severity.MILD]), effects)
    return [
        None if verdict is Verdict.BENIGN else severity_of(grade)
        for grade, verdict in zip(grades, verdicts, strict=True)
    ]


def verdicts(
    mattering: NDArray[np.bool_], on_a_kind: NDArray[np.bool_], universal: Vector, erases: NDArray[np.bool_]
) -> list[Verdict]:
    flagged = mattering | on_a_kind | erases
    sticky = erases | flagged & ~(universal <= UNIVERSAL_SHARE)
    return [
        Verdict.STICKY if is_sticky else Verdict.TOPICAL if is_flagged else Verdict.BENIGN
        for is_sticky, is_flagged in zip(sticky, flagged, strict=True)
    ]


def is_character(tokens: pl.DataFrame) -> NDArray[np.bool_]:
    return (tokens["decoded"].str.strip_chars().str.len_chars() <= 1).to_numpy()


def embedding_matrix(encoder: Encoder) -> NDArray[np.floating[Any]] | None:
    try:
        model = encoder.model if isinstance(encoder, ViewEncoder) else encoder
        return inspector_of(model).embedding_matrix() if reads_ids(model) else None
    except ModelError:
        return None


def row_chances(job: Job[ProfileSettings], ids: Ids) -> Vector | None:
    """Say how often the row of an available entry is as unusual as each token's; None if that is unknown."""
    # A row that training has not made has more of its length in directions in which rows hardly vary. The
    # best test of that weighs them by 1 / variance where much was added, by its square where little was: by
    # the power between. Rare entries, which training has hardly moved, do so too, and so do function words:
    # as vocabularies list frequent entries first, an entry is compared with its neighbours.
    matrix = embedding_matrix(job.encoder)
    usable = pl.Series([category.available for category in job.vocabulary.categories], dtype=pl.Boolean)
    available = job.vocabulary.frame().filter(usable)
    if matrix is None or len(available) < _ROWS_PER_DIMENSION * matrix.shape[1]:
        return None
    own = matrix[available["token_id"].to_numpy()]
    own = own - own.mean(axis=0)
    variances, directions = np.linalg.eigh((own.T @ own).astype(np.float64) / len(own))
    varying = variances > variances[-1] * np.finfo(np.float32).eps
    squares = np.square(own @ directions[:, varying].astype(own.dtype))
    leaning = np.log((squares @ variances[varying] ** -1.5 + 1e-30) / (squares.sum(axis=1) + 1e-30))
    standard, characters = np.zeros(len(own)), is_character(available)
    for kind in (characters, ~characters):
        deviation = leaning[kind] - _among_neighbours(leaning[kind])
        spread = _among_neighbours(np.abs(deviation))
        standard[kind] = np.divide(deviation, spread, out=np.zeros_like(spread), where=spread > 0)
    return tail_chances(standard[np.searchsorted(available["token_id"].to_numpy(), ids)], standard)


def _among_neighbours(values: Vector) -> Vector:
    return np.asarray(scipy.ndimage.median_filter(values, min(_NEIGHBOURS, len(values) | 1), mode="mirror"))


class Chances(NamedTuple):  # how often an ordinary token does as much as each does
    together: Vector  # of what it erases, lifts, and how unusual its row is
    made: Vector  # of how unusual its row is, and, counting no more, what it erases; 1 without rows
    unusual: Vector | None  # `row_chances`


def erasing_chances(measured: Measured, lifts: TokenEstimates) -> tuple[TokenEstimates, Chances | None]:
    """Estimate contractions, and how often ordinary tokens do as much; None if too few are known."""
    # A token that lifts texts as well, or whose row is unlike others, need erase less: ordinary tokens hardly
    # do both. But a word that lifts texts about its subject, however far, does not thereby erase others.
    lost = measured.contractions()
    if len(measured.unselected) < LEAST_NULL_TOKENS or lost.null.spread == 0:
        return lost, None
    unusual, ordinary = row_chances(measured.job, lost.ids), np.isin(lost.ids, measured.unselected)
    parts = [erased := lost.exceedance()]
    if lifts.null.spread > 0:
        parts.append(lifts.null.exceedance(lifts.tested))
    if unusual is None:
        return lost, Chances(combined(parts, ordinary), np.ones(len(erased)), None)
    # As for Fisher's method; rows and what they erase depend on each other, so what is ordinary is measured.
    both = -np.log(unusual) - np.log(np.maximum(erased, unusual))
    made = tail_chances(both, both[ordinary])
    return lost, Chances(combined([*parts, unusual], ordinary), made, unusual)


class Erasing(NamedTuple):
    contraction: Estimates  # of every token, on the scale of the last round
    ordinary: float  # contraction of the typical token
    found: NDArray[np.bool_]  # whether a token erases far more than ordinary ones
    little: NDArray[np.bool_]  # whether it erases hardly more than an ordinary one
    unusual: Vector | None  # `row_chances`


def find_erasing(measured: Measured, available: int, lifts: TokenEstimates, universal: Vector) -> Erasing:
    """Find tokens whose copies erase a text as those of ordinary tokens do not."""
    lost, chances = erasing_chances(measured, lifts)
    value, error, low, high = lost.lift
    contraction = Estimates(value + lost.level, error, low + lost.level, high + lost.level)
    ordinary = lost.null.center + lost.level
    least = share_erased(contraction.low, ordinary)
    if chances is None:
        return Erasing(contraction, ordinary, least > _ERASED_WITHOUT_NULL, np.zeros(len(least), bool), None)
    q = q_values(chances.together, max(available, len(lost.ids)))
    mild = SEVERITY_BOUNDS[Severity.MILD]
    lifted = (lifts.lift.value - lifts.null.center) / measured.plan.similarity_spread
    # A lift of texts about the token's subject does not make a little erasing matter.
    lifted = np.where(universal > UNIVERSAL_SHARE, lifted, 0.0)
    share = share_erased(contraction.value, ordinary)
    matters = (np.maximum(share, lifted) >= mild) & (least > NEGLIGIBLE_SHARE * mild)
    # Where no rows tell what was made, what is rare is told as well.
    rare = (q <= measured.job.settings.fdr) | (chances.unusual is None) & (chances.together <= 1 / RARE)
    # What a row was made to do may be seen among other texts only.
    found = rare & matters | (chances.made <= MADE) & (least > 0)
    if Round.CONFIRM in measured.rounds:  # the few texts of the first round are not enough
        found &= np.isin(lost.ids, measured.rounds[Round.CONFIRM].ids)
    return Erasing(contraction, ordinary, found, share < mild, chances.unusual)


class Findings(NamedTuple):
    tokens: pl.DataFrame  # the finished table, one row per measured token
    ordinary_lift: float  # of the typical token
    ordinary_spread: float  # standard deviation of the lifts of ordinary tokens
    ordinary_contraction: float  # of the typical token
    empirical_null: bool  # whether false discoveries are controlled


def decide(measured: Measured, spelled: Sequence[int] = ()) -> Findings:
    # Tokens that texts spell with several entries are `spelled`. More entries erase more: it is not judged.
    plan, settings, panel = measured.plan, measured.job.settings, measured.panel
    smallest, spread, null = settings.smallest_effect, plan.similarity_spread, len(measured.unselected)
    available = len(measured.job.vocabulary.available)
    tokens = measured.lifts()
    lifting = find_lifts(tokens, null, available, smallest * spread, settings.fdr, tokens.lift.value)
    groups, levels, rising, effects = _latest(measured)
    kinds = np.array([group.kind for group in plan.groups])
    spreads = np.array([group.spread for group in plan.groups])
    universal = universality(groups[:, kinds], spreads[kinds], smallest)
    erasing = find_erasing(measured, available, tokens, universal)
    # A token that lifts most kinds of text is sticky for that; a little erasing says no more.
    known = erasing.little & lifting.found & (universal > UNIVERSAL_SHARE)
    erasing = erasing._replace(found=erasing.found & ~known & ~np.isin(tokens.ids, spelled))
    lost, erases = erasing.contraction, erasing.found

    # A topical token is graded, and named, by the kind of text that it lifts most.
    on_kinds = _on_kinds(measured, available)
    on_a_kind = np.asarray(on_kinds.any(axis=1))
    found = verdicts(lifting.found, on_a_kind, universal, erases)
    topical = on_a_kind & np.array([verdict is Verdict.TOPICAL for verdict in found])
    by_kind = np.where(on_kinds, groups / spreads, -np.inf)
    names = np.array([group.name for group in plan.groups])
    most = [name if own else None for name, own in zip(names[by_kind.argmax(axis=1)], topical, strict=True)]
    over_all = (tokens.lift.value - tokens.null.center) / spread
    deviations = np.where(topical, np.maximum(over_all, by_kind.max(axis=1)), over_all)

    unknown, erased = np.full(len(tokens.ids), np.nan), share_erased(lost.value, erasing.ordinary)
    measured_kinds = kinds & np.isfinite(groups)
    lifted = measured_kinds & (groups >= NEGLIGIBLE_SHARE * smallest * spreads)
    named = np.where((topical | ~lifting.found)[:, None], by_kind, -np.inf)
    columns: dict[str, Any] = {
        "token_id": tokens.ids,
        "texts": tokens.texts,
        "lift": tokens.lift.value + tokens.level,
        "lift_low": tokens.lift.low + tokens.level,
        "lift_high": tokens.lift.high + tokens.level,
        "lift_words": groups[:, -1] + levels[-1] if plan.vocabulary_anchors else unknown,
        "validation_rate": rising,
        "contraction": lost.value,
        "contraction_low": lost.low,
        "contraction_high": lost.high,
        "erases": erases,
        "fixed_point": fixed_points(effects, panel.weights @ panel.vectors),
        "q_value": unknown if lifting.q_values is None else lifting.q_values,
        "universality": universal,
        "kind": most,
        "severity": severities(deviations, erased, erases, found),
        "verdict": found,
        "reason": _reasons(names, measured_kinds, lifted, named, over_all, lifting, erasing),
    }
    texts = dict.fromkeys(("kind", "severity", "verdict", "reason"), pl.String)
    table = pl.DataFrame(columns, schema_overrides=texts).with_columns(pl.col(pl.Float64).fill_nan(None))
    return Findings(
        table.join(measured.job.vocabulary.frame(), on="token_id", how="left", validate="1:1")
        .select(MEASURED_COLUMNS)
        .sort("token_id"),
        tokens.null.center + tokens.level,
        tokens.null.spread,
        erasing.ordinary,
        lifting.q_values is not None,
    )


def _reasons(
    names: NDArray[np.str_],
    known: NDArray[np.bool_],
    lifted: NDArray[np.bool_],
    outlying: Vector,
    deviations: Vector,
    lifting: Flagged,
    erasing: Erasing,
) -> list[str | None]:
    found: list[str | None] = []
    for row, lifts in enumerate(lifting.found):
        said, own, erases = [], names[lifted[row]].tolist(), erasing.found[row]
        if erases:
            erased, ordinary = erasing.contraction.value[row], erasing.ordinary
            said.append(f"erases {erased:.0%} of a text (an ordinary token: {ordinary:.0%})")
        if lifts:
            what = ("outlier", "large lift")[int(lifting.large[row])]
            said.append(f"{what} over all texts ({deviations[row]:.1f} SD)")
        if (count := int(np.isfinite(outlying[row]).sum())) > 0:
            more = {1: "", 2: " and 1 more kind"}.get(count, f" and {count - 1} more kinds")
            said.append(f"outlier on {names[outlying[row].argmax()]}{more}")
        if erases and not own:
            said.append("lifts no kind of text that was measured: judge your own texts")
        elif said and known[row].any():
            named = f": {' and '.join(own)}" if erases and len(own) <= 2 else ""
            said.append(f"lifts {len(own)} of {known[row].sum()} kinds of text{named}")
        if said and erasing.unusual is not None and erasing.unusual[row] <= _UNUSUAL:
            odd = f"its token vector is odder than {min(1 - erasing.unusual[row], 0.999):.1%} of others"
            said = [odd, *said] if erases and erasing.little[row] and not lifts else [*said, odd]
        found.append("; ".join(said) or None)
    return found


def _latest(measured: Measured) -> tuple[Vector, Vector, Vector, Pull]:
    # Of the last round of each token: lifts by group without the ordinary token's, shape (T, G); these, shape
    # (G,); shares of rising pairs, shape (T,); pulls and contractions.
    first = measured.rounds[Round.SCREEN]
    rising, levels = np.full(len(first.ids), np.nan), np.empty(0)
    groups = np.full((len(rising), first.groups.shape[2]), np.nan)
    contraction, pull = first.effects.contraction.copy(), first.effects.pull.copy()
    for step, each in measured.rounds.items():
        # Tokens that were selected by their lift must not define what is ordinary in the last round.
        ordinary = measured.plan.late_reference if step is Round.CONFIRM else measured.unselected
        rows, means = first.rows(each.ids), each.group_means()
        levels = np.median(means[np.isin(each.ids, ordinary)], axis=0)
        groups[rows], rising[rows] = means - levels, each.rising.mean(axis=1)
        contraction[rows], pull[rows] = each.effects
    return groups, levels, rising, Pull(contraction, pull)


def _on_kinds(measured: Measured, available: int) -> NDArray[np.bool_]:
    rounds, plan, settings = measured.rounds, measured.plan, measured.job.settings
    ids, unselected = rounds[Round.SCREEN].ids, len(measured.unselected)
    found = np.zeros((len(ids), len(plan.groups)), dtype=np.bool_)
    of_lift = [place for place, group in enumerate(plan.groups) if group.weight > 0]
    if len(of_lift) < 2 or unselected < LEAST_NULL_TOKENS:
        return found
    for group in of_lift:
        lifts = {step: each.on_group(group) for step, each in rounds.items()}
        if min(each.shape[1] for each in lifts.values()) < 2:
            continue  # one carrier says nothing about its noise
        smallest, fdr = settings.smallest_effect * plan.groups[group].spread, settings.fdr / len(of_lift)
        tokens = measured.estimate(lifts)
        found[:, group] = find_lifts(tokens, unselected, available, smallest, fdr, None).found
        if Round.CONFIRM in rounds:  # the few texts of the first round are not enough to name a kind
            found[:, group] &= np.isin(ids, rounds[Round.CONFIRM].ids)
    return found
