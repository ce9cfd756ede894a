"""Contrastive prompting against plain hooks on bare transformers, on many architectures."""

import numpy as np
import pytest
import torch

import tiny_decoders
from contrast_reference import AUXILIARY, SENTENCES, by_rule, through_transformers
from stickytoken.encoders.prefixes import ReuseLimits
from stickytoken.encoders.prompted.attention_output import contrasted
from stickytoken.encoders.prompted.encoder import CausalPromptEncoder
from stickytoken.encoders.prompted.layer_states import TokenPrepending
from stickytoken.encoders.prompted.model import Reading
from stickytoken.encoders.prompted.module import CausalPrompt
from stickytoken.encoders.prompted.prompts import Contrast, ContrastRule, find_prompt

WINDOWS = ("mistral", "gemma2", "gemma3")
ALWAYS = ReuseLimits(fixed_share=0, rows=1)


def parts_of(name):
    """A model with a row for the placeholder and windows that no prompt leaves, and its tokenizer."""
    model, tokenizer = tiny_decoders.decoder(name, **({"sliding_window": 512} if name in WINDOWS else {}))
    torch.manual_seed(1)
    rows = torch.nn.Embedding(len(tokenizer) + 3, model.get_input_embeddings().embedding_dim)
    torch.nn.init.normal_(rows.weight, std=0.3)
    own = model.get_input_embeddings()
    with torch.no_grad():
        rows.weight[: len(own.weight)] = own.weight
    own.weight = torch.nn.Parameter(rows.weight.detach())
    own.num_embeddings = len(rows.weight)
    model.config.vocab_size = len(rows.weight)
    return model, tokenizer


CASES = [
    (None, "prompteol", Contrast(1), 3),
    (TokenPrepending(1, 3), "prompteol", Contrast(2, None, ContrastRule.SUB_HEAD_NORM), -1),
    (None, "ck", Contrast(0, 0.25, ContrastRule.SCALED_NORM), -2),
    (TokenPrepending(0, 99), "ck", Contrast(1, None, ContrastRule.NORM), 3),
]


@pytest.mark.slow
@pytest.mark.parametrize("name", tiny_decoders.DECODERS)
@pytest.mark.parametrize("case", CASES, ids=["scaled", "sub_head_norm, TP", "scaled_norm", "norm, TP"])
def test_a_family_gives_what_hooks_on_transformers_give(name, case):
    span, prompt, contrast, layer = case
    model, tokenizer = parts_of(name)
    reading = Reading(find_prompt(prompt), span, layer, contrast)
    expected = through_transformers(name, model, tokenizer, reading, prompt)
    tolerance = 1e-5 * float(np.abs(expected).max())
    for limits in (None, ALWAYS):
        encoder = CausalPromptEncoder(model, tokenizer, "tiny", reading, reuse=limits)
        assert np.abs(encoder.encode(SENTENCES) - expected).max() < tolerance
        assert np.abs(encoder.encode(SENTENCES[::-1])[::-1] - expected).max() < tolerance
        assert np.abs(encoder.encode([SENTENCES[3]])[0] - expected[3]).max() < tolerance
    module = CausalPrompt(model, tokenizer, **reading.options)
    with torch.inference_mode():
        padded = module(module.preprocess(SENTENCES))["sentence_embedding"].numpy()
    assert np.abs(padded - expected).max() < tolerance
    plain = CausalPromptEncoder(model, tokenizer, "tiny", Reading(find_prompt(prompt), span, layer))
    assert np.abs(plain.encode(SENTENCES) - expected).max() > 1000 * tolerance


@pytest.mark.parametrize("rule", ContrastRule)
def test_each_rule_is_its_formula_in_double_precision(rule):
    settings = Contrast(0, 0.25 if rule.scales else None, rule)
    own, other = torch.from_numpy(np.random.default_rng(0).standard_normal((2, 5, 24)))
    found = contrasted(own, other, settings, 4)
    expected = [by_rule(*rows, settings, 4) for rows in zip(own, other, strict=True)]
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-13)


@pytest.mark.parametrize("rule", ContrastRule)
def test_a_difference_that_is_rounding_is_none(rule):
    """As behind a sliding window that hides how the two prompts begin."""
    settings = Contrast(0, 1.0 if rule.scales else None, rule)
    own = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
    noise = 1e-7 * own.roll(1, dims=0)
    assert not contrasted(own, own + noise, settings, 2).any()
    assert contrasted(own, own * (1 + 1e-4), settings, 2).any()


def test_a_prompt_that_is_the_auxiliary_one_is_left_with_nothing_to_attend_to():
    prompt = find_prompt(AUXILIARY.replace("{}", "{sentence}"))
    parts = parts_of("qwen2")
    encoder = CausalPromptEncoder(
        *parts, "tiny", Reading(prompt, None, -1, Contrast(1, None, ContrastRule.NORM))
    )
    zero = CausalPromptEncoder(*parts, "tiny", Reading(prompt, None, -1, Contrast(1, 0.0)))
    found = encoder.encode(SENTENCES)
    np.testing.assert_allclose(found, zero.encode(SENTENCES), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(encoder.encode(SENTENCES[:1])[0], found[0], rtol=1e-5, atol=1e-6)


def test_a_text_with_the_placeholder_in_it_is_read_by_both_prompts():
    """The placeholder has no row in this model."""
    model, tokenizer = tiny_decoders.decoder("qwen2")
    reading = Reading(find_prompt("prompteol"), TokenPrepending(1, 3), 3, Contrast(1))
    encoder = CausalPromptEncoder(model, tokenizer, "tiny", reading)
    assert np.isfinite(encoder.encode(["a <PST> bird", "<PST>"])).all()
