"""A SentenceTransformer as an encoder: refusals, identity, and how it leaves the model."""

import copy
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Router
from sentence_transformers.sentence_transformer.modules import BoW, Pooling, WordEmbeddings
from sentence_transformers.sentence_transformer.modules.tokenizer import WhitespaceTokenizer
from tokenizers import normalizers

import tiny
import tiny_architectures as architectures
from stickytoken.encoders import load_encoder
from stickytoken.errors import EncodingError, InputError, ModelError, StickyTokenError

CLOSE = {"rtol": 0, "atol": 1e-5}
TEXTS = tiny.sentences(12)
PROMPTS = {"query": "the song: ", "passage": ""}


@pytest.fixture(scope="session")
def bert(tmp_path_factory) -> Path:
    return architectures.bert(tmp_path_factory.mktemp("bert") / "backbone")


@pytest.fixture(scope="session")
def roberta(tmp_path_factory) -> Path:
    return architectures.roberta(tmp_path_factory.mktemp("roberta") / "backbone")


@pytest.fixture
def model(bert) -> SentenceTransformer:
    return architectures.stacked(bert)


def words(count: int) -> str:
    """A text of as many tokens, of which no two neighbours are equal."""
    known = [word for word in tiny.WORDS if len(word) > 1]
    return " ".join(known[place % len(known)] for place in range(count))


def test_an_encoder_is_named_as_it_was_asked_for(model, tmp_path):
    folder = architectures.saved(model, tmp_path / "some-name")
    encoder = load_encoder(str(folder), device="cpu")
    assert (encoder.name, encoder.device) == (str(folder), "cpu")


# --- refusals


def test_the_longest_text_is_read_whole_and_a_longer_one_refused(model):
    encoder, longest = load_encoder(model), architectures.MAX_LENGTH - 2
    whole = words(longest)
    np.testing.assert_allclose(encoder.encode([whole]), model.encode([whole]), **CLOSE)
    assert np.abs(encoder.encode([whole]) - encoder.encode([words(longest - 1)])).max() > 1e-3
    with pytest.raises(EncodingError, match=r"97 tokens.*reads 96") as caught:
        encoder.encode(["stone", words(longest + 1)])
    assert words(longest + 1)[:40] in str(caught.value)


def test_too_many_ids_are_refused_and_shown_as_text(model):
    encoder = load_encoder(model)
    token = model.tokenizer.convert_tokens_to_ids("river")
    assert encoder.fits([token] * 94)
    assert not encoder.fits([token] * 95)
    with pytest.raises(EncodingError, match=r"'river river .*97 tokens.*reads 96"):
        encoder.encode_ids([[token] * 95])


def test_the_prompt_counts_towards_the_longest_text(model):
    encoder = load_encoder(model, prompt="the song ")
    assert encoder.encode([words(92)]).shape == (1, architectures.DIMENSION)
    with pytest.raises(EncodingError, match=r"97 tokens.*reads 96"):
        encoder.encode([words(93)])


def test_a_prompt_longer_than_the_model_reads_is_said_to_be_too_long(model):
    with pytest.raises(StickyTokenError, match=r"(?s)(long|tokens).*96"):
        load_encoder(model, prompt="the river " * 60).encode(["stone"])


def test_a_model_that_reads_few_tokens_is_usable(model):
    model.max_seq_length = 6
    encoder = load_encoder(model)
    np.testing.assert_allclose(encoder.encode(["the river"]), model.encode(["the river"]), **CLOSE)
    with pytest.raises(EncodingError, match=r"7 tokens.*reads 6"):
        encoder.encode([words(5)])


def test_a_shorter_longest_input_can_be_asked_for(bert, tmp_path):
    folder = architectures.saved(architectures.stacked(bert), tmp_path / "model")
    encoder = load_encoder(folder, device="cpu", max_length=6)
    assert encoder.identity.max_length == 6
    assert encoder.encode([words(4)]).shape == (1, architectures.DIMENSION)
    with pytest.raises(EncodingError, match=r"7 tokens.*reads 6"):
        encoder.encode([words(5)])


