"""How many planted documents are found, how many clean texts are flagged, and how many cleaning changes.

    python benchmarks/cleaning.py RUN --planted model/planted.json --corpus cranfield.txt --corpus trec.txt

    python benchmarks/cleaning.py RUN --ranks cranfield --model model  # ranks after cleaning

Each text is one line of a corpus. A recipe plants 4 to 16 copies of a flagged word, or of a random word of
the vocabulary without a flag, in random documents of each corpus. `--planted` names further words to treat
as flagged. `--ranks` writes benchmarks/results/cleaning.json.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

import stickytoken
from checks import Check, show, write
from planted_documents import RECIPES, nested
from stickytoken.cleaning import Cleaner, CleaningRules, SpanKind, find_spans

Vectors = NDArray[np.floating[Any]]
RANKS_APART = 0.1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--planted", type=Path)
    parser.add_argument("--corpus", type=Path, action="append", default=[])
    parser.add_argument("--documents", type=int, default=200, help="planted documents per recipe and corpus")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--ranks", type=Path, help="a retrieval data set in the layout of BEIR")
    parser.add_argument("--model", help="the model of the run, for --ranks")
    given = parser.parse_args()

    run = stickytoken.open_run(given.run)
    rules = Cleaner.from_run(run).rules
    if given.planted:
        words = [entry["token"] for entry in json.loads(given.planted.read_text("utf-8"))]
        rules = CleaningRules(words=(*rules.words, *words), specials=rules.specials)
    vocabulary = run.vocabulary.filter(pl.col("category") == "OK")["token"]
    free = [word for word in vocabulary if word.isalpha() and word.isascii() and len(word) > 1]
    corpora = {
        path.stem: [line for line in path.read_text("utf-8").splitlines() if line.strip()]
        for path in given.corpus
    }
    if given.ranks:
        ranks(Cleaner.from_run(run), given.ranks, given.model, free, given.documents, given.seed)
    if not corpora:
        return
    clean_texts(corpora, rules)
    planted_texts(corpora, rules, free, given.documents, given.seed)


def clean_texts(corpora: dict[str, list[str]], rules: CleaningRules) -> None:
    """Print the share of clean texts in which something is found, and how many cleaning changes."""
    cleaner = Cleaner(rules)
    print("corpus | texts | flagged | changed by cleaning")
    for name, texts in corpora.items():
        found = sum(bool(find_spans(text, rules)) for text in texts)
        changed = sum(cleaner(text) != text for text in texts)
        print(f"{name} | {len(texts):,} | {found} ({found / len(texts):.3%}) | {changed}")


def planted_texts(
    corpora: dict[str, list[str]], rules: CleaningRules, free: list[str], documents: int, seed: int
) -> None:
    """Print the share of planted documents that is found, by recipe, and whether cleaning settles."""
    cleaner = Cleaner(rules)
    columns = [f"{name}, {kind}" for name in corpora for kind in ("flagged", "other")]
    print("recipe |", " | ".join(columns))
    unsettled = 0
    for recipe, plant in RECIPES.items():
        shares = []
        for name, texts in corpora.items():
            for words in (rules.words, free):
                draw = random.Random(f"{seed} {recipe} {name} {words is free}")
                hits = 0
                for _ in range(documents):
                    copies = [draw.choice(words)] * draw.randint(4, 16)
                    text = plant(draw.choice(texts), copies, draw.sample(free, 20), draw)
                    hits += bool(find_spans(text, rules))
                    cleaned = cleaner(text)
                    unsettled += cleaner(cleaned) != cleaned
                shares.append(f"{hits / documents:.3f}")
        print(recipe, "|", " | ".join(shares))
    draw = random.Random(seed)
    shares = []
    for texts in corpora.values():
        hits = 0
        for _ in range(documents):
            text = f"{draw.choice(texts)} {nested(draw.choice(rules.specials), draw)}"
            hits += any(span.kind is SpanKind.SPECIAL for span in find_spans(text, rules))
            unsettled += bool(cleaner(cleaner(text)) != cleaner(text))
        shares.append(f"{hits / documents:.3f}")
    print("nested special token |", " | ".join(shares))
    print(f"texts that cleaning did not settle: {unsettled}")


def ranks(cleaner: Cleaner, data: Path, model: str, free: list[str], documents: int, seed: int) -> None:
    """Measure how far ranks of planted documents are from those of the originals, cleaned and not."""
    from sentence_transformers import SentenceTransformer

    rows = [json.loads(line) for line in (data / "corpus.jsonl").open()]
    texts = [f"{row['title']} {row['text']}".strip() for row in rows if row["text"].strip()]
    queries = [json.loads(line)["text"] for line in (data / "queries.jsonl").open()]
    draw = random.Random(seed)
    chosen = sorted(draw.sample(range(len(texts)), documents))
    recipes = np.array([sorted(RECIPES)[place % len(RECIPES)] for place in range(documents)])
    planted = []
    for number, recipe in zip(chosen, recipes, strict=True):
        copies = [draw.choice(cleaner.rules.words)] * draw.randint(4, 16)
        planted.append(RECIPES[recipe](texts[number], copies, draw.sample(free, 20), draw))
    cleaned = [cleaner(text) for text in planted]
    same = np.array([text == texts[number] for text, number in zip(cleaned, chosen, strict=True)])
    encoder = SentenceTransformer(model, device="cpu")
    index, asked = (encoder.encode(each, normalize_embeddings=True) for each in (texts, queries))
    before = _ranks(index, asked, chosen)
    moved = {}
    for name, changed in (("planted", planted), ("cleaned", cleaned)):
        replaced = index.copy()
        replaced[chosen] = encoder.encode(changed, normalize_embeddings=True)
        moved[name] = _ranks(replaced, asked, chosen) - before
    checks = []
    for recipe in ("all", *sorted(RECIPES)):
        own = (recipes == recipe) | (recipe == "all")
        means = {name: float(difference[:, own].mean()) for name, difference in moved.items()}
        counts = {"documents": int(own.sum()), "to_the_letter": int(same[own].sum())}
        ours = f"{means['cleaned']:+.2f}; before cleaning {means['planted']:+.1f}"
        whole = f"{counts['to_the_letter']} of {counts['documents']} cleaned to the letter"
        passed = abs(means["cleaned"]) < RANKS_APART
        checks.append(Check(f"{recipe}: {whole}", f"below {RANKS_APART}", ours, passed, {**means, **counts}))
    show(checks, "Mean difference of ranks after cleaning")
    write(checks, "cleaning", "cpu", queries=len(queries), seed=seed)


def _ranks(index: Vectors, queries: Vectors, chosen: list[int]) -> Vectors:
    """Count, for each query, the documents that are closer than each of the chosen ones, shape (q, c)."""
    similarities = queries @ index.T
    return np.stack([(similarities > similarities[:, [number]]).sum(axis=1) for number in chosen], axis=1)


if __name__ == "__main__":
    main()
