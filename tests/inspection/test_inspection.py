"""A look inside models, prompted ones too, against plain passes."""

from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import torch
import transformers

import prompted_loading
import tiny
import tiny_architectures as architectures
import tiny_decoders
from naming import naming
from stickytoken import load_encoder
from stickytoken.errors import EncodingError, ModelError
from stickytoken.inspection import inspector_of
from stickytoken.inspection.attention import using_plain_attention
from stickytoken.language_models.prompts import Prompt

TEXT = "the river sings near the old bridge"
COPIES = 4
# Architectures that are always tried: with absolute, relative and rotary positions.
FEW = ("bert", "t5", "gemma2")


@pytest.fixture(scope="module")
def backbones(tmp_path_factory):
    root = tmp_path_factory.mktemp("inspected")
    return {
        architecture.name: architecture.save(root / architecture.name)
        for architecture in architectures.ARCHITECTURES
    }


def look(encoder):
    """Look at content ids of the text with copies of its first token behind it, their labels 0 and 1."""
    ids = encoder.tokenize([TEXT])[0].ids
    content = (*ids, *ids[:1] * COPIES)
    labels = [0] * len(ids) + [1] * COPIES
    return content, labels, inspector_of(encoder).look([content], [labels], 2)[0]


def assert_attention(inside, weights, labels):
    """Compare with the mean of a model's own weights, (layers, 1, heads, T, T), over pairs of parts."""
    assert inside.part_of_token.tolist() == labels
    weights = torch.stack(weights)[:, 0].double().numpy()
    labels = np.array(labels)
    for attends in set(labels.tolist()):
        shares = inside.attention[:, :, attends]
        np.testing.assert_allclose(shares.sum(axis=-1), 1, atol=1e-5)
        for receives in range(3):
            mean = weights[:, :, labels == attends][..., labels == receives].sum(axis=-1).mean(axis=-1)
            np.testing.assert_allclose(shares[..., receives], mean, atol=2e-5)


def state_of(model, backbone):
    names = ("_attn_implementation", "output_hidden_states", "output_attentions")
    hooks = [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()]
    return [getattr(backbone.config, name) for name in names], hooks, model.training


@pytest.mark.parametrize(
    "architecture",
    [
        pytest.param(
            architecture, id=architecture.name, marks=[] if architecture.name in FEW else [pytest.mark.slow]
        )
        for architecture in architectures.ARCHITECTURES
    ],
)
def test_attention_and_states_are_those_of_plain_transformers(architecture, backbones):
    pooling = architecture.poolings[-1]
    model = architectures.stacked(backbones[architecture.name], pooling=pooling, normalize=True)
    encoder = load_encoder(model)
    plain = model[0].model
    template = encoder.template
    settings = state_of(model, plain)[0]
    content, labels, _ = look(encoder)  # transformers installs recorders of its own once, for good
    model.train()
    before = state_of(model, plain)
    assert before[0] == settings
    inside = look(encoder)[2]
    assert state_of(model, plain) == before

    plain.eval()
    plain.set_attn_implementation("eager")
    features = encoder.features([content])
    names = {"input_ids", "attention_mask", "token_type_ids"}.intersection(features)
    inputs = {name: features[name] for name in names}
    with torch.no_grad():
        out = plain(**inputs, output_attentions=True, output_hidden_states=True)
    np.testing.assert_allclose(inside.hidden, torch.stack(out.hidden_states)[:, 0].numpy(), atol=2e-5)
    assert_attention(inside, out.attentions, [2] * len(template.before) + labels + [2] * len(template.after))


def test_each_part_of_a_model_gets_its_own_attention_back():
    small = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = transformers.CLIPModel(transformers.CLIPConfig(text_config=small, vision_config=small))
    model.set_attn_implementation({"": "sdpa", "text_config": "eager", "vision_config": "sdpa"})
    configs = model.config, model.config.text_config, model.config.vision_config
    with using_plain_attention(model):
        assert [config._attn_implementation for config in configs] == ["eager"] * 3
    assert [config._attn_implementation for config in configs] == ["sdpa", "eager", "sdpa"]


