"""The two passes of the paper's method, against a slow version that spells every probe out."""

import hashlib
import itertools
import json
import math
from statistics import fmean

import numpy as np
import pytest

import tiny
from stickytoken.insertion import Insertion, Token, TokenizedText
from stickytoken.measurement.stage import cut_into_shards
from stickytoken.methods.probes import ProbeGrid, WalkedPaths
from stickytoken.methods.std.formulas import (
    PLACEMENTS,
    Metric,
    PairProbes,
    ScoringStage,
    ValidationStage,
    distances,
    weighted,
)
from stickytoken.methods.std.plan import PairRecord, StdPlanRecord, scoring_stage, validation_stage
from stickytoken.methods.std.settings import PlacementWeights, ScoreConstants, StdSettings

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


def vector_of(probe):
    """A vector that depends on nothing but the probe."""
    seed = int.from_bytes(hashlib.sha256(repr(probe).encode()).digest()[:8], "big")
    return np.random.default_rng(seed).standard_normal(DIMENSION).astype(np.float32)


def vectors_of(probes):
    return np.stack([vector_of(probe) for probe in probes])


def stage_of(kind):
    grid = ProbeGrid(CARRIERS, PLACEMENTS, COPIES, WalkedPaths({TOKEN.id: PATHS}))
    return kind(PairProbes(grid, vectors_of(ANCHORS), vectors_of(CARRIERS)), SETTINGS)


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
    texts = [
        CARRIERS[pair],
        *(slow_probe(CARRIERS[pair], PATHS[pair], placement, n) for n in range(1, COPIES + 1)),
    ]
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


def test_validation_names_its_columns():
    stage = stage_of(ValidationStage)
    row = stage.measure(TOKEN, vectors_of(stage.probes(TOKEN)))
    rates = {f"rate_{metric}" for metric in Metric}
    assert set(row) == {
        "lift",
        "lift_by_copies",
        *rates,
        *(f"{rate}_{placement}" for rate in rates for placement in ("prefix", "suffix", "random")),
    }


@pytest.mark.parametrize("kind", [ScoringStage, ValidationStage])
def test_a_stage_measures_plain_numbers_that_json_takes(kind):
    stage = stage_of(kind)
    row = stage.measure(TOKEN, vectors_of(stage.probes(TOKEN)))
    assert json.loads(json.dumps(row, allow_nan=False)) == row


@pytest.mark.parametrize(("kind", "alone"), [(ScoringStage, 1), (ValidationStage, 0)])
def test_a_stage_says_how_many_probes_a_token_costs(kind, alone):
    stage = stage_of(kind)
    assert stage.probes_per_token == len(stage.probes(TOKEN)) == 4 * 3 * COPIES + alone


def test_scoring_probes_the_token_alone_first():
    probes = stage_of(ScoringStage).probes(TOKEN)
    assert probes[0] == " tip"
    assert list(probes[1:]) == list(stage_of(ValidationStage).probes(TOKEN))


def test_stages_have_names_of_their_own():
    assert (stage_of(ScoringStage).name, stage_of(ValidationStage).name) == ("score", "validate")


def test_distances_start_with_the_carrier_as_it_is():
    pairs = stage_of(ValidationStage).pairs
    probed = vectors_of(stage_of(ValidationStage).probes(TOKEN))
    found = pairs.distances(probed)
    clean = distances(vectors_of(CARRIERS), vectors_of(ANCHORS))
    for metric in Metric:
        assert found[metric].shape == (len(CARRIERS), 3, COPIES + 1)
        for placement in range(3):
            assert found[metric][:, placement, 0] == pytest.approx(clean[metric])


def test_a_token_that_pulls_every_carrier_to_its_anchor_has_rate_one_and_the_highest_score():
    stage, validation = stage_of(ScoringStage), stage_of(ValidationStage)
    anchors, carriers = vectors_of(ANCHORS), vectors_of(CARRIERS)

    def moved(share):
        """Copies 1, 2, ... move a carrier by this share of the way each."""
        steps = np.arange(1, COPIES + 1)[None, None, :, None] * np.ones((1, 3, 1, 1)) * share
        probes = carriers[:, None, None, :] + steps * (anchors - carriers)[:, None, None, :]
        return probes.reshape(-1, DIMENSION).astype(np.float32)

    alone = vector_of(TOKEN.text)[None, :]
    pulled, pushed = moved(0.2), moved(-0.2)
    assert validation.measure(TOKEN, pulled)["rate_euclidean"] == pytest.approx(1.0)
    assert validation.measure(TOKEN, pushed)["rate_euclidean"] == 0.0
    assert validation.measure(TOKEN, pulled)["lift"] > 0 > validation.measure(TOKEN, pushed)["lift"]
    high = stage.measure(TOKEN, np.concatenate([alone, pulled]))["score_euclidean"]
    low = stage.measure(TOKEN, np.concatenate([alone, pushed]))["score_euclidean"]
    reward = fmean(
        0.6 * math.dist(carriers[pair], anchors[pair])
        + 0.1 * COPIES
        + 0.1 * math.dist(vector_of(TOKEN.text), anchors[pair])
        for pair in range(len(CARRIERS))
    )
    assert high == pytest.approx(reward / 0.01, rel=1e-4)
    assert low < high / 50


