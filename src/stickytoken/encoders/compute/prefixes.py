"""Compute common beginnings of inputs once, for causal models."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from stickytoken.encoders.compute.batches import BatchEngine

_LOG = logging.getLogger(__name__)


@dataclass
class Branch:
    parent: Branch | None  # which it continues from some point; None for a root
    shared: int  # number of tokens before it
    tokens: tuple[int, ...]
    # Pairs (length, input) of the inputs that end on it; the length includes the shared tokens.
    ends: list[tuple[int, int]] = field(default_factory=list)
    children: list[Branch] = field(default_factory=list)

    @property
    def length(self) -> int:
        return self.shared + len(self.tokens)


def grow(inputs: Sequence[tuple[int, ...]]) -> list[Branch]:
    roots: list[Branch] = []
    # By (branch, length, token): the branch that continues there with this token.
    onward: dict[tuple[int, int, int], Branch] = {}
    for place in sorted(range(len(inputs)), key=lambda place: (-len(inputs[place]), inputs[place])):
        tokens = inputs[place]
        branch: Branch | None = None
        length = 0
        while length < len(tokens):
            on_branch = branch is not None and length < branch.length
            if on_branch and branch.tokens[length - branch.shared] == tokens[length]:  # type: ignore[union-attr]
                length += 1
                continue
            key = (id(branch), length, tokens[length])
            if key in onward:
                branch = onward[key]
                length += 1
            else:
                new = onward[key] = Branch(branch, length, tokens[length:])
                (roots if branch is None else branch.children).append(new)
                branch, length = new, len(tokens)
        if branch is not None:
            branch.ends.append((length, place))
    return roots


def levels(roots: Sequence[Branch]) -> Iterator[list[Branch]]:
    level = list(roots)
    while level:
        yield level
        level = [child for branch in level for child in branch.children]


# A model takes one mask, one with a sliding window, or one for each kind of layer.
_ONE, _WINDOW, _BY_KIND = "one", "window", "by kind"
_MASKS = {
    "llama": _ONE,
    "mistral": _WINDOW,
    "phi3": _WINDOW,
    "qwen2": _BY_KIND,
    "qwen3": _BY_KIND,
    "gemma2": _BY_KIND,
}
_ATTENTION = ("sdpa", "eager")
# Largest difference from the plain path, as a share of the norm of a vector.
_TOLERANCE = 1e-4

KeysAndValues = list[tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True, slots=True)
class ReuseLimits:  # within which sharing work pays for its overhead
    tree_share: float = 0.8  # largest share of the tokens that a tree may leave to compute
    fixed_share: float = 0.1  # smallest share of the tokens that fixed beginnings of prompts make up
    rows: int = 4  # fewest inputs per prompt for which fixed beginnings are reused


REUSE = ReuseLimits()


def known_kind(backbone: Any) -> bool:
    config = backbone.config
    return (
        config.model_type in _MASKS
        and getattr(config, "_attn_implementation", None) in _ATTENTION
        and not getattr(config, "use_bidirectional_attention", False)
    )


def agree(found: NDArray[np.float32], plain: NDArray[np.float32], rounding: float) -> bool:
    tolerance = max(_TOLERANCE, 4 * rounding) * np.linalg.norm(plain, axis=-1).max()
    return bool(np.abs(found - plain).max() <= tolerance)


def samples_of(carrier: tuple[int, ...], copied: Sequence[int]) -> list[tuple[int, ...]]:
    copies = [(token,) * count for token in copied for count in (1, 2, 3)]
    return [*((*carrier, *each) for each in copies), *((*each, *carrier) for each in copies)]


@dataclass
class PrefixReuse:
    """Compute inputs as trees, if that gives the vectors of the plain path on a few samples."""

    backbone: Any  # of a causal model
    before: tuple[int, ...]  # tokens of the template before each content
    after: tuple[int, ...]
    states: Callable[[dict[str, Any]], torch.Tensor]  # of the backbone's input, shape (rows, tokens, d)
    # From the states at the ends of inputs, shape (n, 1, d), to vectors, shape (n, components).
    finish: Callable[[torch.Tensor], torch.Tensor]
    engine: BatchEngine
    limits: ReuseLimits
    samples: Sequence[tuple[int, ...]]
    plain: Callable[[Sequence[tuple[int, ...]]], NDArray[np.float32]]
    rounding: float
    memory_left: bool = True

    def shared(self, contents: Sequence[tuple[int, ...]], known: int = 0) -> NDArray[np.float32] | None:
        roots = self.trees(contents, known) if self.memory_left else None
        if not roots or not self._agrees:
            return None
        try:
            return self.vectors(roots, len(contents))
        except torch.OutOfMemoryError:
            # Keys and values take extra memory, which the plain path does not need.
            self.memory_left = False
            name, device = self.engine.name, self.engine.device
            _LOG.warning("%s: out of memory on %s, continuing without reuse", name, device)
            return None

    @cached_property
    def _agrees(self) -> bool:
        roots = self.trees(self.samples)
        if roots is None:
            return False
        return agree(self.vectors(roots, len(self.samples)), self.plain(self.samples), self.rounding)

    def trees(self, contents: Sequence[tuple[int, ...]], known: int = 0) -> list[Branch] | None:
        after = self.after
        inputs = [(*self.before, *content) for content in contents]
        if not all(inputs):
            return None
        roots = grow(inputs)
        plain = sum(map(len, inputs)) + (len(after) - known) * len(inputs)
        new = sum(len(branch.tokens) for level in levels(roots) for branch in level)
        computed = new + len(after) * len(inputs)
        return roots if computed <= self.limits.tree_share * plain else None

    def vectors(self, roots: Sequence[Branch], count: int) -> NDArray[np.float32]:
        found: NDArray[np.float32] | None = None
        # A few trees at a time, since their keys and values are kept until they are done.
        for group in _groups(roots, self.engine.token_budget):
            kept: dict[int, KeysAndValues] = {}
            for level in levels(group):
                for ends, branches in _batches(level, len(self.after), self.engine.token_budget):
                    rows, vectors = self._run(ends, branches, kept)
                    if found is None:
                        found = np.empty((count, vectors.shape[1]), dtype=np.float32)
                    found[rows] = vectors
        return np.empty((0, 0), np.float32) if found is None else found

    def _run(
        self, ends: tuple[int, ...], branches: Sequence[Branch], kept: dict[int, KeysAndValues]
    ) -> tuple[list[int], NDArray[np.float32]]:
        from transformers import DynamicCache

        after, shared, size = self.after, branches[0].shared, len(branches[0].tokens)
        device = self.backbone.get_input_embeddings().weight.device
        rows = [[*branch.tokens, *after * len(ends)] for branch in branches]
        cache = DynamicCache()
        if shared:  # its keys and values by layer, shape (branches, heads, shared, d)
            parents = [kept[id(branch.parent)] for branch in branches]
            one = all(parent is parents[0] for parent in parents)
            for layer, pairs in enumerate(zip(*parents, strict=True)):
                keys, values = (
                    own[0][None, :, :shared].expand(len(own), -1, -1, -1)
                    if one
                    else torch.stack([state[:, :shared] for state in own])
                    for own in zip(*pairs, strict=True)
                )
                cache.update(keys, values, layer)
        places, mask = _places(shared, size, ends, len(after))
        states = self.states(
            {
                "input_ids": torch.tensor(rows, dtype=torch.long, device=device),
                "attention_mask": self._masks(places.to(device), mask.to(device)),
                "position_ids": places[None, shared:].to(device),
                "past_key_values": cache,
                "use_cache": True,
            }
        )
        layers: Any = cache.layers
        for row, branch in enumerate(branches):
            if branch.children:
                kept[id(branch)] = [
                    (layer.keys[row, :, : branch.length], layer.values[row, :, : branch.length])
                    for layer in layers
                ]
        last = [
            size + (fan + 1) * len(after) - 1 if after else end - shared - 1 for fan, end in enumerate(ends)
        ]
        vectors = self.finish(states[:, last].flatten(0, 1)[:, None]).float()
        # Inputs are distinct, so each end belongs to one; all branches have the same ends.
        inputs = [row for branch in branches for _, row in sorted(branch.ends)]
        return inputs, vectors.cpu().numpy()

    def _masks(self, places: torch.Tensor, seen: torch.Tensor) -> Any:
        """Build additive attention masks: 0 where a token attends to another, else the lowest number."""
        config, dtype = self.backbone.config, self.backbone.dtype
        kind, window, near = _MASKS[config.model_type], getattr(config, "sliding_window", None), seen
        if window is not None:
            near = seen & (places[-len(seen) :, None] - places[None, :] < window)
        full, sliding = (
            torch.where(own, 0.0, torch.finfo(dtype).min).to(dtype)[None, None] for own in (seen, near)
        )
        if kind == _BY_KIND:
            return {"full_attention": full, "sliding_attention": sliding}
        return sliding if kind == _WINDOW else full


def _groups(roots: Sequence[Branch], token_budget: int) -> Iterator[list[Branch]]:
    group: list[Branch] = []
    size = 0
    for root in roots:
        own = sum(branch.length for level in levels([root]) for branch in level if branch.children)
        if group and size + own > token_budget:
            yield group
            group, size = [], 0
        group.append(root)
        size += own
    if group:
        yield group


def _batches(
    level: Sequence[Branch], after: int, token_budget: int
) -> Iterator[tuple[tuple[int, ...], list[Branch]]]:
    shapes: dict[tuple[int, int, tuple[int, ...]], list[Branch]] = {}
    for branch in level:
        ends = tuple(sorted(length for length, _ in branch.ends))
        shapes.setdefault((branch.shared, len(branch.tokens), ends), []).append(branch)
    for (shared, size, ends), branches in shapes.items():
        rows = max(1, token_budget // (shared + size + after * len(ends)))
        for start in range(0, len(branches), rows):
            yield ends, branches[start : start + rows]


def _places(shared: int, size: int, ends: tuple[int, ...], after: int) -> tuple[torch.Tensor, torch.Tensor]:
    whole = shared + size
    closings = [(fan, end + k) for fan, end in enumerate(ends) for k in range(after)]
    place = torch.tensor([*range(whole), *(position for _, position in closings)])
    own = torch.tensor([*[-1] * whole, *(fan for fan, _ in closings)])
    # Each token attends to this many tokens of the branch, shared ones included.
    limit = torch.tensor([*range(1, whole + 1), *(ends[fan] for fan, _ in closings)])
    earlier = torch.arange(len(place))[None, :]
    on_branch = (own[None, :] < 0) & (earlier < limit[:, None])
    closing = (own[None, :] >= 0) & (own[None, :] == own[:, None]) & (place[None, :] <= place[:, None])
    return place, (on_branch | closing)[shared:]
