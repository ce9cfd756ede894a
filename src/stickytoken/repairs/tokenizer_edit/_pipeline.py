"""The tokenizer of a model folder: its files, and the pipeline that transformers makes of them."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stickytoken.encoders.loading.resolution import tokenizer_folder
from stickytoken.errors import ModelError, RepairError
from stickytoken.validation import visible

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TOKENIZER_FILE = "tokenizer.json"
CONFIG_FILE = "tokenizer_config.json"
_SHOWN_REASON = 200
# Steps before the vocabulary after which no text contains a space.
_WITHOUT_SPACES = {"BertPreTokenizer", "Whitespace", "WhitespaceSplit", "ByteLevel", "Metaspace"}
# Normalisers that put no space where there was none.
_ADD_NO_SPACE = {"Prepend", "Lowercase", "Strip", "StripAccents"}


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A tokenizer as files and as transformers reads them."""

    folder: Path
    stored: dict[str, Any] | None  # tokenizer.json, if there is one
    loaded: dict[str, Any]  # the pipeline of the loaded tokenizer, in the form of tokenizer.json
    tokenizer: Any  # of transformers; None if the folder is meant for `tokenizers` alone

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
        """Return the string of an id, which must be one of the vocabulary."""
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
    stored = read_object(path) if path.is_file() else None
    if stored is not None and not isinstance(stored.get("model"), dict):
        raise RepairError(f"{path} is not the file of a tokenizer")
    if stored is not None and not any((folder / name).is_file() for name in (CONFIG_FILE, "config.json")):
        try:
            loaded = json.loads(Tokenizer.from_file(str(path)).to_str())
        except Exception as error:  # tokenizers raises nothing narrower
            raise RepairError(f"{path} is not a tokenizer: {_short(error)}") from error
        return Pipeline(folder, stored, loaded, None)
    tokenizer = transformers_tokenizer(folder)
    return Pipeline(folder, stored, json.loads(tokenizer.backend_tokenizer.to_str()), tokenizer)


def transformers_tokenizer(folder: Path) -> Any:
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


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object; an empty one if there is no file."""
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise RepairError(f"{path} cannot be read: {_short(error)}") from error
    if not isinstance(found, dict):
        raise RepairError(f"{path} is not a JSON object")
    return found


def _short(error: BaseException) -> str:
    return " ".join(str(error).split())[:_SHOWN_REASON] or type(error).__name__


def entries_of(document: dict[str, Any]) -> dict[int, str]:
    """Return the entries of a pipeline by id, those that were added last."""
    vocabulary = document["model"]["vocab"]
    if isinstance(vocabulary, dict):
        entries = {int(token_id): entry for entry, token_id in vocabulary.items()}
    else:
        entries = {token_id: entry for token_id, (entry, _) in enumerate(vocabulary)}
    return entries | {added["id"]: added["content"] for added in document.get("added_tokens", ())}


def shown_entry(entry: str, token_id: int) -> str:
    return f"token {token_id} ({visible(entry)!r})"


def keeps_spaces_out(document: dict[str, Any]) -> bool:
    """Check that no space reaches the vocabulary, so that an entry with a space matches no text."""
    if any(step["type"] in _WITHOUT_SPACES for step in pre_tokenizer_steps(document)):
        return True
    steps = _steps(document.get("normalizer"), "normalizers")
    replaced = [
        place
        for place, step in enumerate(steps)
        if step["type"] == "ByteLevel" or (_puts_no_space(step) and step["pattern"].get("String") == " ")
    ]
    return bool(replaced) and all(
        step["type"] in _ADD_NO_SPACE or _puts_no_space(step) for step in steps[replaced[-1] + 1 :]
    )


def _puts_no_space(step: dict[str, Any]) -> bool:
    return step["type"] == "Replace" and " " not in step["content"]


def pre_tokenizer_steps(document: dict[str, Any]) -> list[dict[str, Any]]:
    return _steps(document.get("pre_tokenizer"), "pretokenizers")


def _steps(part: dict[str, Any] | None, members: str) -> list[dict[str, Any]]:
    """Return the steps of a normaliser or pre-tokenizer, sequences opened."""
    if part is None:
        return []
    if part["type"] != "Sequence":
        return [part]
    return [step for member in part[members] for step in _steps(member, members)]


def cuts_words(document: dict[str, Any]) -> bool:
    """Check that the pipeline cuts text into words before it looks at its vocabulary."""
    if document.get("pre_tokenizer") is None:
        return False
    steps = {key: document.get(key) for key in ("normalizer", "pre_tokenizer")}
    return len(pre_tokenizer_alone(steps).encode("one two three").ids) == 3


def pre_tokenizer_alone(steps: dict[str, Any]) -> Tokenizer:
    """Return a tokenizer of some steps, for which every word is unknown."""
    from tokenizers import Tokenizer

    model = {"type": "WordLevel", "vocab": {"": 0}, "unk_token": ""}
    return Tokenizer.from_str(json.dumps({"version": "1.0", "added_tokens": [], "model": model, **steps}))
