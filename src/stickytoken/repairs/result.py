"""A repaired model, and the documents whose vectors its repair changes."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from stickytoken.data.documents import Document, NamedColumns, open_documents
from stickytoken.data.rows import Meter
from stickytoken.encoders import Encoder
from stickytoken.encoders.files.resolution import resolve_model
from stickytoken.encoders.files.tokenizer_loading import user_tokenizer
from stickytoken.encoders.protocol import require_ids
from stickytoken.errors import InputError, RepairError
from stickytoken.measurement import store
from stickytoken.repairs.model_folder import require_repairable
from stickytoken.repairs.records import TOKENIZER_STRATEGIES, read_repair, token_rows
from stickytoken.settings.reading import ColumnChoice, columns_of
from stickytoken.validation import file_path

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

# Number of documents that are tokenized at a time.
_BATCH = 1000


class Repair:
    """A repaired model and its measurements.

    Args:
        path: folder of the model.

    Raises:
        RunError: the folder holds no repaired model, or its record is damaged.

    Examples:
        >>> settings = stickytoken.RepairSettings(verify=False)
        >>> repaired = stickytoken.repair(run, ["[CLS]"], out="repaired", encoder=model, settings=settings)
        >>> repaired.verified is None
        True
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.record = read_repair(path)

    def __repr__(self) -> str:
        tokens = f"{len(self.record.tokens)} tokens, {self.record.state}"
        return f"<Repair: {self.record.model}, {tokens}, in {self.path}>"

    @property
    def verified(self) -> bool | None:
        """Whether the repair passed all checks; None if the verification was switched off."""
        return self.record.verified

    @cached_property
    def model(self) -> SentenceTransformer:
        """The repaired model, loaded with sentence-transformers."""
        from sentence_transformers import SentenceTransformer

        return SentenceTransformer(str(self.path))

    @property
    def tokens(self) -> pl.DataFrame:
        """One row per repaired token: its repair, with measurements before and after the repair."""
        return pl.DataFrame(token_rows(self.record), infer_schema_length=None)

    def affected(
        self,
        texts: Iterable[str],
        original: str | Path,
        ids: Iterable[str] | None = None,
        *,
        revision: str | None = None,
    ) -> pl.DataFrame:
        """Find the documents whose vectors the repair changes, and which must therefore be encoded again.

        If the model has several routes, only vectors on the repaired route are considered. A document may be
        longer than the model reads, and is listed even if only its unread end has a repaired token.

        Args:
            texts: the documents, read one batch at a time.
            original: name or folder of the model before the repair.
            ids: names of the documents; None if they have no names.
            revision: for a model on the hub, the branch, tag or commit that was repaired.

        Returns:
            One row per affected document: its ``index`` in the texts, its name (``id``, if ``ids`` was
            passed), and the ids of the repaired tokens in it (``tokens``).

        Raises:
            RepairError: the numbers of names and documents differ.
        """
        original_folder = Path(resolve_model(str(original), revision).location)
        route = self.record.settings.get("route")
        tokenize_before = _tokenize_function(original_folder, route)
        tokenize_after = _tokenize_function(self.path, route)
        # The run's model puts its prompt before every text.
        prompt = str(self.record.identity_parts.get("encoder", {}).get("prompt", ""))
        # Tokens that the edited tokenizer no longer produces from text, and tokens that have a new row.
        unreachable_ids = {
            token.token_id for token in self.record.tokens if token.strategy in TOKENIZER_STRATEGIES
        }
        changed_row_ids = {token.token_id for token in self.record.tokens} - unreachable_ids
        affected_rows = []
        index = 0
        for batch in _name_texts_in_batches(texts, ids):
            inputs = [prompt + text for text, _name in batch]
            before = tokenize_before(inputs)
            after = tokenize_after(inputs)
            for (_text, name), old_ids, new_ids in zip(batch, before, after, strict=True):
                repaired_ids = changed_row_ids & set(new_ids)
                if old_ids != new_ids or repaired_ids:
                    # Occurrences are counted, because a text may keep one, such as the [CLS] before every
                    # text.
                    no_longer_read = Counter(old_ids) - Counter(new_ids)
                    repaired_ids |= unreachable_ids & no_longer_read.keys()
                    affected_rows.append({"index": index, "id": name, "tokens": sorted(repaired_ids)})
                index += 1
        schema: dict[str, Any] = {"index": pl.UInt32, "id": pl.String, "tokens": pl.List(pl.UInt32)}
        table = pl.DataFrame(affected_rows, schema=schema)
        return table if ids is not None else table.drop("id")

    def summary(self) -> dict[str, Any]:
        """Return the repair as JSON values."""
        return {"repair": str(self.path), "verified": self.verified, **self.record.model_dump()}


