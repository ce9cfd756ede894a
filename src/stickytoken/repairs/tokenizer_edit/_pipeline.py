"""The tokenizer of a model folder: its files, and the pipeline that transformers makes of them."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from stickytoken.encoders.loading.tokenizers import tokenizer_folder
from stickytoken.errors import ModelError, RepairError
from stickytoken.validation import visible

TOKENIZER_FILE = "tokenizer.json"
CONFIG_FILE = "tokenizer_config.json"
_SHOWN_REASON = 200
# Steps before the vocabulary after which no text contains a space.
_WITHOUT_SPACES = {"BertPreTokenizer", "Whitespace", "WhitespaceSplit", "ByteLevel", "Metaspace"}
# Normalisers that put no space where there was none.
_ADD_NO_SPACE = {"Prepend", "Lowercase", "Strip", "StripAccents"}


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A tokenizer as files and as transformers reads them.

    Attributes:
        folder: Where its files lie.
        stored: tokenizer.json; None if there is none.
        loaded: The pipeline of the loaded tokenizer, in the form of tokenizer.json.
        tokenizer: The tokenizer of transformers; None if the folder is meant for `tokenizers` alone.
    """

    folder: Path
    stored: dict[str, Any] | None
    loaded: dict[str, Any]
    tokenizer: Any

    @property
    def entries(self) -> dict[int, str]:
        """All entries by id."""
        return entries_of(self.loaded)

    @property
    def document(self) -> dict[str, Any]:
        """The pipeline as stored, or as loaded if it is not stored."""
        return self.loaded if self.stored is None else self.stored

    def can_change_steps(self) -> bool:
        """Ask transformers whether it honours the steps of tokenizer.json, and not only its vocabulary.

        It does for `PreTrainedTokenizerFast`, except for some kinds of models whose class it insists on.
        """
        if self.tokenizer is None:
            return True
        step = {"type": "Replace", "pattern": {"String": "a"}, "content": "b"}
        model = {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}
        document = {"version": "1.0", "added_tokens": [], "normalizer": step, "model": model}
        files = {
            TOKENIZER_FILE: json.dumps(document).encode(),
            CONFIG_FILE: b'{"tokenizer_class": "PreTrainedTokenizerFast"}',
        }
        if (config := self.folder / "config.json").is_file():
            files["config.json"] = config.read_bytes()
        with tempfile.TemporaryDirectory() as place:
            for name, content in files.items():
                (Path(place) / name).write_bytes(content)
            try:
                found = transformers_tokenizer(Path(place))
            except RepairError:
                return False
        return bool(json.loads(found.backend_tokenizer.to_str())["normalizer"] == step)

    def entry(self, token_id: int) -> str:
        """Return the string of an id.

        Raises:
            RepairError: The vocabulary has no such id.
        """
        found = self.entries.get(token_id)
        if found is None:
            raise RepairError(f"the tokenizer in {self.folder} has no token {token_id}: pass one of its ids")
        return found


def read_pipeline(model: Path) -> Pipeline:
    """Read the tokenizer of a model folder.

    Raises:
        RepairError: There is none, more than one, or none that `tokenizers` can run.
    """
    from tokenizers import Tokenizer

    try:
        folder = tokenizer_folder(model, str(model))
    except (ModelError, OSError) as error:
        raise RepairError(f"{model} cannot be repaired: {error}") from error
    path = folder / TOKENIZER_FILE
    stored = _read_json(path) if path.is_file() else None
    if stored is not None and not any((folder / name).is_file() for name in (CONFIG_FILE, "config.json")):
        try:
            loaded = json.loads(Tokenizer.from_file(str(path)).to_str())
        except Exception as error:  # tokenizers raises nothing narrower
            raise RepairError(f"{path} is not a tokenizer: {_short(error)}") from error
        return Pipeline(folder, stored, loaded, None)
    tokenizer = transformers_tokenizer(folder)
    return Pipeline(folder, stored, json.loads(tokenizer.backend_tokenizer.to_str()), tokenizer)


