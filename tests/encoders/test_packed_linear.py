"""Linear layers with packed weights against the layers themselves."""

from functools import partial

import numpy as np
import pytest
import torch
import transformers

import tiny_architectures
from stickytoken import load_encoder
from stickytoken.encoders.cpu.linear import PackedBlocks, PackedLinears
from stickytoken.encoders.cpu.low_precision import BFloat16Linears
from stickytoken.encoders.protocol import TOKEN_MULTIPLE, equal_length_batches
from stickytoken.errors import InputError, StickyTokenWarning
from stickytoken.machine import Precision


def layer(*, bias=True, seed=0):
    torch.manual_seed(seed)
    return torch.nn.Linear(24, 40, bias=bias)


def bert_block(activation="gelu"):
    config = transformers.BertConfig(hidden_size=24, intermediate_size=40, hidden_act=activation)
    torch.manual_seed(0)
    return transformers.models.bert.modeling_bert.BertIntermediate(config)


def outputs(model, values):
    """Without and with packed weights."""
    with torch.inference_mode():
        plain = model(values)
        with PackedLinears(model).active():
            return plain, model(values)


@pytest.mark.parametrize("shape", [(1, 24), (63, 24), (64, 24), (65, 24), (3, 7, 24), (2, 3, 5, 24), (0, 24)])
@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_gives_what_it_gave_whatever_the_number_of_rows(shape, bias):
    plain, packed = outputs(torch.nn.Sequential(layer(bias=bias)), torch.randn(shape))
    assert packed.shape == plain.shape
    assert torch.allclose(packed, plain, atol=1e-6)


@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "relu", "silu"])
def test_a_block_gives_what_it_gave_whatever_its_activation(activation):
    values = 6 * torch.randn(200, 24)
    plain, packed = outputs(bert_block(activation), values)
    assert torch.allclose(packed, plain, atol=2e-6)


def test_rows_that_are_not_contiguous_and_transposed_weights_are_read_right():
    model = torch.nn.Sequential(layer())
    model[0].weight = torch.nn.Parameter(torch.randn(24, 40).T)
    plain, packed = outputs(model, torch.randn(24, 70).T)
    assert torch.allclose(packed, plain, atol=1e-6)


def test_weights_that_were_changed_or_replaced_since_are_packed_again():
    model, values = torch.nn.Sequential(layer()), torch.randn(70, 24)
    packed = PackedLinears(model)

    def found():
        with torch.inference_mode(), packed.active():
            return model(values)

    first = found()
    with torch.no_grad():
        model[0].weight.mul_(2)
        model[0].bias.add_(1)
    assert torch.allclose(found(), model(values), atol=1e-6)
    model[0].weight = torch.nn.Parameter(torch.randn(40, 24))
    assert torch.allclose(found(), model(values), atol=1e-6)
    assert not torch.allclose(found(), first, atol=0.1)


def test_weights_that_were_made_in_inference_mode_are_packed_too():
    with torch.inference_mode():
        model = torch.nn.Sequential(layer())
    plain, packed = outputs(model, torch.randn(5, 24))
    assert torch.allclose(packed, plain, atol=1e-6)


@pytest.mark.parametrize("kind", [PackedLinears, BFloat16Linears])
def test_weights_that_were_changed_behind_torchs_back_are_packed_again(kind):
    model, values = torch.nn.Sequential(layer(), bert_block("gelu")), torch.randn(70, 24)
    del model[1]
    packed = kind(model)

    def found():
        with torch.inference_mode(), packed.active():
            return model(values)

    for change in (
        lambda weight: weight.data.mul_(2),
        lambda weight: weight.data[3, 5].add_(1),
        lambda weight: weight.data.copy_(weight.data.flip(0)),  # a sum over all would not see it
        lambda weight: weight.data.copy_(weight.data.roll(1, dims=1)),
    ):
        before = found()
        change(model[0].weight)
        after = found()
        assert not torch.allclose(after, before, atol=1e-2)
        assert torch.allclose(after, model(values), atol=1e-6 if kind is PackedLinears else 0.1)


def test_a_layer_or_an_activation_that_was_replaced_is_followed():
    block, values = torch.nn.Sequential(gated(), bert_block()), torch.randn(70, 24)
    blocks, intermediate = torch.nn.Sequential(block[0]), torch.nn.Sequential(block[1])
    gates, linears = PackedBlocks(blocks), PackedLinears(intermediate)
    changes = [
        lambda: setattr(block[0], "gate_proj", torch.nn.Linear(24, 40, bias=False)),
        lambda: setattr(block[0], "act_fn", torch.nn.Tanh()),
        lambda: setattr(block[1], "dense", torch.nn.Linear(24, 40)),
        lambda: setattr(block[1], "intermediate_act_fn", torch.nn.Tanh()),
    ]
    for change in [lambda: None, *changes]:
        change()
        for model, packed in ((blocks, gates), (intermediate, linears)):
            with torch.inference_mode():
                plain = model(values)
                with packed.active():
                    assert torch.allclose(model(values), plain, atol=2e-6)


