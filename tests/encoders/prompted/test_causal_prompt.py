"""A language model with a prompt as an encoder: protocol, bad input, what is left behind, detection."""

import re

import numpy as np
import pytest
import torch
import transformers

import tiny
import tiny_architectures as architectures
import tiny_decoders
from prompted_loading import load_prompted
from stickytoken import analyze_vocabulary, load_encoder
from stickytoken.encoders import Encoder
from stickytoken.encoders.prompted.encoder import CausalPromptEncoder
from stickytoken.encoders.prompted.layer_states import TokenPrepending
from stickytoken.encoders.prompted.model import Reading
from stickytoken.encoders.prompted.prompts import PROMPTS, find_prompt
from stickytoken.encoders.tokenizer import HuggingFaceTokenizer, WordCache
from stickytoken.errors import EncodingError, InputError, ModelError, StickyTokenWarning
from stickytoken.insertion import Placement, Token, copies_as_ids

SENTENCES = tiny.sentences(6)


def read(prompt="prompteol", span=(1, 3), layer=-1):
    return Reading(find_prompt(prompt), None if span is None else TokenPrepending(*span), layer)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_decoders.saved_decoder(tmp_path_factory.mktemp("qwen2") / "tiny-qwen2")


@pytest.fixture(scope="module")
def encoder(folder):
    return load_prompted(
        folder, device="cpu", prompt="prompteol", token_prepending=True, start=1, exit=3, layer=3
    )


# The protocol.


def test_it_is_an_encoder(encoder):
    assert isinstance(encoder, Encoder)
    vectors = encoder.encode(SENTENCES)
    assert vectors.dtype == np.float32
    assert vectors.shape == (6, encoder.identity.dimension) == (6, tiny_decoders.DIMENSION)
    assert encoder.identity.max_length == tiny_decoders.LONGEST


def test_ids_and_texts_give_the_same_bits_in_any_order(encoder):
    ids = [text.ids for text in encoder.tokenize(SENTENCES)]
    assert np.array_equal(encoder.encode_ids(ids), encoder.encode(SENTENCES))
    vectors = encoder.encode(SENTENCES)
    drift = np.linalg.norm(encoder.encode(SENTENCES[::-1])[::-1] - vectors, axis=1)
    assert (drift < 1e-5 * np.linalg.norm(vectors, axis=1)).all()
    assert encoder.encode([]).shape == (0, tiny_decoders.DIMENSION)


@pytest.mark.parametrize("placement", [Placement.PREFIX, Placement.SUFFIX])
def test_copies_stand_inside_the_quotation(folder, placement):
    """The end of the quotation shares a token with the full stop in this vocabulary."""
    tokenizer = architectures.qwen_tokenizer(closing=False)
    tokenizer.add_tokens(['."'])
    model = tiny_decoders.decoder("qwen2")[0]
    model.resize_token_embeddings(len(tokenizer) + 1)
    encoder = CausalPromptEncoder(model, tokenizer, "tiny", read())
    (carrier,) = encoder.tokenize(["the old river"])
    assert carrier.tail == (tokenizer.convert_tokens_to_ids('."'),)
    bird = tokenizer(" bird")["input_ids"][-1]
    probe = copies_as_ids(Token(bird, tokenizer.decode([bird])), carrier, placement, 3)
    prompt = encoder._prompted.prompts[0]
    own = tokenizer.decode(prompt.fill(probe)).replace(" ", "")
    copies = tokenizer.decode([bird] * 3).replace(" ", "")
    middle = f"{copies}theoldriver" if placement is Placement.PREFIX else f"theoldriver{copies}"
    assert own.endswith(f'"{middle}."meansinoneword:"')
    assert np.isfinite(encoder.encode_ids([probe])).all()


def test_the_vocabulary_says_which_tokens_would_break_the_quotation(folder, encoder):
    plain = analyze_vocabulary(load_encoder(folder, device="cpu", prompt="Word: {sentence}:"))
    inside = analyze_vocabulary(encoder)
    places = {token: place for place, token in enumerate(inside.tokens)}
    quotation = places['"']
    assert plain.categories[quotation] == "OK"
    assert inside.categories[quotation] == "UNREACHABLE_SINGLE_TOKEN"
    changed = [
        token
        for token, mine, other in zip(inside.tokens, inside.categories, plain.categories, strict=True)
        if mine != other
    ]
    assert changed == ['"']
    assert "<PST>" not in inside.tokens


