"""What a message is said to name in these tests."""

import pytest

from naming import says


@pytest.mark.parametrize(
    ("text", "values", "named"),
    [
        ("seed is -1: pass 0 or more", ("seed", -1, 0), True),
        ("pass 0 or more, not -1, as the seed", ("seed", -1, 0), True),
        ("30 of 95 tokens", (3,), False),
        ("0.3 of the tokens", (3,), False),
        ("3.5 tokens", (3,), False),
        ("3 tokens.", (3,), True),
        ("the seeds", ("seed",), False),
        ("no file 'a.txt'", ("'a.txt'",), True),
        ("first line: 3\nsecond line: seed", ("seed", 3), False),
    ],
)
def test_a_line_names_whole_values_in_any_order(text, values, named):
    assert says(text, *values) is named
