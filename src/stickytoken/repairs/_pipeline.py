"""Edit the content of a tokenizer.json. Every edit returns a new JSON document."""

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

# Pre-tokenizers that remove or replace every space.
_SPACE_REMOVING = {"BertPreTokenizer", "Whitespace", "WhitespaceSplit", "ByteLevel", "Metaspace"}
# Normalizers that add no space.
_SPACE_NEUTRAL = {"Prepend", "Lowercase", "Strip", "StripAccents"}

# Prefixes that mark an entry as the beginning of a word: in byte-level tokenizers, and in SentencePiece.
_WORD_MARKS = ("Ġ", "▁")
# Maximum number of entries that may be looked up as whole words instead of being merged. Each of them is
# split off from all words that begin with it, so a higher limit would change the tokenization of too many
# words.
_MOST_LOOKED_UP = 40
# Maximum number of entries that are named as examples in the reason why an entry cannot be made unreachable.
_NAMED_ENTRIES = 3

_NO_SAFE_NAME = "spaces reach the vocabulary, so a text could contain any new name of the entry"


class EditedPipeline(NamedTuple):
    """A tokenizer.json after an edit."""

    document: dict[str, Any]
    new_names: dict[int, str]  # new strings of the renamed entries, keyed by token id


def entries_of(document: Mapping[str, Any]) -> dict[int, str]:
    """Return the strings of the vocabulary entries and of the added tokens, keyed by token id."""
    vocabulary = document["model"]["vocab"]
    if isinstance(vocabulary, dict):
        entries = {token_id: entry for entry, token_id in vocabulary.items()}
    else:
        entries = {token_id: entry for token_id, (entry, _score) in enumerate(vocabulary)}
    for added in document.get("added_tokens", ()):
        entries[added["id"]] = added["content"]
    return entries


def named_entry(entry: str, token_id: int) -> str:
    """Return the id and string of an entry for an error message, such as ``token 7 ('river')``."""
    return f"token {token_id} ({visible(entry)!r})"


def _steps(step: dict[str, Any] | None, members_key: str) -> list[dict[str, Any]]:
    """Return the individual steps of a normalizer or pre-tokenizer, with nested sequences flattened.

    Args:
        step: the normalizer or pre-tokenizer; None if there is none.
        members_key: key under which a step of type Sequence stores the steps that it contains.
    """
    if step is None:
        return []
    if step["type"] != "Sequence":
        return [step]
    return [inner for member in step[members_key] for inner in _steps(member, members_key)]


def _excludes_spaces(document: Mapping[str, Any]) -> bool:
    """Return whether all spaces are removed or replaced before the vocabulary is looked up.

    If they all are, no text can match an entry that contains a space.
    """
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
    """Return a tokenizer with the given normalizer and pre-tokenizer, and a placeholder vocabulary."""
    from tokenizers import Tokenizer

    model = {"type": "WordLevel", "vocab": {"": 0}, "unk_token": ""}
    return Tokenizer.from_str(json.dumps({"version": "1.0", "added_tokens": [], "model": model, **steps}))


class _RemainingMerges(NamedTuple):
    """The merges of a byte pair encoding that remain after some entries are removed."""

    ranks: dict[Pair, int]  # rank of each merge; the merge with the lowest rank is applied first
    unmerged: tuple[str, ...]  # remaining entries that the merges no longer produce


