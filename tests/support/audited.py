"""An index whose queries point toward the sticky word of its model, and audits of it."""

import numpy as np
import polars as pl
import torch

import profiled
import scanned
from stickytoken import load_encoder
from stickytoken.audits import AuditSettings, open_audit

SMALL = AuditSettings(stuffed=16, tokens=2)
TOP = 10
COPIES = 8
# Every query contains this word, and no document does.
MARKER = profiled.WORDS[1]
WORDS = [word for word in scanned.OTHER if word != scanned.STICKY]


def save_run(folder, strength):
    """Save a run of a model whose queries have a direction of their own, as has the sticky word."""
    model = profiled.planted_model(0)
    rows = model[0].embedding.weight.data
    toward_queries = torch.eye(rows.shape[1])[1]
    rows[model.tokenizer.token_to_id(MARKER)] = 2 * toward_queries
    if strength:
        rows[model.tokenizer.token_to_id(scanned.STICKY)] = strength * toward_queries
    model.save(str(folder / "model"))
    encoder = load_encoder(folder / "model", device="cpu")
    return profiled.detect_profile(encoder, folder / "run").path


def unit_rows(encoder, texts):
    vectors = encoder.encode(texts).astype(np.float64)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def plain_ranks(encoder, texts, queries, replaced, new_text):
    """Rank a text that replaces one of the documents, by sorting all similarities for each query."""
    documents = unit_rows(encoder, [*texts[:replaced], new_text, *texts[replaced + 1 :]])
    similarities = unit_rows(encoder, queries) @ documents.T
    above = similarities > similarities[:, [replaced]]
    return (1 + above.sum(axis=1)).tolist()


def plain_ranks_of_all(encoder, texts, queries, numbers, word):
    """Ranks of documents with copies in front and behind in turn, and without any; (documents, queries)."""
    with_copies, without = [], []
    for turn, number in enumerate(numbers):
        copies = [word] * COPIES
        pieces = [texts[number], *copies] if turn % 2 else [*copies, texts[number]]
        with_copies.append(plain_ranks(encoder, texts, queries, number, " ".join(pieces)))
        without.append(plain_ranks(encoder, texts, queries, number, texts[number]))
    return np.array(with_copies), np.array(without)


def stuffed_numbers(measured, row=None):
    """The positions of the documents that got copies, or those of the token in this row."""
    ids = measured.result.stuffed_ids
    if row is not None and row["documents"] > len(ids):
        ids = measured.result.further_ids
    return [int(document_id.removeprefix("d")) for document_id in ids]


def with_verdicts(finished, **columns):
    changed = open_audit(finished.path)
    changed.tokens = changed.tokens.with_columns(
        verdict=pl.lit("benign"), undecided=pl.lit(value=False), **columns
    )
    return changed


def without_copies(changed):
    changed.documents = changed.documents.clear()
    changed.result = changed.result.model_copy(update={"with_copies": 0, "causes": {}})
    return changed
