"""Rows of a round become arrays: of the same numbers, by ascending id."""

import numpy as np
import polars as pl
import pytest

from stickytoken.measurement.store import ResultFolder
from stickytoken.methods.profile.estimates import Measurements, measurements, together
from stickytoken.methods.statistics import Pull

CARRIERS, GROUPS, DIMENSION = 3, 2, 5


def drawn(count=40, seed=0):
    """Rows as a stage returns them, in any order; one group has no pair in one carrier."""
    generator = np.random.default_rng(seed)
    rows = []
    for token_id in generator.permutation(count):
        groups = generator.random((CARRIERS, GROUPS)).astype(np.float32)
        groups[1, 0] = np.nan
        rows.append(
            {
                "token_id": int(token_id),
                "lifts": generator.random(CARRIERS).tolist(),
                "rising": generator.random(CARRIERS).astype(np.float32),
                "groups": groups.ravel(),
                "contraction": float(generator.random()),
                "pull": generator.normal(size=DIMENSION).astype(np.float16),
            }
        )
    return rows


@pytest.mark.parametrize("stored", [False, True], ids=["in memory", "in a file"])
def test_rows_become_arrays_by_ascending_id_with_what_is_missing_kept_missing(tmp_path, stored):
    rows = drawn()
    frame = pl.DataFrame(rows, infer_schema_length=None)
    if stored:
        ResultFolder(tmp_path).write_table("rows.parquet", frame)
        frame = pl.read_parquet(tmp_path / "rows.parquet")
    found = measurements(frame, CARRIERS)
    ordered = sorted(rows, key=lambda row: row["token_id"])
    assert found.ids.tolist() == list(range(40))
    assert found.ids.dtype == np.int64
    for name in ("lifts", "rising"):
        np.testing.assert_array_equal(getattr(found, name), np.array([row[name] for row in ordered]))
    expected = np.stack([row["groups"].reshape(CARRIERS, GROUPS) for row in ordered])
    np.testing.assert_array_equal(found.groups, expected)
    assert np.isnan(found.groups[:, 1, 0]).all()
    np.testing.assert_array_equal(found.effects.contraction, [row["contraction"] for row in ordered])
    np.testing.assert_array_equal(found.effects.pull, np.stack([row["pull"] for row in ordered]))


def test_one_carrier_and_one_token_keep_their_axes():
    row = {"token_id": 3, "lifts": [0.5], "rising": [1.0], "groups": [0.1, 0.2], "contraction": 0.3}
    found = measurements(pl.DataFrame([row | {"pull": [1.0, 2.0]}]), 1)
    assert (found.lifts.shape, found.rising.shape) == ((1, 1), (1, 1))
    assert (found.groups.shape, found.effects.pull.shape) == ((1, 1, 2), (1, 2))


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
    )


def row_of(measured, token_id):
    row = measured.ids.tolist().index(token_id)
    effects = measured.effects
    return (
        measured.lifts[row].tolist(),
        measured.rising[row].tolist(),
        np.nan_to_num(measured.groups[row], nan=-9).tolist(),
        float(effects.contraction[row]),
        effects.pull[row].tolist(),
    )


def test_two_rounds_on_the_same_carriers_become_one_by_ascending_id():
    first, second = sample([2, 7, 9], 1), sample([1, 8], 2)
    found = together(first, second)
    assert found.ids.tolist() == [1, 2, 7, 8, 9]
    for own in (first, second):
        for token_id in own.ids.tolist():
            assert row_of(found, token_id) == row_of(own, token_id)


def test_some_tokens_and_carriers_are_kept_and_the_effects_are_those_of_all_carriers():
    whole = sample([2, 7, 9], 3)
    found = whole.chosen(np.array([0, 2]), [1, 3])
    assert found.ids.tolist() == [2, 9]
    for row, own in enumerate((0, 2)):
        assert found.lifts[row].tolist() == whole.lifts[own, [1, 3]].tolist()
        assert found.rising[row].tolist() == whole.rising[own, [1, 3]].tolist()
        assert np.array_equal(found.groups[row], whole.groups[own][[1, 3]], equal_nan=True)
        assert found.effects.contraction[row] == whole.effects.contraction[own]
        assert np.array_equal(found.effects.pull[row], whole.effects.pull[own])


def test_lifts_on_a_group_leave_out_the_carriers_that_have_no_pair_with_it():
    whole = sample([2, 7, 9], 4)
    assert np.array_equal(whole.on_group(0), whole.groups[:, :, 0].astype(np.float64))
    assert np.array_equal(whole.on_group(1), whole.groups[:, [0, 1, 3], 1].astype(np.float64))
    means = whole.group_means()
    for row in range(3):
        assert means[row, 0] == pytest.approx(sum(map(float, whole.groups[row, :, 0])) / 4)
        assert means[row, 1] == pytest.approx(sum(map(float, whole.groups[row, [0, 1, 3], 1])) / 3)


def test_rows_of_token_ids_are_their_places():
    whole = sample([2, 7, 9], 5)
    assert whole.rows(np.array([9, 2, 7, 9])).tolist() == [2, 0, 1, 2]