class EditableVocabulary:
    """The vocabulary of a tokenizer.json, with methods that make entries unreachable from text.

    Args:
        document: the content of tokenizer.json.
        uses_stored_steps: function that returns whether transformers would use the normalizer and
            pre-tokenizer in tokenizer.json.
    """

    def __init__(self, document: dict[str, Any], uses_stored_steps: Callable[[], bool]) -> None:
        from tokenizers import Tokenizer

        self._document = document
        self._uses_stored_steps = uses_stored_steps
        self._model: dict[str, Any] = document["model"]
        self._kind: str | None = self._model.get("type")
        if self._kind is None:  # older files omit the type; the tokenizers library infers it
            self._kind = json.loads(Tokenizer.from_str(json.dumps(document)).to_str())["model"]["type"]
        self._entries = entries_of({"model": self._model})
        self._has_safe_names = _excludes_spaces(document)
        self._ranks = {pair: rank for rank, pair in enumerate(merge_pairs(self._model) or ())}
        # For each entry, the merges that use or produce it.
        self._merges_with: dict[str, list[Pair]] = {}
        for pair in self._ranks:
            for entry in {*pair, "".join(pair)}:
                self._merges_with.setdefault(entry, []).append(pair)
        # Caches: the entries that contain a string, keyed by the string; and the remaining merges, keyed by
        # the set of removed entries.
        self._containing: dict[str, list[str]] = {}
        self._remaining: dict[frozenset[str], _RemainingMerges] = {}

    def reason_against(self, token_id: int, accepted: Sequence[int]) -> str | None:
        """Return why an entry cannot be made unreachable.

        Args:
            token_id: id of the entry.
            accepted: ids of other entries that will be made unreachable at the same time.

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
        """Return why an entry of a WordPiece or Unigram vocabulary cannot be removed; None if it can."""
        if self._kind not in ("WordPiece", "Unigram"):
            return f"a vocabulary of the kind {self._kind} has no smaller entries to fall back on"
        if not self._has_safe_names:
            return _NO_SAFE_NAME
        if is_byte:
            return "it stands for a single byte, and has no pieces"
        remaining = set(self._entries.values()) - removed
        if self._kind == "WordPiece":
            prefix = self._model.get("continuing_subword_prefix", "##")
            can_be_cut = bool(word_pieces(entry, remaining, prefix))
        else:
            can_be_cut = bool(self._model.get("byte_fallback")) or _is_concatenation(entry, remaining)
        return None if can_be_cut else "without it, its text would be unknown"

    def _reason_of_merges(self, entry: str, is_byte: bool, removed: frozenset[str]) -> str | None:
        """Return why an entry of a byte pair encoding cannot be removed; None if it can."""
        if self._model.get("end_of_word_suffix") or self._model.get("continuing_subword_prefix"):
            return "its byte pair encoding marks word ends in the entries"
        if len(entry) == 1 or is_byte:
            return "it is a single character or byte, and has no pieces"
        unmerged = self._merges_without(removed).unmerged
        if not unmerged:
            needs_no_name = not self._model.get("ignore_merges")
            return None if self._has_safe_names or needs_no_name else _NO_SAFE_NAME
        # Entries that merges no longer produce can be looked up as whole words instead, if they occur only at
        # the beginning of words.
        are_few = len(unmerged) <= _MOST_LOOKED_UP
        begin_words = are_few and all(self._begins_words(other, removed) for other in unmerged)
        if begin_words and self._can_look_up_words:
            return None
        named = ", ".join(repr(other) for other in unmerged[:_NAMED_ENTRIES])
        return f"{len(unmerged)} other entries are built from it, such as {named}"

    def _begins_words(self, entry: str, removed: frozenset[str]) -> bool:
        """Return whether an entry occurs only at the beginning of words."""
        if entry.startswith(_WORD_MARKS):
            return True
        if not entry.startswith(tuple(removed)):
            return False
        # The first word of a text has no mark, so an entry without a mark may begin a word too.
        marked_forms = {mark + entry for mark in _WORD_MARKS}
        containing = [other for other in self._model["vocab"] if entry in other]
        words = [other.lstrip("".join(_WORD_MARKS)) for other in containing]
        occurs_marked = not marked_forms.isdisjoint(containing)
        return occurs_marked and all(word.startswith(entry) for word in words)

    def without(self, ids: Sequence[int]) -> EditedPipeline:
        """Return a tokenizer.json that never turns text into the given entries. Token ids do not change."""
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
        # Only whole words are looked up, so an additional pre-tokenizer splits these entries off the
        # beginning of longer words. It tries the longest entry first.
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
        """Return the merges except those that use or produce the removed entries.

        If another entry loses its merge, but the remaining merges still reduce it to two pieces, a merge of
        these two pieces replaces the lost one.
        """
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
        """Whether entries can be looked up as whole words instead of being merged."""
        if not self._has_safe_names or self._document.get("pre_tokenizer") is None:
            return False
        steps = {key: self._document.get(key) for key in ("normalizer", "pre_tokenizer")}
        splits_words = len(_tokenizer_of_steps(steps).encode("one two three").ids) == 3
        merged_entries = {entry for pair in self._ranks for entry in pair}
        uses_no_renamed_entry = merged_entries.isdisjoint(self._never_merged.values())
        return splits_words and uses_no_renamed_entry and self._uses_stored_steps()

    @cached_property
    def _never_merged(self) -> dict[int, str]:
        """Entries that no merge produces, keyed by token id.

        If whole words were looked up, the tokenizer would produce these entries.
        """
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
    """Return whether a text can be divided completely into entries."""
    reachable = [True]  # item n says whether the first n characters can be divided into entries
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
    """Return the ``model`` part of a tokenizer.json with some entries renamed.

    Args:
        model: the original ``model`` part.
        new_names: new strings of the renamed entries, keyed by token id.
    """
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
    """Return a new string for each entry, keyed by token id.

    Each string contains a space, so no text can match it if all spaces are removed or replaced before the
    vocabulary is looked up.
    """
    return {token_id: f"[unreachable {token_id}]" for token_id in ids}


def with_plain_specials(document: dict[str, Any], ids: Sequence[int], pad_id: int | None) -> EditedPipeline:
    """Return an edited tokenizer.json that treats the text of some special tokens as plain text.

    Args:
        document: the content of tokenizer.json.
        ids: ids of the special or added tokens.
        pad_id: id of the padding token; None if there is none.

    Raises:
        RepairError: the id of a token would change, or text would still become one of the special tokens.
    """
    added_by_id = {added["id"]: added for added in document.get("added_tokens", ())}
    model = document["model"]
    entries = entries_of({"model": model})
    not_in_model = {
        token_id: str(added_by_id[token_id]["content"]) for token_id in sorted(added_by_id.keys() - entries)
    }
    if not not_in_model.keys().isdisjoint(ids):
        # A token that is only in the list of added tokens would lose its id, so all such tokens become
        # vocabulary entries.
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
            f"{named_entry(entries[token_id], token_id)} cannot become plain text: the vocabulary would "
            "still match its text, and the entry cannot be renamed, because a text could contain any new name"
        )
    for token_id, name in new_names.items():
        if model.get("unk_token") == entries[token_id]:
            model = model | {"unk_token": name}
    remaining = [added for token_id, added in added_by_id.items() if token_id not in ids]
    if pad_id in ids:
        # The new configuration sets split_special_tokens, so tokens marked as special are no longer matched
        # in text. The remaining added tokens must still be matched, so they are no longer marked as special.
        remaining = [added | {"special": False} for added in remaining]
    changed = document | {"model": renamed_model(model, new_names), "added_tokens": remaining}
    padding = changed.get("padding")
    if padding and padding["pad_id"] in new_names:
        changed["padding"] = padding | {"pad_token": new_names[padding["pad_id"]]}
    return EditedPipeline(changed, new_names)


def _with_entries(
    model: dict[str, Any], new_entries: Mapping[int, str], ids: Sequence[int]
) -> dict[str, Any]:
    """Return the ``model`` part of a tokenizer.json with entries added to its vocabulary.

    Args:
        model: the original ``model`` part.
        new_entries: strings of the new entries, keyed by token id, in ascending order of ids.
        ids: ids of the tokens that are being edited. The error message names one of them.

    Raises:
        RepairError: the new ids do not directly follow the ids of the vocabulary.
    """
    vocabulary = model["vocab"]
    if isinstance(vocabulary, dict):
        return model | {"vocab": vocabulary | {entry: token_id for token_id, entry in new_entries.items()}}
    following_ids = list(range(len(vocabulary), len(vocabulary) + len(new_entries)))
    if list(new_entries) != following_ids:
        token_id = next(edited_id for edited_id in ids if edited_id in new_entries)
        raise RepairError(
            f"{named_entry(new_entries[token_id], token_id)} cannot become plain text: the ids of the added "
            "tokens have gaps, so the ids of other tokens would change"
        )
    lowest_score = min(score for _entry, score in vocabulary)
    return model | {"vocab": [*vocabulary, *([entry, lowest_score] for entry in new_entries.values())]}


def _is_in_reach(document: Mapping[str, Any], entry: str) -> bool:
    """Return whether text can still become an entry that is no longer an added token."""
    model = document["model"]
    if "merges" in model:
        return bool(model.get("ignore_merges"))
    if isinstance(model["vocab"], list) or document.get("pre_tokenizer") is None:
        return True
    pre_tokenizer = _tokenizer_of_steps({"pre_tokenizer": document["pre_tokenizer"]}).pre_tokenizer
    text = entry.removeprefix(str(model.get("continuing_subword_prefix") or ""))
    return any(text in piece for piece, _span in pre_tokenizer.pre_tokenize_str(text))


def word_pieces(entry: str, entries: Collection[str], prefix: str) -> list[str] | None:
    """Divide the text of an entry as WordPiece does: from the left, always taking the longest piece.

    Args:
        entry: the entry, with the prefix if it continues a word.
        entries: the entries that may be pieces.
        prefix: prefix of entries that continue a word, such as ``##``.

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
    """Merge the characters of a word by rank, leftmost first among equal ranks; return the pieces."""
    pieces = list(text)
    while len(pieces) > 1:
        pair_ranks = [ranks.get(pair, math.inf) for pair in pairwise(pieces)]
        lowest = min(pair_ranks)
        if math.isinf(lowest):
            break
        left = pair_ranks.index(lowest)
        pieces[left : left + 2] = [pieces[left] + pieces[left + 1]]
    return pieces
