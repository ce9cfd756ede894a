"""Write REPAIR.md and the block on the repair in the model card."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from stickytoken.measurement.store import ResultFolder
from stickytoken.methods import wording
from stickytoken.methods.measures import PUSH
from stickytoken.repairs.records import (
    DOCUMENT_FILE,
    REPAIR_FILE,
    ROW_STRATEGIES,
    MeasuredRecord,
    RepairRecord,
    VerificationRecord,
)
from stickytoken.search import TOP
from stickytoken.settings.repair import Strategy
from stickytoken.validation import markdown, markdown_table
from stickytoken.words import MINUS, counted, percent


def write_documents(folder: Path, record: RepairRecord) -> None:
    """Write REPAIR.md, the block in the model card and finally repair.json into a model's folder."""
    files = ResultFolder(folder)
    files.write_text(DOCUMENT_FILE, format_document(record))
    card = folder / "README.md"
    earlier_text = ""  # the model card of the model before the repair
    if card.is_file():
        earlier_text = card.read_text("utf-8", "replace").rstrip() + "\n\n"
    files.write_text(card.name, earlier_text + format_block(record))
    files.write_record(REPAIR_FILE, record)


# Maximum number of tokens that the block in the model card names.
_NAMED_TOKENS = 20


def format_block(record: RepairRecord) -> str:
    """Return the block that is added to the model card, in Markdown."""
    listed = ", ".join(markdown(token.token) for token in record.tokens[:_NAMED_TOKENS])
    unnamed = len(record.tokens) - _NAMED_TOKENS
    if unnamed > 0:
        listed += f" and {unnamed} more"
    return (
        "## Repaired tokens\n\n"
        f"**{_format_headline(record)}** Copies of a sticky token erase the meaning of a text, or move its "
        f"vector toward the vectors of unrelated texts. Repaired: {listed}. "
        f"[{DOCUMENT_FILE}]({DOCUMENT_FILE}) and `{REPAIR_FILE}`, written by stickytoken, describe the "
        "changes and the measurements before and after.\n"
    )


def format_document(record: RepairRecord) -> str:
    """Return the content of REPAIR.md."""
    verification = record.verification
    sections = [
        f"# Repair of {markdown(record.model)}",
        f"**{_format_headline(record)}**",
        _list_changes(record),
        *_say_what_to_encode(record),
    ]
    if verification is not None:
        sections += _format_checks(verification)
    sections += ["## The tokens", _format_tokens(record)]
    if verification is not None:
        sections.append(_explain_columns(verification))
    if verification is not None and verification.scores:
        sections += _format_scores(verification)
    if record.notes:
        sections += ["## Notes", "\n".join(f"- {markdown(note)}" for note in record.notes)]
    return "\n\n".join(sections) + "\n"


def _format_headline(record: RepairRecord) -> str:
    tokens = counted(len(record.tokens), "token")
    if record.verified is None:
        return f"{tokens} repaired. NOT VERIFIED: the verification was switched off."
    if record.verified:
        return f"{tokens} repaired and verified."
    return f"{tokens} changed. NOT VERIFIED: the repaired model did not pass every check. Do not rely on it."


def _list_changes(record: RepairRecord) -> str:
    counts = Counter(token.strategy for token in record.tokens)
    return "\n".join(
        f"- {counted(counts[strategy], 'token')} ({strategy}): {strategy.meaning}"
        for strategy in Strategy
        if counts[strategy]
    )


def _say_what_to_encode(record: RepairRecord) -> list[str]:
    text = (
        "Only texts that contain a repaired token must be encoded again: `stickytoken repair ... --affected "
        "documents.parquet` lists them. "
    )
    if record.verified:
        text += "The vectors of all other texts stay the same, bit for bit."
        if any(token.strategy == Strategy.UNREACHABLE for token in record.tokens):
            # The merges of a byte pair encoding build several entries, so one can't always go alone.
            text += (
                " If the tokenizer is a byte pair encoding, it may also divide a few other words otherwise; "
                "their texts are listed, too."
            )
    else:
        text += "This was NOT VERIFIED: the vectors of other texts may have changed, too."
    if not any(token.strategy in ROW_STRATEGIES for token in record.tokens):
        text += " No weight was changed."
    sections = ["## What to encode again", text]
    if any(token.strategy == Strategy.PLAIN_SPECIALS for token in record.tokens):
        sections += [
            "## What to know before training",
            "A special token that is plain text now has lost its role in the tokenizer, such as `cls_token`, "
            "although the model still puts it around every text. Vectors don't depend on that, but training "
            "with masked words would take it for a word: train the original model, and repair it again.",
        ]
    return sections


