"""From two rounds to estimates and verdicts: loops, invariances, and vocabularies of known truth."""

import itertools
import math
from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
import torch
from scipy import stats
from sklearn.linear_model import RidgeCV

import profiled
import tiny
from stickytoken import load_encoder
from stickytoken.errors import InputError
from stickytoken.measurement import ResultFolder
from stickytoken.methods import SEVERITY_BOUNDS, Verdict
from stickytoken.methods.profile.estimates import (
    AXES_FILE,
    EFFECTS_COLUMNS,
    EFFECTS_FILE,
    Lifts,
    Measurements,
    TokenEstimates,
    calibrate,
    estimate,
    read_effects,
    round_measurements,
    together,
    write_effects,
)
from stickytoken.methods.profile.other_texts import moves_up
from stickytoken.methods.profile.plan import Round, highest, tokens_to_confirm
from stickytoken.methods.profile.verdict import (
    LEAST_NULL_TOKENS,
    UNIVERSAL_SHARE,
    find_lifts,
    row_chances,
    severities,
    universality,
    verdicts,
)
from stickytoken.methods.statistics import Estimates, Null, Pull, Shape, shrunk
from stickytoken.unit_vectors import unit_vectors
from stickytoken.vocabulary import Category, categorize

# Sizes of the order of those on all-MiniLM-L6-v2: of effects, of a probe around its token's effect, of the
# probes' common effects; growth of effects in the first round.
ORDINARY, PROBE, COMMON, GROWTH, LEVEL = 0.011, 0.0153, 0.004, 1.25, 0.03
SCREENING, CONFIRMING, LATE = 3, 48, 128
CONFIDENCE = 0.9


@dataclass(frozen=True)
class World:
    effects: np.ndarray
    first: Lifts
    last: Lifts
    late: np.ndarray
    chosen: np.ndarray

    @property
    def ids(self):
        return self.first.ids

    def estimate(self, *rounds):
        first, last = rounds or (self.first, self.last)
        return estimate(first, last, self.ids, self.late, CONFIDENCE)


def draw_round(generator, ids, effects, probes, growth):
    common = COMMON * generator.normal(size=probes)
    noise = growth * PROBE * generator.normal(size=(len(ids), probes))
    return Lifts(ids, LEVEL + growth * effects[:, None] + common + noise)


def simulate(seed, size=1500, sticky=0, sent_on=40):
    generator = np.random.default_rng(seed)
    effects = ORDINARY * generator.normal(size=size)
    effects[:sticky] = 0.06
    effects -= effects.mean()
    ids = 3 * np.arange(size) + 7
    late = np.sort(generator.permutation(ids)[:LATE])
    first = draw_round(generator, ids, effects, SCREENING, GROWTH)
    found = estimate(first, None, ids, late, CONFIDENCE)
    chosen = highest(ids, found.tested.value[:, None], sent_on)
    both = np.union1d(chosen, late)
    last = draw_round(generator, both, effects[np.searchsorted(ids, both)], CONFIRMING, 1.0)
    return World(effects, first, last, late, chosen)


@pytest.fixture(scope="module")
def world():
    return simulate(1, sticky=10)


@pytest.fixture(scope="module")
def worlds():
    found = [simulate(seed) for seed in range(150)]
    return [(world, world.estimate()) for world in found]


PARTS = {
    "all": lambda world: slice(None),
    "confirmed": lambda world: np.isin(world.ids, world.chosen),
    "screened": lambda world: ~np.isin(world.ids, world.last.ids),
    "pilot": lambda world: np.isin(world.ids, world.late),
}


@pytest.mark.slow
@pytest.mark.parametrize("rows_of", PARTS.values(), ids=PARTS)
def test_nine_of_ten_intervals_hold_the_truth_of_selected_and_other_tokens_alike(worlds, rows_of):
    shares = []
    for world, found in worlds:  # by vocabulary, as its tokens share errors
        inside = (found.lift.low <= world.effects) & (world.effects <= found.lift.high)
        shares.append(inside[rows_of(world)].mean())
    # The growth between rounds is estimated from 128 tokens, which the intervals leave out.
    assert abs(np.mean(shares) - CONFIDENCE) <= 0.015 + 4 * np.std(shares) / np.sqrt(len(shares))


