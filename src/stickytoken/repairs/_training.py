"""Rows that keep what one copy does, and let many copies act as those of an ordinary entry."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from stickytoken.encoders.compute import exclusive
from stickytoken.encoders.sentence_transformer import SentenceTransformerEncoder
from stickytoken.errors import RepairError
from stickytoken.insertion import TokenizedText
from stickytoken.inspection.module_embedding import input_embeddings, sharing_weights
from stickytoken.measurement.engine import Progress, ProgressCallback
from stickytoken.methods.probes import Vector
from stickytoken.methods.statistics import Pull, fit_pull
from stickytoken.unit_vectors import unit_vectors

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


MANY = 8  # copies that show what many do
# Texts that show the direction that all texts share.
_TEXTS = 256
# Ordinary entries whose effect the rows aim at.
_ORDINARY_ENTRIES = 24
# Keys of the generators, which make the draws independent.
_ENTRIES_KEY = 1
_TEXTS_KEY = 2

# Lengths of the texts to train in, in tokens: a row shows most in a short text, which is also the cheapest.
_SHORTEST = 4
_LONGEST = 9
# Texts of equal length form a batch: so many of each length, and so many lengths.
_TEXTS_PER_LENGTH = 4
_LENGTHS = 4
# Texts that are drawn to find them.
_DRAWN_TEXTS = 4000

# Passes over the contexts. Adam's first step of a row is this share of the spread of the matrix.
_EPOCHS = 5
_STEP = 0.15


def kept_rows(
    network: Network,
    present: NDArray[np.float32],
    asked: Sequence[int],
    texts: Sequence[str],
    seed: int,
    progress: ProgressCallback,
) -> NDArray[np.float32]:
    """Train the rows of entries, from their present ones, shape (T, D)."""
    encoder = network.encoder
    contexts = contexts_among(encoder, texts, asked, seed)
    before, single, now = _measure(network, contexts, asked)
    usable = [token_id for token_id in encoder.usable_entries() if token_id not in set(asked)]
    order = np.random.default_rng([seed, _ENTRIES_KEY]).permutation(usable)
    _, _, ordinary = _measure(network, contexts, order[:_ORDINARY_ENTRIES].tolist())
    aim = _aim(now, ordinary, _common_direction(encoder, texts, contexts, seed))
    many = (1 - aim.contraction)[None, :, None] * before[:, None, :] + aim.pull[None, :, :]
    wanted = np.stack([single, unit_vectors(many)], axis=1).reshape(len(contexts), len(asked), -1)
    targets = torch.from_numpy(wanted.astype(np.float32)).to(network.table.device)
    start = torch.from_numpy(present).to(network.table.device)
    trained = _train(network, start, contexts, targets, seed, progress)
    return np.asarray(trained.cpu().numpy(), dtype=np.float32)


def _common_direction(
    encoder: SentenceTransformerEncoder, texts: Sequence[str], contexts: Sequence[Context], seed: int
) -> Vector:
    """Return the direction that texts share, a unit vector of shape (d,)."""
    # The contexts alone are too few to show it.
    distinct = list(dict.fromkeys(texts))
    order = np.random.default_rng([seed, _TEXTS_KEY]).permutation(len(distinct))
    tokenized = encoder.content_ids([distinct[place] for place in order[: 2 * _TEXTS]])
    fitting = [tuple(ids) for ids in tokenized if ids and encoder.fits(ids)]
    shortest = sorted(fitting, key=len)[:_TEXTS]
    of_contexts = [context.text.ids for context in contexts[::2]]
    mean = unit_vectors(encoder.encode_ids([*shortest, *of_contexts])).mean(axis=0, dtype=np.float64)
    direction: Vector = mean / np.linalg.norm(mean)
    return direction


def _measure(
    network: Network, contexts: Sequence[Context], ids: Sequence[int]
) -> tuple[NDArray[np.float32], NDArray[np.float32], Pull]:
    """Encode the texts without copies, with one copy of each entry, and fit what many copies do."""
    encoder = network.encoder
    before = unit_vectors(encoder.encode_ids([context.text.ids for context in contexts[::2]]))
    filled = [context.filled((token_id,)) for context in contexts for token_id in ids]
    after = unit_vectors(encoder.encode_ids(filled)).reshape(len(contexts), len(ids), -1)
    return before, after[::2], fit_pull(before, after[1::2].transpose(1, 0, 2))


def _aim(now: Pull, ordinary: Pull, common: Vector) -> Pull:
    """Contract as ordinary entries do, and pull as they do along the direction that texts share."""
    contraction = np.full(len(now.contraction), np.median(ordinary.contraction))
    share = float(np.median(ordinary.pull @ common))
    return Pull(contraction, now.pull + (share - now.pull @ common)[:, None] * common)


def _train(
    network: Network,
    start: torch.Tensor,
    contexts: Sequence[Context],
    targets: torch.Tensor,
    seed: int,
    progress: ProgressCallback,
) -> torch.Tensor:
    """Move rows by Adam so that squared distances between vectors and targets (contexts, T, d) shrink."""
    generator = np.random.default_rng([seed])
    batches: dict[tuple[int, int], list[int]] = {}
    for number, context in enumerate(contexts):  # together: equally long, with as many copies
        length = len(context.filled((0,)))
        batches.setdefault((context.copies, length), []).append(number)
    groups = list(batches.values())
    order: list[int] = []
    for _ in range(_EPOCHS):
        order += generator.permutation(len(groups)).tolist()
    # Until the rows move, single copies do what they should: Adam would make whole steps of their rounding.
    first = next(group for group in order if contexts[groups[group][0]].copies == MANY)
    order.remove(first)
    order.insert(0, first)
    rows = start.detach().clone().requires_grad_(True)
    step_size = _STEP * float(network.table.std())
    optimizer = torch.optim.Adam([rows], lr=step_size, betas=(0.9, 0.99))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, len(order))
    with torch.enable_grad():
        for step, group in enumerate(order, 1):
            batch = [contexts[number] for number in groups[group]]
            contents = [context.filled((0,)) for context in batch for _ in rows]
            vectors = network.vectors(contents, rows, _row_positions(batch, len(rows)))
            # Mean over contexts, sum over rows: so each row moves as if it were trained alone.
            distance: Any = ((vectors - targets[groups[group]].flatten(0, 1)) ** 2).sum() / len(batch)
            optimizer.zero_grad()
            distance.backward()
            optimizer.step()
            schedule.step()
            progress(Progress("rows", step, len(order), step))
    return rows.detach()


def _row_positions(batch: Sequence[Context], rows: int) -> torch.Tensor:
    """Mark which row stands at each position of each text; -1 where a token of the text stands."""
    positions = []
    for context in batch:
        is_copy = np.array(context.filled((-1,))) < 0
        positions += [np.where(is_copy, row, -1) for row in range(rows)]
    return torch.from_numpy(np.stack(positions))


@dataclass(frozen=True)
class Context:
    """A text, the gap between its words that copies go into, and their number."""

    text: TokenizedText
    gap: int
    copies: int

    def filled(self, ids: Sequence[int]) -> tuple[int, ...]:
        """Return the ids of the text with copies of some ids in it."""
        words = self.text.words
        copies = tuple(ids) * self.copies
        return replace(self.text, words=(*words[: self.gap], copies, *words[self.gap :])).ids


def contexts_among(
    encoder: SentenceTransformerEncoder, texts: Sequence[str], avoided: Sequence[int], seed: int
) -> list[Context]:
    """Choose short texts, each once with one copy at a random gap and once with many copies at its end."""
    generator = np.random.default_rng([seed])
    distinct = list(dict.fromkeys(texts))
    drawn = [distinct[place] for place in generator.permutation(len(distinct))[:_DRAWN_TEXTS]]
    by_length: dict[int, list[TokenizedText]] = {}
    for text in encoder.tokenize(drawn):
        usable = text.words and set(avoided).isdisjoint(text.ids)
        if usable and encoder.fits((*text.ids, *text.ids[:1] * MANY)):
            by_length.setdefault(len(text.ids) - len(text.head), []).append(text)
    if not by_length:
        raise RepairError(
            f"none of the {len(distinct)} texts to train rows in fits the model with {MANY} copies: pass "
            "short sentences"
        )
    # The lengths of the most texts; the shortest texts if none is short.
    lengths = [length for length in by_length if _SHORTEST <= length <= _LONGEST]
    if not lengths:
        lengths = sorted(by_length)[:_LENGTHS]
    most_frequent = sorted(lengths, key=lambda length: (-len(by_length[length]), length))[:_LENGTHS]
    contexts = []
    for length in sorted(most_frequent):
        for text in by_length[length][:_TEXTS_PER_LENGTH]:
            gap = int(generator.integers(len(text.words) + 1))
            contexts.append(Context(text, gap, 1))
            contexts.append(Context(text, len(text.words), MANY))
    return contexts


# Largest relative difference between a scaled row and the output of the embedding.
_ROUNDING = 1e-3


class Network:
    """A frozen copy of a model in single precision; weights in single precision are shared, not copied."""

    def __init__(self, model: SentenceTransformer) -> None:
        with exclusive(model):
            shared: dict[int, Any] = {
                id(parameter): torch.nn.Parameter(parameter.detach().float(), requires_grad=False)
                for parameter in model.parameters()
            }
            # The tokenizer does not change, and some classes cannot be copied.
            shared[id(model.tokenizer)] = model.tokenizer
            self._model = copy.deepcopy(model, shared).float().eval()
        self.encoder = SentenceTransformerEncoder(self._model, "the model", packed_layers=False)
        if self.encoder.template.flat:
            raise RepairError("a static embedding model has no contexts to train a row in: use relatives")
        embedding: Any = input_embeddings(self._model)
        self._embeddings = sharing_weights(self._model, embedding)
        self.table: torch.Tensor = embedding.weight.detach()
        sample = torch.arange(min(64, len(self.table)), device=self.table.device)
        rows = self.table[sample]
        output = embedding(sample[None])[0].detach()
        self._scale = float((rows * output).sum() / (rows * rows).sum())
        if float((output - self._scale * rows).norm()) > _ROUNDING * float(output.norm()):
            raise RepairError(
                "the token embeddings of the model are not its rows times a number: use relatives"
            )

    def vectors(
        self, contents: Sequence[tuple[int, ...]], rows: torch.Tensor, positions: torch.Tensor
    ) -> torch.Tensor:
        """Encode texts with rows in the place of some of their tokens; gradients flow to the rows.

        Args:
            contents: ids of the texts, with any token where a row goes.
            rows: shape (T, D).
            positions: row at each position of each text; -1 where the text's own token stays.

        Returns:
            Unit vectors, shape (number of texts, d).
        """
        template = self.encoder.template
        around = (len(template.before), len(template.after))
        whole = torch.nn.functional.pad(positions.to(self.table.device), around, value=-1)
        replaced = (whole >= 0)[..., None]
        embedded = (rows * self._scale)[whole.clamp(min=0)]
        called: list[Any] = []

        def put_in(module: Any, inputs: Any, output: torch.Tensor) -> torch.Tensor:
            called.append(module)
            return torch.where(replaced, embedded.to(output.dtype), output)

        handles = [module.register_forward_hook(put_in) for module in self._embeddings]
        try:
            vectors: torch.Tensor = self._model(self.encoder.features(contents))["sentence_embedding"]
        finally:
            for handle in handles:
                handle.remove()
        if not called:
            raise RepairError(
                "the model does not use the token embeddings that it declares: no row can be trained"
            )
        return torch.nn.functional.normalize(vectors[:, : self._model.truncate_dim], dim=1)
