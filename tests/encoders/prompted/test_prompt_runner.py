"""What prompts and sentences begin with, computed once; batches, memory, threads, and what is left behind."""

import copy
import threading

import numpy as np
import pytest
import torch

import tiny
import tiny_decoders
from prefix_trees import counted_trees, grid_probes
from prompted_loading import encoder_of, read
from stickytoken.encoders.compute.prefixes import REUSE, ReuseLimits
from stickytoken.encoders.prompted import encoder as prompt_runner
from stickytoken.encoders.prompted.encoder import CausalPromptEncoder
from stickytoken.encoders.prompted.prompts import Contrast
from stickytoken.insertion import Placement

KNOWN = ("qwen3", "gemma2", "phi3")
CARRIERS = ("the old river sings to the stone", "a bird", "the quiet winter night walks under the glass")
SENTENCES = tiny.sentences(8)


def difference(found, expected):
    """The largest one, as a share of the largest component: states between layers are large."""
    return float(np.abs(found - expected).max() / max(1.0, np.abs(expected).max()))


def probes_of(encoder, placement=Placement.SUFFIX, tokens=4):
    return grid_probes(encoder, CARRIERS, placement, tokens)


@pytest.fixture
def trees(monkeypatch):
    return counted_trees(monkeypatch)


@pytest.mark.parametrize(
    ("kind", "placement", "reading"),
    [
        ("mistral", Placement.SUFFIX, read()),  # its window is shorter than the prompt
        ("qwen2", Placement.RANDOM, read("ke", None, 3)),
        *(pytest.param(kind, Placement.SUFFIX, read(), marks=pytest.mark.slow) for kind in KNOWN),
    ],
)
def test_probes_of_a_plain_prompt_are_computed_as_trees(kind, placement, reading, trees):
    # Wherever trees are exact, even if they save little.
    encoder = encoder_of(reading, kind, reuse=ReuseLimits(tree_share=1))
    contents = probes_of(encoder, placement, tokens=2)
    found = encoder.encode_ids(contents)
    assert trees[-1] == len(set(contents))
    assert difference(found, encoder_of(reading, kind, reuse=None).encode_ids(contents)) < 1e-5


@pytest.mark.parametrize(
    ("kind", "reading"),
    [
        ("qwen2", read(span=(1, 3))),  # each token sees what stands behind it
        ("qwen2", read("echo")),
        ("opt", read()),  # its masks are not known
    ],
)
def test_what_does_not_share_beginnings_takes_the_plain_path(kind, reading, trees):
    encoder, plain = (encoder_of(reading, kind, reuse=reuse) for reuse in (REUSE, None))
    contents = probes_of(encoder)
    assert difference(encoder.encode_ids(contents), plain.encode_ids(contents)) < 1e-5
    encoder_of(read()).encode(SENTENCES[:6])  # little in common
    assert trees == []


def tokens_seen(model):
    seen = {}

    def counted(name):
        def hook(_, args, options):
            values = args[0] if args else options["hidden_states"]
            seen[name] = seen.get(name, 0) + values.shape[:2].numel()

        return hook

    for number, layer in enumerate(model.layers):
        layer.register_forward_pre_hook(counted(number), with_kwargs=True)
        layer.mlp.register_forward_pre_hook(counted(f"mlp {number}"), with_kwargs=True)
    return seen


def test_suffix_copies_cost_the_copies_and_the_end_of_the_prompt_and_later_layers_nothing():
    encoder = encoder_of(read(layer=3))
    contents = probes_of(encoder)
    prompt = encoder.prompted.prompts[0]
    encoder.encode_ids(contents)  # tries the model out
    seen = tokens_seen(encoder.prompted.decoder.model)
    encoder.encode_ids(contents)
    carriers = sum(len(carrier.ids) for carrier in encoder.tokenize(CARRIERS))
    # Each copy once, the end of the prompt for each input, carriers and the beginning once.
    most = len(contents) * (1 + len(prompt.after)) + carriers + len(prompt.before)
    assert seen[0] == seen[2] <= most
    assert most < 0.6 * sum(prompt.length(len(content)) for content in contents)
    assert 3 not in seen


