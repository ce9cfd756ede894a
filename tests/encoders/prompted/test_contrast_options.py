"""Options of contrastive prompting: presets, identities, what is saved, what is computed, what is refused."""

import json

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

import tiny
import tiny_decoders
from prompted_loading import load_prompted
from stickytoken.detection.run_folder import LoadingRecord
from stickytoken.encoders import Prompting, load_encoder
from stickytoken.encoders.prompted.encoder import CausalPromptEncoder
from stickytoken.encoders.prompted.layer_states import TokenPrepending
from stickytoken.encoders.prompted.model import Reading
from stickytoken.encoders.prompted.module import CausalPrompt
from stickytoken.encoders.prompted.prompts import (
    AUXILIARY,
    PROMPTS,
    Contrast,
    ContrastRule,
    contrast_layer_for,
    find_prompt,
    preset_for,
)
from stickytoken.errors import EncodingError, InputError, ModelError

SENTENCES = [*tiny.sentences(7), "", "the bird"]


def encoder_of(contrast, *, prompt="prompteol", span=None, layer=3, kind="qwen2", **options):
    reading = Reading(find_prompt(prompt), None if span is None else TokenPrepending(*span), layer, contrast)
    return CausalPromptEncoder(*tiny_decoders.decoder(kind), "tiny", reading, **options)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_decoders.saved_decoder(tmp_path_factory.mktemp("qwen2") / "tiny-qwen2")


# What is computed.


def passes(model):
    """Count the rows and tokens that every layer and projection sees."""
    seen = {}

    def counted(name):
        def hook(_, args, options):
            values = args[0] if args else options["hidden_states"]
            seen.setdefault(name, []).append(tuple(values.shape[:2]))

        return hook

    for number, layer in enumerate(model.layers):
        layer.register_forward_pre_hook(counted(number), with_kwargs=True)
        layer.mlp.register_forward_pre_hook(counted(f"mlp {number}"), with_kwargs=True)
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("prompt", ["prompteol", "ck"])
def test_the_auxiliary_prompt_runs_once_for_all_templates_up_to_its_layer(prompt):
    encoder, plain = encoder_of(Contrast(1), prompt=prompt), encoder_of(None, prompt=prompt)
    encoder.encode(SENTENCES)  # tries the model out, and computes the beginnings
    plain.encode(SENTENCES)
    auxiliary = encoder.prompted.auxiliary.prompts[0]
    counts = []
    for own in (plain, encoder):
        seen = passes(own.prompted.decoder.model)
        own.encode(SENTENCES)
        counts.append({name: sum(rows * tokens for rows, tokens in each) for name, each in seen.items()})
    contents = [len(ids) for ids in encoder.content_ids(SENTENCES)]
    # Its beginning is not computed again.
    once = sum(auxiliary.length(content) - auxiliary.fixed for content in contents)
    added = {name: counts[1][name] - count for name, count in counts[0].items()}
    assert added == {0: once, "mlp 0": once, 1: once, "mlp 1": 0, 2: 0, "mlp 2": 0}


@pytest.mark.slow
def test_only_the_last_token_changes_and_only_after_the_layer():
    contrast = encoder_of(Contrast(1)).encode_layers(SENTENCES, [1, 2, 3])
    plain = encoder_of(None).encode_layers(SENTENCES, [1, 2, 3])
    np.testing.assert_allclose(contrast[:, 0], plain[:, 0], atol=1e-5)
    assert (np.abs(contrast[:, 1:] - plain[:, 1:]).max(axis=2) > 1e-2).all()
    echoing = encoder_of(None, prompt="echo").encode(SENTENCES[:3])
    assert np.isfinite(echoing).all()  # hooks are gone: nothing else was replaced


