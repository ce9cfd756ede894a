"""Token prepending against published values, a plain reference on many architectures, and mistakes."""

import copy
import json
from contextlib import nullcontext

import numpy as np
import pytest
import torch

import tiny
import tiny_decoders
from stickytoken.encoders.prefixes import ReuseLimits
from stickytoken.encoders.prompted import layer_states
from stickytoken.encoders.prompted.attention_output import find_decoder
from stickytoken.encoders.prompted.encoder import CausalPromptEncoder
from stickytoken.encoders.prompted.layer_states import TokenPrepending, pooled_states, prepended
from stickytoken.encoders.prompted.model import PromptedModel, PromptRow, Reading
from stickytoken.encoders.prompted.prompts import PROMPTS, clean_sentence, find_prompt

pytestmark = pytest.mark.slow

SENTENCES = ["the river", *tiny.sentences(3), 'Is it "the old" bird?']


def read(prompt="prompteol", span=(1, 3), layer=-1):
    return Reading(find_prompt(prompt), None if span is None else TokenPrepending(*span), layer)


# Values of the published code.


@pytest.fixture(scope="module")
def golden(shared):
    from transformers import AutoModel, AutoTokenizer

    folder = shared / "tp_golden_llama"
    values = json.loads((folder / "golden.json").read_text("utf-8"))
    model = AutoModel.from_pretrained(folder / "model").eval()
    return values, model, AutoTokenizer.from_pretrained(folder / "model")


def golden_cases(golden, **options):
    values, model, tokenizer = golden
    for case in values["models"]["llama"]["cases"]:
        span = (case["tp_starting_index"], case["tp_exiting_index"]) if case["plan"] == "tp" else None
        reading = read(case["method"], span, case["output_layer"])
        encoder = CausalPromptEncoder(model, tokenizer, "golden", reading, **options)
        yield case, [values["sentences"][each] for each in case["sentence_idx"]], encoder


@pytest.fixture(scope="module")
def published(golden):
    """All published cases with their encoders."""
    return list(golden_cases(golden))


def golden_error(cases):
    """The largest difference from the published embeddings."""
    return max(
        float(np.abs(encoder.encode(sentences) - np.array(case["embedding"], np.float32)).max())
        for case, sentences, encoder in cases
    )


def test_the_published_embeddings(published):
    assert golden_error(published) < 2e-5


def test_the_published_sentences_and_ids(golden, published):
    assert all(clean_sentence(text) == cleaned for text, cleaned in golden[0]["clean"])
    for case, sentences, encoder in published:
        prompted = encoder._prompted
        contents = [text.ids for text in encoder.tokenize(sentences)]
        layout = prompted.layout(prompted.rows(contents))
        assert layout.ids.tolist() == case["input_ids"]
        assert layout.mask.tolist() == case["attention_mask"]
        if case["pst_index"] is not None:
            assert layout.slots[2].tolist() == case["pst_index"]


def test_the_published_states_of_all_layers(published):
    for case, sentences, encoder in published:
        if "last_token_hidden_states" in case:
            found = encoder.encode_layers(sentences, range(1, encoder.layers + 1))
            expected = np.array(case["last_token_hidden_states"], np.float32)[1:].swapaxes(0, 1)
            assert np.abs(found - expected).max() < 2e-5


def test_the_published_embeddings_with_the_beginning_of_the_prompt_reused(golden):
    reused = 0
    for case, sentences, encoder in golden_cases(golden, reuse=ReuseLimits(fixed_share=0)):
        repeated = [*sentences, *(f"{number} dogs" for number in range(8))]
        found = encoder.encode(repeated)[: len(sentences)]
        reused += vars(encoder._runner).get("_beginnings_agree", False)
        assert np.abs(found - np.array(case["embedding"], np.float32)).max() < 2e-5
    assert reused == 12


def shifted(by_start, by_exit):
    def wrong(layers, settings, places, last):
        return prepended(
            layers, TokenPrepending(settings.start + by_start, settings.exit + by_exit), places, last
        )

    return wrong


def mask_by_padding_id(self, rows, **options):
    """The padding is ``!``, which sentences hold too."""
    ids, mask, positions, slots = layout_of(self, rows, **options)
    ids = torch.where(mask.bool(), ids, 3)
    return type(layout_of(self, rows, **options))(ids, (ids != 3).long(), positions, slots)


