"""The pipeline in a tokenizer.json: its steps and entries, and edits of them as pure functions."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from stickytoken.errors import RepairError
from stickytoken.validation import visible

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Pair = tuple[str, str]

# Steps before the vocabulary after which no text contains a space.
_WITHOUT_SPACES = {"BertPreTokenizer", "Whitespace", "WhitespaceSplit", "ByteLevel", "Metaspace"}
# Normalisers that put no space where there was none.
_ADD_NO_SPACE = {"Prepend", "Lowercase", "Strip", "StripAccents"}


def entries_of(document: dict[str, Any]) -> dict[int, str]:
    vocabulary = document["model"]["vocab"]
    if isinstance(vocabulary, dict):
        entries = {token_id: entry for entry, token_id in vocabulary.items()}
    else:
        entries = {token_id: entry for token_id, (entry, _) in enumerate(vocabulary)}
    return entries | {added["id"]: added["content"] for added in document.get("added_tokens", ())}


def shown_entry(entry: str, token_id: int) -> str:
    return f"token {token_id} ({visible(entry)!r})"


def _steps(part: dict[str, Any] | None, members: str) -> list[dict[str, Any]]:
    if part is None:
        return []
    if part["type"] != "Sequence":
        return [part]
    return [step for member in part[members] for step in _steps(member, members)]


def _keeps_spaces_out(document: dict[str, Any]) -> bool:
    """Check that no space reaches the vocabulary, so that an entry with a space matches no text."""
    splitting = {step["type"] for step in _steps(document.get("pre_tokenizer"), "pretokenizers")}
    kept_out = not _WITHOUT_SPACES.isdisjoint(splitting)
    for step in () if kept_out else _steps(document.get("normalizer"), "normalizers"):
        replaces = step["type"] == "Replace" and " " not in step["content"]
        if step["type"] == "ByteLevel" or (replaces and step["pattern"].get("String") == " "):
            kept_out = True
        elif not replaces and step["type"] not in _ADD_NO_SPACE:
            kept_out = False
    return kept_out


def _tokenizer_of_steps(steps: dict[str, Any]) -> Tokenizer:
    from tokenizers import Tokenizer

    model = {"type": "WordLevel", "vocab": {"": 0}, "unk_token": ""}
    return Tokenizer.from_str(json.dumps({"version": "1.0", "added_tokens": [], "model": model, **steps}))


_NO_NAME = "spaces reach the vocabulary, so that a text could hold any name it is given"
# How entries that begin a word are marked: by byte-level tokenizers, and by SentencePiece.
_WORD_MARKS = ("Ġ", "▁")
# Entries that may depend on looking up whole words; with more, longer words would change too often.
_LOOKED_UP = 40


class Vocabulary:
    def __init__(self, document: dict[str, Any], can_change_steps: Callable[[], bool]) -> None:
        from tokenizers import Tokenizer

        self._document = document
        self._can_change_steps = can_change_steps
        self._model: dict[str, Any] = document["model"]
        self._kind: str | None = self._model.get("type")
        if self._kind is None:  # old files do not name it
            self._kind = json.loads(Tokenizer.from_str(json.dumps(document)).to_str())["model"]["type"]
        self._entries = entries_of({"model": self._model})
        self._name_is_safe = _keeps_spaces_out(document)
        self._order = {pair: rank for rank, pair in enumerate(merge_pairs(self._model) or ())}
        self._merges_with: dict[str, list[Pair]] = {}  # by each part and by what they make
        for pair in self._order:
            for part in {*pair, "".join(pair)}:
                self._merges_with.setdefault(part, []).append(pair)
        self._containing: dict[str, list[str]] = {}
        self._merges_left: dict[frozenset[str], tuple[dict[Pair, int], tuple[str, ...]]] = {}

    def reason_against(self, token_id: int, accepted: Sequence[int]) -> str | None:
        entry, model = self._entries[token_id], self._model
        if token_id == model.get("unk_id") or entry == model.get("unk_token"):
            return "unknown text becomes this token"
        removed = frozenset(self._entries[each] for each in (*accepted, token_id))
        is_byte = bool(model.get("byte_fallback")) and re.fullmatch("<0x[0-9A-F]{2}>", entry) is not None
        if self._kind == "BPE":
            return self._reason_of_merges(entry, is_byte, removed)
        return self._reason_of_pieces(entry, is_byte, removed)

    def _reason_of_pieces(self, entry: str, is_byte: bool, removed: frozenset[str]) -> str | None:
        if self._kind not in ("WordPiece", "Unigram"):
            return f"a vocabulary of the kind {self._kind} has no smaller entries to fall back on"
        if not self._name_is_safe:
            return _NO_NAME
        if is_byte:
            return "it is a byte, and has no pieces"
        left = set(self._entries.values()) - removed
        if self._kind == "WordPiece":
            cut: object = word_pieces(entry, left, self._model.get("continuing_subword_prefix", "##"))
        else:
            reached = [True]  # by pieces, up to each character
            for end in range(1, len(entry) + 1):
                reached.append(any(reached[start] and entry[start:end] in left for start in range(end)))
            cut = self._model.get("byte_fallback") or reached[-1]
        return None if cut else "without it, its text would be unknown"

    def _reason_of_merges(self, entry: str, is_byte: bool, removed: frozenset[str]) -> str | None:
        if self._model.get("end_of_word_suffix") or self._model.get("continuing_subword_prefix"):
            return "its byte pair encoding marks word ends in the entries"
        if len(entry) == 1 or is_byte:
            return "it is a single character or byte, and has no pieces"
        _, lost = self._merges_without(removed)
        if not lost:
            return None if self._name_is_safe or not self._model.get("ignore_merges") else _NO_NAME
        # Entries that no merges make are still found if they begin words: looked up as whole words, or cut
        # from longer ones.
        begin_words = len(lost) <= _LOOKED_UP and all(
            other.startswith(_WORD_MARKS) or (other.startswith(tuple(removed)) and self._is_word(other))
            for other in lost
        )
        if begin_words and self._looks_up_words:
            return None
        return f"{len(lost)} other entries are built from it, such as {', '.join(map(repr, lost[:3]))}"

    def without(self, ids: Sequence[int]) -> tuple[dict[str, Any], dict[int, str]]:
        renamed = _new_names(ids)
        if self._kind != "BPE":
            return self._document | {"model": renamed_model(self._model, renamed)}, renamed
        removed = frozenset(self._entries[token_id] for token_id in ids)
        order, lost = self._merges_without(removed)
        as_text = isinstance(next(iter(self._model["merges"]), None), str)
        merges = [" ".join(pair) if as_text else list(pair) for pair in sorted(order, key=order.__getitem__)]
        model = self._model | {"merges": merges}
        if not lost and not model.get("ignore_merges"):
            return self._document | {"model": model}, {}
        renamed |= _new_names(self._never_merged)
        document = self._document | {"model": renamed_model(model | {"ignore_merges": True}, renamed)}
        # What is looked up must be cut off the beginnings of words first, the longest entry first.
        cut_off = tuple(entry for entry in lost if entry.startswith(tuple(removed)))
        beginnings = [entry for entry in self._model["vocab"] if cut_off and entry.startswith(cut_off)]
        if beginnings:
            alternatives = "|".join(map(re.escape, sorted(beginnings, key=len, reverse=True)))
            pattern = {"Regex": rf"\A(?:{alternatives})"}
            step = {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}
            steps = _steps(document.get("pre_tokenizer"), "pretokenizers")
            document["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [*steps, step]}
        return document, renamed

    def _merges_without(self, removed: frozenset[str]) -> tuple[dict[Pair, int], tuple[str, ...]]:
        if removed in self._merges_left:
            return self._merges_left[removed]
        order = dict(self._order)
        dead = {pair for part in removed for pair in self._merges_with.get(part, ())}
        in_order = sorted(dead, key=order.__getitem__)
        for pair in in_order:
            del order[pair]
        for pair in in_order:
            entry = "".join(pair)
            if entry not in removed and len(pieces := _merged(entry, order)) == 2:
                order[pieces[0], pieces[1]] = self._order[pair]
        for part in removed - self._containing.keys():
            self._containing[part] = [entry for entry in self._model["vocab"] if part in entry]
        built = dict.fromkeys(entry for part in sorted(removed) for entry in self._containing[part])
        others = (entry for entry in built if entry not in removed and len(_merged(entry, order)) > 1)
        lost = tuple(entry for entry in others if len(_merged(entry, self._order)) == 1)
        self._merges_left[removed] = order, lost
        return order, lost

    def _is_word(self, entry: str) -> bool:
        # At the beginning of a text, a word has no mark.
        marked = {mark + entry for mark in _WORD_MARKS}
        containing = [other for other in self._model["vocab"] if entry in other]
        words = (other.lstrip("".join(_WORD_MARKS)) for other in containing)
        return not marked.isdisjoint(containing) and all(word.startswith(entry) for word in words)

    @cached_property
    def _looks_up_words(self) -> bool:
        """Whether looking up whole words finds what merging them finds, and is honoured."""
        if not self._name_is_safe or self._document.get("pre_tokenizer") is None:
            return False
        # Text must be cut into words before it is looked up.
        steps = {key: self._document.get(key) for key in ("normalizer", "pre_tokenizer")}
        parts = {part for pair in self._order for part in pair}
        return (
            len(_tokenizer_of_steps(steps).encode("one two three").ids) == 3
            and parts.isdisjoint(self._never_merged.values())
            and self._can_change_steps()
        )

    @cached_property
    def _never_merged(self) -> dict[int, str]:
        from tokenizers.models import BPE

        if self._model.get("ignore_merges"):
            return {}
        merging = BPE(vocab=self._model["vocab"], merges=list(self._order))
        added = {each["id"] for each in self._document.get("added_tokens", ())}
        return {
            token_id: entry
            for token_id, entry in self._entries.items()
            if len(entry) > 1 and token_id not in added and len(merging.tokenize(entry)) > 1
        }


def merge_pairs(model: dict[str, Any]) -> list[Pair] | None:
    if "merges" not in model:
        return None
    pairs = (merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"])
    return [(left, right) for left, right in pairs]


def renamed_model(model: dict[str, Any], renamed: Mapping[int, str]) -> dict[str, Any]:
    vocabulary = model["vocab"]
    if isinstance(vocabulary, dict):
        return model | {
            "vocab": {renamed.get(token_id, entry): token_id for entry, token_id in vocabulary.items()}
        }
    entries = enumerate(vocabulary)
    return model | {"vocab": [[renamed.get(token_id, entry), score] for token_id, (entry, score) in entries]}


def _new_names(ids: Iterable[int]) -> dict[int, str]:
    """Name entries by strings that no text can produce, as spaces never reach the vocabulary."""
    return {token_id: f"[unreachable {token_id}]" for token_id in ids}


def with_plain_specials(
    document: dict[str, Any], ids: Sequence[int], pad_id: int | None
) -> tuple[dict[str, Any], dict[int, str]]:
    added = {each["id"]: each for each in document.get("added_tokens", ())}
    model = document["model"]
    vocabulary = entries_of({"model": model})
    missing = {token_id: str(added[token_id]["content"]) for token_id in sorted(added.keys() - vocabulary)}
    if not missing.keys().isdisjoint(ids):  # all of them become entries
        entries = model["vocab"]
        if isinstance(entries, dict):
            entries = entries | {entry: token_id for token_id, entry in missing.items()}
        elif list(missing) == list(range(len(entries), len(entries) + len(missing))):
            lowest = min(score for _, score in entries)
            entries = [*entries, *([entry, lowest] for entry in missing.values())]
        else:
            token_id = next(each for each in ids if each in missing)
            raise RepairError(
                f"{shown_entry(missing[token_id], token_id)} cannot become plain text: the ids of the added "
                "tokens have gaps, so that other tokens would change theirs"
            )
        model, vocabulary = model | {"vocab": entries}, vocabulary | missing
    reached = document | {"model": model}
    renamed = _new_names(each for each in ids if each == pad_id or _in_reach(reached, vocabulary[each]))
    if renamed and not _keeps_spaces_out(document):
        token_id = next(iter(renamed))
        raise RepairError(
            f"{shown_entry(vocabulary[token_id], token_id)} cannot become plain text: its vocabulary would "
            "still match it, and spaces reach the vocabulary, so that no other name is safe"
        )
    for token_id, name in renamed.items():
        if model.get("unk_token") == vocabulary[token_id]:
            model = model | {"unk_token": name}
    kept = [each for token_id, each in added.items() if token_id not in ids]
    if pad_id in ids:  # special tokens are no longer looked for at all, so those that still are lose the mark
        kept = [each | {"special": False} for each in kept]
    changed = document | {"model": renamed_model(model, renamed), "added_tokens": kept}
    padding = changed.get("padding")
    if padding and padding["pad_id"] in renamed:
        changed["padding"] = padding | {"pad_token": renamed[padding["pad_id"]]}
    return changed, renamed


def _in_reach(document: dict[str, Any], entry: str) -> bool:
    model = document["model"]
    if "merges" in model:
        return bool(model.get("ignore_merges"))
    if isinstance(model["vocab"], list) or document.get("pre_tokenizer") is None:
        return True
    splitting = _tokenizer_of_steps({"pre_tokenizer": document["pre_tokenizer"]}).pre_tokenizer
    text = entry.removeprefix(str(model.get("continuing_subword_prefix") or ""))
    return any(text in piece for piece, _ in splitting.pre_tokenize_str(text))


def word_pieces(entry: str, entries: Collection[str], prefix: str) -> list[str] | None:
    """Cut the text of an entry as WordPiece does, longest piece first; None if something is unknown."""
    continued = bool(prefix) and entry.startswith(prefix) and len(entry) > len(prefix)
    text = entry.removeprefix(prefix) if continued else entry
    pieces: list[str] = []
    start = 0
    while start < len(text):
        mark = prefix if start or continued else ""
        ends = range(len(text), start, -1)
        end = next((end for end in ends if mark + text[start:end] in entries), None)
        if end is None:
            return None
        pieces.append(mark + text[start:end])
        start = end
    return pieces


def _merged(text: str, order: Mapping[Pair, int]) -> list[str]:
    """Merge the characters of a word: the pair of the lowest rank first, the leftmost of equal ones."""
    pieces = list(text)
    while len(pieces) > 1:
        ranks = [order.get(pair, math.inf) for pair in pairwise(pieces)]
        lowest = min(ranks)
        if math.isinf(lowest):
            break
        first = ranks.index(lowest)
        pieces[first : first + 2] = [pieces[first] + pieces[first + 1]]
    return pieces