@pytest.mark.slow
def test_padding_batches_and_order_change_rounding_alone():
    expected = encoder_of(Contrast(1), span=(1, 3), reuse=None, token_budget=1).encode(SENTENCES)
    scale = np.abs(expected).max()
    for budget in (1, 10**6):
        encoder = encoder_of(Contrast(1), span=(1, 3), token_budget=budget)
        assert np.abs(encoder.encode(SENTENCES[::-1])[::-1] - expected).max() < 1e-5 * scale
    module = encoder.sentence_transformer()
    for size in (1, 32):
        assert np.abs(module.encode(SENTENCES, batch_size=size) - expected).max() < 1e-5 * scale


def test_the_beginning_is_computed_again_when_weights_change():
    encoder = encoder_of(Contrast(2))
    before = encoder.encode(SENTENCES)
    with torch.no_grad():
        encoder.prompted.decoder.layers[0].self_attn.k_proj.weight.mul_(1.5)
    found = encoder.encode(SENTENCES)
    plain = CausalPromptEncoder(encoder._model, encoder._user_tokenizer, "x", encoder.reading, reuse=None)
    assert np.abs(found - plain.encode(SENTENCES)).max() < 1e-5 * np.abs(found).max()
    assert np.abs(found - before).max() > 1e-3


def test_it_trains_like_any_module():
    model = SentenceTransformer(
        modules=[CausalPrompt(*tiny_decoders.decoder("qwen2"), contrast=True, contrast_layer=1)], device="cpu"
    )
    features = model.preprocess(SENTENCES[:2])
    model.train()
    model(features)["sentence_embedding"].sum().backward()
    weight = model[0].model.layers[0].mlp.up_proj.weight
    assert weight.grad.abs().sum() > 0


# Presets, identities, files.


@pytest.mark.parametrize(
    ("kind", "vocabulary", "layers", "number", "expected"),
    [
        ("llama", 32_000, 32, 27, (4, 0.5, 27)),
        ("llama", 128_256, 32, 31, (6, 0.25, -2)),
        ("qwen2", 152_064, 28, 27, (4, 0.5, -2)),
        ("gemma3_text", 262_144, 18, 15, (2, 0.5, 15)),
    ],
)
def test_published_settings_and_those_scaled_from_them(kind, vocabulary, layers, number, expected):
    config = type("Config", (), {"model_type": kind, "vocab_size": vocabulary})
    preset = preset_for(config, layers, PROMPTS["prompteol"])
    layer = contrast_layer_for(preset, layers, number, range(layers))
    assert (layer, preset.contrast_strength, preset.layer) == expected
    assert contrast_layer_for(preset, layers, 2, range(layers)) == min(layer, 1)  # before what is read
    assert preset_for(config, layers, PROMPTS["ke"]).layer == (-2 if layers in (28, 32) else 15)


def test_every_setting_is_part_of_the_identity():
    settings = [
        None,
        Contrast(1),
        Contrast(2),
        Contrast(1, 0.25),
        Contrast(1, None, ContrastRule.NORM),
        Contrast(1, None, ContrastRule.SUB_HEAD_NORM),
        Contrast(1, 0.5, ContrastRule.SCALED_NORM),
    ]
    found = [encoder_of(each).identity for each in settings]
    assert len(set(found)) == len(settings)
    assert encoder_of(Contrast(1, 0.50)).identity == found[1]


@pytest.mark.slow
def test_a_model_is_saved_with_its_contrast_and_loaded_without_being_asked(folder, tmp_path):
    encoder = load_prompted(
        folder,
        device="cpu",
        prompt="ck",
        contrast=True,
        contrast_layer=1,
        contrast_rule="scaled_norm",
        layer=3,
    )
    assert encoder.reading.contrast == Contrast(1, 0.5, ContrastRule.SCALED_NORM)
    encoder.sentence_transformer().save(str(tmp_path / "saved"), create_model_card=False)
    loaded = load_encoder(tmp_path / "saved", device="cpu")
    assert loaded.identity == encoder.identity
    np.testing.assert_allclose(loaded.encode(SENTENCES), encoder.encode(SENTENCES), atol=1e-5)
    with pytest.raises(InputError, match="saved with its prompt and layers"):
        load_prompted(tmp_path / "saved", device="cpu", contrast=True)
    again = load_prompted(folder, device="cpu", **LoadingRecord(**encoder.reading.options).prompting())
    assert again.identity == encoder.identity


