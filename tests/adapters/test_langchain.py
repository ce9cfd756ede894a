"""LangChain documents are cleaned one for one."""

import pytest

pytest.importorskip("langchain_core", reason="langchain-core is not installed")
from langchain_core.documents import BaseDocumentTransformer, Document

from stickytoken.adapters.langchain import StickyTokenCleaner


class Chapter(Document):
    number: int = 1


@pytest.fixture
def documents():
    return [
        Document("the river", id="1", metadata={"source": "a"}),
        Document("able able able able a bird", id="2", metadata={"source": "b", "tags": ["x"]}),
        Chapter(page_content="a [SEP] stone", number=7),
        Document(""),
    ]


def test_documents_are_cleaned_with_their_ids_and_metadata(documents, cleaner, cleaner_file):
    step = StickyTokenCleaner(cleaner)
    before = [document.model_dump() for document in documents]
    assert isinstance(step, BaseDocumentTransformer)
    cleaned = step.transform_documents(documents)
    assert [document.page_content for document in cleaned] == ["the river", "a bird", "a stone", ""]
    assert [document.id for document in cleaned] == ["1", "2", None, None]
    assert cleaned[1].metadata == {"source": "b", "tags": ["x"], "stickytoken": "1 flagged"}
    assert (type(cleaned[2]), cleaned[2].number) == (Chapter, 7)
    assert cleaned[0] is documents[0]
    assert cleaned[3] is documents[3]
    assert [document.model_dump() for document in documents] == before
    without = StickyTokenCleaner(cleaner_file, note=None).transform_documents(documents)
    assert (without[1].page_content, without[1].metadata) == ("a bird", documents[1].metadata)


def test_what_is_left_is_noted_and_goes_with_unsafe_fixes(cleaner, thorough):
    document = Document("very very very very good", id="1")
    (left,) = StickyTokenCleaner(cleaner).transform_documents([document])
    assert (left.page_content, left.metadata) == (document.page_content, {"stickytoken": "1 repetition left"})
    (cleaned,) = StickyTokenCleaner(thorough).transform_documents([document])
    assert (cleaned.page_content, cleaned.metadata) == ("very good", {"stickytoken": "1 repetition"})
