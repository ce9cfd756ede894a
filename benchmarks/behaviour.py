"""Do the commands print the same as before a change?

27 commands run with the code of two folders, such as a worktree of an earlier commit and this one, on the
packaged model and its run. What differs in outputs, exit statuses and tables is listed; durations, dates
and speeds are masked. It takes about ten minutes for each folder.

    python benchmarks/behaviour.py record FOLDER before.json
    python benchmarks/behaviour.py record . after.json
    python benchmarks/behaviour.py compare before.json after.json
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import polars as pl
import typer

from bench import MINILM, ROOT, SHARED, commands, json_lines

RUN = f"runs/{MINILM}"
# In this order, because some read what earlier ones have written.
COMMANDS = (
    f"tokens {MINILM} --format json",
    f"show {RUN}",
    f"show {RUN} --verdict sticky --format json",
    f"report {RUN} --out report.md",
    f"report {RUN} --out report.json",
    f"card {RUN}",
    f"card {RUN} --table",
    "published",
    f"published {MINILM} --run {RUN}",
    f"scan {RUN} documents.jsonl --format json",
    f"clean {RUN} documents.jsonl --out clean.jsonl --rules-out rules.json",
    "check rules.json --documents documents.jsonl",
    f"check {RUN}",
    f"detect {MINILM} --sample 40 --out runs/sample --set report=false",
    f"detect {MINILM} --method std --tokens words.txt --out runs/std --set report=false",
    f"probe {MINILM} river ذ",
    f"why 'the river rose' 'water levels climbed' --model {MINILM}",
    f"explain {RUN} river --set attribution=false",
    f"evaluate {MINILM} --task sts.jsonl",
    f"embed {MINILM} --input words.txt --out vectors.parquet",
    f"audit {RUN} --documents documents.jsonl --queries queries.jsonl --set tokens=1 --set stuffed=16",
    f"repair {RUN} --tokens [CLS] --out repaired",
    # What can't be used.
    "show missing",
    "detect no-such-model",
    f"scan {RUN} words.txt --columns text",
    f"check {RUN} --documents missing.jsonl",
)
# What differs between two runs of the same code.
CHANGING = (
    (re.compile(r"\d+(:\d\d)+(\.\d+)?"), "TIME"),
    (re.compile(r"\b\d[\d,.]* (s|min|minutes?|seconds?)\b"), "TIME"),
    (re.compile(r"\d+ min \d+ s|\d[\d,.]* \w+/s"), "SPEED"),
    (re.compile(r"\d{4}-\d\d-\d\d([T ]TIME\S*)?"), "DATE"),
    (re.compile(r'"(seconds|started|finished)": [^,}]+'), r'"\1": TIME'),
)
DOCUMENTS = 150
QUERIES = 60
PAIRS = 60


def prepare(folder: Path) -> None:
    """Copy the packaged run into a folder, and write the files that the commands read."""
    shutil.copytree(ROOT / "src/stickytoken/demo/example" / MINILM, folder / RUN)
    cranfield = SHARED / "data" / "cranfield"
    documents = [row["text"] for row in json_lines(cranfield / "corpus.jsonl") if row["text"].strip()]
    rows = [{"id": str(number), "text": text} for number, text in enumerate(documents[:DOCUMENTS])]
    rows[3]["text"] += " ذ" * 8
    rows[5]["text"] = "[CLS] " * 8 + rows[5]["text"]
    write_lines(folder / "documents.jsonl", rows)
    write_lines(folder / "queries.jsonl", json_lines(cranfield / "queries.jsonl")[:QUERIES])
    write_lines(folder / "sts.jsonl", json_lines(SHARED / "data/stsb/test.jsonl")[:PAIRS])
    (folder / "words.txt").write_text("ذ\nriver\nstone\nharbor\n", "utf-8")


def write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write JSON lines."""
    path.write_text("".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows), "utf-8")


def masked(text: str, folder: Path) -> list[str]:
    """Return the lines of an output, without what differs between two runs of the same code."""
    text = text.replace(str(folder), "FOLDER")
    for pattern, replacement in CHANGING:
        text = pattern.sub(replacement, text)
    # Of a line of progress, only the last state is kept.
    return [line.rsplit("\r", 1)[-1].rstrip() for line in text.splitlines()]


def record(
    code: Annotated[Path, typer.Argument(help="Folder of the code: a clone or a worktree.")],
    out: Annotated[Path, typer.Argument(help="File for what the commands print.")],
) -> None:
    """Run all commands with the code of a folder."""
    recorded: dict[str, Any] = {}
    environment = {
        **os.environ,
        "PYTHONPATH": str(code.resolve() / "src"),
        "COLUMNS": "150",
        "NO_COLOR": "1",
        "HF_HUB_OFFLINE": "1",
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder)
        for command in COMMANDS:
            process = subprocess.run(
                [sys.executable, "-m", "stickytoken", *shlex.split(command)],
                cwd=folder,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            recorded[command] = {
                "status": process.returncode,
                "stdout": masked(process.stdout, folder),
                # Progress depends on the speed of the machine.
                "stderr": [line for line in masked(process.stderr, folder) if not is_progress(line)],
            }
            print(process.returncode, command)
        for path in sorted(folder.rglob("*.parquet")):
            content = pl.read_parquet(path).write_json()
            recorded[str(path.relative_to(folder))] = hashlib.sha256(content.encode()).hexdigest()
    out.write_text(json.dumps(recorded, ensure_ascii=False, indent=1), "utf-8")


def is_progress(line: str) -> bool:
    """Return whether a line reports progress, or comes from another library."""
    return bool(re.search(r"\d+ of [\d,]+|it/s|ETA", line)) or not line


def compare(before: Path, after: Path) -> None:
    """Print what differs between two records; exit status 1 if anything does."""
    first = json.loads(before.read_text("utf-8"))
    second = json.loads(after.read_text("utf-8"))
    differing = 0
    for name in sorted({*first, *second}):
        if first.get(name) == second.get(name):
            continue
        differing += 1
        print(f"=== {name}")
        lines = [json.dumps(content.get(name), ensure_ascii=False, indent=1) for content in (first, second)]
        for line in difflib.unified_diff(lines[0].splitlines(), lines[1].splitlines(), lineterm="", n=0):
            print(line)
    print(f"{differing} of {len({*first, *second})} differ")
    if differing:
        raise SystemExit(1)


if __name__ == "__main__":
    commands(__doc__, record, compare)
