"""The published kinds of case on every family, against token prepending written out layer by layer."""

from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import pytest
import torch

import tiny_decoders
from plain_decoder import prompt_states
from stickytoken.encoders.prompted import layer_states
from stickytoken.encoders.prompted.encoder import CausalPromptEncoder
from stickytoken.encoders.prompted.layer_states import TokenPrepending, pooled_states, prepended
from stickytoken.encoders.prompted.model import PromptedModel, Reading
from stickytoken.encoders.prompted.prompts import find_prompt

pytestmark = pytest.mark.slow

KINDS = ("llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3", "phi3", "opt", "gpt2")
LAYERS = 6
# Those of the published values; some with "!", the id that stands for padding elsewhere.
SENTENCES = (
    "A man is playing a guitar.",
    "What is the capital of France?",
    "Two children are riding bicycles in the park!",
    'She said "no" and left',
    "He asked 'why?'",
    "",
    "Stocks fell sharply on Monday , as investors worried about inflation and rates",
)


@dataclass(frozen=True)
class Case:
    """One of the twelve; exit is exclusive, the span None without token prepending."""

    prompt: str
    span: tuple[int, int] | None
    layer: int
    places: tuple[int, ...]

    @property
    def sentences(self):
        return [SENTENCES[place] for place in self.places]

    @property
    def reading(self):
        span = None if self.span is None else TokenPrepending(*self.span)
        return Reading(find_prompt(self.prompt), span, self.layer)


CASES = {
    "plain": Case("prompteol", None, -1, (0, 1, 2, 3)),
    "plain, layer 4": Case("prompteol", None, 4, (0, 1, 2, 3)),
    "alone": Case("prompteol", (1, 4), 5, (2,)),
    "mixed lengths": Case("prompteol", (1, 4), 5, (0, 2, 6, 3)),
    "last layer": Case("prompteol", (1, 4), -1, (0, 2, 6, 3)),
    "penultimate": Case("prompteol", (1, 4), -2, (0, 2, 6, 3)),
    "never stopped": Case("cot", (1, 99), -2, (1, 4, 6)),
    "one layer": Case("cot", (2, 3), 4, (1, 4, 6)),
    "from the embedding": Case("prompteol", (0, 3), 5, (0, 5, 6)),
    "knowledge": Case("ke", (0, 3), -1, (0, 1, 6)),
    "eight prompts": Case("metaeol", (1, 4), 5, (0, 3, 6)),
    "read before the exit": Case("prompteol", (1, 4), 2, (0, 6)),
}


@pytest.fixture(scope="module", params=KINDS)
def parts(request):
    """A model with a row for the placeholder, and its tokenizer."""
    return with_row(request.param)


def with_row(kind, **changes):
    changes |= {"_remove_final_layer_norm": False} if kind == "opt" else {}
    model, tokenizer = tiny_decoders.decoder(kind, num_hidden_layers=LAYERS, **changes)
    torch.manual_seed(1)
    # A family may round the number of rows up.
    model.resize_token_embeddings(len(tokenizer) + 8, mean_resizing=False)
    return model, tokenizer


def written_out(parts, case):
    """The vectors of a case, prompt by prompt."""
    model, tokenizer = parts
    prompted = PromptedModel(model, tokenizer, "tiny", case.reading)
    start, stop = case.span or (0, 0)
    vectors = []
    with torch.inference_mode():
        for text in prompted.tokenize(case.sentences):
            found = []
            for prompt in prompted.prompts:
                ids = list(prompt.fill(text.ids))
                place = None if case.span is None else ids.index(prompted.placeholder_id)
                states = prompt_states(model, ids, start=start, stop=stop, place=place)
                found.append(states[case.layer][-1].numpy())
            vectors.append(np.mean(found, axis=0))
    return np.stack(vectors)


@pytest.mark.parametrize("name", CASES)
def test_a_case_equals_what_is_written_out(parts, name):
    case = CASES[name]
    expected = written_out(parts, case)
    scale = max(1.0, float(np.abs(expected).max()))
    encoder = CausalPromptEncoder(*parts, "tiny", case.reading)
    assert np.abs(encoder.encode(case.sentences) - expected).max() < 1e-5 * scale
    one_by_one = np.concatenate([encoder.encode([each]) for each in case.sentences])
    assert np.abs(one_by_one - expected).max() < 1e-5 * scale


