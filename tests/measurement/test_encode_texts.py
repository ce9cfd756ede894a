"""Texts that are encoded with progress."""

import numpy as np

import profiled
from stickytoken.measurement.engine import encode_texts


def test_vectors_are_those_of_the_encoder_in_the_order_of_the_texts(encoder):
    texts = profiled.sentences(300)
    steps = []
    vectors = encode_texts(encoder, texts, "plain texts", steps.append)
    np.testing.assert_allclose(vectors, encoder.encode(texts), atol=1e-6)
    assert [(step.done, step.total) for step in steps] == [(0, 300), (128, 300), (256, 300), (300, 300)]
    assert {step.stage for step in steps} == {"plain texts"}