def entries_of(document: dict[str, Any]) -> dict[int, str]:
    """Return the entries of a pipeline by id, those that were added last."""
    vocabulary = document["model"]["vocab"]
    if isinstance(vocabulary, dict):
        entries = {int(token_id): entry for entry, token_id in vocabulary.items()}
    else:
        entries = {token_id: entry for token_id, (entry, _) in enumerate(vocabulary)}
    return entries | {added["id"]: added["content"] for added in document.get("added_tokens", ())}


def shown_entry(entry: str, token_id: int) -> str:
    """Name an entry in a message."""
    return f"token {token_id} ({visible(entry)!r})"


def keeps_spaces_out(document: dict[str, Any]) -> bool:
    """Check that no space reaches the vocabulary, so that an entry with a space matches no text."""
    if any(
        step["type"] in _WITHOUT_SPACES for step in _steps(document.get("pre_tokenizer"), "pretokenizers")
    ):
        return True
    steps = _steps(document.get("normalizer"), "normalizers")
    replaced = [place for place, step in enumerate(steps) if _replaces_spaces(step)]
    return bool(replaced) and all(_adds_no_space(step) for step in steps[replaced[-1] + 1 :])


def cuts_words(document: dict[str, Any]) -> bool:
    """Check that the pipeline cuts text into words before it looks at its vocabulary."""
    from tokenizers import Tokenizer

    if document.get("pre_tokenizer") is None:
        return False
    model = {"type": "WordLevel", "vocab": {"": 0}, "unk_token": ""}
    steps = {key: document.get(key) for key in ("normalizer", "pre_tokenizer")}
    small: dict[str, Any] = {"version": "1.0", "added_tokens": [], "model": model, **steps}
    return len(Tokenizer.from_str(json.dumps(small)).encode("one two three").ids) == 3


def _replaces_spaces(step: dict[str, Any]) -> bool:
    return (
        step["type"] == "Replace" and step["pattern"].get("String") == " " and " " not in step["content"]
    ) or step["type"] == "ByteLevel"


def _adds_no_space(step: dict[str, Any]) -> bool:
    return step["type"] in _ADD_NO_SPACE or (step["type"] == "Replace" and " " not in step["content"])


def _steps(part: dict[str, Any] | None, members: str) -> list[dict[str, Any]]:
    """Return the steps of a normaliser or pre-tokenizer, sequences opened."""
    if part is None:
        return []
    if part["type"] != "Sequence":
        return [part]
    return [step for member in part[members] for step in _steps(member, members)]


