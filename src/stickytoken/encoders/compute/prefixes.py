"""Compute each common prefix of a causal model's inputs only once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from stickytoken.encoders.compute.batches import BatchEngine

_LOG = logging.getLogger(__name__)


@dataclass(eq=False)
class Branch:
    """A branch of an input tree. It holds the tokens that follow those shared with the parent branch."""

    parent: Branch | None  # the branch from which this one splits off; None for a root
    shared: int  # number of tokens from the root to the start of this branch
    tokens: tuple[int, ...]
    # Pairs (length, row) of the inputs that end on this branch. The length includes the shared tokens.
    ends: list[tuple[int, int]] = field(default_factory=list)
    # Branches that split off from this one, keyed by the number of tokens before them and by their first
    # token.
    continuations: dict[tuple[int, int], Branch] = field(default_factory=dict)

    @property
    def length(self) -> int:
        """Number of tokens from the root to the end of the branch."""
        return self.shared + len(self.tokens)

    @property
    def end_lengths(self) -> tuple[int, ...]:
        """Lengths of the inputs that end on this branch, in ascending order."""
        return tuple(sorted(length for length, _ in self.ends))

    @property
    def end_rows(self) -> list[int]:
        """Rows of the inputs that end on this branch, in ascending order of length."""
        return [row for _, row in sorted(self.ends)]

    def has(self, position: int, token: int) -> bool:
        """Return whether the branch has this token at this position, counted from the root."""
        return position < self.length and self.tokens[position - self.shared] == token


def grow(inputs: Sequence[tuple[int, ...]]) -> list[Branch]:
    """Build trees that contain every common prefix of the inputs once, and return their roots."""
    roots: dict[tuple[int, int], Branch] = {}

    def longest_first(row: int) -> tuple[int, tuple[int, ...]]:
        return (-len(inputs[row]), inputs[row])

    for row in sorted(range(len(inputs)), key=longest_first):
        tokens = inputs[row]
        branch: Branch | None = None
        length = 0  # how many of this input's tokens are already in a tree
        while length < len(tokens):
            token = tokens[length]
            if branch is not None and branch.has(length, token):
                length += 1
                continue
            continuations = roots if branch is None else branch.continuations
            if (length, token) in continuations:
                branch = continuations[length, token]
                length += 1
            else:
                branch = Branch(branch, length, tokens[length:])
                continuations[length, token] = branch
                length = len(tokens)
        if branch is not None:
            branch.ends.append((length, row))
    return list(roots.values())


def levels(roots: Sequence[Branch]) -> Iterator[list[Branch]]:
    """Yield the roots, then the branches that split off from them, and so on."""
    level = list(roots)
    while level:
        yield level
        level = [child for branch in level for child in branch.continuations.values()]


def _branches(roots: Sequence[Branch]) -> Iterator[Branch]:
    for level in levels(roots):
        yield from level


# The forms of attention mask that architectures expect: one full mask, one mask with a sliding window, or one
# mask for each kind of layer.
_ONE = "one"
_WINDOW = "window"
_BY_KIND = "by kind"
_MASKS = {
    "llama": _ONE,
    "mistral": _WINDOW,
    "phi3": _WINDOW,
    "qwen2": _BY_KIND,
    "qwen3": _BY_KIND,
    "gemma2": _BY_KIND,
}
# Implementations of attention that accept these masks.
_ATTENTION = ("sdpa", "eager")
# Largest accepted difference between a component computed with reuse and the same component computed without
# it, as a fraction of the largest vector norm.
_TOLERANCE = 1e-4

# Keys and values of a branch, including its shared tokens: one pair per layer. Both have the shape (heads,
# tokens, d).
KeysAndValues: TypeAlias = list[tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True, slots=True)
class ReuseLimits:
    """Limits for the reuse of common prefixes. Beyond these limits, reuse costs more than it saves."""

    tree_share: float = 0.8  # trees are used only if at most this share of all tokens is left to compute
    fixed_share: float = 0.1  # fixed beginnings are reused only if they contain at least this share of tokens
    rows: int = 4  # fixed beginnings are reused only if a prompt has at least this many inputs


REUSE = ReuseLimits()


def known_kind(backbone: Any) -> bool:
    """Return whether this module knows which attention masks the model's architecture expects."""
    config = backbone.config
    return (
        config.model_type in _MASKS
        and getattr(config, "_attn_implementation", None) in _ATTENTION
        and not getattr(config, "use_bidirectional_attention", False)
    )


def agree(vectors: NDArray[np.float32], plain: NDArray[np.float32], rounding: float) -> bool:
    """Return whether vectors are close to those without reuse; ``rounding`` is the machine epsilon."""
    tolerance = max(_TOLERANCE, 4 * rounding) * np.linalg.norm(plain, axis=-1).max()
    return bool(np.abs(vectors - plain).max() <= tolerance)


def samples_of(carrier: tuple[int, ...], tokens: Sequence[int]) -> list[tuple[int, ...]]:
    """Return sample inputs: a carrier followed by one to three copies of each token, or preceded by them."""
    copies = [(token,) * count for token in tokens for count in (1, 2, 3)]
    copies_after = [carrier + row for row in copies]
    copies_before = [row + carrier for row in copies]
    return copies_after + copies_before


