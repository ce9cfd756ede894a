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
    """Consecutive tokens in a prefix tree. Inputs with a common prefix share the branches of this prefix.

    For example, the inputs ``a b c d`` and ``a b e`` become a root with the tokens ``a b c d`` and a child
    with the token ``e``, which splits off after two tokens.

    Attributes:
        parent: the branch from which this branch splits off; None for a root.
        start: number of tokens before this branch, which it shares with its parent; 0 for a root.
        tokens: the branch's own tokens.
        inputs: pairs (length, row) of the inputs whose last token is on this branch. The length is the
            input's number of tokens, including those before the branch, and the row is the input's index.
        children: branches that split off from this branch, keyed by the number of tokens before the child
            and by the child's first token.
    """

    parent: Branch | None
    start: int
    tokens: tuple[int, ...]
    inputs: list[tuple[int, int]] = field(default_factory=list)
    children: dict[tuple[int, int], Branch] = field(default_factory=dict)

    @property
    def length(self) -> int:
        """Number of tokens from the root to the end of the branch."""
        return self.start + len(self.tokens)

    @property
    def input_lengths(self) -> tuple[int, ...]:
        """Lengths of the inputs that end on this branch, in ascending order."""
        return tuple(sorted(length for length, _ in self.inputs))

    @property
    def input_rows(self) -> list[int]:
        """Indices of the inputs that end on this branch, in ascending order of the inputs' length."""
        return [row for _, row in sorted(self.inputs)]

    def has_token_at(self, position: int, token: int) -> bool:
        """Return whether the branch has this token at this position, counted from the root."""
        return position < self.length and self.tokens[position - self.start] == token


def build_trees(inputs: Sequence[tuple[int, ...]]) -> list[Branch]:
    """Build prefix trees, which contain every common prefix of the inputs only once.

    For example, the inputs ``a b c d``, ``a b e`` and ``a b`` become a root with the tokens ``a b c d`` and a
    child with the token ``e``. The input ``a b`` ends on the root, after two tokens.

    Returns:
        The roots of the trees: one branch for each distinct first token.
    """
    roots: dict[tuple[int, int], Branch] = {}  # keyed like `Branch.children`

    def longest_first(row: int) -> tuple[int, tuple[int, ...]]:
        return (-len(inputs[row]), inputs[row])

    # An input that is a prefix of a longer input comes later, so it ends on an existing branch.
    for row in sorted(range(len(inputs)), key=longest_first):
        tokens = inputs[row]
        branch: Branch | None = None
        length = 0  # how many of this input's tokens are already in a tree
        while length < len(tokens):
            token = tokens[length]
            # This token is on the current branch, begins an existing branch, or is in no tree yet.
            if branch is not None and branch.has_token_at(length, token):
                length += 1
                continue
            children = roots if branch is None else branch.children
            if (length, token) in children:
                branch = children[length, token]
                length += 1
            else:  # all remaining tokens become a new branch
                branch = Branch(parent=branch, start=length, tokens=tokens[length:])
                children[length, token] = branch
                length = len(tokens)
        if branch is not None:  # None for an input without tokens, which is in no tree
            branch.inputs.append((length, row))
    return list(roots.values())


def levels(roots: Sequence[Branch]) -> Iterator[list[Branch]]:
    """Yield the levels of trees: all roots, then their children, then their grandchildren, and so on."""
    level = list(roots)
    while level:
        yield level
        level = [child for branch in level for child in branch.children.values()]


def _walk_branches(roots: Sequence[Branch]) -> Iterator[Branch]:
    for level in levels(roots):
        yield from level


# The forms of attention mask that architectures expect: one full mask, one mask with a sliding window, or one
# mask for each kind of layer.
_FULL_MASK = "full"
_SLIDING_MASK = "sliding"
_MASK_BY_KIND = "by kind"
_MASK_OF_ARCHITECTURE = {
    "llama": _FULL_MASK,
    "mistral": _SLIDING_MASK,
    "phi3": _SLIDING_MASK,
    "qwen2": _MASK_BY_KIND,
    "qwen3": _MASK_BY_KIND,
    "gemma2": _MASK_BY_KIND,
}
# Implementations of attention that accept the masks of prefix trees.
_ATTENTION = ("sdpa", "eager")
# Largest accepted difference between a component computed with reuse and the same component computed without
# it, as a fraction of the largest vector norm.
_TOLERANCE = 1e-4

