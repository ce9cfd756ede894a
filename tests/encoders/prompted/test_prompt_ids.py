"""Prompts put together from ids are what the tokenizer makes of the whole text, whatever signs merge."""

import copy

import pytest
import transformers

import tiny_architectures as architectures
from stickytoken.encoders.prompted._prompt_ids import PromptTokenizer
from stickytoken.encoders.prompted.prompts import PLACEHOLDER, clean_sentence, find_prompt, join_words
from stickytoken.encoders.tokenizer import HuggingFaceTokenizer

SENTENCES = (
    *architectures.HOSTILE_TEXTS,
    *(
        "a",
        "a.",
        "a?",
        "a!",
        "a:",
        "a,",
        "(a)",
        ")a",
        "'a'",
        '"a"',
        '"',
        "'",
        "?",
        "...",
        "!?",
        "$5",
        "#a",
        "<a>",
    ),
    *("The dog runs.", "U.S.", "3.14", "a…", "日本。", "*a*", "-a-", "`a`", "\\", "a <PST> b", "<PST>."),
)
QUOTED = (
    "prompteol",
    "ke",
    "metaeol",
    '"{sentence}"',
    'A title: "{sentence}".',
    f'"{PLACEHOLDER} {{sentence}}":',
)
BARE = (
    "{sentence}:",
    "Word: {sentence}?",
    "{sentence}",
    "Q:{sentence}\nA:",
    "({sentence}) means",
    "{sentence}。",
)


def merging_tokenizer():
    """Signs of the prompts and of sentences make tokens together."""
    tokenizer = architectures.qwen_tokenizer(closing=False)
    tokenizer.add_tokens(['."', "'\"", '").', '")', '"$', ".:", "?:", ":(", ":'", '".', ".?", "。。"])
    return tokenizer


def filled_and_whole(tokenizer, template, prepending):
    """For each sentence: the prompt from ids, and the ids of the whole text."""
    prompt = find_prompt(template)
    own = copy.deepcopy(tokenizer)
    if prepending:
        own.add_tokens([PLACEHOLDER])
    adapted = HuggingFaceTokenizer(own)
    prompts = PromptTokenizer(adapted, (), prompt, prepending=prepending)
    sentences = [join_words(text) for text in SENTENCES]
    if prompt.quoted:
        sentences = [clean_sentence(text) for text in sentences]
    for sentence, tokenized in zip(sentences, prompts.tokenize(sentences), strict=True):
        for ids, text in zip(prompts.prompts, prompt.templates, strict=True):
            whole = sentence.join(prompt.pieces(text, prepending=prepending))
            yield sentence, ids.fill(tokenized.ids), tuple(adapted.encode_many([whole])[0])


@pytest.mark.parametrize("template", [*QUOTED, *BARE])
@pytest.mark.parametrize("prepending", [False, True])
def test_filled_prompts_are_the_whole_text_s_ids(template, prepending):
    for sentence, filled, whole in filled_and_whole(merging_tokenizer(), template, prepending):
        assert filled == whole, sentence


@pytest.mark.slow
@pytest.mark.parametrize("name", ["roberta-base", "t5"])
def test_filled_prompts_are_the_whole_text_s_ids_of_a_real_tokenizer(shared, name):
    tokenizer = transformers.AutoTokenizer.from_pretrained(shared / "tokenizers" / name)
    for template in ("prompteol", "metaeol", "Word: {sentence}?"):
        for sentence, filled, whole in filled_and_whole(tokenizer, template, prepending=True):
            assert filled == whole, sentence


def test_a_quotation_with_the_placeholder_inside_is_one():
    assert find_prompt(f'"{PLACEHOLDER} {{sentence}}"').quoted
    assert find_prompt(f'"{PLACEHOLDER}{{sentence}}"').quoted
    assert not find_prompt(f"{PLACEHOLDER} {{sentence}}").quoted


def test_the_second_copy_of_an_echo_never_holds_a_sign_of_the_template():
    tokenizer = merging_tokenizer()
    prompts = PromptTokenizer(
        HuggingFaceTokenizer(tokenizer), (), find_prompt("A:{sentence}\nB:{sentence}"), prepending=False
    )
    (text,) = prompts.tokenize(["(the bird)"])
    assert tokenizer.decode(text.ids) == "(the bird)"
    assert tokenizer.decode(prompts.prompts[0].fill(text.ids)) == "A:(the bird)\nB:(the bird)"
