"""Which vocabulary entries a user names: by id, by text, in a list or in a file; and samples of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from numbers import Integral
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

import stickytoken.validation as checks
from stickytoken.data import tables
from stickytoken.data.rows import TABLE_SUFFIXES
from stickytoken.errors import InputError, warn
from stickytoken.insertion import Token
from stickytoken.validation import shown
from stickytoken.vocabulary import Vocabulary

TokenSource: TypeAlias = int | str | Path | Iterable[int | str | Path]

_BY_ID = re.compile(r"\s*#(\d{1,9})\s*", re.ASCII)


def choose_tokens(
    vocabulary: Vocabulary, ids: Sequence[int] | None, sample: int | None, seed: int
) -> list[Token]:
    """Return the tokens to measure, in order of their ids.

    A warning names the tokens in ``ids`` that cannot occur in text, which are left out.

    Args:
        vocabulary: The vocabulary.
        ids: Ids of the tokens to choose from. If None, all available tokens are used.
        sample: Number of tokens to draw at random from ``ids``. If None, all tokens in ``ids`` are returned.
        seed: Seed for drawing the sample.

    Raises:
        InputError: There are no tokens, no token in ``ids`` is available, an id is not in the vocabulary, or
            the sample is too large.
    """
    tokens = vocabulary.available
    if ids is not None:
        tokens = available_tokens(vocabulary, reachable_ids(vocabulary, ids, "leave it out"))
    tokens_by_id = {token.id: token for token in sorted(tokens, key=lambda token: token.id)}
    if not tokens_by_id:
        raise InputError(
            "there are no tokens to measure: the vocabulary has no available entry, or none was named"
        )
    if sample is None:
        return list(tokens_by_id.values())
    sample = checks.whole_number("sample", sample)
    if not 1 <= sample <= len(tokens_by_id):
        raise InputError(
            f"sample is {sample}: it must be between 1 and {len(tokens_by_id)}, the number of tokens"
        )
    sampled_ids = np.random.default_rng(seed).choice(list(tokens_by_id), size=sample, replace=False)
    return [tokens_by_id[token_id] for token_id in sorted(sampled_ids.tolist())]


# Maximum number of entries that a message lists.
_LISTED = 5


def reachable_ids(vocabulary: Vocabulary, ids: Sequence[int], advice: str) -> list[int]:
    """Return the ids of entries that can occur in text, and warn about the others.

    Raises:
        InputError: None of the entries can occur in text. The message ends with the advice.
    """
    reachable = []
    unreachable = []  # how a message names each
    for token_id in dict.fromkeys(ids):
        index = vocabulary.index_of(token_id)
        category = vocabulary.categories[index]
        if category.available:
            reachable.append(token_id)
        else:
            unreachable.append(f"#{token_id} {vocabulary.tokens[index]!r} ({category.value})")
    listed = ", ".join(unreachable[:_LISTED])
    if unreachable and not reachable:
        raise InputError(f"{listed} cannot occur in text: {advice}")
    if unreachable:
        unlisted = len(unreachable) - _LISTED
        others = f" and {unlisted:,} more" if unlisted > 0 else ""
        warn(f"left out, because they cannot occur in text: {listed}{others}")
    return reachable


def available_tokens(vocabulary: Vocabulary, ids: Sequence[int]) -> list[Token]:
    """Return the tokens with the given ids, in the order of the ids and without repetitions.

    Raises:
        InputError: One of the tokens cannot occur in text.
    """
    available = {token.id: token for token in vocabulary.available}
    for token_id in ids:
        if token_id not in available:
            categories = dict(zip(vocabulary.ids, vocabulary.categories, strict=True))
            reason = categories.get(token_id, "not in the vocabulary")
            raise InputError(f"token id {token_id} cannot occur in text ({reason}): leave it out")
    return [available[token_id] for token_id in dict.fromkeys(ids)]


def parse_token(name: str) -> int | str:
    """Return the token that a user typed: the id in a name such as ``#101``, or else the text of a token."""
    by_id = _BY_ID.fullmatch(name)
    return name if by_id is None else int(by_id.group(1))


