"""What to do about the verdicts of a run: commands, the most useful first."""

from __future__ import annotations

from shlex import quote
from typing import NamedTuple

from stickytoken.detection.run import Run


class NextStep(NamedTuple):
    """Something to do after a detection.

    Attributes:
        purpose: what it is good for; part of a sentence, without a full stop.
        command: the command line; names in capitals are for the user to fill in.
    """

    purpose: str
    command: str


def next_steps(run: Run) -> tuple[NextStep, ...]:
    """Return what a user of the model can do about what the run found.

    Rows of a vocabulary can be repaired only where sentence-transformers loads the model by itself; behind
    an endpoint or a prompt, documents are what can be cleaned.
    """
    folder, model = quote(str(run.path)), quote(run.model_name)
    if run.sticky.is_empty():
        return (
            NextStep(
                "see what tokens do among your own documents",
                f"stickytoken judge {folder} --sentences DOCUMENTS",
            ),
            NextStep(
                "find documents that repeat a word or contain special tokens",
                f"stickytoken scan {folder} DOCUMENTS",
            ),
        )
    loading = run.record.model.loading
    steps = [
        NextStep(
            "find the documents that contain copies, and what these do",
            f"stickytoken scan {folder} DOCUMENTS --effect",
        ),
        NextStep("take copies out of what you index", f"stickytoken clean {folder} DOCUMENTS"),
    ]
    if loading is None or (loading.endpoint is None and loading.layer is None):
        repair = f"stickytoken repair {folder} --out FOLDER"
        steps.insert(0, NextStep("write a repaired copy of the model, and verify it", repair))
        steps.append(NextStep("keep such models from shipping, in CI", f"stickytoken check {model}"))
    return tuple(steps)
