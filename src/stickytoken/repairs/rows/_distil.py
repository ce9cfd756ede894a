"""Rows by distillation from an entry's pieces.

After Dobler, Elliott and de Melo, "Token Distillation: Attention-aware Input Embeddings for New Tokens"
(2025): the model with the pieces is the teacher, the model with one new row in their place the student. The
paper matches hidden states of a language model; here pooled vectors are matched, with one copy and with many.
"""

from __future__ import annotations

import numpy as np
import torch

from stickytoken.repairs.rows._context import RowContext
from stickytoken.repairs.rows._contexts import contexts_among
from stickytoken.repairs.rows._embedding_table import EmbeddingTable
from stickytoken.repairs.rows._network import Network
from stickytoken.repairs.rows._training import Lesson, train
from stickytoken.unit_vectors import unit_vectors


def distilled_rows(table: EmbeddingTable, network: Network, context: RowContext) -> np.ndarray:
    """Train the rows of the entries that are repaired, shape (T, D), in the order of the table's pieces."""
    table.require_pieces()
    pieces = list(table.pieces.values())
    contexts = contexts_among(
        network.encoder, context.texts, list(table.pieces), max(map(len, pieces)), context.seed
    )
    filled = [each.filled(own) for each in contexts for own in pieces]
    taught = unit_vectors(network.encoder.encode_ids(filled)).reshape(len(contexts), len(pieces), -1)
    lessons = [
        Lesson(each, torch.from_numpy(targets).to(network.device))
        for each, targets in zip(contexts, taught, strict=True)
    ]
    start = np.stack([table.mean_of_pieces(own) for own in pieces])
    rows = train(network, torch.from_numpy(start).to(network.device), lessons, context.seed, context.progress)
    found: np.ndarray = rows.cpu().numpy()
    return found
