"""Find the tokens that the user names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from stickytoken.errors import InputError

if TYPE_CHECKING:
    from stickytoken.encoders import Encoder


def named_token_ids(encoder: Encoder, names: Sequence[str] | None) -> list[int] | None:
    """Find the ids of tokens that `--tokens` names; None where it names none.

    Args:
        encoder: knows the vocabulary.
        names: vocabulary strings, texts of tokens, ``#`` and an id, or files (.txt or a table) of either.
    """
    from stickytoken.corpora.tables import TABLE_SUFFIXES
    from stickytoken.detection.selection import find_named, token_ids_from_file
    from stickytoken.vocabulary.categories import categorize

    if not names:
        return None
    vocabulary = categorize(encoder.tokenizer)
    ids: list[int] = []
    for name in names:
        path = Path(name).expanduser()
        if path.suffix.lower() in (".txt", *TABLE_SUFFIXES):
            ids += token_ids_from_file(vocabulary, path)
        else:
            ids.append(find_named(vocabulary, name))
    return ids


def token_id(argument: str) -> int:
    """Read an argument as a token id."""
    try:
        return int(argument)
    except ValueError:
        raise InputError(
            f"{argument!r} is not a token id: pass a number, or leave --ids out to name tokens by text"
        ) from None
