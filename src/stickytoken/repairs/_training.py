"""Train new rows, so that one copy acts as before, but many copies act like copies of an ordinary entry."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from stickytoken.encoders.compute import model_lock
from stickytoken.encoders.sentence_transformer import SentenceTransformerEncoder
from stickytoken.errors import RepairError
from stickytoken.insertion import TokenizedText
from stickytoken.inspection.module_embedding import input_embeddings, sharing_weights
from stickytoken.measurement.engine import Progress, ProgressCallback
from stickytoken.methods.probes import Vector
from stickytoken.methods.statistics import Effects, fit_effects
from stickytoken.unit_vectors import unit_vectors

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


# Number of copies in the training texts with many copies. New rows are trained so that this many copies have
# the effect of as many copies of an ordinary entry.
MANY = 8
# Maximum number of texts that are added to the training texts to estimate the mean direction of texts.
_DIRECTION_TEXTS = 256
# Number of ordinary entries to sample. New rows are trained so that many copies have the median effect of
# these entries.
_ORDINARY_ENTRIES = 24
# Keys that are combined with the seed, so that entries and texts are chosen independently.
_ENTRIES_KEY = 1
_TEXTS_KEY = 2

# Shortest and longest preferred training text, in tokens. A row has the largest effect in a short text, and
# short texts take the least time to encode.
_SHORTEST = 4
_LONGEST = 9
# Maximum number of training texts per length, and maximum number of different lengths. All texts in a batch
# have the same length.
_TEXTS_PER_LENGTH = 4
_LENGTHS = 4
# Maximum number of randomly drawn texts from which the training texts are chosen.
_DRAWN_TEXTS = 4000

# Number of passes over the training texts.
_EPOCHS = 5
# Learning rate of Adam, as a fraction of the standard deviation of the values in the embedding matrix.
_LEARNING_RATE = 0.15


def keep_meaning_rows(
    network: Network,
    current_rows: NDArray[np.float32],
    entry_ids: Sequence[int],
    texts: Sequence[str],
    seed: int,
    progress: ProgressCallback,
) -> NDArray[np.float32]:
    """Train new rows that keep the effect of one copy, but limit many copies to an ordinary effect.

    These are the rows of the strategy ``keep-meaning``. The effect of copies on the vectors of texts is
    described by `Effects`: the contraction is the share of a text that the copies erase, and the pull is the
    vector that the copies add.

    Args:
        network: a frozen copy of the model.
        current_rows: the current rows, where training starts, shape (T, D).
        entry_ids: ids of the T entries that get a new row.
        texts: texts to train on.
        seed: seed for all random choices.
        progress: called after every training step.

    Returns:
        The trained rows, shape (T, D).
    """
    encoder = network.encoder
    contexts = contexts_among(encoder, texts, entry_ids, seed)
    # Measure the effect of copies of these entries, and of a random sample of other entries.
    measured = _measure_copies(network, contexts, entry_ids)
    excluded = set(entry_ids)
    usable = [token_id for token_id in encoder.usable_entries() if token_id not in excluded]
    order = np.random.default_rng([seed, _ENTRIES_KEY]).permutation(usable)
    ordinary = _measure_copies(network, contexts, order[:_ORDINARY_ENTRIES].tolist())
    mean_direction = _mean_direction(encoder, texts, contexts, seed)
    # The effects that many copies should have: an ordinary contraction, and an ordinary pull along the mean
    # direction.
    target_effects = _target_effects(measured.many_copies, ordinary.many_copies, mean_direction)
    # The target for a text with one copy is the vector that the model gives to this text with the current row
    # of the token. The target for a text with many copies follows from the vector without copies and the
    # target effects. The targets for each number of copies have shape (n, T, d), for n training texts. Each
    # text has one context with one copy and one with many copies, so there are 2n contexts.
    remaining_share = (1 - target_effects.contraction)[None, :, None]
    without_copies = measured.without_copies[:, None, :]
    many_copies = unit_vectors(remaining_share * without_copies + target_effects.pull[None, :, :])
    # The context of a text with one copy is followed by the context of the same text with many copies, so the
    # targets are interleaved in the same way: shape (n, 2, T, d), then (2n, T, d).
    target_vectors = np.stack([measured.one_copy, many_copies], axis=1)
    target_vectors = target_vectors.reshape(len(contexts), len(entry_ids), -1)
    targets = torch.from_numpy(target_vectors.astype(np.float32)).to(network.table.device)
    start = torch.from_numpy(current_rows).to(network.table.device)
    trained_rows = _trained_rows(network, start, contexts, targets, seed, progress)
    return np.asarray(trained_rows.cpu().numpy(), dtype=np.float32)


def _ids_without_copies(contexts: Sequence[Context]) -> list[tuple[int, ...]]:
    """Return the token ids of each training text without copies.

    Every text has two consecutive contexts, so the texts of every second context are returned.
    """
    return [context.text.ids for context in contexts[::2]]


def _mean_direction(
    encoder: SentenceTransformerEncoder, texts: Sequence[str], contexts: Sequence[Context], seed: int
) -> Vector:
    """Return the direction of the texts' mean vector, as a unit vector of shape (d,).

    The direction is estimated from the training texts and from the shortest of a random sample of all texts,
    because the training texts alone are too few.
    """
    distinct = list(dict.fromkeys(texts))
    order = np.random.default_rng([seed, _TEXTS_KEY]).permutation(len(distinct))
    sample = [distinct[index] for index in order[: 2 * _DIRECTION_TEXTS]]
    fitting = [tuple(ids) for ids in encoder.content_ids(sample) if ids and encoder.fits(ids)]
    # Short texts take the least time to encode.
    shortest = sorted(fitting, key=len)[:_DIRECTION_TEXTS]
    vectors = unit_vectors(encoder.encode_ids([*shortest, *_ids_without_copies(contexts)]))
    mean = vectors.mean(axis=0, dtype=np.float64)
    direction: Vector = mean / np.linalg.norm(mean)
    return direction


class _CopyMeasurements(NamedTuple):
    """How copies of T entries change the vectors of n texts.

    Attributes:
        without_copies: unit vectors of the texts without copies, shape (n, d).
        one_copy: unit vectors of the texts with one copy of each entry, shape (n, T, d).
        many_copies: the effect of `MANY` copies of each entry: the share of a text that they erase, and the
            vector that they add.
    """

    without_copies: NDArray[np.float32]
    one_copy: NDArray[np.float32]
    many_copies: Effects


def _measure_copies(network: Network, contexts: Sequence[Context], ids: Sequence[int]) -> _CopyMeasurements:
    """Encode each text without copies, with one copy and with many copies of each entry.

    Args:
        network: a frozen copy of the model.
        contexts: two consecutive contexts for each of n texts: first with one copy, then with many copies.
        ids: ids of the T entries.

    Returns:
        The unit vectors without copies and with one copy, and the effects that are fitted to the vectors with
        many copies.
    """
    encoder = network.encoder
    without_copies = unit_vectors(encoder.encode_ids(_ids_without_copies(contexts)))  # shape (n, d)
    filled = [context.filled((token_id,)) for context in contexts for token_id in ids]
    with_copies = unit_vectors(encoder.encode_ids(filled)).reshape(len(contexts), len(ids), -1)
    # Every second context has one copy, and the contexts between them have many. Both have shape (n, T, d).
    one_copy = with_copies[::2]
    many_copies = with_copies[1::2]
    many_by_entry = many_copies.transpose(1, 0, 2)  # shape (T, n, d), as `fit_effects` needs it
    return _CopyMeasurements(without_copies, one_copy, fit_effects(without_copies, many_by_entry))


def _target_effects(current: Effects, ordinary: Effects, mean_direction: Vector) -> Effects:
    """Return the effect that many copies of each entry should have after training.

    Two parts of the effect are set to their medians over ordinary entries: the contraction, which is the
    share of a text that copies erase, and the component of the pull along the mean direction of texts. The
    pull is the vector that copies add. All other components of the pull stay unchanged.

    Args:
        current: current effect of many copies of the entries.
        ordinary: effect of many copies of ordinary entries.
        mean_direction: the mean direction of texts, a unit vector of shape (d,).
    """
    contraction = np.full(len(current.contraction), np.median(ordinary.contraction))
    ordinary_component = float(np.median(ordinary.pull @ mean_direction))
    missing_component = ordinary_component - current.pull @ mean_direction
    return Effects(contraction, current.pull + missing_component[:, None] * mean_direction)


def _trained_rows(
    network: Network,
    start: torch.Tensor,
    contexts: Sequence[Context],
    targets: torch.Tensor,
    seed: int,
    progress: ProgressCallback,
) -> torch.Tensor:
    """Train rows with Adam: minimize the squared distances between the vectors of texts and their targets.

    Args:
        network: a frozen copy of the model.
        start: the rows to start from, shape (T, D).
        contexts: the training texts, with the place and number of copies in each.
        targets: unit vectors that the texts with copies should have, shape (number of contexts, T, d).
        seed: seed for the order of the batches.
        progress: called after every step.

    Returns:
        The trained rows, shape (T, D).
    """
    generator = np.random.default_rng([seed])
    batches: dict[tuple[int, int], list[int]] = {}
    # `Network.vectors` ignores the ids of copies, because rows replace their embeddings.
    any_id = 0
    for number, context in enumerate(contexts):
        # All texts of a batch have the same length and the same number of copies.
        length = len(context.filled((any_id,)))
        batches.setdefault((context.copies, length), []).append(number)
    groups = list(batches.values())
    order: list[int] = []
    for _ in range(_EPOCHS):
        order += generator.permutation(len(groups)).tolist()
    # A batch with many copies must come first. The initial loss of single copies is only rounding error,
    # which Adam would scale up to full steps.
    first = next(group for group in order if contexts[groups[group][0]].copies == MANY)
    order.remove(first)
    order.insert(0, first)
    rows = start.detach().clone().requires_grad_(True)
    step_size = _LEARNING_RATE * float(network.table.std())
    optimizer = torch.optim.Adam([rows], lr=step_size, betas=(0.9, 0.99))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, len(order))
    with torch.enable_grad():
        for step, group in enumerate(order, 1):
            batch = [contexts[number] for number in groups[group]]
            # One text per pair of a context and a row: the first context with each row, then the second
            # context with each row, and so on.
            contents = [context.filled((any_id,)) for context in batch for _ in rows]
            vectors = network.vectors(contents, rows, _row_positions(batch, len(rows)))
            targets_of_batch = targets[groups[group]].flatten(0, 1)
            # Mean over contexts and sum over rows, so that each row is updated as if it were trained alone.
            distance: Any = ((vectors - targets_of_batch) ** 2).sum() / len(batch)
            optimizer.zero_grad()
            distance.backward()
            optimizer.step()
            schedule.step()
            progress(Progress("rows", step, len(order), step))
    return rows.detach()


def _row_positions(batch: Sequence[Context], rows: int) -> torch.Tensor:
    """Return the index of the trained row that replaces the embedding at each position of each text.

    Args:
        batch: contexts of equal length.
        rows: number of trained rows, T. The batch has T texts for each context: the first text has copies of
            row 0, the second of row 1, and so on.

    Returns:
        Row indices, shape (contexts times T, length); -1 where the embedding is not replaced. Example: for a
        context with two copies after two other tokens, and T = 2, the texts are [-1, -1, 0, 0] and
        [-1, -1, 1, 1].
    """
    not_an_id = -1
    row_indices = []
    for context in batch:
        # Insert copies of a placeholder that is not a token id, to find the positions of the copies.
        is_copy = np.array(context.filled((not_an_id,))) == not_an_id
        row_indices += [np.where(is_copy, row, -1) for row in range(rows)]
    return torch.from_numpy(np.stack(row_indices))


@dataclass(frozen=True)
class Context:
    """A training text, and where and how often a token is inserted into it."""

    text: TokenizedText
    gap: int  # number of words before the copies
    copies: int  # number of copies

    def filled(self, ids: Sequence[int]) -> tuple[int, ...]:
        """Return the token ids of the text with `copies` repetitions of ``ids`` in the gap."""
        words = self.text.words
        copies = tuple(ids) * self.copies
        return replace(self.text, words=(*words[: self.gap], copies, *words[self.gap :])).ids


def contexts_among(
    encoder: SentenceTransformerEncoder, texts: Sequence[str], avoided: Sequence[int], seed: int
) -> list[Context]:
    """Choose short texts to train on.

    Args:
        encoder: the model.
        texts: the texts to choose from.
        avoided: ids of entries that the chosen texts must not contain.
        seed: seed for the choice of texts and gaps.

    Returns:
        Two consecutive contexts per text: first one copy in a random gap, then many copies at the end.

    Raises:
        RepairError: no text without these entries fits into the model with `MANY` copies added.
    """
    generator = np.random.default_rng([seed])
    distinct = list(dict.fromkeys(texts))
    candidates = [distinct[place] for place in generator.permutation(len(distinct))[:_DRAWN_TEXTS]]
    by_length: dict[int, list[TokenizedText]] = {}
    for text in encoder.tokenize(candidates):
        usable = text.words and set(avoided).isdisjoint(text.ids)
        if usable and encoder.fits((*text.ids, *text.ids[:1] * MANY)):
            by_length.setdefault(len(text.ids) - len(text.head), []).append(text)
    if not by_length:
        raise RepairError(
            f"none of the {len(distinct)} texts can be used for training: a text must fit into the model "
            f"with {MANY} copies added, and must not contain a repaired token; pass short sentences"
        )
    # Take the most frequent of the preferred lengths. If no text has one of these, take the shortest lengths.
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


# Maximum relative difference between the scaled rows and the output of the embedding layer. A larger
# difference cannot be a rounding error, so the layer does more than scale its rows.
_ROUNDING = 1e-3
# Number of rows whose scaled values are compared with the output of the embedding layer. A few rows suffice,
# because the layer treats all rows in the same way.
_CHECKED_ROWS = 64


class Network:
    """A frozen copy of a model, in single precision, that can encode texts with replaced token embeddings.

    Weights that are already in single precision are shared with the original model, not copied.

    Args:
        model: the original model, which is not changed.

    Attributes:
        encoder: an encoder that runs the frozen copy of the model.
        table: the token embeddings, shape (V, D).

    Raises:
        RepairError: the model is static, or its embedding layer does more than multiply its rows by a
            constant.
    """

    def __init__(self, model: SentenceTransformer) -> None:
        """Copy the model, and find the constant by which its embedding layer multiplies its rows."""
        with model_lock(model):
            # If the id of an object is a key of this dict, `deepcopy` uses the value instead of a copy. Each
            # parameter is replaced by a parameter in single precision without gradients.
            replacements: dict[int, Any] = {
                id(parameter): torch.nn.Parameter(parameter.detach().float(), requires_grad=False)
                for parameter in model.parameters()
            }
            # The tokenizer is shared, because it does not change and some classes cannot be copied.
            replacements[id(model.tokenizer)] = model.tokenizer
            self._model = copy.deepcopy(model, replacements).float().eval()
        self.encoder = SentenceTransformerEncoder(self._model, "the model")
        if self.encoder.template.flat:
            raise RepairError(
                "a static embedding model encodes each token independently of the text, so no row can be "
                "trained on texts: use the strategy relatives"
            )
        embedding: Any = input_embeddings(self._model)
        # The model may call an embedding module that shares its weights with the declared module.
        self._embedding_modules = sharing_weights(self._model, embedding)
        self.table: torch.Tensor = embedding.weight.detach()
        first_ids = torch.arange(min(_CHECKED_ROWS, len(self.table)), device=self.table.device)
        rows = self.table[first_ids]
        output = embedding(first_ids[None])[0].detach()
        # Least-squares estimate of the factor by which the layer multiplies its rows.
        self._scale = float((rows * output).sum() / (rows * rows).sum())
        if float((output - self._scale * rows).norm()) > _ROUNDING * float(output.norm()):
            raise RepairError(
                "the embedding layer of the model does more than scale its rows: use the strategy relatives"
            )

    def vectors(
        self, contents: Sequence[tuple[int, ...]], rows: torch.Tensor, positions: torch.Tensor
    ) -> torch.Tensor:
        """Encode texts with ``rows`` in place of some token embeddings. Gradients flow back to the rows.

        Args:
            contents: token ids of the texts. At a position where a row replaces the embedding, the id is
                ignored and may be any id.
            rows: the rows, shape (T, D).
            positions: index of the row that replaces the embedding at each position of each text; -1 where
                the embedding is not replaced.

        Returns:
            Unit vectors, shape (number of texts, d).
        """
        # The special tokens that the model adds before and after every text keep their own embeddings.
        template = self.encoder.template
        special_counts = (len(template.before), len(template.after))
        row_numbers = torch.nn.functional.pad(positions.to(self.table.device), special_counts, value=-1)
        is_replaced = (row_numbers >= 0)[..., None]
        embedded = (rows * self._scale)[row_numbers.clamp(min=0)]
        called_modules: list[Any] = []

        def with_rows(module: Any, inputs: Any, output: torch.Tensor) -> torch.Tensor:
            called_modules.append(module)
            return torch.where(is_replaced, embedded.to(output.dtype), output)

        handles = [module.register_forward_hook(with_rows) for module in self._embedding_modules]
        try:
            vectors: torch.Tensor = self._model(self.encoder.features(contents))["sentence_embedding"]
        finally:
            for handle in handles:
                handle.remove()
        if not called_modules:
            raise RepairError(
                "the model does not use the token embeddings that it declares: no row can be trained"
            )
        return torch.nn.functional.normalize(vectors[:, : self._model.truncate_dim], dim=1)