class _Operators:
    """oneDNN's operators, one of them replaced."""

    def __init__(self, **replaced):
        self._replaced = replaced

    def __getattr__(self, name):
        if self._replaced.get(name, True) is None:
            raise AttributeError(f"no operator {name}")
        return self._replaced.get(name) or getattr(torch._ops._OpNamespace("mkldnn"), name)


def _raising(*arguments):
    raise RuntimeError("Expected 5 arguments")


def _wrong(*arguments):
    return 1.001 * torch.ops.aten.clone(_REAL(*arguments))


_REAL = torch.ops.mkldnn._linear_pointwise
BROKEN = {
    "missing product": {"_linear_pointwise": None},
    "missing packing": {"_reorder_linear_weight": None},
    "another signature": {"_linear_pointwise": _raising},
    "other numbers": {"_linear_pointwise": _wrong},
}


@pytest.fixture
def bert_model(tmp_path):
    return tiny_architectures.stacked(tiny_architectures.bert(tmp_path / "bert"))


@pytest.mark.parametrize("name", list(BROKEN))
def test_a_model_computes_without_packed_layers_where_they_do_not_work(bert_model, monkeypatch, name):
    texts = ["the old river sings", "a bird", "stone under a tree"]
    expected = load_encoder(bert_model).encode(texts)
    monkeypatch.setattr(torch.ops, "mkldnn", _Operators(**BROKEN[name]))
    with pytest.warns(StickyTokenWarning, match="packed layers are off") as caught:
        encoder = load_encoder(bert_model)
    assert len(caught) == 1
    found = encoder.encode(texts)  # and no further warning, which would be an error
    assert np.abs(found - expected).max() <= 2e-6


@pytest.mark.parametrize("name", ["missing product", "missing packing", "another signature"])
def test_bfloat16_computes_with_torchs_own_functions_where_packed_layers_do_not_work(
    bert_model, monkeypatch, name
):
    texts = ["the old river sings", "a bird"]
    encoder = load_encoder(bert_model, packed_layers=False)
    plain = load_encoder(bert_model).at(Precision.BFLOAT16).encode(texts)
    assert np.abs(encoder.at(Precision.BFLOAT16).encode(texts) - plain).max() <= 0.03
    monkeypatch.setattr(torch.ops, "mkldnn", _Operators(**BROKEN[name]))
    with pytest.warns(StickyTokenWarning, match="encoding on this CPU is slower"):
        fresh = load_encoder(bert_model)
    with pytest.warns(StickyTokenWarning, match="bfloat16 on this CPU is slower"):
        lower = fresh.at(Precision.BFLOAT16)
    assert np.abs(lower.encode(texts) - plain).max() <= 0.03
    assert np.abs(lower.encode(texts) - encoder.encode(texts)).max() > 1e-5


@pytest.mark.parametrize("off", ["0", "false", " NO "])
def test_packed_layers_are_turned_off_by_an_argument_or_a_variable(bert_model, monkeypatch, off):
    def entered(**options):
        seen = []
        active = PackedLinears.active
        with monkeypatch.context() as patch:
            patch.setattr(PackedLinears, "active", lambda self: seen.append(1) or active(self))
            load_encoder(bert_model, **options).encode(["a bird"])
        return bool(seen)

    assert entered()
    assert not entered(packed_layers=False)
    monkeypatch.setenv("STICKYTOKEN_PACKED_LAYERS", off)
    assert not entered()
    assert entered(packed_layers=True)
    with pytest.raises(InputError, match=r"int8 needs packed layers|VNNI"):
        load_encoder(bert_model).at(Precision.INT8)


def gated(kind="Qwen2", **changes):
    settings = {
        "hidden_size": 24,
        "intermediate_size": 40,
        "vocab_size": 50,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
    } | changes
    config = getattr(transformers, f"{kind}Config")(**settings)
    torch.manual_seed(0)
    module = getattr(transformers.models, kind.lower())
    return getattr(getattr(module, f"modeling_{kind.lower()}"), f"{kind}MLP")(config)


@pytest.mark.parametrize("kind", ["Qwen2", "Llama", "Mistral", "Qwen3"])
@pytest.mark.parametrize("shape", [(1, 24), (65, 24), (3, 7, 24), (0, 24)])
def test_a_gated_block_gives_what_it_gave(kind, shape):
    block = torch.nn.Sequential(gated(kind))
    packed = PackedBlocks(block)
    assert block[0] in packed.modules
    values = 4 * torch.randn(shape)
    with torch.inference_mode():
        plain = block(values)
        with packed.active():
            found = block(values)
    assert found.shape == plain.shape
    assert torch.allclose(found, plain, atol=2e-6)


