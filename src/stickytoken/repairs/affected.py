"""Which documents have to be encoded again after a repair."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stickytoken.errors import RepairError
from stickytoken.repairs.model_folder import ModelEdit
from stickytoken.repairs.tokenizer_edit import edited_tokenizer, read_pipeline

if TYPE_CHECKING:
    import polars as pl

_BATCH = 1000
_LENGTH_FILE = "sentence_bert_config.json"
# Files that a tokenizer is read from, beside those that an edit changes.
_TOKENIZER_FILES = ("*.json", "*.txt", "*.model", "*.jinja")

_Encode = Callable[[Sequence[str]], list[list[int]]]


def affected_documents(
    folder: Path,
    edit: ModelEdit,
    texts: Iterable[str],
    ids: Iterable[str] | None = None,
    *,
    prompt: str = "",
) -> pl.DataFrame:
    """Find the documents whose vectors a repair changes.

    A document is affected if its token ids change, or if it contains an entry with a new row, within the
    length that the model reads. Every vector changes if a direction is taken out (`ModelEdit.centre`).

    Args:
        folder: The folder of the model before the repair.
        edit: The repair.
        texts: The documents, read one batch at a time.
        ids: Their names, one per document; None for none.
        prompt: What the model is given before each document.

    Returns:
        One row per affected document: ``index``, ``id`` if there are names, and ``tokens``, the ids of the
        repaired entries that it contains.

    Raises:
        RepairError: The tokenizer cannot be read, or there are more or fewer names than documents.
    """
    import polars as pl

    before, after = _encoders(folder, edit)
    rows = []
    for index, name, old, new in _encoded(before, after, texts, ids, prompt):
        repaired = set(edit.rows) & set(new)
        if old != new or repaired or edit.centre is not None:
            left = Counter(old) - Counter(new)
            tokenizer = {*edit.tokenizer.unreachable, *edit.tokenizer.plain_specials}
            rows.append({"index": index, "id": name, "tokens": sorted(repaired | (tokenizer & left.keys()))})
    schema: dict[str, Any] = {"index": pl.UInt32, "id": pl.String, "tokens": pl.List(pl.UInt32)}
    frame = pl.DataFrame(rows, schema=schema)
    return frame if ids is not None else frame.drop("id")


def _encoded(
    before: _Encode, after: _Encode, texts: Iterable[str], ids: Iterable[str] | None, prompt: str
) -> Iterator[tuple[int, str | None, list[int], list[int]]]:
    index = 0
    for batch in _batches(texts, ids):
        inputs = [prompt + text for text, _ in batch]
        for (_, name), old, new in zip(batch, before(inputs), after(inputs), strict=True):
            yield index, name, old, new
            index += 1


def _batches(texts: Iterable[str], ids: Iterable[str] | None) -> Iterator[list[tuple[str, str | None]]]:
    named = iter(zip(texts, repeat(None) if ids is None else ids, strict=ids is not None))
    while True:
        try:
            batch = list(islice(named, _BATCH))
        except ValueError as error:  # one of them ended first
            raise RepairError(f"there are not as many names as documents: {error}") from error
        if not batch:
            return
        yield batch


def _encoders(folder: Path, edit: ModelEdit) -> tuple[_Encode, _Encode]:
    """Tokenize as the model does before and after the repair."""
    before = read_pipeline(folder)
    length = _length(before.folder, before.tokenizer)
    old = _encoder(before.tokenizer, before.loaded, length)
    if not edit.tokenizer:
        return old, old
    with tempfile.TemporaryDirectory() as place:
        copy = Path(place)
        for pattern in _TOKENIZER_FILES:
            for file in before.folder.glob(pattern):
                if "safetensors" not in file.name:
                    shutil.copyfile(file, copy / file.name)
        for name, content in edited_tokenizer(folder, edit.tokenizer).items():
            (copy / Path(name).name).write_bytes(content)
        after = read_pipeline(copy)
    return old, _encoder(after.tokenizer, after.loaded, length)


def _encoder(tokenizer: Any, pipeline: dict[str, Any], length: int | None) -> _Encode:
    if tokenizer is not None:
        cut = {"truncation": True, "max_length": length} if length else {}
        return lambda texts: tokenizer(list(texts), **cut)["input_ids"]
    from tokenizers import Tokenizer

    backend = Tokenizer.from_str(json.dumps(pipeline))
    return lambda texts: [each.ids for each in backend.encode_batch(list(texts), add_special_tokens=False)]


def _length(folder: Path, tokenizer: Any) -> int | None:
    """Return how many tokens the model reads; None for all."""
    path = folder / _LENGTH_FILE
    if path.is_file():
        try:
            found = json.loads(path.read_text("utf-8")).get("max_seq_length")
        except (ValueError, AttributeError) as error:
            raise RepairError(f"{path} cannot be read: {error}") from error
        if found:
            return int(found)
    longest = getattr(tokenizer, "model_max_length", None)
    return int(longest) if longest and longest < 10**9 else None
