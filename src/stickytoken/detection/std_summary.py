"""What a run of the method std is summed up in."""

from __future__ import annotations

from stickytoken.detection.run import Run
from stickytoken.methods.std.record import StdPlanRecord, StdResultRecord

# Below this many candidates the quartiles of their rates say little.
_FEW_CANDIDATES = 20
_MUCH_DEVIATION = 0.05


def std_lines(run: Run) -> list[str]:
    """The finding first, then what it rests on."""
    record, result, plan = run.record, run.result_of(StdResultRecord), run.plan_of(StdPlanRecord)
    scope = "all" if result.scored == record.model.available else "a selection of"
    return [
        std_headline(run),
        f"method std, {scope} {result.scored:,} of {record.model.available:,} available tokens; "
        f"mean similarity u = {plan.mean_similarity:.4f}",
        f"{result.candidates} candidates reach a score of {result.score_threshold:.2f}; "
        f"a rate above {result.rate_threshold:.4f} is sticky: {result.sticky}",
    ]


def std_headline(run: Run) -> str:
    """One sentence: what was found."""
    result = run.result_of(StdResultRecord)
    found = f"{result.sticky} sticky tokens" if result.sticky else "No sticky tokens"
    return f"{found} among {result.candidates} validated candidates."


def std_notes(run: Run) -> list[str]:
    """What a reader should know before relying on it."""
    result, plan = run.result_of(StdResultRecord), run.plan_of(StdPlanRecord)
    notes = []
    if result.candidates < _FEW_CANDIDATES:
        notes.append(
            f"the verdict is an outlier rule, and {result.candidates} candidates are few for it: "
            "look at more tokens before you rely on it"
        )
    if result.rate_threshold >= 1:
        notes.append(
            "no rate can exceed the threshold: the candidates' rates are too spread for the outlier rule to "
            "single one out"
        )
    if plan.left_out:
        notes.append(
            f"{plan.left_out} sentences or pairs were left out: with the copies in, "
            "the model would have cut them off"
        )
    if plan.similarity_deviation > _MUCH_DEVIATION:
        notes.append(
            f"similarities in the pair file differ by up to {plan.similarity_deviation:.3f} "
            "from this model's: they may come from another model"
        )
    return notes
