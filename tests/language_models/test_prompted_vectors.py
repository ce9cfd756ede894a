"""Vectors against published values and plain hooks on transformers; and what is computed once for many."""

import copy
import json
import threading
from functools import partial

import numpy as np
import pytest
import torch
import transformers

import tiny
import tiny_architectures as architectures
import tiny_decoders
from naming import naming
from prefix_trees import counted_trees, grid_probes
from prompted_loading import encoder_of, read
from stickytoken.encoders.compute.prefixes import REUSE, ReuseLimits
from stickytoken.errors import ModelError
from stickytoken.insertion import Placement
from stickytoken.language_models.encoder import CausalPromptEncoder
from stickytoken.language_models.module import CausalPrompt
from stickytoken.language_models.prompts import clean_sentence
from stickytoken.language_models.running.decoder import compute_states_after

# Prompts written out: hooks on bare transformers, one sentence at a time, no padding, nothing reused.

SENTENCES = ("the old river.", "a bird", "", "the quiet winter night walks under the glass", 'Is it "old"?')
CLEANED = ("the old river.", "a bird.", "", "the quiet winter night walks under the glass.", "Is it 'old'.")


def through_transformers(model, tokenizer, reading):
    own_tokenizer = copy.deepcopy(tokenizer)
    own_tokenizer.add_tokens(["<PST>"])
    placeholder = own_tokenizer.convert_tokens_to_ids("<PST>")
    span = reading.prepending
    base = model.get_decoder()
    layers = next(getattr(base, name) for name in ("layers", "h") if hasattr(base, name))

    def run(text):
        ids = own_tokenizer(text)["input_ids"]
        ids = ids[:-1] if ids[-1] == own_tokenizer.eos_token_id else ids
        wrapped = layers[span.start : span.exit] if placeholder in ids else []
        for layer in wrapped:
            layer.forward = copying(layer.forward, ids.index(placeholder))
        tensor = torch.tensor([ids])
        try:
            return model(
                input_ids=tensor,
                attention_mask=torch.ones_like(tensor),
                output_hidden_states=True,
                use_cache=False,
            ).hidden_states
        finally:
            for layer in wrapped:
                del layer.forward

    def vector(template, sentence):
        pieces = reading.prompt.split_template(template, prepending=span is not None)
        return run(sentence.join(pieces))[reading.layer][0, -1].numpy()

    with torch.inference_mode():
        templates = reading.prompt.templates
        return np.stack(
            [np.mean([vector(template, text) for template in templates], axis=0) for text in CLEANED]
        )


def copying(forward, place):
    """The forward pass of a layer, the placeholder's state replaced by the last token's."""

    def run(*args, **kwargs):
        states = (args[0] if args else kwargs.pop("hidden_states")).clone()
        states[0, place] = states[0, -1].clone()
        return forward(states, *args[1:], **kwargs)

    return run


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
        sentences = [values["sentences"][sentence_index] for sentence_index in case["sentence_idx"]]
        expected = np.array(case["embedding"], np.float32)
        assert np.abs(encoder.encode(sentences) - expected).max() < 2e-5
        repeated = [*sentences, *(f"{number} dogs" for number in range(8))]
        assert np.abs(encoder.encode(repeated)[: len(sentences)] - expected).max() < 2e-5
        reused += vars(encoder._runner.prompt_reuse).get("agrees", False)
        prompted = encoder.prompted
        layout = prompted.layout(prompted.rows([text.ids for text in encoder.tokenize(sentences)]))
        assert layout["input_ids"].tolist() == case["input_ids"]
        assert layout["attention_mask"].tolist() == case["attention_mask"]
        if case["pst_index"] is not None:
            assert layout["prompt_slots"][:, 2].tolist() == case["pst_index"]
        if "last_token_hidden_states" in case:
            vectors_of_layers = encoder.encode_layers(sentences, range(1, encoder.layers + 1))
            states = np.array(case["last_token_hidden_states"], np.float32)[1:].swapaxes(0, 1)
            assert np.abs(vectors_of_layers - states).max() < 2e-5
    assert reused == 12


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
EVERYWHERE = {
    "plain": read(layer=2),
    "prepended": read(span=(1, 3), layer=3),
    "from the embedding": read("cot", (0, 99)),
}
ON_ONE = {
    "one layer": read("cot", (2, 3), -2),
    "read before the exit": read(span=(1, 4), layer=2),
    "eight prompts": read("metaeol", (1, 3), 3),
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
    [(name, "prepended") for name in (*tiny_decoders.DECODERS, *FAMILIES)]
    + [("qwen2", case) for case in ("plain", "from the embedding", *ON_ONE)],
)
def test_a_family_gives_what_hooks_on_transformers_give(name, case):
    reading = (EVERYWHERE | ON_ONE)[case]
    model, tokenizer = parts_of(name)
    expected = through_transformers(model, tokenizer, reading)
    tolerance = 1e-5 * max(1.0, float(np.abs(expected).max()))
    alone = CausalPromptEncoder(model, tokenizer, "tiny", reading, reuse=None, token_budget=1)
    assert np.abs(alone.encode(SENTENCES) - expected).max() < tolerance
    always = ReuseLimits(fixed_share=0, rows=1)
    encoder = CausalPromptEncoder(model, tokenizer, "tiny", reading, reuse=always)
    assert np.abs(encoder.encode(SENTENCES[::-1])[::-1] - expected).max() < tolerance
    assert vars(encoder._runner.prompt_reuse)["agrees"] or name in FAMILIES
    module = CausalPrompt(model, tokenizer, **reading.prompting.as_options())
    with torch.inference_mode():
        padded = module(module.preprocess(SENTENCES))["sentence_embedding"].numpy()
    assert np.abs(padded - expected).max() < tolerance