# Keys and values of a branch, including those of the tokens before it: one pair per layer. Keys and values
# have the shape (heads, tokens, d).
KeysAndValues: TypeAlias = list[tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True, slots=True)
class ReuseLimits:
    """Limits for the reuse of common prefixes. Beyond these limits, reuse costs more than it saves.

    Attributes:
        tree_share: prefix trees are used only if the number of tokens to compute is at most this fraction of
            the number without trees.
        fixed_share: the cached start of a prompt is reused only if it contains at least this fraction of all
            tokens.
        rows: the cached start of a prompt is reused only for at least this many inputs per prompt.
    """

    tree_share: float = 0.8
    fixed_share: float = 0.1
    rows: int = 4


REUSE = ReuseLimits()


def is_known_kind(backbone: Any) -> bool:
    """Return whether a model is causal, and of an architecture whose attention masks are known here."""
    config = backbone.config
    return (
        config.model_type in _MASK_OF_ARCHITECTURE
        and getattr(config, "_attn_implementation", None) in _ATTENTION
        and not getattr(config, "use_bidirectional_attention", False)
    )


def agree(vectors: NDArray[np.float32], plain: NDArray[np.float32], rounding: float) -> bool:
    """Return whether two ways to compute the same vectors give equal results, up to rounding errors.

    Args:
        vectors: vectors that were computed by a faster method.
        plain: the same vectors, computed by the original method.
        rounding: machine epsilon of the arithmetic.
    """
    # At a low precision, a few rounding errors add up to more than _TOLERANCE.
    relative_tolerance = max(_TOLERANCE, 4 * rounding)
    tolerance = relative_tolerance * np.linalg.norm(plain, axis=-1).max()
    return bool(np.abs(vectors - plain).max() <= tolerance)


def samples_with_copies(carrier: tuple[int, ...], tokens: Sequence[int]) -> list[tuple[int, ...]]:
    """Return sample inputs, on which vectors from shared prefixes are compared with vectors without them.

    Each sample is a text (the carrier) with one to three copies of one of the tokens, after it or before it.
    ``carrier`` and the samples are content ids, and ``tokens`` are token ids.
    """
    samples_after: list[tuple[int, ...]] = []
    samples_before: list[tuple[int, ...]] = []
    for token in tokens:
        for count in (1, 2, 3):
            copies = (token,) * count
            samples_after.append(carrier + copies)
            samples_before.append(copies + carrier)
    return samples_after + samples_before


