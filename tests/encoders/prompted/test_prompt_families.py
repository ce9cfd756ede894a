"""Families of decoders beside the common ones: experts, post-norm, recurrent layers, embeddings by layer."""

import copy

import numpy as np
import pytest
import torch
import transformers

import contrast_reference
import tiny_architectures as architectures
from stickytoken.encoders.prefixes import ReuseLimits
from stickytoken.encoders.prompted.encoder import CausalPromptEncoder
from stickytoken.encoders.prompted.layer_states import TokenPrepending
from stickytoken.encoders.prompted.model import Reading
from stickytoken.encoders.prompted.module import CausalPrompt
from stickytoken.encoders.prompted.prompts import Contrast, ContrastRule, find_prompt
from stickytoken.errors import EncodingError, ModelError
from stickytoken.inspection import inspector_of
from stickytoken.inspection.integrated_jacobians import JacobianIntegrator

LAYERS = 4
SENTENCES = ("the old river.", "a bird", "", "the quiet winter night walks under the glass")
PLAIN_PROMPT = 'This sentence : "{}" means in one word:"'
PROMPT = PLAIN_PROMPT.replace(': "', ': <PST> "')
_SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 512,
}
_GROUPED = {"num_key_value_heads": 2, **_SIZES}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_GPT = {"n_embd": 32, "n_layer": LAYERS, "n_head": 4, "n_positions": 512}
_OPT = {"ffn_dim": 64, "word_embed_proj_dim": 16, "do_layer_norm_before": False, **_SIZES}
_BY_LAYER = {"vocab_size_per_layer_input": 600, "hidden_size_per_layer_input": 8, "head_dim": 8}
_STATE = {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 8}
FAMILIES = {
    "mixtral": ("Mixtral", {"num_local_experts": 4, **_GROUPED}),
    "qwen3-moe": ("Qwen3Moe", {"head_dim": 8, **_EXPERTS, **_GROUPED}),
    "olmo2": ("Olmo2", _GROUPED),
    "cohere": ("Cohere", _GROUPED),
    "stablelm": ("StableLm", {**_SIZES, "num_key_value_heads": 4}),
    "granite": ("Granite", {"embedding_multiplier": 6.0, "residual_multiplier": 0.3, **_GROUPED}),
    "opt, post-norm": ("OPT", _OPT),
    "falcon, alibi": ("Falcon", {"alibi": True, **_SIZES}),
    "gpt-neox, serial": ("GPTNeoX", {"use_parallel_residual": False, **_SIZES}),
    "gpt-j": ("GPTJ", {"rotary_dim": 4, **_GPT}),
    "openai-gpt": ("OpenAIGPT", _GPT),  # its layers return lists, and keep no keys and values
    "gemma 4": ("Gemma4Text", {**_BY_LAYER, "global_head_dim": 8, "num_kv_shared_layers": 0, **_GROUPED}),
    "lfm2": ("Lfm2", {"layer_types": ["conv", "full_attention"] * 2, **_GROUPED}),
}


def random_model(kind, settings, rows):
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(vocab_size=rows, **settings)
    for role in ("pad", "bos", "eos"):
        if (getattr(config, f"{role}_token_id", None) or 0) >= rows:
            setattr(config, f"{role}_token_id", None)
    model = getattr(transformers, f"{kind}Model")(config).eval()
    with torch.no_grad():
        for weights in model.parameters():
            if weights.ndim > 1:
                weights.copy_(0.25 * torch.randn_like(weights))
    return model


def tokenizer_of(longest=512):
    tokenizer = architectures.qwen_tokenizer(closing=False)
    tokenizer.model_max_length = longest
    return tokenizer


@pytest.fixture(scope="module", params=FAMILIES)
def parts(request):
    """A model with a row for the placeholder, and the tokenizer without it."""
    return parts_of(request.param)


def parts_of(name):
    tokenizer = tokenizer_of()
    return random_model(*FAMILIES[name], rows=len(tokenizer) + 3), tokenizer


def layers_of(model):
    base = model.get_decoder()
    return next(getattr(base, name) for name in ("layers", "h") if hasattr(base, name))


def through_transformers(model, tokenizer, span, layer):
    """Each sentence alone, from ids, the layers' own forward passes wrapped."""
    own = copy.deepcopy(tokenizer)
    own.add_tokens(["<PST>"])
    placeholder, found = own.convert_tokens_to_ids("<PST>"), []
    for sentence in SENTENCES:
        closed = sentence if sentence.endswith(".") or not sentence else f"{sentence}."
        ids = own((PLAIN_PROMPT if span is None else PROMPT).format(closed))["input_ids"]
        wrapped = [] if span is None else layers_of(model)[slice(*span)]
        for part in wrapped:
            part.forward = copying(part.forward, ids.index(placeholder))
        try:
            with torch.inference_mode():
                output = model(input_ids=torch.tensor([ids]), output_hidden_states=True, use_cache=False)
        finally:
            for part in wrapped:
                del part.forward
        found.append(output.hidden_states[layer][0, -1].numpy())
    return np.stack(found)