def test_the_order_of_the_pairs_does_not_change_what_is_measured():
    order = [2, 0, 3, 1]
    grid = ProbeGrid(
        tuple(CARRIERS[k] for k in order),
        PLACEMENTS,
        COPIES,
        WalkedPaths({TOKEN.id: tuple(PATHS[k] for k in order)}),
    )
    anchors, carriers = vectors_of([ANCHORS[k] for k in order]), vectors_of([CARRIERS[k] for k in order])
    for kind in (ScoringStage, ValidationStage):
        turned, straight = kind(PairProbes(grid, anchors, carriers), SETTINGS), stage_of(kind)
        first = turned.measure(TOKEN, vectors_of(turned.probes(TOKEN)))
        second = straight.measure(TOKEN, vectors_of(straight.probes(TOKEN)))
        for column, value in second.items():
            assert first[column] == pytest.approx(value, rel=1e-10), column


def test_ids_probes_are_measured_in_the_same_way():
    carriers = (TokenizedText((1,), ((5,), (6, 7))), TokenizedText((1,), ((8,),)))
    grid = ProbeGrid(carriers, PLACEMENTS, 2, WalkedPaths({TOKEN.id: ((0, 2), (1, 0))}))
    pairs = PairProbes(grid, vectors_of(ANCHORS[:2]), vectors_of([carrier.ids for carrier in carriers]))
    stage = ValidationStage(pairs, SETTINGS)
    row = stage.measure(TOKEN, vectors_of(stage.probes(TOKEN)))
    series = [
        [
            slow_distance("cosine", vector_of(probe), vector_of(ANCHORS[pair]))
            for probe in (carriers[pair].ids, *probes)
        ]
        for pair, probes in [
            (0, ((1, 77, 5, 6, 7), (1, 77, 77, 5, 6, 7))),
            (0, ((1, 5, 6, 7, 77), (1, 5, 6, 7, 77, 77))),
            (0, ((1, 77, 5, 6, 7), (1, 77, 5, 77, 6, 7))),
            (1, ((1, 77, 8), (1, 77, 77, 8))),
            (1, ((1, 8, 77), (1, 8, 77, 77))),
            (1, ((1, 8, 77), (1, 77, 8, 77))),
        ]
    ]
    assert row["lift_by_copies"] == pytest.approx(
        [fmean(each[0] - each[copies] for each in series) for copies in (1, 2)], rel=1e-10
    )


def test_weights_go_to_their_placements():
    values = np.array([[1.0, 10.0, 100.0], [3.0, 30.0, 300.0]])
    assert weighted(values, PlacementWeights(1.0, 0.0, 0.0)) == 2.0
    assert weighted(values, PlacementWeights(0.0, 1.0, 0.0)) == 20.0
    assert weighted(values, PlacementWeights(0.5, 0.25, 0.25)) == 1.0 + 5.0 + 50.0


# Stages as a plan makes them.


@pytest.fixture
def plan():
    sentences = tiny.sentences(12)
    records = [
        PairRecord(sentence1=first, sentence2=second, similarity=0.0)
        for first, second in zip(sentences[::2], sentences[1::2], strict=True)
    ]
    return StdPlanRecord(
        mean_similarity=0.5,
        mean_similarity_entries=10,
        left_out=0,
        similarity_deviation=0.0,
        scoring=records[:2],
        validation=records,
    )


@pytest.mark.parametrize("insertion", list(Insertion))
def test_planned_stages_take_tokens_whose_text_has_white_space_inside(encoder, plan, insertion):
    """Among ids such a token is one word; as text it is several."""
    settings = StdSettings(copies=8, insertion=insertion)
    tokens = [Token(token_id, text) for token_id, text in enumerate(["to do", " a b c", "x\ty"] * 10)]
    for stage in (
        scoring_stage(encoder, settings, plan, tokens, tokens),
        validation_stage(encoder, settings, plan),
    ):
        for token in tokens:
            assert len(stage.probes(token)) == stage.probes_per_token


# Shards.


@pytest.mark.parametrize(
    ("tokens", "probes_per_token", "shard_probes", "sizes"),
    [
        (10, 5, 20, [2, 3, 2, 3]),
        (10, 5, 24, [2, 3, 2, 3]),
        (9, 5, 24, [2, 2, 2, 3]),
        (8, 5, 20, [2, 2, 2, 2]),
        (8, 1, 8, [2, 2, 2, 2]),
        (31, 1, 64, [31]),
        (32, 1, 64, [8, 8, 8, 8]),
        (9, 1, 8, [2, 2, 2, 3]),
        (3, 100, 20, [1, 1, 1]),
        (3, 1, 100, [3]),
        (0, 5, 20, []),
    ],
)
def test_shards_hold_every_token_once_in_order(tokens, probes_per_token, shard_probes, sizes):
    given = [Token(token_id, "x") for token_id in range(tokens)]
    shards = cut_into_shards(given, probes_per_token, shard_probes)
    assert [len(shard.tokens) for shard in shards] == sizes
    assert [shard.index for shard in shards] == list(range(len(sizes)))
    assert [token for shard in shards for token in shard.tokens] == given
