"""LlamaIndex nodes are cleaned one for one, and pipelines know the cleaner by its content."""

import json

import pytest

pytest.importorskip("llama_index.core", reason="llama-index-core is not installed")
from llama_index.core import schema
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.schema import Document, MediaResource, MetadataMode, Node, TextNode

from stickytoken.adapters.llama_index import StickyTokenCleaner


@pytest.fixture
def nodes():
    source = {schema.NodeRelationship.SOURCE: TextNode(id_="source").as_related_node_info()}
    picture = "https://example.org/able.png"
    return [
        TextNode(id_="1", text="the river", metadata={"source": "a"}, embedding=[1.0]),
        TextNode(
            id_="2",
            text="able able able able a bird",
            metadata={"source": "b"},
            embedding=[1.0],
            relationships=source,
            start_char_idx=5,
        ),
        Document(id_="3", text="a [SEP] stone", excluded_embed_metadata_keys=["file"]),
        Node(
            id_="4",
            text_resource=MediaResource(
                text="[SEP] one", mimetype="text/html", embeddings={"dense": [1.0], "sparse": [2.0]}
            ),
            image_resource=MediaResource(url=picture),
        ),
        schema.IndexNode(id_="5", text="two [SEP]", index_id="other"),
        schema.ImageNode(id_="6", text="", image_url=picture),
        Node(id_="7", image_resource=MediaResource(url=picture)),
    ]


def texts(nodes):
    return [node.get_content(MetadataMode.NONE) for node in nodes]


def test_nodes_are_cleaned_with_all_else_that_they_hold(nodes, cleaner):
    before = [node.to_dict() for node in nodes]
    cleaned = StickyTokenCleaner(cleaner=cleaner)(nodes)
    assert texts(cleaned) == ["the river", "a bird", "a stone", "one", "two", "", ""]
    assert [type(node) for node in cleaned] == [type(node) for node in nodes]
    assert [node.node_id for node in cleaned] == list("1234567")
    assert cleaned[1].relationships == nodes[1].relationships
    assert (cleaned[1].start_char_idx, cleaned[1].embedding) == (5, None)
    assert cleaned[3].text_resource.mimetype == "text/html"
    assert cleaned[3].text_resource.embeddings is None
    assert cleaned[3].image_resource == nodes[3].image_resource
    assert cleaned[4].index_id == "other"
    assert all(cleaned[index] is nodes[index] for index in (0, 5, 6))
    assert [node.to_dict() for node in nodes] == before
    # The note is not embedded.
    assert cleaned[1].metadata == {"source": "b", "stickytoken": "1 flagged"}
    for mode in (MetadataMode.EMBED, MetadataMode.LLM):
        assert cleaned[1].get_content(mode) == "source: b\n\na bird"
    assert cleaned[2].excluded_embed_metadata_keys == ["file", "stickytoken"]
    assert StickyTokenCleaner(cleaner=cleaner, note=None)(nodes)[1].metadata == {"source": "b"}


def test_another_cleaner_is_another_entry_of_the_cache(cleaner, thorough):
    pipeline = IngestionPipeline(transformations=[StickyTokenCleaner(cleaner=cleaner)])
    document = Document(id_="1", text="very very very very good")
    assert texts(pipeline.run(documents=[document])) == [document.text]
    again = IngestionPipeline(transformations=[StickyTokenCleaner(cleaner=thorough)], cache=pipeline.cache)
    assert texts(again.run(documents=[document])) == ["very good"]


def test_it_is_serialised_with_the_whole_cleaner(nodes, cleaner):
    step = StickyTokenCleaner(cleaner=cleaner, note="found")
    assert step.to_dict()["class_name"] == "StickyTokenCleaner"
    again = StickyTokenCleaner.from_json(step.to_json())
    assert again.to_dict() == step.to_dict()
    assert texts(again(nodes)) == texts(step(nodes))
    assert json.dumps(StickyTokenCleaner.model_json_schema())


def test_a_node_whose_text_stays_keeps_its_vector(cleaner):
    resource = MediaResource(text="very very very very good", embeddings={"dense": [2.0]})
    node = Document(text_resource=resource, embedding=[1.0])
    (left,) = StickyTokenCleaner(cleaner=cleaner)([node])
    assert (left.text, left.embedding) == (node.text, [1.0])
    assert left.text_resource.embeddings == {"dense": [2.0]}
    assert left.metadata["stickytoken"] == "1 repetition left"
