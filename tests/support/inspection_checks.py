"""What looks into models have in common, whatever kind of model it is."""

import numpy as np

import tiny
from stickytoken.inspection import inspector_of
from stickytoken.inspection.module_embedding import BatchLimits


def assert_batches_and_order_change_nothing(encoder):
    contents = [text.ids for text in encoder.tokenize(tiny.sentences(9))]
    labels = [[0] * len(content) for content in contents]
    together = inspector_of(encoder).look(contents, labels, 1)
    inspector = inspector_of(encoder)
    inspector.limits = BatchLimits(weights=1)
    one_by_one = inspector.look(contents[::-1], labels[::-1], 1)[::-1]
    for left, right in zip(together, one_by_one, strict=True):
        for name in ("hidden", "attention", "supplied", "vector"):
            np.testing.assert_allclose(getattr(left, name), getattr(right, name), atol=1e-5)