def _format_checks(verification: VerificationRecord) -> list[str]:
    rows = [
        [check.name, "passed" if check.passed else "**FAILED**", markdown(check.finding)]
        for check in verification.checks
    ]
    basis = (
        f"Measured by inserting copies into {verification.carriers} texts, from "
        f"{markdown(verification.source)} and the bundled kinds of text. The detection used none of them. "
        "Push and found are measured with the queries of the detection; of the packaged documents, others "
        "receive copies. If strategies were compared, it was in the same texts, so the chosen one may do "
        "slightly worse in others."
    )
    return ["## Checks", markdown_table(["check", "", "finding"], rows), basis]


def _format_tokens(record: RepairRecord) -> str:
    headings = ["token", "strategy", "why", "erased before", "erased after", "push before", "push after"]
    headings += ["found before", "found after"]
    shows_pieces = any(token.pieces for token in record.tokens)
    if shows_pieces:
        headings.append("read as")
    rows = []
    for token in record.tokens:
        before_and_after = [measured or _NOT_MEASURED for measured in (token.before, token.after)]
        row = [markdown(token.token), token.strategy, markdown(token.reason)]
        row += [_format_share(measured.erased) for measured in before_and_after]
        # The text of a push that was not measured is empty.
        row += [PUSH.text(measured.push) or _MISSING for measured in before_and_after]
        row += [_format_share(measured.found) for measured in before_and_after]
        if shows_pieces:
            # A token without pieces was repaired by a new row.
            row.append(" ".join(map(markdown, token.pieces)) or "the same token")
        rows.append(row)
    return markdown_table(headings, rows)


_MISSING = "\N{EN DASH}"
# Stands for the measurements of a repair that was not verified.
_NOT_MEASURED = MeasuredRecord(push=None, erased=None, found=None, verdict="")


def _format_share(share: float | None) -> str:
    return _MISSING if share is None else percent(share)


def _explain_columns(verification: VerificationRecord) -> str:
    sentences = [
        "Erased: how much less of a text's meaning copies leave than copies of an ordinary token do. Copies "
        f"of an ordinary token leave {percent(1 - verification.ordinary_contraction)} of the "
        "meaning. The share is missing for a token that is now read as several pieces, because more pieces "
        "erase more, whichever tokens they are.",
        "Push: in how many times as many wrong results a document with eight copies is.",
        _explain_found(verification),
        wording.describe_rule(verification.smallest_erased, verification.smallest_push),
    ]
    if not verification.vectors_compared:
        sentences.append(wording.WITHOUT_VECTORS)
    return " ".join(sentences)


def _explain_found(verification: VerificationRecord) -> str:
    without = ""
    if verification.found_without is not None:
        without = f" (without copies, {percent(verification.found_without)} do)"
    return (
        "Found: how many of the queries that a document answers still find it among the first "
        f"{TOP} results, with eight copies in it{without}. A token that is read as several pieces is "
        f"sticky, too, if surely at least {percent(verification.smallest_erased)} fewer do."
    )


def _format_scores(verification: VerificationRecord) -> list[str]:
    rows = []
    for score in verification.scores:
        points = [_format_points(value) for value in (score.before, score.after, score.after - score.before)]
        rows.append([markdown(score.task), score.metric, *points])
    return ["## Scores", markdown_table(["task", "metric", "before", "after", "change"], rows)]


def _format_points(score: float) -> str:
    rounded = round(100 * score, 2) + 0.0  # adding 0.0 turns -0.0 into 0.0
    return f"{rounded:.2f}".replace("-", MINUS)
