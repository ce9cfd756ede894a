"""A look inside prompted models: states, attention, parts, contributions; against plain passes."""

import numpy as np
import pytest
import torch

import plain_decoder
import tiny_decoders
from inspection_checks import assert_batches_and_order_change_nothing
from stickytoken.encoders.prompted.encoder import CausalPromptEncoder
from stickytoken.encoders.prompted.layer_states import TokenPrepending
from stickytoken.encoders.prompted.model import Reading
from stickytoken.encoders.prompted.prompts import Contrast, Prompt, find_prompt
from stickytoken.errors import EncodingError, ModelError
from stickytoken.inspection import inspector_of
from stickytoken.inspection.integrated_jacobians import JacobianIntegrator

TEXT = "the river sings near the old bridge"
COPIES = 4
REFERENCED = ("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "phi3", "gpt2")


def encoder_of(name="qwen2", prompt="prompteol", span=None, layer=-1, **options):
    model, tokenizer = tiny_decoders.decoder(name)
    prepending = None if span is None else TokenPrepending(*span)
    return CausalPromptEncoder(
        model, tokenizer, "tiny", Reading(find_prompt(prompt), prepending, layer), **options
    )


def with_copies(encoder):
    """Content ids of the text and copies of its first token behind it, with their labels."""
    ids = encoder.tokenize([TEXT])[0].ids
    return (*ids, *ids[:1] * COPIES), [0] * len(ids) + [1] * COPIES


def look(encoder):
    content, labels = with_copies(encoder)
    return content, inspector_of(encoder).look([content], [labels], 2)[0]


def prompt_ids(encoder, content, prompt=0):
    return encoder.prompted.prompts[prompt].fill(content)


def part_labels(encoder, content, prompt=0):
    """Labels of a whole prompt, found by counting from its ends."""
    size = len(prompt_ids(encoder, content, prompt))
    first = len(encoder.prompted.prompts[prompt].before)
    own = [0] * (len(content) - COPIES) + [1] * COPIES
    return np.array([2] * first + own + [2] * (size - first - len(content)))


def plain_output(encoder, ids, *, weights=True):
    """What transformers itself says of a prompt."""
    model = encoder.prompted.decoder.model
    before = model.config._attn_implementation
    if weights:
        model.set_attn_implementation("eager")
    inputs = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids), dtype=torch.long)}
    try:
        with torch.no_grad():
            return model(**inputs, output_attentions=weights, output_hidden_states=True)
    finally:
        if weights:
            model.set_attn_implementation(before)


@pytest.mark.parametrize("name", tiny_decoders.DECODERS)
def test_attention_and_states_are_those_of_plain_transformers(name, caplog):
    encoder = encoder_of(name)
    content, inside = look(encoder)
    assert "attention implementation" not in caplog.text  # nothing is asked of a model that it refuses
    weighed = name != "falcon"  # stays with its fused kernels, which hold no weights
    out = plain_output(encoder, prompt_ids(encoder, content), weights=weighed)
    hidden = torch.stack(out.hidden_states[: tiny_decoders.LAYERS])[:, 0].numpy()
    if name == "opt":  # its output is narrower than its layers: there is no one table of states
        assert inside.hidden is None
    else:
        np.testing.assert_allclose(inside.hidden[:-1], hidden, atol=2e-5)
        np.testing.assert_allclose(inside.hidden[-1], out.last_hidden_state[0], atol=2e-5)
    labels = part_labels(encoder, content)
    assert inside.labels.tolist() == labels.tolist()
    if not weighed:
        assert inside.attention is None
        return
    weights = torch.stack(out.attentions)[:, 0].double().numpy()
    for attends in range(3):
        shares = inside.attention[:, :, attends]
        np.testing.assert_allclose(shares.sum(axis=-1), 1, atol=1e-5)
        for receives in range(3):
            mean = weights[:, :, labels == attends][..., labels == receives].sum(axis=-1).mean(axis=-1)
            np.testing.assert_allclose(shares[..., receives], mean, atol=2e-5)


@pytest.mark.parametrize("name", REFERENCED)
@pytest.mark.parametrize("start", [0, 1])
def test_overwritten_states_are_those_of_layers_called_one_by_one(name, start):
    encoder = encoder_of(name, span=(start, 3))
    content, inside = look(encoder)
    ids, reading = prompt_ids(encoder, content), encoder.prompted.prompts[0]
    place = reading.place % len(ids)
    # A row of its own, or a vector in place of a row: the reference is given the same.
    model, placeholder = encoder.prompted.decoder.model, encoder.prompted.placeholder
    rows = model.get_input_embeddings()
    known = [min(each, rows.num_embeddings - 1) for each in ids]
    handle = rows.register_forward_hook(
        lambda _, __, found: (
            found.index_copy(1, torch.tensor([place]), placeholder[None, None].to(found))
            if placeholder is not None
            else found
        )
    )
    try:
        with torch.no_grad():
            states = plain_decoder.prompt_states(model, known, start=start, stop=3, place=place)
    finally:
        handle.remove()
    expected = torch.stack(states).numpy()
    others = np.arange(len(ids)) != place
    np.testing.assert_allclose(inside.hidden[:, others], expected[:, others], atol=2e-4)
    np.testing.assert_allclose(inside.attention.sum(axis=-1), 1, atol=1e-5)