layout_of = PromptedModel.layout
MISTAKES = {
    "exit + 1": lambda patch, model: patch.setattr(layer_states, "prepended", shifted(0, 1)),
    "start + 1": lambda patch, model: patch.setattr(layer_states, "prepended", shifted(1, 1)),
    "no copy": lambda patch, model: patch.setattr(layer_states, "prepended", lambda *_: nullcontext()),
    "mask by padding id": lambda patch, model: patch.setattr(PromptedModel, "layout", mask_by_padding_id),
    "no final norm": lambda patch, model: patch.setattr(model, "norm", torch.nn.Identity()),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_deliberate_mistake_misses_the_published_embeddings(golden, mistake, monkeypatch):
    MISTAKES[mistake](monkeypatch, golden[1])
    assert golden_error(golden_cases(golden)) > 1e-3


# Many architectures.


@pytest.fixture(scope="module", params=tiny_decoders.DECODERS)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def parts(kind):
    return tiny_decoders.decoder(kind)


def plain(prompted, content, prompt=0):
    """The vector of one sentence by the reference."""
    reading, decoder = prompted.reading, prompted.decoder
    ids = torch.tensor([prompted.prompts[prompt].fill(content)])
    with torch.inference_mode():
        embeddings = prompted.embed(ids)
    span = reading.prepending
    return tiny_decoders.plain_state(
        decoder.model,
        decoder.layers,
        embeddings,
        start=0 if span is None else span.start,
        stop=0 if span is None else span.exit,
        place=None if span is None else ids[0].tolist().index(prompted.placeholder_id),
        output=reading.layer,
    ).numpy()


@pytest.mark.parametrize(
    ("prompt", "span", "layer"),
    [("prompteol", (1, 3), 3), ("cot", (0, 99), -1), ("prompteol", None, 2), ("prompteol", (2, 3), -2)],
)
def test_every_architecture_gives_the_reference_in_batches_and_with_reuse(parts, prompt, span, layer):
    reading = read(prompt, span, layer)
    encoder = CausalPromptEncoder(*parts, "tiny", reading, reuse=ReuseLimits(fixed_share=0))
    contents = [text.ids for text in encoder.tokenize(SENTENCES)]
    expected = np.stack([plain(encoder._prompted, content) for content in contents])
    scale = np.abs(expected).max()
    assert np.abs(encoder.encode(SENTENCES) - expected).max() < 1e-5 * max(1, scale)
    one_by_one = CausalPromptEncoder(*parts, "tiny", reading, reuse=None, token_budget=1)
    assert np.abs(one_by_one.encode(SENTENCES) - expected).max() < 1e-5 * max(1, scale)
    assert vars(encoder._runner)["_beginnings_agree"]


def test_padding_and_mixed_lengths_change_nothing(parts):
    prompted = PromptedModel(*parts, "tiny", read(layer=3))
    contents = [text.ids for text in prompted.tokenize(SENTENCES)]
    with torch.inference_mode():
        batch = prompted.batch(prompted.layout(prompted.rows(contents)))
        found = pooled_states(prompted.decoder, batch, [3], prompted.reading.prepending)[:, 0].numpy()
    expected = np.stack([plain(prompted, content) for content in contents])
    assert np.abs(found - expected).max() < 1e-5 * max(1, np.abs(expected).max())


def test_prompts_in_ids_are_the_tokenizer_s_own(parts):
    """What is put together from the fixed parts is what the whole text gives."""
    model, tokenizer = parts
    hostile = [*SENTENCES, "", "!", "$5", "(a) b)", "'", "ß", "a <PST> b", "  wide   blanks ", "</s> <bos>"]
    for prompt, span in (("metaeol", (1, 3)), ("ke", (1, 3)), ("prompteol", None)):
        prompted = PromptedModel(model, tokenizer, "tiny", read(prompt, span))
        own = copy.deepcopy(tokenizer)
        if span is not None:
            own.add_tokens(["<PST>"])
        for text, tokenized in zip(hostile, prompted.tokenize(hostile), strict=True):
            sentence = clean_sentence(" ".join(text.split()))
            for number, template in enumerate(PROMPTS[prompt].templates):
                pieces = PROMPTS[prompt].pieces(template, prepending=span is not None)
                whole = own(pieces[0] + sentence + pieces[1])["input_ids"]
                filled = list(prompted.prompts[number].fill(tokenized.ids))
                assert filled == whole[: len(filled)]
                assert len(whole) - len(filled) <= 1  # </s> behind the text is left out


# Rows, bit by bit.


@pytest.mark.parametrize("span", [(0, 2), (1, 3), (2, 99)])
def test_the_overwritten_row_is_the_last_row_inside_the_span_and_itself_outside(span):
    model, tokenizer = tiny_decoders.decoder("llama")
    prompted = PromptedModel(model, tokenizer, "tiny", read(span=span))
    contents = [text.ids for text in prompted.tokenize(SENTENCES)]
    inputs, outputs = {}, {-1: None}

    def keep(number):
        def hook(_, args, kwargs):
            inputs[number] = (args[0] if args else kwargs["hidden_states"]).clone()

        return hook

    with torch.inference_mode():
        batch = prompted.batch(prompted.layout(prompted.rows(contents)))
        outputs[-1] = batch.embeddings.clone()
        handles = []
        with prepended(prompted.decoder.layers, prompted.reading.prepending, batch.places, batch.last):
            # Registered later, these hooks see what the layers see.
            for number, layer in enumerate(prompted.decoder.layers):
                handles.append(layer.register_forward_pre_hook(keep(number), with_kwargs=True))
                handles.append(
                    layer.register_forward_hook(
                        lambda _, __, out, number=number: outputs.__setitem__(number, out.clone())
                    )
                )
            model(inputs_embeds=batch.embeddings, attention_mask=batch.mask, use_cache=False)
        for handle in handles:
            handle.remove()
    rows = torch.arange(len(contents))
    for number in range(len(prompted.decoder.layers)):
        before, seen = outputs[number - 1], inputs[number]
        inside = span[0] <= number < span[1]
        expected = before[rows, batch.last] if inside else before[rows, batch.places]
        assert torch.equal(seen[rows, batch.places], expected)
        untouched = torch.ones(seen.shape[:2], dtype=torch.bool)
        untouched[rows, batch.places] = False
        assert torch.equal(seen[untouched], before[untouched])


def test_from_layer_0_on_any_placeholder_gives_the_same_bits():
    model, tokenizer = tiny_decoders.decoder("qwen2")
    found = []
    for scale in (0.0, 1.0, 50.0):
        encoder = CausalPromptEncoder(model, tokenizer, "tiny", read(span=(0, 3)))
        assert encoder._prompted.placeholder is not None
        encoder._prompted.__dict__["placeholder"] = torch.full((tiny_decoders.DIMENSION,), scale)
        found.append(encoder.encode(SENTENCES))
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[0], found[2])


