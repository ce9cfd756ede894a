"""A SentenceTransformer as an encoder: refusals, identity, and how it leaves the model."""

import copy
import shutil
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize
from sentence_transformers.sentence_transformer.modules import BoW, Pooling, WordEmbeddings
from sentence_transformers.sentence_transformer.modules.tokenizer import WhitespaceTokenizer
from tokenizers import normalizers

import tiny
import tiny_architectures as architectures
from naming import naming
from stickytoken import load_encoder
from stickytoken.encoders.compute import computing, weights_fingerprint
from stickytoken.encoders.roles import Role, in_role
from stickytoken.errors import EncodingError, ModelError, StickyTokenError
from stickytoken.inspection import inspector_of
from stickytoken.machine import Precision

CLOSE = {"rtol": 0, "atol": 1e-5}
TEXTS = tiny.sentences(12)
PROMPTS = {"query": "the song: ", "passage": ""}


def test_a_token_beyond_the_embedding_matrix_is_refused_by_its_text(model):
    size = len(model.tokenizer)
    model.tokenizer.add_tokens(["zebra"])
    encoder = load_encoder(model)
    with pytest.raises(EncodingError, match=naming("'the zebra'", f"id {size}", f"below {size}")):
        encoder.encode(["the river", "the zebra"])
    with pytest.raises(EncodingError, match=naming(f"id {size}", f"below {size}")):
        encoder.encode_ids([[size]])


def test_half_a_surrogate_pair_is_refused_by_its_text(model):
    with pytest.raises(StickyTokenError, match="ud800"):
        load_encoder(model).encode(["the river", "the \ud800 stone"])


@pytest.mark.parametrize(
    ("modules", "named"),
    [
        ([torch.nn.Identity()], "model"),
        ([BoW(vocab=["river", "stone"])], "WhitespaceTokenizer"),
        (
            [WordEmbeddings(WhitespaceTokenizer(vocab=["river"], stop_words=[]), np.eye(1, 8)), Pooling(8)],
            "WhitespaceTokenizer",
        ),
    ],
    ids=["nothing", "bag of words", "word embeddings"],
)
def test_a_model_without_token_ids_is_refused(modules, named):
    with pytest.raises(ModelError, match=naming(named)):
        load_encoder(SentenceTransformer(modules=modules, device="cpu"))


def training_flags(model):
    return [module.training for module in model.modules()]


class Stumbling(torch.nn.Module):
    def forward(self, features):
        raise FloatingPointError(f"broken with {features['input_ids'].shape[0]} texts")


def test_dropout_is_off_while_encoding_and_on_again_afterwards(model):
    expected = model.encode(TEXTS)
    encoder = load_encoder(model)
    model.train()
    model[0].model.encoder.layer[1].eval()
    before = training_flags(model)
    np.testing.assert_allclose(encoder.encode(TEXTS), expected, **CLOSE)
    assert training_flags(model) == before
    dropped = model(model.preprocess(TEXTS))["sentence_embedding"].detach().numpy()
    assert np.abs(dropped - expected).max() > 0.01

    model.append(Stumbling())
    before = training_flags(model)
    with pytest.raises(ModelError, match=naming("FloatingPointError")):
        encoder.encode(["the river"])
    assert training_flags(model) == before


def test_the_users_model_and_its_outputs_are_left_as_they_were(backbone):
    model = architectures.stacked(
        backbone("bert"), prompts=PROMPTS, default_prompt_name="query", truncate_dim=20
    )
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    expected = model.encode(TEXTS)
    settings = (copy.deepcopy(model.prompts), model.default_prompt_name, model.truncate_dim)
    load_encoder(model, prompt="mend: ", token_budget=16).encode([*TEXTS, "the river"])
    assert np.array_equal(model.encode(TEXTS), expected)
    assert (model.prompts, model.default_prompt_name, model.truncate_dim) == settings
    assert model.max_seq_length == architectures.MAX_LENGTH
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())


