"""A server may give no vector for a text: its token has no numbers, and the other tokens keep theirs."""

from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest

from naming import naming
from stickytoken.errors import EncodingError
from stickytoken.insertion import Token
from stickytoken.measurement import texts
from stickytoken.measurement.engine import Shard, ignore_progress
from stickytoken.measurement.stages import UNANSWERED, TokenWork
from stickytoken.methods.runner import Runner

TOKENS = (Token(1, "one"), Token(2, "two"), Token(3, "three"))
# Texts of each token, with the number that stands for its vector; None where the server gives none.
ANSWERS = {
    "one at 0": 1.0,
    "one at 1": 2.0,
    "two at 0": 3.0,
    "two at 1": None,
    "two at 2": 5.0,
    "three at 0": 7.0,
    "three at 1": 9.0,
}


@dataclass
class UnevenStage:
    """A stage with two texts of the first and the last token, and three of the second."""

    name = "uneven"
    seen_vectors: dict[int, list[float]]

    def probes(self, token):
        return [text for text in ANSWERS if text.startswith(f"{token.text} ")]

    def measure(self, tokens, vectors):
        remaining = vectors[:, 0].tolist()
        for token in tokens:
            self.seen_vectors[token.id] = [remaining.pop(0) for _ in self.probes(token)]
        return [{"mean": np.mean(self.seen_vectors[token.id])} for token in tokens]


def serve(answers):
    def encode(texts, *, allow_zero=False):
        values = [answers[text] for text in texts]
        return np.array([[np.nan if value is None else value] * 2 for value in values], np.float32)

    return SimpleNamespace(name="server", encode=encode)


def computed(answers):
    encoder = serve(answers)
    stage = UnevenStage({})
    work = TokenWork(stage)
    prepared = work.prepare(Shard(0, TOKENS), encoder)
    rows, texts = work.compute(prepared, encoder)
    assert texts == len(ANSWERS)
    return rows, stage.seen_vectors


def test_every_token_gets_its_own_texts_however_many_the_others_have():
    rows, texts_seen = computed(ANSWERS | {"two at 1": 4.0})
    assert texts_seen == {1: [1.0, 2.0], 2: [3.0, 4.0, 5.0], 3: [7.0, 9.0]}
    assert all(UNANSWERED not in row for row in rows)


def test_a_missing_vector_is_the_mean_of_the_others_at_its_place_and_its_token_is_named():
    rows, texts_seen = computed(ANSWERS)
    assert texts_seen == {1: [1.0, 2.0], 2: [3.0, (2.0 + 9.0) / 2, 5.0], 3: [7.0, 9.0]}
    assert [row[UNANSWERED] for row in rows] == [None, "two at 1", None]


def test_a_place_without_any_vector_is_an_error_that_names_a_text():
    with pytest.raises(EncodingError, match=naming("server", "'two at 2'")):
        computed(ANSWERS | {"two at 2": None})


def test_a_text_without_a_vector_is_an_error_that_names_it(monkeypatch):
    def encode(answers):
        return Runner.in_memory(serve(answers), ignore_progress).encode("texts", list(answers))

    with pytest.raises(EncodingError, match=naming("server", "'two at 1'")):
        encode(ANSWERS)
    monkeypatch.setattr(texts, "_SHARD_TEXTS", 2)
    answers = ANSWERS | {"two at 1": 4.0}
    numbers = list(answers.values())
    np.testing.assert_array_equal(encode(answers), np.transpose([numbers, numbers]))