@dataclass
class PrefixReuse:
    """Computes vectors through prefix trees, so that the states of a common prefix are computed only once.

    Trees are used only if they do not change the vectors of a few samples.

    Attributes:
        backbone: backbone of a causal model.
        before: the template's tokens before the content of an input.
        after: the template's tokens after the content of an input.
        states_of: a function that returns the backbone's states for its inputs, shape (rows, tokens, d).
        vectors_of_states: a function that turns the states of the inputs' last tokens, shape (n, 1, d),
            into vectors, shape (n, components).
        engine: gives the token budget, and the name and device for messages.
        limits: limits within which trees are used.
        samples: content ids of the samples.
        plain_vectors: a function that computes the vectors of inputs, given by their content ids, without
            trees.
        rounding: machine epsilon of the arithmetic.
        memory_left: false once trees have run out of memory.
    """

    backbone: Any
    before: tuple[int, ...]
    after: tuple[int, ...]
    states_of: Callable[[dict[str, Any]], torch.Tensor]
    vectors_of_states: Callable[[torch.Tensor], torch.Tensor]
    engine: BatchEngine
    limits: ReuseLimits
    samples: Sequence[tuple[int, ...]]
    plain_vectors: Callable[[Sequence[tuple[int, ...]]], NDArray[np.float32]]
    rounding: float
    memory_left: bool = True

    def vectors_if_cheaper(
        self, contents: Sequence[tuple[int, ...]], cached: int = 0
    ) -> NDArray[np.float32] | None:
        """Compute the vectors of distinct inputs through prefix trees, if this saves enough tokens.

        Args:
            contents: content ids of the inputs.
            cached: number of tokens at the start of each input that a computation without trees would skip,
                because their states are cached.

        Returns:
            The vectors, shape (inputs, d). None if trees save too little, change the vectors of the samples,
            or have run out of memory in this call or in an earlier call, or if an input has no tokens.
        """
        roots = self._build_trees_if_cheaper(contents, cached) if self.memory_left else None
        if not roots or not self._trees_are_exact:
            return None
        try:
            return self.vectors_of_trees(roots, len(contents))
        except torch.OutOfMemoryError:
            # Trees need additional memory for keys and values.
            self.memory_left = False
            _LOG.warning(
                "%s: out of memory on %s, continuing without reuse", self.engine.name, self.engine.device
            )
            return None

    @cached_property
    def _trees_are_exact(self) -> bool:
        roots = self._build_trees_if_cheaper(self.samples)
        if roots is None:  # the samples have no trees, so nothing can be compared
            return False
        vectors = self.vectors_of_trees(roots, len(self.samples))
        return agree(vectors, self.plain_vectors(self.samples), self.rounding)

    def _build_trees_if_cheaper(
        self, contents: Sequence[tuple[int, ...]], cached: int = 0
    ) -> list[Branch] | None:
        """Return the roots of the inputs' prefix trees; None if trees save too little or an input has no
        tokens.

        ``cached`` is the number of tokens per input that a computation without trees would skip.
        """
        inputs = [(*self.before, *content) for content in contents]
        if not all(inputs):  # an input without tokens cannot be part of a tree
            return None
        roots = build_trees(inputs)
        # Trees do not use the cached states, so only a computation without trees skips the cached tokens.
        plain_tokens = sum(map(len, inputs)) + (len(self.after) - cached) * len(inputs)
        tree_tokens = sum(len(branch.tokens) for branch in _walk_branches(roots))
        # The template's tokens after the content are not in the trees, and are computed for every input.
        computed_tokens = tree_tokens + len(self.after) * len(inputs)
        is_cheaper = computed_tokens <= self.limits.tree_share * plain_tokens
        return roots if is_cheaper else None

    def vectors_of_trees(self, roots: Sequence[Branch], count: int) -> NDArray[np.float32]:
        """Return the vectors of the ``count`` inputs in these trees, shape (count, d), in input order."""
        if count == 0:
            return np.empty((0, 0), np.float32)
        rows: list[int] = []  # indices of the inputs, in the order in which they are computed
        outputs: list[NDArray[np.float32]] = []
        # Compute a few trees at a time, since the keys and values of a tree stay in memory until it is done.
        for group in _group_trees_within_budget(roots, self.engine.token_budget):
            keys_and_values: dict[Branch, KeysAndValues] = {}
            for level in levels(group):  # parents first, because a branch needs the keys of its parent
                for branches in _divide_into_batches(level, len(self.after), self.engine.token_budget):
                    outputs.append(self._run_batch(branches, keys_and_values))
                    for branch in branches:
                        rows += branch.input_rows
        computed_vectors = np.concatenate(outputs)
        vectors = np.empty_like(computed_vectors)
        vectors[rows] = computed_vectors
        return vectors

    def _run_batch(
        self, branches: Sequence[Branch], keys_and_values: dict[Branch, KeysAndValues]
    ) -> NDArray[np.float32]:
        """Compute branches of the same shape (see `_divide_into_batches`) in one forward pass.

        Each row of the batch holds the tokens of one branch, followed by a suffix for each input that ends on
        the branch. The suffix consists of the template's tokens after the content. Tokens before the branch
        are not computed again, because their keys and values come from the parent. The keys and values of
        branches with children are added to ``keys_and_values``.

        Returns:
            Vectors of the inputs that end on the branches, in the order of the branches; for each branch, in
            ascending order of the inputs' length.
        """
        start = branches[0].start
        size = len(branches[0].tokens)
        input_lengths = branches[0].input_lengths
        device = self.backbone.get_input_embeddings().weight.device
        ids = [branch.tokens + self.after * len(input_lengths) for branch in branches]
        positions, attends = _lay_out_row(start, size, input_lengths, len(self.after))
        cache = _make_cache_of_parents(branches, keys_and_values)
        states = self.states_of(
            {
                "input_ids": torch.tensor(ids, dtype=torch.long, device=device),
                "attention_mask": self._make_masks(positions.to(device), attends.to(device)),
                "position_ids": positions[None, start:].to(device),
                "past_key_values": cache,
                "use_cache": True,
            }
        )
        # The model has added the keys and values of the new tokens to the cache.
        for row, branch in enumerate(branches):
            if branch.children:
                keys_and_values[branch] = _take_row_of_cache(cache, row, branch.length)
        if self.after:
            # The last token of an input is the last token of its suffix. For example, in a row with 3 branch
            # tokens and two suffixes of 2 tokens, the last tokens of the suffixes have the indices 4 and 6.
            input_numbers = range(1, len(input_lengths) + 1)
            last_indices = [size + number * len(self.after) - 1 for number in input_numbers]
        else:  # without suffixes, the last token of an input is a token of the branch
            last_indices = [length - start - 1 for length in input_lengths]
        # From (branches, inputs per branch, d) to (inputs, d), and then to (inputs, 1, d).
        last_states = states[:, last_indices].flatten(0, 1)
        vectors = self.vectors_of_states(last_states[:, None]).float()
        return vectors.cpu().numpy()

    def _make_masks(self, positions: torch.Tensor, attends: torch.Tensor) -> Any:
        """Return the attention masks in the form that the model's architecture expects.

        A mask has the shape (1, 1, new tokens, tokens). It is 0 where a new token attends to a token, and
        else the lowest finite number.

        ``positions`` are the positions of all tokens, shape (tokens,); the new tokens are the last of them.
        ``attends`` says to which tokens each new token attends, shape (new tokens, tokens).
        """
        config = self.backbone.config
        expected_form = _MASK_OF_ARCHITECTURE[config.model_type]
        window = getattr(config, "sliding_window", None)
        attends_nearby = attends  # without a window, sliding-window attention is full attention
        if window is not None:
            positions_of_new_tokens = positions[-len(attends) :]  # `attends` has a row for each new token
            distances = positions_of_new_tokens[:, None] - positions[None, :]
            attends_nearby = attends & (distances < window)
        full = self._make_additive(attends)
        sliding = self._make_additive(attends_nearby)
        if expected_form == _MASK_BY_KIND:  # some layers have full attention, and others a sliding window
            return {"full_attention": full, "sliding_attention": sliding}
        return sliding if expected_form == _SLIDING_MASK else full

    def _make_additive(self, attends: torch.Tensor) -> torch.Tensor:
        dtype = self.backbone.dtype
        # Masks are added to attention scores, so a very low number hides a token. The two new axes, for
        # branches and heads, have the length 1, because the mask is the same for all of them.
        return torch.where(attends, 0.0, torch.finfo(dtype).min).to(dtype)[None, None]