def test_parts_with_fused_attention_become_plain_in_a_model_with_plain_attention():
    small = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = transformers.CLIPModel(transformers.CLIPConfig(text_config=small, vision_config=small))
    model.set_attn_implementation({"": "eager", "text_config": "sdpa", "vision_config": "eager"})
    configs = model.config, model.config.text_config, model.config.vision_config
    with using_plain_attention(model):
        assert [config._attn_implementation for config in configs] == ["eager"] * 3
    assert [config._attn_implementation for config in configs] == ["eager", "sdpa", "eager"]


class NestedConfig(transformers.PretrainedConfig):
    sub_configs: ClassVar = {"inner_config": transformers.CLIPConfig}
    inner_config: object = None


class NestedModel(transformers.PreTrainedModel):
    config_class = NestedConfig
    _supports_sdpa = True

    def __init__(self, config):
        super().__init__(config)
        self.inner = transformers.CLIPModel(config.inner_config)
        self.post_init()

    @classmethod
    def _can_set_attn_implementation(cls):
        return True


def test_parts_of_parts_get_their_own_attention_back():
    small = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    inner = transformers.CLIPConfig(text_config=small, vision_config=small)
    model = NestedModel(NestedConfig(inner_config=inner))
    configs = model.config, inner, inner.text_config, inner.vision_config
    before = ["sdpa", "sdpa", "eager", "sdpa"]
    for config, implementation in zip(configs, before, strict=True):
        config._attn_implementation = implementation
    with using_plain_attention(model):
        assert [config._attn_implementation for config in configs] == ["eager"] * 4
    assert [config._attn_implementation for config in configs] == before


@pytest.mark.parametrize(
    "pooling", ["mean", "cls", "lasttoken", "weightedmean", "mean_sqrt_len_tokens", "max"]
)
def test_what_parts_supply_is_the_pooled_vector_cut_by_positions(backbones, pooling):
    model = architectures.stacked(backbones["bert"], pooling=pooling, dense=12, normalize=True)
    encoder = load_encoder(model)
    content, _, inside = look(encoder)
    if pooling == "max":  # is no sum, and so has no parts
        assert (inside.pooled_by_part is None, inside.pooled is None) == (True, False)
        return
    states = inside.hidden[-1].astype(float)
    size = len(inside.part_of_token)
    positions = np.arange(1, size + 1)
    weights = {
        "mean": np.full(size, 1 / size),
        "cls": positions == 1,
        "lasttoken": positions == size,
        "weightedmean": positions / positions.sum(),
        "mean_sqrt_len_tokens": np.full(size, size**-0.5),
    }[pooling]
    for label in range(3):
        weights_of_label = weights * (inside.part_of_token == label)
        np.testing.assert_allclose(inside.pooled_by_part[label], weights_of_label @ states, atol=1e-5)
    np.testing.assert_allclose(inside.pooled_by_part.sum(axis=0), inside.pooled, atol=1e-5)
    np.testing.assert_allclose(inside.vector, encoder.encode_ids([content])[0], atol=1e-5)


def test_a_static_model_is_the_mean_of_its_rows():
    encoder = load_encoder(architectures.static_model())
    content, _, inside = look(encoder)
    assert inside.attention is None
    np.testing.assert_allclose(inside.pooled_by_part.sum(axis=0), inside.vector, atol=1e-6)
    copy = inspector_of(encoder).embedding_matrix()[content[-1]]
    np.testing.assert_allclose(inside.pooled_by_part[1], copy * COPIES / len(content), atol=1e-6)


class Decoy(torch.nn.Module):
    """Puts out square matrices whose rows sum to 1, as attention weights do."""

    def forward(self, states):
        rows, size = states.shape[:2]
        return states, torch.full((rows, 4, size, size), 1 / size)


