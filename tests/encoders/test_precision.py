"""The asked precision reaches every module, and a lower one for early rounds is close to the model's own."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense

import tiny
import tiny_architectures as architectures
from naming import naming
from stickytoken import load_encoder
from stickytoken.encoders.compute.precisions import require_agreement
from stickytoken.errors import InputError, ModelError
from stickytoken.loading import set_precision
from stickytoken.machine import Precision
from stickytoken.unit_vectors import unit_vectors

TEXTS = tiny.sentences(20)
HALVES = ("float16", "bfloat16")
# The last digit of a number between 1 and 2.
ROUNDING = {"float16": 2**-10, "bfloat16": 2**-7}


def static_with_dense():
    torch.manual_seed(5)
    modules = [architectures.static_model()[0], Dense(architectures.DIMENSION, 12)]
    return SentenceTransformer(modules=modules, device="cpu")


STACKS = {
    "static": lambda _: static_with_dense(),
    "bert": lambda saved: architectures.stacked(saved("bert"), dense=12, normalize=True),
    "rotary": lambda saved: architectures.stacked(saved("qwen3"), pooling="lasttoken", dense=12),
    "t5": lambda saved: architectures.stacked(saved("t5"), dense=12),
    # The library gives a router's inner modules no precision; the dense layer alone would stay behind.
    "router": lambda saved: architectures.router(
        *(architectures.stacked(saved("bert"), dense=12) for _ in range(2))
    ),
}


@pytest.mark.parametrize(
    "stack",
    ["bert", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("static", "rotary", "t5", "router"))],
)
def test_every_weight_and_vector_has_the_asked_precision(stack, backbone, tmp_path):
    folder = architectures.saved(STACKS[stack](backbone), tmp_path / "model")
    expected = load_encoder(folder, device="cpu").encode(TEXTS)
    weights = set()
    for dtype in ("float32", *HALVES):
        encoder = load_encoder(folder, device="cpu", dtype=dtype)
        kind = getattr(torch, dtype)
        # T5 overflows in float16 but for its output layers, which transformers keeps in float32.
        kept_types = {weight.dtype for name, weight in encoder.model.named_parameters() if ".wo." in name}
        others = {weight.dtype for name, weight in encoder.model.named_parameters() if ".wo." not in name}
        assert (others, encoder.identify().dtype) == ({kind}, dtype)
        assert kept_types <= {torch.float32 if dtype == "float16" else kind}
        tables = {t.dtype for name, t in encoder.model.named_buffers() if "inv_freq" in name}
        assert tables <= {torch.float32}
        weights.add(encoder.identify().weights)
        if dtype == "float32":
            continue
        vectors = encoder.encode(TEXTS)
        rounding = ROUNDING[dtype]
        assert vectors.dtype == np.float32
        assert 0 < np.abs(vectors - expected).max() < 12 * rounding
        # Every number is one that the precision has.
        assert np.array_equal(vectors, torch.from_numpy(vectors).to(kind).float().numpy())
        narrow = load_encoder(folder, device="cpu", dtype=dtype, token_budget=1)
        np.testing.assert_allclose(narrow.encode(TEXTS), vectors, rtol=0, atol=2 * rounding)
    assert len(weights) == 3


def test_a_file_of_lower_precision_is_read_in_the_full_one(tmp_path):
    half = architectures.saved(static_with_dense().half(), tmp_path / "model")
    assert {tensor.dtype for tensor in load_file(half / "model.safetensors").values()} == {torch.float16}
    encoder = load_encoder(half, device="cpu")
    whole_precision = load_encoder(static_with_dense())
    assert {weight.dtype for weight in encoder.model.parameters()} == {torch.float32}
    np.testing.assert_allclose(
        encoder.encode(TEXTS), whole_precision.encode(TEXTS), rtol=0, atol=ROUNDING["float16"]
    )


def test_a_precision_that_an_operation_lacks_is_told_when_the_model_is_loaded(
    backbone, tmp_path, monkeypatch
):
    folder = architectures.saved(architectures.stacked(backbone("bert")), tmp_path / "model")

    def unsupported(self, features, **options):
        raise RuntimeError("expected m1 and m2 to have the same dtype")

    monkeypatch.setattr(SentenceTransformer, "forward", unsupported)
    with pytest.raises(ModelError, match=naming(repr(str(folder)), "float16", "cpu", "float32")) as caught:
        load_encoder(folder, device="cpu", dtype="float16")
    assert "support" not in str(caught.value)  # a RuntimeError may have any cause


def test_a_backbone_that_ignores_the_asked_precision_is_told(model):
    with pytest.raises(ModelError, match=naming("'mine'", "bfloat16", "BertModel")):
        set_precision(model, "bfloat16", "mine")


# Architectures with a block that ends in a GELU, with gated blocks, and a causal one.
@pytest.mark.parametrize("name", ["bert", "modernbert", "gemma2"])
def test_vectors_are_near_those_of_the_models_own_precision(name, backbone):
    encoder = load_encoder(architectures.stacked(backbone(name), dense=16, normalize=True))
    own_vectors = encoder.encode(TEXTS)
    lower_vectors = encoder.at(Precision.BFLOAT16).encode(TEXTS)
    assert (own_vectors * unit_vectors(lower_vectors)).sum(axis=1).min() > 0.999
    assert np.abs(own_vectors - lower_vectors).max() > 1e-5
    assert np.array_equal(encoder.encode(TEXTS), own_vectors)


def test_a_precision_that_cannot_be_had_is_an_error_that_names_it(model, tmp_path):
    encoder = load_encoder(model)
    assert encoder.at(Precision.BFLOAT16) is encoder.at(Precision.BFLOAT16)
    for precision in (Precision.FLOAT16, Precision.TF32):
        with pytest.raises(InputError, match=naming(precision, "cpu")):
            encoder.at(precision)
    half = load_encoder(model.to(torch.bfloat16))
    with pytest.raises(InputError, match=naming(half.name, "bfloat16")):
        half.at(Precision.BFLOAT16)
    short = load_encoder(tiny.sentence_transformer(tiny.bert_backbone(tmp_path, max_length=6)))
    with pytest.raises(InputError, match=naming(short.name, "bfloat16")):
        short.at(Precision.BFLOAT16)
    exact = np.eye(3, dtype=np.float32)
    other = np.ones((3, 3), dtype=np.float32)
    with pytest.raises(InputError, match=naming("bfloat16", "m", "0.58")):
        require_agreement(exact, other, Precision.BFLOAT16, "m")
