"""What to do about the verdicts of a run: commands, the most useful first."""

from __future__ import annotations

from shlex import quote
from typing import NamedTuple

from stickytoken.detection.run import Run


class NextStep(NamedTuple):
    """Something to do after a detection.

    Attributes:
        purpose: what it is good for; reads on after "to", without a full stop.
        command: the command line; names in capitals are for the user to fill in.
    """

    purpose: str
    command: str


def next_steps(run: Run) -> tuple[NextStep, ...]:
    """Return what a user of the model can do about what the run found.

    Rows of a vocabulary can be repaired only where sentence-transformers loads the model by itself; behind
    an endpoint or a prompt, documents are what can be cleaned.
    """
    folder = quote(str(run.path))
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
    scan = f"stickytoken scan {folder} DOCUMENTS --effect"
    clean = NextStep("take the copies out of those documents", f"stickytoken clean {folder} DOCUMENTS")
    found = "find the documents that contain copies"
    loading = run.record.model.loading
    if loading is not None and (loading.endpoint is not None or loading.layer is not None):
        return NextStep(found, scan), clean
    return (
        NextStep(
            "write a repaired, verified copy of the model, then encode your documents with it",
            f"stickytoken repair {folder} --out FOLDER",
        ),
        NextStep(f"{found}, if the model has to stay", scan),
        clean,
        NextStep("check the model that you ship, in CI", "stickytoken check FOLDER"),
    )
