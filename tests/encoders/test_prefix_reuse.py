"""Common prefixes computed once: the tree against plain loops, the vectors against the plain path."""

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

import tiny_architectures
from naming import says
from prefix_trees import counted_trees, grid_probes
from stickytoken import load_encoder
from stickytoken.encoders.compute.prefixes import PrefixReuse, build_trees, levels
from stickytoken.insertion import Placement

inputs = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=7).map(tuple), max_size=25, unique=True)


def spelled(branch):
    before = spelled(branch.parent)[: branch.start] if branch.parent else ()
    return (*before, *branch.tokens)


def shape(roots):
    return sorted(spelled(branch) for level in levels(roots) for branch in level)


@given(inputs)
def test_every_input_stands_at_its_end_and_every_common_beginning_once(given_inputs):
    roots = build_trees(given_inputs)
    input_of = {}
    for level in levels(roots):
        for branch in level:
            assert branch.tokens
            for length, index in branch.inputs:
                assert branch.start < length <= branch.length
                input_of[index] = spelled(branch)[:length]
    assert [input_of[index] for index in range(len(given_inputs))] == given_inputs
    # The order of inputs changes no branch.
    assert shape(build_trees(given_inputs[::-1])) == shape(roots)
    prefixes = {input_ids[:length] for input_ids in given_inputs for length in range(1, len(input_ids) + 1)}
    assert sum(len(branch.tokens) for level in levels(roots) for branch in level) == len(prefixes)


MODELS = {
    "llama closed": lambda folder: tiny_architectures.llama(folder, tiny_architectures.mistral_tokenizer()),
    "qwen2 windows": lambda folder: tiny_architectures.qwen2(
        folder, use_sliding_window=True, sliding_window=5, max_window_layers=1
    ),
    "qwen2 chat": tiny_architectures.qwen2_chat,
    "qwen3": tiny_architectures.qwen3,
    "mistral": tiny_architectures.mistral,
    "gemma2": tiny_architectures.gemma2,
}
CARRIERS = (
    "the old river sings to the stone and the bird under a small tree in the wind",
    "the old river sings",
    "a bird",
)


def last_token(backbone, **options):
    return tiny_architectures.stacked(backbone, pooling="lasttoken", **options)


def probes_of(encoder, placement=Placement.SUFFIX):
    return grid_probes(encoder, CARRIERS, placement, tokens=2, copies=4)


def plain_vectors(encoder, contents):
    with torch.inference_mode():
        return np.concatenate([encoder._runner.launch([ids_of_text]) for ids_of_text in contents])


@pytest.mark.parametrize(
    "name",
    [
        *("llama closed", "qwen2 windows", "gemma2"),
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("qwen2 chat", "qwen3", "mistral")),
    ],
)
def test_vectors_equal_those_of_every_input_by_itself(name, tmp_path, monkeypatch):
    model = last_token(MODELS[name](tmp_path), dense=16, normalize=True)
    encoder = load_encoder(model)
    used = counted_trees(monkeypatch)
    contents = {}
    vectors_of = {}
    for placement in Placement:
        contents[placement] = probes_of(encoder, placement)
        vectors_of[placement] = encoder.encode_ids(contents[placement])
        assert used[-1:] == [len(set(contents[placement]))]
        assert np.abs(vectors_of[placement] - plain_vectors(encoder, contents[placement])).max() <= 2e-5
    # The token budget and the order change rounding alone.
    turned = load_encoder(model, token_budget=64).encode_ids(contents[Placement.SUFFIX][::-1])
    assert np.abs(turned[::-1] - vectors_of[Placement.SUFFIX]).max() <= 2e-5
    used.clear()
    encoder.encode(["the river sings", "a bird", "stone under water"])
    # They have little in common, except for a chat template before all of them.
    assert bool(used) is (len(encoder.template.before) > 1)


def test_a_model_that_is_not_causal_takes_the_plain_path_although_its_name_says_so(tmp_path, monkeypatch):
    model = last_token(tiny_architectures.llama(tmp_path))
    backbone = model[0].model
    forward = type(backbone).forward

    def both_sides(self, input_ids=None, attention_mask=None, **options):
        embedded = self.embed_tokens(input_ids)
        return forward(self, inputs_embeds=embedded + embedded.mean(1, keepdim=True), **options)

    monkeypatch.setattr(type(backbone), "forward", both_sides)
    encoder = load_encoder(model)
    contents = probes_of(encoder)
    assert np.abs(encoder.encode_ids(contents) - plain_vectors(encoder, contents)).max() <= 2e-5


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_another_pooling_takes_the_plain_path(tmp_path, pooling, monkeypatch):
    model = tiny_architectures.stacked(tiny_architectures.qwen2(tmp_path), pooling=pooling)
    encoder = load_encoder(model)
    used = counted_trees(monkeypatch)
    encoder.encode_ids(probes_of(encoder))
    assert used == []


def test_without_memory_for_keys_and_values_the_plain_path_is_taken(tmp_path, monkeypatch, caplog):
    encoder = load_encoder(last_token(tiny_architectures.qwen2(tmp_path)))
    contents = probes_of(encoder)
    expected = encoder.encode_ids(contents)

    def full(self, roots, count):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(PrefixReuse, "vectors_of_trees", full)
    for _ in range(2):
        assert np.abs(encoder.encode_ids(contents) - expected).max() <= 2e-5
    # Tried once, said once.
    (record,) = caplog.records
    assert says(record.message, "memory", "cpu", "without reuse")
