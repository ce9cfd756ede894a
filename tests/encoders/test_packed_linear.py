"""Linear layers with packed weights against the layers themselves, and when they are used."""

import json
import logging
from functools import partial

import numpy as np
import pytest
import torch
import transformers

from stickytoken import load_encoder
from stickytoken.encoders.compute.linear import PackedLinears
from stickytoken.errors import StickyTokenWarning
from stickytoken.machine import Precision, cache_folder, keep, recalled

TEXTS = ["the old river sings", "a bird", "stone under a tree"]
SHAPES = [(1, 24), (64, 24), (65, 24), (2, 3, 5, 24), (0, 24)]


def linear(*, bias=True):
    torch.manual_seed(0)
    return torch.nn.Linear(24, 40, bias=bias)


def bert_block(activation="gelu"):
    config = transformers.BertConfig(hidden_size=24, intermediate_size=40, hidden_act=activation)
    torch.manual_seed(0)
    return transformers.models.bert.modeling_bert.BertIntermediate(config)


def gated(kind="Qwen2", **changes):
    settings = {"hidden_size": 24, "intermediate_size": 40, "vocab_size": 50} | changes
    config = getattr(transformers, f"{kind}Config")(num_attention_heads=2, num_key_value_heads=2, **settings)
    torch.manual_seed(0)
    module = getattr(transformers.models, kind.lower())
    return getattr(getattr(module, f"modeling_{kind.lower()}"), f"{kind}MLP")(config)


def assert_same(model, values, packed):
    with torch.inference_mode():
        plain = model(values)
        with packed.active():
            outputs = model(values)
    assert outputs.shape == plain.shape
    assert torch.allclose(outputs, plain, atol=2e-6)
    assert not any("forward" in vars(module) for module in model.modules())


@pytest.mark.parametrize(
    "module",
    [
        linear(),
        linear(bias=False),
        *(bert_block(activation) for activation in ("gelu", "gelu_new")),
        gated("Qwen2"),
        gated("Llama", mlp_bias=True),
    ],
    ids=lambda module: type(module).__name__,
)
def test_a_module_gives_what_it_gave_whatever_the_number_of_rows(module):
    model = torch.nn.Sequential(module)
    packed = PackedLinears(model)
    assert packed.forwards
    activation = getattr(module, "intermediate_act_fn", None)
    exact = activation is None or getattr(activation, "act", None) is torch.nn.functional.gelu
    assert (module in packed.forwards) is exact
    for shape in SHAPES:
        assert_same(model, 4 * torch.randn(shape), packed)
    with torch.no_grad():
        for weight in module.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    assert_same(model, torch.randn(24, 70).T, packed)


def test_weights_that_were_made_in_inference_mode_are_packed():
    with torch.inference_mode():
        model = torch.nn.Sequential(linear())
    assert_same(model, torch.randn(5, 24), PackedLinears(model))


@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-6), (torch.bfloat16, 0.1)])
def test_changed_weights_are_packed_again_even_if_torch_did_not_count_the_change(dtype, error):
    model = torch.nn.Sequential(linear())
    values = torch.randn(70, 24)
    packed = PackedLinears(model, dtype)

    def found():
        with torch.inference_mode(), packed.active():
            return model(values)

    def replace(layer):
        layer.weight = torch.nn.Parameter(0.2 * torch.randn(40, 24))

    def in_place(layer):
        with torch.no_grad():
            layer.weight.mul_(2)
            layer.bias.add_(1)

    for change in (
        replace,
        in_place,
        lambda layer: layer.weight.data.mul_(2),
        lambda layer: layer.weight.data[3, 5].add_(1),
        lambda layer: layer.weight.data.copy_(layer.weight.data.flip(0)),  # a sum over all would not see it
        lambda layer: layer.weight.data.copy_(layer.weight.data.roll(1, dims=1)),
    ):
        before = found()
        change(model[0])
        after = found()
        assert not torch.allclose(after, before, atol=1e-2)
        assert torch.allclose(after, model(values), atol=error)


def test_a_small_change_beside_an_outlier_is_packed_although_no_product_shows_it():
    model = torch.nn.Sequential(linear())
    values = torch.zeros(1, 24)
    values[0, 7] = 1
    with torch.no_grad():
        model[0].weight[3, 5] = 1e6
    packed = PackedLinears(model)
    assert_same(model, values, packed)
    with torch.no_grad():
        model[0].weight[3, 7] += 1e-3  # far below the rounding of a product with this row
    assert_same(model, values, packed)


def test_a_layer_or_an_activation_that_was_replaced_is_followed():
    model = torch.nn.ModuleDict({"gated": gated(), "block": bert_block()})
    packed = PackedLinears(model)
    for change in (
        lambda: None,
        lambda: setattr(model["gated"], "gate_proj", torch.nn.Linear(24, 40, bias=False)),
        lambda: setattr(model["gated"], "act_fn", torch.nn.Tanh()),
        lambda: setattr(model["block"], "dense", torch.nn.Linear(24, 40)),
        lambda: setattr(model["block"], "intermediate_act_fn", torch.nn.Tanh()),
    ):
        change()
        for block in model.values():
            assert_same(block, torch.randn(70, 24), packed)


