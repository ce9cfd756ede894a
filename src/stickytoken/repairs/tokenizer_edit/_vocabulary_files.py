"""Older vocabulary files next to tokenizer.json, kept in step with it."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from stickytoken.errors import RepairError

_SENTENCEPIECE = ("spiece.model", "sentencepiece.bpe.model", "tokenizer.model")
_UNUSED = 5  # type of a SentencePiece entry that no text is cut into


def vocabulary_files(
    folder: Path,
    before: Mapping[int, str],
    renamed: Mapping[int, str],
    merges: Collection[tuple[str, str]] | None,
    dropped: Collection[int],
) -> dict[str, bytes]:
    """Compute the older files of a tokenizer folder that an edit changes.

    Args:
        folder: The tokenizer's folder.
        before: Its entries by id.
        renamed: New strings of entries by id.
        merges: All merges after the edit, if they changed.
        dropped: Ids of added tokens that are no longer looked for in text.
    """
    names = {before[token_id]: name for token_id, name in renamed.items()}
    gone = {before[token_id] for token_id in dropped}
    files: dict[str, bytes] = {}
    if (content := _read(folder / "vocab.txt")) is not None and names:
        files["vocab.txt"] = _renamed_lines(content, names)
    if (content := _read(folder / "vocab.json")) is not None and names:
        vocabulary = _object(content, folder / "vocab.json")
        changed = {names.get(entry, entry): token_id for entry, token_id in vocabulary.items()}
        files["vocab.json"] = json.dumps(changed, ensure_ascii=False).encode()
    if (content := _read(folder / "merges.txt")) is not None and merges is not None:
        files["merges.txt"] = _merge_lines(content, merges)
    if (content := _read(folder / "added_tokens.json")) is not None and gone:
        added = _object(content, folder / "added_tokens.json")
        left = {entry: token_id for entry, token_id in added.items() if entry not in gone}
        files["added_tokens.json"] = json.dumps(left, ensure_ascii=False, indent=2).encode()
    for name in _SENTENCEPIECE:
        if (content := _read(folder / name)) is not None and names:
            files |= {name: changed_model} if (changed_model := _renamed_pieces(content, names)) else {}
    return files


def _renamed_lines(content: bytes, names: Mapping[str, str]) -> bytes:
    lines = content.decode("utf-8").split("\n")
    return "\n".join(names.get(line.rstrip("\r"), line) for line in lines).encode()


def _merge_lines(content: bytes, merges: Collection[tuple[str, str]]) -> bytes:
    first = content.decode("utf-8").split("\n", 1)[0]
    head = [first] if first.startswith("#version") else []
    return "\n".join([*head, *(" ".join(pair) for pair in merges), ""]).encode()


def _renamed_pieces(content: bytes, names: Mapping[str, str]) -> bytes | None:
    """Rename pieces of a SentencePiece model, and mark them as unused; None if it holds none of them."""
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
    from sentencepiece import sentencepiece_model_pb2

    formats: Any = sentencepiece_model_pb2
    model = formats.ModelProto()
    try:
        model.ParseFromString(content)
    except DecodeError:  # files of tiktoken have this name too
        return None
    normal = formats.ModelProto.SentencePiece.NORMAL
    found = [piece for piece in model.pieces if piece.piece in names and piece.type in (normal, _UNUSED)]
    for piece in found:
        piece.piece, piece.type = names[piece.piece], _UNUSED
    return bytes(model.SerializeToString()) if found else None


def _object(content: bytes, path: Path) -> dict[str, int]:
    try:
        found = json.loads(content)
    except ValueError as error:
        raise RepairError(f"{path} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise RepairError(f"{path} is not a JSON object")
    return found


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes() if path.is_file() else None
    except OSError as error:
        raise RepairError(f"{path} cannot be read: {error.strerror or error}") from error