_ZAYA = {
    "head_dim": 8,
    "router_hidden_size": 16,
    "layer_types": ["hybrid"] * 4,
    "num_experts": 4,
    "moe_intermediate_size": 32,
    **_GROUPED,
}


@pytest.mark.skipif(not hasattr(transformers, "ZayaConfig"), reason="needs a newer transformers")
def test_a_cache_that_cannot_be_repeated_for_a_batch_is_not_reused():
    tokenizer = architectures.qwen_tokenizer(closing=False)
    tokenizer.model_max_length = 512
    model = random_model("Zaya", _ZAYA, rows=len(tokenizer) + 3)
    with torch.no_grad():
        # With small weights, the cached state hardly matters: only a batch of two shows that it fails.
        for layer in model.layers:
            for weights in layer.parameters():
                weights.mul_(0.02 if weights.ndim > 1 else 1)
    always = ReuseLimits(fixed_share=0, rows=1)
    encoder = CausalPromptEncoder(model, tokenizer, "tiny", read(), reuse=always)
    alone = CausalPromptEncoder(model, tokenizer, "tiny", read(), reuse=None, token_budget=1)
    of_one_length = ["a bird", "a river", "a bird", "a river"]
    assert np.abs(encoder.encode(of_one_length) - alone.encode(of_one_length)).max() < 1e-5
    assert vars(encoder._runner.prompt_reuse)["agrees"] is False


def test_an_echo_is_the_mean_over_the_second_copy():
    model, tokenizer = tiny_decoders.decoder("qwen2")
    encoder = CausalPromptEncoder(model, tokenizer, "tiny", read("echo"))
    for sentence in ("the old river sings", "a bird"):
        ids_of_prompt = tokenizer(f"Rewrite the sentence: {sentence}, rewritten sentence: {sentence}")[
            "input_ids"
        ]
        before = tokenizer(f"Rewrite the sentence: {sentence}, rewritten sentence:")["input_ids"]
        with torch.inference_mode():
            states = model(input_ids=torch.tensor([ids_of_prompt])).last_hidden_state[0, len(before) :]
        assert np.abs(encoder.encode([sentence])[0] - states.mean(0).numpy()).max() < 1e-5


def test_the_placeholder_is_a_fixed_vector_that_matters_from_layer_1_on():
    decoder_parts = tiny_decoders.decoder("qwen2")
    for start, matters in ((0, False), (1, True)):
        encoder, again = (
            CausalPromptEncoder(*decoder_parts, "tiny", read(span=(start, 3))) for _ in range(2)
        )
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
        state = with_row.state_dict()
        for key, value in model.state_dict().items():
            state[key][: len(value)] = value
        # A Gemma multiplies its embeddings by the root of their width.
        with_row.embed_tokens.weight[len(tokenizer)] = encoder.prompted.placeholder / 32**0.5
        with_row.embed_tokens_per_layer.weight[len(tokenizer)] = model.embed_tokens_per_layer.weight[0]
    expected = CausalPromptEncoder(with_row, tokenizer, "tiny", reading).encode(SENTENCES)
    assert np.abs(encoder.encode(SENTENCES) - expected).max() < 1e-4