def test_positions_that_start_behind_the_padding_shorten_the_longest_text(roberta, tmp_path):
    folder = architectures.saved(architectures.stacked(roberta), tmp_path / "model")
    config = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
    del config["model_max_length"]
    (folder / "tokenizer_config.json").write_text(json.dumps(config), "utf-8")
    library = SentenceTransformer(str(folder), device="cpu")
    assert library.max_seq_length == architectures.MAX_LENGTH + 2
    encoder = load_encoder(folder, device="cpu")
    whole = " river" * (architectures.MAX_LENGTH - 2)
    np.testing.assert_allclose(encoder.encode([whole]), library.encode([whole]), **CLOSE)
    with pytest.raises(EncodingError, match=r"97 tokens.*reads 96"):
        encoder.encode([whole + " river"])


def test_a_longest_input_beyond_the_positions_of_the_model_is_refused(bert, tmp_path):
    folder = architectures.saved(architectures.stacked(bert), tmp_path / "model")
    with pytest.raises(StickyTokenError, match="96"):
        load_encoder(folder, device="cpu", max_length=500).encode([words(200)])


def test_a_static_model_whose_tokenizer_cuts_refuses_what_would_be_cut():
    model = architectures.static_model()
    model.tokenizer.enable_truncation(30)
    encoder = load_encoder(model)
    np.testing.assert_allclose(encoder.encode([words(30)]), model.encode([words(30)]), **CLOSE)
    with pytest.raises(EncodingError, match=r"31 tokens.*reads 30"):
        encoder.encode([words(31)])


def test_weights_that_are_not_numbers_are_refused_by_the_text_that_shows_it(model):
    row = model.tokenizer.convert_tokens_to_ids("stone")
    with torch.no_grad():
        model[0].model.get_input_embeddings().weight[row] = float("nan")
    encoder = load_encoder(model)
    assert np.isfinite(encoder.encode(["the river"])).all()
    with pytest.raises(EncodingError, match=r"'the stone'.*not finite"):
        encoder.encode(["the river", "the stone", "the bird"])


def test_a_zero_vector_is_refused_unless_it_is_allowed():
    model = architectures.static_model()
    row = model.tokenizer.token_to_id("stone")
    with torch.no_grad():
        model[0].embedding.weight[row] = 0
    encoder = load_encoder(model)
    with pytest.raises(EncodingError, match=r"'stone'.*zero"):
        encoder.encode(["river", "stone"])
    with pytest.raises(EncodingError, match=r"'stone'.*zero"):
        encoder.encode_ids([[row]])
    ids = [text.ids for text in encoder.tokenize(["river", "stone"])]
    vectors = encoder.encode_ids(ids, allow_zero=True)
    assert vectors[0].any()
    assert not vectors[1].any()


def test_a_token_beyond_the_embedding_matrix_is_refused_by_its_text(model):
    size = len(model.tokenizer)
    model.tokenizer.add_tokens(["zebra"])
    encoder = load_encoder(model)
    with pytest.raises(EncodingError, match=rf"'the zebra'.*id {size}\b.*below {size}\b"):
        encoder.encode(["the river", "the zebra"])
    with pytest.raises(EncodingError, match=rf"id {size}\b.*below {size}\b"):
        encoder.encode_ids([[size]])


def test_half_a_surrogate_pair_is_refused_by_its_text(model):
    with pytest.raises(StickyTokenError, match="ud800"):
        load_encoder(model).encode(["the river", "the \ud800 stone"])


def test_texts_given_twice_do_not_shift_the_name_of_the_one_that_is_refused(model):
    long = words(120)
    with pytest.raises(EncodingError, match="122 tokens") as caught:
        load_encoder(model).encode(["stone", "stone", "river", "stone", long, long])
    assert repr(long[:79])[:-1] in str(caught.value)


