"""Write docs/models/MODEL.md, a page on what a run of a model found.

The page lists the sticky tokens, the strongest tokens and the special tokens of the run, compares the run
with the published sticky tokens of the model, and says which verdicts change on other corpora. The script
needs a finished run of the default method, at best over the whole vocabulary. A page without other corpora
takes seconds. With other corpora, the model is loaded, and each corpus takes minutes:

    python benchmarks/model_card.py runs/all-MiniLM-L6-v2 --corpus corpus.jsonl
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl

from bench import ROOT, commands, record_as
from stickytoken.detection import Run, open_run
from stickytoken.errors import InputError
from stickytoken.methods.measures import MEASURES
from stickytoken.methods.profile.records import ProfilePlanRecord, ProfileResultRecord
from stickytoken.published import beside_run
from stickytoken.validation import markdown, markdown_table
from stickytoken.words import counted, percent

PAGES = ROOT / "docs" / "models"
# Maximum number of rows in the table of sticky tokens, and in the other tables of tokens.
MOST_STICKY_ROWS = 40
MOST_ROWS = 10
# Explains the columns *erased* and *push* of all tables.
EXPLANATION = (
    "*Erased* compares a token with an ordinary token: if *erased* is 50%, copies of the token leave half as "
    "much of a text's meaning as copies of an ordinary token do. *Push* says in how many times as many wrong "
    "results a document with eight copies is; it is measured for suspicious and random tokens only. Each "
    "value is followed by its interval, in parentheses."
)


def token_table(tokens: pl.DataFrame) -> str:
    """Return a Markdown table of tokens, with their erased share, push and verdict."""
    rows = [
        [markdown(repr(row["token"])), *measures(row), row["verdict"]] for row in tokens.iter_rows(named=True)
    ]
    return markdown_table(("token", "erased", "push", "verdict"), rows)


def measures(row: dict[str, Any]) -> list[str]:
    """Return the erased share and the push of a token with their intervals, from its row of the table."""
    texts = []
    for measure in MEASURES:
        text = measure.text(row[measure.key])
        if text:
            text += f" ({measure.interval(row[measure.low.key], row[measure.high.key])})"
        texts.append(text)
    return texts


def introduction(run: Run, title: str) -> list[str]:
    """Return paragraphs on when and how the model was measured, and on the numbers of a run."""
    plan = record_as(run.plan, ProfilePlanRecord)
    result = record_as(run.result, ProfileResultRecord)
    sticky = counted(result.sticky, "sticky token") if result.sticky else "no sticky tokens"
    texts_per_token = result.sequences / len(run.tokens)
    return [
        f"The model was measured on {run.record.started[:10]}, in run {run.record.identity[:12]}.",
        f"The run found {sticky} among {run.record.tokens:,} examined tokens of {title}.",
        f"The vocabulary has {run.record.model.vocabulary:,} entries, {run.available:,} of which can "
        f"appear in text. The run encoded {result.sequences:,} texts ({texts_per_token:.1f} per examined "
        "token).",
        " ".join(run.description.lines),
        *reading_paragraph(run, plan),
    ]


def reading_paragraph(run: Run, plan: ProfilePlanRecord) -> list[str]:
    """Return a paragraph on how the model was read, and on a sample if the run examined one.

    The list has one paragraph, or none if there is nothing to say about the run.
    """
    loading = run.record.model.loading
    sentences = []
    if loading is not None and loading.endpoint is not None:
        sentences.append(
            f"The model was measured through an endpoint. From one call to the next, the cosine of two texts "
            f"varies with a standard deviation of {plan.call_noise:.1e}."
        )
    if loading is not None and loading.layer_choice is not None:
        sentences.append(
            f"The model is a language model that was not trained for embeddings. Text vectors are read from "
            f"layer {loading.prompting.layer} (-1 is the last layer), with the prompt "
            f"`{loading.prompting.prompt}`."
        )
    if run.record.tokens < run.available:
        sentences.append(f"The run examined {run.record.tokens:,} tokens, drawn at random.")
    return [" ".join(sentences)] if sentences else []


def sticky_section(run: Run) -> list[str]:
    """Return a heading and a table of the sticky tokens of a run, or nothing if there are none."""
    unusual = run.settings.unusual
    rows = []
    for row in run.sticky.head(MOST_STICKY_ROWS).to_dicts():
        deviation = row["vector_deviation"]
        vector = "unusual" if deviation is not None and deviation >= unusual else ""
        rows.append([markdown(repr(row["token"])), *measures(row), vector, row["severity"]])
    paragraphs = []
    if rows:
        paragraphs.append("## Sticky tokens")
        paragraphs.append(markdown_table(("token", "erased", "push", "vector", "severity"), rows))
    left_out = record_as(run.result, ProfileResultRecord).sticky - MOST_STICKY_ROWS
    if left_out > 0:
        paragraphs.append(f"The table leaves out {left_out} sticky tokens.")
    return paragraphs


def strongest_sections(tokens: pl.DataFrame) -> list[str]:
    """Return headings and tables of the tokens that erase most and that push most."""
    return [
        f"## The {MOST_ROWS} tokens that erase the most",
        token_table(tokens.sort("erased", descending=True).head(MOST_ROWS)),
        f"## The {MOST_ROWS} tokens that push the most",
        token_table(tokens.drop_nulls("push").sort("push", descending=True).head(MOST_ROWS)),
    ]


def special_section(tokens: pl.DataFrame) -> list[str]:
    """Return a heading and a table of the special tokens that text can contain."""
    # The categories are those of the paper, which does not count tokens such as [CLS] as special.
    has_special_name = pl.col("token").str.contains(r"^[\[<].+[\]>]$")
    is_special = (pl.col("category") == "OK_SPECIAL") | has_special_name
    special_tokens = tokens.filter(is_special).sort("erased", descending=True)
    paragraphs = ["## Special tokens that text can contain"]
    if special_tokens.is_empty():
        paragraphs.append("None.")
    else:
        paragraphs.append(token_table(special_tokens.head(MOST_ROWS)))
    left_out = len(special_tokens) - MOST_ROWS
    if left_out > 0:
        paragraphs.append(
            f"The table leaves out {left_out} special tokens, which erase less than the special tokens in "
            "the table."
        )
    return paragraphs


def published_paragraph(run: Run, name: str) -> str:
    """Return a paragraph on the published sticky tokens of a model and their effects in a run."""
    try:
        comparison = beside_run(run, name)
    except InputError:
        return f"Chen et al. (ACL 2025) published no results for {name}."
    ranked_tokens = comparison.tokens.drop_nulls("erased").sort("erased", descending=True)
    tokens_with_shares = ", ".join(
        f"{markdown(repr(row['token']))} {percent(row['erased'])}" for row in ranked_tokens.to_dicts()
    )
    published = len(comparison.tokens)
    examined = published - comparison.unknown - comparison.unexamined
    how_many = "all" if examined == published else f"{examined} of the"
    sentences = [
        f"Chen et al. (ACL 2025) published {published} sticky tokens of {name}. They erase: "
        f"{tokens_with_shares}. The run examined {how_many} {published} published tokens and flagged "
        f"{comparison.sticky or 'none'} of them as sticky."
    ]
    if comparison.erased is not None:
        sentence = comparison.erased.in_words()
        sentences.append(f"{sentence[0].upper()}{sentence[1:]}.")
    return " ".join(sentences)


def origin(run: Run) -> str:
    """Return the last sentence of a page, which says how the page was written."""
    precision = run.settings.screen_precision
    screened = f", screened in {precision}" if precision else ""
    return f"`benchmarks/model_card.py` wrote this page from a run with the default settings{screened}."


def main(run: Path, name: str | None = None) -> None:
    """Write docs/models/MODEL.md, a page on what a run of a model found.

    RUN is the folder of a finished run of the default method, at best over the whole vocabulary. --name is
    the name of the model on the page, if the name in the run does not suit.
    """
    opened_run = open_run(run)
    title = name or Path(opened_run.model_name).name
    measured_tokens = opened_run.tokens.drop_nulls("erased")
    paragraphs = [
        f"# {title}",
        *introduction(opened_run, title),
        EXPLANATION,
        *sticky_section(opened_run),
        *strongest_sections(measured_tokens),
        *special_section(measured_tokens),
        "## The published tokens",
        published_paragraph(opened_run, title),
        origin(opened_run),
    ]
    PAGES.mkdir(exist_ok=True)
    path = PAGES / f"{title}.md"
    path.write_text("\n\n".join(paragraphs) + "\n", encoding="utf-8")
    print(path)


if __name__ == "__main__":
    commands(__doc__, main)