def test_from_layer_1_on_the_placeholder_matters_and_is_the_same_each_time():
    model, tokenizer = tiny_decoders.decoder("qwen2")
    encoders = [CausalPromptEncoder(model, tokenizer, "tiny", read(span=(1, 3))) for _ in range(3)]
    assert np.array_equal(encoders[0].encode(SENTENCES), encoders[1].encode(SENTENCES))
    encoders[2]._prompted.__dict__["placeholder"] = torch.zeros(tiny_decoders.DIMENSION)
    assert np.abs(encoders[2].encode(SENTENCES) - encoders[0].encode(SENTENCES)).max() > 1e-3


def test_a_row_of_the_matrix_is_the_placeholder_where_there_is_one():
    model, tokenizer = tiny_decoders.decoder("qwen2")
    before = tiny_decoders.decoder("qwen2")[0].get_input_embeddings().weight
    model.resize_token_embeddings(len(tokenizer) + 7)
    encoder = CausalPromptEncoder(model, tokenizer, "tiny", read())
    assert encoder._prompted.placeholder is None
    assert model.get_input_embeddings().weight.shape[0] == len(tokenizer) + 7
    first = encoder.encode(SENTENCES)
    with torch.no_grad():
        model.get_input_embeddings().weight[len(tokenizer)] += 1
    assert np.abs(encoder.encode(SENTENCES) - first).max() > 1e-4
    assert torch.equal(model.get_input_embeddings().weight[: len(before)], before)


