"""Make special tokens plain text, while the tokenizer still puts them around a text by itself."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from stickytoken.errors import RepairError
from stickytoken.repairs.tokenizer_edit._pipeline import entries_of, keeps_spaces_out, shown_entry
from stickytoken.repairs.tokenizer_edit._unreachable import new_name, renamed_model


def with_plain_specials(
    document: dict[str, Any], ids: Sequence[int], pad_id: int | None
) -> tuple[dict[str, Any], dict[int, str]]:
    """Stop looking for special or added tokens in text.

    Args:
        document: A pipeline in the form of tokenizer.json.
        ids: The tokens.
        pad_id: What transformers fills batches with, if it needs a name for it.

    Returns:
        The pipeline, and new strings of entries by id.
    """
    added = {each["id"]: each for each in document.get("added_tokens", ())}
    for token_id in ids:
        if token_id not in added:
            entry = entries_of(document).get(token_id, "")
            raise RepairError(
                f"{shown_entry(entry, token_id)} is an ordinary entry: make it unreachable, not plain text"
            )
    model = _with_all_added(document["model"], added, ids)
    vocabulary = entries_of({"model": model})
    renamed = {
        token_id: new_name(token_id)
        for token_id in ids
        if token_id == pad_id or _in_reach(document | {"model": model}, vocabulary[token_id])
    }
    if renamed and not keeps_spaces_out(document):
        entry = vocabulary[next(iter(renamed))]
        raise RepairError(
            f"{shown_entry(entry, next(iter(renamed)))} cannot become plain text: its vocabulary would "
            "still match it, and spaces reach the vocabulary, so that no other name is safe"
        )
    if model.get("unk_token") in {vocabulary[token_id] for token_id in renamed}:
        unknown = next(token_id for token_id, entry in vocabulary.items() if entry == model["unk_token"])
        model = model | {"unk_token": renamed[unknown]}
    kept = [each for token_id, each in added.items() if token_id not in ids]
    if pad_id in ids:  # special tokens are no longer looked for at all, so those that still are lose the mark
        kept = [each | {"special": False} for each in kept]
    changed = document | {"model": renamed_model(model, renamed), "added_tokens": kept}
    if changed.get("padding") and changed["padding"]["pad_id"] in renamed:
        padding = changed["padding"]
        changed["padding"] = padding | {"pad_token": renamed[padding["pad_id"]]}
    return changed, renamed


def _with_all_added(
    model: dict[str, Any], added: Mapping[int, Mapping[str, Any]], ids: Collection[int]
) -> dict[str, Any]:
    """Put added tokens into the vocabulary where leaving one out would move the ids of the others."""
    vocabulary = model["vocab"]
    entries = entries_of({"model": model})
    missing = {
        token_id: str(added[token_id]["content"]) for token_id in sorted(added) if token_id not in entries
    }
    if missing.keys().isdisjoint(ids):
        return model
    if isinstance(vocabulary, dict):
        return model | {"vocab": vocabulary | {entry: token_id for token_id, entry in missing.items()}}
    if list(missing) != list(range(len(vocabulary), len(vocabulary) + len(missing))):
        token_id = next(each for each in ids if each in missing)
        raise RepairError(
            f"{shown_entry(missing[token_id], token_id)} cannot become plain text: the ids of the added "
            "tokens have gaps, so that other tokens would change theirs"
        )
    lowest = min(score for _, score in vocabulary)
    return model | {"vocab": [*vocabulary, *([entry, lowest] for entry in missing.values())]}


def _in_reach(document: dict[str, Any], entry: str) -> bool:
    """Check whether the vocabulary could match the string of an entry in text."""
    from tokenizers import Tokenizer

    model = document["model"]
    if "merges" in model:
        return bool(model.get("ignore_merges"))
    if isinstance(model["vocab"], list) or document.get("pre_tokenizer") is None:
        return True
    small = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": document["pre_tokenizer"],
        "model": {"type": "WordLevel", "vocab": {"": 0}, "unk_token": ""},
    }
    splitting = Tokenizer.from_str(json.dumps(small)).pre_tokenizer
    text = entry.removeprefix(str(model.get("continuing_subword_prefix") or ""))
    return any(text in piece for piece, _ in splitting.pre_tokenize_str(text))
