"""An edit of a tokenizer, and the files that it changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class TokenizerEdit:
    """What text may no longer reach.

    Attributes:
        unreachable: entries that text must no longer reach; their text becomes other entries. Ids are kept.
        plain_specials: special or added tokens whose text becomes plain text. The tokenizer still puts them
            around a text by itself.
        collapse: cut runs of a repeated word to two copies.
    """

    unreachable: tuple[int, ...] = ()
    plain_specials: tuple[int, ...] = ()
    collapse: bool = False


def edited_tokenizer(folder: Path, edit: TokenizerEdit) -> dict[str, bytes]:
    """Compute the files of a tokenizer that an edit changes.

    Args:
        folder: A model folder; nothing in it is changed.
        edit: The edit.

    Returns:
        The new content by file name, relative to the folder.

    Raises:
        RepairError: An entry cannot be edited so; the message names it and says why.
    """
    raise NotImplementedError


def splittable(folder: Path, ids: Sequence[int]) -> dict[int, str | None]:
    """Say for each entry whether it can be made unreachable together with those before it.

    Returns:
        None by token id, or the reason why not.
    """
    raise NotImplementedError
