"""A language model that prompts read: quantised, on two devices, shared by threads, left as it was."""

import copy
import threading

import numpy as np
import pytest
import torch

import tiny
import tiny_decoders
from stickytoken.encoders.prompted.encoder import CausalPromptEncoder, PromptRunner
from stickytoken.encoders.prompted.layer_states import TokenPrepending
from stickytoken.encoders.prompted.model import Reading
from stickytoken.encoders.prompted.prompts import find_prompt

SENTENCES = tiny.sentences(6)


def read(prompt="prompteol", span=(1, 3), layer=-1):
    return Reading(find_prompt(prompt), None if span is None else TokenPrepending(*span), layer)


def hooks(model):
    return sum(len(part._forward_hooks) + len(part._forward_pre_hooks) for part in model.modules())


class Int8Linear(torch.nn.Module):
    """A linear layer whose weight is kept in eight bits."""

    def __init__(self, layer):
        super().__init__()
        scale = layer.weight.detach().abs().amax(1, keepdim=True) / 127
        self.register_buffer("scale", scale)
        self.register_buffer("weight", (layer.weight.detach() / scale).round().to(torch.int8))
        self.bias = layer.bias

    def forward(self, states):
        return torch.nn.functional.linear(states, self.weight * self.scale, self.bias)


def test_a_quantised_model_is_read_as_it_is():
    model, tokenizer = tiny_decoders.decoder("qwen2")
    exact = CausalPromptEncoder(model, tokenizer, "tiny", read()).encode(SENTENCES)
    quantised = copy.deepcopy(model)
    for layer in quantised.layers:
        for part in (layer.self_attn, layer.mlp):
            for name, child in list(part.named_children()):
                if isinstance(child, torch.nn.Linear):
                    setattr(part, name, Int8Linear(child))
    encoder = CausalPromptEncoder(quantised, tokenizer, "tiny", read())
    found = encoder.encode(SENTENCES)
    cosines = (found * exact).sum(1) / np.linalg.norm(found, axis=1) / np.linalg.norm(exact, axis=1)
    assert cosines.min() > 0.95
    assert not np.array_equal(found, exact)
    assert encoder.identity.weights != CausalPromptEncoder(model, tokenizer, "tiny", read()).identity.weights


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a second device")
def test_a_model_spread_over_devices_is_read():
    model, tokenizer = tiny_decoders.decoder("qwen2")
    expected = CausalPromptEncoder(model, tokenizer, "tiny", read()).encode(SENTENCES)

    def moved(value):
        return value.cuda() if isinstance(value, torch.Tensor) else value

    for layer in model.layers[1:]:
        layer.cuda()
        layer.register_forward_pre_hook(
            lambda _, args, kwargs: (
                tuple(map(moved, args)),
                {
                    key: tuple(map(moved, each)) if isinstance(each, tuple) else moved(each)
                    for key, each in kwargs.items()
                },
            ),
            with_kwargs=True,
        )
    model.norm.cuda()
    found = CausalPromptEncoder(model, tokenizer, "tiny", read()).encode(SENTENCES)
    assert np.abs(found - expected).max() < 1e-4


def test_index_tensors_follow_the_states(monkeypatch):
    """Without a second device: places and last slots are moved to where each layer has its states."""
    from stickytoken.encoders.prompted.layer_states import prepended

    asked = []

    class Watched(torch.Tensor):
        def to(self, *args, **kwargs):
            asked.append(args[0])
            return super().to(*args, **kwargs)

    layer = torch.nn.Identity()
    states = torch.randn(2, 3, 4)
    slots = torch.tensor([0, 1]).as_subclass(Watched), torch.tensor([2, 2]).as_subclass(Watched)
    with prepended([layer], TokenPrepending(0, 1), *slots):
        layer(states)
    assert asked == [states.device] * 2


# What is left behind.


def test_the_model_and_the_tokenizer_are_left_as_they_were():
    model, tokenizer = tiny_decoders.decoder("qwen2")
    model.train()
    model.layers[2].eval()
    flags = [part.training for part in model.modules()]
    weights = {key: value.clone() for key, value in model.state_dict().items()}
    size, side, settings = len(tokenizer), tokenizer.padding_side, tokenizer.backend_tokenizer.to_str()
    encoder = CausalPromptEncoder(model, tokenizer, "tiny", read("metaeol"))
    encoder.encode(SENTENCES)
    assert (len(tokenizer), tokenizer.padding_side, tokenizer.backend_tokenizer.to_str()) == (
        size,
        side,
        settings,
    )
    assert [part.training for part in model.modules()] == flags
    assert weights.keys() == model.state_dict().keys()
    assert all(torch.equal(value, weights[key]) for key, value in model.state_dict().items())
    assert hooks(model) == 0
    assert not any("forward" in vars(part) for part in model.modules())


@pytest.mark.parametrize("place", [0, 1, 3])
def test_hooks_are_removed_after_an_error(place):
    model, tokenizer = tiny_decoders.decoder("llama")
    encoder = CausalPromptEncoder(model, tokenizer, "tiny", read())
    expected = encoder.encode(SENTENCES)

    def fail(*_):
        raise RuntimeError("no power")

    handle = model.layers[place].register_forward_hook(fail)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no power"):
            encoder.encode(SENTENCES)
    handle.remove()
    assert hooks(model) == 0
    assert np.array_equal(encoder.encode(SENTENCES), expected)


@pytest.mark.slow
def test_threads_and_encoders_on_one_model_do_not_disturb_each_other():
    model, tokenizer = tiny_decoders.decoder("qwen2")
    readings = [
        read(span=(1, 3), layer=3),
        read(span=(0, 2), layer=-1),
        read("cot", None, 2),
        read(span=(2, 4)),
    ]
    encoders = [CausalPromptEncoder(model, tokenizer, "tiny", each) for each in readings]
    expected = [each.encode(SENTENCES) for each in encoders]
    ids = torch.arange(5, 25)[None]
    with torch.inference_mode():
        plain = model(input_ids=ids).last_hidden_state.clone()
    wrong, done = [], threading.Event()

    def encode(place):
        found = [np.abs(encoders[place].encode(SENTENCES) - expected[place]).max() for _ in range(12)]
        wrong.extend(place for each in found if each > 1e-5)

    def call():
        """The user's own use of the model, with no prompt and no lock."""
        while not done.is_set():
            with torch.inference_mode():
                if (model(input_ids=ids).last_hidden_state - plain).abs().max() > 1e-5:
                    wrong.append("plain")

    caller = threading.Thread(target=call)
    workers = [threading.Thread(target=encode, args=(place,)) for place in range(len(encoders))]
    for thread in (caller, *workers):
        thread.start()
    for worker in workers:
        worker.join()
    done.set()
    caller.join()
    assert wrong == []
    assert hooks(model) == 0


# Memory.


def test_without_memory_for_a_batch_smaller_ones_are_taken(monkeypatch, caplog):
    model, tokenizer = tiny_decoders.decoder("qwen2")
    encoder = CausalPromptEncoder(model, tokenizer, "tiny", read())
    expected = encoder.encode(SENTENCES * 3)
    forward = PromptRunner.forward

    def scarce(self, rows, *rest):
        if len(rows) > 1:
            raise torch.OutOfMemoryError("out of memory")
        return forward(self, rows, *rest)

    monkeypatch.setattr(PromptRunner, "forward", scarce)
    assert np.abs(encoder.encode(SENTENCES * 3) - expected).max() < 1e-5
    assert "smaller batches" in caplog.text
