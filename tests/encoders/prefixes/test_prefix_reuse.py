"""Common beginnings computed once: the tree against plain loops, the vectors against the plain path."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tiny_architectures
from prefix_trees import counted_trees, grid_probes
from stickytoken import load_encoder
from stickytoken.encoders.prefixes import PrefixReuse, grow, levels, new_tokens
from stickytoken.insertion import Placement

inputs = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=7).map(tuple), max_size=25, unique=True)


def spelled(branch):
    """All tokens from the start to the end of a branch."""
    before = spelled(branch.parent)[: branch.shared] if branch.parent else ()
    return (*before, *branch.tokens)


# The tree


@settings(max_examples=300)
@given(inputs)
def test_every_input_stands_at_its_end_and_every_common_beginning_once(given_inputs):
    roots = grow(given_inputs)
    found = {}
    for level in levels(roots):
        for branch in level:
            assert branch.tokens
            for length, place in branch.ends:
                assert branch.shared < length <= branch.length
                found[place] = spelled(branch)[:length]
    assert [found[place] for place in range(len(given_inputs))] == given_inputs
    prefixes = {own[:length] for own in given_inputs for length in range(1, len(own) + 1)}
    assert new_tokens(roots) == len(prefixes)


@given(inputs, st.randoms(use_true_random=False))
def test_the_order_of_inputs_changes_no_branch(given_inputs, shuffler):
    def shape(roots):
        return sorted(spelled(branch) for level in levels(roots) for branch in level)

    turned = list(given_inputs)
    shuffler.shuffle(turned)
    assert shape(grow(turned)) == shape(grow(given_inputs))


def test_copies_behind_a_carrier_are_one_branch_and_in_front_of_it_two_levels():
    carriers, token = [(1, 2, 3), (4, 5, 6)], 9
    behind = grow([(*carrier, *(token,) * count) for carrier in carriers for count in (1, 2, 3)])
    assert [(branch.tokens, branch.children) for branch in behind] == [
        ((1, 2, 3, 9, 9, 9), []),
        ((4, 5, 6, 9, 9, 9), []),
    ]
    in_front = grow([(*(token,) * count, *carrier) for carrier in carriers for count in (1, 2, 3)])
    assert len(in_front) == 1
    assert {branch.tokens for branch in in_front[0].children} == {(1, 2, 3), (4, 5, 6)}


# The vectors


MODELS = {
    "llama": tiny_architectures.llama,
    "llama closed": lambda folder: tiny_architectures.llama(folder, tiny_architectures.mistral_tokenizer()),
    "qwen2": tiny_architectures.qwen2,
    "qwen2 closed": lambda folder: tiny_architectures.qwen2(
        folder, tiny_architectures.qwen_tokenizer(closing=True)
    ),
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


@pytest.fixture(scope="module", params=MODELS)
def model(request, tmp_path_factory):
    folder = MODELS[request.param](tmp_path_factory.mktemp("backbone"))
    return tiny_architectures.stacked(folder, pooling="lasttoken", dense=16, normalize=True)


@pytest.fixture(scope="module")
def encoder(model):
    return load_encoder(model)


def probes_of(encoder, placement):
    return grid_probes(encoder, CARRIERS, placement)


def plain_vectors(encoder, contents):
    """Every input by itself, through the model as the library runs it."""
    return np.concatenate([encoder._runner.launch([own]) for own in contents])


@pytest.mark.parametrize("placement", Placement)
def test_vectors_equal_those_of_every_input_by_itself(encoder, placement, monkeypatch):
    contents = probes_of(encoder, placement)
    used = counted_trees(monkeypatch)
    found = encoder.encode_ids(contents)
    assert used[-1:] == [len(set(contents))]
    with torch.inference_mode():
        expected = plain_vectors(encoder, contents)
    assert np.abs(found - expected).max() <= 2e-5


@pytest.mark.slow
def test_the_token_budget_and_the_order_change_rounding_alone(model, encoder):
    contents = probes_of(encoder, Placement.SUFFIX) + probes_of(encoder, Placement.PREFIX)
    whole = encoder.encode_ids(contents)
    for budget in (1, 64, 10**6):
        found = load_encoder(model, token_budget=budget).encode_ids(contents[::-1])
        assert np.abs(found[::-1] - whole).max() <= 2e-5


def test_texts_that_have_little_in_common_take_the_plain_path(encoder, monkeypatch):
    encoder.encode(["a"])  # the first call tries the model out
    used = counted_trees(monkeypatch)
    encoder.encode(["the river sings", "a bird", "stone under water"])
    # A chat template is a long beginning that all texts share.
    assert bool(used) is (len(encoder._template.before) > 1)


def test_a_model_that_is_not_causal_takes_the_plain_path_although_its_name_says_so(tmp_path, monkeypatch):
    """Such as a decoder that was opened to both sides, under the old name."""
    model = tiny_architectures.stacked(tiny_architectures.llama(tmp_path), pooling="lasttoken")
    backbone = model[0].model
    forward = type(backbone).forward

    def both_sides(self, input_ids=None, attention_mask=None, **options):
        embedded = self.embed_tokens(input_ids)
        return forward(self, inputs_embeds=embedded + embedded.mean(1, keepdim=True), **options)

    monkeypatch.setattr(type(backbone), "forward", both_sides)
    encoder = load_encoder(model)
    contents = probes_of(encoder, Placement.SUFFIX)
    found = encoder.encode_ids(contents)
    with torch.inference_mode():
        assert np.abs(found - plain_vectors(encoder, contents)).max() <= 2e-5


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_another_pooling_takes_the_plain_path(tmp_path, pooling, monkeypatch):
    model = tiny_architectures.stacked(tiny_architectures.qwen2(tmp_path), pooling=pooling)
    encoder, used = load_encoder(model), counted_trees(monkeypatch)
    encoder.encode_ids(probes_of(encoder, Placement.SUFFIX))
    assert used == []


@pytest.mark.parametrize("name", ["qwen2", "qwen3"])
def test_suffix_copies_cost_a_small_part_of_the_tokens(tmp_path, name):
    encoder = load_encoder(tiny_architectures.stacked(MODELS[name](tmp_path), pooling="lasttoken"))
    contents = probes_of(encoder, Placement.SUFFIX)
    encoder.encode_ids(contents)  # tries the model out
    seen = []
    backbone = encoder._model[0].model
    hook = backbone.register_forward_pre_hook(
        lambda _, args, options: seen.append(options["input_ids"].numel()), with_kwargs=True
    )
    encoder.encode_ids(contents)
    hook.remove()
    closing = encoder._template.overhead
    carriers = sum(len(carrier.ids) for carrier in encoder.tokenize(CARRIERS))
    assert sum(seen) <= len(contents) * (1 + closing) + carriers


def test_without_memory_for_keys_and_values_the_plain_path_is_taken(tmp_path, monkeypatch, caplog):
    encoder = load_encoder(
        tiny_architectures.stacked(tiny_architectures.qwen2(tmp_path), pooling="lasttoken")
    )
    contents = probes_of(encoder, Placement.SUFFIX)
    expected = encoder.encode_ids(contents)

    def full(self, roots, count):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(PrefixReuse, "vectors", full)
    for _ in range(2):
        assert np.abs(encoder.encode_ids(contents) - expected).max() <= 2e-5
    # Tried once, said once.
    assert [record.message.split(": ")[1] for record in caplog.records] == [
        "out of memory on cpu, continuing without reuse"
    ]