def test_a_model_without_a_tokenizer_is_refused():
    model = SentenceTransformer(modules=[torch.nn.Identity()], device="cpu")
    with pytest.raises(ModelError, match="no tokenizer"):
        load_encoder(model)


def test_a_loaded_model_on_another_device_is_refused(model):
    with pytest.raises(InputError, match=r"on cpu, not meta"):
        load_encoder(model, device="meta")
    assert load_encoder(model, device="cpu").device == "cpu"


@pytest.mark.parametrize(
    "module",
    [
        BoW(vocab=["river", "stone"]),
        WordEmbeddings(WhitespaceTokenizer(vocab=["river", "stone"], stop_words=[]), np.eye(2, 8)),
    ],
    ids=lambda module: type(module).__name__,
)
def test_a_model_of_whole_words_is_refused_by_its_kind(module):
    modules = [module] if isinstance(module, BoW) else [module, Pooling(8)]
    with pytest.raises(ModelError, match="token"):
        load_encoder(SentenceTransformer(modules=modules, device="cpu"))


# --- the model is left alone


def training_flags(model: SentenceTransformer) -> list[bool]:
    return [module.training for module in model.modules()]


class Stumbling(torch.nn.Module):
    """The last module of a model that breaks while it computes."""

    def forward(self, features: dict) -> dict:
        """Fail, but only in the middle of a batch of texts."""
        raise FloatingPointError(f"broken with {features['input_ids'].shape[0]} texts")


def test_dropout_is_off_while_encoding_and_on_again_afterwards(model):
    expected = model.encode(TEXTS)
    model.train()
    model[0].model.encoder.layer[1].eval()
    before = training_flags(model)
    assert True in before
    assert False in before
    vectors = load_encoder(model).encode(TEXTS)
    np.testing.assert_allclose(vectors, expected, **CLOSE)
    assert training_flags(model) == before
    features = model.preprocess(TEXTS)
    dropped = model(features)["sentence_embedding"].detach().numpy()
    assert np.abs(dropped - expected).max() > 0.01


def test_dropout_is_on_again_after_an_error(bert):
    model = architectures.stacked(bert)
    encoder = load_encoder(model)
    model.append(Stumbling())
    model.train()
    before = training_flags(model)
    with pytest.raises(FloatingPointError, match="broken with 1 texts"):
        encoder.encode(["the river"])
    assert training_flags(model) == before
    assert all(before)


def test_the_users_model_and_its_outputs_are_left_as_they_were(bert):
    model = architectures.stacked(bert, prompts=PROMPTS, default_prompt_name="query", truncate_dim=20)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    expected = model.encode(TEXTS)
    settings = (copy.deepcopy(model.prompts), model.default_prompt_name, model.truncate_dim)
    encoder = load_encoder(model, prompt="mend: ", token_budget=16)
    encoder.encode([*TEXTS, "the river"])
    assert encoder.identity.prompt == "mend: "
    assert np.array_equal(model.encode(TEXTS), expected)
    assert (model.prompts, model.default_prompt_name, model.truncate_dim) == settings
    assert model.max_seq_length == architectures.MAX_LENGTH
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())


def test_padding_and_truncation_of_the_users_tokenizer_are_left_as_they_were(bert):
    fresh = architectures.stacked(bert)
    used = architectures.stacked(bert)
    used.tokenizer.backend_tokenizer.enable_truncation(11, stride=2)
    used.tokenizer.backend_tokenizer.enable_padding(direction="left", length=40)
    for model in (fresh, used):
        backend = model.tokenizer.backend_tokenizer
        before = (backend.padding, backend.truncation, backend.to_str())
        load_encoder(model, prompt="the song: ").encode(TEXTS)
        assert (backend.padding, backend.truncation, backend.to_str()) == before


