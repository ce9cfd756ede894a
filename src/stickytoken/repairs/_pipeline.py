"""Edits of the pipeline in a tokenizer.json, as pure functions of its JSON document."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from stickytoken.errors import RepairError
from stickytoken.validation import visible

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Pair = tuple[str, str]

# Pre-tokenizers that remove every space, or replace it.
_SPACE_REMOVING = {"BertPreTokenizer", "Whitespace", "WhitespaceSplit", "ByteLevel", "Metaspace"}
# Normalizers that add no space.
_SPACE_NEUTRAL = {"Prepend", "Lowercase", "Strip", "StripAccents"}

# How entries that begin a word are marked: by byte-level tokenizers, and by SentencePiece.
_WORD_MARKS = ("Ġ", "▁")
# Most entries that may be found by whole-word lookup instead of by merges. Each of them must be split off the
# words that begin with it, so with more of them the tokenization of too many longer words would change.
_MOST_LOOKED_UP = 40
# Entries that a reason names.
_NAMED_ENTRIES = 3

_NO_SAFE_NAME = "spaces reach the vocabulary, so a text could contain any new name of the entry"


class EditedPipeline(NamedTuple):
    """The document of a tokenizer.json after an edit."""

    document: dict[str, Any]
    new_names: dict[int, str]  # of the entries that were renamed, by token id


def entries_of(document: Mapping[str, Any]) -> dict[int, str]:
    """Return the entries of the vocabulary, added tokens included, by token id."""
    vocabulary = document["model"]["vocab"]
    if isinstance(vocabulary, dict):
        entries = {token_id: entry for entry, token_id in vocabulary.items()}
    else:
        entries = {token_id: entry for token_id, (entry, _score) in enumerate(vocabulary)}
    for added in document.get("added_tokens", ()):
        entries[added["id"]] = added["content"]
    return entries


def named_entry(entry: str, token_id: int) -> str:
    """Name an entry for a message."""
    return f"token {token_id} ({visible(entry)!r})"


def _steps(step: dict[str, Any] | None, members_key: str) -> list[dict[str, Any]]:
    """Flatten a normalizer or pre-tokenizer that may be a sequence of others."""
    if step is None:
        return []
    if step["type"] != "Sequence":
        return [step]
    return [inner for member in step[members_key] for inner in _steps(member, members_key)]


def _excludes_spaces(document: Mapping[str, Any]) -> bool:
    """Check that no space reaches the vocabulary, so that no text matches an entry that contains one."""
    pre_tokenizers = {step["type"] for step in _steps(document.get("pre_tokenizer"), "pretokenizers")}
    if not _SPACE_REMOVING.isdisjoint(pre_tokenizers):
        return True
    excludes = False
    for step in _steps(document.get("normalizer"), "normalizers"):
        adds_no_space = step["type"] == "Replace" and " " not in step["content"]
        replaces_spaces = adds_no_space and step["pattern"].get("String") == " "
        if step["type"] == "ByteLevel" or replaces_spaces:
            excludes = True
        elif not adds_no_space and step["type"] not in _SPACE_NEUTRAL:
            excludes = False
    return excludes


def _tokenizer_of_steps(steps: Mapping[str, Any]) -> Tokenizer:
    """Make a tokenizer that has these steps and an empty vocabulary."""
    from tokenizers import Tokenizer

    model = {"type": "WordLevel", "vocab": {"": 0}, "unk_token": ""}
    return Tokenizer.from_str(json.dumps({"version": "1.0", "added_tokens": [], "model": model, **steps}))


class _RemainingMerges(NamedTuple):
    """The merges of a byte pair encoding without some entries."""

    ranks: dict[Pair, int]  # the lowest rank is merged first
    unmerged: tuple[str, ...]  # other entries that were made by merges, and are no longer


class EditableVocabulary:
    """The vocabulary of a tokenizer.json, whose entries can be put out of the reach of text.

    Args:
        document: the content of tokenizer.json.
        can_change_steps: whether whoever loads the tokenizer uses the steps of the file.
    """

    def __init__(self, document: dict[str, Any], can_change_steps: Callable[[], bool]) -> None:
        from tokenizers import Tokenizer

        self._document = document
        self._can_change_steps = can_change_steps
        self._model: dict[str, Any] = document["model"]
        self._kind: str | None = self._model.get("type")
        if self._kind is None:  # old files do not name it; the library recognises it
            self._kind = json.loads(Tokenizer.from_str(json.dumps(document)).to_str())["model"]["type"]
        self._entries = entries_of({"model": self._model})
        self._has_safe_names = _excludes_spaces(document)
        self._ranks = {pair: rank for rank, pair in enumerate(merge_pairs(self._model) or ())}
        # The merges that an entry takes part in, as one of the pair or as its result.
        self._merges_with: dict[str, list[Pair]] = {}
        for pair in self._ranks:
            for entry in {*pair, "".join(pair)}:
                self._merges_with.setdefault(entry, []).append(pair)
        # Caches: entries that contain a string, and merges without a set of entries.
        self._containing: dict[str, list[str]] = {}
        self._remaining: dict[frozenset[str], _RemainingMerges] = {}

    def reason_against(self, token_id: int, accepted: Sequence[int]) -> str | None:
        """Say why an entry cannot be made unreachable.

        Args:
            token_id: the entry.
            accepted: entries that become unreachable together with it.

        Returns:
            The reason, or None if the entry can be made unreachable.
        """
        entry = self._entries[token_id]
        if token_id == self._model.get("unk_id") or entry == self._model.get("unk_token"):
            return "unknown text becomes this token"
        removed = frozenset(self._entries[removed_id] for removed_id in (*accepted, token_id))
        has_byte_entries = bool(self._model.get("byte_fallback"))
        is_byte = has_byte_entries and re.fullmatch("<0x[0-9A-F]{2}>", entry) is not None
        if self._kind == "BPE":
            return self._reason_of_merges(entry, is_byte, removed)
        return self._reason_of_pieces(entry, is_byte, removed)

    def _reason_of_pieces(self, entry: str, is_byte: bool, removed: frozenset[str]) -> str | None:
        """Say why an entry of a WordPiece or Unigram vocabulary cannot be removed; None if it can."""
        if self._kind not in ("WordPiece", "Unigram"):
            return f"a vocabulary of the kind {self._kind} has no smaller entries to fall back on"
        if not self._has_safe_names:
            return _NO_SAFE_NAME
        if is_byte:
            return "it is a byte, and has no pieces"
        remaining = set(self._entries.values()) - removed
        if self._kind == "WordPiece":
            prefix = self._model.get("continuing_subword_prefix", "##")
            can_be_cut = bool(word_pieces(entry, remaining, prefix))
        else:
            can_be_cut = bool(self._model.get("byte_fallback")) or _is_concatenation(entry, remaining)
        return None if can_be_cut else "without it, its text would be unknown"

    def _reason_of_merges(self, entry: str, is_byte: bool, removed: frozenset[str]) -> str | None:
        """Say why an entry of a byte pair encoding cannot be removed; None if it can."""
        if self._model.get("end_of_word_suffix") or self._model.get("continuing_subword_prefix"):
            return "its byte pair encoding marks word ends in the entries"
        if len(entry) == 1 or is_byte:
            return "it is a single character or byte, and has no pieces"
        unmerged = self._merges_without(removed).unmerged
        if not unmerged:
            needs_no_name = not self._model.get("ignore_merges")
            return None if self._has_safe_names or needs_no_name else _NO_SAFE_NAME
        # Entries that no merges make can still be looked up, if they begin words.
        are_few = len(unmerged) <= _MOST_LOOKED_UP
        begin_words = are_few and all(self._begins_words(other, removed) for other in unmerged)
        if begin_words and self._can_look_up_words:
            return None
        named = ", ".join(repr(other) for other in unmerged[:_NAMED_ENTRIES])
        return f"{len(unmerged)} other entries are built from it, such as {named}"

    def _begins_words(self, entry: str, removed: frozenset[str]) -> bool:
        """Say whether an entry occurs at the beginning of words only."""
        if entry.startswith(_WORD_MARKS):
            return True
        if not entry.startswith(tuple(removed)):
            return False
        # At the beginning of a text, a word has no mark.
        marked_forms = {mark + entry for mark in _WORD_MARKS}
        containing = [other for other in self._model["vocab"] if entry in other]
        words = [other.lstrip("".join(_WORD_MARKS)) for other in containing]
        occurs_marked = not marked_forms.isdisjoint(containing)
        return occurs_marked and all(word.startswith(entry) for word in words)

    def without(self, ids: Sequence[int]) -> EditedPipeline:
        """Return the pipeline after which no text reaches some entries; their ids stay."""
        new_names = _unreachable_names(ids)
        if self._kind != "BPE":
            return EditedPipeline(
                self._document | {"model": renamed_model(self._model, new_names)}, new_names
            )
        removed = frozenset(self._entries[token_id] for token_id in ids)
        remaining = self._merges_without(removed)
        ordered_pairs = sorted(remaining.ranks, key=remaining.ranks.__getitem__)
        stored_as_text = isinstance(next(iter(self._model["merges"]), None), str)
        merges = [" ".join(pair) if stored_as_text else list(pair) for pair in ordered_pairs]
        model = self._model | {"merges": merges}
        if not remaining.unmerged and not model.get("ignore_merges"):
            return EditedPipeline(self._document | {"model": model}, {})
        new_names |= _unreachable_names(self._never_merged)
        model = renamed_model(model | {"ignore_merges": True}, new_names)
        document = self._document | {"model": model}
        # An entry is looked up as a whole word. So a step before splits it off longer words, the longest
        # entry first.
        split_off = tuple(entry for entry in remaining.unmerged if entry.startswith(tuple(removed)))
        beginnings = []
        if split_off:
            beginnings = [entry for entry in self._model["vocab"] if entry.startswith(split_off)]
        if beginnings:
            by_length = sorted(beginnings, key=len, reverse=True)
            alternatives = "|".join(re.escape(entry) for entry in by_length)
            pattern = {"Regex": rf"\A(?:{alternatives})"}
            split = {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}
            steps = _steps(document.get("pre_tokenizer"), "pretokenizers")
            document["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [*steps, split]}
        return EditedPipeline(document, new_names)

    def _merges_without(self, removed: frozenset[str]) -> _RemainingMerges:
        """Remove the merges that need or make some entries, and merge what can be merged otherwise."""
        if removed in self._remaining:
            return self._remaining[removed]
        ranks = dict(self._ranks)
        dead_pairs = {pair for entry in removed for pair in self._merges_with.get(entry, ())}
        dead_in_order = sorted(dead_pairs, key=ranks.__getitem__)
        for pair in dead_in_order:
            del ranks[pair]
        for pair in dead_in_order:
            entry = "".join(pair)
            if entry in removed:
                continue
            pieces = _merged(entry, ranks)
            if len(pieces) == 2:
                ranks[pieces[0], pieces[1]] = self._ranks[pair]
        for entry in removed - self._containing.keys():
            self._containing[entry] = [other for other in self._model["vocab"] if entry in other]
        affected = dict.fromkeys(other for entry in sorted(removed) for other in self._containing[entry])
        unmerged = []
        for entry in affected:
            if entry in removed or len(_merged(entry, ranks)) == 1:
                continue
            was_merged = len(_merged(entry, self._ranks)) == 1
            if was_merged:
                unmerged.append(entry)
        remaining = _RemainingMerges(ranks, tuple(unmerged))
        self._remaining[removed] = remaining
        return remaining

    @cached_property
    def _can_look_up_words(self) -> bool:
        """Whether looking up whole words can replace their merges, for whoever loads the tokenizer."""
        if not self._has_safe_names or self._document.get("pre_tokenizer") is None:
            return False
        steps = {key: self._document.get(key) for key in ("normalizer", "pre_tokenizer")}
        splits_words = len(_tokenizer_of_steps(steps).encode("one two three").ids) == 3
        merged_entries = {entry for pair in self._ranks for entry in pair}
        uses_no_renamed_entry = merged_entries.isdisjoint(self._never_merged.values())
        return splits_words and uses_no_renamed_entry and self._can_change_steps()

    @cached_property
    def _never_merged(self) -> dict[int, str]:
        """The entries that no merges make, which a lookup of whole words would begin to match."""
        from tokenizers.models import BPE

        if self._model.get("ignore_merges"):
            return {}
        merging = BPE(vocab=self._model["vocab"], merges=list(self._ranks))
        added_ids = {added["id"] for added in self._document.get("added_tokens", ())}

        def is_merged(token_id: int, entry: str) -> bool:
            return len(entry) == 1 or token_id in added_ids or len(merging.tokenize(entry)) <= 1

        return {
            token_id: entry for token_id, entry in self._entries.items() if not is_merged(token_id, entry)
        }


def _is_concatenation(text: str, entries: Collection[str]) -> bool:
    """Say whether a text can be cut into entries."""
    reachable = [True]  # whether pieces end at each character
    for end in range(1, len(text) + 1):
        reachable.append(any(reachable[start] and text[start:end] in entries for start in range(end)))
    return reachable[-1]


def merge_pairs(model: Mapping[str, Any]) -> list[Pair] | None:
    """Return the merges of a byte pair encoding in their order; None if the model has no merges."""
    if "merges" not in model:
        return None
    pairs = [merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"]]
    return [(left, right) for left, right in pairs]


def renamed_model(model: dict[str, Any], new_names: Mapping[int, str]) -> dict[str, Any]:
    """Return the model of a pipeline with new names for some entries, by token id."""
    vocabulary = model["vocab"]
    renamed: Any
    if isinstance(vocabulary, dict):
        renamed = {new_names.get(token_id, entry): token_id for entry, token_id in vocabulary.items()}
    else:
        renamed = [
            [new_names.get(token_id, entry), score] for token_id, (entry, score) in enumerate(vocabulary)
        ]
    return model | {"vocab": renamed}


def _unreachable_names(ids: Iterable[int]) -> dict[int, str]:
    """Name entries by strings with a space, which no text produces if spaces do not reach the vocabulary."""
    return {token_id: f"[unreachable {token_id}]" for token_id in ids}


def with_plain_specials(document: dict[str, Any], ids: Sequence[int], pad_id: int | None) -> EditedPipeline:
    """Return the pipeline that reads the text of some special tokens as plain text.

    Args:
        document: the content of tokenizer.json.
        ids: the special or added tokens.
        pad_id: the padding token; None without one.

    Raises:
        RepairError: a token would get another id, or text would still reach it.
    """
    added_by_id = {added["id"]: added for added in document.get("added_tokens", ())}
    model = document["model"]
    entries = entries_of({"model": model})
    not_in_model = {
        token_id: str(added_by_id[token_id]["content"]) for token_id in sorted(added_by_id.keys() - entries)
    }
    if not not_in_model.keys().isdisjoint(ids):
        # Without the added token, nothing would have its id. So all of them become entries of the model.
        model = _with_entries(model, not_in_model, ids)
        entries |= not_in_model
    edited = document | {"model": model}
    still_reached = [
        token_id for token_id in ids if token_id == pad_id or _is_in_reach(edited, entries[token_id])
    ]
    new_names = _unreachable_names(still_reached)
    if new_names and not _excludes_spaces(document):
        token_id = next(iter(new_names))
        raise RepairError(
            f"{named_entry(entries[token_id], token_id)} cannot become plain text: its vocabulary would "
            "still match it, and spaces reach the vocabulary, so that no other name is safe"
        )
    for token_id, name in new_names.items():
        if model.get("unk_token") == entries[token_id]:
            model = model | {"unk_token": name}
    remaining = [added for token_id, added in added_by_id.items() if token_id not in ids]
    if pad_id in ids:
        # With split_special_tokens, no token that is marked as special is matched in text.
        remaining = [added | {"special": False} for added in remaining]
    changed = document | {"model": renamed_model(model, new_names), "added_tokens": remaining}
    padding = changed.get("padding")
    if padding and padding["pad_id"] in new_names:
        changed["padding"] = padding | {"pad_token": new_names[padding["pad_id"]]}
    return EditedPipeline(changed, new_names)


def _with_entries(
    model: dict[str, Any], new_entries: Mapping[int, str], ids: Sequence[int]
) -> dict[str, Any]:
    """Add entries to the vocabulary of a model under their ids.

    Args:
        model: the model of a pipeline.
        new_entries: by token id, in ascending order.
        ids: the tokens that are edited, for the message.

    Raises:
        RepairError: the ids do not follow on the vocabulary.
    """
    vocabulary = model["vocab"]
    if isinstance(vocabulary, dict):
        return model | {"vocab": vocabulary | {entry: token_id for token_id, entry in new_entries.items()}}
    following_ids = list(range(len(vocabulary), len(vocabulary) + len(new_entries)))
    if list(new_entries) != following_ids:
        token_id = next(edited_id for edited_id in ids if edited_id in new_entries)
        raise RepairError(
            f"{named_entry(new_entries[token_id], token_id)} cannot become plain text: the ids of the added "
            "tokens have gaps, so that other tokens would change theirs"
        )
    lowest_score = min(score for _entry, score in vocabulary)
    return model | {"vocab": [*vocabulary, *([entry, lowest_score] for entry in new_entries.values())]}


def _is_in_reach(document: Mapping[str, Any], entry: str) -> bool:
    """Say whether text may reach an entry of the vocabulary that is not an added token."""
    model = document["model"]
    if "merges" in model:
        return bool(model.get("ignore_merges"))
    if isinstance(model["vocab"], list) or document.get("pre_tokenizer") is None:
        return True
    pre_tokenizer = _tokenizer_of_steps({"pre_tokenizer": document["pre_tokenizer"]}).pre_tokenizer
    text = entry.removeprefix(str(model.get("continuing_subword_prefix") or ""))
    return any(text in piece for piece, _span in pre_tokenizer.pre_tokenize_str(text))


def word_pieces(entry: str, entries: Collection[str], prefix: str) -> list[str] | None:
    """Cut the text of an entry as WordPiece does, longest piece first.

    Args:
        entry: the entry, with the prefix if it continues a word.
        entries: the vocabulary to cut into.
        prefix: of entries that continue a word, such as ``##``.

    Returns:
        The pieces; None if a part of the text is not in the vocabulary.
    """
    continues_word = bool(prefix) and entry.startswith(prefix) and len(entry) > len(prefix)
    text = entry.removeprefix(prefix) if continues_word else entry
    pieces: list[str] = []
    start = 0
    while start < len(text):
        mark = prefix if start or continues_word else ""
        ends = range(len(text), start, -1)
        end = next((end for end in ends if mark + text[start:end] in entries), None)
        if end is None:
            return None
        pieces.append(mark + text[start:end])
        start = end
    return pieces


def _merged(text: str, ranks: Mapping[Pair, int]) -> list[str]:
    """Merge the characters of a word: the pair of the lowest rank first, the leftmost of equal ones."""
    pieces = list(text)
    while len(pieces) > 1:
        pair_ranks = [ranks.get(pair, math.inf) for pair in pairwise(pieces)]
        lowest = min(pair_ranks)
        if math.isinf(lowest):
            break
        left = pair_ranks.index(lowest)
        pieces[left : left + 2] = [pieces[left] + pieces[left + 1]]
    return pieces
