"""Rows of a round become arrays: of the same numbers, by ascending id."""

import numpy as np
import polars as pl

from stickytoken.methods.profile._results import measurements


def test_rows_become_arrays_by_ascending_id_with_what_is_missing_kept_missing():
    generator = np.random.default_rng(0)
    rows = [
        {
            "token_id": int(token_id),
            "lifts": generator.random(3).tolist(),
            "sentence_lifts": generator.random(3).tolist(),
            "groups": [*generator.random(4).tolist(), float("nan")],
            "rising": float(generator.random()),
            "slopes": [float("nan"), *generator.random(2).tolist()],
            "intercept": float("nan"),
            "alone": float(generator.random()),
        }
        for token_id in generator.permutation(40)
    ]
    found = measurements(pl.DataFrame(rows))
    ordered = sorted(rows, key=lambda row: row["token_id"])
    assert found.ids.tolist() == list(range(40))
    for column in ("lifts", "sentence_lifts", "groups", "rising", "slopes", "intercept", "alone"):
        expected = np.array([row[column] for row in ordered])
        np.testing.assert_array_equal(getattr(found, column), expected, strict=True)
    without = [{key: value for key, value in row.items() if key != "alone"} for row in rows]
    assert measurements(pl.DataFrame(without)).alone is None
