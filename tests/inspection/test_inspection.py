"""A look inside models: hidden states, attention, pooled parts, against the models themselves."""

import weakref

import numpy as np
import pytest
import torch

import tiny_architectures as architectures
from inspection_checks import assert_batches_and_order_change_nothing
from stickytoken.encoders import load_encoder
from stickytoken.errors import EncodingError, ModelError
from stickytoken.inspection import inspector_of
from stickytoken.inspection._attention import AttentionCapture
from stickytoken.inspection.module_embedding import backbone_of

TEXT = "the river sings near the old bridge"
COPIES = 4


@pytest.fixture(scope="module")
def backbones(tmp_path_factory):
    """A saved backbone of each architecture."""
    root = tmp_path_factory.mktemp("inspected")
    return {each.name: each.save(root / each.name) for each in architectures.ARCHITECTURES}


def with_copies(encoder):
    """Content ids of the text and copies of its first token behind it, with their labels."""
    ids = encoder.tokenize([TEXT])[0].ids
    return (*ids, *ids[:1] * COPIES), [0] * len(ids) + [1] * COPIES


def model_input(encoder, content):
    """What transformers itself is called with."""
    features = encoder.features([content])
    names = ("input_ids", "attention_mask", "token_type_ids")
    return {name: features[name] for name in names if name in features}


def settings_of(model):
    """What a look might leave changed."""
    config = backbone_of(model).config
    names = ("_attn_implementation", "output_hidden_states", "output_attentions")
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]
    return [getattr(config, name) for name in names], hooks, model.training


@pytest.mark.parametrize("architecture", architectures.ARCHITECTURES, ids=lambda each: each.name)
def test_attention_and_states_are_those_of_plain_transformers(architecture, backbones):
    pooling = architecture.poolings[-1]
    model = architectures.stacked(backbones[architecture.name], pooling=pooling, normalize=True)
    encoder = load_encoder(model)
    content, labels = with_copies(encoder)
    plain, template = backbone_of(model), encoder.template
    # transformers installs recorders of its own, for good, when a model is first asked for its states.
    with torch.no_grad():
        plain(**model_input(encoder, content), output_hidden_states=True)
    model.train()
    before = settings_of(model)
    inside = inspector_of(encoder).look([content], [labels], 2)[0]
    assert settings_of(model) == before

    plain.eval()
    plain.set_attn_implementation("eager")
    with torch.no_grad():
        out = plain(**model_input(encoder, content), output_attentions=True, output_hidden_states=True)
    hidden = torch.stack(out.hidden_states)[:, 0].numpy()
    np.testing.assert_allclose(inside.hidden, hidden, atol=2e-5)
    expected = [2] * len(template.before) + labels + [2] * len(template.after)
    assert inside.labels.tolist() == expected
    weights = torch.stack(out.attentions)[:, 0].double().numpy()
    for attends in set(expected):
        rows = np.array(expected) == attends
        shares = inside.attention[:, :, attends]
        np.testing.assert_allclose(shares.sum(axis=-1), 1, atol=1e-5)
        for receives in range(3):
            columns = np.array(expected) == receives
            mean = weights[:, :, rows][..., columns].sum(axis=-1).mean(axis=-1)
            np.testing.assert_allclose(shares[..., receives], mean, atol=2e-5)


@pytest.mark.parametrize("pooling", ["mean", "cls", "lasttoken", "weightedmean", "mean_sqrt_len_tokens"])
def test_what_parts_supply_is_the_pooled_vector_cut_by_positions(backbones, pooling):
    model = architectures.stacked(backbones["bert"], pooling=pooling, dense=12, normalize=True)
    encoder = load_encoder(model)
    content, labels = with_copies(encoder)
    inside = inspector_of(encoder).look([content], [labels], 2)[0]
    states, size = inside.hidden[-1].astype(float), len(inside.labels)
    places = np.arange(1, size + 1)
    weights = {
        "mean": np.full(size, 1 / size),
        "cls": places == 1,
        "lasttoken": places == size,
        "weightedmean": places / places.sum(),
        "mean_sqrt_len_tokens": np.full(size, size**-0.5),
    }[pooling]
    for part in range(3):
        kept = weights * (inside.labels == part)
        np.testing.assert_allclose(inside.supplied[part], kept @ states, atol=1e-5)
    np.testing.assert_allclose(inside.supplied.sum(axis=0), inside.pooled, atol=1e-5)
    np.testing.assert_allclose(inside.vector, encoder.encode_ids([content])[0], atol=1e-5)