def _name_texts_in_batches(
    texts: Iterable[str], ids: Iterable[str] | None
) -> Iterator[list[tuple[str, str | None]]]:
    # None is repeated without end, so the numbers of texts and names are compared only if there are names.
    names: Iterable[str | None] = repeat(None) if ids is None else ids
    named_texts = zip(texts, names, strict=ids is not None)
    try:
        while batch := list(islice(named_texts, _BATCH)):
            yield batch
    except ValueError as error:
        # With strict=True, zip raises this error if the numbers of texts and ids differ.
        raise RepairError(f"the numbers of names and documents differ: {error}") from error


def _tokenize_function(folder: Path, route: str | None) -> Callable[[Sequence[str]], list[list[int]]]:
    """Return a function from texts to the token ids of the model in a folder, of whole texts.

    How much of a text is read when documents are encoded isn't known here: a longer maximum than that of the
    files can be set on a loaded model. So a document may be listed for a token that is never read.
    """
    from tokenizers import Tokenizer

    tokenizer = user_tokenizer(folder, str(folder), route=route)

    # A static model has a tokenizer of the library `tokenizers`, which sentence-transformers calls without
    # special tokens and padding.
    def ids_by_tokenizers(texts: Sequence[str]) -> list[list[int]]:
        tokenizer.no_truncation()
        tokenizer.no_padding()  # otherwise, the ids of a text depend on the other texts
        encodings = tokenizer.encode_batch(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    # A transformers tokenizer adds special tokens.
    def ids_by_transformers(texts: Sequence[str]) -> list[list[int]]:
        # verbose=False: no warning that a text is longer than the model reads.
        ids: list[list[int]] = tokenizer(list(texts), truncation=False, verbose=False)["input_ids"]
        return ids

    return ids_by_tokenizers if isinstance(tokenizer, Tokenizer) else ids_by_transformers


def open_repair(path: str | Path) -> Repair:
    """Open a repaired model.

    Raises:
        RunError: the folder holds no repaired model, or its record is damaged.

    Examples:
        >>> settings = stickytoken.RepairSettings(verify=False)
        >>> repaired = stickytoken.repair(run, ["[CLS]"], out="repaired", encoder=model, settings=settings)
        >>> stickytoken.open_repair("repaired").path.name
        'repaired'
    """
    return Repair(file_path("the repair", path))


@dataclass(frozen=True)
class Affected:
    """The documents of a file whose vectors a repair changes.

    Attributes:
        file: path of a Parquet file with one row per affected document.
        documents: number of documents that were checked.
        count: number of affected documents.
    """

    file: str
    documents: int
    count: int


def require_documents(path: Path | None, column: ColumnChoice, repaired: Path) -> None:
    """Raise an InputError if the file of documents cannot be used, or a column is named without a file.

    ``repaired`` is the folder for the repaired model, beside which the affected documents are listed.
    """
    if path is not None:
        store.require_other_file(_list_beside(repaired), (path,))
        open_documents(path, NamedColumns(column))  # raises the error; the documents are read later
        return
    column_options = columns_of(column).as_options()
    if column_options:
        raise InputError(f"{shlex.join(column_options)} is given without --affected: pass --affected too")


def find_affected_in(path: Path, column: ColumnChoice, repair: Repair, original: Encoder) -> Affected:
    """Find the documents in a file that a repair affects, and list them in a file beside the repaired model.

    Args:
        path: file of documents.
        column: the column with the texts of the documents; if None, the column is chosen by its name.
        repair: the repair.
        original: the model before the repair.
    """
    texts = []
    ids = []
    for record in open_documents(path, NamedColumns(column)).read(Meter()):
        if isinstance(record, Document):
            texts.append(record.text)
            ids.append(record.id)
        else:  # a record without text keeps its place, so that the indices are those of the file
            texts.append("")
            ids.append(record.place)
    original_folder = require_repairable(require_ids(original, "repair")).folder
    affected = repair.affected(texts, original_folder, ids)
    file = _list_beside(repair.path)
    store.ResultFolder(file.parent).write_table(file.name, affected)
    return Affected(str(file), documents=len(texts), count=len(affected))


def _list_beside(repaired: Path) -> Path:
    return repaired.parent / f"{repaired.name}-affected.parquet"
