"""Inputs with common beginnings as trees. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field


@dataclass
class Branch:
    """Tokens that continue another branch from some point.

    Attributes:
        parent: branch that it continues; None for a root.
        shared: number of tokens before it.
        tokens: its own tokens.
        ends: pairs (length, input) of inputs that end on it; the length includes the shared tokens.
        children: branches that continue this one.
    """

    parent: Branch | None
    shared: int
    tokens: tuple[int, ...]
    ends: list[tuple[int, int]] = field(default_factory=list)
    children: list[Branch] = field(default_factory=list)

    @property
    def length(self) -> int:
        """Number of tokens from the root to the end of the branch."""
        return self.shared + len(self.tokens)


def grow(inputs: Sequence[tuple[int, ...]]) -> list[Branch]:
    """Arrange distinct inputs as trees, so that every common beginning is there once.

    The longest go first: an input that is the beginning of another is an end on its branch.

    Returns:
        The roots.
    """
    roots: list[Branch] = []
    # By (branch, length, token): the branch that continues there with this token.
    onward: dict[tuple[int, int, int], Branch] = {}
    for place in sorted(range(len(inputs)), key=lambda place: (-len(inputs[place]), inputs[place])):
        _insert(inputs[place], place, roots, onward)
    return roots


def _insert(
    tokens: tuple[int, ...], place: int, roots: list[Branch], onward: dict[tuple[int, int, int], Branch]
) -> None:
    branch, length = None, 0
    while length < len(tokens):
        if (
            branch is not None
            and length < branch.length
            and branch.tokens[length - branch.shared] == tokens[length]
        ):
            length += 1
            continue
        key = (id(branch) if branch is not None else 0, length, tokens[length])
        found = onward.get(key)
        if found is None:
            found = Branch(branch, length, tokens[length:])
            onward[key] = found
            (roots if branch is None else branch.children).append(found)
            length = len(tokens)
        else:
            length += 1
        branch = found
    if branch is not None:
        branch.ends.append((length, place))


def levels(roots: Sequence[Branch]) -> Iterator[list[Branch]]:
    """Yield the branches level by level: roots, their children, and so on."""
    level = list(roots)
    while level:
        yield level
        level = [child for branch in level for child in branch.children]


def new_tokens(roots: Sequence[Branch]) -> int:
    """Count the tokens to compute."""
    return sum(len(branch.tokens) for level in levels(roots) for branch in level)
