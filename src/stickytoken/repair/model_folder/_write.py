"""Copy a model folder and apply an edit to the copy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from stickytoken.repair.tokenizer_edit import TokenizerEdit

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class ModelEdit:
    """What changes in a model.

    Attributes:
        rows: new rows of the input embeddings by token id, each (hidden size,).
        tokenizer: the edit of the tokenizer.
        centre: direction that is taken out of every vector, (dimension,); None for none.
    """

    rows: Mapping[int, NDArray[np.float32]] = field(default_factory=dict)
    tokenizer: TokenizerEdit = field(default_factory=TokenizerEdit)
    centre: NDArray[np.float32] | None = None


def write_model(source: Path, target: Path, edit: ModelEdit, notes: Mapping[str, str]) -> tuple[str, ...]:
    """Write an edited copy of a model folder.

    Args:
        source: The model folder; it is only read.
        target: The new folder; it must not exist, or be empty.
        edit: What changes.
        notes: Texts by file name to add. The text for README.md is appended to the model card.

    Returns:
        Files left out because they hold the old weights in another format.

    Raises:
        RepairError: The model cannot be edited so, or the target cannot be written.
    """
    raise NotImplementedError


def embedding_tensor(folder: Path) -> tuple[Path, str]:
    """Find the file and the name of the tensor that holds the input embeddings.

    Raises:
        RepairError: There is none, or it lies in a format that cannot be edited.
    """
    raise NotImplementedError