@pytest.mark.parametrize(("prompt", "span"), [("prompteol", (1, 3)), ("ck", None)])
def test_with_contrast_the_look_and_the_attribution_give_the_encoder_s_vector(prompt, span):
    model, tokenizer = tiny_decoders.decoder("qwen2")
    prepending = None if span is None else TokenPrepending(*span)
    reading = Reading(find_prompt(prompt), prepending, 3, Contrast(1))
    encoder = CausalPromptEncoder(model, tokenizer, "tiny", reading)
    content, inside = look(encoder)
    expected = encoder.encode_ids([content])[0]
    np.testing.assert_allclose(inside.vector, expected, atol=1e-5 * np.abs(expected).max())
    parts = JacobianIntegrator(inspector_of(encoder)).contributions(content, [0] * len(content), 64)
    assert parts.error < 0.05
    unit = expected / np.linalg.norm(expected)
    np.testing.assert_allclose(parts.vector, unit, atol=1e-5)


@pytest.mark.parametrize("prompt", ["prompteol", "metaeol", "echo"])
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("layer", [-1, 2])
def test_the_vector_is_that_of_the_encoder_and_the_sum_of_its_parts(prompt, normalize, layer):
    encoder = encoder_of(prompt=prompt, layer=layer, normalize=normalize)
    content, inside = look(encoder)
    np.testing.assert_allclose(inside.vector, encoder.encode_ids([content])[0], atol=1e-5)
    np.testing.assert_allclose(inside.supplied.sum(axis=0), inside.pooled, atol=1e-6)
    direction = inside.pooled / np.linalg.norm(inside.pooled)
    np.testing.assert_allclose(inside.vector / np.linalg.norm(inside.vector), direction, atol=1e-6)
    read = tiny_decoders.LAYERS if layer == -1 else layer
    assert (len(inside.hidden), len(inside.attention)) == (read + 1, read)


def test_several_prompts_are_one_input():
    encoder = encoder_of(prompt="metaeol")
    inside = look(encoder)[1]
    alone = [
        look(encoder_of(prompt=Prompt("own", (template,))))[1]
        for template in encoder.reading.prompt.templates
    ]
    assert inside.labels.tolist() == [label for each in alone for label in each.labels.tolist()]
    np.testing.assert_allclose(
        inside.hidden, np.concatenate([each.hidden for each in alone], axis=1), atol=2e-5
    )
    received = np.stack([each.attention for each in alone])
    sizes = np.array([np.bincount(each.labels) for each in alone])
    for part in range(3):
        mean = np.average(received[:, :, :, part], axis=0, weights=sizes[:, part])
        np.testing.assert_allclose(inside.attention[:, :, part], mean, atol=1e-5)
    np.testing.assert_allclose(inside.pooled, np.mean([each.pooled for each in alone], axis=0), atol=1e-5)


def test_an_echo_has_its_text_twice_and_pools_the_second():
    encoder = encoder_of(prompt="echo")
    content, inside = look(encoder)
    ids = np.array(prompt_ids(encoder, content))
    copies = ids[inside.labels == 1]
    assert copies.tolist() == [content[-1]] * 2 * COPIES
    assert ids[inside.labels == 0].tolist() == [*content[:-COPIES]] * 2
    second = np.flatnonzero(inside.labels != 2)[len(content) :]
    states = inside.hidden[-1].astype(float)
    np.testing.assert_allclose(inside.pooled, states[second].mean(axis=0), atol=1e-6)
    np.testing.assert_allclose(
        inside.supplied[1], states[second[-COPIES:]].sum(axis=0) / len(content), atol=1e-6
    )


def test_batches_and_order_change_nothing():
    assert_batches_and_order_change_nothing(encoder_of(span=(1, 3)))


# Contributions.


@pytest.mark.parametrize("name", sorted(set(tiny_decoders.DECODERS) - {"bloom"}))
def test_contributions_sum_to_the_vector(name):
    encoder = encoder_of(name, span=(1, 3))
    ids = encoder.tokenize(["the river sings"])[0].ids
    found = JacobianIntegrator(inspector_of(encoder)).contributions(ids, range(len(ids)), 64)
    vector = encoder.encode_ids([ids])[0].astype(float)
    np.testing.assert_allclose(found.vector, vector / np.linalg.norm(vector), atol=1e-5)
    assert found.error < 0.02
    assert np.linalg.norm(found.parts, axis=1).max() > 0.01


