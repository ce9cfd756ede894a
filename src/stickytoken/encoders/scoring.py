"""Score a model on a task: encode the texts, each in its role, and compute the scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from stickytoken.data.metrics import Outcomes, Task
from stickytoken.encoders.fitting import fit_texts
from stickytoken.encoders.protocol import Encoder, WordEncoder, similarity_of
from stickytoken.encoders.roles import AnyEncoder, Role, in_role
from stickytoken.insertion import Insertion


def encoders_of(encoder: AnyEncoder, task: Task) -> dict[str, AnyEncoder]:
    """Return the encoders of a task's texts, keyed by the same names as ``task.texts``."""
    # Only a task with queries tells roles apart, and names its texts `query` and `document`.
    return {name: in_role(encoder, Role(name) if task.has_queries else None) for name in task.texts}


def truncate_texts(encoder: WordEncoder, task: Task) -> tuple[dict[str, list[str]], int]:
    """Truncate the texts of a task where the model truncates them.

    Returns:
        The texts, keyed as in the task, and how many different texts were truncated.

    Raises:
        InputError: a prompt leaves no room for a text.
    """
    encoders = encoders_of(encoder, task)
    texts = {}
    truncated: set[str] = set()  # a text may occur several times, such as in training and in test
    for name, role_texts in task.texts.items():
        # No copies are inserted, so no room is left for them.
        fitted_texts = fit_texts(encoders[name], role_texts, room=0, insertion=Insertion.TEXT, name=task.name)
        texts[name] = [fitted.text for fitted in fitted_texts]
        truncated.update(text for text, fitted in zip(role_texts, fitted_texts, strict=True) if fitted.cut)
    return texts, len(truncated)


def score_task(
    task: Task, encoders: Mapping[str, Encoder], texts: Mapping[str, Sequence[str]], seed: int
) -> tuple[dict[str, float], Outcomes]:
    """Encode the texts of a task and score their vectors.

    Args:
        task: the task.
        encoders: the model in its roles, from `encoders_of`.
        texts: the texts, keyed as in the task, such as from `truncate_texts`.
        seed: seed for random steps, such as the division into folds.

    Returns:
        The scores from 0 to 1, keyed by metric, with NaN for an undefined score; and the outcomes from which
        the scores are computed, shape (units, columns).

    Raises:
        EncodingError: the model cannot encode a text.
    """
    vectors = {name: encoders[name].encode(role_texts) for name, role_texts in texts.items()}
    similarity = similarity_of(next(iter(encoders.values())))  # the same in all roles
    outcomes = task.outcomes(vectors, seed, similarity)
    # `Task.scores` scores several conditions at a time; here, there is only one.
    one_condition = outcomes[np.newaxis]
    scores = {metric: float(task.scores(metric, one_condition)[0]) for metric in task.metrics}
    return scores, outcomes