def test_padded_batches_equal_what_is_written_out(parts):
    for name in ("plain", "mixed lengths", "never stopped"):
        case = CASES[name]
        prompted = PromptedModel(*parts, "tiny", case.reading)
        contents = [text.ids for text in prompted.tokenize(case.sentences)]
        with torch.inference_mode():
            batch = prompted.batch(prompted.layout(prompted.rows(contents)))
            found = pooled_states(prompted.decoder, batch, [prompted.number], case.reading.prepending)
        assert (batch.mask == 0).any()
        expected = written_out(parts, case)
        scale = max(1.0, float(np.abs(expected).max()))
        assert np.abs(found[:, 0].numpy() - expected).max() < 1e-5 * scale


@pytest.mark.parametrize("kind", ["mistral", "gemma2", "gemma3"])
def test_windows_are_shorter_than_the_prompts(kind):
    """So that the cases above have tokens that do not see the placeholder."""
    model, tokenizer = with_row(kind)
    prompted = PromptedModel(model, tokenizer, "tiny", CASES["alone"].reading)
    assert prompted.length(0) > model.config.sliding_window + 10


def test_logits_of_attention_are_capped():
    model, tokenizer = with_row("gemma2")
    case = CASES["mixed lengths"]
    # Rows of attention that are far from equal, so that the cap is felt.
    with torch.no_grad():
        for layer in model.layers:
            layer.self_attn.q_proj.weight.mul_(40)
    found = CausalPromptEncoder(model, tokenizer, "tiny", case.reading).encode(case.sentences)
    expected = written_out((model, tokenizer), case)
    for layer in model.layers:
        layer.self_attn.attn_logit_softcapping = None
    uncapped = written_out((model, tokenizer), case)
    scale = max(1.0, float(np.abs(expected).max()))
    assert np.abs(found - expected).max() < 1e-5 * scale
    assert np.abs(uncapped - expected).max() > 1e-2


# Deliberate mistakes.


def shifted(by_start, by_exit):
    def wrong(layers, settings, places, last):
        return prepended(
            layers, TokenPrepending(settings.start + by_start, settings.exit + by_exit), places, last
        )

    return wrong


def masked_by_id(token_id):
    """A mask read off the ids, where padding has the id of a token that sentences hold too."""
    layout_of = PromptedModel.layout

    def layout(self, rows, **options):
        made = layout_of(self, rows, **options)
        ids = torch.where(made.mask.bool(), made.ids, token_id)
        return made._replace(ids=ids, mask=(ids != token_id).long())

    return layout


def final_norm(model):
    name = "ln_f" if hasattr(model, "ln_f") else "norm"
    return (
        (getattr(model, "decoder", model), "final_layer_norm") if not hasattr(model, name) else (model, name)
    )


MISTAKES = {
    "exit + 1": lambda patch, model, tokenizer: patch.setattr(layer_states, "prepended", shifted(0, 1)),
    "start + 1": lambda patch, model, tokenizer: patch.setattr(layer_states, "prepended", shifted(1, 1)),
    "no copy": lambda patch, model, tokenizer: patch.setattr(
        layer_states, "prepended", lambda *_: nullcontext()
    ),
    "mask by padding id": lambda patch, model, tokenizer: patch.setattr(
        PromptedModel, "layout", masked_by_id(tokenizer("a!", add_special_tokens=False)["input_ids"][-1])
    ),
    "no final norm": lambda patch, model, tokenizer: patch.setattr(*final_norm(model), torch.nn.Identity()),
}


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_deliberate_mistake_misses_a_case(kind, mistake, monkeypatch):
    # Behind a window, later layers hardly see the placeholder, and a mistake there less.
    parts = with_row(kind, **({"sliding_window": 64} if kind == "mistral" else {}))
    cases = [CASES["last layer"], CASES["mixed lengths"]]
    expected = [written_out(parts, case) for case in cases]
    MISTAKES[mistake](monkeypatch, *parts)
    missed = [
        np.abs(CausalPromptEncoder(*parts, "tiny", case.reading).encode(case.sentences) - right).max()
        for case, right in zip(cases, expected, strict=True)
    ]
    assert max(missed) > 1e-3
