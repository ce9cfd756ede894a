"""Check the audit of a tampered model, and the audit of the original model, on Cranfield.

`plant.py` moves a word of all-MiniLM-L6-v2 toward the 225 queries of Cranfield. Sticky tokens are detected in
the tampered model, and the model is audited. The audit has to name the word first. The shares of queries that
the audit reports are compared with those of a separate search, in which sentence-transformers encodes the
texts and NumPy compares every query with every document. The original model is audited as well, and its audit
has to name no word.

Needs shared/planted and shared/data beside the project. Takes about fifteen minutes on two cores. Takes half
of that with the folders of finished runs, and a minute with --reuse, which opens the finished audits of these
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
from typing import Annotated, Any

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer

from bench import MINILM, SHARED, Results, commands, detected, json_lines, refuse, units
from stickytoken.audits import Audit, audits_in, open_audit, wording
from stickytoken.detection import open_run
from stickytoken.encoders import load_encoder
from stickytoken.encoders.loading.resolution import resolve_model

# Number of best documents of a query that count as its results.
TOP = 10
# An audit may take this many seconds on this many cores. Processor time is checked, because wall time depends
# on what else the machine does.
MOST_SECONDS = 300
CORES = 2
# Share of the way toward the queries that the word is moved.
STRENGTH = 0.8
# Largest difference between a share and that of the separate search.
TOLERANCE = 1e-6
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
        "--documents", cranfield / "corpus.jsonl", "--queries", cranfield / "queries.jsonl",
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
        self.queries = [row["text"] for row in json_lines(cranfield / "queries.jsonl")]
        document_vectors = units(self.model.encode(list(self.texts.values())))
        self.query_vectors = units(self.model.encode(self.queries))
        self.similarities = self.query_vectors @ document_vectors.T

    def share(self, ids: list[str], token_id: int, token: str, copies: int) -> float:
        """Return the share of queries that have a document with copies in their top 10.

        The copies are appended to one document at a time, and the shares are averaged over the documents.
        Queries that contain the token are left out, because they may well find documents with it.

        Args:
            ids: Ids of the documents that get copies.
            token_id: Id of the token.
            token: Text of the token, in lower case.
            copies: Number of copies.
        """
        # The copies and two special tokens must fit into the model's limit; the document is cut if necessary.
        longest = self.model.max_seq_length or 512
        limit = longest - 2 - copies
        rows = []
        for document_id in ids:
            content = self.model.tokenizer(self.texts[document_id], add_special_tokens=False)["input_ids"]
            rows.append(content[:limit] + [token_id] * copies)
        vectors = encoded(self.model, rows)
        column_of_document = {document_id: column for column, document_id in enumerate(self.texts)}
        queries_without_token = []
        for index, query in enumerate(self.queries):
            query_words = re.findall(r"\w+", query.casefold())
            if token not in query_words:
                queries_without_token.append(index)
        shares = []
        for document_id, vector in zip(ids, vectors, strict=True):
            column = column_of_document[document_id]
            similarities = self.similarities.copy()
            similarities[:, column] = self.query_vectors @ vector
            ranks = 1 + (similarities > similarities[:, [column]]).sum(axis=1)
            shares.append((ranks[queries_without_token] <= TOP).mean())
        return float(np.mean(shares))


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
    with the same shares of queries as a separate search. The audit of the original model has to name no word.
    Takes about fifteen minutes on two cores; half of that with finished runs; and a minute with --reuse.
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
    """Check that the planted word is named first, and that its shares are those of the plain search.

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
    first_conclusion = wording.conclusions(audit)[0]
    is_planted = first["token_id"] == planted["token_id"]
    is_named_first = is_planted and (first["helps"] or first["may_help"])
    results.check("the planted word is named first", planted["token"], first_conclusion, is_named_first)
    certainty = "with an interval above zero" if first["helps"] else "not with this number of documents"
    second_round_count = len(audit.result.second_round_tokens)
    results.check("it helps for certain", "beside it", certainty, measured_again=second_round_count)

    search = PlainSearch(model, cranfield)
    # A token of the second round has been measured in other documents than the tokens of the first.
    ids = audit.result.stuffed_ids
    if planted["token_id"] in audit.result.second_round_tokens:
        ids = list(audit.result.second_round_ids)
    # Shares of the audit and of the plain search, keyed by the number of copies.
    share_pairs: dict[str, Any] = {}
    for row in audit.shares.filter(token_id=planted["token_id"]).iter_rows(named=True):
        plain_share = search.share(ids, planted["token_id"], planted["token"], row["copies"])
        share_pairs[str(row["copies"])] = [row["share"], plain_share]
    largest = max(abs(share - plain_share) for share, plain_share in share_pairs.values())
    title = "its top-10 shares and those of a separate search differ by"
    results.check(title, "1e-6", f"{largest:.1e}", largest <= TOLERANCE, shares=share_pairs)
    check_time(results, "time, tampered model", processor_seconds)


def check_clean(results: Results, run: Path, cranfield: Path, reuse: bool) -> None:
    """Check that the audit of the original model names no word; the arguments are as in `check_tampered`."""
    audit, processor_seconds = audited(run, cranfield, reuse)
    conclusions = " ".join(wording.token_conclusions(audit))
    results.check("the clean model: no word helps", "none", conclusions, audit.helping.is_empty())
    check_time(results, "time, clean model", processor_seconds)


if __name__ == "__main__":
    commands(__doc__, main)