def test_padding_and_truncation_of_the_users_tokenizer_are_left_as_they_were(backbone):
    fresh, used = (architectures.stacked(backbone("bert")) for _ in range(2))
    used.tokenizer.backend_tokenizer.enable_truncation(11, stride=2)
    used.tokenizer.backend_tokenizer.enable_padding(direction="left", length=40)
    static = architectures.static_model()
    for model, backend in (
        (fresh, fresh.tokenizer.backend_tokenizer),
        (used, used.tokenizer.backend_tokenizer),
        (static, static.tokenizer),
    ):
        before = (backend.padding, backend.truncation, backend.to_str())
        load_encoder(model, prompt="the song: ").encode(TEXTS)
        assert (backend.padding, backend.truncation, backend.to_str()) == before
        if model is not static:  # which has no layers
            load_encoder(model, layer=1).encode(TEXTS)
            assert (backend.padding, backend.truncation, backend.to_str()) == before


def test_the_identity_names_neither_place_nor_batch_nor_history(backbone, tmp_path):
    stack = architectures.stacked(backbone("bert"), dense=12, normalize=True)
    folder = architectures.saved(stack, tmp_path / "model")
    shutil.copytree(folder, tmp_path / "copy")
    encoder = load_encoder(str(folder), device="cpu")
    assert (encoder.name, encoder.device) == (str(folder), "cpu")
    encoder.encode(TEXTS)
    in_memory = SentenceTransformer(str(folder), device="cpu:0")
    in_memory.encode(TEXTS)
    in_memory.train()
    others = [
        load_encoder(tmp_path / "copy", device="cpu"),
        load_encoder(folder, device="cpu", token_budget=3),
        load_encoder(in_memory),
        load_encoder(architectures.saved(in_memory, tmp_path / "again"), device="cpu"),
    ]
    for cached in (True, False):  # versions of sentence-transformers set it differently
        in_memory[0].model.config.use_cache = cached
        others.append(load_encoder(in_memory))
    assert {other.identify() for other in others} == {encoder.identify()}


def _one_weight(model):
    with torch.no_grad():
        model[0].model.encoder.layer[1].output.dense.weight[3, 5] += 1e-6