@dataclass
class PrefixReuse:
    """Computes inputs as trees, if the vectors of a few samples are then the same as without trees."""

    backbone: Any  # backbone of a causal model
    before: tuple[int, ...]  # the template's tokens before the content of an input
    after: tuple[int, ...]  # the template's tokens after the content of an input
    # Returns the backbone's states for its inputs, shape (rows, tokens, d).
    states: Callable[[dict[str, Any]], torch.Tensor]
    # Turns the states at the ends of inputs, shape (n, 1, d), into vectors, shape (n, components).
    finish: Callable[[torch.Tensor], torch.Tensor]
    engine: BatchEngine  # supplies the token budget, and the name and device for messages
    limits: ReuseLimits
    samples: Sequence[tuple[int, ...]]  # sample contents, on which trees are tested
    # Computes the vectors of inputs without trees, from their content ids.
    plain: Callable[[Sequence[tuple[int, ...]]], NDArray[np.float32]]
    rounding: float  # machine epsilon of the arithmetic
    memory_left: bool = True  # false once trees have run out of memory

    def shared(self, contents: Sequence[tuple[int, ...]], cached: int = 0) -> NDArray[np.float32] | None:
        """Return the vectors of distinct inputs, or None if trees save too little or cannot be used.

        ``contents`` are the content ids of the inputs. ``cached`` is the number of tokens at the beginning of
        each input whose states are already cached, so that they would be skipped without trees too.
        """
        roots = self.trees(contents, cached) if self.memory_left else None
        if not roots or not self._agrees:
            return None
        try:
            return self.vectors(roots, len(contents))
        except torch.OutOfMemoryError:
            # Trees need additional memory for keys and values.
            self.memory_left = False
            _LOG.warning(
                "%s: out of memory on %s, continuing without reuse", self.engine.name, self.engine.device
            )
            return None

    @cached_property
    def _agrees(self) -> bool:
        """Whether the samples have the same vectors with and without trees."""
        roots = self.trees(self.samples)
        if roots is None:
            return False
        return agree(self.vectors(roots, len(self.samples)), self.plain(self.samples), self.rounding)

    def trees(self, contents: Sequence[tuple[int, ...]], cached: int = 0) -> list[Branch] | None:
        """Return the roots of the inputs' trees, or None if the trees save too few tokens."""
        inputs = [(*self.before, *content) for content in contents]
        if not all(inputs):
            return None
        roots = grow(inputs)
        plain_tokens = sum(map(len, inputs)) + (len(self.after) - cached) * len(inputs)
        tree_tokens = sum(len(branch.tokens) for branch in _branches(roots))
        computed_tokens = tree_tokens + len(self.after) * len(inputs)
        return roots if computed_tokens <= self.limits.tree_share * plain_tokens else None

    def vectors(self, roots: Sequence[Branch], count: int) -> NDArray[np.float32]:
        """Return the vectors of all inputs in these trees, in the order of the inputs."""
        vectors: NDArray[np.float32] | None = None
        # Compute a few trees at a time, since the keys and values of a tree stay in memory until it is done.
        for group in _groups(roots, self.engine.token_budget):
            keys_and_values: dict[Branch, KeysAndValues] = {}
            for level in levels(group):
                for branches in _batches(level, len(self.after), self.engine.token_budget):
                    batch_vectors = self._run(branches, keys_and_values)
                    if vectors is None:
                        vectors = np.empty((count, batch_vectors.shape[1]), dtype=np.float32)
                    # Inputs are distinct, so every end belongs to exactly one input.
                    rows = [row for branch in branches for row in branch.end_rows]
                    vectors[rows] = batch_vectors
        return np.empty((0, 0), np.float32) if vectors is None else vectors

    def _run(
        self, branches: Sequence[Branch], keys_and_values: dict[Branch, KeysAndValues]
    ) -> NDArray[np.float32]:
        """Run branches of the same shape (see `_batches`); return the vectors of the inputs that end on them.

        Each row holds the tokens of one branch, then the template's end once for every input that ends there.
        ``keys_and_values`` contains the parents' keys and values. The keys and values of branches with
        children are added to it.
        """
        first = branches[0]
        ends = first.end_lengths
        device = self.backbone.get_input_embeddings().weight.device
        closing_tokens = self.after * len(ends)
        ids = [branch.tokens + closing_tokens for branch in branches]
        positions, attends = _positions(first.shared, len(first.tokens), ends, len(self.after))
        cache = _cache_of_parents(branches, keys_and_values)
        states = self.states(
            {
                "input_ids": torch.tensor(ids, dtype=torch.long, device=device),
                "attention_mask": self._masks(positions.to(device), attends.to(device)),
                "position_ids": positions[None, first.shared :].to(device),
                "past_key_values": cache,
                "use_cache": True,
            }
        )
        for row, branch in enumerate(branches):
            if branch.continuations:
                keys_and_values[branch] = _row_of_cache(cache, row, branch.length)
        if self.after:
            closings = range(1, len(ends) + 1)
            last_positions = [len(first.tokens) + number * len(self.after) - 1 for number in closings]
        else:
            last_positions = [end - first.shared - 1 for end in ends]
        vectors = self.finish(states[:, last_positions].flatten(0, 1)[:, None]).float()
        return vectors.cpu().numpy()

    def _masks(self, positions: torch.Tensor, attends: torch.Tensor) -> Any:
        """Return additive attention masks in the form that the architecture expects.

        An entry is 0 if the token of its row attends to the token of its column; otherwise, it is the lowest
        finite number.
        """
        config = self.backbone.config
        kind = _MASKS[config.model_type]
        window = getattr(config, "sliding_window", None)
        attends_nearby = attends
        if window is not None:
            distances = positions[-len(attends) :, None] - positions[None, :]
            attends_nearby = attends & (distances < window)
        full = self._additive(attends)
        sliding = self._additive(attends_nearby)
        if kind == _BY_KIND:
            return {"full_attention": full, "sliding_attention": sliding}
        return sliding if kind == _WINDOW else full

    def _additive(self, attends: torch.Tensor) -> torch.Tensor:
        dtype = self.backbone.dtype
        return torch.where(attends, 0.0, torch.finfo(dtype).min).to(dtype)[None, None]