def test_the_padding_of_a_static_models_tokenizer_is_left_as_it_was():
    model = architectures.static_model()
    before = model.tokenizer.to_str()
    load_encoder(model).encode(TEXTS)
    assert model.tokenizer.to_str() == before


# --- identity


def test_the_identity_names_neither_place_nor_batch_nor_history(bert, tmp_path):
    folder = architectures.saved(architectures.stacked(bert, dense=12, normalize=True), tmp_path / "model")
    shutil.copytree(folder, tmp_path / "elsewhere" / "copy")
    encoder = load_encoder(folder, device="cpu")
    encoder.encode(TEXTS)
    in_memory = SentenceTransformer(str(folder), device="cpu:0")
    in_memory.encode(TEXTS)
    in_memory.train()
    again = architectures.saved(in_memory, tmp_path / "again")
    others = [
        load_encoder(folder, device="cpu"),
        load_encoder(tmp_path / "elsewhere" / "copy", device="cpu"),
        load_encoder(folder, device="cpu", token_budget=3),
        load_encoder(in_memory),
        load_encoder(again, device="cpu"),
    ]
    assert [other.identity for other in others] == [encoder.identity] * len(others)


def _one_weight(model: SentenceTransformer) -> None:
    with torch.no_grad():
        model[0].model.encoder.layer[1].output.dense.weight[3, 5] += 1e-6


def _another_normalizer(model: SentenceTransformer) -> None:
    model.tokenizer.backend_tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False)


def _another_entry(model: SentenceTransformer) -> None:
    model.tokenizer.add_tokens(["zebra"])


CHANGES = {
    "one weight": _one_weight,
    "normalizer": _another_normalizer,
    "vocabulary": _another_entry,
    "pooling": lambda model: setattr(model[1], "pooling_mode", "cls"),
    "prompt pooling": lambda model: setattr(model[1], "include_prompt", False),
    "width": lambda model: setattr(model, "truncate_dim", 8),
    "longest text": lambda model: setattr(model, "max_seq_length", 50),
    "precision": lambda model: model.to(torch.bfloat16),
    "activation of the dense layer": lambda model: setattr(model[2], "activation_function", torch.nn.ReLU()),
    "activation of the backbone": lambda model: setattr(model[0].model.config, "hidden_act", "relu"),
    "heads": lambda model: setattr(model[0].model.config, "num_attention_heads", 2),
    "a module less": lambda model: model.pop(3),
    "default prompt": lambda model: model.prompts.update(query="bird: "),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=list(CHANGES))
def test_the_identity_changes_with_whatever_changes_the_vectors(bert, change):
    options = {"dense": 12, "normalize": True, "prompts": PROMPTS, "default_prompt_name": "query"}
    before = load_encoder(architectures.stacked(bert, **options)).identity
    model = architectures.stacked(bert, **options)
    change(model)
    assert load_encoder(model).identity != before


def test_the_identity_changes_with_the_prompt_that_is_asked_for(model):
    prompts = ["", "the song: ", "the song:"]
    assert len({load_encoder(model, prompt=prompt).identity for prompt in prompts}) == len(prompts)


@pytest.mark.parametrize("cached", [True, False])
def test_the_identity_does_not_depend_on_the_cache_of_a_decoder(bert, cached):
    """Versions of sentence-transformers set it differently."""
    model = architectures.stacked(bert)
    before = load_encoder(model).identity
    model[0].model.config.use_cache = cached
    assert load_encoder(model).identity == before


def test_the_identity_sees_the_modules_inside_a_router(bert):
    identities = {
        load_encoder(
            SentenceTransformer(
                modules=[
                    Router.for_query_document(
                        query_modules=list(architectures.stacked(bert).children()),
                        document_modules=list(architectures.stacked(bert, pooling=pooling).children()),
                        default_route="document",
                    )
                ],
                device="cpu",
            )
        ).identity
        for pooling in ("mean", "cls")
    }
    assert len(identities) == 2
