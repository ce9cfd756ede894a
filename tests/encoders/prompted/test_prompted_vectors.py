"""Vectors against published values, and against plain hooks on transformers for many families of decoders."""

import json

import numpy as np
import pytest
import torch
import transformers

import prompt_reference
import tiny_architectures as architectures
import tiny_decoders
from prompt_reference import SENTENCES
from prompted_loading import read
from stickytoken.encoders.compute.prefixes import ReuseLimits
from stickytoken.encoders.prompted.encoder import CausalPromptEncoder
from stickytoken.encoders.prompted.layers import contrasted
from stickytoken.encoders.prompted.model import Reading
from stickytoken.encoders.prompted.module import CausalPrompt
from stickytoken.encoders.prompted.prompts import Contrast, ContrastRule, clean_sentence
from stickytoken.errors import ModelError

# Values of the published code.


@pytest.mark.slow
def test_the_published_embeddings_states_and_ids(shared):
    folder = shared / "tp_golden_llama"
    values = json.loads((folder / "golden.json").read_text("utf-8"))
    model = transformers.AutoModel.from_pretrained(folder / "model").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "model")
    assert all(clean_sentence(text) == cleaned for text, cleaned in values["clean"])
    reused = 0
    for case in values["models"]["llama"]["cases"]:
        span = (case["tp_starting_index"], case["tp_exiting_index"]) if case["plan"] == "tp" else None
        reading = read(case["method"], span, case["output_layer"])
        encoder = CausalPromptEncoder(model, tokenizer, "golden", reading, reuse=ReuseLimits(fixed_share=0))
        sentences = [values["sentences"][each] for each in case["sentence_idx"]]
        expected = np.array(case["embedding"], np.float32)
        assert np.abs(encoder.encode(sentences) - expected).max() < 2e-5
        repeated = [*sentences, *(f"{number} dogs" for number in range(8))]
        assert np.abs(encoder.encode(repeated)[: len(sentences)] - expected).max() < 2e-5
        reused += vars(encoder._runner).get("_beginnings_agree", False)
        prompted = encoder.prompted
        layout = prompted.layout(prompted.rows([text.ids for text in encoder.tokenize(sentences)]))
        assert layout["input_ids"].tolist() == case["input_ids"]
        assert layout["attention_mask"].tolist() == case["attention_mask"]
        if case["pst_index"] is not None:
            assert layout["prompt_slots"][:, 2].tolist() == case["pst_index"]
        if "last_token_hidden_states" in case:
            found = encoder.encode_layers(sentences, range(1, encoder.layers + 1))
            states = np.array(case["last_token_hidden_states"], np.float32)[1:].swapaxes(0, 1)
            assert np.abs(found - states).max() < 2e-5
    assert reused == 12


# Many families.

_SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 512,
}
_GROUPED = {"num_key_value_heads": 2, **_SIZES}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_GPT = {"n_embd": 32, "n_layer": 4, "n_head": 4, "n_positions": 512}
_OPT = {"ffn_dim": 64, "word_embed_proj_dim": 16, "do_layer_norm_before": False, **_SIZES}
_BY_LAYER = {"vocab_size_per_layer_input": 600, "hidden_size_per_layer_input": 8, "head_dim": 8}
FAMILIES = {
    "qwen3-moe": ("Qwen3Moe", {"head_dim": 8, **_EXPERTS, **_GROUPED}),
    "olmo2": ("Olmo2", _GROUPED),
    "opt, post-norm": ("OPT", _OPT),
    "falcon, alibi": ("Falcon", {"alibi": True, **_SIZES}),
    "gpt-j": ("GPTJ", {"rotary_dim": 4, **_GPT}),
    "openai-gpt": ("OpenAIGPT", _GPT),  # its layers return lists, and keep no keys and values
    "gemma 4": ("Gemma4Text", {**_BY_LAYER, "global_head_dim": 8, "num_kv_shared_layers": 0, **_GROUPED}),
    "lfm2": ("Lfm2", {"layer_types": ["conv", "full_attention"] * 2, **_GROUPED}),
}
WINDOWS = ("mistral", "gemma2", "gemma3")
BY_HEAD = Contrast(1, None, ContrastRule.SUB_HEAD_NORM)
EVERYWHERE = {
    "plain": read(layer=2),
    "prepended": read(span=(1, 3), layer=3),
    "from the embedding": read("cot", (0, 99)),
    "contrast": read(span=(1, 3), contrast=BY_HEAD),
}
ON_ONE = {
    "one layer": read("cot", (2, 3), -2),
    "read before the exit": read(span=(1, 4), layer=2),
    "eight prompts": read("metaeol", (1, 3), 3),
    "scaled": read(layer=3, contrast=Contrast(2, 0.5)),
    "scaled_norm": read("ck", None, -2, Contrast(0, 0.25, ContrastRule.SCALED_NORM)),
    "norm": read("ck", (0, 99), 3, Contrast(1, None, ContrastRule.NORM)),
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


def parts_of(name, **changes):
    """A model with a row for the placeholder, and the tokenizer without it."""
    if name in FAMILIES:
        tokenizer = architectures.qwen_tokenizer(closing=False)
        tokenizer.model_max_length = 512
        return random_model(*FAMILIES[name], rows=len(tokenizer) + 3), tokenizer
    model, tokenizer = tiny_decoders.decoder(name, **changes)
    torch.manual_seed(1)
    model.resize_token_embeddings(len(tokenizer) + 8, mean_resizing=False)
    return model, tokenizer


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "case"),
    [(name, case) for name in (*tiny_decoders.DECODERS, *FAMILIES) for case in ("prepended", "contrast")]
    + [("qwen2", case) for case in ("plain", "from the embedding", *ON_ONE)],
)
def test_a_family_gives_what_hooks_on_transformers_give(name, case):
    reading = (EVERYWHERE | ON_ONE)[case]
    # A window that hides how the prompts begin leaves nothing to subtract.
    wide = {"sliding_window": 512} if name in WINDOWS and reading.contrast is not None else {}
    model, tokenizer = parts_of(name, **wide)
    expected = prompt_reference.through_transformers(model, tokenizer, reading)
    tolerance = 1e-5 * max(1.0, float(np.abs(expected).max()))
    alone = CausalPromptEncoder(model, tokenizer, "tiny", reading, reuse=None, token_budget=1)
    assert np.abs(alone.encode(SENTENCES) - expected).max() < tolerance
    always = ReuseLimits(fixed_share=0, rows=1)
    encoder = CausalPromptEncoder(model, tokenizer, "tiny", reading, reuse=always)
    assert np.abs(encoder.encode(SENTENCES[::-1])[::-1] - expected).max() < tolerance
    assert vars(encoder._runner)["_beginnings_agree"] or name in FAMILIES
    module = CausalPrompt(model, tokenizer, **reading.options)
    with torch.inference_mode():
        padded = module(module.preprocess(SENTENCES))["sentence_embedding"].numpy()
    assert np.abs(padded - expected).max() < tolerance
    if reading.contrast is not None:
        plain = encoder.reread(Reading(reading.prompt, reading.prepending, reading.layer))
        assert np.abs(plain.encode(SENTENCES) - expected).max() > 1000 * tolerance


def test_an_echo_is_the_mean_over_the_second_copy():
    model, tokenizer = tiny_decoders.decoder("qwen2")
    encoder = CausalPromptEncoder(model, tokenizer, "tiny", read("echo"))
    for sentence in ("the old river sings", "a bird"):
        whole = tokenizer(f"Rewrite the sentence: {sentence}, rewritten sentence: {sentence}")["input_ids"]
        before = tokenizer(f"Rewrite the sentence: {sentence}, rewritten sentence:")["input_ids"]
        with torch.inference_mode():
            states = model(input_ids=torch.tensor([whole])).last_hidden_state[0, len(before) :]
        assert np.abs(encoder.encode([sentence])[0] - states.mean(0).numpy()).max() < 1e-5


# The placeholder's vector.


def test_the_placeholder_is_a_fixed_vector_that_matters_from_layer_1_on():
    parts = tiny_decoders.decoder("qwen2")
    for start, matters in ((0, False), (1, True)):
        encoder, again = (CausalPromptEncoder(*parts, "tiny", read(span=(start, 3))) for _ in range(2))
        before = encoder.encode(SENTENCES)
        assert np.array_equal(again.encode(SENTENCES), before)
        assert again.prompted.placeholder is not None
        vars(again.prompted)["placeholder"] = torch.zeros(tiny_decoders.DIMENSION)
        assert bool(np.abs(again.encode(SENTENCES) - before).max() > 1e-3) is matters


