"""What a run of the method profile is summed up in."""

from __future__ import annotations

from stickytoken.detection.run import Run
from stickytoken.methods.profile.record import ProfilePlanRecord, ProfileResultRecord
from stickytoken.visible_text import visible

_GRADES = ("severe", "serious", "mild", "negligible")


def profile_lines(run: Run) -> list[str]:
    """Whether this model has a problem, then what that rests on."""
    record, result, plan = run.record, run.result_of(ProfileResultRecord), run.plan_of(ProfilePlanRecord)
    whole = result.looked_at == record.model.available
    scope = "all" if whole else "a selection of"
    # Random tokens are measured beside a selection; the texts they take are not texts of its tokens.
    spent = f"{result.texts_per_token:g} texts a token" if whole else "random tokens measured beside them"
    lines = [
        profile_headline(run),
        f"method profile, {scope} {result.looked_at:,} of {record.model.available:,} available tokens; "
        f"{spent}, {result.candidates} measured most closely",
        f"an ordinary token lifts by {result.ordinary_lift:.4f}, give or take {result.ordinary_spread:.4f}; "
        f"similarities spread by {plan.similarity_spread:.4f}; "
        f"mean similarity u = {plan.mean_similarity:.4f}",
    ]
    if screened := record.settings.get("screen_precision"):
        lines.append(
            f"screened in {screened}; numbers of the {result.candidates} tokens measured most closely are in "
            "the model's own precision (column precision of tokens.parquet)"
        )
    if result.topical:
        lift = "token lifts" if result.topical == 1 else "tokens lift"
        lines.append(
            f"{result.topical} further {lift} only part of the anchors, by meaning: "
            "--verdict topical of `stickytoken show` lists them"
        )
    return lines


def profile_headline(run: Run) -> str:
    """One sentence: whether this model has a problem, and how bad."""
    name = run.record.model.name
    if run.sticky.is_empty():
        return f"{name} has no sticky tokens among those looked at."
    worst = run.sticky.row(0, named=True)
    counts = run.sticky["severity"].value_counts()
    found = dict(zip(counts["severity"].to_list(), counts["count"].to_list(), strict=True))
    grades = ", ".join(f"{found[grade]} {grade}" for grade in _GRADES if grade in found)
    result, plan = run.result_of(ProfileResultRecord), run.plan_of(ProfilePlanRecord)
    moved = (worst["lift"] - result.ordinary_lift) / plan.similarity_spread
    tokens = "sticky token" if len(run.sticky) == 1 else "sticky tokens"
    return (
        f"{name} has {len(run.sticky)} {tokens} ({grades}); the worst, {visible(repr(worst['token']))}, "
        f"moves unrelated texts together by {moved:.1f} standard deviations of the model's similarities "
        "more than an ordinary token does."
    )


def profile_notes(run: Run) -> list[str]:
    """What a reader should know before relying on it."""
    result, plan = run.result_of(ProfileResultRecord), run.plan_of(ProfilePlanRecord)
    notes = []
    if not result.empirical_null:
        notes.append(
            "the vocabulary is too small to tell what is ordinary: verdicts rest on the intervals alone, "
            "without control of false discoveries"
        )
    if plan.left_out:
        notes.append(f"{plan.left_out} sentences were left out: the model does not read them whole")
    return notes
