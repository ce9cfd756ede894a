"""Collections for measuring search: documents, and queries that one of them answers.

One collection comes with the package. Another can be made from any texts.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files

from stickytoken.machine import digest

__all__ = ["Collection", "bundled_collection", "join_collection"]

# Length of a document that is joined from shorter texts, in characters, because not every language has spaces
# between words. The bundled documents, of 80 to 160 words, are as long.
_LEAST_LENGTH = 480
_MOST_LENGTH = 960
# Most characters in a query that is cut from a text, about twelve words. People type few.
_MOST_QUERY_LENGTH = 72


@dataclass(frozen=True)
class Collection:
    """N documents and M queries.

    Attributes:
        source: where the documents come from, for messages.
        documents: the N documents.
        kinds: the kind of text of each document, such as "recipe"; one kind if none are known.
        queries: the M queries.
        answers: for each query, the index of the document that answers it, shape (M,).

    Examples:
        >>> from stickytoken.data.collection import bundled_collection
        >>> bundled_collection().documents[0][:40]
        'Thousands of passengers were stuck for u'
    """

    source: str
    documents: tuple[str, ...]
    kinds: tuple[str, ...]
    queries: tuple[str, ...]
    answers: tuple[int, ...]

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the documents, their kinds and the queries."""
        return digest([self.documents, self.kinds, self.queries, self.answers])


def bundled_collection() -> Collection:
    """Return the collection of the package: 240 English documents of 16 kinds, with two queries each.

    The documents have 80 to 160 words. The first query of each names its subject, the second asks for the
    same in other words.

    Examples:
        >>> from stickytoken.data.collection import bundled_collection
        >>> collection = bundled_collection()
        >>> len(collection.documents), len(collection.queries)
        (240, 480)
    """
    lines = files("stickytoken.data").joinpath("bundled/collection.jsonl").read_text("utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    queries: list[str] = []
    answers: list[int] = []
    for document_index, row in enumerate(rows):
        queries += row["queries"]
        answers += [document_index] * len(row["queries"])
    return Collection(
        source="the bundled documents",
        documents=tuple(row["text"] for row in rows),
        kinds=tuple(row["kind"] for row in rows),
        queries=tuple(queries),
        answers=tuple(answers),
    )


def join_collection(texts: Sequence[str], source: str, most_documents: int) -> Collection:
    """Join texts to documents of 480 to 960 characters, with a query for each.

    Texts are joined in their order, which keeps those together that belong together. A query is the first
    half of a document's first text, at most 72 characters; the document begins behind it.

    Args:
        texts: the texts. Longer ones are cut.
        source: where they come from, for messages.
        most_documents: number of documents to stop at.

    Examples:
        >>> from stickytoken.data.collection import join_collection
        >>> texts = [f"Text {number} of several that are long enough to search." for number in range(30)]
        >>> collection = join_collection(texts, "my texts", 10)
        >>> collection.queries[0], collection.documents[0][:30]
        ('Text 0 of several that', 'are long enough to search. Tex')
    """
    documents: list[str] = []
    queries: list[str] = []
    # The query and the document that are being made. An empty query means that neither has been begun.
    query = document = ""
    for text in texts:
        if len(documents) == most_documents:
            break
        if query:
            document = f"{document} {text}"
        else:
            query, document = _split_at_last_space(text, min(len(text) // 2, _MOST_QUERY_LENGTH))
        # The query stays empty if the text is too short to be halved.
        if query and len(document) >= _LEAST_LENGTH:
            shortened_document, _ = _split_at_last_space(document, _MOST_LENGTH)
            documents.append(shortened_document)
            queries.append(query)
            query = ""
    return Collection(
        source=f"documents joined from {source}",
        documents=tuple(documents),
        kinds=("text",) * len(documents),
        queries=tuple(queries),
        answers=tuple(range(len(documents))),
    )


def _split_at_last_space(text: str, length: int) -> tuple[str, str]:
    if len(text) <= length:
        return text.strip(), ""
    end = text.rfind(" ", 0, length + 1)
    has_space = end > 0
    if not has_space:
        end = length
    return text[:end].strip(), text[end:].strip()
