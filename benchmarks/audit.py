"""Audits of Cranfield: is a planted word named first, are its shares exact, and is a clean model clean?

A word of all-MiniLM-L6-v2 is moved toward the 225 queries of Cranfield by `plant.py`, and its model is
detected and audited. The shares are compared with those of a separate search: sentence-transformers encodes,
NumPy compares every query with every document. The model as it is is audited, too. This takes about fifteen
minutes of two cores; with the folders of finished runs, half of that, and with --reuse, which opens their
audits, a minute.
"""

from __future__ import annotations

import json
import re
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer

from bench import MINILM, SHARED, Results, commands, detected, json_lines, refuse, units
from stickytoken.audits import Audit, audits_in, open_audit, wording
from stickytoken.detection import open_run
from stickytoken.encoders import load_encoder
from stickytoken.encoders.loading.resolution import resolve_model

TOP = 10
# Wall time on two cores, in seconds.
MOST_SECONDS = 300
CORES = 2


def plant(folder: Path, queries: Path, seed: int) -> Path:
    """Save a copy of the model in which a random word is moved toward the queries."""
    texts = folder / "queries.txt"
    texts.write_text("\n".join(row["text"] for row in json_lines(queries)), encoding="utf-8")
    model = Path(resolve_model(MINILM, None).location)
    out = folder / f"tampered-{seed}"
    script = SHARED / "planted" / "plant.py"
    options = ["--toward", texts, "--count", 1, "--seed", seed, "--strengths", 0.8]
    subprocess.run([sys.executable, *map(str, (script, model, out, *options))], check=True)
    return out


def audited(run: Path, data: Path, reuse: bool) -> tuple[Audit, float | None]:
    """Audit a run, and return the processor time that it took; None for an audit that was finished."""
    if reuse:
        finished, _ = audits_in(run)
        if not finished:
            refuse(f"there is no finished audit in {run}: leave --reuse out")
        return finished[0], None
    out = run / f"audit-benchmark-{int(time.time())}"
    command = [
        sys.executable, "-m", "stickytoken", "audit", run, "--out", out,
        "--documents", data / "corpus.jsonl", "--queries", data / "queries.jsonl",
    ]  # fmt: skip
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(list(map(str, command)), check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return open_audit(out), used


def encoded(model: SentenceTransformer, rows: list[list[int]]) -> NDArray[np.float64]:
    """Encode lists of content ids with the model's own modules."""
    tokenizer = model.tokenizer
    vectors = []
    for row in rows:
        ids = torch.tensor([[tokenizer.cls_token_id, *row, tokenizer.sep_token_id]])
        features = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        with torch.inference_mode():
            vectors.append(model(features)["sentence_embedding"][0].numpy())
    return units(np.stack(vectors))


class PlainSearch:
    """Exact search in Cranfield, written without stickytoken."""

    def __init__(self, model: str, data: Path) -> None:
        self.model = SentenceTransformer(model, device="cpu")
        rows = [row for row in json_lines(data / "corpus.jsonl") if row["text"].strip()]
        self.texts = {row["_id"]: f"{row['title']} {row['text']}".strip() for row in rows}
        self.queries = [row["text"] for row in json_lines(data / "queries.jsonl")]
        documents = units(self.model.encode(list(self.texts.values())))
        self.query_vectors = units(self.model.encode(self.queries))
        self.similarities = self.query_vectors @ documents.T

    def share(self, ids: list[str], token_id: int, token: str, copies: int) -> float:
        """Return the share of queries that have a document with copies in their top 10."""
        longest = self.model.max_seq_length or 512
        limit = longest - 2 - copies
        rows = []
        for document_id in ids:
            content = self.model.tokenizer(self.texts[document_id], add_special_tokens=False)["input_ids"]
            rows.append(content[:limit] + [token_id] * copies)
        vectors = encoded(self.model, rows)
        places = {document_id: place for place, document_id in enumerate(self.texts)}
        counted = [
            row for row, query in enumerate(self.queries) if token not in re.findall(r"\w+", query.casefold())
        ]
        hits = []
        for document_id, vector in zip(ids, vectors, strict=True):
            similarities = self.similarities.copy()
            similarities[:, places[document_id]] = self.query_vectors @ vector
            own = similarities[:, [places[document_id]]]
            ranks = 1 + (similarities > own).sum(axis=1)
            hits.append((ranks[counted] <= TOP).mean())
        return float(np.mean(hits))


def check_time(results: Results, title: str, used: float | None) -> None:
    """Check the processor time of an audit against the bar for two cores."""
    if used is None:
        return
    bar = f"{CORES * MOST_SECONDS} s of processor time"
    results.check(title, bar, f"{used:.0f} s", used <= CORES * MOST_SECONDS)


def main(
    tampered: Path | None = None,
    clean: Path | None = None,
    reuse: bool = False,
    seed: int = 5202,
    data: Path = SHARED / "data" / "cranfield",
    folder: Path = Path("build/audit"),
) -> None:
    """Plant, detect and audit, or use runs of a tampered and of the clean model."""
    folder.mkdir(parents=True, exist_ok=True)
    if tampered is None:
        model = plant(folder, data / "queries.jsonl", seed)
        tampered = detected(load_encoder(model), out=folder / f"run-{seed}").path
    if clean is None:
        clean = detected(load_encoder(MINILM), out=folder / "run-clean").path
    results = Results("audit", model=MINILM)
    check_tampered(results, tampered, data, reuse)
    check_clean(results, clean, data, reuse)
    results.finish()


def check_tampered(results: Results, run: Path, data: Path, reuse: bool) -> None:
    """Check that the planted word is named first, and that its shares are those of the plain search."""
    model = open_run(run).model_name
    (planted,) = json.loads((Path(model) / "planted.json").read_text("utf-8"))
    audit, used = audited(run, data, reuse)
    first = audit.tokens.row(0, named=True)
    said = wording.conclusions(audit)[0]
    named = first["token_id"] == planted["token_id"] and (first["helps"] or first["may_help"])
    results.check("the planted word is named first", planted["token"], said, named)
    certain = "with an interval above zero" if first["helps"] else "not with this number of documents"
    again = len(audit.result.second_round_tokens)
    results.check("it helps for certain", "beside it", certain, measured_again=again)
    search = PlainSearch(model, data)
    differences: dict[str, Any] = {}
    ids = audit.result.stuffed_ids
    if planted["token_id"] in audit.result.second_round_tokens:
        ids = list(audit.result.second_round_ids)
    for row in audit.shares.filter(token_id=planted["token_id"]).iter_rows(named=True):
        plain = search.share(ids, planted["token_id"], planted["token"], row["copies"])
        differences[str(row["copies"])] = [row["share"], plain]
    largest = max(abs(ours - plain) for ours, plain in differences.values())
    title = "its top-10 shares and those of a separate search differ by"
    results.check(title, "1e-6", f"{largest:.1e}", largest <= 1e-6, shares=differences)
    check_time(results, "time, tampered model", used)


def check_clean(results: Results, run: Path, data: Path, reuse: bool) -> None:
    """Check that no word of the clean model helps documents."""
    audit, used = audited(run, data, reuse)
    said = " ".join(wording.token_conclusions(audit))
    results.check("the clean model: no word helps", "none", said, audit.helping.is_empty())
    check_time(results, "time, clean model", used)


if __name__ == "__main__":
    commands(__doc__, main)