def copying(forward, place):
    def run(states, *args, **kwargs):
        states = states.clone()
        states[0, place] = states[0, -1].clone()
        return forward(states, *args, **kwargs)

    return run


def test_a_family_is_looked_into_and_attributed(parts):
    encoder = CausalPromptEncoder(*parts, "tiny", Reading(find_prompt("prompteol"), TokenPrepending(1, 3), 3))
    inspector = inspector_of(encoder)
    content = encoder.tokenize([SENTENCES[0]])[0].ids
    expected = encoder.encode_ids([content])[0].astype(float)
    inside = inspector.look([content], [[0] * len(content)], 1)[0]
    scale = np.abs(expected).max()
    assert np.abs(inside.vector - expected).max() < 1e-5 * max(1, scale)
    np.testing.assert_allclose(inside.hidden[-1][-1], inside.vector, atol=1e-6 * max(1, scale))
    if inside.attention is not None:
        np.testing.assert_allclose(inside.attention.sum(axis=-1), 1, atol=1e-4)
    asked = (content, [0] * len(content), 32)
    if parts[0].config.model_type in ("mixtral", "qwen3_moe"):  # torch's product of experts has no derivative
        with pytest.raises(ModelError, match="one of its operations has no forward-mode derivative"):
            JacobianIntegrator(inspector).contributions(*asked)
        return
    found = JacobianIntegrator(inspector).contributions(*asked)
    assert found.error < 0.05
    np.testing.assert_allclose(found.vector, expected / np.linalg.norm(expected), atol=1e-5)


@pytest.mark.parametrize(("span", "layer"), [(None, -1), ((1, 3), 3), ((2, 99), -1)])
def test_a_family_gives_what_transformers_gives_alone_in_batches_and_padded(parts, span, layer):
    expected = through_transformers(*parts, span, layer)
    tolerance = 1e-5 * max(1.0, float(np.abs(expected).max()))
    reading = Reading(find_prompt("prompteol"), None if span is None else TokenPrepending(*span), layer)
    encoder = CausalPromptEncoder(*parts, "tiny", reading)
    assert np.abs(encoder.encode(SENTENCES) - expected).max() < tolerance
    # Often enough that keys and values of the beginning are reused where they can be.
    assert np.abs(encoder.encode(SENTENCES * 3) - np.tile(expected, (3, 1))).max() < tolerance
    options = {} if span is None else {"token_prepending": True, "start": span[0], "exit": span[1]}
    module = CausalPrompt(*parts, layer=layer, **options)
    with torch.inference_mode():
        padded = module(module.preprocess(SENTENCES))["sentence_embedding"].numpy()
    assert np.abs(padded - expected).max() < tolerance


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize(("span", "rule"), [(None, "scaled"), ((1, 3), "sub_head_norm")])
def test_contrast_gives_what_hooks_on_transformers_give(name, span, rule):
    parts = parts_of(name)
    # Every other layer of LFM 2 is a convolution.
    contrast = Contrast(1, 0.5 if rule == "scaled" else None, ContrastRule(rule))
    prepending = None if span is None else TokenPrepending(*span)
    reading = Reading(find_prompt("prompteol"), prepending, 3, contrast)
    expected = contrast_reference.through_transformers(name, *parts, reading, "prompteol")
    tolerance = 1e-5 * float(np.abs(expected).max())
    texts = contrast_reference.SENTENCES
    encoder = CausalPromptEncoder(*parts, "tiny", reading, reuse=ReuseLimits(fixed_share=0, rows=1))
    assert np.abs(encoder.encode(texts) - expected).max() < tolerance
    module = CausalPrompt(*parts, **reading.options)
    with torch.inference_mode():
        padded = module(module.preprocess(texts))["sentence_embedding"].numpy()
    assert np.abs(padded - expected).max() < tolerance


def test_contrast_needs_a_layer_whose_attention_has_an_output_projection():
    parts = parts_of("lfm2")
    with pytest.raises(
        ModelError, match=r"layer 2 of tiny \(a lfm2\) has no output projection .* layers 1, 3 have one"
    ):
        CausalPromptEncoder(*parts, "tiny", Reading(find_prompt("prompteol"), None, -1, Contrast(2)))
    module = CausalPrompt(*parts, contrast=True)  # the default chooses one that has
    assert module.reading.contrast == Contrast(1)
    model, tokenizer = parts_of("olmo2")
    for layer in model.layers:
        layer.self_attn.mixing = layer.self_attn.o_proj
        del layer.self_attn.o_proj
        layer.self_attn.forward = _renamed(layer.self_attn)
    with pytest.raises(ModelError, match=r"layer 0 of Olmo2Model .* no other layer has one either"):
        CausalPrompt(model, tokenizer, contrast=True)


