"""effects.parquet: what is written of every round, and what is read of it."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

import profiled
from stickytoken import load_encoder
from stickytoken.measurement.store import ResultFolder
from stickytoken.methods.probes import AnchorPanel
from stickytoken.methods.profile.estimates import (
    AXES_FILE,
    EFFECTS_COLUMNS,
    Measurements,
    kept_effects,
    read_effects,
    write_effects,
)
from stickytoken.methods.profile.plan import Round
from stickytoken.methods.statistics import Pull, anchorage, fit_pull, predicted_lifts
from stickytoken.unit_vectors import unit_vectors

DIMENSION = 9


def measured(ids, seed):
    generator = np.random.default_rng(seed)
    count = len(ids)
    nothing = np.zeros((count, 2))
    pull = generator.normal(size=(count, DIMENSION)).astype(np.float16)
    effects = Pull(generator.random(count), pull)
    return Measurements(np.array(ids), nothing, nothing.astype(np.float32), nothing[:, :, None], effects)


def reread(folder, rounds, **options):
    write_effects(ResultFolder(folder), kept_effects(rounds, **options))
    return read_effects(folder)


def test_one_row_per_round_and_token_is_read_as_it_was_written(tmp_path):
    rounds = {Round.SCREEN: measured([3, 5, 9], 1), Round.CONFIRM: measured([5, 9], 2)}
    effects = reread(tmp_path, rounds)
    assert tuple(effects.table.columns) == EFFECTS_COLUMNS
    assert effects.table["round"].to_list() == ["screen"] * 3 + ["confirm"] * 2
    assert effects.table["token_id"].to_list() == [3, 5, 9, 5, 9]
    shuffled = effects._replace(table=effects.table.sample(fraction=1, shuffle=True, seed=3))
    for step, own in rounds.items():
        found = shuffled.of(step)
        assert found.ids.tolist() == own.ids.tolist()
        assert np.array_equal(found.effects.pull, own.effects.pull.astype(np.float32))
        assert found.effects.contraction == pytest.approx(own.effects.contraction, abs=1e-7)


def test_a_round_that_was_not_measured_has_no_rows(tmp_path):
    found = reread(tmp_path, {Round.SCREEN: measured([3, 5], 1)}).of(Round.CONFIRM)
    assert found.ids.tolist() == []
    assert found.effects.contraction.shape == (0,)
    assert found.effects.pull.shape == (0, DIMENSION)


def test_a_pull_takes_two_bytes_per_dimension(tmp_path):
    effects = reread(tmp_path, {Round.SCREEN: measured([3, 5], 1)})
    assert effects.table.schema["pull"] == pl.Array(pl.Float16, DIMENSION)
    assert effects.axes is None
    assert not (tmp_path / AXES_FILE).exists()


def test_pulls_that_take_too_much_are_kept_on_their_principal_axes(tmp_path):
    """Of pulls that lie in a plane, two axes lose nothing but the rounding to float16."""
    screened, confirmed = measured(range(40), 1), measured([5, 9], 2)
    plane = np.random.default_rng(4).normal(size=(2, DIMENSION))
    flat = (screened.effects.pull[:, :2] @ plane).astype(np.float16)
    screened = replace_pull(screened, flat)
    rounds = {Round.SCREEN: screened, Round.CONFIRM: replace_pull(confirmed, flat[[5, 9]])}
    effects = reread(tmp_path, rounds, most_bytes=2 * 2 * 42)
    assert effects.table.schema["pull"] == pl.Array(pl.Float16, 2)
    assert effects.axes @ effects.axes.T == pytest.approx(np.eye(2), abs=1e-6)
    for step, own in rounds.items():
        assert effects.of(step).effects.pull == pytest.approx(own.effects.pull, abs=0.01)


def test_the_principal_axes_are_those_of_the_singular_value_decomposition(tmp_path):
    screened = measured(range(60), 1)
    effects = reread(tmp_path, {Round.SCREEN: screened}, most_bytes=2 * 4 * 60)
    pulls = screened.effects.pull.astype(np.float64)
    left, values, right = np.linalg.svd(pulls, full_matrices=False)
    best = (left[:, :4] * values[:4]) @ right[:4]
    assert effects.of(Round.SCREEN).effects.pull == pytest.approx(best, abs=0.02)
    assert kept_effects({Round.SCREEN: screened}, most_bytes=1).axes.shape == (1, DIMENSION)


def replace_pull(found, pull):
    return replace(found, effects=found.effects._replace(pull=pull))


# Of a run.


@pytest.fixture(scope="module")
def model():
    return profiled.planted_model(2)


@pytest.fixture(scope="module")
def run(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("effects") / "run"
    return profiled.detect_profile(load_encoder(model), folder, insertion="text")


def test_a_run_keeps_the_effects_of_both_rounds(run):
    effects = read_effects(run.path)
    screened, confirmed = effects.of(Round.SCREEN), effects.of(Round.CONFIRM)
    assert screened.ids.tolist() == run.tokens["token_id"].to_list()
    assert set(run.plan.late_reference) <= set(confirmed.ids.tolist()) <= set(screened.ids.tolist())
    assert len(confirmed.ids) == run.result.candidates
    assert set(effects.table["round"]) == {"screen", "confirm"}


def test_the_effects_of_a_token_are_fitted_to_the_carriers_of_its_round(model, run):
    """The first carrier of a prefix and a suffix cell each, written out as texts."""
    found = read_effects(run.path).of(Round.SCREEN)
    places = run.result.screening_carriers
    cells = [(("prefix", "suffix", "random")[p % 3], (8, 4)[(p % 3 + p // 3) % 2]) for p in places]
    if any(placement == "random" for placement, _ in cells):
        assert len(cells) == 3  # such a text depends on the seed; the lifts below do not need it
        return
    before = [run.plan.carriers[place] for place in places]
    after = [
        "!" * copies + text if placement == "prefix" else text + "!" * copies
        for text, (placement, copies) in zip(before, cells, strict=True)
    ]
    vectors = unit_vectors(model.encode(before)), unit_vectors(model.encode(after))
    (contraction,), (pull,) = fit_pull(vectors[0], vectors[1][None])
    row = found.ids.tolist().index(34)
    assert found.effects.contraction[row] == pytest.approx(contraction, abs=1e-5)
    assert found.effects.pull[row] == pytest.approx(pull, abs=1e-3)


def test_lifts_predicted_from_the_effects_agree_with_those_that_were_measured(model, run):
    """On the anchors and carriers of the run itself; of single texts the two differ."""
    encoder = load_encoder(model)
    plan = run.plan
    texts = [anchor.text for anchor in plan.anchors]
    weights = np.array([group.weight for group in plan.groups])
    places = np.array([anchor.group for anchor in plan.anchors])
    rest = [text for k, text in enumerate(plan.carriers) if k not in run.result.screening_carriers]
    panel = AnchorPanel(unit_vectors(encoder.encode(texts)), places, weights[: places.max() + 1])
    corpus = anchorage(panel.against(unit_vectors(encoder.encode(rest)), plan.mean_similarity))
    confirmed = read_effects(run.path).of(Round.CONFIRM)
    predicted = predicted_lifts(confirmed.effects, corpus)
    lifts = dict(run.tokens.select("token_id", "lift").iter_rows())
    stored = np.array([lifts[token_id] for token_id in confirmed.ids.tolist()])
    assert np.corrcoef(predicted, stored)[0, 1] > 0.95
    assert confirmed.ids[predicted.argmax()] == 34
