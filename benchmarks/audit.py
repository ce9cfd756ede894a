"""Check the audit of a tampered model, and the audit of the original model, on Cranfield.

`plant.py` moves a word of all-MiniLM-L6-v2 toward the 225 queries of Cranfield. The audit of the tampered
model has to name the word first, with the push of a separate search, in which sentence-transformers encodes
the texts and NumPy compares every query with every document. The audit of the original model has to call
[CLS] sticky, because it pushes documents; the separate search writes [CLS] as text.

Needs shared/planted and shared/data beside the project. Takes about ten minutes on two cores. Takes half of
that with the folders of finished runs, and a minute with --reuse, which opens the finished audits of these
runs.

    python benchmarks/audit.py
    python benchmarks/audit.py --tampered RUN --clean RUN --reuse
"""

from __future__ import annotations

import json
import re
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated

import numpy as np
import polars as pl
import torch
import typer
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer

from bench import MINILM, SHARED, Results, commands, detected, json_lines, refuse, units
from stickytoken import load_encoder
from stickytoken.audits import Audit, audits_in, open_audit, wording
from stickytoken.detection import open_run
from stickytoken.encoders.files.resolution import resolve_model

# An audit may take this many seconds on this many cores. Processor time is checked, because wall time depends
# on what else the machine does.
MOST_SECONDS = 300
CORES = 2
# Share of the way toward the queries that the word is moved.
STRENGTH = 0.8
# Largest difference between a push and that of the separate search, if both insert token ids, and the largest
# relative one if the separate search writes copies as text.
TOLERANCE = 1e-6
TEXT_TOLERANCE = 0.2
COPIES = 8
CRANFIELD = SHARED / "data" / "cranfield"
FOLDER = Path("build/audit")


def plant(folder: Path, queries: Path, seed: int) -> Path:
    """Save a copy of the model in which a random word is moved toward the queries.

    Args:
        folder: Folder for the copy, and for a file with the texts of the queries.
        queries: File of the queries in the layout of BEIR.
        seed: Seed of the choice of the word.

    Returns:
        Folder of the copy.
    """
    texts = folder / "queries.txt"
    texts.write_text("\n".join(row["text"] for row in json_lines(queries)), encoding="utf-8")
    model = Path(resolve_model(MINILM, None).location)
    out = folder / f"tampered-{seed}"
    script = SHARED / "planted" / "plant.py"
    options = ["--toward", texts, "--count", 1, "--seed", seed, "--strengths", STRENGTH]
    arguments = [script, model, out, *options]
    subprocess.run([sys.executable, *map(str, arguments)], check=True)
    return out


