"""Models that are not one dense vector for a text, and models without a table of token vectors."""

import json

import numpy as np
import pytest
import transformers
from sentence_transformers import CrossEncoder, MultiVectorEncoder, SentenceTransformer, SparseEncoder
from sentence_transformers.sentence_transformer import modules

import planted
import tiny
from naming import naming
from stickytoken import analyze_vocabulary, load_encoder
from stickytoken.encoders.inputs.token_table import table_rows, token_table
from stickytoken.errors import ModelError
from stickytoken.inspection import inspector_of

SIZES = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 64}
TEXTS = ["the old river sings", "a bird", "stone under a tree"]


def backbone(folder, kind, **more):
    tokenizer = tiny.wordpiece_tokenizer()
    config = transformers.BertConfig(vocab_size=len(tokenizer), **SIZES, **more)
    return tiny.save_backbone(folder, getattr(transformers, kind)(config), tokenizer)


def cross_encoder(folder):
    base = backbone(folder / "base", "BertForSequenceClassification", num_labels=1)
    return CrossEncoder(str(base), device="cpu")


def sparse_encoder(folder):
    return SparseEncoder(str(backbone(folder / "base", "BertForMaskedLM")), device="cpu")


def multi_vector_encoder(folder):
    return MultiVectorEncoder(str(backbone(folder / "base", "BertModel")), device="cpu")


KINDS = {
    "cross-encoder": cross_encoder,
    "sparse": sparse_encoder,
    "multi-vector": multi_vector_encoder,
}


@pytest.mark.parametrize("said", KINDS)
def test_another_kind_of_model_is_refused_by_its_name(said, tmp_path):
    model = KINDS[said](tmp_path)
    with pytest.raises(ModelError, match=said):
        load_encoder(model)
    folder = tmp_path / "model"
    model.save_pretrained(str(folder))
    for load in (load_encoder, analyze_vocabulary):
        with pytest.raises(ModelError, match=said):
            load(folder)
    for command in (("tokens", folder), ("check", folder), ("detect", folder, "--sample", "5")):
        planted.assert_refused(*command, saying=said)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model_type": "ColBERT"}, "multi-vector"),
        ({"type": "sentence_transformers.sparse_encoder.models.SpladePooling"}, "sparse"),
        ({"type": "pylate.models.Dense.Dense"}, "multi-vector"),
    ],
)
def test_older_marks_of_a_kind_are_known(change, said, bert_folder, tmp_path):
    settings = {name: value for name, value in change.items() if name == "model_type"}
    entries = [{"idx": 0, "name": "0", "path": "", "type": change.get("type", "a.Transformer")}]
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(settings))
    (tmp_path / "modules.json").write_text(json.dumps(entries))
    with pytest.raises(ModelError, match=said):
        load_encoder(tmp_path)


@pytest.mark.parametrize("dense", [False, True])
def test_a_bag_of_words_is_refused_by_its_name(dense, tmp_path):
    chain = [modules.BoW(["river", "stone", "bird"])]
    if dense:
        chain.append(modules.Dense(3, 2))
    model = SentenceTransformer(modules=chain, device="cpu")
    with pytest.raises(ModelError, match=naming("WhitespaceTokenizer")):
        load_encoder(model)
    model.save(str(tmp_path / "model"), create_model_card=False)
    with pytest.raises(ModelError, match=naming(tmp_path / "model", "BoW")):
        load_encoder(tmp_path / "model")


@pytest.fixture
def clip(tmp_path):
    """A CLIP whose text part alone declares its token vectors."""
    tokenizer = tiny.wordpiece_tokenizer()
    ids = {"bos_token_id": 2, "eos_token_id": 3, "pad_token_id": 0}
    text = SIZES | ids | {"vocab_size": len(tokenizer), "projection_dim": 24}
    picture = SIZES | {"image_size": 32, "patch_size": 16}
    model = transformers.CLIPModel(
        transformers.CLIPConfig(text_config=text, vision_config=picture, projection_dim=24)
    )
    transformers.CLIPImageProcessor(size={"shortest_edge": 32}).save_pretrained(tmp_path)
    return tiny.save_backbone(tmp_path, model, tokenizer)


@pytest.mark.filterwarnings("ignore:.*has no modules.json")
def test_a_model_of_several_parts_is_read_by_its_text_part(clip):
    library = SentenceTransformer(str(clip), device="cpu")
    encoder = load_encoder(clip, device="cpu")
    np.testing.assert_allclose(encoder.encode(TEXTS), library.encode(TEXTS, batch_size=1), rtol=0, atol=1e-5)
    table = encoder.model[0].model.text_model.get_input_embeddings()
    assert token_table(encoder.model) is table
    np.testing.assert_array_equal(inspector_of(encoder).embedding_matrix(), table.weight.detach().numpy())


def test_a_model_without_token_vectors_still_encodes(bert_folder, monkeypatch):
    library = SentenceTransformer(str(bert_folder), device="cpu")
    expected = library.encode(TEXTS, batch_size=1)

    def missing(module):
        raise NotImplementedError

    monkeypatch.setattr(transformers.PreTrainedModel, "get_input_embeddings", missing)
    monkeypatch.setattr(transformers.BertModel, "get_input_embeddings", missing)
    encoder = load_encoder(library)
    np.testing.assert_allclose(encoder.encode(TEXTS), expected, rtol=0, atol=1e-5)
    assert table_rows(library) is None
    assert inspector_of(encoder).embedding_matrix() is None


def test_a_vocabulary_of_code_points_is_refused():
    with pytest.raises(ModelError, match=naming("CanineTokenizer", "code points")):
        analyze_vocabulary_of(transformers.CanineTokenizer())


def test_a_vocabulary_without_entries_is_refused():
    class Wordless:
        def convert_ids_to_tokens(self, ids):
            return ids

        def get_vocab(self):
            raise NotImplementedError

    with pytest.raises(ModelError, match=naming("Wordless")):
        analyze_vocabulary_of(Wordless())


def analyze_vocabulary_of(tokenizer):
    from stickytoken.encoders.inputs.tokenizer import HuggingFaceTokenizer

    return HuggingFaceTokenizer(tokenizer)


def test_a_model_that_gives_no_vector_is_refused(bert_folder):
    plain_model = SentenceTransformer(str(bert_folder), device="cpu")
    alone = SentenceTransformer(modules=[plain_model[0]], device="cpu")
    with pytest.raises(ModelError, match=naming("vector", "Transformer")):
        load_encoder(alone).encode(TEXTS)