def _renamed(attention):
    """The forward pass of an attention whose projection has another name."""

    def run(*args, **kwargs):
        vars(attention)["o_proj"] = attention.mixing
        try:
            return type(attention).forward(attention, *args, **kwargs)
        finally:
            del vars(attention)["o_proj"]

    return run


def test_a_placeholder_without_a_row_reads_the_embeddings_by_layer_of_token_0():
    tokenizer = tokenizer_of()
    model = random_model(*FAMILIES["gemma 4"], rows=len(tokenizer))
    with_row = random_model(*FAMILIES["gemma 4"], rows=len(tokenizer) + 1)
    # Overwritten late, so that what the placeholder reads in the first layer matters.
    reading = Reading(find_prompt("prompteol"), TokenPrepending(2, 3), 4)
    encoder = CausalPromptEncoder(model, tokenizer, "tiny", reading)
    with torch.no_grad():
        state = {
            key: value if value.shape == with_row.state_dict()[key].shape else torch.cat([value, value[:1]])
            for key, value in model.state_dict().items()
        }
        with_row.load_state_dict(state)
        # A Gemma multiplies its embeddings by the root of their width.
        with_row.embed_tokens.weight[-1] = encoder._prompted.placeholder / 32**0.5
        with_row.embed_tokens_per_layer.weight[len(tokenizer)] = model.embed_tokens_per_layer.weight[0]
    expected = CausalPromptEncoder(with_row, tokenizer, "tiny", reading).encode(SENTENCES)
    assert np.abs(encoder.encode(SENTENCES) - expected).max() < 1e-4


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("Mamba", _STATE),
        ("Mamba2", {**_STATE, "num_heads": 8, "head_dim": 8, "n_groups": 2}),
        ("Rwkv", {"hidden_size": 32, "num_hidden_layers": 2, "attention_hidden_size": 32}),
        ("RecurrentGemma", {**_SIZES, "num_hidden_layers": 3, "lru_width": 32}),
    ],
)
def test_recurrent_models_are_refused(kind, settings):
    tokenizer = tokenizer_of()
    settings = {key: value for key, value in settings.items() if key != "max_position_embeddings"}
    model = random_model(kind, settings, rows=len(tokenizer))
    with pytest.raises(ModelError, match="a recurrent model: prompts need"):
        CausalPromptEncoder(model, tokenizer, "tiny", Reading(find_prompt("prompteol"), None, -1))


def test_a_model_with_several_states_a_token_is_read_behind_the_last_layer_alone():
    tokenizer = tokenizer_of()
    settings = {
        **_GROUPED,
        **_BY_LAYER,
        "intermediate_size": [64] * LAYERS,
        "laurel_rank": 8,
        "num_kv_shared_layers": 0,
        "activation_sparsity_pattern": [0.0] * LAYERS,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
    }
    model = random_model("Gemma3nText", settings, rows=len(tokenizer))
    plain = CausalPromptEncoder(model, tokenizer, "tiny", Reading(find_prompt("prompteol"), None, -1))
    ids = tokenizer(PLAIN_PROMPT.format("a bird."))["input_ids"]
    with torch.inference_mode():
        expected = model(input_ids=torch.tensor([ids])).last_hidden_state[0, -1].numpy()
    assert np.abs(plain.encode(["a bird"])[0] - expected).max() < 1e-5
    for span, layer in ((TokenPrepending(1, 3), -1), (None, 2)):
        encoder = CausalPromptEncoder(
            model, tokenizer, "tiny", Reading(find_prompt("prompteol"), span, layer)
        )
        with pytest.raises(ModelError, match="one state per token"):
            encoder.encode(["a bird"])


def test_weights_that_are_not_in_memory_are_an_error_that_says_so():
    tokenizer = tokenizer_of()
    model = random_model("Olmo2", _GROUPED, rows=len(tokenizer))
    encoder = CausalPromptEncoder(model, tokenizer, "tiny", Reading(find_prompt("prompteol"), None, 1))
    assert encoder.dimension == 32
    model.layers[2].to("meta")
    with pytest.raises(ModelError, match=r"layers\.2\..* offloaded"):
        _ = encoder.identity


def test_half_a_surrogate_pair_is_shown_in_the_sentence_not_in_the_prompt():
    tokenizer = tokenizer_of()
    model = random_model("Olmo2", _GROUPED, rows=len(tokenizer))
    encoder = CausalPromptEncoder(model, tokenizer, "tiny", Reading(find_prompt("ke"), None, -1))
    with pytest.raises(EncodingError, match=r"the text 'a \\ud800 b\.' contains half a surrogate pair"):
        encoder.encode(["fine", "a \ud800 b"])