def test_screening_equals_loops_over_the_reference_tokens():
    ids, lifts = simulate(2, 200, sticky=5).first
    own = [row for row in range(200) if row % 3 > 0]
    common = [sum(lifts[row, k] for row in own) / len(own) for k in range(SCREENING)]
    centred = [[lifts[row, k] - common[k] for k in range(SCREENING)] for row in range(200)]
    values = [sum(row) / SCREENING for row in centred]
    residual = sum((centred[row][k] - values[row]) ** 2 for row in own for k in range(SCREENING))
    noise = residual / ((len(own) - 1) * (SCREENING - 1)) / SCREENING
    found = estimate(Lifts(ids, lifts), None, ids[own], np.array([]), CONFIDENCE)
    assert found.tested.value == pytest.approx(values, abs=1e-12)
    assert found.tested.error == pytest.approx([noise**0.5] * 200)
    assert found.level == pytest.approx(np.mean(common))
    spread = np.var([values[row] for row in own], ddof=1)
    expected = shrunk(np.array(values), noise, spread - noise, CONFIDENCE)
    assert np.allclose(np.stack(found.lift), np.stack(expected))


def test_a_confirmed_token_is_estimated_from_the_confirming_round_alone(world):
    found, last = world.estimate(), world.last
    rows, late = np.searchsorted(world.ids, last.ids), np.isin(last.ids, world.late)
    values = found.lift.value[rows]
    assert values + found.level == pytest.approx([sum(row) / 48 for row in last.values], abs=1e-12)
    assert np.array_equal(values, found.tested.value[rows])
    # Spread over probes, and the error of the probes' common effects, which 128 tokens show.
    before = world.estimate(world.first, None)
    scale = found.null.spread / before.null.spread
    common = np.var((values - scale * before.lift.value[rows])[late], ddof=1) / LATE
    centred = last.values - last.values[late].mean(axis=0)
    for place, row in enumerate(rows):
        error = (np.var(centred[place], ddof=1) / 48 + common) ** 0.5
        half = stats.t.ppf(0.95, 47) * error
        assert found.lift.error[row] == pytest.approx(error)
        ends = (found.lift.low[row], found.lift.high[row])
        assert ends == pytest.approx((values[place] - half, values[place] + half))


@pytest.mark.parametrize("place", [0, 1])
def test_what_a_probe_does_to_every_token_moves_the_level_alone(world, place):
    rounds = [world.first, world.last]
    own = rounds[place]
    constants = np.random.default_rng(5).normal(size=own.values.shape[1])
    rounds[place] = own._replace(values=own.values + constants)
    found, plain = world.estimate(*rounds), world.estimate()
    ours, theirs = (
        (*each.lift, *each.tested, np.array([each.null.center, each.null.spread])) for each in (found, plain)
    )
    for own, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-6, atol=1e-11)
    expected = plain.level + (constants.mean() if place == 1 else 0)
    assert found.level == pytest.approx(expected, abs=1e-11)


@pytest.mark.parametrize("rounding", [0.0, 1e-16, 1e-12])
@pytest.mark.parametrize("common", [[0.25, 0.5, -1.0], [0.0, 0.0, 0.0]])
def test_a_model_that_does_not_tell_texts_apart_is_refused(common, rounding):
    generator = np.random.default_rng(6)
    lifts = np.tile(common, (20, 1)) * (1 + rounding * generator.normal(size=(20, 3)))
    with pytest.raises(InputError, match="every token moves the similarities equally"):
        estimate(Lifts(np.arange(20), lifts), None, np.arange(20), np.array([]), CONFIDENCE)


