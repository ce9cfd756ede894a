"""Inputs that show what goes through a model's layers."""

from __future__ import annotations

from collections.abc import Sequence

_ENTRIES = 512
_IN_A_ROW = 8
_COPIES = 8


def calibration_inputs(entries: Sequence[int], special: Sequence[int]) -> list[tuple[int, ...]]:
    """Rows of different vocabulary entries, alone and with copies of one entry behind.

    The entries are spread over the vocabulary; special ones, which move a model most, are all there.

    Args:
        entries: ids that the model reads.
        special: those with a role of their own.

    Returns:
        Lists of content ids; a function of the arguments alone.
    """
    known = set(entries)
    step = max(1, len(entries) // _ENTRIES)
    spread = [entries[place] for place in range(0, len(entries), step)]
    rows = [tuple(spread[start : start + _IN_A_ROW]) for start in range(0, len(spread), _IN_A_ROW)]
    repeated = [*(row[0] for row in rows), *(entry for entry in special if entry in known)]
    copies = [(*rows[place % len(rows)], *(entry,) * _COPIES) for place, entry in enumerate(repeated)]
    return [*rows, *copies]