def test_models_that_are_recurrent_or_no_decoders_are_refused(tmp_path):
    tokenizer = architectures.qwen_tokenizer(closing=False)
    state = {"hidden_size": 32, "num_hidden_layers": 3}
    griffin = {**state, "num_attention_heads": 4, "lru_width": 32}
    sizes = {"d_model": 32, "d_ff": 32, "num_layers": 1, "num_heads": 2, "d_kv": 8}
    for model, named in (
        (random_model("Mamba", {**state, "state_size": 8}, len(tokenizer)), "mamba"),
        (random_model("RecurrentGemma", griffin, len(tokenizer)), "recurrent_gemma"),
        (transformers.BertModel(transformers.BertConfig(vocab_size=600, **_SIZES)), "bert"),
        (transformers.T5Model(transformers.T5Config(vocab_size=600, **sizes)), "t5"),
        (torch.nn.Linear(2, 2), "Linear"),
        (
            transformers.AutoModel.from_pretrained(architectures.modernbert(tmp_path / "modernbert")),
            "modernbert",
        ),
        (tiny_decoders.decoder("qwen2")[0].to("meta"), "meta"),
    ):
        with pytest.raises(ModelError, match=naming("x", named)):
            CausalPromptEncoder(model, tokenizer, "x", read(span=(1, 3)))


# What prompts and sentences begin with, computed once; and what is left behind.

CARRIERS = ("the old river sings to the stone", "a bird", "the quiet winter night walks under the glass")
TINY_SENTENCES = tiny.sentences(8)


def difference(found, expected):
    """The largest one, as a share of the largest component: states between layers are large."""
    return float(np.abs(found - expected).max() / max(1.0, np.abs(expected).max()))


def probes_of(encoder, placement=Placement.SUFFIX, tokens=4):
    return grid_probes(encoder, CARRIERS, placement, tokens)


@pytest.mark.parametrize(
    ("kind", "placement", "reading"),
    [
        ("mistral", Placement.SUFFIX, read()),  # its window is shorter than the prompt
        ("qwen2", Placement.RANDOM, read("ke", None, 3)),
        *(
            pytest.param(kind, Placement.SUFFIX, read(), marks=pytest.mark.slow)
            for kind in ("qwen3", "gemma2", "phi3")
        ),
    ],
)
def test_probes_of_a_plain_prompt_are_computed_as_trees(kind, placement, reading, monkeypatch):
    trees = counted_trees(monkeypatch)
    # Wherever trees are exact, even if they save little.
    encoder = encoder_of(reading, kind, reuse=ReuseLimits(tree_share=1))
    contents = probes_of(encoder, placement, tokens=2)
    vectors = encoder.encode_ids(contents)
    assert trees[-1] == len(set(contents))
    assert difference(vectors, encoder_of(reading, kind, reuse=None).encode_ids(contents)) < 1e-5


@pytest.mark.parametrize(
    ("kind", "reading"),
    [
        ("qwen2", read(span=(1, 3))),  # each token sees what stands behind it
        ("qwen2", read("echo")),
        ("opt", read()),  # its masks are not known
    ],
)
def test_what_does_not_share_beginnings_takes_the_plain_path(kind, reading, monkeypatch):
    trees = counted_trees(monkeypatch)
    encoder, plain = (encoder_of(reading, kind, reuse=reuse) for reuse in (REUSE, None))
    contents = probes_of(encoder)
    assert difference(encoder.encode_ids(contents), plain.encode_ids(contents)) < 1e-5
    encoder_of(read()).encode(TINY_SENTENCES[:6])  # little in common
    assert trees == []


def tokens_seen(model):
    count_of = {}

    def counted(name):
        def hook(_, args, options):
            values = args[0] if args else options["hidden_states"]
            count_of[name] = count_of.get(name, 0) + values.shape[:2].numel()

        return hook

    for number, layer in enumerate(model.layers):
        layer.register_forward_pre_hook(counted(number), with_kwargs=True)
        layer.mlp.register_forward_pre_hook(counted(f"mlp {number}"), with_kwargs=True)
    return count_of


@pytest.mark.parametrize("layer_counts", [[0], [1], [0, 2]])
def test_only_the_requested_layers_run_and_return_states(layer_counts):
    decoder = encoder_of(read()).prompted.decoder
    mlps_run = tokens_seen(decoder.model)
    states = compute_states_after(decoder, layer_counts, {"input_ids": torch.tensor([[5, 6, 7]])})
    assert list(states) == layer_counts
    expected = [f"mlp {layer}" for layer in range(max(layer_counts))]
    assert [name for name in mlps_run if isinstance(name, str)] == expected