def test_a_placeholder_without_a_row_reads_the_embeddings_by_layer_of_token_0():
    with_row, tokenizer = parts_of("gemma 4")
    model = random_model(*FAMILIES["gemma 4"], rows=len(tokenizer))
    # Overwritten late, so that what the placeholder reads in the first layer matters.
    reading = read(span=(2, 3), layer=4)
    encoder = CausalPromptEncoder(model, tokenizer, "tiny", reading)
    with torch.no_grad():
        own = with_row.state_dict()
        for key, value in model.state_dict().items():
            own[key][: len(value)] = value
        # A Gemma multiplies its embeddings by the root of their width.
        with_row.embed_tokens.weight[len(tokenizer)] = encoder.prompted.placeholder / 32**0.5
        with_row.embed_tokens_per_layer.weight[len(tokenizer)] = model.embed_tokens_per_layer.weight[0]
    expected = CausalPromptEncoder(with_row, tokenizer, "tiny", reading).encode(SENTENCES)
    assert np.abs(encoder.encode(SENTENCES) - expected).max() < 1e-4


# Contrast.


@pytest.mark.parametrize("rule", ContrastRule)
def test_each_rule_is_its_formula_in_double_precision(rule):
    settings = Contrast(0, 0.25 if rule.scales else None, rule)
    own, other = torch.from_numpy(np.random.default_rng(0).standard_normal((2, 5, 24)))
    expected = [prompt_reference.by_rule(*rows, settings, 4) for rows in zip(own, other, strict=True)]
    np.testing.assert_allclose(contrasted(own, other, settings, 4).numpy(), expected, rtol=1e-13)
    # A difference that is rounding is none, as behind a sliding window that hides how the prompts begin.
    own = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
    assert not contrasted(own, own + 1e-7 * own.roll(1, dims=0), settings, 2).any()
    assert contrasted(own, own * (1 + 1e-4), settings, 2).any()


def test_contrast_needs_a_layer_whose_attention_has_an_output_projection():
    parts = parts_of("lfm2")
    with pytest.raises(ModelError, match=r"layer 2 of tiny \(a lfm2\) .* layers 1, 3 have one"):
        CausalPromptEncoder(*parts, "tiny", read(contrast=Contrast(2)))
    module = CausalPrompt(*parts, contrast=True)  # the default chooses one that has
    assert module.reading.contrast == Contrast(1)
    # Bloom can multiply by slices of the weights itself.
    encoder = CausalPromptEncoder(*tiny_decoders.decoder("bloom"), "tiny", read(contrast=Contrast(1)))
    attention = encoder.prompted.decoder.layers[1].self_attention
    attention.pretraining_tp, attention.slow_but_exact = 2, True
    with pytest.raises(ModelError, match="tiny does not call the output projection of layer 1 as a module"):
        encoder.encode(["a bird"])


# Models that prompts cannot read.

_STATE = {"hidden_size": 32, "num_hidden_layers": 2}


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("Mamba", {**_STATE, "state_size": 8}),
        ("RecurrentGemma", {**_STATE, "num_hidden_layers": 3, "num_attention_heads": 4, "lru_width": 32}),
    ],
)
def test_recurrent_models_are_refused(kind, settings):
    tokenizer = architectures.qwen_tokenizer(closing=False)
    model = random_model(kind, settings, rows=len(tokenizer))
    with pytest.raises(ModelError, match="a recurrent model"):
        CausalPromptEncoder(model, tokenizer, "tiny", read())


def test_models_that_are_no_decoders_are_refused(tmp_path):
    tokenizer = architectures.qwen_tokenizer(closing=False)
    bert = transformers.BertModel(transformers.BertConfig(vocab_size=600, **_SIZES))
    sizes = {"d_model": 32, "d_ff": 32, "num_layers": 1, "num_heads": 2, "d_kv": 8}
    t5 = transformers.T5Model(transformers.T5Config(vocab_size=600, **sizes))
    modern = transformers.AutoModel.from_pretrained(architectures.modernbert(tmp_path / "modernbert"))
    for model, reason in (
        (bert, "decoder-only"),
        (t5, "encoder-decoder"),
        (torch.nn.Linear(2, 2), "not a transformers language model"),
        (modern, r"attend to later ones \(an encoder\)"),
        (tiny_decoders.decoder("qwen2")[0].to("meta"), "meta device"),
    ):
        with pytest.raises(ModelError, match=reason):
            CausalPromptEncoder(model, tokenizer, "x", read(span=(1, 3)))
