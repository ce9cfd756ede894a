"""Encoders that no token moves: nothing may be called sticky, and the run says why."""

import numpy as np
import pytest

import planted
import tiny
from stickytoken import ProfileSettings, detect
from stickytoken.errors import InputError
from word_bag import WordBag


class Constant:
    """Gives every text the same vector."""

    name = "constant"
    fingerprint = "constant"

    def __init__(self):
        self.tokenizer = tiny.wordpiece_tokenizer()

    def encode(self, texts):
        return np.ones((len(texts), 4), np.float32)


class Deaf(WordBag):
    """Reads only the words of the corpus: other tokens change nothing."""

    def encode(self, texts):
        known = {word for sentence in tiny.sentences(60) for word in sentence.replace(".", " .").split()}
        return super().encode([" ".join(word for word in text.split() if word in known) for text in texts])


def test_candidates_with_equal_rates_are_benign_and_a_note_says_that_the_rule_has_no_width(tmp_path):
    encoder = Deaf(tiny.wordpiece_tokenizer())
    options = {"sentences": planted.small_corpus(), "settings": planted.SMALL, "out": tmp_path / "run"}
    run = detect(encoder, tokens=list("bcdfghjkqxz"), **options)
    assert run.sticky.is_empty()
    assert run.tokens["validation_rate"].drop_nulls().n_unique() == 1
    assert any("have the same validation rate" in note for note in run.method.notes(run))


def test_the_std_method_refuses_a_model_that_nothing_moves(tmp_path):
    with pytest.raises(InputError, match="has a similarity below the model's mean"):
        detect(Constant(), sentences=planted.small_corpus(), settings=planted.SMALL, out=tmp_path / "run")


def test_the_profile_method_refuses_a_model_that_nothing_moves(tmp_path):
    settings = ProfileSettings(insertion="text")
    with pytest.raises(
        InputError, match=r"the same similarity \(1\.0000\): there is nothing that a token could move"
    ):
        detect(Constant(), settings=settings, out=tmp_path / "run")
    assert not (tmp_path / "run" / "run.json").exists()