class Doubled(torch.nn.Module):
    """The parts of BERT's block, put together in another way."""

    def __init__(self):
        super().__init__()
        block = bert_block()
        self.dense, self.intermediate_act_fn = block.dense, block.intermediate_act_fn

    def forward(self, values):
        return 2 * self.intermediate_act_fn(self.dense(values))


def test_blocks_with_the_same_parts_that_do_more_are_left_to_their_layers():
    other = torch.nn.Sequential(gated(hidden_act="gelu"))
    assert other[0] not in PackedLinears(other).forwards
    doubled = Doubled()
    assert_same(doubled, torch.randn(70, 24), PackedLinears(doubled))


def test_one_model_in_two_encoders_at_once_is_left_as_it_was_also_after_an_error():
    model = torch.nn.Sequential(linear())
    values = torch.randn(70, 24)
    calls_seen = []
    plain = model(values)
    model[0].register_forward_hook(lambda module, arguments, output: calls_seen.append(tuple(output.shape)))

    def fail():
        with torch.inference_mode(), PackedLinears(model).active():
            with PackedLinears(model).active():
                assert torch.allclose(model(values), plain, atol=1e-6)
            assert torch.allclose(model(values), plain, atol=1e-6)
            assert "forward" in vars(model[0])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert calls_seen == [(70, 40)] * 2
    assert "forward" not in vars(model[0])


class Scaled(torch.nn.Linear):
    def forward(self, values):
        return 3 * super().forward(values)


@pytest.mark.parametrize("kind", [Scaled, partial(torch.nn.Linear, dtype=torch.bfloat16)])
def test_other_kinds_other_precisions_and_replaced_passes_are_left_alone(kind):
    model = torch.nn.Sequential(kind(24, 40), linear())
    replaced_forward = model[1].forward = lambda values: values + 1
    with PackedLinears(model).active():
        assert "forward" not in vars(model[0])
        assert vars(model[1])["forward"] is replaced_forward
    assert vars(model[1])["forward"] is replaced_forward


_REAL = torch.ops.mkldnn._linear_pointwise


def _missing(*_):
    raise AttributeError("no such operator")


def _inexact(*arguments):
    return 1.001 * torch.ops.aten.clone(_REAL(*arguments))


@pytest.mark.parametrize(("operator", "has"), [(_missing, True), (_missing, False), (_inexact, True)])
def test_a_model_computes_without_packed_layers_where_they_do_not_work(model, monkeypatch, operator, has):
    expected = load_encoder(model).encode(TEXTS)
    lower = load_encoder(model).at(Precision.BFLOAT16).encode(TEXTS)
    own_vectors = load_encoder(model, packed_layers=False).at(Precision.BFLOAT16).encode(TEXTS)
    assert np.abs(own_vectors - lower).max() <= 0.03
    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", operator)
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: has)
    with pytest.warns(StickyTokenWarning, match="packed layers are off, and encoding on") as caught:
        encoder = load_encoder(model)
    assert len(caught) == 1
    vectors = encoder.encode(TEXTS)  # and no further warning, which would be an error
    assert np.abs(vectors - expected).max() <= 2e-6
    if operator is _inexact:
        return  # too small a difference for bfloat16
    with pytest.warns(
        StickyTokenWarning, match="bfloat16 on this" if has else "no instructions for bfloat16"
    ):
        vectors = encoder.at(Precision.BFLOAT16).encode(TEXTS)
    assert np.abs(vectors - lower).max() <= 0.03
    assert np.abs(vectors - expected).max() > 1e-5


def test_the_measurement_decides_and_options_override_it(model, tmp_path, monkeypatch, caplog):
    entered = []
    active = PackedLinears.active
    monkeypatch.setattr(
        PackedLinears, "active", lambda self: entered.append(len(self.forwards)) or active(self)
    )
    monkeypatch.setenv("STICKYTOKEN_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("STICKYTOKEN_PACKED_LAYERS")
    load_encoder(model)
    (path,) = cache_folder().iterdir()
    path.write_text('{"plain": 1}')  # a damaged measurement is made again
    load_encoder(model)
    assert set(json.loads(path.read_text())) == {"plain", "packed"}

    def packs(**options):
        encoder = load_encoder(model, **options)
        entered.clear()
        encoder.encode(TEXTS)
        return bool(entered)

    for plain, packed in ((1.0, 2.0), (2.0, 1.0)):
        keep(path.stem, {"plain": plain, "packed": packed})
        with caplog.at_level(logging.INFO, "stickytoken"):
            assert packs() is (packed < plain)
        assert "measured on this machine (1.000 s, otherwise 2.000 s)" in caplog.text
    for variable, expected in (("", True), ("1", True), ("0", False), (" NO ", False)):
        monkeypatch.setenv("STICKYTOKEN_PACKED_LAYERS", variable)
        assert packs() is expected
    assert packs(packed_layers=True)
    assert recalled(path.stem) == {"plain": 2.0, "packed": 1.0}
