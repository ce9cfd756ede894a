"""Templates, cleaning, presets: text in, text out."""

import re
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stickytoken.encoders.prompted.layer_states import TokenPrepending
from stickytoken.encoders.prompted.model import Reading
from stickytoken.encoders.prompted.prompts import (
    PLACEHOLDER,
    PROMPTS,
    SENTENCE,
    clean_sentence,
    find_prompt,
    is_template,
    join_words,
    layer_for,
    preset_for,
    reachable_text,
)
from stickytoken.encoders.protocol import LayerChoice
from stickytoken.errors import InputError


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("A man is playing a guitar.", "A man is playing a guitar."),
        ("What is it?", "What is it."),
        ("in the park!", "in the park!."),
        ('She said "no" and left', "She said 'no' and left."),
        ("He asked 'why?'", "He asked 'why?'"),
        ("", ""),
        ('hi?"', "hi?'"),
        ("?", "."),
        ('Say "hi"?', "Say 'hi'."),
        ("done)", "done)."),
        ("tab\tend ", "tab\tend ."),
    ],
)
def test_sentences_are_cleaned_in_the_published_order(text, cleaned):
    assert clean_sentence(text) == cleaned


@given(st.text())
def test_a_cleaned_sentence_never_ends_its_quotation_and_is_closed(text):
    cleaned = clean_sentence(join_words(text))
    assert '"' not in cleaned
    assert cleaned == "" or cleaned.endswith((".", "'"))
    assert not re.search(r"\s\s", cleaned)


@given(st.text(max_size=5))
def test_reachable_text_is_what_stays_inside_a_sentence(piece):
    kept = reachable_text(piece, quoted=True)
    assert f"x{kept}y" == join_words(f"x{piece}y").replace('"', "'")


def test_templates_differ_by_six_characters():
    for prompt in PROMPTS.values():
        for template in prompt.templates:
            with_place = SENTENCE.join(prompt.pieces(template, prepending=True))
            plain = SENTENCE.join(prompt.pieces(template, prepending=False))
            assert with_place.replace(f"{PLACEHOLDER} ", "", 1) == plain
            assert PLACEHOLDER not in plain


def test_templates_are_the_published_ones(shared):
    import json

    published = json.loads((shared / "tp_golden_llama" / "golden.json").read_text("utf-8"))["prompts"]
    for name, forms in published.items():
        prompt = PROMPTS[name]
        for form, prepending in (("tp", True), ("vanilla", False)):
            ours = [SENTENCE.join(prompt.pieces(each, prepending=prepending)) for each in prompt.templates]
            assert ours == [each.replace("*sent 0*", SENTENCE) for each in forms[form]]


def test_an_own_template_gets_its_placeholder_before_the_quotation_or_the_sentence():
    quoted = find_prompt('Title: "{sentence}" is about')
    assert quoted.pieces(quoted.templates[0], prepending=True) == (f'Title: {PLACEHOLDER} "', '" is about')
    bare = find_prompt("Title: {sentence} is about")
    assert bare.pieces(bare.templates[0], prepending=True) == (f"Title: {PLACEHOLDER} ", " is about")
    assert quoted.quoted
    assert not bare.quoted
    placed = find_prompt(f'{PLACEHOLDER} Title: "*sent 0*":')
    assert placed.pieces(placed.templates[0], prepending=True) == (f'{PLACEHOLDER} Title: "', '":')
    assert placed.pieces(placed.templates[0], prepending=False) == ('Title: "', '":')


@pytest.mark.parametrize(
    ("prompt", "reason"),
    [
        ("promteol", "no place for the sentence"),
        ("This sentence means:", "no place for the sentence"),
        ("", "no place for the sentence"),
        ("{sentence} {sentence} {sentence}", "3 places"),
        (f"{PLACEHOLDER} {PLACEHOLDER} {{sentence}}", "more than one <PST>"),
    ],
)
def test_a_template_that_cannot_be_filled_is_refused(prompt, reason):
    with pytest.raises(InputError, match=re.escape(reason)):
        find_prompt(prompt)


def test_known_prompts_and_templates_are_told_from_texts_to_put_in_front():
    assert is_template("PromptEOL")
    assert is_template('"{sentence}":')
    assert not is_template("query: ")


@pytest.mark.parametrize(("start", "stop", "reason"), [(2, 2, "nothing would be"), (-1, 3, "from 0")])
def test_layers_that_make_no_span_are_refused(start, stop, reason):
    with pytest.raises(InputError, match=reason):
        TokenPrepending(start, stop)


def test_an_echo_with_token_prepending_is_refused():
    with pytest.raises(InputError, match="echo"):
        Reading(PROMPTS["echo"], TokenPrepending(1, 7), -1)


@pytest.mark.parametrize(
    ("kind", "vocabulary", "layers", "prompt", "expected"),
    [
        ("llama", 32000, 32, "prompteol", (1, 7, 27)),
        ("llama", 32000, 32, "cot", (1, 7, 27)),
        ("llama", 32000, 32, "ke", (1, 7, -2)),
        ("llama", 32000, 40, "cot", (1, 7, -2)),
        ("llama", 128256, 32, "cot", (1, 3, -2)),
        ("qwen2", 152064, 28, "cot", (1, 6, -2)),
        ("gemma2", 256000, 42, "cot", (1, 6, -2)),
        ("qwen2", 1000, 12, "prompteol", (1, 3, 10)),  # 27 of 32 is 10 of 12
        ("gpt2", 1000, 1, "prompteol", (0, 2, 1)),
    ],
)
def test_presets_are_the_published_ones_or_their_relative_depth(kind, vocabulary, layers, prompt, expected):
    config = SimpleNamespace(model_type=kind, vocab_size=vocabulary)
    found = preset_for(config, layers, PROMPTS[prompt])
    assert (found.start, found.exit, found.layer) == expected
    assert ("scaled" in found.source) is (layers < 28)


@pytest.mark.parametrize(
    ("kind", "layers", "prompt", "given", "prepending", "expected"),
    [
        ("llama", 32, "prompteol", None, False, (27, LayerChoice.PUBLISHED)),
        ("llama", 32, "cot", None, True, (27, LayerChoice.PUBLISHED)),
        ("llama", 32, "echo", None, False, (-1, LayerChoice.LAST)),
        ("llama", 32, "Title: {sentence} is about", None, False, (-1, LayerChoice.LAST)),
        ("llama", 32, "Title: {sentence} is about", None, True, (27, LayerChoice.SCALED)),
        ("gemma3_text", 18, "prompteol", None, False, (-1, LayerChoice.LAST)),
        ("gemma3_text", 18, "prompteol", None, True, (15, LayerChoice.SCALED)),
        ("gemma3_text", 18, "prompteol", 3, False, (3, LayerChoice.GIVEN)),
        ("llama", 32, "prompteol", -1, True, (-1, LayerChoice.GIVEN)),
    ],
)
def test_a_plain_prompt_reads_the_last_layer_unless_a_preset_is_published(
    kind, layers, prompt, given, prepending, expected
):
    found = find_prompt(prompt)
    preset = preset_for(SimpleNamespace(model_type=kind, vocab_size=32000), layers, found)
    assert layer_for(preset, found, given, steered=prepending) == expected
