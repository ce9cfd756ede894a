"""Haystack documents are cleaned one for one, in pipelines that can be saved."""

import pytest

pytest.importorskip("haystack", reason="haystack-ai is not installed")
from haystack import Document, Pipeline
from haystack.dataclasses import ByteStream, SparseEmbedding

from naming import naming
from stickytoken.adapters.haystack import StickyTokenCleaner
from stickytoken.errors import InputError


@pytest.fixture
def documents():
    vector = {"embedding": [1.0, 2.0], "sparse_embedding": SparseEmbedding([1], [0.5])}
    return [
        Document(content="the river", meta={"source": "a"}, **vector),
        Document(content="able able able able a bird", meta={"source": "b"}, score=0.5, **vector),
        Document(blob=ByteStream(b"able able able able")),
        Document(id="mine", content="a [SEP] stone"),
    ]


def test_documents_are_cleaned_with_their_ids_and_metadata(documents, cleaner):
    before = [document.to_dict() for document in documents]
    cleaned = StickyTokenCleaner(cleaner).run(documents)["documents"]
    assert [document.content for document in cleaned] == ["the river", "a bird", None, "a stone"]
    assert [document.id for document in cleaned] == [document.id for document in documents]
    assert cleaned[1].meta == {"source": "b", "stickytoken": "1 flagged"}
    assert cleaned[1].score == 0.5
    assert cleaned[0] is documents[0]
    assert cleaned[2] is documents[2]
    assert [document.to_dict() for document in documents] == before
    assert (cleaned[1].embedding, cleaned[1].sparse_embedding) == (None, None)  # those of the old text
    left = StickyTokenCleaner(cleaner).run([Document(content="very very very very", embedding=[1.0])])
    (document,) = left["documents"]
    assert (document.content, document.embedding) == ("very very very very", [1.0])
    assert document.meta["stickytoken"] == "1 repetition left"


def test_a_pipeline_is_saved_with_the_whole_cleaner(documents, cleaner_file, tmp_path):
    pipeline = Pipeline()
    pipeline.add_component("clean", StickyTokenCleaner(str(cleaner_file), note="found"))
    saved = pipeline.dumps()
    assert str(cleaner_file) not in saved
    again = Pipeline.loads(saved, allowed_modules=["stickytoken.*"])
    assert again.to_dict() == pipeline.to_dict()
    cleaned = again.run({"clean": {"documents": documents}})["clean"]["documents"]
    assert cleaned[1].meta == {"source": "b", "found": "1 flagged"}


def test_what_is_no_list_of_documents_is_refused(cleaner):
    for wrong, value in (("able", "able"), ([3], 3)):
        with pytest.raises(InputError, match=naming("documents", repr(value))):
            StickyTokenCleaner(cleaner).run(wrong)