def _make_cache_of_parents(branches: Sequence[Branch], keys_and_values: dict[Branch, KeysAndValues]) -> Any:
    """Return a cache with the keys and values of the tokens before the branches, one row per branch.

    All branches start after the same number of tokens. The cache is empty if the branches are roots.
    """
    from transformers import DynamicCache

    cache = DynamicCache()
    start = branches[0].start
    if not start:
        return cache
    # One item per branch: a pair of keys and values for each layer.
    pairs_of_parents = [keys_and_values[branch.parent] for branch in branches if branch.parent is not None]
    has_one_parent = all(pairs is pairs_of_parents[0] for pairs in pairs_of_parents)

    def stack(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the first ``start`` tokens of each parent's tensor, shape (branches, heads, start, d)."""
        if has_one_parent:  # the tensor of the common parent is expanded instead of copied
            return tensors[0][None, :, :start].expand(len(tensors), -1, -1, -1)
        return torch.stack([tensor[:, :start] for tensor in tensors])

    for layer in range(len(pairs_of_parents[0])):
        keys = stack([pairs[layer][0] for pairs in pairs_of_parents])
        values = stack([pairs[layer][1] for pairs in pairs_of_parents])
        cache.update(keys, values, layer)
    return cache


def _take_row_of_cache(cache: Any, row: int, length: int) -> KeysAndValues:
    # Returns the keys and values of the first ``length`` tokens in one row. The tensors in the cache have the
    # shape (rows, heads, tokens, d).
    return [(layer.keys[row, :, :length], layer.values[row, :, :length]) for layer in cache.layers]


def _group_trees_within_budget(roots: Sequence[Branch], token_budget: int) -> Iterator[list[Branch]]:
    # Yields groups of trees whose keys and values fit into memory together.
    group: list[Branch] = []
    group_tokens = 0  # number of tokens whose keys and values the trees of the group keep
    for root in roots:
        # Keys and values are kept only for branches with children: those of the branch and of all tokens
        # before it.
        held_tokens = sum(branch.length for branch in _walk_branches([root]) if branch.children)
        if group and group_tokens + held_tokens > token_budget:
            yield group
            group = []
            group_tokens = 0
        group.append(root)
        group_tokens += held_tokens
    if group:
        yield group


def _divide_into_batches(
    level: Sequence[Branch], after_size: int, token_budget: int
) -> Iterator[list[Branch]]:
    """Yield batches of branches that can run in one forward pass, because they have the same shape.

    The shape of a branch consists of the number of tokens before it, the number of its own tokens, and the
    lengths of the inputs that end on it.
    """
    by_shape: dict[tuple[int, int, tuple[int, ...]], list[Branch]] = {}
    for branch in level:
        # The lengths of inputs matter because each input adds template tokens, which attend only to the
        # tokens of this input.
        shape = (branch.start, len(branch.tokens), branch.input_lengths)
        by_shape.setdefault(shape, []).append(branch)
    for (start, size, input_lengths), branches in by_shape.items():
        # A row of the batch has the tokens before a branch, its own tokens, and a suffix for each of its
        # inputs.
        tokens_per_row = start + size + after_size * len(input_lengths)
        batch_size = max(1, token_budget // tokens_per_row)
        for begin in range(0, len(branches), batch_size):
            yield branches[begin : begin + batch_size]


def _lay_out_row(
    start: int, size: int, input_lengths: tuple[int, ...], after_size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the position of each token in a row of a batch, and which tokens each new token attends to.

    A row contains the tokens before a branch, the branch's own tokens, and one suffix for each input that
    ends on the branch. A suffix consists of the template's tokens after the content. A token of the branch
    attends to itself and to all tokens before it. A token of a suffix attends to itself, to all tokens of the
    input that its suffix belongs to, and to the earlier tokens of its suffix.

    For example, with the token ``a`` before the branch ``b c``, the inputs ``a b`` and ``a b c``, and a
    suffix of one token, a row is ``a b c s1 s2``, and the positions are 0, 1, 2, 2, 3. The new tokens are
    ``b c s1 s2``, of which ``s1`` attends to ``a b s1``, and ``s2`` attends to ``a b c s2``.

    Returns:
        Positions, shape (tokens,), and a boolean matrix of shape (new tokens, tokens). The new tokens are the
        tokens of the branch and the tokens of the suffixes.
    """
    branch_end = start + size
    position_list = list(range(branch_end))
    # Index of the suffix that each token belongs to; -1 for tokens that belong to no suffix.
    suffix_numbers = [-1] * branch_end
    # For each token, the number of tokens at the start of the row that the token attends to. Suffixes do not
    # count.
    prefix_lengths = list(range(1, branch_end + 1))
    for number, input_length in enumerate(input_lengths):
        position_list += range(input_length, input_length + after_size)
        suffix_numbers += [number] * after_size
        prefix_lengths += [input_length] * after_size
    positions = torch.tensor(position_list)
    suffix = torch.tensor(suffix_numbers)
    prefix_length = torch.tensor(prefix_lengths)
    # Masks: each row is a token that attends, and each column is a token that it may attend to.
    column = torch.arange(len(positions))[None, :]
    is_before_suffixes = suffix[None, :] < 0
    within_prefix = is_before_suffixes & (column < prefix_length[:, None])
    is_same_suffix = ~is_before_suffixes & (suffix[None, :] == suffix[:, None])
    is_not_later = positions[None, :] <= positions[:, None]
    within_suffix = is_same_suffix & is_not_later
    attends = within_prefix | within_suffix
    return positions, attends[start:]  # the rows of tokens before the branch are not needed
