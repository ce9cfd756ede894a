"""What looks into models have in common, whatever kind of model it is."""

import numpy as np

import tiny
from stickytoken.inspection.inspectors import inspector_of


def assert_batches_and_order_change_nothing(encoder, monkeypatch):
    contents = [text.ids for text in encoder.tokenize(tiny.sentences(9))]
    labels = [[0] * len(content) for content in contents]
    together = inspector_of(encoder).look(contents, labels, 1)
    monkeypatch.setattr("stickytoken.inspection.protocol._WEIGHTS", 1)
    one_by_one = inspector_of(encoder).look(contents[::-1], labels[::-1], 1)[::-1]
    for left, right in zip(together, one_by_one, strict=True):
        for name in ("hidden", "attention", "supplied", "vector"):
            np.testing.assert_allclose(getattr(left, name), getattr(right, name), atol=1e-5)