def test_what_is_saved_without_contrast_says_nothing_of_it(folder, tmp_path):
    """Earlier releases refuse options that they do not know."""
    encoder = load_prompted(folder, device="cpu", prompt="prompteol")
    encoder.sentence_transformer().save(str(tmp_path), create_model_card=False)
    saved = json.loads((tmp_path / "causal_prompt_config.json").read_text("utf-8"))
    assert not [name for name in saved if name.startswith("contrast")]


# What is refused.


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"contrast_strength": -0.5}, "the contrast strength is -0.5: pass a finite number from 0"),
        ({"contrast_strength": float("nan")}, "the contrast strength is nan: pass"),
        ({"contrast_strength": float("inf")}, "the contrast strength is inf: pass"),
        ({"contrast_layer": -1}, "the contrast layer is -1: layers are counted from 0"),
        ({"contrast_layer": 4}, "tiny-qwen2 has 4 layers: pass 0 to 3"),
        ({"contrast_layer": 2, "layer": 2}, "are read after 2 layers, so nothing would change: pass 0 to 1"),
        ({"contrast_rule": "half"}, "'half' is unknown: use one of scaled, norm, scaled_norm, sub_head_norm"),
        (
            {"contrast_rule": "norm", "contrast_strength": 0.5},
            "the contrast rule norm has no strength, got 0.5",
        ),
        ({"contrast": False, "contrast_layer": 1}, "contrast_layer would have no effect"),
        ({"contrast": False, "contrast_strength": 0.0}, "contrast_strength would have no effect"),
        ({"prompt": "echo"}, "an echo prompt reads every token"),
        ({"prompt": "Word: {sentence}:"}, "contrast needs a prompt that quotes the sentence"),
    ],
)
def test_impossible_options_are_one_line(folder, options, reason):
    with pytest.raises(InputError) as caught:
        load_prompted(folder, device="cpu", **{"prompt": "prompteol", "contrast": True} | options)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_sentence_transformer_has_no_contrast(bert_folder):
    with pytest.raises(InputError, match="contrast applies only to prompted language models"):
        load_encoder(bert_folder, device="cpu", prompt=Prompting(contrast=True))


def test_a_text_must_fit_into_the_longer_prompt():
    encoder = encoder_of(Contrast(1), max_length=60)
    room = 60 - encoder.prompted.auxiliary.length(0)
    token = encoder.content_ids(["river"])[0][0]
    assert encoder.prompted.prompts[0].length(room) < 60
    assert encoder.encode_ids([[token] * room]).shape == (1, tiny_decoders.DIMENSION)
    with pytest.raises(EncodingError, match="makes a prompt of 61 tokens, the model reads 60"):
        encoder.encode_ids([[token] * (room + 1)])
    module = encoder_of(Contrast(1), max_length=60).sentence_transformer()
    with pytest.raises(EncodingError, match="use a shorter text"):
        module.encode(["the river " * 400])


def test_a_projection_that_is_not_called_is_named(monkeypatch):
    """Bloom can multiply by slices of the weights itself."""
    encoder = encoder_of(Contrast(1), kind="bloom")
    attention = encoder.prompted.decoder.layers[1].self_attention
    attention.pretraining_tp, attention.slow_but_exact = 2, True
    with pytest.raises(ModelError, match="tiny does not call the output projection of layer 1 as a module"):
        encoder.encode(["a bird"])


def test_heads_of_unequal_size_are_named():
    encoder = encoder_of(Contrast(1, None, ContrastRule.SUB_HEAD_NORM))
    encoder.prompted.decoder.model.config.num_attention_heads = 5
    with pytest.raises(
        ModelError, match=r"tiny has 5 attention heads for values of width 32: .* another rule"
    ):
        encoder.encode(["a bird"])


def test_the_auxiliary_prompt_is_the_published_one():
    assert AUXILIARY.templates == (
        'The irrelevant information of this sentence : "{sentence}" means in one word:"',
    )