def test_what_can_change_the_vectors_is_in_the_identity(folder, encoder):
    def identity(**changes):
        options = {
            "prompt": "prompteol",
            "token_prepending": True,
            "start": 1,
            "exit": 3,
            "layer": 3,
        } | changes
        return load_prompted(folder, device="cpu", **options).identity

    assert identity() == encoder.identity
    assert identity(token_budget=1) == encoder.identity
    found = [
        identity(start=0),
        identity(exit=2),
        identity(layer=2),
        identity(prompt="cot"),
        identity(max_length=200),
        identity(token_prepending=False, start=None, exit=None),
    ]
    assert len({encoder.identity, *found}) == 7
    assert identity(exit=4) == identity(exit=99)


# Bad input.


def test_an_encoder_and_an_encoder_decoder_are_refused(tmp_path):
    tokenizer = tiny.wordpiece_tokenizer()
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    bert = transformers.BertModel(transformers.BertConfig(vocab_size=len(tokenizer), **sizes))
    with pytest.raises(ModelError, match="decoder-only"):
        CausalPromptEncoder(bert, tokenizer, "bert", read())
    folder = architectures.modernbert(tmp_path / "modernbert")
    with pytest.raises(ModelError, match=r"attend to later ones \(an encoder\)"):
        load_encoder(folder, device="cpu", prompt="prompteol")
    t5 = transformers.T5Config(
        vocab_size=len(tokenizer), d_model=32, d_ff=32, num_layers=1, num_heads=2, d_kv=8
    )
    with pytest.raises(ModelError, match="encoder-decoder"):
        CausalPromptEncoder(transformers.T5Model(t5), tokenizer, "t5", read())
    with pytest.raises(ModelError, match="not a transformers language model"):
        CausalPromptEncoder(torch.nn.Linear(2, 2), tokenizer, "linear", read())


def test_a_decoder_that_was_opened_to_both_sides_is_refused(monkeypatch):
    model, tokenizer = tiny_decoders.decoder("llama")
    forward = type(model).forward

    def both_sides(self, input_ids=None, **options):
        embedded = self.embed_tokens(input_ids)
        return forward(self, inputs_embeds=embedded + embedded.mean(1, keepdim=True), **options)

    monkeypatch.setattr(type(model), "forward", both_sides)
    with pytest.raises(ModelError, match="attend to later ones"):
        CausalPromptEncoder(model, tokenizer, "open", read())


def test_no_padding_token_is_needed(encoder):
    model, tokenizer = tiny_decoders.decoder("qwen2")
    tokenizer.pad_token = None
    found = CausalPromptEncoder(model, tokenizer, "tiny", read(layer=3))
    assert tokenizer.pad_token is None
    assert np.abs(found.encode(SENTENCES) - encoder.encode(SENTENCES)).max() < 1e-6


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"start": 3, "exit": 3}, "nothing would be overwritten"),
        ({"start": 4, "exit": 9}, "has 4 layers: pass 0 to 3"),
        ({"start": -1}, "from 0"),
        ({"layer": 5}, "no layer 5: use 1 to 4, or -1 to -4"),
        ({"layer": -6}, "no layer -6"),
        ({"layer": 0}, "the same for every sentence"),
        ({"layer": -5}, "the same for every sentence"),
        ({"prompt": "echo"}, "echo"),
        ({"prompt": "{sentence}" * 3}, "3 places"),
        ({"prompt_name": "query"}, "leave out the prompt name 'query'"),
        ({"token_prepending": False, "start": 1}, "turn on token prepending"),
        ({"max_length": 10}, "the prompt alone takes"),
        ({"max_length": 5000}, "has only 512 positions"),
        ({"dtype": "int8"}, "dtype"),
    ],
)
def test_options_that_cannot_be_met_are_refused(folder, options, reason):
    with pytest.raises(InputError, match=re.escape(reason)):
        load_prompted(folder, **{"device": "cpu", "prompt": "prompteol", "token_prepending": True} | options)


def test_prompt_options_of_a_sentence_transformer_are_refused_and_its_prompt_stays_a_text(bert_folder):
    with pytest.raises(InputError, match="token_prepending applies only to prompted language models"):
        load_prompted(bert_folder, token_prepending=True, prompt="prompteol")
    with pytest.raises(InputError, match="layer applies only to"):
        load_prompted(bert_folder, layer=2)
    with pytest.warns(StickyTokenWarning, match="not the name of a prompt"):
        found = load_encoder(bert_folder, device="cpu", prompt="ke")
    assert found.prompt == "ke"
    assert load_encoder(bert_folder, device="cpu", prompt="{sentence} ").prompt == "{sentence} "


def test_a_language_model_without_a_template_is_pooled_as_before(folder):
    with pytest.warns(StickyTokenWarning, match="its pooling is a guess"):
        found = load_encoder(folder, device="cpu", prompt="query: ")
    assert not isinstance(found, CausalPromptEncoder)
    with pytest.raises(InputError, match="pass a plain language model and a prompt"):
        load_prompted(folder, device="cpu", token_prepending=True)


