"""A transformation for LlamaIndex ingestion pipelines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from stickytoken.cleaning import NOTE, Cleaner, clean_text, open_cleaner
from stickytoken.errors import require_package

require_package("llama_index", "a LlamaIndex transformation", "llama-index")

from llama_index.core import schema  # noqa: E402 (not before the check)
from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema  # noqa: E402

# The pipeline's cache key includes the serialised cleaner, so a serialised cleaner must contain everything
# that affects its results.
_AnyCleaner = Annotated[
    Cleaner,
    BeforeValidator(open_cleaner),
    PlainSerializer(Cleaner.to_json),
    WithJsonSchema({"type": "object"}),
]


class StickyTokenCleaner(schema.TransformComponent):
    """Cleans the text of LlamaIndex nodes; ids and relationships do not change.

    A node whose text changes loses its embeddings, because they belong to the old text.

    Attributes:
        cleaner: A cleaner, or anything that `open_cleaner` accepts.
        note: Metadata key for a note on what was found in a node; if None, no note is written. The note is
            hidden from embedding and language models.
    """

    cleaner: _AnyCleaner = Field(description="Cleans the texts.")
    note: str | None = Field(default=NOTE, description="Metadata key for a note on what was found.")

    @classmethod
    def class_name(cls) -> str:
        """Return the name used in serialised pipelines."""
        return "StickyTokenCleaner"

    def __call__(self, nodes: Sequence[schema.BaseNode], **kwargs: Any) -> Sequence[schema.BaseNode]:
        """Return the cleaned nodes; nodes without findings are not copied."""
        return [self._clean_node(node) for node in nodes]

    def _clean_node(self, node: schema.BaseNode) -> schema.BaseNode:
        """Return a copy of a node with cleaned text, or the node itself if nothing was found."""
        before = node.get_content(schema.MetadataMode.NONE)
        text, note = clean_text(self.cleaner, before, f"node {node.node_id!r}")
        if not note:
            return node
        copied = node.model_copy()
        if text != before:
            copied.embedding = None
            # Replace only the text of the resource and its vectors, and preserve its other fields.
            if isinstance(copied, schema.Node) and copied.text_resource is not None:
                changes = {"text": text, "embeddings": None}
                copied.text_resource = copied.text_resource.model_copy(update=changes)
            else:
                copied.set_content(text)
        if self.note is not None:
            copied.metadata = {**node.metadata, self.note: note}
            for name in ("excluded_embed_metadata_keys", "excluded_llm_metadata_keys"):
                hidden_keys = getattr(node, name)
                if self.note not in hidden_keys:
                    setattr(copied, name, [*hidden_keys, self.note])
        return copied