def test_a_gated_block_with_biases_and_changed_weights_gives_what_it_gave():
    block = torch.nn.Sequential(gated("Llama", mlp_bias=True))
    packed, values = PackedBlocks(block), torch.randn(70, 24)
    for _ in range(2):
        with torch.no_grad():
            for weight in block.parameters():
                weight.add_(0.1 * torch.randn_like(weight))
        with torch.inference_mode():
            plain = block(values)
            with packed.active():
                assert torch.allclose(block(values), plain, atol=2e-6)


def test_a_block_with_another_activation_or_that_does_more_is_left_to_its_layers(monkeypatch):
    other = torch.nn.Sequential(gated(hidden_act="gelu"))
    assert other[0] not in PackedBlocks(other).modules
    doubled = torch.nn.Sequential(gated())
    forward = type(doubled[0]).forward
    monkeypatch.setattr(type(doubled[0]), "forward", lambda self, values: 2 * forward(self, values))
    packed, values = PackedBlocks(doubled), torch.randn(70, 24)
    assert doubled[0] not in packed.modules
    with torch.inference_mode():
        plain = doubled(values)
        with packed.active():
            assert torch.allclose(doubled(values), plain, atol=2e-6)


class Doubled(torch.nn.Module):
    """The parts of BERT's block, put together in another way."""

    def __init__(self):
        super().__init__()
        block = bert_block()
        self.dense, self.intermediate_act_fn = block.dense, block.intermediate_act_fn

    def forward(self, values):
        return 2 * self.intermediate_act_fn(self.dense(values))


def test_a_block_of_the_same_parts_that_does_more_keeps_doing_it():
    plain, packed = outputs(Doubled(), torch.randn(70, 24))
    assert torch.allclose(packed, plain, atol=2e-6)


def test_the_model_is_left_as_it_was_also_after_an_error():
    model = torch.nn.Sequential(layer(), bert_block())
    packed = PackedLinears(model)

    def fail():
        with packed.active():
            assert "forward" in vars(model[0])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not any("forward" in vars(module) for module in model.modules())


def test_one_model_in_two_encoders_at_once():
    model = torch.nn.Sequential(layer())
    values = torch.randn(70, 24)
    with torch.inference_mode():
        plain = model(values)
        with PackedLinears(model).active():
            with PackedLinears(model).active():
                inner = model(values)
            outer = model(values)
    assert torch.allclose(inner, plain, atol=1e-6)
    assert torch.allclose(outer, plain, atol=1e-6)
    assert "forward" not in vars(model[0])


class Scaled(torch.nn.Linear):
    def forward(self, values):
        return 3 * super().forward(values)


@pytest.mark.parametrize("kind", [Scaled, partial(torch.nn.Linear, dtype=torch.bfloat16)])
def test_other_kinds_and_other_precisions_are_left_alone(kind):
    model = torch.nn.Sequential(kind(24, 40))
    with PackedLinears(model).active():
        assert "forward" not in vars(model[0])


def test_a_layer_whose_forward_somebody_replaced_keeps_it():
    model = torch.nn.Sequential(layer())
    model[0].forward = lambda values: values + 1
    with PackedLinears(model).active():
        assert torch.equal(model(torch.zeros(2, 24)), torch.ones(2, 24))
    assert torch.equal(model(torch.zeros(2, 24)), torch.ones(2, 24))


def test_hooks_of_a_layer_are_called():
    model, seen = torch.nn.Sequential(layer()), []
    model[0].register_forward_hook(lambda module, arguments, output: seen.append(tuple(output.shape)))
    with torch.inference_mode(), PackedLinears(model).active():
        model(torch.randn(5, 24))
    assert seen == [(5, 40)]


@pytest.mark.parametrize("name", ["bert", "t5", "modernbert", "mpnet", "gemma2"])
def test_an_encoder_uses_them_and_gives_the_vectors_of_the_library(name, tmp_path, monkeypatch):
    architecture = {own.name: own for own in tiny_architectures.ARCHITECTURES}[name]
    model = tiny_architectures.stacked(architecture.save(tmp_path), pooling="mean", dense=16)
    texts = ["the old river sings", "a bird", "stone under a tree"]
    entered = []
    active = PackedLinears.active

    def counted(self):
        entered.append(len(self.modules))
        return active(self)

    monkeypatch.setattr(PackedLinears, "active", counted)
    found = load_encoder(model).encode(texts)
    assert entered
    assert min(entered) >= 5
    assert np.abs(found - np.stack([model.encode(text) for text in texts])).max() <= 2e-6


@pytest.mark.parametrize("length", [1, 7, 16, 24, 64, 100, 5000])
def test_batches_have_multiples_of_tokens_where_their_budget_allows_it(length):
    batches = equal_length_batches([length] * 9000, 4096)
    full = len(batches[0]) * length
    assert full <= max(4096, length)
    # Half the budget at least is used.
    assert full > 2048 or length > 4096
    if length <= 4096 // TOKEN_MULTIPLE:
        assert full % TOKEN_MULTIPLE == 0
    assert sorted(np.concatenate(batches).tolist()) == list(range(9000))
