"""What a round measured: chosen, combined, kept on disk, and completed for the other tokens."""

import numpy as np
import pytest
from sklearn.linear_model import RidgeCV

from stickytoken.measurement.store import ResultFolder
from stickytoken.methods.profile.estimates import (
    AXES_FILE,
    EFFECTS_COLUMNS,
    EFFECTS_FILE,
    Measurements,
    calibrate,
    read_effects,
    together,
    write_effects,
)
from stickytoken.methods.profile.plan import Round
from stickytoken.methods.statistics import Pull

CARRIERS, GROUPS, DIMENSION = 3, 2, 5


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
    best = (left[:, :3] * values[:3]) @ right[:3]
    assert read_effects(tmp_path).pull == pytest.approx(best, abs=0.02)
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