def test_suffix_copies_cost_the_copies_and_the_end_of_the_prompt_and_later_layers_nothing():
    encoder = encoder_of(read(layer=3))
    contents = probes_of(encoder)
    prompt = encoder.prompted.prompts[0]
    encoder.encode_ids(contents)  # tries the model out
    tokens_of_layer = tokens_seen(encoder.prompted.decoder.model)
    encoder.encode_ids(contents)
    carriers = sum(len(carrier.ids) for carrier in encoder.tokenize(CARRIERS))
    # Each copy once, the end of the prompt for each input, carriers and the beginning once.
    bound = len(contents) * (1 + len(prompt.after)) + carriers + len(prompt.before)
    assert tokens_of_layer[0] == tokens_of_layer[2] <= bound
    assert bound < 0.6 * sum(prompt.length(len(content)) for content in contents)
    assert 3 not in tokens_of_layer


def test_a_beginning_is_computed_once_and_again_when_weights_change():
    encoder = encoder_of(read("ke", (1, 3), 3))
    encoder.encode(TINY_SENTENCES)  # tries the model out
    tokens_of_layer = tokens_seen(encoder.prompted.decoder.model)

    def tokens_and_vectors(encode):
        tokens_of_layer.clear()
        vectors = encode(TINY_SENTENCES)
        return tokens_of_layer[0], vectors

    usual, first = tokens_and_vectors(encoder.encode)
    again, vectors = tokens_and_vectors(encoder.encode)
    assert again == usual
    assert np.array_equal(vectors, first)
    encode_layers = partial(encoder.encode_layers, layers=[2, 3])
    with_beginning, _ = tokens_and_vectors(encode_layers)
    without_beginning, _ = tokens_and_vectors(encode_layers)
    assert with_beginning > without_beginning
    with torch.no_grad():
        encoder.prompted.decoder.layers[0].self_attn.k_proj.weight.mul_(1.5)
    after_change, vectors = tokens_and_vectors(encoder.encode)
    assert after_change > usual
    plain = CausalPromptEncoder(encoder._model, encoder.user_tokenizer, "x", encoder.reading, reuse=None)
    assert difference(vectors, plain.encode(TINY_SENTENCES)) < 1e-5
    assert np.abs(vectors - first).max() > 1e-3


def test_hooks_are_removed_after_an_error():
    encoder = encoder_of(read(span=(1, 3)))
    expected = encoder.encode(TINY_SENTENCES)
    model = encoder.prompted.decoder.model

    def fail(*_):
        raise RuntimeError("no power")

    handle = model.layers[1].register_forward_hook(fail)
    with pytest.raises(RuntimeError, match="no power"):
        encoder.encode(TINY_SENTENCES)
    handle.remove()
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert np.array_equal(encoder.encode(TINY_SENTENCES), expected)


def test_the_model_and_the_tokenizer_are_left_as_they_were():
    model, tokenizer = tiny_decoders.decoder("qwen2")
    model.train()
    model.layers[2].eval()

    def state():
        flags = [module.training for module in model.modules()]
        return len(tokenizer), tokenizer.padding_side, tokenizer.backend_tokenizer.to_str(), flags

    before = state()
    weights = copy.deepcopy(model.state_dict())
    CausalPromptEncoder(model, tokenizer, "tiny", read("metaeol", (1, 3))).encode(TINY_SENTENCES)
    assert state() == before
    assert weights.keys() == model.state_dict().keys()
    assert all(torch.equal(value, weights[key]) for key, value in model.state_dict().items())
    assert not any("forward" in vars(module) for module in model.modules())


def test_other_threads_use_the_model_as_it_is_meanwhile():
    encoder = encoder_of(read(span=(1, 3), layer=3))
    expected = encoder.encode(TINY_SENTENCES)
    model = encoder.prompted.decoder.model
    ids = torch.arange(5, 25)[None]
    owner = threading.get_ident()
    results_found = []

    def plain():
        with torch.inference_mode():
            return model(input_ids=ids).last_hidden_state

    def interrupt(*_):
        if threading.get_ident() == owner and not results_found:
            results_found.append(None)
            thread = threading.Thread(target=lambda: results_found.append(plain()))
            thread.start()
            thread.join()

    states = plain()
    handle = model.layers[0].register_forward_hook(interrupt)
    np.testing.assert_allclose(encoder.encode(TINY_SENTENCES), expected, atol=1e-5)
    handle.remove()
    assert (results_found[1] - states).abs().max() < 1e-5