def normaliser_steps(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the steps of the normaliser."""
    return _steps(document.get("normalizer"), "normalizers")


def pre_tokenizer_steps(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the steps of the pre-tokenizer."""
    return _steps(document.get("pre_tokenizer"), "pretokenizers")


def transformers_tokenizer(folder: Path) -> Any:
    """Load a tokenizer as transformers does."""
    from tokenizers import Tokenizer
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    except Exception as error:  # anything may be wrong with the files, and each class says it in its own way
        raise RepairError(f"the tokenizer in {folder} cannot be loaded: {_short(error)}") from error
    if not isinstance(getattr(tokenizer, "backend_tokenizer", None), Tokenizer):
        raise RepairError(
            f"the tokenizer in {folder} is a {type(tokenizer).__name__}, written in Python: only fast "
            "tokenizers can be edited; save it as tokenizer.json, or repair rows instead"
        )
    return tokenizer


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise RepairError(f"{path} cannot be read: {_short(error)}") from error
    if not isinstance(found, dict) or not isinstance(found.get("model"), dict):
        raise RepairError(f"{path} is not the file of a tokenizer")
    return found


def _short(error: BaseException) -> str:
    return " ".join(str(error).split())[:_SHOWN_REASON] or type(error).__name__


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


def segmentable(text: str, entries: Collection[str]) -> bool:
    """Check that a text is a sequence of entries."""
    reached = [True, *(False for _ in text)]
    for end in range(1, len(text) + 1):
        reached[end] = any(reached[start] and text[start:end] in entries for start in range(end))
    return reached[-1]


Pair = tuple[str, str]
# How entries that begin a word are marked: by byte-level tokenizers, and by SentencePiece.
WORD_MARKS = ("Ġ", "▁")
# Entries that may depend on looking up whole words; with more, longer words would change too often.
_LOOKED_UP = 40


@dataclass(frozen=True, slots=True)
class Removal:
    """Merges without some entries.

    Attributes:
        order: Rank of each merge that is left or was added.
        looked_up: Entries that no merges make any longer.
    """

    order: Mapping[Pair, float]
    looked_up: tuple[str, ...]

    @property
    def merges(self) -> list[Pair]:
        """All merges in order."""
        return sorted(self.order, key=self.order.__getitem__)


class Merges:
    """The merges of a vocabulary."""

    def __init__(self, entries: Collection[str], order: Mapping[Pair, float]) -> None:
        self.entries = entries
        self.order = order
        self._containing: dict[str, list[str]] = {}
        self._removals: dict[frozenset[str], Removal] = {}
        self._with: dict[str, list[Pair]] = {}
        for pair in order:
            for part in {*pair, "".join(pair)}:
                self._with.setdefault(part, []).append(pair)

    def without(self, removed: frozenset[str]) -> Removal:
        """Remove entries, and make the entries that are built from them in another way."""
        if removed not in self._removals:
            self._removals[removed] = self._without(removed)
        return self._removals[removed]

    def _without(self, removed: frozenset[str]) -> Removal:
        order = dict(self.order)
        dead = sorted({pair for part in removed for pair in self._with.get(part, ())}, key=order.__getitem__)
        for pair in dead:
            del order[pair]
        for pair in dead:
            entry = "".join(pair)
            if entry not in removed and len(pieces := merged(entry, order)) == 2:
                order[pieces[0], pieces[1]] = self.order[pair]
        lost = [
            entry
            for entry in self._built_from(removed)
            if entry not in removed and len(merged(entry, order)) > 1 and len(merged(entry, self.order)) == 1
        ]
        return Removal(order, tuple(lost))

    def can_be_looked_up(self, lost: Collection[str], removed: frozenset[str]) -> bool:
        """Say whether entries that no merges produce are still found.

        They are if they begin words: looked up as whole words, or cut from longer ones.
        """
        if len(lost) > _LOOKED_UP:
            return False
        return all(
            entry.startswith(WORD_MARKS) or (entry.startswith(tuple(removed)) and self._is_word(entry))
            for entry in lost
        )

    def _is_word(self, entry: str) -> bool:
        """Say whether an entry without the mark of a word is one all the same, at the beginning of a text."""
        marked = {mark + entry for mark in WORD_MARKS}
        containing = [other for other in self.entries if entry in other]
        words = (other.lstrip("".join(WORD_MARKS)) for other in containing)
        return not marked.isdisjoint(containing) and all(word.startswith(entry) for word in words)

    def _built_from(self, removed: Iterable[str]) -> list[str]:
        """List the entries that contain one of the strings."""
        for part in removed:
            if part not in self._containing:
                self._containing[part] = [entry for entry in self.entries if part in entry]
        return list(dict.fromkeys(entry for part in removed for entry in self._containing[part]))


def merged(text: str, order: Mapping[Pair, float]) -> list[str]:
    """Merge the characters of a word: the pair of the lowest rank first, the leftmost of equal ones."""
    pieces = list(text)
    while len(pieces) > 1:
        ranks = [order.get(pair, math.inf) for pair in pairwise(pieces)]
        lowest = min(ranks)
        if math.isinf(lowest):
            break
        place = ranks.index(lowest)
        pieces[place : place + 2] = [pieces[place] + pieces[place + 1]]
    return pieces