def test_a_square_output_that_is_no_attention_is_not_taken_for_it(backbones):
    model = architectures.stacked(backbones["bert"])
    expected = look(load_encoder(model))[2]
    for layer in model[0].model.encoder.layer:
        layer.decoy = Decoy()
        layer.output.dense.register_forward_hook(lambda _, __, states, decoy=layer.decoy: decoy(states)[0])
    look_at_layer = look(load_encoder(model))[2]
    assert look_at_layer.attention.shape == expected.attention.shape == (2, 4, 3, 3)
    np.testing.assert_allclose(look_at_layer.attention, expected.attention, atol=1e-6)


def encoder_of(name="qwen2", prompt="prompteol", span=None, layer=-1, **options):
    return prompted_loading.encoder_of(prompted_loading.read(prompt, span, layer), name, **options)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in ("qwen2", "falcon", "opt") else [pytest.mark.slow])
        for name in tiny_decoders.DECODERS
    ],
)
def test_attention_and_states_of_a_prompt_are_those_of_plain_transformers(name, caplog):
    encoder = encoder_of(name)
    content, labels, inside = look(encoder)
    assert "attention implementation" not in caplog.text  # nothing is asked of a model that it refuses
    model = encoder.prompted.decoder.model
    prompt = encoder.prompted.prompts[0]
    weighed = name != "falcon"  # stays with its fused kernels, which hold no weights
    if weighed:
        model.set_attn_implementation("eager")
    ids = torch.tensor([prompt.fill(content)])
    options = {"attention_mask": torch.ones_like(ids), "output_hidden_states": True}
    with torch.no_grad():
        out = model(input_ids=ids, output_attentions=weighed, **options)
    hidden = torch.stack(out.hidden_states[: tiny_decoders.LAYERS])[:, 0].numpy()
    if name == "opt":  # its output is narrower than its layers: there is no one table of states
        assert inside.hidden is None
    else:
        np.testing.assert_allclose(inside.hidden[:-1], hidden, atol=2e-5)
        np.testing.assert_allclose(inside.hidden[-1], out.last_hidden_state[0], atol=2e-5)
    if weighed:
        first = len(prompt.before)
        rest = ids.shape[1] - first - len(content)
        assert_attention(inside, out.attentions, [2] * first + labels + [2] * rest)
    else:
        assert inside.attention is None