def audited(run: Path, cranfield: Path, reuse: bool) -> tuple[Audit, float | None]:
    """Audit a run in its own process.

    Args:
        run: Folder of the run.
        cranfield: Folder of Cranfield in the layout of BEIR.
        reuse: Open the newest finished audit of the run instead.

    Returns:
        The audit, and the processor time that it took, in seconds; None for an audit that was opened.
    """
    if reuse:
        finished, _ = audits_in(run)
        if not finished:
            refuse(f"there is no finished audit in {run}: leave --reuse out")
        return finished[0], None
    out = run / f"audit-benchmark-{int(time.time())}"
    command = [
        sys.executable, "-m", "stickytoken", "audit", run, "--out", out,
        "--documents", cranfield,
    ]  # fmt: skip
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(list(map(str, command)), check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    user_seconds = after.ru_utime - before.ru_utime
    system_seconds = after.ru_stime - before.ru_stime
    return open_audit(out), user_seconds + system_seconds


def encoded(model: SentenceTransformer, rows: list[list[int]]) -> NDArray[np.float64]:
    """Encode texts from their token ids, with the model's own modules.

    Args:
        model: A model whose tokenizer adds [CLS] and [SEP].
        rows: Token ids of each text, without [CLS] and [SEP].

    Returns:
        Unit vectors, shape (rows, d).
    """
    tokenizer = model.tokenizer
    vectors = []
    for row in rows:
        ids = torch.tensor([[tokenizer.cls_token_id, *row, tokenizer.sep_token_id]])
        features = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        with torch.inference_mode():
            vectors.append(model(features)["sentence_embedding"][0].numpy())
    return units(np.stack(vectors))


class PlainSearch:
    """Exact search in Cranfield, written without stickytoken.

    Args:
        model: Name or folder of the model.
        cranfield: Folder of Cranfield in the layout of BEIR.
    """

    def __init__(self, model: str, cranfield: Path) -> None:
        self.model = SentenceTransformer(model, device="cpu")
        rows = [row for row in json_lines(cranfield / "corpus.jsonl") if row["text"].strip()]
        self.texts = {row["_id"]: f"{row['title']} {row['text']}".strip() for row in rows}
        self.column_of = {document_id: column for column, document_id in enumerate(self.texts)}
        queries = {row["_id"]: row["text"] for row in json_lines(cranfield / "queries.jsonl")}
        self.queries = list(queries.values())
        judgements = (cranfield / "qrels" / "test.tsv").read_text("utf-8").splitlines()[1:]
        relevant = [line.split("\t") for line in judgements]
        self.answers = {(query, document) for query, document, score in relevant if int(score) > 0}
        self.query_ids = list(queries)
        self.query_vectors = units(self.model.encode(self.queries))
        self.similarities = self.query_vectors @ units(self.model.encode(list(self.texts.values()))).T

    def push(self, ids: list[str], vectors: NDArray[np.float64], token: str, depth: int) -> float:
        """Return in how many times as many wrong results documents are with other vectors.

        A document is compared with all others as they are. Queries that contain the token are left out.

        Args:
            ids: Ids of the documents.
            vectors: Unit vectors of these documents with copies.
            token: Text of the token, in lower case.
            depth: Number of first results.
        """
        lacks_token = np.array([token not in re.findall(r"\w+", query.casefold()) for query in self.queries])
        results_with, results_without = 0, 0
        for document_id, vector in zip(ids, vectors, strict=True):
            column = self.column_of[document_id]
            is_wrong = lacks_token & [(query, document_id) not in self.answers for query in self.query_ids]
            others = np.delete(self.similarities, column, axis=1)
            limits = np.sort(others, axis=1)[:, -depth]
            results_with += int(((self.query_vectors @ vector > limits) & is_wrong).sum())
            results_without += int(((self.similarities[:, column] > limits) & is_wrong).sum())
        return results_with / results_without

    def with_ids(self, ids: list[str], token_id: int) -> NDArray[np.float64]:
        """Return vectors of documents with copies as token ids, in front and behind in turn."""
        # The copies and two special tokens must fit into the model's limit; the document is cut if necessary.
        limit = (self.model.max_seq_length or 512) - 2 - COPIES
        rows = []
        for turn, document_id in enumerate(ids):
            content = self.model.tokenizer(self.texts[document_id], add_special_tokens=False)["input_ids"]
            copies = [token_id] * COPIES
            rows.append(content[:limit] + copies if turn % 2 else copies + content[:limit])
        return encoded(self.model, rows)

    def with_text(self, ids: list[str], token: str) -> NDArray[np.float64]:
        """Return vectors of documents with copies written as text, in front and behind in turn."""
        copies = " ".join([token] * COPIES)
        texts = []
        for turn, document_id in enumerate(ids):
            text = self.texts[document_id]
            texts.append(f"{text} {copies}" if turn % 2 else f"{copies} {text}")
        return units(self.model.encode(texts))


def check_time(results: Results, title: str, processor_seconds: float | None) -> None:
    """Check the processor time of an audit, unless it is None."""
    if processor_seconds is None:
        return
    most_processor_seconds = CORES * MOST_SECONDS
    bar = f"{most_processor_seconds} s of processor time"
    is_fast = processor_seconds <= most_processor_seconds
    results.check(title, bar, f"{processor_seconds:.0f} s", is_fast)


def main(
    tampered: Annotated[
        Path | None, typer.Option(help="Folder of a run of a tampered model; made if left out.")
    ] = None,
    clean: Annotated[
        Path | None, typer.Option(help="Folder of a run of the original model; made if left out.")
    ] = None,
    reuse: Annotated[bool, typer.Option(help="Open the newest audits of these runs.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of the choice of the word.")] = 5202,
    data: Annotated[Path, typer.Option(help="Folder of Cranfield in the layout of BEIR.")] = CRANFIELD,
    folder: Annotated[Path, typer.Option(help="Folder for the tampered model and the runs.")] = FOLDER,
) -> None:
    """Check the audits of a tampered and of the original model on Cranfield.

    In the tampered model, a random word is moved toward the queries. Its audit has to name the word first,
    with the push of a separate search. The audit of the original model has to call [CLS] sticky. Takes about
    ten minutes on two cores; half of that with finished runs; and a minute with --reuse.
    """
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


def check_tampered(results: Results, run: Path, cranfield: Path, reuse: bool) -> None:
    """Check that the planted word is sticky and named first, and that its push is that of the plain search.

    Args:
        results: Gets the checks.
        run: Folder of a run of the tampered model.
        cranfield: Folder of Cranfield in the layout of BEIR.
        reuse: Open the newest audit of the run, instead of a new audit.
    """
    model = open_run(run).model_name
    (planted,) = json.loads((Path(model) / "planted.json").read_text("utf-8"))
    audit, processor_seconds = audited(run, cranfield, reuse)
    first = audit.tokens.row(0, named=True)
    is_planted = first["token_id"] == planted["token_id"] and first["verdict"] == "sticky"
    conclusion = wording.conclusions(audit)[0]
    results.check("the planted word is sticky and named first", planted["token"], conclusion, is_planted)

    search = PlainSearch(model, cranfield)
    ids = audit.result.stuffed_ids
    vectors = search.with_ids(ids, planted["token_id"])
    plain = search.push(ids, vectors, planted["token"], audit.result.depth)
    row = audit.tokens.row(by_predicate=pl.col("token_id") == planted["token_id"], named=True)
    difference = abs(row["push"] - plain)
    title = "its push and that of a separate search differ by"
    results.check(title, "1e-6", f"{difference:.1e}", difference <= TOLERANCE, push=[row["push"], plain])
    check_time(results, "time, tampered model", processor_seconds)


def check_clean(results: Results, run: Path, cranfield: Path, reuse: bool) -> None:
    """Check that [CLS] is sticky in the original model, with the push of copies that are written as text.

    The arguments are as in `check_tampered`.
    """
    audit, processor_seconds = audited(run, cranfield, reuse)
    row = audit.tokens.row(by_predicate=pl.col("token") == "[CLS]", named=True)
    pushes = row["verdict"] == "sticky" and row["push_low"] >= audit.record.rule.smallest_push
    ours = f"{row['verdict']}, {row['push']:.2f} ({row['push_low']:.2f} to {row['push_high']:.2f})"
    results.check("the clean model: [CLS]", "sticky, because it pushes", ours, pushes)
    search = PlainSearch(str(resolve_model(open_run(run).model_name, None).location), cranfield)
    ids = audit.result.stuffed_ids
    plain = search.push(ids, search.with_text(ids, "[CLS]"), "[cls]", audit.result.depth)
    relative = abs(row["push"] / plain - 1)
    title = "its push and that of copies written as text differ by"
    is_close = relative <= TEXT_TOLERANCE
    results.check(title, f"{TEXT_TOLERANCE:.0%}", f"{relative:.0%}", is_close, push=[row["push"], plain])
    check_time(results, "time, clean model", processor_seconds)


if __name__ == "__main__":
    commands(__doc__, main)
