"""Choose the tokens of a run, and find the tokens that a user names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Integral
from os import PathLike
from pathlib import Path
from typing import TypeAlias

import numpy as np
import polars as pl

from stickytoken.data import Sentences
from stickytoken.data.tables import TABLE_SUFFIXES, decode, read_bytes, read_table
from stickytoken.detection.run import Run, require_same_model, restored_settings
from stickytoken.detection.run_folder import RunEvidence, measured_evidence
from stickytoken.encoders.protocol import Encoder
from stickytoken.errors import InputError
from stickytoken.insertion import Token
from stickytoken.methods.base import Job, MethodSettings
from stickytoken.methods.probes import EvidenceStage
from stickytoken.validation import file_path, list_of, shown, whole_number
from stickytoken.vocabulary import Vocabulary

TokenSource: TypeAlias = int | str | Path | Iterable[int | str]

_BY_ID = re.compile(r"\s*#(\d{1,9})\s*", re.ASCII)


def choose_tokens(
    vocabulary: Vocabulary, ids: Sequence[int] | None, sample: int | None, seed: int
) -> list[Token]:
    tokens = vocabulary.available if ids is None else available_tokens(vocabulary, ids)
    available = {token.id: token for token in sorted(tokens, key=lambda token: token.id)}
    if not available:
        raise InputError(
            "there are no tokens to test: the vocabulary has no available entry, or none was named"
        )
    if sample is None:
        return list(available.values())
    sample = whole_number("sample", sample)
    if not 1 <= sample <= len(available):
        raise InputError(
            f"sample is {sample}: it must be between 1 and {len(available)}, the number of tokens"
        )
    return [available[token_id] for token_id in drawn_ids(list(available), sample, seed)]


def drawn_ids(ids: Sequence[int], sample: int, seed: int) -> list[int]:
    drawn = np.random.default_rng(seed).choice(ids, size=sample, replace=False)
    return sorted(int(token_id) for token_id in drawn)


def available_tokens(vocabulary: Vocabulary, ids: Sequence[int]) -> list[Token]:
    available = {token.id: token for token in vocabulary.available}
    for token_id in ids:
        if token_id not in available:
            categories = dict(zip(vocabulary.ids, vocabulary.categories, strict=True))
            reason = categories.get(token_id, "not in the vocabulary")
            raise InputError(f"token id {token_id} cannot occur in text ({reason}): leave it out")
    return [available[token_id] for token_id in dict.fromkeys(ids)]


def token_ids(vocabulary: Vocabulary, tokens: TokenSource) -> list[int]:
    if isinstance(tokens, PathLike):
        return token_ids_from_file(vocabulary, file_path("tokens", tokens))
    single = isinstance(tokens, (str, Integral)) and not isinstance(tokens, bool)
    given = [tokens] if single else list_of("token ids or texts", "tokens", tokens, ordered=False)
    if not given:
        raise InputError("the list of tokens is empty: name at least one token")
    found = []
    for place, token in enumerate(given, start=1):
        if not isinstance(token, (str, Integral)) or isinstance(token, bool):
            raise InputError(f"token {place} is {shown(token)}: pass a token id, or the text of a token")
        found.append(find_token(vocabulary, token) if isinstance(token, str) else int(token))
    return found


def find_token(vocabulary: Vocabulary, text: str) -> int:
    """Find an entry by its vocabulary string, or else its decoded text, or this without outer white space."""
    for names in (vocabulary.tokens, vocabulary.decoded, tuple(name.strip() for name in vocabulary.decoded)):
        found = [
            (token_id, category)
            for token_id, name, category in zip(vocabulary.ids, names, vocabulary.categories, strict=True)
            if name == text and text
        ]
        reachable = [token_id for token_id, category in found if category.available]
        wanted = reachable or [token_id for token_id, _ in found]
        if len(wanted) == 1:
            return wanted[0]
        if wanted:
            shown = ", ".join(str(token_id) for token_id in wanted[:5])
            raise InputError(f"{text!r} may be any of the token ids {shown}: pass the id instead")
    raise InputError(f"the vocabulary has no token {text!r}: `stickytoken tokens` lists what there is")


def find_named(vocabulary: Vocabulary, name: str) -> int:
    """Find an entry by ``#`` and its id, or as in `find_token`."""
    if (by_id := _BY_ID.fullmatch(name)) is not None:
        return int(by_id.group(1))
    try:
        return find_token(vocabulary, name)
    except InputError as error:
        if name.strip().isdecimal():
            raise InputError(f"{error}; if you mean the id, write #{name.strip()}") from error
        raise


