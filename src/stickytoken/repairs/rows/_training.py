"""Train rows so that contexts with them have given vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from stickytoken.measurement.progress import Progress, ProgressCallback
from stickytoken.repairs.rows._contexts import Context
from stickytoken.repairs.rows._network import Network

# Each context is read so often.
_EPOCHS = 5
# The first step, in standard deviations of the components of the matrix.
_FIRST_STEP = 0.15
_DECAYS = (0.9, 0.99)


@dataclass(frozen=True)
class Lesson:
    """A context, and what its vector should be with each row.

    Attributes:
        context: where the rows stand.
        targets: unit vectors, shape (T, d).
    """

    context: Context
    targets: torch.Tensor


def train(
    network: Network,
    start: torch.Tensor,
    lessons: Sequence[Lesson],
    seed: int,
    progress: ProgressCallback,
) -> torch.Tensor:
    """Move rows by Adam so that the squared distances between vectors and targets shrink.

    Returns:
        Shape (T, D).
    """
    generator = np.random.default_rng([seed])
    batches = _batches(lessons)
    steps = _EPOCHS * len(batches)
    order = [int(place) for _ in range(_EPOCHS) for place in generator.permutation(len(batches))]
    rows = start.detach().clone().requires_grad_(True)
    optimizer = torch.optim.Adam([rows], lr=_FIRST_STEP * float(network.table.std()), betas=_DECAYS)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    with torch.enable_grad():
        for step, place in enumerate(order, 1):
            distance: Any = _distance(network, rows, batches[place])
            optimizer.zero_grad()
            distance.backward()
            optimizer.step()
            schedule.step()
            progress(Progress("rows", step, steps, step))
    return rows.detach()


def _batches(lessons: Sequence[Lesson]) -> list[list[Lesson]]:
    """Group lessons whose inputs are equally long and hold as many copies."""
    found: dict[tuple[int, int], list[Lesson]] = {}
    for lesson in lessons:
        key = (lesson.context.copies, len(lesson.context.filled((0,))))
        found.setdefault(key, []).append(lesson)
    return list(found.values())


def _distance(network: Network, rows: torch.Tensor, lessons: Sequence[Lesson]) -> torch.Tensor:
    """Mean over lessons, sum over rows: so each row moves as if it were trained alone."""
    contents = [lesson.context.filled((0,)) for lesson in lessons for _ in rows]
    places = torch.stack([lesson.context.places(row) for lesson in lessons for row in range(len(rows))])
    targets = torch.cat([lesson.targets for lesson in lessons])
    found = network.vectors(contents, rows, places)
    return ((found - targets) ** 2).sum() / len(lessons)
