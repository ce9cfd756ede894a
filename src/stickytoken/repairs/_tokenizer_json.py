"""Edit the content of a tokenizer.json. Every edit returns a new JSON document."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from stickytoken.encoders.inputs.tokenizer import find_unknown_id
from stickytoken.errors import RepairError
from stickytoken.validation import visible

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Pair = tuple[str, str]

# Pre-tokenizers after which no piece of text contains a space: they split at spaces, or replace every space
# by another character.
_SPACE_REMOVING = {"BertPreTokenizer", "Whitespace", "WhitespaceSplit", "ByteLevel", "Metaspace"}
# Normalizers that add no space to a text. Any other normalizer is assumed to add spaces.
_SPACE_NEUTRAL = {"Prepend", "Lowercase", "Strip", "StripAccents"}

# Prefixes that mark an entry as the beginning of a word: in byte-level tokenizers, and in SentencePiece.
_WORD_MARKS = ("Ġ", "▁")
# Maximum number of entries that may be looked up as whole words instead of being merged. The tokenizer is
# changed to split each of these entries off from all words that begin with the entry, so a higher limit would
# change the tokenization of too many words.
_MOST_LOOKED_UP = 40
# Maximum number of entries that are named as examples in the reason why an entry cannot be made unreachable.
_NAMED_ENTRIES = 3

_NO_SAFE_NAME = "spaces reach the vocabulary, so a text could contain any new name of the entry"


class EditedTokenizer(NamedTuple):
    """A tokenizer.json after an edit.

    Attributes:
        document: the content of tokenizer.json.
        new_names: new strings of the renamed entries, keyed by token id.
        is_rebuilt: whether the document was made from the tokenizer that transformers loads, and not from the
            stored tokenizer.json; if so, the configuration must make transformers load the tokenizer that the
            document defines.
    """

    document: dict[str, Any]
    new_names: dict[int, str]
    is_rebuilt: bool = False


def entries_of(document: Mapping[str, Any]) -> dict[int, str]:
    """Return the strings of the vocabulary entries and of the added tokens, keyed by token id."""
    vocabulary = document["model"]["vocab"]
    if isinstance(vocabulary, dict):
        entries = {token_id: entry for entry, token_id in vocabulary.items()}
    else:  # of the kind Unigram, in the order of ids
        entries = {token_id: entry for token_id, (entry, _score) in enumerate(vocabulary)}
    for added in document.get("added_tokens", ()):
        entries[added["id"]] = added["content"]
    return entries


def name_entry(entry: str, token_id: int) -> str:
    """Return the id and string of an entry for an error message, such as ``token 7 ('river')``."""
    return f"token {token_id} ({visible(entry)!r})"


def _list_steps(step: dict[str, Any] | None, members_key: str) -> list[dict[str, Any]]:
    """Return the normalizers or pre-tokenizers that a step of tokenizer.json consists of, in order.

    ``members_key`` is the key under which a sequence lists its steps.
    """
    if step is None:
        return []
    if step["type"] != "Sequence":
        return [step]
    steps = []
    for member in step[members_key]:
        steps += _list_steps(member, members_key)  # a member may be a sequence itself
    return steps


def _removes_spaces(document: Mapping[str, Any]) -> bool:
    """Return whether the tokenizer removes or replaces all spaces before it looks up text in the vocabulary.

    If so, no text can match an entry that contains a space.
    """
    pre_tokenizers = _list_steps(document.get("pre_tokenizer"), "pretokenizers")
    if any(step["type"] in _SPACE_REMOVING for step in pre_tokenizers):
        return True
    # Follow the normalizers in their order: one may replace all spaces, and a later one may add spaces again.
    contains_spaces = True
    for step in _list_steps(document.get("normalizer"), "normalizers"):
        if step["type"] == "ByteLevel":
            # This normalizer writes every byte as a visible character, and a space as Ġ.
            contains_spaces = False
        elif step["type"] == "Replace" and " " not in step["content"]:
            # A replacement without a space adds no space. If the replaced text is a space, no space is left.
            # The pattern may also be a regular expression, which is assumed to leave spaces.
            if step["pattern"].get("String") == " ":
                contains_spaces = False
        elif step["type"] not in _SPACE_NEUTRAL:
            contains_spaces = True
    return not contains_spaces


def _make_tokenizer(steps: Mapping[str, Any]) -> Tokenizer:
    """Return a tokenizer with these steps, whose model turns each piece of text into one unknown token."""
    from tokenizers import Tokenizer

    model = {"type": "WordLevel", "vocab": {"": 0}, "unk_token": ""}
    return Tokenizer.from_str(json.dumps({"version": "1.0", "added_tokens": [], "model": model, **steps}))


class EditableVocabulary:
    """The vocabulary of a tokenizer.json, with methods that make entries unreachable from text.

    Args:
        document: the content of tokenizer.json.
        uses_stored_steps: function that returns whether transformers would use the normalizer and
            pre-tokenizer in tokenizer.json.
    """

    def __init__(self, document: dict[str, Any], uses_stored_steps: Callable[[], bool]) -> None:
        """Read the vocabulary and, for a byte pair encoding, the merges of a tokenizer.json."""
        from tokenizers import Tokenizer

        self._document = document
        # This function is called only if its result is needed, because it loads a tokenizer.
        self._uses_stored_steps = uses_stored_steps
        self._model: dict[str, Any] = document["model"]
        # Kind of the vocabulary: BPE, WordPiece, Unigram or WordLevel.
        self._kind: str | None = self._model.get("type")
        if self._kind is None:  # older files omit the type; the tokenizers library infers it
            completed = json.loads(Tokenizer.from_str(json.dumps(document)).to_str())
            self._kind = completed["model"]["type"]
        # The strings of the vocabulary, keyed by token id, without the added tokens.
        self._entries = entries_of({"model": self._model})
        # Whether an entry becomes unreachable when it is renamed to a string that contains a space.
        self._renaming_is_safe = _removes_spaces(document)
        # The merges, and their ranks: the merge with the lowest rank is applied first.
        self._ranks = {pair: rank for rank, pair in enumerate(merge_pairs(self._model) or ())}
        # For each entry, the merges that use or produce it.
        self._merges_by_entry: dict[str, list[Pair]] = {}
        for pair in self._ranks:
            for entry in {*pair, "".join(pair)}:
                self._merges_by_entry.setdefault(entry, []).append(pair)
        # Cache: the entries that contain a string, keyed by the string.
        self._entries_containing: dict[str, list[str]] = {}
        # Cache of `_find_merges_without`, keyed by the set of removed entries.
        self._remaining: dict[frozenset[str], tuple[dict[Pair, int], tuple[str, ...]]] = {}

    def reason_against(self, token_id: int, accepted: Sequence[int]) -> str | None:
        """Return why an entry cannot be made unreachable.

        Args:
            token_id: id of the entry.
            accepted: ids of other entries that will be made unreachable at the same time.

        Returns:
            The reason, or None if the entry can be made unreachable.
        """
        entry = self._entries[token_id]
        if token_id == find_unknown_id(self._model):
            return "unknown text becomes this token"
        removed = frozenset(self._entries[removed_id] for removed_id in (*accepted, token_id))
        has_byte_entries = bool(self._model.get("byte_fallback"))
        is_byte = has_byte_entries and re.fullmatch("<0x[0-9A-F]{2}>", entry) is not None
        if self._kind == "BPE":
            return self._find_reason_in_merges(entry, is_byte, removed)
        return self._find_reason_not_to_cut(entry, is_byte, removed)

    def _find_reason_not_to_cut(self, entry: str, is_byte: bool, removed: frozenset[str]) -> str | None:
        """Return why an entry of a vocabulary without merges cannot be removed; None if it can.

        ``removed`` has the entry itself and all other entries that are removed with it.
        """
        if self._kind not in ("WordPiece", "Unigram"):
            return f"a vocabulary of the kind {self._kind} has no smaller entries to fall back on"
        if not self._renaming_is_safe:
            return _NO_SAFE_NAME
        if is_byte:
            return "it stands for a single byte, and has no pieces"
        remaining = set(self._entries.values()) - removed
        if self._kind == "WordPiece":
            prefix = self._model.get("continuing_subword_prefix", "##")
            can_be_cut = bool(cut_like_wordpiece(entry, remaining, prefix))
        else:
            # With byte_fallback, a tokenizer reads text that it does not know as single bytes.
            has_byte_entries = bool(self._model.get("byte_fallback"))
            can_be_cut = has_byte_entries or _is_concatenation(entry, remaining)
        return None if can_be_cut else "without it, its text would be unknown"

    def _find_reason_in_merges(self, entry: str, is_byte: bool, removed: frozenset[str]) -> str | None:
        """Return why an entry of a byte pair encoding cannot be removed; None if it can.

        If other entries are built from the entry, it can be removed only if the tokenizer can find these
        entries by looking up whole words. ``removed`` has the entry itself and all other entries that are
        removed with it.
        """
        if self._model.get("end_of_word_suffix") or self._model.get("continuing_subword_prefix"):
            return "its byte pair encoding marks word ends in the entries"
        if len(entry) == 1 or is_byte:
            return "it is a single character or byte, and has no pieces"
        # The entries that are not removed, but that the remaining merges can no longer produce.
        _ranks, dependent_entries = self._find_merges_without(removed)
        if not dependent_entries:
            # Without its merges, no text becomes the entry. But if the tokenizer looks up whole words before
            # it merges (ignore_merges), the entry must also be renamed.
            must_be_renamed = bool(self._model.get("ignore_merges"))
            cannot_be_renamed = must_be_renamed and not self._renaming_is_safe
            return _NO_SAFE_NAME if cannot_be_renamed else None
        # If there are few dependent entries, and they occur only at the beginning of words, the tokenizer can
        # find them by looking up whole words instead of merging (see `without`).
        are_few = len(dependent_entries) <= _MOST_LOOKED_UP
        # The conditions are in this order because the later ones take longer to check.
        if (
            are_few
            and all(self._begins_words(other, removed) for other in dependent_entries)
            and self._can_look_up_words
        ):
            return None
        named = ", ".join(repr(other) for other in dependent_entries[:_NAMED_ENTRIES])
        if len(dependent_entries) == 1:
            return f"another entry is built from it: {named}"
        return f"{len(dependent_entries)} other entries are built from it, such as {named}"

    def _begins_words(self, entry: str, removed: frozenset[str]) -> bool:
        """Return whether `without` can split an entry off words without changing their other tokens.

        This is so if the entry begins with a removed entry, and occurs only at the beginning of words. If
        ``riv`` and ``Ġriv`` are removed, for example, ``Ġriver`` can be split off; ``river``
        can, unless there is an entry such as ``upriver``.
        """
        # If a removed entry is further inside, the text before it may be divided differently in longer words:
        # without ``iver``, ``rivers`` may become ``r``, ``i``, ``ver`` and ``s``.
        if not entry.startswith(tuple(removed)):
            return False
        if entry.startswith(_WORD_MARKS):  # such as ``Ġriver``
            return True
        # An entry without a mark, such as ``river``, stands in the middle of words (``upriver``), or begins
        # the first word of a text, which has no mark. It does nothing but begin the first word if ``Ġriver``
        # begins all other words, and if each entry that contains ``river`` begins with it, as ``rivers``
        # does.
        marked_forms = {mark + entry for mark in _WORD_MARKS}  # ``Ġriver`` and ``▁river``
        entries_containing_it = [other for other in self._model["vocab"] if entry in other]
        has_marked_form = not marked_forms.isdisjoint(entries_containing_it)
        without_marks = [other.lstrip("".join(_WORD_MARKS)) for other in entries_containing_it]
        return has_marked_form and all(other.startswith(entry) for other in without_marks)

    def without(self, ids: Sequence[int]) -> EditedTokenizer:
        """Return a tokenizer.json that never turns text into the given entries. Token ids do not change.

        - In a WordPiece or Unigram vocabulary, the entries are renamed, so that no text matches them.
        - In a byte pair encoding, the merges that use or produce the entries are deleted. If the deletion
          affects no other entry, and the tokenizer does not look up whole words before it merges, nothing
          else changes.
        - If the remaining merges no longer produce an entry that is not removed, the tokenizer is set to look
          up whole words before it merges, so that it still produces this entry. If the tokenizer looks up
          whole words, the removed entries are also renamed.
        """
        new_names = _make_unreachable_names(ids)
        if self._kind != "BPE":
            renamed_model = rename_entries(self._model, new_names)
            return EditedTokenizer(self._document | {"model": renamed_model}, new_names)
        removed = frozenset(self._entries[token_id] for token_id in ids)
        ranks, no_longer_merged = self._find_merges_without(removed)
        pairs = sorted(ranks, key=ranks.__getitem__)
        # A merge is stored as "left right" in older files, and as [left, right] in newer ones.
        is_stored_as_text = isinstance(next(iter(self._model["merges"]), None), str)
        merges = [" ".join(pair) if is_stored_as_text else list(pair) for pair in pairs]
        model = self._model | {"merges": merges}
        if not no_longer_merged and not model.get("ignore_merges"):
            return EditedTokenizer(self._document | {"model": model}, {})
        # The edited tokenizer looks up every whole word in the vocabulary before it merges. The removed
        # entries are renamed, so that they are not found. The entries that no merge produces are also
        # renamed, because the words that equal these entries have always been split into pieces.
        new_names |= _make_unreachable_names(self._never_produced)
        model = rename_entries(model | {"ignore_merges": True}, new_names)
        document = self._document | {"model": model}
        if no_longer_merged:
            steps = _list_steps(document.get("pre_tokenizer"), "pretokenizers")
            split = self._split_off_words(no_longer_merged)
            document["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [*steps, split]}
        return EditedTokenizer(document, new_names)

    def _split_off_words(self, no_longer_merged: tuple[str, ...]) -> dict[str, Any]:
        """Return a pre-tokenizer that splits entries off the beginning of longer words.

        It is needed because only whole words are looked up. If ``riv`` is removed and ``river`` is no longer
        merged, the tokenizer finds the word ``river``, but in ``riverbed`` only if ``river`` is split off.
        """
        # A word is split after the longest entry that it begins with, because a regular expression takes the
        # first alternative that matches. So entries that begin with ``river``, such as ``rivers``, are
        # alternatives too.
        to_split_off = [entry for entry in self._model["vocab"] if entry.startswith(no_longer_merged)]
        longest_first = sorted(to_split_off, key=len, reverse=True)
        alternatives = "|".join(re.escape(entry) for entry in longest_first)
        return {
            "type": "Split",
            "pattern": {"Regex": rf"\A(?:{alternatives})"},
            "behavior": "Isolated",
            "invert": False,
        }

    def _find_merges_without(self, removed: frozenset[str]) -> tuple[dict[Pair, int], tuple[str, ...]]:
        """Return the ranks of the merges that remain, and the other entries that they no longer produce."""
        # The result is cached, because every entry is judged together with the entries accepted before it.
        if removed not in self._remaining:
            ranks = self._compute_ranks_without(removed)
            self._remaining[removed] = (ranks, self._find_unmerged(removed, ranks))
        return self._remaining[removed]

    def _compute_ranks_without(self, removed: frozenset[str]) -> dict[Pair, int]:
        """Return the remaining merges, and their ranks, after some entries are removed.

        Merges that use or produce the removed entries are deleted. If another entry was produced by a deleted
        merge, but the remaining merges still reduce its characters to two pieces, a merge of these two pieces
        replaces the deleted one. For example, if ``riv`` is removed, the merge of ``riv`` and ``er`` is
        deleted. If the remaining merges reduce ``river`` to ``ri`` and ``ver``, a merge of ``ri`` and ``ver``
        takes the rank of the deleted merge. If more than two pieces remain, no merge replaces the deleted
        one, and merging no longer produces the entry; `_find_unmerged` finds such entries.
        """
        ranks = dict(self._ranks)
        deleted_pairs = {pair for entry in removed for pair in self._merges_by_entry.get(entry, ())}
        deleted_by_rank = sorted(deleted_pairs, key=ranks.__getitem__)
        for pair in deleted_by_rank:
            del ranks[pair]
        # Replace the deleted merges of other entries, where possible. The lowest rank comes first, because
        # later replacements may use the entries that earlier ones produce.
        for pair in deleted_by_rank:
            entry = "".join(pair)
            if entry in removed:
                continue
            pieces = _merge_like_byte_pair_encoding(entry, ranks)
            # If there is a single piece, another pair still merges into the entry.
            if len(pieces) == 2:
                ranks[pieces[0], pieces[1]] = self._ranks[pair]
        return ranks

    def _find_unmerged(self, removed: frozenset[str], ranks: Mapping[Pair, int]) -> tuple[str, ...]:
        """Return the entries that all merges produce, but that merges with these ranks no longer produce."""
        for entry in removed - self._entries_containing.keys():
            self._entries_containing[entry] = [other for other in self._model["vocab"] if entry in other]
        # Only entries that contain a removed entry can be affected. The dict keeps each of them once, in
        # order.
        affected: dict[str, None] = {}
        for entry in sorted(removed):
            affected |= dict.fromkeys(self._entries_containing[entry])
        no_longer_merged = []
        for entry in affected:
            if entry in removed or _is_merged(entry, ranks):
                continue
            if _is_merged(entry, self._ranks):  # some entries were never produced by merges
                no_longer_merged.append(entry)
        return tuple(no_longer_merged)

    @cached_property
    def _can_look_up_words(self) -> bool:
        """Whether `without` can make the tokenizer look up whole words before it merges.

        For this, `without` renames entries and adds a pre-tokenizer, and the tokenizer must divide text into
        words.
        """
        if not self._renaming_is_safe or self._document.get("pre_tokenizer") is None:
            return False
        steps = {key: self._document.get(key) for key in ("normalizer", "pre_tokenizer")}
        # Without a vocabulary, a tokenizer gives one id for each word.
        words_of_sample = _make_tokenizer(steps).encode("one two three").ids
        splits_words = len(words_of_sample) == 3
        # With ignore_merges, a word that equals an entry which no merge produces would become this entry.
        # `without` prevents that by renaming these entries. A merge names its inputs by their old names, so
        # no renamed entry may be an input.
        merge_inputs = {entry for pair in self._ranks for entry in pair}
        merges_stay_valid = merge_inputs.isdisjoint(self._never_produced.values())
        # An added pre-tokenizer has an effect only if transformers uses the one stored in tokenizer.json. To
        # find this out takes longest, so it comes last.
        return splits_words and merges_stay_valid and self._uses_stored_steps()

    @cached_property
    def _never_produced(self) -> dict[int, str]:
        """The entries that no merge produces, keyed by token id.

        The tokenizer would produce them if it looked up whole words before it merges.
        """
        from tokenizers.models import BPE

        if self._model.get("ignore_merges"):
            return {}  # it looks up whole words already, so it can produce every entry
        merging = BPE(vocab=self._model["vocab"], merges=list(self._ranks))
        added_ids = {added["id"] for added in self._document.get("added_tokens", ())}

        def is_produced(token_id: int, entry: str) -> bool:
            needs_no_merge = len(entry) == 1 or token_id in added_ids
            return needs_no_merge or len(merging.tokenize(entry)) <= 1

        return {
            token_id: entry for token_id, entry in self._entries.items() if not is_produced(token_id, entry)
        }


def _is_concatenation(text: str, entries: Collection[str]) -> bool:
    can_divide = [True]  # item n says whether the first n characters can be divided into entries
    for end in range(1, len(text) + 1):
        # The last entry may begin at any offset up to which the text can be divided.
        can_divide.append(any(can_divide[start] and text[start:end] in entries for start in range(end)))
    return can_divide[-1]


def merge_pairs(model: Mapping[str, Any]) -> list[Pair] | None:
    """Return the merges of a byte pair encoding by ascending rank; None if the model has no merges."""
    if "merges" not in model:
        return None
    pairs = []
    for merge in model["merges"]:
        # Stored as "left right" in older files, and as [left, right] in newer ones.
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        pairs.append((left, right))
    return pairs


def rename_entries(model: dict[str, Any], new_names: Mapping[int, str]) -> dict[str, Any]:
    """Return the ``model`` part of a tokenizer.json with some entries renamed.

    Args:
        model: the original ``model`` part.
        new_names: new strings of the renamed entries, keyed by token id.
    """
    vocabulary = model["vocab"]
    renamed: Any
    if isinstance(vocabulary, dict):
        renamed = {new_names.get(token_id, entry): token_id for entry, token_id in vocabulary.items()}
    else:  # of the kind Unigram: entries with scores, in the order of ids
        renamed = [
            [new_names.get(token_id, entry), score] for token_id, (entry, score) in enumerate(vocabulary)
        ]
    return model | {"vocab": renamed}


def _make_unreachable_names(ids: Iterable[int]) -> dict[int, str]:
    return {token_id: f"[unreachable {token_id}]" for token_id in ids}


def make_specials_plain(document: dict[str, Any], ids: Sequence[int], pad_id: int | None) -> EditedTokenizer:
    """Return an edited tokenizer.json that treats the text of some special tokens as plain text.

    The tokens are removed from the list of added tokens, which the tokenizer finds in a text before anything
    else. The tokens stay in the vocabulary with their ids, but an entry is renamed if the vocabulary would
    still match its text. The padding token is always renamed: it keeps its role in the new configuration, but
    its old name becomes plain text.

    Args:
        document: the content of tokenizer.json.
        ids: ids of the special or added tokens.
        pad_id: id of the padding token; None if there is none.

    Raises:
        RepairError: the id of a token would change, text would still become one of the special tokens, or
            another added token would be found in more texts than before.
    """
    added_by_id = {added["id"]: added for added in document.get("added_tokens", ())}
    model = document["model"]
    entries = entries_of({"model": model})
    # Added tokens whose ids are not in the vocabulary.
    outside_vocabulary = {
        token_id: str(added_by_id[token_id]["content"]) for token_id in sorted(added_by_id.keys() - entries)
    }
    # The tokenizers library gives these tokens the ids that follow the vocabulary. To keep its id, a token
    # that is no longer added becomes an entry, and so does every token before it.
    last_id = max(outside_vocabulary.keys() & set(ids), default=-1)
    new_entries = {token_id: entry for token_id, entry in outside_vocabulary.items() if token_id <= last_id}
    if new_entries:
        model = _add_entries(model, new_entries)
        entries |= new_entries
    with_entries = document | {"model": model}
    # The tokenizer may not find an added token in every spelling: not in capitals, for example, or not inside
    # a word. If the token remains added, its new entry must not match these spellings either. It cannot be
    # renamed, because the added token has its id by this name.
    for token_id, entry in new_entries.items():
        if token_id not in ids and _is_produced_from_text(with_entries, entry):
            raise RepairError(
                f"{name_entry(entries[last_id], last_id)} cannot become plain text alone: "
                f"{name_entry(entry, token_id)}, which was added before it, would be found in more texts; "
                "repair both by plain-specials, or leave the token out"
            )
    # Rename entries that the vocabulary would still match in a text, although they are no longer added
    # tokens. The new names contain a space, so they are safe only if no space reaches the vocabulary.
    ids_to_rename = [
        token_id
        for token_id in ids
        if token_id == pad_id or _is_produced_from_text(with_entries, entries[token_id])
    ]
    if ids_to_rename and not _removes_spaces(document):
        token_id = ids_to_rename[0]
        raise RepairError(
            f"{name_entry(entries[token_id], token_id)} cannot become plain text: the vocabulary would "
            "still match its text, and the entry cannot be renamed, because a text could contain any new name"
        )
    new_names = _make_unreachable_names(ids_to_rename)
    for token_id, name in new_names.items():
        if model.get("unk_token") == entries[token_id]:
            model = model | {"unk_token": name}  # the model names its unknown token by its string
    remaining = [added for token_id, added in added_by_id.items() if token_id not in ids]
    if pad_id in ids:
        # The new configuration sets split_special_tokens (see `_make_role_settings`), so transformers no
        # longer finds special tokens in a text. It must still find the remaining added tokens, so they are no
        # longer marked as special.
        remaining = [added | {"special": False} for added in remaining]
    changed = document | {"model": rename_entries(model, new_names), "added_tokens": remaining}
    padding = changed.get("padding")
    if padding and padding["pad_id"] in new_names:
        changed["padding"] = padding | {"pad_token": new_names[padding["pad_id"]]}
    return EditedTokenizer(changed, new_names)


def _add_entries(model: dict[str, Any], new_entries: Mapping[int, str]) -> dict[str, Any]:
    """Return the ``model`` part of a tokenizer.json with further entries, given by ascending ids.

    The last of them is the token that is to become plain text and needs all those before it to keep its id.
    """
    vocabulary = model["vocab"]
    if isinstance(vocabulary, dict):  # of token ids
        return model | {"vocab": vocabulary | {entry: token_id for token_id, entry in new_entries.items()}}
    # A Unigram model has a list of entries with scores, whose indices are the token ids.
    following_ids = list(range(len(vocabulary), len(vocabulary) + len(new_entries)))
    if list(new_entries) != following_ids:
        token_id = max(new_entries)
        raise RepairError(
            f"{name_entry(new_entries[token_id], token_id)} cannot become plain text: the ids of the added "
            "tokens have gaps, so the ids of other tokens would change"
        )
    # With the lowest score, the tokenizer prefers all other entries.
    lowest_score = min(score for _entry, score in vocabulary)
    scored_entries = [[entry, lowest_score] for entry in new_entries.values()]
    return model | {"vocab": [*vocabulary, *scored_entries]}


def _is_produced_from_text(document: Mapping[str, Any], entry: str) -> bool:
    """Return whether text could become an entry without being found as an added token."""
    model = document["model"]
    # In a text, an entry that continues a word has no prefix such as ``##``.
    text = entry.removeprefix(str(model.get("continuing_subword_prefix") or ""))
    # No merge produces a special token. But a single character needs no merge and, with ignore_merges, the
    # tokenizer also looks up whole words.
    if "merges" in model and not model.get("ignore_merges") and len(text) > 1:
        return False
    # Unigram can produce the entry wherever its text occurs. Without a pre-tokenizer, nothing divides the
    # text, so other models can produce the entry too.
    is_unigram = isinstance(model["vocab"], list)  # other kinds have a dict
    if is_unigram or document.get("pre_tokenizer") is None:
        return True
    # Other models can produce the entry only if the pre-tokenizer keeps its text in one piece. The piece may
    # be longer than the text, for example if the pre-tokenizer adds a word mark.
    pre_tokenizer = _make_tokenizer({"pre_tokenizer": document["pre_tokenizer"]}).pre_tokenizer
    return any(text in piece for piece, _span in pre_tokenizer.pre_tokenize_str(text))


def cut_like_wordpiece(entry: str, entries: Collection[str], prefix: str) -> list[str] | None:
    """Divide the text of an entry as WordPiece does: from the left, always taking the longest piece.

    Args:
        entry: the entry, with the prefix if it continues a word.
        entries: the entries that may be pieces.
        prefix: prefix of entries that continue a word, such as ``##``.

    Returns:
        The pieces; None if a part of the text is not in the vocabulary.
    """
    # An entry that is nothing but the prefix is a word of its own.
    continues_word = bool(prefix) and entry.startswith(prefix) and len(entry) > len(prefix)
    text = entry.removeprefix(prefix) if continues_word else entry
    pieces: list[str] = []
    start = 0
    while start < len(text):
        begins_word = start == 0 and not continues_word
        mark = "" if begins_word else prefix
        longest_first = range(len(text), start, -1)
        end = next((end for end in longest_first if mark + text[start:end] in entries), None)
        if end is None:
            return None
        pieces.append(mark + text[start:end])
        start = end
    return pieces


def _is_merged(entry: str, ranks: Mapping[Pair, int]) -> bool:
    return len(_merge_like_byte_pair_encoding(entry, ranks)) == 1


def _merge_like_byte_pair_encoding(text: str, ranks: Mapping[Pair, int]) -> list[str]:
    pieces = list(text)
    while len(pieces) > 1:
        pair_ranks = [ranks.get(pair, math.inf) for pair in pairwise(pieces)]
        lowest = min(pair_ranks)
        if math.isinf(lowest):  # no pair can be merged
            break
        left = pair_ranks.index(lowest)  # the leftmost of equal pairs
        pieces[left : left + 2] = [pieces[left] + pieces[left + 1]]
    return pieces