def token_ids_from_file(vocabulary: Vocabulary, path: Path) -> list[int]:
    """Read tokens from a file: txt with one token per line, as in `find_named`, or a table.

    A table has a column ``token_id`` or ``token``. If it has both, they must agree.
    """
    if path.suffix.lower() not in TABLE_SUFFIXES:
        names = [line for line in decode(read_bytes(path), path).split("\n") if line.strip()]
    else:
        frame = read_table(path)
        if "token_id" in frame.columns:
            values = frame["token_id"]
            if not values.dtype.is_numeric() and values.dtype != pl.String:
                raise InputError(f"column 'token_id' of {path} contains {values.dtype}, not whole numbers")
            whole = values.cast(pl.Int64, strict=False)
            if values.dtype.is_float():
                whole = whole.set(values != whole, None)
            if (missing := whole.is_null()).any():
                row = missing.to_list().index(True) + 1
                raise InputError(f"{path}: the token_id of row {row} is not a whole number")
            ids: list[int] = whole.to_list()
            given = frame["token"].to_list() if "token" in frame.columns else [None] * len(ids)
            places = {token_id: place for place, token_id in enumerate(vocabulary.ids)}
            for row, (token_id, token) in enumerate(zip(ids, given, strict=True), start=1):
                place = places.get(token_id)
                if place is None or token is None:  # what is not in the vocabulary is refused later
                    continue
                name, text = vocabulary.tokens[place], vocabulary.decoded[place]
                if str(token) not in (name, text) and str(token).strip() not in (name.strip(), text.strip()):
                    raise InputError(
                        f"{path}: row {row} says that token id {token_id} is {shown(token)}, and this model "
                        f"has {name!r} there: the table is of another model, or one of the columns is wrong"
                    )
            return ids
        if "token" not in frame.columns:
            raise InputError(
                f"{path} has no column 'token_id' or 'token': it has {', '.join(frame.columns) or 'none'}"
            )
        texts = frame["token"]
        if texts.dtype != pl.String:
            raise InputError(f"column 'token' of {path} contains {texts.dtype}, not text")
        if (missing := texts.is_null()).any():
            raise InputError(f"{path}: the token of row {missing.to_list().index(True) + 1} is missing")
        names = texts.to_list()
    ids_by_token = dict(zip(vocabulary.tokens, vocabulary.ids, strict=True))
    return [
        ids_by_token[name] if name in ids_by_token else find_named(vocabulary, name.rstrip("\r"))
        for name in names
    ]


@dataclass(frozen=True)
class Reopened:
    run: Run
    job: Job[MethodSettings]  # its corpus is empty, because the plan holds all texts
    stage: EvidenceStage  # carriers and anchors, encoded once


def reopen(run: Run, encoder: Encoder, vocabulary: Vocabulary) -> Reopened:
    require_same_model(run, encoder)
    job = Job(
        encoder, restored_settings(run), Sentences((), "the plan of the run"), vocabulary, [], True, False
    )
    stage = run.method.evidence_stage(job, run.plan)
    if stage is None:
        raise InputError(f"the method {run.record.method} puts no tokens into texts, so it has none to show")
    return Reopened(run, job, stage)


def token_evidence(opened: Reopened, token_ids: Sequence[int], with_ordinary: bool) -> RunEvidence:
    run, job = opened.run, opened.job
    named = [token.id for token in available_tokens(job.vocabulary, token_ids)]
    ranked_by = run.method.ranked_by.key
    return measured_evidence(job, opened.stage, run.tokens, ranked_by, named, with_ordinary)
