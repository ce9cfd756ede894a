"""What prompts and sentences begin with, computed once: the vectors of the plain path, and less work."""

import numpy as np
import pytest
import torch

import tiny
import tiny_decoders
from prefix_trees import counted_trees, grid_probes
from stickytoken.encoders.prefixes import REUSE, PrefixReuse, ReuseLimits
from stickytoken.encoders.prompted import encoder as prompt_runner
from stickytoken.encoders.prompted.encoder import CausalPromptEncoder
from stickytoken.encoders.prompted.layer_states import TokenPrepending
from stickytoken.encoders.prompted.model import Reading
from stickytoken.encoders.prompted.prompts import find_prompt
from stickytoken.errors import InputError
from stickytoken.insertion import Placement
from stickytoken.machine import Precision

KNOWN = ("llama", "mistral", "qwen2", "qwen3", "gemma2", "phi3")
CARRIERS = ("the old river sings to the stone", "a bird", "the quiet winter night walks under the glass")


def read(prompt="prompteol", span=None, layer=-1):
    return Reading(find_prompt(prompt), None if span is None else TokenPrepending(*span), layer)


def encoder_of(kind, reading, **options):
    return CausalPromptEncoder(*tiny_decoders.decoder(kind), "tiny", reading, **options)


def difference(found, expected):
    """The largest one, as a share of the largest component: states between layers are large."""
    return float(np.abs(found - expected).max() / max(1.0, np.abs(expected).max()))


def probes_of(encoder, placement, tokens=4):
    return grid_probes(encoder, CARRIERS, placement, tokens)


@pytest.fixture
def trees(monkeypatch):
    """How many inputs went through trees, call by call."""
    return counted_trees(monkeypatch)


# Trees wherever they are exact, even if they save little.
ALWAYS = ReuseLimits(tree_share=1)


@pytest.mark.parametrize("placement", Placement)
@pytest.mark.parametrize("kind", KNOWN)
def test_probes_of_a_plain_prompt_are_computed_as_trees(kind, placement, trees):
    """A window of sixteen tokens is shorter than the prompts."""
    encoder = encoder_of(kind, read(), reuse=ALWAYS)
    plain = encoder_of(kind, read(), reuse=None)
    contents = probes_of(encoder, placement)
    found = encoder.encode_ids(contents)
    assert trees[-1] == len(set(contents))
    expected = plain.encode_ids(contents)
    assert difference(found, expected) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("prompt", ["ke", "metaeol", "Word: {sentence}:"])
@pytest.mark.parametrize("layer", [3, -1])
def test_every_prompt_and_layer_gives_the_vectors_of_the_plain_path(prompt, layer, trees):
    encoder = encoder_of("qwen2", read(prompt, None, layer), reuse=ALWAYS)
    plain = encoder_of("qwen2", read(prompt, None, layer), reuse=None)
    contents = probes_of(encoder, Placement.SUFFIX, tokens=2)
    assert difference(encoder.encode_ids(contents), plain.encode_ids(contents)) < 1e-5
    assert trees


def test_the_token_budget_and_the_order_change_rounding_alone():
    encoder = encoder_of("qwen2", read())
    contents = probes_of(encoder, Placement.SUFFIX) + probes_of(encoder, Placement.PREFIX)
    whole = encoder.encode_ids(contents)
    for budget in (1, 64, 10**6):
        found = encoder_of("qwen2", read(), token_budget=budget).encode_ids(contents[::-1])
        assert difference(found[::-1], whole) < 1e-5


def tokens_computed(encoder, contents):
    """Tokens that pass the first layer."""
    encoder.encode_ids(contents)  # tries the model out
    seen = []
    layer = encoder._prompted.decoder.layers[0]
    hook = layer.register_forward_pre_hook(
        lambda _, args, options: seen.append(
            (args[0] if args else options["hidden_states"]).shape[:2].numel()
        ),
        with_kwargs=True,
    )
    encoder.encode_ids(contents)
    hook.remove()
    return sum(seen)


