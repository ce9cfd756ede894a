"""The two passes of the paper's method, against a slow version that spells every probe out."""

import csv
import itertools
import math
import re
from statistics import fmean

import numpy as np
import pytest

import planted
import profiled
import tiny
from stickytoken import detect
from stickytoken.errors import EncodingError, InputError
from stickytoken.insertion import Insertion, Placement, Token
from stickytoken.methods.std import (
    PlacementWeights,
    ScoreConstants,
    ScoringStage,
    StdSettings,
    ValidationStage,
    candidate_threshold,
    distances,
    outlier_threshold,
)
from word_bag import WordBag

DIMENSION = 6
COPIES = 3
TOKEN = Token(77, " tip")
ANCHORS = ("the first anchor", "another one", "a third", "and a fourth")
CARRIERS = ("a red boat", "one", "two words", "here are four words")
PATHS = ((0, 4, 2), (1, 0, 3), (2, 2, 2), (4, 0, 1))
SETTINGS = StdSettings(
    copies=COPIES,
    scoring_weights=PlacementWeights(0.5, 0.3, 0.2),
    validation_weights=PlacementWeights(0.1, 0.6, 0.3),
    angular=ScoreConstants(0.1, 0.05, 0.01),
    manhattan=ScoreConstants(0.9, 0.4, 0.2),
)


def vectors_of(probes):
    return profiled.hashed_vectors(probes, DIMENSION, shift=0.0)


def vector_of(probe):
    return vectors_of([probe])[0]


def stage_of(kind):
    return kind(SETTINGS, CARRIERS, vectors_of(ANCHORS), vectors_of(CARRIERS), lambda token: PATHS)


def slow_probe(carrier, path, placement, copies):
    """The text with this many copies, built from nothing."""
    if placement == "prefix":
        return TOKEN.text * copies + carrier
    if placement == "suffix":
        return carrier + TOKEN.text * copies
    text = carrier
    for gap in path[:copies]:
        words = text.split()
        text = " ".join([*words[:gap], TOKEN.text, *words[gap:]])
    return text


def slow_distance(metric, left, right):
    left, right = [float(x) for x in left], [float(x) for x in right]
    if metric == "euclidean":
        return math.dist(left, right)
    if metric == "manhattan":
        return math.fsum(abs(a - b) for a, b in zip(left, right, strict=True))
    dot = math.fsum(a * b for a, b in zip(left, right, strict=True))
    return 1 - dot / (math.hypot(*left) * math.hypot(*right))


def slow_series(metric, pair, placement):
    """Distances of the carrier to its anchor with 0, 1, 2, ... copies."""
    texts = [slow_probe(CARRIERS[pair], PATHS[pair], placement, n) for n in range(COPIES + 1)]
    return [slow_distance(metric, vector_of(text), vector_of(ANCHORS[pair])) for text in texts]


def slow_score(metric):
    constants = SETTINGS.manhattan if metric == "manhattan" else SETTINGS.angular
    total = 0.0
    for placement, weight in (("prefix", 0.5), ("suffix", 0.3), ("random", 0.2)):
        for pair in range(len(CARRIERS)):
            series = slow_series(metric, pair, placement)
            changes = [after - before for before, after in itertools.pairwise(series)]
            falls = [-change for change in changes if change < 0]
            rises = [change for change in changes if change > 0]
            alone = slow_distance(metric, vector_of(TOKEN.text), vector_of(ANCHORS[pair]))
            reward = sum(falls) + constants.alpha * len(falls) + 0.1 * alone
            penalty = sum(rises) + constants.beta * len(rises) + constants.gamma
            total += weight * reward / penalty / len(CARRIERS)
    return total


def slow_rate(metric, placement):
    series = [slow_series(metric, pair, placement) for pair in range(len(CARRIERS))]
    return sum(fmean(row[1:]) < row[0] for row in series) / len(series)


def test_the_score_equals_a_slow_version_for_every_metric():
    stage = stage_of(ScoringStage)
    row = stage.measure(TOKEN, vectors_of(stage.probes(TOKEN)))
    assert set(row) == {"score_cosine", "score_euclidean", "score_manhattan"}
    for metric in ("cosine", "euclidean", "manhattan"):
        assert row[f"score_{metric}"] == pytest.approx(slow_score(metric), rel=1e-10), metric


def test_validation_rates_equal_a_slow_version_for_every_metric_and_placement():
    stage = stage_of(ValidationStage)
    row = stage.measure(TOKEN, vectors_of(stage.probes(TOKEN)))
    by_placement = {}
    for metric in ("cosine", "euclidean", "manhattan"):
        rates = {placement: slow_rate(metric, placement) for placement in ("prefix", "suffix", "random")}
        by_placement[metric] = rates
        for placement, rate in rates.items():
            assert row[f"rate_{metric}_{placement}"] == rate
        expected = 0.1 * rates["prefix"] + 0.6 * rates["suffix"] + 0.3 * rates["random"]
        assert row[f"rate_{metric}"] == pytest.approx(expected, rel=1e-12)
    # Vectors that gave all placements the same rate would hide a mix-up of them.
    assert len({tuple(rates.values()) for rates in by_placement.values()}) > 1
    assert any(len(set(rates.values())) > 1 for rates in by_placement.values())


def test_the_lift_equals_the_mean_rise_of_the_cosine_by_copies():
    stage = stage_of(ValidationStage)
    row = stage.measure(TOKEN, vectors_of(stage.probes(TOKEN)))
    series = [
        slow_series("cosine", pair, placement)
        for pair in range(len(CARRIERS))
        for placement in ("prefix", "suffix", "random")
    ]
    by_copies = [fmean(each[0] - each[copies] for each in series) for copies in range(1, COPIES + 1)]
    assert row["lift_by_copies"] == pytest.approx(by_copies, rel=1e-10)
    assert row["lift"] == pytest.approx(fmean(by_copies), rel=1e-10)