def _cache_of_parents(branches: Sequence[Branch], keys_and_values: dict[Branch, KeysAndValues]) -> Any:
    """Return a cache with the keys and values of the shared tokens, one row per branch."""
    from transformers import DynamicCache

    cache = DynamicCache()
    shared = branches[0].shared
    if not shared:
        return cache
    parents = [keys_and_values[branch.parent] for branch in branches if branch.parent is not None]

    def rows(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        # Shape (branches, heads, shared, d). A parent that all branches share is not copied.
        if all(parent is parents[0] for parent in parents):
            return tensors[0][None, :, :shared].expand(len(tensors), -1, -1, -1)
        return torch.stack([tensor[:, :shared] for tensor in tensors])

    for layer in range(len(parents[0])):
        keys = rows([parent[layer][0] for parent in parents])
        values = rows([parent[layer][1] for parent in parents])
        cache.update(keys, values, layer)
    return cache


def _row_of_cache(cache: Any, row: int, length: int) -> KeysAndValues:
    return [(layer.keys[row, :, :length], layer.values[row, :, :length]) for layer in cache.layers]


def _groups(roots: Sequence[Branch], token_budget: int) -> Iterator[list[Branch]]:
    """Divide roots into groups whose trees hold the keys and values of at most ``token_budget`` tokens.

    A tree that exceeds the budget is a group of its own.
    """
    group: list[Branch] = []
    group_tokens = 0
    for root in roots:
        held_tokens = sum(branch.length for branch in _branches([root]) if branch.continuations)
        if group and group_tokens + held_tokens > token_budget:
            yield group
            group = []
            group_tokens = 0
        group.append(root)
        group_tokens += held_tokens
    if group:
        yield group


def _batches(level: Sequence[Branch], after: int, token_budget: int) -> Iterator[list[Branch]]:
    """Divide the branches of a level into batches.

    All branches of a batch have the same shape: the same number of shared tokens, the same number of tokens
    of their own, and inputs that end at the same lengths.
    """
    by_shape: dict[tuple[int, int, tuple[int, ...]], list[Branch]] = {}
    for branch in level:
        shape = (branch.shared, len(branch.tokens), branch.end_lengths)
        by_shape.setdefault(shape, []).append(branch)
    for (shared, size, ends), branches in by_shape.items():
        rows = max(1, token_budget // (shared + size + after * len(ends)))
        for start in range(0, len(branches), rows):
            yield branches[start : start + rows]


def _positions(
    shared: int, size: int, ends: tuple[int, ...], after: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the position of each token in a row, and which tokens each new token attends to.

    A row contains the tokens of a branch, including the shared ones, and then one closing for each end: the
    last ``after`` tokens of the template. A token of the branch attends to the branch up to itself. A token
    of a closing attends to the branch up to the end that the closing belongs to, and to the same closing up
    to itself.

    Returns:
        Positions, shape (tokens,), and a boolean matrix of shape (new tokens, tokens). New tokens are those
        after the shared ones.
    """
    branch_size = shared + size
    position_list = list(range(branch_size))
    closing_numbers = [-1] * branch_size  # index of each token's closing; -1 for the branch's own tokens
    branch_limits = list(range(1, branch_size + 1))  # number of branch tokens that each token attends to
    for number, end in enumerate(ends):
        position_list += range(end, end + after)
        closing_numbers += [number] * after
        branch_limits += [end] * after
    positions = torch.tensor(position_list)
    closing = torch.tensor(closing_numbers)
    limit = torch.tensor(branch_limits)
    index = torch.arange(len(positions))[None, :]
    is_on_branch = closing[None, :] < 0
    within_branch = is_on_branch & (index < limit[:, None])
    is_same_closing = closing[None, :] == closing[:, None]
    is_not_later = positions[None, :] <= positions[:, None]
    within_closing = ~is_on_branch & is_same_closing & is_not_later
    return positions, (within_branch | within_closing)[shared:]