def test_an_operation_without_derivative_is_told():
    encoder = encoder_of("bloom")
    with pytest.raises(ModelError, match="has no forward-mode derivative"):
        JacobianIntegrator(inspector_of(encoder)).contributions([20, 21], [0, 0], 2)


@pytest.mark.slow
@pytest.mark.parametrize("prompt", ["metaeol", "echo"])
def test_contributions_of_several_places_sum_to_the_vector(prompt):
    encoder = encoder_of(prompt=prompt, layer=1)
    ids = encoder.tokenize(["the river"])[0].ids
    integrator = JacobianIntegrator(inspector_of(encoder))
    found = integrator.contributions(ids, [0, *[1] * (len(ids) - 1)], 12)
    assert found.error < 0.01
    vector = encoder.encode_ids([ids])[0].astype(float)
    np.testing.assert_allclose(found.vector, vector / np.linalg.norm(vector), atol=1e-5)
    by_token = integrator.contributions(ids, range(len(ids)), 12)
    np.testing.assert_allclose(found.parts[1], by_token.parts[1:].sum(axis=0), atol=1e-5)


@pytest.mark.slow
def test_contributions_are_integrals_of_finite_differences():
    """Every state in double precision, every layer wrapped by hand."""
    encoder = encoder_of("llama", span=(1, 3))
    ids = encoder.tokenize(["the river sings"])[0].ids
    found = JacobianIntegrator(inspector_of(encoder)).contributions(ids, range(len(ids)), 64)
    prompted = encoder.prompted
    model = prompted.decoder.model
    prompt = prompted.prompts[0]
    whole = torch.tensor([prompt.fill(ids)])
    with torch.no_grad():
        rows = prompted.embed(whole).double()
        filler = model.get_input_embeddings()(torch.tensor([encoder._user_tokenizer.pad_token_id])).double()
    model.double()
    inside = slice(len(prompt.before), len(prompt.before) + len(ids))
    reference = rows.clone()
    reference[:, inside] = filler
    place = prompt.place % whole.shape[1]

    def unit_vector(embeddings):
        state = tiny_decoders.plain_state(
            model, prompted.decoder.layers, embeddings, start=1, stop=3, place=place
        )
        return (state / state.norm()).numpy()

    points, step = 400, 1e-5
    for token in (0, len(ids) - 1):
        direction = torch.zeros_like(rows)
        direction[:, len(prompt.before) + token] = (rows - reference)[:, len(prompt.before) + token]
        total = 0
        for along in (np.arange(points) + 0.5) / points:
            here = reference + along * (rows - reference)
            high, low = (unit_vector(here + side * step * direction) for side in (1, -1))
            total = total + (high - low) / (2 * step) / points
        np.testing.assert_allclose(found.parts[token], total, atol=2e-4)


# What is left behind, and bad input.


def state_of(model):
    hooks = [len(part._forward_hooks) + len(part._forward_pre_hooks) for part in model.modules()]
    return model.config._attn_implementation, model.config.output_attentions, hooks, model.training


@pytest.mark.parametrize("name", ["qwen2", "gpt2", "falcon"])
def test_the_model_is_left_as_it_was_even_after_an_error(name, monkeypatch):
    encoder = encoder_of(name, span=(1, 3))
    model = encoder.prompted.decoder.model
    content, labels = with_copies(encoder)
    inspector = inspector_of(encoder)
    inspector.look([content], [labels], 2)  # transformers installs recorders of its own once
    model.train()
    before = state_of(model)
    inspector.look([content], [labels], 2)
    JacobianIntegrator(inspector).contributions(content, labels, 2)
    assert state_of(model) == before

    def broken(*args, **kwargs):
        raise RuntimeError("broken")

    monkeypatch.setattr(encoder.prompted.decoder.layers[2], "forward", broken)
    with pytest.raises(RuntimeError, match="broken"):
        inspector.look([content], [labels], 2)
    with pytest.raises(RuntimeError, match="broken"):
        JacobianIntegrator(inspector).contributions(content, labels, 2)
    assert state_of(model) == before


def test_bad_input_is_refused():
    encoder = encoder_of()
    inspector = inspector_of(encoder)
    with pytest.raises(EncodingError, match="the model reads 512"):
        inspector.look([[20] * 600], [[0] * 600], 1)
    with pytest.raises(EncodingError, match="token id 99999"):
        inspector.look([[99999]], [[0]], 1)
    with torch.no_grad():
        encoder.prompted.decoder.model.get_input_embeddings().weight[20] = float("nan")
    with pytest.raises(EncodingError, match="is not finite"):
        inspector.look([[20, 21]], [[0, 0]], 1)
    with pytest.raises(EncodingError, match="no usable vector"):
        JacobianIntegrator(inspector).contributions([20, 21], [0, 0], 2)
