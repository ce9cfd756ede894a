"""Templates, cleaning, presets: text in, text out; and templates as ids."""

import json
import re
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, strategies as st

import tiny_architectures as architectures
from naming import naming
from stickytoken.encoders import Prompting
from stickytoken.errors import InputError
from stickytoken.language_models.prompts import (
    PLACEHOLDER,
    PROMPTS,
    SENTENCE,
    clean_inner_text,
    clean_sentence,
    find_prompt,
)
from stickytoken.language_models.reading import make_reading
from stickytoken.language_models.running.decoder import Decoder
from stickytoken.language_models.running.tokenization import PromptTokenizer, copy_tokenizer
from stickytoken.settings.prompting import LayerChoice


@given(st.text())
def test_a_cleaned_sentence_never_ends_its_quotation_and_is_closed(text):
    cleaned = clean_sentence(" ".join(text.split()))
    assert '"' not in cleaned
    assert cleaned == "" or cleaned.endswith((".", "'"))
    assert not re.search(r"\s\s", cleaned)


@given(st.text(max_size=5))
def test_reachable_text_is_what_stays_inside_a_sentence(piece):
    joined = " ".join(f"x{piece}y".split())
    assert f"x{clean_inner_text(piece, quoted=True)}y" == joined.replace('"', "'")
    assert f"x{clean_inner_text(piece, quoted=False)}y" == joined


def test_templates_are_the_published_ones(shared):
    published = json.loads((shared / "tp_golden_llama" / "golden.json").read_text("utf-8"))["prompts"]
    for name, forms in published.items():
        prompt = PROMPTS[name]
        for form, prepending in (("tp", True), ("vanilla", False)):
            ours = [
                SENTENCE.join(prompt.split_template(template, prepending=prepending))
                for template in prompt.templates
            ]
            assert ours == [form_text.replace("*sent 0*", SENTENCE) for form_text in forms[form]]


@pytest.mark.parametrize(
    ("template", "quoted", "prepended", "plain"),
    [
        ('Title: "{sentence}" is', True, (f'Title: {PLACEHOLDER} "', '" is'), ('Title: "', '" is')),
        ("Title: {sentence} is", False, (f"Title: {PLACEHOLDER} ", " is"), ("Title: ", " is")),
        (f'{PLACEHOLDER} A: "*sent 0*":', True, (f'{PLACEHOLDER} A: "', '":'), ('A: "', '":')),
        (f'"{PLACEHOLDER}{{sentence}}"', True, (f'"{PLACEHOLDER}', '"'), ('"', '"')),
        (f"{PLACEHOLDER} {{sentence}}", False, (f"{PLACEHOLDER} ", ""), ("", "")),
    ],
)
def test_an_own_template_has_its_placeholder_before_the_quotation_or_the_sentence(
    template, quoted, prepended, plain
):
    prompt = find_prompt(template)
    assert prompt.quoted is quoted
    assert prompt.split_template(prompt.templates[0], prepending=True) == prepended
    assert prompt.split_template(prompt.templates[0], prepending=False) == plain


@pytest.mark.parametrize(
    ("prompt", "reason"),
    [
        ("promteol", naming("'promteol'", "{sentence}")),
        ("", naming("''", "{sentence}")),
        ("{sentence} {sentence} {sentence}", naming(3)),
        (f"{PLACEHOLDER} {PLACEHOLDER} {{sentence}}", naming(PLACEHOLDER)),
    ],
)
def test_a_template_that_cannot_be_filled_is_refused(prompt, reason):
    with pytest.raises(InputError, match=reason):
        find_prompt(prompt)


def resolved(kind, layers, prompt, vocabulary=32_000, **options):
    config = SimpleNamespace(model_type=kind, vocab_size=vocabulary)
    decoder = Decoder(SimpleNamespace(config=config), (torch.nn.Identity(),) * layers, "tiny")
    return make_reading(decoder, find_prompt(prompt), Prompting(**options))


