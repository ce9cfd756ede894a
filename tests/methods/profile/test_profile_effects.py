"""effects.parquet: what is written of every round, and what is read of it."""

import numpy as np
import pytest

from stickytoken.measurement.store import ResultFolder
from stickytoken.methods.profile.estimates import (
    EFFECTS_COLUMNS,
    Measurements,
    kept_effects,
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
        assert np.array_equal(found.pull, own.effects.pull.astype(np.float32))
        assert found.contraction == pytest.approx(own.effects.contraction, abs=1e-7)


def test_the_principal_axes_are_those_of_the_singular_value_decomposition(tmp_path):
    screened = measured(range(60), 1)
    effects = reread(tmp_path, {Round.SCREEN: screened}, most_bytes=2 * 4 * 60)
    pulls = screened.effects.pull.astype(np.float64)
    left, values, right = np.linalg.svd(pulls, full_matrices=False)
    best = (left[:, :4] * values[:4]) @ right[:4]
    assert effects.of(Round.SCREEN).pull == pytest.approx(best, abs=0.02)
    assert kept_effects({Round.SCREEN: screened}, most_bytes=1).axes.shape == (1, DIMENSION)
