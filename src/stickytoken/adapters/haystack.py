"""A component for Haystack pipelines."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from stickytoken.cleaning import NOTE, CleanerSource, clean_text, open_cleaner
from stickytoken.errors import InputError, require_package
from stickytoken.validation import shown

require_package("haystack", "a Haystack component", "haystack")

from haystack import Document, component, default_to_dict  # noqa: E402 (not before the check)


@component
class StickyTokenCleaner:
    """Cleans the text of Haystack documents; ids, blobs and scores do not change.

    A document whose text changes loses its embeddings, because they belong to the old text.

    Args:
        cleaner: A cleaner, or anything that `open_cleaner` accepts.
        note: Metadata key for a note on what was found in a document; if None, no note is written.
    """

    def __init__(self, cleaner: CleanerSource, note: str | None = NOTE) -> None:
        self.cleaner = open_cleaner(cleaner)
        self.note = note

    def to_dict(self) -> dict[str, Any]:
        """Return the state for a saved pipeline; it contains the whole cleaner, so loading needs no run."""
        return default_to_dict(self, cleaner=self.cleaner.to_json(), note=self.note)

    @component.output_types(documents=list[Document])
    def run(self, documents: list[Document]) -> dict[str, list[Document]]:
        """Return the cleaned documents; documents without findings are not copied."""
        if not isinstance(documents, list):
            raise InputError(f"documents is {shown(documents)}: pass a list of documents")
        return {"documents": [self._clean_document(document) for document in documents]}

    def _clean_document(self, document: Document) -> Document:
        if not isinstance(document, Document):
            raise InputError(f"documents contains {shown(document)}: pass Haystack documents")
        if document.content is None:
            return document
        text, note = clean_text(self.cleaner, document.content, f"document {document.id!r}")
        if not note:
            return document
        meta = dict(document.meta)
        if self.note is not None:
            meta[self.note] = note
        if text == document.content:
            return replace(document, meta=meta)
        return replace(document, content=text, meta=meta, embedding=None, sparse_embedding=None)