def test_a_pooling_that_is_no_sum_supplies_nothing(backbones):
    encoder = load_encoder(architectures.stacked(backbones["bert"], pooling="max"))
    content, labels = with_copies(encoder)
    inside = inspector_of(encoder).look([content], [labels], 2)[0]
    assert inside.supplied is None
    assert inside.pooled is not None


def test_a_static_model_is_the_mean_of_its_rows():
    model = architectures.static_model()
    encoder = load_encoder(model)
    content, labels = with_copies(encoder)
    inspector = inspector_of(encoder)
    inside = inspector.look([content], [labels], 2)[0]
    assert not inspector.has_layers
    assert inside.attention is None
    np.testing.assert_allclose(inside.supplied.sum(axis=0), inside.vector, atol=1e-6)
    copy = inspector.embedding_matrix()[content[-1]]
    np.testing.assert_allclose(inside.supplied[1], copy * COPIES / len(content), atol=1e-6)


def test_batches_and_order_change_nothing(backbones):
    assert_batches_and_order_change_nothing(load_encoder(architectures.stacked(backbones["bert"])))


def test_weights_of_one_layer_are_held_at_a_time(backbones, monkeypatch):
    """When a layer's weights are taken, those of the layers before are gone."""
    encoder = load_encoder(architectures.stacked(backbones["bert"]))
    ids = (encoder.tokenize([TEXT])[0].ids * 20)[:90]
    taken, alive, reduce = [], [], AttentionCapture.hook

    def watched(self, module, inputs, output):
        before = len(self.layers)
        reduce(self, module, inputs, output)
        if len(self.layers) > before:
            taken.append(weakref.ref(output[self.sources[module]]))
            alive.append(sum(reference() is not None for reference in taken))

    monkeypatch.setattr(AttentionCapture, "hook", watched)
    inside = inspector_of(encoder).look([ids], [[0] * len(ids)], 1)[0]
    assert alive == [1, 1]
    assert inside.attention.shape == (2, 4, 2, 2)


class Decoy(torch.nn.Module):
    """Puts out square matrices whose rows sum to 1, as attention weights do, and hands the states on."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, states, *arguments, **options):
        found = self.inner(states, *arguments, **options)
        rows, size = states.shape[:2]
        return self.mix(found, torch.full((rows, 4, size, size), 1 / size))

    def mix(self, found, square):
        mixed = self.mixer(found, square)
        return mixed[0]


class Mixer(torch.nn.Module):
    def forward(self, found, square):
        return found, square


def test_a_square_output_that_is_no_attention_is_not_taken_for_it(backbones):
    model = architectures.stacked(backbones["bert"])
    content, labels = with_copies(load_encoder(model))
    expected = inspector_of(load_encoder(model)).look([content], [labels], 2)[0]
    for layer in model[0].model.encoder.layer:
        layer.output.dense = Decoy(layer.output.dense)
        layer.output.dense.mixer = Mixer()
    encoder = load_encoder(model)
    seen = []
    hook = (
        model[0]
        .model.encoder.layer[0]
        .output.dense.mixer.register_forward_hook(lambda module, inputs, output: seen.append(output[1]))
    )
    found = inspector_of(encoder).look([content], [labels], 2)[0]
    hook.remove()
    assert all((square.sum(-1) - 1).abs().max() < 1e-6 for square in seen)
    assert seen
    assert found.attention.shape == expected.attention.shape == (2, 4, 3, 3)
    np.testing.assert_allclose(found.attention, expected.attention, atol=1e-6)


def test_a_model_that_reports_no_attention_has_none(backbones, monkeypatch):
    model = architectures.stacked(backbones["bert"])
    forward = type(backbone_of(model)).forward

    def silent(self, *arguments, **options):
        found = forward(self, *arguments, **options)
        found.attentions = None
        return found

    monkeypatch.setattr(type(backbone_of(model)), "forward", silent)
    content, labels = with_copies(load_encoder(model))
    assert inspector_of(load_encoder(model)).look([content], [labels], 2)[0].attention is None


def test_bad_input_is_refused(backbones):
    encoder = load_encoder(architectures.stacked(backbones["bert"]))
    inspector = inspector_of(encoder)
    with pytest.raises(EncodingError, match="has 102 tokens, the model reads 96"):
        inspector.look([[20] * 100], [[0] * 100], 1)
    with torch.no_grad():
        inspector.encoder.model[0].model.embeddings.word_embeddings.weight[20] = float("nan")
    with pytest.raises(EncodingError, match="is not finite"):
        inspector.look([[20, 21]], [[0, 0]], 1)


def test_an_encoder_of_another_kind_is_refused():
    class Remote:
        name = "remote"

    with pytest.raises(ModelError, match="remote is a Remote, which returns vectors and does not show"):
        inspector_of(Remote())
