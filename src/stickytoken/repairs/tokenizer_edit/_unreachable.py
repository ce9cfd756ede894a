"""Make ordinary entries unreachable from text."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from stickytoken.errors import RepairError
from stickytoken.repairs.tokenizer_edit._pipeline import (
    Merges,
    cuts_words,
    entries_of,
    keeps_spaces_out,
    segmentable,
    shown_entry,
    word_pieces,
)

_BYTE = re.compile(r"<0x[0-9A-F]{2}>")
_SHOWN_ENTRIES = 3


@dataclass(frozen=True, slots=True)
class Removed:
    """What a vocabulary becomes without some entries.

    Attributes:
        model: The ``model`` part of tokenizer.json.
        renamed: New strings of entries by id.
        word_beginnings: Strings to cut off words before they are looked up.
    """

    model: dict[str, Any]
    renamed: Mapping[int, str]
    word_beginnings: tuple[str, ...] = ()

    @property
    def looks_up_words(self) -> bool:
        """Whether the pipeline itself changes, and not only its vocabulary."""
        return bool(self.model.get("ignore_merges"))


def without_entries(
    document: dict[str, Any], ids: Sequence[int], can_change_steps: Callable[[], bool]
) -> Removed:
    """Remove entries from the reach of text."""
    vocabulary = _Vocabulary(document, can_change_steps)
    for token_id in ids:
        others = [each for each in ids if each != token_id]
        if (reason := vocabulary.reason_against(token_id, others)) is not None:
            entry = entries_of(document).get(token_id, "")
            raise RepairError(f"{shown_entry(entry, token_id)} cannot be made unreachable: {reason}")
    return vocabulary.without(tuple(ids))


def reasons_against(
    document: dict[str, Any], ids: Sequence[int], can_change_steps: Callable[[], bool]
) -> dict[int, str | None]:
    """Say why each entry cannot be removed together with those before it; None if it can."""
    vocabulary = _Vocabulary(document, can_change_steps)
    reasons: dict[int, str | None] = {}
    accepted: list[int] = []
    for token_id in ids:
        reasons[token_id] = vocabulary.reason_against(token_id, accepted)
        if reasons[token_id] is None:
            accepted.append(token_id)
    return reasons


class _Vocabulary:
    """The entries of a pipeline, and what cuts text into them."""

    def __init__(self, document: dict[str, Any], can_change_steps: Callable[[], bool]) -> None:
        self._document = document
        self._can_change_steps = can_change_steps
        self._model: dict[str, Any] = document["model"]
        self._kind = _kind(self._model)
        self._entries = entries_of({"model": self._model})
        self._added = {added["id"] for added in document.get("added_tokens", ())}
        self._order = {_pair(merge): rank for rank, merge in enumerate(self._model.get("merges", ()))}
        self._merges = Merges(tuple(self._model["vocab"]), self._order) if self._kind == "BPE" else None

    def reason_against(self, token_id: int, accepted: Sequence[int]) -> str | None:
        entry = self._entries.get(token_id)
        if entry is None or token_id in self._added:
            return self._reason_of_role(token_id)
        if token_id == self._model.get("unk_id") or entry == self._model.get("unk_token"):
            return "unknown text becomes this token"
        removed = frozenset(self._entries[each] for each in (*accepted, token_id) if each in self._entries)
        if self._merges is not None:
            return self._reason_of_merges(self._merges, entry, removed)
        if self._kind in ("WordPiece", "Unigram"):
            return self._reason_of_pieces(entry, removed)
        return f"a vocabulary of the kind {self._kind} has no smaller entries to fall back on"

    def _reason_of_role(self, token_id: int) -> str:
        if token_id in self._added:
            return "it is an added token; make its text plain instead"
        return "the vocabulary has no such token"

    def _reason_of_merges(self, merges: Merges, entry: str, removed: frozenset[str]) -> str | None:
        if self._model.get("end_of_word_suffix") or self._model.get("continuing_subword_prefix"):
            return "its byte pair encoding marks word ends in the entries"
        if len(entry) == 1 or self._is_byte(entry):
            return "it is a single character or byte, and has no pieces"
        lost = merges.without(removed).looked_up
        if not lost:
            return None if self._name_is_safe() or not self._model.get("ignore_merges") else _NO_NAME
        if not (merges.can_be_looked_up(lost, removed) and self._looks_up_words):
            shown = ", ".join(map(repr, lost[:_SHOWN_ENTRIES]))
            return f"{len(lost)} other entries are built from it, such as {shown}"
        return None

    def _reason_of_pieces(self, entry: str, removed: frozenset[str]) -> str | None:
        if not self._name_is_safe():
            return _NO_NAME
        if self._is_byte(entry):
            return "it is a byte, and has no pieces"
        left = set(self._entries.values()) - removed
        if self._kind == "WordPiece":
            prefix = self._model.get("continuing_subword_prefix", "##")
            cut: object = word_pieces(entry, left, prefix)
        else:
            cut = self._model.get("byte_fallback") or segmentable(entry, left)
        return None if cut else "without it, its text would be unknown"

    def _is_byte(self, entry: str) -> bool:
        return bool(self._model.get("byte_fallback")) and _BYTE.fullmatch(entry) is not None

    def _name_is_safe(self) -> bool:
        return keeps_spaces_out(self._document)

    def without(self, ids: tuple[int, ...]) -> Removed:
        if self._merges is None:
            renamed = {token_id: new_name(token_id) for token_id in ids}
            return Removed(renamed_model(self._model, renamed), renamed)
        entries = frozenset(self._entries[token_id] for token_id in ids)
        removal = self._merges.without(entries)
        model = self._model | {"merges": _written(removal.merges, self._model["merges"])}
        if not removal.looked_up and not self._model.get("ignore_merges"):
            return Removed(model, {})
        renamed = {token_id: new_name(token_id) for token_id in ids}
        renamed |= {token_id: new_name(token_id) for token_id in self._never_merged}
        lost = tuple(entry for entry in removal.looked_up if entry.startswith(tuple(entries)))
        beginnings = tuple(entry for entry in self._model["vocab"] if lost and entry.startswith(lost))
        return Removed(renamed_model(model | {"ignore_merges": True}, renamed), renamed, beginnings)

    @cached_property
    def _looks_up_words(self) -> bool:
        """Whether looking up whole words finds what merging them finds, and is honoured."""
        parts = {part for pair in self._order for part in pair}
        return (
            self._name_is_safe()
            and cuts_words(self._document)
            and parts.isdisjoint(self._never_merged.values())
            and self._can_change_steps()
        )

    @cached_property
    def _never_merged(self) -> dict[int, str]:
        """Entries that no merges make; looking up words would find them."""
        from tokenizers.models import BPE

        if self._model.get("ignore_merges"):
            return {}
        merging = BPE(vocab=self._model["vocab"], merges=list(self._order))
        return {
            token_id: entry
            for token_id, entry in self._entries.items()
            if len(entry) > 1 and token_id not in self._added and len(merging.tokenize(entry)) > 1
        }


_NO_NAME = "spaces reach the vocabulary, so that a text could hold any name it is given"


def new_name(token_id: int) -> str:
    """Name an entry by a string that no text can produce, given that spaces never reach the vocabulary."""
    return f"[unreachable {token_id}]"


def renamed_model(model: dict[str, Any], renamed: Mapping[int, str]) -> dict[str, Any]:
    """Rename entries of a vocabulary by id; their places stay."""
    vocabulary = model["vocab"]
    if isinstance(vocabulary, dict):
        changed: Any = {renamed.get(token_id, entry): token_id for entry, token_id in vocabulary.items()}
    else:
        changed = [
            [renamed.get(token_id, entry), score] for token_id, (entry, score) in enumerate(vocabulary)
        ]
    return model | {"vocab": changed}


def merge_pairs(model: dict[str, Any]) -> tuple[tuple[str, str], ...] | None:
    """Return the merges of a vocabulary; None if it has none."""
    return tuple(_pair(merge) for merge in model["merges"]) if "merges" in model else None


def _kind(model: dict[str, Any]) -> str:
    """Return the kind of a vocabulary; old files do not name it."""
    if "type" in model:
        return str(model["type"])
    if "merges" in model:
        return "BPE"
    if isinstance(model["vocab"], list):
        return "Unigram"
    return "WordPiece" if "continuing_subword_prefix" in model else "WordLevel"


def _pair(merge: str | Sequence[str]) -> tuple[str, str]:
    left, right = merge.split(" ") if isinstance(merge, str) else merge
    return left, right


def _written(merges: Sequence[tuple[str, str]], like: Sequence[Any]) -> list[Any]:
    """Write merges in the form that the file has."""
    return (
        [" ".join(pair) for pair in merges]
        if like and isinstance(like[0], str)
        else [list(pair) for pair in merges]
    )


def with_plain_specials(
    document: dict[str, Any], ids: Sequence[int], pad_id: int | None
) -> tuple[dict[str, Any], dict[int, str]]:
    """Stop looking for special or added tokens in text."""
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