def test_an_empty_sentence_is_encoded_and_one_with_the_placeholder_too(encoder):
    vectors = encoder.encode(["", "the <PST> bird", "the bird"])
    assert np.isfinite(vectors).all()
    assert np.abs(vectors[1] - vectors[2]).max() > 1e-3
    prompted = encoder._prompted
    layout = prompted.layout(prompted.rows([encoder.tokenize(["the <PST> bird"])[0].ids]))
    ids = layout.ids[0].tolist()
    assert ids.count(prompted.placeholder_id) == 2
    assert layout.slots[2].item() == ids.index(prompted.placeholder_id)


def test_an_echo_of_nothing_is_an_error_that_says_so(folder):
    echo = load_encoder(folder, device="cpu", prompt="echo")
    assert np.isfinite(echo.encode(["a"])).all()
    with pytest.raises(EncodingError, match="no tokens, and an echo prompt reads only those"):
        echo.encode_ids([()])


def test_a_sentence_beyond_the_context_is_named(encoder):
    with pytest.raises(
        EncodingError, match=r"'the river the river.*makes a prompt of \d+ tokens, the model reads 512"
    ):
        encoder.encode(["the river " * 400])
    (text,) = encoder.tokenize(["the river " * 400])
    assert not encoder.fits(text.ids)


def test_ids_that_the_model_lacks_are_named(encoder):
    with pytest.raises(EncodingError, match="token id 4000"):
        encoder.encode_ids([(5, 4000)])
    with pytest.raises(EncodingError, match="token id -1"):
        encoder.encode_ids([(-1,)])
    assert not encoder.fits((5, 4000))
    with pytest.raises(InputError, match="put it in a list"):
        encoder.encode("a text")


def test_damaged_weights_are_an_error(folder):
    model, tokenizer = tiny_decoders.decoder("qwen2")
    with torch.no_grad():
        model.layers[1].mlp.down_proj.weight[0, 0] = float("nan")
    with pytest.raises(EncodingError, match="not finite"):
        CausalPromptEncoder(model, tokenizer, "tiny", read()).encode(SENTENCES)


def test_a_folder_without_weights_or_with_a_damaged_record_is_an_error(folder, tmp_path):
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    with pytest.raises(ModelError, match="no weights"):
        load_encoder(tmp_path, prompt="prompteol")


@pytest.mark.parametrize(("dtype", "least"), [("float16", 0.999), ("bfloat16", 0.99)])
def test_half_precision_is_close(folder, encoder, dtype, least):
    options = {"prompt": "prompteol", "token_prepending": True, "start": 1, "exit": 3, "layer": 3}
    half = load_prompted(folder, device="cpu", dtype=dtype, **options)
    found, exact = half.encode(SENTENCES), encoder.encode(SENTENCES)
    cosines = (found * exact).sum(1) / np.linalg.norm(found, axis=1) / np.linalg.norm(exact, axis=1)
    assert cosines.min() > least
    assert half.identity.dtype == dtype


def test_rereading_copies_the_tokenizer_once_and_proves_its_word_boundaries_once(monkeypatch):
    model, tokenizer = tiny_decoders.decoder("gemma2")
    encoder = CausalPromptEncoder(model, tokenizer, "tiny", Reading(PROMPTS["prompteol"], None, -1))
    plain = encoder.encode(["the river sings"])
    made, proved = [], []
    make, prove = HuggingFaceTokenizer.__init__, WordCache.of
    monkeypatch.setattr(
        HuggingFaceTokenizer, "__init__", lambda own, given: (made.append(given), make(own, given))[1]
    )
    monkeypatch.setattr(WordCache, "of", lambda backend: (proved.append(backend), prove(backend))[1])
    for stop in (2, 3, 4):
        found = encoder.reread(Reading(PROMPTS["cot"], TokenPrepending(1, stop), -1))
        found.encode(["the river sings"])
        np.testing.assert_array_equal(found.reread(encoder.reading).encode(["the river sings"]), plain)
    assert len(made) == 1  # with the placeholder
    assert len(proved) <= 1


def test_a_reread_encoder_follows_a_tokenizer_that_has_changed():
    model, tokenizer = tiny_decoders.decoder("qwen2")
    reading = Reading(PROMPTS["prompteol"], TokenPrepending(1, 3), -1)
    encoder = CausalPromptEncoder(model, tokenizer, "tiny", reading)
    before = encoder.tokenize(["the riverbird sings"])
    tokenizer.add_tokens(["riverbird"])
    fresh = CausalPromptEncoder(model, tokenizer, "tiny", reading)
    for own in (encoder.reread(reading), encoder):
        assert own.tokenize(["the riverbird sings"]) == fresh.tokenize(["the riverbird sings"]) != before