def token_ids(vocabulary: Vocabulary, tokens: TokenSource) -> list[int]:
    """Return the ids of tokens that are named by id, by text or in a file, or in a list of these.

    A file is a txt file with one token per line, or a table with a column token_id or token. If a table has
    both columns, they must name the same entries.

    Raises:
        InputError: The text of a token is not in the vocabulary, a file cannot be read, or a token is neither
            an id nor a text. Ids are not checked.
    """
    names: list[Any]
    # In Python, True and False are integers. They name no token.
    if isinstance(tokens, (str, PathLike, Integral)) and not isinstance(tokens, bool):
        names = [tokens]
    else:
        names = checks.list_of("token ids or texts", "tokens", tokens, ordered=False)
    if not names:
        raise InputError("the list of tokens is empty: name at least one token")
    ids = []
    for number, name in enumerate(names, start=1):
        if isinstance(name, str):
            ids.append(_find_token(vocabulary, name))
        elif isinstance(name, PathLike):
            ids += _ids_in_file(vocabulary, checks.file_path("tokens", name))
        elif isinstance(name, Integral) and not isinstance(name, bool):
            ids.append(int(name))
        else:
            raise InputError(f"token {number} is {shown(name)}: pass a token id, or the text of a token")
    return ids


def _find_token(vocabulary: Vocabulary, text: str) -> int:
    """Return the id of the vocabulary entry with the given text.

    The text is first looked up among the vocabulary strings, then among the decoded texts, and then among the
    decoded texts without surrounding spaces. If several entries match, entries that can occur in text take
    precedence.

    Raises:
        InputError: No entry matches, or several entries match equally well.
    """
    stripped = [decoded.strip() for decoded in vocabulary.decoded]
    hint = ""  # the end of an error
    if text.strip().isdecimal():
        hint = f"; if you mean the id, write #{text.strip()} (in Python, pass a number)"
    for names in (vocabulary.tokens, vocabulary.decoded, stripped):
        matching_ids = []
        available_ids = []
        for token_id, name, category in zip(vocabulary.ids, names, vocabulary.categories, strict=True):
            if text and name == text:  # the empty text names no entry, though some decode to it
                matching_ids.append(token_id)
                if category.available:
                    available_ids.append(token_id)
        candidates = available_ids or matching_ids
        if len(candidates) == 1:
            return candidates[0]
        if candidates:
            listed = ", ".join(str(token_id) for token_id in candidates[:_LISTED])
            raise InputError(f"{text!r} matches several token ids ({listed}): pass one of the ids{hint}")
    raise InputError(f"the vocabulary has no token {text!r}: `stickytoken tokens` lists its tokens{hint}")


def _ids_in_file(vocabulary: Vocabulary, path: Path) -> list[int]:
    """Return the ids of the tokens that a text file or a table names, by id or by text."""
    if path.suffix.lower() not in TABLE_SUFFIXES:
        names = [line for line in tables.read_lines(path) if line.strip()]
    else:
        table = tables.read_table(path)
        if "token_id" in table.columns:
            ids = _column_of_ids(table)
            if "token" in table.columns:
                _require_agreement(vocabulary, ids, table.values_of("token"), path)
            return ids
        if "token" not in table.columns:
            columns = ", ".join(table.columns) or "none"
            raise InputError(f"{path} has no column 'token_id' or 'token': it has {columns}")
        names = []
        for row, token_name in enumerate(table.texts("token"), start=1):
            if not token_name:
                raise InputError(f"{path}: the token of row {row} is missing")
            names.append(token_name)
    ids_by_name = dict(zip(vocabulary.tokens, vocabulary.ids, strict=True))
    ids = []
    for name in names:
        # The exact vocabulary string comes first, because a token may end with a carriage return or look like
        # an id such as ``#5``. Otherwise, a carriage return at the end belongs to the line ending.
        if name in ids_by_name:
            ids.append(ids_by_name[name])
        else:
            ids += token_ids(vocabulary, parse_token(name.rstrip("\r")))
    return ids


def _column_of_ids(table: tables.Table) -> list[int]:
    ids = []
    for row, value in enumerate(table.values_of("token_id"), start=1):
        number = tables.number_of(value)
        if number is None or not number.is_integer():
            raise InputError(f"{table.path}: the token_id of row {row} is not a whole number")
        ids.append(int(number))
    return ids


def _require_agreement(vocabulary: Vocabulary, ids: Sequence[int], names: Sequence[Any], path: Path) -> None:
    """Refuse a table of another model, which names tokens otherwise than the vocabulary does."""
    index_by_id = {token_id: index for index, token_id in enumerate(vocabulary.ids)}
    for row, (token_id, name) in enumerate(zip(ids, names, strict=True), start=1):
        index = index_by_id.get(token_id)
        if index is None or not name:  # unknown ids are refused later, and an empty name says nothing
            continue
        token = vocabulary.tokens[index]
        text = vocabulary.decoded[index]
        is_same = str(name) in (token, text) or str(name).strip() in (token.strip(), text.strip())
        if not is_same:
            raise InputError(
                f"{path}: row {row} says that token id {token_id} is {shown(name)}, but in this model it is "
                f"{token!r}: use the table of this model, or correct the row"
            )