@pytest.mark.parametrize(
    ("prompt", "span"),
    [("prompteol", (1, 3)), *(pytest.param("ck", span, marks=pytest.mark.slow) for span in (None, (1, 3)))],
)
def test_with_prepending_the_look_gives_the_encoder_s_vector(prompt, span):
    encoder = prompted_loading.encoder_of(prompted_loading.read(prompt, span, 3))
    content, _, inside = look(encoder)
    expected = encoder.encode_ids([content])[0]
    np.testing.assert_allclose(inside.vector, expected, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize(
    ("prompt", "normalize", "layer"), [("prompteol", False, 2), ("metaeol", True, -1), ("echo", True, 2)]
)
def test_the_vector_is_that_of_the_encoder_and_the_sum_of_its_parts(prompt, normalize, layer):
    encoder = encoder_of(prompt=prompt, layer=layer, normalize=normalize)
    content, _, inside = look(encoder)
    expected = encoder.encode_ids([content])[0]
    np.testing.assert_allclose(inside.vector, expected, atol=2e-6 * np.abs(expected).max())
    np.testing.assert_allclose(inside.pooled_by_part.sum(axis=0), inside.pooled, atol=1e-6)
    read = tiny_decoders.LAYERS if layer == -1 else layer
    assert (len(inside.hidden), len(inside.attention)) == (read + 1, read)


@pytest.mark.slow
def test_several_prompts_are_one_input():
    encoder = encoder_of(prompt="metaeol")
    inside = look(encoder)[2]
    prompts = [Prompt("own", (template,)) for template in encoder.reading.prompt.templates]
    alone = [look(encoder_of(prompt=prompt))[2] for prompt in prompts]
    assert inside.part_of_token.tolist() == [
        label for inspected in alone for label in inspected.part_of_token.tolist()
    ]
    states = np.concatenate([inspected.hidden for inspected in alone], axis=1)
    np.testing.assert_allclose(inside.hidden, states, atol=2e-5)
    received = np.stack([inspected.attention for inspected in alone])
    sizes = np.array([np.bincount(inspected.part_of_token) for inspected in alone])
    for label in range(3):
        mean = np.average(received[:, :, :, label], axis=0, weights=sizes[:, label])
        np.testing.assert_allclose(inside.attention[:, :, label], mean, atol=1e-5)
    np.testing.assert_allclose(
        inside.pooled, np.mean([inspected.pooled for inspected in alone], axis=0), atol=1e-5
    )


def test_an_echo_has_its_text_twice_and_pools_the_second():
    encoder = encoder_of(prompt="echo")
    content, _, inside = look(encoder)
    ids = np.array(encoder.prompted.prompts[0].fill(content))
    assert ids[inside.part_of_token == 1].tolist() == [content[-1]] * 2 * COPIES
    assert ids[inside.part_of_token == 0].tolist() == [*content[:-COPIES]] * 2
    second = np.flatnonzero(inside.part_of_token != 2)[len(content) :]
    states = inside.hidden[-1].astype(float)
    np.testing.assert_allclose(inside.pooled, states[second].mean(axis=0), atol=1e-6)
    copied = states[second[-COPIES:]].sum(axis=0) / len(content)
    np.testing.assert_allclose(inside.pooled_by_part[1], copied, atol=1e-6)


@pytest.mark.parametrize("prompted", [False, True])
def test_batches_and_order_change_nothing(prompted, bert_folder):
    encoder = encoder_of(span=(1, 3)) if prompted else load_encoder(bert_folder, device="cpu")
    contents = [text.ids for text in encoder.tokenize(tiny.sentences(9))]
    labels = [[0] * len(content) for content in contents]
    inspector = inspector_of(encoder)
    together = inspector.look(contents, labels, 1)
    inspector.most_weights = 1
    one_by_one = inspector.look(contents[::-1], labels[::-1], 1)[::-1]
    for first, right in zip(together, one_by_one, strict=True):
        for name in ("hidden", "attention", "pooled_by_part", "vector"):
            np.testing.assert_allclose(getattr(first, name), getattr(right, name), atol=1e-5)


def test_the_model_is_left_as_it_was_even_after_an_error(monkeypatch):
    encoder = encoder_of("qwen2", span=(1, 3))
    model = encoder.prompted.decoder.model
    inspector = inspector_of(encoder)
    content, labels, _ = look(encoder)  # transformers installs recorders of its own once
    model.train()
    before = state_of(model, model)

    def broken(*args, **kwargs):
        raise RuntimeError("broken")

    monkeypatch.setattr(encoder.prompted.decoder.layers[2], "forward", broken)
    with pytest.raises(RuntimeError, match="broken"):
        inspector.look([content], [labels], 2)
    assert state_of(model, model) == before


@pytest.mark.parametrize("prompted", [False, True])
def test_bad_input_is_refused(backbones, prompted):
    encoder = encoder_of() if prompted else load_encoder(architectures.stacked(backbones["bert"]))
    inspector = inspector_of(encoder)
    with pytest.raises(EncodingError, match=naming(encoder.max_length)):
        inspector.look([[20] * 600], [[0] * 600], 1)
    with pytest.raises(EncodingError, match=naming(99999)):
        inspector.look([[99999]], [[0]], 1)
    with torch.no_grad():
        inspector._embeddings.weight[20] = float("nan")
    with pytest.raises(EncodingError, match=naming(encoder.name)):
        inspector.look([[20, 21]], [[0, 0]], 1)


def test_an_encoder_of_another_kind_is_refused():
    with pytest.raises(ModelError, match=naming("remote", "SimpleNamespace")):
        inspector_of(SimpleNamespace(name="remote"))
