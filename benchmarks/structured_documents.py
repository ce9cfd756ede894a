"""Make documents in which words repeat because of the form: tables, logs, code, forms, poems and addresses.

Cleaning must leave them as they are.
"""

from __future__ import annotations

import csv
import io
import json
import random
from collections.abc import Callable, Sequence

STATES = ("passed", "failed", "closed", "open", "yes", "no", "none", "pending", "n/a", "ok")
"""Words that fill cells, and so repeat in rows and columns."""
NAMES = ("backup", "restore", "valve", "pump", "intake", "harbor", "ferry", "ticket", "invoice", "sensor")
DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri")
CITIES = ("New York", "Porto", "Wien", "Lyon", "Walla Walla", "Baden-Baden")
LINES = (
    "The harbor sleeps, the harbor sleeps,",
    "and over the river the ferry keeps",
    "its light, its light, its only light",
    "away from the night, from the night, the night.",
    "Never, never, never more",
    "row, row, row your boat",
)


def rows_of(draw: random.Random) -> list[list[str]]:
    """Return a header and three to six rows; most rows repeat one state in all cells."""
    width = draw.randint(3, 5)
    rows = [["check", *DAYS[:width]]]
    for name in draw.sample(NAMES, draw.randint(3, 6)):
        state = draw.choice(STATES)
        cells = [state] * width
        if draw.random() < 0.4:
            cells[draw.randrange(width)] = draw.choice(STATES)
        rows.append([name, *cells])
    return rows


def markdown_table(draw: random.Random) -> str:
    """Return a Markdown table; some have repeated header cells, as converters from PDF write them."""
    rows = rows_of(draw)
    if draw.random() < 0.3:
        rows[0] = ["Formal criteria"] * len(rows[0])
    lines = [f"| {' | '.join(row)} |" for row in rows]
    lines.insert(1, "|" + " --- |" * len(rows[0]))
    return "\n".join(lines)


def separated_table(draw: random.Random) -> str:
    """Return rows of CSV, TSV or another separated format, quoted or not."""
    separator = draw.choice((",", ", ", ";", "; ", "\t", "|", " | "))
    rows = rows_of(draw)
    if draw.random() < 0.3:
        written = io.StringIO()
        csv.writer(written, quoting=csv.QUOTE_ALL).writerows(rows)
        return written.getvalue()
    return "\n".join(separator.join(row) for row in rows)


def drawn_table(draw: random.Random) -> str:
    """Return a table drawn with lines, or with columns of a fixed width."""
    rows = rows_of(draw)
    width = max(len(cell) for row in rows for cell in row) + 2
    has_sides = draw.random() >= 0.5
    side = draw.choice("\u2502\u2503\u2506") if has_sides else ""
    lines = []
    for row in rows:
        if has_sides:
            lines.append(f"{side} {f' {side} '.join(row)} {side}")
        else:
            padded = [cell.ljust(width) for cell in row]
            lines.append("".join(padded).rstrip())
    return "\n".join(lines)


def html_table(draw: random.Random) -> str:
    """Return a table in HTML, with entities between some cells."""
    rows = []
    for row in rows_of(draw):
        cells = "".join(f"<td class='cell'>{cell}</td>" for cell in row)
        rows.append(f"<tr>{cells}</tr>")
    space = "&nbsp;" * draw.randint(4, 8)
    return f"<table>{''.join(rows)}</table><p>{space}10 EUR</p>"


def log(draw: random.Random) -> str:
    """Return lines of a log, most of which say the same."""
    name = draw.choice(NAMES)
    lines = []
    for second in range(draw.randint(5, 12)):
        stamp = f"2026-03-{draw.randint(1, 28):02} 10:{second:02}:00"
        level = draw.choice(("INFO", "WARN", "ERROR", "ERROR ERROR"))
        lines.append(f"{stamp} {level} {name}: retry retry {name} {draw.choice(STATES)}")
    lines += [draw.choice(STATES)] * draw.randint(4, 8)
    return "\n".join(lines)


def code(draw: random.Random) -> str:
    """Return code or data of a program."""
    name = draw.choice(NAMES)
    state = draw.choice(STATES)
    kind = draw.randrange(5)
    if kind == 0:
        return (
            f"{name} = [{', '.join([repr(state)] * 6)}]\nfor {name} in {name}:\n    print({name}, {name})\n"
        )
    if kind == 1:
        return json.dumps({"name": name, "states": [state] * 6, "next": {"states": [state] * 4}}, indent=1)
    if kind == 2:
        return f"def f({name}: int) -> tuple[float, float, float, float]:\n    return ({name},) * 4\n"
    if kind == 3:
        return f"```\n{' '.join([name] * 6)}\n```\nRun `{' '.join([name] * 5)}` to start."
    return f"/{'/'.join([name] * 5)} {'_'.join([name] * 5)} {name}::{name}::{name}::{name} x = x = x = x"


def form(draw: random.Random) -> str:
    """Return a form with choices."""
    lines = [f"{name.title()}: [ ] yes  [ ] no  [ ] n/a" for name in draw.sample(NAMES, 5)]
    state = draw.choice(STATES)
    lines += [f"{day}: {state}" for day in DAYS] + ["Name: ____________ Name: ____________"]
    lines.append(" \u2022 ".join([state] * 5))
    return "\n".join(lines)


def poem(draw: random.Random) -> str:
    """Return a poem with a refrain."""
    refrain = draw.choice(LINES)
    lines = []
    for _ in range(draw.randint(3, 5)):
        lines += [draw.choice(LINES), refrain]
    lines += [refrain.split()[0].strip(",")] * draw.randint(4, 6)
    return "\n".join(lines)


def addresses(draw: random.Random) -> str:
    """Return addresses, in which names of places repeat."""
    lines = []
    for _ in range(draw.randint(3, 6)):
        city = draw.choice(CITIES)
        lines.append(f"{draw.randint(1, 99)} {city} Street, {city}, {city}, {city.upper()} {city}")
    host = draw.choice(NAMES)
    lines.append(f"https://{host}.org/{host}/{host}/{host}/{host} {host}@{host}.{host}.org")
    return "\n".join(lines)


KINDS: tuple[Callable[[random.Random], str], ...] = (
    markdown_table, separated_table, drawn_table, html_table, log, code, form, poem, addresses
)  # fmt: skip


def structured_documents(count: int, seed: int = 0) -> list[str]:
    """Return documents of all kinds in turn; most stand between two sentences, as in a collection."""
    draw = random.Random(seed)
    documents = []
    for number in range(count):
        document = KINDS[number % len(KINDS)](draw)
        if draw.random() < 0.7:
            document = f"The report of last week.\n\n{document}\n\nMore is in the annex."
        documents.append(document)
    return documents


def with_copies(document: str, words: Sequence[str], draw: random.Random) -> str:
    """Return a document with a line of eight copies of a word before, within or behind it."""
    lines = document.split("\n")
    # Not within a block of code, where nothing is edited.
    place = draw.choice((0, len(lines))) if "```" in document else draw.randint(0, len(lines))
    lines.insert(place, " ".join([draw.choice(words)] * 8))
    return "\n".join(lines)