@pytest.mark.parametrize(
    ("kind", "vocabulary", "layers", "prompt", "expected"),
    [
        ("llama", 32_000, 32, "prompteol", (1, 7, 27)),
        ("llama", 32_000, 32, "ke", (1, 7, -2)),
        ("llama", 32_000, 40, "cot", (1, 7, -2)),
        ("llama", 128_256, 32, "cot", (1, 3, -2)),
        ("gemma2", 256_000, 42, "cot", (1, 6, -2)),
        ("qwen2", 1000, 12, "prompteol", (1, 3, 10)),  # 27 of 32 is 10 of 12
        ("gpt2", 1000, 1, "prompteol", (0, 2, 1)),
    ],
)
def test_presets_are_the_published_ones_or_their_relative_depth(kind, vocabulary, layers, prompt, expected):
    resolved_prompt, choice = resolved(kind, layers, prompt, vocabulary, token_prepending=True)
    assert (
        resolved_prompt.prepending.start,
        resolved_prompt.prepending.exit,
        resolved_prompt.layer,
    ) == expected
    assert choice is (LayerChoice.PUBLISHED if layers >= 28 else LayerChoice.SCALED)
    late = resolved(kind, layers, prompt, vocabulary, token_prepending=True, start=layers - 1)[0]
    assert late.prepending.exit == max(expected[1], layers)  # not before a start that is given


@pytest.mark.parametrize(
    ("kind", "layers", "prompt", "options", "expected"),
    [
        ("llama", 32, "prompteol", {}, (27, LayerChoice.PUBLISHED)),
        ("llama", 32, "echo", {}, (-1, LayerChoice.LAST)),
        ("llama", 32, 'Title: "{sentence}" is about', {"token_prepending": True}, (27, LayerChoice.SCALED)),
        ("gemma3_text", 18, "prompteol", {"layer": 3}, (3, LayerChoice.GIVEN)),
    ],
)
def test_a_plain_prompt_reads_the_last_layer_unless_a_preset_is_published(
    kind, layers, prompt, options, expected
):
    resolved_prompt, choice = resolved(kind, layers, prompt, **options)
    assert (resolved_prompt.layer, choice) == expected


# Ids: what is put together from the fixed parts is what the tokenizer makes of the whole text.

SENTENCES = (
    *architectures.HOSTILE_TEXTS,
    *("a a. a? a! a: a, (a) )a 'a' \"a\" \" ' ? ... !? $5 #a <a> U.S. 3.14 a… 日本。 *a* -a- `a` \\".split()),
    *("The dog runs.", "a <PST> b", "<PST>.", "  wide   blanks ", "</s> <bos>"),
)
QUOTED = ("prompteol", "metaeol", '"{sentence}"', 'A title: "{sentence}".', f'"{PLACEHOLDER} {{sentence}}":')
BARE = (
    "{sentence}:",
    "Word: {sentence}?",
    "{sentence}",
    "Q:{sentence}\nA:",
    "({sentence}) so",
    "{sentence}。",
)


@pytest.mark.parametrize("template", [*QUOTED, *BARE])
@pytest.mark.parametrize("prepending", [False, True])
def test_filled_prompts_are_the_whole_text_s_ids(template, prepending):
    tokenizer = architectures.qwen_tokenizer(closing=False)
    # Signs of the prompts and of sentences make tokens together.
    tokenizer.add_tokens(['."', "'\"", '").', '")', '"$', ".:", "?:", ":(", ":'", '".', ".?", "。。"])
    prompt = find_prompt(template)
    adapted = copy_tokenizer(tokenizer, "tiny", prepending).tokenizer
    prompts = PromptTokenizer(adapted, (), prompt, prepending=prepending)
    sentences = [" ".join(text.split()) for text in SENTENCES]
    if prompt.quoted:
        sentences = [clean_sentence(text) for text in sentences]
    for sentence, tokenized in zip(sentences, prompts.tokenize(sentences), strict=True):
        for ids, text in zip(prompts.prompts, prompt.templates, strict=True):
            prompt_text = sentence.join(prompt.split_template(text, prepending=prepending))
            assert ids.fill(tokenized.ids) == tuple(adapted.encode_many([prompt_text])[0]), sentence
