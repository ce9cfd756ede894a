"""effects.parquet: what is written of every round, and what is read of it."""

import numpy as np
import pytest

from stickytoken.measurement.store import ResultFolder
from stickytoken.methods.profile.estimates import (
    AXES_FILE,
    EFFECTS_COLUMNS,
    EFFECTS_FILE,
    Measurements,
    read_effects,
    write_effects,
)
from stickytoken.methods.profile.plan import Round
from stickytoken.methods.statistics import Pull

DIMENSION = 9


def measured(ids, seed):
    generator = np.random.default_rng(seed)
    count = len(ids)
    nothing = np.zeros((count, 2))
    pull = generator.normal(size=(count, DIMENSION)).astype(np.float16)
    effects = Pull(generator.random(count), pull)
    return Measurements(
        np.array(ids), nothing, nothing.astype(np.float32), nothing[:, :, None], effects, nothing
    )


def test_one_row_per_round_and_token_is_read_as_it_was_written(tmp_path):
    rounds = {Round.SCREEN: measured([3, 5, 9], 1), Round.CONFIRM: measured([5, 9], 2)}
    folder = ResultFolder(tmp_path)
    write_effects(folder, rounds)
    table = folder.read_table(EFFECTS_FILE)
    assert tuple(table.columns) == EFFECTS_COLUMNS
    assert table["round"].to_list() == ["screen"] * 3 + ["confirm"] * 2
    assert table["token_id"].to_list() == [3, 5, 9, 5, 9]
    folder.write_table(EFFECTS_FILE, table.sample(fraction=1, shuffle=True, seed=3))
    for step, own in rounds.items():
        found = read_effects(tmp_path, step=step)
        assert found.ids.tolist() == own.ids.tolist()
        assert np.array_equal(found.pull, own.effects.pull.astype(np.float32))
        assert found.contraction == pytest.approx(own.effects.contraction, abs=1e-7)


def test_the_principal_axes_are_those_of_the_singular_value_decomposition(tmp_path):
    screened, folder = measured(range(60), 1), ResultFolder(tmp_path)
    write_effects(folder, {Round.SCREEN: screened}, most_bytes=2 * 4 * 60)
    pulls = screened.effects.pull.astype(np.float64)
    left, values, right = np.linalg.svd(pulls, full_matrices=False)
    best = (left[:, :4] * values[:4]) @ right[:4]
    assert read_effects(tmp_path).pull == pytest.approx(best, abs=0.02)
    write_effects(folder, {Round.SCREEN: screened}, most_bytes=1)
    assert folder.read_table(AXES_FILE)["axis"].to_numpy().shape == (1, DIMENSION)
