"""Write docs/models/<model>.md: what a run of a model found, and what it says of the published tokens."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from bench import ROOT, commands
from stickytoken.cli.console import progress_bar
from stickytoken.comparisons.published import beside_run
from stickytoken.detection import Run, judge, open_run
from stickytoken.detection.run import encoder_for
from stickytoken.errors import InputError
from stickytoken.methods import wording
from stickytoken.methods.profile.records import ProfilePlanRecord, ProfileResultRecord
from stickytoken.validation import markdown, markdown_table

PAGES = ROOT / "docs" / "models"
SHOWN, LISTED = 10, 40
# Largest p-value at which the lifts of published and random tokens count as different.
SIGNIFICANT = 0.05


def table(tokens: pl.DataFrame) -> str:
    """Return tokens with both measures as a Markdown table."""
    rows = []
    for row in tokens.iter_rows(named=True):
        lift_interval = wording.sd_interval(row["lift_sd_low"], row["lift_sd_high"])
        lift = f"{wording.in_sd(row['lift_sd'])} ({lift_interval})"
        erased_interval = wording.percent_interval(row["erased_low"], row["erased_high"])
        erased = f"{wording.percent(row['erased'])} ({erased_interval})"
        rows.append([markdown(repr(row["token"])), erased, lift, row["verdict"]])
    return markdown_table(("token", "erased", "lift", "verdict"), rows)


def published_section(run: Run, name: str) -> str:
    """Return a paragraph on the published tokens of a model and their lifts in a run."""
    try:
        found = beside_run(run, name)
    except InputError:
        return f"Chen et al. (ACL 2025) published no results for {name}."
    named = ", ".join(
        f"{markdown(repr(row['token']))} {row['percentile']:.0%}"
        for row in found.tokens.drop_nulls("percentile").sort("percentile", descending=True).to_dicts()
    )
    published = len(found.tokens)
    examined = published - found.unknown - found.unexamined
    which = "all" if examined == published else f"{examined} of the"
    sentences = [
        f"Chen et al. (ACL 2025) published {published} sticky tokens of {name}. The percentage after each "
        f"published token is the share of the examined tokens that have a smaller or equal lift: {named}. "
        f"The run examined {which} {published} published tokens and flagged {found.sticky or 'none'} of them "
        "as sticky."
    ]
    if found.chance is not None:
        relation = "differ" if found.chance <= SIGNIFICANT else "do not differ"
        sentences.append(
            f"The lifts of the published tokens {relation} significantly from the lifts of random tokens "
            f"(Kolmogorov-Smirnov test, p = {found.chance:.2g})."
        )
    return " ".join(sentences)


def judged_section(run: Run, name: str, corpora: list[str]) -> str:
    """Judge the tokens on other corpora, and tabulate which verdicts change."""
    if not corpora:
        return f"The tokens of {name} were judged only on the texts of the run, not on other corpora."
    encoder = encoder_for(None, run, "the page")
    rows = []
    for source in corpora:
        with progress_bar() as progress:
            found = judge(run, source, encoder=encoder, progress=progress)
        topical = len(found.flagged) - len(found.sticky)
        strongest = ", ".join(markdown(repr(token)) for token in found.flagged["token"].head(5)) or "-"
        of_run = run.tokens.select("token_id", "verdict")
        both = found.tokens.drop_nulls("verdict").join(of_run, on="token_id", suffix="_of_run")
        changed = both.filter((pl.col("verdict") == "sticky") != (pl.col("verdict_of_run") == "sticky"))
        names = ", ".join(markdown(repr(token)) for token in changed["token"].head(5)) or "-"
        counts = (
            f"{found.texts:,}",
            str(len(found.sticky)),
            str(topical),
            strongest,
            str(len(changed)),
            names,
        )
        rows.append([Path(source).stem, *counts])
    columns = (
        "corpus",
        "texts",
        "sticky",
        "topical",
        "the strongest",
        "other verdict than in the run",
        "such as",
    )
    return markdown_table(columns, rows)


def how_read(run: Run, plan: ProfilePlanRecord) -> list[str]:
    """What a page says about how the model was read, and about how much of it."""
    loading = run.record.model.loading
    said = []
    if loading is not None and loading.endpoint is not None:
        said.append(
            f"The model was measured through an endpoint. From one call to the next, the cosine of two texts "
            f"varies with a standard deviation of {plan.call_noise:.1e}. The intervals take this noise into "
            f"account."
        )
    if loading is not None and loading.layer_choice is not None:
        said.append(
            f"The model is a language model that was not trained for embeddings. Text vectors are read from "
            f"layer {loading.prompting.layer} (-1 is the last layer), with the prompt "
            f"`{loading.prompting.prompt}`."
        )
    if run.record.tokens < run.available:
        said.append(f"The run examined {run.record.tokens:,} tokens, drawn at random.")
    return [" ".join(said)] if said else []


def main(run: Path, corpus: list[str] | None = None, name: str | None = None) -> None:
    """RUN is a finished run of the profile method, best over the whole vocabulary. Each --corpus is judged.

    --name is that of the model, where the run does not have a fitting one.
    """
    opened = open_run(run)
    plan, result = opened.plan_of(ProfilePlanRecord), opened.result_of(ProfileResultRecord)
    tokens = opened.tokens.drop_nulls("lift_sd")
    named = pl.col("token").str.contains(r"^[\[<].+[\]>]$")  # the paper counts [CLS] as no special token
    special = tokens.filter((pl.col("category") == "OK_SPECIAL") | named).sort("erased", descending=True)
    title = name or Path(opened.model_name).name
    sticky = [
        [markdown(repr(row["token"])), row["severity"], markdown(row["reason"])]
        for row in opened.sticky.head(LISTED).to_dicts()
    ]
    found = wording.counted(result.sticky, "sticky token") if result.sticky else "no sticky tokens"
    precision = opened.settings.values.get("screen_precision")
    screened = f", screened in {precision}" if precision else ""
    parts = [
        f"# {title}",
        f"The model was measured on {opened.record.started[:10]}, in run {opened.record.identity[:12]}.",
        f"The run found {found} among {opened.record.tokens:,} examined tokens of {title}.",
        f"The vocabulary has {opened.record.model.vocabulary:,} entries, {opened.available:,} of which can "
        f"appear in text. The mean similarity u, which is the mean cosine over pairs of vocabulary entries, "
        f"is {plan.mean_similarity:.5f}. Copies of an ordinary token change the mean cosine between "
        f"unrelated texts by {result.ordinary_lift:.4f}. The standard deviation of the cosines between texts "
        f"is {plan.similarity_spread:.4f}. The run encoded {result.sequences:,} texts "
        f"({result.sequences / len(opened.tokens):.1f} per examined token)"
        f"{f' and found {result.topical} topical tokens' if result.topical else ''}.",
        *how_read(opened, plan),
        *(["## Sticky tokens", markdown_table(("token", "severity", "reason"), sticky)] if sticky else []),
        *(
            [f"The table leaves out {result.sticky - LISTED} sticky tokens."]
            if result.sticky > LISTED
            else []
        ),
        f"## The {SHOWN} tokens that erase most",
        "*Erased* compares a token with an ordinary token: if *erased* is 50%, copies of the token leave "
        "half as much of a text's meaning as copies of an ordinary token do. *Lift* says how far copies of a "
        "token raise the similarity between unrelated texts, compared with copies of an ordinary token. Lift "
        "is given in standard deviations (SD) of the similarities between texts. Each value is followed by "
        "its interval, in parentheses.",
        table(tokens.sort("erased", descending=True).head(SHOWN)),
        f"## The {SHOWN} tokens that lift most",
        table(tokens.sort("lift_sd", descending=True).head(SHOWN)),
        "## Special tokens that text can contain",
        table(special.head(SHOWN)) if len(special) else "None.",
        *(
            [
                f"The table leaves out {len(special) - SHOWN} special tokens, which erase less than the "
                "special tokens in the table."
            ]
            if len(special) > SHOWN
            else []
        ),
        "## The published tokens",
        published_section(opened, title),
        "## On other corpora",
        judged_section(opened, title, corpus or []),
        f"`benchmarks/model_card.py` wrote this page from a run with the default settings{screened}.",
    ]
    PAGES.mkdir(exist_ok=True)
    path = PAGES / f"{title}.md"
    path.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    print(path)


if __name__ == "__main__":
    commands(__doc__, main)
