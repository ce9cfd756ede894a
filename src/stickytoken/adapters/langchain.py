"""A document transformer for LangChain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stickytoken.cleaning import NOTE, CleanerSource, clean_text, open_cleaner
from stickytoken.errors import require_package

require_package("langchain_core", "a LangChain transformer", "langchain")

from langchain_core.documents import BaseDocumentTransformer, Document  # noqa: E402 (not before the check)


class StickyTokenCleaner(BaseDocumentTransformer):
    """Cleans the text of LangChain documents; their ids do not change.

    Args:
        cleaner: A cleaner, or anything that `open_cleaner` accepts.
        note: Metadata key for a note on what was found in a document; if None, no note is written.
    """

    def __init__(self, cleaner: CleanerSource, *, note: str | None = NOTE) -> None:
        self.cleaner = open_cleaner(cleaner)
        self.note = note

    def transform_documents(self, documents: Sequence[Document], **kwargs: Any) -> Sequence[Document]:
        """Return the cleaned documents; documents without findings are not copied."""
        cleaned = []
        for number, document in enumerate(documents, 1):
            name = f"document {number:,}" + (f" ({document.id!r})" if document.id else "")
            text, note = clean_text(self.cleaner, document.page_content, name)
            if not note:
                cleaned.append(document)
                continue
            metadata = dict(document.metadata)
            if self.note is not None:
                metadata[self.note] = note
            cleaned.append(document.model_copy(update={"page_content": text, "metadata": metadata}))
        return cleaned