def test_the_auxiliary_prompt_runs_once_for_all_templates_up_to_its_layer():
    counts = []
    for contrast in (None, Contrast(1)):
        encoder = encoder_of(read("ck", None, 3, contrast))
        encoder.encode(SENTENCES)  # tries the model out, and computes the beginnings
        seen = tokens_seen(encoder.prompted.decoder.model)
        encoder.encode(SENTENCES)
        counts.append(seen)
    auxiliary = encoder.prompted.auxiliary.prompts[0]
    # Its beginning is not computed again.
    once = sum(auxiliary.length(len(ids)) - auxiliary.fixed for ids in encoder.content_ids(SENTENCES))
    added = {name: counts[1][name] - count for name, count in counts[0].items()}
    assert added == {0: once, "mlp 0": once, 1: once, "mlp 1": 0, 2: 0, "mlp 2": 0}


def test_a_beginning_is_computed_once_and_again_when_weights_change(monkeypatch):
    made = []
    build = prompt_runner.FixedBeginnings.__init__

    def counted(self, model, numbers):
        made.append(tuple(numbers))
        build(self, model, numbers)

    encoder = encoder_of(read("ke", (1, 3), 3, Contrast(2)))
    encoder.encode(SENTENCES)  # tries the model out
    monkeypatch.setattr(prompt_runner.FixedBeginnings, "__init__", counted)
    first = encoder.encode(SENTENCES)
    assert np.array_equal(encoder.encode(SENTENCES), first)
    assert made == []
    encoder.encode_layers(SENTENCES, [2, 3])
    assert made == [(2, 3)]
    with torch.no_grad():
        encoder.prompted.decoder.layers[0].self_attn.k_proj.weight.mul_(1.5)
    found = encoder.encode(SENTENCES)
    plain = CausalPromptEncoder(encoder._model, encoder.user_tokenizer, "x", encoder.reading, reuse=None)
    assert difference(found, plain.encode(SENTENCES)) < 1e-5
    assert np.abs(found - first).max() > 1e-3


# What goes wrong.


def hooks(model):
    return sum(len(part._forward_hooks) + len(part._forward_pre_hooks) for part in model.modules())


def test_hooks_are_removed_after_an_error():
    encoder = encoder_of(read(span=(1, 3), contrast=Contrast(1)))
    expected, model = encoder.encode(SENTENCES), encoder.prompted.decoder.model

    def fail(*_):
        raise RuntimeError("no power")

    handle = model.layers[1].register_forward_hook(fail)
    with pytest.raises(RuntimeError, match="no power"):
        encoder.encode(SENTENCES)
    handle.remove()
    assert hooks(model) == 0
    assert np.array_equal(encoder.encode(SENTENCES), expected)


def test_the_model_and_the_tokenizer_are_left_as_they_were():
    model, tokenizer = tiny_decoders.decoder("qwen2")
    model.train()
    model.layers[2].eval()

    def state():
        flags = [part.training for part in model.modules()]
        return len(tokenizer), tokenizer.padding_side, tokenizer.backend_tokenizer.to_str(), flags

    before, weights = state(), copy.deepcopy(model.state_dict())
    CausalPromptEncoder(model, tokenizer, "tiny", read("metaeol", (1, 3))).encode(SENTENCES)
    assert state() == before
    assert weights.keys() == model.state_dict().keys()
    assert all(torch.equal(value, weights[key]) for key, value in model.state_dict().items())
    assert not any("forward" in vars(part) for part in model.modules())


def test_other_threads_use_the_model_as_it_is_meanwhile():
    encoder = encoder_of(read(span=(1, 3), layer=3, contrast=Contrast(1)))
    expected, model = encoder.encode(SENTENCES), encoder.prompted.decoder.model
    ids, owner, found = torch.arange(5, 25)[None], threading.get_ident(), []

    def plain():
        with torch.inference_mode():
            return model(input_ids=ids).last_hidden_state

    def interrupt(*_):
        if threading.get_ident() == owner and not found:
            found.append(None)
            thread = threading.Thread(target=lambda: found.append(plain()))
            thread.start()
            thread.join()

    states = plain()
    handle = model.layers[0].register_forward_hook(interrupt)
    np.testing.assert_allclose(encoder.encode(SENTENCES), expected, atol=1e-5)
    handle.remove()
    assert (found[1] - states).abs().max() < 1e-5