def test_suffix_copies_cost_the_copies_and_the_end_of_the_prompt():
    encoder = encoder_of("qwen2", read())
    contents = probes_of(encoder, Placement.SUFFIX)
    prompt = encoder._prompted.prompts[0]
    carriers = sum(len(carrier.ids) for carrier in encoder.tokenize(CARRIERS))
    # Each copy once, the end of the prompt for each input, carriers and the beginning once.
    most = len(contents) * (1 + len(prompt.after)) + carriers + len(prompt.before)
    assert tokens_computed(encoder, contents) <= most
    assert most < 0.6 * sum(prompt.length(len(content)) for content in contents)


@pytest.mark.parametrize(
    ("kind", "reading"),
    [
        ("qwen2", read(span=(1, 3))),  # each token sees what stands behind it
        ("qwen2", read("echo")),
        ("opt", read()),  # its masks are not known
    ],
)
def test_what_does_not_share_beginnings_takes_the_plain_path(kind, reading, trees):
    encoder, plain = (encoder_of(kind, reading, reuse=reuse) for reuse in (REUSE, None))
    contents = probes_of(encoder, Placement.SUFFIX)
    assert difference(encoder.encode_ids(contents), plain.encode_ids(contents)) < 1e-5
    assert trees == []


def test_sentences_that_have_little_in_common_are_no_tree(trees):
    encoder = encoder_of("qwen2", read())
    encoder.encode(tiny.sentences(6))
    assert trees == []


def test_a_model_that_trees_do_not_fit_takes_the_plain_path(monkeypatch):
    """Its masks are other ones than its name says."""
    encoder = encoder_of("qwen2", read())
    contents = probes_of(encoder, Placement.SUFFIX)
    expected = encoder_of("qwen2", read(), reuse=None).encode_ids(contents)
    masks = PrefixReuse._masks

    def all_seen(self, places, seen):
        return masks(self, places, torch.ones_like(seen))

    monkeypatch.setattr(PrefixReuse, "_masks", all_seen)
    assert difference(encoder.encode_ids(contents), expected) < 1e-5


def test_without_memory_for_keys_and_values_the_plain_path_is_taken(monkeypatch, caplog):
    encoder = encoder_of("qwen2", read())
    contents = probes_of(encoder, Placement.SUFFIX)
    expected = encoder.encode_ids(contents)

    def full(self, roots, count):
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(PrefixReuse, "vectors", full)
    for _ in range(2):
        assert difference(encoder.encode_ids(contents), expected) < 1e-5
    assert caplog.text.count("continuing without reuse") == 1


def test_a_beginning_is_computed_once_and_again_when_weights_change(monkeypatch):
    made = []
    build = prompt_runner.FixedBeginnings.__init__

    def counted(self, model, numbers):
        made.append(tuple(numbers))
        build(self, model, numbers)

    encoder = encoder_of("qwen2", read("ke", (1, 3), 3))
    encoder.encode(tiny.sentences(8))  # tries the model out
    monkeypatch.setattr(prompt_runner.FixedBeginnings, "__init__", counted)
    first = encoder.encode(tiny.sentences(8))
    assert np.array_equal(encoder.encode(tiny.sentences(8)), first)
    assert made == []
    encoder.encode_layers(tiny.sentences(8), [2, 3])
    assert made == [(2, 3)]
    with torch.no_grad():
        encoder._prompted.decoder.layers[0].self_attn.k_proj.weight.mul_(1.5)
    found = encoder.encode(tiny.sentences(8))
    plain = CausalPromptEncoder(encoder._model, encoder._user_tokenizer, "x", encoder.reading, reuse=None)
    assert difference(found, plain.encode(tiny.sentences(8))) < 1e-5
    assert np.abs(found - first).max() > 1e-3


@pytest.mark.parametrize("precision", [Precision.BFLOAT16, Precision.INT8])
@pytest.mark.parametrize("span", [None, (1, 3)])
def test_in_a_lower_precision_vectors_do_not_depend_on_what_was_encoded_before(precision, span):
    try:
        encoder = encoder_of("llama", read("ke", span, 3)).at(precision)
    except InputError as error:
        pytest.skip(str(error))
    contents = probes_of(encoder, Placement.SUFFIX, tokens=2)
    first = encoder.encode_ids(contents)
    encoder.encode_layers(tiny.sentences(8), [1, 2])
    encoder.encode(tiny.sentences(3))
    assert np.array_equal(encoder.encode_ids(contents), first)
    assert np.array_equal(encoder_of("llama", read("ke", span, 3)).at(precision).encode_ids(contents), first)
