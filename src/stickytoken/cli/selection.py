"""The tokens that a command looks at."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stickytoken.encoders import Encoder


def chosen_tokens(encoder: Encoder, path: Path | None) -> list[int] | None:
    """Ids of the tokens that a file names; None without a file.

    Raises:
        InputError: the file cannot be read, or names what the model lacks.
    """
    if path is None:
        return None
    from stickytoken.detection.selection import token_ids_from_file
    from stickytoken.vocabulary.categories import categorize

    return token_ids_from_file(categorize(encoder.tokenizer), path)
