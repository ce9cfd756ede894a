"""What a repair writes for people: REPAIR.md, its picture, and a block in the model card."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from stickytoken.measurement import ResultFolder
from stickytoken.repairs import result
from stickytoken.repairs.result import DOCUMENT_FILE, PICTURE_FILE, RepairRecord, Strategy
from stickytoken.validation import markdown, markdown_table

_MINUS = "\N{MINUS SIGN}"
_SAID = {
    Strategy.UNREACHABLE: "no longer produced by text, which is split into pieces; ids are unchanged",
    Strategy.PLAIN_SPECIALS: "plain text when a user writes them; the model's own are kept",
    Strategy.RELATIVES: "given a row made from entries with similar spelling",
    Strategy.KEEP_MEANING: "given a row that keeps the meaning of one copy; many act like ordinary ones",
    Strategy.NEAREST: "given the row of the nearest entry that neither lifts nor erases texts",
}


def write_documents(folder: Path, record: RepairRecord) -> None:
    files = ResultFolder(folder)
    if (curves := mean_curves(record)) is not None:
        files.write_text(PICTURE_FILE, drawn(curves))
    files.write_text(DOCUMENT_FILE, repair_document(record))
    card = folder / "README.md"
    earlier = card.read_text("utf-8", "replace").rstrip() + "\n\n" if card.is_file() else ""
    files.write_text(card.name, earlier + repair_block(record))
    files.write_text(result.REPAIR_FILE, record.model_dump_json(indent=2) + "\n")


def repair_block(record: RepairRecord) -> str:
    names = [markdown(token.token) for token in record.tokens[:20]]
    more = len(record.tokens) - len(names)
    listed = ", ".join(names) + (f" and {more} more" if more else "")
    return (
        "## Repaired tokens\n\n"
        f"**{_headline(record)}** Copies of a sticky token in a text pull its vector toward those of "
        f"unrelated texts. Repaired: {listed}. What was done, and what was measured before and after, is in "
        f"[{DOCUMENT_FILE}]({DOCUMENT_FILE}) and `{result.REPAIR_FILE}`, written by stickytoken.\n"
    )


def repair_document(record: RepairRecord) -> str:
    counts = Counter(token.strategy for token in record.tokens)
    changed = [
        f"- {count} {'token' if count == 1 else 'tokens'} ({strategy}): {said}"
        for strategy, said in _SAID.items()
        if (count := counts[strategy])
    ]
    plain = "" if any(token.strategy in result.ROWS for token in record.tokens) else " No weight was changed."
    parts = [
        f"# Repair of {markdown(record.model)}",
        f"**{_headline(record)}**",
        "\n".join(changed),
        "## What to encode again",
        "Only texts that contain a repaired token must be encoded again: `stickytoken repair ... --affected "
        f"documents.parquet` lists them. All other vectors of an index stay valid, bit for bit.{plain}",
    ]
    found = record.verification
    if found is not None:
        checks = [
            [check.name, "passed" if check.passed else "**FAILED**", markdown(check.finding)]
            for check in found.checks
        ]
        parts += [
            "## Checks",
            markdown_table(["check", "", "finding"], checks),
            f"Measured on {found.carriers} texts with copies in them against {found.anchors} others, from "
            f"{markdown(found.source)} and the bundled kinds of text. The detection used none of them.",
        ]
    parts += ["## The tokens", _tokens(record)]
    if found is not None:
        parts.append(
            "Lift is given beyond an ordinary token's, in standard deviations (SD) of the model's own "
            "similarities. Meaning lost: how much copies shrink a text's differences from others (the "
            f"contraction; an ordinary token's is {_number(found.ordinary_contraction)})."
        )
    if (curves := mean_curves(record)) is not None:
        copies, lines = curves
        rows = [
            [name, *(f"{value:.3f}".replace("-", _MINUS) for value in line)] for name, line in lines.items()
        ]
        parts += [
            "## Before and after",
            f"![Similarity by number of copies]({PICTURE_FILE})",
            "Mean similarity of unrelated texts as copies of a repaired token are added to one of them:",
            markdown_table(["copies", *map(str, copies)], rows),
        ]
    if found is not None and found.scores:
        scores = []
        for each in found.scores:
            values = each.before, each.after, each.after - each.before
            scores.append([markdown(each.task), each.metric, *(_number(100 * value) for value in values)])
        parts += ["## Scores", markdown_table(["task", "metric", "before", "after", "change"], scores)]
    if record.notes:
        parts += ["## Notes", "\n".join(f"- {markdown(note)}" for note in record.notes)]
    return "\n\n".join(parts) + "\n"


def _headline(record: RepairRecord) -> str:
    count = len(record.tokens)
    tokens = "1 token" if count == 1 else f"{count} tokens"
    if record.verified is None:
        return f"{tokens} repaired. NOT VERIFIED: the verification was switched off."
    if record.verified:
        return f"{tokens} repaired and verified."
    return f"{tokens} changed. NOT VERIFIED: the repaired model did not pass every check. Do not rely on it."


def _tokens(record: RepairRecord) -> str:
    headings = ["token", "strategy", "why", "lift before", "lift after"]
    headings += ["meaning lost before", "meaning lost after"]
    units = {"deviations_before": " SD", "deviations_after": " SD"}
    units |= {"contraction_before": "", "contraction_after": ""}
    rows = []
    for token, values in zip(record.tokens, result.token_rows(record), strict=True):
        cells = [markdown(token.token), token.strategy, markdown(token.reason)]
        measured = [(values[name], unit) for name, unit in units.items()]
        rows.append([*cells, *("–" if value is None else _number(value) + unit for value, unit in measured)])
    if any(token.pieces for token in record.tokens):
        headings.append("read as")
        for row, token in zip(rows, record.tokens, strict=True):
            row.append(" ".join(map(markdown, token.pieces)) or "the same token")
    return markdown_table(headings, rows)


def _number(value: float) -> str:
    return f"{round(value, 2) + 0.0:.2f}".replace("-", _MINUS)  # adding 0.0 turns -0.0 into 0.0


_WIDTH, _HEIGHT = 640, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 150, 16, 44
_COLORS = {"before": "#b5402a", "after": "#00609a", "ordinary token": "#57606f"}
_TICKS = 4


MeanCurves: TypeAlias = tuple[Sequence[int], dict[str, list[float]]]
"""Numbers of copies, 0 first; and mean similarities by name, in the order of the legend."""


def mean_curves(record: RepairRecord) -> MeanCurves | None:
    curves = [token.curve for token in record.tokens if token.curve is not None]
    usable = [curve for curve in curves if curve.before and curve.after and curve.ordinary]
    if not usable:
        return None
    lines = zip(*((curve.before, curve.after, curve.ordinary) for curve in usable), strict=True)
    means = [[sum(values) / len(values) for values in zip(*line, strict=True)] for line in lines]
    return usable[0].copies, dict(zip(_COLORS, means, strict=True))


def drawn(curves: MeanCurves) -> str:
    copies, lines = curves
    values = [value for line in lines.values() for value in line]
    low, high = min(0.0, *values), max(values)
    room = (high - low) * 0.08 or 1.0
    low, high = low - (room if low < 0 else 0), high + room
    step = (_WIDTH - _LEFT - _RIGHT) / max(1, len(copies) - 1)

    def x(place: int) -> float:
        return _LEFT + step * place

    def y(value: float) -> float:
        return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (high - value) / (high - low)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" '
        f'height="{_HEIGHT}" font-family="system-ui, sans-serif" font-size="12" fill="#3b4350" role="img">',
        "<title>Similarity of unrelated texts by number of copies, before and after the repair</title>",
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
    ]
    for tick in range(_TICKS + 1):
        value = low + (high - low) * tick / _TICKS
        parts.append(
            f'<path d="M{_LEFT} {y(value):.1f}H{_WIDTH - _RIGHT}" stroke="#e3e7ec"/>'
            f'<text x="{_LEFT - 8}" y="{y(value) + 4:.1f}" text-anchor="end">{value:.2f}</text>'
        )
    parts += [
        f'<text x="{x(place):.1f}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle">{count}</text>'
        for place, count in enumerate(copies)
    ]
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{_HEIGHT - 8}" text-anchor="middle">copies in a text</text>')
    for place, (name, line) in enumerate(lines.items()):
        points = " ".join(f"{x(k):.1f},{y(value):.1f}" for k, value in enumerate(line))
        dashes = ' stroke-dasharray="5 4"' if name == "ordinary token" else ""
        height = _TOP + 16 + 20 * place
        edge = _WIDTH - _RIGHT + 14
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{_COLORS[name]}" stroke-width="2.5"{dashes}/>'
            f'<path d="M{edge} {height - 4}h22" stroke="{_COLORS[name]}" stroke-width="2.5"{dashes}/>'
            f'<text x="{edge + 28}" y="{height}">{name}</text>'
        )
    return "\n".join([*parts, "</svg>"]) + "\n"
