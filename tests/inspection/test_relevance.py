"""Relevance by the rules of BiLRP: conserved, and equal to gradients where the rules are written out."""

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch.nn import functional

import tiny_architectures as architectures
from stickytoken import load_encoder
from stickytoken.errors import ModelError
from stickytoken.inspection import inspector_of
from stickytoken.inspection._embedded_text import EmbeddedText
from stickytoken.inspection.relevance import relevance
from stickytoken.inspection.similarity_matrix import similarity_matrix

TEXT = "the river sings near the bridge"
COVERED = ("bert", "distilbert", "mpnet", "roberta", "xlm-roberta", "t5")
GATED = ("modernbert", "qwen2")
WIDTH, POSITIONS = 6, 4


def kinds(names):
    found = [each for each in architectures.ARCHITECTURES if each.name in names]
    return pytest.mark.parametrize("architecture", found, ids=lambda each: each.name)


class Network:
    """A layer of attention and one of GELU, each with a residual and a normalisation, then a mean.

    Args:
        generator: draws the weights.
        written_out: stop the gradients of what the rules hold constant.
    """

    def __init__(self, generator, *, written_out=False):
        def drawn(*shape):
            return torch.randn(shape, generator=generator, dtype=torch.float64)

        self.query, self.key, self.value, self.up, self.down = (drawn(WIDTH, WIDTH) for _ in range(5))
        self.biases = [drawn(WIDTH) for _ in range(5)]
        self.scales = [drawn(WIDTH), drawn(WIDTH)]
        self.held = torch.Tensor.detach if written_out else None

    def __call__(self, rows):
        scores = rows @ self.query @ (rows @ self.key).transpose(1, 2)
        weights = functional.softmax(scores, dim=-1)
        weights = self.held(weights) if self.held else weights
        states = self.normed(rows + weights @ (rows @ self.value + self.biases[0]), 0)
        hidden = states @ self.up + self.biases[1]
        active = functional.gelu(hidden)
        active = hidden * self.held(active / hidden) if self.held else active
        return self.normed(states + active @ self.down + self.biases[2], 1).mean(dim=1)

    def normed(self, rows, place):
        scale, bias = self.scales[place], self.biases[3 + place]
        if not self.held:
            return functional.layer_norm(rows, (WIDTH,), scale, bias, 1e-6)
        centred = rows - rows.mean(dim=-1, keepdim=True)
        deviation = (centred.square().mean(dim=-1, keepdim=True) + 1e-6).sqrt()
        return centred / self.held(deviation) * scale + bias


class HandWritten:
    """An inspector of a hand-written network, whose text has a special token in front."""

    def __init__(self, network, rows):
        places = torch.arange(len(rows)) - 1
        self.text = EmbeddedText(rows, torch.zeros(WIDTH, dtype=rows.dtype), places, network)

    def differentiating(self):
        return nullcontext()

    def embedded(self, content):
        assert len(content) == len(self.text.rows) - 1
        return self.text


def gradients_times_inputs(network, rows):
    """Relevance of every position for every component, by reverse mode, shape (positions, d)."""
    inputs = rows[None].clone().requires_grad_()
    vector = network(inputs)[0]
    relevances = [
        (torch.autograd.grad(component, inputs, retain_graph=True)[0][0] * rows).sum(dim=1)
        for component in vector
    ]
    return (torch.stack(relevances, dim=1) / vector.norm()).detach().numpy()


def test_pairs_are_products_of_two_relevance_passes_through_a_hand_written_network():
    generator = torch.Generator().manual_seed(3)
    rows = torch.randn((2, POSITIONS + 1, WIDTH), generator=generator, dtype=torch.float64)
    plain = Network(torch.Generator().manual_seed(4))
    written_out = Network(torch.Generator().manual_seed(4), written_out=True)
    found = [relevance(HandWritten(plain, each), range(POSITIONS), range(POSITIONS)) for each in rows]
    one, other = (gradients_times_inputs(written_out, each)[1:] for each in rows)
    np.testing.assert_allclose(found[0].parts, one, atol=1e-12)
    np.testing.assert_allclose(similarity_matrix(*found)[:-1, :-1], one @ other.T, atol=1e-12)
    assert similarity_matrix(*found).sum() == pytest.approx(found[0].vector @ found[1].vector, abs=1e-12)


def test_parts_are_sums_of_their_tokens(encoder):
    ids = encoder.tokenize([TEXT])[0].ids
    inspector = inspector_of(encoder)
    single = relevance(inspector, ids, range(len(ids)))
    joined = relevance(inspector, ids, [0, 0, *range(1, len(ids) - 1)])
    np.testing.assert_allclose(joined.parts[0], single.parts[:2].sum(axis=0), atol=1e-6)
    np.testing.assert_allclose(joined.parts[1:], single.parts[2:], atol=1e-6)


@kinds(COVERED)
def test_relevance_is_conserved(architecture, tmp_path):
    model = architectures.stacked(
        architecture.save(tmp_path), pooling=architecture.poolings[0], dense=12, normalize=True
    )
    encoder = load_encoder(model)
    ids = encoder.tokenize([TEXT])[0].ids
    found = relevance(inspector_of(encoder), ids, range(len(ids)))
    np.testing.assert_allclose(found.vector, encoder.encode_ids([ids])[0], atol=1e-5)
    assert found.error < 1e-4
    assert np.linalg.norm(found.parts, axis=1).min() > 1e-4


@kinds(GATED)
def test_a_model_with_steps_that_no_rule_covers_is_refused(architecture, tmp_path):
    encoder = load_encoder(architectures.stacked(architecture.save(tmp_path), normalize=True))
    ids = encoder.tokenize([TEXT])[0].ids
    with pytest.raises(ModelError, match="the rules of bilrp do not cover all steps of this model"):
        relevance(inspector_of(encoder), ids, range(len(ids)))


def test_a_static_model_is_split_exactly():
    encoder = load_encoder(architectures.static_model())
    ids = encoder.tokenize([TEXT])[0].ids
    found = relevance(inspector_of(encoder), ids, range(len(ids)))
    rows = encoder.model[0].embedding.weight.detach().numpy()[list(ids)]
    np.testing.assert_allclose(found.parts, rows / np.linalg.norm(rows.sum(axis=0)), atol=1e-6)