def test_stopping_early_gives_the_bits_of_the_full_pass():
    model, tokenizer = tiny_decoders.decoder("gemma2")
    prompted = PromptedModel(model, tokenizer, "tiny", read())
    contents = [text.ids for text in prompted.tokenize(SENTENCES)]
    calls = []
    handle = prompted.decoder.layers[-1].register_forward_pre_hook(lambda *_: calls.append(1))
    with torch.inference_mode():
        batch = prompted.batch(prompted.layout(prompted.rows(contents)))
        early = [
            pooled_states(prompted.decoder, batch, [number], prompted.reading.prepending)
            for number in (1, 2, 3)
        ]
        assert calls == []
        full = pooled_states(prompted.decoder, batch, [1, 2, 3, 4], prompted.reading.prepending)
    handle.remove()
    assert calls == [1]
    for place, states in enumerate(early):
        assert torch.equal(states[:, 0], full[:, place])


def test_no_model_with_a_head_runs_its_head():
    import transformers

    model, tokenizer = tiny_decoders.decoder("llama")
    whole = transformers.LlamaForCausalLM(model.config)
    whole.model = model
    calls = []
    whole.lm_head.register_forward_pre_hook(lambda *_: calls.append(1))
    found = CausalPromptEncoder(whole, tokenizer, "tiny", read()).encode(SENTENCES)
    assert calls == []
    assert np.array_equal(found, CausalPromptEncoder(model, tokenizer, "tiny", read()).encode(SENTENCES))


# MetaEOL and echo.


def test_eight_prompts_are_averaged_in_one_batch():
    model, tokenizer = tiny_decoders.decoder("llama")
    encoder = CausalPromptEncoder(model, tokenizer, "tiny", read("metaeol", layer=3))
    contents = [text.ids for text in encoder.tokenize(SENTENCES)]
    expected = [
        np.mean([plain(encoder._prompted, own, each) for each in range(8)], axis=0) for own in contents
    ]
    sizes = []
    decoder = encoder._prompted.decoder.model
    handle = decoder.layers[0].register_forward_pre_hook(
        lambda _, args, kwargs: sizes.append((args[0] if args else kwargs["hidden_states"]).shape[0]),
        with_kwargs=True,
    )
    found = encoder.encode(SENTENCES[:1] * 4)
    handle.remove()
    assert len(sizes) < 8 + 1  # prompts of one length share a batch
    assert np.abs(encoder.encode(SENTENCES) - expected).max() < 1e-5
    assert np.abs(found - expected[0]).max() < 1e-5
    # In a module of sentence-transformers all prompts of all sentences are one batch.
    rows = encoder._prompted.rows(contents[:2])
    assert [row.prompt for row in rows] == [*range(8), *range(8)]
    assert encoder._prompted.layout(rows).ids.shape[0] == 16


def test_an_echo_is_the_mean_over_the_second_copy():
    model, tokenizer = tiny_decoders.decoder("qwen2")
    encoder = CausalPromptEncoder(model, tokenizer, "tiny", read("echo", None, -1))
    for sentence in ("the old river sings", "a bird"):
        whole = tokenizer(f"Rewrite the sentence: {sentence}, rewritten sentence: {sentence}")["input_ids"]
        before = tokenizer(f"Rewrite the sentence: {sentence}, rewritten sentence:")["input_ids"]
        assert whole[: len(before)] == before
        with torch.inference_mode():
            states = model(input_ids=torch.tensor([whole])).last_hidden_state[0, len(before) :]
        assert np.abs(encoder.encode([sentence])[0] - states.mean(0).numpy()).max() < 1e-5


# What is found on a model.


def test_layers_are_found_behind_a_head_and_a_wrapper():
    import transformers

    model, tokenizer = tiny_decoders.decoder("opt")
    whole = transformers.OPTForCausalLM(model.config)
    assert find_decoder(whole, "x").layers == tuple(whole.model.decoder.layers)
    prompted = PromptedModel(whole, tokenizer, "tiny", read())
    assert prompted.rows([(5,)]) == [PromptRow(0, (5,))]