# Stages as a plan makes them.


# Encoders that no token moves: nothing may be called sticky, and the run says why.


class Deaf(WordBag):
    """Reads only the words of the corpus: other tokens change nothing."""

    def encode(self, texts):
        known = {word for sentence in tiny.sentences(60) for word in sentence.replace(".", " .").split()}
        return super().encode([" ".join(word for word in text.split() if word in known) for text in texts])


def test_candidates_with_equal_rates_are_benign_and_a_note_says_that_the_rule_has_no_width(tmp_path):
    encoder = Deaf(tiny.wordpiece_tokenizer())
    options = {"sentences": planted.small_corpus(), "settings": planted.SMALL, "out": tmp_path / "run"}
    run = detect(encoder, tokens=list("bcdfghjkqxz"), **options)
    assert run.sticky.is_empty()
    assert run.tokens["validation_rate"].drop_nulls().n_unique() == 1
    assert any("have the same validation rate" in note for note in run.method.notes(run))


class Constant:
    """Gives every text the same vector."""

    name = fingerprint = "constant"
    tokenizer = tiny.wordpiece_tokenizer()

    def encode(self, texts):
        return np.ones((len(texts), 4), np.float32)


def test_the_std_method_refuses_a_model_that_nothing_moves(tmp_path):
    with pytest.raises(InputError, match="has a similarity below the model's mean"):
        detect(Constant(), sentences=planted.small_corpus(), settings=planted.SMALL, out=tmp_path / "run")


ANGULAR = ScoreConstants(0.1, 0.05, 0.01)
MANHATTAN = ScoreConstants(1.0, 0.5, 0.1)
# A coarse grid, so that equal neighbours, which neither fall nor rise, are common.


def rows_of(path):
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def test_the_published_rates_give_exactly_the_published_sticky_tokens(shared):
    rows = rows_of(shared / "paper" / "minilm_candidates.csv")
    rates = {int(row["token_id"]): float(row["validation_rate_cosine"]) for row in rows}
    published = {int(row["token_id"]) for row in rows if row["sticky"] == "True"}
    threshold = outlier_threshold(list(rates.values()), StdSettings().outlier_range)
    assert {token_id for token_id, rate in rates.items() if rate > threshold} == published
    assert len(published) == 21


# Published with fewer candidates than two in a hundred of their available tokens.
FEWER_CANDIDATES = {"SFR-Embedding-2_R", "gte-Qwen2-1.5B-instruct"}


def test_the_default_share_gives_the_published_numbers_of_candidates(shared):
    counts = {
        (int(row["available_tokens"]), int(row["candidates"]))
        for row in rows_of(shared / "paper" / "models.csv")
        if row["model_name"] not in FEWER_CANDIDATES
    }
    assert (23_699, 474) in counts
    for available, candidates in counts:
        scores = np.random.default_rng(4).permutation(available) / 3
        threshold = candidate_threshold(scores.tolist(), StdSettings().candidate_share)
        assert (scores >= threshold).sum() == candidates


@pytest.mark.parametrize("zero_first", [True, False])
def test_a_zero_vector_is_refused(zero_first):
    zero, other = np.zeros((2, 3)), np.ones((2, 3))
    zero[1] = 1.0  # one good row beside the bad one
    with pytest.raises(EncodingError, match="zero vector"):
        distances(*((zero, other) if zero_first else (other, zero)))


def test_the_defaults_are_the_published_values():
    defaults = StdSettings()
    assert (defaults.sentences, defaults.pairs) == (1000, 1000)
    assert (defaults.scoring_pairs, defaults.validation_pairs) == (5, 250)
    assert (defaults.copies, defaults.seed) == (8, 42)
    assert (defaults.candidate_share, defaults.outlier_range) == (0.02, 0.7)
    assert defaults.insertion is Insertion.TEXT
    assert defaults.scoring_weights == PlacementWeights(0.35, 0.35, 0.30)
    assert defaults.validation_weights == PlacementWeights(4 / 11, 4 / 11, 3 / 11)
    assert (defaults.angular, defaults.manhattan) == (ANGULAR, MANHATTAN)
    assert [getattr(defaults.scoring_weights, placement) for placement in Placement] == [0.35, 0.35, 0.30]


@pytest.mark.parametrize(
    ("field", "least", "below"),
    [
        *(("sentences", 2, 1), ("pairs", 1, 0), ("scoring_pairs", 1, 0), ("validation_pairs", 1, 0)),
        *(("copies", 1, 0), ("seed", 0, -1), ("seed", 0, 0.1), ("candidate_share", 1.0, 1.0001)),
        *(("candidate_share", 1.0, 0.0), ("candidate_share", 1.0, math.nan), ("outlier_range", 0, -0.001)),
        *(("outlier_range", 0, math.inf), ("insertion", Insertion.IDS, "sideways")),
    ],
)
def test_settings_are_taken_to_their_bounds_and_refused_beyond(field, least, below):
    assert getattr(StdSettings(**{field: least}), field) == least
    with pytest.raises(InputError, match=f"{field} is '?{below}"):
        StdSettings(**{field: below})


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        *((PlacementWeights, values) for values in [(0.5, 0.5, 0.1), (1.5, -0.5, 0.0), (0.5, math.nan, 0.5)]),
        *((ScoreConstants, values) for values in [(-0.1, 0.0, 0.1), (0.1, 0.1, 0.0), (0.1, math.nan, 1)]),
    ],
)
def test_weights_that_are_no_shares_and_constants_that_could_divide_by_nothing_are_refused(kind, values):
    with pytest.raises(InputError, match=re.escape(str(values[0]))):
        kind(*values)