@pytest.mark.parametrize("shape", [(1, 5), (5, 1)])
def test_an_estimate_needs_two_tokens_and_two_probes(shape):
    with pytest.raises(InputError, match=f"{shape[0]} tokens with {shape[1]} probes each: two of both"):
        estimate(Lifts(np.arange(shape[0]), np.zeros(shape)), None, np.arange(5), np.array([]), CONFIDENCE)


@pytest.mark.slow
@pytest.mark.parametrize("topics", [0, 5])
def test_the_tokens_that_lift_most_on_all_texts_or_on_one_kind_are_confirmed(foreign, tmp_path, topics):
    run = profiled.detect_profile(foreign, tmp_path / "run", sentences=profiled.corpus(200, topics))
    screened, late = profiled.shard_rows(run, "screen"), set(run.plan.late_reference)
    count = tokens_to_confirm(profiled.SMALL, len(screened))
    assert count == 30
    # So many tokens by their mean lift, and by the group of the lift on which each stands out most; the third
    # part are those that erase most.
    lifts = {token: np.mean(row["lifts"]) for token, row in screened.items()}
    standing, groups = dict.fromkeys(screened, -np.inf), run.plan.groups
    for place in (place for place, group in enumerate(groups) if group.weight > 0):
        own = {token: np.nanmean(row["groups"][place :: len(groups)]) for token, row in screened.items()}
        center = np.median(list(own.values()))
        spread = np.median([abs(value - center) for value in own.values()])
        for token, value in own.items():
            standing[token] = max(standing[token], (value - center) / spread)
    orders = [sorted(values, key=lambda token: (-values[token], token)) for values in (lifts, standing)]
    expected = {token for order in orders for token in order[: count // 3]}
    assert expected - late < set(profiled.shard_rows(run, "confirm"))
    assert run.result.candidates <= count + len(late)


MANY = LEAST_NULL_TOKENS


def tokens_of(values, errors=0.1, center=0.0, spread=1.0, half=0.3, tested=None):
    values = np.asarray(values, dtype=float)
    errors = np.broadcast_to(np.asarray(errors, float), values.shape)
    lift = Estimates(values, errors, values - half, values + half)
    other = lift if tested is None else lift._replace(value=np.asarray(tested, dtype=float))
    ids = 2 * np.arange(len(values)) + 5
    return TokenEstimates(ids, np.full(len(values), 9), lift, other, Null(center, spread, Shape()), 0.0)


@pytest.mark.parametrize(
    ("value", "half", "tested", "matters"),
    [
        pytest.param(2.5, 0.3, 0.0, True, id="large, whatever the vocabulary does"),
        pytest.param(2.0, 0.3, 0.0, True, id="the smallest effect"),
        pytest.param(1.8, 0.3, 0.0, False, id="may be the smallest effect"),
        pytest.param(1.6, 0.3, 0.0, False, id="smaller, and not rare"),
        pytest.param(1.6, 0.3, 9.0, True, id="smaller, but rare"),
        pytest.param(1.2, 0.3, 9.0, False, id="rare, but may be negligible"),
        pytest.param(2.5, 1.6, 9.0, False, id="rare and large, but uncertain"),
        pytest.param(-3.0, 0.3, 9.0, False, id="lowers"),
    ],
)
def test_an_effect_matters_if_it_is_not_negligible_and_is_large_or_rare(value, half, tested, matters):
    """The smallest effect is 2, so that 1 is the bound of what is negligible."""
    tokens = tokens_of([0.0] * 500 + [value], half=half, tested=[0.0] * 500 + [tested])
    rare, likely = matters and tested > 0, matters or (value - half > 1 and value + half >= 2)
    for reach, wanted in ((tokens.lift.value, matters), (None, rare), (tokens.lift.high, likely)):
        assert find_lifts(tokens, 501, 1, 2.0, 0.05, reach).found.tolist() == [False] * 500 + [wanted]


def test_a_null_of_no_width_is_not_used():
    """Beside it, everything a little above the noise would be an outlier of its vocabulary."""
    values = np.append(np.zeros(299), [1.0, 5.0])
    flat = find_lifts(tokens_of(values, spread=0.0), 301, 1, 1.0, 0.05, values)
    assert flat.q_values is None
    assert flat.found.nonzero()[0].tolist() == [299, 300]  # by their intervals
    assert find_lifts(tokens_of(values), 301, 1, 1.0, 0.05, values).q_values is not None


@pytest.mark.parametrize(("null_tokens", "empirical"), [(MANY - 1, False), (MANY, True)])
def test_with_few_unselected_tokens_the_interval_decides(null_tokens, empirical):
    # Half the smallest effect above the center is 1.5; intervals reach 0.3 down and up.
    values = np.array([1.7, 1.8, np.nextafter(1.8, 9), 2.3, 2.5])
    found = find_lifts(tokens_of(values, errors=9.0, center=0.5), null_tokens, 1, 2.0, 0.05, values)
    assert (found.q_values is not None) is empirical
    above_half = (values - 0.3 > 1.5).tolist()
    assert found.found.tolist() == ([False] * 4 + [True] if empirical else above_half)


def test_who_names_the_strongest_tokens_of_a_vocabulary_does_not_make_them_rare():
    values = np.append(np.random.default_rng(4).normal(size=20_000), 9.0)
    order = np.argsort(-values)
    whole = find_lifts(tokens_of(values), len(values), len(values), 6.0, 0.05, values)
    few, some = order[:6], np.random.default_rng(5).permutation(len(values))[:400]
    chosen = np.concatenate([few, some])
    part = find_lifts(tokens_of(values[chosen]), 400, len(values), 6.0, 0.05, values[chosen])
    assert part.found[:6].tolist() == whole.found[few].tolist() == [True] + [False] * 5
    assert (part.q_values >= whole.q_values[chosen] - 1e-12).all()
    alone = find_lifts(tokens_of(values[chosen]), 400, 1, 6.0, 0.05, values[chosen])
    assert alone.found[:6].all()  # as if they were all


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("missing", [(), (2,), (0, 4), (0, 1, 2, 3, 4)])
def test_universality_counts_kinds_one_by_one(seed, missing):
    generator = np.random.default_rng(seed)
    effects, spreads = generator.normal(size=(40, 5)), generator.uniform(0.5, 3, 5)
    effects[::2, list(missing)] = np.nan
    found = universality(effects, spreads, 0.5)
    for token in range(40):
        kinds = [k for k in range(5) if not math.isnan(effects[token, k])]
        lifted = [k for k in kinds if effects[token, k] >= 0.25 * spreads[k]]
        expected = len(lifted) / len(kinds) if kinds else math.nan
        assert found[token] == pytest.approx(expected, nan_ok=True)


@pytest.mark.parametrize("verdict", [Verdict.STICKY, Verdict.TOPICAL])
def test_a_severity_begins_at_its_bound_and_benign_tokens_have_none(verdict):
    bounds = [0.2, 0.5, 0.8]
    assert list(SEVERITY_BOUNDS.values()) == bounds
    effects = np.array([-9.0, *bounds, *(np.nextafter(bound, 0) for bound in bounds), 99.0])
    expected = ["negligible", "mild", "serious", "severe", "negligible", "mild", "serious", "severe"]
    none, nothing = np.zeros(8, dtype=bool), np.zeros(8)
    assert severities(effects, nothing, none, [verdict] * 8) == expected
    assert severities(effects[:2], nothing[:2], none[:2], [Verdict.BENIGN, verdict]) == [None, "mild"]
    # A token that erases has the higher of its two grades, and at least a mild one.
    least = [grade.replace("negligible", "mild") for grade in expected]
    assert severities(nothing, effects, ~none, [verdict] * 8) == least
    assert severities(effects, nothing + 0.6, ~none, [verdict] * 8)[0] == "serious"


VERDICTS = [  # whether the lift matters, whether that on a kind does, universality, whether it erases
    ("sticky", True, False, 1.0, False),
    ("sticky", True, True, np.nextafter(UNIVERSAL_SHARE, 1), False),
    ("topical", True, False, UNIVERSAL_SHARE, False),
    ("topical", True, True, 0.0, False),
    ("sticky", True, True, 0.0, True),
    ("sticky", True, False, math.nan, False),
    ("sticky", False, True, math.nan, False),
    ("sticky", False, True, 1.0, False),
    ("topical", False, True, 0.0, False),
    ("benign", False, False, 1.0, False),
    ("benign", False, False, 0.0, False),
    ("benign", False, False, math.nan, False),
    ("sticky", False, False, 0.0, True),
]


def test_the_table_of_verdicts():
    expected, *columns = zip(*VERDICTS, strict=True)
    assert verdicts(*map(np.array, columns)) == list(expected)


def test_a_row_is_unusual_if_it_leans_where_its_neighbours_hardly_vary():
    tokenizer = tiny.wordpiece_tokenizer(words=[f"word{k}" for k in range(400)])
    generator, edited = np.random.default_rng(1), tokenizer.convert_tokens_to_ids("word70")
    rows = generator.normal(size=(len(tokenizer), 8)) * np.geomspace(1, 0.1, 8)
    rows *= np.linspace(1, 3, len(rows))[:, None] ** np.linspace(0, 1, 8)  # rare ones lean further
    rows[edited] = rows[edited, ::-1]
    encoder = load_encoder(tiny.static_model(tokenizer.backend_tokenizer, torch.tensor(rows).float()))
    vocabulary = categorize(encoder.tokenizer)
    ids = np.array([token.id for token in vocabulary.available])
    own, expected = rows[ids] - rows[ids].mean(axis=0), np.zeros(len(ids))
    variances, axes = np.linalg.eigh(own.T @ own / len(own))
    leaning = np.log((own @ axes) ** 2 @ variances**-1.5 / (own**2).sum(axis=1))

    def around(values):  # medians over an entry and its neighbours
        padded = np.pad(values, half := min(50, len(values) // 2), mode="reflect")
        return np.array([np.median(padded[k : k + 2 * half + 1]) for k in range(len(values))])

    characters = np.array([len(token.text.strip()) == 1 for token in vocabulary.available])
    for kind in (characters, ~characters):
        away = leaning[kind] - around(leaning[kind])
        expected[kind] = away / around(np.abs(away))
    found = row_chances(SimpleNamespace(encoder=encoder, vocabulary=vocabulary), ids)
    body, tail = np.quantile(expected, [0.9, 0.98])  # beyond, an exponential tail goes on
    beyond = 0.02 * np.exp((tail - expected) / (tail - body) * math.log(5))
    wanted = np.where(expected > tail, beyond, [(expected >= each).mean() for each in expected])
    assert found == pytest.approx(wanted, rel=1e-3)
    assert ids[found.argmin()] == edited
    assert found[-100:].mean() == pytest.approx(0.5, abs=0.1)
    rest = [Category.MEANINGLESS] * (len(rows) - 79)
    few = replace(vocabulary, categories=(*vocabulary.categories[:79], *rest))
    assert row_chances(SimpleNamespace(encoder=encoder, vocabulary=few), ids[:9]) is None


@pytest.mark.parametrize("seed", range(3))
def test_shares_equal_a_loop_over_queries_and_documents(seed):
    generator = np.random.default_rng(seed)
    texts = unit_vectors(generator.normal(size=(60, 8)))
    effects = Pull(np.array([0.0, 0.3, 0.8]), generator.normal(size=(3, 8)) * 0.3)
    found = moves_up(effects, texts, seed)
    # For every query and document, count by comparison who is ahead before and after.
    order = np.random.default_rng([seed, 4]).permutation(len(texts)).tolist()
    count = min(100, len(texts) // 2)
    moved = np.zeros(3)
    for query in order[:count]:
        before = [float(text @ texts[query]) for text in texts]
        for document, row in itertools.product(order[count : 2 * count], range(3)):
            after = (1 - effects.contraction[row]) * before[document] + float(
                texts[query] @ effects.pull[row]
            )
            passed = sum(each > before[document] for each in before) - sum(each > after for each in before)
            moved[row] += passed >= len(texts) / 10
    expected = moved / count**2
    # In single precision a document may tie with itself.
    assert found == pytest.approx(expected, abs=2 / 900)


# What a round measured: chosen, combined, kept on disk, and completed for the other tokens.

GROUPS, DIMENSION = 2, 5


def sample(ids, seed, carriers=4):
    generator = np.random.default_rng(seed)
    count = len(ids)
    groups = generator.normal(size=(count, carriers, GROUPS)).astype(np.float32)
    groups[:, 2, 1] = np.nan
    return Measurements(
        np.array(ids),
        generator.normal(size=(count, carriers)),
        generator.random((count, carriers)).astype(np.float32),
        groups,
        Pull(generator.random(count), generator.normal(size=(count, DIMENSION))),
        generator.random((count, carriers)),
    )


def row_of(measured, token_id):
    row = measured.ids.tolist().index(token_id)
    parts = (measured.lifts, measured.rising, measured.groups, measured.contractions, *measured.effects)
    return [np.nan_to_num(part[row], nan=-9).tolist() for part in parts]


def test_two_rounds_on_the_same_carriers_become_one_by_ascending_id():
    first, second = sample([2, 7, 9], 1), sample([1, 8], 2)
    found = together(first, second)
    assert found.ids.tolist() == [1, 2, 7, 8, 9]
    for own in (first, second):
        for token_id in own.ids.tolist():
            assert row_of(found, token_id) == row_of(own, token_id)


def test_some_tokens_and_carriers_are_kept_and_the_effects_are_those_of_all_carriers():
    whole, rows = sample([2, 7, 9], 3), [0, 2]
    found = whole.chosen(np.array(rows), [1, 3])
    assert found.ids.tolist() == [2, 9]
    for name in ("lifts", "rising", "groups", "contractions"):
        expected = getattr(whole, name)[rows][:, [1, 3]]
        assert np.array_equal(getattr(found, name), expected, equal_nan=True)
    for part, everything in zip(found.effects, whole.effects, strict=True):
        assert np.array_equal(part, everything[rows])
    assert whole.rows(np.array([9, 2, 7, 9])).tolist() == [2, 0, 1, 2]
    # Carriers that have no pair with a group are left out.
    assert np.array_equal(whole.on_group(0), whole.groups[:, :, 0].astype(np.float64))
    assert np.array_equal(whole.on_group(1), whole.groups[:, [0, 1, 3], 1].astype(np.float64))
    assert whole.group_means() == pytest.approx(np.nanmean(whole.groups.astype(float), axis=1))


def test_copies_that_the_tokenizer_joined_are_made_up_by_their_share_of_the_text_at_most_twofold():
    rows = {name: [[1.0] * 3] for name in ("lifts", "rising", "groups", "contractions", "pull")}
    rows |= {"token_id": [5], "seen": [[4.0, 2.0, 9.0]], "contraction": [0.5]}
    stage = SimpleNamespace(carriers="abc", carrier_texts="abc", cells=[SimpleNamespace(copies=8)] * 3)
    reader = SimpleNamespace(content_ids=lambda texts: [[0] * 8 for _ in texts])
    found = round_measurements(pl.DataFrame(rows), stage, reader)
    # 8 of 16 entries were planned; 4 of 12, 2 of 10 and no more than 8 of 16 were seen.
    for values in (found.lifts, found.groups[:, :, 0], found.contractions):
        assert values == pytest.approx(np.array([[1.5, 2.0, 1.0]]))
    assert found.effects.contraction == pytest.approx([0.75])
    assert found.effects.pull == pytest.approx(np.full((1, 3), 1.5))


def test_effects_are_read_as_they_were_written_by_round_and_token(tmp_path):
    rounds = {Round.SCREEN: sample([3, 5, 9], 1), Round.CONFIRM: sample([5, 9], 2)}
    folder = ResultFolder(tmp_path)
    write_effects(folder, rounds)
    table = folder.read_table(EFFECTS_FILE)
    assert tuple(table.columns) == EFFECTS_COLUMNS
    assert table["round"].to_list() == ["screen"] * 3 + ["confirm"] * 2
    folder.write_table(EFFECTS_FILE, table.sample(fraction=1, shuffle=True, seed=3))
    for step, own in rounds.items():
        found = read_effects(tmp_path, step=step)
        assert found.ids.tolist() == own.ids.tolist()
        assert np.array_equal(found.pull, own.effects.pull.astype(np.float16).astype(np.float32))
        assert found.contraction == pytest.approx(own.effects.contraction, abs=1e-7)


def test_the_principal_axes_are_those_of_the_singular_value_decomposition(tmp_path):
    screened, folder = sample(range(60), 1), ResultFolder(tmp_path)
    write_effects(folder, {Round.SCREEN: screened}, most_bytes=2 * 3 * 60)
    left, values, right = np.linalg.svd(screened.effects.pull, full_matrices=False)
    assert read_effects(tmp_path).pull == pytest.approx((left[:, :3] * values[:3]) @ right[:3], abs=0.02)
    write_effects(folder, {Round.SCREEN: screened}, most_bytes=1)
    assert folder.read_table(AXES_FILE)["axis"].to_numpy().shape == (1, DIMENSION)


# Lifts that are computed from pulls, corrected by a few measured tokens.

VOCABULARY, MEASURED, FEATURES = 400, 150, 12


def line_and_features(seed, bend=0.0, noise=0.0):
    """Predicted lifts, features, measured rows, true and noisy lifts: a line, and some of the features."""
    generator = np.random.default_rng(seed)
    features = [generator.normal(size=(VOCABULARY, FEATURES)), 100 * generator.normal(size=(VOCABULARY, 2))]
    predicted = generator.normal(size=VOCABULARY)
    true = 0.3 + 1.7 * predicted + bend * features[0] @ generator.normal(size=FEATURES)
    rows = np.sort(generator.permutation(VOCABULARY)[:MEASURED])
    return predicted, features, rows, true, true[rows] + noise * generator.normal(size=MEASURED)


@pytest.mark.parametrize("seed", range(3))
def test_what_the_features_add_is_learned_and_the_error_is_that_of_tokens_that_had_no_part(seed):
    predicted, features, rows, true, lifts = line_and_features(seed, bend=0.5, noise=0.3)
    values, error = calibrate(predicted, features, rows, lifts, 0.3**2)
    others = np.setdiff1d(np.arange(VOCABULARY), rows)
    line = np.polyval(np.polyfit(predicted[rows], lifts, 1), predicted)
    off = np.sqrt(np.mean((values - true)[others] ** 2))
    assert off < 0.2 * np.sqrt(np.mean((line - true)[others] ** 2))
    # The cross-validated error contains noise of its own: a tenth of the noise that it takes away.
    assert error == pytest.approx(off, abs=0.1)


def test_the_fit_is_the_ridge_regression_that_leave_one_out_chooses():
    predicted, features, rows, _, lifts = line_and_features(4, bend=0.1, noise=0.5)
    slope, intercept = np.polyfit(predicted[rows], lifts, 1)
    line = intercept + slope * predicted
    groups = [group - group[rows].mean(axis=0) for group in features]
    known = np.column_stack([group / np.sqrt((group[rows] ** 2).sum(axis=1).mean()) for group in groups])
    scale = (known[rows] ** 2).sum(axis=1).mean()
    left = lifts - line[rows]

    ridge = RidgeCV(np.geomspace(1e-2, 1e3, 16) * scale, fit_intercept=False, store_cv_results=True)
    expected = line + ridge.fit(known[rows], left).predict(known)
    errors = ridge.cv_results_.mean(axis=0)
    values, error = calibrate(predicted, features, rows, lifts, 0.0)
    assert values == pytest.approx(expected, abs=1e-8)
    assert error == pytest.approx(np.sqrt(errors.min()), abs=1e-8)
