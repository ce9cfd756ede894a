"""Scan planted documents: what is found, how fast, in what memory, and how well effects are predicted.

python benchmarks/scan.py RUN [RUN ...]            # recall and false alarms on Cranfield and TREC
python benchmarks/scan.py RUN --effect             # and predicted against measured effects on Cranfield
python benchmarks/scan.py RUN --documents 1000000  # and throughput and memory

RUN is a run of a model with planted rows. Cranfield and TREC are in shared/data beside the project.
Results go to benchmarks/results/scan.json.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from stickytoken.cleaning.rules import rules_of_run
from stickytoken.detection.run import Run, open_run
from stickytoken.scanning.scan import scan_documents

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
RESULTS = Path(__file__).resolve().parent / "results" / "scan.json"
PLANTED = 0.02
REPETITIONS = 20
FEWEST, MOST = 4, 16
OTHERS = ("river", "window", "and", "report")
WORDS = 150

Words = list[str]


def prefix(words: Words, copies: Words, draw: random.Random) -> Words:
    return copies + words


def suffix(words: Words, copies: Words, draw: random.Random) -> Words:
    return words + copies


def spread(words: Words, copies: Words, draw: random.Random) -> Words:
    found = list(words)
    for copy in copies:
        found.insert(draw.randrange(len(found) + 1), copy)
    return found


def interleaved(words: Words, copies: Words, draw: random.Random) -> Words:
    other = draw.choice(OTHERS)
    return _inside(words, [word for copy in copies for word in (copy, other)], draw)


def mixed_case(words: Words, copies: Words, draw: random.Random) -> Words:
    return _inside(
        words, ["".join(draw.choice((c.lower(), c.upper())) for c in each) for each in copies], draw
    )


def nested_special(words: Words, copies: Words, draw: random.Random) -> Words:
    return _inside(words, ["<|endof<|endoftext|>text|>"] * draw.randint(1, 4), draw)


def _inside(words: Words, piece: Words, draw: random.Random) -> Words:
    place = draw.randrange(len(words) + 1)
    return [*words[:place], *piece, *words[place:]]


RECIPES: tuple[Callable[[Words, Words, random.Random], Words], ...] = (
    prefix,
    suffix,
    spread,
    interleaved,
    mixed_case,
    nested_special,
)


def cranfield() -> list[str]:
    rows = [json.loads(line) for line in (SHARED / "cranfield" / "corpus.jsonl").open()]
    return [f"{row['title']} {row['text']}" for row in rows if row["text"].strip()]


def trec() -> list[str]:
    return [json.loads(line)["text"] for line in (SHARED / "trec" / "train.jsonl").open()]


def found_share(run: Run, texts: Sequence[str]) -> dict[str, Any]:
    """Plant copies in a fiftieth of the documents, often, and count what is found."""
    words = rules_of_run(run).words
    found = planted = false = 0
    missed: list[str] = []
    for repetition in range(REPETITIONS):
        draw = random.Random(repetition)
        chosen = set(draw.sample(range(len(texts)), round(PLANTED * len(texts))))
        documents, recipes = list(texts), {}
        for number in sorted(chosen):
            recipe = draw.choice(RECIPES)
            copies = [draw.choice(words)] * draw.randint(FEWEST, MOST)
            documents[number] = " ".join(recipe(texts[number].split(), copies, draw))
            recipes[number] = f"{recipe.__name__} {copies[0]} x {len(copies)}"
        numbers = set(scan_documents(run, documents).documents["number"].to_list())
        found, planted = found + len(numbers & chosen), planted + len(chosen)
        false = len(numbers - chosen) if not repetition else max(false, len(numbers - chosen))
        missed += [recipes[number] for number in sorted(chosen - numbers)]
    clean = len(texts) - round(PLANTED * len(texts))
    return {
        "documents": len(texts),
        "planted": planted,
        "recall": found / planted,
        "false_alarms": false / clean,
        "missed": missed[:10],
    }


def effects(run: Run, texts: Sequence[str], planted: int = 60) -> dict[str, Any]:
    """Plant copies in some documents, and compare predicted with measured shifts."""
    draw = random.Random(0)
    words = rules_of_run(run).words
    documents = list(texts)
    for number in draw.sample(range(len(texts)), planted):
        copies = [draw.choice(words)] * draw.randint(FEWEST, MOST)
        documents[number] = " ".join(draw.choice(RECIPES[:5])(texts[number].split(), copies, draw))
    own = [json.loads(line)["text"] for line in (SHARED / "cranfield" / "queries.jsonl").open()]
    result = scan_documents(run, documents, effect="measured", queries=own).result
    return {} if result.effect is None else {"matter": result.matter, **result.effect.model_dump()}


def throughput(run: Path, documents: int) -> dict[str, Any]:
    """Scan a file of documents of 150 words in a process of its own, and measure its time and memory."""
    draw = random.Random(0)
    vocabulary = sorted({word for text in cranfield() for word in text.split()})
    pool = [" ".join(draw.choices(vocabulary, k=WORDS)) for _ in range(5000)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "documents.txt"
        with path.open("w") as stream:
            for number in range(documents):
                stream.write(f"{pool[number % len(pool)]} {number}\n")
        command = [
            sys.executable,
            "-m",
            "stickytoken",
            "scan",
            str(run),
            str(path),
            "--scan-folder",
            f"{folder}/scan",
        ]
        started = time.perf_counter()
        process = subprocess.Popen([*command, "--format", "json", "--quiet"], stdout=subprocess.DEVNULL)
        largest = 0
        while process.poll() is None:
            largest = max(largest, _memory(process.pid))
            time.sleep(0.2)
        seconds = time.perf_counter() - started
    return {
        "documents": documents,
        "seconds": round(seconds, 1),
        "documents_per_second": round(documents / seconds),
        "memory_mb": round(largest / 2**20),
        "status": process.returncode,
    }


def _memory(pid: int) -> int:
    """Resident memory of a process and its children, in bytes (Linux)."""
    total = 0
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for each in (str(pid), *children):
            fields = Path(f"/proc/{each}/statm").read_text().split()
            total += int(fields[1]) * 4096
    except (OSError, IndexError):
        return total
    return total


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--effect", action="store_true")
    parser.add_argument("--documents", type=int)
    arguments = parser.parse_args()
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    for path in arguments.runs:
        run = open_run(path)
        name = Path(run.model_name).name
        row = results.setdefault(name, {})
        row["found"] = {"cranfield": found_share(run, cranfield()), "trec": found_share(run, trec())}
        if arguments.effect:
            row["effect"] = effects(run, cranfield())
        print(name, json.dumps(row, indent=2))
    if arguments.documents:
        results["throughput"] = throughput(arguments.runs[0], arguments.documents)
        print(json.dumps(results["throughput"], indent=2))
    RESULTS.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