CHANGES = {
    "one weight": _one_weight,
    "normalizer": lambda model: setattr(
        model.tokenizer.backend_tokenizer, "normalizer", normalizers.BertNormalizer(lowercase=False)
    ),
    "vocabulary": lambda model: model.tokenizer.add_tokens(["zebra"]),
    "pooling": lambda model: setattr(model[1], "pooling_mode", "cls"),
    "prompt pooling": lambda model: setattr(model[1], "include_prompt", False),
    "width": lambda model: setattr(model, "truncate_dim", 8),
    "longest text": lambda model: setattr(model, "max_seq_length", 50),
    "precision": lambda model: model.to(torch.bfloat16),
    "activation of the dense layer": lambda model: setattr(model[2], "activation_function", torch.nn.ReLU()),
    "activation of the backbone": lambda model: setattr(model[0].model.config, "hidden_act", "relu"),
    "a module less": lambda model: model.pop(3),
    "default prompt": lambda model: model.prompts.update(query="bird: "),
    "blank of the prompt": lambda model: model.prompts.update(query="the song:"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=list(CHANGES))
def test_the_identity_changes_with_whatever_changes_the_vectors(backbone, change):
    options = {"dense": 12, "normalize": True, "prompts": PROMPTS, "default_prompt_name": "query"}
    model = architectures.stacked(backbone("bert"), **options)
    before = load_encoder(model).identify()
    change(model)
    assert load_encoder(model).identify() != before


def test_the_identity_sees_the_modules_inside_a_router(backbone):
    mean, cls = (architectures.stacked(backbone("bert"), pooling=pooling) for pooling in ("mean", "cls"))
    identities = [load_encoder(architectures.router(mean, document)).identify() for document in (mean, cls)]
    assert identities[0] != identities[1]


# --- with CLS pooling, the last layer works on the first token alone

FEW = ["the old river sings", "a bird", "stone under a tree near the bridge", "river"]


def seen_by_the_last_layer(model, encoder):
    sizes_seen = set()
    feed_forward = model[0].model.encoder.layer[-1].intermediate
    handle = feed_forward.register_forward_pre_hook(lambda _, inputs: sizes_seen.add(inputs[0].shape[1]))
    encoder.encode(FEW)
    handle.remove()
    return sizes_seen


@pytest.mark.parametrize("name", ["bert", "mpnet"])
def test_vectors_stay_and_one_token_reaches_the_last_feed_forward_part(name, backbone):
    model = architectures.stacked(backbone(name), pooling="cls", normalize=True)
    torch.manual_seed(0)
    model.append(Dense(model.get_embedding_dimension(), 8))
    encoder = load_encoder(model)
    expected = model.encode(FEW)
    np.testing.assert_allclose(encoder.encode(FEW), expected, atol=2e-6)
    assert seen_by_the_last_layer(model, encoder) == {1}
    np.testing.assert_allclose(model.encode(FEW), expected, atol=0)
    assert not any("forward" in vars(module) for module in model.modules())
    with torch.no_grad():
        model[0].model.encoder.layer[-1].output.dense.weight.mul_(2)
    np.testing.assert_allclose(encoder.encode(FEW), model.encode(FEW), atol=2e-6)


def test_a_last_layer_that_mixes_tokens_after_its_attention_is_noticed(backbone):
    model = architectures.stacked(backbone("bert"), pooling="cls")

    class Mixing(torch.nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, states):
            return self.inner(states + states.mean(dim=1, keepdim=True))

    layer = model[0].model.encoder.layer[-1]
    layer.intermediate = Mixing(layer.intermediate)
    encoder = load_encoder(model)
    np.testing.assert_allclose(encoder.encode(FEW), model.encode(FEW, batch_size=1), atol=2e-6)
    assert 1 not in seen_by_the_last_layer(model, encoder)


def test_a_forward_that_the_user_replaced_is_left_alone(backbone):
    model = architectures.stacked(backbone("bert"), pooling="cls")
    attention = model[0].model.encoder.layer[-1].attention
    replaced_forward = attention.forward = attention.forward
    assert 1 not in seen_by_the_last_layer(model, load_encoder(model))
    assert vars(attention)["forward"] is replaced_forward


def test_a_pipeline_changed_in_place_is_read_with_the_next_identity(model):
    encoder = load_encoder(model)
    before = encoder.identify()
    model.tokenizer.backend_tokenizer.normalizer = normalizers.Replace("river", "stone")
    again = load_encoder(model)
    assert encoder.identify() == again.identify() != before
    assert encoder.content_ids(["river"]) == again.content_ids(["river"]) == again.content_ids(["stone"])


def test_longest_input_prompt_and_width_are_followed(backbone):
    model = architectures.stacked(backbone("bert"), prompts={"query": "the song: "})
    encoder = load_encoder(model)
    fixed = load_encoder(model, prompt="mend: ")
    identities = [encoder.identify()]
    changes = [
        lambda: setattr(model, "max_seq_length", 20),
        lambda: setattr(model, "default_prompt_name", "query"),
        lambda: model.prompts.update(query="a bird: "),
        lambda: setattr(model, "truncate_dim", 8),
    ]
    for change in changes:
        change()
        identities.append(encoder.identify())
        assert identities[-1] == load_encoder(model).identify()
        np.testing.assert_allclose(encoder.encode(TEXTS), model.encode(TEXTS), rtol=0, atol=1e-5)
    assert len(set(identities)) == 5
    assert (encoder.max_length, encoder.prompt, encoder.dimension) == (20, "a bird: ", 8)
    assert (fixed.identify().prompt, fixed.identify().dimension) == ("mend: ", 8)


POOLING_CHANGES = {
    "another mode": lambda model: setattr(model[1], "pooling_mode", "weightedmean"),
    "several modes": lambda model: setattr(model[1], "pooling_mode", ("cls", "mean")),
    "no prompt": lambda model: model.set_pooling_include_prompt(False),
    "another module": lambda model: model.__setitem__(1, Pooling(32, pooling_mode="max")),
    "a module more": lambda model: model.append(Normalize()),
}


@pytest.mark.parametrize("change", POOLING_CHANGES.values(), ids=list(POOLING_CHANGES))
@pytest.mark.parametrize(("name", "pooling"), [("bert", "cls"), ("qwen2", "lasttoken"), ("bert", "mean")])
@pytest.mark.parametrize("role", [None, Role.QUERY])
def test_changes_of_the_pooling_are_followed(name, pooling, role, change, backbone):
    model = architectures.stacked(
        backbone(name), pooling=pooling, prompts={"query": "the song: "}, default_prompt_name="query"
    )
    encoder = in_role(load_encoder(model), role)
    # Copies behind the same text, so that a common prefix is computed only once.
    texts = [f"{text} {' '.join([word] * count)}" for text in TEXTS[:3] for word in "ab" for count in (4, 8)]
    before = encoder.identify()
    np.testing.assert_allclose(encoder.encode(texts), model.encode(texts, batch_size=1), **CLOSE)
    change(model)
    np.testing.assert_allclose(encoder.encode(texts), model.encode(texts, batch_size=1), **CLOSE)
    assert encoder.dimension == len(model.encode("river"))
    assert encoder.identify() == in_role(load_encoder(model), role).identify() != before


USES = {
    "encode": lambda state: state.encoder.encode(TEXTS[:2]),
    "a lower precision": lambda state: state.lower.encode(TEXTS[:2]),
    "identity": lambda state: state.encoder.identify(),
    "look": lambda state: state.inspector.look([(5, 6)], [(0, 1)], 2),
    "the backbone alone": lambda state: computing(state.encoder.model[0].model).__enter__(),
}


@pytest.mark.parametrize("use", list(USES))
def test_everything_that_uses_a_model_waits_for_the_other_thread(use, model):
    encoder = load_encoder(model)
    state = SimpleNamespace(
        encoder=encoder, lower=encoder.at(Precision.BFLOAT16), inspector=inspector_of(encoder)
    )
    started = threading.Event()
    done = threading.Event()

    def other():
        started.set()
        USES[use](state)
        done.set()

    with computing(model):
        thread = threading.Thread(target=other, daemon=True)
        thread.start()
        started.wait()
        assert not done.wait(0.3)
    thread.join(60)
    assert done.is_set()


def test_torchs_flag_of_onednn_is_left_as_it_was_by_overlapping_computations(backbone):
    first, second = (architectures.stacked(backbone("bert")) for _ in range(2))
    before = torch.backends.mkldnn.enabled
    inside = threading.Event()
    leave = threading.Event()

    def longer():
        with computing(second):
            inside.set()
            leave.wait()

    thread = threading.Thread(target=longer)
    with computing(first):
        thread.start()
        inside.wait()
    assert torch.backends.mkldnn.enabled is False
    leave.set()
    thread.join()
    assert torch.backends.mkldnn.enabled == before


@pytest.mark.filterwarnings("ignore:.*quantized tensor creation functions")
@pytest.mark.parametrize("zero_points", [(0, 1), ([0, 0], [0, 1]), ([0.0, 0.0], [0.0, 1.0])])
def test_quantized_weights_that_differ_only_in_zero_points_have_different_fingerprints(zero_points):
    integers = torch.tensor([[1.0, 2.0], [3.0, 4.0]])

    def quantize(zero_point):
        if isinstance(zero_point, int):
            return torch.quantize_per_tensor((integers - zero_point) * 0.5, 0.5, zero_point, torch.quint8)
        of_channels = torch.tensor(zero_point)
        values = (integers - of_channels[:, None]) * 0.5
        return torch.quantize_per_channel(values, torch.tensor([0.5, 0.5]), of_channels, 0, torch.quint8)

    def fingerprint(weight):
        model = torch.nn.Module()
        model.register_buffer("weight", weight)
        return weights_fingerprint(model)

    one, other = map(quantize, zero_points)
    assert torch.equal(one.int_repr(), other.int_repr())
    assert fingerprint(one) == fingerprint(quantize(zero_points[0]))
    assert fingerprint(one) != fingerprint(other)
