"""Kinds and scripts of vocabulary entries, for the three ways in which tokenizers mark words."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stickytoken.vocabulary import NO_SCRIPT, Category, Kind, WordMark, kind_of, script_of, word_mark


@pytest.mark.parametrize(
    ("tokens", "mark"),
    [
        (["[CLS]", "the", "##ing", "##s", "#", "##"], WordMark.CONTINUED),
        (["<s>", "Ġthe", "ing", "Ġ", "Ċ"], WordMark.BYTE_LEVEL),
        (["<s>", "▁the", "ing", "▁"], WordMark.SENTENCEPIECE),
        (["the", "##"], WordMark.NONE),
    ],
)
def test_the_mark_of_a_vocabulary_is_the_most_frequent_one(tokens, mark):
    assert word_mark(tokens) is mark


@pytest.mark.parametrize(
    ("token", "decoded", "category", "mark", "kind"),
    [
        ("[CLS]", "[CLS]", "OK", WordMark.CONTINUED, Kind.SPECIAL),
        ("</s>", "</s>", "OK_SPECIAL", WordMark.SENTENCEPIECE, Kind.SPECIAL),
        ("<|endoftext|>", "<|endoftext|>", "OK", WordMark.BYTE_LEVEL, Kind.SPECIAL),
        ("pad", "pad", "UNREACHABLE_SPECIAL", WordMark.NONE, Kind.SPECIAL),
        ("[unused17]", "[unused17]", "UNREACHABLE_SPECIAL", WordMark.CONTINUED, Kind.UNUSED),
        ("<extra_id_3>", "<extra_id_3>", "OK_SPECIAL", WordMark.SENTENCEPIECE, Kind.UNUSED),
        ("<0x0A>", "\n", "OK", WordMark.SENTENCEPIECE, Kind.BYTE),
        ("Ã", "\ufffd", "UNDECODEABLE", WordMark.BYTE_LEVEL, Kind.BYTE),
        ("!", "!", "OK", WordMark.CONTINUED, Kind.SYMBOL),
        ("[]", "[]", "OK", WordMark.CONTINUED, Kind.SYMBOL),
        ("##ing", "ing", "OK", WordMark.CONTINUED, Kind.SUBWORD),
        ("the", "the", "OK", WordMark.CONTINUED, Kind.WORD),
        ("Ġthe", " the", "OK", WordMark.BYTE_LEVEL, Kind.WORD),
        ("the", "the", "OK", WordMark.BYTE_LEVEL, Kind.SUBWORD),
        ("▁the", " the", "OK", WordMark.SENTENCEPIECE, Kind.WORD),
        ("the", "the", "OK", WordMark.SENTENCEPIECE, Kind.SUBWORD),
        ("the", "the", "OK", WordMark.NONE, Kind.WORD),
    ],
)
def test_the_kind_of_an_entry(token, decoded, category, mark, kind):
    assert kind_of(token, decoded, category, mark) is kind


@pytest.mark.parametrize(
    ("text", "script"),
    [
        ("##ж", "Cyrillic"),
        ("жab", "Latin"),
        ("ᚠ", "Other"),
        ("1\ud800!", NO_SCRIPT),
    ],
)
def test_the_script_is_that_of_most_letters(text, script):
    assert script_of(text) == script


@given(st.text(), st.text(), st.sampled_from([each.value for each in Category]), st.sampled_from(WordMark))
def test_every_entry_has_a_kind_and_a_script(token, decoded, category, mark):
    assert kind_of(token, decoded, category, mark) in Kind
    if any(unicodedata.category(character).startswith("L") for character in decoded):
        assert script_of(decoded) != NO_SCRIPT
