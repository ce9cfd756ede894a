"""How a finished run is printed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stickytoken.cli.output import print_table, say, tell

if TYPE_CHECKING:
    import polars as pl

    from stickytoken.runs import Run

_COLUMNS = {
    "token_id": "id",
    "token": "token",
    "category": "category",
    "sticky_score": "sticky score",
    "validation_rate": "validation rate",
    "lift": "lift",
    "verdict": "verdict",
}
# Below this many candidates the quartiles of their rates say little.
_FEW_CANDIDATES = 20
_MUCH_DEVIATION = 0.05


def print_rows(title: str, rows: pl.DataFrame) -> None:
    """Print rows of tokens.parquet."""
    print_table(title, tuple(_COLUMNS.values()), rows.select(*_COLUMNS).iter_rows())


def print_run(run: Run) -> None:
    """Print what was found, on what it rests, and where the run lies."""
    record, result, plan = run.record, run.result, run.plan
    if run.sticky.is_empty():
        say(f"No sticky tokens among {result.candidates} validated candidates.")
    else:
        print_rows(f"Sticky tokens of {record.model.name}", run.sticky)
    scope = "all" if result.scored == record.model.available else "a selection of"
    say(
        f"method {record.method}, {scope} {result.scored:,} of {record.model.available:,} available tokens; "
        f"mean similarity u = {plan.mean_similarity:.4f}"
    )
    say(
        f"{result.candidates} candidates reach a score of {result.score_threshold:.2f}; "
        f"a rate above {result.rate_threshold:.4f} is sticky: {result.sticky}"
    )
    say(f"{result.sequences:,} texts in {result.seconds:,.0f} s; run: {run.path}")
    for note in _notes(run):
        tell(f"note: {note}")


def _notes(run: Run) -> list[str]:
    notes = []
    if run.result.candidates < _FEW_CANDIDATES:
        notes.append(
            f"the verdict is an outlier rule, and {run.result.candidates} candidates are few for it: "
            "look at more tokens before you rely on it"
        )
    if run.result.rate_threshold >= 1:
        notes.append(
            "no rate can exceed the threshold: the candidates' rates are too spread for the outlier rule to "
            "single one out"
        )
    if run.plan.left_out:
        notes.append(
            f"{run.plan.left_out} sentences or pairs were left out: with the copies in, "
            "the model would have cut them off"
        )
    if run.plan.similarity_deviation > _MUCH_DEVIATION:
        notes.append(
            f"similarities in the pair file differ by up to {run.plan.similarity_deviation:.3f} "
            "from this model's: they may come from another model"
        )
    return notes
